# SPDX-License-Identifier: Apache-2.0
"""What a request may have claimed in zones below, noted so that it ends there.

It follows from the request's opening.  So whoever ends an opening, because its owner has left it
or because the request is cancelled, notes in the same transaction what is to be given back:
nothing of it is lost with a process.
"""

from collections.abc import Collection

import sqlalchemy as sa

from gantt.core.zones.keys import key_of, may_be_elsewhere
from gantt.db.engine import session
from gantt.db.schema import models

_b = models.give_backs
#: Until the first try, in seconds: whoever goes on with the request, or has it, tries at once.
FIRST_SECONDS = 2.0


def give_back_opening(tx: session.Tx, opening: str) -> None:
    """Note whatever an opening may have claimed, here and in each zone below."""
    if not may_be_elsewhere(opening):
        return
    children = [row.uuid for row in tx.all(sa.select(models.child_zones.c.uuid))]
    if children:
        own = tx.first(sa.select(models.zone.c.uuid))
        places = [*children, own.uuid] if own is not None else children
        add(tx, [(place, key_of(opening, place)) for place in places], FIRST_SECONDS)


def add(tx: session.Tx, pairs: Collection[tuple[str, str]], seconds: float) -> None:
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
    tx.insert_new(_b, rows, 'child', 'request_key')
