# SPDX-License-Identifier: Apache-2.0
"""Builds and deletes of guests on a host.

    record the claim as pending → check again against what really runs here →
    have the scheduler confirm it → only after "ok" start the guest → record it

A guest never starts on a claim that was not confirmed in this very attempt,
and never twice for one claim: each step is in the journal before its effect.
"""

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.compute.agent import running_guests
from gantt.compute.agent.journal import (
    FINISHED,
    PENDING,
    RUNNING,
    STARTING,
    STOPPING,
    Journal,
    JournalEntry,
    Stamp,
)
from gantt.compute.agent.running_guests import GuestInventory
from gantt.compute.agent.session import Fenced, Session
from gantt.compute.ports import GuestDriver, GuestError, HostReadings, RunningGuest
from gantt.core.messages.build import Build, Delete

LOG = logging.getLogger(__name__)

WAIT_SECONDS_FIRST, WAIT_SECONDS_MAX = 0.2, 5.0
PENDING_CHECK_SECONDS = 0.05


class BuildOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a build or a delete.

    ``outcome`` of a build: running | in_progress | refused (by the second
    check) | gone (the claim does not hold any more) | unconfirmed (the
    scheduler did not answer while the claim could hold) | failed (to start) |
    deleted (meanwhile) | finished (it ended before; it is not started again).
    Of a delete: deleted | unknown (nothing of it is here) | failed.
    """

    consumer: str
    claim_id: str | None
    outcome: str
    reason: str = ''


class Halted(Exception):
    """An error of an agent that was stopped at once; it does nothing more."""


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits of an agent, in seconds."""

    confirm_seconds: float = 120.0
    wait_for_other_seconds: float = 300.0
    tombstone_seconds: float = 172_800.0
    #: Wait for the outcome of builds whose room another one needs.
    pending_seconds: float = 2.0
    #: Without a disagreement for so long, builds are not checked here; None: always.
    trusted_seconds: float | None = None


class _Problem(NamedTuple):
    """Reason why a build does not fit.

    :ivar views: the host's view, where the scheduler's must differ
    """

    text: str
    views: str = ''


