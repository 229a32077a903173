# SPDX-License-Identifier: Apache-2.0
"""Capacity by host: how many more members of a shape fit, and their bound there.

Exactly as many as placing them one after another would place, where members do not depend on each
other beyond sharing a pool or the most per host of their group.  Where a request has cells, cores,
pages or devices they are laid out on each host, within a bound on the cost; beyond it amounts alone
are counted.
"""

from typing import NamedTuple

import msgspec
import numpy as np

from gantt.core.filters import tree_room
from gantt.core.group_policies.levels import UNKNOWN_DOMAIN
from gantt.core.group_policies.one_member import (
    costs_of_policies,
    domains_to_choose,
    joined_domains,
)
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import Policy, RequestSpec
from gantt.core.placement import topology_counting
from gantt.core.placement.tree_choice import TreeChoice
from gantt.core.resources.host import Placed
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.group_members import members_by_row
from gantt.core.table.host_table import HostTable
from gantt.core.topology.read import LayoutSettings

#: Bounds of a host that are no resource class.
GROUP_RULE_BOUND = 'the rule of the server group'
TREE_BOUND = 'what it takes of providers below the hosts and beside them'
#: Largest number of members of a group with policies that are tried; room for more is not counted.
MEMBERS_MAX = 400
#: More than fits anywhere.
_UNBOUNDED = 2**40


class FreeCapacity(msgspec.Struct, frozen=True):
    """Room by host.

    :ivar rows: rows of the table
    :ivar counts: number of further members, in the order of ``rows``; what hosts share is counted
        once, for the first of them
    :ivar bounds: index into ``names`` of what runs out first, likewise
    :ivar total: number of further members that fit together
    :ivar uncounted: on how many hosts it is not known how many can be laid out: there,
        and so in all, it is the most that may fit
    """

    rows: IntArray
    counts: IntArray
    bounds: IntArray
    names: list[str]
    total: int
    uncounted: int = 0

    def bound_counts(self) -> dict[str, int]:
        """Return bound -> number of hosts where it runs out first, most first."""
        hosts_by_bound = np.bincount(self.bounds, minlength=len(self.names))
        named = [(name, int(n)) for name, n in zip(self.names, hosts_by_bound, strict=True) if n]
        return dict(sorted(named, key=lambda pair: (-pair[1], pair[0])))


class HostCounts(NamedTuple):
    """Counts by host, in the order of the rows.

    :ivar uncounted: number of hosts where the count is the most that may fit
    """

    counts: IntArray
    uncounted: int


def free_capacity(
    table: HostTable,
    spec: RequestSpec,
    rows: IntArray,
    inside: LayoutSettings | None = None,
    layouts_max: int = topology_counting.LAYOUTS_MAX,
) -> FreeCapacity:
    """Return the room for ``spec`` on each host.

    :param rows: eligible hosts: those that pass every filter for one member
    :param inside: layout rules of the pipeline; None: it lays nothing out
    :param layouts_max: limit of searches for layouts
    :raises InvalidMessage: the request has a topology that cannot be laid out
    """
    names = list(spec.resources)
    fits = np.zeros((len(names) + 1, len(rows)), np.int64)
    fits[:-1] = _counts_by_class(table, spec, rows)
    fits[-1] = _counts_by_group_rule(table, spec, rows, fits)
    counts, bounds = fits.min(axis=0), fits.argmin(axis=0)
    names, uncounted = [*names, GROUP_RULE_BOUND], 0
    wish = inside.wish(spec) if inside is not None else None
    if wish is not None and inside is not None:
        laid = topology_counting.count_layouts(table, wish, rows, counts, inside.pack, layouts_max)
        counts, uncounted = laid.counts, laid.uncounted
        _note_layouts(laid, bounds, names)
    if tree_room.needs_tree(table, spec):
        of_trees = count_in_trees(table, spec, rows, counts)
        bounds = np.where(of_trees.counts < counts, len(names), bounds)
        names, counts = [*names, TREE_BOUND], of_trees.counts
        uncounted += of_trees.uncounted
    else:
        counts = _limit_by_pools(table, spec, rows, counts)
    counts = _limit_by_services(table, spec, rows, counts)
    if spec.group is not None and spec.group.policies is not None:
        policed = _limit_by_policies(table, spec, rows, counts)
        bounds = np.where(policed.counts < counts, names.index(GROUP_RULE_BOUND), bounds)
        counts, uncounted = policed.counts, uncounted + policed.uncounted
    total = int(counts.sum())
    if first_member_decides_host(table, spec):
        total = int(counts.max(initial=0))
    return FreeCapacity(rows, counts, bounds, names, total, uncounted)


