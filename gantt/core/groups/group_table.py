# SPDX-License-Identifier: Apache-2.0
"""Copy of the host table on which a group is laid, member by member, through the pipeline."""

from collections.abc import Callable, Mapping
from math import fsum
from typing import NamedTuple

import numpy as np

from gantt.core.groups import joint_score
from gantt.core.groups.problem import Assignment, Cut, GroupProblem
from gantt.core.messages import image_properties
from gantt.core.messages.layout import Layout
from gantt.core.messages.request import name_of
from gantt.core.pause import Interrupted, Pause
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.layout_choice import Fitting
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.ranking import Ranking
from gantt.core.placement.tree_choice import TreeChoice
from gantt.core.resources.host import Placed
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.table.pools import Shares

#: Returns whether no caller waits for the plan any more.
Over = Callable[[], bool]


def never() -> bool:
    """Return False: the plan may take as long as it takes."""
    return False


class LaidUnit(NamedTuple):
    """Resources of a unit where it is laid.

    :ivar amounts: provider id -> class -> amount, the host first
    :ivar layout: its layout inside of the host; None: plain amounts are complete
    """

    amounts: Mapping[int, Mapping[str, int]]
    layout: Layout | None


class GroupTable:
    """Working copy of a host table; see the module docstring.

    :ivar plan: places of the units that are laid
    :ivar laid: unit -> its resources there
    :param over: called for each member, and now and then in long searches; all methods raise
        ``Interrupted`` where it returns True
    """

    def __init__(
        self, table: HostTable, problem: GroupProblem, pipeline: Pipeline, over: Over = never
    ) -> None:
        self._over = over
        self._table, self._problem = table.copy(), problem
        pipeline.name_parts(self._table)
        self._pipeline = pipeline.without_closing()
        self._runs: dict[int, FilterRun] = {}
        self._trees: dict[int, TreeChoice] = {}
        self._rows: list[int] = []
        self.plan = Assignment.empty(problem)
        self.laid: dict[int, LaidUnit] = {}

    def passing(self, choice: int) -> BoolArray:
        """Return hosts that every filter lets pass for one more of a choice; to be read at once."""
        if self._over():
            raise Interrupted(Pause.OVER)
        run = self._runs.get(choice)
        if run is None:
            spec = self._problem.choices[choice].spec
            run = self._runs[choice] = FilterRun(self._table, spec, self._pipeline)
            run.stepped(self._rows)
        run.look('', last=False)
        return run.alive & self._problem.choices[choice].mask

    def rank(self, choice: int, rows: BoolArray) -> Ranking:
        """Return the hosts weighed as those of a request of its own would be."""
        run = self._runs[choice]
        np.copyto(run.alive, rows)
        return run.rank()

    def lay(self, unit: int, choice: int, row: int) -> bool:
        """Lay a unit over a host; False where the host has no layout for it, or its tree no room.

        Filters are evaluated before, by :meth:`passing`.
        """
        table, spec = self._table, self._problem.choices[choice].spec
        fits, layout = self._layout(choice, row)
        host_amounts, shares = spec.resources, None
        if fits:
            fits, host_amounts, shares = self._of_tree(choice, row)
        if not fits:
            return False
        provider = table.hosts[row].id
        image = image_properties.text_of(spec.image) if spec.image.properties else None
        flavor = name_of(spec.flavor)
        name = f'unit-{unit}'
        placed = Placed(name, name, provider, None, layout, image, flavor)
        if shares is None and table.pools.of_class and table.pools.have_any(host_amounts):
            amounts: dict[int, Mapping[str, int]] = {**table.providers_of(row, host_amounts)}
        else:
            amounts = {provider: host_amounts, **(shares or {})}
        table.take(provider, host_amounts, placed, shares)
        self.laid[unit] = LaidUnit(amounts, layout)
        self._rows.append(row)
        for run in self._runs.values():
            run.stepped([row])
        self.plan.rows[unit], self.plan.choices[unit] = row, choice
        return True

    def _layout(self, choice: int, row: int) -> tuple[bool, Layout | None]:
        spec, inside = self._problem.choices[choice].spec, self._pipeline.inside
        wish = inside.wish(spec) if spec.may_need_topology else None
        if wish is None:
            return True, None
        layout = Fitting(self._table, wish, inside, self._runs[choice]).lay(row)
        return layout is not None, layout

    def _of_tree(self, choice: int, row: int) -> tuple[bool, dict[str, int], Shares | None]:
        """Return whether the tree of a host has room; the amounts on the host, and on others."""
        run, spec = self._runs[choice], self._problem.choices[choice].spec
        if not run.is_of_trees:
            return True, spec.resources, None
        trees = self._trees.get(choice)
        if trees is None:
            trees = self._trees[choice] = TreeChoice(self._table, spec, run, self._pause)
        solution = trees.solve(row)
        trees.check()
        if solution is None:
            return False, {}, None
        trees.begin_anew()
        shares = trees.amounts(row, solution)
        host_amounts = dict(shares.pop(self._table.hosts[row].id))
        return True, host_amounts, shares

    def _pause(self, _: bool) -> Pause:
        return Pause.OVER if self._over() else Pause.GO_ON

    def refused(self, plan: Assignment) -> list[Cut]:
        """Lay a whole plan, member by member; return the first refusal of each host as cuts.

        Empty: all of it is laid.
        """
        cuts: dict[int, Cut] = {}
        for unit in np.flatnonzero(plan.rows >= 0).tolist():
            row, choice = int(plan.rows[unit]), int(plan.choices[unit])
            if row in cuts or (self.passing(choice)[row] and self.lay(unit, choice, row)):
                continue
            here = self.plan.choices[self.plan.rows == row]
            counts = dict(
                zip(*map(np.ndarray.tolist, np.unique(here, return_counts=True)), strict=True)
            )
            counts[choice] = counts.get(choice, 0) + 1
            cuts[row] = Cut(row, counts)
        return list(cuts.values())

    def score(self) -> float:
        """Return the score of all that is laid: of each member on its host, with the group."""
        problem = self._problem
        scores: list[float] = []
        placed = self.plan.rows >= 0
        for choice in np.unique(self.plan.choices[placed]).tolist():
            rows: IntArray = self.plan.rows[placed & (self.plan.choices == choice)]
            option = problem.choices[choice]
            if problem.is_steady:
                scores += option.gain.take(rows).tolist()
                continue
            eligible = np.flatnonzero(option.mask)
            ranking = joint_score.ranking(self._table, option.spec, self._pipeline, eligible)
            scores += ranking.total.take(np.searchsorted(eligible, rows)).tolist()
        return fsum(scores)
