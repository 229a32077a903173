# SPDX-License-Identifier: Apache-2.0
"""One attempt of a request that may go down: on the own hosts, or in child zones.

    open its row, and meanwhile query all zones for offers → have its quotas admit it →
    take the best offer: the own
    hosts by the scheduling thread, a child zone by an allocation under a key of its own →
    where the offer no longer holds take the next one → store the answer, which ends the request

Each of these is a step of ``request.serial``, whose outcome is an event of the request's state
machine.  Where no offer holds any more the row is opened anew, and all zones are queried again.

The key of an allocation is derived from the owner of the open row and the zone: a process that
takes over derives the same keys.  The outcome of an allocation that was not answered
is queried by its key; where the zone does not report it either, the allocation is given back, then
the next offer is taken.  A give-back that a zone has not received is sent again later, see
``release_outbox``.
"""

import logging
import threading
from collections.abc import Mapping, Sequence

import msgspec

from gantt import exceptions
from gantt.core.claims.commit import CommitStatus, DecisionRecord
from gantt.core.claims.idempotency_keys import may_be_elsewhere
from gantt.core.claims.quota import Excess
from gantt.core.claims.request_state import RequestEvent, transition
from gantt.core.messages.base import NAME_MAX, derived_id
from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.core.records.decision import Answer, Decision, Outcome, ZoneStep
from gantt.core.records.members import encodable_answer, pack
from gantt.scheduler.ports.process import Recorder
from gantt.scheduler.quotas import QuotaChecks
from gantt.scheduler.request.answers import EarlierAnswers
from gantt.scheduler.request.life import RECHECK_SECONDS, RequestTransition
from gantt.scheduler.request.queue import Admission, PendingRequest, refusal
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.work_queue import WaitingReplies
from gantt.zones.model import choice
from gantt.zones.model.choice import ZoneChoice, ZoneScore, ZoneShare, child_selection
from gantt.zones.model.messages import ZonesQueried
from gantt.zones.ports import OpenedRequest, OpenRequest, ZoneStores
from gantt.zones.service import decisions
from gantt.zones.service.context import ZoneContext
from gantt.zones.service.decisions import dry_run_result
from gantt.zones.service.offers.evaluate import EvaluationResult, via_digest
from gantt.zones.service.rebuild_check import evaluation_result
from gantt.zones.service.request_lock import PendingZoneRequest, RequestLock
from gantt.zones.service.share_claimer import (
    RESOLVE_SECONDS,
    ClaimedShare,
    ShareClaimer,
    on_local_hosts,
)

LOG = logging.getLogger(__name__)
#: Share of the remaining time that is spent on waiting for offers; the rest is for claiming them.
EVALUATE_SHARE = 0.6
#: Rows of requests that are opened at once.
OPENER_THREADS = 32
#: Offers requested of one zone.
OFFERS_WANTED = 5
NO_MEMBERS_PLACED: Mapping[str, int] = {}
#: Outcomes of the own hosts after which no other place is tried.
_FINAL_OUTCOMES = (
    Outcome.PLACED,
    Outcome.REFUSED,
    Outcome.REUSED,
    Outcome.CANCELLED,
    Outcome.EXPIRED,
)


