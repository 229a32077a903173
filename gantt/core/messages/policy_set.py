# SPDX-License-Identifier: Apache-2.0
"""The policies of a group, each at a level, as one document: stored, compared and enforced.

A planned group has the names of its members in it; in a group created by itself the members are
those that its subgroups name.
"""

import enum
import functools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from gantt import exceptions
from gantt.core.messages import base, quoting
from gantt.core.messages.base import FieldError, Message, Name, Uuid
from gantt.core.messages.near import nearest_names

#: Most members in all, counting the most of each range.
MEMBERS_MAX = 1000
PRICES_MAX = 16
WEIGHT_MAX = 1000.0
ORDER_MAX = 1000
#: The level of every host by itself.
HOST_LEVEL = 'host'
#: Levels with an option of their own in ``[compute]``.
_OPTION_LEVELS = ('aggregates', 'cell', 'location', 'name', 'node', 'traits', 'zone')

Level = Annotated[
    str, msgspec.Meta(min_length=1, max_length=base.NAME_MAX, pattern=base.NAME_PATTERN)
]
Weight = Annotated[float, msgspec.Meta(gt=0, le=WEIGHT_MAX)]
Order = Annotated[int, msgspec.Meta(ge=1, le=ORDER_MAX)]
Price = Annotated[float, msgspec.Meta(ge=0, le=WEIGHT_MAX)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MEMBERS_MAX)]
CountOrZero = Annotated[int, msgspec.Meta(ge=0, le=MEMBERS_MAX)]
NamesOf = Annotated[list[Name], msgspec.Meta(min_length=1, max_length=base.LIST_MAX)]


