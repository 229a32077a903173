# SPDX-License-Identifier: Apache-2.0
"""Bound without a solver: each class of items by itself has the cheapest hosts it may have."""

import numpy as np

from gantt.core.groups.model import ItemClass, Model


def least_cost(model: Model) -> int | None:
    """Return a lower bound of the cost of plans that place all items; None: a class has no place.

    Classes share nothing here, and only the caps of one count of policies, so that it is a
    bound whatever else the group requires.
    """
    total = 0
    for item_class in model.classes:
        class_cost = _of(item_class)
        if class_cost is None:
            return None
        total += class_cost
    return total


def _of(one: ItemClass) -> int | None:
    rows = np.concatenate([option.rows for option in one.options])
    cost = np.concatenate([option.least_cost for option in one.options])
    largest = np.concatenate([option.most for option in one.options])
    order = np.argsort(cost, kind='stable')
    cap = one.caps[0] if one.caps else None
    room_left = None if cap is None else np.full(cap.domains, cap.most, np.int64)
    unplaced, total = len(one.items), 0
    for at in order.tolist():
        if not unplaced:
            break
        count = min(int(largest[at]), unplaced)
        if cap is not None and room_left is not None:
            domain = int(cap.codes[rows[at]])
            count = min(count, int(room_left[domain]))
            room_left[domain] -= count
        total += count * int(cost[at])
        unplaced -= count
    return None if unplaced else total
