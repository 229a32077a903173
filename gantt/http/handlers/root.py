# SPDX-License-Identifier: Apache-2.0
"""Handlers of version discovery, status, health and Prometheus metrics."""

from typing import Any

import msgspec

from gantt import exceptions
from gantt.http import microversion
from gantt.http.context import Caller, HandlerContext
from gantt.http.dispatch import Raw
from gantt.http.links import Link
from gantt.insights.views import Status

#: Checks of dependencies that do not keep this process from serving, whatever they find.
AROUND = ('zones',)
#: A caller that meets it reads the result of each check; others whether all is well.
DETAILS = 'gantt:health:details'
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


def discover(world: HandlerContext, caller: Caller) -> VersionsResponse:
    """Say which versions are served."""
    return VersionsResponse(versions=[_v1(world, caller)])


def discover_v1(world: HandlerContext, caller: Caller) -> ServedVersion:
    """Say which microversions of v1 are served."""
    return _v1(world, caller)


def _v1(world: HandlerContext, caller: Caller) -> ServedVersion:
    return ServedVersion(
        id='v1.0',
        status='CURRENT',
        min_version=str(microversion.LOWEST),
        version=str(microversion.HIGHEST),
        links=[
            Link('self', f'{caller.base}/v1'),
            Link('describedby', f'{caller.base}/v1/openapi.json'),
        ],
        site=world.settings.site_name,
    )


def status(world: HandlerContext, caller: Caller) -> Status:
    """Show the service at a glance: hosts, usage, and what was refused lately."""
    return msgspec.structs.replace(world.insights.status(), site=world.settings.site_name)


def health(world: HandlerContext, caller: Caller) -> HealthResponse:
    """Check the database, the broker and the age of the host table.

    The status is 503 where one of them is not well.  What each found is told to operators.  Zones
    below that do not answer are among it, and no reason for 503.
    """
    report = examine(world)
    if not world.policy.allows(DETAILS, caller):
        report = HealthResponse(healthy=report.healthy, checks=[])
    if report.healthy:
        return report
    return Raw(msgspec.json.encode(report), 'application/json', 503)  # type: ignore[return-value]


def examine(world: HandlerContext) -> HealthResponse:
    """Run every check."""
    checks = []
    for name, check in world.checks.items():
        try:
            checks.append(Check(name, True, check(), ''))
        except exceptions.GanttError as e:
            checks.append(Check(name, False, e.message, e.code))
    own_checks = (check.ok for check in checks if check.name not in AROUND)
    return HealthResponse(healthy=all(own_checks), checks=checks)


def metrics(world: HandlerContext, caller: Caller) -> Any:
    """Show the metrics in Prometheus' text form."""
    world.insights.export(world.metrics.gauge)
    return Raw(world.metrics.render(), METRICS_TYPE)
