# SPDX-License-Identifier: Apache-2.0
"""Handlers of group plans: created, extended, shown, changed, released.

A write goes to the planner of groups over RPC, so that there is one path to a claim; a read is
answered from this process's cache.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Annotated, NoReturn, Protocol

import msgspec

from gantt import exceptions
from gantt.core.claims.reservations import GroupPlanRecord
from gantt.core.messages import base
from gantt.core.messages.base import Message
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.groups.model import group_answer
from gantt.groups.model.group_answer import GroupAnswer, GroupPlanView
from gantt.groups.model.group_description import GroupDescription, scaled, uuid_of_name
from gantt.groups.model.group_plan import PlannedMember
from gantt.groups.model.place_group import LEASE_MAX, ChangeGroup, PlaceGroup, ScaleGroup
from gantt.groups.service import shown_plans
from gantt.http import request_access, requested_fields
from gantt.http.context import Caller, HandlerContext, HttpExtension
from gantt.http.dispatch import Created
from gantt.http.handlers.requests import BUDGET_MS_MAX
from gantt.http.links import Paged, path_of
from gantt.http.queries import CancelQuery, DryRun, PageOfUuids, page_of
from gantt.http.routes import route
from gantt.insights.explain import redacting
from gantt.insights.views import Change, age_seconds, utc_text

#: A caller that meets it may hold places up to the longest lease.
LONG_PLAN_POLICY = 'gantt:group_plans:long'
#: Plans of a page whose members are counted: each may have a thousand.
STATES_MAX = 50
#: Plans of a page: each is read whole, and may be as large as a message.
PLANS_MAX = 100
_NO_PROJECT = '00000000-0000-0000-0000-000000000000'


class PlansClient(Protocol):
    """A client for plans of groups: over RPC, or in-process."""

    def place_group(self, request: PlaceGroup) -> GroupAnswer:
        """Plan a group and reserve resources for its members.

        :raises GanttError:
        """

    def change_group(self, request: ChangeGroup) -> GroupAnswer:
        """Change a group to its new description.

        :raises GanttError:
        """

    def extend_group_plan(
        self, group: str, seconds: int, *, only_project: str | None = None
    ) -> object:
        """Extend the leases of a group's reservations.

        :raises GanttError:
        """

    def release_group_plan(
        self,
        group: str,
        reason: str = '',
        *,
        only_project: str | None = None,
        planned_by: str | None = None,
    ) -> object:
        """Release the reservations of a group.

        :raises GanttError:
        """


#: Times that a group is scaled anew, where others changed it meanwhile.
_SCALE_ATTEMPTS = 5
#: Field of a changed description that a request for other numbers of members has by name.
_COUNT_FIELD = re.compile(r'request\.group\.members\[([0-9]+)\]\.count')


class NoPlans:
    """The client of a process without a planner of groups."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise exceptions.Unavailable('this process is not set up to call gantt-planner')

    place_group = change_group = extend_group_plan = release_group_plan = _refuse


class GroupHandlerContext(HandlerContext, frozen=True):
    """Dependencies of the handlers of group plans: their first argument."""

    plans: PlansClient


class GroupPlanSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A plan in a list.

    :ivar group: uuid of the group
    :ivar name: its name; '': it has none
    :ivar request_id: id of the request that changed the plan last
    :ivar members: largest number of members that is described
    :ivar status: status of the last planning: optimal or feasible; empty where no member was placed
        then
    :ivar lease_seconds: remaining lease of the reservations that no create has used
    :ivar states: state -> number of members; null: the states were not requested
    :ivar problem: why the plan cannot be read: its members are then not known, and it can only be
        extended and released
    """

    group: str
    name: str = ''
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
    """A page of group plans, ordered by the uuid of the group."""

    group_plans: list[GroupPlanSummary]


class PlanLease(Message, frozen=True, kw_only=True):
    """New lease of a plan's reservations, in seconds from now on."""

    seconds: Annotated[int, msgspec.Meta(ge=5, le=LEASE_MAX)]


