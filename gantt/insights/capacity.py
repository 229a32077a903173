# SPDX-License-Identifier: Apache-2.0
"""How many more of a shape fit, where, and what runs out first: counted on one table.

Which hosts are eligible is what the filters said of one member; how many fit
on each is plain arithmetic over what is free there, and layouts where the
request asks for any.
"""

import collections

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.placement import capacity as counting
from gantt.core.records.decision import CHOSEN, PASSED, Decision
from gantt.core.table.host_table import HostTable
from gantt.core.topology.read import Inside
from gantt.insights.explain import explaining, wording
from gantt.insights.views import Capacity, Room

HOSTS_SHOWN = 100


def capacity(
    table: HostTable,
    spec: RequestSpec,
    decision: Decision,
    age: float,
    inside: Inside | None = None,
) -> Capacity:
    """Count the room for ``spec``.

    :param decision: of one member, made on this very table
    :param age: seconds since the table was current
    :param inside: how the pipeline that made it lays requests out
    """
    member = decision.members[0]
    verdicts = np.frombuffer(member.verdicts, np.uint8)
    rows = np.flatnonzero((verdicts == PASSED) | (verdicts == CHOSEN))
    found = counting.room(table, spec, rows, inside)
    by_row = list(zip(rows.tolist(), found.counts.tolist(), strict=True))
    by_host = sorted(
        (Room(name=table.names[row], count=n) for row, n in by_row if n),
        key=lambda room: (-room.count, room.name),
    )
    by_zone: collections.Counter[str] = collections.Counter()
    by_aggregate: collections.Counter[str] = collections.Counter()
    for row, n in by_row:
        by_zone[table.zone_name(row)] += n
        for aggregate in table.host_state(row).aggregates:
            by_aggregate[aggregate.name] += n
    return Capacity(
        shape=wording.shape(spec.resources),
        resources=spec.resources,
        count=found.total,
        hosts=len(table),
        eligible=len(rows),
        by_zone=_rooms(by_zone),
        by_aggregate=_rooms(by_aggregate),
        by_host=by_host[:HOSTS_SHOWN],
        by_host_truncated=len(by_host) > HOSTS_SHOWN,
        runs_out=found.bound_counts(),
        uncounted=found.uncounted,
        funnel=explaining.funnel(decision.hosts, member),
        verdict='' if len(rows) else decision.reason,
        nearest=[] if len(rows) else decision.nearest,
        table_age_seconds=round(age, 3),
    )


def _rooms(counts: collections.Counter[str]) -> list[Room]:
    return [
        Room(name=name, count=n)
        for name, n in sorted(counts.items(), key=lambda kv: (-kv[1], kv[0]))
    ]
