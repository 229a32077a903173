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
from collections.abc import Iterable, Iterator

import msgspec

from gantt import exceptions
from gantt.core.claims.commit import CommitResult, Fate, RequestFate
from gantt.core.claims.quota import Excess
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Outcome
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.placing.admission import Admission, Call, refusal
from gantt.scheduler.placing.locked_hosts import WAIT_SECONDS, LockedHosts
from gantt.scheduler.placing.outbox import OnAnswer, Outbox
from gantt.scheduler.placing.plan import Plan, back_off
from gantt.scheduler.placing.planning import Planner
from gantt.scheduler.placing.repeats import Repeats
from gantt.scheduler.placing.slices import Slice, is_whole
from gantt.scheduler.ports import Clock, Recorder, Store, StoredRequest
from gantt.scheduler.quotas import Quotas, Round
from gantt.scheduler.settings import Settings

LOG = logging.getLogger(__name__)
IDLE_SECONDS = 0.5
FRESH_SECONDS = 0.02
GIVEN_BACK_MS = 50  # before a request that was turned away for another scheduler comes again
#: Of the requests that are committed together: what is written of them is some times as much,
#: and MariaDB takes 16 MiB in one packet unless it is set.
BATCH_BYTES_MAX = 1 << 20
OPEN_SECONDS = 0.1  # between two looks at a request that another worker has open
SUSPECT_SECONDS = 0.1  # between two looks whether everything was read again


