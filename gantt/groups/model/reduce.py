# SPDX-License-Identifier: Apache-2.0
"""Reduction of units to items and classes: equal ones are counted, irrelevant hosts left out.

Units that have to be on one host are one item.  Items of equal demand are one class where
policies see no difference; sets that are only to be apart within themselves, as the replicas of
several databases, are one class together: dealt round robin by domain they are apart again.

Hosts are left out where others are at least as good for any placement of the rest: of each domain
as many are kept as items may come there, the best first.  See the research that is the source:
it is exact where a host's score and room are its own.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from gantt.core.group_policies.levels import UNKNOWN_DOMAIN
from gantt.core.group_policies.policies import JointPolicy, PolicyForm, near_prices
from gantt.core.table.columns import IntArray
from gantt.groups.model.model import Counts, DomainCap, ItemClass, ItemOption, Model
from gantt.groups.model.problem import WEIGHT_UNIT, Assignment, GroupProblem

#: Costs of one unit are whole numbers up to this.
COST_MAX = 1_000_000
#: Largest number of counts for a solver; beyond it hosts are left out that might matter.
VARIABLES_MAX = 60_000
#: Largest number of choices of an item; beyond it its units stay by themselves.
_OPTIONS_MAX = 8


def reduced_model(
    problem: GroupProblem,
    plan: Assignment | None = None,
    *,
    merge: bool = True,
) -> Model:
    """Return the model of a problem.

    :param plan: hosts of it are never left out
    :param merge: units that have to be on one host are placed all or none
    """
    merged, items = (
        _merged_items(problem) if merge else (set(), [[u] for u in range(len(problem.names))])
    )
    policies = [p for k, p in enumerate(problem.policies) if k not in merged]
    active = [p for p in policies if not _depends_on_host_only(p)]
    unit, top = _cost_scale(problem)
    kinds: dict[tuple[object, ...], list[list[int]]] = defaultdict(list)
    alike = _unit_classes(problem, policies)
    for item in items:
        ordered = sorted(item, key=lambda u: (alike[u], u))
        kinds[tuple(int(alike[u]) for u in ordered)].append(ordered)
    static = [p for p in policies if _depends_on_host_only(p)]
    groups = _item_groups(problem, active, static, list(kinds.values()))
    absorbed = {k for group in groups for k in group.absorbed}
    remaining = [k for k in range(len(active)) if k not in absorbed]
    position = {k: i for i, k in enumerate(remaining)}
    classes = [_item_class(problem, active, static, group, position, unit, top) for group in groups]
    model = Model(problem, classes, [active[k] for k in remaining], unit, top)
    return _pruned_model(model, plan)


def _cost_scale(problem: GroupProblem) -> tuple[float, float]:
    """Return costs in 1 of score, and the score that costs count from."""
    scores = [(c.gain[c.mask], c.best[c.mask]) for c in problem.choices if c.mask.any()]
    if not scores:
        return 1.0, 0.0
    top = max(float(best.max()) for _, best in scores)
    low = min(float(gain.min()) for gain, _ in scores)
    return (COST_MAX / (top - low) if top > low else 1.0), top


# -- items ---------------------------------------------------------------------------


def _merged_items(problem: GroupProblem) -> tuple[set[int], list[list[int]]]:
    """Return positions of policies that are met by merging, and the units of each item."""
    parent = list(range(len(problem.names)))

    def root(unit: int) -> int:
        while parent[unit] != unit:
            parent[unit] = parent[parent[unit]]
            unit = parent[unit]
        return unit

    merged = set()
    single = np.array([len(choices) == 1 for choices in problem.choices_of])[problem.kinds]
    for k, policy in enumerate(problem.policies):
        if not (policy.form is PolicyForm.TOGETHER and policy.is_hard and _is_host(policy.codes)):
            continue
        if policy.present.any() or not (problem.required & single)[policy.subject_units].all():
            continue
        merged.add(k)
        units = np.flatnonzero(policy.subject_units).tolist()
        for other in units[1:]:
            parent[root(other)] = root(units[0])
    by_root: dict[int, list[int]] = defaultdict(list)
    for unit in range(len(problem.names)):
        by_root[root(unit)].append(unit)
    return merged, list(by_root.values())


def _is_host(codes: np.ndarray) -> bool:
    """Return whether each row is a domain by itself."""
    return bool((codes == np.arange(len(codes))).all())


def _depends_on_host_only(policy: JointPolicy) -> bool:
    """Return whether the cost that a unit adds to it depends on its host alone."""
    if policy.form is PolicyForm.NEAR:
        return not policy.target_units.any()
    return policy.form is PolicyForm.TOGETHER and bool(policy.present.any())


def _policy_role(policy: JointPolicy, item: Sequence[int]) -> tuple[int, int]:
    return int(policy.subject_units[item].sum()), int(policy.target_units[item].sum())


def _unit_classes(problem: GroupProblem, policies: Sequence[JointPolicy]) -> IntArray:
    """Return a number by unit that is equal for units alike to all of these policies."""
    bits = [mask for policy in policies for mask in (policy.subject_units, policy.target_units)]
    packed = np.packbits(np.array(bits, np.bool_).reshape(len(bits), len(problem.names)), axis=0)
    number_of: dict[tuple[object, ...], int] = {}
    numbers = np.zeros(len(problem.names), np.int64)
    for unit, kind in enumerate(problem.kinds.tolist()):
        seen = packed[:, unit].tobytes() if bits else b''
        key = (tuple(problem.choices_of[kind]), bool(problem.required[unit]), seen)
        numbers[unit] = number_of.setdefault(key, len(number_of))
    return numbers


class _ItemGroup(msgspec.Struct, eq=False):
    """Kinds of items that become one class."""

    items: list[list[int]]
    sets: list[int]
    absorbed: list[int]
    roles: dict[int, tuple[int, int]]
    cap: int = 0  # of items, in a domain, of all sets together


def _item_groups(
    problem: GroupProblem,
    active: Sequence[JointPolicy],
    static: Sequence[JointPolicy],
    kinds: Sequence[list[list[int]]],
) -> list[_ItemGroup]:
    """Return the groups of items; sets that only keep their own items apart are one group."""
    size = [int(p.subject_units.sum()) for p in active]
    groups: dict[tuple[object, ...], _ItemGroup] = {}
    for number, items in enumerate(kinds):
        roles = {k: r for k, p in enumerate(active) if any(r := _policy_role(p, items[0]))}
        own_caps = [
            k
            for k, (unit_count, _) in roles.items()
            if active[k].form is PolicyForm.MAX_PER_DOMAIN
            and active[k].is_hard
            and not active[k].present.any()
            and unit_count * len(items) == size[k]
        ]
        if len(own_caps) != 1:
            groups[('alone', number)] = _ItemGroup(items, [0] * len(items), [], roles)
            continue
        k = own_caps[0]
        rest = {at: r for at, r in roles.items() if at != k}
        cap = active[k].amount // roles[k][0]
        parts = [
            tuple(items[0][i] for i in range(len(items[0])) if p.subject_units[items[0][i]])
            for p in static
        ]
        seen = tuple(_choices_of_item(problem, part) for part in parts)
        alike = _choices_of_item(problem, items[0]), len(items), cap, id(active[k].codes), seen
        key = (*alike, tuple(sorted(rest.items())), bool(problem.required[items[0][0]]))
        group = groups.setdefault(key, _ItemGroup([], [], [], rest))
        group.sets += [len(group.absorbed)] * len(items)
        group.items += items
        group.absorbed.append(k)
        group.cap += cap
    return list(groups.values())


def _choices_of_item(problem: GroupProblem, item: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted(tuple(problem.choices_of[problem.kinds[u]]) for u in item))


# -- classes ---------------------------------------------------------------------------


def _item_class(
    problem: GroupProblem,
    active: Sequence[JointPolicy],
    static: Sequence[JointPolicy],
    group: _ItemGroup,
    position: dict[int, int],
    unit: float,
    top: float,
) -> ItemClass:
    # Within an item of a merged class units of equal choices are in the same order.
    choices_of = problem.choices_of
    items = [sorted(item, key=lambda u: (choices_of[problem.kinds[u]], u)) for item in group.items]
    first = items[0]
    choice_counts = [len(choices_of[problem.kinds[u]]) for u in first]
    ways = [tuple(choices_of[problem.kinds[u]][0] for u in first)]
    if len(first) == 1 and choice_counts[0] > 1:
        ways = [(c,) for c in choices_of[problem.kinds[first[0]]][:_OPTIONS_MAX]]
    # Policies that became caps are about all sets together from here on.
    whole = [p for k, p in enumerate(active) if k not in group.absorbed]
    hard = [p for p in (*whole, *static) if p.is_hard and any(_policy_role(p, first))]
    here = [p for p in static if p.subject_units[first].any()]
    caps = []
    for k in group.absorbed[:1]:
        caps.append(DomainCap(active[k].codes, group.cap, active[k].domains))
    options = [
        _item_option(problem, first, way, number, hard, here, caps, len(items), (unit, top))
        for number, way in enumerate(ways)
    ]
    of_counts = {position[k]: r[0] for k, r in group.roles.items() if r[0] and k in position}
    to_counts = {position[k]: r[1] for k, r in group.roles.items() if r[1] and k in position}
    is_required = bool(problem.required[first].all())
    return ItemClass(items, group.sets, is_required, options, caps, of_counts, to_counts)


def _item_option(
    problem: GroupProblem,
    item: Sequence[int],
    way: tuple[int, ...],
    number: int,
    hard: Sequence[JointPolicy],
    static: Sequence[JointPolicy],
    caps: Sequence[DomainCap],
    count: int,
    scale: tuple[float, float],
) -> ItemOption:
    choices = [problem.choices[c] for c in way]
    demand = np.sum([c.demand for c in choices], axis=0)
    mask = choices[0].mask.copy()
    for choice in choices[1:]:
        mask &= choice.mask
    most = np.minimum(problem.limit // len(item), count)
    for k, amount in enumerate(demand.tolist()):
        if amount:
            most = np.minimum(most, problem.free[k].take(problem.bins[k]) // amount)
    for cap in caps:
        most = np.where(cap.codes == UNKNOWN_DOMAIN, 0, np.minimum(most, cap.most))
    for policy in hard:
        most = np.minimum(most, _items_allowed(policy, item))
    rows = np.flatnonzero(mask & (most > 0))
    steps = np.sum([c.unmet[:, rows].astype(np.int64) for c in choices], axis=0)
    weight = np.zeros(len(rows), np.int64)
    for policy in static:
        unit_cost, unit_count = (
            _policy_cost_by_row(policy, rows),
            int(policy.subject_units[item].sum()),
        )
        if policy.step >= 0:
            steps[policy.step] += unit_count * np.rint(unit_cost).astype(np.int64)
        elif policy.weight:
            weight += unit_count * np.rint(unit_cost * policy.weight * WEIGHT_UNIT).astype(np.int64)
    unit, top = scale
    gain = np.sum([c.gain.take(rows) for c in choices], axis=0)
    best = np.sum([c.best.take(rows) for c in choices], axis=0)
    crowd = np.sum([c.crowd.take(rows) for c in choices], axis=0)
    return ItemOption(
        choices=way,
        demand=demand,
        rows=rows,
        most=most[rows].astype(np.int64),
        steps=steps,
        weight=weight,
        cost=np.rint((top * len(item) - gain) * unit).astype(np.int64),
        least_cost=np.floor((top * len(item) - best) * unit).astype(np.int64),
        crowd=np.rint(-crowd * unit).astype(np.int64),
        alternatives=number,
    )


def _items_allowed(policy: JointPolicy, item: Sequence[int]) -> IntArray:
    """Return by row how many items a hard policy allows there, whatever else is placed."""
    of_count, to_count = _policy_role(policy, item)
    is_known = policy.codes != UNKNOWN_DOMAIN
    room_by_row = np.where(is_known | (not of_count and not policy.needs_known_targets), 1 << 30, 0)
    codes = policy.codes
    if not policy.domains:
        return room_by_row
    match policy.form:
        case PolicyForm.MAX_PER_DOMAIN:
            room = np.maximum(policy.amount - policy.present, 0)
            room_by_row = np.where(
                is_known, np.minimum(room_by_row, room[codes] // max(of_count, 1)), room_by_row
            )
        case PolicyForm.TOGETHER if policy.present.any():
            room_by_row = np.where(is_known & (policy.present[codes] == 0), 0, room_by_row)
        case PolicyForm.APART:
            if of_count:
                room_by_row = np.where(is_known & policy.occupied[codes], 0, room_by_row)
            if to_count:
                room_by_row = np.where(is_known & (policy.present[codes] > 0), 0, room_by_row)
        case PolicyForm.NEAR if of_count and not policy.target_units.any():
            cost = _policy_cost_by_row(policy, np.arange(len(codes)))
            room_by_row = np.where(cost > 0, 0, room_by_row)
    return room_by_row


def _policy_cost_by_row(policy: JointPolicy, rows: IntArray) -> np.ndarray:
    """Return what one unit adds to a policy that depends on its host alone."""
    if policy.form is PolicyForm.NEAR:
        return near_prices(policy, rows, np.zeros(0, np.int64))
    codes = policy.codes.take(rows)
    return np.where((codes == UNKNOWN_DOMAIN) | (policy.present[codes] == 0), 1.0, 0.0)


# -- hosts that cannot matter ------------------------------------------------------------


def _pruned_model(model: Model, plan: Assignment | None) -> Model:
    planned_rows = used_rows(model, plan) if plan is not None else {}
    total = sum(len(item_class.items) for item_class in model.classes)
    share, is_whole = 1.0, True
    while True:
        classes = [
            msgspec.structs.replace(
                item_class,
                options=[
                    _useful_rows(model, item_class, option, total, share, planned_rows.get((c, o)))
                    for o, option in enumerate(item_class.options)
                ],
            )
            for c, item_class in enumerate(model.classes)
        ]
        pruned = msgspec.structs.replace(model, classes=classes, is_whole=is_whole)
        if pruned.variables <= VARIABLES_MAX or share < 0.01:
            return pruned
        share, is_whole = share * max(0.3, min(0.9, VARIABLES_MAX / pruned.variables)), False


def _useful_rows(
    model: Model,
    one: ItemClass,
    option: ItemOption,
    total: int,
    share: float,
    wanted: IntArray | None,
) -> ItemOption:
    """Return the option with as many rows by domain as items may come there, the best first."""
    levels = _exchange_domains(model, one, option)
    if levels is None:
        if share == 1.0:
            return option
        levels = []
    rows = option.rows
    key = [option.cost, option.weight, *option.steps[::-1]]
    domain = _joined_codes([codes.take(rows) for codes in levels], len(rows))
    order = np.lexsort((*key, domain))
    first = np.r_[True, domain[order][1:] != domain[order][:-1]][: len(order)]
    starts = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    rank = np.arange(len(order)) - starts
    row_count = max(1, int(np.ceil(_items_that_may_come(model, levels, total) * share)))
    is_chosen = np.zeros(len(rows), np.bool_)
    is_chosen[order[rank < row_count]] = True
    if len(levels) == 1 and _suits_domains_equally(model, one):
        # Among so many domains one has no item of the group at all: beyond them none is better.
        best = order[first]
        near = best[np.lexsort([k[best] for k in key])][: max(1, int(np.ceil(total * share)))]
        is_chosen &= np.isin(domain, domain[near])
    if wanted is not None:
        is_chosen |= np.isin(rows, wanted)
    return option.restricted_to(np.flatnonzero(is_chosen))


def _exchange_domains(model: Model, one: ItemClass, option: ItemOption) -> list[np.ndarray] | None:
    """Return codes within which hosts may replace each other; None: every host may matter."""
    levels: dict[int, np.ndarray] = {id(cap.codes): cap.codes for cap in one.caps}
    for k in {*one.of, *one.to}:
        policy = model.policies[k]
        levels[id(policy.codes)] = policy.codes
        for level in policy.near_levels:
            levels[id(level.codes)] = level.codes
    by_host = [i for i, codes in levels.items() if _is_host(codes)]
    for k in {*one.of, *one.to}:
        policy = model.policies[k]
        if id(policy.codes) in by_host and not (
            policy.form in (PolicyForm.MAX_PER_DOMAIN, PolicyForm.MIN_DOMAINS)
            and not policy.present.any()
        ):
            return None
        if any(id(level.codes) in by_host for level in policy.near_levels):
            return None
    for i in by_host:
        del levels[i]
    problem = model.problem
    for k in np.flatnonzero(option.demand).tolist():
        if (problem.bins[k] != np.arange(problem.hosts)).any():
            levels[-k - 1] = problem.bins[k]
    return list(levels.values())


def _suits_domains_equally(model: Model, one: ItemClass) -> bool:
    """Return whether all domains without members of the group suit an item equally."""
    return all(
        model.policies[k].form is PolicyForm.MAX_PER_DOMAIN and not model.policies[k].present.any()
        for k in {*one.of, *one.to}
    )


def _items_that_may_come(model: Model, levels: Sequence[np.ndarray], total: int) -> int:
    """Return how many items may come to one domain."""
    level_ids = {id(codes) for codes in levels}
    total_items = 0
    for item_class in model.classes:
        caps = [cap.most for cap in item_class.caps if id(cap.codes) in level_ids]
        total_items += min([len(item_class.items), *caps])
    return min(total_items, total)


def _joined_codes(codes: Sequence[np.ndarray], count: int) -> IntArray:
    """Return one code for each combination."""
    joined = np.zeros(count, np.int64)
    for level in codes:
        _, joined = np.unique(
            joined * (int(level.max(initial=0)) + 2) + level + 1, return_inverse=True
        )
    return joined


# -- between plans and counts ----------------------------------------------------------------


def used_rows(model: Model, plan: Assignment) -> dict[tuple[int, int], IntArray]:
    """Return by class and option the rows that a plan uses."""
    rows_by_option: dict[tuple[int, int], list[int]] = defaultdict(list)
    for c, item_class in enumerate(model.classes):
        ways = {option.choices: o for o, option in enumerate(item_class.options)}
        for item in item_class.items:
            rows = plan.rows[item]
            way = ways.get(tuple(plan.choices[item].tolist()))
            if way is not None and rows[0] >= 0 and (rows == rows[0]).all():
                rows_by_option[c, way].append(int(rows[0]))
    return {key: np.array(rows, np.int64) for key, rows in rows_by_option.items()}


def counts_of(model: Model, plan: Assignment) -> Counts:
    """Return a plan as counts; parts of it that the model does not have are left out."""
    counts: Counts = {}
    for (c, o), rows in used_rows(model, plan).items():
        option = model.classes[c].options[o]
        at = np.searchsorted(option.rows, rows)
        at = at[(at < len(option.rows)) & (option.rows.take(at, mode='clip') == rows)]
        counts[c, o] = np.bincount(at, minlength=len(option.rows))
    return counts


def plan_of(model: Model, counts: Counts) -> Assignment:
    """Return counts as a plan, with the host of each item."""
    plan = Assignment.empty(model.problem)
    for c, item_class in enumerate(model.classes):
        places: list[tuple[int, int, int]] = []  # domain, row, option
        for o, option in enumerate(item_class.options):
            item_counts = counts.get((c, o))
            if item_counts is None:
                continue
            for at in np.flatnonzero(item_counts).tolist():
                row = int(option.rows[at])
                domain = int(item_class.caps[0].codes[row]) if item_class.caps else 0
                places += [(domain, row, o)] * int(item_counts[at])
        places.sort()
        for item, (_, row, o) in zip(_dealing_order(item_class), places, strict=False):
            plan.rows[item] = row
            plan.choices[item] = item_class.options[o].choices
    return plan


def _dealing_order(one: ItemClass) -> list[list[int]]:
    """Return items in the order in which places are dealt: of each set one, and again."""
    turns: dict[int, int] = defaultdict(int)
    keyed = []
    for item, of_set in zip(one.items, one.sets, strict=True):
        keyed.append((turns[of_set], of_set, item))
        turns[of_set] += 1
    return [item for _, _, item in sorted(keyed, key=lambda k: k[:2])]
