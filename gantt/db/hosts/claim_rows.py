# SPDX-License-Identifier: Apache-2.0
"""Rows of claims with their allocations, read and written as the core's types."""

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
import sqlalchemy as sa

from gantt.core.claims.claim import (
    EXPIRING_LIFECYCLES,
    LIVE_STATES,
    Claim,
    FormerReservation,
    State,
)
from gantt.core.messages.layout import Layout
from gantt.core.messages.request import Lifecycle, Purpose
from gantt.core.resources.host import HostKind
from gantt.db.engine import retry, session
from gantt.db.hosts.rows import (
    DECODE_ERRORS,
    Amounts,
    ColumnReader,
    decode_amounts,
    decode_layout,
    decode_layout_fields,
    json_text,
)
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

Decode = Callable[[str], dict[str, int]]
decode_inherits: Decode = msgspec.json.Decoder(dict[str, int]).decode
_decode_former = msgspec.json.Decoder(FormerReservation).decode


def decode_former_reservation(text: str | None) -> FormerReservation | None:
    """Return a claim's former reservation, from JSON; None: it was not taken over from a plan."""
    return None if text is None else _decode_former(text)


def inherits_text(amounts: Mapping[str, int] | None) -> str | None:
    """Return amounts that a claim inherits, class -> amount, as JSON; None for none."""
    return msgspec.json.encode(amounts).decode() if amounts else None


def inherits_of(rows: Sequence[Any], decode: Decode = decode_inherits) -> dict[int, dict[str, int]]:
    """Return what a claim inherits, provider id -> class -> amount, from its rows."""
    pairs = ((row.beside_provider_id, row.beside_inherits) for row in rows)
    return {pid: decode(text) for pid, text in pairs if text is not None}


def unique_key_of(claim: Claim) -> str | None:
    """Return the key that is unique to a claim while it is reserved; None: it is not reserved.

    Two requests that claim for one consumer conflict there; other conflicts of the consumer are
    checked afterwards, see ``core.claims.commit.resolve_rivals``.
    """
    if claim.state is not State.RESERVED or claim.lifecycle is Lifecycle.API:
        return None
    return claim.consumer + unique_key_end(claim.purpose)


def unique_key_end(purpose: Purpose) -> str:
    """Return the text that follows the consumer in ``unique_key``, by the purpose of a claim."""
    if purpose is Purpose.CREATE:
        return ''
    return ' move' if purpose.is_move else f' {purpose.value}'


@contextlib.contextmanager
def unique_key_guard() -> Iterator[None]:
    """Wrap a write of claims that have, or get, keys in ``unique_key``.

    :raises RetryTransaction: another claim for the same consumer was created meanwhile
    """
    try:
        yield
    except Exception as e:
        if not any(
            name in str(retry.root_cause(e))
            for name in ('ix_claims_unique_key', 'claims.unique_key')
        ):
            raise
        raise retry.RetryTransaction('a claim for the same consumer came to be meanwhile') from e


def expires_at(claim: Claim) -> float | None:
    """Return the time from which the sweeper may end a claim, None: never."""
    if claim.state is State.RESERVED and claim.lifecycle in EXPIRING_LIFECYCLES:
        return claim.lease_until
    return None


