# SPDX-License-Identifier: Apache-2.0
"""Placement's inventories as ours, never with more room than it says.

Placement takes numbers that are refused here; one of them must not cost the whole host.
"""

from collections.abc import Mapping, Set

from gantt.core.messages.resource_classes import AMOUNT_MAX, RATIO_MAX, Inventory
from gantt.nova_source.words import Amounts


def taken_over(
    found: Mapping[str, Amounts], left_out: Set[str]
) -> tuple[dict[str, Inventory], dict[str, str]]:
    """The inventories by class, and of those that cannot be taken: why.

    :param left_out: classes that the scheduler does not know
    """
    made, wrong = {}, {}
    for kind, amounts in found.items():
        if kind in left_out:
            continue
        one = inventory(amounts)
        problem = one.problem()
        if problem is None:
            made[kind] = one
        else:
            wrong[kind] = f'{problem[0]}: {problem[1]}'
    return made, wrong


def inventory(amounts: Amounts) -> Inventory:
    """Of one class; what is out of bounds is drawn in."""
    total, ratio = amounts.total, min(amounts.allocation_ratio, RATIO_MAX)
    reserved = min(max(0, amounts.reserved), max(0, total))
    if ratio <= 0:
        reserved, ratio = max(0, total), 1.0
    least, most = max(1, amounts.min_unit), amounts.max_unit
    if most is not None and most < least:
        # Nothing fits: in numbers that can be said, nothing is large enough.
        least = most = max(0, total) + 1
    return Inventory(
        total=total,
        reserved=reserved,
        min_unit=least,
        max_unit=None if most is None else min(most, AMOUNT_MAX),
        step_size=min(max(1, amounts.step_size), AMOUNT_MAX),
        allocation_ratio=ratio,
    )
