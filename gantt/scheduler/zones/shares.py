# SPDX-License-Identifier: Apache-2.0
"""The share of a request that goes to one place: claimed there under a key, or given back."""

import concurrent.futures
import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from gantt import exceptions
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import Destination, SelectDestinations
from gantt.core.records.decision import Outcome, Selection
from gantt.core.records.members import plain
from gantt.core.zones.choice import Share
from gantt.core.zones.messages import ZoneAllocated, ZoneAllocation, ZoneRecord
from gantt.scheduler.placing.admission import Admission
from gantt.scheduler.ports import Clock, Recorder, Store
from gantt.scheduler.ports.zones import StoredBelow, Zones
from gantt.scheduler.waiter import Waiter
from gantt.scheduler.zones.evaluate import CALLS_MAX, budget_below, digest_of
from gantt.scheduler.zones.follow import GiveBacks

LOG = logging.getLogger(__name__)
#: What asking after an allocation may take, however little time is left.
RESOLVE_SECONDS = 1.0


class MadeShare(msgspec.Struct, frozen=True, kw_only=True):
    """What was claimed of a share.

    :ivar where: in words
    :ivar child: uuid of the zone below; None: the own hosts
    :ivar key: the id of the share's request there
    :ivar selections: by the number of the member
    :ivar below: what is stored of it
    """

    where: str
    child: str | None
    key: str
    selections: dict[int, list[Selection]]
    below: list[StoredBelow] = []
    level: int = 0
    given_up: list[str] = []


class ShareClaims:
    """Claims shares, one after another.

    :param children: the zones directly below, as they are registered
    :param own_uuid: of this zone
    :param give_backs: tries again what a zone has not heard of
    """

    def __init__(
        self,
        store: Store,
        zones: Zones,
        admission: Admission,
        recorder: Recorder,
        clock: Clock,
        children: Callable[[], Sequence[ZoneRecord]],
        own_uuid: Callable[[], str],
        give_backs: GiveBacks,
    ) -> None:
        self._store, self._zones, self._admission = store, zones, admission
        self._recorder, self._clock = recorder, clock
        self._children, self._own_uuid, self._give_backs = children, own_uuid, give_backs
        self._calls = concurrent.futures.ThreadPoolExecutor(CALLS_MAX, 'zone-give-back')

    def claim(
        self, request: SelectDestinations, opening: str, share: Share, end: float
    ) -> MadeShare | None:
        """Claim a share where it was offered; None: nothing is claimed, and nothing will be.

        :param opening: of the request, from which the key follows
        """
        place = share.choice.child or self._own_uuid()
        key = key_of(opening, place)
        left = max(0.0, end - self._clock.monotonic())
        part = msgspec.structs.replace(
            request,
            request_id=key,
            consumers=[request.consumers[member] for member in share.members],
            budget_ms=budget_below(left),
            hops=max(0, request.hops - 1),
            via=[*request.via, digest_of(request.request_id, self._own_uuid())],
            places=[],
            alternates=0,
            only_project=None,
            parent=None,
        )
        if share.choice.child is None:
            return self._claim_here(part, share)
        zone = next((one for one in self._children() if one.uuid == share.choice.child), None)
        if zone is None:
            return None  # it was removed since
        offer = share.choice.place
        body = ZoneAllocation(
            request=part, evaluated=offer.evaluated or request.request_id, tokens=[offer.token]
        )
        found = self._allocated(zone, key, body, left)
        if found is None:
            return None
        made = self._made(request, zone, share, found)
        if made is None:
            LOG.error('zone %s has left out members of an allocation', zone.name)
            self._give_back_soon(zone, key)
        return made

    def give_back(self, made: Iterable[MadeShare]) -> None:
        """End what was claimed of shares."""
        for one in made:
            if one.child is None:
                self._store.cancel_request(one.key, 'another share has no place')
            else:
                self._give_backs.add(one.child, one.key)

    def end_opening(self, opening: str) -> None:
        """End whatever was claimed by an opening that its owner has left, wherever that is."""
        self._store.cancel_request(key_of(opening, self._own_uuid()), 'taken over')
        ended = [
            self._calls.submit(self._give_back_soon, zone, key_of(opening, zone.uuid))
            for zone in self._children()
        ]
        concurrent.futures.wait(ended, RESOLVE_SECONDS)

    # -- inside ------------------------------------------------------------------------
    def _claim_here(self, part: SelectDestinations, share: Share) -> MadeShare | None:
        """A share of the own hosts, as a request of its own."""
        waiter = Waiter()
        narrowed = among(part, share.choice.place.hosts)
        for one in self._admission.submit(narrowed, None, waiter):
            one.replies.send_soon([(one.handle, one.answer)])
        answer = plain(waiter.wait(narrowed, narrowed.budget_ms / 1000 + RESOLVE_SECONDS))
        if answer.outcome is not Outcome.PLACED:
            return None
        return MadeShare(
            where='this zone',
            child=None,
            key=part.request_id,
            selections=dict(zip(share.members, answer.selections, strict=True)),
            level=answer.level,
            given_up=answer.given_up,
        )

    def _allocated(
        self, zone: ZoneRecord, key: str, body: ZoneAllocation, seconds: float
    ) -> ZoneAllocated | None:
        try:
            return self._zones.allocate(zone, key, body, seconds)
        except exceptions.Unavailable as e:
            self._recorder.count('gantt_zone_calls_failed_total', call='allocate')
            LOG.warning('zone %s: an allocation was not answered: %s', zone.name, e.message)
        except exceptions.GanttError as e:
            LOG.info('zone %s: an offer is gone: %s', zone.name, e.message)
            return None
        # What became of it is asked by its key.
        try:
            found = self._zones.allocation(zone, key, RESOLVE_SECONDS)
        except exceptions.GanttError:
            found = None
        if found is not None and found.state == 'placed':
            return found
        # It may still be on its way: it is made to claim nothing before others are asked.
        self._give_back_soon(zone, key)
        return None

    def _give_back_soon(self, zone: ZoneRecord, key: str) -> None:
        try:
            self._zones.give_back(zone, key, RESOLVE_SECONDS)
        except exceptions.GanttError:
            self._give_backs.add(zone.uuid, key)

    @staticmethod
    def _made(
        request: SelectDestinations, zone: ZoneRecord, share: Share, found: ZoneAllocated
    ) -> MadeShare | None:
        """None: it is not what was asked for."""
        by_consumer = {one.consumer: one for one in found.members}
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
                )
            ]
            below.append(
                StoredBelow(
                    claim_id=placed.claim_id,
                    child=zone.uuid,
                    request_id=request.request_id,
                    key=found.key,
                    consumer=consumer,
                    purpose=request.spec.purpose,
                    project_id=request.spec.project_id,
                    parent=request.parent,
                    state='reserved',
                    place=placed.place,
                )
            )
        return MadeShare(
            where=f'zone {zone.name}',
            child=zone.uuid,
            key=found.key,
            selections=selections,
            below=below,
            level=found.level,
            given_up=found.given_up,
        )


def key_of(opening: str, place: str) -> str:
    """The id of a share's request at its place: whoever takes over comes to the same one."""
    return derived_id('allocation', opening, place)


def among(request: SelectDestinations, hosts: list[str]) -> SelectDestinations:
    """A request that may go to these hosts only, to the first of them that fits."""
    before = request.spec.destination or Destination()
    destination = msgspec.structs.replace(before, hosts=hosts)
    spec = msgspec.structs.replace(request.spec, destination=destination)
    return msgspec.structs.replace(request, spec=spec, places=[])
