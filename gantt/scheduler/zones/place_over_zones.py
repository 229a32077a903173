# SPDX-License-Identifier: Apache-2.0
"""Flow 3: a request that may go down is placed where it is best, here or in a zone below.

    open its row, which its quotas have to let in, and meanwhile ask everybody what they have →
    take the best offer: the own
    hosts by the thread that places, a zone below by an allocation under a key of its own →
    where that is gone take the next one → store the answer, which ends it

The key of an allocation follows from who has the row open and the zone: a process that takes
over comes to the same ones.  What became of an allocation that was not answered
is asked for by its key; where that is not known either it is given back, then the next one is
taken.  What a zone has not heard of it hears later, see ``give_backs``.

A request that stays on hosts of this zone has its row open first as well, where there are zones
below: its consumers may be there, or on their way.

Requests are carried out by threads of their own, in bounded number; beyond it is "busy".
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
from gantt.core.claims.request_state import RequestState
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
from gantt.scheduler.placing.admission import Admission, PendingRequest, first_attempt, refusal
from gantt.scheduler.placing.answers import StoredAnswers
from gantt.scheduler.ports import Clock, Recorder, Replies, Store
from gantt.scheduler.ports.zones import HOLDS
from gantt.scheduler.quotas import QuotaChecks
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
#: Of the time that is left, what is waited for offers; the rest is for taking them.
EVALUATE_SHARE = 0.6
#: What asking after an allocation may take, however little time is left.
RESOLVE_SECONDS = 1.0
#: Between two looks at whether a row is open.
LOOK_SECONDS = 1.0
#: Offers of one zone.
WANT = 5
NOBODY: Mapping[str, int] = {}
#: Outcomes of the own hosts after which no other place is looked for.
_FINAL = (Outcome.PLACED, Outcome.REFUSED, Outcome.REUSED, Outcome.CANCELLED, Outcome.EXPIRED)


class PlaceOverZones:
    """See the module docstring.  All methods may be called from any thread.

    :param zones: what this process speaks with other zones by
    :param follow: reads what has changed in a zone below
    :param quotas: let a request in before anything is claimed for it
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
        #: As many as there are requests that wait for one.
        self._openers = zones.threads(THREADS, 'zone-openings')
        self._waiter = down.waiter
        self._going_down = RequestThreads(
            down, 'in other zones', clock, settings, self._count_answer
        )
        # Threads of their own: who stays does not wait for those who wait for other zones.
        self._staying = RequestThreads(here, 'here', clock, settings)
        self._lock = threading.Lock()
        self._serial = 0

    def takes(self, request: SelectDestinations) -> bool:
        """Whether a request may go down: else the thread that places has it at once."""
        if request.places:
            return any(place.child is not None for place in request.places)
        return (
            request.hops > 0
            and request.spec.kind is RequestKind.HOST
            and request.lifecycle is Lifecycle.HOST
            # Who lives in a zone that is disabled stays there, and may be rebuilt.
            and any(
                zone.enabled or request.spec.purpose is Purpose.REBUILD for zone in self._children()
            )
        )

    def stays(self, request: SelectDestinations) -> bool:
        """Whether a request that does not go down has to meet those for its consumers that do, or
        may be bound to a zone below.

        Where no zone is below, nobody can be there: then nothing is read of it.
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

        :param fingerprint: of the request as it came; '': it is as it came
        :param zones: how it came to the own hosts
        """
        fingerprint = fingerprint or request.fingerprint
        work = functools.partial(self._place_here, request, fingerprint, zones)
        self._staying.begin(request, fingerprint, work, (handle, replies), spent_ms)

    def stop(self, seconds: float) -> bool:
        """Take nothing new, finish what is inside; whether that was done in time."""
        end = self._clock.monotonic() + seconds
        done = self._staying.stop(seconds)
        done = self._going_down.stop(max(0.0, end - self._clock.monotonic())) and done
        self._openers.close()
        return done

    def note_end(self, request_id: str) -> None:
        """Note what a request has below, as it is about to be cancelled."""
        if self._children():
            found = self._store.claims_below(request_id)
            self._shares.note_end({(one.child, one.key) for one in found if one.state in HOLDS})

    def cancel(self, request_id: str) -> None:
        """Give back what a request has below: it is cancelled here.

        Its consumers stay its own until the zones below have heard of it: until then a host there
        may start a guest.
        """
        if not self._children():
            return  # a zone is not removed while anything lives there
        found = self._store.claims_below(request_id)
        self._shares.end({(one.child, one.key) for one in found if one.state in HOLDS})

    def extend(self, message: ExtendClaims) -> bool:
        """Lengthen the leases of what a request has reserved below; whether there is any.

        :raises GanttError: a zone has not done it
        """
        if not self._children():
            return False
        found = self._store.claims_below(message.request_id)
        keys = {(one.child, one.key) for one in found if one.state == State.RESERVED.value}
        known = {zone.uuid: zone for zone in self._children()}
        for child, key in sorted(keys):
            if child in known:
                self._extend(known[child], key, message.seconds)
        return bool(keys)

    def _extend(self, zone: ZoneRecord, key: str, lease_seconds: int) -> None:
        try:
            self._calls.extend(zone, key, lease_seconds, RESOLVE_SECONDS)
        except exceptions.GanttError as e:
            raise zone_failure(zone, 'a zone below has not lengthened its leases', e) from None

    # -- the story ---------------------------------------------------------------------
    def _answer(self, request: SelectDestinations, end: float) -> Answer:
        if digest_of(request.request_id, self._own_uuid()) in request.via:
            raise exceptions.ZoneLoop()
        if request.spec.purpose is Purpose.REBUILD:
            return self._rebuilt(request, end)
        known = self._known(request)
        if self._bound.of(known) == {self._own_uuid()}:
            if request.dry_run:
                return self._tried_here(request, end)
            return self._place_here(request, request.fingerprint, (), end)
        try:
            if request.dry_run:
                self._let_in(request, 1)
                return self._tried(known, end)
            number = first_attempt(self._clock.wall())
            if not _may_look_first(request):
                opening = self._opened(request, number, end)
                return self._place(opening.ruled(request), opening, end)
            opening, found = self._opened_meanwhile(request, known, number, end)
            return self._place(opening.ruled(request), opening, end, found)
        except Ended as e:
            return e.answer
        finally:
            self._quotas.leave([request], goes_down=True)

    def _opened(self, request: SelectDestinations, number: int, end: float) -> Opening:
        """Have its row open and ours, and its project within its quotas.

        :raises Ended: it is answered, or cannot go on
        """
        opening = self._rows.open(request, request.fingerprint, number, end)
        try:
            self._let_in(request, opening.number)
        except (exceptions.GanttError, Ended):
            # Nothing is claimed: nobody has to wait for the deadline of the row.
            self._store.give_up(request.request_id, self._settings.worker, opening.number)
            raise
        return opening

    def _let_in(self, request: SelectDestinations, number: int) -> None:
        """:raises Ended: its project has as much as it may have"""
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
        """A request under the rule of its group as it is known until its row is opened.

        :raises NotFound: nobody says which
        :raises Refused: a dry run names another one
        """
        try:
            return self._bound.with_rule(request)
        except exceptions.NotFound:
            raise
        except exceptions.Refused:
            if request.dry_run:
                raise
            return request  # who opens the row finds out: nobody may ever have been in its group

    def _opened_meanwhile(
        self, request: SelectDestinations, known: SelectDestinations, number: int, end: float
    ) -> tuple[Opening, Evaluated | None]:
        """Have its row opened while everybody is asked what they have: that holds nothing.

        :param known: the request under the rule that its group was known to have
        :return: what they have; None: it is to be asked, as it is looked at since the row is open,
            or its group has another rule
        :raises Ended: it is answered, or cannot go on
        """
        opened = self._openers.begin(self._opened, request, number, end)
        found: Evaluated | None = None
        try:
            found = self._offers(known, end, thorough=False)
        except exceptions.GanttError as e:
            LOG.info('asked again once its row is open: %s', e.message)
        finally:
            while not opened.done():
                self._openers.wait([opened], LOOK_SECONDS)
        opening: Opening = opened.result()
        is_as_known = opening.is_at_once and opening.ruled(request).spec == known.spec
        return opening, found if is_as_known else None

    def _place_here(
        self, request: SelectDestinations, fingerprint: str, zones: Sequence[ZoneStep], end: float
    ) -> Answer:
        """A request that stays: its row is open first, so that it meets those that go down.

        :raises Refused: it is bound to a zone below
        """
        if not _claims(request):
            self._bound.check_here(self._bound.with_rule(request))
            return self._tried_here(request, end)
        try:
            number = first_attempt(self._clock.wall())
            opening = self._rows.open(request, fingerprint, number, end, stays=True)
        except Ended as e:
            return e.answer
        left = max(0.0, end - self._clock.monotonic())
        try:
            self._bound.decide_here(opening.ruled(request), left)
        except exceptions.GanttError:
            # Nothing is claimed: nobody has to wait for the deadline of the row.
            self._store.give_up(request.request_id, self._settings.worker, opening.number)
            raise
        return self._on_own_hosts(request, opening, zones, end)

    def _tried_here(self, request: SelectDestinations, end: float) -> Answer:
        """Have the thread that places try all of it."""
        waiter = self._waiter()
        left = max(0.0, end - self._clock.monotonic())
        spent = max(0.0, request.budget_ms - left * 1000)
        for one in self._admission.submit(request, None, waiter, spent):
            one.replies.send_soon([(one.handle, one.answer)])
        answer = plain(waiter.wait(request, left + RESOLVE_SECONDS))
        self._reload_soon()
        return answer

    def _rebuilt(self, request: SelectDestinations, end: float) -> Answer:
        """Whether the host of a guest fits, here or in the zone below where it lives."""
        where = self._present.below(request)
        if where is None:
            return self._tried_here(request, end)
        zone, row = where
        left = max(0.0, end - self._clock.monotonic())
        evaluated = self._present.evaluated(zone, row.key, request, left)
        found, is_placed = as_evaluated(zone, evaluated), evaluated.outcome is Outcome.PLACED
        taken = {zone.name: 1} if is_placed else NOBODY
        reason = decisions.placed_reason(taken) if is_placed else found.reason
        record = self._record(request, 1, evaluated.outcome, reason, found, taken)
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
        """Where a request would go; nothing is claimed."""
        found = self._offers(request, end, thorough=False)
        shares = choice.split(
            range(len(request.consumers)), found.choices, choice.is_whole(request)
        )
        if len(shares) == 1 and shares[0].choice.child is None:
            return self._tried_here(request, end)
        answer, decision = would_be(
            request, found, shares, self._children(), self._serially(request)
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
        """Take one offer after the other until all members have a place.

        :param opening: of its row, which is ours
        :param known: what there is; None: it is to be asked
        """
        gone = GoneOffers()
        for attempt in range(self._settings.attempts_per_request):
            try:
                found = known or self._offers(request, end, thorough=attempt > 0)
                known = None
            except exceptions.GanttError:
                # Nothing is claimed: nobody has to wait for the deadline of the row.
                self._store.give_up(request.request_id, self._settings.worker, opening.number)
                raise
            answer = self._take(request, opening, gone, end, found)
            if answer is not None:
                return answer
            if self._clock.monotonic() >= end:
                break
            opening = self._rows.open(request, opening.fingerprint, opening.number + 1, end)
        self._store.give_up(request.request_id, self._settings.worker, opening.number)
        why = f'gave up after {gone.count} offers that were gone'
        return refusal(request, Outcome.CONFLICT, why)

    def _offers(self, request: SelectDestinations, end: float, thorough: bool) -> Evaluated:
        """What there is for a request.

        :param thorough: of all zones: what those had that were queried first is gone
        """
        if request.places:
            # What was offered to the zone above, in its order.
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
        left = max(0.0, end - self._clock.monotonic())
        return self._evaluator.evaluate(request, WANT, left * EVALUATE_SHARE, thorough=thorough)

    def _take(
        self,
        request: SelectDestinations,
        opening: Opening,
        gone: GoneOffers,
        end: float,
        found: Evaluated,
    ) -> Answer | None:
        """Claim offers for all members, or say that there are none; None: look for others."""
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
            left = max(0.0, end - self._clock.monotonic())
            if self._bound.decide(request, place, left) != place:
                # Its group is somewhere else since: what that zone has is looked for anew.
                gone.drop_zone(best.child, choices)
                return None
            if len(shares) == 1 and best.child is None:
                answer = self._take_here(request, opening, choices, end, found)
                if answer.outcome in _FINAL:
                    return answer
                gone.drop(shares[0], answer)
                # The row went with it.
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
        """Have the thread that places place it, as it would where no zone is below."""
        zones = decisions.steps_of(found, {'': len(request.consumers)})
        return self._on_own_hosts(on_own_hosts(request, choices), opening, zones, end)

    def _on_own_hosts(
        self,
        request: SelectDestinations,
        opening: Opening,
        zones: Sequence[ZoneStep],
        end: float,
    ) -> Answer:
        """Have the thread that places go on with our row."""
        call = PendingRequest(request, end, opening.number)
        call.fingerprint, call.zones = opening.fingerprint, zones
        call.attempt = msgspec.structs.replace(call.attempt, state=RequestState.PARTLY_PLACED)
        waiter = self._waiter()
        refused = self._admission.enter(call, None, waiter)
        for one in refused:
            one.replies.send_soon([(one.handle, one.answer)])
        if any(one.replies is waiter for one in refused):
            # Nothing is claimed: nobody has to wait for the deadline of the row.
            self._store.give_up(request.request_id, self._settings.worker, opening.number)
        left = max(0.0, end - self._clock.monotonic())
        answer = plain(waiter.wait(request, left + RESOLVE_SECONDS))
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
        """Claim each share where it was offered; None: the offers of one are gone.

        All or none: what was claimed is given back where a share has no place.
        """
        made: list[MadeShare] = []
        for share in shares:
            claimed = self._shares.claim(request, opening, share, end)
            if isinstance(claimed, MadeShare):
                made.append(claimed)
                continue
            self._shares.give_back(made)
            if claimed is not None and claimed.outcome is Outcome.REFUSED:
                self._store.give_up(request.request_id, self._settings.worker, opening.number)
                return msgspec.structs.replace(claimed, request_id=request.request_id)
            gone.drop(share, claimed)
            return None
        answer = self._finished(request, opening.number, made, found)
        if answer is None:
            self._shares.give_back(made)
            raise Ended(self._rows.lost(request))
        return answer

    def _finished(
        self,
        request: SelectDestinations,
        number: int,
        made: Sequence[MadeShare],
        found: Evaluated,
    ) -> Answer | None:
        """The answer, stored with what was claimed; None: the request is no longer ours."""
        taken = {one.zone: len(one.selections) for one in made}
        reason = decisions.placed_reason(taken)
        record = self._record(request, number, Outcome.PLACED, reason, found, taken)
        selections = {member: chosen for one in made for member, chosen in one.selections.items()}
        answer = Answer(
            request_id=request.request_id,
            decision_id=record.id,
            outcome=Outcome.PLACED,
            selections=[selections[member] for member in range(len(request.consumers))],
            level=max(one.level for one in made),
            given_up=list(dict.fromkeys(rule for one in made for rule in one.given_up)),
        )
        below = [row for one in made for row in one.below]
        own = next((one.own_share(request.parent) for one in made if one.child is None), None)
        owner, packed = self._settings.worker, pack(answer)
        key, group = request.request_id, request.spec.group
        if not self._store.finish_request(key, owner, number, packed, below, own, group):
            return None
        self._recorder.record(record)
        return answer

    def _refused(
        self, request: SelectDestinations, opening: Opening, found: Evaluated, gone: GoneOffers
    ) -> Answer:
        """No place is left: "no room" where everybody has said so, else it is not known."""
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
        """The id of a decision."""
        with self._lock:
            self._serial += 1
            serial = self._serial
        return derived_id('decision over zones', request.request_id, self._settings.worker, serial)


def _claims(request: SelectDestinations) -> bool:
    """Whether a request claims something."""
    return not request.dry_run and request.spec.purpose is not Purpose.REBUILD


def _may_look_first(request: SelectDestinations) -> bool:
    """Whether zones are asked while the row of a request is being opened.

    What is known of the guest of a move is to be read behind its opening, and a repeat may have its
    answer: nobody is asked for it.
    """
    return not (request.repeat or request.places or request.spec.purpose.is_move)
