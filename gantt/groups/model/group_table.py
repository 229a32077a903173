# SPDX-License-Identifier: Apache-2.0
"""Copy of the host table on which a group is laid, member by member, through the pipeline.

Scores of a plan are on the absolute scale of the weighers, on the table with the whole group on
it, as scores of a host change with the guests placed there.  Where each weigher knows its step,
bounds follow from the steps; where none changes, a score of a host is the same in every plan.
"""

from collections.abc import Callable, Mapping, Sequence
from math import fsum
from typing import NamedTuple

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.messages import image_properties
from gantt.core.messages.layout import Layout
from gantt.core.messages.request import RequestSpec, name_of
from gantt.core.pause import Interrupted, Pause
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.layout_choice import LayoutChoice
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.ranking import Ranking, ScorePart, weigh
from gantt.core.placement.tree_choice import TreeChoice
from gantt.core.resources.host import Placed
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.table.pools import Shares
from gantt.groups.model.problem import Assignment, ForbiddenCombination, GroupProblem

#: Returns whether no caller waits for the plan any more.
IsOver = Callable[[], bool]


def never_over() -> bool:
    """Return False: the plan may take as long as it takes."""
    return False


class UnitPlacement(NamedTuple):
    """Resources of a unit where it is laid.

    :ivar amounts: provider id -> class -> amount, the host first
    :ivar layout: its layout inside of the host; None: plain amounts are complete
    """

    amounts: Mapping[int, Mapping[str, int]]
    layout: Layout | None


class GroupTable:
    """Working copy of a host table, on which the units of a group take resources one by one.

    :ivar plan: places of the units on the table
    :ivar placements: unit -> its resources there
    :param over: called for each member, and now and then in long searches; all methods raise
        ``Interrupted`` where it returns True
    """

    def __init__(
        self, table: HostTable, problem: GroupProblem, pipeline: Pipeline, over: IsOver = never_over
    ) -> None:
        self._over = over
        self._table = table.copy()
        self._problem = problem
        pipeline.set_site_names(self._table)
        self._pipeline = pipeline.without_relaxable()
        self._runs: dict[int, FilterRun] = {}
        self._trees: dict[int, TreeChoice] = {}
        self._rows: list[int] = []
        self.plan = Assignment.empty(problem)
        self.placements: dict[int, UnitPlacement] = {}

    def passing_rows(self, choice: int) -> BoolArray:
        """Return hosts that pass every filter for one more unit of a choice; to be read at once."""
        if self._over():
            raise Interrupted(Pause.OVER)
        run = self._runs.get(choice)
        if run is None:
            spec = self._problem.choices[choice].spec
            run = self._runs[choice] = FilterRun(self._table, spec, self._pipeline)
            run.stepped(self._rows)
        run.evaluate('', last=False)
        return run.alive & self._problem.choices[choice].mask

    def rank(self, choice: int, rows: BoolArray) -> Ranking:
        """Return the hosts of a choice, weighed as for a single request."""
        run = self._runs[choice]
        np.copyto(run.alive, rows)
        return run.rank()

    def try_place(self, unit: int, choice: int, row: int) -> bool:
        """Lay a unit over a host; False where the host has no layout for it, or its tree no room.

        Filters are evaluated before, by :meth:`passing`.
        """
        table, spec = self._table, self._problem.choices[choice].spec
        fits, layout = self._layout_on(choice, row)
        host_amounts, shares = spec.resources, None
        if fits:
            fits, host_amounts, shares = self._tree_amounts(choice, row)
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
        table.add_pick(provider, host_amounts, placed, shares)
        self.placements[unit] = UnitPlacement(amounts, layout)
        self._rows.append(row)
        for run in self._runs.values():
            run.stepped([row])
        self.plan.rows[unit], self.plan.choices[unit] = row, choice
        return True

    def _layout_on(self, choice: int, row: int) -> tuple[bool, Layout | None]:
        spec, inside = self._problem.choices[choice].spec, self._pipeline.inside
        wish = inside.wish(spec) if spec.may_need_topology else None
        if wish is None:
            return True, None
        layout = LayoutChoice(self._table, wish, inside, self._runs[choice]).layout_on(row)
        return layout is not None, layout

    def _tree_amounts(self, choice: int, row: int) -> tuple[bool, dict[str, int], Shares | None]:
        """Return whether the tree of a host has room; the amounts on the host, and on others."""
        run, spec = self._runs[choice], self._problem.choices[choice].spec
        if not run.is_of_trees:
            return True, spec.resources, None
        trees = self._trees.get(choice)
        if trees is None:
            trees = self._trees[choice] = TreeChoice(self._table, spec, run, self._check_time)
        solution = trees.solve(row)
        trees.check()
        if solution is None:
            return False, {}, None
        trees.start_again()
        shares = trees.amounts(row, solution)
        host_amounts = dict(shares.pop(self._table.hosts[row].id))
        return True, host_amounts, shares

    def _check_time(self, _: bool) -> Pause:
        return Pause.OVER if self._over() else Pause.GO_ON

    def try_plan(self, plan: Assignment) -> list[ForbiddenCombination]:
        """Lay a whole plan, member by member; return the first refusal of each host as cuts.

        Empty: all of it is laid.
        """
        cuts: dict[int, ForbiddenCombination] = {}
        for unit in np.flatnonzero(plan.rows >= 0).tolist():
            row, choice = int(plan.rows[unit]), int(plan.choices[unit])
            if row in cuts or (
                self.passing_rows(choice)[row] and self.try_place(unit, choice, row)
            ):
                continue
            here = self.plan.choices[self.plan.rows == row]
            counts = dict(
                zip(*map(np.ndarray.tolist, np.unique(here, return_counts=True)), strict=True)
            )
            counts[choice] = counts.get(choice, 0) + 1
            cuts[row] = ForbiddenCombination(row, counts)
        return list(cuts.values())

    def score(self) -> float:
        """Return the sum of the scores of all placed members, with the group on the table."""
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
            ranking = rank_choices(self._table, option.spec, self._pipeline, eligible)
            scores += ranking.total.take(np.searchsorted(eligible, rows)).tolist()
        return fsum(scores)


