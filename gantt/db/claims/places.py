# SPDX-License-Identifier: Apache-2.0
"""Rows of claims that are places of plans, written where a create takes one, or ends.

The consumer of such a claim changes while it lives, its amounts do not: no counter changes.
Other claims are written by statements without these columns.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.core.claims.claim import Claim
from gantt.db.engine import retry, session
from gantt.db.hosts import claim_rows, sole
from gantt.db.schema import models

_c = models.claims
_p = models.providers
#: Columns of a place that change.
_CHANGED = (
    *('request_id', 'attempt', 'member', 'consumer', 'state', 'live', 'lifecycle', 'purpose'),
    *('lease_until', 'expires_at', 'move_id', 'image', 'flavor', 'adopted', 'absences', 'reason'),
    *('updated_at', 'planned', 'project_id', 'user_id', 'sole', 'consumer_type'),
)
WRITE = (
    _c.update()
    .where(_c.c.id == sa.bindparam('b_id'), _c.c.state == sa.bindparam('b_state'))
    .values({name: sa.bindparam(name) for name in _CHANGED})
)
#: Guarded by the time of its last change: the place was read before all locks were held.
WRITE_SEEN = WRITE.where(_c.c.updated_at == sa.bindparam('b_updated_at'))
TOUCH = (
    _p.update()
    .where(_p.c.id == sa.bindparam('b_id'))
    .values(
        version=_p.c.version + 1,
        claims_stamp=sa.bindparam('stamp', type_=sa.BigInteger),
    )
)


def values(before: Claim, now: Claim) -> dict[str, Any]:
    """Return the bound values of ``WRITE`` and ``WRITE_SEEN``."""
    return {
        'b_id': before.id,
        'b_state': before.state.value,
        'b_updated_at': before.updated_at,
        **{name: claim_rows.CLAIM[name](now) for name in _CHANGED},
    }


def write(
    tx: session.Tx, changes: Sequence[tuple[Claim, Claim]], *, seen_before: bool = False
) -> None:
    """Write the new state of places.

    :param changes: (as read, as it becomes)
    :param seen_before: they were read before the locks were held
    :raises Again: one was written meanwhile, or another claim for its consumer was created
    """
    if not changes:
        return
    statement = WRITE_SEEN if seen_before else WRITE
    ordered = sorted(changes, key=lambda pair: (pair[1].consumer, pair[0].id))
    bound = [values(before, now) for before, now in ordered]
    if not seen_before:
        for row_values in bound:
            del row_values['b_updated_at']
    try:
        written = tx.many(statement, bound)
    except Exception as e:
        if not sole.is_of_sole(retry.root_of(e)):
            raise
        raise retry.Again('a claim for the same consumer came to be meanwhile') from e
    if written != len(bound):
        raise retry.Again('a place was written meanwhile')


def insert(tx: session.Tx, places: Sequence[Claim]) -> None:
    """Insert places that live on where the claims of their creates have ended.

    :raises Again: another claim for the same consumer was created
    """
    if places:
        claim_rows.insert_claims(tx, places)


def touch(tx: session.Tx, provider_ids: Iterable[int]) -> None:
    """Mark that claims on providers changed their consumers; amounts stay the same."""
    sorted_ids = sorted(provider_ids)
    if sorted_ids and tx.many(
        TOUCH, [{'b_id': pid, 'stamp': tx.stamp} for pid in sorted_ids]
    ) != len(sorted_ids):
        raise retry.Again('a provider was removed meanwhile')