def counts_by_host(
    table: HostTable,
    spec: RequestSpec,
    rows: IntArray,
    most: int,
    inside: LayoutSettings | None,
    layouts_max: int,
) -> IntArray:
    """Return how many more fit on each host if all went there; ``most`` at most.

    :param layouts_max: beyond it a host counts by amounts alone
    :raises InvalidMessage: the request has a topology that cannot be laid out
    """
    counts = np.minimum(_counts_by_class(table, spec, rows).min(axis=0, initial=most), most)
    wish = inside.wish(spec) if inside is not None else None
    if wish is not None and inside is not None:
        counts = topology_counting.count_layouts(
            table, wish, rows, counts, inside.pack, layouts_max
        ).counts
    return counts


def _counts_by_class(table: HostTable, spec: RequestSpec, rows: IntArray) -> IntArray:
    """Return how many more fit by each resource class of the request alone, a row for each."""
    fits = np.zeros((len(spec.resources), len(rows)), np.int64)
    for i, (name, amount) in enumerate(spec.resources.items()):
        code = table.class_code(name)
        if name in table.pools.nested.of_class:
            fits[i] = _UNBOUNDED
            continue
        if code is not None:
            fits[i] = np.maximum(table.free_of(code).take(rows), 0) // amount
        if name in table.pools.of_class:
            on_hosts, shared = _counts_of_class(table, name, amount, rows)
            fits[i] = [
                n + sum(by_pool.values()) for n, by_pool in zip(on_hosts, shared, strict=True)
            ]
    return fits