class ZonePlanner:
    """A planner of requests over zones, as ``SerialPlanner``.  Any thread.

    :param zones: calls and state of the other zones in this process
    :param admission: queue of the scheduling thread
    :param earlier: answers that requests got before
    """

    def __init__(
        self,
        stores: ZoneStores,
        zones: ZoneContext,
        shares: ShareClaimer,
        admission: Admission,
        earlier: EarlierAnswers[PendingZoneRequest],
        recorder: Recorder,
        settings: SchedulerSettings,
        quotas: QuotaChecks,
    ) -> None:
        self._requests = stores.requests
        self._zone_requests = stores.zone_requests
        self._evaluator = zones.evaluator
        self._affinity = zones.affinity
        self._rebuilds = zones.rebuilds
        self._reload_soon = zones.reload_soon
        self._config_digest = zones.config_digest
        self._children = zones.directory.children
        self._own_uuid = zones.directory.own_uuid
        self._shares = shares
        self._admission = admission
        self._earlier = earlier
        self._recorder = recorder
        self._clock = zones.clock
        self._settings = settings
        self._quotas = quotas
        #: One thread for each request that waits for its row.
        self._openers = zones.threads(OPENER_THREADS, 'zone-openings')
        self._lock = threading.Lock()
        self._serial = 0

    def close(self) -> None:
        """Open no more rows."""
        self._openers.close()

    # -- as SerialPlanner ----------------------------------------------------------------
    def attempt(self, call: PendingZoneRequest) -> RequestTransition:
        request = call.request
        if call.may_go_down and call.presumed_request is None:
            if via_digest(request.request_id, self._own_uuid()) in request.via:
                raise exceptions.ZoneLoop()
            if request.spec.purpose is Purpose.REBUILD:
                return self._rebuild_transition(call)
            call.presumed_request = self._with_presumed_rule(request)
            call.stays = self._affinity.zones_of(call.presumed_request) == {self._own_uuid()}
        if call.claims_nothing:
            return self._dry_run_transition(call)
        if call.lock is None:
            return self._open_request(call)
        if call.stays:
            self._affinity.bind_to_own_zone(call.lock.with_rule(request), self._seconds_left(call))
            return RequestTransition(
                RequestEvent.DECIDED, self._place_on_own_hosts(call, request, call.zones)
            )
        if not call.is_admitted:
            excess = self._quotas.admit(request)
            if excess is not None:
                return self._quota_transition(call, excess)
            call.is_admitted = True
        return self._place(call, call.lock)

    def end_before_step(self, call: PendingZoneRequest, is_late: bool) -> RequestTransition | None:
        if call.claims_nothing or (call.stays and call.lock is not None):
            return None
        if call.attempt.continues and (
            is_late or len(call.attempt.conflicts) >= self._settings.attempts_per_request
        ):
            why = f'gave up after {call.gone_offers.count} offers that were gone'
            event = RequestEvent.OUT_OF_TIME if is_late else RequestEvent.OUT_OF_TRIES
            return RequestTransition(event, call.refusal(Outcome.CONFLICT, why))
        return (
            RequestTransition(RequestEvent.OUT_OF_TIME, self._busy_answer(call))
            if is_late
            else None
        )

    def failed(
        self, call: PendingZoneRequest, error: exceptions.GanttError | MemoryError
    ) -> RequestTransition:
        if isinstance(error, MemoryError):
            raise error
        is_refused = isinstance(error, exceptions.Refused)
        event = RequestEvent.REFUSED if is_refused else RequestEvent.FAILED
        return RequestTransition(event, call.failure(error))

    def answered(self, call: PendingZoneRequest, answer: Answer) -> None:
        if not call.may_go_down:
            return
        self._quotas.leave([call.request], is_delegated=True)
        self._recorder.count('gantt_zone_requests_total', outcome=answer.outcome.value)
        LOG.info(
            'Request over zones was answered: outcome=%s trace=%s',
            answer.outcome.value,
            call.request.trace or '-',
            extra={'request_id': call.request.request_id},
        )

    # -- its row -------------------------------------------------------------------------
    def _with_presumed_rule(self, request: SelectDestinations) -> SelectDestinations:
        """Return a request under the rule of its group as known before its row is opened.

        :raises NotFound: the rule is stored nowhere
        :raises Refused: a dry run names another rule
        """
        try:
            return self._affinity.with_rule(request)
        except exceptions.NotFound:
            raise
        except exceptions.Refused:
            if request.dry_run:
                raise
            return request  # opening the row decides: its group may never have had a member

    def _open_request(self, call: PendingZoneRequest) -> RequestTransition:
        """Open the row of a request for this worker; return the transition."""
        length = len(call.request.spec.project_id or '')
        if length > NAME_MAX and not call.stays:
            # Longer than the indexed column of claims in child zones.
            why = f'project_id has {length} characters; expected {NAME_MAX} at most to go below'
            return RequestTransition(RequestEvent.REFUSED, call.refusal(Outcome.REFUSED, why))
        row = call.as_open_request(self._settings.worker, self._seconds_left(call))
        opened = self._open_row(call, row)
        outcome = opened.outcome
        if outcome is not None:
            call.evaluated = None
            if outcome.outcome is CommitStatus.OVERDUE:
                call.abandoned_token = opened.lock_token
            answer = self._earlier.ended_answer(call, outcome)
            return RequestTransition(
                RequestEvent(outcome.outcome.value), answer, number=outcome.attempt
            )
        if call.abandoned_token and may_be_elsewhere(call.abandoned_token):
            # Its owner is lost: the earlier claims are ended before new ones.
            self._shares.end_claims_of_lock(call.abandoned_token)
        call.abandoned_token = ''  # nosec B105 # there is none
        call.lock = RequestLock(row.attempt, opened.lock_token, opened.order, opened.rule)
        if (
            call.presumed_request is None
            or call.lock.with_rule(call.request).spec != call.presumed_request.spec
        ):
            call.evaluated = None
        return RequestTransition(RequestEvent.OPENED, number=row.attempt)

    def _open_row(self, call: PendingZoneRequest, row: OpenRequest) -> OpenedRequest:
        """Open a row; the first time, query all zones meanwhile for offers, which hold nothing."""
        if call.is_begun or call.stays or not _may_query_before_open(call.request):
            return self._zone_requests.open_request(row)
        call.is_begun = True
        opening = self._openers.begin(self._zone_requests.open_request, row)
        try:
            assert call.presumed_request is not None, 'it may go down'
            call.evaluated = self._offers(call, call.presumed_request, thorough=False)
        except exceptions.GanttError as e:
            LOG.info(
                'Evaluation failed and is repeated once the request is recorded: error=%s',
                e.message,
            )
        finally:
            while not opening.done():
                self._openers.wait([opening], RECHECK_SECONDS)
        opened: OpenedRequest = opening.result()
        return opened

    def _loss_transition(self, call: PendingZoneRequest) -> RequestTransition:
        """Return why a request is no longer ours: it was cancelled, or its time was over.

        One that is still ours has lost the rule that it was placed under, or a zone.
        """
        request_id = call.request.request_id
        stored = self._requests.load_request(request_id)
        if stored is not None and stored.state == 'cancelled':
            cancelled = call.refusal(Outcome.CANCELLED, 'it was cancelled')
            return RequestTransition(RequestEvent.CANCELLED, cancelled)
        if stored is None or (stored.state, stored.owner) != ('open', self._settings.worker):
            return RequestTransition(RequestEvent.BUSY, self._busy_answer(call))
        why = 'its server group, or a child zone, is not as it was when it was placed'
        self._requests.give_up(request_id, stored.owner, stored.attempt)
        return RequestTransition(RequestEvent.BUSY, self._busy_answer(call, why))

    def _busy_answer(
        self, call: PendingZoneRequest, why: str = 'another worker is at this request'
    ) -> Answer:
        return call.refusal(Outcome.BUSY, why, self._settings.retry_after_ms)

    def _quota_transition(self, call: PendingZoneRequest, excess: Excess) -> RequestTransition:
        """Return the end of a request whose project has used up a quota."""
        worker = self._settings.worker
        number = 1 if call.lock is None else call.lock.number
        decision = decisions.quota_decision(
            self._next_decision_id(call.request), call.request, excess, worker, number
        )
        record = self._decision_record(decision, call.request)
        refused = refusal(
            call.request, Outcome.REFUSED, excess.line, decision_id=decision.id, excess=excess
        )
        return RequestTransition(RequestEvent.OVER_QUOTA, refused, record)

    def _seconds_left(self, call: PendingZoneRequest) -> float:
        return max(0.0, call.deadline - self._clock.monotonic())

    # -- its places ----------------------------------------------------------------------
    def _place(self, call: PendingZoneRequest, lock: RequestLock) -> RequestTransition:
        """Claim the best offers for all members, or refuse the request."""
        request, gone = lock.with_rule(call.request), call.gone_offers
        if call.evaluated is None:
            thorough = bool(call.attempt.conflicts)
            call.evaluated = self._offers(call, request, thorough=thorough)
            call.gone_count_before = gone.count
        evaluated = call.evaluated
        choices = gone.remaining(evaluated.choices)
        members = range(len(request.consumers))
        shares = choice.split_over_choices(members, choices, choice.is_whole(request))
        if not shares:
            if gone.count > call.gone_count_before:
                return self._reopen_transition(call)
            return self._no_room_transition(call, request, evaluated)
        best = shares[0].choice
        place = best.child or self._own_uuid()
        if self._affinity.decide_zone(request, place, self._seconds_left(call)) != place:
            # Its group is bound to another zone since: that zone is queried anew.
            gone.drop_zone(best.child, choices)
            return self._reopen_transition(call)
        try:
            if len(shares) > 1 or best.child is not None:
                return self._claim_shares(call, request, lock, shares, evaluated)
            zones = decisions.steps_of(evaluated, {'': len(request.consumers)})
            answer = self._place_on_own_hosts(call, on_local_hosts(request, choices), zones)
        except exceptions.GanttError as e:
            # What it has claimed by then is not known: who takes its row over ends that.
            return RequestTransition(RequestEvent.UNCERTAIN, call.failure(e))
        # The row was closed with it.
        if answer.outcome in _FINAL_OUTCOMES:
            return RequestTransition(RequestEvent.DECIDED, answer)
        gone.drop(shares[0], answer)
        return self._reopen_transition(call)

    def _reopen_transition(self, call: PendingZoneRequest) -> RequestTransition:
        """Return the transition upon which the request is opened again: its offers are gone."""
        call.lock = None
        call.evaluated = None
        conflict = f'dropped: {call.gone_offers.count} offers were gone'
        return RequestTransition(RequestEvent.DROPPED, conflict=conflict)

    # -- here ---------------------------------------------------------------------------
    def _place_on_own_hosts(
        self, call: PendingZoneRequest, request: SelectDestinations, zones: Sequence[ZoneStep]
    ) -> Answer:
        """Have the scheduling thread continue with the open row, as without child zones."""
        assert call.lock is not None, 'its row is open'
        number = call.lock.number
        placed = PendingRequest(request, call.deadline, number)
        placed.fingerprint = call.fingerprint
        placed.zones = zones
        placed.attempt, _ = transition(placed.attempt, RequestEvent.OPENED, number=number)
        waiter = self._openers.waiter()
        refused = self._admission.enter(placed, None, waiter)
        for entry in refused:
            entry.replies.send_soon([(entry.handle, entry.answer)])
        if any(entry.replies is waiter for entry in refused):
            # Nothing is claimed: no later request has to wait for the deadline of the row.
            self._requests.give_up(request.request_id, self._settings.worker, number)
        return self._wait_for_answer(request, waiter, self._seconds_left(call))

    def _wait_for_answer(
        self, request: SelectDestinations, waiter: WaitingReplies, seconds: float
    ) -> Answer:
        """Return the answer of the scheduling thread."""
        answer = encodable_answer(waiter.wait(request, seconds + RESOLVE_SECONDS))
        self._reload_soon()
        return answer

    def _dry_run_here(self, call: PendingZoneRequest, request: SelectDestinations) -> Answer:
        """Carry out a whole request that claims nothing by the scheduling thread."""
        waiter, seconds = self._openers.waiter(), self._seconds_left(call)
        spent = max(0.0, request.budget_ms - seconds * 1000)
        for refused in self._admission.submit(request, None, waiter, spent):
            refused.replies.send_soon([(refused.handle, refused.answer)])
        return self._wait_for_answer(request, waiter, seconds)

    # -- several places ------------------------------------------------------------------
    def _claim_shares(
        self,
        call: PendingZoneRequest,
        request: SelectDestinations,
        lock: RequestLock,
        shares: Sequence[ZoneShare],
        evaluated: EvaluationResult,
    ) -> RequestTransition:
        """Claim each share where it was offered, and store the answer.

        All or none: the claims made so far are given back where a share has no place.
        """
        claimed_shares: list[ClaimedShare] = []
        for share in shares:
            result = self._shares.claim(request, lock, share, call.deadline)
            if isinstance(result, ClaimedShare):
                claimed_shares.append(result)
                continue
            self._shares.release(claimed_shares)
            if result is not None and result.outcome is Outcome.REFUSED:
                refused = msgspec.structs.replace(result, request_id=request.request_id)
                return RequestTransition(RequestEvent.REFUSED, refused)
            call.gone_offers.drop(share, result)
            return RequestTransition(RequestEvent.OFFER_GONE)
        answer = self._store_answer(request, lock, claimed_shares, evaluated)
        if answer is None:
            self._shares.release(claimed_shares)
            return self._loss_transition(call)
        return RequestTransition(RequestEvent.PLACED, answer)

    def _store_answer(
        self,
        request: SelectDestinations,
        lock: RequestLock,
        claimed_shares: Sequence[ClaimedShare],
        evaluated: EvaluationResult,
    ) -> Answer | None:
        """Return the answer, stored with the claims; None: the request is no longer ours."""
        number = lock.number
        members_by_zone = {share.zone: len(share.selections) for share in claimed_shares}
        reason = decisions.placed_reason(members_by_zone)
        record = self._record_for(
            request, number, Outcome.PLACED, reason, evaluated, members_by_zone
        )
        selections = {
            member: chosen
            for share in claimed_shares
            for member, chosen in share.selections.items()
        }
        answer = Answer(
            request_id=request.request_id,
            decision_id=record.id,
            outcome=Outcome.PLACED,
            selections=[selections[member] for member in range(len(request.consumers))],
            level=max(share.level for share in claimed_shares),
            given_up=list(
                dict.fromkeys(rule for share in claimed_shares for rule in share.given_up)
            ),
        )
        child_claims = [row for share in claimed_shares for row in share.child_claims]
        own = next(
            (share.local_share(request.parent) for share in claimed_shares if share.child is None),
            None,
        )
        owner, packed = self._settings.worker, pack(answer)
        key, group = request.request_id, request.spec.group
        if not self._zone_requests.finish_request(
            key, owner, number, packed, child_claims, own, group
        ):
            return None
        self._recorder.record(record)
        return answer

    def _no_room_transition(
        self, call: PendingZoneRequest, request: SelectDestinations, evaluated: EvaluationResult
    ) -> RequestTransition:
        """Refuse the request: "no room" where all zones report so, else "unknown"."""
        gone = call.gone_offers
        outcome, reason = decisions.refusal_of(request, evaluated, gone.count)
        if gone.own_refusal is not None:
            outcome, reason = gone.own_refusal.outcome, gone.own_refusal.reason
        record = self._record_for(request, call.attempt.number, outcome, reason, evaluated)
        retry = None if gone.own_refusal is None else gone.own_refusal.retry_after_ms
        return RequestTransition(
            RequestEvent.NO_ROOM, refusal(request, outcome, reason, retry, record.id), record
        )

    # -- that claim nothing ----------------------------------------------------------------
    def _rebuild_transition(self, call: PendingZoneRequest) -> RequestTransition:
        """Return the end of a rebuild: whether the guest fits on its host, here or in a child."""
        request = call.request
        location = self._rebuilds.child_of_guest(request)
        if location is None:
            return RequestTransition(RequestEvent.DECIDED, self._dry_run_here(call, request))
        zone, row = location
        evaluated = self._rebuilds.evaluate(zone, row.key, request, self._seconds_left(call))
        evaluation, is_placed = (
            evaluation_result(zone, evaluated),
            evaluated.outcome is Outcome.PLACED,
        )
        members_by_zone = {zone.name: 1} if is_placed else NO_MEMBERS_PLACED
        reason = decisions.placed_reason(members_by_zone) if is_placed else evaluation.reason
        record = self._record_for(
            request, 1, evaluated.outcome, reason, evaluation, members_by_zone
        )
        if not is_placed:
            refused = refusal(request, evaluated.outcome, reason, decision_id=record.id)
            return RequestTransition(RequestEvent.DECIDED, refused, record)
        resources, sealed_host = request.spec.resources, row.sealed_host
        chosen = child_selection(
            row.consumer, zone.name, resources=resources, sealed_host=sealed_host
        )
        answer = Answer(
            request_id=request.request_id,
            decision_id=record.id,
            outcome=Outcome.PLACED,
            selections=[[chosen]],
            dry_run=request.dry_run,
        )
        return RequestTransition(RequestEvent.DECIDED, answer, record)

    def _dry_run_transition(self, call: PendingZoneRequest) -> RequestTransition:
        """Return the end of a dry run: the place that its request would get."""
        request = call.request
        if call.stays:
            if call.presumed_request is None:
                self._affinity.check_own_zone(self._affinity.with_rule(request))
            return RequestTransition(RequestEvent.DECIDED, self._dry_run_here(call, request))
        excess = self._quotas.admit(request)
        if excess is not None:
            return self._quota_transition(call, excess)
        assert call.presumed_request is not None, 'it may go down'
        request = call.presumed_request
        evaluated = self._offers(call, request, thorough=False)
        members = range(len(request.consumers))
        shares = choice.split_over_choices(members, evaluated.choices, choice.is_whole(request))
        if len(shares) == 1 and shares[0].choice.child is None:
            return RequestTransition(RequestEvent.DECIDED, self._dry_run_here(call, request))
        answer, decision = dry_run_result(
            request, evaluated, shares, self._children(), self._next_decision_id(request)
        )
        return RequestTransition(
            RequestEvent.DECIDED, answer, self._decision_record(decision, request)
        )

    # -- parts ---------------------------------------------------------------------------
    def _offers(
        self, call: PendingZoneRequest, request: SelectDestinations, *, thorough: bool
    ) -> EvaluationResult:
        """Return the offers of all zones for a request.

        :param request: under the rule of its group
        :param thorough: query all zones: the offers of those queried first no longer hold
        """
        if request.places:
            # The offers made to the parent zone, in its order.
            choices = [
                ZoneChoice(
                    place.child,
                    place,
                    ZoneScore(n, 0.0, 0.0),
                    place.fits or len(request.consumers),
                )
                for n, place in enumerate(request.places)
            ]
            steps = tuple(request.places[0].steps)
            hosts = sum(step.hosts for step in steps)
            return EvaluationResult(
                choices, Outcome.PLACED, '', hosts, 0, {}, ZonesQueried(), True, '', (), steps
            )
        seconds = self._seconds_left(call) * EVALUATE_SHARE
        return self._evaluator.evaluate(request, OFFERS_WANTED, seconds, thorough=thorough)

    def _record_for(
        self,
        request: SelectDestinations,
        number: int,
        outcome: Outcome,
        reason: str,
        evaluated: EvaluationResult,
        members_by_zone: Mapping[str, int] = NO_MEMBERS_PLACED,
    ) -> DecisionRecord:
        worker = self._settings.worker
        decision = decisions.decision_over_zones(
            self._next_decision_id(request),
            request,
            evaluated,
            outcome,
            reason,
            members_by_zone,
            worker,
            number,
        )
        return self._decision_record(decision, request)

    def _decision_record(self, decision: Decision, request: SelectDestinations) -> DecisionRecord:
        decided = msgspec.structs.replace(decision, config_digest=self._config_digest())
        return decisions.record_of(decided, request)

    def _next_decision_id(self, request: SelectDestinations) -> str:
        """Return the id of the next decision."""
        with self._lock:
            self._serial += 1
            serial = self._serial
        return derived_id('decision over zones', request.request_id, self._settings.worker, serial)


def _may_query_before_open(request: SelectDestinations) -> bool:
    """Return whether zones are queried while the row of a request is being opened.

    The guest of a move is to be read after its row is open, and a repeat may have its
    answer: no zone is queried for it.
    """
    return not (request.repeat or request.places or request.spec.purpose.is_move)
