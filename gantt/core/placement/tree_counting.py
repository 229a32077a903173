# SPDX-License-Identifier: Apache-2.0
"""How often a request that takes of trees fits on each host: laid one after the other on a copy.

Bounded by searches and steps, not by time; beyond, hosts count by their own amounts alone.
"""

from typing import NamedTuple

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.placement.tree_choice import TreeChoice
from gantt.core.resources.host import Placed
from gantt.core.table.columns import IntArray
from gantt.core.table.host_table import HostTable

#: Of one count: searches that differ, steps of all of them, and members on one host.
TREES_MAX, STEPS_MAX, EACH_MAX = 10_000, 2_000_000, 1024


class TreeCount(NamedTuple):
    """Counts by host, in the order of the rows.

    :ivar uncounted: on how many of them the count is the most that may fit
    """

    counts: IntArray
    uncounted: int


def count(table: HostTable, spec: RequestSpec, rows: IntArray, most: IntArray) -> TreeCount:
    """How often a request fits on each of these hosts, those before it being filled.

    :param most: by their own amounts
    """
    other = table.copy()
    trees = TreeChoice(other, spec, steps=STEPS_MAX, trees=TREES_MAX)
    found, uncounted = most.copy(), 0
    for at, row in enumerate(rows.tolist()):
        number = _fill(other, trees, row, min(int(most[at]), EACH_MAX))
        if row in trees.given_up or (number == EACH_MAX and number < most[at]):
            uncounted += 1
        else:
            found[at] = number
    return TreeCount(np.asarray(found, np.int64), uncounted)


def _fill(table: HostTable, trees: TreeChoice, row: int, most: int) -> int:
    """How many go on a host, which they are put on."""
    host = table.hosts[row].id
    for number in range(most):
        if not all(
            table.has(row, name, amount) or table.pool_for(row, name, amount) is not None
            for name, amount in trees.rest.items()
        ):
            return number
        solution = trees.solve(row)
        if solution is None:
            return number
        shares = trees.amounts(row, solution)
        own = shares.pop(host)
        name = f'count {row} {number}'
        table.take(host, own, Placed(name, name, host), shares)
    return most
