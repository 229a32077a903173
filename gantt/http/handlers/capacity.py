# SPDX-License-Identifier: Apache-2.0
"""Handlers of trials that claim nothing, capacity and what-if, and of the resource classes."""

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
from gantt.insights.views import Capacity, Change
from gantt.insights.what_if import WhatIfAnswer


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


def capacity(context: HandlerContext, caller: Caller, body: CapacityOf) -> Capacity:
    """Count how many more of a shape fit now, where, and what runs out first."""
    with context.gates.trials.admit(caller):
        local = context.insights.capacity(body.spec)
    return context.answers.capacity(body.spec, local)


class RollUpQuery(Message, frozen=True, kw_only=True):
    """The query of the roll-up: ``VCPU:2,MEMORY_MB:4096;VGPU:1`` are two shapes, 16 at most."""

    shapes: Text = ''


def show_roll_up(context: HandlerContext, caller: Caller, query: RollUpQuery) -> RollUp:
    """Show the cloud as one pool: sums of each class, the largest piece, what fits by shape.

    Over hosts and providers that are none; as large for ten hosts as for ten thousand.
    """
    known_classes = resources.STANDARD_CLASSES | context.stores.vocabulary.declared_classes()
    shapes = roll_up.parse_shapes(query.shapes, known_classes)
    with context.gates.trials.admit(caller):
        return context.insights.roll_up(shapes)


class WhatIfBody(Message, frozen=True, kw_only=True):
    """A request, and what would be otherwise about the hosts."""

    request: SelectDestinations
    hosts: HostEdits = HostEdits()


def what_if(context: HandlerContext, caller: Caller, body: WhatIfBody) -> WhatIfAnswer:
    """Place a request on the hosts as they are and as edited; nothing is claimed or kept."""
    with context.gates.trials.admit(caller):
        return context.insights.what_if(body.request, body.hosts)


def list_classes(context: HandlerContext, caller: Caller) -> ResourceClasses:
    """List the standard and the declared resource classes."""
    declared = context.stores.vocabulary.declared_classes() - resources.STANDARD_CLASSES
    return ResourceClasses(
        resource_classes=[
            *(_class_name(name) for name in sorted(resources.STANDARD_CLASSES)),
            *(_class_name(name) for name in sorted(declared)),
        ]
    )


def show_class(context: HandlerContext, caller: Caller, name: str) -> ResourceClass:
    """Show one resource class, standard or declared."""
    if (
        name not in resources.STANDARD_CLASSES
        and name not in context.stores.vocabulary.declared_classes()
    ):
        raise exceptions.NotFound(kind='resource class', name=name)
    return _class_name(name)


def set_class(
    context: HandlerContext, caller: Caller, name: str, query: DryRun
) -> Created[Change[ResourceClass]] | Change[ResourceClass]:
    """Declare a custom resource class; declaring it again changes nothing."""
    if name not in resources.STANDARD_CLASSES and not resources.CUSTOM_CLASS_NAME.match(name):
        raise exceptions.invalid(
            'name',
            f'{name!r} is no name of a custom resource class; expected CUSTOM_ followed '
            'by capital letters, digits and underscores, 255 characters at most',
        )
    is_new = False
    if name in resources.STANDARD_CLASSES:
        summary = f'resource class {name} is a standard one'
    elif query.dry_run:
        summary = f'resource class {name} would be declared'
    else:
        is_new = name not in context.stores.vocabulary.declared_classes()
        context.stores.vocabulary.declare_class(name)
        context.insights.reload_soon()
        summary = f'resource class {name} is declared'
    done = Change(dry_run=query.dry_run, message=summary, now=_class_name(name))
    return Created(done, path_of('resource-classes', name)) if is_new else done


def _class_name(name: str) -> ResourceClass:
    return ResourceClass(
        name=name,
        standard=name in resources.STANDARD_CLASSES,
        unit=resources.CLASS_UNITS.get(name, ''),
    )
