# SPDX-License-Identifier: Apache-2.0
"""Claims of the shares of a request: each in one zone, under a key, or released there."""

import logging
from collections.abc import Collection, Iterable

import msgspec

from gantt import exceptions
from gantt.core.claims.child_claim import ChildClaim
from gantt.core.claims.idempotency_keys import request_id_in_zone
from gantt.core.messages.request import PLACES_MAX, SelectDestinations
from gantt.core.records.decision import Answer, Outcome, Selection
from gantt.core.records.members import encodable_answer
from gantt.scheduler.ports.requests import Requests
from gantt.scheduler.request.queue import Admission
from gantt.zones.model.choice import ZoneChoice, ZoneShare, child_selection
from gantt.zones.model.messages import ZoneAllocated, ZoneAllocation, ZoneRecord
from gantt.zones.ports import LocalShare, ZoneClaims
from gantt.zones.service import delegation
from gantt.zones.service.context import ZoneContext
from gantt.zones.service.follow import ZoneFollower
from gantt.zones.service.offers.evaluate import child_budget_ms, via_digest
from gantt.zones.service.offers.queries import call_while_busy
from gantt.zones.service.request_lock import RequestLock

LOG = logging.getLogger(__name__)
#: Timeout of a query for an allocation, however little time is left, in seconds.
RESOLVE_SECONDS = 1.0
#: Zones that are called at once to end claims there.
RELEASES_AT_ONCE = 16


class ClaimedShare(msgspec.Struct, frozen=True, kw_only=True):
    """Claims of one share.

    :ivar place_text: in words; ``zone``: name of the child zone, '' for this one
    :ivar child: uuid of the child zone; None: the local hosts
    :ivar key: the id of the share's request there
    :ivar selections: selection by number of the member
    :ivar child_claims: rows stored of its claims in the child zone
    """

    place_text: str
    zone: str
    child: str | None
    key: str
    selections: dict[int, list[Selection]]
    child_claims: list[ChildClaim] = []
    level: int = 0
    given_up: list[str] = []

    def local_share(self, parent: str | None) -> LocalShare:
        """Return the share as it is stored, where it is on the local hosts.

        :param parent: name of the parent zone that sent the request
        """
        members = {chosen[0].claim_id or '': n for n, chosen in self.selections.items()}
        return LocalShare(key=self.key, members=members, parent=parent)


