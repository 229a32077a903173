# SPDX-License-Identifier: Apache-2.0
"""Items on hosts, to be moved one at a time: what is free, and what a move is worth."""

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
    """See the module docstring.

    :ivar row: by item, -1: it has no place
    :ivar option: by item
    :ivar of_class: by item
    """

    def __init__(self, model: Model, counts: Counts) -> None:
        self.model, problem = model, model.problem
        self.of_class = np.repeat(
            np.arange(len(model.classes)), [len(one.items) for one in model.classes]
        )
        self.first = np.cumsum([0, *(len(one.items) for one in model.classes)])
        self.row = np.full(len(self.of_class), -1, np.int64)
        self.option = np.zeros(len(self.of_class), np.int64)
        self._left = np.maximum(problem.free, 0).copy()
        self._limit = problem.limit.copy()
        #: By row, units there, and what they add to the cost of each other unit; all of that.
        self._many = np.zeros(problem.hosts, np.int64)
        self._crowd = np.zeros(problem.hosts, np.int64)
        self._crowding = 0
        self._caps = [[np.full(cap.domains, cap.most) for cap in one.caps] for one in model.classes]
        self._units = np.full(len(problem.names), -1, np.int64)
        #: Hosts that do not take all that there is room for: nothing more comes there.
        self._cut = [cut.row for cut in problem.cuts]
        self._at: dict[tuple[int, int], dict[int, int]] = {}
        for (c, o), many in counts.items():
            free = [i for i in range(self.first[c], self.first[c + 1]) if self.row[i] < 0]
            option = model.classes[c].options[o]
            for item, row in zip(free, np.repeat(option.rows, many).tolist(), strict=False):
                self.put(item, o, row)

    def counts(self) -> Counts:
        """As counts by class and option."""
        found: Counts = {}
        for c, one in enumerate(self.model.classes):
            mine = slice(self.first[c], self.first[c + 1])
            for o, option in enumerate(one.options):
                rows = self.row[mine][(self.option[mine] == o) & (self.row[mine] >= 0)]
                at = np.searchsorted(option.rows, rows)
                found[c, o] = np.bincount(at, minlength=len(option.rows))
        return found

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
        one, problem = self.model.classes[c], self.model.problem
        for k, amount in enumerate(one.options[o].demand.tolist()):
            self._left[k, problem.bins[k, row]] += sign * amount
        self._limit[row] += sign * one.width
        before = (self._many[row] - 1) * self._crowd[row]
        self._many[row] -= sign * one.width
        self._crowd[row] -= sign * one.options[o].crowd[self._index(item, o, row)]
        self._crowding += int((self._many[row] - 1) * self._crowd[row] - before)
        for cap, left in zip(one.caps, self._caps[c], strict=True):
            left[cap.codes[row]] += sign
        units = one.items[item - int(self.first[c])]
        self._units[units] = row if sign < 0 else -1

    def fits(self, item: int, o: int) -> BoolArray:
        """By row of the option, whether there is room for one more."""
        c = int(self.of_class[item])
        one, option, problem = self.model.classes[c], self._option(item, o), self.model.problem
        found = self._limit.take(option.rows) >= one.width
        for k, amount in enumerate(option.demand.tolist()):
            if amount:
                found &= self._left[k].take(problem.bins[k].take(option.rows)) >= amount
        if self._cut:
            found &= ~np.isin(option.rows, self._cut)
        for cap, left in zip(one.caps, self._caps[c], strict=True):
            found &= left.take(cap.codes.take(option.rows)) > 0
        return found

    def on(self, row: int) -> list[int]:
        """Items on a host."""
        return np.flatnonzero(self.row == row).tolist()

    # -- policies ----------------------------------------------------------------------

    def _policies(self, c: int) -> Iterator[JointPolicy]:
        one = self.model.classes[c]
        return (self.model.policies[k] for k in sorted({*one.of, *one.to}))

    def value(self, items: Sequence[int]) -> Value:
        """Goals as far as these items have a part in them; hard policies first, violated or not.

        The last has in it what all items there are cost each other.
        """
        model, steps = self.model, len(self.model.problem.steps)
        found = [0] * (6 + steps)
        policies: dict[int, JointPolicy] = {}
        for item in items:
            c = int(self.of_class[item])
            one = model.classes[c]
            policies |= {k: model.policies[k] for k in {*one.of, *one.to}}
            row, o = int(self.row[item]), int(self.option[item])
            if row < 0:
                found[1 if one.is_required else 2] += one.width
                continue
            option, at = one.options[o], self._index(item, o, row)
            for s in range(steps):
                found[3 + s] += int(option.steps[s, at])
            found[3 + steps] += option.alternatives
            found[4 + steps] += int(option.weight[at])
            found[5 + steps] += int(option.cost[at])
        for policy in policies.values():
            violated = violation(policy, self._units)
            if policy.is_hard:
                found[0] += int(violated > 0)
            elif policy.step >= 0:
                found[3 + policy.step] += round(violated)
            else:
                found[4 + steps] += round(violated * policy.weight * WEIGHT_UNIT)
        found[-1] += self._crowding
        return tuple(found)

    def best(self, item: int, rng: np.random.Generator | None = None) -> tuple[int, int] | None:
        """Option and row that are the best for an item without a place; None: there is none.

        :param rng: choose among the best few by it
        """
        c = int(self.of_class[item])
        one, steps = self.model.classes[c], len(self.model.problem.steps)
        for o, option in enumerate(one.options):
            alive = self.fits(item, o)
            if not alive.any():
                continue
            cost = self._cost(one.width, option)
            weight, stepped = option.weight.astype(float), option.steps.astype(float)
            for policy in self._policies(c):
                more = self._added(policy, item, option.rows)
                if policy.is_hard:
                    alive &= more == 0
                elif policy.step >= 0:
                    stepped[policy.step] += more
                else:
                    weight += more * policy.weight * WEIGHT_UNIT
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
        """What one more item costs by row of an option, and the others that are there with it."""
        many, crowd = self._many.take(option.rows), self._crowd.take(option.rows)
        together = (many + width - 1) * (crowd + option.crowd) - (many - 1) * crowd
        found: IntArray = option.cost + together
        return found

    def _added(self, policy: JointPolicy, item: int, rows: IntArray) -> FloatArray:
        """What one more item adds to a policy, by row."""
        c = int(self.of_class[item])
        units = self.model.classes[c].items[item - int(self.first[c])]
        mine = [u for u in units if policy.of[u]] or [u for u in units if policy.to[u]]
        left = int(np.count_nonzero(policy.of & (self._units < 0)))
        cost = added(policy, mine[0], self._units, left)
        if policy.form is PolicyForm.MOST and len(mine) > 1:
            cost = np.maximum(cost, self._crowded(policy, len(mine)))
        return cost.take(rows)

    def _crowded(self, policy: JointPolicy, many: int) -> FloatArray:
        """By row of the table, whether so many more of its units are too many."""
        codes = policy.codes.take(self._units[policy.of & (self._units >= 0)])
        counts = np.bincount(codes[codes != UNKNOWN], minlength=policy.domains)
        over = counts + policy.standing + many > np.maximum(policy.amount, policy.standing)
        found: FloatArray = np.where(policy.codes == UNKNOWN, 1.0, over[policy.codes] * 1.0)
        return found
