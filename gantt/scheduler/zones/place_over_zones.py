# SPDX-License-Identifier: Apache-2.0
"""Flow 3: placement of a request that may go down, on the own hosts or in a child zone.

    open its row, which its quotas have to admit, and meanwhile query all zones for offers →
    take the best offer: the own
    hosts by the placing thread, a child zone by an allocation under a key of its own →
    where the offer no longer holds take the next one → store the answer, which ends the request

The key of an allocation is derived from the owner of the open row and the zone: a process that
takes over derives the same keys.  The outcome of an allocation that was not answered
is queried by its key; where the zone does not report it either, the allocation is given back, then
the next offer is taken.  A give-back that a zone has not received is sent again later, see
``give_backs``.

A request that stays on hosts of this zone has its row opened first as well, where there are child
zones: its consumers may be there, or on their way.

Requests are carried out by threads of their own, in bounded number; beyond it the answer is "busy".
"""

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import State
from gantt.core.claims.commit import DecisionRecord
from gantt.core.claims.request_state import RequestEvent, transition
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import (
    ExtendClaims,
    Lifecycle,
    Purpose,
    RequestKind,
    SelectDestinations,
)
from gantt.core.records.decision import Answer, Decision, Outcome, Selection, ZoneStep
from gantt.core.records.members import pack, plain
from gantt.core.zones import choice
from gantt.core.zones.choice import Choice, GoneOffers, Share
from gantt.core.zones.messages import ZoneRecord, ZonesQueried
from gantt.core.zones.score import ZoneScore
from gantt.scheduler.ports import Clock, Recorder, Replies, Store
from gantt.scheduler.ports.zones import HOLDS
from gantt.scheduler.quotas import QuotaChecks
from gantt.scheduler.request.answers import StoredAnswers
from gantt.scheduler.request.queue import Admission, PendingRequest, first_attempt, refusal
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.zones import decisions
from gantt.scheduler.zones.bound import may_be_bound
from gantt.scheduler.zones.dry_run import would_be
from gantt.scheduler.zones.give_backs import GiveBacks
from gantt.scheduler.zones.offers.evaluate import Evaluated, digest_of
from gantt.scheduler.zones.offers.queries import zone_failure
from gantt.scheduler.zones.opening import Ended, Opening, RequestRows
from gantt.scheduler.zones.parts import ZoneParts
from gantt.scheduler.zones.present import as_evaluated
from gantt.scheduler.zones.receipts import Receipts
from gantt.scheduler.zones.request_threads import THREADS, RequestThreads
from gantt.scheduler.zones.shares import GIVE_BACKS_AT_ONCE, MadeShare, ShareClaims, on_own_hosts

LOG = logging.getLogger(__name__)
#: Share of the remaining time that is spent on waiting for offers; the rest is for claiming them.
EVALUATE_SHARE = 0.6
#: Timeout of a query for an allocation, however little time is left, in seconds.
RESOLVE_SECONDS = 1.0
#: Interval between two checks whether a row is open, in seconds.
LOOK_SECONDS = 1.0
#: Offers requested of one zone.
WANT = 5
NOBODY: Mapping[str, int] = {}
#: Outcomes of the own hosts after which no other place is tried.
_FINAL = (Outcome.PLACED, Outcome.REFUSED, Outcome.REUSED, Outcome.CANCELLED, Outcome.EXPIRED)


