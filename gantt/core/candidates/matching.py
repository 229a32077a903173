# SPDX-License-Identifier: Apache-2.0
"""Whether parts can be given to providers at all, each of which takes so many: a matching."""

from bisect import bisect_right
from collections.abc import Callable, Sequence


def is_possible(
    options: Sequence[Sequence[int]], most: Callable[[int], int], take: Callable[[int], None]
) -> bool:
    """Whether each part finds one of its providers, and no provider is given too many.

    :param options: for each part the providers that may give it
    :param most: how many parts one provider takes
    :param take: charges so many looks
    """
    bounds: dict[int, int] = {}
    given: dict[int, list[int]] = {}
    return all(_place(n, options, most, take, bounds, given, set()) for n in range(len(options)))


def _place(
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
            if _place(other, options, most, take, bounds, given, seen):
                parts[n] = part
                return True
    return False


def most_of(sums: Sequence[int], room: int) -> int:
    """Return how many of some amounts have room together at most.

    :param sums: of the least so many of them, from none on
    """
    return max(bisect_right(sums, room) - 1, 0)
