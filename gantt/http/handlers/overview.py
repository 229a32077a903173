# SPDX-License-Identifier: Apache-2.0
"""Handlers of the site overview: processes, hosts, recent activity, and events."""

from typing import Annotated

import msgspec

from gantt.core.messages.base import Message, Name
from gantt.http.context import Caller, HandlerContext
from gantt.http.queries import EventsQuery
from gantt.insights.activity import Activity, RefusedFunnel
from gantt.insights.host_views import HostMap
from gantt.insights.views import EventEntry, EventPage, ServiceView

Window = Annotated[int, msgspec.Meta(ge=60, le=604_800)]


class HostMapQuery(Message, frozen=True, kw_only=True):
    """The query of the overview: of which resource class."""

    resource_class: Name = 'VCPU'


class WindowQuery(Message, frozen=True, kw_only=True):
    """Length of the window before now, in seconds."""

    window: Window = 3600


def show_host_map(world: HandlerContext, caller: Caller, query: HostMapQuery) -> HostMap:
    """Show every host in a few numbers: one array for each, in the order of names."""
    return world.insights.host_map(query.resource_class)


def show_activity(world: HandlerContext, caller: Caller, query: WindowQuery) -> Activity:
    """Show decisions over time, how long hosts took to confirm, and claims by state.

    It is made of what the database keeps, and at most a few seconds old.
    """
    return world.insights.activity(query.window)


def show_refused(world: HandlerContext, caller: Caller, query: WindowQuery) -> RefusedFunnel:
    """Sum up what removed the hosts of the latest refused requests."""
    return world.insights.refused(query.window)


class ServicesResponse(msgspec.Struct, frozen=True, kw_only=True):
    """All processes that are remembered.

    :ivar site: what operators call this site, empty where they have not named it
    """

    site: str
    services: list[ServiceView]


def list_services(world: HandlerContext, caller: Caller) -> ServicesResponse:
    """List the processes of the site: schedulers, APIs, and what reports for hosts of others.

    Each notes itself in the database about twice a minute, and is remembered for a day after
    the last time.  One that was stopped in order is forgotten at once.
    """
    return ServicesResponse(site=world.settings.site_name, services=world.insights.services())


def list_events(world: HandlerContext, caller: Caller, query: EventsQuery) -> EventPage:
    """List what happened to hosts and their claims after a cursor, oldest first.

    Without ``after`` there are no events, only a cursor.  With ``wait`` and nothing to tell, the
    answer comes when something happened, or after so many seconds.  A quarter of the threads may
    be here; one more is refused with 503.  An event may come twice and none is left out: what is
    not remembered any more is 410, and then lists are to be read anew.  A change that is overtaken
    by another one within a moment may be only the other one.
    """

    def wanted(one: EventEntry) -> bool:
        return query.host in (None, one.host) and query.kind in (None, one.kind)

    with world.gates.waits.passing(caller):
        return world.insights.events.wait(query.after, query.limit, query.wait, wanted)
