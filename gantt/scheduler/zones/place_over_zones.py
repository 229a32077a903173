# SPDX-License-Identifier: Apache-2.0
"""Flow 3: a request that may go down is placed where it is best, here or in a zone below.

    open its row → ask everybody what they have → take the best offer: the own hosts by the
    thread that places, a zone below by an allocation under a key of its own → where that is
    gone take the next one → store the answer, which ends it

The key of an allocation follows from who has the row open and the zone: a process that takes
over comes to the same ones.  What became of an allocation that was not answered
is asked for by its key; where that is not known either it is given back, then the next one is
taken.  What a zone has not heard of ends there with its lease.

Requests are carried out by threads of their own, in bounded number; beyond it is "busy".
"""

import concurrent.futures
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import LIVE, State
from gantt.core.claims.commit import CommitStatus, DecisionRecord
from gantt.core.claims.request_state import RequestState
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import (
    ExtendClaims,
    Lifecycle,
    OfferedPlace,
    Purpose,
    RequestKind,
    SelectDestinations,
)
from gantt.core.records.decision import Answer, Outcome
from gantt.core.records.members import pack, plain
from gantt.core.zones import choice
from gantt.core.zones.choice import Choice, Share
from gantt.core.zones.messages import ZoneRecord, ZonesQueried
from gantt.core.zones.score import ZoneScore
from gantt.scheduler.placing.admission import (
    WAITERS_MAX,
    Admission,
    PendingRequest,
    first_attempt,
    refusal,
)
from gantt.scheduler.placing.answers import StoredAnswers
from gantt.scheduler.ports import Clock, Recorder, Replies, Store
from gantt.scheduler.ports.zones import OpenRequest
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.waiter import Waiter
from gantt.scheduler.zones import decisions
from gantt.scheduler.zones.dry_run import would_be
from gantt.scheduler.zones.evaluate import Evaluated, digest_of
from gantt.scheduler.zones.follow import GiveBacks
from gantt.scheduler.zones.parts import ZoneParts
from gantt.scheduler.zones.shares import MadeShare, ShareClaims, among

LOG = logging.getLogger(__name__)
#: Requests that are carried out at once, and that wait for it.
THREADS, WAITING_MAX = 32, 256
#: Of the time that is left, what is waited for offers; the rest is for taking them.
EVALUATE_SHARE = 0.6
#: Between two looks at a row that another scheduler has open.
LOOK_SECONDS = 0.1
#: What asking after an allocation may take, however little time is left.
RESOLVE_SECONDS = 1.0
#: Offers of one zone.
WANT = 5
NOBODY: Mapping[str, int] = {}
#: Outcomes of the own hosts after which no other place is looked for.
_FINAL = (Outcome.PLACED, Outcome.REFUSED, Outcome.REUSED, Outcome.CANCELLED, Outcome.EXPIRED)


class Opening(NamedTuple):
    """The row of a request, open and ours.

    :ivar number: of its attempt
    :ivar token: from which the keys of what it claims in other zones follow
    :ivar fingerprint: of the request as it came
    """

    number: int
    token: str
    fingerprint: str


