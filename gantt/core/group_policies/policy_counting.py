# SPDX-License-Identifier: Apache-2.0
"""How many more members of a group fit under its hard policies: placed one after the other."""

from typing import NamedTuple

import numpy as np

from gantt.core.group_policies.levels import UNKNOWN
from gantt.core.group_policies.one_member import costs, domains_to_choose, joined
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import RequestSpec
from gantt.core.resources.host import Placed
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

#: Members that are tried; of more that there would be room for it is not known.
MEMBERS_MAX = 400


class PolicyCount(NamedTuple):
    """See ``capacity.FreeCapacity``."""

    counts: IntArray
    uncounted: int


def count(table: HostTable, spec: RequestSpec, rows: IntArray, counts: IntArray) -> PolicyCount:
    """How many more fit on each host, the first host that takes one being taken first.

    Where the first member decides in which domain all are, that is the domain that takes most.

    :param counts: how many fit there but for the policies
    """
    group = spec.group
    assert group is not None, 'it has policies'
    if group.policies is None or not group.policies.is_hard:
        return PolicyCount(counts, 0)
    levels = domains_to_choose(table, spec)
    if not levels:
        return _count(table, spec, rows, counts, MEMBERS_MAX)
    domains = joined(levels).take(rows)
    most = np.bincount(domains[domains != UNKNOWN], counts[domains != UNKNOWN])
    best, left = PolicyCount(np.zeros_like(counts), 0), MEMBERS_MAX
    for domain in np.argsort(-most, kind='stable').tolist():
        if most[domain] <= best.counts.sum() or left <= 0:
            break
        here = np.where(domains == domain, counts, 0)
        found = _count(table, spec, rows, here, left)
        left -= int(found.counts.sum())
        if found.counts.sum() > best.counts.sum():
            best = found
    return best


def _count(
    table: HostTable, spec: RequestSpec, rows: IntArray, counts: IntArray, most: int
) -> PolicyCount:
    """As ``count``, of ``most`` members at most."""
    group = spec.group
    assert group is not None, 'it has policies'
    trial, found = table.copy(), np.zeros_like(counts)
    for number in range(most):
        at = np.flatnonzero((found < counts) & _met(trial, spec, rows))
        if not len(at):
            return PolicyCount(found, 0)
        first = int(at[0])
        found[first] += 1
        name = derived_id('counted', str(number))
        host = table.hosts[int(rows[first])].id
        trial.placed.add(Placed(name, name, host, group.uuid, member=group.member))
    left = (found < counts) & _met(trial, spec, rows)
    return PolicyCount(np.where(left, counts, found), int(np.count_nonzero(left)))


def _met(table: HostTable, spec: RequestSpec, rows: IntArray) -> BoolArray:
    could = np.zeros(len(table), np.bool_)
    could[rows] = True
    met = np.ones(len(rows), np.bool_)
    for cost in costs(table, spec, could=could, strengths=('hard',)):
        met &= cost.met.take(rows)
    return met