class GroupPlansQuery(PageOfUuids, frozen=True, kw_only=True):
    """``states`` counts members by state; a page has 50 plans then at most, else 100."""

    states: bool = False


class GroupPlanQuery(Message, frozen=True, kw_only=True):
    """``check`` evaluates whether the placed members meet the policies of their group now."""

    check: bool = False


def create_group_plan(
    context: GroupHandlerContext, caller: Caller, body: PlaceGroup
) -> Created[GroupAnswer] | GroupAnswer:
    """Plan a group as a whole and reserve resources for each of its members.

    Repeating it with the same request id has the effect of one.  With ``dry_run`` nothing is
    claimed, and what cannot be placed is an answer as well.
    """
    project = body.project_id if caller.everywhere else caller.project
    _check_claim(context, caller, body.dry_run)
    request_access.check_rate(context, caller, project)
    _check_description(context, caller, body.group)
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
            body, project_id=caller.project, user_id=caller.user, only_project=caller.project_filter
        )
    lease, budget = (
        _lease_seconds(context, caller, body.lease_seconds),
        min(body.budget_ms, BUDGET_MS_MAX),
    )
    body = msgspec.structs.replace(body, lease_seconds=lease, budget_ms=budget)
    with context.gates.planning(caller, project), _redacted(context, caller):
        answer = context.plans.place_group(body)
    answer = _for_caller(context, caller, answer)
    if body.dry_run:
        return answer
    context.insights.reload_soon()
    return Created(answer, path_of('group-plans', answer.group))


def list_group_plans(
    context: GroupHandlerContext, caller: Caller, query: GroupPlansQuery
) -> GroupPlansResponse:
    """List the plans of groups of the project, or of all."""
    limit = min(query.limit, STATES_MAX if query.states else PLANS_MAX)
    records = context.stores.plans.group_plans(limit + 1, query.marker, caller.project_filter)
    table, stale_after = context.insights.table(), context.insights.settings.stale_after_seconds
    states: dict[str, dict[str, int]] = {}
    if query.states:
        states = shown_plans.states_of(context.stores.plans, records[:limit], table, stale_after)
    listed = [_summary(record, table.now, states.get(record.group_uuid)) for record in records]
    page, marker = page_of(listed, limit, 'group')
    return GroupPlansResponse(group_plans=page, next_marker=marker)


def show_group_plan(
    context: GroupHandlerContext, caller: Caller, uuid: str, query: GroupPlanQuery
) -> GroupPlanView:
    """Show a plan: what was decided, and what has become of each member."""
    return _plan_view(context, caller, uuid, check=query.check)


def change_group_plan(
    context: GroupHandlerContext, caller: Caller, uuid: str, body: ChangeGroup
) -> GroupAnswer:
    """Change a group to a new description: members that are placed stay where they are.

    It grows, shrinks, gains and loses members, has other policies.  ``heal`` places members again
    whose hosts are down.  With ``dry_run`` nothing changes; the answer names the changed policies
    that staying members would violate, either way.
    """
    record = _plan_record(context, caller, uuid)
    if body.group.uuid != record.group_uuid:
        raise exceptions.invalid('body.group.uuid', f'expected {record.group_uuid}, as in the path')
    return _change(context, caller, record, msgspec.structs.replace(body, asked=''))


def _change(
    context: GroupHandlerContext, caller: Caller, record: GroupPlanRecord, body: ChangeGroup
) -> GroupAnswer:
    """Change a planned group, where the caller may."""
    _check_claim(context, caller, body.dry_run)
    request_access.check_rate(context, caller, record.project_id)
    _check_description(context, caller, body.group)
    body = msgspec.structs.replace(
        body,
        only_project=caller.project_filter,
        lease_seconds=_lease_seconds(context, caller, body.lease_seconds),
        budget_ms=min(body.budget_ms, BUDGET_MS_MAX),
    )
    with context.gates.planning(caller, record.project_id), _redacted(context, caller):
        answer = context.plans.change_group(body)
    context.insights.reload_soon()
    return _for_caller(context, caller, answer)


