# SPDX-License-Identifier: Apache-2.0
"""A group that is placed as a whole: its members, subgroups and policies.

One description, versioned, for every interface.  A policy is about all members, or about one
subgroup or member; it holds at a level: hosts that are one domain there are one to it.
"""

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.base import FieldError, Message, Name, Uuid
from gantt.core.messages.policy_set import (
    MEMBERS_MAX,
    Count,
    CountOrZero,
    LevelPolicy,
    Policies,
    PolicySet,
    Subgroups,
    check_names,
    check_subgroup,
    full_policies,
    strength,
)
from gantt.core.messages.request import Purpose, RequestKind, RequestSpec

#: Names that paths, files and command lines take as they are.
_NAME = re.compile(r'[^\W_][\w.-]*')
#: Difference of two numbers of members.
_DIFFERENCE = re.compile('[+-][0-9]{1,6}')
#: Version of this format.
VERSION = 1
ALTERNATIVES_MAX = 8
#: Most subjects of all policies together: each is counted for every member and domain.
SUBJECTS_MAX = 2000


class MemberDescription(Message, frozen=True, kw_only=True):
    """Members that are alike; fields that only their creates may have are refused by name.

    :ivar name: name of a single member; several are ``name-1``, ``name-2`` and so on
    :ivar count: number of members, or [least, most]: the least have to be placed
    :ivar spec: what each member needs, as in a request of its own, without a server group
    :ivar alternatives: specs that will do as well where ``spec`` cannot be met, the best first
    """

    name: Name
    count: Count | Annotated[list[CountOrZero], msgspec.Meta(min_length=2, max_length=2)] = 1
    spec: RequestSpec
    alternatives: Annotated[list[RequestSpec], msgspec.Meta(max_length=ALTERNATIVES_MAX)] = []

    def __post_init__(self) -> None:
        if isinstance(self.count, list) and not (self.least <= self.most and self.most):
            raise FieldError(
                'count', f'expected [least, most] with least <= most; got {self.count}'
            )
        for number, spec in enumerate(self.specs):
            where = 'spec' if not number else f'alternatives[{number - 1}]'
            if spec.group is not None:
                raise FieldError(
                    f'{where}.group', 'expected none: the policies of the planned group apply'
                )
            if spec.kind is not RequestKind.HOST:
                raise FieldError(f'{where}.kind', 'expected host: pools are not placed in groups')
            if spec.purpose is not Purpose.CREATE:
                raise FieldError(f'{where}.purpose', 'expected create')
            if spec.destination is not None and len(spec.destination.hosts) > 1:
                raise FieldError(
                    f'{where}.destination.hosts',
                    'expected at most one: members of a group are placed together, and the order '
                    'of hosts would not be kept; name an aggregate, or a rule',
                )
            if spec.max_resources:
                raise FieldError(
                    f'{where}.max_resources',
                    'expected none: a reservation has one amount of a class; write larger '
                    'amounts first, and what will do as well as alternatives',
                )

    @property
    def least(self) -> int:
        """Number of members that have to be placed."""
        return self.count[0] if isinstance(self.count, list) else self.count

    @property
    def most(self) -> int:
        """Number of members requested."""
        return self.count[1] if isinstance(self.count, list) else self.count

    @property
    def specs(self) -> list[RequestSpec]:
        """Spec of a member, then its alternatives."""
        return [self.spec, *self.alternatives]

    @property
    def unit_names(self) -> list[str]:
        """Names of the single members."""
        if self.most == 1:
            return [self.name]
        return [f'{self.name}-{number}' for number in range(1, self.most + 1)]


class OnDifference(enum.StrEnum):
    """Treatment of a create that names a member and differs from its plan."""

    REFUSE = 'refuse'  # by the fields that differ
    REPLAN = 'replan'  # placed anew under the policies of the group; the planned place is let go


class OtherConsumers(enum.StrEnum):
    """Treatment of creates in the group for which the plan has no reservation."""

    REFUSED = 'refused'
    ALLOWED = 'allowed'  # under the policies of the group


