# SPDX-License-Identifier: Apache-2.0
"""What is requested: guests of one size or several, some of which belong together."""

import random
from typing import TypeVar

from gantt.core.messages.base import derived_id
from gantt.core.messages.request import GroupRef, Policy, RequestSpec, SelectDestinations
from gantt.sim.zones.stock import RARE_TRAIT

T = TypeVar('T')

#: Processors of a guest, how often they are requested, and GiB for each: not one of the three
#: is what a host has, so that either may run out first.
VCPUS = {1: 30, 2: 25, 4: 20, 8: 12, 16: 8, 32: 4, 64: 1}
GIB_EACH = {1.5: 30, 3.5: 45, 6.5: 25}
GIB_MOST = 240
#: How often a request is for several members, and by which rule; how often for a rare trait.
KINDS: dict[str, int] = {'one': 84, 'together': 5, 'apart': 5, 'several': 4, 'rare': 2}
MEMBERS_MOST, MEMBER_VCPUS_MOST = 5, 8


def orders(count: int, seed: int) -> list[SelectDestinations]:
    """So many requests; they follow from the seed."""
    dice = random.Random(f'orders {seed}')
    return [_order(number, seed, dice) for number in range(count)]


def _order(number: int, seed: int, dice: random.Random) -> SelectDestinations:
    kind = _drawn(KINDS, dice)
    members = dice.randint(2, MEMBERS_MOST) if kind in ('together', 'apart', 'several') else 1
    vcpus, each = _drawn(VCPUS, dice), _drawn(GIB_EACH, dice)
    if members > 1:
        vcpus = min(vcpus, MEMBER_VCPUS_MOST)
    policies = {'together': Policy.AFFINITY, 'apart': Policy.ANTI_AFFINITY}
    group = None
    if kind in policies:
        group = GroupRef(uuid=derived_id('group', seed, number), policy=policies[kind])
    return SelectDestinations(
        request_id=derived_id('order', seed, number),
        spec=RequestSpec(
            resources={'VCPU': vcpus, 'MEMORY_MB': int(min(vcpus * each, GIB_MOST) * 1024)},
            group=group,
            required_traits=[RARE_TRAIT] if kind == 'rare' else [],
        ),
        consumers=[derived_id('guest', seed, number, member) for member in range(members)],
        alternates=0,
    )


def _drawn(of: dict[T, int], dice: random.Random) -> T:
    return dice.choices(list(of), list(of.values()))[0]
