# SPDX-License-Identifier: Apache-2.0
"""Audit of providers: their trees, and rows that contradict each other.

Each statement checks all providers, or all claims, at once, and returns only violations; only the
positions of providers in trees are read completely.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt.core.claims import inheritance
from gantt.core.claims.claim import Claim
from gantt.core.messages.resource_classes import CAP_MAX, CORE_CLASSES, Inventory
from gantt.core.resources import provider
from gantt.core.resources.provider import TreeNode
from gantt.db.engine import session
from gantt.db.hosts import claim_rows
from gantt.db.hosts.providers import SHOWN_NAME
from gantt.db.hosts.trees import ROOT_ID
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

_providers = models.providers
_claims = models.claims
_allocations = models.allocations
_inventories = models.inventories
_provider_facts = models.provider_facts
_resource_classes = models.resource_classes


SELECT_NODES = (
    sa.select(
        _providers.c.id,
        _providers.c.uuid,
        sa.func.coalesce(SHOWN_NAME.element, _providers.c.uuid),
        _providers.c.kind,
        _providers.c.parent_id,
        ROOT_ID,
        sa.case((_provider_facts.c.provider_id.is_(None), 0), else_=1),
    )
    .select_from(
        _providers.outerjoin(_provider_facts, _provider_facts.c.provider_id == _providers.c.id)
    )
    .order_by(_providers.c.id)
)

# -- rows of a provider against those of its inventories ----------------------------------
_stated = (
    sa.select(
        _inventories.c.provider_id,
        sa.func.sum(sa.case((_resource_classes.c.name.in_(CORE_CLASSES), 0), else_=1)).label(
            'sparse_classes'
        ),
        *(
            sa.func.max(
                sa.case((_resource_classes.c.name == name, _inventories.c.cap), else_=0)
            ).label(column)
            for name, column in CORE_CLASS_COLUMNS.items()
        ),
    )
    .join(_resource_classes, _resource_classes.c.id == _inventories.c.class_id)
    .group_by(_inventories.c.provider_id)
    .subquery('stated')
)
#: Column of a provider's row -> its value by the inventories.
_STATED_VALUES = {
    'sparse_classes': sa.func.coalesce(_stated.c.sparse_classes, 0),
    **{f'cap_{c}': sa.func.coalesce(_stated.c[c], 0) for c in CORE_CLASS_COLUMNS.values()},
}
SELECT_CONTRADICTING_ROWS = (
    sa.select(
        _providers.c.id,
        *(_providers.c[name] for name in _STATED_VALUES),
        *(stated.label(f'stated_{name}') for name, stated in _STATED_VALUES.items()),
    )
    .select_from(_providers.outerjoin(_stated, _stated.c.provider_id == _providers.c.id))
    .where(sa.or_(*(_providers.c[name] != stated for name, stated in _STATED_VALUES.items())))
    .order_by(_providers.c.id)
)
_capacity = (_inventories.c.total - _inventories.c.reserved) * _inventories.c.allocation_ratio
#: Compared as far as the arithmetic of all databases is the same; results are computed again.
SELECT_WRONG_CAPS = (
    sa.select(
        _inventories.c.provider_id,
        _resource_classes.c.name,
        _inventories.c.cap,
        _inventories.c.total,
        _inventories.c.reserved,
        _inventories.c.allocation_ratio,
    )
    .join(_resource_classes, _resource_classes.c.id == _inventories.c.class_id)
    .where(
        ~sa.or_(
            sa.and_(
                _inventories.c.cap >= 0,
                _inventories.c.cap <= _capacity,
                _capacity < _inventories.c.cap + 1,
            ),
            sa.and_(_inventories.c.cap == 0, _capacity <= 0),
            sa.and_(_inventories.c.cap == CAP_MAX, _capacity >= float(CAP_MAX)),
        )
    )
    .order_by(_inventories.c.provider_id, _resource_classes.c.name)
)

# -- claims on providers other than their hosts ---------------------------------------------
_live = _claims.c.live == 1
#: The host of a claim is checked by its own row.
SELECT_SHARES_WITHOUT_PROVIDER = (
    sa.select(_claims.c.id, _claims.c.consumer, _allocations.c.provider_id)
    .select_from(
        _allocations.join(_claims, _claims.c.id == _allocations.c.claim_id).outerjoin(
            _providers, _providers.c.id == _allocations.c.provider_id
        )
    )
    .where(_live, _providers.c.id.is_(None), _allocations.c.provider_id != _claims.c.provider_id)
    .order_by(_claims.c.id, _allocations.c.provider_id)
)
#: Without a guest if the claim is absent.
SELECT_INHERITANCES = (
    sa.select(
        _allocations.c.claim_id, _allocations.c.provider_id, claim_rows.GUEST_UUID.label('guest')
    )
    .select_from(_allocations.outerjoin(_claims, _claims.c.id == _allocations.c.claim_id))
    .where(_allocations.c.inherits.is_not(None), sa.or_(_claims.c.id.is_(None), _live))
    .order_by(_allocations.c.claim_id, _allocations.c.provider_id)
)
SELECT_SHARES_OF_GUESTS = claim_rows.other_shares(
    _claims.c.id,
    claim_rows.GUEST_UUID.label('guest'),
    _claims.c.consumer,
    _claims.c.provider_id.label('host_id'),
    _allocations.c.inherits,
    where=[_live],
)


def nodes(tx: session.Tx) -> list[TreeNode]:
    """Return the positions of all providers in trees, by id."""
    return [
        TreeNode(pid, uuid, name, kind, parent, root, bool(is_host))
        for pid, uuid, name, kind, parent, root, is_host in tx.stream(SELECT_NODES)
    ]


def row_contradictions(tx: session.Tx, found: Sequence[TreeNode]) -> Iterable[str]:
    """Yield faults of the trees, and contradictions between rows of one provider."""
    yield from provider.tree_faults(found)
    nodes_by_id = {node.id: node for node in found}
    for row in tx.all(SELECT_CONTRADICTING_ROWS):
        shown = _shown(nodes_by_id, row.id)
        if row.sparse_classes != row.stated_sparse_classes:
            yield (
                f'{shown}: its row says {row.sparse_classes} inventories of other classes than '
                f'{", ".join(CORE_CLASSES)}, there are {row.stated_sparse_classes}'
            )
        for name, column in CORE_CLASS_COLUMNS.items():
            cap, stated = getattr(row, f'cap_{column}'), getattr(row, f'stated_cap_{column}')
            if cap != stated:
                yield f'{shown}: {name}: its row says capacity {cap}, its inventory {stated}'
    for row in tx.all(SELECT_WRONG_CAPS):
        numbers = Inventory(row.total, row.reserved, allocation_ratio=row.allocation_ratio)
        if numbers.cap != row.cap:
            yield (
                f'{_shown(nodes_by_id, row.provider_id)}: {row.name}: its inventory says capacity '
                f'{row.cap}, its numbers make {numbers.cap}'
            )


def homeless_shares(tx: session.Tx) -> Iterable[str]:
    """Yield a line for each live claim with amounts on a provider that does not exist."""
    for row in tx.all(SELECT_SHARES_WITHOUT_PROVIDER):
        yield (
            f'claim {row.id} of {row.consumer}: takes from provider {row.provider_id}, which is '
            'not there'
        )


def wrong_heirs(tx: session.Tx, found: Sequence[TreeNode]) -> Iterable[str]:
    """Yield a line for each claim whose inherited amounts are wrong."""
    heirs = tx.all(SELECT_INHERITANCES)
    for row in heirs:
        if row.guest is None:
            yield (
                f'claim {row.claim_id}: is not there, and is to inherit of provider '
                f'{row.provider_id}'
            )
    guests = sorted({row.guest for row in heirs if row.guest is not None})
    node_of_provider = {node.id: node for node in found}
    for part in session.in_parts(guests):
        claims_of_guest: dict[str, dict[str, Claim]] = {}
        for row in tx.all(SELECT_SHARES_OF_GUESTS.where(claim_rows.of_guests(part))):
            try:
                _add_share(claims_of_guest.setdefault(row.guest, {}), row)
            except (ValueError, msgspec.MsgspecError) as e:
                yield f'claim {row.id} of {row.consumer}: cannot be read: {e}'
        for claims in claims_of_guest.values():
            names = {
                pid: _shown(node_of_provider, pid)
                for claim in claims.values()
                for pid in claim.inherits
            }
            yield from inheritance.uncovered_inheritances(list(claims.values()), names)


def _add_share(claims: dict[str, Claim], row: Any) -> None:
    """Add the amounts and inheritance of a claim on one provider."""
    claim = claims.get(row.id) or Claim(
        id=row.id,
        request_id=None,
        consumer=row.consumer,
        guest=row.guest,
        provider_id=row.host_id,
    )
    inherits = claim.inherits
    if row.inherits is not None:
        inherits = {**inherits, row.provider_id: claim_rows.decode_inherits(row.inherits)}
    allocations = {**claim.allocations, row.provider_id: claim_rows.amounts(row)}
    claims[row.id] = msgspec.structs.replace(claim, allocations=allocations, inherits=inherits)


def _shown(of: Mapping[int, TreeNode], pid: int) -> str:
    return of[pid].shown if pid in of else f'provider {pid}, which is not there'