class _Ended(Exception):
    """The request is answered."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.reason)
        self.answer = answer


class PendingZones(NamedTuple):
    """A request that is carried out, and who waits for its answer."""

    request: SelectDestinations
    waiters: list[tuple[Any, Replies]]


class PlaceOverZones:
    """See the module docstring.  All methods may be called from any thread.

    :param zones: what this process speaks with other zones by
    :param follow: reads what has changed in a zone below
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
    ) -> None:
        self._calls = zones.calls
        self._store, self._evaluator, self._bound = store, zones.evaluator, zones.bound
        self._admission, self._stored, self._recorder = admission, stored_answers, recorder
        self._clock, self._settings = clock, settings
        children, own_uuid = zones.directory.children, zones.directory.own_uuid
        self._children, self._own_uuid = children, own_uuid
        self._shares = ShareClaims(
            *(store, zones.calls, admission, recorder, clock, children, own_uuid, give_backs),
            zones.summaries,
            zones.standing,
            follow,
        )
        self._threads = concurrent.futures.ThreadPoolExecutor(THREADS, 'over-zones')
        self._lock = threading.Lock()
        self._inside: dict[str, PendingZones] = {}
        self._serial = 0
        self._is_closed = False

    def takes(self, request: SelectDestinations) -> bool:
        """Whether a request may go down: else the thread that places has it at once."""
        if request.places:
            return any(place.child is not None for place in request.places)
        return (
            request.hops > 0
            and request.spec.kind is RequestKind.HOST
            and request.lifecycle is Lifecycle.HOST
            and request.spec.purpose is not Purpose.REBUILD
            and any(zone.enabled for zone in self._children())
        )

    def submit(
        self, request: SelectDestinations, handle: Any, replies: Replies, spent_ms: float = 0.0
    ) -> None:
        """Carry out a request; the answer comes through ``replies``."""
        end = self._clock.monotonic() + (request.budget_ms - spent_ms) / 1000
        call = PendingZones(request, [(handle, replies)])
        with self._lock:
            found = self._inside.get(request.request_id)
            refused = self._refusal(request, found)
            if refused is None and found is not None:
                found.waiters.append((handle, replies))
                return
            if refused is None:
                self._inside[request.request_id] = call
        if refused is None:
            self._threads.submit(self._run, call, end)
        else:
            replies.send_soon([(handle, refused)])

    def stop(self, seconds: float) -> bool:
        """Take nothing new, finish what is inside; whether that was done in time."""
        end = self._clock.monotonic() + seconds
        with self._lock:
            self._is_closed = True
        while self._inside and self._clock.monotonic() < end:
            self._clock.sleep(min(LOOK_SECONDS, seconds))
        self._threads.shutdown(wait=False, cancel_futures=True)
        return not self._inside

    def cancel(self, request_id: str) -> None:
        """Give back what a request has below: it is cancelled here.

        Its consumers stay its own until the zones below have heard of it: until then a host there
        may start a guest.
        """
        if not self._children():
            return  # a zone is not removed while anything lives there
        found = self._store.claims_below(request_id)
        self._shares.end({(one.child, one.key) for one in found if one.state in LIVE})

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
                self._calls.extend(known[child], key, message.seconds, RESOLVE_SECONDS)
        return bool(keys)

    def _refusal(self, request: SelectDestinations, found: PendingZones | None) -> Answer | None:
        """Why a request is neither taken in nor joined to one that is inside."""
        retry = self._settings.retry_after_ms
        if self._is_closed and found is None:
            return refusal(request, Outcome.BUSY, 'shutting down', retry)
        if found is None:
            if len(self._inside) < THREADS + WAITING_MAX:
                return None
            why = f'{len(self._inside)} requests are under way in other zones'
            return refusal(request, Outcome.BUSY, why, retry)
        if found.request.fingerprint != request.fingerprint:
            return refusal(request, Outcome.REUSED, 'the request id is in use')
        if len(found.waiters) < WAITERS_MAX:
            return None
        why = f'{WAITERS_MAX} callers wait for this very request'
        return refusal(request, Outcome.BUSY, why, retry)

    # -- the story ---------------------------------------------------------------------
    def _run(self, call: PendingZones, end: float) -> None:
        request = call.request
        try:
            answer = self._answer(request, end)
        except exceptions.GanttError as e:
            answer = refusal(request, _outcome_of(e), e.message)
        except Exception as e:  # the thread pool would swallow it, and nobody be answered
            LOG.exception('a request over zones failed')
            answer = refusal(request, Outcome.FAILED, f'internal: {e}')
        with self._lock:
            del self._inside[request.request_id]
        for handle, replies in call.waiters:
            replies.send([(handle, answer)])
        self._recorder.count('gantt_zone_requests_total', outcome=answer.outcome.value)

    def _answer(self, request: SelectDestinations, end: float) -> Answer:
        if digest_of(request.request_id, self._own_uuid()) in request.via:
            raise exceptions.ZoneLoop()
        fingerprint, ruled = request.fingerprint, self._bound.with_rule(request)
        if self._bound.of(ruled) == {self._own_uuid()}:
            return self._placed_here(request, end)
        if request.dry_run:
            return self._tried(ruled, end)
        try:
            number = first_attempt(self._clock.wall())
            opening = self._open(ruled, fingerprint, number, end)
            return self._place(ruled, opening, end)
        except _Ended as e:
            return e.answer

    def _placed_here(self, request: SelectDestinations, end: float) -> Answer:
        """Have the thread that places take all of it, as a request of this zone alone."""
        waiter = Waiter()
        left = max(0.0, end - self._clock.monotonic())
        spent = max(0.0, request.budget_ms - left * 1000)
        for one in self._admission.submit(request, None, waiter, spent):
            one.replies.send_soon([(one.handle, one.answer)])
        return plain(waiter.wait(request, left + RESOLVE_SECONDS))

    def _tried(self, request: SelectDestinations, end: float) -> Answer:
        """Where a request would go; nothing is claimed."""
        found = self._offers(request, end, thorough=False)
        shares = choice.split(
            range(len(request.consumers)), found.choices, choice.is_whole(request)
        )
        if len(shares) == 1 and shares[0].choice.child is None:
            return self._placed_here(among(request, shares[0].choice.place.hosts), end)
        answer, decision = would_be(
            request, found, shares, self._children(), self._serially(request)
        )
        self._recorder.record(decisions.record_of(decision, request))
        return answer

    def _place(self, request: SelectDestinations, opening: Opening, end: float) -> Answer:
        """Take one offer after the other until all members have a place.

        :param opening: of its row, which is ours
        """
        gone: set[tuple[str | None, str]] = set()
        lost = 0
        for attempt in range(self._settings.attempts_per_request):
            try:
                found = self._offers(request, end, thorough=attempt > 0)
            except exceptions.GanttError:
                # Nothing is claimed: nobody has to wait for the deadline of the row.
                self._store.give_up(request.request_id, self._settings.worker, opening.number)
                raise
            choices = [one for one in found.choices if _key_of(one) not in gone]
            taken = self._take(request, opening, choices, gone, end, found)
            if isinstance(taken, Answer):
                return taken
            if not choices or taken is None:
                return self._refused(request, opening, found, lost)
            lost += taken
            if self._clock.monotonic() >= end:
                break
            opening = self._open(request, opening.fingerprint, opening.number + 1, end)
        self._store.give_up(request.request_id, self._settings.worker, opening.number)
        return refusal(request, Outcome.CONFLICT, f'gave up after {lost} offers that were gone')

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
        choices: list[Choice],
        gone: set[tuple[str | None, str]],
        end: float,
        found: Evaluated,
    ) -> Answer | int | None:
        """Claim offers for all members; the answer, or how many offers were gone.

        None: no places for all of them are left.
        """
        lost = 0
        whole = choice.is_whole(request)
        while self._clock.monotonic() < end:
            members = range(len(request.consumers))
            shares = choice.split(members, choices, whole)
            if not shares:
                return lost or None
            best = shares[0].choice
            place = best.child or self._own_uuid()
            left = max(0.0, end - self._clock.monotonic())
            if self._bound.decide(request, place, left) != place:
                # Its group is somewhere else since: what that zone has is looked for anew.
                gone.update(_key_of(one) for one in choices if one.child == best.child)
                return lost + 1
            if len(shares) == 1 and best.child is None:
                answer = self._take_here(request, opening, choices, end, found)
                if answer.outcome in _FINAL:
                    return answer
                gone.update(_key_of(one) for one in choices if one.child is None)
                # The row went with it.
                return lost + 1
            failed = self._take_shares(request, opening, shares, end, found)
            if isinstance(failed, Answer):
                return failed
            gone.update(_key_of(one) for one in failed.offers)
            lost += 1
            choices = [one for one in choices if _key_of(one) not in gone]
        return lost

    # -- the row -----------------------------------------------------------------------
    def _open(
        self, request: SelectDestinations, fingerprint: str, number: int, end: float
    ) -> Opening:
        """Make the row of a request ours.

        :param number: of its attempt where nobody has it open
        :raises _Ended: it is answered, or cannot go on
        """
        takes_over: int | None = None
        left_by_others = ''
        while True:
            left = end - self._clock.monotonic()
            if left <= 0:
                why = 'another worker is at this request'
                raise _Ended(refusal(request, Outcome.BUSY, why, self._settings.retry_after_ms))
            found = self._store.open_request(
                OpenRequest(
                    id=request.request_id,
                    fingerprint=fingerprint,
                    owner=self._settings.worker,
                    attempt=number,
                    takes_over=takes_over,
                    seconds=left + RESOLVE_SECONDS,
                    consumers=request.consumers,
                    purpose=request.spec.purpose,
                )
            )
            outcome = found.outcome
            if outcome is None:
                if left_by_others:
                    # Nobody settles it any more: what was claimed is ended before anything is.
                    self._shares.end_opening(left_by_others)
                return Opening(number, found.opening, fingerprint)
            match outcome.outcome:
                case CommitStatus.REPEAT:
                    self._recorder.count('gantt_repeats_total')
                    raise _Ended(plain(self._stored.read(request.request_id, outcome.answer)))
                case CommitStatus.OVERDUE:
                    left_by_others = found.opening
                    takes_over, number = outcome.attempt, outcome.attempt + 1
                    continue
                case CommitStatus.CANCELLED:
                    raise _Ended(refusal(request, Outcome.CANCELLED, 'it was cancelled'))
                case CommitStatus.REUSED:
                    raise _Ended(refusal(request, Outcome.REUSED, 'used with another body'))
                case CommitStatus.BARRED:
                    raise _Ended(refusal(request, Outcome.REFUSED, outcome.reason))
            self._clock.sleep(min(LOOK_SECONDS, left))

    # -- here ---------------------------------------------------------------------------
    def _take_here(
        self,
        request: SelectDestinations,
        opening: Opening,
        choices: Sequence[Choice],
        end: float,
        found: Evaluated,
    ) -> Answer:
        """Have the thread that places choose among the own hosts that were offered."""
        hosts = [host for one in choices if one.child is None for host in one.place.hosts]
        narrowed = among(request, list(dict.fromkeys(hosts)))
        call = PendingRequest(narrowed, end, opening.number)
        call.fingerprint = opening.fingerprint
        call.zones = decisions.steps_of(found, {'': len(request.consumers)})
        call.attempt = msgspec.structs.replace(call.attempt, state=RequestState.PARTLY_PLACED)
        waiter = Waiter()
        for one in self._admission.enter(call, None, waiter):
            one.replies.send_soon([(one.handle, one.answer)])
        left = max(0.0, end - self._clock.monotonic())
        answer = plain(waiter.wait(narrowed, left + RESOLVE_SECONDS))
        return msgspec.structs.replace(answer, request_id=request.request_id)

    # -- several places ------------------------------------------------------------------
    def _take_shares(
        self,
        request: SelectDestinations,
        opening: Opening,
        shares: Sequence[Share],
        end: float,
        found: Evaluated,
    ) -> Answer | Share:
        """Claim each share where it was offered; the answer, or the share whose offers are gone.

        All or none: what was claimed is given back where a share has no place.
        """
        made: list[MadeShare] = []
        for share in shares:
            claimed = self._shares.claim(request, opening.token, share, end)
            if claimed is None:
                self._shares.give_back(made)
                return share
            made.append(claimed)
        answer = self._finished(request, opening.number, made, found)
        if answer is None:
            self._shares.give_back(made)
            raise _Ended(self._lost(request))
        return answer

    def _lost(self, request: SelectDestinations) -> Answer:
        """Why a request is no longer ours: it was cancelled, or its time was over."""
        stored = self._store.load_request(request.request_id)
        if stored is not None and stored.state == 'cancelled':
            return refusal(request, Outcome.CANCELLED, 'it was cancelled')
        why = 'another worker is at this request'
        return refusal(request, Outcome.BUSY, why, self._settings.retry_after_ms)

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
        owner = self._settings.worker
        if not self._store.finish_request(request.request_id, owner, number, pack(answer), below):
            return None
        self._recorder.record(record)
        return answer

    def _refused(
        self, request: SelectDestinations, opening: Opening, found: Evaluated, lost: int
    ) -> Answer:
        """No place is left: "no room" where everybody has said so, else it is not known."""
        self._store.give_up(request.request_id, self._settings.worker, opening.number)
        outcome, reason = decisions.refusal_of(request, found, lost)
        record = self._record(request, opening.number, outcome, reason, found)
        self._recorder.record(record)
        return refusal(request, outcome, reason, decision_id=record.id)

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
        return decisions.record_of(decision, request)

    def _serially(self, request: SelectDestinations) -> str:
        """The id of a decision."""
        with self._lock:
            self._serial += 1
            serial = self._serial
        return derived_id('decision over zones', request.request_id, self._settings.worker, serial)


def _key_of(one: Choice) -> tuple[str | None, str]:
    """What is not offered again: an offer of a zone, or the own hosts by what they are."""
    place: OfferedPlace = one.place
    return one.child, place.token or '\n'.join(place.hosts)


def _outcome_of(error: exceptions.GanttError) -> Outcome:
    if isinstance(error, exceptions.Busy):
        return Outcome.BUSY
    if isinstance(error, exceptions.Expired):
        return Outcome.EXPIRED
    if isinstance(error, exceptions.Refused):
        return Outcome.REFUSED
    return Outcome.FAILED
