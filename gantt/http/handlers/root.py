# SPDX-License-Identifier: Apache-2.0
"""Handlers of version discovery and of the site: status, health, metrics, processes and events."""

from typing import Annotated, Any

import msgspec

from gantt import exceptions
from gantt.core.messages.base import Message, Name
from gantt.http import microversion
from gantt.http.context import Caller, HandlerContext
from gantt.http.dispatch import RawAnswer
from gantt.http.links import Link
from gantt.http.queries import EventsQuery
from gantt.insights.activity import Activity, RefusedFunnel
from gantt.insights.host_views import HostMap
from gantt.insights.views import EventEntry, EventPage, ServiceView, Status

#: Checks of dependencies that do not keep this process from serving, whatever they find.
CHECKS_OF_OTHERS = ('zones',)
#: A caller that meets it reads the result of each check; others whether all is well.
DETAILS_POLICY = 'gantt:health:details'
METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8'


class ServedVersion(msgspec.Struct, frozen=True):
    """A major version, with the microversions it knows.

    :ivar site: what operators call this site, empty where they have not named it
    """

    id: str
    status: str
    min_version: str
    version: str
    links: list[Link]
    site: str = ''


class VersionsResponse(msgspec.Struct, frozen=True):
    """The version discovery document."""

    versions: list[ServedVersion]


class Check(msgspec.Struct, frozen=True):
    """One dependency: ``ok`` with a line about it, or the error's code and sentence."""

    name: str
    ok: bool
    detail: str
    code: str


class HealthResponse(msgspec.Struct, frozen=True):
    """The health of this process and of what it depends on.

    :ivar checks: none for those who may not read them: they name servers and their words
    """

    healthy: bool
    checks: list[Check]


def discover(context: HandlerContext, caller: Caller) -> VersionsResponse:
    """Say which versions are served."""
    return VersionsResponse(versions=[_served_version(context, caller)])


def discover_v1(context: HandlerContext, caller: Caller) -> ServedVersion:
    """Say which microversions of v1 are served."""
    return _served_version(context, caller)


def _served_version(context: HandlerContext, caller: Caller) -> ServedVersion:
    return ServedVersion(
        id='v1.0',
        status='CURRENT',
        min_version=str(microversion.LOWEST),
        version=str(microversion.HIGHEST),
        links=[
            Link('self', f'{caller.base}/v1'),
            Link('describedby', f'{caller.base}/v1/openapi.json'),
        ],
        site=context.settings.site_name,
    )


def status(context: HandlerContext, caller: Caller) -> Status:
    """Show the service at a glance: hosts, usage, and what was refused lately."""
    return msgspec.structs.replace(context.insights.status(), site=context.settings.site_name)


def health(context: HandlerContext, caller: Caller) -> HealthResponse:
    """Check the database, the broker and the age of the host table.

    The status is 503 where one of them is not well.  What each found is told to operators.  Zones
    below that do not answer are among it, and no reason for 503.
    """
    report = run_checks(context)
    if not context.policy.allows(DETAILS_POLICY, caller):
        report = HealthResponse(healthy=report.healthy, checks=[])
    if report.healthy:
        return report
    return RawAnswer(msgspec.json.encode(report), 'application/json', 503)  # type: ignore[return-value]


def run_checks(context: HandlerContext) -> HealthResponse:
    """Run every check."""
    checks = []
    for name, check in context.checks.items():
        try:
            checks.append(Check(name, True, check(), ''))
        except exceptions.GanttError as e:
            checks.append(Check(name, False, e.message, e.code))
    own_checks = (check.ok for check in checks if check.name not in CHECKS_OF_OTHERS)
    return HealthResponse(healthy=all(own_checks), checks=checks)


def metrics(context: HandlerContext, caller: Caller) -> Any:
    """Show the metrics in Prometheus' text form."""
    context.insights.export(context.metrics.gauge)
    return RawAnswer(context.metrics.render(), METRICS_TYPE)


WindowSeconds = Annotated[int, msgspec.Meta(ge=60, le=604_800)]


class HostMapQuery(Message, frozen=True, kw_only=True):
    """The query of the overview: of which resource class."""

    resource_class: Name = 'VCPU'


class WindowQuery(Message, frozen=True, kw_only=True):
    """Length of the window before now, in seconds."""

    window: WindowSeconds = 3600


def show_host_map(context: HandlerContext, caller: Caller, query: HostMapQuery) -> HostMap:
    """Show every host in a few numbers: one array for each, in the order of names."""
    return context.insights.host_map(query.resource_class)


def show_activity(context: HandlerContext, caller: Caller, query: WindowQuery) -> Activity:
    """Show decisions over time, how long hosts took to confirm, and claims by state.

    It is made of what the database keeps, and at most a few seconds old.
    """
    return context.insights.activity(query.window)


def show_refused(context: HandlerContext, caller: Caller, query: WindowQuery) -> RefusedFunnel:
    """Sum up what removed the hosts of the latest refused requests."""
    return context.insights.refused(query.window)


class ServicesResponse(msgspec.Struct, frozen=True, kw_only=True):
    """All processes that are remembered.

    :ivar site: what operators call this site, empty where they have not named it
    """

    site: str
    services: list[ServiceView]


def list_services(context: HandlerContext, caller: Caller) -> ServicesResponse:
    """List the processes of the site: schedulers, APIs, and what reports for hosts of others.

    Each notes itself in the database about twice a minute, and is remembered for a day after
    the last time.  One that was stopped in order is forgotten at once.
    """
    return ServicesResponse(site=context.settings.site_name, services=context.insights.services())


def list_events(context: HandlerContext, caller: Caller, query: EventsQuery) -> EventPage:
    """List what happened to hosts and their claims after a cursor, oldest first.

    Without ``after`` there are no events, only a cursor.  With ``wait`` and nothing to tell, the
    answer comes when something happened, or after so many seconds.  A quarter of the threads may
    be here; one more is refused with 503.  An event may come twice and none is left out: what is
    not remembered any more is 410, and then lists are to be read anew.  A change that is overtaken
    by another one within a moment may be only the other one.
    """

    def matches(event: EventEntry) -> bool:
        return query.host in (None, event.host) and query.kind in (None, event.kind)

    with context.gates.waits.admit(caller):
        return context.insights.events.wait(query.after, query.limit, query.wait, matches)
