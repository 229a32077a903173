# SPDX-License-Identifier: Apache-2.0
"""A bound without a solver: each class of items by itself has the cheapest hosts it may have."""

import numpy as np

from gantt.core.groups.model import ItemClass, Model


def least_cost(model: Model) -> int | None:
    """Less than this no plan costs that places all items; None: one class cannot be placed at all.

    Classes share nothing here, and caps of one are all that counts of policies, so that it is a
    bound whatever else the group asks for.
    """
    total = 0
    for one in model.classes:
        found = _of(one)
        if found is None:
            return None
        total += found
    return total


def _of(one: ItemClass) -> int | None:
    rows = np.concatenate([option.rows for option in one.options])
    cost = np.concatenate([option.least_cost for option in one.options])
    most = np.concatenate([option.most for option in one.options])
    order = np.argsort(cost, kind='stable')
    cap = one.caps[0] if one.caps else None
    left = None if cap is None else np.full(cap.domains, cap.most, np.int64)
    wanted, total = len(one.items), 0
    for at in order.tolist():
        if not wanted:
            break
        many = min(int(most[at]), wanted)
        if cap is not None and left is not None:
            domain = int(cap.codes[rows[at]])
            many = min(many, int(left[domain]))
            left[domain] -= many
        total += many * int(cost[at])
        wanted -= many
    return None if wanted else total
