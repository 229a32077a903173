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

from gantt.core.claims import reservations
from gantt.core.claims.claim import LIVE_STATES, State, why_never_ended
from gantt.core.messages import quoting
from gantt.core.messages.layout import UNREADABLE_LAYOUT, Layout
from gantt.core.messages.request import Lifecycle, Purpose
from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.core.resources.provider import TreeNode
from gantt.core.topology.fit import doubled_layouts, over_allocated_parts
from gantt.db.engine import session
from gantt.db.hosts import claim_rows, details, rows
from gantt.db.hosts.providers import SHOWN_NAME
from gantt.db.records import provider_audit
from gantt.db.records.reservation_audit import AuditedReservations
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

_providers = models.providers
_claims = models.claims
_allocations = models.allocations
_inventories = models.inventories
_requests = models.requests
_provider_facts = models.provider_facts

#: Lines of one kind: the first ones suffice.
LINES_MAX = 200
#: A sweep and one report after the lease.
GRACE_SECONDS = 80.0

_live = _claims.c.live == 1
_classes = list(CORE_CLASS_COLUMNS.values())
_claimed_amounts = sa.union_all(
    claim_rows.own_shares(where=[_live]), claim_rows.other_shares(where=[_live])
).subquery('taken')
_claimed_sums = (
    sa.select(
        _claimed_amounts.c.provider_id,
        *[sa.func.coalesce(sa.func.sum(_claimed_amounts.c[c]), 0).label(c) for c in _classes],
    )
    .group_by(_claimed_amounts.c.provider_id)
    .subquery()
)
SELECT_USAGE = (
    sa.select(
        _providers.c.id,
        SHOWN_NAME,
        _providers.c.over_committed,
        *[_providers.c[f'cap_{c}'] for c in CORE_CLASS_COLUMNS.values()],
        *[_providers.c[f'used_{c}'] for c in CORE_CLASS_COLUMNS.values()],
        *[_providers.c[f'foreign_{c}'] for c in CORE_CLASS_COLUMNS.values()],
        *[
            sa.func.coalesce(_claimed_sums.c[c], 0).label(f'sum_{c}')
            for c in CORE_CLASS_COLUMNS.values()
        ],
    )
    .select_from(
        _providers.outerjoin(_claimed_sums, _claimed_sums.c.provider_id == _providers.c.id)
    )
    .where(
        sa.or_(
            *[
                _providers.c[f'used_{c}'] != sa.func.coalesce(_claimed_sums.c[c], 0)
                for c in CORE_CLASS_COLUMNS.values()
            ],
            *[
                sa.and_(
                    _providers.c[f'used_{c}'] + _providers.c[f'foreign_{c}']
                    > _providers.c[f'cap_{c}'],
                    _providers.c.over_committed == 0,
                )
                for c in CORE_CLASS_COLUMNS.values()
            ],
            # Over-full by another class, or by none.
            sa.and_(
                _providers.c.over_committed != 0,
                *[
                    _providers.c[f'used_{c}'] + _providers.c[f'foreign_{c}']
                    <= _providers.c[f'cap_{c}']
                    for c in CORE_CLASS_COLUMNS.values()
                ],
            ),
        )
    )
)
SELECT_OTHER_USAGE = (
    sa.select(
        _providers.c.id,
        SHOWN_NAME,
        _providers.c.over_committed,
        models.resource_classes.c.name.label('class_name'),
        _inventories.c.cap,
        _inventories.c.used,
        _inventories.c.foreign_use,
    )
    .select_from(
        _inventories.join(_providers, _providers.c.id == _inventories.c.provider_id).join(
            models.resource_classes, models.resource_classes.c.id == _inventories.c.class_id
        )
    )
    .where(models.resource_classes.c.name.not_in(CORE_CLASSES))
)
#: Mostly many claims take the same amounts of a provider.
SELECT_OTHER_AMOUNTS = (
    sa.select(
        _claimed_amounts.c.provider_id, _claimed_amounts.c.other, sa.func.count().label('claims')
    )
    .where(_claimed_amounts.c.other.is_not(None))
    .group_by(_claimed_amounts.c.provider_id, _claimed_amounts.c.other)
)
SELECT_CLAIMS_WITHOUT_PROVIDER = (
    sa.select(_claims.c.id, _claims.c.consumer, _claims.c.provider_id)
    .select_from(_claims.outerjoin(_providers, _providers.c.id == _claims.c.provider_id))
    .where(_live, _providers.c.id.is_(None))
)
#: Values of a newer release, or damaged ones: readers of such a claim fail.
SELECT_CLAIMS_WITH_UNKNOWN_VALUES = sa.select(
    _claims.c.id, _claims.c.consumer, _claims.c.state, _claims.c.lifecycle, _claims.c.purpose
).where(
    _live,
    sa.or_(
        _claims.c.state.not_in([state.value for state in State]),
        _claims.c.lifecycle.not_in([lifecycle.value for lifecycle in Lifecycle]),
        _claims.c.purpose.not_in([purpose.value for purpose in Purpose]),
    ),
)
SELECT_CLAIMS_WITHOUT_AMOUNTS = sa.select(_claims.c.id, _claims.c.consumer).where(
    _live,
    _claims.c.adopted == 0,
    _claims.c.vcpu.is_(None),
    ~sa.exists().where(_allocations.c.claim_id == _claims.c.id),
)
#: Claims that are not reserved any more, and still block others.
SELECT_BLOCKING_UNIQUE_KEYS = sa.select(_claims.c.id, _claims.c.consumer).where(
    _claims.c.unique_key.is_not(None), _claims.c.state != State.RESERVED.value
)
#: Claims whose state contradicts the mark by which they are counted.
SELECT_CLAIMS_WITH_WRONG_LIVE_FLAG = (
    sa.select(_claims.c.id, _claims.c.consumer, _claims.c.state)
    .where(
        sa.or_(
            sa.and_(
                _claims.c.live != 1, _claims.c.state.in_([state.value for state in LIVE_STATES])
            ),
            sa.and_(
                _claims.c.live != 0,
                _claims.c.state.in_([state.value for state in State if state not in LIVE_STATES]),
            ),
        )
    )
    .order_by(_claims.c.id)
)
_claims_by_attempt = (
    sa.select(_claims.c.request_id, _claims.c.attempt, sa.func.count().label('count'))
    .group_by(_claims.c.request_id, _claims.c.attempt)
    .subquery()
)
SELECT_REQUESTS_WITH_MISSING_CLAIMS = (
    sa.select(
        _requests.c.id,
        _requests.c.claims,
        sa.func.coalesce(_claims_by_attempt.c.count, 0).label('found'),
    )
    .select_from(
        _requests.outerjoin(
            _claims_by_attempt,
            sa.and_(
                _claims_by_attempt.c.request_id == _requests.c.id,
                _claims_by_attempt.c.attempt == _requests.c.attempt,
            ),
        )
    )
    .where(
        _requests.c.state == 'placed',
        sa.func.coalesce(_claims_by_attempt.c.count, 0) < _requests.c.claims,
    )
)
SELECT_LEAKED_CLAIMS = (
    sa.select(_claims.c.id, _claims.c.consumer, _claims.c.expires_at)
    .where(_claims.c.expires_at < sa.bindparam('before'))
    .order_by(_claims.c.expires_at)
)
#: Claims that the sweeper does not end, and no host has: few, see ``claim.why_endless``.
SELECT_CLAIMS_WITHOUT_LEASE = sa.select(
    _claims.c.id, _claims.c.consumer, _claims.c.state, _claims.c.lifecycle, _claims.c.expires_at
).where(
    _live,
    _claims.c.lifecycle.in_(
        [lifecycle.value for lifecycle in Lifecycle if lifecycle is not Lifecycle.API]
    ),
    _claims.c.state.in_([state.value for state in State]),
    sa.or_(
        sa.and_(_claims.c.state == State.RESERVED.value, _claims.c.expires_at.is_(None)),
        sa.and_(
            _claims.c.state != State.RESERVED.value,
            _claims.c.lifecycle.not_in([Lifecycle.HOST.value, Lifecycle.CALLER.value]),
        ),
    ),
)
_move_purposes = [purpose.value for purpose in Purpose if purpose.is_move]
#: Guests that a host was found running without a request are no violation of ours.
_not_adopted = sa.and_(_live, _claims.c.adopted == 0, _claims.c.lifecycle != Lifecycle.API.value)
SELECT_CONSUMERS_CLAIMED_TWICE = (
    sa.select(_claims.c.consumer, _claims.c.purpose, sa.func.count().label('count'))
    .where(_not_adopted, _claims.c.purpose.not_in(_move_purposes))
    .group_by(_claims.c.consumer, _claims.c.purpose)
    .having(sa.func.count() > 1)
)
#: A move has a source and a destination, so only its open destinations count.
SELECT_CONSUMERS_MOVED_TWICE = (
    sa.select(_claims.c.consumer, sa.func.count().label('count'))
    .where(
        _not_adopted, _claims.c.purpose.in_(_move_purposes), _claims.c.state == State.RESERVED.value
    )
    .group_by(_claims.c.consumer)
    .having(sa.func.count() > 1)
)
SELECT_MEMBERS_CLAIMED_TWICE = (
    sa.select(_claims.c.request_id, _claims.c.member, sa.func.count().label('count'))
    .where(_live, _claims.c.request_id.is_not(None))
    .group_by(_claims.c.request_id, _claims.c.member)
    .having(sa.func.count() > 1)
)


