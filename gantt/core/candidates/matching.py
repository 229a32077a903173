# SPDX-License-Identifier: Apache-2.0
"""Whether parts can be given to providers at all, each of which takes so many: a matching."""

from collections.abc import Callable, Sequence


def is_possible(options: Sequence[Sequence[int]], most: Callable[[int], int]) -> bool:
    """Whether each part finds one of its providers, and no provider is given too many.

    :param options: for each part the providers that may give it
    :param most: how many parts one provider takes
    """
    bounds: dict[int, int] = {}
    given: dict[int, list[int]] = {}
    return all(_place(n, options, most, bounds, given, set()) for n in range(len(options)))


def _place(
    part: int,
    options: Sequence[Sequence[int]],
    most: Callable[[int], int],
    bounds: dict[int, int],
    given: dict[int, list[int]],
    seen: set[int],
) -> bool:
    """Give a part to a provider, moving others where that helps."""
    for slot in options[part]:
        if slot not in bounds:
            bounds[slot] = most(slot)
        parts = given.setdefault(slot, [])
        if len(parts) < bounds[slot]:
            parts.append(part)
            return True
    for slot in options[part]:
        if slot in seen:
            continue
        seen.add(slot)
        parts = given[slot]
        for n, other in enumerate(parts):
            if _place(other, options, most, bounds, given, seen):
                parts[n] = part
                return True
    return False


def most_of(amounts: Sequence[int], room: int) -> int:
    """How many of these amounts have room together at most.

    :param amounts: ascending
    """
    total = 0
    for n, amount in enumerate(amounts):
        total += amount
        if total > room:
            return n
    return len(amounts)
