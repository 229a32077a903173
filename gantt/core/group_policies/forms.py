# SPDX-License-Identifier: Apache-2.0
"""Forms of each policy of a group on a table: what is counted for the units to be placed."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.group_policies.levels import Levels
from gantt.core.group_policies.policies import JointPolicy, PolicyForm, PricedLevel
from gantt.core.group_policies.standing import Standing
from gantt.core.messages.level_policy import GroupPolicyKind, LevelPolicy
from gantt.core.table.columns import BoolArray, IntArray

#: Policies that count a moving guest at its source until it has arrived.
_APART = (GroupPolicyKind.ANTI_AFFINITY, GroupPolicyKind.EXCLUSIVE)


class PolicyUnits(Protocol):
    """Units to be placed, each by itself."""

    @property
    def names(self) -> Sequence[str]: ...

    def of(self, names: Sequence[str] | None) -> BoolArray:
        """Return a mask of the units that are members of these names; None: all."""


class Subgroups(Protocol):
    """Lookup of the members of a subgroup."""

    def members_of(self, subject: str) -> list[str]:
        """Return the names of the members that a subgroup or member is."""


class PolicyForms:
    """Forms of one policy.

    :param inside: name of the group in an error
    :param one_by_one: members come one after the other: present guests wait for those that
        they are to be near to, and an unknown target has no guests
    """

    def __init__(
        self,
        levels: Levels,
        there: Standing,
        units: PolicyUnits,
        subgroups: Subgroups,
        index: int,
        policy: LevelPolicy,
        *,
        inside: str = 'group',
        one_by_one: bool = False,
    ) -> None:
        self._levels, self._there, self._units = levels, there, units
        self._subgroups, self._index, self._policy = subgroups, index, policy
        self._field, self._one_by_one = f'{inside}.policies[{index}]', one_by_one
        self._level = levels.on(policy.level, f'{self._field}.level')
        self._width = max(len(self._level.names), 1)
        #: Whether the sources of members that move together do not count.
        self._staying = policy.policy not in _APART and policy.max_per_domain is None

    def all(self) -> list[JointPolicy]:
        """Return all forms, of each of its subjects."""
        return [form for subject in self._policy.subjects for form in self._of(subject)]

    def _of(self, subject: str | None) -> list[JointPolicy]:
        policy, none = self._policy, np.zeros(len(self._units.names), np.bool_)
        names = None if subject is None else self._subgroups.members_of(subject)
        base = JointPolicy(
            index=self._index,
            line=policy.line(subject),
            form=PolicyForm.TOGETHER,
            level=policy.level,
            codes=self._level.codes,
            of=self._units.of(names),
            to=none,
            standing=self._count(self._there.rows_of(names, staying=self._staying)),
            taken=np.zeros(self._width, np.bool_),
            eligible=np.zeros(self._width, np.bool_),
            weight=policy.soft or 0.0,
        )
        match policy.policy:
            case GroupPolicyKind.AFFINITY:
                return [base]
            case GroupPolicyKind.SPREAD:
                return self._spread(base)
            case GroupPolicyKind.EXCLUSIVE:
                others = self._there.rows_of_others(names)
                return [_as(base, PolicyForm.APART, to=~base.of, taken=self._count(others) > 0)]
            case GroupPolicyKind.NEAR:
                return [self._near(base, names)]
        if policy.target is None:
            return [_as(base, PolicyForm.MOST, amount=policy.max_per_domain or 1)]
        to, rows = self._target()
        return [_as(base, PolicyForm.APART, to=to, both=True, taken=self._count(rows) > 0)]

    def _spread(self, base: JointPolicy) -> list[JointPolicy]:
        policy = self._policy
        amounts = {
            PolicyForm.MOST: policy.max_per_domain,
            PolicyForm.LEAST: policy.min_domains,
            PolicyForm.SKEW: policy.max_skew,
        }
        return [_as(base, form, amount=n) for form, n in amounts.items() if n is not None]

    def _near(self, base: JointPolicy, names: Sequence[str] | None) -> JointPolicy:
        policy = self._policy
        to, rows = self._target()
        priced = [(priced_level.level, priced_level.price) for priced_level in policy.prices] or [
            (policy.level, 0.0)
        ]
        near = []
        for number, (name, price) in enumerate(priced):
            field = f'{self._field}.prices[{number}].level'
            level = self._levels.on(name, field)
            codes = level.codes.take(rows)
            present = np.zeros(max(len(level.names), 1), np.bool_)
            present[codes[codes >= 0]] = True
            near.append(PricedLevel(level.codes, present, price))
        waiting = base.waiting
        if self._one_by_one:
            waiting = self._there.rows_of(names, staying=True)
        return _as(
            base,
            PolicyForm.NEAR,
            to=to,
            near=tuple(near),
            beyond=policy.beyond,
            stands=bool(len(rows)),
            waiting=waiting,
        )

    def _target(self) -> tuple[BoolArray, IntArray]:
        """Return a mask of the units that are the target, and the rows of its present guests."""
        target, field = self._policy.target, f'{self._field}.target'
        none = np.zeros(len(self._units.names), np.bool_)
        assert target is not None, 'it is asked of policies with one'
        if target.of is not None:
            names = self._subgroups.members_of(target.of)
            return self._units.of(names), self._there.rows_of(names, staying=self._staying)
        if target.domain is not None:
            if target.domain not in self._level.names:
                if self._one_by_one:
                    return none, np.zeros(0, np.int64)
                problem = f'{self._policy.level} has no domain {target.domain!r}'
                raise exceptions.invalid(f'{field}.domain', problem)
            code = list(self._level.names).index(target.domain)
            return none, np.flatnonzero(self._level.codes == code)
        try:
            return none, self._there.rows_of_target(target, field)
        except exceptions.InvalidMessage:
            if not self._one_by_one:
                raise
            return none, np.zeros(0, np.int64)

    def _count(self, rows: IntArray) -> IntArray:
        codes = self._level.codes.take(rows)
        return np.bincount(codes[codes >= 0], minlength=self._width)


def _as(base: JointPolicy, form: PolicyForm, **fields: object) -> JointPolicy:
    return msgspec.structs.replace(base, form=form, **fields)