def violations(tx: session.Tx) -> dict[str, list[str]]:
    """Return violations by promise; empty lists if there are none."""
    tx.snapshot()
    nodes, marked = provider_audit.nodes(tx), tx.all(SELECT_CLAIMS_WITH_WRONG_LIVE_FLAG)
    places = AuditedReservations(tx)
    return {
        'over_commit': _first(
            itertools.chain(_over_committed_lines(tx, nodes), _layout_problems(tx))
        ),
        'lost': _first(
            itertools.chain(
                _lost_members(tx, marked),
                provider_audit.wrong_heirs(tx, nodes),
                places.unreadable(),
                reservations.lost_members(places.found),
            )
        ),
        'leaked': _first(
            itertools.chain(
                _leaked_reservations(tx, marked),
                reservations.leaked_reservations(places.found, places.leases),
            )
        ),
        'doubled': _first(itertools.chain(_doubled_members(tx), places.doubled())),
        'providers': _first(provider_audit.row_contradictions(tx, nodes)),
    }


def _first(lines: Iterable[str]) -> list[str]:
    all_lines = list(lines)
    if len(all_lines) > LINES_MAX:
        return [*all_lines[:LINES_MAX], f'and {len(all_lines) - LINES_MAX} more']
    return all_lines


#: Layouts of live claims, by host.
SELECT_LAYOUTS = (
    sa.select(_providers.c.name, _claims.c.id, _claims.c.layout)
    .join(_providers, _providers.c.id == _claims.c.provider_id)
    .where(_live, _claims.c.layout.is_not(None))
    .order_by(_providers.c.name, _claims.c.id)
)
#: Facts of the hosts of these layouts.
SELECT_TOPOLOGY_FACTS = (
    sa.select(_providers.c.id, _providers.c.name, _provider_facts.c.facts)
    .join(_provider_facts, _provider_facts.c.provider_id == _providers.c.id)
    .where(
        _providers.c.over_committed == 0,
        _providers.c.id.in_(
            sa.select(_claims.c.provider_id).where(_live, _claims.c.layout.is_not(None))
        ),
    )
)


