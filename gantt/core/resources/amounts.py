# SPDX-License-Identifier: Apache-2.0
"""Sums of amounts by resource class, and by provider and class, changed in place."""

from collections.abc import Iterable, Mapping


def add_amounts(total: dict[str, int], amounts: Mapping[str, int], sign: int = 1) -> None:
    """Add the amount of each class to a total; subtract it where the sign is -1."""
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + sign * amount


def add_allocations(
    total: dict[int, dict[str, int]],
    allocations: Iterable[tuple[int, Mapping[str, int]]],
    sign: int = 1,
) -> None:
    """Add the amounts of each (provider id, class -> amount) to a total."""
    for provider_id, amounts in allocations:
        add_amounts(total.setdefault(provider_id, {}), amounts, sign)
