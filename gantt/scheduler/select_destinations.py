# SPDX-License-Identifier: Apache-2.0
"""Flow 1: a conductor asks for places, and gets them already claimed.

    drain the admission queue → fold the news into the table → place every
    request, one after another, on the working table → commit all claims in one
    transaction → settle: answer what is placed, plan again what was refused

One thread runs this; nobody waits for a request inside it.  What a commit
refuses is given back to the table before the next batch is planned, and what a
request that cannot be completed had claimed is released by its id.
"""

import logging
import threading
from collections.abc import Iterable

from gantt import exceptions
from gantt.core.commit import CommitResult, Fate, RequestFate
from gantt.core.decision import Outcome
from gantt.core.pipeline import Pipeline
from gantt.scheduler.admission import Admission, Call, refusal
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.outbox import OnAnswer, Outbox
from gantt.scheduler.plan import Plan, back_off
from gantt.scheduler.planning import Planner
from gantt.scheduler.ports import Clock, Recorder, Store, StoredRequest
from gantt.scheduler.repeats import Repeats
from gantt.scheduler.settings import Settings

LOG = logging.getLogger(__name__)
IDLE_SECONDS = 0.5
FRESH_SECONDS = 0.02
OPEN_SECONDS = 0.1  # between two looks at a request that another worker has open


