# SPDX-License-Identifier: Apache-2.0
"""Improvement of plans without a solver: items are moved, evicted for others, removed and replaced.

All of it is bounded by the clock and determined by the seed.
"""

from collections.abc import Callable

import numpy as np

from gantt.core.groups.model import Counts, Model
from gantt.core.groups.packing import Packing, Value

#: Largest number of items that are taken off together.
_OFF_MAX = 24
#: Rounds in a row without a better plan after which it stops: a base, and some for each item.
_IDLE, _IDLE_EACH = 50, 20


def improve(
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
    while not over() and idle < idle_max and not _is_least(best, bound):
        idle += 1
        now = _ruined(packing, rng, value)
        value = now
        if now < best:
            best, best_counts, idle = now, packing.counts(), 0
    return best_counts


def polished(model: Model, counts: Counts, *, over: Callable[[], bool]) -> Counts:
    """Return a plan that is at least as good, with each item on the best host available for it."""
    packing = Packing(model, counts)
    _polish(packing, over)
    return packing.counts()


def _is_least(value: Value, bound: int | None) -> bool:
    return bound is not None and not any(value[:-1]) and value[-1] <= bound


def _polish(packing: Packing, over: Callable[[], bool]) -> None:
    """Move each item to the best host available for it, until none moves."""
    for _ in range(8):
        moved = False
        for item in range(len(packing.row)):
            if over():
                return
            moved = _moved(packing, item) or moved
        if not moved:
            return


def _moved(packing: Packing, item: int) -> bool:
    was, option = int(packing.row[item]), int(packing.option[item])
    before = packing.value([item])
    if was >= 0:
        packing.take(item)
    place = packing.best(item)
    if place is None:
        if was >= 0:
            packing.put(item, option, was)
        return False
    packing.put(item, *place)
    if packing.value([item]) < before:
        return True
    packing.take(item)
    if was >= 0:
        packing.put(item, option, was)
    return False


def _ruined(packing: Packing, rng: np.random.Generator, value: Value) -> Value:
    """Take some items off, place them anew, and go back where that is worse."""
    off = _chosen(packing, rng)
    before = packing.value(off)
    places = [(item, int(packing.option[item]), int(packing.row[item])) for item in off]
    for item in off:
        if packing.row[item] >= 0:
            packing.take(item)
    order = _order(packing, off, rng)
    for item in order:
        place = packing.best(item, rng)
        if place is not None:
            packing.put(item, *place)
    after = packing.value(off)
    if after <= before:
        return tuple(v + a - b for v, a, b in zip(value, after, before, strict=True))
    for item in off:
        if packing.row[item] >= 0:
            packing.take(item)
    for item, option, row in places:
        if row >= 0:
            packing.put(item, option, row)
    return value


def _order(packing: Packing, off: list[int], rng: np.random.Generator) -> list[int]:
    """Return the items, roughly those of the largest demand first."""
    model = packing.model
    free = np.maximum(model.problem.free.max(axis=1, initial=1), 1)
    size = np.array(
        [
            (model.classes[packing.of_class[item]].options[0].demand / free).sum()
            if model.classes[packing.of_class[item]].options
            else 0.0
            for item in off
        ]
    )
    noise = rng.random(len(off)) * 0.5 + 0.75
    return [off[i] for i in np.argsort(-size * noise, kind='stable').tolist()]


def _chosen(packing: Packing, rng: np.random.Generator) -> list[int]:
    """Return items that have no place, with those of a few hosts; else a few of anywhere."""
    without = np.flatnonzero(packing.row < 0)
    placed = np.flatnonzero(packing.row >= 0)
    count = int(rng.integers(2, _OFF_MAX + 1))
    chosen: list[int] = []
    if len(without):
        chosen.append(int(rng.choice(without)))
    if not len(placed):
        return chosen
    if rng.random() < 0.7:
        rows = _rows(packing, rng, chosen)
        for row in rows:
            chosen += packing.on(row)
            if len(chosen) >= count:
                break
    else:
        chosen += rng.choice(placed, min(count, len(placed)), replace=False).tolist()
    return list(dict.fromkeys(chosen))[: _OFF_MAX + 1]


def _rows(packing: Packing, rng: np.random.Generator, wanting: list[int]) -> list[int]:
    """Return hosts in use, those first that might have the item without a place."""
    used = np.unique(packing.row[packing.row >= 0])
    if wanting:
        item_class = packing.model.classes[packing.of_class[wanting[0]]]
        eligible = np.unique(np.concatenate([option.rows for option in item_class.options]))
        near = used[np.isin(used, eligible)]
        used = near if len(near) else used
    count = min(len(used), int(rng.integers(2, 9)))
    return rng.choice(used, count, replace=False).tolist()
