# SPDX-License-Identifier: Apache-2.0
"""Handlers of group plans: placed as a whole, held, shown, changed, released.

A write goes to the planner of groups over RPC, so that there is one path to a claim; a read is
answered from this process's cache.
"""

import contextlib
from collections.abc import Iterator
from typing import Annotated

import msgspec

from gantt import exceptions
from gantt.core.claims.reservations import GroupPlanRecord
from gantt.core.groups import group_answer
from gantt.core.groups.group_answer import GroupAnswer
from gantt.core.groups.plan_view import GroupPlanView
from gantt.core.messages.base import Message
from gantt.core.messages.group_description import GroupDescription
from gantt.core.messages.place_group import LEASE_MAX, ChangeGroup, PlaceGroup
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.http import policy_access, request_access, requested_fields
from gantt.http.context import Caller, HandlerContext
from gantt.http.dispatch import Created
from gantt.http.handlers.requests import BUDGET_MS_MAX
from gantt.http.links import Paged, path_of
from gantt.http.queries import CancelQuery, DryRun, PageOfUuids, page_of
from gantt.insights.explain import redacting
from gantt.insights.views import Change, age, when
from gantt.scheduler.groups import shown_plans

#: A caller that meets it may hold places up to the longest lease.
LONG = 'gantt:group_plans:long'
#: Plans of a page whose members are counted: each may have a thousand.
STATES_MAX = 50
#: Plans of a page: each is read whole, and may be as large as a message.
PLANS_MAX = 100
_NOBODY = '00000000-0000-0000-0000-000000000000'


class GroupPlanSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A plan in a list.

    :ivar group: uuid of it
    :ivar request_id: of its last change
    :ivar members: how many are described, at most
    :ivar status: of what was planned last: optimal, feasible; empty where nobody was placed then
    :ivar lease_seconds: for which places are held still that no create has
    :ivar states: state -> how many members are so; null: it was not wanted
    :ivar problem: why the plan cannot be read: then its members are not known, and it can be
        extended and given back
    """

    group: str
    request_id: str
    project_id: str | None
    revision: int
    members: int
    status: str
    lease_seconds: float
    updated_at: str
    age_seconds: float
    states: dict[str, int] | None = None
    problem: str = ''


class GroupPlansResponse(Paged, frozen=True, kw_only=True):
    """A page of plans, by the uuid of their group."""

    group_plans: list[GroupPlanSummary]


class PlanLease(Message, frozen=True, kw_only=True):
    """For how long places are to be held from now on, in seconds."""

    seconds: Annotated[int, msgspec.Meta(ge=5, le=LEASE_MAX)]


class GroupPlansQuery(PageOfUuids, frozen=True, kw_only=True):
    """``states`` counts members by state; a page has 50 plans then at most, else 100."""

    states: bool = False


class GroupPlanQuery(Message, frozen=True, kw_only=True):
    """``check`` looks whether the members that stand meet the policies of their group now."""

    check: bool = False


def create_group_plan(
    world: HandlerContext, caller: Caller, body: PlaceGroup
) -> Created[GroupAnswer] | GroupAnswer:
    """Plan a group as a whole and hold a place for each of its members.

    Repeating it with the same request id has the effect of one.  With ``dry_run`` nothing is
    claimed, and what cannot be placed is an answer as well.
    """
    project = body.project_id if caller.everywhere else caller.project
    _check_claim(world, caller, body.dry_run)
    request_access.check_rate(world, caller, project)
    _check_description(world, caller, body.group)
    if not caller.everywhere:
        for field, value, expected in (
            ('project_id', body.project_id, caller.project),
            ('user_id', body.user_id, caller.user),
        ):
            if value is not None and value != expected:
                raise exceptions.invalid(
                    f'body.{field}', f'expected {expected}, whom the token speaks for'
                )
        body = msgspec.structs.replace(
            body, project_id=caller.project, user_id=caller.user, only_project=caller.only
        )
    lease, budget = _lease(world, caller, body.lease_seconds), min(body.budget_ms, BUDGET_MS_MAX)
    body = msgspec.structs.replace(body, lease_seconds=lease, budget_ms=budget)
    with world.gates.planning(caller, project), _redacted(world, caller):
        answer = world.plans.place_group(body)
    answer = _for_caller(world, caller, answer)
    if body.dry_run:
        return answer
    world.insights.reload_soon()
    return Created(answer, path_of('group-plans', answer.group))


def list_group_plans(
    world: HandlerContext, caller: Caller, query: GroupPlansQuery
) -> GroupPlansResponse:
    """List the plans of groups of the project, or of all."""
    limit = min(query.limit, STATES_MAX if query.states else PLANS_MAX)
    records = world.stores.plans.group_plans(limit + 1, query.marker, caller.only)
    table, stale_after = world.insights.table(), world.insights.settings.stale_after_seconds
    states: dict[str, dict[str, int]] = {}
    if query.states:
        states = shown_plans.states_of(world.stores.plans, records[:limit], table, stale_after)
    listed = [_summary(record, table.now, states.get(record.group_uuid)) for record in records]
    page, marker = page_of(listed, limit, 'group')
    return GroupPlansResponse(group_plans=page, next_marker=marker)


def show_group_plan(
    world: HandlerContext, caller: Caller, uuid: str, query: GroupPlanQuery
) -> GroupPlanView:
    """Show a plan: what was decided, and what has become of each member."""
    return _view(world, caller, uuid, check=query.check)


def change_group_plan(
    world: HandlerContext, caller: Caller, uuid: str, body: ChangeGroup
) -> GroupAnswer:
    """Have a group be as it is described now: members that are placed stay where they are.

    It grows, shrinks, gains and loses members, has other policies.  ``heal`` has who is on a host
    that is down placed anew.  With ``dry_run`` nothing changes; what those who stand would violate
    of changed policies is in the answer either way.
    """
    record = _record(world, caller, uuid)
    if body.group.uuid != uuid:
        raise exceptions.invalid('body.group.uuid', f'expected {uuid}, as in the path')
    _check_claim(world, caller, body.dry_run)
    request_access.check_rate(world, caller, record.project_id)
    _check_description(world, caller, body.group)
    body = msgspec.structs.replace(
        body,
        only_project=caller.only,
        lease_seconds=_lease(world, caller, body.lease_seconds),
        budget_ms=min(body.budget_ms, BUDGET_MS_MAX),
    )
    with world.gates.planning(caller, record.project_id), _redacted(world, caller):
        answer = world.plans.change_group(body)
    world.insights.reload_soon()
    return _for_caller(world, caller, answer)


def extend_group_plan(
    world: HandlerContext, caller: Caller, uuid: str, query: DryRun, body: PlanLease
) -> Change[GroupPlanView]:
    """Hold the places that no create has for so long from now on, never shorter.

    No place is held for longer than ``plan_lease_seconds_max`` after it was made, however often
    it is asked for; the answer says how long it is.
    """
    now = _view(world, caller, uuid)
    _check_claim(world, caller, query.dry_run)
    seconds = _lease(world, caller, body.seconds) or body.seconds
    if query.dry_run:
        summary = f'group {uuid}: its places would be held for {seconds} s from now on'
        return Change(dry_run=True, message=summary, now=now)
    with world.gates.planning(caller), _redacted(world, caller):
        world.plans.extend_group_plan(uuid, seconds, only_project=caller.only)
    view = _view(world, caller, uuid)
    summary = f'group {uuid}: its places are held for {view.lease_seconds:.0f} s from now on'
    return Change(dry_run=False, message=summary, now=view)


def release_group_plan(
    world: HandlerContext, caller: Caller, uuid: str, query: CancelQuery
) -> Change[GroupPlanView]:
    """Give the places back that no create has; who was created is not touched."""
    now = _view(world, caller, uuid)
    planned = sum(member.state == 'planned' for member in now.members)
    if query.dry_run:
        summary = f'group {uuid}: {planned} places would be given back'
        return Change(dry_run=True, message=summary, now=now)
    with world.gates.planning(caller), _redacted(world, caller):
        world.plans.release_group_plan(
            uuid, query.reason, only_project=caller.only, planned_by=now.request_id
        )
    world.insights.reload_soon()
    return Change(dry_run=False, message=f'group {uuid}: its plan is released', now=None)


# -- access to requests -----------------------------------------------------------------
def _check_claim(world: HandlerContext, caller: Caller, dry_run: bool) -> None:
    """Refuse a caller that may not claim: held places are claims.  :raises Forbidden:"""
    if not dry_run:
        world.policy.check(requested_fields.CLAIM, caller, 'body.dry_run', 'true')


def _lease(world: HandlerContext, caller: Caller, seconds: int | None) -> int | None:
    """Return the requested lease.

    :raises Forbidden: it is longer than the caller may have
    """
    usual = world.insights.settings.plan_lease_seconds
    if seconds is not None and seconds > usual:
        world.policy.check(LONG, caller, 'body.lease_seconds', f'at most {usual:g}')
    return seconds


def _check_description(world: HandlerContext, caller: Caller, group: GroupDescription) -> None:
    """Check a description of a group against the policy.

    :raises Forbidden: a field is set that the caller may not set; names the field
    :raises NotFound: members are to be near consumers that are not of its project
    """
    policy_access.check_levels(world, caller, group.full_policies, 'body.group')
    for number, policy in enumerate(group.full_policies):
        for name in ('host', 'domain', 'pool'):
            if policy.target is not None and getattr(policy.target, name) is not None:
                field = f'body.group.policies[{number}].target.{name}'
                world.policy.check(requested_fields.TRUSTED, caller, field, 'nothing')
    seen: set[bytes] = set()
    near_to: dict[str, str] = {}
    for path, spec in group.specs_by_path:
        key = msgspec.msgpack.encode(spec)
        if key not in seen:
            seen.add(key)
            where = f'body.group.{path}'
            _check_spec(world, caller, spec, where)
            for consumer, field in request_access.near_to(spec).items():
                near_to.setdefault(consumer, field.replace('body.spec', where, 1))
    if not caller.everywhere:
        request_access.check_near(world, caller, near_to)


def _check_spec(world: HandlerContext, caller: Caller, spec: RequestSpec, where: str) -> None:
    """Check the spec of a member like that of a dry-run request for one consumer."""
    alone = SelectDestinations(request_id=_NOBODY, spec=spec, consumers=[_NOBODY], dry_run=True)
    try:
        request_access.check_words(world, caller, alone)
    except exceptions.GanttError as e:
        details = dict(e.kwargs)
        if 'field' in details:
            details['field'] = str(details['field']).replace('body.spec', where, 1)
        raise type(e)(e.message.replace('body.spec', where, 1), **details) from None


# -- views -------------------------------------------------------------------------------
def _record(world: HandlerContext, caller: Caller, uuid: str) -> GroupPlanRecord:
    record = world.stores.plans.load_group_plan(uuid)
    if record is None or not caller.sees(record.project_id):
        raise exceptions.NotFound(kind='plan of group', name=uuid)
    return record


def _view(
    world: HandlerContext, caller: Caller, uuid: str, *, check: bool = False
) -> GroupPlanView:
    record = _record(world, caller, uuid)
    world.insights.reload_soon()
    table = world.insights.table()
    world.insights.pipeline.name_parts(table)
    stale_after = world.insights.settings.stale_after_seconds
    view = shown_plans.view_of(world.stores.plans, record, table, stale_after, check=check)
    if world.policy.allows(request_access.HOSTS, caller):
        return view
    members = [msgspec.structs.replace(member, host='', levels={}) for member in view.members]
    decided = None if view.decided is None else redacting.group_answer(view.decided)
    return msgspec.structs.replace(view, members=members, decided=decided)


def _summary(
    record: GroupPlanRecord, now: float, states: dict[str, int] | None
) -> GroupPlanSummary:
    members_max, plan, problem = 0, None, ''
    try:
        stored = group_answer.read_plan(record)
    except exceptions.PlanUnreadable as e:
        problem = e.message
    else:
        members_max = sum(members.most for members in stored.description.members)
        plan = None if stored.decided is None else stored.decided.plan
    return GroupPlanSummary(
        group=record.group_uuid,
        request_id=record.request_id,
        project_id=record.project_id,
        revision=record.revision,
        members=members_max,
        status='' if plan is None else plan.status,
        lease_seconds=max(0.0, record.lease_until - now),
        updated_at=when(record.updated_at),
        age_seconds=age(now, record.updated_at),
        states=states,
        problem=problem,
    )


def _for_caller(world: HandlerContext, caller: Caller, answer: GroupAnswer) -> GroupAnswer:
    """Return the answer, redacted as far as the caller may not read it."""
    if world.policy.allows(request_access.HOSTS, caller):
        return answer
    return redacting.group_answer(answer)


@contextlib.contextmanager
def _redacted(world: HandlerContext, caller: Caller) -> Iterator[None]:
    """Redact the planner's refusals for the caller: a lost race names a host."""
    try:
        yield
    except exceptions.GanttError as e:
        if world.policy.allows(request_access.HOSTS, caller):
            raise
        if isinstance(e, exceptions.NoValidHost):
            raise
        raise redacting.placeless(redacting.error(e)) from None
