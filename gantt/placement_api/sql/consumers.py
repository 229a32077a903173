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
from gantt.db.hosts.rows import DECODE_ERRORS
from gantt.db.schema import models

_claims = models.claims
_allocations = models.allocations
_written_consumers = models.written_consumers

_uuids: Any = sa.bindparam('uuids', expanding=True)
_FIELDS = (
    *('id', 'consumer', 'provider_id', 'state', 'lifecycle', 'purpose'),
    *('project_id', 'user_id', 'consumer_type', 'created_at', 'updated_at', 'guest'),
)
#: Built once: building it takes longer than running it.
LIVE_CLAIMS_OF_CONSUMERS = (
    sa.select(
        *(_claims.c[name] for name in (*_FIELDS, *claim_rows.AMOUNT_COLUMNS)),
        _written_consumers.c.generation,
        _written_consumers.c.digest,
        *claim_rows.SHARE_COLUMNS,
    )
    .select_from(
        _claims.outerjoin(_allocations, _allocations.c.claim_id == _claims.c.id).outerjoin(
            _written_consumers, _written_consumers.c.uuid == _claims.c.consumer
        )
    )
    .where(_claims.c.consumer.in_(_uuids), claim_rows.is_live)
    .order_by(_claims.c.id)
)


class StoredConsumer(NamedTuple):
    """A consumer; without a live claim it does not exist.

    :ivar claims: live claims, ascending by id, with the columns of allocations only: others are
        not read, and are as of a new claim
    :ivar written: None: no request has written allocations of it
    """

    claims: list[Claim]
    written: ConsumerState | None


def read_consumers(tx: session.Tx, uuids: Sequence[str]) -> dict[str, StoredConsumer]:
    """Return the consumers by uuid; each uuid is a key."""
    consumers = {uuid: StoredConsumer([], None) for uuid in uuids}
    by_claim = itertools.groupby(
        tx.all(LIVE_CLAIMS_OF_CONSUMERS, uuids=list(uuids)) if uuids else (),
        operator.attrgetter('id'),
    )
    for rows_of_claim in (list(group) for _, group in by_claim):
        first = rows_of_claim[0]
        consumer = consumers[first.consumer]
        try:
            consumer.claims.append(_claim_of_rows(rows_of_claim))
        except DECODE_ERRORS as e:
            raise exceptions.ClaimUnreadable(claim=first.id, problem=str(e)) from e
        if first.digest and consumer.written is None:
            state = ConsumerState(first.generation, first.digest)
            consumers[first.consumer] = consumer._replace(written=state)
    return consumers


def _claim_of_rows(some: Sequence[Any]) -> Claim:
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
        allocations=claim_rows.decode_shares(some),
        inherits=claim_rows.inherits_of(some),
        project_id=first.project_id,
        user_id=first.user_id,
        consumer_type=first.consumer_type,
        created_at=first.created_at,
        updated_at=first.updated_at,
        guest=first.guest,
    )