def scale_group_plan(
    context: GroupHandlerContext, caller: Caller, uuid: str, body: ScaleGroup
) -> GroupAnswer:
    """Change the numbers of members of a group: for people, and for autoscalers.

    Members that are placed stay.  Where there are to be fewer, reservations that no create has used
    end, those first without which the policies are violated least; ``released`` names them, in a
    dry run before.  Repeating it with the same request id has the effect of one.
    """
    for attempt in range(1, _SCALE_ATTEMPTS + 1):
        record = _plan_record(context, caller, uuid)
        description = group_answer.read_plan(record).description
        if record.request_id != body.request_id or body.dry_run:
            description = scaled(description, body.members, 'body.members')
        change = ChangeGroup(
            request_id=body.request_id,
            group=description,
            revision=body.revision or record.revision,
            budget_ms=body.budget_ms,
            plan_ms=body.plan_ms,
            lease_seconds=body.lease_seconds,
            dry_run=body.dry_run,
            what_if=body.what_if,
            asked=body.fingerprint(record.group_uuid),
        )
        try:
            return _change(context, caller, record, change)
        except exceptions.InvalidMessage as e:
            member = _COUNT_FIELD.fullmatch(str(e.kwargs['field']))
            if member is None:
                raise
            name = description.members[int(member[1])].name
            raise exceptions.invalid(f'body.members.{name}', str(e.kwargs['problem'])) from None
        except exceptions.Refused as e:
            # Others have changed it since it was read, and the caller means it as it is then.
            is_stale = e.kwargs.get('field') == 'request.revision' and body.revision is None
            if not is_stale or attempt == _SCALE_ATTEMPTS:
                raise
    raise AssertionError('the last attempt returns or raises')


def extend_group_plan(
    context: GroupHandlerContext, caller: Caller, uuid: str, query: DryRun, body: PlanLease
) -> Change[GroupPlanView]:
    """Extend the leases of reservations that no create has used; none gets shorter.

    No reservation lasts longer than ``plan_lease_seconds_max`` after its creation, however often it
    is extended; the answer has the actual lease.
    """
    now = _plan_view(context, caller, uuid)
    uuid = now.group
    _check_claim(context, caller, query.dry_run)
    seconds = _lease_seconds(context, caller, body.seconds) or body.seconds
    if query.dry_run:
        summary = f'group {uuid}: its places would be held for {seconds} s from now on'
        return Change(dry_run=True, message=summary, now=now)
    with context.gates.planning(caller), _redacted(context, caller):
        context.plans.extend_group_plan(uuid, seconds, only_project=caller.project_filter)
    view = _plan_view(context, caller, uuid)
    summary = f'group {uuid}: its places are held for {view.lease_seconds:.0f} s from now on'
    return Change(dry_run=False, message=summary, now=view)


def release_group_plan(
    context: GroupHandlerContext, caller: Caller, uuid: str, query: CancelQuery
) -> Change[GroupPlanView]:
    """Release the reservations that no create has used; created guests are not touched."""
    now = _plan_view(context, caller, uuid)
    uuid = now.group
    planned = sum(member.state == 'planned' for member in now.members)
    if query.dry_run:
        summary = f'group {uuid}: {planned} places would be given back'
        return Change(dry_run=True, message=summary, now=now)
    with context.gates.planning(caller), _redacted(context, caller):
        context.plans.release_group_plan(
            uuid, query.reason, only_project=caller.project_filter, planned_by=now.request_id
        )
    context.insights.reload_soon()
    return Change(dry_run=False, message=f'group {uuid}: its plan is released', now=None)