class ServedFailed(Exception):
    """What was served between the members of a call failed: the batch did, and not that call."""


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
        quotas: Quotas,
        on_answer: OnAnswer | None = None,
    ) -> None:
        self.admission = Admission(
            settings.queue_limit, settings.retry_after_ms, clock, settings.project_weights
        )
        self._store = store
        self._cache = cache
        self._planner = planner
        self._locked = LockedHosts(clock)
        self._repeats = Repeats(store, planner, recorder)
        self._recorder = recorder
        self._clock = clock
        self._settings = settings
        self._owner = settings.worker
        self._quotas = quotas
        self._round: Round | None = None  # of the next commit
        self._thread: threading.Thread | None = None
        self._batch: list[Call] = []
        self._coming: Iterator[Call] = iter(())  # of the batch, those not begun
        # Planned in vain between the members of another: the next batch has them.
        self._in_vain: list[Call] = []
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

    def give_back(self, reason: str) -> int:
        """Turn away what no batch has had yet; how many there were.  Called by any thread."""
        calls = self.admission.take_back()
        for call in calls:
            answer = refusal(call.request, Outcome.BUSY, reason, GIVEN_BACK_MS)
            for handle, replies in self.admission.leave(call):
                self._recorder.count('gantt_turned_away_total', outcome=answer.outcome.value)
                replies.send([(handle, answer)])
        return len(calls)

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
            self._settings.claims_per_commit,
            BATCH_BYTES_MAX,
            self._settings.batch_wait_ms / 1000,
            idle_seconds,
        )
        self._batch = calls = self._apart(calls)
        self._round = None
        is_suspect = self._cache.is_suspect  # before: what ends that is folded in
        self._cache.fold()
        if calls and (is_suspect or not self._cache.is_loaded):
            self._wait_for_hosts(calls)
        elif calls:
            self._coming = iter(calls)
            try:
                self._place(self._coming)
            finally:
                for call in self._in_vain:
                    self.admission.again(call)
                self._in_vain = []
        self._outbox.send()
        return len(calls)

    def _place(self, calls: Iterable[Call]) -> None:
        """Plan calls one after another and commit them together."""
        plans: list[Plan] = []
        for call in self._in_time(calls):
            if plans and len(call.todo) > 1 and is_whole(call.request):
                # It may take a while: those before it are not to wait for that.
                self._commit(plans)
                self._outbox.send()
                plans = []
            plan = None if self._is_over_quota(call) else self._plan(call)
            if plan:
                plans.append(plan)
        if plans:
            self._commit(plans)

    def _apart(self, calls: list[Call]) -> list[Call]:
        """One of those that a batch failed with, by itself; else all."""
        suspect = next((call for call in calls if call.alone), None)
        if suspect is None:
            return calls
        for call in calls:
            if call is not suspect:
                self.admission.put_back(call)
        return [suspect]

    def _wait_for_hosts(self, calls: list[Call]) -> None:
        """Nothing was read from this database yet: wait within the budgets."""
        for call in calls:
            if call.deadline <= self._clock.monotonic():
                self._outbox.put(
                    call,
                    refusal(call.request, Outcome.UNKNOWN, 'the database has not answered yet'),
                )
            else:
                self.admission.later(call, SUSPECT_SECONDS)

    def _in_time(self, calls: Iterable[Call]) -> Iterable[Call]:
        now = self._clock.monotonic()
        room = most = self._settings.claims_per_commit
        left = BATCH_BYTES_MAX
        for call in calls:
            size = min(len(call.todo), most)
            if call.deadline <= now:
                self._give_up(call, *_out_of_time(call))
            elif size > room < most or call.bytes > left < BATCH_BYTES_MAX:
                self.admission.put_back(call)
            else:
                room, left = room - size, left - call.bytes
                yield call

    def _plan(self, call: Call) -> Plan | None:
        """Place a call on the working table; None where that ends it already."""
        call.tries += 1
        call.locked = ''
        if call.tries > self._settings.attempts_per_request:
            reason = f'gave up after {call.tries - 1} attempts'
            if not (call.repeats and self._known_before(call, Outcome.CONFLICT, reason)):
                self._give_up(call, Outcome.CONFLICT, reason)
            return None
        try:
            plan = self._planned(call)
            if plan.claims_nothing and plan.decision.is_placed:
                self._take_back(plan)
        except exceptions.Refused as e:
            # Its group may have had the other rule when a copy of the request was placed.
            if not self._is_put_off(call) and not (
                _is_of_rule(e) and self._known_before(call, Outcome.REFUSED, e.message)
            ):
                self._give_up(call, Outcome.REFUSED, e.message)
            return None
        except exceptions.GanttError as e:
            self._give_up(call, Outcome.FAILED, e.message)
            return None
        if plan.decision.outcome is Outcome.EXPIRED:
            self._give_up(call, Outcome.EXPIRED, plan.decision.reason)
            return None
        if not plan.decision.is_placed:
            outcome, reason = plan.decision.outcome, plan.decision.reason
            if not (self._is_put_off(call) or self._known_before(call, outcome, reason)):
                self._give_up(call, outcome, reason, plan)
            return None
        return None if self._needs_no_commit(plan) else plan

    def _is_over_quota(self, call: Call, plan: Plan | None = None) -> bool:
        """Whether a call ends because its project has as much as it may have.

        :param plan: it is to be committed: counts for those after it where it is let in
        """
        try:
            if self._round is None:
                self._round = self._quotas.round()
            found = self._round.would_pass(call.request, call.todo)
        except exceptions.Unavailable as e:
            self._give_up(call, Outcome.FAILED, e.message)
            return True
        if found is None:
            if plan is not None:
                self._round.let_in(call.request, call.todo)
            return False
        if plan is None:
            call.tries += 1  # as with a plan: who waits for another copy takes it back
        # A copy of it may have been placed before, and be what the quota is used up by.
        if not self._known_before(call, Outcome.REFUSED, found.line, found):
            self._quotas.counted(found)
            self._give_up(call, Outcome.REFUSED, found.line, excess=found)
        return True

    def _is_put_off(self, call: Call) -> bool:
        """Whether a call waits: its plan was made on what the database is not any more."""
        if not self._cache.is_suspect:
            return False
        call.tries -= 1
        self.admission.later(call, SUSPECT_SECONDS)
        return True

    def _planned(self, call: Call) -> Plan:
        """The plan of a call; one that says no is made on the newest news.

        Hosts that are locked are chosen where there are no others.
        """
        is_old = self._cache.read_seconds_ago > FRESH_SECONDS
        locked = self._locked.names()
        serve = self._serve_others if self._may_serve(call) else None
        try:
            plan = self._planner.plan(call, Slice(call, self._clock, serve), locked)
            if plan.decision.is_placed or plan.decision.outcome is Outcome.EXPIRED:
                return plan
            if not (is_old or locked):
                return plan
        except exceptions.Refused as e:
            if not _is_of_rule(e):
                raise
            is_old = True
        if is_old:
            # Room may have come free since, or the group have got another rule.
            self._cache.fetch_news()
            self._cache.fold(mid_batch=True)
        return self._planner.plan(call, Slice(call, self._clock, serve))

    def _take_back(self, plan: Plan) -> None:
        """Take the picks of a plan that claims nothing from the table.

        Of many members the record takes a while: others need not wait for that as well.
        """
        self._planner.undo(plan)
        if len(plan.members) > 1 and self._may_serve(plan.call):
            self._serve_others(plan.call)

    @staticmethod
    def _may_serve(call: Call) -> bool:
        # What an earlier attempt has claimed is aside meanwhile: nobody else is to have that room.
        # One that is planned by itself is not to fail for what others ask.
        return not (call.takes_over or call.alone)

    def _serve_others(self, call: Call) -> bool:
        """Place who waits behind a call whose members are planned together; whether any did.

        Only those are served who can be placed on the table as it is: nothing is folded into
        it here, so that the hosts and their rows stay.

        :raises ServedFailed: by no fault of the call
        """
        most = self._settings.claims_per_commit
        waiting = [*self._coming, *self.admission.drain(most, BATCH_BYTES_MAX, 0.0, 0.0)]
        served = [c for c in waiting if not (c.alone or is_whole(c.request))]
        for other in waiting:
            if other not in served:
                self.admission.put_back(other)
        # Each once, for ``_abandon``: some are of this batch, and come here again and again.
        self._batch = list(dict.fromkeys([*self._batch, *served]))
        try:
            plans = [plan for one in self._in_time(served) if (plan := self._placed_now(one))]
            if plans:
                self._commit(plans)
            self._outbox.send()
        except exceptions.GanttError as e:
            raise ServedFailed(e.message) from e
        return bool(plans)

    def _placed_now(self, call: Call) -> Plan | None:
        """The plan of a call that is placed by it; whatever else there is to say is said later.

        Room only becomes less until then: who is in vain here once is not planned here again.
        """
        call.tries += 1
        try:
            if call.tries <= self._settings.attempts_per_request:
                pause = Slice(call, self._clock, None)
                plan = self._planner.plan(call, pause, self._locked.names())
                if plan.decision.is_placed:
                    return plan
        except exceptions.GanttError:
            pass  # the next batch meets it again, and says so
        call.tries -= 1
        self._in_vain.append(call)
        return None

    def _needs_no_commit(self, plan: Plan) -> bool:
        """Whether a plan claims nothing, or waits as it needs a host that is to be left out."""
        if plan.claims_nothing:
            if self._is_put_off(plan.call):
                return True
            self._recorder.record(plan.record())
            self._outbox.put(plan.call, plan.answer())
            return True
        name = self._locked.among(plan.all_providers()) if self._locked.names() else ''
        if name:
            self._planner.undo(plan)
            self._wait_for_lock(plan.call, f'host {name} is locked by another process')
        return bool(name)

    def _wait_for_lock(self, call: Call, reason: str) -> None:
        call.locked = reason
        call.tries -= 1  # its budget bounds it; no race was lost
        self.admission.later(call, WAIT_SECONDS)

    def _known_before(
        self, call: Call, outcome: Outcome, reason: str, excess: Excess | None = None
    ) -> bool:
        """Whether a call that is to be refused was seen to before, and so is seen to now."""
        known = self._repeats.known(call, outcome, reason, excess)
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
        if self._cache.is_suspect:
            for plan in plans:
                self._planner.undo(plan)
                self._is_put_off(plan.call)
            return
        plans = self._within_quotas(plans)
        if not plans:
            return
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

    def _within_quotas(self, plans: list[Plan]) -> list[Plan]:
        """The plans that may be committed; what is used is read anew for the commit after."""
        kept = []
        for plan in plans:
            if self._is_over_quota(plan.call, plan):
                self._planner.undo(plan)
            else:
                kept.append(plan)
        self._round = None
        return kept

    def _settle(self, plans: list[Plan], result: CommitResult) -> None:
        """Bring the table in line with what was committed, then answer or plan again."""
        written: set[int] = set()
        claims: set[str] = set()
        for plan, fate in zip(plans, result.fates, strict=True):
            self._planner.undo(plan, keep=fate.accepted)
            for index in fate.accepted:
                claims.add(plan.drafts[index].claim.id)
            written.update(plan.providers(fate.accepted))
        self._locked.note(result.locked)
        # Who is gone from there only the feed says.
        written -= set(result.freed)
        self._cache.commit_applied(result.hosts, written, claims)
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
            case Fate.LOCKED:
                self._recorder.count('gantt_locked_total')
                self._wait_for_lock(call, fate.reason)
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
    def _give_up(
        self,
        call: Call,
        outcome: Outcome,
        reason: str,
        plan: Plan | None = None,
        excess: Excess | None = None,
    ) -> None:
        """End a call without a placement; release what it had claimed before."""
        if call.continues:
            self._release(call.request.request_id, self._owner, call.attempt)
        decision_id = ''
        if plan is not None:
            self._count_removed(plan)
            record = plan.record()
            self._recorder.record(record)
            decision_id = record.id
        if excess is not None:
            record = self._planner.refused(call, excess)
            self._recorder.record(record)
            decision_id = record.id
        retry = self._settings.retry_after_ms if outcome is Outcome.BUSY else None
        answer = refusal(call.request, outcome, reason, retry, decision_id, excess)
        if plan is not None:
            answer = msgspec.structs.replace(answer, age_seconds=plan.age_seconds)
        self._outbox.put(call, answer)

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


def _is_of_rule(error: exceptions.Refused) -> bool:
    """Whether a request was refused for the rule of its group, which may be another by now."""
    return type(error) is exceptions.Refused


def _out_of_time(call: Call) -> tuple[Outcome, str]:
    """How a call ends whose budget is spent: busy elsewhere, lost races, or never begun."""
    if call.locked:
        return Outcome.BUSY, call.locked
    if call.tries == 0:
        return Outcome.EXPIRED, 'its budget was spent in the queue'
    if call.conflicts:
        return Outcome.CONFLICT, f'lost {call.tries} races within its budget'
    return Outcome.BUSY, 'another worker is at this request'
