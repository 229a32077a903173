# SPDX-License-Identifier: Apache-2.0
"""Policies of a group for one member that is placed by a request of its own.

They are counted as in joint placing, of a group whose other members are present or do not come:
the members that the group knows by name and that have no place yet are units without one.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gantt.core.group_policies.forms import PolicyForms, present_guests_of_request
from gantt.core.group_policies.levels import UNKNOWN_DOMAIN, Levels
from gantt.core.group_policies.policies import JointPolicy, PolicyForm, added_cost, with_eligible
from gantt.core.messages.policy_set import LevelPolicy
from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.core.table.host_table import HostTable


class _SingleUnit:
    """Units of which one is placed, and the others have no place.

    :ivar names: names of the members; the first is the one that is placed
    """

    def __init__(self, member: str, others: Sequence[str]) -> None:
        self.names = [member, *(name for name in others if name != member)]

    def of(self, names: Sequence[str] | None) -> BoolArray:
        """Return a mask of the units that are members of these names; None: all."""
        if names is None:
            return np.ones(len(self.names), np.bool_)
        return np.isin(self.names, list(names))


class PolicyCost(msgspec.Struct, frozen=True, eq=False):
    """Cost of a policy by host for the member.

    :ivar policy: the policy as it was given
    :ivar line: the policy in words
    :ivar by_row: what the member would add to its violation, by row; 0: the policy is met
    """

    policy: LevelPolicy
    line: str
    by_row: FloatArray

    @property
    def met(self) -> BoolArray:
        """Hosts that meet it."""
        met: BoolArray = self.by_row <= 0
        return met


def costs_of_policies(
    table: HostTable,
    spec: RequestSpec,
    consumer: str = '',
    *,
    could: BoolArray | None = None,
    strengths: Sequence[str] = ('hard', 'drop', 'soft'),
) -> list[PolicyCost]:
    """Return the cost of each policy that concerns the member, in their order.

    :param consumer: the consumer to place: its present claims do not count
    :param could: hosts that all but the policies let pass; None: all that are enabled
    :param strengths: strengths of the policies: those that are hard, dropped in order, or soft
    :raises InvalidMessage: a policy names a level that there is not
    """
    policy_costs, could = [], table.enabled if could is None else could
    for policy, form in _forms(table, spec, consumer, strengths):
        nowhere = np.full(len(form.subject_units), -1, np.int64)
        cost = added_cost(with_eligible(form, could), 0, nowhere, 1)
        policy_costs.append(PolicyCost(policy, form.line, cost))
    return policy_costs


def domains_to_choose(
    table: HostTable, spec: RequestSpec, strengths: Sequence[str] = ('hard',)
) -> list[np.ndarray]:
    """Return codes of the levels at which all members share one domain, while none is placed.

    The first that is placed decides for all.
    """
    return [
        form.codes
        for _, form in _forms(table, spec, '', strengths)
        if form.form is PolicyForm.TOGETHER and not form.present.any()
    ]


class MembersToCome(NamedTuple):
    """Named members still to be placed that a member has to be near to, or they to it.

    :ivar domains: domain by row; the member and the members to come have to share one
    :ivar may: mask of rows that the member may be placed on: in domains of the guests that wait for
        it, if any
    :ivar coming: number of names of members to come
    :ivar together: whether members of one description are to be in one domain, as one member is
        near to all of them
    """

    domains: IntArray
    may: BoolArray
    coming: int
    together: bool


def members_to_come(table: HostTable, spec: RequestSpec, consumer: str) -> MembersToCome | None:
    """Return the members that hard and droppable ``near`` policies wait for; None: no such."""
    group = spec.group
    if group is None or group.policies is None or not group.policies.has_near_members:
        return None
    forms = [
        form
        for _, form in _forms(table, spec, consumer, ('hard', 'drop'))
        if form.form is PolicyForm.NEAR and not form.has_target and _waits_for_others(form)
    ]
    if not forms:
        return None
    domains = joined_domains([form.codes for form in forms])
    may = domains != UNKNOWN_DOMAIN
    for form in forms:
        if form.present.any():
            may &= form.present.take(form.codes, mode='clip') > 0
    coming = np.logical_or.reduce(
        [form.target_units if form.subject_units[0] else form.subject_units for form in forms]
    )
    together = any(form.subject_units[0] for form in forms)
    return MembersToCome(domains, may, int(np.count_nonzero(coming)), together)


def _waits_for_others(form: JointPolicy) -> bool:
    """Return whether the member is to be near to named others, or they to it, all unplaced."""
    if form.subject_units[0]:
        return bool(form.target_units.any())
    return bool(form.subject_units.any()) and not form.present.any()


def joined_domains(levels: Sequence[np.ndarray]) -> IntArray:
    """Return one code for each combination of domains, by row; -1 where one is not known."""
    codes_joined = np.zeros(len(levels[0]), np.int64)
    for codes in levels:
        _, codes_joined = np.unique(
            codes_joined * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True
        )
    for codes in levels:
        codes_joined[codes == UNKNOWN_DOMAIN] = UNKNOWN_DOMAIN
    return codes_joined


def _forms(
    table: HostTable, spec: RequestSpec, consumer: str, strengths: Sequence[str]
) -> Iterator[tuple[LevelPolicy, JointPolicy]]:
    """Yield each form of the policies that concern the member, which is the first unit of them."""
    group = spec.group
    if group is None or group.policies is None:
        return
    policies = group.policies
    selected = [
        (n, policy_n)
        for n, policy_n in enumerate(policies.full_policies)
        if policy_n.strength in strengths
    ]
    if not selected:
        return
    member = policies.member_of(group.member)
    levels, units = Levels(table), _SingleUnit(member, policies.names)
    guests = present_guests_of_request(table, group, policies, consumer)
    for index, policy in selected:
        forms = PolicyForms(
            levels,
            guests,
            units,
            policies,
            index,
            policy,
            inside='request.spec.group.policies',
            one_by_one=True,
        )
        for form in forms.all():
            if form.subject_units[0] or form.target_units[0]:
                yield policy, form


def rows_with_guests_under_skew(table: HostTable, spec: RequestSpec, consumer: str) -> IntArray:
    """Return rows of hosts with members of a group that has a hard skew.

    Their domains count though they may be full: the members placed there are what filled them.
    """
    group = spec.group
    if group is None or group.policies is None or not group.policies.has_hard_skew:
        return np.zeros(0, np.int64)
    guests = present_guests_of_request(table, group, group.policies, consumer)
    return np.unique(guests.rows_of(None))
