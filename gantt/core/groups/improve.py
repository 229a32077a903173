# SPDX-License-Identifier: Apache-2.0
"""Better plans without a solver: items are moved, put out for others, taken off and placed anew.

All of it is bounded by the clock and follows from the seed.
"""

from collections.abc import Callable

import numpy as np

from gantt.core.groups.model import Counts, Model
from gantt.core.groups.packing import Packing, Value

#: Items that are taken off together, at most.
_OFF_MAX = 24
#: Rounds in a row without a better plan, and it is given up: so many, and some for each item.
_IDLE, _IDLE_EACH = 50, 20


def improve(
    model: Model, counts: Counts, *, over: Callable[[], bool], seed: int, bound: int | None = None
) -> Counts:
    """A plan that is at least as good.

    :param over: whether time is up
    :param bound: of costs: with no more than that, and nothing before it, none is better
    """
    packing = Packing(model, counts)
    rng = np.random.default_rng(seed)
    everything = range(len(packing.row))
    value = best = packing.value(everything)
    found, idle = packing.counts(), 0
    most = _IDLE + _IDLE_EACH * len(packing.row)
    while not over() and idle < most and not _is_least(best, bound):
        idle += 1
        now = _ruined(packing, rng, value)
        value = now
        if now < best:
            best, found, idle = now, packing.counts(), 0
    return found


def polished(model: Model, counts: Counts, *, over: Callable[[], bool]) -> Counts:
    """A plan that is at least as good: each item is on the best host that there is for it."""
    packing = Packing(model, counts)
    _polish(packing, over)
    return packing.counts()


def _is_least(value: Value, bound: int | None) -> bool:
    return bound is not None and not any(value[:-1]) and value[-1] <= bound


def _polish(packing: Packing, over: Callable[[], bool]) -> None:
    """Move each item to the best host there is for it, until none moves."""
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
    """Those of the largest demand first, by and large."""
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
    """Items that have no place, with those of a few hosts; else a few of anywhere."""
    without = np.flatnonzero(packing.row < 0)
    placed = np.flatnonzero(packing.row >= 0)
    many = int(rng.integers(2, _OFF_MAX + 1))
    found: list[int] = []
    if len(without):
        found.append(int(rng.choice(without)))
    if not len(placed):
        return found
    if rng.random() < 0.7:
        rows = _rows(packing, rng, found)
        for row in rows:
            found += packing.on(row)
            if len(found) >= many:
                break
    else:
        found += rng.choice(placed, min(many, len(placed)), replace=False).tolist()
    return list(dict.fromkeys(found))[: _OFF_MAX + 1]


def _rows(packing: Packing, rng: np.random.Generator, wanting: list[int]) -> list[int]:
    """Hosts in use, those first that might have the item without a place."""
    used = np.unique(packing.row[packing.row >= 0])
    if wanting:
        one = packing.model.classes[packing.of_class[wanting[0]]]
        may = np.unique(np.concatenate([option.rows for option in one.options]))
        near = used[np.isin(used, may)]
        used = near if len(near) else used
    many = min(len(used), int(rng.integers(2, 9)))
    return rng.choice(used, many, replace=False).tolist()
