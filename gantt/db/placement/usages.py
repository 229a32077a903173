# SPDX-License-Identifier: Apache-2.0
"""Reads of consumers' allocations: of one, on one provider, and of a project."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.core.claims import allocations as rules
from gantt.db.claims import held
from gantt.db.claims.unit_of_work import providers_of
from gantt.db.engine import session
from gantt.db.hosts import claim_rows, rows
from gantt.db.hosts.base import is_id
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
#: Consumers whose claims are read at once.
PART = 500


def of_consumer(tx: session.Tx, consumer: str) -> ConsumerAllocations | None:
    """Return all that a consumer has."""
    if not is_id(consumer):
        return None
    tx.snapshot()
    claims, written = consumers.read(tx, [consumer])[consumer]
    generation = rules.visible_generation(claims, written)
    if generation is None:
        return None
    newest = max(claims, key=lambda claim: (claim.created_at, claim.id))
    provider_rows = {row.id: row for row in tx.all(PROVIDERS, ids=sorted(providers_of(claims)))}
    shares = rules.shares_of(claims)
    return ConsumerAllocations(
        consumer=consumer,
        generation=generation,
        project_id=newest.project_id,
        user_id=newest.user_id,
        consumer_type=newest.consumer_type,
        allocations={
            provider_rows[pid].uuid: amounts
            for pid, amounts in shares.items()
            if pid in provider_rows
        },
        generations={
            provider_rows[pid].uuid: provider_rows[pid].generation
            for pid in shares
            if pid in provider_rows
        },
        updated_at=max(claim.updated_at for claim in claims),
    )


def of_provider(tx: session.Tx, uuid: str) -> ProviderAllocations | None:
    """Return the allocations of a provider."""
    if not is_id(uuid):
        return None
    tx.snapshot()
    provider = tx.first(PROVIDER, uuid=uuid)
    if provider is None:
        return None
    allocations: dict[str, dict[str, int]] = {}
    share_rows = tx.all(TAKEN, pid=provider.id)
    for row in share_rows:
        consumer_amounts = allocations.setdefault(row.consumer, {})
        for name, amount in claim_rows.amounts(row, '', rows.known_amounts).items():
            consumer_amounts[name] = consumer_amounts.get(name, 0) + amount
    return ProviderAllocations(
        generation=provider.generation,
        allocations={consumer: amounts for consumer, amounts in allocations.items() if amounts},
        generations=_generations(tx, sorted(allocations)),
        updated_at=max((row.updated_at for row in share_rows), default=None),
    )


def by_type(tx: session.Tx, project: str, *, user: str | None = None) -> list[TypeUsage]:
    """Return the usage of a project by consumer type."""
    tx.snapshot()
    amounts, counts = _of_project(tx.kind, user is not None)
    bound = claim_rows.bound_projects([project])
    if user is not None:
        bound['user'] = user
    usage_of_type = {
        row.type: TypeUsage(consumer_type=row.type, consumers=row.number, resources={})
        for row in tx.all(counts, **bound)
    }
    for row in tx.all(amounts, **bound):
        resources = usage_of_type[row.type].resources
        for name, amount in _sum_of(row):
            resources[name] = resources.get(name, 0) + amount
    return [usage_of_type[name] for name in sorted(usage_of_type)]


def _generations(tx: session.Tx, uuids: Sequence[str]) -> dict[str, int]:
    generations: dict[str, int] = {}
    for start in range(0, len(uuids), PART):
        for uuid, stored in consumers.read(tx, uuids[start : start + PART]).items():
            generation = rules.visible_generation(*stored)
            if generation is not None:
                generations[uuid] = generation
    return generations


@functools.cache
def _of_project(kind: str, of_user: bool) -> tuple[Any, Any]:
    """Return queries of a project's live claims by type: their amounts, number of consumers."""
    queries = held.of_projects(kind)
    shares = queries.shares('type', 'user_id').subquery('taken')
    consumer_claims = queries.claims('type', 'user_id', 'consumer').subquery('theirs')
    amounts = sa.select(
        shares.c.type,
        shares.c.other,
        sa.func.count().label('number'),
        *(sa.func.sum(shares.c[column]).label(column) for column in _hot),
    ).group_by(shares.c.type, shares.c.other)
    counts = sa.select(
        consumer_claims.c.type,
        sa.func.count(sa.distinct(consumer_claims.c.consumer)).label('number'),
    ).group_by(consumer_claims.c.type)
    if of_user:
        amounts = amounts.where(shares.c.user_id == sa.bindparam('user'))
        counts = counts.where(consumer_claims.c.user_id == sa.bindparam('user'))
    return amounts, counts


def _sum_of(row: Any) -> Iterable[tuple[str, int]]:
    """Yield the amounts of a row that stands for all with equal amounts without columns."""
    for name, column in CORE_CLASS_COLUMNS.items():
        amount = int(getattr(row, column) or 0)
        if amount:
            yield name, amount
    if row.other is not None:
        for name, amount in rows.known_amounts(row.other).items():
            yield name, amount * row.number