#: Columns of ``claims`` that are no plain field of ``Claim`` -> their computation.
_COMPUTED_COLUMNS: dict[str, Callable[[Claim], Any]] = {
    'state': lambda claim: claim.state.value,
    'live': lambda claim: int(claim.state in LIVE_STATES),
    'lifecycle': lambda claim: claim.lifecycle.value,
    'purpose': lambda claim: claim.purpose.value,
    'expires_at': lambda claim: expires_at(claim),
    'group_uuid': lambda claim: claim.group,
    'layout': lambda claim: None if claim.layout is None else json_text(claim.layout),
    'former_reservation': lambda claim: (
        None if claim.former_reservation is None else json_text(claim.former_reservation)
    ),
    'adopted': lambda claim: int(claim.adopted),
    'other': lambda claim: _other(claim.allocations.get(claim.provider_id, {})),
    'unique_key': lambda claim: unique_key_of(claim),
    **{
        column: lambda claim, name=name: _of_own_host(claim, name)  # type: ignore[misc]
        for name, column in CORE_CLASS_COLUMNS.items()
    },
}
#: Columns of the amounts on its own host; null without any.
AMOUNT_COLUMNS = (*CORE_CLASS_COLUMNS.values(), 'other')
#: Every column of ``claims``, and its computation from a claim.
CLAIM_COLUMNS: dict[str, Callable[[Claim], Any]] = {
    column.name: _COMPUTED_COLUMNS.get(column.name) or operator.attrgetter(column.name)
    for column in models.claims.c
}
_READ_COLUMNS = [
    c
    for c in models.claims.c
    if c.name not in ('live', 'expires_at', 'unique_key', *AMOUNT_COLUMNS)
]
_READ_FIELDS = [*('group' if c.name == 'group_uuid' else c.name for c in _READ_COLUMNS), 'host']
#: Columns that a later release may write in a form that this one cannot read.
_COLUMN_DECODERS: dict[str, Callable[[Any], Any]] = {
    'state': State,
    'lifecycle': Lifecycle,
    'purpose': Purpose,
    'layout': decode_layout_fields,
    'former_reservation': decode_former_reservation,
}
SELECT_CLAIMS = sa.select(
    *_READ_COLUMNS,
    # None for claims on a provider that is no host.
    sa.case((models.providers.c.kind == HostKind.HOST.value, models.providers.c.name)).label(
        'host'
    ),
    *(models.claims.c[column] for column in AMOUNT_COLUMNS),
    models.claims.c.live,
).select_from(
    models.claims.outerjoin(models.providers, models.providers.c.id == models.claims.c.provider_id)
)
#: Guest of a claim for lists, groups and hints, see ``core.claims.claim.guest_of``.
GUEST_UUID = sa.func.coalesce(models.claims.c.guest, models.claims.c.consumer)
#: Not "live = 1", for which PostgreSQL might read all live claims, and no parameter, for which no
#: partial index is used.
is_live = models.claims.c.live != sa.literal_column('0')


def of_guests(guests: Sequence[str]) -> Any:
    """Return a condition for claims of guests, also where they have another consumer by now."""
    return sa.or_(models.claims.c.consumer.in_(guests), models.claims.c.guest.in_(guests))


def of_projects(kind: str) -> list[Any]:
    """Return conditions for claims of the bound projects, as the index of the database needs."""
    project = models.claims.c.project_id
    where = [project.in_(sa.bindparam('projects', expanding=True))]
    if kind == 'postgresql':
        where.append(models.ProjectPart(project).in_(sa.bindparam('parts', expanding=True)))
    return where


