# SPDX-License-Identifier: Apache-2.0
"""Older claims of a group's members, which give way while these are placed anew together."""

import contextlib
from collections.abc import Iterator, Sequence

from gantt.core.claims.claim import claim_id
from gantt.core.messages.request import SelectDestinations
from gantt.core.resources.host import Placed
from gantt.core.table.host_table import HostTable
from gantt.core.table.placed_index import PlacedIndex

#: Of a request that has none.
NOTHING_OLDER: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def left_out(
    table: HostTable, request: SelectDestinations, attempt: int
) -> contextlib.AbstractContextManager[None]:
    """Leave them out of the table, so that nobody is placed beside what gives way.

    Those of a move stay: its source is there until the guest has arrived.
    """
    index, group = table.placed, request.spec.group
    if group is None or len(request.consumers) == 1:
        return NOTHING_OLDER
    if not group.is_hard or request.spec.purpose.is_move:
        return NOTHING_OLDER
    new = {claim_id(request.request_id, attempt, i) for i in range(len(request.consumers))}
    older = [
        placed
        for consumer in request.consumers
        for provider_id in sorted(set(index.where(consumer)))
        for placed in index.on(provider_id).values()
        if placed.consumer == consumer and placed.group == group.uuid and placed.claim_id not in new
    ]
    return _without(index, older) if older else NOTHING_OLDER


@contextlib.contextmanager
def _without(index: PlacedIndex, older: Sequence[Placed]) -> Iterator[None]:
    for placed in older:
        index.remove(placed.provider_id, placed.claim_id)
    try:
        yield
    finally:
        for placed in older:
            index.add(placed)