class PlaceOverZones:
    """Placement of requests over zones, see the module docstring.

    All methods may be called from any thread.

    :param zones: calls and state of the other zones in this process
    :param follow: reads the changes of a child zone
    :param quotas: admit a request before anything is claimed for it
    """

    def __init__(
        self,
        store: Store,
        zones: ZoneParts,
        admission: Admission,
        stored_answers: StoredAnswers,
        recorder: Recorder,
        clock: Clock,
        settings: SchedulerSettings,
        give_backs: GiveBacks,
        follow: Callable[[ZoneRecord], object],
        quotas: QuotaChecks,
    ) -> None:
        self._quotas = quotas
        self._calls, self._reload_soon = zones.calls, zones.reload_soon
        self._store, self._evaluator, self._bound = store, zones.evaluator, zones.bound
        self._present, self._config_digest = zones.present, zones.config_digest
        self._admission, self._stored, self._recorder = admission, stored_answers, recorder
        self._clock, self._settings = clock, settings
        children, own_uuid = zones.directory.children, zones.directory.own_uuid
        self._children, self._own_uuid = children, own_uuid
        self._shares = ShareClaims(
            *(store, zones.calls, admission, recorder, clock, children, own_uuid, give_backs),
            zones.summaries,
            zones.standing,
            follow,
            zones.reload_soon,
            zones.threads(GIVE_BACKS_AT_ONCE, 'zone-give-back'),
            Receipts(zones.directory.identity),
        )
        self._rows = RequestRows(
            *(store, stored_answers, recorder, clock, settings, self._shares.end_opening)
        )
        down, here = zones.threads(THREADS, 'over-zones'), zones.threads(THREADS, 'over-zones-here')
        #: One thread for each request that waits for its row.
        self._openers = zones.threads(THREADS, 'zone-openings')
        self._waiter = down.waiter
        self._going_down = RequestThreads(
            down, 'in other zones', clock, settings, self._count_answer
        )
        # Threads of their own: requests that stay do not wait behind those that go down.
        self._staying = RequestThreads(here, 'here', clock, settings)
        self._lock = threading.Lock()
        self._serial = 0

    def takes(self, request: SelectDestinations) -> bool:
        """Return whether a request may go down; any other goes straight to the placing thread."""
        if request.places:
            return any(place.child is not None for place in request.places)
        return (
            request.hops > 0
            and request.spec.kind is RequestKind.HOST
            and request.lifecycle is Lifecycle.HOST
            # A guest in a disabled zone stays there, and may be rebuilt.
            and any(
                zone.enabled or request.spec.purpose is Purpose.REBUILD for zone in self._children()
            )
        )

    def stays(self, request: SelectDestinations) -> bool:
        """Return whether a request that does not go down needs its row opened here first.

        It does where requests for its consumers may go down, or where it may be bound to a child
        zone. Without child zones nothing is read for it.
        """
        return (
            bool(self._children())
            and request.spec.kind is RequestKind.HOST
            and (_claims(request) or may_be_bound(request))
        )

    def submit(
        self, request: SelectDestinations, handle: Any, replies: Replies, spent_ms: float = 0.0
    ) -> None:
        """Carry out a request that may go down; the answer comes through ``replies``."""
        work = functools.partial(self._answer, request)
        waiter = handle, replies
        self._going_down.begin(request, request.fingerprint, work, waiter, spent_ms)

    def submit_here(
        self,
        request: SelectDestinations,
        handle: Any,
        replies: Replies,
        spent_ms: float = 0.0,
        fingerprint: str = '',
        zones: Sequence[ZoneStep] = (),
    ) -> None:
        """Carry out a request that stays, see ``stays``; the answer comes through ``replies``.

        :param fingerprint: of the request as received; '': it is unchanged
        :param zones: steps by which it reached the own hosts
        """
        fingerprint = fingerprint or request.fingerprint
        work = functools.partial(self._place_here, request, fingerprint, zones)
        self._staying.begin(request, fingerprint, work, (handle, replies), spent_ms)

    def stop(self, seconds: float) -> bool:
        """Accept no more requests and finish those in progress; return whether that was in time."""
        end = self._clock.monotonic() + seconds
        done = self._staying.stop(seconds)
        done = self._going_down.stop(max(0.0, end - self._clock.monotonic())) and done
        self._openers.close()
        return done

    def note_end(self, request_id: str) -> None:
        """Note the claims of a request in child zones, as it is about to be cancelled."""
        if self._children():
            claims = self._store.claims_below(request_id)
            self._shares.note_end(
                {(claim.child, claim.key) for claim in claims if claim.state in HOLDS}
            )

    def cancel(self, request_id: str) -> None:
        """Give back the claims of a cancelled request in child zones.

        Its consumers stay its own until the child zones have acknowledged it: until then a host
        there may start a guest.
        """
        if not self._children():
            return  # a zone is not removed while anything lives there
        claims = self._store.claims_below(request_id)
        self._shares.end({(claim.child, claim.key) for claim in claims if claim.state in HOLDS})

    def extend(self, message: ExtendClaims) -> bool:
        """Extend the leases a request has reserved below; return whether there are any.

        :raises GanttError: a zone has not extended them
        """
        if not self._children():
            return False
        claims = self._store.claims_below(message.request_id)
        keys = {(claim.child, claim.key) for claim in claims if claim.state == State.RESERVED.value}
        zones = {zone.uuid: zone for zone in self._children()}
        for child, key in sorted(keys):
            if child in zones:
                self._extend(zones[child], key, message.seconds)
        return bool(keys)

    def _extend(self, zone: ZoneRecord, key: str, lease_seconds: int) -> None:
        try:
            self._calls.extend(zone, key, lease_seconds, RESOLVE_SECONDS)
        except exceptions.GanttError as e:
            raise zone_failure(zone, 'a zone below has not lengthened its leases', e) from None

    # -- one request -------------------------------------------------------------------
    def _answer(self, request: SelectDestinations, end: float) -> Answer:
        if digest_of(request.request_id, self._own_uuid()) in request.via:
            raise exceptions.ZoneLoop()
        if request.spec.purpose is Purpose.REBUILD:
            return self._rebuilt(request, end)
        ruled = self._known(request)
        if self._bound.of(ruled) == {self._own_uuid()}:
            if request.dry_run:
                return self._tried_here(request, end)
            return self._place_here(request, request.fingerprint, (), end)
        try:
            if request.dry_run:
                self._let_in(request, 1)
                return self._tried(ruled, end)
            number = first_attempt(self._clock.wall())
            if not _may_look_first(request):
                opening = self._opened(request, number, end)
                return self._place(opening.ruled(request), opening, end)
            opening, evaluated = self._opened_meanwhile(request, ruled, number, end)
            return self._place(opening.ruled(request), opening, end, evaluated)
        except Ended as e:
            return e.answer
        finally:
            self._quotas.leave([request], goes_down=True)

    def _opened(self, request: SelectDestinations, number: int, end: float) -> Opening:
        """Open the row of a request for this worker, and admit it within the quotas of its project.

        :raises Ended: it is answered, or cannot go on
        """
        opening = self._rows.open(request, request.fingerprint, number, end)
        try:
            self._let_in(request, opening.number)
        except (exceptions.GanttError, Ended):
            # Nothing is claimed: no later request has to wait for the deadline of the row.
            self._store.give_up(request.request_id, self._settings.worker, opening.number)
            raise
        return opening

    def _let_in(self, request: SelectDestinations, number: int) -> None:
        """Admit a request within its quotas.

        :raises Ended: its project has used up a quota
        """
        excess = self._quotas.let_in(request)
        if excess is None:
            return
        worker = self._settings.worker
        decision = decisions.over_quota(self._serially(request), request, excess, worker, number)
        self._recorder.record(self._stored_as(decision, request))
        line, why = excess.line, decision.id
        refused = refusal(request, Outcome.REFUSED, line, decision_id=why, excess=excess)
        raise Ended(refused)

    def _known(self, request: SelectDestinations) -> SelectDestinations:
        """Return a request under the rule of its group as known before its row is opened.

        :raises NotFound: the rule is stored nowhere
        :raises Refused: a dry run names another rule
        """
        try:
            return self._bound.with_rule(request)
        except exceptions.NotFound:
            raise
        except exceptions.Refused:
            if request.dry_run:
                raise
            return request  # opening the row decides: its group may never have had a member

    def _opened_meanwhile(
        self, request: SelectDestinations, known: SelectDestinations, number: int, end: float
    ) -> tuple[Opening, Evaluated | None]:
        """Open the row of a request while all zones are queried for offers, which hold nothing.

        :param known: the request under the rule that its group was known to have
        :return: the offers; None: to be queried anew: its row was not free at once,
            or its group has another rule
        :raises Ended: it is answered, or cannot go on
        """
        opened = self._openers.begin(self._opened, request, number, end)
        evaluated: Evaluated | None = None
        try:
            evaluated = self._offers(known, end, thorough=False)
        except exceptions.GanttError as e:
            LOG.info('asked again once its row is open: %s', e.message)
        finally:
            while not opened.done():
                self._openers.wait([opened], LOOK_SECONDS)
        opening: Opening = opened.result()
        is_as_known = opening.is_at_once and opening.ruled(request).spec == known.spec
        return opening, evaluated if is_as_known else None

    def _place_here(
        self, request: SelectDestinations, fingerprint: str, zones: Sequence[ZoneStep], end: float
    ) -> Answer:
        """Place a request that stays, once its row is open, where it meets requests that go down.

        :raises Refused: it is bound to a child zone
        """
        if not _claims(request):
            self._bound.check_here(self._bound.with_rule(request))
            return self._tried_here(request, end)
        try:
            number = first_attempt(self._clock.wall())
            opening = self._rows.open(request, fingerprint, number, end, stays=True)
        except Ended as e:
            return e.answer
        seconds = max(0.0, end - self._clock.monotonic())
        try:
            self._bound.decide_here(opening.ruled(request), seconds)
        except exceptions.GanttError:
            # Nothing is claimed: no later request has to wait for the deadline of the row.
            self._store.give_up(request.request_id, self._settings.worker, opening.number)
            raise
        return self._on_own_hosts(request, opening, zones, end)

    def _tried_here(self, request: SelectDestinations, end: float) -> Answer:
        """Carry out the whole request by the placing thread."""
        waiter = self._waiter()
        seconds = max(0.0, end - self._clock.monotonic())
        spent = max(0.0, request.budget_ms - seconds * 1000)
        for refused in self._admission.submit(request, None, waiter, spent):
            refused.replies.send_soon([(refused.handle, refused.answer)])
        answer = plain(waiter.wait(request, seconds + RESOLVE_SECONDS))
        self._reload_soon()
        return answer

    def _rebuilt(self, request: SelectDestinations, end: float) -> Answer:
        """Check whether the host of a guest fits, here or in the child zone where it lives."""
        location = self._present.below(request)
        if location is None:
            return self._tried_here(request, end)
        zone, row = location
        seconds = max(0.0, end - self._clock.monotonic())
        evaluated = self._present.evaluated(zone, row.key, request, seconds)
        evaluation, is_placed = as_evaluated(zone, evaluated), evaluated.outcome is Outcome.PLACED
        taken = {zone.name: 1} if is_placed else NOBODY
        reason = decisions.placed_reason(taken) if is_placed else evaluation.reason
        record = self._record(request, 1, evaluated.outcome, reason, evaluation, taken)
        self._recorder.record(record)
        if not is_placed:
            return refusal(request, evaluated.outcome, reason, decision_id=record.id)
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
        return Answer(
            request_id=request.request_id,
            decision_id=record.id,
            outcome=Outcome.PLACED,
            selections=[[chosen]],
            dry_run=request.dry_run,
        )

    def _tried(self, request: SelectDestinations, end: float) -> Answer:
        """Return the place a request would get; nothing is claimed."""
        evaluated = self._offers(request, end, thorough=False)
        shares = choice.split(
            range(len(request.consumers)), evaluated.choices, choice.is_whole(request)
        )
        if len(shares) == 1 and shares[0].choice.child is None:
            return self._tried_here(request, end)
        answer, decision = would_be(
            request, evaluated, shares, self._children(), self._serially(request)
        )
        self._recorder.record(self._stored_as(decision, request))
        return answer

    def _place(
        self,
        request: SelectDestinations,
        opening: Opening,
        end: float,
        known: Evaluated | None = None,
    ) -> Answer:
        """Claim one offer after another until all members have a place.

        :param opening: of its row, which is ours
        :param known: the offers; None: the zones are to be queried
        """
        gone = GoneOffers()
        for attempt in range(self._settings.attempts_per_request):
            try:
                evaluated = known or self._offers(request, end, thorough=attempt > 0)
                known = None
            except exceptions.GanttError:
                # Nothing is claimed: no later request has to wait for the deadline of the row.
                self._store.give_up(request.request_id, self._settings.worker, opening.number)
                raise
            answer = self._take(request, opening, gone, end, evaluated)
            if answer is not None:
                return answer
            if self._clock.monotonic() >= end:
                break
            opening = self._rows.open(request, opening.fingerprint, opening.number + 1, end)
        self._store.give_up(request.request_id, self._settings.worker, opening.number)
        why = f'gave up after {gone.count} offers that were gone'
        return refusal(request, Outcome.CONFLICT, why)

    def _offers(self, request: SelectDestinations, end: float, thorough: bool) -> Evaluated:
        """Return the offers of all zones for a request.

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
        seconds = max(0.0, end - self._clock.monotonic())
        return self._evaluator.evaluate(request, WANT, seconds * EVALUATE_SHARE, thorough=thorough)

    def _take(
        self,
        request: SelectDestinations,
        opening: Opening,
        gone: GoneOffers,
        end: float,
        found: Evaluated,
    ) -> Answer | None:
        """Claim offers for all members, or refuse the request; None: query the zones again."""
        before = gone.count
        whole = choice.is_whole(request)
        while self._clock.monotonic() < end:
            members = range(len(request.consumers))
            choices = gone.left(found.choices)
            shares = choice.split(members, choices, whole)
            if not shares:
                if gone.count > before:
                    return None
                return self._refused(request, opening, found, gone)
            best = shares[0].choice
            place = best.child or self._own_uuid()
            seconds = max(0.0, end - self._clock.monotonic())
            if self._bound.decide(request, place, seconds) != place:
                # Its group is bound to another zone since: that zone is queried anew.
                gone.drop_zone(best.child, choices)
                return None
            if len(shares) == 1 and best.child is None:
                answer = self._take_here(request, opening, choices, end, found)
                if answer.outcome in _FINAL:
                    return answer
                gone.drop(shares[0], answer)
                # The row was closed with it.
                return None
            placed = self._take_shares(request, opening, shares, gone, end, found)
            if placed is not None:
                return placed
        return None

    # -- here ---------------------------------------------------------------------------
    def _take_here(
        self,
        request: SelectDestinations,
        opening: Opening,
        choices: Sequence[Choice],
        end: float,
        found: Evaluated,
    ) -> Answer:
        """Place it by the placing thread, as without child zones."""
        zones = decisions.steps_of(found, {'': len(request.consumers)})
        return self._on_own_hosts(on_own_hosts(request, choices), opening, zones, end)

    def _on_own_hosts(
        self,
        request: SelectDestinations,
        opening: Opening,
        zones: Sequence[ZoneStep],
        end: float,
    ) -> Answer:
        """Continue with our open row by the placing thread."""
        call = PendingRequest(request, end, opening.number)
        call.fingerprint, call.zones = opening.fingerprint, zones
        call.attempt, _ = transition(call.attempt, RequestEvent.OPENED, number=opening.number)
        waiter = self._waiter()
        refused = self._admission.enter(call, None, waiter)
        for entry in refused:
            entry.replies.send_soon([(entry.handle, entry.answer)])
        if any(entry.replies is waiter for entry in refused):
            # Nothing is claimed: no later request has to wait for the deadline of the row.
            self._store.give_up(request.request_id, self._settings.worker, opening.number)
        seconds = max(0.0, end - self._clock.monotonic())
        answer = plain(waiter.wait(request, seconds + RESOLVE_SECONDS))
        self._reload_soon()
        return answer

    # -- several places ------------------------------------------------------------------
    def _take_shares(
        self,
        request: SelectDestinations,
        opening: Opening,
        shares: Sequence[Share],
        gone: GoneOffers,
        end: float,
        found: Evaluated,
    ) -> Answer | None:
        """Claim each share where it was offered; None: the offers of one no longer hold.

        All or none: the claims made so far are given back where a share has no place.
        """
        claimed_shares: list[MadeShare] = []
        for share in shares:
            result = self._shares.claim(request, opening, share, end)
            if isinstance(result, MadeShare):
                claimed_shares.append(result)
                continue
            self._shares.give_back(claimed_shares)
            if result is not None and result.outcome is Outcome.REFUSED:
                self._store.give_up(request.request_id, self._settings.worker, opening.number)
                return msgspec.structs.replace(result, request_id=request.request_id)
            gone.drop(share, result)
            return None
        answer = self._finished(request, opening.number, claimed_shares, found)
        if answer is None:
            self._shares.give_back(claimed_shares)
            raise Ended(self._rows.lost(request))
        return answer

    def _finished(
        self,
        request: SelectDestinations,
        number: int,
        made: Sequence[MadeShare],
        found: Evaluated,
    ) -> Answer | None:
        """Return the answer, stored with the claims; None: the request is no longer ours."""
        taken = {share.zone: len(share.selections) for share in made}
        reason = decisions.placed_reason(taken)
        record = self._record(request, number, Outcome.PLACED, reason, found, taken)
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
        own = next((share.own_share(request.parent) for share in made if share.child is None), None)
        owner, packed = self._settings.worker, pack(answer)
        key, group = request.request_id, request.spec.group
        if not self._store.finish_request(key, owner, number, packed, below, own, group):
            return None
        self._recorder.record(record)
        return answer

    def _refused(
        self, request: SelectDestinations, opening: Opening, found: Evaluated, gone: GoneOffers
    ) -> Answer:
        """Refuse the request: "no room" where all zones report so, else "unknown"."""
        self._store.give_up(request.request_id, self._settings.worker, opening.number)
        outcome, reason = decisions.refusal_of(request, found, gone.count)
        if gone.undecided is not None:
            outcome, reason = gone.undecided.outcome, gone.undecided.reason
        record = self._record(request, opening.number, outcome, reason, found)
        self._recorder.record(record)
        retry = None if gone.undecided is None else gone.undecided.retry_after_ms
        return refusal(request, outcome, reason, retry, record.id)

    def _record(
        self,
        request: SelectDestinations,
        number: int,
        outcome: Outcome,
        reason: str,
        found: Evaluated,
        taken: Mapping[str, int] = NOBODY,
    ) -> DecisionRecord:
        worker = self._settings.worker
        decision = decisions.decision_over_zones(
            self._serially(request), request, found, outcome, reason, taken, worker, number
        )
        return self._stored_as(decision, request)

    def _stored_as(self, decision: Decision, request: SelectDestinations) -> DecisionRecord:
        decided = msgspec.structs.replace(decision, config_digest=self._config_digest())
        return decisions.record_of(decided, request)

    def _count_answer(self, request: SelectDestinations, answer: Answer) -> None:
        self._recorder.count('gantt_zone_requests_total', outcome=answer.outcome.value)
        LOG.info(
            'answered over zones: outcome=%s trace=%s',
            *(answer.outcome.value, request.trace or '-'),
            extra={'request_id': request.request_id},
        )

    def _serially(self, request: SelectDestinations) -> str:
        """Return the id of the next decision."""
        with self._lock:
            self._serial += 1
            serial = self._serial
        return derived_id('decision over zones', request.request_id, self._settings.worker, serial)


def _claims(request: SelectDestinations) -> bool:
    """Return whether a request claims something."""
    return not request.dry_run and request.spec.purpose is not Purpose.REBUILD


def _may_look_first(request: SelectDestinations) -> bool:
    """Return whether zones are queried while the row of a request is being opened.

    The guest of a move is to be read after its row is open, and a repeat may have its
    answer: no zone is queried for it.
    """
    return not (request.repeat or request.places or request.spec.purpose.is_move)
