# SPDX-License-Identifier: Apache-2.0
"""Stored state of consumers: their live claims, and the state that writers of allocations left.

One statement reads both.  Of claims it reads only columns of allocations: readers and writers of
allocations neither need nor change the others.
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
from gantt.db.hosts import claim_rows
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
#: Built once: building it takes longer than running it.
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

    :ivar claims: the live ones, ascending by id, with the columns of allocations only: others are
        not read, and are as of a new claim
    :ivar written: None: no request has written allocations of it
    """

    claims: list[Claim]
    written: ConsumerState | None


def read(tx: session.Tx, uuids: Sequence[str]) -> dict[str, StoredConsumer]:
    """Return the consumers by uuid; each uuid is a key."""
    consumers = {uuid: StoredConsumer([], None) for uuid in uuids}
    by_claim = itertools.groupby(
        tx.all(LIVE_OF, uuids=list(uuids)) if uuids else (), operator.attrgetter('id')
    )
    for rows_of_claim in (list(group) for _, group in by_claim):
        first = rows_of_claim[0]
        consumer = consumers[first.consumer]
        try:
            consumer.claims.append(_claim(rows_of_claim))
        except UNREADABLE as e:
            raise exceptions.ClaimUnreadable(claim=first.id, problem=str(e)) from e
        if first.digest and consumer.written is None:
            state = ConsumerState(first.generation, first.digest)
            consumers[first.consumer] = consumer._replace(written=state)
    return consumers


def _claim(some: Sequence[Any]) -> Claim:
    """Return the claim in the rows of one claim."""
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
        inherits=claim_rows.inherits_of(some),
        project_id=first.project_id,
        user_id=first.user_id,
        consumer_type=first.consumer_type,
        created_at=first.created_at,
        updated_at=first.updated_at,
        guest=first.guest,
    )