def _counts_of_class(
    table: HostTable, name: str, amount: int, rows: IntArray
) -> tuple[list[int], list[dict[int, int]]]:
    """Return how often an amount fits on each host itself, and in each pool that serves it."""
    on_hosts, shared, pools, code = [], [], table.pools, table.class_code(name)
    assert code is not None, 'a class of a pool is known'
    for row in rows.tolist():
        host = table.hosts[row].id
        on_hosts.append(table.free.item(code, row) // amount if table.has(row, name, amount) else 0)
        by_pool = {pool: pools.fit_count(pool, name, amount) for pool in pools.serving(host, name)}
        shared.append(by_pool)
    return on_hosts, shared


def _limit_by_pools(
    table: HostTable, spec: RequestSpec, rows: IntArray, counts: IntArray
) -> IntArray:
    """Return counts by host in order: what one takes of a pool is missing for the next."""
    classes = [
        (*_counts_of_class(table, name, amount, rows), dict[int, int]())
        for name, amount in spec.resources.items()
        if name in table.pools.of_class
    ]
    if not classes:
        return counts
    bounded = counts.tolist()
    for at, count in enumerate(bounded):
        for on_hosts, shared, pool_room in classes:
            in_pools = sum(pool_room.setdefault(pool, times) for pool, times in shared[at].items())
            count = min(count, on_hosts[at] + in_pools)
        bounded[at] = count
        for on_hosts, shared, pool_room in classes:
            needed = max(count - on_hosts[at], 0)
            for pool in sorted(shared[at], key=pool_room.__getitem__):
                part = min(needed, pool_room[pool])
                pool_room[pool] -= part
                needed -= part
    return np.array(bounded, np.int64)


def _note_layouts(
    laid: topology_counting.TopologyCount, bounds: IntArray, names: list[str]
) -> None:
    """Set the bound of hosts where the layout did not fit."""
    for at, obstacle in enumerate(laid.bounds):
        if obstacle is not None:
            reason_text = topology_counting.OBSTACLE_TEXTS[obstacle]
            if reason_text not in names:
                names.append(reason_text)
            bounds[at] = names.index(reason_text)


def first_member_decides_host(table: HostTable, spec: RequestSpec) -> bool:
    """Return whether the first member binds the others to its host, and is not bound itself."""
    group = spec.group
    if group is None or group.policy is not Policy.AFFINITY:
        return False
    return not group.hosts and not members_by_row(table, group, staying=True)


def _counts_by_group_rule(
    table: HostTable, spec: RequestSpec, rows: IntArray, fits: IntArray
) -> IntArray:
    """Return, by host, how many more members an anti-affinity group may have there.

    A request without such a group gets a number above every other bound.
    """
    most = fits.max(axis=0, initial=0) + 1
    group = spec.group
    if group is None or group.policy is not Policy.ANTI_AFFINITY:
        return most
    members = np.zeros(len(table), np.int64)
    for row, count in members_by_row(table, group).items():
        members[row] = count
    return np.maximum(group.max_per_host - members.take(rows), 0)


def _limit_by_services(
    table: HostTable, spec: RequestSpec, rows: IntArray, counts: IntArray
) -> IntArray:
    """Return counts by host where nodes of one service are one host to the group rule."""
    services, group = table.rows_of_services, spec.group
    if not services or group is None or group.policy is not Policy.ANTI_AFFINITY:
        return counts
    place_of, counts = {row: at for at, row in enumerate(rows.tolist())}, counts.copy()
    members = members_by_row(table, group)
    for service in services:
        remaining = max(group.max_per_host - members.get(service[0], 0), 0)
        for at in (place_of[row] for row in service if row in place_of):
            counts[at] = min(counts[at], remaining)
            remaining -= int(counts[at])
    return counts


#: Limits of one count: different searches, steps of all of them, and members on one host.
TREE_SEARCHES_MAX, SEARCH_STEPS_MAX, MEMBERS_PER_HOST_MAX = 10_000, 2_000_000, 1024


def count_in_trees(
    table: HostTable, spec: RequestSpec, rows: IntArray, most: IntArray
) -> HostCounts:
    """Return how often a request that takes of trees fits on each of these hosts.

    Members are placed one after the other on a copy of the table.  Bounded by searches and steps,
    not by time; beyond, hosts count by their own amounts alone.

    :param most: counts by their own amounts
    """
    scratch = table.copy()
    trees = TreeChoice(scratch, spec, steps=SEARCH_STEPS_MAX, trees=TREE_SEARCHES_MAX)
    counts, uncounted = most.copy(), 0
    for at, row in enumerate(rows.tolist()):
        number = _members_that_fit(scratch, trees, row, min(int(most[at]), MEMBERS_PER_HOST_MAX))
        if row in trees.given_up or (number == MEMBERS_PER_HOST_MAX and number < most[at]):
            uncounted += 1
        else:
            counts[at] = number
    return HostCounts(np.asarray(counts, np.int64), uncounted)


def _members_that_fit(table: HostTable, trees: TreeChoice, row: int, most: int) -> int:
    """Place members on a host until one does not fit; return how many do."""
    host = table.hosts[row].id
    for number in range(most):
        if not all(
            table.has(row, name, amount) or table.pool_for(row, name, amount) is not None
            for name, amount in trees.resources_of_host.items()
        ):
            return number
        solution = trees.solve(row)
        if solution is None:
            return number
        shares = trees.amounts(row, solution)
        host_amounts = shares.pop(host)
        name = f'count {row} {number}'
        table.add_pick(host, host_amounts, Placed(name, name, host), shares)
    return most


def _limit_by_policies(
    table: HostTable, spec: RequestSpec, rows: IntArray, counts: IntArray
) -> HostCounts:
    """Return how many more fit on each host, filled in order of the hosts.

    Where the first member decides in which domain all are, that is the domain that takes most.

    :param counts: number of members that fit there but for the policies
    """
    group = spec.group
    assert group is not None, 'it has policies'
    if group.policies is None or not group.policies.is_hard:
        return HostCounts(counts, 0)
    levels = domains_to_choose(table, spec)
    if not levels:
        return _counts_by_trial(table, spec, rows, counts, MEMBERS_MAX)
    domains = joined_domains(levels).take(rows)
    room_by_domain = np.bincount(
        domains[domains != UNKNOWN_DOMAIN], counts[domains != UNKNOWN_DOMAIN]
    )
    best, remaining = HostCounts(np.zeros_like(counts), 0), MEMBERS_MAX
    for domain in np.argsort(-room_by_domain, kind='stable').tolist():
        if room_by_domain[domain] <= best.counts.sum() or remaining <= 0:
            break
        here = np.where(domains == domain, counts, 0)
        domain_count = _counts_by_trial(table, spec, rows, here, remaining)
        remaining -= int(domain_count.counts.sum())
        if domain_count.counts.sum() > best.counts.sum():
            best = domain_count
    return best


def _counts_by_trial(
    table: HostTable, spec: RequestSpec, rows: IntArray, counts: IntArray, most: int
) -> HostCounts:
    """Return the counts as ``_limit_by_policies``, of ``most`` members at most."""
    group = spec.group
    assert group is not None, 'it has policies'
    trial, placed = table.copy(), np.zeros_like(counts)
    for number in range(most):
        at = np.flatnonzero((placed < counts) & _policies_met(trial, spec, rows))
        if not len(at):
            return HostCounts(placed, 0)
        first = int(at[0])
        placed[first] += 1
        name = derived_id('counted', str(number))
        host = table.hosts[int(rows[first])].id
        trial.placed.add(Placed(name, name, host, group.uuid, member=group.member))
    is_open = (placed < counts) & _policies_met(trial, spec, rows)
    return HostCounts(np.where(is_open, counts, placed), int(np.count_nonzero(is_open)))


def _policies_met(table: HostTable, spec: RequestSpec, rows: IntArray) -> BoolArray:
    could = np.zeros(len(table), np.bool_)
    could[rows] = True
    met = np.ones(len(rows), np.bool_)
    for cost in costs_of_policies(table, spec, could=could, strengths=('hard',)):
        met &= cost.met.take(rows)
    return met
