# SPDX-License-Identifier: Apache-2.0
"""Checks of promises P1 to P4 and the rows of providers by query: a line for each violation.

All queries read one snapshot, so that a running system does not seem broken only because it
changes.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from gantt.core.claims import reservation_audit
from gantt.core.claims.claim import LIVE, State, endless
from gantt.core.messages import quoting
from gantt.core.messages.layout import ALL_OF_IT, Layout
from gantt.core.messages.request import Lifecycle, Purpose
from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.core.resources.tree_check import TreeNode
from gantt.core.topology.double_use import doubled, overdrawn
from gantt.db.engine import session
from gantt.db.hosts import claim_rows, details, rows
from gantt.db.hosts.providers import SHOWN_NAME
from gantt.db.records import provider_audit
from gantt.db.records.reservation_audit import AuditedReservations
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

_p = models.providers
_c = models.claims
_a = models.allocations
_i = models.inventories
_r = models.requests
_f = models.provider_facts

#: Lines of one kind: the first ones suffice.
LINES_MAX = 200
#: A sweep and one report after the lease.
GRACE_SECONDS = 80.0

_live = _c.c.live == 1
_classes = list(CORE_CLASS_COLUMNS.values())
_taken = sa.union_all(
    claim_rows.own_shares(where=[_live]), claim_rows.other_shares(where=[_live])
).subquery('taken')
_sums = (
    sa.select(
        _taken.c.provider_id,
        *[sa.func.coalesce(sa.func.sum(_taken.c[c]), 0).label(c) for c in _classes],
    )
    .group_by(_taken.c.provider_id)
    .subquery()
)
USAGE = (
    sa.select(
        _p.c.id,
        SHOWN_NAME,
        _p.c.over_committed,
        *[_p.c[f'cap_{c}'] for c in CORE_CLASS_COLUMNS.values()],
        *[_p.c[f'used_{c}'] for c in CORE_CLASS_COLUMNS.values()],
        *[_p.c[f'foreign_{c}'] for c in CORE_CLASS_COLUMNS.values()],
        *[sa.func.coalesce(_sums.c[c], 0).label(f'sum_{c}') for c in CORE_CLASS_COLUMNS.values()],
    )
    .select_from(_p.outerjoin(_sums, _sums.c.provider_id == _p.c.id))
    .where(
        sa.or_(
            *[
                _p.c[f'used_{c}'] != sa.func.coalesce(_sums.c[c], 0)
                for c in CORE_CLASS_COLUMNS.values()
            ],
            *[
                sa.and_(
                    _p.c[f'used_{c}'] + _p.c[f'foreign_{c}'] > _p.c[f'cap_{c}'],
                    _p.c.over_committed == 0,
                )
                for c in CORE_CLASS_COLUMNS.values()
            ],
            # Over-full by another class, or by none.
            sa.and_(
                _p.c.over_committed != 0,
                *[
                    _p.c[f'used_{c}'] + _p.c[f'foreign_{c}'] <= _p.c[f'cap_{c}']
                    for c in CORE_CLASS_COLUMNS.values()
                ],
            ),
        )
    )
)
OTHERS = (
    sa.select(
        _p.c.id,
        SHOWN_NAME,
        _p.c.over_committed,
        models.resource_classes.c.name.label('class_name'),
        _i.c.cap,
        _i.c.used,
        _i.c.foreign_use,
    )
    .select_from(
        _i.join(_p, _p.c.id == _i.c.provider_id).join(
            models.resource_classes, models.resource_classes.c.id == _i.c.class_id
        )
    )
    .where(models.resource_classes.c.name.not_in(CORE_CLASSES))
)
#: Mostly many claims take the same amounts of a provider.
OTHER_AMOUNTS = (
    sa.select(_taken.c.provider_id, _taken.c.other, sa.func.count().label('claims'))
    .where(_taken.c.other.is_not(None))
    .group_by(_taken.c.provider_id, _taken.c.other)
)
HOMELESS = (
    sa.select(_c.c.id, _c.c.consumer, _c.c.provider_id)
    .select_from(_c.outerjoin(_p, _p.c.id == _c.c.provider_id))
    .where(_live, _p.c.id.is_(None))
)
#: Values of a newer release, or damaged ones: readers of such a claim fail.
STRANGE = sa.select(_c.c.id, _c.c.consumer, _c.c.state, _c.c.lifecycle, _c.c.purpose).where(
    _live,
    sa.or_(
        _c.c.state.not_in([state.value for state in State]),
        _c.c.lifecycle.not_in([lifecycle.value for lifecycle in Lifecycle]),
        _c.c.purpose.not_in([purpose.value for purpose in Purpose]),
    ),
)
EMPTY = sa.select(_c.c.id, _c.c.consumer).where(
    _live, _c.c.adopted == 0, _c.c.vcpu.is_(None), ~sa.exists().where(_a.c.claim_id == _c.c.id)
)
#: Claims that are not reserved any more, and still bar others.
BARRING = sa.select(_c.c.id, _c.c.consumer).where(
    _c.c.unique_key.is_not(None), _c.c.state != State.RESERVED.value
)
#: Claims whose state contradicts the mark by which they are counted.
MARKED = (
    sa.select(_c.c.id, _c.c.consumer, _c.c.state)
    .where(
        sa.or_(
            sa.and_(_c.c.live != 1, _c.c.state.in_([state.value for state in LIVE])),
            sa.and_(
                _c.c.live != 0,
                _c.c.state.in_([state.value for state in State if state not in LIVE]),
            ),
        )
    )
    .order_by(_c.c.id)
)
_made = (
    sa.select(_c.c.request_id, _c.c.attempt, sa.func.count().label('count'))
    .group_by(_c.c.request_id, _c.c.attempt)
    .subquery()
)
MISSING = (
    sa.select(_r.c.id, _r.c.claims, sa.func.coalesce(_made.c.count, 0).label('found'))
    .select_from(
        _r.outerjoin(_made, sa.and_(_made.c.request_id == _r.c.id, _made.c.attempt == _r.c.attempt))
    )
    .where(_r.c.state == 'placed', sa.func.coalesce(_made.c.count, 0) < _r.c.claims)
)
LEAKED = (
    sa.select(_c.c.id, _c.c.consumer, _c.c.expires_at)
    .where(_c.c.expires_at < sa.bindparam('before'))
    .order_by(_c.c.expires_at)
)
#: Claims that the sweeper does not end, and no host has: few, see ``core.claims.claim.endless``.
UNLEASED = sa.select(_c.c.id, _c.c.consumer, _c.c.state, _c.c.lifecycle, _c.c.expires_at).where(
    _live,
    _c.c.lifecycle.in_(
        [lifecycle.value for lifecycle in Lifecycle if lifecycle is not Lifecycle.API]
    ),
    _c.c.state.in_([state.value for state in State]),
    sa.or_(
        sa.and_(_c.c.state == State.RESERVED.value, _c.c.expires_at.is_(None)),
        sa.and_(
            _c.c.state != State.RESERVED.value,
            _c.c.lifecycle.not_in([Lifecycle.HOST.value, Lifecycle.CALLER.value]),
        ),
    ),
)
_moves = [purpose.value for purpose in Purpose if purpose.is_move]
#: Guests that a host was found running without a request are no violation of ours.
_not_adopted = sa.and_(_live, _c.c.adopted == 0, _c.c.lifecycle != Lifecycle.API.value)
TWICE = (
    sa.select(_c.c.consumer, _c.c.purpose, sa.func.count().label('count'))
    .where(_not_adopted, _c.c.purpose.not_in(_moves))
    .group_by(_c.c.consumer, _c.c.purpose)
    .having(sa.func.count() > 1)
)
#: A move has a source and a destination, so only its open destinations count.
MOVED_TWICE = (
    sa.select(_c.c.consumer, sa.func.count().label('count'))
    .where(_not_adopted, _c.c.purpose.in_(_moves), _c.c.state == State.RESERVED.value)
    .group_by(_c.c.consumer)
    .having(sa.func.count() > 1)
)
TWICE_MADE = (
    sa.select(_c.c.request_id, _c.c.member, sa.func.count().label('count'))
    .where(_live, _c.c.request_id.is_not(None))
    .group_by(_c.c.request_id, _c.c.member)
    .having(sa.func.count() > 1)
)


def violations(tx: session.Tx) -> dict[str, list[str]]:
    """Return violations by promise; empty lists if there are none."""
    tx.snapshot()
    nodes, marked = provider_audit.nodes(tx), tx.all(MARKED)
    places = AuditedReservations(tx)
    return {
        'over_commit': _first(itertools.chain(_over(tx, nodes), _inside(tx))),
        'lost': _first(
            itertools.chain(
                _lost(tx, marked),
                provider_audit.wrong_heirs(tx, nodes),
                places.unreadable(),
                reservation_audit.lost(places.found),
            )
        ),
        'leaked': _first(
            itertools.chain(
                _leaked(tx, marked),
                _barring(tx),
                reservation_audit.leaked(places.found, places.leases),
            )
        ),
        'doubled': _first(itertools.chain(_doubled(tx), places.doubled())),
        'providers': _first(provider_audit.of_rows(tx, nodes)),
    }


def _first(lines: Iterable[str]) -> list[str]:
    all_lines = list(lines)
    if len(all_lines) > LINES_MAX:
        return [*all_lines[:LINES_MAX], f'and {len(all_lines) - LINES_MAX} more']
    return all_lines


#: Layouts of live claims, by host.
LAYOUTS = (
    sa.select(_p.c.name, _c.c.id, _c.c.layout)
    .join(_p, _p.c.id == _c.c.provider_id)
    .where(_live, _c.c.layout.is_not(None))
    .order_by(_p.c.name, _c.c.id)
)
#: Facts of the hosts of these layouts.
INSIDES = (
    sa.select(_p.c.id, _p.c.name, _f.c.facts)
    .join(_f, _f.c.provider_id == _p.c.id)
    .where(
        _p.c.over_committed == 0,
        _p.c.id.in_(sa.select(_c.c.provider_id).where(_live, _c.c.layout.is_not(None))),
    )
)


def _over(tx: session.Tx, nodes: Iterable[TreeNode]) -> Iterable[str]:
    flagged: dict[int, str] = {}
    for row in tx.all(USAGE):
        is_within = True
        for name, c in CORE_CLASS_COLUMNS.items():
            cap, used = getattr(row, f'cap_{c}'), getattr(row, f'used_{c}')
            foreign, total = getattr(row, f'foreign_{c}'), int(getattr(row, f'sum_{c}'))
            yield from _compare(row.name, name, bool(row.over_committed), cap, used, foreign, total)
            is_within = is_within and used + foreign <= cap
        if row.over_committed and is_within:
            flagged[row.id] = row.name
    sums: Counter[tuple[int, str]] = Counter()
    for row in tx.all(OTHER_AMOUNTS):
        for name, amount in rows.known_amounts(row.other).items():
            sums[(row.provider_id, name)] += amount * row.claims
    for row in tx.all(OTHERS):
        total = sums.pop((row.id, row.class_name), 0)
        is_flagged = bool(row.over_committed)
        yield from _compare(
            row.name, row.class_name, is_flagged, row.cap, row.used, row.foreign_use, total
        )
        if row.used + row.foreign_use > row.cap:
            flagged.pop(row.id, None)
    yield from _without_inventories(sums, nodes)
    for _, name in sorted(flagged.items()):
        yield f'{name}: flagged as over-full, and has room of every class'


def _without_inventories(
    sums: Mapping[tuple[int, str], int], nodes: Iterable[TreeNode]
) -> Iterable[str]:
    """Yield violations by claims of classes that their providers have no rows of.

    :param nodes: removed providers are reported elsewhere
    """
    if not sums:
        return
    names = {node.id: node.name for node in nodes}
    for (pid, name), total in sorted(sums.items()):
        if total and pid in names:
            yield from _compare(names[pid], name, False, 0, 0, 0, total)


def _inside(tx: session.Tx) -> Iterable[str]:
    layouts: dict[str, list[tuple[str, Layout]]] = {}
    for row in tx.all(LAYOUTS):
        layout = rows.layout(row.layout)
        if layout == ALL_OF_IT:
            yield f'{row.name}: the layout of claim {row.id} cannot be read'
        elif layout is not None:
            layouts.setdefault(row.name, []).append((row.id, layout))
    for host, host_layouts in layouts.items():
        yield from doubled(host, host_layouts)
    facts_rows = tx.all(INSIDES)
    details_of_host = details.read(tx, [row.id for row in facts_rows])
    for row in facts_rows:
        try:
            facts = details.with_details(rows.decode_facts(row.facts), details_of_host[row.id])
        except rows.UNREADABLE as e:
            yield f'{row.name}: its record cannot be read: {quoting.plain(str(e))}'
            continue
        claim_layouts = layouts.get(row.name, ())
        yield from overdrawn(row.name, facts, [layout for _, layout in claim_layouts])


def _compare(
    host: str, name: str, flagged: bool, cap: int, used: int, foreign: int, total: int
) -> Iterable[str]:
    if used + foreign > cap and not flagged:
        yield f'{host}: {name} used {used} and foreign {foreign} are more than its capacity {cap}'
    if used != total:
        yield f'{host}: {name} used is {used}, its live claims take {total}'


def _lost(tx: session.Tx, marked: Iterable[Any]) -> Iterable[str]:
    for row in tx.all(HOMELESS):
        yield f'claim {row.id} of {row.consumer}: its host {row.provider_id} is not there'
    yield from provider_audit.homeless_shares(tx)
    for row in marked:
        if row.state in LIVE:
            yield f'claim {row.id} of {row.consumer}: {row.state}, and not counted as live'
    for row in tx.all(STRANGE):
        fields = f'{row.state}, {row.lifecycle}, {row.purpose}'
        yield f'claim {row.id} of {row.consumer}: cannot be read: {fields}'
    for row in tx.all(EMPTY):
        yield f'claim {row.id} of {row.consumer}: nothing is allocated to it'
    for row in tx.all(MISSING):
        yield f'request {row.id}: placed with {row.claims} claims, of which {row.found} are there'


def _leaked(tx: session.Tx, marked: Iterable[Any]) -> Iterable[str]:
    now = tx.now
    for row in tx.all(LEAKED, before=now - GRACE_SECONDS):
        age = now - row.expires_at
        yield f'claim {row.id} of {row.consumer}: reserved, {age:.0f} s past its lease'
    for row in marked:
        if row.state not in LIVE:
            yield f'claim {row.id} of {row.consumer}: {row.state}, and counted as live'
    for row in tx.all(UNLEASED):
        reason = endless(State(row.state), Lifecycle(row.lifecycle), row.expires_at is not None)
        if reason:
            yield f'claim {row.id} of {row.consumer}: nothing ends it: {reason}'


def _barring(tx: session.Tx) -> Iterable[str]:
    for row in tx.all(BARRING):
        yield f'claim {row.id} of {row.consumer}: not reserved any more, and bars others'


def _doubled(tx: session.Tx) -> Iterable[str]:
    for row in tx.all(TWICE):
        yield f'consumer {row.consumer}: {row.count} live claims for {row.purpose}'
    for row in tx.all(MOVED_TWICE):
        yield f'consumer {row.consumer}: {row.count} open destinations of a move'
    for row in tx.all(TWICE_MADE):
        yield f'request {row.request_id}: {row.count} live claims for member {row.member}'
