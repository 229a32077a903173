# SPDX-License-Identifier: Apache-2.0
"""Possible claims of a request in child zones, noted so that they end there.

They follow from the lock on the request.  So the transaction that ends a lock, because its owner
has left it or because the request is cancelled, also notes the allocations to give back: they are
not lost when a process ends.
"""

from collections.abc import Collection

import sqlalchemy as sa

from gantt.core.claims.idempotency_keys import may_be_elsewhere, request_id_in_zone
from gantt.db.engine import session
from gantt.db.schema import models

_zone_releases = models.zone_releases
#: Seconds until the first try: the process that goes on with the request, or has it, tries at once.
FIRST_TRY_SECONDS = 2.0


def release_in_zones(tx: session.Tx, lock_token: str) -> None:
    """Note all allocations that a lock may have claimed, here and in each child zone."""
    if not may_be_elsewhere(lock_token):
        return
    children = [row.uuid for row in tx.all(sa.select(models.child_zones.c.uuid))]
    if children:
        zone_row = tx.first(sa.select(models.zone.c.uuid))
        places = [*children, zone_row.uuid] if zone_row is not None else children
        add_releases(
            tx,
            [(place, request_id_in_zone(lock_token, place)) for place in places],
            FIRST_TRY_SECONDS,
        )


def add_releases(tx: session.Tx, pairs: Collection[tuple[str, str]], seconds: float) -> None:
    """Note allocations that are to end, each by zone and key.

    :param seconds: until the first try
    """
    rows = [
        {
            'child': child,
            'request_key': key,
            'tries': 0,
            'next_at': tx.now + seconds,
            'created_at': tx.now,
        }
        for child, key in dict.fromkeys(pairs)
    ]
    tx.insert_new(_zone_releases, rows, 'child', 'request_key')
