# SPDX-License-Identifier: Apache-2.0
"""Policies that members of a group violate on their present hosts, beside other guests."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gantt.core.group_policies.forms import PolicyForms
from gantt.core.group_policies.levels import Levels
from gantt.core.group_policies.policies import JointPolicy, PolicyForm, violation
from gantt.core.group_policies.standing import Standing
from gantt.core.messages.group_description import GroupDescription
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable


class StandingMember(NamedTuple):
    """Member that has a place.

    :ivar name: its own; ``member`` is that of its description
    """

    name: str
    member: str
    consumer: str
    provider_id: int


class StandingViolation(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that members violate where they are: only a move of one of them could mend it.

    :ivar policy: index in the description
    :ivar line: it in words
    :ivar amount: by how much, see ``violation``
    :ivar members: names of those without whom it would be less
    """

    policy: int
    line: str
    amount: float
    members: list[str] = []
    is_hard: bool = True


class _StandingUnits:
    """Present members, as units that have their rows."""

    def __init__(self, members: Sequence[StandingMember]) -> None:
        self.names = [member.name for member in members]
        self._members = np.array([member.member for member in members], object)

    def of(self, names: Sequence[str] | None) -> BoolArray:
        """Return a mask of the units that are members of these names; None: all."""
        if names is None:
            return np.ones(len(self.names), np.bool_)
        name_set = frozenset(names)
        return np.array([member in name_set for member in self._members], np.bool_)


def violated(
    table: HostTable,
    description: GroupDescription,
    members: Sequence[StandingMember],
    could: BoolArray | None = None,
) -> list[StandingViolation]:
    """Return the violations of each policy by present members.

    :param members: other guests of the group count as well, as members of unknown names
    :param could: hosts that members may be on at all, for domains that are to be used evenly;
        None: all that are enabled
    :raises InvalidMessage: a policy names a level, host or pool that there is not
    """
    levels, units = Levels(table), _StandingUnits(members)
    others = _of_others(table, description, frozenset(member.consumer for member in members))
    rows = np.array([_row(table, member.provider_id) for member in members], np.int64)
    violations = []
    for index, policy in enumerate(description.full_policies):
        for form in PolicyForms(levels, others, units, description, index, policy).all():
            counted = _with_eligible(form, table.enabled if could is None else could)
            amount = violation(counted, rows)
            if amount > 0:
                violations.append(
                    StandingViolation(
                        policy=index,
                        line=form.line,
                        amount=amount,
                        members=_in_the_way(counted, rows, amount, units.names),
                        is_hard=policy.is_hard,
                    )
                )
    return violations


def _row(table: HostTable, provider_id: int) -> int:
    row = table.row_of_id(provider_id)
    return -1 if row is None else row


def _of_others(table: HostTable, description: GroupDescription, known: frozenset[str]) -> Standing:
    rows, claims = [], dict[int, int]()
    if description.uuid is not None:
        for provider, consumers in table.placed.in_group(description.uuid).items():
            row = table.row_of_id(provider)
            if row is not None:
                claims[row] = sum(consumers.values())
                rows += [row for consumer in consumers if consumer not in known]
    return Standing(table, rows, [''] * len(rows), claims)


def _with_eligible(form: JointPolicy, could: BoolArray) -> JointPolicy:
    if form.form is not PolicyForm.SKEW:
        return form
    codes = form.codes[could]
    eligible = np.zeros(form.domains, np.bool_)
    eligible[codes[codes >= 0]] = True
    return msgspec.structs.replace(form, eligible=eligible)


def _in_the_way(
    policy: JointPolicy, rows: IntArray, amount: float, names: Sequence[str]
) -> list[str]:
    offenders = []
    for unit in np.flatnonzero(policy.of | policy.to).tolist():
        without = rows.copy()
        without[unit] = -1
        if violation(policy, without) < amount:
            offenders.append(names[unit])
    return offenders
