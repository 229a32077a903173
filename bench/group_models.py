# SPDX-License-Identifier: Apache-2.0
"""Independent models of the bench of groups: whether a plan is right, its cost, and bounds.

Nothing here is of the engine: other models, other code, its own counting.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np
from ortools.sat.python import cp_model

from bench.group_clouds import Cloud


def broken(cloud: Cloud, hosts: Mapping[str, str]) -> list[str]:
    """Return the errors of a placement: member -> host, those without a place left out."""
    problems = []
    used = np.zeros_like(cloud.free)
    racks: dict[int, Counter[int]] = defaultdict(Counter)
    for item, sizes in enumerate(cloud.items):
        names = [f'm{item}-{part}' for part in 'abcd'[: len(sizes)]]
        at = {hosts[name] for name in names if name in hosts}
        if len(at) > 1:
            problems.append(f'item {item} is on {len(at)} hosts')
        for name, size in zip(names, sizes, strict=True):
            if name in hosts:
                used[int(hosts[name].removeprefix('cmp-'))] += size
        if at and cloud.sets[item] >= 0:
            racks[cloud.sets[item]][int(cloud.rack[int(min(at).removeprefix('cmp-'))])] += 1
    over = np.flatnonzero((used > cloud.free).any(axis=1))
    problems += [f'host {host} is over-committed' for host in over.tolist()]
    problems += [f'set {k} shares a rack' for k, of in racks.items() if max(of.values()) > 1]
    return problems


def cost(cloud: Cloud, hosts: Mapping[str, str]) -> float:
    """Return the sum of the hosts' reported costs, over all members."""
    return float(sum(cloud.cost[int(host.removeprefix('cmp-'))] for host in hosts.values()))


def separable(cloud: Cloud) -> float:
    """Return a bound: items of one size on the cheapest hosts, so many in a rack, others none."""
    kinds: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for item in range(len(cloud.items)):
        kinds[(*cloud.demand(item).tolist(), cloud.sets[item] >= 0, len(cloud.items[item]))].append(
            item
        )
    total = 0.0
    for items in kinds.values():
        demand = np.maximum(cloud.demand(items[0]), 1)
        apart = cloud.sets[items[0]] >= 0
        items_max = len({cloud.sets[item] for item in items}) if apart else len(items)
        unplaced, racks = len(items), Counter[int]()
        for host in np.argsort(cloud.cost, kind='stable').tolist():
            many = min(unplaced, int((cloud.free[host] // demand).min()))
            if apart:
                many = min(many, items_max - racks[int(cloud.rack[host])])
                racks[int(cloud.rack[host])] += max(many, 0)
            if many > 0:
                total += many * float(cloud.cost[host]) * len(cloud.items[items[0]])
                unplaced -= many
            if not unplaced:
                break
    return total


def by_size(cloud: Cloud, seconds: float) -> float:
    """Return a bound by CP-SAT: counts of items of one size by host, sets of one size together."""
    model = cp_model.CpModel()
    kinds: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for item in range(len(cloud.items)):
        size = cloud.demand(item).tolist(), len(cloud.items[item])
        kinds[(*map(str, size), str(cloud.sets[item] >= 0))].append(item)
    come = sum(
        len({cloud.sets[i] for i in items}) if cloud.sets[items[0]] >= 0 else len(items)
        for items in kinds.values()
    )
    by_host: dict[int, list[tuple[object, list[int]]]] = defaultdict(list)
    variables, weights = [], []
    for items in kinds.values():
        demand = cloud.demand(items[0])
        hosts = np.flatnonzero((cloud.free >= demand).all(axis=1))
        order = hosts[np.lexsort((cloud.cost[hosts], cloud.rack[hosts]))]
        of_rack: dict[int, list[object]] = defaultdict(list)
        mine = []
        seen: Counter[int] = Counter()
        apart = cloud.sets[items[0]] >= 0
        for host in order.tolist():
            rack = int(cloud.rack[host])
            seen[rack] += 1
            # Of one rack as many hosts as items may come there; any other is no better.
            if seen[rack] > come:
                continue
            limit = int((cloud.free[host] // np.maximum(demand, 1)).min())
            x = model.new_int_var(0, min(len(items), limit), '')
            mine.append(x)
            of_rack[rack].append(x)
            by_host[host].append((x, demand.tolist()))
            variables.append(x)
            weights.append(int(cloud.cost[host]) * len(cloud.items[items[0]]))
        model.add(sum(mine) == len(items))
        if apart:
            limit = len({cloud.sets[item] for item in items})
            for xs in of_rack.values():
                model.add(sum(xs) <= limit)
    for host, here in by_host.items():
        for k in range(cloud.free.shape[1]):
            model.add(sum(x * d[k] for x, d in here) <= int(cloud.free[host, k]))
    model.minimize(cp_model.LinearExpr.weighted_sum(variables, weights))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.linearization_level = 2
    solver.solve(model)
    return float(solver.best_objective_bound)


def naive(cloud: Cloud, seconds: float) -> float | None:
    """Return the cost that the yardstick finds: a model with a variable per member and host."""
    model = cp_model.CpModel()
    hosts = range(len(cloud.free))
    load: dict[int, list[tuple[object, tuple[int, ...]]]] = defaultdict(list)
    variables, weights = [], []
    racks: dict[tuple[int, int], list[object]] = defaultdict(list)
    for item, sizes in enumerate(cloud.items):
        before = None
        for size in sizes:
            xs = [model.new_bool_var('') for _ in hosts]
            model.add_exactly_one(xs)
            for host, x in zip(hosts, xs, strict=True):
                load[host].append((x, size))
                if before is not None:
                    model.add(x == before[host])
                elif cloud.sets[item] >= 0:
                    racks[cloud.sets[item], int(cloud.rack[host])].append(x)
            variables += xs
            weights += cloud.cost.astype(int).tolist()
            before = xs
    for xs in racks.values():
        model.add_at_most_one(xs)
    for host in hosts:
        for k in range(cloud.free.shape[1]):
            model.add(sum(x * size[k] for x, size in load[host]) <= int(cloud.free[host, k]))
    model.minimize(cp_model.LinearExpr.weighted_sum(variables, weights))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    placed = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return float(solver.objective_value) if placed else None


def sequential(cloud: Cloud, how: str) -> int:
    """Return how many items have a place when they are placed one after the other.

    :param how: ``spread`` or ``pack``, with ``-big``: the largest first
    """
    free, placed = cloud.free.copy(), 0
    order = list(range(len(cloud.items)))
    if how.endswith('-big'):
        order.sort(key=lambda item: -(cloud.demand(item) / SCALE).sum())
    taken: dict[int, set[int]] = defaultdict(set)
    for item in order:
        demand, of_set = cloud.demand(item), cloud.sets[item]
        fits = (free >= demand).all(axis=1)
        if of_set >= 0:
            fits &= ~np.isin(cloud.rack, list(taken[of_set]))
        if not fits.any():
            continue
        score = (free / SCALE).sum(axis=1) * (1 if how.startswith('spread') else -1)
        host = int(np.where(fits, score, -np.inf).argmax())
        free[host] -= demand
        placed += 1
        if of_set >= 0:
            taken[of_set].add(int(cloud.rack[host]))
    return placed


#: So that no class of resources decides alone which host is fuller.
SCALE = np.array([1.0, 2048.0, 20.0])
ORDERS = ('spread', 'spread-big', 'pack', 'pack-big')