def bound_projects(projects: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of ``of_projects``."""
    return {
        'projects': projects,
        'parts': [project[: models.PROJECT_PART] for project in projects],
    }


def own_shares(*columns: Any, where: Sequence[Any]) -> Any:
    """Select claims' amounts on their hosts: ``columns``, provider, classes, ``other``."""
    query = sa.select(
        *columns, _claim_columns.provider_id, *(_claim_columns[name] for name in AMOUNT_COLUMNS)
    )
    return query.where(_claim_columns.vcpu.is_not(None), *where)


def other_shares(*columns: Any, where: Sequence[Any]) -> Any:
    """Select claims' amounts on providers other than their hosts, as ``own_shares`` does."""
    query = sa.select(
        *columns, _allocations.c.provider_id, *(_allocations.c[name] for name in AMOUNT_COLUMNS)
    )
    return query.join_from(
        models.claims, _allocations, _allocations.c.claim_id == _claim_columns.id
    ).where(*where)


def _of_own_host(claim: Claim, name: str) -> int | None:
    amounts = claim.allocations.get(claim.provider_id)
    return None if amounts is None else amounts.get(name, 0)


def _other(amounts: Mapping[str, int]) -> str | None:
    other = {name: amount for name, amount in amounts.items() if name not in CORE_CLASS_COLUMNS}
    return json_text(other) if other else None


def claim_values(claim: Claim) -> dict[str, Any]:
    """Return the columns of ``claims`` for a claim."""
    return {name: column_of(claim) for name, column_of in CLAIM_COLUMNS.items()}


def _claim(rows: Sequence[Any]) -> Claim:
    """Return a claim from its rows of a query of ``join_shares``."""
    values = dict(zip(_READ_FIELDS, rows[0], strict=False))
    try:
        values |= {name: decode(values[name]) for name, decode in _COLUMN_DECODERS.items()}
        return _decode_claim(values, decode_shares(rows), inherits_of(rows))
    except DECODE_ERRORS:
        return _as_far_as_readable(rows)


def _as_far_as_readable(rows: Sequence[Any]) -> Claim:
    """Return the readable part of a claim, with the reasons why the rest cannot be read.

    Its ``live`` mark decides whether it is live, and its columns give its amounts.
    """
    first, reader = rows[0], ColumnReader()
    values = dict(zip(_READ_FIELDS, first, strict=False))

    def of_classes(text: str) -> dict[str, int]:
        return cast('dict[str, int]', reader.read('other', decode_amounts, text, {}))

    defaults = {
        'state': State.CONFIRMED if first.live else State.RELEASED,
        'lifecycle': Lifecycle.HOST,
        'purpose': Purpose.CREATE,
        'layout': None,
        'former_reservation': None,
    }
    for name, decode in _COLUMN_DECODERS.items():
        values[name] = reader.read(name, decode, values[name], defaults[name])
    allocations, inherits = decode_shares(rows, of_classes), inherits_of(rows, of_classes)
    return _decode_claim({**values, 'problem': str(reader)}, allocations, inherits)


def _decode_claim(values: dict[str, Any], allocations: Amounts, inherits: Amounts) -> Claim:
    values['adopted'] = bool(values['adopted'])
    values['host'] = values['host'] or ''
    return Claim(allocations=allocations, inherits=inherits, **values)


def repair_amounts(tx: session.Tx, claim: Claim) -> None:
    """Store a claim as it was read, so that all can read it; its providers are locked.

    Unreadable columns are lost, so only claims that are about to end are rewritten.
    """
    statement = models.claims.update().where(models.claims.c.id == claim.id)
    tx.run(
        statement.values(
            {name: CLAIM_COLUMNS[name](claim) for name in (*_COLUMN_DECODERS, 'other')}
        )
    )
    for values in allocation_values(claim):
        keys = (
            _allocations.c.claim_id == claim.id,
            _allocations.c.provider_id == values['provider_id'],
        )
        changed = {name: values[name] for name in ('other', 'inherits')}
        tx.run(_allocations.update().where(*keys).values(changed))


def allocation_values(claim: Claim) -> list[dict[str, Any]]:
    """Return the rows of ``allocations`` for a claim: of other providers than its host."""
    return [
        {'claim_id': claim.id, 'provider_id': provider_id, **amount_values(amounts)}
        | {'inherits': inherits_text(claim.inherits.get(provider_id))}
        for provider_id, amounts in sorted(claim.allocations.items())
        if provider_id != claim.provider_id
    ]


def amount_values(amounts: Mapping[str, int]) -> dict[str, Any]:
    """Return the columns of amounts: core classes as columns, the rest as JSON."""
    values: dict[str, Any] = {
        column: amounts.get(name, 0) for name, column in CORE_CLASS_COLUMNS.items()
    }
    return {**values, 'other': _other(amounts)}


def amounts(row: Any, prefix: str = '', decode: Decode = decode_amounts) -> dict[str, int]:
    """Return the amounts of one row of ``allocations``, or of ``claims``."""
    by_class = {
        name: amount
        for name, column in CORE_CLASS_COLUMNS.items()
        if (amount := getattr(row, prefix + column))
    }
    other = getattr(row, f'{prefix}other')
    if other is not None:
        by_class.update(decode(other))
    return by_class


# -- claims with their allocations ------------------------------------------------------
_ids: Any = sa.bindparam('ids', expanding=True)
_allocations = models.allocations
#: Columns of a claim's amounts on other providers than its host, which :func:`decode_shares`
#: reads.
SHARE_COLUMNS = [
    column.label(f'beside_{column.name}') for column in _allocations.c if column.name != 'claim_id'
]
_claim_columns = models.claims.c
SELECT_LAYOUTS = sa.select(
    _claim_columns.provider_id, _claim_columns.id, _claim_columns.layout
).where(
    _claim_columns.provider_id.in_(_ids),
    _claim_columns.live == 1,
    _claim_columns.layout.is_not(None),
)


def load_claims(
    tx: session.Tx,
    *,
    ids: Sequence[str] | None = None,
    request_ids: Sequence[str] | None = None,
    provider_ids: Sequence[int] | None = None,
    consumers: Sequence[str] | None = None,
    live: bool = False,
    where: Sequence[Any] = (),
    limit: int | None = None,
) -> list[Claim]:
    """Return claims with their allocations, ascending by id."""
    id_lists = [ids, request_ids, provider_ids, consumers]
    parameters = {
        name: list(values)
        for name, values in zip(_FILTER_COLUMNS, id_lists, strict=True)
        if values is not None
    }
    query, statement = _claims_among(tuple(parameters), live)
    if where or limit is not None:
        query = query.where(*where)
        statement = join_shares(
            query if limit is None else query.order_by(_claim_columns.id).limit(limit)
        )
    return whole_claims(tx.all(statement, **parameters))


def load_claims_of(tx: session.Tx, guests: Iterable[str], *where: Any) -> Iterator[Claim]:
    """Yield the claims of guests, who may be many."""
    for part in session.in_parts(sorted(guests)):
        yield from load_claims(tx, where=[of_guests(part), *where])


_FILTER_COLUMNS = ('id', 'request_id', 'provider_id', 'consumer')


@functools.cache
def _claims_among(columns: tuple[str, ...], live: bool) -> tuple[Any, Any]:
    """Return ``SELECT_CLAIMS`` by columns, without and with shares; cached, as building is slow."""
    query = SELECT_CLAIMS.where(
        *(_claim_columns[name].in_(sa.bindparam(name, expanding=True)) for name in columns)
    )
    if live:
        # For a few consumers not "= 1", for which PostgreSQL might read all live claims.
        query = query.where(
            _claim_columns.live != 0 if 'consumer' in columns else _claim_columns.live == 1
        )
    return query, join_shares(query)


def join_shares(query: Any) -> Any:
    """Return a query of ``SELECT_CLAIMS`` with all their amounts, ascending by id."""
    claims = query.subquery('of')
    source = claims.outerjoin(_allocations, _allocations.c.claim_id == claims.c.id)
    return sa.select(claims, *SHARE_COLUMNS).select_from(source).order_by(claims.c.id)


def whole_claims(rows: Sequence[Any]) -> list[Claim]:
    """Return the claims in the rows of a query of ``join_shares``."""
    by_claim = itertools.groupby(rows, operator.attrgetter('id'))
    return [_claim(list(rows_of_claim)) for _, rows_of_claim in by_claim]


def decode_shares(rows: Sequence[Any], decode: Decode = decode_amounts) -> Amounts:
    """Return a claim's amounts by provider from its rows: a row per further provider, or one."""
    first = rows[0]
    by_provider = {} if first.vcpu is None else {first.provider_id: amounts(first, '', decode)}
    for row in rows:
        if row.beside_provider_id is not None:
            by_provider[row.beside_provider_id] = amounts(row, 'beside_', decode)
    return by_provider


def layouts_on(tx: session.Tx, hosts: Iterable[int]) -> dict[int, dict[str, Layout]]:
    """Return host -> claim -> layout, of the live claims; every host is a key."""
    layouts: dict[int, dict[str, Layout]] = {pid: {} for pid in sorted(hosts)}
    for row in tx.all(SELECT_LAYOUTS, ids=list(layouts)) if layouts else ():
        claim_layout = decode_layout(row.layout)
        if claim_layout is not None:
            layouts[row.provider_id][row.id] = claim_layout
    return layouts


_consumer_ids: Any = sa.bindparam('ids', expanding=True)
#: Ordered so that the valid owner comes last: that of live claims, else the last one.  A write of
#: allocations may have given the consumer to another project, which rewrites no ended claims.
SELECT_OWNERS = (
    sa.select(
        *(models.claims.c[name] for name in ('consumer', 'project_id', 'user_id', 'consumer_type'))
    )
    .where(models.claims.c.consumer.in_(_consumer_ids))
    .order_by(*(models.claims.c[name] for name in ('live', 'updated_at', 'created_at', 'id')))
)


def owners(tx: session.Tx, consumers: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return project, user and type of the consumers with a stored claim, live or ended."""
    owner_rows = tx.all(SELECT_OWNERS, ids=sorted(set(consumers))) if consumers else ()
    return {
        row.consumer: {
            'project_id': row.project_id,
            'user_id': row.user_id,
            'consumer_type': row.consumer_type,
        }
        for row in owner_rows
    }


def with_stored_owners(tx: session.Tx, claims: Sequence[Claim]) -> list[Claim]:
    """Return new claims with the owners of the stored claims of their consumers.

    A consumer stays its project's while a claim of it is stored.
    """
    stored_owners = owners(tx, [claim.consumer for claim in claims])
    return [
        msgspec.structs.replace(claim, **stored_owners.get(claim.consumer, {})) for claim in claims
    ]


def insert_claims(tx: session.Tx, claims: Sequence[Claim]) -> None:
    """Insert the rows of new claims.

    :raises RetryTransaction: another transaction has created a claim that excludes one of these
    """
    # Transactions that insert for the same consumers wait for each other in this order.
    claims = sorted(claims, key=lambda claim: (claim.consumer, claim.id))
    with unique_key_guard():
        tx.run_many(models.claims.insert(), [claim_values(claim) for claim in claims])
    insert_shares(tx, claims)


def insert_shares(tx: session.Tx, claims: Iterable[Claim]) -> None:
    """Insert the rows of ``allocations`` of claims."""
    values = [share for claim in claims for share in allocation_values(claim)]
    tx.run_many(models.allocations.insert(), values)
