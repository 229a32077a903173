# SPDX-License-Identifier: Apache-2.0
"""Packing of items on hosts, moved one at a time: free resources, and the value of a move.

A plan is improved without a solver likewise: items are moved, evicted for others, removed and
replaced.  All of it is bounded by the clock and determined by the seed.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gantt.core.group_policies.levels import UNKNOWN_DOMAIN
from gantt.core.group_policies.policies import JointPolicy, PolicyForm, added_cost, violation
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.groups.model.model import Counts, ItemOption, Model
from gantt.groups.model.problem import WEIGHT_UNIT

#: Sums of goals, compared from the first on.
GoalSums = tuple[int, ...]


class Packing:
    """Packing of a model; see the module docstring.

    :ivar row: host row by item, -1: it has no place
    :ivar option: number of the option by item
    :ivar of_class: number of the class by item
    """

    def __init__(self, model: Model, counts: Counts) -> None:
        self.model, problem = model, model.problem
        self.of_class = np.repeat(
            np.arange(len(model.classes)), [len(item_class.items) for item_class in model.classes]
        )
        self.first = np.cumsum([0, *(len(item_class.items) for item_class in model.classes)])
        self.row = np.full(len(self.of_class), -1, np.int64)
        self.option = np.zeros(len(self.of_class), np.int64)
        self._free = np.maximum(problem.free, 0).copy()
        self._limit = problem.limit.copy()
        #: By row, units there, and what they add to the cost of each other unit; the total of that.
        self._unit_counts = np.zeros(problem.hosts, np.int64)
        self._added_cost_per_unit = np.zeros(problem.hosts, np.int64)
        self._added_cost_total = 0
        self._cap_left = [
            [np.full(cap.domains, cap.most) for cap in item_class.caps]
            for item_class in model.classes
        ]
        self._row_of_unit = np.full(len(problem.names), -1, np.int64)
        #: Hosts that refused units despite their room: no further item is put there.
        self._refusing_rows = [cut.row for cut in problem.cuts]
        self._row_index: dict[tuple[int, int], dict[int, int]] = {}
        for (c, o), item_counts in counts.items():
            free = [i for i in range(self.first[c], self.first[c + 1]) if self.row[i] < 0]
            option = model.classes[c].options[o]
            for item, row in zip(free, np.repeat(option.rows, item_counts).tolist(), strict=False):
                self.put(item, o, row)

    def counts(self) -> Counts:
        """Return the counts by class and option."""
        counts: Counts = {}
        for c, item_class in enumerate(self.model.classes):
            of_items = slice(self.first[c], self.first[c + 1])
            for o, option in enumerate(item_class.options):
                rows = self.row[of_items][(self.option[of_items] == o) & (self.row[of_items] >= 0)]
                at = np.searchsorted(option.rows, rows)
                counts[c, o] = np.bincount(at, minlength=len(option.rows))
        return counts

    def _option(self, item: int, o: int) -> ItemOption:
        return self.model.classes[self.of_class[item]].options[o]

    def _index(self, item: int, o: int, row: int) -> int:
        key = (int(self.of_class[item]), o)
        if key not in self._row_index:
            rows = self._option(item, o).rows.tolist()
            self._row_index[key] = {r: i for i, r in enumerate(rows)}
        return self._row_index[key][row]

    def put(self, item: int, o: int, row: int) -> None:
        """Place an item that has no place."""
        self._move(item, o, row, -1)
        self.row[item], self.option[item] = row, o

    def remove(self, item: int) -> None:
        """Take an item off its host."""
        row, o = int(self.row[item]), int(self.option[item])
        self._move(item, o, row, 1)
        self.row[item] = -1

    def _move(self, item: int, o: int, row: int, sign: int) -> None:
        c = int(self.of_class[item])
        item_class, problem = self.model.classes[c], self.model.problem
        for k, amount in enumerate(item_class.options[o].demand.tolist()):
            self._free[k, problem.bins[k, row]] += sign * amount
        self._limit[row] += sign * item_class.width
        before = (self._unit_counts[row] - 1) * self._added_cost_per_unit[row]
        self._unit_counts[row] -= sign * item_class.width
        self._added_cost_per_unit[row] -= (
            sign * item_class.options[o].crowd[self._index(item, o, row)]
        )
        self._added_cost_total += int(
            (self._unit_counts[row] - 1) * self._added_cost_per_unit[row] - before
        )
        for cap, cap_left in zip(item_class.caps, self._cap_left[c], strict=True):
            cap_left[cap.codes[row]] += sign
        units = item_class.items[item - int(self.first[c])]
        self._row_of_unit[units] = row if sign < 0 else -1

    def fits(self, item: int, o: int) -> BoolArray:
        """Return, by row of the option, whether there is room for one more item."""
        c = int(self.of_class[item])
        item_class, option, problem = (
            self.model.classes[c],
            self._option(item, o),
            self.model.problem,
        )
        has_room = self._limit.take(option.rows) >= item_class.width
        for k, amount in enumerate(option.demand.tolist()):
            if amount:
                has_room &= self._free[k].take(problem.bins[k].take(option.rows)) >= amount
        if self._refusing_rows:
            has_room &= ~np.isin(option.rows, self._refusing_rows)
        for cap, cap_left in zip(item_class.caps, self._cap_left[c], strict=True):
            has_room &= cap_left.take(cap.codes.take(option.rows)) > 0
        return has_room

    def items_on(self, row: int) -> list[int]:
        """Return the items on a host."""
        return np.flatnonzero(self.row == row).tolist()

    # -- policies ----------------------------------------------------------------------

    def _policies_of_class(self, c: int) -> Iterator[JointPolicy]:
        item_class = self.model.classes[c]
        return (self.model.policies[k] for k in sorted({*item_class.of, *item_class.to}))

    def value(self, items: Sequence[int]) -> GoalSums:
        """Return the goals that these items influence; the number of violated hard policies first.

        The last includes the cost of all items on each other.
        """
        model, steps = self.model, len(self.model.problem.steps)
        goals = [0] * (6 + steps)
        policies: dict[int, JointPolicy] = {}
        for item in items:
            c = int(self.of_class[item])
            item_class = model.classes[c]
            policies |= {k: model.policies[k] for k in {*item_class.of, *item_class.to}}
            row, o = int(self.row[item]), int(self.option[item])
            if row < 0:
                goals[1 if item_class.is_required else 2] += item_class.width
                continue
            option, at = item_class.options[o], self._index(item, o, row)
            for s in range(steps):
                goals[3 + s] += int(option.steps[s, at])
            goals[3 + steps] += option.alternatives
            goals[4 + steps] += int(option.weight[at])
            goals[5 + steps] += int(option.cost[at])
        for policy in policies.values():
            violated = violation(policy, self._row_of_unit)
            if policy.is_hard:
                goals[0] += int(violated > 0)
            elif policy.step >= 0:
                goals[3 + policy.step] += round(violated)
            else:
                goals[4 + steps] += round(violated * policy.weight * WEIGHT_UNIT)
        goals[-1] += self._added_cost_total
        return tuple(goals)

    def best(self, item: int, rng: np.random.Generator | None = None) -> tuple[int, int] | None:
        """Return the best option and row for an item without a place; None: there is none.

        :param rng: choose among the best few by it
        """
        c = int(self.of_class[item])
        item_class, steps = self.model.classes[c], len(self.model.problem.steps)
        for o, option in enumerate(item_class.options):
            alive = self.fits(item, o)
            if not alive.any():
                continue
            cost = self._cost_by_row(item_class.width, option)
            weight, stepped = option.weight.astype(float), option.steps.astype(float)
            for policy in self._policies_of_class(c):
                cost_added = self._added_violation(policy, item, option.rows)
                if policy.is_hard:
                    alive &= cost_added == 0
                elif policy.step >= 0:
                    stepped[policy.step] += cost_added
                else:
                    weight += cost_added * policy.weight * WEIGHT_UNIT
            at = np.flatnonzero(alive)
            if not len(at):
                continue
            keys = [
                cost[at],
                weight[at],
                *(stepped[s, at] for s in range(steps - 1, -1, -1)),
            ]
            order = at[np.lexsort(keys)] if rng is not None or steps or weight.any() else None
            if order is None:
                return o, int(option.rows[at[cost[at].argmin()]])
            pick = 0 if rng is None else min(int(rng.geometric(0.7)) - 1, len(order) - 1)
            return o, int(option.rows[order[pick]])
        return None

    def _cost_by_row(self, width: int, option: ItemOption) -> IntArray:
        """Return, by row of an option, the cost of one more item and its effect on others there."""
        unit_counts, crowd = (
            self._unit_counts.take(option.rows),
            self._added_cost_per_unit.take(option.rows),
        )
        together = (unit_counts + width - 1) * (crowd + option.crowd) - (unit_counts - 1) * crowd
        total: IntArray = option.cost + together
        return total

    def _added_violation(self, policy: JointPolicy, item: int, rows: IntArray) -> FloatArray:
        """Return, by row, what one more item adds to the violation of a policy."""
        c = int(self.of_class[item])
        units = self.model.classes[c].items[item - int(self.first[c])]
        affected = [u for u in units if policy.subject_units[u]] or [
            u for u in units if policy.target_units[u]
        ]
        unplaced = int(np.count_nonzero(policy.subject_units & (self._row_of_unit < 0)))
        cost = added_cost(policy, affected[0], self._row_of_unit, unplaced)
        if policy.form is PolicyForm.MAX_PER_DOMAIN and len(affected) > 1:
            cost = np.maximum(cost, self._exceeds_bound(policy, len(affected)))
        return cost.take(rows)

    def _exceeds_bound(self, policy: JointPolicy, unit_count: int) -> FloatArray:
        """Return, by row of the table, whether so many more units exceed the bound of a policy."""
        codes = policy.codes.take(
            self._row_of_unit[policy.subject_units & (self._row_of_unit >= 0)]
        )
        counts = np.bincount(codes[codes != UNKNOWN_DOMAIN], minlength=policy.domains)
        over = counts + policy.present + unit_count > np.maximum(policy.amount, policy.present)
        is_over: FloatArray = np.where(
            policy.codes == UNKNOWN_DOMAIN, 1.0, over[policy.codes] * 1.0
        )
        return is_over


#: Largest number of items that are taken off together.
_REMOVED_MAX = 24
#: Rounds in a row without a better plan after which it stops: a base, and some for each item.
_IDLE, _IDLE_EACH = 50, 20


def improve_counts(
    model: Model, counts: Counts, *, over: Callable[[], bool], seed: int, bound: int | None = None
) -> Counts:
    """Return a plan that is at least as good.

    :param over: returns whether time is up
    :param bound: lower bound of the cost: with no more than that, and nothing before it, none is
        better
    """
    packing = Packing(model, counts)
    rng = np.random.default_rng(seed)
    everything = range(len(packing.row))
    value = best = packing.value(everything)
    best_counts, idle = packing.counts(), 0
    idle_max = _IDLE + _IDLE_EACH * len(packing.row)
    while not over() and idle < idle_max and not _is_optimal(best, bound):
        idle += 1
        now = _ruin_and_recreate(packing, rng, value)
        value = now
        if now < best:
            best, best_counts, idle = now, packing.counts(), 0
    return best_counts


def locally_improved(model: Model, counts: Counts, *, over: Callable[[], bool]) -> Counts:
    """Return a plan that is at least as good, with each item on the best host available for it."""
    packing = Packing(model, counts)
    _improve_locally(packing, over)
    return packing.counts()


def _is_optimal(value: GoalSums, bound: int | None) -> bool:
    return bound is not None and not any(value[:-1]) and value[-1] <= bound


def _improve_locally(packing: Packing, over: Callable[[], bool]) -> None:
    """Move each item to the best host available for it, until none moves."""
    for _ in range(8):
        moved = False
        for item in range(len(packing.row)):
            if over():
                return
            moved = _try_move(packing, item) or moved
        if not moved:
            return


def _try_move(packing: Packing, item: int) -> bool:
    was, option = int(packing.row[item]), int(packing.option[item])
    before = packing.value([item])
    if was >= 0:
        packing.remove(item)
    place = packing.best(item)
    if place is None:
        if was >= 0:
            packing.put(item, option, was)
        return False
    packing.put(item, *place)
    if packing.value([item]) < before:
        return True
    packing.remove(item)
    if was >= 0:
        packing.put(item, option, was)
    return False


def _ruin_and_recreate(packing: Packing, rng: np.random.Generator, value: GoalSums) -> GoalSums:
    """Remove some items, place them again, and undo that where the plan is worse."""
    removed = _items_to_remove(packing, rng)
    before = packing.value(removed)
    places = [(item, int(packing.option[item]), int(packing.row[item])) for item in removed]
    for item in removed:
        if packing.row[item] >= 0:
            packing.remove(item)
    order = _largest_first(packing, removed, rng)
    for item in order:
        place = packing.best(item, rng)
        if place is not None:
            packing.put(item, *place)
    after = packing.value(removed)
    if after <= before:
        return tuple(v + a - b for v, a, b in zip(value, after, before, strict=True))
    for item in removed:
        if packing.row[item] >= 0:
            packing.remove(item)
    for item, option, row in places:
        if row >= 0:
            packing.put(item, option, row)
    return value


def _largest_first(packing: Packing, removed: list[int], rng: np.random.Generator) -> list[int]:
    """Return the items, roughly those of the largest demand first."""
    model = packing.model
    free = np.maximum(model.problem.free.max(axis=1, initial=1), 1)
    size = np.array(
        [
            (model.classes[packing.of_class[item]].options[0].demand / free).sum()
            if model.classes[packing.of_class[item]].options
            else 0.0
            for item in removed
        ]
    )
    noise = rng.random(len(removed)) * 0.5 + 0.75
    return [removed[i] for i in np.argsort(-size * noise, kind='stable').tolist()]


def _items_to_remove(packing: Packing, rng: np.random.Generator) -> list[int]:
    """Return the items without a place and those on a few hosts; else a few items of any host."""
    without = np.flatnonzero(packing.row < 0)
    placed = np.flatnonzero(packing.row >= 0)
    count = int(rng.integers(2, _REMOVED_MAX + 1))
    chosen: list[int] = []
    if len(without):
        chosen.append(int(rng.choice(without)))
    if not len(placed):
        return chosen
    if rng.random() < 0.7:
        rows = _rows_to_empty(packing, rng, chosen)
        for row in rows:
            chosen += packing.items_on(row)
            if len(chosen) >= count:
                break
    else:
        chosen += rng.choice(placed, min(count, len(placed)), replace=False).tolist()
    return list(dict.fromkeys(chosen))[: _REMOVED_MAX + 1]


def _rows_to_empty(packing: Packing, rng: np.random.Generator, wanting: list[int]) -> list[int]:
    """Return hosts in use, those first that might have the item without a place."""
    used = np.unique(packing.row[packing.row >= 0])
    if wanting:
        item_class = packing.model.classes[packing.of_class[wanting[0]]]
        eligible = np.unique(np.concatenate([option.rows for option in item_class.options]))
        near = used[np.isin(used, eligible)]
        used = near if len(near) else used
    count = min(len(used), int(rng.integers(2, 9)))
    return rng.choice(used, count, replace=False).tolist()
