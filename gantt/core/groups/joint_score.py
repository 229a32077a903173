# SPDX-License-Identifier: Apache-2.0
"""Scores of a plan: the weighers' absolute scale, on the table with the whole group on it.

What weighers say of a host changes with what is placed there.  Where each says by what step,
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
    :ivar best: the most, whatever else of the group is there
    :ivar crowd: what one unit more changes of the score of each other unit that is there
    """

    gain: FloatArray
    best: FloatArray
    crowd: FloatArray


def ranking(table: HostTable, spec: RequestSpec, pipeline: Pipeline, rows: IntArray) -> Ranking:
    """Absolute scores of ``rows`` as the table is.

    :raises PluginError: a weigher failed, and the pipeline does not leave it out
    """
    comparable = pipeline.comparable()

    def failed(name: str, error: Exception) -> None:
        if pipeline.skip_failing:
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
    """Scores of each choice, and whether no unit changes them.

    :param wanted: how many units there may be of each
    """
    rows_of = [np.flatnonzero(mask) for mask in masks]
    ranked = [
        ranking(table, spec, pipeline, rows) if len(rows) else None
        for spec, rows in zip(specs, rows_of, strict=True)
    ]
    steps = [
        {} if one is None else _steps(one, table, spec)
        for one, spec in zip(ranked, specs, strict=True)
    ]
    names = {name for one in steps for name in one}
    is_steady = not any(step != 0 for one in steps for step in one.values())
    lowest, highest = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for one, count in zip(steps, wanted.tolist(), strict=True):
        for name, step in one.items():
            moved = np.nan if step is None else step * count
            lowest[name] += min(moved, 0.0) if moved == moved else moved
            highest[name] += max(moved, 0.0) if moved == moved else moved
    found = []
    for ranks, own, rows in zip(ranked, steps, rows_of, strict=True):
        gain, best, crowd = (np.zeros(len(table)) for _ in range(3))
        for part in () if ranks is None else [p for p in ranks.parts if p is not None]:
            name = part.weigher.name
            if name not in names:
                here = part.scaled if part.scaled is not None else np.zeros(len(rows))
                gain[rows] += here
                best[rows] += here
                continue
            step = own.get(name) or 0.0
            mine = _moved(part, step)
            crowd[rows] += _moved(part, 2 * step) - mine
            ends = [mine]
            if np.isnan(lowest[name]):
                ends = [np.minimum(part.multiplier, 0) * np.zeros(len(rows))]
                ends.append(np.zeros(len(rows)) + part.multiplier)
                ends.append(mine)
            else:
                ends += [_moved(part, lowest[name]), _moved(part, highest[name])]
            gain[rows] += mine
            best[rows] += np.maximum.reduce(ends)
        found.append(ChoiceScore(gain, best, crowd))
    return found, is_steady


def _steps(one: Ranking, table: HostTable, spec: RequestSpec) -> dict[str, float | None]:
    """Weigher -> what a unit adds to its raw value; None: that is not known."""
    found: dict[str, float | None] = {}
    for part in one.parts:
        if part is None or part.weigher.is_steady:
            continue
        known = part.weigher.local
        found[part.weigher.name] = part.weigher.step(table, spec) if known else None
    return found


def _moved(part: ScorePart, step: float) -> FloatArray:
    """The weights of a weigher, were its raw values higher by ``step``."""
    if not step:
        return part.scaled if part.scaled is not None else np.zeros(len(part.raw))
    shares = part.scale.whole(part.raw + step)
    if shares is None:
        return np.zeros(len(part.raw))
    moved: FloatArray = shares * part.multiplier
    return moved
