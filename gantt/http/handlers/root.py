# SPDX-License-Identifier: Apache-2.0
"""What is served here, how it is, and its numbers."""

from typing import Any

import msgspec

from gantt import exceptions
from gantt.http import microversion
from gantt.http.dispatch import Raw
from gantt.http.world import Caller, World
from gantt.scheduler.views import Status

METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8'


class Link(msgspec.Struct, frozen=True):
    """Where something is."""

    rel: str
    href: str


class ServedVersion(msgspec.Struct, frozen=True):
    """A major version, with the microversions it knows."""

    id: str
    status: str
    min_version: str
    version: str
    links: list[Link]


class Versions(msgspec.Struct, frozen=True):
    """The version discovery document."""

    versions: list[ServedVersion]


class Check(msgspec.Struct, frozen=True):
    """One dependency: ``ok`` with a line about it, or the error's code and sentence."""

    name: str
    ok: bool
    detail: str
    code: str


class Health(msgspec.Struct, frozen=True):
    """The health of this process and of what it depends on."""

    healthy: bool
    checks: list[Check]


def discover(world: World, caller: Caller) -> Versions:
    """Say which versions are served."""
    return Versions(versions=[_v1()])


def discover_v1(world: World, caller: Caller) -> ServedVersion:
    """Say which microversions of v1 are served."""
    return _v1()


def _v1() -> ServedVersion:
    return ServedVersion(
        id='v1.0',
        status='CURRENT',
        min_version=str(microversion.LOWEST),
        version=str(microversion.HIGHEST),
        links=[Link('self', '/v1'), Link('describedby', '/v1/openapi.json')],
    )


def status(world: World, caller: Caller) -> Status:
    """Show the service at a glance: hosts, usage, and what was refused lately."""
    return world.insights.status()


def health(world: World, caller: Caller) -> Health:
    """Check the database, the broker and the age of the host table.

    The status is 503 where one of them is not well.
    """
    found = examine(world)
    if found.healthy:
        return found
    return Raw(msgspec.json.encode(found), 'application/json', 503)  # type: ignore[return-value]


def examine(world: World) -> Health:
    """Run every check."""
    checks = []
    for name, check in world.checks.items():
        try:
            checks.append(Check(name, True, check(), ''))
        except exceptions.GanttError as e:
            checks.append(Check(name, False, e.message, e.code))
    return Health(healthy=all(check.ok for check in checks), checks=checks)


def metrics(world: World, caller: Caller) -> Any:
    """Show the metrics in Prometheus' text form."""
    world.insights.export(world.metrics)
    return Raw(world.metrics.render(), METRICS_TYPE)
