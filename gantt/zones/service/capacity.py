# SPDX-License-Identifier: Apache-2.0
"""Counts of how many more of a shape fit in the child zones."""

import concurrent.futures
import functools
from collections.abc import Sequence

import msgspec

from gantt import exceptions
from gantt.core.messages.request import RequestKind, SelectDestinations
from gantt.zones.model.messages import ZoneCapacity, ZoneCapacityOf, ZoneRecord
from gantt.zones.ports import ZoneCalls
from gantt.zones.service import delegation
from gantt.zones.service.offers.evaluate import request_for_children

#: Child zones that are queried at once for one caller, and timeout in seconds.
AT_ONCE, SECONDS = 16, 2.0


class ChildCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """The count that one child zone reports.

    :ivar capacity: None: it has not answered, for the reason in ``problem``
    """

    zone: ZoneRecord
    capacity: ZoneCapacity | None
    problem: str = ''


def child_capacities(
    zones: ZoneCalls,
    children: Sequence[ZoneRecord],
    own_uuid: str,
    request: SelectDestinations,
    only: frozenset[str] | None,
) -> list[ChildCapacity]:
    """Return the counts of each child zone that may be queried.

    :param request: of one member
    :param only: uuids of the zones that it may go to; None: any
    """
    if request.hops <= 0 or request.spec.kind is not RequestKind.HOST:
        return []
    may = [zone for zone in children if zone.enabled and (only is None or zone.uuid in only)]
    seconds = min(SECONDS, request.budget_ms / 1000)
    body = ZoneCapacityOf(request=request_for_children(request, own_uuid, seconds))
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(functools.partial(_of_one, zones, body, seconds), may))


def _of_one(
    zones: ZoneCalls, body: ZoneCapacityOf, seconds: float, zone: ZoneRecord
) -> ChildCapacity:
    request = delegation.request_for_zone(zone, body.request)
    body = msgspec.structs.replace(body, request=request)
    try:
        return ChildCapacity(zone=zone, capacity=zones.capacity(zone, body, seconds))
    except exceptions.GanttError as e:
        return ChildCapacity(zone=zone, capacity=None, problem=e.message)
