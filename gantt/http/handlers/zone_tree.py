# SPDX-License-Identifier: Apache-2.0
"""The zones around this one as a tree: those above, this one, those directly below.

It ends there.  A zone reports to its parents how many hosts it and its child zones have, and
nothing about the zones further down: those are shown by the zone above them.
"""

import concurrent.futures
import uuid

from gantt import exceptions
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.zones.messages import ParentRecord, ZoneCapacity, ZoneCapacityOf
from gantt.http import microversion
from gantt.http.context import Caller, HandlerContext
from gantt.insights.views import View
from gantt.scheduler.zones.conditions import AT_ONCE, ZoneCondition, ZoneState
from gantt.scheduler.zones.offers.evaluate import for_below

#: The shape whose room each child zone counts, and the seconds that it has to answer.
SHAPE = {'VCPU': 1}
ROOM_SECONDS = 2.0


class TreeParent(View, frozen=True, kw_only=True):
    """A zone above that may ask here.

    :ivar claims: live ones of it, here and below
    """

    name: str
    enabled: bool
    project_id: str
    lease_seconds_max: int
    claims: int


class TreeChild(View, frozen=True, kw_only=True):
    """A zone directly below.

    :ivar state: ``responding``, ``disabled``, ``unresponsive``, ``forbidden``, ``unusable`` or
        ``score_mismatch``
    :ivar problem: what is wrong, in words; '' where nothing is
    :ivar milliseconds: until it said who it is; null where it did not
    :ivar minor: of the interface, the newest that it serves; null where it is not known
    :ivar hosts: that it and all below it have; null where it does not say so
    :ivar room: of them, those with room for one vCPU
    :ivar complete: whether all zones below it have answered it
    :ivar lease_seconds_max: the longest lease that it grants; 0: not known
    :ivar claims: live ones there of requests of here
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
    """This zone, and the zones above and directly below it.

    :ivar site: what operators call this site, empty where they have not named it
    :ivar hosts: of this zone itself
    :ivar claims: live ones on them
    """

    uuid: str
    site: str
    minor: int
    hosts: int
    hosts_up: int
    claims: int
    parents: list[TreeParent]
    children: list[TreeChild]


def show_zone_tree(world: HandlerContext, caller: Caller) -> ZoneTree:
    """Show this zone, and the zones above and directly below it.

    Each zone below is called now: who it is, and how many hosts have room.
    """
    zones = world.zones
    zones.directory.refresh()
    live, status = world.stores.zone_figures.live_claims_over_zones(), world.insights.status()
    # A zone that is silent costs seconds: it is not to have all threads wait for it.
    with (
        world.gates.trials.passing(caller),
        concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads,
    ):
        conditions = zones.conditions.find_out()
        rooms = list(threads.map(lambda condition: _room(world, condition), conditions))
    return ZoneTree(
        uuid=zones.directory.own_uuid(),
        site=world.settings.site_name,
        minor=microversion.HISTORY[-1].minor,
        hosts=status.hosts_total,
        hosts_up=status.hosts.get('up', 0),
        claims=status.claims,
        parents=[_above(parent, live.parents) for parent in zones.directory.parents()],
        children=[
            _below(condition, room, live.children)
            for condition, room in zip(conditions, rooms, strict=True)
        ],
    )


def _room(world: HandlerContext, one: ZoneCondition) -> ZoneCapacity | None:
    """Return the capacity of a zone that answers; None: it does not report one."""
    if one.state not in (ZoneState.RESPONDING, ZoneState.SCORE_MISMATCH):
        return None
    spec, guest = RequestSpec(resources=SHAPE), str(uuid.uuid4())
    request = SelectDestinations(request_id=str(uuid.uuid4()), spec=spec, consumers=[guest])
    own_uuid = world.zones.directory.own_uuid()
    body = ZoneCapacityOf(request=for_below(request, own_uuid, ROOM_SECONDS))
    try:
        return world.zones.calls.capacity(one.zone, body, ROOM_SECONDS)
    except exceptions.GanttError:
        return None


def _above(parent: ParentRecord, claims: dict[str, int]) -> TreeParent:
    return TreeParent(
        name=parent.name,
        enabled=parent.enabled,
        project_id=parent.project_id,
        lease_seconds_max=parent.lease_seconds_max,
        claims=claims.get(parent.name, 0),
    )


def _below(one: ZoneCondition, room: ZoneCapacity | None, claims: dict[str, int]) -> TreeChild:
    info = one.info
    return TreeChild(
        name=one.zone.name,
        uuid=one.zone.uuid,
        state=one.state.value,
        problem=one.problem,
        milliseconds=None if info is None else round(one.seconds * 1000, 1),
        minor=None if info is None else info.minor,
        enabled=one.zone.enabled,
        last_resort=one.zone.last_resort,
        hosts=None if room is None else room.hosts,
        room=None if room is None else room.eligible,
        complete=room is not None and room.complete,
        lease_seconds_max=0 if info is None else info.lease_seconds_max,
        claims=claims.get(one.zone.uuid, 0),
    )