class Agent:
    """Agent of one host, which builds guests; all methods may be called from any thread.

    :param on_change: called after a guest started or ended: report soon; with True
        where the scheduler's answer leaves a doubt whether it knows this host: report
        everything, and read its answer
    :param event: creates the events to wait on: the simulator has its own time
    """

    def __init__(
        self,
        session: Session,
        driver: GuestDriver,
        journal: Journal,
        on_change: Callable[[bool], None],
        terms: AgentSettings | None = None,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        event: Callable[[], threading.Event] = threading.Event,
    ) -> None:
        self.name = session.name
        self.disagreements = self.failed_builds = 0
        self._session = session
        self._driver = driver
        self._journal = journal
        self._on_change = on_change
        self._terms = terms or AgentSettings()
        self._wall = wall
        self._monotonic = monotonic
        self._check_lock = threading.Lock()
        self._claims_in_work: dict[str, threading.Event] = {}
        self._starting_claims: set[str] = set()  # by this process, not by one that crashed
        self.trust = Trust(self.name, journal, self._terms.trusted_seconds, wall)
        self._event = event
        self._halted = event()
        self._recovered = event()

    # -- build -------------------------------------------------------------------
    def build(self, build: Build) -> BuildOutcome:
        """Build a guest, once recovery is done, in all steps on the caller's thread.

        :raises InvalidMessage: it is for another host
        :raises Fenced: another agent reports for this host
        """
        self._check_host(build.host)
        self._session.raise_if_fenced()
        if not self._recovered.wait(self._terms.confirm_seconds):
            return _build_outcome(build, 'unconfirmed', 'it is not known yet what runs here')
        with self._exclusively(build.claim_id) as is_exclusive:
            if not is_exclusive:
                return _build_outcome(build, 'in_progress')
            entry = self._journal.get(build.claim_id)
            if entry is None:
                refusal = self._check(build)
                if refusal is not None:
                    return refusal
                entry = self._journal.get(build.claim_id)
            if entry is not None and entry.consumer != build.consumer:
                # The scheduler's database was put back: it gave the claim away once more.
                problem = f'the claim is that of consumer {entry.consumer} here'
                return _build_outcome(build, 'refused', problem)
            if entry is None or entry.state in (FINISHED, RUNNING, STOPPING):
                return _known_outcome(build, entry)
            return self._confirm_and_start(entry)

    @property
    def has_pending(self) -> bool:
        """True where a build is pending that no thread works on."""
        return any(
            e.state == PENDING and e.claim_id not in self._claims_in_work
            for e in self._journal.live()
        )

    def resume(self) -> list[BuildOutcome]:
        """Continue pending builds that no thread works on, such as after a restart.

        Nothing more happens where another agent reports for this host, or this one was stopped.
        """
        outcomes = []
        with contextlib.suppress(Fenced, Halted):
            for entry in self._journal.live():
                if entry.state == PENDING:
                    outcomes.append(self.build(entry.build))
        return outcomes

    def _check(self, build: Build) -> BuildOutcome | None:
        """Record the claim in the journal as pending, or refuse the build.  One build at a time.

        Where it would fit but for builds that are not confirmed yet, their outcome is waited
        for first, within a bound: their claims may be cancelled.
        """
        end = self._monotonic() + self._terms.pending_seconds
        while True:
            checked, problem, pending = self._checked(build, self._monotonic() >= end)
            if checked:
                break
            self._wait_for_one_of(pending, end)
        if not problem:
            return None
        self._step()
        self._session.refuse([build.claim_id], problem)
        self._on_change(False)
        return _build_outcome(build, 'refused', problem)

    def _wait_for_one_of(self, pending: frozenset[str], end: float) -> None:
        """Wait until one of the claims ``pending`` is not pending any more, or until ``end``."""
        while (remaining := end - self._monotonic()) > 0:
            entries = map(self._journal.get, pending)
            if any(entry is None or entry.state != PENDING for entry in entries):
                return
            self._step()
            self._halted.wait(min(PENDING_CHECK_SECONDS, remaining))

    def _checked(self, build: Build, is_last: bool) -> tuple[bool, str, frozenset[str]]:
        """Return whether it was decided, why it does not fit, and the pending claims to wait for.

        :param is_last: decide, whatever is pending
        """
        with self._check_lock:
            problem, pending = self._problem(build)
            if pending and not is_last:
                return False, '', pending
            if problem:
                self._disagree(build, problem)
            entry = JournalEntry(
                build=build,
                state=FINISHED if problem else PENDING,
                lease_until=self._wall() + (build.lease_seconds or self._terms.confirm_seconds),
                reason=f'refused: {problem.text}' if problem else '',
            )
            self._step()
            self._journal.add(entry)
        return True, problem.text if problem else '', frozenset()

    def _problem(self, build: Build) -> tuple[_Problem | None, frozenset[str]]:
        """Return why a build does not fit what runs here, and the pending builds in its way.

        The latter are set only where it would fit without them.
        """
        nothing: frozenset[str] = frozenset()
        objection = self._driver.objection(build)
        if objection:
            return _Problem(objection), nothing
        if self.trust.check_is_off:
            return None, nothing
        now = running_guests.take_inventory(self._driver, self._journal)
        if now.running is None:
            return _Problem('it cannot be said what runs here now'), nothing
        entries = self._journal.live()
        facts = running_guests.outside_claims(self._driver.facts(now.guests), entries)
        used = now.used()
        foreign = facts.foreign if isinstance(facts.foreign, dict) else {}
        answer = running_guests.check_build(build, facts, used, foreign, entries)
        if answer.ok:
            return None, nothing
        views = (
            f'it takes {build.resources}; here are '
            f'{ {name: entry.cap for name, entry in facts.inventories.items()} }, used by guests '
            f'{used}, by others {foreign}'
        )
        problem = _Problem(answer.reason, views)
        pending = frozenset(entry.claim_id for entry in entries if entry.state == PENDING)
        confirmed = [entry for entry in entries if entry.claim_id not in pending]
        if (
            pending
            and running_guests.check_build(build, facts, now.used(pending), foreign, confirmed).ok
        ):
            return problem, pending
        return problem, nothing

    def _disagree(self, build: Build, problem: _Problem) -> None:
        if not problem.views:
            return
        self.disagreements += 1
        self.trust.disagreed(problem.text)
        LOG.warning(
            'Check of a build by the host disagrees with the scheduler: host=%s claim=%s '
            'views=%s reason=%s',
            self.name,
            build.claim_id,
            problem.views,
            problem.text,
        )

    def _confirm_and_start(self, entry: JournalEntry) -> BuildOutcome:
        build = entry.build
        entry_now, outcome = self._confirmed(entry)
        if entry_now is None:
            if self._journal.change_state(entry.claim_id, (PENDING,), FINISHED, outcome.outcome):
                self._on_change(outcome.outcome == 'gone')
                return outcome
            return _build_outcome(build, 'deleted')
        self._step()
        self._starting_claims.add(entry.claim_id)
        if not self._journal.change_state(entry.claim_id, (PENDING,), STARTING, query=entry_now):
            # Deleted while the query was under way.
            self._release([entry.claim_id], 'deleted before it started')
            return _build_outcome(build, 'deleted')
        self._step()
        try:
            self._driver.start(build)
        except GuestError as e:
            return self._failed(build, e)
        self._step()
        self._journal.change_state(entry.claim_id, (STARTING,), RUNNING)
        self.failed_builds = 0
        self._on_change(False)
        return _build_outcome(build, 'running')

    def _confirmed(self, entry: JournalEntry) -> tuple[Stamp | None, BuildOutcome]:
        """Have a claim confirmed, until there is an answer or the claim can no longer hold.

        Each try is a new query; only the answer to the last one, in its own epoch, counts.
        """
        build = entry.build
        end = self._monotonic() + min(
            max(0.0, entry.lease_until - self._wall()),
            build.lease_seconds or self._terms.confirm_seconds,
        )
        wait, reason = WAIT_SECONDS_FIRST, 'the lease ran out before it could be asked'
        while True:
            self._step()
            try:
                stamp = self._session.stamp()
                if not self._journal.note_query(entry.claim_id, stamp):
                    return None, _build_outcome(build, 'deleted')
                result = self._session.confirm(stamp, build.claim_id)
                if result == 'ok':
                    return stamp, _build_outcome(build, 'running')
                if result:
                    return None, _build_outcome(build, 'gone', 'the claim does not hold any more')
                self._on_change(True)
            except Fenced as e:
                return None, _build_outcome(build, 'gone', str(e))
            except exceptions.Unavailable as e:
                reason = str(e)
            except exceptions.Refused as e:
                return None, _build_outcome(build, 'gone', str(e))
            remaining = end - self._monotonic()
            if remaining <= 0:
                LOG.error(
                    'Claim was not confirmed in time: claim=%s error=%s', build.claim_id, reason
                )
                return None, _build_outcome(build, 'unconfirmed', reason)
            self._halted.wait(min(wait, remaining))
            wait = min(wait * 2, WAIT_SECONDS_MAX)

    def _failed(self, build: Build, error: GuestError) -> BuildOutcome:
        LOG.error(
            'Guest failed to start: host=%s claim=%s error=%s', self.name, build.claim_id, error
        )
        self.failed_builds += 1
        guest = RunningGuest.of(build)
        self._journal.change_state(build.claim_id, (STARTING,), STOPPING, str(error))
        try:
            self._driver.stop(guest)  # whatever is left of it
        except GuestError as e:
            # It may run after all: it stays listed until a delete succeeds.
            LOG.error(
                'Guest that failed to start cannot be stopped: host=%s claim=%s error=%s',
                self.name,
                build.claim_id,
                e,
            )
            self._on_change(False)
            return _build_outcome(build, 'failed', str(error))
        self._journal.change_state(build.claim_id, (STOPPING,), FINISHED, f'failed: {error}'[:1000])
        self._release([build.claim_id], str(error)[:1000])
        self._on_change(False)
        return _build_outcome(build, 'failed', str(error))

    # -- delete -------------------------------------------------------------------
    def delete(self, delete: Delete) -> BuildOutcome:
        """Stop a guest and release its claim.

        A delete that comes before its build makes sure that nothing starts.

        :raises InvalidMessage: it is for another host
        """
        self._check_host(delete.host)
        targets = self._claims_to_delete(delete)
        if not targets:
            if delete.claim_id is not None:
                self._tombstone(delete.consumer, delete.claim_id)
                self._release([delete.claim_id], delete.reason)
            return BuildOutcome(
                consumer=delete.consumer, claim_id=delete.claim_id, outcome='unknown'
            )
        problem = ''
        for guest in targets:
            problem = self._stop(guest, delete.reason) or problem
        self._on_change(False)
        return BuildOutcome(
            consumer=delete.consumer,
            claim_id=delete.claim_id,
            outcome='failed' if problem else 'deleted',
            reason=problem,
        )

    def _claims_to_delete(self, delete: Delete) -> list[RunningGuest]:
        """Return the consumer's guests on this host, those being built included."""
        journal_guests: dict[str | None, RunningGuest] = {
            e.claim_id: RunningGuest.of(e.build)
            for e in self._journal.of_consumer(delete.consumer)
            if e.state != FINISHED
        }
        guests = dict(journal_guests)
        try:
            driver_guests = self._driver.guests() or []
        except GuestError:
            if not journal_guests:
                raise
            driver_guests = []
        for guest in driver_guests:
            if guest.consumer == delete.consumer and (guest.claim_id or not journal_guests):
                guests.setdefault(guest.claim_id, guest)
        return [guest for guest in guests.values() if delete.claim_id in (None, guest.claim_id)]

    def _stop(self, guest: RunningGuest, reason: str) -> str:
        """Stop one guest for good; return the problem, '' where it has ended."""
        claim_id = guest.claim_id
        if claim_id is not None:
            if self._journal.change_state(claim_id, (PENDING,), FINISHED, 'deleted'):
                self._release([claim_id], reason)
                return ''
            work = self._claims_in_work.get(claim_id)
            if work is not None and not work.wait(self._terms.wait_for_other_seconds):
                return 'it is still being started'
            self._step()
            if not self._journal.change_state(claim_id, (RUNNING, STARTING), STOPPING):
                # The journal was lost: a build that comes now must not start it again.
                self._tombstone(guest.consumer, claim_id, STOPPING)
        self._step()
        try:
            self._driver.stop(guest)
        except GuestError as e:
            LOG.error('Guest cannot be stopped: host=%s claim=%s error=%s', self.name, claim_id, e)
            return str(e)
        self._step()
        if claim_id is not None:
            if not self._journal.change_state(claim_id, (STOPPING,), FINISHED, 'deleted'):
                self._tombstone(guest.consumer, claim_id)
            self._release([claim_id], reason)
        return ''

    def _tombstone(self, consumer: str, claim_id: str, state: str = FINISHED) -> None:
        """Record a claim as finished, so that a later build of it never starts a guest."""
        build = Build(claim_id=claim_id, consumer=consumer, host=self.name, resources={})
        self._journal.add(JournalEntry(build=build, state=state, reason='deleted'))

    # -- after a restart -----------------------------------------------------------
    def recover(self) -> None:
        """Bring the journal in line with what runs, before the first report.

        :raises GuestError: the guests here cannot be listed; try again
        """
        for entry in running_guests.resume_after_boot(
            self._driver, self._journal, self._starting_claims
        ):
            LOG.warning(
                'Claim of an earlier run of the agent is released: host=%s claim=%s state=%s',
                self.name,
                entry.claim_id,
                entry.state,
            )
            self._release([entry.claim_id], f'was {entry.state} when the agent ended')
        self._journal.purge(self._terms.tombstone_seconds)
        self._recovered.set()

    def purge_journal(self) -> int:
        """Delete old tombstones from the journal; return their number."""
        return self._journal.purge(self._terms.tombstone_seconds)

    def halt(self) -> None:
        """Let nothing more happen through this agent, nor finish what is under way."""
        self._halted.set()
        self._recovered.set()

    # -- claims ----------------------------------------------------------------------
    def _release(self, claim_ids: list[str], reason: str) -> None:
        self._step()
        self._session.release(claim_ids, reason)

    def _step(self) -> None:
        if self._halted.is_set():
            raise Halted

    def _check_host(self, host: str) -> None:
        if host != self.name:
            raise exceptions.invalid(
                'host', f'expected {self.name!r}, which this agent reports for'
            )

    @contextlib.contextmanager
    def _exclusively(self, claim_id: str) -> Iterator[bool]:
        """Hold a claim for this thread; yield False where another thread works on it."""
        done = self._event()
        if self._claims_in_work.setdefault(claim_id, done) is not done:
            yield False
            return
        try:
            yield True
        finally:
            self._starting_claims.discard(claim_id)
            del self._claims_in_work[claim_id]
            done.set()