def _over_committed_lines(tx: session.Tx, nodes: Iterable[TreeNode]) -> Iterable[str]:
    flagged: dict[int, str] = {}
    for row in tx.all(SELECT_USAGE):
        is_within = True
        for name, c in CORE_CLASS_COLUMNS.items():
            cap, used = getattr(row, f'cap_{c}'), getattr(row, f'used_{c}')
            foreign, total = getattr(row, f'foreign_{c}'), int(getattr(row, f'sum_{c}'))
            yield from _compare(row.name, name, bool(row.over_committed), cap, used, foreign, total)
            is_within = is_within and used + foreign <= cap
        if row.over_committed and is_within:
            flagged[row.id] = row.name
    sums: Counter[tuple[int, str]] = Counter()
    for row in tx.all(SELECT_OTHER_AMOUNTS):
        for name, amount in rows.readable_amounts(row.other).items():
            sums[(row.provider_id, name)] += amount * row.claims
    for row in tx.all(SELECT_OTHER_USAGE):
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


def _layout_problems(tx: session.Tx) -> Iterable[str]:
    layouts: dict[str, list[tuple[str, Layout]]] = {}
    for row in tx.all(SELECT_LAYOUTS):
        layout = rows.decode_layout(row.layout)
        if layout == UNREADABLE_LAYOUT:
            yield f'{row.name}: the layout of claim {row.id} cannot be read'
        elif layout is not None:
            layouts.setdefault(row.name, []).append((row.id, layout))
    for host, host_layouts in layouts.items():
        yield from doubled_layouts(host, host_layouts)
    facts_rows = tx.all(SELECT_TOPOLOGY_FACTS)
    details_of_host = details.read(tx, [row.id for row in facts_rows])
    for row in facts_rows:
        try:
            facts = details.with_details(rows.decode_facts(row.facts), details_of_host[row.id])
        except rows.DECODE_ERRORS as e:
            yield f'{row.name}: its record cannot be read: {quoting.plain_text(str(e))}'
            continue
        claim_layouts = layouts.get(row.name, ())
        yield from over_allocated_parts(row.name, facts, [layout for _, layout in claim_layouts])


