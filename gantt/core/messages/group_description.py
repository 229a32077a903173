# SPDX-License-Identifier: Apache-2.0
"""A group that is placed as a whole: its members, subgroups and policies.

One description, versioned, for every interface.  A policy is about all members, or about one
subgroup or member; it holds at a level: hosts that are one domain there are one to it.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from gantt.core.messages import base
from gantt.core.messages.base import Message, Misfit, Name, Uuid
from gantt.core.messages.level_policy import MEMBERS_MAX, Count, LevelPolicy, Many
from gantt.core.messages.policy_set import (
    Policies,
    PolicySet,
    Subgroups,
    check_names,
    check_subgroup,
    written_out,
)
from gantt.core.messages.request import Purpose, RequestKind, RequestSpec

#: Version of this format.
VERSION = 1
ALTERNATIVES_MAX = 8
#: Most subjects of all policies together: each is counted for every member and domain.
SUBJECTS_MAX = 2000


class MemberDescription(Message, frozen=True, kw_only=True):
    """Members that are alike; what their creates alone are told is refused by name.

    :ivar name: of one; several are ``name-1``, ``name-2`` and so on
    :ivar count: how many, or [least, most]: the least have to be placed
    :ivar spec: what one of them needs, as in a request of its own, without a server group
    :ivar alternatives: what will do as well, where that is not to be had, the best first
    """

    name: Name
    count: Count | Annotated[list[Many], msgspec.Meta(min_length=2, max_length=2)] = 1
    spec: RequestSpec
    alternatives: Annotated[list[RequestSpec], msgspec.Meta(max_length=ALTERNATIVES_MAX)] = []

    def __post_init__(self) -> None:
        if isinstance(self.count, list) and not (self.least <= self.most and self.most):
            raise Misfit('count', f'expected [least, most] with least <= most; got {self.count}')
        for number, spec in enumerate(self.specs):
            where = 'spec' if not number else f'alternatives[{number - 1}]'
            if spec.group is not None:
                raise Misfit(f'{where}.group', 'expected none: the policies of the group hold')
            if spec.kind is not RequestKind.HOST:
                raise Misfit(f'{where}.kind', 'expected host: pools are not placed in groups')
            if spec.purpose is not Purpose.CREATE:
                raise Misfit(f'{where}.purpose', 'expected create')
            if spec.destination is not None and len(spec.destination.hosts) > 1:
                raise Misfit(
                    f'{where}.destination.hosts',
                    'expected at most one: members of a group are placed together, and the order '
                    'of hosts would not be kept; name an aggregate, or a rule',
                )
            if spec.max_resources:
                raise Misfit(
                    f'{where}.max_resources',
                    'expected none: a place has one amount; write larger amounts first, and what '
                    'will do as well as alternatives',
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
    """Whether creates may be of the group that no planned place is for."""

    REFUSED = 'refused'
    ALLOWED = 'allowed'  # under the policies of the group


class GroupDescription(Message, frozen=True, kw_only=True):
    """See the module docstring.

    :ivar uuid: of the server group; members of it that stand already count towards policies
    :ivar policies: a name of Nova's is the policy of that name at the level of hosts
    :ivar subgroups: name -> names of members
    :ivar on_difference: of creates that name a member and are not as it was planned
    :ivar others: creates that name no member and are as none
    """

    version: Annotated[int, msgspec.Meta(ge=1, le=VERSION)] = VERSION
    uuid: Uuid | None = None
    policies: Policies = []
    subgroups: Subgroups = {}
    members: Annotated[
        list[MemberDescription], msgspec.Meta(min_length=1, max_length=base.LIST_MAX)
    ]
    on_difference: OnDifference = OnDifference.REFUSE
    others: OtherConsumers = OtherConsumers.REFUSED

    def __post_init__(self) -> None:
        _check_members(self.members)
        by_name = {member.name: member for member in self.members}
        for name, names in self.subgroups.items():
            check_subgroup(f'subgroups.{name}', name, names, by_name)
        subjects = 0
        for number, policy in enumerate(self.full_policies):
            subjects += len(policy.subjects)
            if subjects > SUBJECTS_MAX:
                raise Misfit(
                    f'policies[{number}].of',
                    f'expected at most {SUBJECTS_MAX} subgroups and members in all policies',
                )
            check_names(f'policies[{number}]', policy, by_name, self.subgroups)
            self._check_numbers(f'policies[{number}]', policy, by_name)

    @property
    def full_policies(self) -> list[LevelPolicy]:
        """Policies, with Nova's written out."""
        return written_out(self.policies)

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
        self, field: str, policy: LevelPolicy, known: Mapping[str, MemberDescription]
    ) -> None:
        for subject in policy.subjects:
            total = sum(known[name].most for name in self.members_of(subject))
            if policy.min_domains is not None and policy.min_domains > total:
                raise Misfit(
                    f'{field}.min_domains',
                    f'expected at most {total}, as many as there are members; '
                    f'got {policy.min_domains}',
                )


def _check_members(members: Sequence[MemberDescription]) -> None:
    names: set[str] = set()
    for number, member in enumerate(members):
        for name in {member.name, *member.unit_names}:
            if name in names:
                raise Misfit(f'members[{number}].name', f'{name!r} is the name of another member')
        longest = member.unit_names[-1]
        if len(longest) > base.NAME_MAX:
            raise Misfit(
                f'members[{number}].name',
                f'expected at most {base.NAME_MAX} characters with the number of the last one; '
                f'got {len(longest)}',
            )
        names.update((member.name, *member.unit_names))
    total = sum(member.most for member in members)
    if total > MEMBERS_MAX:
        raise Misfit('members', f'expected at most {MEMBERS_MAX} in all, got {total}')


def read(body: Any, inside: str = 'group', newer_minor: bool = False) -> GroupDescription:
    """Return a description from builtins.

    :param inside: its name in an error
    :raises InvalidMessage: names the field and the expected value
    """
    return base.decode(body, GroupDescription, inside=inside, newer_minor=newer_minor)