def _build_outcome(build: Build, outcome: str, reason: str = '') -> BuildOutcome:
    return BuildOutcome(
        consumer=build.consumer, claim_id=build.claim_id, outcome=outcome, reason=reason
    )


def _known_outcome(build: Build, entry: JournalEntry | None) -> BuildOutcome:
    if entry is not None and entry.state == RUNNING:
        return _build_outcome(build, 'running')
    return _build_outcome(build, 'finished', entry.reason if entry else '')


DAY_SECONDS = 86_400.0
#: A machine whose clock is below this has not set it yet: nothing can be counted from then.
CLOCK_SET_SINCE = 1_600_000_000.0


@dataclasses.dataclass(eq=False)
class Trust:
    """State of a host's own check of builds, on or off; stored in the host's journal.

    The scheduler and the host judge by one library, so they disagree only where their views of
    the host differ.  A site may leave the host's own check out once they have agreed for a stated
    time; the first disagreement that is seen turns it on again.

    :ivar seconds: without a disagreement for so long, the check is left out; None: never
    :ivar wall: seconds of a clock that goes on over restarts
    """

    host: str
    journal: Journal
    seconds: float | None
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._was_off = False

    @property
    def check_is_off(self) -> bool:
        """True where the host accepts builds without its own check."""
        if self.seconds is None:
            return False
        since, now = self.journal.agreed_since, self.wall()
        if since < CLOCK_SET_SINCE <= now:
            # Else the first good clock after a start without one would turn it into years.
            self.journal.note_disagreement()
            since = now
        off = now - since >= self.seconds
        if off and not self._was_off:
            LOG.info(
                'Host accepts builds without its own check, as configured: for '
                '[compute] trusted_after_days this check has refused nothing that the scheduler '
                'placed; it resumes at the first disagreement; to keep it, set '
                '[compute] check = always: host=%s agreed_since=%s',
                self.host,
                time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(since)),
            )
        self._was_off = off
        return off

    @property
    def unchecked_days(self) -> float:
        """Days that the check has been off; 0: it is on."""
        if self.seconds is None or not self.check_is_off:
            return 0.0
        off = self.wall() - self.journal.agreed_since - self.seconds
        return round(max(off, 1.0) / DAY_SECONDS, 3)

    def disagreed(self, reason: str) -> None:
        """Turn the check on, and restart the time without a disagreement."""
        was_off, self._was_off = self._was_off, False
        self.journal.note_disagreement()
        if was_off:
            LOG.warning('Host checks builds itself again: host=%s reason=%s', self.host, reason)

    def watch(self, seen: GuestInventory, facts: HostReadings) -> None:
        """Turn the check on where running guests and foreign use exceed the capacity of a class."""
        if not self.check_is_off:
            return
        foreign: Mapping[str, int] = facts.foreign if isinstance(facts.foreign, dict) else {}
        for name, amount in GuestInventory(seen.running, None).used().items():
            inventory = facts.inventories.get(name)
            cap = 0 if inventory is None else inventory.cap
            if amount + foreign.get(name, 0) > cap:
                self.disagreed(
                    f'guests use {amount} {name}, others {foreign.get(name, 0)}, of {cap}'
                )
                return
