# SPDX-License-Identifier: Apache-2.0
"""A policy of a group at a level: its subjects, the distance, and whether it may be given up."""

import enum
from collections.abc import Sequence
from typing import Annotated

import msgspec

from gantt.core.messages import base
from gantt.core.messages.base import Message, Misfit, Name, Uuid

#: Most members in all, counting the most of each range.
MEMBERS_MAX = 1000
PRICES_MAX = 16
WEIGHT_MAX = 1000.0
ORDER_MAX = 1000
#: The level of every host by itself.
HOST = 'host'

Level = Annotated[str, msgspec.Meta(min_length=1, max_length=base.NAME_MAX, pattern=base.NAME)]
Weight = Annotated[float, msgspec.Meta(gt=0, le=WEIGHT_MAX)]
Order = Annotated[int, msgspec.Meta(ge=1, le=ORDER_MAX)]
Price = Annotated[float, msgspec.Meta(ge=0, le=WEIGHT_MAX)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MEMBERS_MAX)]
Many = Annotated[int, msgspec.Meta(ge=0, le=MEMBERS_MAX)]
NamesOf = Annotated[list[Name], msgspec.Meta(min_length=1, max_length=base.LIST_MAX)]


class Policy(enum.StrEnum):
    """The rule of a server group, as Nova knows it."""

    AFFINITY = 'affinity'
    ANTI_AFFINITY = 'anti-affinity'
    SOFT_AFFINITY = 'soft-affinity'
    SOFT_ANTI_AFFINITY = 'soft-anti-affinity'

    @property
    def is_hard(self) -> bool:
        return self in (Policy.AFFINITY, Policy.ANTI_AFFINITY)


class GroupPolicyKind(enum.StrEnum):
    """Kind of a policy of a group.

    ``affinity``: all in one domain.  ``anti-affinity``: at most ``most`` in a domain.  ``spread``:
    in so many domains at least, so many in each at most, or so evenly.  ``exclusive``: nobody
    else in their domains.  ``near``: in a domain of the target, or at a price for each level.
    """

    AFFINITY = 'affinity'
    ANTI_AFFINITY = 'anti-affinity'
    SPREAD = 'spread'
    EXCLUSIVE = 'exclusive'
    NEAR = 'near'


class PolicyTarget(Message, frozen=True, kw_only=True):
    """Target that members are to be near to, or apart from: one of these.

    :ivar of: a subgroup or member of this group
    :ivar group: uuid of another server group, of which those count that stand
    :ivar host: name of a host
    :ivar domain: name of a domain of the level
    :ivar pool: name of a shared pool
    """

    of: Name | None = None
    group: Uuid | None = None
    host: Name | None = None
    domain: Name | None = None
    pool: Name | None = None

    def __post_init__(self) -> None:
        set_fields = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(set_fields) != 1:
            got = ', '.join(set_fields) or 'none'
            raise Misfit(
                set_fields[-1] if set_fields else 'of',
                f'expected one of {", ".join(self.__struct_fields__)}; got {got}',
            )

    def __str__(self) -> str:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None:
                return f'{value}' if name == 'of' else f'{name} {value}'
        return ''


class LevelPrice(Message, frozen=True, kw_only=True):
    """Cost of a member that shares a domain of this level with the target, and no nearer one."""

    level: Level
    price: Price


