# SPDX-License-Identifier: Apache-2.0
"""Counts of how many more of a shape fit in the child zones."""

import concurrent.futures
import functools
from collections.abc import Sequence

import msgspec

from gantt import exceptions
from gantt.core.messages.request import RequestKind, SelectDestinations
from gantt.core.zones.messages import ZoneCapacity, ZoneCapacityOf, ZoneRecord
from gantt.scheduler.ports.zones import Zones
from gantt.scheduler.zones import delegation
from gantt.scheduler.zones.offers.evaluate import for_below

#: Child zones that are queried at once for one caller, and timeout in seconds.
AT_ONCE, SECONDS = 16, 2.0


class CapacityBelow(msgspec.Struct, frozen=True, kw_only=True):
    """The count of one zone.

    :ivar found: None: it has not answered, for the reason in ``problem``
    """

    zone: ZoneRecord
    found: ZoneCapacity | None
    problem: str = ''


def capacities_below(
    zones: Zones,
    children: Sequence[ZoneRecord],
    own_uuid: str,
    request: SelectDestinations,
    only: frozenset[str] | None,
) -> list[CapacityBelow]:
    """Return the counts of each child zone that may be queried.

    :param request: of one member
    :param only: uuids of the zones that it may go to; None: any
    """
    if request.hops <= 0 or request.spec.kind is not RequestKind.HOST:
        return []
    may = [zone for zone in children if zone.enabled and (only is None or zone.uuid in only)]
    seconds = min(SECONDS, request.budget_ms / 1000)
    body = ZoneCapacityOf(request=for_below(request, own_uuid, seconds))
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(functools.partial(_of_one, zones, body, seconds), may))


def _of_one(zones: Zones, body: ZoneCapacityOf, seconds: float, zone: ZoneRecord) -> CapacityBelow:
    request = delegation.for_zone(zone, body.request)
    body = msgspec.structs.replace(body, request=request)
    try:
        return CapacityBelow(zone=zone, found=zones.capacity(zone, body, seconds))
    except exceptions.GanttError as e:
        return CapacityBelow(zone=zone, found=None, problem=e.message)
