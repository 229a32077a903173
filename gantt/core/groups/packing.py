# SPDX-License-Identifier: Apache-2.0
"""Packing of items on hosts, moved one at a time: free resources, and the value of a move."""

from collections.abc import Iterator, Sequence

import numpy as np

from gantt.core.group_policies.levels import UNKNOWN
from gantt.core.group_policies.policies import JointPolicy, PolicyForm, added, violation
from gantt.core.groups.model import Counts, ItemOption, Model
from gantt.core.groups.problem import WEIGHT_UNIT
from gantt.core.table.columns import BoolArray, FloatArray, IntArray

#: Sums of goals, compared from the first on.
Value = tuple[int, ...]


class Packing:
    """Packing of a model; see the module docstring.

    :ivar row: by item, -1: it has no place
    :ivar option: by item
    :ivar of_class: by item
    """

    def __init__(self, model: Model, counts: Counts) -> None:
        self.model, problem = model, model.problem
        self.of_class = np.repeat(
            np.arange(len(model.classes)), [len(item_class.items) for item_class in model.classes]
        )
        self.first = np.cumsum([0, *(len(item_class.items) for item_class in model.classes)])
        self.row = np.full(len(self.of_class), -1, np.int64)
        self.option = np.zeros(len(self.of_class), np.int64)
        self._left = np.maximum(problem.free, 0).copy()
        self._limit = problem.limit.copy()
        #: By row, units there, and what they add to the cost of each other unit; the total of that.
        self._many = np.zeros(problem.hosts, np.int64)
        self._crowd = np.zeros(problem.hosts, np.int64)
        self._crowding = 0
        self._caps = [
            [np.full(cap.domains, cap.most) for cap in item_class.caps]
            for item_class in model.classes
        ]
        self._units = np.full(len(problem.names), -1, np.int64)
        #: Hosts that refused units despite their room: no further item is put there.
        self._cut = [cut.row for cut in problem.cuts]
        self._at: dict[tuple[int, int], dict[int, int]] = {}
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
        if key not in self._at:
            rows = self._option(item, o).rows.tolist()
            self._at[key] = {r: i for i, r in enumerate(rows)}
        return self._at[key][row]

    def put(self, item: int, o: int, row: int) -> None:
        """Place an item that has no place."""
        self._move(item, o, row, -1)
        self.row[item], self.option[item] = row, o

    def take(self, item: int) -> None:
        """Take an item off its host."""
        row, o = int(self.row[item]), int(self.option[item])
        self._move(item, o, row, 1)
        self.row[item] = -1

    def _move(self, item: int, o: int, row: int, sign: int) -> None:
        c = int(self.of_class[item])
        item_class, problem = self.model.classes[c], self.model.problem
        for k, amount in enumerate(item_class.options[o].demand.tolist()):
            self._left[k, problem.bins[k, row]] += sign * amount
        self._limit[row] += sign * item_class.width
        before = (self._many[row] - 1) * self._crowd[row]
        self._many[row] -= sign * item_class.width
        self._crowd[row] -= sign * item_class.options[o].crowd[self._index(item, o, row)]
        self._crowding += int((self._many[row] - 1) * self._crowd[row] - before)
        for cap, cap_left in zip(item_class.caps, self._caps[c], strict=True):
            cap_left[cap.codes[row]] += sign
        units = item_class.items[item - int(self.first[c])]
        self._units[units] = row if sign < 0 else -1

    def fits(self, item: int, o: int) -> BoolArray:
        """Return by row of the option whether there is room for one more."""
        c = int(self.of_class[item])
        item_class, option, problem = (
            self.model.classes[c],
            self._option(item, o),
            self.model.problem,
        )
        has_room = self._limit.take(option.rows) >= item_class.width
        for k, amount in enumerate(option.demand.tolist()):
            if amount:
                has_room &= self._left[k].take(problem.bins[k].take(option.rows)) >= amount
        if self._cut:
            has_room &= ~np.isin(option.rows, self._cut)
        for cap, cap_left in zip(item_class.caps, self._caps[c], strict=True):
            has_room &= cap_left.take(cap.codes.take(option.rows)) > 0
        return has_room

    def on(self, row: int) -> list[int]:
        """Return the items on a host."""
        return np.flatnonzero(self.row == row).tolist()

    # -- policies ----------------------------------------------------------------------

    def _policies(self, c: int) -> Iterator[JointPolicy]:
        item_class = self.model.classes[c]
        return (self.model.policies[k] for k in sorted({*item_class.of, *item_class.to}))

    def value(self, items: Sequence[int]) -> Value:
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
            violated = violation(policy, self._units)
            if policy.is_hard:
                goals[0] += int(violated > 0)
            elif policy.step >= 0:
                goals[3 + policy.step] += round(violated)
            else:
                goals[4 + steps] += round(violated * policy.weight * WEIGHT_UNIT)
        goals[-1] += self._crowding
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
            cost = self._cost(item_class.width, option)
            weight, stepped = option.weight.astype(float), option.steps.astype(float)
            for policy in self._policies(c):
                cost_added = self._added(policy, item, option.rows)
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

    def _cost(self, width: int, option: ItemOption) -> IntArray:
        """Return the cost of one more item by row of an option, with that of the others there."""
        unit_counts, crowd = self._many.take(option.rows), self._crowd.take(option.rows)
        together = (unit_counts + width - 1) * (crowd + option.crowd) - (unit_counts - 1) * crowd
        total: IntArray = option.cost + together
        return total

    def _added(self, policy: JointPolicy, item: int, rows: IntArray) -> FloatArray:
        """Return what one more item adds to a policy, by row."""
        c = int(self.of_class[item])
        units = self.model.classes[c].items[item - int(self.first[c])]
        affected = [u for u in units if policy.of[u]] or [u for u in units if policy.to[u]]
        unplaced = int(np.count_nonzero(policy.of & (self._units < 0)))
        cost = added(policy, affected[0], self._units, unplaced)
        if policy.form is PolicyForm.MOST and len(affected) > 1:
            cost = np.maximum(cost, self._crowded(policy, len(affected)))
        return cost.take(rows)

    def _crowded(self, policy: JointPolicy, many: int) -> FloatArray:
        """Return by row of the table whether so many more of its units are too many."""
        codes = policy.codes.take(self._units[policy.of & (self._units >= 0)])
        counts = np.bincount(codes[codes != UNKNOWN], minlength=policy.domains)
        over = counts + policy.standing + many > np.maximum(policy.amount, policy.standing)
        is_over: FloatArray = np.where(policy.codes == UNKNOWN, 1.0, over[policy.codes] * 1.0)
        return is_over
