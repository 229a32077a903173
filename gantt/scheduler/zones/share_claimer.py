# SPDX-License-Identifier: Apache-2.0
"""Claims of the shares of a request: each in one zone, under a key, or released there."""

import logging
from collections.abc import Collection, Iterable

import msgspec

from gantt import exceptions
from gantt.core.messages.request import PLACES_MAX, Destination, SelectDestinations
from gantt.core.records.decision import Answer, Outcome, Selection
from gantt.core.records.members import plain
from gantt.core.zones.choice import Choice, Share
from gantt.core.zones.idempotency_keys import key_of
from gantt.core.zones.messages import ZoneAllocated, ZoneAllocation, ZoneRecord
from gantt.scheduler.ports import Requests, ZoneClaims
from gantt.scheduler.ports.zones import LocalShare, StoredBelow
from gantt.scheduler.request.queue import Admission
from gantt.scheduler.zones import delegation
from gantt.scheduler.zones.context import ZoneContext
from gantt.scheduler.zones.follow import ZoneFollower
from gantt.scheduler.zones.offers.evaluate import budget_below, digest_of
from gantt.scheduler.zones.offers.queries import while_busy
from gantt.scheduler.zones.request_lock import RequestLock

LOG = logging.getLogger(__name__)
#: Timeout of a query for an allocation, however little time is left, in seconds.
RESOLVE_SECONDS = 1.0
#: Zones that are called at once to end claims there.
RELEASES_AT_ONCE = 16


