# SPDX-License-Identifier: Apache-2.0
"""Older claims of members that are placed anew together: these are ignored, or kept."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

from gantt.core.claims.claim import claim_id
from gantt.core.messages.request import SelectDestinations
from gantt.core.resources.host import Placed
from gantt.core.table.host_table import HostTable
from gantt.core.table.placed_index import PlacedIndex

#: Context of a request that has no older claims.
NO_OLDER_CLAIMS: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def without_older_claims(
    table: HostTable, request: SelectDestinations, attempt: int
) -> contextlib.AbstractContextManager[None]:
    """Remove older claims from the table for a context, so that no member is placed beside them.

    Those of a move stay, as its source is there until the guest has arrived: no member is placed
    beside it that may not be.  But the source does not bind members that leave as well.
    """
    group = request.spec.group
    if group is None or len(request.consumers) == 1 or not group.is_hard:
        return NO_OLDER_CLAIMS
    older = list(_older_claims(table.placed, request, attempt))
    if request.spec.purpose.is_move:
        return _marked_as_leaving(table.placed, older) if older else NO_OLDER_CLAIMS
    older = [placed for placed in older if placed.group == group.uuid]
    return _removed_from_index(table.placed, older) if older else NO_OLDER_CLAIMS


def _older_claims(
    index: PlacedIndex, request: SelectDestinations, attempt: int
) -> Iterator[Placed]:
    new = {claim_id(request.request_id, attempt, i) for i in range(len(request.consumers))}
    for consumer in request.consumers:
        for provider_id in sorted(set(index.providers_of(consumer))):
            for placed in index.on_provider(provider_id).values():
                if placed.consumer == consumer and placed.claim_id not in new:
                    yield placed


@contextlib.contextmanager
def _marked_as_leaving(index: PlacedIndex, older: Sequence[Placed]) -> Iterator[None]:
    before = index.leaving
    index.leaving = Counter((placed.provider_id, placed.consumer) for placed in older)
    try:
        yield
    finally:
        index.leaving = before


@contextlib.contextmanager
def _removed_from_index(index: PlacedIndex, older: Sequence[Placed]) -> Iterator[None]:
    for placed in older:
        index.remove(placed.provider_id, placed.claim_id)
    try:
        yield
    finally:
        for placed in older:
            index.add(placed)
