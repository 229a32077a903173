# SPDX-License-Identifier: Apache-2.0
"""Count of further members that fit under the hard policies of a group, placed one by one."""

from typing import NamedTuple

import numpy as np

from gantt.core.group_policies.levels import UNKNOWN
from gantt.core.group_policies.one_member import costs, domains_to_choose, joined
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import RequestSpec
from gantt.core.resources.host import Placed
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

#: Largest number of members tried; room for more is not counted.
MEMBERS_MAX = 400


class PolicyCount(NamedTuple):
    """Counts by row; see ``capacity.FreeCapacity``."""

    counts: IntArray
    uncounted: int


def count(table: HostTable, spec: RequestSpec, rows: IntArray, counts: IntArray) -> PolicyCount:
    """Return how many more fit on each host, filled in order of the hosts.

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
    room_by_domain = np.bincount(domains[domains != UNKNOWN], counts[domains != UNKNOWN])
    best, remaining = PolicyCount(np.zeros_like(counts), 0), MEMBERS_MAX
    for domain in np.argsort(-room_by_domain, kind='stable').tolist():
        if room_by_domain[domain] <= best.counts.sum() or remaining <= 0:
            break
        here = np.where(domains == domain, counts, 0)
        domain_count = _count(table, spec, rows, here, remaining)
        remaining -= int(domain_count.counts.sum())
        if domain_count.counts.sum() > best.counts.sum():
            best = domain_count
    return best


def _count(
    table: HostTable, spec: RequestSpec, rows: IntArray, counts: IntArray, most: int
) -> PolicyCount:
    """Return the counts as ``count``, of ``most`` members at most."""
    group = spec.group
    assert group is not None, 'it has policies'
    trial, placed = table.copy(), np.zeros_like(counts)
    for number in range(most):
        at = np.flatnonzero((placed < counts) & _met(trial, spec, rows))
        if not len(at):
            return PolicyCount(placed, 0)
        first = int(at[0])
        placed[first] += 1
        name = derived_id('counted', str(number))
        host = table.hosts[int(rows[first])].id
        trial.placed.add(Placed(name, name, host, group.uuid, member=group.member))
    is_open = (placed < counts) & _met(trial, spec, rows)
    return PolicyCount(np.where(is_open, counts, placed), int(np.count_nonzero(is_open)))


def _met(table: HostTable, spec: RequestSpec, rows: IntArray) -> BoolArray:
    could = np.zeros(len(table), np.bool_)
    could[rows] = True
    met = np.ones(len(rows), np.bool_)
    for cost in costs(table, spec, could=could, strengths=('hard',)):
        met &= cost.met.take(rows)
    return met