def unknown_level_line(level: str) -> str:
    """Return a line that no host reports its domain of a level, with the option that would."""
    if level.startswith('metadata.'):
        return f'no host is in aggregates with one value of {level}'
    line = f'no host says its {level}'
    if level in _OPTION_LEVELS:
        return f'{line} ([compute] {level})'
    if '.' in level:
        return line
    return f'{line}: it is part of its location ([compute] location)'


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
    """Target that members are to be near to, or apart from: one of these fields is set.

    :ivar of: a subgroup or member of this group
    :ivar group: uuid of another server group, whose present members count
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
            raise FieldError(
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
    """Price of a member that shares no nearer domain with the target than one of this level."""

    level: Level
    price: Price


class LevelPolicy(Message, frozen=True, kw_only=True):
    """One policy; hard where it is neither soft nor to be dropped.

    :ivar of: subgroup or member that it is about, or several, each by itself; null: all members
    :ivar target: what members are to be near to, or apart from; of near and anti-affinity only
    :ivar max_per_domain: members in a domain, of anti-affinity (1 unless given) and spread
    :ivar min_domains: domains with members, of spread
    :ivar max_skew: of spread: largest difference between the fullest and the emptiest of the
        domains that have a host for them
    :ivar prices: of near: price of each level, the nearest first; empty: 0 in a domain of ``level``
    :ivar beyond: of near: price of a member that shares none of the levels
    :ivar soft: its weight: each violation costs as much
    :ivar drop: the order in which it is given up: 1 before 2
    """

    policy: GroupPolicyKind
    level: Level = HOST_LEVEL
    of: Name | NamesOf | None = None
    target: PolicyTarget | None = None
    max_per_domain: Count | None = None
    min_domains: Count | None = None
    max_skew: CountOrZero | None = None
    prices: Annotated[list[LevelPrice], msgspec.Meta(max_length=PRICES_MAX)] = []
    beyond: Price = 1.0
    soft: Weight | None = None
    drop: Order | None = None

    def __post_init__(self) -> None:
        base.share_defaults(self)
        if self.soft is not None and self.drop is not None:
            raise FieldError('drop', 'expected one of soft and drop, got both')
        for field, of in _POLICIES_WITH_FIELD.items():
            if getattr(self, field) not in (None, []) and self.policy not in of:
                expected = ' and '.join(kind.value for kind in of)
                raise FieldError(
                    field, f'expected none: only {expected} has it, not {self.policy.value}'
                )
        amounts = (self.max_per_domain, self.min_domains, self.max_skew)
        if self.policy is GroupPolicyKind.SPREAD and amounts == (None, None, None):
            raise FieldError(
                'min_domains', 'expected one of min_domains, max_per_domain and max_skew'
            )
        self._check_target()
        self._check_prices()

    def _check_target(self) -> None:
        if self.policy is GroupPolicyKind.NEAR and self.target is None:
            raise FieldError('target', 'expected a target: a near policy needs one')
        if self.target is None or self.policy is GroupPolicyKind.NEAR:
            return
        if self.max_per_domain is not None:
            raise FieldError(
                'max_per_domain', 'expected none where there is a target: none may be together'
            )
        if self.target.pool is not None:
            raise FieldError(
                'target.pool', 'expected of, group, host or domain: only near may have a pool'
            )

    def _check_prices(self) -> None:
        if (self.prices or self.beyond != 1.0) and self.soft is None:
            raise FieldError(
                'prices',
                'expected none: only a soft policy, with the field soft, has prices',
            )
        prices = [level_price.price for level_price in self.prices]
        if prices != sorted(prices) or (prices and prices[-1] > self.beyond):
            raise FieldError('prices', 'expected the nearest level first, and none above "beyond"')

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


_POLICIES_WITH_FIELD = {
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


#: Value of the policy of a group that has such a document.
POLICIES_POLICY = 'policies'
#: Parsed documents kept in memory.
_CACHED_SETS_MAX = 4096

Policies = Annotated[list[Policy | LevelPolicy], msgspec.Meta(max_length=base.LIST_MAX)]
Subgroups = Annotated[
    dict[Name, Annotated[list[Name], msgspec.Meta(max_length=base.LIST_MAX)]],
    msgspec.Meta(max_length=base.LIST_MAX),
]
MemberNames = Annotated[list[Name], msgspec.Meta(max_length=MEMBERS_MAX)]
_NUMBERED_NAME = re.compile(r'^(.+)-[1-9][0-9]*\Z', re.S)


class PolicySet(Message, frozen=True, kw_only=True):
    """Policies of a group and the subgroups that they are about.

    :ivar policies: a name of Nova's is the policy of that name at the level of hosts
    :ivar subgroups: name -> names of members
    :ivar members: names of all members; empty: those of the subgroups
    """

    policies: Policies
    subgroups: Subgroups = {}
    members: MemberNames = []

    def __post_init__(self) -> None:
        for name, names in self.subgroups.items():
            check_subgroup(f'subgroups.{name}', name, names, self.members)
        member_names = self.names
        for number, policy in enumerate(self.full_policies):
            check_names(f'policies[{number}]', policy, member_names, self.subgroups)

    @property
    def names(self) -> list[str]:
        """Members that are known by name."""
        if self.members:
            return self.members
        return list(
            dict.fromkeys(name for subgroup in self.subgroups.values() for name in subgroup)
        )

    @property
    def full_policies(self) -> list[LevelPolicy]:
        """Policies, with Nova's written out."""
        return full_policies(self.policies)

    @property
    def is_hard(self) -> bool:
        """True where a policy is hard."""
        return any(policy.is_hard for policy in self.full_policies)

    @property
    def has_hard_skew(self) -> bool:
        """True where a hard policy bounds how unevenly domains are used."""
        return any(policy.is_hard and policy.max_skew is not None for policy in self.full_policies)

    @property
    def has_near_members(self) -> bool:
        """True where members have to be near to others of the group, not just at a price."""
        near = GroupPolicyKind.NEAR
        return any(
            policy.policy is near and policy.soft is None and policy.target.of is not None
            for policy in self.full_policies
            if policy.target is not None
        )

    @property
    def is_soft(self) -> bool:
        """True where a policy is weighed."""
        return any(policy.soft is not None for policy in self.full_policies)

    @property
    def has_steps(self) -> bool:
        """True where a policy is given up in an order."""
        return any(policy.drop is not None for policy in self.full_policies)

    @property
    def other_groups(self) -> list[str]:
        """Uuids of other groups that hard policies are about, each once."""
        targets = [p.target for p in self.full_policies if p.is_hard and p.target is not None]
        return sorted({target.group for target in targets if target.group is not None})

    def members_of(self, subject: str) -> list[str]:
        """Return names of the members that a subgroup or member is."""
        return self.subgroups.get(subject, [subject])

    def member_of(self, name: str | None) -> str:
        """Return the described member of a name, as ``web`` for ``web-2``; '': none.

        :param name: name of a member, or of one of those that are alike
        """
        if name is None:
            return ''
        member_names = self.names
        numbered = None if name in member_names else _NUMBERED_NAME.match(name)
        return numbered[1] if numbered is not None and numbered[1] in member_names else name

    @property
    def text(self) -> str:
        """Canonical text of the document, as stored and compared."""
        plain = msgspec.structs.replace(
            self,
            policies=[_shortest(policy) for policy in self.policies],
            subgroups={name: sorted(of) for name, of in self.subgroups.items()},
            members=sorted(self.members),
        )
        return _encode(_without_defaults(plain)).decode()

    def in_words(self) -> str:
        """Return the policies as text for people, each by its line."""
        return '; '.join(
            f'{policy.line(subject)}{strength(policy)}'
            for policy in self.full_policies
            for subject in policy.subjects
        )