# -- access to requests -----------------------------------------------------------------
def _check_claim(context: GroupHandlerContext, caller: Caller, dry_run: bool) -> None:
    """Refuse a caller that may not claim: reservations are claims."""
    if not dry_run:
        context.policy.check(requested_fields.CLAIM_POLICY, caller, 'body.dry_run', 'true')


def _lease_seconds(context: GroupHandlerContext, caller: Caller, seconds: int | None) -> int | None:
    """Return the requested lease.

    :raises Forbidden: it is longer than the caller may have
    """
    usual = context.insights.settings.plan_lease_seconds
    if seconds is not None and seconds > usual:
        context.policy.check(LONG_PLAN_POLICY, caller, 'body.lease_seconds', f'at most {usual:g}')
    return seconds


def _check_description(
    context: GroupHandlerContext, caller: Caller, group: GroupDescription
) -> None:
    """Check a description of a group against the policy.

    :raises Forbidden: a field is set that the caller may not set; names the field
    :raises NotFound: a policy places members near consumers of another project
    """
    request_access.check_levels(context, caller, group.full_policies, 'body.group')
    for number, policy in enumerate(group.full_policies):
        for name in ('host', 'domain', 'pool'):
            if policy.target is not None and getattr(policy.target, name) is not None:
                field = f'body.group.policies[{number}].target.{name}'
                context.policy.check(requested_fields.TRUSTED_POLICY, caller, field, 'nothing')
    seen: set[bytes] = set()
    fields_of_near_consumers: dict[str, str] = {}
    for path, spec in group.specs_by_path:
        key = msgspec.msgpack.encode(spec)
        if key not in seen:
            seen.add(key)
            where = f'body.group.{path}'
            _check_spec(context, caller, spec, where)
            for consumer, field in request_access.fields_of_near_consumers(spec).items():
                fields_of_near_consumers.setdefault(consumer, field.replace('body.spec', where, 1))
    if not caller.everywhere:
        request_access.check_near_consumers(context, caller, fields_of_near_consumers)


def _check_spec(
    context: GroupHandlerContext, caller: Caller, spec: RequestSpec, where: str
) -> None:
    """Check the spec of a member like that of a dry-run request for one consumer."""
    alone = SelectDestinations(
        request_id=_NO_PROJECT, spec=spec, consumers=[_NO_PROJECT], dry_run=True
    )
    try:
        request_access.check_fields(context, caller, alone)
    except exceptions.GanttError as e:
        details = dict(e.kwargs)
        if 'field' in details:
            details['field'] = str(details['field']).replace('body.spec', where, 1)
        raise type(e)(e.message.replace('body.spec', where, 1), **details) from None


# -- views -------------------------------------------------------------------------------
def _plan_record(context: GroupHandlerContext, caller: Caller, group: str) -> GroupPlanRecord:
    """Return the plan of a group: by uuid, or by its name in the caller's own project.

    Names of who may act everywhere are those of groups without a project.
    """
    project = None if caller.everywhere else caller.project
    uuid = group if base.is_uuid(group) else uuid_of_name(project, group)
    record = context.stores.plans.load_group_plan(uuid)
    if record is None or not caller.may_see(record.project_id):
        raise exceptions.NotFound(kind='plan of group', name=group)
    return record


def _plan_view(
    context: GroupHandlerContext, caller: Caller, uuid: str, *, check: bool = False
) -> GroupPlanView:
    record = _plan_record(context, caller, uuid)
    context.insights.reload_soon()
    table = context.insights.table()
    context.insights.pipeline.set_site_names(table)
    stale_after = context.insights.settings.stale_after_seconds
    view = shown_plans.view_of(context.stores.plans, record, table, stale_after, check=check)
    if context.policy.allows(request_access.HOSTS_POLICY, caller):
        return view
    members = [msgspec.structs.replace(member, host='', levels={}) for member in view.members]
    decided = None if view.decided is None else _redacted_answer(view.decided)
    return msgspec.structs.replace(view, members=members, decided=decided)


