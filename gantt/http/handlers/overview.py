# SPDX-License-Identifier: Apache-2.0
"""All hosts, and the last while, as few numbers as a page needs to draw them."""

from typing import Annotated

import msgspec

from gantt.core.messages.base import Message, Name
from gantt.http.world import Caller, World
from gantt.insights.activity import Activity, RefusedFunnel
from gantt.insights.host_views import HostMap

Window = Annotated[int, msgspec.Meta(ge=60, le=604_800)]


class HostMapQuery(Message, frozen=True, kw_only=True):
    """Of which resource class."""

    resource_class: Name = 'VCPU'


class WindowQuery(Message, frozen=True, kw_only=True):
    """How far back, in seconds."""

    window: Window = 3600


def show_host_map(world: World, caller: Caller, query: HostMapQuery) -> HostMap:
    """Show every host in a few numbers: one array for each, in the order of names."""
    return world.insights.host_map(query.resource_class)


def show_activity(world: World, caller: Caller, query: WindowQuery) -> Activity:
    """Show decisions over time, how long hosts took to confirm, and claims by state.

    It is made of what the database keeps, and at most a few seconds old.
    """
    return world.insights.activity(query.window)


def show_refused(world: World, caller: Caller, query: WindowQuery) -> RefusedFunnel:
    """Sum up what removed the hosts of the latest refused requests."""
    return world.insights.refused(query.window)
