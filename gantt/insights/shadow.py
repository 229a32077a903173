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
    Compared,
    Observation,
    ObservedBegin,
    ObservedEnd,
    ObservedGuests,
    ObservedRequest,
    ShadowVerdict,
)
from gantt.insights.views import Explanation, ScoreRow
from gantt.scheduler.ports import Clock, Shadows

LOG = logging.getLogger(__name__)

IDLE_SECONDS = 0.5
#: Maximum number of comparisons that are written at once, and that wait for the database.
BATCH, WAITING_MOST = 100, 10_000
#: Seconds to wait for an explanation: a decision is stored a moment after it is reached.
EXPLAINED_SECONDS = 5.0
#: Maximum number of weighers that are named where two hosts differ.
WEIGHERS_SHOWN = 3
#: Scores that differ by less than this are the same: sums of the same numbers in another order.
SAME_SCORE = 1e-9
#: Text in the sentence about a host that a filter removed.
_REMOVED = ' was removed by '


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

    :ivar ours: consumer -> host, once it is decided; without consumers that have no place
    :ivar problem: why nothing was decided
    """

    observed_request: ObservedRequest
    due: float
    begun: bool = False
    ended: bool = False
    ours: dict[str, str] | None = None
    decision: str = ''
    decided_at: float = 0.0
    problem: str = ''
    theirs: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        is_complete = len(self.theirs) == len(self.observed_request.request.consumers)
        return is_complete and (self.ours is not None or bool(self.problem))


@dataclasses.dataclass(eq=False)
class Shadow:
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
        self._of_guest: dict[str, _Pending] = {}
        self._queue_of_pending: queue.Queue[_Pending] = queue.Queue(self.settings.pending_max)
        self._waiting: list[Compared] = []
        self._receives_both = False
        self._stopping = threading.Event()
        names = [f'shadow-{number}' for number in range(self.settings.threads)]
        self._threads = [
            threading.Thread(target=self._run_decisions, name=name, daemon=True) for name in names
        ]
        self._threads.append(threading.Thread(target=self._run_looks, name='shadow', daemon=True))

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
            self._of_guest[consumer] = pending

    def _receive_guests(self, seen: ObservedGuests) -> None:
        few, many = sorted((set(seen.consumers), self._of_guest.keys()), key=len)
        for consumer in [candidate for candidate in few if candidate in many]:
            pending = self._of_guest[consumer]
            if _covers(pending.observed_request, seen.host):
                pending.theirs.setdefault(consumer, seen.host)

    def _receive_notice(self, observation: ObservedBegin | ObservedEnd) -> None:
        self._receives_both = True
        pending = self._of_guest.get(observation.consumer) or next(
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
        self._decided(pending)
        return True

    def _decided(self, pending: _Pending) -> None:
        request = pending.observed_request.request
        ours: dict[str, str] = {}
        problem, decision = '', ''
        try:
            answer = self.decide(request)
            decision = answer.decision_id
            ours = {hosts[0].consumer: hosts[0].host for hosts in answer.selections if hosts}
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
            pending.decision, pending.problem = decision, problem
            pending.ours = None if problem else ours

    # -- comparing -------------------------------------------------------------------------
    def _run_looks(self) -> None:
        while not self._stopping.wait(IDLE_SECONDS):
            try:
                self.look()
            except Exception:
                LOG.exception('Observed requests cannot be compared')

    def look(self) -> int:
        """Compare what is ready or overdue, and store it; return the number of those stored."""
        now = self.clock.monotonic()
        with self._lock:
            ready = [
                pending
                for pending in self._pending.values()
                if now >= pending.due
                or (pending.is_whole and now >= pending.decided_at + EXPLAINED_SECONDS)
            ][:BATCH]
            for pending in ready:
                del self._pending[pending.observed_request.request.request_id]
                for consumer in pending.observed_request.request.consumers:
                    if self._of_guest.get(consumer) is pending:
                        del self._of_guest[consumer]
        for pending in ready:
            self._waiting += self._compared(pending)
        return self._write()

    def _write(self) -> int:
        del self._waiting[:-WAITING_MOST]
        batch = self._waiting[:BATCH]
        if not batch:
            return 0
        try:
            self.shadows.save_shadows(batch, self.settings.comparisons_most)
        except exceptions.Unavailable as e:
            LOG.warning(
                'Comparisons wait for the database: count=%d error=%s', len(self._waiting), e
            )
            return 0
        del self._waiting[: len(batch)]
        for comparison in batch:
            self.count('gantt_shadow_comparisons_total', verdict=comparison.verdict.value)
        return len(batch)

    def _compared(self, pending: _Pending) -> list[Compared]:
        observed_request = pending.observed_request
        comparisons = []
        for number, consumer in enumerate(observed_request.request.consumers):
            ours = (pending.ours or {}).get(consumer)
            theirs = pending.theirs.get(consumer)
            verdict, why = self._judged(pending, number, ours, theirs)
            comparisons.append(
                Compared(
                    id=derived_id('compared', observed_request.request.request_id, consumer),
                    request_id=observed_request.request.request_id,
                    origin=observed_request.origin[:255],
                    consumer=consumer,
                    purpose=observed_request.request.spec.purpose.value,
                    verdict=verdict,
                    gantt_host=ours,
                    nova_host=theirs,
                    reason=why,
                )
            )
        return comparisons

    def _judged(
        self, pending: _Pending, number: int, ours: str | None, theirs: str | None
    ) -> tuple[ShadowVerdict, str]:
        if pending.ours is None:
            return ShadowVerdict.NOT_DECIDED, pending.problem or 'there was no answer in time'
        if theirs is None:
            refused = self._receives_both and pending.begun and not pending.ended
            if not refused:
                return ShadowVerdict.NOT_OBSERVED, 'it was placed' if pending.ended else ''
            return (ShadowVerdict.NOVA_NONE, '') if ours else self._neither(pending)
        if ours == theirs:
            return ShadowVerdict.SAME, ''
        return self._why_not(pending, number, ours, theirs)

    def _neither(self, pending: _Pending) -> tuple[ShadowVerdict, str]:
        try:
            return ShadowVerdict.NEITHER, self.explain(pending.decision, None).reason
        except exceptions.GanttError:
            return ShadowVerdict.NEITHER, ''

    def _why_not(
        self, pending: _Pending, number: int, ours: str | None, theirs: str
    ) -> tuple[ShadowVerdict, str]:
        """Return the verdict and the reason why another host was chosen here."""
        try:
            explanation = self.explain(pending.decision, theirs)
        except exceptions.GanttError as e:
            if isinstance(e, exceptions.NotFound) and e.kwargs.get('kind') == 'host':
                return ShadowVerdict.NOT_KNOWN, f'{theirs} is not known here'
            return ShadowVerdict.OTHER, f'it could not be explained: {e.message}'
        outcome_text = next(
            (line for line in explanation.host_verdicts if line.startswith(f'member {number}: ')),
            '',
        ).removeprefix(f'member {number}: ')
        if _REMOVED in outcome_text:
            return ShadowVerdict.REMOVED, outcome_text
        member = next(
            (candidate for candidate in explanation.members if candidate.member == number), None
        )
        if member is None or ours is None:
            return ShadowVerdict.OTHER, outcome_text
        rows: Sequence[ScoreRow | Score] = member.scores
        if not {ours, theirs} <= {row.host for row in rows}:
            rows = self._all_scores(pending, number) or rows
        return ranked(rows, explanation.weighers, ours, theirs)

    def _all_scores(self, pending: _Pending, number: int) -> Sequence[Score]:
        """Return the scores of all hosts: a decision keeps those of some of the best only."""
        try:
            return self.scores(pending.decision, number)
        except exceptions.GanttError as e:
            LOG.info('Decision cannot be replayed: decision=%s error=%s', pending.decision, e)
            return []


def _covers(observed_request: ObservedRequest, host: str) -> bool:
    """Return whether the host of a guest shows where it was placed."""
    if not observed_request.request.spec.purpose.is_move:
        return True
    # For a guest that may stay on its host, before and after cannot be told apart.
    return observed_request.source is not None and host != observed_request.source


def ranked(
    scores: Sequence[ScoreRow | Score], weighers: Sequence[str], ours: str, theirs: str
) -> tuple[ShadowVerdict, str]:
    """Return whether the other host is as good, else the weighers that make the difference.

    :param scores: best first
    """
    rows = {row.host: (place, row) for place, row in enumerate(scores, 1)}
    if theirs not in rows or ours not in rows:
        return ShadowVerdict.OTHER, f'{theirs} fits, and is not among the best {len(scores)}'
    place, row = rows[theirs]
    our_row = rows[ours][1]
    if math.isclose(row.total, our_row.total, rel_tol=SAME_SCORE, abs_tol=SAME_SCORE):
        return ShadowVerdict.TIE, f'{theirs} is as good: {row.total:.3g} each'
    differences = sorted(
        zip(weighers, our_row.weighted, row.weighted, strict=False),
        key=lambda difference: -abs(difference[1] - difference[2]),
    )
    named = ', '.join(
        f'{name} {our_score:.3g} against {their_score:.3g}'
        for name, our_score, their_score in differences[:WEIGHERS_SHOWN]
        if our_score != their_score
    )
    count = len(scores)
    why = (
        f'{theirs} is number {place} of {count}: {row.total:.3g}, not {our_row.total:.3g} ({named})'
    )
    return ShadowVerdict.OTHER, why
