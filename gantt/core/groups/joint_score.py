# SPDX-License-Identifier: Apache-2.0
"""Scores of a plan: the weighers' absolute scale, on the table with the whole group on it.

Scores of a host change with the guests placed there.  Where each weigher knows its step,
bounds follow from the steps; where none changes, a score of a host is the same in every plan.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.messages.request import RequestSpec
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.ranking import Ranking, ScorePart, weigh
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.core.table.host_table import HostTable


class ChoiceScore(msgspec.Struct, frozen=True, eq=False):
    """Scores of one choice by row, 0 where it may not be.

    :ivar gain: with one unit of it there
    :ivar best: the largest, with any other members of the group there
    :ivar crowd: change of the score of each other unit there by one unit more
    """

    gain: FloatArray
    best: FloatArray
    crowd: FloatArray


def ranking(table: HostTable, spec: RequestSpec, pipeline: Pipeline, rows: IntArray) -> Ranking:
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


def of_choices(
    table: HostTable,
    specs: Sequence[RequestSpec],
    pipeline: Pipeline,
    masks: Sequence[BoolArray],
    wanted: IntArray,
) -> tuple[list[ChoiceScore], bool]:
    """Return the scores of each choice, and whether no unit changes them.

    :param wanted: the largest number of units of each
    """
    rows_of = [np.flatnonzero(mask) for mask in masks]
    ranked = [
        ranking(table, spec, pipeline, rows) if len(rows) else None
        for spec, rows in zip(specs, rows_of, strict=True)
    ]
    steps = [
        {} if ranks is None else _steps(ranks, table, spec)
        for ranks, spec in zip(ranked, specs, strict=True)
    ]
    names = {name for weigher_steps in steps for name in weigher_steps}
    is_steady = not any(step != 0 for weigher_steps in steps for step in weigher_steps.values())
    lowest, highest = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for weigher_steps, count in zip(steps, wanted.tolist(), strict=True):
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
            own_change = _moved(part, step)
            crowd[rows] += _moved(part, 2 * step) - own_change
            ends = [own_change]
            if np.isnan(lowest[name]):
                ends = [np.minimum(part.multiplier, 0) * np.zeros(len(rows))]
                ends.append(np.zeros(len(rows)) + part.multiplier)
                ends.append(own_change)
            else:
                ends += [_moved(part, lowest[name]), _moved(part, highest[name])]
            gain[rows] += own_change
            best[rows] += np.maximum.reduce(ends)
        scores.append(ChoiceScore(gain, best, crowd))
    return scores, is_steady


def _steps(one: Ranking, table: HostTable, spec: RequestSpec) -> dict[str, float | None]:
    """Return weigher -> what a unit adds to its raw value; None: that is not known."""
    steps: dict[str, float | None] = {}
    for part in one.parts:
        if part is None or part.weigher.is_steady:
            continue
        is_local = part.weigher.local
        steps[part.weigher.name] = part.weigher.step(table, spec) if is_local else None
    return steps


def _moved(part: ScorePart, step: float) -> FloatArray:
    """Return the weights of a weigher, were its raw values higher by ``step``."""
    if not step:
        return part.scaled if part.scaled is not None else np.zeros(len(part.raw))
    shares = part.scale.whole(part.raw + step)
    if shares is None:
        return np.zeros(len(part.raw))
    moved: FloatArray = shares * part.multiplier
    return moved
