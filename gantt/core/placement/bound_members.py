# SPDX-License-Identifier: Apache-2.0
"""Members of one request that are bound to one host, placed where all of them fit.

Members are placed one after the other.  Under hard affinity the first one decides
for all, and the host that is best for one need not take the others.  Where that
ends without a place, the hosts that have room for all are looked at alone: which
these are is counted for all hosts at once, so that this is no search.
"""

from collections.abc import Callable, Sequence

import numpy as np

from gantt.core.filters.server_group import ServerGroupAffinityFilter
from gantt.core.messages.request import Policy
from gantt.core.placement import capacity, older_claims
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.run import Run
from gantt.core.records.decision import PASSED
from gantt.core.table.columns import BoolArray

#: Members placed in further passes, at most; the first of these is always made.  More than
#: one takes rules that count something else than room, as the guests of a host.
MEMBERS_MOST = 256
#: Layouts looked for while hosts are counted; beyond it a host counts by amounts alone.
LAYOUTS_MOST = 64
#: Instead of how many members have a place: nobody waits for the answer any more.
OVER = -1


def placed_anew(
    run: Run, wanted: Sequence[int], place: Callable[[Run, Sequence[int]], int]
) -> Run | None:
    """A run with all members on one host, None where there is none or it is not needed.

    :param run: of them; where it has not placed all of them what it took is given back
    :param wanted: the members
    :param place: places them by a run, one after the other; how many have a place, or ``OVER``
    """
    request, table = run.request, run.table
    group = request.spec.group
    if group is None or group.policy is not Policy.AFFINITY or not run.chosen:
        return None
    if len(run.chosen) >= len(wanted) or len(set(run.chosen)) > 1:
        return None
    tried = [run.chosen[0]]
    run.withdraw()
    with older_claims.left_out(table, request, run.attempt):
        if not capacity.first_decides(table, request.spec):
            return None  # they were bound to that host by a member that is there already
        takers = _takers(run, wanted)
        for _ in range(max(1, MEMBERS_MOST // len(wanted))):
            takers[tried] = False
            if not takers.any():
                return None
            again = run.another()
            again.filter_run.keep_to(ServerGroupAffinityFilter, takers)
            try:
                placed = place(again, wanted)
                if placed == len(wanted):
                    again.add_alternates()
                    return again
            except BaseException:
                again.give_back()
                raise
            tried = again.chosen[:1]
            again.give_back()
            if placed == OVER or not tried:
                return None
    return None


def _takers(run: Run, wanted: Sequence[int]) -> BoolArray:
    """Hosts with room for all members, of those that have a place for one."""
    table, spec, pipeline = run.table, run.request.spec, run.pipeline
    filter_run = FilterRun(table, spec, pipeline)
    filter_run.look(run.request.consumers[wanted[0]])
    # Whoever gave way to hosts that meet more of the request may be the one.
    rows = np.flatnonzero(filter_run.verdict >= min(pipeline.closing, default=PASSED))
    many = len(wanted)
    counts = capacity.on_each(table, spec, rows, many, pipeline.inside, LAYOUTS_MOST)
    takers = np.zeros(len(table), np.bool_)
    takers[rows[counts >= many]] = True
    return takers
