# SPDX-License-Identifier: Apache-2.0
"""What groups are asked for, and the hard policies of one, read plainly.

The judge of policies shares no code with those who place.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from gantt.core.messages.group_description import (
    GroupDescription,
    MemberDescription,
    OnDifference,
    OtherConsumers,
)
from gantt.core.messages.level_policy import GroupPolicyKind, LevelPolicy, Policy
from gantt.core.messages.request import RequestSpec

RACKS = 4
MEMBERS_MOST = 3
_replace = msgspec.structs.replace


def location_of(number: int) -> str:
    """Where a host is, by its number."""
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
        """What it is in at a level: a host, or a rack."""
        return self.host if level == 'host' else self.location


def a_group(rng: random.Random, uuid: str | None) -> GroupDescription:
    """A description of up to three kinds of members."""
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
        policies=_policies(rng, [one.name for one in members]),
        on_difference=rng.choice((OnDifference.REFUSE, OnDifference.REPLAN)),
        others=rng.choice((OtherConsumers.REFUSED, OtherConsumers.REFUSED, OtherConsumers.ALLOWED)),
    )


def resources(rng: random.Random) -> dict[str, int]:
    """What one member takes."""
    vcpu = rng.choice((1, 1, 2, 3))
    return {'VCPU': vcpu, 'MEMORY_MB': 1024 * vcpu, 'DISK_GB': 10}


def _policies(rng: random.Random, names: Sequence[str]) -> list[Policy | LevelPolicy]:
    """Hard ones that a small cloud can meet, and soft ones."""
    of = rng.choice((None, *names))
    level = rng.choice(('host', 'host', 'rack'))
    kinds: list[Policy | LevelPolicy] = [
        Policy.ANTI_AFFINITY,
        LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY, of=of, most=rng.choice((1, 2))),
        LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY, of=of, level='rack', most=2),
        LevelPolicy(policy=GroupPolicyKind.SPREAD, of=of, level=level, most=2),
        LevelPolicy(policy=GroupPolicyKind.AFFINITY, of=of, level='rack'),
        LevelPolicy(policy=GroupPolicyKind.AFFINITY, of=names[0]),
        LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY, of=of, level='rack', soft=1.0),
        LevelPolicy(policy=GroupPolicyKind.SPREAD, of=of, skew=1, drop=1),
    ]
    return rng.sample(kinds, rng.choice((0, 1, 1, 2)))


def resized(rng: random.Random, group: GroupDescription) -> GroupDescription:
    """One more or one less of one of its members; a member is never of none."""
    at = rng.randrange(len(group.members))
    one = group.members[at]
    most = max(1, min(MEMBERS_MOST + 1, one.most + rng.choice((-1, 1))))
    members = list(group.members)
    members[at] = _replace(one, count=[min(one.least, most), most] if one.least < most else most)
    return _replace(group, members=members)


def broken_policies(
    group: GroupDescription,
    units: Sequence[PlacedUnit],
    *,
    affinity: bool = True,
    joined: Collection[PlacedUnit] = (),
) -> Iterator[str]:
    """A line for each hard policy that does not hold where these are.

    :param affinity: whether all of them have to be together
    :param joined: those that came just now, where they do not have to: of affinity to a guest that
        is on its way they meet one of its ends
    """
    for policy in group.full_policies:
        if not policy.is_hard:
            continue
        of = [policy.of] if isinstance(policy.of, str) or policy.of is None else policy.of
        for name in of:
            meant = [one for one in units if name is None or one.member == name]
            # A guest counts once in a domain, wherever else it is on its way to.
            pairs = {(one.domain(policy.level), one.guest) for one in meant}
            counts = Counter(domain for domain, _ in pairs)
            whom = f'{policy.policy.value} of {name or "all"} at {policy.level}'
            if policy.policy is GroupPolicyKind.AFFINITY:
                if affinity and len(counts) > 1:
                    yield f'{whom}: they are in {sorted(counts)}'
                for one in () if affinity else joined:
                    ends = {unit.domain(policy.level) for unit in meant if unit.guest != one.guest}
                    if one in meant and ends and one.domain(policy.level) not in ends:
                        yield f'{whom}: {one.guest} joined those in {sorted(ends)}'
                continue
            most = policy.most or (1 if policy.policy is GroupPolicyKind.ANTI_AFFINITY else None)
            for domain, count in sorted(counts.items()):
                if most is not None and count > most:
                    yield f'{whom}: {count} are in {domain}, {most} may be'