class ChoiceScore(msgspec.Struct, frozen=True, eq=False):
    """Scores of a choice by row; 0 where no unit of it may be placed.

    :ivar gain: score with one unit of the choice there
    :ivar best: largest score, with any other members of the group there
    :ivar crowd: change of the score of each other unit there by one unit more
    """

    gain: FloatArray
    best: FloatArray
    crowd: FloatArray


def rank_choices(
    table: HostTable, spec: RequestSpec, pipeline: Pipeline, rows: IntArray
) -> Ranking:
    """Return absolute scores of ``rows`` as the table is.

    :raises PluginError: a weigher failed, and the pipeline does not leave it out
    """
    comparable = pipeline.comparable()

    def failed(name: str, error: Exception) -> None:
        if pipeline.settings.skip_failing:
            return
        problem = f'failed on this group with {type(error).__name__}: {error}'
        raise exceptions.PluginError(
            plugin=name, problem=problem, fix='Disable or mend it'
        ) from error

    return weigh(table, spec, comparable.weighing(table), rows, failed)


def scores_of_choices(
    table: HostTable,
    specs: Sequence[RequestSpec],
    pipeline: Pipeline,
    masks: Sequence[BoolArray],
    unit_counts: IntArray,
) -> tuple[list[ChoiceScore], bool]:
    """Return the scores of each choice, and whether no unit changes any score.

    :param unit_counts: the largest number of units of each
    """
    rows_of = [np.flatnonzero(mask) for mask in masks]
    ranked = [
        rank_choices(table, spec, pipeline, rows) if len(rows) else None
        for spec, rows in zip(specs, rows_of, strict=True)
    ]
    steps = [
        {} if ranks is None else _raw_value_steps(ranks, table, spec)
        for ranks, spec in zip(ranked, specs, strict=True)
    ]
    names = {name for weigher_steps in steps for name in weigher_steps}
    is_steady = not any(step != 0 for weigher_steps in steps for step in weigher_steps.values())
    lowest, highest = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for weigher_steps, count in zip(steps, unit_counts.tolist(), strict=True):
        for name, step in weigher_steps.items():
            moved = np.nan if step is None else step * count
            lowest[name] += min(moved, 0.0) if moved == moved else moved
            highest[name] += max(moved, 0.0) if moved == moved else moved
    scores = []
    for ranks, own_steps, rows in zip(ranked, steps, rows_of, strict=True):
        gain, best, crowd = (np.zeros(len(table)) for _ in range(3))
        for part in () if ranks is None else [p for p in ranks.parts if p is not None]:
            name = part.weigher.name
            if name not in names:
                here = part.scaled if part.scaled is not None else np.zeros(len(rows))
                gain[rows] += here
                best[rows] += here
                continue
            step = own_steps.get(name) or 0.0
            own_change = _raised_weights(part, step)
            crowd[rows] += _raised_weights(part, 2 * step) - own_change
            ends = [own_change]
            if np.isnan(lowest[name]):
                ends = [np.minimum(part.multiplier, 0) * np.zeros(len(rows))]
                ends.append(np.zeros(len(rows)) + part.multiplier)
                ends.append(own_change)
            else:
                ends += [_raised_weights(part, lowest[name]), _raised_weights(part, highest[name])]
            gain[rows] += own_change
            best[rows] += np.maximum.reduce(ends)
        scores.append(ChoiceScore(gain, best, crowd))
    return scores, is_steady


def _raw_value_steps(
    ranking: Ranking, table: HostTable, spec: RequestSpec
) -> dict[str, float | None]:
    """Return weigher -> what a unit adds to its raw value; None: that is not known."""
    steps: dict[str, float | None] = {}
    for part in ranking.parts:
        if part is None or part.weigher.is_steady:
            continue
        is_local = part.weigher.local
        steps[part.weigher.name] = part.weigher.step(table, spec) if is_local else None
    return steps


def _raised_weights(part: ScorePart, step: float) -> FloatArray:
    """Return the weights of a weigher, were its raw values higher by ``step``."""
    if not step:
        return part.scaled if part.scaled is not None else np.zeros(len(part.raw))
    shares = part.scale.shares(part.raw + step)
    if shares is None:
        return np.zeros(len(part.raw))
    moved: FloatArray = shares * part.multiplier
    return moved
