# SPDX-License-Identifier: Apache-2.0
"""Groups with a contradiction in them: which policies and members are named, and how soon.

Each is a group that a cloud has room for (``group_clouds.alike``) and, hidden in it, a few members
with policies that cannot be met together.
"""

import random
from collections.abc import Mapping
from typing import Any

import msgspec

from bench import group_clouds
from bench.group_clouds import CLASSES
from gantt.groups.model import group_description
from gantt.groups.model.group_description import GroupDescription

SMALL = (1, 2048, 10)
#: More than half of what the largest host has when it is empty.
LARGE = (65, 2048, 10)


class Contradiction(msgspec.Struct, frozen=True):
    """A contradiction hidden in a group.

    :ivar policies: indexes, each needed for the contradiction
    :ivar members: name -> number of its members needed
    """

    name: str
    description: GroupDescription
    policies: frozenset[int]
    members: dict[str, int]

    def is_named(self, refusal: Mapping[str, Any]) -> bool:
        """Return whether a refusal names it, and nothing else.

        :param refusal: fields of the error
        """
        conflict = refusal.get('conflict')
        if refusal.get('status') != 'infeasible' or conflict is None:
            return False
        named = frozenset(index for index, _ in conflict['policies'])
        return named == self.policies and conflict['members'] == self.members


def _member(name: str, size: tuple[int, ...] = SMALL, count: int = 1) -> dict[str, Any]:
    spec = {'resources': dict(zip(CLASSES, size, strict=True))}
    return {'name': name, 'count': count, 'spec': spec}


def _both() -> tuple[list[Any], list[Any], dict[str, int]]:
    policies = [
        {'policy': 'affinity', 'level': 'rack', 'of': 'x'},
        {'policy': 'anti-affinity', 'level': 'rack', 'of': 'x'},
    ]
    return [_member('x', count=5)], policies, {'x': 2}


def _too_few_racks(racks: int) -> tuple[list[Any], list[Any], dict[str, int]]:
    policies = [{'policy': 'anti-affinity', 'level': 'rack', 'of': 'x'}]
    return [_member('x', count=racks + 3)], policies, {'x': racks + 1}


def _too_large() -> tuple[list[Any], list[Any], dict[str, int]]:
    return [_member('x', LARGE, 4)], [{'policy': 'affinity', 'of': 'x'}], {'x': 2}


def _circle() -> tuple[list[Any], list[Any], dict[str, int]]:
    policies = [
        {'policy': 'near', 'level': 'rack', 'of': 'x', 'target': {'of': 'y'}},
        {'policy': 'near', 'level': 'rack', 'of': 'y', 'target': {'of': 'z'}},
        {'policy': 'anti-affinity', 'level': 'rack', 'of': 'x', 'target': {'of': 'z'}},
    ]
    members = [_member('x'), _member('y'), _member('z')]
    return members, policies, {'x': 1, 'y': 1, 'z': 1}


def _pinned() -> tuple[list[Any], list[Any], dict[str, int]]:
    near = {'policy': 'near', 'level': 'rack', 'of': 'x', 'target': {'host': 'cmp-00000'}}
    apart = {'policy': 'anti-affinity', 'level': 'rack', 'of': 'x', 'target': {'host': 'cmp-00001'}}
    return [_member('x', count=3)], [near, apart], {'x': 1}


def of_cloud(members: int, hosts: int, seed: int) -> list[Contradiction]:
    """Return one of each kind, hidden in a group of so many members.

    The table is that of ``group_clouds.alike`` of the same arguments.
    """
    cloud = group_clouds.alike(members, hosts, seed)
    racks = len(set(cloud.rack.tolist()))
    parts_by_name = {
        'together and apart': _both(),
        'too large for any host': _too_large(),
        'a circle of three': _circle(),
        'near to what it is to be apart from': _pinned(),
    }
    if racks + 3 <= members:
        parts_by_name['more than there are racks'] = _too_few_racks(racks)
    rest = msgspec.to_builtins(group_clouds.description_of(cloud))
    contradictions = []
    for name, (hidden, policies, culprits) in parts_by_name.items():
        rng = random.Random(seed)
        body = {'subgroups': rest['subgroups']}
        body['members'] = [*rest['members'], *hidden]
        rng.shuffle(body['members'])
        first = rng.randint(0, len(rest['policies']))
        body['policies'] = [*rest['policies'][:first], *policies, *rest['policies'][first:]]
        contradictions.append(
            Contradiction(
                name,
                group_description.read(body),
                frozenset(range(first, first + len(policies))),
                culprits,
            )
        )
    return contradictions