class Placing:
    """The scheduling thread."""

    def __init__(
        self,
        store: Store,
        cache: HostCache,
        planner: Planner,
        recorder: Recorder,
        clock: Clock,
        settings: Settings,
        on_answer: OnAnswer | None = None,
    ) -> None:
        self.admission = Admission(settings.queue_limit, settings.retry_after_ms, clock)
        self._store = store
        self._cache = cache
        self._planner = planner
        self._repeats = Repeats(store, planner, recorder)
        self._recorder = recorder
        self._clock = clock
        self._settings = settings
        self._owner = settings.worker
        self._thread: threading.Thread | None = None
        self._batch: list[Call] = []
        self._outbox = Outbox(self.admission, recorder, clock, on_answer)

    @property
    def pipeline(self) -> Pipeline:
        """The filters and weighers in force."""
        return self._planner.pipeline

    def use(self, pipeline: Pipeline) -> None:
        """Place what is planned from now on by other filters and weighers."""
        self._planner.pipeline = pipeline

    # -- life ------------------------------------------------------------------
    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name='placing', daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Take nothing new, finish what is inside; whether that was done in time."""
        self.admission.closed = True
        self.admission.wake()
        if self._thread is not None:
            self._thread.join(seconds)
            return not self._thread.is_alive()
        return True

    def _run(self) -> None:
        while not (self.admission.closed and not self.admission.depth):
            try:
                self.step(IDLE_SECONDS)
            except Exception as e:  # the thread must outlive any one batch
                LOG.exception('a batch failed')
                self._abandon(e)

    # -- the story -----------------------------------------------------------------
    def step(self, idle_seconds: float = 0.0) -> int:
        """One batch, from the queue to the answers; how many calls it had."""
        calls = self.admission.drain(
            self._settings.claims_per_commit, self._settings.batch_wait_ms / 1000, idle_seconds
        )
        self._batch = calls = self._apart(calls)
        self._cache.fold()
        if calls and not self._cache.is_loaded:
            self._wait_for_hosts(calls)
        elif calls:
            plans = [plan for call in self._in_time(calls) if (plan := self._plan(call))]
            if plans:
                self._commit(plans)
        self._outbox.send()
        return len(calls)

    def _apart(self, calls: list[Call]) -> list[Call]:
        """One of those that a batch failed with, by itself; else all."""
        suspect = next((call for call in calls if call.alone), None)
        if suspect is None:
            return calls
        for call in calls:
            if call is not suspect:
                self.admission.again(call)
        return [suspect]

    def _wait_for_hosts(self, calls: list[Call]) -> None:
        """Nothing was read from the database yet: wait within the budgets."""
        for call in calls:
            if call.deadline <= self._clock.monotonic():
                self._outbox.put(
                    call,
                    refusal(call.request, Outcome.UNKNOWN, 'the database has not answered yet'),
                )
            else:
                self.admission.later(call, 0.1)

    def _in_time(self, calls: Iterable[Call]) -> Iterable[Call]:
        now = self._clock.monotonic()
        room = most = self._settings.claims_per_commit
        for call in calls:
            size = min(len(call.todo), most)
            if call.deadline <= now:
                self._give_up(call, *_out_of_time(call))
            elif size > room < most:
                self.admission.again(call)
            else:
                room -= size
                yield call

    def _plan(self, call: Call) -> Plan | None:
        """Place a call on the working table; None where that ends it already."""
        call.tries += 1
        if call.tries > self._settings.attempts_per_request:
            reason = f'gave up after {call.tries - 1} attempts'
            if not (call.repeats and self._known_before(call, Outcome.CONFLICT, reason)):
                self._give_up(call, Outcome.CONFLICT, reason)
            return None
        try:
            plan = self._planner.plan(call)
            if not plan.decision.is_placed and self._cache.age_seconds > FRESH_SECONDS:
                # Room may have come free since: read the feed before saying no.
                self._cache.fetch()
                self._cache.fold(mid_batch=True)
                plan = self._planner.plan(call)
        except exceptions.Refused as e:
            self._give_up(call, Outcome.REFUSED, e.message)
            return None
        except exceptions.GanttError as e:
            self._give_up(call, Outcome.FAILED, e.message)
            return None
        if not plan.decision.is_placed:
            outcome, reason = plan.decision.outcome, plan.decision.reason
            if not self._known_before(call, outcome, reason):
                self._give_up(call, outcome, reason, plan)
            return None
        if plan.claims_nothing:
            self._planner.undo(plan)
            self._recorder.record(plan.record())
            self._outbox.put(call, plan.answer())
            return None
        return plan

    def _known_before(self, call: Call, outcome: Outcome, reason: str) -> bool:
        """Whether a call that is to be refused was seen to before, and so is seen to now."""
        known = self._repeats.known(call, outcome, reason)
        if isinstance(known, StoredRequest):
            if known.wait_seconds <= 0:
                # Its worker is gone; what it had claimed may be the room we need.
                self._release(call.request.request_id, known.owner, known.attempt)
            call.tries -= 1  # its budget bounds it; no race was lost
            self.admission.later(call, OPEN_SECONDS)
        elif known is not None:
            self._outbox.put(call, known)
        return known is not None

    def _commit(self, plans: list[Plan]) -> None:
        started = self._clock.monotonic()
        try:
            result = self._store.commit([plan.draft(self._owner, started) for plan in plans])
        except exceptions.Unavailable as e:
            # The outcome is not known: the caller asks again with the same id.
            for plan in plans:
                self._planner.undo(plan)
                refused = refusal(plan.call.request, Outcome.FAILED, e.message)
                self._outbox.put(plan.call, refused)
            return
        self._recorder.observe('gantt_commit_seconds', self._clock.monotonic() - started)
        self._recorder.observe('gantt_batch_size', len(plans))
        self._settle(plans, result)

    def _settle(self, plans: list[Plan], result: CommitResult) -> None:
        """Bring the table in line with what was committed, then answer or plan again."""
        written: set[int] = set()
        for plan, fate in zip(plans, result.fates, strict=True):
            self._planner.undo(plan, keep=fate.accepted)
            written.update(plan.providers(fate.accepted))
        # Who is gone from there only the feed says.
        written -= set(result.freed)
        self._cache.settle(result.hosts, written)
        self._planner.refresh_groups(plans, result)
        self._planner.refresh_layouts(plans, result)
        self._note_races(plans, result)
        for plan, fate in zip(plans, result.fates, strict=True):
            self._decide(plan, fate)

    def _note_races(self, plans: list[Plan], result: CommitResult) -> None:
        """Let the next batch pick among more hosts where this one lost races, and fewer else."""
        contention = self._planner.contention
        before = contention.spread
        contention.note(
            placed=sum(len(fate.accepted) for fate in result.fates),
            lost=sum(p.evitable(f) for p, f in zip(plans, result.fates, strict=True)),
        )
        if contention.spread != before:
            self._recorder.gauge('gantt_spread', contention.spread)

    def _decide(self, plan: Plan, fate: RequestFate) -> None:
        """What the fate of a request means for its caller."""
        call, request = plan.call, plan.call.request
        match fate.fate:
            case Fate.PLACED:
                self._recorder.count('gantt_claims_made_total', len(plan.members))
                self._outbox.put(call, plan.final_answer)
            case Fate.PARTIAL | Fate.DROPPED | Fate.GROUP_CHANGED:
                self._plan_again(call, plan.keep(fate))
            case Fate.REPEAT:
                self._outbox.put(call, self._repeats.placed(fate.answer))
            case Fate.OPEN | Fate.LOST:
                call.continues = False
                call.done.clear()
                call.todo = list(range(len(request.consumers)))
                call.tries -= 1  # its budget bounds it; no race was lost
                self.admission.later(call, OPEN_SECONDS)
            case Fate.OVERDUE:
                call.takes_over = fate.attempt
                call.attempt = fate.attempt + 1
                self.admission.again(call)
            case Fate.BARRED:
                self._give_up(call, Outcome.REFUSED, fate.reason)
            case Fate.CANCELLED:
                self._outbox.put(call, self._repeats.cancelled(request))
            case Fate.REUSED:
                self._outbox.put(call, refusal(request, Outcome.REUSED, 'used with another body'))

    def _plan_again(self, call: Call, lost: int) -> None:
        """Plan the rest of a call in a later batch.

        :param lost: members that lost a race
        """
        if lost:
            self._recorder.count('gantt_conflicts_total', lost)
        # What holds claims already goes on: others would wait for them in vain.
        wait = back_off(call) if lost and not call.continues else 0.0
        if wait:
            self.admission.later(call, wait)
        else:
            self.admission.again(call)

    # -- endings ---------------------------------------------------------------------
    def _give_up(self, call: Call, outcome: Outcome, reason: str, plan: Plan | None = None) -> None:
        """End a call without a placement; release what it had claimed before."""
        if call.continues:
            self._release(call.request.request_id, self._owner, call.attempt)
        decision_id = ''
        if plan is not None:
            self._count_removed(plan)
            record = plan.record()
            self._recorder.record(record)
            decision_id = record.id
        retry = self._settings.retry_after_ms if outcome is Outcome.BUSY else None
        self._outbox.put(call, refusal(call.request, outcome, reason, retry, decision_id))

    def _release(self, request_id: str, owner: str, attempt: int) -> None:
        try:
            self._cache.offer(self._store.give_up(request_id, owner, attempt).hosts)
        except exceptions.Unavailable:
            # The lease frees the claims; the row's deadline lets a repeat take over.
            self._recorder.count('gantt_give_up_failed_total')

    def _count_removed(self, plan: Plan) -> None:
        for member in plan.decision.members[-1:]:
            for removal in member.filters:
                if removal.removed:
                    self._recorder.count(
                        'gantt_rejections_total', removal.removed, filter=removal.name
                    )

    def _abandon(self, error: Exception) -> None:
        """After a bug: read the table again from the database, and try each by itself.

        What one of them asks must not cost the others their places.  One that fails
        by itself is told so.
        """
        self._recorder.count('gantt_batches_failed_total')
        calls = [c for c in self._batch if c.waiters and not self.admission.is_waiting(c)]
        for call in calls:
            if call.alone or len(calls) == 1:
                self._outbox.put(call, refusal(call.request, Outcome.FAILED, f'internal: {error}'))
            else:
                call.alone = True
                self.admission.again(call)
        self._cache.forget()
        self._outbox.send()


def _out_of_time(call: Call) -> tuple[Outcome, str]:
    """How a call ends whose budget is spent: busy elsewhere, lost races, or never begun."""
    if call.tries == 0:
        return Outcome.EXPIRED, 'its budget was spent in the queue'
    if call.conflicts:
        return Outcome.CONFLICT, f'lost {call.tries} races within its budget'
    return Outcome.BUSY, 'another worker is at this request'
