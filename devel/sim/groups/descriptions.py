# SPDX-License-Identifier: Apache-2.0
"""Descriptions of groups, and the hard policies of one, read plainly.

The judge of policies shares no code with the placement.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from gantt.core.messages.policy_set import GroupPolicyKind, LevelPolicy, Policy
from gantt.core.messages.request import RequestSpec
from gantt.groups.model.group_description import (
    GroupDescription,
    MemberDescription,
    OnDifference,
    OtherConsumers,
)

RACKS = 4
MEMBERS_MOST = 3
_replace = msgspec.structs.replace


def location_of(number: int) -> str:
    """Return the location of a host, by its number."""
    return f'site1.room1.rack{number % RACKS + 1}'


class PlacedUnit(NamedTuple):
    """A live claim of a group.

    :ivar member: name of its description; '': of a consumer that is no member
    :ivar guest: whose it is; of a move there are two of one guest
    """

    member: str
    guest: str
    host: str
    location: str

    def domain(self, level: str) -> str:
        """Return its domain at a level: a host, or a rack."""
        return self.host if level == 'host' else self.location


def a_group(rng: random.Random, uuid: str | None) -> GroupDescription:
    """Return a description of up to three kinds of members."""
    members = [
        MemberDescription(
            name=name,
            count=rng.choice((1, 2, 2, 3, [1, 3])),
            spec=RequestSpec(resources=resources(rng)),
        )
        for name in ('web', 'db', 'job')[: rng.choice((1, 1, 2, 2, 3))]
    ]
    return GroupDescription(
        uuid=uuid,
        members=members,
        policies=_policies(rng, [member.name for member in members]),
        on_difference=rng.choice((OnDifference.REFUSE, OnDifference.REPLAN)),
        others=rng.choice((OtherConsumers.REFUSED, OtherConsumers.REFUSED, OtherConsumers.ALLOWED)),
    )


def resources(rng: random.Random) -> dict[str, int]:
    """Return the resources of one member."""
    vcpu = rng.choice((1, 1, 2, 3))
    return {'VCPU': vcpu, 'MEMORY_MB': 1024 * vcpu, 'DISK_GB': 10}


def _policies(rng: random.Random, names: Sequence[str]) -> list[Policy | LevelPolicy]:
    """Return hard policies that a small cloud can meet, and soft ones."""
    member_name = rng.choice((None, *names))
    level = rng.choice(('host', 'host', 'rack'))
    kinds: list[Policy | LevelPolicy] = [
        Policy.ANTI_AFFINITY,
        LevelPolicy(
            policy=GroupPolicyKind.ANTI_AFFINITY, of=member_name, max_per_domain=rng.choice((1, 2))
        ),
        LevelPolicy(
            policy=GroupPolicyKind.ANTI_AFFINITY, of=member_name, level='rack', max_per_domain=2
        ),
        LevelPolicy(policy=GroupPolicyKind.SPREAD, of=member_name, level=level, max_per_domain=2),
        LevelPolicy(policy=GroupPolicyKind.AFFINITY, of=member_name, level='rack'),
        LevelPolicy(policy=GroupPolicyKind.AFFINITY, of=names[0]),
        LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY, of=member_name, level='rack', soft=1.0),
        LevelPolicy(policy=GroupPolicyKind.SPREAD, of=member_name, max_skew=1, drop=1),
    ]
    return rng.sample(kinds, rng.choice((0, 1, 1, 2)))


def resized(rng: random.Random, group: GroupDescription) -> GroupDescription:
    """Return the group with one more or one less of one of its members, never with none."""
    at = rng.randrange(len(group.members))
    member = group.members[at]
    count_max = max(1, min(MEMBERS_MOST + 1, member.most + rng.choice((-1, 1))))
    members = list(group.members)
    members[at] = _replace(
        member,
        count=[min(member.least, count_max), count_max] if member.least < count_max else count_max,
    )
    return _replace(group, members=members)


def broken_policies(
    group: GroupDescription,
    units: Sequence[PlacedUnit],
    *,
    affinity: bool = True,
    joined: Collection[PlacedUnit] = (),
) -> Iterator[str]:
    """Yield a line for each hard policy that does not hold for these units.

    :param affinity: whether all of them have to be together
    :param joined: those that came just now, where they do not have to: of affinity to a guest that
        is on its way they meet one of its ends
    """
    for policy in group.full_policies:
        if not policy.is_hard:
            continue
        member_names = [policy.of] if isinstance(policy.of, str) or policy.of is None else policy.of
        for name in member_names:
            concerned = [
                unit_joined for unit_joined in units if name is None or unit_joined.member == name
            ]
            # A guest counts once in a domain, wherever else it is on its way to.
            pairs = {
                (unit_joined.domain(policy.level), unit_joined.guest) for unit_joined in concerned
            }
            counts = Counter(domain for domain, _ in pairs)
            whom = f'{policy.policy.value} of {name or "all"} at {policy.level}'
            if policy.policy is GroupPolicyKind.AFFINITY:
                if affinity and len(counts) > 1:
                    yield f'{whom}: they are in {sorted(counts)}'
                for unit_joined in () if affinity else joined:
                    ends = {
                        unit.domain(policy.level)
                        for unit in concerned
                        if unit.guest != unit_joined.guest
                    }
                    if (
                        unit_joined in concerned
                        and ends
                        and unit_joined.domain(policy.level) not in ends
                    ):
                        yield f'{whom}: {unit_joined.guest} joined those in {sorted(ends)}'
                continue
            limit = policy.max_per_domain or (
                1 if policy.policy is GroupPolicyKind.ANTI_AFFINITY else None
            )
            for domain, count in sorted(counts.items()):
                if limit is not None and count > limit:
                    yield f'{whom}: {count} are in {domain}, {limit} may be'