class GroupDescription(Message, frozen=True, kw_only=True):
    """Description of a group that is placed as a whole: members, subgroups, policies.

    :ivar uuid: uuid of the server group; its present members count towards policies
    :ivar name: name of the group, unique in its project; the uuid follows from both
    :ivar policies: a name of Nova's is the policy of that name at the level of hosts
    :ivar subgroups: name -> names of members
    :ivar on_difference: treatment of creates that name a member and differ from its plan
    :ivar others: treatment of creates that name no member and match none
    """

    version: Annotated[int, msgspec.Meta(ge=1, le=VERSION)] = VERSION
    uuid: Uuid | None = None
    name: Name | None = None
    policies: Policies = []
    subgroups: Subgroups = {}
    members: Annotated[
        list[MemberDescription], msgspec.Meta(min_length=1, max_length=base.LIST_MAX)
    ]
    on_difference: OnDifference = OnDifference.REFUSE
    others: OtherConsumers = OtherConsumers.REFUSED

    def __post_init__(self) -> None:
        if self.name is not None:
            if _NAME.fullmatch(self.name) is None:
                raise FieldError(
                    'name',
                    'expected letters, digits, ".", "_" and "-", a letter or digit first; '
                    f'got {self.name!r}',
                )
            if base.is_uuid(self.name.lower()):
                raise FieldError('name', f'expected a name that is no uuid; got {self.name!r}')
        _check_members(self.members)
        by_name = {member.name: member for member in self.members}
        for name, names in self.subgroups.items():
            check_subgroup(f'subgroups.{name}', name, names, by_name)
        subjects = 0
        for number, policy in enumerate(self.full_policies):
            subjects += len(policy.subjects)
            if subjects > SUBJECTS_MAX:
                raise FieldError(
                    f'policies[{number}].of',
                    f'expected at most {SUBJECTS_MAX} subgroups and members in all policies',
                )
            check_names(f'policies[{number}]', policy, by_name, self.subgroups)
            self._check_numbers(f'policies[{number}]', policy, by_name)

    @property
    def full_policies(self) -> list[LevelPolicy]:
        """Policies, with Nova's written out."""
        return full_policies(self.policies)

    @property
    def specs_by_path(self) -> list[tuple[str, RequestSpec]]:
        """Specs of members, alternatives too, each with its path below the description."""
        return [
            (f'members[{number}].{f"alternatives[{at - 1}]" if at else "spec"}', spec)
            for number, member in enumerate(self.members)
            for at, spec in enumerate(member.specs)
        ]

    @property
    def policy_set(self) -> PolicySet:
        """Policies as a document, with the names of its members."""
        return PolicySet(
            policies=self.policies,
            subgroups=self.subgroups,
            members=[member.name for member in self.members],
        )

    def members_of(self, subject: str | None) -> list[str]:
        """Return names of the members that a subgroup or member is; None: all."""
        if subject is None:
            return [member.name for member in self.members]
        return self.subgroups.get(subject, [subject])

    def _check_numbers(
        self, field: str, policy: LevelPolicy, members: Mapping[str, MemberDescription]
    ) -> None:
        for subject in policy.subjects:
            total = sum(members[name].most for name in self.members_of(subject))
            if policy.min_domains is not None and policy.min_domains > total:
                raise FieldError(
                    f'{field}.min_domains',
                    f'expected at most {total}, as many as there are members; '
                    f'got {policy.min_domains}',
                )


def uuid_of_name(project_id: str | None, name: str) -> str:
    """Return the uuid of the group of this name in a project: there is one of each name."""
    return base.named_id('named group', project_id or '', name)


def changes(before: GroupDescription, after: GroupDescription) -> list[str]:
    """Return a line for each difference of two descriptions of one group."""
    lines = []
    old = {member.name: member for member in before.members}
    new = {member.name: member for member in after.members}
    lines += [f'member {name} goes' for name in old if name not in new]
    for name, member in new.items():
        if name not in old:
            lines.append(f'member {name} comes: {_count_text(member)}')
            continue
        if old[name].count != member.count:
            lines.append(f'member {name}: {_count_text(old[name])} -> {_count_text(member)}')
        lines += [
            f'member {name}: {path} differs'
            for path in _different_fields(old[name], member)
            if path != 'count'
        ]
    old_lines, new_lines = _policy_lines(before), _policy_lines(after)
    if old_lines == new_lines and before.full_policies != after.full_policies:
        lines.append('policies: prices or other numbers of the same policies differ')
    lines += [f'without policy: {line}' for line in old_lines if line not in new_lines]
    lines += [f'with policy: {line}' for line in new_lines if line not in old_lines]
    ignored = {'members', 'policies', 'uuid'}
    lines += [f'{path} differs' for path in _different_fields(before, after) if path not in ignored]
    return lines


