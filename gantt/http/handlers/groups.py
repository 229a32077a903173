# SPDX-License-Identifier: Apache-2.0
"""Server groups: their rules and their members."""

from typing import Annotated

import msgspec

from gantt import exceptions
from gantt.core import group_rule
from gantt.core.host import Group
from gantt.core.message import Message, Text, Uuid
from gantt.core.request import Policy
from gantt.http.queries import DryRun, PageOfUuids
from gantt.http.world import Caller, World
from gantt.scheduler.views import Change


class Groups(msgspec.Struct, frozen=True):
    """A page of server groups, by uuid."""

    server_groups: list[Group]
    next_marker: str | None


class CreateGroup(Message, frozen=True, kw_only=True):
    """A server group; the uuid is chosen by the caller, so that a repeat is harmless."""

    uuid: Uuid
    policy: Policy
    name: Text = ''
    max_per_host: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1
    project_id: Text | None = None


def list_groups(world: World, caller: Caller, query: PageOfUuids) -> Groups:
    """List the server groups."""
    found = world.store.groups(query.limit + 1, query.marker, caller.only)
    page = found[: query.limit]
    marker = page[-1].uuid if len(found) > len(page) else None
    return Groups(server_groups=page, next_marker=marker)


def show_group(world: World, caller: Caller, uuid: str) -> Group:
    """Show one server group with the consumers that hold a live claim for it."""
    return _group(world, caller, uuid)


def create_group(world: World, caller: Caller, query: DryRun, body: CreateGroup) -> Change[Group]:
    """Create a server group, or find that it is there already.

    The rule of a group never changes: one that exists with another is refused.
    """
    if body.max_per_host > 1 and body.policy is not Policy.ANTI_AFFINITY:
        raise exceptions.InvalidMessage(
            field='body.max_per_host', problem='only the policy anti-affinity knows it; expected 1'
        )
    project = body.project_id or caller.project
    if not caller.sees(project):
        raise exceptions.InvalidMessage(
            field='body.project_id', problem=f'expected the project of the token, {caller.project}'
        )
    group = Group(
        uuid=body.uuid,
        name=body.name,
        policy=body.policy.value,
        max_per_host=body.max_per_host,
        project_id=project,
    )
    known = world.store.load_group(body.uuid)
    if known and not caller.sees(known.project_id):
        raise exceptions.Refused(f'server group {body.uuid} cannot be created', uuid=body.uuid)
    if query.dry_run:
        if known:
            group_rule.check(body.uuid, group, known)
        said = 'is there already' if known else 'would be created'
        return Change(dry_run=True, what=f'server group {body.uuid} {said}', now=known or group)
    saved = world.store.save_group(group)
    return Change(dry_run=False, what=f'server group {saved.uuid} is there', now=saved)


def remove_group(world: World, caller: Caller, uuid: str, query: DryRun) -> Change[Group]:
    """Remove a server group that no live claim belongs to."""
    group = _group(world, caller, uuid)
    if query.dry_run:
        if group.members:
            raise exceptions.Refused(
                f'server group {uuid} has {len(group.members)} members with live claims',
                uuid=uuid,
                members=group.members[:20],
            )
        return Change(dry_run=True, what=f'server group {uuid} would be removed', now=group)
    world.store.remove_group(uuid)
    return Change(dry_run=False, what=f'server group {uuid} is removed', now=None)


def _group(world: World, caller: Caller, uuid: str) -> Group:
    group = world.store.load_group(uuid)
    if group is None or not caller.sees(group.project_id):
        raise exceptions.NotFound(kind='server group', name=uuid)
    return group