def full_policies(policies: Sequence[Policy | LevelPolicy]) -> list[LevelPolicy]:
    """Return Nova's policies as policies at the level of hosts."""
    return [
        SHORTHANDS[Policy(policy)] if isinstance(policy, str) else policy for policy in policies
    ]


@functools.lru_cache(maxsize=_CACHED_SETS_MAX)
def read(text: str) -> PolicySet:
    """Return a stored document.

    :raises RuleUnreadable: by this release
    """
    try:
        return msgspec.json.decode(text, type=PolicySet)
    except (msgspec.MsgspecError, ValueError) as e:
        problem = quoting.plain_text(str(e), quoting.SENTENCE_CHARACTERS_MAX)
        raise exceptions.RuleUnreadable(problem=problem) from e


def check_subgroup(
    field: str, name: str, names: Sequence[str], known: Collection[str] = ()
) -> None:
    """Check the members of a subgroup.

    :param known: names of all members; empty: not known
    :raises FieldError: it is no subgroup of these
    """
    if name in known:
        raise FieldError(field, 'expected a name that no member has')
    if not names:
        raise FieldError(field, 'expected at least one member, got none')
    for number, member in enumerate(names):
        if known and member not in known:
            raise FieldError(f'{field}[{number}]', _unknown('member', member, list(known)))
        if member in names[:number]:
            raise FieldError(f'{field}[{number}]', f'{member!r} is listed twice')


def check_names(
    field: str,
    policy: LevelPolicy,
    members: Collection[str],
    subgroups: Mapping[str, Sequence[str]],
) -> None:
    """Check the names in a policy.

    :raises FieldError: it names an unknown member, or the same one as its target
    """
    names = list(dict.fromkeys([*members, *subgroups]))
    references = [('of', member) for member in policy.subjects if member is not None]
    target = None if policy.target is None else policy.target.of
    if target is not None:
        references.append(('target.of', target))
    for at, name in references:
        if name not in names:
            raise FieldError(f'{field}.{at}', _unknown('subgroup or member', name, names))
    if target is None:
        return
    target_members = set(subgroups.get(target, [target]))
    for subject in policy.subjects:
        both = target_members & set(
            members if subject is None else subgroups.get(subject, [subject])
        )
        if both or subject is None:
            raise FieldError(
                f'{field}.target.of',
                f'expected members that the policy is not about; both have '
                f'{min(both or target_members)}',
            )


def _unknown(what: str, name: str, known: list[str]) -> str:
    meant = nearest_names(name, known, 1)
    hint = f'did you mean {meant[0]!r}?' if meant else f'known: {", ".join(known[:12]) or "none"}'
    return f'there is no {what} {name!r}; {hint}'


def _shortest(policy: Policy | LevelPolicy) -> Policy | LevelPolicy:
    if isinstance(policy, str):
        return Policy(policy)
    if isinstance(policy.of, list) and len(policy.of) == 1:
        policy = msgspec.structs.replace(policy, of=policy.of[0])
    return next((short for short, long in SHORTHANDS.items() if long == policy), policy)


def _without_defaults(value: Any) -> Any:
    """Return a message as builtins, without fields that have their default."""
    if isinstance(value, Message):
        return {
            name: _without_defaults(inner)
            for name, default in _defaults(type(value))
            if (inner := getattr(value, name)) != default
        }
    if isinstance(value, dict):
        return {name: _without_defaults(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_defaults(inner) for inner in value]
    return value


@functools.cache
def _defaults(tp: type) -> Sequence[tuple[str, Any]]:
    return [
        (f.name, f.default if f.default_factory is msgspec.NODEFAULT else f.default_factory())
        for f in msgspec.structs.fields(tp)
    ]


def strength(policy: LevelPolicy) -> str:
    """Return the strength of a policy, to follow its line; '' for a hard one."""
    if policy.soft is not None:
        return f' (soft {policy.soft:g})'
    return '' if policy.drop is None else f' (drop {policy.drop})'


_encode = msgspec.json.Encoder(order='deterministic').encode
