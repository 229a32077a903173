# SPDX-License-Identifier: Apache-2.0
"""Policies that members of a group violate where they are, and those that cannot be kept.

A child zone names no host and no place in its topology: a member there is only known to be on no
local host, so that most hard policies cannot be judged.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gantt.core.group_policies.forms import PolicyForms, present_guests_of_group
from gantt.core.group_policies.levels import Levels
from gantt.core.group_policies.policies import JointPolicy, violation, with_eligible
from gantt.core.messages.policy_set import HOST_LEVEL, GroupPolicyKind, LevelPolicy
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.groups.model.group_description import GroupDescription

#: Evaluations of policies to choose who leaves: about a second.
EVALUATIONS_MAX = 50_000


class PresentMember(NamedTuple):
    """Member that has a place.

    :ivar name: its own; ``member`` is that of its description
    """

    name: str
    member: str
    consumer: str
    provider_id: int


class PolicyViolation(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that members violate where they are: only a move of one of them could mend it.

    :ivar policy: index in the description
    :ivar line: the policy in words
    :ivar amount: by how much, see ``violation``
    :ivar members: names of those without whom it would be less
    """

    policy: int
    line: str
    amount: float
    members: list[str] = []
    is_hard: bool = True


class _PresentUnits:
    """Present members, as units that have their rows."""

    def __init__(self, members: Sequence[PresentMember]) -> None:
        self.names = [member.name for member in members]
        self._members = np.array([member.member for member in members], object)

    def of(self, names: Sequence[str] | None) -> BoolArray:
        """Return a mask of the units that are members of these names; None: all."""
        if names is None:
            return np.ones(len(self.names), np.bool_)
        name_set = frozenset(names)
        return np.array([member in name_set for member in self._members], np.bool_)


def find_violations(
    table: HostTable,
    description: GroupDescription,
    members: Sequence[PresentMember],
) -> list[PolicyViolation]:
    """Return the violations of each policy by present members.

    :param members: other guests of the group count as well, as members of unknown names
    :raises InvalidMessage: a policy names a level, host or pool that there is not
    """
    rows = np.array([_row_of_host(table, member.provider_id) for member in members], np.int64)
    names = [member.name for member in members]
    violations = []
    for index, policy, form in _forms(table, description, members):
        amount = violation(form, rows)
        if amount > 0:
            violations.append(
                PolicyViolation(
                    policy=index,
                    line=form.line,
                    amount=amount,
                    members=_violating_members(form, rows, amount, names),
                    is_hard=policy.is_hard,
                )
            )
    return violations


def choose_leaving(
    table: HostTable,
    description: GroupDescription,
    members: Sequence[PresentMember],
    candidates: Collection[str],
    count: int,
) -> list[str]:
    """Return names of the members without which the group violates its policies least.

    One after the other: hard policies count first, then those that may be given up, then soft ones
    by their weights; of members that are equal to them the last one by name leaves.  Beyond
    ``EVALUATIONS_MAX`` evaluations of a policy the last ones by name leave.

    :param members: all present members
    :param candidates: names of those that may leave; ``count`` of them do
    """
    rows = np.array([_row_of_host(table, member.provider_id) for member in members], np.int64)
    forms = _forms(table, description, members)
    leaving: list[str] = []
    by_name = sorted(
        (i for i, member in enumerate(members) if member.name in candidates),
        key=lambda i: (len(members[i].name), members[i].name),
        reverse=True,
    )
    evaluations = 0
    for _ in range(count):
        leaver = by_name[0]
        if forms and evaluations < EVALUATIONS_MAX:
            alike = dict[tuple[str, int], int]()  # on one host they are equal to every policy
            for i in by_name:
                alike.setdefault((members[i].member, int(rows[i])), i)
            evaluations += len(alike) * len(forms)
            leaver = min(alike.values(), key=lambda i: _harm_without(forms, rows, i))
        leaving.append(members[leaver].name)
        rows[leaver] = -1
        by_name.remove(leaver)
    return leaving


def _harm_without(
    forms: Sequence['_Form'], rows: IntArray, unit: int
) -> tuple[float, float, float]:
    """Return the violations without one member: of hard policies, droppable and soft ones."""
    hard = droppable = soft = 0.0
    remaining = rows.copy()
    remaining[unit] = -1
    for form in forms:
        amount = violation(form.policy, remaining)
        if form.description.is_hard:
            hard += amount
        elif form.description.soft is None:
            droppable += amount
        else:
            soft += amount * form.description.soft
    return hard, droppable, soft


class _Form(NamedTuple):
    """One form of a policy of a description."""

    number: int
    description: LevelPolicy
    policy: JointPolicy


def _forms(
    table: HostTable, description: GroupDescription, members: Sequence[PresentMember]
) -> list[_Form]:
    """Return the forms of all policies, for present members as units.

    :raises InvalidMessage: a policy names a level, host or pool that there is not
    """
    levels, units = Levels(table), _PresentUnits(members)
    consumers = frozenset(member.consumer for member in members)
    others = present_guests_of_group(table, description.uuid, {}, without=consumers)
    return [
        _Form(index, policy, with_eligible(form, table.enabled))
        for index, policy in enumerate(description.full_policies)
        for form in PolicyForms(levels, others, units, description, index, policy).all()
    ]


def _row_of_host(table: HostTable, provider_id: int) -> int:
    row = table.row_of_id(provider_id)
    return -1 if row is None else row


def _violating_members(
    policy: JointPolicy, rows: IntArray, amount: float, names: Sequence[str]
) -> list[str]:
    offenders = []
    for unit in np.flatnonzero(policy.subject_units | policy.target_units).tolist():
        without = rows.copy()
        without[unit] = -1
        if violation(policy, without) < amount:
            offenders.append(names[unit])
    return offenders


_APART_KINDS = (GroupPolicyKind.ANTI_AFFINITY, GroupPolicyKind.EXCLUSIVE)


def policies_at_risk(
    policies: Sequence[LevelPolicy], has_members_below: bool, others: Collection[str]
) -> list[str]:
    """Return lines of hard policies that would be broken here, or cannot be judged.

    :param has_members_below: members of the group itself are below; their names are unknown, so
        that policies of subgroups and members do not count them
    :param others: uuids of other groups that have members below
    """
    lines = []
    for policy in policies:
        target = None if policy.target is None else policy.target.group
        is_about = target in others if target is not None else has_members_below
        if not policy.is_hard or not is_about or _is_satisfied(policy):
            continue
        if target is not None or policy.of is None:
            lines += [policy.line(subject) for subject in policy.subjects]
    return lines


def _is_satisfied(policy: LevelPolicy) -> bool:
    """Return whether guests on other hosts, whichever these are, cannot break the policy."""
    if policy.level != HOST_LEVEL:
        return False
    if policy.policy is GroupPolicyKind.SPREAD:
        return policy.min_domains is None and policy.max_skew is None
    return policy.policy in _APART_KINDS
