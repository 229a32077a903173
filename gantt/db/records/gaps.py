# SPDX-License-Identifier: Apache-2.0
"""Gaps of the change feed: numbers that were drawn and have not appeared.

A number is drawn before the COMMIT of its transaction, so later ones may appear first.  Missing
numbers are queried until they appear, or until no transaction can write them: see ``feed``.
Everything here is bounded: excess gaps are given up, and the reader compares everything until that
is over.
"""

import bisect
from collections.abc import Collection, Iterable, Sequence

import msgspec

from gantt.scheduler.ports.records import Gap

#: Seconds after which no transaction is under way that was then.
GAP_SECONDS = 60.0
#: Gaps that are remembered, numbers and ranges of one read.
GAPS_MAX = 2500
NUMBERS_MAX = 20_000
SPANS_MAX = 8


def missing(numbers: Sequence[int], since: int, upto: int) -> list[tuple[int, int]]:
    """Return ranges of numbers after ``since``, up to ``upto``, that are not in ``numbers``.

    :param numbers: ascending
    """
    ranges = []
    for number in (*numbers, upto + 1):
        if number > since + 1:
            ranges.append((since + 1, number - 1))
        since = number
    return ranges


def covers(gaps: Sequence[Gap], number: int) -> bool:
    """Return whether a number lies in one of the gaps.

    :param gaps: ascending
    """
    index = bisect.bisect_right(gaps, number, key=lambda gap: gap.first) - 1
    return index >= 0 and number <= gaps[index].last


def without(gaps: Iterable[Gap], numbers: Collection[int]) -> list[Gap]:
    """Return the gaps that are left once these numbers have appeared."""
    appeared = sorted(numbers)
    remaining = []
    for gap in gaps:
        start = bisect.bisect_left(appeared, gap.first)
        end = bisect.bisect_right(appeared, gap.last, lo=start)
        if start == end:
            remaining.append(gap)
            continue
        remaining += [
            msgspec.structs.replace(gap, first=first, last=last)
            for first, last in missing(appeared[start:end], gap.first - 1, gap.last)
        ]
    return remaining


def still_open(
    open_gaps: Sequence[Gap],
    filled: Collection[int],
    new_ranges: Iterable[tuple[int, int]],
    now: float,
    oldest: int = 0,
    newest: int = 0,
) -> tuple[list[Gap], bool]:
    """Return the gaps whose numbers may still appear, and whether some were given up.

    :param filled: numbers that appeared in known gaps
    :param oldest: oldest transaction that was under way before the numbers were queried, 0 where
        it is not known
    :param newest: first transaction that had not begun then; 0 where it is not known
    """
    open_gaps = [
        gap if gap.before else msgspec.structs.replace(gap, before=newest)
        for gap in without(open_gaps, filled)
        # Else its transaction had ended before its numbers were queried.
        if not (gap.before and oldest >= gap.before) and now - gap.since <= GAP_SECONDS
    ]
    open_gaps += [Gap(first=first, last=last, since=now) for first, last in new_ranges]
    return bounded(open_gaps)


def bounded(gaps: Sequence[Gap]) -> tuple[list[Gap], bool]:
    """Return the newest gaps, as many as can be queried, and whether older ones were dropped.

    :param gaps: ascending
    """
    newest = list(gaps[-GAPS_MAX:])
    while newest and sum(last - first + 1 for first, last in spans(newest)) > NUMBERS_MAX:
        newest = newest[len(newest) // 2 + 1 :]
    return newest, len(newest) < len(gaps)


def spans(gaps: Sequence[Gap]) -> list[tuple[int, int]]:
    """Return a few ranges with all of the gaps in them: those that are close are joined."""
    if len(gaps) <= SPANS_MAX:
        return [(gap.first, gap.last) for gap in gaps]
    between = [later.first - gap.last for gap, later in zip(gaps, gaps[1:], strict=False)]
    widest = set(sorted(range(len(between)), key=between.__getitem__)[-(SPANS_MAX - 1) :])
    ranges = []
    first = gaps[0].first
    for index, gap in enumerate(gaps):
        if index in widest or index == len(gaps) - 1:
            ranges.append((first, gap.last))
            first = gaps[min(index + 1, len(gaps) - 1)].first
    return ranges
