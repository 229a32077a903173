# SPDX-License-Identifier: Apache-2.0
"""Policies of a server group that are dropped in order: steps of the ladder, beside its rules."""

from collections.abc import Mapping

import numpy as np

from gantt.core.group_policies.one_member import PolicyCost, costs
from gantt.core.messages.request import RequestSpec
from gantt.core.records.rule_texts import GROUP
from gantt.core.table.columns import BoolArray, FloatArray
from gantt.core.table.host_table import HostTable

_DROP = ('drop',)


def concerns(spec: RequestSpec) -> bool:
    """Return whether the group of a request has such policies."""
    group = spec.group
    return group is not None and group.policies is not None and group.policies.has_steps


def lost(
    hosts: HostTable, spec: RequestSpec, left: BoolArray, consumer: str
) -> Mapping[int, FloatArray]:
    """Return order -> what the member would break of the policies of that order, by row.

    :param left: rows that meet all that is hard
    """
    costs_by_order = _by_order(costs(hosts, spec, consumer, could=left, strengths=_DROP))
    return {
        order: np.sum([cost.by_row for cost in step_costs], axis=0)
        for order, step_costs in costs_by_order.items()
    }


def unmet(
    hosts: HostTable, spec: RequestSpec, row: int, left: BoolArray, consumer: str
) -> Mapping[int, list[str]]:
    """Return order -> the policies of that order that a host does not meet; all orders are keys."""
    costs_by_order = _by_order(costs(hosts, spec, consumer, could=left, strengths=_DROP))
    return {
        order: [f'drop {order}: {cost.line} ({GROUP})' for cost in step_costs if not cost.met[row]]
        for order, step_costs in costs_by_order.items()
    }


def _by_order(found: list[PolicyCost]) -> dict[int, list[PolicyCost]]:
    by_order: dict[int, list[PolicyCost]] = {}
    for cost in found:
        if cost.policy.drop is not None:
            by_order.setdefault(cost.policy.drop, []).append(cost)
    return by_order
