# SPDX-License-Identifier: Apache-2.0
"""What is stored of consumers: their live claims, and what writers of allocations left of them.

One statement reads both.  Of claims it reads what allocations are about and no more: whatever
else a claim has, neither what shows allocations nor what writes them needs, or changes.
"""

import itertools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims.allocations import ConsumerState
from gantt.core.claims.claim import Claim, State
from gantt.core.messages.request import Lifecycle, Purpose
from gantt.db.engine import session
from gantt.db.hosts import claim_rows, inherited
from gantt.db.hosts.rows import UNREADABLE
from gantt.db.schema import models

_c = models.claims
_a = models.allocations
_w = models.written_consumers

_uuids: Any = sa.bindparam('uuids', expanding=True)
_FIELDS = (
    *('id', 'consumer', 'provider_id', 'state', 'lifecycle', 'purpose'),
    *('project_id', 'user_id', 'consumer_type', 'created_at', 'updated_at', 'guest'),
)
#: Made once: to make it takes longer than to run it.
LIVE_OF = (
    sa.select(
        *(_c.c[name] for name in (*_FIELDS, *claim_rows.AMOUNTS)),
        _w.c.generation,
        _w.c.digest,
        *claim_rows.SHARE,
    )
    .select_from(
        _c.outerjoin(_a, _a.c.claim_id == _c.c.id).outerjoin(_w, _w.c.uuid == _c.c.consumer)
    )
    .where(_c.c.consumer.in_(_uuids), claim_rows.is_live)
    .order_by(_c.c.id)
)


class StoredConsumer(NamedTuple):
    """A consumer; without a live claim it does not exist.

    :ivar claims: the live ones, ascending by id, with what allocations are about alone: what else
        a claim has is not read, and is as of a claim that was just made
    :ivar written: None: nobody has written allocations of it
    """

    claims: list[Claim]
    written: ConsumerState | None


def read(tx: session.Tx, uuids: Sequence[str]) -> dict[str, StoredConsumer]:
    """Consumers by uuid; each of these is in it."""
    found = {uuid: StoredConsumer([], None) for uuid in uuids}
    by_claim = itertools.groupby(
        tx.all(LIVE_OF, uuids=list(uuids)) if uuids else (), operator.attrgetter('id')
    )
    for some in (list(of) for _, of in by_claim):
        first = some[0]
        here = found[first.consumer]
        try:
            here.claims.append(_claim(some))
        except UNREADABLE as e:
            raise exceptions.ClaimUnreadable(claim=first.id, problem=str(e)) from e
        if first.digest and here.written is None:
            state = ConsumerState(first.generation, first.digest)
            found[first.consumer] = here._replace(written=state)
    return found


def _claim(some: Sequence[Any]) -> Claim:
    """Of the rows of one claim."""
    first = some[0]
    return Claim(
        id=first.id,
        request_id=None,
        consumer=first.consumer,
        provider_id=first.provider_id,
        state=State(first.state),
        lifecycle=Lifecycle(first.lifecycle),
        purpose=Purpose(first.purpose),
        allocations=claim_rows.taken(some),
        inherits=inherited.of_rows(some),
        project_id=first.project_id,
        user_id=first.user_id,
        consumer_type=first.consumer_type,
        created_at=first.created_at,
        updated_at=first.updated_at,
        guest=first.guest,
    )
