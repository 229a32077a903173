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
from gantt.core.resources import tree_check
from gantt.core.resources.tree_check import TreeNode
from gantt.db.engine import session
from gantt.db.hosts import claim_rows
from gantt.db.hosts.providers import SHOWN_NAME
from gantt.db.hosts.trees import ROOT_ID
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

_p = models.providers
_c = models.claims
_a = models.allocations
_i = models.inventories
_f = models.provider_facts
_rc = models.resource_classes

#: Guests in one statement.
CHUNK = 500

NODES = (
    sa.select(
        _p.c.id,
        _p.c.uuid,
        sa.func.coalesce(SHOWN_NAME.element, _p.c.uuid),
        _p.c.kind,
        _p.c.parent_id,
        ROOT_ID,
        sa.case((_f.c.provider_id.is_(None), 0), else_=1),
    )
    .select_from(_p.outerjoin(_f, _f.c.provider_id == _p.c.id))
    .order_by(_p.c.id)
)

# -- rows of a provider against those of its inventories ----------------------------------
_stated = (
    sa.select(
        _i.c.provider_id,
        sa.func.sum(sa.case((_rc.c.name.in_(CORE_CLASSES), 0), else_=1)).label('sparse_classes'),
        *(
            sa.func.max(sa.case((_rc.c.name == name, _i.c.cap), else_=0)).label(column)
            for name, column in CORE_CLASS_COLUMNS.items()
        ),
    )
    .join(_rc, _rc.c.id == _i.c.class_id)
    .group_by(_i.c.provider_id)
    .subquery('stated')
)
#: Column of a provider's row -> its value by the inventories.
_PAIRS = {
    'sparse_classes': sa.func.coalesce(_stated.c.sparse_classes, 0),
    **{f'cap_{c}': sa.func.coalesce(_stated.c[c], 0) for c in CORE_CLASS_COLUMNS.values()},
}
ROWS = (
    sa.select(
        _p.c.id,
        *(_p.c[name] for name in _PAIRS),
        *(stated.label(f'stated_{name}') for name, stated in _PAIRS.items()),
    )
    .select_from(_p.outerjoin(_stated, _stated.c.provider_id == _p.c.id))
    .where(sa.or_(*(_p.c[name] != stated for name, stated in _PAIRS.items())))
    .order_by(_p.c.id)
)
_promised = (_i.c.total - _i.c.reserved) * _i.c.allocation_ratio
#: Compared as far as the arithmetic of all databases is the same; results are computed again.
CAPS = (
    sa.select(
        _i.c.provider_id,
        _rc.c.name,
        _i.c.cap,
        _i.c.total,
        _i.c.reserved,
        _i.c.allocation_ratio,
    )
    .join(_rc, _rc.c.id == _i.c.class_id)
    .where(
        ~sa.or_(
            sa.and_(_i.c.cap >= 0, _i.c.cap <= _promised, _promised < _i.c.cap + 1),
            sa.and_(_i.c.cap == 0, _promised <= 0),
            sa.and_(_i.c.cap == CAP_MAX, _promised >= float(CAP_MAX)),
        )
    )
    .order_by(_i.c.provider_id, _rc.c.name)
)

# -- claims on providers other than their hosts ---------------------------------------------
_live = _c.c.live == 1
#: The host of a claim is checked by its own row.
HOMELESS_SHARES = (
    sa.select(_c.c.id, _c.c.consumer, _a.c.provider_id)
    .select_from(_a.join(_c, _c.c.id == _a.c.claim_id).outerjoin(_p, _p.c.id == _a.c.provider_id))
    .where(_live, _p.c.id.is_(None), _a.c.provider_id != _c.c.provider_id)
    .order_by(_c.c.id, _a.c.provider_id)
)
#: Without a guest if the claim is absent.
HEIRS = (
    sa.select(_a.c.claim_id, _a.c.provider_id, claim_rows.GUEST.label('guest'))
    .select_from(_a.outerjoin(_c, _c.c.id == _a.c.claim_id))
    .where(_a.c.inherits.is_not(None), sa.or_(_c.c.id.is_(None), _live))
    .order_by(_a.c.claim_id, _a.c.provider_id)
)
SHARES_OF = claim_rows.other_shares(
    _c.c.id,
    claim_rows.GUEST.label('guest'),
    _c.c.consumer,
    _c.c.provider_id.label('host_id'),
    _a.c.inherits,
    where=[_live],
)


def nodes(tx: session.Tx) -> list[TreeNode]:
    """Return the positions of all providers in trees, by id."""
    return [
        TreeNode(pid, uuid, name, kind, parent, root, bool(is_host))
        for pid, uuid, name, kind, parent, root, is_host in tx.stream(NODES)
    ]


def of_rows(tx: session.Tx, found: Sequence[TreeNode]) -> Iterable[str]:
    """Yield faults of the trees, and contradictions between rows of one provider."""
    yield from tree_check.broken(found)
    nodes_by_id = {node.id: node for node in found}
    for row in tx.all(ROWS):
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
    for row in tx.all(CAPS):
        numbers = Inventory(row.total, row.reserved, allocation_ratio=row.allocation_ratio)
        if numbers.cap != row.cap:
            yield (
                f'{_shown(nodes_by_id, row.provider_id)}: {row.name}: its inventory says capacity '
                f'{row.cap}, its numbers make {numbers.cap}'
            )


def homeless_shares(tx: session.Tx) -> Iterable[str]:
    """Yield live claims that take from absent providers."""
    for row in tx.all(HOMELESS_SHARES):
        yield (
            f'claim {row.id} of {row.consumer}: takes from provider {row.provider_id}, which is '
            'not there'
        )


def wrong_heirs(tx: session.Tx, found: Sequence[TreeNode]) -> Iterable[str]:
    """Yield claims that inherit amounts that do not exist."""
    heirs = tx.all(HEIRS)
    for row in heirs:
        if row.guest is None:
            yield (
                f'claim {row.claim_id}: is not there, and is to inherit of provider '
                f'{row.provider_id}'
            )
    guests = sorted({row.guest for row in heirs if row.guest is not None})
    node_of_provider = {node.id: node for node in found}
    for start in range(0, len(guests), CHUNK):
        part = guests[start : start + CHUNK]
        claims_of_guest: dict[str, dict[str, Claim]] = {}
        for row in tx.all(SHARES_OF.where(claim_rows.of_guests(part))):
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
            yield from inheritance.excess(list(claims.values()), names)


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
