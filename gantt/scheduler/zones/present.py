# SPDX-License-Identifier: Apache-2.0
"""A guest that is rebuilt stays where it is: whether its host fits is asked where it lives.

Nobody above knows the host of a guest below.  The zone directly below finds it by the key of the
allocation that the guest came with, and asks on where that went further down.  Nothing is claimed.
"""

from collections.abc import Callable, Sequence

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import State
from gantt.core.messages.request import Destination, SelectDestinations
from gantt.core.records.decision import Outcome, ZoneStep
from gantt.core.zones.messages import ZoneEvaluated, ZoneEvaluation, ZoneRecord, ZonesQueried
from gantt.scheduler.ports import Clock, Store
from gantt.scheduler.ports.zones import StoredBelow, Zones
from gantt.scheduler.zones import going_down
from gantt.scheduler.zones.bound import live_below
from gantt.scheduler.zones.offers.evaluate import Evaluated, for_below
from gantt.scheduler.zones.offers.queries import while_busy, zone_failure


class PresentPlace:
    """Any thread.

    :param children: the zones directly below, as they are registered
    :param own_uuid: of this zone
    """

    def __init__(
        self,
        store: Store,
        zones: Zones,
        clock: Clock,
        children: Callable[[], Sequence[ZoneRecord]],
        own_uuid: Callable[[], str],
    ) -> None:
        self._store, self._zones, self._clock = store, zones, clock
        self._children, self._own_uuid = children, own_uuid

    def below(self, request: SelectDestinations) -> tuple[ZoneRecord, StoredBelow] | None:
        """The zone below where the guest of a request lives, and its claim there; None: it is here.

        :raises Refused: there are several guests
        """
        # Of a move there are two: it runs where it is confirmed.
        rows = sorted(
            live_below(self._store, request.consumers),
            key=lambda one: one.state != State.CONFIRMED.value,
        )
        if not rows:
            return None
        if len(request.consumers) > 1:
            raise exceptions.Refused(
                'a guest in a zone below is rebuilt by a request of its own; expected one consumer'
            )
        return self._zone(rows[0]), rows[0]

    def evaluated(
        self, zone: ZoneRecord, key: str, request: SelectDestinations, seconds: float
    ) -> ZoneEvaluated:
        """What a zone below says of the host of a guest that came under a key.

        :raises GanttError: it does not say
        """
        below = for_below(request, self._own_uuid(), seconds)
        body = ZoneEvaluation(request=going_down.told(zone, below), want=1, key=key)
        end = self._clock.monotonic() + seconds
        try:
            return while_busy(self._clock, end, lambda left: self._zones.evaluate(zone, body, left))
        except exceptions.GanttError as e:
            what = 'the zone where the guest runs has not said whether its host fits'
            raise zone_failure(zone, what, e) from None

    def under(
        self, key: str, parent: str, request: SelectDestinations
    ) -> SelectDestinations | tuple[ZoneRecord, StoredBelow]:
        """The request for the host that its guest is on, as a zone above has it under a key; or the
        zone below that has it.

        :raises NotFound: the zone above has no such guest
        """
        [consumer] = request.consumers
        stored = self._store.load_request(key)
        for claim in stored.claims if stored is not None else ():
            if claim.consumer == consumer and claim.is_live and claim.parent_key == parent:
                before = request.spec.destination or Destination()
                there = msgspec.structs.replace(before, host=claim.host)
                spec = msgspec.structs.replace(request.spec, destination=there)
                return msgspec.structs.replace(request, spec=spec, hops=0)
        for one in self._store.claims_below(key):
            if one.consumer == consumer and one.holds and one.parent == parent:
                return self._zone(one), one
        raise exceptions.NotFound(kind='allocation', name=key)

    def _zone(self, row: StoredBelow) -> ZoneRecord:
        zone = next((one for one in self._children() if one.uuid == row.child), None)
        if zone is None:
            raise exceptions.Unavailable(f'the zone of consumer {row.consumer} is not known now')
        return zone


def as_evaluated(zone: ZoneRecord, found: ZoneEvaluated) -> Evaluated:
    """What the one zone below has said, for the decision."""
    is_placed = found.outcome is Outcome.PLACED
    step = ZoneStep(
        zone=zone.name,
        round=1,
        outcome=found.outcome.value,
        hosts=found.hosts,
        survivors=found.survivors,
        removed=found.removed,
        taken=int(is_placed),
    )
    return Evaluated(
        [],
        found.outcome,
        '' if is_placed else f'the host of the guest in zone {zone.name} does not fit',
        found.hosts,
        found.survivors,
        found.removed,
        ZonesQueried(queried=1, answered=1),
        found.complete,
        found.score_set,
        (),
        (step,),
    )
