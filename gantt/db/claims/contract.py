# SPDX-License-Identifier: Apache-2.0
"""The step after which claims are narrow, see ``claim_form``: taken by hand, beside writers.

1. The mark: from then on all write the narrow form, and no release starts that does not know it.
2. Claims are moved in the order of their ids, some at a time, under the locks of their hosts;
   how far it is stands in ``meta`` by the same transaction.
3. No wide one is left: the rows of consumers go, which nobody asks for any more.

Each is a transaction that may be the last one of a process: the next goes on there.
"""

from typing import Any

import msgspec
import sqlalchemy as sa

from gantt import exceptions
from gantt.db.engine import arrays, session
from gantt.db.engine.session import reading, writing
from gantt.db.hosts.claim_rows import AMOUNTS
from gantt.db.schema import claim_form, models
from gantt.db.schema.claim_form import MOVING, NARROW, STEP, WIDE

#: Claims that one transaction moves, and rows of consumers that one deletes.
CLAIMS_ROWS, CONSUMERS_ROWS = 1000, 5000
#: What the mark waits for those who write: a vacuum gives way to it after a second.
MARK_MS = 3000
#: A process of an older release that was seen within so many seconds may run still.
OLDER_SECONDS = 300.0

_c = models.claims
_a = models.allocations
_u = models.consumers
_p = models.providers
_m = models.meta
_s = models.services

READ = sa.select(_m.c.claims_form, _m.c.claims_moved)
OLDER = (
    sa.select(_s.c.name)
    .where(_s.c.revision.is_(None), _s.c.seen_at > sa.bindparam('since'))
    .order_by(_s.c.name)
)
ANY_WIDE = sa.select(_c.c.id).where(claim_form.is_wide).limit(1)
NEXT = (
    sa.select(_c.c.id, _c.c.provider_id)
    .where(_c.c.id > sa.bindparam('after'), claim_form.is_wide)
    .order_by(_c.c.id)
    .limit(sa.bindparam('most'))
)
LOCK = arrays.by_key(
    sa.select(_p.c.id)
    .where(_p.c.id.in_(sa.bindparam('ids', expanding=True)))
    .order_by(_p.c.id)
    .with_for_update(key_share=True),
    _p,
)
_own = sa.and_(_a.c.claim_id == _c.c.id, _a.c.provider_id == _c.c.provider_id)
_WIDE = sa.select(
    _c.c.id.label('claim_id'),
    *(_a.c[name] for name in AMOUNTS),
    _u.c.project_id,
    _u.c.user_id,
    sa.func.coalesce(_u.c.type, 'INSTANCE').label('consumer_type'),
).select_from(_c.outerjoin(_a, _own).outerjoin(_u, _u.c.uuid == _c.c.consumer))
_host = sa.select(_c.c.provider_id).where(_c.c.id == _a.c.claim_id).scalar_subquery()
_next_consumers = sa.select(_u.c.id).order_by(_u.c.id).limit(sa.bindparam('most')).subquery()
LAST_CONSUMER = sa.select(sa.func.max(_next_consumers.c.id))


class ClaimsForm(msgspec.Struct, frozen=True, kw_only=True):
    """Where the step is.

    :ivar form: WIDE, MOVING or NARROW
    :ivar moved: up to this id the claims are narrow, while they are moved; None: all are
    :ivar older: names of processes of releases that do not know the narrow form
    """

    form: int
    moved: str | None = None
    older: list[str] = []


class ClaimsContract(session.Transactions):
    """The step, a transaction at a time.

    :param store: on whose connections
    """

    def __init__(self, store: session.Transactions) -> None:
        self.database, self.reads = store.database, store.reads

    @reading
    def look(self, tx: session.Tx) -> ClaimsForm:
        """Where it is."""
        found = tx.first(READ)
        return ClaimsForm(form=found.claims_form, moved=found.claims_moved, older=_older(tx))

    @writing
    def mark(self, tx: session.Tx) -> None:
        """From now on the narrow form is written; nothing where that is so already.

        :raises Refused: a process that does not know it may run
        """
        if tx.kind == 'postgresql':  # waits for all that write claims; others wait for it
            tx.connection.exec_driver_sql(f'SET LOCAL lock_timeout = {MARK_MS}')
            tx.connection.exec_driver_sql('LOCK TABLE claims IN SHARE MODE')
        if tx.first(READ.with_for_update()).claims_form != WIDE:
            return
        _must_be_alone(tx)
        tx.run(_m.update().values(claims_form=MOVING, claims_moved=''))
        tx.insert_new(models.schema_steps, [{'revision': STEP}], 'revision')

    @writing
    def move(self, tx: session.Tx, most: int = CLAIMS_ROWS) -> int:
        """Move the next claims; how many, 0: the walk came to its end.

        :raises Refused: a process that does not know the narrow form has begun meanwhile
        """
        _must_be_alone(tx)
        after = tx.first(READ).claims_moved
        if after is None:
            return 0
        found = tx.all(NEXT, after=after, most=most)
        if not found:
            return 0
        ids = [row.id for row in found]
        # Before the hosts, as who writes claims does: MariaDB locks the row that they read.
        tx.run(_m.update().values(claims_moved=ids[-1]))
        tx.all(LOCK, ids=sorted({row.provider_id for row in found}))
        # One that was rewritten since it was found is narrow already: what it takes stands in it.
        still_wide = arrays.among(tx, _c.c.id, ids), claim_form.is_wide
        wide = _WIDE.where(*still_wide).subquery('wide')
        values: dict[Any, Any] = {of.name: of for of in wide.c if of.name != 'claim_id'}
        tx.run(_c.update().where(_c.c.id == wide.c.claim_id).values(values))
        tx.run(_a.delete().where(arrays.among(tx, _a.c.claim_id, ids), _a.c.provider_id == _host))
        return len(ids)

    @writing
    def forget_consumers(self, tx: session.Tx, most: int = CONSUMERS_ROWS) -> int:
        """Delete rows of consumers; how many, 0: none is left, and the step is done.

        A wide claim that is found is moved first: -1, and the walk begins anew.
        """
        if tx.first(READ).claims_moved is not None:
            if tx.first(ANY_WIDE) is not None:
                tx.run(_m.update().values(claims_moved=''))
                return -1
            tx.run(_m.update().values(claims_moved=None))
        last = tx.first(LAST_CONSUMER, most=most)[0]
        if last is not None:
            return tx.run(_u.delete().where(_u.c.id <= last))
        tx.run(_m.update().values(claims_form=NARROW))
        return 0


def _older(tx: session.Tx) -> list[str]:
    return [row.name for row in tx.all(OLDER, since=tx.now - OLDER_SECONDS)]


def _must_be_alone(tx: session.Tx) -> None:
    older = _older(tx)
    if older:
        raise exceptions.Refused(
            f'{", ".join(older[:10])} of a release that does not know the narrow form of claims '
            f'{"was" if len(older) == 1 else "were"} seen within {OLDER_SECONDS:g} s; stop what '
            'runs of it, and come again when that is past'
        )
