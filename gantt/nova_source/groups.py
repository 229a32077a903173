# SPDX-License-Identifier: Apache-2.0
"""Messages of aggregates and server groups for a scheduler; invalid ones get a reason."""

from collections.abc import Container, Mapping

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.request import Policy
from gantt.core.nova.events import NovaAggregate
from gantt.core.nova.source import ServerGroup
from gantt.nova_source.nova_api_types import ApiServerGroup as Group
from gantt.nova_source.reading import Picture

_POLICIES = frozenset(policy.value for policy in Policy)


def aggregates(
    picture: Picture, before: Mapping[str, NovaAggregate]
) -> tuple[dict[str, NovaAggregate], dict[str, str]]:
    """Return all aggregates by uuid, and the reason for each that stays unchanged.

    :param before: as they were sent before
    """
    valid, problems = {}, dict(picture.odd_aggregates)
    for aggregate in picture.aggregates:
        uuid = aggregate.uuid.lower()
        update = NovaAggregate(
            uuid=uuid,
            name=aggregate.name,
            metadata=dict(aggregate.metadata or {}),
            hosts=sorted(set(aggregate.hosts or ())),
        )
        problem = _problem(update)
        if problem:
            problems[uuid] = problem
        else:
            valid[uuid] = update
    unchanged = {
        uuid: aggregate
        for uuid, aggregate in before.items()
        if uuid in problems or ('' in problems and uuid not in valid)
    }
    return unchanged | valid, problems


def groups(picture: Picture, known: Container[str]) -> tuple[list[ServerGroup], dict[str, str]]:
    """Return the groups that are not known yet, and the reason for each that is skipped."""
    valid, problems = [], dict(picture.odd_groups)
    for group in picture.groups:
        uuid = group.id.lower()
        if uuid in known or group.policy not in _POLICIES:
            continue
        server_group = ServerGroup(
            uuid=uuid,
            name=group.name or '',
            policy=Policy(group.policy),
            max_per_host=_most(group),
            project_id=group.project_id,
        )
        problem = _problem(server_group)
        if problem:
            problems[uuid] = problem
        else:
            valid.append(server_group)
    return valid, problems


def _problem(made: msgspec.Struct) -> str:
    """Return why a scheduler would refuse the message with it, and all others in that message."""
    try:
        base.decode(base.to_builtins(made), type(made), inside='it')
    except exceptions.InvalidMessage as e:
        return str(e)
    return ''


def _most(group: Group) -> int:
    limit = (group.rules or {}).get('max_server_per_host', 1)
    return int(limit) if str(limit).isdigit() and int(limit) > 0 else 1
