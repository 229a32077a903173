# SPDX-License-Identifier: Apache-2.0
"""Shadow mode: observe another scheduler's requests, decide too, compare, change nothing.

    observed: a request → decide it as a dry run → remember
    observed: guests of a host, begins and ends of the other scheduler → remember
    both known, or time is up → compare, with the explanation of a stored decision → keep, count

A dry run claims nothing and answers no caller.  The memory is bounded in number and in time.
"""

import dataclasses
import logging
import math
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from gantt import exceptions
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Answer, Score
from gantt.core.records.shadow import (
    ComparedChoice,
    Observation,
    ObservedBegin,
    ObservedEnd,
    ObservedGuests,
    ObservedRequest,
    ShadowVerdict,
)
from gantt.insights.views import Explanation, ScoreRow
from gantt.scheduler.ports.process import Clock
from gantt.scheduler.ports.records import Shadows

LOG = logging.getLogger(__name__)

IDLE_SECONDS = 0.5
#: Maximum number of comparisons that are written at once, and that wait for the database.
BATCH_SIZE, UNSTORED_MAX = 100, 10_000
#: Seconds to wait for an explanation: a decision is stored a moment after it is reached.
DECISION_STORED_SECONDS = 5.0
#: Maximum number of weighers that are named where two hosts differ.
WEIGHERS_SHOWN = 3
#: Scores that differ by less than this are the same: sums of the same numbers in another order.
SCORE_TOLERANCE = 1e-9
#: Text in the sentence about a host that a filter removed.
_REMOVED_TEXT = ' was removed by '


class ShadowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of [shadow].

    :ivar outcome_seconds: time to listen for the outcome of a request
    :ivar pending_max: requests that are remembered meanwhile
    :ivar comparisons_most: comparisons that are stored
    :ivar threads: dry runs at once
    """

    outcome_seconds: float = 300.0
    pending_max: int = 10_000
    comparisons_most: int = 10_000
    threads: int = 4


@dataclasses.dataclass(slots=True, eq=False)
class _Pending:
    """A request, and its state so far.

    :ivar gantt_hosts: consumer -> host, once it is decided; without consumers that have no place
    :ivar problem: why nothing was decided
    """

    observed_request: ObservedRequest
    due: float
    begun: bool = False
    ended: bool = False
    gantt_hosts: dict[str, str] | None = None
    decision: str = ''
    decided_at: float = 0.0
    problem: str = ''
    nova_hosts: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        is_complete = len(self.nova_hosts) == len(self.observed_request.request.consumers)
        return is_complete and (self.gantt_hosts is not None or bool(self.problem))


@dataclasses.dataclass(eq=False)
class ShadowComparison:
    """An observer that decides and compares.

    :ivar decide: a dry run of a real request; raises GanttError as a call does
    :ivar explain: explanation of a stored decision, including its verdict on a host
    :ivar scores: of a stored decision and a member, of all hosts that no filter removed; none
        where that is not known any more
    :ivar count: adds to a counter
    """

    shadows: Shadows
    decide: Callable[[SelectDestinations], Answer]
    explain: Callable[[str, str | None], Explanation]
    scores: Callable[[str, int], Sequence[Score]]
    count: Callable[..., None]
    clock: Clock
    settings: ShadowSettings

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        self._pending_by_guest: dict[str, _Pending] = {}
        self._queue_of_pending: queue.Queue[_Pending] = queue.Queue(self.settings.pending_max)
        self._unstored: list[ComparedChoice] = []
        self._receives_notices = False
        self._stopping = threading.Event()
        names = [f'shadow-{number}' for number in range(self.settings.threads)]
        self._threads = [
            threading.Thread(target=self._run_decisions, name=name, daemon=True) for name in names
        ]
        self._threads.append(
            threading.Thread(target=self._run_comparisons, name='shadow', daemon=True)
        )

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float) -> bool:
        """Stop comparing, dropping what is pending; return whether all threads ended in time."""
        self._stopping.set()
        end = self.clock.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.1, end - self.clock.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def pending(self) -> int:
        """Number of requests that are not compared yet."""
        return len(self._pending)

    # -- observing: by the listening thread, never waits------------------------------------
    def receive(self, observation: Observation) -> None:
        """Take over an observation."""
        with self._lock:
            if isinstance(observation, ObservedRequest):
                self._receive_request(observation)
            elif isinstance(observation, ObservedGuests):
                self._receive_guests(observation)
            else:
                self._receive_notice(observation)

    def _receive_request(self, observed_request: ObservedRequest) -> None:
        request = observed_request.request
        if request.request_id in self._pending:
            return
        self.count('gantt_shadow_requests_total', outcome='received')
        pending = _Pending(observed_request, self.clock.monotonic() + self.settings.outcome_seconds)
        try:
            if len(self._pending) >= self.settings.pending_max:
                raise queue.Full
            self._queue_of_pending.put_nowait(pending)
        except queue.Full:
            self.count('gantt_shadow_requests_total', outcome='dropped')
            return
        self._pending[request.request_id] = pending
        for consumer in request.consumers:
            self._pending_by_guest[consumer] = pending

    def _receive_guests(self, seen: ObservedGuests) -> None:
        few, many = sorted((set(seen.consumers), self._pending_by_guest.keys()), key=len)
        for consumer in [candidate for candidate in few if candidate in many]:
            pending = self._pending_by_guest[consumer]
            if _shows_placement(pending.observed_request, seen.host):
                pending.nova_hosts.setdefault(consumer, seen.host)

    def _receive_notice(self, observation: ObservedBegin | ObservedEnd) -> None:
        self._receives_notices = True
        pending = self._pending_by_guest.get(observation.consumer) or next(
            (
                candidate
                for candidate in reversed(self._pending.values())
                if observation.origin
                and candidate.observed_request.origin == observation.origin
                and not candidate.ended
            ),
            None,
        )
        if pending is not None:
            pending.begun = True
            pending.ended |= isinstance(observation, ObservedEnd)

    # -- deciding --------------------------------------------------------------------------
    def _run_decisions(self) -> None:
        while not self._stopping.is_set():
            self.decide_one(IDLE_SECONDS)

    def decide_one(self, idle_seconds: float = 0.0) -> bool:
        """Decide the next request; return whether there was one."""
        try:
            pending = self._queue_of_pending.get(bool(idle_seconds), idle_seconds)
        except queue.Empty:
            return False
        self._decide(pending)
        return True

    def _decide(self, pending: _Pending) -> None:
        request = pending.observed_request.request
        gantt_hosts: dict[str, str] = {}
        problem, decision = '', ''
        try:
            answer = self.decide(request)
            decision = answer.decision_id
            gantt_hosts = {hosts[0].consumer: hosts[0].host for hosts in answer.selections if hosts}
        except exceptions.NoValidHost as e:
            decision = str(e.kwargs.get('decision_id') or '')
        except exceptions.GanttError as e:
            problem = f'{e.message} ({e.code})'
        except Exception:
            LOG.exception('Observed request was not decided: request=%s', request.request_id)
            problem = 'it met a defect'
        self.count('gantt_shadow_requests_total', outcome='failed' if problem else 'decided')
        with self._lock:
            pending.decided_at = self.clock.monotonic()
            pending.decision = decision
            pending.problem = problem
            pending.gantt_hosts = None if problem else gantt_hosts

    # -- comparing -------------------------------------------------------------------------
    def _run_comparisons(self) -> None:
        while not self._stopping.wait(IDLE_SECONDS):
            try:
                self.compare_due()
            except Exception:
                LOG.exception(
                    'Comparing observed requests failed unexpectedly; these are not compared'
                )

    def compare_due(self) -> int:
        """Compare what is ready or overdue, and store it; return the number of those stored."""
        now = self.clock.monotonic()
        with self._lock:
            ready = [
                pending
                for pending in self._pending.values()
                if now >= pending.due
                or (pending.is_whole and now >= pending.decided_at + DECISION_STORED_SECONDS)
            ][:BATCH_SIZE]
            for pending in ready:
                del self._pending[pending.observed_request.request.request_id]
                for consumer in pending.observed_request.request.consumers:
                    if self._pending_by_guest.get(consumer) is pending:
                        del self._pending_by_guest[consumer]
        for pending in ready:
            self._unstored += self._compare(pending)
        return self._store_comparisons()

    def _store_comparisons(self) -> int:
        del self._unstored[:-UNSTORED_MAX]
        batch = self._unstored[:BATCH_SIZE]
        if not batch:
            return 0
        try:
            self.shadows.save_shadows(batch, self.settings.comparisons_most)
        except exceptions.Unavailable as e:
            LOG.warning(
                'Comparisons wait for the database: count=%d error=%s', len(self._unstored), e
            )
            return 0
        del self._unstored[: len(batch)]
        for comparison in batch:
            self.count('gantt_shadow_comparisons_total', verdict=comparison.verdict.value)
        return len(batch)

    def _compare(self, pending: _Pending) -> list[ComparedChoice]:
        observed_request = pending.observed_request
        comparisons = []
        for number, consumer in enumerate(observed_request.request.consumers):
            gantt_host = (pending.gantt_hosts or {}).get(consumer)
            nova_host = pending.nova_hosts.get(consumer)
            verdict, why = self._verdict(pending, number, gantt_host, nova_host)
            comparisons.append(
                ComparedChoice(
                    id=derived_id('compared', observed_request.request.request_id, consumer),
                    request_id=observed_request.request.request_id,
                    origin=observed_request.origin[:255],
                    consumer=consumer,
                    purpose=observed_request.request.spec.purpose.value,
                    verdict=verdict,
                    gantt_host=gantt_host,
                    nova_host=nova_host,
                    reason=why,
                )
            )
        return comparisons

    def _verdict(
        self, pending: _Pending, number: int, gantt_host: str | None, nova_host: str | None
    ) -> tuple[ShadowVerdict, str]:
        if pending.gantt_hosts is None:
            return ShadowVerdict.NOT_DECIDED, pending.problem or 'there was no answer in time'
        if nova_host is None:
            refused = self._receives_notices and pending.begun and not pending.ended
            if not refused:
                return ShadowVerdict.NOT_OBSERVED, 'it was placed' if pending.ended else ''
            return (
                (ShadowVerdict.NOVA_NONE, '') if gantt_host else self._verdict_of_neither(pending)
            )
        if gantt_host == nova_host:
            return ShadowVerdict.SAME, ''
        return self._verdict_of_other_host(pending, number, gantt_host, nova_host)

    def _verdict_of_neither(self, pending: _Pending) -> tuple[ShadowVerdict, str]:
        try:
            return ShadowVerdict.NEITHER, self.explain(pending.decision, None).reason
        except exceptions.GanttError:
            return ShadowVerdict.NEITHER, ''

    def _verdict_of_other_host(
        self, pending: _Pending, number: int, gantt_host: str | None, nova_host: str
    ) -> tuple[ShadowVerdict, str]:
        """Return the verdict and the reason why another host was chosen here."""
        try:
            explanation = self.explain(pending.decision, nova_host)
        except exceptions.GanttError as e:
            if isinstance(e, exceptions.NotFound) and e.kwargs.get('kind') == 'host':
                return ShadowVerdict.NOT_KNOWN, f'{nova_host} was not found'
            return ShadowVerdict.OTHER, f'it could not be explained: {e.message}'
        outcome_text = next(
            (line for line in explanation.host_verdicts if line.startswith(f'member {number}: ')),
            '',
        ).removeprefix(f'member {number}: ')
        if _REMOVED_TEXT in outcome_text:
            return ShadowVerdict.REMOVED, outcome_text
        member = next(
            (candidate for candidate in explanation.members if candidate.member == number), None
        )
        if member is None or gantt_host is None:
            return ShadowVerdict.OTHER, outcome_text
        rows: Sequence[ScoreRow | Score] = member.scores
        if not {gantt_host, nova_host} <= {row.host for row in rows}:
            rows = self._all_scores(pending, number) or rows
        return score_verdict(rows, explanation.weighers, gantt_host, nova_host)

    def _all_scores(self, pending: _Pending, number: int) -> Sequence[Score]:
        """Return the scores of all hosts: a decision keeps those of some of the best only."""
        try:
            return self.scores(pending.decision, number)
        except exceptions.GanttError as e:
            LOG.info('Decision cannot be replayed: decision=%s error=%s', pending.decision, e)
            return []


def _shows_placement(observed_request: ObservedRequest, host: str) -> bool:
    """Return whether the host of a guest shows where it was placed."""
    if not observed_request.request.spec.purpose.is_move:
        return True
    # For a guest that may stay on its host, before and after cannot be told apart.
    return observed_request.source is not None and host != observed_request.source


def score_verdict(
    scores: Sequence[ScoreRow | Score], weighers: Sequence[str], gantt_host: str, nova_host: str
) -> tuple[ShadowVerdict, str]:
    """Return whether the other host is as good, else the weighers that make the difference.

    :param scores: best first
    """
    rows = {row.host: (place, row) for place, row in enumerate(scores, 1)}
    if nova_host not in rows or gantt_host not in rows:
        return ShadowVerdict.OTHER, f'{nova_host} fits, and is not among the best {len(scores)}'
    place, row = rows[nova_host]
    gantt_row = rows[gantt_host][1]
    if math.isclose(row.total, gantt_row.total, rel_tol=SCORE_TOLERANCE, abs_tol=SCORE_TOLERANCE):
        return ShadowVerdict.TIE, f'{nova_host} is as good: {row.total:.3g} each'
    differences = sorted(
        zip(weighers, gantt_row.weighted, row.weighted, strict=False),
        key=lambda difference: -abs(difference[1] - difference[2]),
    )
    named = ', '.join(
        f'{name} {our_score:.3g} against {their_score:.3g}'
        for name, our_score, their_score in differences[:WEIGHERS_SHOWN]
        if our_score != their_score
    )
    count = len(scores)
    why = (
        f'{nova_host} is number {place} of {count}: {row.total:.3g}, '
        f'not {gantt_row.total:.3g} ({named})'
    )
    return ShadowVerdict.OTHER, why
