# SPDX-License-Identifier: Apache-2.0
"""Older claims of a group's members, which give way while these are placed anew together."""

import contextlib
from collections.abc import Iterator

from gantt.core.claims.claim import claim_id
from gantt.core.messages.request import SelectDestinations
from gantt.core.resources.host import Placed
from gantt.core.table.host_table import HostTable


@contextlib.contextmanager
def left_out(table: HostTable, request: SelectDestinations, attempt: int) -> Iterator[None]:
    """Leave them out of the table, so that nobody is placed beside what gives way.

    Those of a move stay: its source is there until the guest has arrived.
    """
    index, group, older = table.placed, request.spec.group, list[Placed]()
    if group and group.is_hard and len(request.consumers) > 1 and not request.spec.purpose.is_move:
        many = range(len(request.consumers))
        new = {claim_id(request.request_id, attempt, i) for i in many}
        older = [
            placed
            for consumer in request.consumers
            for provider_id in sorted(set(index.where(consumer)))
            for placed in index.on(provider_id).values()
            if placed.consumer == consumer
            and placed.group == group.uuid
            and placed.claim_id not in new
        ]
    for placed in older:
        index.remove(placed.provider_id, placed.claim_id)
    try:
        yield
    finally:
        for placed in older:
            index.add(placed)
