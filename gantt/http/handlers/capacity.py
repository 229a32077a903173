# SPDX-License-Identifier: Apache-2.0
"""Handlers of trials that claim nothing, capacity and what-if, and of the resource classes."""

import uuid

import msgspec

from gantt import exceptions
from gantt.core.messages import resource_classes as resources
from gantt.core.messages.base import Message, Text
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.placement.what_if_edits import HostEdits
from gantt.http.context import Caller, HandlerContext
from gantt.http.dispatch import Created
from gantt.http.links import path_of
from gantt.http.queries import DryRun
from gantt.insights import roll_up
from gantt.insights.roll_up import RollUp
from gantt.insights.views import Capacity, Change, RoomBelow
from gantt.insights.what_if import WhatIfAnswer
from gantt.scheduler.zones.capacity import capacities_below


class CapacityOf(Message, frozen=True, kw_only=True):
    """The shape to count."""

    spec: RequestSpec


class ResourceClass(msgspec.Struct, frozen=True):
    """A resource class; ``unit`` is what an amount of 1 means."""

    name: str
    standard: bool
    unit: str


class ResourceClasses(msgspec.Struct, frozen=True):
    """All classes that can be asked for."""

    resource_classes: list[ResourceClass]


def capacity(world: HandlerContext, caller: Caller, body: CapacityOf) -> Capacity:
    """Count how many more of a shape fit now, where, and what runs out first."""
    directory, consumer = world.zones.directory, str(uuid.uuid4())
    directory.freshen()
    request = SelectDestinations(request_id=consumer, spec=body.spec, consumers=[consumer])
    with world.gates.trials.passing(caller):
        room = world.insights.capacity(body.spec)
        only = world.zones.affinity.of_members(request)
    if only is not None and directory.own_uuid() not in only:
        room = _bound_elsewhere(room)
    return msgspec.structs.replace(room, below=_below(world, request, only))


def _bound_elsewhere(found: Capacity) -> Capacity:
    """Return a capacity without room here: the group is bound to another zone."""
    return msgspec.structs.replace(
        found,
        count=0,
        eligible=0,
        by_zone=[],
        by_aggregate=[],
        by_host=[],
        runs_out={},
        uncounted=0,
        verdict='its server group is to be together, and is in a zone below',
    )


def _below(
    world: HandlerContext, request: SelectDestinations, only: frozenset[str] | None
) -> list[RoomBelow]:
    directory = world.zones.directory
    children, own_uuid = directory.children(), directory.own_uuid()
    return [
        RoomBelow(
            zone=below.zone.name,
            count=None if below.found is None else below.found.count,
            hosts=0 if below.found is None else below.found.hosts,
            complete=below.found is not None and below.found.complete,
            problem=below.problem,
        )
        for below in capacities_below(world.zones.calls, children, own_uuid, request, only)
    ]


class RollUpQuery(Message, frozen=True, kw_only=True):
    """The query of the roll-up: ``VCPU:2,MEMORY_MB:4096;VGPU:1`` are two shapes, 16 at most."""

    shapes: Text = ''


def show_roll_up(world: HandlerContext, caller: Caller, query: RollUpQuery) -> RollUp:
    """Show the cloud as one pool: sums of each class, the largest piece, what fits by shape.

    Over hosts and providers that are none; as large for ten hosts as for ten thousand.
    """
    known_classes = resources.STANDARD | world.stores.vocabulary.declared_classes()
    shapes = roll_up.parse_shapes(query.shapes, known_classes)
    with world.gates.trials.passing(caller):
        return world.insights.roll_up(shapes)


class WhatIfBody(Message, frozen=True, kw_only=True):
    """A request, and what would be otherwise about the hosts."""

    request: SelectDestinations
    hosts: HostEdits = HostEdits()


def what_if(world: HandlerContext, caller: Caller, body: WhatIfBody) -> WhatIfAnswer:
    """Place a request on the hosts as they are and as edited; nothing is claimed or kept."""
    with world.gates.trials.passing(caller):
        return world.insights.what_if(body.request, body.hosts)


def list_classes(world: HandlerContext, caller: Caller) -> ResourceClasses:
    """List the standard and the declared resource classes."""
    declared = world.stores.vocabulary.declared_classes() - resources.STANDARD
    return ResourceClasses(
        resource_classes=[
            *(_class(name) for name in sorted(resources.STANDARD)),
            *(_class(name) for name in sorted(declared)),
        ]
    )


def show_class(world: HandlerContext, caller: Caller, name: str) -> ResourceClass:
    """Show one resource class, standard or declared."""
    if name not in resources.STANDARD and name not in world.stores.vocabulary.declared_classes():
        raise exceptions.NotFound(kind='resource class', name=name)
    return _class(name)


def set_class(
    world: HandlerContext, caller: Caller, name: str, query: DryRun
) -> Created[Change[ResourceClass]] | Change[ResourceClass]:
    """Declare a custom resource class; declaring it again changes nothing."""
    if name not in resources.STANDARD and not resources.CUSTOM.match(name):
        raise exceptions.invalid(
            'name',
            f'{name!r} is no name of a custom resource class; expected CUSTOM_ followed '
            'by capital letters, digits and underscores, 255 characters at most',
        )
    is_new = False
    if name in resources.STANDARD:
        summary = f'resource class {name} is a standard one'
    elif query.dry_run:
        summary = f'resource class {name} would be declared'
    else:
        is_new = name not in world.stores.vocabulary.declared_classes()
        world.stores.vocabulary.declare_class(name)
        world.insights.reload_soon()
        summary = f'resource class {name} is declared'
    done = Change(dry_run=query.dry_run, message=summary, now=_class(name))
    return Created(done, path_of('resource-classes', name)) if is_new else done


def _class(name: str) -> ResourceClass:
    return ResourceClass(
        name=name, standard=name in resources.STANDARD, unit=resources.UNITS.get(name, '')
    )