class LevelPolicy(Message, frozen=True, kw_only=True):
    """One policy; hard where it is neither soft nor to be dropped.

    :ivar of: subgroup or member that it is about, or several, each by itself; null: all members
    :ivar target: of near, and of anti-affinity between two of them
    :ivar max_per_domain: members in a domain, of anti-affinity (1 unless given) and spread
    :ivar min_domains: domains with members, of spread
    :ivar max_skew: of spread: from the fullest to the emptiest of the domains that have a host for
        them
    :ivar prices: of near: of the nearest level first; empty: 0 in a domain of ``level``
    :ivar beyond: of near: what a member costs that shares none of the levels
    :ivar soft: its weight: each violation costs as much
    :ivar drop: the order in which it is given up: 1 before 2
    """

    policy: GroupPolicyKind
    level: Level = HOST
    of: Name | NamesOf | None = None
    target: PolicyTarget | None = None
    max_per_domain: Count | None = None
    min_domains: Count | None = None
    max_skew: Many | None = None
    prices: Annotated[list[LevelPrice], msgspec.Meta(max_length=PRICES_MAX)] = []
    beyond: Price = 1.0
    soft: Weight | None = None
    drop: Order | None = None

    def __post_init__(self) -> None:
        if self.soft is not None and self.drop is not None:
            raise Misfit('drop', 'expected one of soft and drop, got both')
        for field, of in _FIELDS_OF.items():
            if getattr(self, field) not in (None, []) and self.policy not in of:
                expected = ' and '.join(kind.value for kind in of)
                raise Misfit(field, f'is of {expected}; this policy is {self.policy.value}')
        amounts = (self.max_per_domain, self.min_domains, self.max_skew)
        if self.policy is GroupPolicyKind.SPREAD and amounts == (None, None, None):
            raise Misfit('min_domains', 'expected one of min_domains, max_per_domain and max_skew')
        self._check_target()
        self._check_prices()

    def _check_target(self) -> None:
        if self.policy is GroupPolicyKind.NEAR and self.target is None:
            raise Misfit('target', 'expected what members are to be near to')
        if self.target is None or self.policy is GroupPolicyKind.NEAR:
            return
        if self.max_per_domain is not None:
            raise Misfit(
                'max_per_domain', 'expected none where there is a target: none may be together'
            )
        if self.target.pool is not None:
            raise Misfit('target.pool', 'expected one of of, group, host, domain')

    def _check_prices(self) -> None:
        if (self.prices or self.beyond != 1.0) and self.soft is None:
            raise Misfit('prices', 'expected none unless it is soft: what is not near is far')
        prices = [level_price.price for level_price in self.prices]
        if prices != sorted(prices) or (prices and prices[-1] > self.beyond):
            raise Misfit('prices', 'expected the nearest level first, and none above "beyond"')

    @property
    def is_hard(self) -> bool:
        """True where it may not be given up."""
        return self.soft is None and self.drop is None

    @property
    def strength(self) -> str:
        """Strength: ``hard``, ``drop`` or ``soft``."""
        if self.soft is not None:
            return 'soft'
        return 'hard' if self.drop is None else 'drop'

    @property
    def subjects(self) -> Sequence[str | None]:
        """Subgroups or members that it is about, each by itself; None: all members."""
        return self.of if isinstance(self.of, list) else [self.of]

    def line(self, subject: str | None) -> str:
        """Return the policy on one of its subjects as one line for people."""
        words = [self.policy.value, f'at {self.level}']
        if subject is not None:
            words.insert(1, f'of {subject}')
        if self.target is not None:
            near_to = self.policy is GroupPolicyKind.NEAR
            words.append(f'{"to" if near_to else "from"} {self.target}')
        for name in ('max_per_domain', 'min_domains', 'max_skew'):
            if getattr(self, name) is not None:
                words.append(f'{name} {getattr(self, name)}')
        return ' '.join(words)


_FIELDS_OF = {
    'target': (GroupPolicyKind.ANTI_AFFINITY, GroupPolicyKind.NEAR),
    'max_per_domain': (GroupPolicyKind.ANTI_AFFINITY, GroupPolicyKind.SPREAD),
    'min_domains': (GroupPolicyKind.SPREAD,),
    'max_skew': (GroupPolicyKind.SPREAD,),
    'prices': (GroupPolicyKind.NEAR,),
}

#: Nova's policies of server groups, as they are written here.
SHORTHANDS = {
    Policy.AFFINITY: LevelPolicy(policy=GroupPolicyKind.AFFINITY),
    Policy.ANTI_AFFINITY: LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY),
    Policy.SOFT_AFFINITY: LevelPolicy(policy=GroupPolicyKind.AFFINITY, soft=1.0),
    Policy.SOFT_ANTI_AFFINITY: LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY, soft=1.0),
}