class ClaimedShare(msgspec.Struct, frozen=True, kw_only=True):
    """Claims of one share.

    :ivar where: in words; ``zone``: name of the child zone, '' for this one
    :ivar child: uuid of the child zone; None: the local hosts
    :ivar key: the id of the share's request there
    :ivar selections: by the number of the member
    :ivar below: rows stored of its claims
    """

    where: str
    zone: str
    child: str | None
    key: str
    selections: dict[int, list[Selection]]
    below: list[StoredBelow] = []
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
    :param admission: of the placing thread
    """

    def __init__(
        self,
        requests: Requests,
        claims: ZoneClaims,
        zones: ZoneContext,
        follower: ZoneFollower,
        admission: Admission,
    ) -> None:
        self._requests, self._claims = requests, claims
        self._zones, self._follower, self._admission = zones, follower, admission
        self._clock, self._outbox = zones.clock, follower.outbox
        self._children, self._own_uuid = zones.directory.children, zones.directory.own_uuid
        #: By which several zones are called at once.
        self._threads = zones.threads(RELEASES_AT_ONCE, 'zone-give-back')

    def claim(
        self, request: SelectDestinations, lock: RequestLock, share: Share, end: float
    ) -> ClaimedShare | Answer | None:
        """Claim a share where it was offered; else nothing is claimed, then or later.

        :returns: None: its zone has not honoured it; an answer: why the local hosts have not
        """
        place = share.choice.child or self._own_uuid()
        key = key_of(lock.token, place)
        seconds = max(0.0, end - self._clock.monotonic())
        part = msgspec.structs.replace(
            request.traced(),
            request_id=key,
            consumers=[request.consumers[member] for member in share.members],
            budget_ms=budget_below(seconds),
            hops=max(0, request.hops - 1),
            via=[*request.via, digest_of(request.request_id, self._own_uuid())],
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
            request=delegation.for_zone(zone, part),
            evaluated=share.choice.place.evaluated or request.request_id,
            tokens=[offer.place.token for offer in share.offers][:PLACES_MAX],
            order=lock.order,
            receipt=self._follower.receipts.sealed(zone.uuid, part),
        )
        allocated = self._allocated(zone, key, body, seconds)
        claimed = None if allocated is None else self._made(request, zone, key, share, allocated)
        self._zones.breaker.offer_ended(zone.uuid, claimed is not None)
        if claimed is not None:
            self._zones.summaries.took(zone.uuid, len(share.members))
        elif allocated is not None:
            LOG.error('Zone answered an allocation with a different one: zone=%s', zone.name)
            self._release_soon(zone, key)
        return claimed

    def release(self, made: Iterable[ClaimedShare]) -> None:
        """End the claims of shares."""
        self._outbox.add([(share.child, share.key) for share in made if share.child is not None])
        for share in made:
            if share.child is None:
                self._requests.cancel_request(share.key, 'another share has no place')

    def end_abandoned(self, lock_token: str) -> None:
        """End all claims under a lock that its owner has abandoned, wherever they are.

        They are noted since the row was taken over: a zone that does not answer now is called
        later.
        """
        self._requests.cancel_request(key_of(lock_token, self._own_uuid()), 'taken over')
        jobs = [
            self._threads.begin(
                self._outbox.try_noted, zone, key_of(lock_token, zone.uuid), RESOLVE_SECONDS
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
            self._threads.begin(self._end, zones[child], key)
            for child, key in sorted(claimed)
            if child in zones
        ]
        self._threads.wait(jobs, RESOLVE_SECONDS)

    # -- inside ------------------------------------------------------------------------
    def _end(self, zone: ZoneRecord, key: str) -> None:
        if self._outbox.try_noted(zone, key, RESOLVE_SECONDS):
            self._claims.end_lost(zone.uuid, key)
            self._follower.follow(zone)

    def _claim_locally(self, part: SelectDestinations, share: Share) -> ClaimedShare | Answer:
        """Claim a share on the local hosts, as a request of its own."""
        waiter = self._threads.waiter()
        part = on_local_hosts(part, share.offers)
        for refused in self._admission.submit(part, None, waiter):
            refused.replies.send_soon([(refused.handle, refused.answer)])
        answer = plain(waiter.wait(part, part.budget_ms / 1000 + RESOLVE_SECONDS))
        self._zones.reload_soon()
        if answer.outcome is not Outcome.PLACED:
            return answer
        return ClaimedShare(
            where='this zone',
            zone='',
            child=None,
            key=part.request_id,
            selections=dict(zip(share.members, answer.selections, strict=True)),
            level=answer.level,
            given_up=answer.given_up,
        )

    def _allocated(
        self, zone: ZoneRecord, key: str, body: ZoneAllocation, seconds: float
    ) -> ZoneAllocated | None:
        end = self._clock.monotonic() + seconds
        try:
            return while_busy(
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
        # It may still be on its way: it is barred from claiming before other zones are called.
        self._release_soon(zone, key)
        return None

    def _release_soon(self, zone: ZoneRecord, key: str) -> bool:
        """Return whether the zone has acknowledged the release."""
        return self._outbox.try_now(zone, key, RESOLVE_SECONDS)

    @staticmethod
    def _made(
        request: SelectDestinations,
        zone: ZoneRecord,
        key: str,
        share: Share,
        found: ZoneAllocated,
    ) -> ClaimedShare | None:
        """Return the claims of an allocation; None: it does not match its request."""
        by_consumer = {member.consumer: member for member in found.members}
        claims = {member.claim_id for member in found.members}
        if (found.state, found.key) != ('placed', key) or len(claims) != len(share.members):
            return None
        selections: dict[int, list[Selection]] = {}
        below: list[StoredBelow] = []
        for member in share.members:
            consumer = request.consumers[member]
            placed = by_consumer.get(consumer)
            if placed is None:
                return None
            selections[member] = [
                Selection(
                    host='',
                    node='',
                    uuid='',
                    provider_id=0,
                    consumer=consumer,
                    claim_id=placed.claim_id,
                    resources=request.spec.resources,
                    lease_seconds=placed.lease_seconds,
                    child=zone.name,
                    place=placed.place,
                ),
                *(
                    Selection(
                        host='',
                        node='',
                        uuid='',
                        provider_id=0,
                        consumer=consumer,
                        resources=request.spec.resources,
                        child=zone.name,
                        place=place,
                    )
                    for place in placed.alternates[: request.alternates]
                ),
            ]
            below.append(
                StoredBelow(
                    claim_id=placed.claim_id,
                    child=zone.uuid,
                    request_id=request.request_id,
                    key=key,
                    consumer=consumer,
                    purpose=request.spec.purpose,
                    project_id=request.spec.project_id,
                    parent=request.parent,
                    state='reserved',
                    place=placed.place,
                    group=None if request.spec.group is None else request.spec.group.uuid,
                    resources=request.spec.at_most,
                    user_id=request.spec.user_id,
                    consumer_type=request.spec.consumer_type,
                )
            )
        return ClaimedShare(
            where=f'zone {zone.name}',
            zone=zone.name,
            child=zone.uuid,
            key=key,
            selections=selections,
            below=below,
            level=found.level,
            given_up=found.given_up,
        )


def on_local_hosts(request: SelectDestinations, choices: Iterable[Choice]) -> SelectDestinations:
    """Return a request for the local hosts; one of a parent zone goes to its offered hosts."""
    if not request.places:
        return request
    hosts = [host for offered in choices if offered.child is None for host in offered.place.hosts]
    return among(request, list(dict.fromkeys(hosts)))


def among(request: SelectDestinations, hosts: list[str]) -> SelectDestinations:
    """Return a request restricted to these hosts: one member to the first of them that fits."""
    before = request.spec.destination or Destination()
    destination = msgspec.structs.replace(before, hosts=hosts)
    spec = msgspec.structs.replace(request.spec, destination=destination)
    return msgspec.structs.replace(request, spec=spec, places=[])