def _compare(
    host: str, name: str, flagged: bool, cap: int, used: int, foreign: int, total: int
) -> Iterable[str]:
    if used + foreign > cap and not flagged:
        yield f'{host}: {name} used {used} and foreign {foreign} are more than its capacity {cap}'
    if used != total:
        yield f'{host}: {name} used is {used}, its live claims take {total}'


def _lost_members(tx: session.Tx, marked: Iterable[Any]) -> Iterable[str]:
    for row in tx.all(SELECT_CLAIMS_WITHOUT_PROVIDER):
        yield f'claim {row.id} of {row.consumer}: its host {row.provider_id} is not there'
    yield from provider_audit.homeless_shares(tx)
    for row in marked:
        if row.state in LIVE_STATES:
            yield f'claim {row.id} of {row.consumer}: {row.state}, and not counted as live'
    for row in tx.all(SELECT_CLAIMS_WITH_UNKNOWN_VALUES):
        fields = f'{row.state}, {row.lifecycle}, {row.purpose}'
        yield f'claim {row.id} of {row.consumer}: cannot be read: {fields}'
    for row in tx.all(SELECT_CLAIMS_WITHOUT_AMOUNTS):
        yield f'claim {row.id} of {row.consumer}: nothing is allocated to it'
    for row in tx.all(SELECT_REQUESTS_WITH_MISSING_CLAIMS):
        yield f'request {row.id}: placed with {row.claims} claims, of which {row.found} are there'


def _leaked_reservations(tx: session.Tx, marked: Iterable[Any]) -> Iterable[str]:
    now = tx.now
    for row in tx.all(SELECT_LEAKED_CLAIMS, before=now - GRACE_SECONDS):
        age = now - row.expires_at
        yield f'claim {row.id} of {row.consumer}: reserved, {age:.0f} s past its lease'
    for row in marked:
        if row.state not in LIVE_STATES:
            yield f'claim {row.id} of {row.consumer}: {row.state}, and counted as live'
    for row in tx.all(SELECT_CLAIMS_WITHOUT_LEASE):
        reason = why_never_ended(
            State(row.state), Lifecycle(row.lifecycle), row.expires_at is not None
        )
        if reason:
            yield f'claim {row.id} of {row.consumer}: nothing ends it: {reason}'
    for row in tx.all(SELECT_BLOCKING_UNIQUE_KEYS):
        yield f'claim {row.id} of {row.consumer}: not reserved any more, and blocks others'


def _doubled_members(tx: session.Tx) -> Iterable[str]:
    for row in tx.all(SELECT_CONSUMERS_CLAIMED_TWICE):
        yield f'consumer {row.consumer}: {row.count} live claims for {row.purpose}'
    for row in tx.all(SELECT_CONSUMERS_MOVED_TWICE):
        yield f'consumer {row.consumer}: {row.count} open destinations of a move'
    for row in tx.all(SELECT_MEMBERS_CLAIMED_TWICE):
        yield f'request {row.request_id}: {row.count} live claims for member {row.member}'
