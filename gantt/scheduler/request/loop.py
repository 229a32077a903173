# SPDX-License-Identifier: Apache-2.0
"""Flow 1: placement of a conductor's requests, whose claims are committed before the answer.

    drain the admission queue → fold pending changes into the table → place every
    request, one after another, on the working table → commit all claims in one
    transaction → bring the table in line → answer what is placed, plan again
    what was refused

One thread runs this, and no request waits inside it.  What happens to a request is an
event of its state machine (``core.claims.request_state``), whose effects are carried out here.

A request of many members would hold the thread; it is planned in slices.  Where members may be
claimed apart, a slice is a pass of its own, committed before the rest.  Members that must be
claimed together stay laid over the table while waiting requests are served.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.claims.commit import CommitStatus, DecisionRecord, RequestOutcome
from gantt.core.claims.quota import Excess
from gantt.core.claims.request_state import RequestEvent, RequestState, conflict_line
from gantt.core.messages.request import SelectDestinations
from gantt.core.pause import Pause
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Answer, Outcome
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports.process import Recorder
from gantt.scheduler.ports.requests import ClaimResult, StoredRequest
from gantt.scheduler.ports.stores import Stores
from gantt.scheduler.quotas import QuotaChecks, QuotaRound
from gantt.scheduler.request.answers import (
    AnswersCallback,
    EarlierAnswers,
    OutgoingAnswers,
    StoredAnswers,
)
from gantt.scheduler.request.life import RequestStateMachine
from gantt.scheduler.request.ordering import DECISIONS_PER_MEASUREMENT, FilterOrdering
from gantt.scheduler.request.planner import (
    LockedHosts,
    MakePlanningHook,
    Plan,
    Planner,
    may_be_outdated,
)
from gantt.scheduler.request.queue import Admission, PendingRequest, out_of_time, refusal
from gantt.scheduler.settings import SchedulerSettings

LOG = logging.getLogger(__name__)
IDLE_SECONDS = 0.5
FEED_FRESH_SECONDS = 0.02
UNSTARTED_RETRY_MS = 50  # until a request turned away for another scheduler is sent again
#: Size of the requests that are committed together: the statements are a multiple of it,
#: and MariaDB takes 16 MiB in one packet unless configured otherwise.
BATCH_BYTES_MAX = 1 << 20
#: Seconds that others wait for the members of one request.
MEMBER_SLICE_SECONDS = 0.01


class ServedRequestFailed(Exception):
    """A failure of a batch served between the members of a call, which has not failed itself."""


class SchedulingThread(RequestStateMachine[PendingRequest]):
    """The scheduling thread.

    It alone writes the working table and plans on it, so that no lock is needed:
    ``doc/source/decisions/0024-single-thread-for-planning-and-commit.rst``.
    """

    def __init__(
        self,
        stores: Stores,
        cache: HostCache,
        pipeline: Pipeline,
        recorder: Recorder,
        settings: SchedulerSettings,
        quotas: QuotaChecks,
        make_hook: MakePlanningHook,
        on_answers: AnswersCallback | None = None,
    ) -> None:
        super().__init__(stores.requests, recorder, settings.worker)
        clock = cache.clock
        # Any thread puts requests in, and only this one takes them out; all that is inside is
        # answered once.
        self.admission = Admission(
            settings.queue_limit, settings.retry_after_ms, clock, settings.project_weights
        )
        self._cache = cache
        self._planner = Planner(stores, cache, settings, make_hook)
        #: Filters and weighers as given by any thread; as taken over, and as they run, by this
        #: thread.
        self._requested_pipeline = self._configured_pipeline = self._pipeline = pipeline
        # Order of the filters, adapted to their measured cost every few decisions.
        self._ordering = FilterOrdering(clock)
        # Plans so far: every so many of them the filters are measured.
        self._decision_count = 0
        #: Lost races of this scheduler against others.
        self.contention = self._planner.contention
        # Hosts that other transactions keep locked: chosen only where there are no others.
        self._locked_hosts = LockedHosts(clock)
        self._clock = clock
        self._settings = settings
        self._quotas = quotas
        self._quota_round: QuotaRound | None = None  # for the next commit
        # None until the start; tests run ``step`` without a thread.
        self._thread: threading.Thread | None = None
        # All calls of the batch at work, so that each is answered or repeated where it fails.
        self._batch: list[PendingRequest] = []
        self._remaining_calls: Iterator[PendingRequest] = iter(())  # calls of the batch not begun
        self._plan_began_at = 0.0  # monotonic time at which the last plan was begun
        # Planned without success between the members of another call: in no batch until that one
        # ends, so that none is planned twice in it; the next batch has them.
        self._postponed_calls: list[PendingRequest] = []
        stored_answers = StoredAnswers(stores.records, stores.requests, cache.host_row, cache.pool)
        self._earlier_answers = EarlierAnswers[PendingRequest](
            stores.requests, stored_answers, recorder
        )
        self._outgoing_answers = OutgoingAnswers(self.admission, recorder, clock, on_answers)

    @property
    def pipeline(self) -> Pipeline:
        """The filters and weighers in force."""
        given = self._requested_pipeline
        return self._pipeline if given is self._configured_pipeline else given

    def use_pipeline(self, pipeline: Pipeline) -> None:
        """Place with other filters and weighers from the next batch on."""
        self._requested_pipeline = pipeline

    def set_zones_not_queried(self, not_queried: Callable[[SelectDestinations], list[str]]) -> None:
        """Set how to find child zones with room that were not queried; call before the start.

        :param not_queried: returns the names of child zones that a request is not sent to
        """
        self._planner.zones_not_queried = not_queried

    # -- life ------------------------------------------------------------------
    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name='placing', daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Accept no more requests and finish those inside; return whether that was in time."""
        self.admission.closed = True
        self.admission.wake()
        if self._thread is not None:
            self._thread.join(seconds)
            return not self._thread.is_alive()
        return True

    def refuse_unstarted(self, reason: str) -> int:
        """Turn away the calls that no batch has had yet; return their number.  Any thread."""
        calls = self.admission.take_unstarted()
        for call in calls:
            answer = refusal(call.request, Outcome.BUSY, reason, UNSTARTED_RETRY_MS)
            for handle, replies in self.admission.leave(call):
                self._recorder.count('gantt_requests_rejected_total', outcome=answer.outcome.value)
                replies.send([(handle, answer)])
        return len(calls)

    def _run(self) -> None:
        while not (self.admission.closed and not self.admission.depth):
            try:
                self.step(IDLE_SECONDS)
            except Exception as e:  # the thread must outlive any one batch
                LOG.exception(
                    'Batch of requests failed unexpectedly; each request of it is tried alone'
                )
                try:
                    self._recover_from_failure(e)
                except Exception:  # about answers already sent
                    LOG.exception('Requests of a failed batch cannot be tried again')

    # -- the flow ------------------------------------------------------------------
    def step(self, idle_seconds: float = 0.0) -> int:
        """Run one batch, from the queue to the answers; return the number of its calls."""
        calls = self.admission.drain(
            self._settings.claims_per_commit,
            BATCH_BYTES_MAX,
            self._settings.batch_wait_ms / 1000,
            idle_seconds,
        )
        self._batch = calls = self._calls_to_isolate(calls)
        self._quota_round = None
        if self._requested_pipeline is not self._configured_pipeline:
            self._use_pipeline(self._requested_pipeline)
        is_suspect = self._cache.is_suspect  # read before: folding may end it
        self._cache.fold()
        if calls and (is_suspect or not self._cache.is_loaded):
            self._wait_for_hosts(calls)
        elif calls:
            self._remaining_calls = iter(calls)
            try:
                self._place(self._remaining_calls)
            finally:
                for call in self._postponed_calls:
                    self.admission.again(call)
                self._postponed_calls = []
        self._outgoing_answers.send()
        return len(calls)

    def _place(self, calls: Iterable[PendingRequest]) -> None:
        """Plan calls one after another and commit them together."""
        plans: list[Plan] = []
        for call in self._drop_overdue(calls):
            if plans and len(call.attempt.todo) > 1 and call.is_whole:
                # It may take long: the calls before it do not wait for that.
                self._commit(plans)
                self._outgoing_answers.send()
                plans = []
            plan = None if self._is_over_quota(call) else self._plan(call)
            if plan:
                plans.append(plan)
        if plans:
            self._commit(plans)

    def _use_pipeline(self, pipeline: Pipeline) -> None:
        is_other = pipeline.digest != self._pipeline.digest
        self._configured_pipeline = self._pipeline = pipeline
        if is_other and self._settings.order_by_cost:
            self._pipeline = self._ordering.begin(pipeline)

    def _calls_to_isolate(self, calls: list[PendingRequest]) -> list[PendingRequest]:
        """Return one call of a failed batch by itself; else all calls."""
        suspect = next((call for call in calls if call.attempt.is_isolated), None)
        if suspect is None:
            return calls
        for call in calls:
            if call is not suspect:
                self.admission.put_back(call)
        return [suspect]

    def _wait_for_hosts(self, calls: list[PendingRequest]) -> None:
        """Let calls wait within their budgets: nothing was read from this database yet."""
        for call in calls:
            if call.deadline <= self._clock.monotonic():
                reason = 'the database has not answered yet'
                self.handle_event(
                    call, RequestEvent.UNCERTAIN, refusal(call.request, Outcome.UNKNOWN, reason)
                )
            else:
                self.handle_event(call, RequestEvent.SUSPECT)

    def _drop_overdue(self, calls: Iterable[PendingRequest]) -> Iterable[PendingRequest]:
        now = self._clock.monotonic()
        members_left = members_max = self._settings.claims_per_commit
        bytes_left = BATCH_BYTES_MAX
        for call in calls:
            size = min(len(call.attempt.todo), members_max)
            if call.deadline <= now:
                self._end(call, RequestEvent.OUT_OF_TIME, *out_of_time(call))
            elif size > members_left < members_max or call.bytes > bytes_left < BATCH_BYTES_MAX:
                self.admission.put_back(call)
            else:
                members_left, bytes_left = members_left - size, bytes_left - call.bytes
                yield call

    def _plan(self, call: PendingRequest) -> Plan | None:
        """Place a call on the working table; return None where that ends it already."""
        conflicts = len(call.attempt.conflicts)
        if conflicts >= self._settings.attempts_per_request:
            reason = f'gave up after {conflicts} attempts'
            if not (call.repeats and self._answer_as_before(call, Outcome.CONFLICT, reason)):
                self._end(call, RequestEvent.OUT_OF_TRIES, Outcome.CONFLICT, reason)
            return None
        try:
            plan = self._plan_current(call)
            if plan.claims_nothing and plan.is_placed:
                self._take_back(plan)
        except exceptions.Refused as e:
            # Its group may have had the other rule when a copy of the request was placed.
            if not self._is_postponed(call) and not (
                may_be_outdated(e) and self._answer_as_before(call, Outcome.REFUSED, e.message)
            ):
                self._end(call, RequestEvent.REFUSED, Outcome.REFUSED, e.message)
            return None
        except exceptions.GanttError as e:
            self._end(call, RequestEvent.FAILED, Outcome.FAILED, e.message)
            return None
        outcome, reason = plan.decision.outcome, plan.decision.reason
        if outcome is Outcome.EXPIRED:
            self._end(call, RequestEvent.OUT_OF_TIME, outcome, reason)
            return None
        if not plan.is_placed:
            if not (
                self._is_postponed(call) or self._answer_as_before(call, outcome, reason, plan)
            ):
                self._end(call, RequestEvent.NO_ROOM, outcome, reason, plan)
            return None
        return None if self._needs_no_commit(plan) else plan

    def _is_over_quota(self, call: PendingRequest, plan: Plan | None = None) -> bool:
        """Return whether a call ends because its project has reached a limit.

        :param plan: to be committed: counts for later calls where it is admitted
        """
        paid = False
        if call.request.spec.group is not None:
            # A planned call has been counted; its places are not known before it is planned.
            if plan is None and self._planner.may_be_counted(call):
                return False
            paid = plan is not None and self._planner.has_paid(plan)
        try:
            if self._quota_round is None:
                self._quota_round = self._quotas.new_round()
            if not self._quota_round.has_limits:
                return False
            todo = call.attempt.todo
            if plan is None:
                excess = self._quota_round.would_pass(call.request, todo)
            else:
                excess = self._quota_round.admit(
                    call.request, todo, plan.extra.replaced, has_paid=paid
                )
        except exceptions.Unavailable as e:
            self._end(call, RequestEvent.FAILED, Outcome.FAILED, e.message)
            return True
        if excess is None:
            return False
        # A copy of it may have been placed before, and be what uses the quota up.
        if not self._answer_as_before(call, Outcome.REFUSED, excess.line, excess=excess):
            self._quotas.count_refusal(excess)
            self._end(call, RequestEvent.OVER_QUOTA, Outcome.REFUSED, excess.line, excess=excess)
        return True

    def _is_postponed(self, call: PendingRequest) -> bool:
        """Return whether a call waits as its plan rests on an outdated database state."""
        if is_suspect := self._cache.is_suspect:
            self.handle_event(call, RequestEvent.SUSPECT)
        return is_suspect

    def _plan_current(self, call: PendingRequest) -> Plan:
        """Return the plan of a call; before a refusal, read the feed and plan again.

        Locked hosts are chosen only where there are no others.
        """
        is_old = self._cache.read_seconds_ago > FEED_FRESH_SECONDS
        locked = self._locked_hosts.names() if self._locked_hosts.found else []
        serve = self._serve_others if self._may_serve(call) else None
        try:
            plan = self._plan_on_table(call, serve, locked)
            if plan.is_placed or plan.decision.outcome is Outcome.EXPIRED:
                return plan
            if not (is_old or locked):
                return plan
        except exceptions.Refused as e:
            if not may_be_outdated(e):
                raise
            is_old = True
        if is_old:
            # Room may have come free since, or the group may have another rule.
            self._cache.fetch_news()
            self._cache.fold(mid_batch=True)
        if (
            serve is not None
            and self._clock.monotonic() - self._plan_began_at >= MEMBER_SLICE_SECONDS
        ):
            serve(call)
        return self._plan_on_table(call, serve)

    def _plan_on_table(
        self,
        call: PendingRequest,
        serve: Callable[[PendingRequest], bool] | None,
        without: Sequence[str] = (),
        *,
        is_brief: bool = False,
    ) -> Plan:
        """Lay a plan of a call over the table; adapt the order of filters every few decisions.

        :param serve: places waiting calls and returns whether there were any.  None: none may be
            served, as while a call is served like that
        :param is_brief: a call that needs more than a slice for one member is placed later
        """
        self._decision_count += 1
        if not self._decision_count % DECISIONS_PER_MEASUREMENT and self._settings.order_by_cost:
            table = self._cache.working
            self._pipeline = self._ordering.follow(table, call.request, self._pipeline)
        clock = self._clock
        began = self._plan_began_at = clock.monotonic()

        def pause(is_searching: bool) -> Pause:
            """Return how to go on; called before each further member, and in long searches."""
            nonlocal began
            now = clock.monotonic()
            if now >= call.deadline:
                return Pause.OVER
            if now - began < MEMBER_SLICE_SECONDS:
                return Pause.GO_ON
            if is_brief and is_searching:
                return Pause.OVER
            if not (call.is_whole or is_searching):
                return Pause.ENOUGH
            served = serve is not None and serve(call)
            began = clock.monotonic()
            return Pause.REEVALUATE if served else Pause.GO_ON

        return self._planner.plan(call, self._pipeline, pause, without)

    def _take_back(self, plan: Plan) -> None:
        """Remove the picks of a plan that claims nothing from the table.

        The record of many members takes long: others do not wait for that as well.
        """
        self._planner.undo(plan)
        if len(plan.members) > 1 and self._may_serve(plan.call):
            self._serve_others(plan.call)

    @staticmethod
    def _may_serve(call: PendingRequest) -> bool:
        # Claims of an earlier attempt are set aside meanwhile: no other call may get that room.
        # A call that is planned by itself must not fail because of others.
        attempt = call.attempt
        return not (attempt.state is RequestState.TAKING_OVER or attempt.is_isolated)

    def _serve_others(self, call: PendingRequest) -> bool:
        """Place calls that wait behind one planned whole; return whether any were placed.

        Only calls that can be placed on the table as it is are served: nothing is folded into
        it here, so that the hosts and their rows stay.

        :raises ServedRequestFailed: by no fault of the call
        """
        members_max = self._settings.claims_per_commit
        waiting = [
            *self._remaining_calls,
            *self.admission.drain(members_max, BATCH_BYTES_MAX, 0.0, 0.0),
        ]
        served = [
            waiting_call
            for waiting_call in waiting
            if not (waiting_call.attempt.is_isolated or waiting_call.is_whole)
        ]
        for waiting_call in waiting:
            if waiting_call not in served:
                self.admission.put_back(waiting_call)
        # Each once, for ``_recover_from_failure``: some are of this batch, and come here again.
        self._batch = list(dict.fromkeys([*self._batch, *served]))
        try:
            plans = [
                plan
                for waiting_call in self._drop_overdue(served)
                if (plan := self._plan_if_brief(waiting_call))
            ]
            if plans:
                self._commit(plans)
            self._outgoing_answers.send()
        except exceptions.GanttError as e:
            raise ServedRequestFailed(e.message) from e
        return bool(plans)

    def _plan_if_brief(self, call: PendingRequest) -> Plan | None:
        """Return the plan of a call if it can be placed; other results are left to the next batch.

        Room only decreases until then: a call that fails here once is not planned here again.
        """
        try:
            if len(call.attempt.conflicts) < self._settings.attempts_per_request:
                plan = self._plan_on_table(call, None, self._locked_hosts.names(), is_brief=True)
                if plan.is_placed:
                    return plan
        except exceptions.GanttError:
            pass  # the next batch meets it again, and reports it
        self._postponed_calls.append(call)
        return None

    def _needs_no_commit(self, plan: Plan) -> bool:
        """Return whether a plan claims nothing, or waits as it needs a locked host."""
        if plan.claims_nothing:
            if not self._is_postponed(plan.call):
                self.handle_event(plan.call, RequestEvent.DECIDED, plan.answer(), plan.record())
            return True
        name = (
            self._locked_hosts.first_locked(plan.providers_to_lock())
            if self._locked_hosts.found
            else ''
        )
        if name:
            self._planner.undo(plan)
            reason = f'host {name} is locked by another process'
            self.handle_event(plan.call, RequestEvent.LOCKED, reason=reason)
        return bool(name)

    def _answer_as_before(
        self,
        call: PendingRequest,
        outcome: Outcome,
        reason: str,
        plan: Plan | None = None,
        excess: Excess | None = None,
    ) -> bool:
        """Return whether a call to be refused was handled before; if so, answer like then."""
        answer = self._refusal(call, outcome, reason, plan, excess)
        earlier = self._earlier_answers.answer_before_refusal(call, answer)
        if isinstance(earlier, StoredRequest):
            if earlier.wait_seconds <= 0:
                # Its worker is dead; what it had claimed may be the room we need.
                self.release(call.request.request_id, earlier.owner, earlier.attempt)
            self.handle_event(call, RequestEvent.OPEN)
        elif earlier is not None:
            self.handle_event(call, RequestEvent.REPEAT, earlier)
        return earlier is not None

    def _commit(self, plans: list[Plan]) -> None:
        if self._cache.is_suspect:
            for plan in plans:
                self._planner.undo(plan)
                self._is_postponed(plan.call)
            return
        try:
            within = self._within_quotas(plans)
            if within:
                self._commit_placed(within)
        finally:
            self._quotas.leave(plan.call.request for plan in plans)

    def _commit_placed(self, plans: list[Plan]) -> None:
        started = self._clock.monotonic()
        try:
            result = self._requests.commit(self._planner.drafts(plans, self._owner, started))
        except exceptions.Unavailable as e:
            # The outcome is not known: the caller repeats with the same id.
            for plan in plans:
                self._planner.undo(plan)
                refused = refusal(plan.call.request, Outcome.FAILED, e.message)
                self.handle_event(plan.call, RequestEvent.UNCERTAIN, refused)
            return
        self._recorder.observe('gantt_commit_duration_seconds', self._clock.monotonic() - started)
        self._recorder.observe('gantt_commit_batch_size', len(plans))
        self._planner.count_planned(plans, self._pipeline, self._recorder)
        self._recorder.count('gantt_commits_total', path=result.path.value)
        placed = [
            plan
            for plan, status in zip(plans, result.outcomes, strict=True)
            if status.outcome is CommitStatus.PLACED
        ]
        places_taken = sum(len(plan.extra.taken) for plan in placed)
        claims_created = sum(len(plan.members) for plan in placed) - places_taken
        self._recorder.count('gantt_reservations_taken_total', places_taken)
        self._recorder.count('gantt_claims_created_total', claims_created)
        if result.locked:
            self._locked_hosts.note(result.locked)
        self._planner.apply_commit(plans, result)
        if self._planner.note_races(plans, result):
            self._recorder.gauge('gantt_host_subset_size', self.contention.spread)
        for plan, status in zip(plans, result.outcomes, strict=True):
            self._handle_commit_outcome(plan, status)

    def _within_quotas(self, plans: list[Plan]) -> list[Plan]:
        """Return the plans that may be committed; usage is read anew for the commit after."""
        placed = []
        for plan in plans:
            if self._is_over_quota(plan.call, plan):
                self._planner.undo(plan)
            else:
                placed.append(plan)
        self._quota_round = None
        return placed

    def _handle_commit_outcome(self, plan: Plan, status: RequestOutcome) -> None:
        """Feed the outcome of a commit to the request, with the answer that may end it."""
        call = plan.call
        answer: Answer | None = None
        claims_made, conflict = dict[int, Any](), ''
        match status.outcome:
            case CommitStatus.PLACED:
                answer = plan.final_answer
            case CommitStatus.PARTIAL | CommitStatus.DROPPED | CommitStatus.GROUP_CHANGED:
                claims_made, lost_hosts = plan.outcome(status)
                if lost_hosts:
                    self._recorder.count('gantt_conflicts_total', len(lost_hosts))
                    conflict = conflict_line(status.outcome.value, lost_hosts, status.reason)
            case CommitStatus.LOCKED:
                self._recorder.count('gantt_lock_conflicts_total')
            case _:
                answer = self._earlier_answers.ended_answer(call, status)
        event, number, reason = RequestEvent(status.outcome.value), status.attempt, status.reason
        self.handle_event(call, event, answer, None, claims_made, conflict, number, reason)

    # -- what happens to a request -----------------------------------------------------
    def answer(self, call: PendingRequest, answer: Answer) -> None:
        self._outgoing_answers.put(call, answer)

    def plan_again(self, call: PendingRequest, seconds: float) -> None:
        self.admission.later(call, seconds) if seconds else self.admission.again(call)

    def note_released_hosts(self, result: ClaimResult) -> None:
        self._cache.offer(result.hosts)

    def _end(
        self,
        call: PendingRequest,
        event: RequestEvent,
        outcome: Outcome,
        reason: str,
        plan: Plan | None = None,
        excess: Excess | None = None,
    ) -> None:
        """End a call without a placement, with an answer that gives the reason."""
        record: DecisionRecord | None = None
        if plan is not None:
            for rule in plan.removing_filters:
                self._recorder.count('gantt_filtered_hosts_total', rule.removed, filter=rule.name)
            record = plan.record()
        elif excess is not None:
            record = self._planner.refused(call, self._pipeline, excess)
        answer = self._refusal(call, outcome, reason, plan, excess)
        if record is not None:
            answer = msgspec.structs.replace(answer, decision_id=record.id)
        self.handle_event(call, event, answer, record)

    def _refusal(
        self,
        call: PendingRequest,
        outcome: Outcome,
        reason: str,
        plan: Plan | None,
        excess: Excess | None,
    ) -> Answer:
        """Return the answer to a call that ends without a placement."""
        retry = self._settings.retry_after_ms if outcome is Outcome.BUSY else None
        answer = refusal(call.request, outcome, reason, retry, excess=excess)
        if plan is None:
            return answer
        return msgspec.structs.replace(
            answer,
            decision_id=plan.decision.id,
            age_seconds=plan.age_seconds,
            zones_not_queried=plan.zones_not_queried,
        )

    def _recover_from_failure(self, error: Exception) -> None:
        """Recover from a bug: drop the table to be read again, and try each call by itself.

        A request that causes a failure must not cost the others their places.  One that fails
        by itself is answered with that.
        """
        self._recorder.count('gantt_commit_failures_total')
        self._cache.forget()
        calls = [
            batch_call
            for batch_call in self._batch
            if batch_call.waiters and not self.admission.is_waiting(batch_call)
        ]
        culprits = [
            batch_call for batch_call in calls if batch_call.attempt.is_isolated or len(calls) == 1
        ]
        for call in calls:
            if call not in culprits:
                self.handle_event(call, RequestEvent.BATCH_FAILED)
        for call in culprits:
            failed = refusal(call.request, Outcome.FAILED, f'internal: {error}')
            self.handle_event(call, RequestEvent.UNCERTAIN, failed)
        self._outgoing_answers.send()
