# SPDX-License-Identifier: Apache-2.0
"""One attempt of a request that may go down: on the own hosts, or in child zones.

    open its row, and meanwhile query all zones for offers → have its quotas admit it →
    take the best offer: the own
    hosts by the placing thread, a child zone by an allocation under a key of its own →
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
from gantt.core.claims.quota import Excess
from gantt.core.claims.request_state import RequestEvent, transition
from gantt.core.messages.base import NAME_MAX, derived_id
from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.core.records.decision import Answer, Decision, Outcome, Selection, ZoneStep
from gantt.core.records.members import pack, plain
from gantt.core.zones import choice
from gantt.core.zones.choice import Choice, Share
from gantt.core.zones.idempotency_keys import may_be_elsewhere
from gantt.core.zones.messages import ZonesQueried
from gantt.core.zones.score import ZoneScore
from gantt.scheduler.ports import OpenedRequest, OpenRequest, Recorder, Stores
from gantt.scheduler.quotas import QuotaChecks
from gantt.scheduler.request.answers import EarlierAnswers
from gantt.scheduler.request.life import LOOK_SECONDS, Happened
from gantt.scheduler.request.queue import Admission, PendingRequest, refusal
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.waiter import Waiter
from gantt.scheduler.zones import decisions
from gantt.scheduler.zones.context import ZoneContext
from gantt.scheduler.zones.dry_run import would_be
from gantt.scheduler.zones.offers.evaluate import Evaluated, digest_of
from gantt.scheduler.zones.rebuild_check import as_evaluated
from gantt.scheduler.zones.request_lock import PendingZoneRequest, RequestLock
from gantt.scheduler.zones.share_claimer import (
    RESOLVE_SECONDS,
    ClaimedShare,
    ShareClaimer,
    on_local_hosts,
)

LOG = logging.getLogger(__name__)
#: Share of the remaining time that is spent on waiting for offers; the rest is for claiming them.
EVALUATE_SHARE = 0.6
#: Rows of requests that are opened at once.
OPENERS = 32
#: Offers requested of one zone.
WANT = 5
NOBODY: Mapping[str, int] = {}
#: Outcomes of the own hosts after which no other place is tried.
_FINAL = (Outcome.PLACED, Outcome.REFUSED, Outcome.REUSED, Outcome.CANCELLED, Outcome.EXPIRED)


class ZonePlanner:
    """A planner of requests over zones, as ``SerialPlanner``.  Any thread.

    :param zones: calls and state of the other zones in this process
    :param admission: of the placing thread
    :param earlier: answers that requests got before
    """

    def __init__(
        self,
        stores: Stores,
        zones: ZoneContext,
        shares: ShareClaimer,
        admission: Admission,
        earlier: EarlierAnswers[PendingZoneRequest],
        recorder: Recorder,
        settings: SchedulerSettings,
        quotas: QuotaChecks,
    ) -> None:
        self._requests, self._zone_requests = stores.requests, stores.zone_requests
        self._evaluator, self._affinity, self._rebuilds = (
            zones.evaluator,
            zones.affinity,
            zones.rebuilds,
        )
        self._reload_soon, self._config_digest = zones.reload_soon, zones.config_digest
        self._children, self._own_uuid = zones.directory.children, zones.directory.own_uuid
        self._shares, self._admission, self._earlier = shares, admission, earlier
        self._recorder, self._clock, self._settings = recorder, zones.clock, settings
        self._quotas = quotas
        #: One thread for each request that waits for its row.
        self._openers = zones.threads(OPENERS, 'zone-openings')
        self._lock = threading.Lock()
        self._serial = 0

    def close(self) -> None:
        """Open no more rows."""
        self._openers.close()

    # -- as SerialPlanner ----------------------------------------------------------------
    def attempt(self, call: PendingZoneRequest) -> Happened:
        request = call.request
        if call.may_go_down and call.known is None:
            if digest_of(request.request_id, self._own_uuid()) in request.via:
                raise exceptions.ZoneLoop()
            if request.spec.purpose is Purpose.REBUILD:
                return self._rebuilt(call)
            call.known = self._known(request)
            call.stays = self._affinity.of(call.known) == {self._own_uuid()}
        if call.claims_nothing:
            return self._tried(call)
        if call.lock is None:
            return self._open(call)
        if call.stays:
            self._affinity.bind_to_own_zone(call.lock.ruled(request), self._seconds(call))
            return Happened(RequestEvent.DECIDED, self._on_own_hosts(call, request, call.zones))
        if not call.is_let_in:
            excess = self._quotas.let_in(request)
            if excess is not None:
                return self._over_quota(call, excess)
            call.is_let_in = True
        return self._place(call, call.lock)

    def spent(self, call: PendingZoneRequest, is_late: bool) -> Happened | None:
        if call.claims_nothing or (call.stays and call.lock is not None):
            return None
        if call.attempt.continues and (
            is_late or len(call.attempt.conflicts) >= self._settings.attempts_per_request
        ):
            why = f'gave up after {call.gone.count} offers that were gone'
            event = RequestEvent.OUT_OF_TIME if is_late else RequestEvent.OUT_OF_TRIES
            return Happened(event, call.refusal(Outcome.CONFLICT, why))
        return Happened(RequestEvent.OUT_OF_TIME, self._busy(call)) if is_late else None

    def failed(
        self, call: PendingZoneRequest, error: exceptions.GanttError | MemoryError
    ) -> Happened:
        if isinstance(error, MemoryError):
            raise error
        is_refused = isinstance(error, exceptions.Refused)
        event = RequestEvent.REFUSED if is_refused else RequestEvent.FAILED
        return Happened(event, call.failure(error))

    def answered(self, call: PendingZoneRequest, answer: Answer) -> None:
        if not call.may_go_down:
            return
        self._quotas.leave([call.request], goes_down=True)
        self._recorder.count('gantt_zone_requests_total', outcome=answer.outcome.value)
        LOG.info(
            'Request over zones was answered: outcome=%s trace=%s',
            answer.outcome.value,
            call.request.trace or '-',
            extra={'request_id': call.request.request_id},
        )

    # -- its row -------------------------------------------------------------------------
    def _known(self, request: SelectDestinations) -> SelectDestinations:
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

    def _open(self, call: PendingZoneRequest) -> Happened:
        """Open the row of a request for this worker."""
        length = len(call.request.spec.project_id or '')
        if length > NAME_MAX and not call.stays:
            # Longer than what is stored, and indexed, of claims below.
            why = f'project_id has {length} characters; expected {NAME_MAX} at most to go below'
            return Happened(RequestEvent.REFUSED, call.refusal(Outcome.REFUSED, why))
        row = call.to_open(self._settings.worker, self._seconds(call))
        opened = self._opened(call, row)
        outcome = opened.outcome
        if outcome is not None:
            call.evaluated = None
            if outcome.outcome is CommitStatus.OVERDUE:
                call.abandoned = opened.lock_token
            answer = self._earlier.resolved(call, outcome)
            return Happened(RequestEvent(outcome.outcome.value), answer, number=outcome.attempt)
        if call.abandoned and may_be_elsewhere(call.abandoned):
            # Its owner is lost: the earlier claims are ended before new ones.
            self._shares.end_abandoned(call.abandoned)
        call.abandoned = ''
        call.lock = RequestLock(row.attempt, opened.lock_token, opened.order, opened.rule)
        if call.known is None or call.lock.ruled(call.request).spec != call.known.spec:
            call.evaluated = None
        return Happened(RequestEvent.OPENED, number=row.attempt)

    def _opened(self, call: PendingZoneRequest, row: OpenRequest) -> OpenedRequest:
        """Open a row; the first time, query all zones meanwhile for offers, which hold nothing."""
        if call.is_begun or call.stays or not _may_look_first(call.request):
            return self._zone_requests.open_request(row)
        call.is_begun = True
        opening = self._openers.begin(self._zone_requests.open_request, row)
        try:
            assert call.known is not None, 'it may go down'
            call.evaluated = self._offers(call, call.known, thorough=False)
        except exceptions.GanttError as e:
            LOG.info(
                'Evaluation failed and is repeated once the request is recorded: error=%s',
                e.message,
            )
        finally:
            while not opening.done():
                self._openers.wait([opening], LOOK_SECONDS)
        opened: OpenedRequest = opening.result()
        return opened

    def _lost(self, call: PendingZoneRequest) -> Happened:
        """Return why a request is no longer ours: it was cancelled, or its time was over.

        One that is still ours has lost the rule that it was placed under, or a zone.
        """
        request_id = call.request.request_id
        stored = self._requests.load_request(request_id)
        if stored is not None and stored.state == 'cancelled':
            cancelled = call.refusal(Outcome.CANCELLED, 'it was cancelled')
            return Happened(RequestEvent.CANCELLED, cancelled)
        if stored is None or (stored.state, stored.owner) != ('open', self._settings.worker):
            return Happened(RequestEvent.BUSY, self._busy(call))
        why = 'its server group, or a zone below, is not as it was when it was placed'
        self._requests.give_up(request_id, stored.owner, stored.attempt)
        return Happened(RequestEvent.BUSY, self._busy(call, why))

    def _busy(
        self, call: PendingZoneRequest, why: str = 'another worker is at this request'
    ) -> Answer:
        return call.refusal(Outcome.BUSY, why, self._settings.retry_after_ms)

    def _over_quota(self, call: PendingZoneRequest, excess: Excess) -> Happened:
        """Return the end of a request whose project has used up a quota."""
        worker = self._settings.worker
        number = 1 if call.lock is None else call.lock.number
        decision = decisions.over_quota(
            self._serially(call.request), call.request, excess, worker, number
        )
        record = self._stored_as(decision, call.request)
        refused = refusal(
            call.request, Outcome.REFUSED, excess.line, decision_id=decision.id, excess=excess
        )
        return Happened(RequestEvent.OVER_QUOTA, refused, record)

    def _seconds(self, call: PendingZoneRequest) -> float:
        return max(0.0, call.deadline - self._clock.monotonic())

    # -- its places ----------------------------------------------------------------------
    def _place(self, call: PendingZoneRequest, lock: RequestLock) -> Happened:
        """Claim the best offers for all members, or refuse the request."""
        request, gone = lock.ruled(call.request), call.gone
        if call.evaluated is None:
            thorough = bool(call.attempt.conflicts)
            call.evaluated = self._offers(call, request, thorough=thorough)
            call.gone_before = gone.count
        evaluated = call.evaluated
        choices = gone.left(evaluated.choices)
        members = range(len(request.consumers))
        shares = choice.split(members, choices, choice.is_whole(request))
        if not shares:
            if gone.count > call.gone_before:
                return self._open_anew(call)
            return self._no_room(call, request, evaluated)
        best = shares[0].choice
        place = best.child or self._own_uuid()
        if self._affinity.decide(request, place, self._seconds(call)) != place:
            # Its group is bound to another zone since: that zone is queried anew.
            gone.drop_zone(best.child, choices)
            return self._open_anew(call)
        try:
            if len(shares) > 1 or best.child is not None:
                return self._take_shares(call, request, lock, shares, evaluated)
            zones = decisions.steps_of(evaluated, {'': len(request.consumers)})
            answer = self._on_own_hosts(call, on_local_hosts(request, choices), zones)
        except exceptions.GanttError as e:
            # What it has claimed by then is not known: who takes its row over ends that.
            return Happened(RequestEvent.UNCERTAIN, call.failure(e))
        # The row was closed with it.
        if answer.outcome in _FINAL:
            return Happened(RequestEvent.DECIDED, answer)
        gone.drop(shares[0], answer)
        return self._open_anew(call)

    def _open_anew(self, call: PendingZoneRequest) -> Happened:
        """Open the row once more, and query all zones again: no offer holds any more."""
        call.lock, call.evaluated = None, None
        conflict = f'dropped: {call.gone.count} offers were gone'
        return Happened(RequestEvent.DROPPED, conflict=conflict)

    # -- here ---------------------------------------------------------------------------
    def _on_own_hosts(
        self, call: PendingZoneRequest, request: SelectDestinations, zones: Sequence[ZoneStep]
    ) -> Answer:
        """Continue with our open row by the placing thread, as without child zones."""
        assert call.lock is not None, 'its row is open'
        number = call.lock.number
        placed = PendingRequest(request, call.deadline, number)
        placed.fingerprint, placed.zones = call.fingerprint, zones
        placed.attempt, _ = transition(placed.attempt, RequestEvent.OPENED, number=number)
        waiter = self._openers.waiter()
        refused = self._admission.enter(placed, None, waiter)
        for entry in refused:
            entry.replies.send_soon([(entry.handle, entry.answer)])
        if any(entry.replies is waiter for entry in refused):
            # Nothing is claimed: no later request has to wait for the deadline of the row.
            self._requests.give_up(request.request_id, self._settings.worker, number)
        return self._placed(request, waiter, self._seconds(call))

    def _placed(self, request: SelectDestinations, waiter: Waiter, seconds: float) -> Answer:
        """Return the answer of the placing thread."""
        answer = plain(waiter.wait(request, seconds + RESOLVE_SECONDS))
        self._reload_soon()
        return answer

    def _tried_here(self, call: PendingZoneRequest, request: SelectDestinations) -> Answer:
        """Carry out a whole request that claims nothing by the placing thread."""
        waiter, seconds = self._openers.waiter(), self._seconds(call)
        spent = max(0.0, request.budget_ms - seconds * 1000)
        for refused in self._admission.submit(request, None, waiter, spent):
            refused.replies.send_soon([(refused.handle, refused.answer)])
        return self._placed(request, waiter, seconds)

    # -- several places ------------------------------------------------------------------
    def _take_shares(
        self,
        call: PendingZoneRequest,
        request: SelectDestinations,
        lock: RequestLock,
        shares: Sequence[Share],
        evaluated: Evaluated,
    ) -> Happened:
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
                return Happened(RequestEvent.REFUSED, refused)
            call.gone.drop(share, result)
            return Happened(RequestEvent.OFFER_GONE)
        answer = self._finished(request, lock, claimed_shares, evaluated)
        if answer is None:
            self._shares.release(claimed_shares)
            return self._lost(call)
        return Happened(RequestEvent.PLACED, answer)

    def _finished(
        self,
        request: SelectDestinations,
        lock: RequestLock,
        made: Sequence[ClaimedShare],
        evaluated: Evaluated,
    ) -> Answer | None:
        """Return the answer, stored with the claims; None: the request is no longer ours."""
        number = lock.number
        taken = {share.zone: len(share.selections) for share in made}
        reason = decisions.placed_reason(taken)
        record = self._record(request, number, Outcome.PLACED, reason, evaluated, taken)
        selections = {
            member: chosen for share in made for member, chosen in share.selections.items()
        }
        answer = Answer(
            request_id=request.request_id,
            decision_id=record.id,
            outcome=Outcome.PLACED,
            selections=[selections[member] for member in range(len(request.consumers))],
            level=max(share.level for share in made),
            given_up=list(dict.fromkeys(rule for share in made for rule in share.given_up)),
        )
        below = [row for share in made for row in share.below]
        own = next(
            (share.local_share(request.parent) for share in made if share.child is None), None
        )
        owner, packed = self._settings.worker, pack(answer)
        key, group = request.request_id, request.spec.group
        if not self._zone_requests.finish_request(key, owner, number, packed, below, own, group):
            return None
        self._recorder.record(record)
        return answer

    def _no_room(
        self, call: PendingZoneRequest, request: SelectDestinations, evaluated: Evaluated
    ) -> Happened:
        """Refuse the request: "no room" where all zones report so, else "unknown"."""
        gone = call.gone
        outcome, reason = decisions.refusal_of(request, evaluated, gone.count)
        if gone.undecided is not None:
            outcome, reason = gone.undecided.outcome, gone.undecided.reason
        record = self._record(request, call.attempt.number, outcome, reason, evaluated)
        retry = None if gone.undecided is None else gone.undecided.retry_after_ms
        return Happened(
            RequestEvent.NO_ROOM, refusal(request, outcome, reason, retry, record.id), record
        )

    # -- that claim nothing ----------------------------------------------------------------
    def _rebuilt(self, call: PendingZoneRequest) -> Happened:
        """Check whether the host of a guest fits, here or in the child zone where it lives."""
        request = call.request
        location = self._rebuilds.below(request)
        if location is None:
            return Happened(RequestEvent.DECIDED, self._tried_here(call, request))
        zone, row = location
        evaluated = self._rebuilds.evaluated(zone, row.key, request, self._seconds(call))
        evaluation, is_placed = as_evaluated(zone, evaluated), evaluated.outcome is Outcome.PLACED
        taken = {zone.name: 1} if is_placed else NOBODY
        reason = decisions.placed_reason(taken) if is_placed else evaluation.reason
        record = self._record(request, 1, evaluated.outcome, reason, evaluation, taken)
        if not is_placed:
            refused = refusal(request, evaluated.outcome, reason, decision_id=record.id)
            return Happened(RequestEvent.DECIDED, refused, record)
        chosen = Selection(
            host='',
            node='',
            uuid='',
            provider_id=0,
            consumer=row.consumer,
            resources=request.spec.resources,
            child=zone.name,
            place=row.place,
        )
        answer = Answer(
            request_id=request.request_id,
            decision_id=record.id,
            outcome=Outcome.PLACED,
            selections=[[chosen]],
            dry_run=request.dry_run,
        )
        return Happened(RequestEvent.DECIDED, answer, record)

    def _tried(self, call: PendingZoneRequest) -> Happened:
        """Return the place that a request would get; nothing is claimed."""
        request = call.request
        if call.stays:
            if call.known is None:
                self._affinity.check_own_zone(self._affinity.with_rule(request))
            return Happened(RequestEvent.DECIDED, self._tried_here(call, request))
        excess = self._quotas.let_in(request)
        if excess is not None:
            return self._over_quota(call, excess)
        assert call.known is not None, 'it may go down'
        request = call.known
        evaluated = self._offers(call, request, thorough=False)
        members = range(len(request.consumers))
        shares = choice.split(members, evaluated.choices, choice.is_whole(request))
        if len(shares) == 1 and shares[0].choice.child is None:
            return Happened(RequestEvent.DECIDED, self._tried_here(call, request))
        answer, decision = would_be(
            request, evaluated, shares, self._children(), self._serially(request)
        )
        return Happened(RequestEvent.DECIDED, answer, self._stored_as(decision, request))

    # -- parts ---------------------------------------------------------------------------
    def _offers(
        self, call: PendingZoneRequest, request: SelectDestinations, *, thorough: bool
    ) -> Evaluated:
        """Return the offers of all zones for a request.

        :param request: under the rule of its group
        :param thorough: query all zones: the offers of those queried first no longer hold
        """
        if request.places:
            # The offers made to the parent zone, in its order.
            choices = [
                Choice(
                    place.child,
                    place,
                    ZoneScore(n, 0.0, 0.0),
                    place.fits or len(request.consumers),
                )
                for n, place in enumerate(request.places)
            ]
            steps = tuple(request.places[0].steps)
            hosts = sum(step.hosts for step in steps)
            return Evaluated(
                choices, Outcome.PLACED, '', hosts, 0, {}, ZonesQueried(), True, '', (), steps
            )
        seconds = self._seconds(call) * EVALUATE_SHARE
        return self._evaluator.evaluate(request, WANT, seconds, thorough=thorough)

    def _record(
        self,
        request: SelectDestinations,
        number: int,
        outcome: Outcome,
        reason: str,
        evaluated: Evaluated,
        taken: Mapping[str, int] = NOBODY,
    ) -> DecisionRecord:
        worker = self._settings.worker
        decision = decisions.decision_over_zones(
            self._serially(request), request, evaluated, outcome, reason, taken, worker, number
        )
        return self._stored_as(decision, request)

    def _stored_as(self, decision: Decision, request: SelectDestinations) -> DecisionRecord:
        decided = msgspec.structs.replace(decision, config_digest=self._config_digest())
        return decisions.record_of(decided, request)

    def _serially(self, request: SelectDestinations) -> str:
        """Return the id of the next decision."""
        with self._lock:
            self._serial += 1
            serial = self._serial
        return derived_id('decision over zones', request.request_id, self._settings.worker, serial)


def _may_look_first(request: SelectDestinations) -> bool:
    """Return whether zones are queried while the row of a request is being opened.

    The guest of a move is to be read after its row is open, and a repeat may have its
    answer: no zone is queried for it.
    """
    return not (request.repeat or request.places or request.spec.purpose.is_move)
