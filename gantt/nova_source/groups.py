# SPDX-License-Identifier: Apache-2.0
"""Aggregates and server groups in the words for a scheduler; of odd ones it is said why."""

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
    """All of them by uuid, and of those that stay as they were: why.

    :param before: as they were told
    """
    found, odd = {}, dict(picture.odd_aggregates)
    for one in picture.aggregates:
        uuid = one.uuid.lower()
        made = NovaAggregate(
            uuid=uuid,
            name=one.name,
            metadata=dict(one.metadata or {}),
            hosts=sorted(set(one.hosts or ())),
        )
        problem = _problem(made)
        if problem:
            odd[uuid] = problem
        else:
            found[uuid] = made
    unchanged = {
        uuid: one
        for uuid, one in before.items()
        if uuid in odd or ('' in odd and uuid not in found)
    }
    return unchanged | found, odd


def groups(picture: Picture, known: Container[str]) -> tuple[list[ServerGroup], dict[str, str]]:
    """Those that are not known yet, and of those that are passed over: why."""
    found, odd = [], dict(picture.odd_groups)
    for one in picture.groups:
        uuid = one.id.lower()
        if uuid in known or one.policy not in _POLICIES:
            continue
        made = ServerGroup(
            uuid=uuid,
            name=one.name or '',
            policy=Policy(one.policy),
            max_per_host=_most(one),
            project_id=one.project_id,
        )
        problem = _problem(made)
        if problem:
            odd[uuid] = problem
        else:
            found.append(made)
    return found, odd


def _problem(made: msgspec.Struct) -> str:
    """Why a scheduler would refuse the message with it, and all others in that."""
    try:
        base.decode(base.to_builtins(made), type(made), inside='it')
    except exceptions.InvalidMessage as e:
        return str(e)
    return ''


def _most(group: Group) -> int:
    found = (group.rules or {}).get('max_server_per_host', 1)
    return int(found) if str(found).isdigit() and int(found) > 0 else 1
