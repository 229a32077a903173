# SPDX-License-Identifier: Apache-2.0
"""A planner of groups in a small real world: no thread runs, a test decides when to plan."""

import dataclasses
from typing import Any

from gantt import exceptions, plugin_loader
from gantt.core.claims.claim import Claim
from gantt.core.messages import base
from gantt.groups.model.group_answer import GroupAnswer
from gantt.groups.model.place_group import ChangeGroup, PlaceGroup
from gantt.groups.service.planner import GroupPlanner
from gantt.groups.service.settings import PlannerSettings
from gantt.scheduler.settings import SchedulerSettings
from tests.world import World, new_uuid


class _BeforeCommit:
    """A store whose commits are preceded, or followed, by actions of others.

    :param before: called with the batch; ``after`` likewise, once it is committed
    """

    def __init__(self, requests: Any, before: Any, after: Any) -> None:
        self._requests, self._before, self._after = requests, before, after

    def commit(self, batch: Any) -> Any:
        if self._before is not None:
            self._before(batch)
        result = self._requests.commit(batch)
        if self._after is not None:
            self._after(batch)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._requests, name)


def before_commit(store: Any, before: Any, after: Any = None) -> Any:
    """Return stores in which something happens before a commit, and after it.

    :param before: called with the batch; ``after`` likewise, once it is committed
    """
    return dataclasses.replace(store, requests=_BeforeCommit(store.requests, before, after))


def a_planner(world: World, solver: Any = None, store: Any = None, **bounds: Any) -> GroupPlanner:
    """Return a planner in a world, with a table of its own.

    :param store: the world's, as it is seen here
    """
    bounds.setdefault('plan_seconds', 0.2)
    settings = SchedulerSettings(worker='planner-1', **world.settings)  # type: ignore[arg-type]
    planner = GroupPlanner(
        store or world.store,
        plugin_loader.load_pipeline(),
        world.recorder,
        settings,
        PlannerSettings(**bounds),
        world.clock,
        solver,
    )
    planner.cache.fetch()
    return planner


def a_member(name: str, count: Any = 1, vcpu: int = 1, **fields: Any) -> dict[str, Any]:
    """Return a member of a description."""
    spec = {'resources': {'VCPU': vcpu, 'MEMORY_MB': 1024}, **fields.pop('spec', {})}
    return {'name': name, 'count': count, 'spec': spec, **fields}


def a_description(*members: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a group of two kinds unless others are given, no two of which are on one host."""
    members = members or (a_member('web', 2), a_member('db'))
    return {'policies': ['anti-affinity'], 'members': list(members), **fields}


def a_plan_request(group: dict[str, Any] | None = None, **fields: Any) -> PlaceGroup:
    """Return a request to plan a group."""
    body = {'request_id': new_uuid(), 'project_id': 'p1', **fields}
    body['group'] = group or a_description()
    return base.decode(body, PlaceGroup, inside='request')


def a_change(group: dict[str, Any], **fields: Any) -> ChangeGroup:
    """Return a request to change a planned group."""
    body = {'request_id': new_uuid(), 'group': group, **fields}
    return base.decode(body, ChangeGroup, inside='request')


def place(planner: GroupPlanner, request: PlaceGroup | ChangeGroup) -> GroupAnswer:
    """Queue a group and plan it.  :raises GanttError: it is not placed"""
    future = planner.submit(request)
    for _ in range(100):
        if future.done() or not planner.step():
            break
    return future.result(0)


def refused(planner: GroupPlanner, request: PlaceGroup | ChangeGroup) -> exceptions.GanttError:
    """Return the error of a group that is not placed."""
    try:
        answer = place(planner, request)
    except exceptions.GanttError as e:
        return e
    raise AssertionError(f'it was placed: {answer}')


def hosts_of(answer: GroupAnswer) -> dict[str, str]:
    """Return the host of each member by name."""
    assert answer.plan is not None
    return {member.name: member.host for member in answer.plan.members}


def places(world: World, group: str) -> dict[str, Claim]:
    """Return the live claims of a group's members."""
    claims = world.store.plans.load_reservations([group])[group]
    return {claim.member_name or '': claim for claim in claims}
