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
from gantt.db.engine.engine import is_id
from gantt.db.hosts import claim_rows, rows
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS
from gantt.placement_api.ports import ConsumerAllocations, ProviderAllocations, TypeUsage
from gantt.placement_api.sql import consumers

_claims = models.claims
_allocations = models.allocations
_providers = models.providers

_core_class_columns = list(CORE_CLASS_COLUMNS.values())
PROVIDER = sa.select(_providers.c.id, _providers.c.generation).where(
    _providers.c.uuid == sa.bindparam('uuid')
)
PROVIDERS = sa.select(_providers.c.id, _providers.c.uuid, _providers.c.generation).where(
    _providers.c.id.in_(sa.bindparam('ids', expanding=True))
)
_pid: Any = sa.bindparam('pid', type_=sa.BigInteger)
_consumer = (_claims.c.consumer, _claims.c.updated_at)
CONSUMER_AMOUNTS = sa.union_all(
    claim_rows.own_shares(*_consumer, where=[_claims.c.provider_id == _pid, _claims.c.live == 1]),
    claim_rows.other_shares(
        *_consumer, where=[_allocations.c.provider_id == _pid, claim_rows.is_live]
    ),
)


def consumer_allocations(tx: session.Tx, consumer: str) -> ConsumerAllocations | None:
    """Return all that a consumer has."""
    if not is_id(consumer):
        return None
    tx.snapshot()
    claims, written = consumers.read_consumers(tx, [consumer])[consumer]
    generation = rules.visible_generation(claims, written)
    if generation is None:
        return None
    newest = max(claims, key=lambda claim: (claim.created_at, claim.id))
    provider_rows = {row.id: row for row in tx.all(PROVIDERS, ids=sorted(providers_of(claims)))}
    shares = rules.allocations_of_claims(claims)
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


def provider_allocations(tx: session.Tx, uuid: str) -> ProviderAllocations | None:
    """Return the allocations of a provider."""
    if not is_id(uuid):
        return None
    tx.snapshot()
    provider = tx.first(PROVIDER, uuid=uuid)
    if provider is None:
        return None
    allocations: dict[str, dict[str, int]] = {}
    share_rows = tx.all(CONSUMER_AMOUNTS, pid=provider.id)
    for row in share_rows:
        consumer_amounts = allocations.setdefault(row.consumer, {})
        for name, amount in claim_rows.amounts(row, '', rows.readable_amounts).items():
            consumer_amounts[name] = consumer_amounts.get(name, 0) + amount
    return ProviderAllocations(
        generation=provider.generation,
        allocations={consumer: amounts for consumer, amounts in allocations.items() if amounts},
        generations=_generations(tx, sorted(allocations)),
        updated_at=max((row.updated_at for row in share_rows), default=None),
    )


def usage_by_type(tx: session.Tx, project: str, *, user: str | None = None) -> list[TypeUsage]:
    """Return the usage of a project by consumer type."""
    tx.snapshot()
    amounts, counts = _project_queries(tx.kind, user is not None)
    bound = claim_rows.bound_projects([project])
    if user is not None:
        bound['user'] = user
    usage_of_type = {
        row.type: TypeUsage(consumer_type=row.type, consumers=row.number, resources={})
        for row in tx.all(counts, **bound)
    }
    for row in tx.all(amounts, **bound):
        resources = usage_of_type[row.type].resources
        for name, amount in _amounts_of_row(row):
            resources[name] = resources.get(name, 0) + amount
    return [usage_of_type[name] for name in sorted(usage_of_type)]


def _generations(tx: session.Tx, uuids: Sequence[str]) -> dict[str, int]:
    generations: dict[str, int] = {}
    for part in session.in_parts(uuids):
        for uuid, stored in consumers.read_consumers(tx, part).items():
            generation = rules.visible_generation(*stored)
            if generation is not None:
                generations[uuid] = generation
    return generations


@functools.cache
def _project_queries(kind: str, of_user: bool) -> tuple[Any, Any]:
    """Return queries of a project's live claims by type: their amounts, number of consumers."""
    shares = held.shares_of_projects(kind, 'type', 'user_id').subquery('taken')
    consumer_claims = held.of_projects(kind, 'type', 'user_id', 'consumer').subquery('theirs')
    amounts = sa.select(
        shares.c.type,
        shares.c.other,
        sa.func.count().label('number'),
        *(sa.func.sum(shares.c[column]).label(column) for column in _core_class_columns),
    ).group_by(shares.c.type, shares.c.other)
    counts = sa.select(
        consumer_claims.c.type,
        sa.func.count(sa.distinct(consumer_claims.c.consumer)).label('number'),
    ).group_by(consumer_claims.c.type)
    if of_user:
        amounts = amounts.where(shares.c.user_id == sa.bindparam('user'))
        counts = counts.where(consumer_claims.c.user_id == sa.bindparam('user'))
    return amounts, counts


def _amounts_of_row(row: Any) -> Iterable[tuple[str, int]]:
    """Yield (class, amount) of a row, the sum of ``number`` claims with equal ``other``."""
    for name, column in CORE_CLASS_COLUMNS.items():
        amount = int(getattr(row, column) or 0)
        if amount:
            yield name, amount
    if row.other is not None:
        for name, amount in rows.readable_amounts(row.other).items():
            yield name, amount * row.number
