# SPDX-License-Identifier: Apache-2.0
"""Policies of a server group that are given up in order: steps of the ladder, beside its rules."""

from collections.abc import Mapping

import numpy as np

from gantt.core.group_policies.one_member import PolicyCost, costs
from gantt.core.messages.request import RequestSpec
from gantt.core.records.rule_texts import GROUP
from gantt.core.table.columns import BoolArray, FloatArray
from gantt.core.table.host_table import HostTable

_DROP = ('drop',)


def concerns(spec: RequestSpec) -> bool:
    """Whether the group of a request has such policies."""
    group = spec.group
    return group is not None and group.policies is not None and group.policies.has_steps


def lost(
    hosts: HostTable, spec: RequestSpec, left: BoolArray, consumer: str
) -> Mapping[int, FloatArray]:
    """Order -> what the member would break of the policies of that order, by row.

    :param left: those that meet all that is hard
    """
    found = _by_order(costs(hosts, spec, consumer, could=left, strengths=_DROP))
    return {order: np.sum([one.by_row for one in of], axis=0) for order, of in found.items()}


def unmet(
    hosts: HostTable, spec: RequestSpec, row: int, left: BoolArray, consumer: str
) -> Mapping[int, list[str]]:
    """Order -> the policies of that order that a host does not meet; of all orders there are."""
    found = _by_order(costs(hosts, spec, consumer, could=left, strengths=_DROP))
    return {
        order: [f'drop {order}: {one.line} ({GROUP})' for one in of if not one.met[row]]
        for order, of in found.items()
    }


def _by_order(found: list[PolicyCost]) -> dict[int, list[PolicyCost]]:
    of: dict[int, list[PolicyCost]] = {}
    for one in found:
        if one.policy.drop is not None:
            of.setdefault(one.policy.drop, []).append(one)
    return of
