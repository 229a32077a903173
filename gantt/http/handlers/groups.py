# SPDX-License-Identifier: Apache-2.0
"""Handlers of server groups: their rules and their members."""

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.base import FieldError, Message, Text, Uuid
from gantt.core.messages.policy_set import (
    POLICIES_POLICY,
    MemberNames,
    Policies,
    Policy,
    PolicySet,
    Subgroups,
)
from gantt.core.resources import group_rule
from gantt.core.resources.host import Group
from gantt.http import request_access
from gantt.http.context import Caller, HandlerContext
from gantt.http.dispatch import Created
from gantt.http.links import Paged, path_of
from gantt.http.queries import DryRun, PageOfUuids, page_of
from gantt.insights.explain import wording
from gantt.insights.views import Change


class GroupsResponse(Paged, frozen=True, kw_only=True):
    """A page of server groups, by uuid."""

    server_groups: list[Group]


class CreateGroup(Message, frozen=True, kw_only=True):
    """A server group; the uuid is chosen by the caller, so that a repeat is harmless.

    :ivar policy: one of Nova's, or else ``policies``
    :ivar policies: at any level, a name of Nova's being its policy at the level of hosts
    :ivar subgroups: name -> names of members, for policies of these
    :ivar member_names: names that policies may be about beside subgroups; empty: those in these
    """

    uuid: Uuid
    policy: Policy | UnsetType = UNSET
    name: Text = ''
    max_per_host: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1
    project_id: Text | None = None
    policies: Policies = []
    subgroups: Subgroups = {}
    member_names: MemberNames = []

    def __post_init__(self) -> None:
        if self.policy is UNSET and not self.policies:
            raise FieldError('policy', 'expected one of policy and policies, got none')
        if self.policy is not UNSET and self.policies:
            raise FieldError('policies', 'expected one of policy and policies, got both')
        for name in ('subgroups', 'member_names'):
            if self.policy is not UNSET and getattr(self, name):
                raise FieldError(
                    name, 'expected none with a policy of Nova, which is for all members'
                )
        self.policy_set()  # checks the names in them

    def policy_set(self) -> PolicySet | None:
        """Return its policies as a document; None: it has one of Nova's."""
        if not self.policies:
            return None
        return PolicySet(
            policies=self.policies, subgroups=self.subgroups, members=self.member_names
        )


def list_groups(context: HandlerContext, caller: Caller, query: PageOfUuids) -> GroupsResponse:
    """List the server groups."""
    rows = context.stores.groups.list_groups(query.limit + 1, query.marker, caller.project_filter)
    page, marker = page_of(rows, query.limit, 'uuid')
    return GroupsResponse(server_groups=page, next_marker=marker)


def show_group(context: HandlerContext, caller: Caller, uuid: str) -> Group:
    """Show one server group with the consumers that hold a live claim for it."""
    return _find_group(context, caller, uuid)


def create_group(
    context: HandlerContext, caller: Caller, query: DryRun, body: CreateGroup
) -> Created[Change[Group]] | Change[Group]:
    """Create a server group, or find that it is there already.

    The rule of a group never changes: one that exists with another is refused.
    """
    if body.max_per_host > 1 and body.policy is not Policy.ANTI_AFFINITY:
        raise exceptions.invalid(
            'body.max_per_host', 'only the policy anti-affinity knows it; expected 1'
        )
    if base.is_named_id(body.uuid):
        raise exceptions.invalid(
            'body.uuid', 'expected no uuid of version 8: the group of a name is planned by it'
        )
    policies = body.policy_set()
    if policies is not None:
        request_access.check_policies(context, caller, policies, 'body')
    project = body.project_id or caller.project
    if not caller.may_see(project):
        raise exceptions.invalid(
            'body.project_id', f'expected the project of the token, {caller.project}'
        )
    policy = POLICIES_POLICY if body.policy is UNSET else body.policy.value
    fields = {**msgspec.structs.asdict(body), 'policy': policy, 'project_id': project}
    group = Group(**fields)
    existing = context.stores.groups.load_group(body.uuid)
    _check_owner(caller, body.uuid, existing)
    if query.dry_run:
        if existing:
            group_rule.check(body.uuid, group.rule, existing.rule)
        else:
            context.insights.quotas.check_groups(project, not caller.everywhere)
        what = 'is there already' if existing else 'would be created'
        return Change(
            dry_run=True, message=f'server group {body.uuid} {what}', now=existing or group
        )
    if existing is None:
        # Two at once may both find room: the limit may be exceeded by creations in flight.
        context.insights.quotas.check_groups(project, not caller.everywhere)
    try:
        saved = context.stores.groups.save_group(group)
    except exceptions.Refused:
        _check_owner(caller, body.uuid, context.stores.groups.load_group(body.uuid))
        raise
    # Another project may have created it meanwhile.
    _check_owner(caller, body.uuid, saved)
    done = Change(dry_run=False, message=f'server group {saved.uuid} is there', now=saved)
    return Created(done, path_of('server-groups', saved.uuid)) if existing is None else done


def remove_group(
    context: HandlerContext, caller: Caller, uuid: str, query: DryRun
) -> Change[Group]:
    """Remove a server group that no live claim belongs to."""
    group = _find_group(context, caller, uuid)
    if query.dry_run:
        if group.members:
            members = wording.counted_noun(len(group.members), 'member')
            raise exceptions.InUse(
                f'server group {uuid} has {members} with live claims',
                uuid=uuid,
                members=group.members[:20],
            )
        return Change(dry_run=True, message=f'server group {uuid} would be removed', now=group)
    context.stores.groups.remove_group(uuid)
    return Change(dry_run=False, message=f'server group {uuid} is removed', now=None)


def _check_owner(caller: Caller, uuid: str, existing: Group | None) -> None:
    """Refuse the uuid of a group of another project, and report nothing else about it.

    A caller that may create groups can find out that the uuid is taken: there is one group of each
    uuid, in whatever project.
    """
    if existing is not None and not caller.may_see(existing.project_id):
        raise exceptions.Refused(f'server group {uuid} cannot be created', uuid=uuid)


def _find_group(context: HandlerContext, caller: Caller, uuid: str) -> Group:
    group = context.stores.groups.load_group(uuid)
    if group is None or not caller.may_see(group.project_id):
        raise exceptions.NotFound(kind='server group', name=uuid)
    return group