def _policy_lines(description: GroupDescription) -> list[str]:
    return [
        f'{policy.line(subject)}{strength(policy)}'
        for policy in description.full_policies
        for subject in policy.subjects
    ]


def _count_text(member: MemberDescription) -> str:
    return f'{member.least}..{member.most}' if isinstance(member.count, list) else f'{member.count}'


def _different_fields(before: msgspec.Struct, after: msgspec.Struct) -> list[str]:
    fields = before.__struct_fields__
    paths = []
    for field in fields:
        old, new = getattr(before, field), getattr(after, field)
        if old == new:
            continue
        is_spec = isinstance(old, RequestSpec)
        paths += [f'{field}.{path}' for path in _different_fields(old, new)] if is_spec else [field]
    return paths


def scaled(
    description: GroupDescription, counts: Mapping[str, int | str | list[int]], field: str
) -> GroupDescription:
    """Return a description with other numbers of members.

    :param counts: name of a member -> a number, ``[least, most]``, or the difference to the present
        number as ``+2`` or ``-1``
    :param field: name of ``counts`` in an error
    :raises InvalidMessage: names the member and the expected value
    """
    builtins = msgspec.to_builtins(description)
    by_name = {member['name']: number for number, member in enumerate(builtins['members'])}
    for name, count in counts.items():
        number = by_name.get(name)
        if number is None:
            raise exceptions.invalid(
                f'{field}.{name}', f'expected a member of the group: one of {", ".join(by_name)}'
            )
        member = builtins['members'][number]
        if isinstance(count, str):
            difference = _DIFFERENCE.fullmatch(count)
            if difference is None:
                raise exceptions.invalid(
                    f'{field}.{name}',
                    'expected a number, [least, most], or a difference such as "+2" or "-1"; '
                    f'got {count!r}',
                )
            now = member.get('count', 1)
            if isinstance(now, list):
                raise exceptions.invalid(
                    f'{field}.{name}', f'expected [least, most], as it has {now}; got {count!r}'
                )
            count = now + int(count)
            if count < 1:
                raise exceptions.invalid(
                    f'{field}.{name}', f'expected to leave 1 at least of {now}; got {count - now}'
                )
        member['count'] = count
    try:
        return read(builtins)
    except exceptions.InvalidMessage as e:
        for name, number in by_name.items():
            if e.kwargs['field'] == f'group.members[{number}].count':
                raise exceptions.invalid(f'{field}.{name}', str(e.kwargs['problem'])) from None
        raise


def _check_members(members: Sequence[MemberDescription]) -> None:
    names: set[str] = set()
    for number, member in enumerate(members):
        for name in {member.name, *member.unit_names}:
            if name in names:
                raise FieldError(
                    f'members[{number}].name', f'{name!r} is the name of another member'
                )
        longest = member.unit_names[-1]
        if len(longest) > base.NAME_MAX:
            raise FieldError(
                f'members[{number}].name',
                f'expected at most {base.NAME_MAX} characters with the number of the last one; '
                f'got {len(longest)}',
            )
        names.update((member.name, *member.unit_names))
    total = sum(member.most for member in members)
    if total > MEMBERS_MAX:
        raise FieldError('members', f'expected at most {MEMBERS_MAX} in all, got {total}')


def read(body: Any, inside: str = 'group', newer_minor: bool = False) -> GroupDescription:
    """Return a description from builtins.

    :param inside: name of the description in an error
    :raises InvalidMessage: names the field and the expected value
    """
    return base.decode(body, GroupDescription, inside=inside, newer_minor=newer_minor)
