# SPDX-License-Identifier: Apache-2.0
"""Necessary conditions that end a search early: a matching, and bounds of bin packing.

The matching checks whether parts can be given to providers at all, each of which takes a limited
number.  The bounds check what no matching does: whether amounts go into rooms of any sizes at all.

Every amount is given a weight; where all of them weigh more than the most that each room can take,
they do not go into the rooms.  The weights are the amounts themselves, and those of the bounds by
S. Martello and P. Toth, "Lower bounds and reduction procedures for the bin packing problem",
Discrete Applied Mathematics 28, 1990: 2 for what is large, 1 for what is of middle size.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

#: Subset sums that are listed; where there are more, rooms count as they are.
SUMS_MAX = 512
#: Sizes that are tried as the least of what is large, and of what is of middle size.
SIZES_MAX = 8
#: Charges a number of steps.
Take = Callable[[int], None]


def sums_of(amounts: Sequence[int], most: int, take: Take) -> list[int] | None:
    """Return all subset sums of the amounts, ascending, up to ``most``; None: too many."""
    sums = {0}
    for amount in amounts:
        take(len(sums))
        sums |= {partial + amount for partial in sums if partial + amount <= most}
        if len(sums) > SUMS_MAX:
            return None
    return sorted(sums)


def filled(sums: Sequence[int] | None, room: int) -> int:
    """Return how much of a room can be taken at most, by ``sums_of``."""
    room = max(room, 0)
    return room if sums is None else sums[bisect_right(sums, room) - 1]


def may_be_packed(amounts: Sequence[int], rooms: Sequence[int], take: Take) -> bool:
    """Return whether amounts may go into rooms; True is no promise."""
    total = sum(amounts)
    sums = sums_of(sorted(amounts, reverse=True), max(rooms, default=0), take)
    sizes = Counter(filled(sums, min(room, total)) for room in rooms)
    if total > sum(size * count for size, count in sizes.items()):
        return False
    for weights, ones, twos in _weights(amounts):
        capacity = 0
        for size, count in sizes.items():
            take(1 + len(twos))
            capacity += count * _most(ones, twos, size)
        if weights > capacity:
            return False
    return True


def _weights(amounts: Sequence[int]) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield total weights, and the sums of the smallest that weigh 1, and that weigh 2."""
    ascending = sorted(amounts)
    sizes = sorted(set(amounts))
    sizes = sizes[:: -(-len(sizes) // SIZES_MAX)]
    for n, middle in enumerate(sizes):
        for large in sizes[n:]:
            ones = [amount for amount in ascending if middle <= amount < large]
            twos = [amount for amount in ascending if amount >= large]
            yield (
                len(ones) + 2 * len(twos),
                list(accumulate(ones, initial=0)),
                list(accumulate(twos, initial=0)),
            )


def _most(ones: Sequence[int], twos: Sequence[int], size: int) -> int:
    """Return the most weight that goes into a room."""
    return max(
        2 * count + bisect_right(ones, size - taken) - 1
        for count, taken in enumerate(twos[: bisect_right(twos, size)])
    )


def has_matching(
    options: Sequence[Sequence[int]], most: Callable[[int], int], take: Callable[[int], None]
) -> bool:
    """Return whether each part finds one of its providers, none of which is given too many.

    :param options: for each part the providers that may give it
    :param most: how many parts one provider takes
    :param take: charges a number of steps
    """
    bounds: dict[int, int] = {}
    given: dict[int, list[int]] = {}
    return all(_give(n, options, most, take, bounds, given, set()) for n in range(len(options)))


def _give(
    part: int,
    options: Sequence[Sequence[int]],
    most: Callable[[int], int],
    take: Callable[[int], None],
    bounds: dict[int, int],
    given: dict[int, list[int]],
    seen: set[int],
) -> bool:
    """Give a part to a provider, moving others where that helps."""
    for n, slot in enumerate(options[part]):
        if slot not in bounds:
            bounds[slot] = most(slot)
        parts = given.setdefault(slot, [])
        if len(parts) < bounds[slot]:
            take(n + 1)
            parts.append(part)
            return True
    take(2 * len(options[part]))
    for slot in options[part]:
        if slot in seen:
            continue
        seen.add(slot)
        parts = given[slot]
        for n, other in enumerate(parts):
            if _give(other, options, most, take, bounds, given, seen):
                parts[n] = part
                return True
    return False


def most_of(sums: Sequence[int], room: int) -> int:
    """Return how many of some amounts have room together at most.

    :param sums: of the least so many of them, from none on
    """
    return max(bisect_right(sums, room) - 1, 0)
