# SPDX-License-Identifier: Apache-2.0
"""Planning without claims, on a copy of the host table or on one that is lent.

The planner, the pipeline and the tie-break seed are the schedulers' own, so that the plan is what
a real request would get on the same table.
"""

from collections.abc import Callable

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.request import SelectDestinations
from gantt.core.pause import Pause
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Outcome
from gantt.core.table.host_table import HostTable
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.placing.admission import PendingRequest
from gantt.scheduler.placing.plan import Plan
from gantt.scheduler.placing.planning import Planner
from gantt.scheduler.ports import Clock
from gantt.scheduler.settings import SchedulerSettings

#: Seconds that a trial may take a thread, for any budget of the request.
SECONDS_MAX = 10.0


def plan(
    table: HostTable,
    request: SelectDestinations,
    cache: HostCache,
    pipeline: Pipeline,
    settings: SchedulerSettings,
    zones_not_queried: Callable[[SelectDestinations], list[str]] | None = None,
) -> Plan:
    """Plan a dry run on a copy of ``table``.

    :param cache: of ``table``: its age, and the rules of groups
    :param zones_not_queried: returns names of child zones that may still have room
    :raises Expired: its budget, or the bound of a trial, ended before
    :raises Refused: see ``Planner.plan``
    """
    trial_planner = planner(_Aside(cache, table.copy()), settings)
    if zones_not_queried is not None:
        trial_planner.zones_not_queried = zones_not_queried
    return on_table(trial_planner, request, pipeline, cache.clock)


def planner(cache: HostCache, settings: SchedulerSettings) -> Planner:
    """Return a planner of all members of a dry run at once, on the table of ``cache``."""
    at_once = msgspec.structs.replace(settings, claims_per_commit=base.LIST_MAX)
    return Planner(cache.store, cache, at_once)


def on_table(
    planner: Planner, request: SelectDestinations, pipeline: Pipeline, clock: Clock
) -> Plan:
    """Plan a dry run on the table of ``planner``, which is unchanged afterwards.

    :raises Expired: its budget, or the bound of a trial, ended before
    :raises Refused: see ``Planner.plan``
    """
    call = PendingRequest(request, float('inf'))
    end = clock.monotonic() + min(SECONDS_MAX, request.budget_ms / 1000)

    def pause(_: bool) -> Pause:
        return Pause.OVER if clock.monotonic() >= end else Pause.GO_ON

    trial_plan = planner.plan(call, pipeline, pause)
    if trial_plan.decision.outcome is Outcome.EXPIRED:
        raise exceptions.Expired(trial_plan.decision.reason)
    return trial_plan


class _Aside(HostCache):
    """A cache for one dry run: a table of its own, the age of the other's."""

    def __init__(self, of: HostCache, table: HostTable) -> None:
        super().__init__(of.store, of.clock, working=table)
        self.rules = dict(of.rules)
        self._age = of.age_seconds

    @property
    def age_seconds(self) -> float:
        return self._age