class ShareClaimer:
    """Claimer of shares, one after another.

    :param follower: reads the changes of a zone, and repeats releases to it
    :param admission: queue of the scheduling thread
    """

    def __init__(
        self,
        requests: Requests,
        claims: ZoneClaims,
        zones: ZoneContext,
        follower: ZoneFollower,
        admission: Admission,
    ) -> None:
        self._requests = requests
        self._claims = claims
        self._zones = zones
        self._follower = follower
        self._admission = admission
        self._clock = zones.clock
        self._outbox = follower.outbox
        self._children = zones.directory.children
        self._own_uuid = zones.directory.own_uuid
        #: By which several zones are called at once.
        self._threads = zones.threads(RELEASES_AT_ONCE, 'zone-give-back')

    def claim(
        self, request: SelectDestinations, lock: RequestLock, share: ZoneShare, end: float
    ) -> ClaimedShare | Answer | None:
        """Claim a share where it was offered; else nothing is claimed, then or later.

        :returns: None: its zone has not honoured it; an answer: why the local hosts have not
        """
        place = share.choice.child or self._own_uuid()
        key = request_id_in_zone(lock.token, place)
        seconds = max(0.0, end - self._clock.monotonic())
        part = msgspec.structs.replace(
            request.traced(),
            request_id=key,
            consumers=[request.consumers[member] for member in share.members],
            budget_ms=child_budget_ms(seconds),
            hops=max(0, request.hops - 1),
            via=[*request.via, via_digest(request.request_id, self._own_uuid())],
            places=[] if share.choice.child else request.places,
            only_project=None,
            parent=None,
        )
        if share.choice.child is None:
            return self._claim_locally(part, share)
        zone = next((child for child in self._children() if child.uuid == share.choice.child), None)
        if zone is None:
            return None  # it was removed since
        if self._outbox.is_released(zone.uuid, key):
            # What it may have claimed under the key is about to end.
            return None
        body = ZoneAllocation(
            request=delegation.request_for_zone(zone, part),
            evaluated=share.choice.place.evaluated or request.request_id,
            tokens=[offer.place.token for offer in share.offers][:PLACES_MAX],
            order=lock.order,
            receipt=self._follower.receipts.seal(zone.uuid, part),
        )
        allocated = self._allocate(zone, key, body, seconds)
        claimed = (
            None if allocated is None else self._claimed_share(request, zone, key, share, allocated)
        )
        self._zones.breaker.note_offer_end(zone.uuid, claimed is not None)
        if claimed is not None:
            self._zones.summaries.note_claimed(zone.uuid, len(share.members))
        elif allocated is not None:
            LOG.error('Zone answered an allocation with a different one: zone=%s', zone.name)
            self._release_soon(zone, key)
        return claimed

    def release(self, shares: Iterable[ClaimedShare]) -> None:
        """End the claims of shares."""
        self._outbox.add([(share.child, share.key) for share in shares if share.child is not None])
        for share in shares:
            if share.child is None:
                self._requests.cancel_request(share.key, 'another share has no place')

    def end_claims_of_lock(self, lock_token: str) -> None:
        """End all claims under a lock that its owner has abandoned, wherever they are.

        They are noted since the row was taken over: a zone that does not answer now is called
        later.
        """
        self._requests.cancel_request(
            request_id_in_zone(lock_token, self._own_uuid()), 'taken over'
        )
        jobs = [
            self._threads.begin(
                self._outbox.try_noted,
                zone,
                request_id_in_zone(lock_token, zone.uuid),
                RESOLVE_SECONDS,
            )
            for zone in self._children()
        ]
        self._threads.wait(jobs, RESOLVE_SECONDS)

    def note_end(self, claimed: Collection[tuple[str, str]]) -> None:
        """Note allocations that are about to end, each by its zone and key."""
        self._outbox.note(claimed)

    def end(self, claimed: Iterable[tuple[str, str]]) -> None:
        """End allocations that were noted, and read the final state of their claims.

        A zone that does not answer in a moment is called again later.
        """
        zones = {zone.uuid: zone for zone in self._children()}
        jobs = [
            self._threads.begin(self._end_allocation, zones[child], key)
            for child, key in sorted(claimed)
            if child in zones
        ]
        self._threads.wait(jobs, RESOLVE_SECONDS)

    # -- inside ------------------------------------------------------------------------
    def _end_allocation(self, zone: ZoneRecord, key: str) -> None:
        if self._outbox.try_noted(zone, key, RESOLVE_SECONDS):
            self._claims.end_lost(zone.uuid, key)
            self._follower.follow(zone)

    def _claim_locally(self, part: SelectDestinations, share: ZoneShare) -> ClaimedShare | Answer:
        """Claim a share on the local hosts, as a request of its own."""
        waiter = self._threads.waiter()
        part = on_local_hosts(part, share.offers)
        for refused in self._admission.submit(part, None, waiter):
            refused.replies.send_soon([(refused.handle, refused.answer)])
        answer = encodable_answer(waiter.wait(part, part.budget_ms / 1000 + RESOLVE_SECONDS))
        self._zones.reload_soon()
        if answer.outcome is not Outcome.PLACED:
            return answer
        return ClaimedShare(
            place_text='this zone',
            zone='',
            child=None,
            key=part.request_id,
            selections=dict(zip(share.members, answer.selections, strict=True)),
            level=answer.level,
            given_up=answer.given_up,
        )

    def _allocate(
        self, zone: ZoneRecord, key: str, body: ZoneAllocation, seconds: float
    ) -> ZoneAllocated | None:
        end = self._clock.monotonic() + seconds
        try:
            return call_while_busy(
                self._clock, end, lambda left: self._zones.calls.allocate(zone, key, body, left)
            )
        except exceptions.Unavailable as e:
            LOG.warning(
                'Zone did not answer an allocation: zone=%s trace=%s error=%s',
                zone.name,
                body.request.trace or '-',
                e.message,
            )
        except exceptions.GanttError as e:
            LOG.info(
                'Zone refused an allocation, as its offer has ended: zone=%s trace=%s error=%s',
                zone.name,
                body.request.trace or '-',
                e.message,
            )
            return None
        # Its outcome is queried by its key.
        try:
            allocated = self._zones.calls.allocation(zone, key, RESOLVE_SECONDS)
        except exceptions.GanttError:
            allocated = None
        if allocated is not None and allocated.state == 'placed':
            return allocated
        # It may still be on its way: it is kept from claiming before other zones are called.
        self._release_soon(zone, key)
        return None

    def _release_soon(self, zone: ZoneRecord, key: str) -> bool:
        """Return whether the zone has acknowledged the release."""
        return self._outbox.try_now(zone, key, RESOLVE_SECONDS)

    @staticmethod
    def _claimed_share(
        request: SelectDestinations,
        zone: ZoneRecord,
        key: str,
        share: ZoneShare,
        allocated: ZoneAllocated,
    ) -> ClaimedShare | None:
        """Return the claims of an allocation; None: it does not match its request."""
        by_consumer = {member.consumer: member for member in allocated.members}
        claims = {member.claim_id for member in allocated.members}
        if (allocated.state, allocated.key) != ('placed', key) or len(claims) != len(share.members):
            return None
        selections: dict[int, list[Selection]] = {}
        child_claims: list[ChildClaim] = []
        for member in share.members:
            consumer = request.consumers[member]
            placed = by_consumer.get(consumer)
            if placed is None:
                return None
            selections[member] = [
                child_selection(
                    consumer,
                    zone.name,
                    claim_id=placed.claim_id,
                    resources=request.spec.resources,
                    lease_seconds=placed.lease_seconds,
                    sealed_host=placed.sealed_host,
                ),
                *(
                    child_selection(
                        consumer,
                        zone.name,
                        resources=request.spec.resources,
                        sealed_host=sealed_host,
                    )
                    for sealed_host in placed.alternates[: request.alternates]
                ),
            ]
            child_claims.append(
                ChildClaim(
                    claim_id=placed.claim_id,
                    child=zone.uuid,
                    request_id=request.request_id,
                    key=key,
                    consumer=consumer,
                    purpose=request.spec.purpose,
                    project_id=request.spec.project_id,
                    parent=request.parent,
                    state='reserved',
                    sealed_host=placed.sealed_host,
                    group=None if request.spec.group is None else request.spec.group.uuid,
                    resources=request.spec.at_most,
                    user_id=request.spec.user_id,
                    consumer_type=request.spec.consumer_type,
                )
            )
        return ClaimedShare(
            place_text=f'zone {zone.name}',
            zone=zone.name,
            child=zone.uuid,
            key=key,
            selections=selections,
            child_claims=child_claims,
            level=allocated.level,
            given_up=allocated.given_up,
        )


def on_local_hosts(
    request: SelectDestinations, choices: Iterable[ZoneChoice]
) -> SelectDestinations:
    """Return a request for the local hosts; one of a parent zone goes to its offered hosts."""
    if not request.places:
        return request
    hosts = [host for offered in choices if offered.child is None for host in offered.place.hosts]
    return request.on_hosts(list(dict.fromkeys(hosts)))
