# SPDX-License-Identifier: Apache-2.0
"""The policies of a group as one document, which is stored, compared and enforced.

A planned group has the names of its members in it; in a group created by itself the members are
those that its subgroups name.
"""

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from gantt import exceptions
from gantt.core.messages import base, quoting
from gantt.core.messages.base import Message, Misfit, Name
from gantt.core.messages.level_policy import (
    MEMBERS_MAX,
    SHORTHANDS,
    GroupPolicyKind,
    LevelPolicy,
    Policy,
)
from gantt.core.messages.near import near

#: Value of the policy of a group that has such a document.
POLICIES = 'policies'
#: Parsed documents kept in memory.
_READ_MAX = 4096

Policies = Annotated[list[Policy | LevelPolicy], msgspec.Meta(max_length=base.LIST_MAX)]
Subgroups = Annotated[
    dict[Name, Annotated[list[Name], msgspec.Meta(max_length=base.LIST_MAX)]],
    msgspec.Meta(max_length=base.LIST_MAX),
]
MemberNames = Annotated[list[Name], msgspec.Meta(max_length=MEMBERS_MAX)]
_NUMBERED = re.compile(r'^(.+)-[1-9][0-9]*\Z', re.S)


class PolicySet(Message, frozen=True, kw_only=True):
    """See the module docstring.

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
        return written_out(self.policies)

    @property
    def is_hard(self) -> bool:
        """True where one of them is hard."""
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
        """True where one of them is weighed."""
        return any(policy.soft is not None for policy in self.full_policies)

    @property
    def has_steps(self) -> bool:
        """True where one of them is given up in order."""
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
        numbered = None if name in member_names else _NUMBERED.match(name)
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
        return _encode(_sorted_out(plain)).decode()

    def in_words(self) -> str:
        """Return the policies as text for people, each by its line."""
        return '; '.join(
            f'{policy.line(subject)}{strength(policy)}'
            for policy in self.full_policies
            for subject in policy.subjects
        )


def written_out(policies: Sequence[Policy | LevelPolicy]) -> list[LevelPolicy]:
    """Return Nova's policies as policies at the level of hosts."""
    return [
        SHORTHANDS[Policy(policy)] if isinstance(policy, str) else policy for policy in policies
    ]


@functools.lru_cache(maxsize=_READ_MAX)
def read(text: str) -> PolicySet:
    """Return a stored document.

    :raises RuleUnreadable: by this release
    """
    try:
        return msgspec.json.decode(text, type=PolicySet)
    except (msgspec.MsgspecError, ValueError) as e:
        problem = quoting.plain(str(e), quoting.SENTENCE_MAX)
        raise exceptions.RuleUnreadable(problem=problem) from e


def check_subgroup(
    field: str, name: str, names: Sequence[str], known: Collection[str] = ()
) -> None:
    """Check the members of a subgroup.

    :param known: names of all members; empty: not known
    :raises Misfit: it is no subgroup of these
    """
    if name in known:
        raise Misfit(field, 'expected another name: a member is called so')
    if not names:
        raise Misfit(field, 'expected at least one member, got none')
    for number, member in enumerate(names):
        if known and member not in known:
            raise Misfit(f'{field}[{number}]', _unknown('member', member, list(known)))
        if member in names[:number]:
            raise Misfit(f'{field}[{number}]', f'{member!r} stands there twice')


def check_names(
    field: str,
    policy: LevelPolicy,
    members: Collection[str],
    subgroups: Mapping[str, Sequence[str]],
) -> None:
    """Check the names in a policy.

    :raises Misfit: it names an unknown member, or the same one as its target
    """
    names = list(dict.fromkeys([*members, *subgroups]))
    references = [('of', member) for member in policy.subjects if member is not None]
    target = None if policy.target is None else policy.target.of
    if target is not None:
        references.append(('target.of', target))
    for at, name in references:
        if name not in names:
            raise Misfit(f'{field}.{at}', _unknown('subgroup or member', name, names))
    if target is None:
        return
    target_members = set(subgroups.get(target, [target]))
    for subject in policy.subjects:
        both = target_members & set(
            members if subject is None else subgroups.get(subject, [subject])
        )
        if both or subject is None:
            raise Misfit(
                f'{field}.target.of',
                f'expected others than the policy is of; both have {min(both or target_members)}',
            )


def _unknown(what: str, name: str, known: list[str]) -> str:
    meant = near(name, known, 1)
    hint = f'did you mean {meant[0]!r}?' if meant else f'known: {", ".join(known[:12]) or "none"}'
    return f'there is no {what} {name!r}; {hint}'


def _shortest(policy: Policy | LevelPolicy) -> Policy | LevelPolicy:
    if isinstance(policy, str):
        return Policy(policy)
    if isinstance(policy.of, list) and len(policy.of) == 1:
        policy = msgspec.structs.replace(policy, of=policy.of[0])
    return next((short for short, long in SHORTHANDS.items() if long == policy), policy)


def _sorted_out(value: Any) -> Any:
    """Return a message as builtins, without fields that have their default."""
    if isinstance(value, Message):
        return {
            name: _sorted_out(inner)
            for name, default in _defaults(type(value))
            if (inner := getattr(value, name)) != default
        }
    if isinstance(value, dict):
        return {name: _sorted_out(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_sorted_out(inner) for inner in value]
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
