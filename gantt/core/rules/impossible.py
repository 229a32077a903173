# SPDX-License-Identifier: Apache-2.0
"""Conditions that contradict each other by themselves, whatever hosts there are.

Only what follows from comparisons of one fact with values, joined by ``and``: what is
called impossible is; of the rest nothing is said.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from gantt.core.rules import facts, tree
from gantt.core.rules.facts import Kind

#: A number, and of a lower bound whether it is itself left out, of an upper one whether not.
_Bound = tuple[float, bool]


def impossible(conditions: Iterable[tree.Expr]) -> bool:
    """Whether it is certain that no host could ever meet all of them."""
    about: dict[str, list[tree.Comparison]] = {}
    for part in _conjuncts(conditions):
        if isinstance(part, tree.Always) and not part.value:
            return True
        if isinstance(part, tree.Comparison) and not isinstance(part.value, tree.Ref):
            about.setdefault(part.fact, []).append(part)
    return any(_excluded(name, comparisons) for name, comparisons in about.items())


def _conjuncts(conditions: Iterable[tree.Expr]) -> Iterator[tree.Expr]:
    """What has to hold each by itself."""
    todo = list(conditions)
    while todo:
        part = todo.pop()
        if isinstance(part, tree.And):
            todo.extend(part.of)
        else:
            yield part


def _excluded(name: str, comparisons: list[tree.Comparison]) -> bool:
    fact, _ = facts.resolve(name)
    if fact.kind is Kind.NUMBER:
        return _no_number(comparisons)
    if fact.kind in (Kind.TEXT, Kind.BOOL):
        return _no_value(comparisons)
    return fact.kind is Kind.PATH and _no_place(comparisons)


def _no_number(comparisons: list[tree.Comparison]) -> bool:
    low: _Bound = (-math.inf, False)
    high: _Bound = (math.inf, False)
    for one in comparisons:
        value: Any = one.value
        if isinstance(one, tree.Greater | tree.GreaterEqual | tree.Equal):
            low = max(low, (value, isinstance(one, tree.Greater)))
        if isinstance(one, tree.Less | tree.LessEqual | tree.Equal):
            high = min(high, (value, not isinstance(one, tree.Less)))
        if isinstance(value, tree.Range):
            ends: tuple[Any, Any] = (value.low, value.high)
            low = max(low, (-math.inf if ends[0] is None else ends[0], False))
            high = min(high, (math.inf if ends[1] is None else ends[1], True))
    # Of equal upper bounds the one that leaves its number out is the smaller.
    if low[0] > high[0] or (low[0] == high[0] and (low[1] or not high[1])):
        return True
    return _no_value(comparisons)


def _no_value(comparisons: list[tree.Comparison]) -> bool:
    """Whether lists and single values that are wanted have nothing in common."""
    left: set[Any] | None = None
    for one in comparisons:
        if isinstance(one, tree.Equal):
            wanted = {one.value}
        elif isinstance(one, tree.In) and isinstance(one.value, tuple):
            wanted = set(one.value)
        else:
            continue
        if any(isinstance(value, tree.Version) for value in wanted):
            continue  # several texts say the same version
        left = wanted if left is None else left & wanted
    return left is not None and not left


def _no_place(comparisons: list[tree.Comparison]) -> bool:
    """Whether two of them want to be in different branches of the tree."""
    wanted: list[list[list[str]]] = []
    for one in comparisons:
        if isinstance(one, tree.Equal | tree.In):
            places = one.value if isinstance(one.value, tuple) else (one.value,)
            wanted.append([str(place).split('.') for place in places])
    return any(
        not any(_meet(a, b) for a in first for b in second)
        for i, first in enumerate(wanted)
        for second in wanted[:i]
    )


def _meet(one: list[str], other: list[str]) -> bool:
    """Whether a path can be below both."""
    return all(a == b or '*' in (a, b) for a, b in zip(one, other, strict=False))
