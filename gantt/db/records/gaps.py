# SPDX-License-Identifier: Apache-2.0
"""Gaps of the change feed: numbers that were drawn and have not appeared.

A number is drawn before the COMMIT of its transaction, so that later ones may appear
first.  What is missing is asked for until it appears, or until nobody can write it any
more: see ``feed``.  Everything here is bounded: what would be too much is given up, and
the reader compares everything until that is over.
"""

import bisect
from collections.abc import Collection, Iterable, Sequence

import msgspec

from gantt.scheduler.ports import Gap

#: Gaps that are remembered, numbers that one read asks for, and ranges that it names.
GAPS_MAX = 2500
NUMBERS_MAX = 20_000
SPANS_MAX = 8


def missing(numbers: Sequence[int], since: int, upto: int) -> list[tuple[int, int]]:
    """Ranges of numbers after ``since``, up to ``upto``, that are not in ``numbers``.

    :param numbers: ascending
    """
    found = []
    for number in (*numbers, upto + 1):
        if number > since + 1:
            found.append((since + 1, number - 1))
        since = number
    return found


def covers(gaps: Sequence[Gap], number: int) -> bool:
    """Whether a number is missing.

    :param gaps: ascending
    """
    index = bisect.bisect_right(gaps, number, key=lambda gap: gap.first) - 1
    return index >= 0 and number <= gaps[index].last


def without(gaps: Iterable[Gap], numbers: Collection[int]) -> list[Gap]:
    """What is still missing once these numbers have appeared."""
    here = sorted(numbers)
    left = []
    for gap in gaps:
        start = bisect.bisect_left(here, gap.first)
        end = bisect.bisect_right(here, gap.last, lo=start)
        if start == end:
            left.append(gap)
            continue
        left += [
            msgspec.structs.replace(gap, first=first, last=last)
            for first, last in missing(here[start:end], gap.first - 1, gap.last)
        ]
    return left


def bounded(gaps: Sequence[Gap]) -> tuple[list[Gap], bool]:
    """The newest of these, as many as can be asked for; and whether some were given up.

    :param gaps: ascending
    """
    newest = list(gaps[-GAPS_MAX:])
    while newest and sum(last - first + 1 for first, last in spans(newest)) > NUMBERS_MAX:
        newest = newest[len(newest) // 2 + 1 :]
    return newest, len(newest) < len(gaps)


def spans(gaps: Sequence[Gap]) -> list[tuple[int, int]]:
    """A few ranges with all of the gaps in them: those that are close go together."""
    if len(gaps) <= SPANS_MAX:
        return [(gap.first, gap.last) for gap in gaps]
    between = [later.first - gap.last for gap, later in zip(gaps, gaps[1:], strict=False)]
    widest = set(sorted(range(len(between)), key=between.__getitem__)[-(SPANS_MAX - 1) :])
    found = []
    first = gaps[0].first
    for index, gap in enumerate(gaps):
        if index in widest or index == len(gaps) - 1:
            found.append((first, gap.last))
            first = gaps[min(index + 1, len(gaps) - 1)].first
    return found
