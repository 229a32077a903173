# SPDX-License-Identifier: Apache-2.0
"""This zone with its parent and child zones, as a tree.

It ends there.  A zone reports to its parents how many hosts it and its child zones have, and
nothing about the zones further down: those are shown by the zone above them.
"""

import concurrent.futures
import uuid

from gantt import exceptions
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.http import microversion
from gantt.http.context import Caller
from gantt.insights.views import View
from gantt.zones.http.context import ZoneHandlerContext
from gantt.zones.model.messages import ParentRecord, ZoneCapacity, ZoneCapacityOf
from gantt.zones.service.conditions import CONCURRENT_ZONES_MAX, ZoneCondition, ZoneState
from gantt.zones.service.offers.evaluate import request_for_children

#: The shape whose room each child zone counts, and the seconds that it has to answer.
ROOM_SHAPE = {'VCPU': 1}
CAPACITY_TIMEOUT_SECONDS = 2.0


class TreeParent(View, frozen=True, kw_only=True):
    """A parent zone that may query this zone.

    :ivar project_id: project of this zone with the quota, rate and rules of the parent's claims
    :ivar claims: number of its live claims, here and in child zones
    """

    name: str
    enabled: bool
    project_id: str
    lease_seconds_max: int
    claims: int


class TreeChild(View, frozen=True, kw_only=True):
    """A child zone.

    :ivar state: ``responding``, ``disabled``, ``unresponsive``, ``forbidden``, ``unusable`` or
        ``score_mismatch``
    :ivar problem: description of its problem; '': none
    :ivar milliseconds: until it answered; null: it did not answer
    :ivar minor: newest minor version of the interface that it serves; null: not known
    :ivar hosts: number of its hosts and those of all zones below it; null: it does not report it
    :ivar room: number of these hosts that have room for one vCPU
    :ivar complete: whether all zones below it have answered it
    :ivar lease_seconds_max: the longest lease that it grants; 0: not known
    :ivar claims: number of live claims there of this zone's requests
    """

    name: str
    uuid: str
    state: str
    problem: str
    milliseconds: float | None
    minor: int | None
    enabled: bool
    last_resort: bool
    hosts: int | None
    room: int | None
    complete: bool
    lease_seconds_max: int
    claims: int


class ZoneTree(View, frozen=True, kw_only=True):
    """This zone, its parent zones and its child zones.

    :ivar site: name of this site for operators; empty where it has none
    :ivar hosts: number of this zone's own hosts
    :ivar claims: number of live claims on them
    """

    uuid: str
    site: str
    minor: int
    hosts: int
    hosts_up: int
    claims: int
    parents: list[TreeParent]
    children: list[TreeChild]


def show_zone_tree(context: ZoneHandlerContext, caller: Caller) -> ZoneTree:
    """Show this zone, its parent zones and its child zones.

    Each child zone is called now: who it is, and how many hosts have room.
    """
    zones = context.zones
    zones.directory.refresh()
    live, status = context.stores.zone_figures.live_claims_over_zones(), context.insights.status()
    # A zone that is silent costs seconds: it is not to have all threads wait for it.
    with (
        context.gates.trials.admit(caller),
        concurrent.futures.ThreadPoolExecutor(CONCURRENT_ZONES_MAX) as threads,
    ):
        conditions = zones.conditions.query_all()
        rooms = list(threads.map(lambda condition: _capacity_count(context, condition), conditions))
    return ZoneTree(
        uuid=zones.directory.own_uuid(),
        site=context.settings.site_name,
        minor=microversion.HISTORY[-1].minor,
        hosts=status.hosts_total,
        hosts_up=status.hosts.get('up', 0),
        claims=status.claims,
        parents=[_tree_parent(parent, live.parents) for parent in zones.directory.parents()],
        children=[
            _tree_child(condition, room, live.children)
            for condition, room in zip(conditions, rooms, strict=True)
        ],
    )


def _capacity_count(context: ZoneHandlerContext, condition: ZoneCondition) -> ZoneCapacity | None:
    """Return the capacity of a zone that answers; None: it does not report one."""
    if condition.state not in (ZoneState.RESPONDING, ZoneState.SCORE_MISMATCH):
        return None
    spec, guest = RequestSpec(resources=ROOM_SHAPE), str(uuid.uuid4())
    request = SelectDestinations(request_id=str(uuid.uuid4()), spec=spec, consumers=[guest])
    own_uuid = context.zones.directory.own_uuid()
    body = ZoneCapacityOf(request=request_for_children(request, own_uuid, CAPACITY_TIMEOUT_SECONDS))
    try:
        return context.zones.calls.capacity(condition.zone, body, CAPACITY_TIMEOUT_SECONDS)
    except exceptions.GanttError:
        return None


def _tree_parent(parent: ParentRecord, claims: dict[str, int]) -> TreeParent:
    return TreeParent(
        name=parent.name,
        enabled=parent.enabled,
        project_id=parent.project_id,
        lease_seconds_max=parent.lease_seconds_max,
        claims=claims.get(parent.name, 0),
    )


def _tree_child(
    condition: ZoneCondition, room: ZoneCapacity | None, claims: dict[str, int]
) -> TreeChild:
    info = condition.info
    return TreeChild(
        name=condition.zone.name,
        uuid=condition.zone.uuid,
        state=condition.state.value,
        problem=condition.problem,
        milliseconds=None if info is None else round(condition.seconds * 1000, 1),
        minor=None if info is None else info.minor,
        enabled=condition.zone.enabled,
        last_resort=condition.zone.last_resort,
        hosts=None if room is None else room.hosts,
        room=None if room is None else room.eligible,
        complete=room is not None and room.complete,
        lease_seconds_max=0 if info is None else info.lease_seconds_max,
        claims=claims.get(condition.zone.uuid, 0),
    )
