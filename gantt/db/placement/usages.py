# SPDX-License-Identifier: Apache-2.0
"""What consumers have, read: of one, on one provider, and of a project."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.core.claims import allocations as rules
from gantt.db.claims import held
from gantt.db.claims.claims import providers_of
from gantt.db.engine import session
from gantt.db.engine.session import reading
from gantt.db.hosts import claim_rows, rows
from gantt.db.hosts.base import HostTables, is_id
from gantt.db.placement import consumers
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS
from gantt.scheduler.ports import ConsumerAllocations, ProviderAllocations, TypeUsage

_c = models.claims
_a = models.allocations
_p = models.providers

_hot = list(CORE_CLASS_COLUMNS.values())
PROVIDER = sa.select(_p.c.id, _p.c.generation).where(_p.c.uuid == sa.bindparam('uuid'))
PROVIDERS = sa.select(_p.c.id, _p.c.uuid, _p.c.generation).where(
    _p.c.id.in_(sa.bindparam('ids', expanding=True))
)
_pid: Any = sa.bindparam('pid', type_=sa.BigInteger)
_consumer = (_c.c.consumer, _c.c.updated_at)
TAKEN = sa.union_all(
    claim_rows.own_shares(*_consumer, where=[_c.c.provider_id == _pid, _c.c.live == 1]),
    claim_rows.other_shares(*_consumer, where=[_a.c.provider_id == _pid, claim_rows.is_live]),
)
#: Of so many consumers at once the claims are read.
PART = 500


class SqlUsages(HostTables):
    """See ``scheduler.ports.allocations``."""

    @reading
    def load_allocations(self, tx: session.Tx, consumer: str) -> ConsumerAllocations | None:
        if not is_id(consumer):
            return None
        tx.snapshot()
        claims, written = consumers.read(tx, [consumer])[consumer]
        generation = rules.visible_generation(claims, written)
        if generation is None:
            return None
        newest = max(claims, key=lambda claim: (claim.created_at, claim.id))
        found = {row.id: row for row in tx.all(PROVIDERS, ids=sorted(providers_of(claims)))}
        shares = rules.shares_of(claims)
        return ConsumerAllocations(
            consumer=consumer,
            generation=generation,
            project_id=newest.project_id,
            user_id=newest.user_id,
            consumer_type=newest.consumer_type,
            allocations={found[pid].uuid: of for pid, of in shares.items() if pid in found},
            generations={found[pid].uuid: found[pid].generation for pid in shares if pid in found},
            updated_at=max(claim.updated_at for claim in claims),
        )

    @reading
    def provider_allocations(self, tx: session.Tx, uuid: str) -> ProviderAllocations | None:
        if not is_id(uuid):
            return None
        tx.snapshot()
        provider = tx.first(PROVIDER, uuid=uuid)
        if provider is None:
            return None
        taken: dict[str, dict[str, int]] = {}
        found = tx.all(TAKEN, pid=provider.id)
        for row in found:
            here = taken.setdefault(row.consumer, {})
            for name, amount in claim_rows.amounts(row, '', rows.known_amounts).items():
                here[name] = here.get(name, 0) + amount
        return ProviderAllocations(
            generation=provider.generation,
            allocations={consumer: of for consumer, of in taken.items() if of},
            generations=_generations(tx, sorted(taken)),
            updated_at=max((row.updated_at for row in found), default=None),
        )

    @reading
    def type_usages(
        self, tx: session.Tx, project: str, *, user: str | None = None
    ) -> list[TypeUsage]:
        tx.snapshot()
        amounts, counts = _of_project(tx.kind, user is not None)
        bound = claim_rows.bound_projects([project])
        if user is not None:
            bound['user'] = user
        found = {
            row.type: TypeUsage(consumer_type=row.type, consumers=row.number, resources={})
            for row in tx.all(counts, **bound)
        }
        for row in tx.all(amounts, **bound):
            taken = found[row.type].resources
            for name, amount in _sum_of(row):
                taken[name] = taken.get(name, 0) + amount
        return [found[name] for name in sorted(found)]


def _generations(tx: session.Tx, uuids: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for start in range(0, len(uuids), PART):
        for uuid, stored in consumers.read(tx, uuids[start : start + PART]).items():
            generation = rules.visible_generation(*stored)
            if generation is not None:
                found[uuid] = generation
    return found


@functools.cache
def _of_project(kind: str, of_user: bool) -> tuple[Any, Any]:
    """By type what live claims of a project take, and of how many consumers they are."""
    found = held.of_projects(kind)
    taken = found.shares('type', 'user_id').subquery('taken')
    theirs = found.claims('type', 'user_id', 'consumer').subquery('theirs')
    amounts = sa.select(
        taken.c.type,
        taken.c.other,
        sa.func.count().label('number'),
        *(sa.func.sum(taken.c[column]).label(column) for column in _hot),
    ).group_by(taken.c.type, taken.c.other)
    counts = sa.select(
        theirs.c.type, sa.func.count(sa.distinct(theirs.c.consumer)).label('number')
    ).group_by(theirs.c.type)
    if of_user:
        amounts = amounts.where(taken.c.user_id == sa.bindparam('user'))
        counts = counts.where(theirs.c.user_id == sa.bindparam('user'))
    return amounts, counts


def _sum_of(row: Any) -> Iterable[tuple[str, int]]:
    """Of rows that say the same of the classes that are no columns."""
    for name, column in CORE_CLASS_COLUMNS.items():
        amount = int(getattr(row, column) or 0)
        if amount:
            yield name, amount
    if row.other is not None:
        for name, amount in rows.known_amounts(row.other).items():
            yield name, amount * row.number