def _summary(
    record: GroupPlanRecord, now: float, states: dict[str, int] | None
) -> GroupPlanSummary:
    members_max, plan, problem, name = 0, None, '', None
    try:
        stored = group_answer.read_plan(record)
    except exceptions.PlanUnreadable as e:
        problem = e.message
    else:
        name = stored.description.name
        members_max = sum(members.most for members in stored.description.members)
        plan = None if stored.decided is None else stored.decided.plan
    return GroupPlanSummary(
        group=record.group_uuid,
        name=name or '',
        request_id=record.request_id,
        project_id=record.project_id,
        revision=record.revision,
        members=members_max,
        status='' if plan is None else plan.status,
        lease_seconds=max(0.0, record.lease_until - now),
        updated_at=utc_text(record.updated_at),
        age_seconds=age_seconds(now, record.updated_at),
        states=states,
        problem=problem,
    )


def _for_caller(context: GroupHandlerContext, caller: Caller, answer: GroupAnswer) -> GroupAnswer:
    """Return the answer without the parts that the caller may not read."""
    if context.policy.allows(request_access.HOSTS_POLICY, caller):
        return answer
    return _redacted_answer(answer)


@contextlib.contextmanager
def _redacted(context: GroupHandlerContext, caller: Caller) -> Iterator[None]:
    """Redact the planner's refusals for the caller: a lost race names a host."""
    try:
        yield
    except exceptions.GanttError as e:
        if context.policy.allows(request_access.HOSTS_POLICY, caller):
            raise
        if isinstance(e, exceptions.NoValidHost):
            raise
        raise redacting.redacted_refusal(redacting.redacted_error(e)) from None


def _redacted_answer(answer: GroupAnswer) -> GroupAnswer:
    """Return an answer of a group without hosts, zones, lost races and conclusions from room."""
    what_if = answer.what_if
    if what_if is not None:
        what_if = [
            msgspec.structs.replace(without_policy, score_change=None) for without_policy in what_if
        ]
    plan = answer.plan
    if plan is not None:
        plan = msgspec.structs.replace(
            plan,
            members=[_redacted_member(member) for member in plan.members],
            size=None,
            score=0.0,
            bound=None,
            goals=msgspec.structs.replace(plan.goals, lack=0.0),
            sequential=msgspec.structs.replace(plan.sequential, lack=0.0),
        )
    return msgspec.structs.replace(
        answer, plan=plan, conflicts=[], what_if=what_if, zones_not_queried=[]
    )


def _redacted_member(member: PlannedMember) -> PlannedMember:
    return msgspec.structs.replace(
        member, host='', node='', provider_id=0, allocations=[], layout=None
    )


ROUTES = (
    route(
        'POST /v1/group-plans',
        create_group_plan,
        'group_plans:create',
        rated=True,
        bytes_max=None,
    ),
    route('GET /v1/group-plans', list_group_plans, 'group_plans:list'),
    route('GET /v1/group-plans/{uuid}', show_group_plan, 'group_plans:show'),
    route(
        'PUT /v1/group-plans/{uuid}',
        change_group_plan,
        'group_plans:change',
        bytes_max=None,
    ),
    route('POST /v1/group-plans/{uuid}/scale', scale_group_plan, 'group_plans:change'),
    route(
        'PUT /v1/group-plans/{uuid}/lease',
        extend_group_plan,
        'group_plans:extend',
    ),
    route(
        'DELETE /v1/group-plans/{uuid}',
        release_group_plan,
        'group_plans:release',
    ),
)


def extension(plans: PlansClient | None = None) -> HttpExtension:
    """Return the part of the interface about plans of groups.

    :param plans: client of the planner of groups; None: there is no planner
    """

    def with_planner(context: HandlerContext) -> HandlerContext:
        return GroupHandlerContext(**msgspec.structs.asdict(context), plans=plans or NoPlans())

    return HttpExtension(ROUTES, with_planner)
