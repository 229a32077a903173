# SPDX-License-Identifier: Apache-2.0
"""Policies of a group for one member that is placed by a request of its own.

They are counted as in joint placing, of a group whose other members are present or do not come:
the members that the group knows by name and that have no place yet are units without one.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from gantt.core.group_policies import standing
from gantt.core.group_policies.forms import PolicyForms
from gantt.core.group_policies.levels import UNKNOWN, Levels
from gantt.core.group_policies.policies import JointPolicy, PolicyForm, added
from gantt.core.messages.level_policy import LevelPolicy
from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.core.table.host_table import HostTable


class _Alone:
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

    :ivar policy: as it was given
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


def costs(
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
        nowhere = np.full(len(form.of), -1, np.int64)
        cost = added(_with_eligible(form, could), 0, nowhere, 1)
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
        if form.form is PolicyForm.TOGETHER and not form.standing.any()
    ]


class Awaited(NamedTuple):
    """Named members still to be placed that a member has to be near to, or they to it.

    :ivar domains: by row, the domain in which the one is near that the other is in
    :ivar may: by row, whether it may come there: others that wait for it do so nowhere else
    :ivar coming: number of their names
    :ivar together: whether members of the same description are to be in one domain, as one is near
        to them
    """

    domains: IntArray
    may: BoolArray
    coming: int
    together: bool


def awaited(table: HostTable, spec: RequestSpec, consumer: str) -> Awaited | None:
    """Return the members that hard and droppable ``near`` policies wait for; None: no such."""
    group = spec.group
    if group is None or group.policies is None or not group.policies.has_near_members:
        return None
    forms = [
        form
        for _, form in _forms(table, spec, consumer, ('hard', 'drop'))
        if form.form is PolicyForm.NEAR and not form.stands and _waits(form)
    ]
    if not forms:
        return None
    domains = joined([form.codes for form in forms])
    may = domains != UNKNOWN
    for form in forms:
        if form.standing.any():
            may &= form.standing.take(form.codes, mode='clip') > 0
    coming = np.logical_or.reduce([form.to if form.of[0] else form.of for form in forms])
    together = any(form.of[0] for form in forms)
    return Awaited(domains, may, int(np.count_nonzero(coming)), together)


def _waits(form: JointPolicy) -> bool:
    """Return whether the member is to be near to named others, or they to it, all unplaced."""
    if form.of[0]:
        return bool(form.to.any())
    return bool(form.of.any()) and not form.standing.any()


def joined(levels: Sequence[np.ndarray]) -> IntArray:
    """Return one code for each combination of domains, by row; -1 where one is not known."""
    codes_joined = np.zeros(len(levels[0]), np.int64)
    for codes in levels:
        _, codes_joined = np.unique(
            codes_joined * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True
        )
    for codes in levels:
        codes_joined[codes == UNKNOWN] = UNKNOWN
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
    levels, units = Levels(table), _Alone(member, policies.names)
    guests = standing.of_request(table, group, policies, consumer)
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
            if form.of[0] or form.to[0]:
                yield policy, form


def _with_eligible(form: JointPolicy, could: BoolArray) -> JointPolicy:
    """Return a skew form with the domains that have a host for the member."""
    if form.form is not PolicyForm.SKEW:
        return form
    codes = form.codes[could]
    eligible = np.zeros(form.domains, np.bool_)
    eligible[codes[codes >= 0]] = True
    return msgspec.structs.replace(form, eligible=eligible)


def standing_under_skew(table: HostTable, spec: RequestSpec, consumer: str) -> IntArray:
    """Return rows of hosts with members of a group that has a hard skew.

    Their domains count though they may be full: the members placed there are what filled them.
    """
    group = spec.group
    if group is None or group.policies is None or not group.policies.has_hard_skew:
        return np.zeros(0, np.int64)
    guests = standing.of_request(table, group, group.policies, consumer)
    return np.unique(guests.rows_of(None))
