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

from gantt.core.claims.claim import EXPIRES, LIVE, Claim, PlannedFor, State
from gantt.core.messages.layout import Layout
from gantt.core.messages.request import Lifecycle, Purpose
from gantt.core.resources.host import HostKind
from gantt.db.engine import retry, session
from gantt.db.hosts.rows import (
    UNREADABLE,
    Amounts,
    ColumnReader,
    body,
    decode_amounts,
    layout,
    text,
)
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

Decode = Callable[[str], dict[str, int]]
decode_inherits: Decode = msgspec.json.Decoder(dict[str, int]).decode
_decode_planned = msgspec.json.Decoder(PlannedFor).decode


def decode_planned(text: str | None) -> PlannedFor | None:
    """Return the plan that a place returns to, from JSON; None: no create has the claim."""
    return None if text is None else _decode_planned(text)


def inherits_text(amounts: Mapping[str, int] | None) -> str | None:
    """Return amounts that a claim inherits, class -> amount, as JSON; None for none."""
    return msgspec.json.encode(amounts).decode() if amounts else None


def inherits_of(rows: Sequence[Any], decode: Decode = decode_inherits) -> dict[int, dict[str, int]]:
    """Return what a claim inherits, provider id -> class -> amount, from its rows."""
    pairs = ((row.beside_provider_id, row.beside_inherits) for row in rows)
    return {pid: decode(text) for pid, text in pairs if text is not None}


def unique_key_of(claim: Claim) -> str | None:
    """Return the key that no other claim may have while this one is reserved; None: not reserved.

    Two requests that claim for one consumer conflict there; other conflicts of the consumer are
    checked afterwards, see ``core.claims.commit.judge_rivals``.
    """
    if claim.state is not State.RESERVED or claim.lifecycle is Lifecycle.API:
        return None
    return claim.consumer + unique_key_end(claim.purpose)


def unique_key_end(purpose: Purpose) -> str:
    """Return the suffix of the consumer in ``unique_key``."""
    if purpose is Purpose.CREATE:
        return ''
    return ' move' if purpose.is_move else f' {purpose.value}'


@contextlib.contextmanager
def unique_key_guard() -> Iterator[None]:
    """Wrap a write of claims that have, or get, keys in ``unique_key``.

    :raises Again: another claim for the same consumer was created meanwhile
    """
    try:
        yield
    except Exception as e:
        if not any(
            name in str(retry.root_of(e)) for name in ('ix_claims_unique_key', 'claims.unique_key')
        ):
            raise
        raise retry.Again('a claim for the same consumer came to be meanwhile') from e


def expires_at(claim: Claim) -> float | None:
    """Return the time from which the sweeper may end a claim, None: never."""
    if claim.state is State.RESERVED and claim.lifecycle in EXPIRES:
        return claim.lease_until
    return None


#: Columns of ``claims`` that are no plain field of ``Claim`` -> their computation.
_MADE: dict[str, Callable[[Claim], Any]] = {
    'state': lambda claim: claim.state.value,
    'live': lambda claim: int(claim.state in LIVE),
    'lifecycle': lambda claim: claim.lifecycle.value,
    'purpose': lambda claim: claim.purpose.value,
    'expires_at': lambda claim: expires_at(claim),
    'group_uuid': lambda claim: claim.group,
    'layout': lambda claim: None if claim.layout is None else text(claim.layout),
    'planned': lambda claim: None if claim.planned is None else text(claim.planned),
    'adopted': lambda claim: int(claim.adopted),
    'other': lambda claim: _other(claim.allocations.get(claim.provider_id, {})),
    'unique_key': lambda claim: unique_key_of(claim),
    **{
        column: lambda claim, name=name: _of_own_host(claim, name)  # type: ignore[misc]
        for name, column in CORE_CLASS_COLUMNS.items()
    },
}
#: Columns of the amounts on its own host; null without any.
AMOUNTS = (*CORE_CLASS_COLUMNS.values(), 'other')
#: Every column of ``claims``, and its computation from a claim.
CLAIM: dict[str, Callable[[Claim], Any]] = {
    column.name: _MADE.get(column.name) or operator.attrgetter(column.name)
    for column in models.claims.c
}
_READ = [c for c in models.claims.c if c.name not in ('live', 'expires_at', 'unique_key', *AMOUNTS)]
_FIELDS = [*('group' if c.name == 'group_uuid' else c.name for c in _READ), 'host']
#: Columns that a later release may write in a form that this one cannot read.
_DECODED: dict[str, Callable[[Any], Any]] = {
    'state': State,
    'lifecycle': Lifecycle,
    'purpose': Purpose,
    'layout': body,
    'planned': decode_planned,
}
CLAIMS = sa.select(
    *_READ,
    # None for claims on a provider that is no host.
    sa.case((models.providers.c.kind == HostKind.HOST.value, models.providers.c.name)).label(
        'host'
    ),
    *(models.claims.c[column] for column in AMOUNTS),
    models.claims.c.live,
).select_from(
    models.claims.outerjoin(models.providers, models.providers.c.id == models.claims.c.provider_id)
)
#: Guest of a claim for lists, groups and hints, see ``core.claims.claim.guest_of``.
GUEST = sa.func.coalesce(models.claims.c.guest, models.claims.c.consumer)
#: Not "live = 1", for which PostgreSQL might read all live claims, and no parameter, for which no
#: partial index is used.
is_live = models.claims.c.live != sa.literal_column('0')


def of_guests(guests: Sequence[str]) -> Any:
    """Return a condition for claims of guests, with claims of another consumer by now."""
    return sa.or_(models.claims.c.consumer.in_(guests), models.claims.c.guest.in_(guests))


def of_projects(kind: str) -> list[Any]:
    """Return conditions for claims of some projects, by the index of a kind of database."""
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
    query = sa.select(*columns, _c.provider_id, *(_c[name] for name in AMOUNTS))
    return query.where(_c.vcpu.is_not(None), *where)


def other_shares(*columns: Any, where: Sequence[Any]) -> Any:
    """Select claims' amounts on other providers, likewise."""
    query = sa.select(*columns, _a.c.provider_id, *(_a.c[name] for name in AMOUNTS))
    return query.join_from(models.claims, _a, _a.c.claim_id == _c.id).where(*where)


def _of_own_host(claim: Claim, name: str) -> int | None:
    amounts = claim.allocations.get(claim.provider_id)
    return None if amounts is None else amounts.get(name, 0)


def _other(amounts: Mapping[str, int]) -> str | None:
    other = {name: amount for name, amount in amounts.items() if name not in CORE_CLASS_COLUMNS}
    return text(other) if other else None


def claim_values(claim: Claim) -> dict[str, Any]:
    """Return the columns of ``claims`` for a claim."""
    return {name: column_of(claim) for name, column_of in CLAIM.items()}


def _claim(rows: Sequence[Any]) -> Claim:
    """Return a claim from its rows of a query of ``with_shares``."""
    values = dict(zip(_FIELDS, rows[0], strict=False))
    try:
        values |= {name: decode(values[name]) for name, decode in _DECODED.items()}
        return _of(values, taken(rows), inherits_of(rows))
    except UNREADABLE:
        return _as_far_as_readable(rows)


def _as_far_as_readable(rows: Sequence[Any]) -> Claim:
    """Return a claim with the reasons why the rest of it is not known.

    Its ``live`` mark decides whether it is live, and its columns give its amounts.
    """
    first, reader = rows[0], ColumnReader()
    values = dict(zip(_FIELDS, first, strict=False))

    def of_classes(text: str) -> dict[str, int]:
        return cast('dict[str, int]', reader.read('other', decode_amounts, text, {}))

    defaults = {
        'state': State.CONFIRMED if first.live else State.RELEASED,
        'lifecycle': Lifecycle.HOST,
        'purpose': Purpose.CREATE,
        'layout': None,
        'planned': None,
    }
    for name, decode in _DECODED.items():
        values[name] = reader.read(name, decode, values[name], defaults[name])
    allocations, inherits = taken(rows, of_classes), inherits_of(rows, of_classes)
    return _of({**values, 'problem': str(reader)}, allocations, inherits)


def _of(values: dict[str, Any], allocations: Amounts, inherits: Amounts) -> Claim:
    values['adopted'] = bool(values['adopted'])
    values['host'] = values['host'] or ''
    return Claim(allocations=allocations, inherits=inherits, **values)


def put_right(tx: session.Tx, claim: Claim) -> None:
    """Store a claim as it was read, so that all can read it; its providers are locked.

    Unreadable columns are lost, so only claims that are about to end are rewritten.
    """
    statement = models.claims.update().where(models.claims.c.id == claim.id)
    tx.run(statement.values({name: CLAIM[name](claim) for name in (*_DECODED, 'other')}))
    for values in allocation_values(claim):
        keys = _a.c.claim_id == claim.id, _a.c.provider_id == values['provider_id']
        changed = {name: values[name] for name in ('other', 'inherits')}
        tx.run(_a.update().where(*keys).values(changed))


def allocation_values(claim: Claim) -> list[dict[str, Any]]:
    """Return the rows of ``allocations`` for a claim: of other providers than its host."""
    return [
        {'claim_id': claim.id, 'provider_id': provider_id, **amount_values(amounts)}
        | {'inherits': inherits_text(claim.inherits.get(provider_id))}
        for provider_id, amounts in sorted(claim.allocations.items())
        if provider_id != claim.provider_id
    ]


def amount_values(amounts: Mapping[str, int]) -> dict[str, Any]:
    """Return the columns of amounts: hot classes as columns, the rest as JSON."""
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
_a = models.allocations
#: Columns of a claim's amounts beside its host, as :func:`taken` reads them.
SHARE = [column.label(f'beside_{column.name}') for column in _a.c if column.name != 'claim_id']
_c = models.claims.c
LAYOUTS = sa.select(_c.provider_id, _c.id, _c.layout).where(
    _c.provider_id.in_(_ids), _c.live == 1, _c.layout.is_not(None)
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
        for name, values in zip(_AMONG, id_lists, strict=True)
        if values is not None
    }
    query, statement = _claims_among(tuple(parameters), live)
    if where or limit is not None:
        query = query.where(*where)
        statement = with_shares(query if limit is None else query.order_by(_c.id).limit(limit))
    return whole_claims(tx.all(statement, **parameters))


_AMONG = ('id', 'request_id', 'provider_id', 'consumer')


@functools.cache
def _claims_among(columns: tuple[str, ...], live: bool) -> tuple[Any, Any]:
    """Return ``CLAIMS`` by columns, without and with shares; cached, as building is slow."""
    query = CLAIMS.where(*(_c[name].in_(sa.bindparam(name, expanding=True)) for name in columns))
    if live:
        # For a few consumers not "= 1", for which PostgreSQL might read all live claims.
        query = query.where(_c.live != 0 if 'consumer' in columns else _c.live == 1)
    return query, with_shares(query)


def with_shares(query: Any) -> Any:
    """Return a query of ``CLAIMS`` with all their amounts, ascending by id."""
    claims = query.subquery('of')
    source = claims.outerjoin(_a, _a.c.claim_id == claims.c.id)
    return sa.select(claims, *SHARE).select_from(source).order_by(claims.c.id)


def whole_claims(found: Sequence[Any]) -> list[Claim]:
    """Return the claims in the rows of such a query."""
    by_claim = itertools.groupby(found, operator.attrgetter('id'))
    return [_claim(list(rows_of_claim)) for _, rows_of_claim in by_claim]


def taken(rows: Sequence[Any], decode: Decode = decode_amounts) -> Amounts:
    """Return the amounts of a claim, from its rows: one for each other provider, or one alone."""
    first = rows[0]
    by_provider = {} if first.vcpu is None else {first.provider_id: amounts(first, '', decode)}
    for row in rows:
        if row.beside_provider_id is not None:
            by_provider[row.beside_provider_id] = amounts(row, 'beside_', decode)
    return by_provider


def layouts_on(tx: session.Tx, hosts: Iterable[int]) -> dict[int, dict[str, Layout]]:
    """Return host -> claim -> layout, of the live claims; every host is a key."""
    layouts: dict[int, dict[str, Layout]] = {pid: {} for pid in sorted(hosts)}
    for row in tx.all(LAYOUTS, ids=list(layouts)) if layouts else ():
        claim_layout = layout(row.layout)
        if claim_layout is not None:
            layouts[row.provider_id][row.id] = claim_layout
    return layouts


_consumer_ids: Any = sa.bindparam('ids', expanding=True)
#: Ordered so that the valid owner comes last: that of live claims, else the last one.  A write of
#: allocations may have given the consumer to another project, which rewrites no ended claims.
OWNERS = (
    sa.select(
        *(models.claims.c[name] for name in ('consumer', 'project_id', 'user_id', 'consumer_type'))
    )
    .where(models.claims.c.consumer.in_(_consumer_ids))
    .order_by(*(models.claims.c[name] for name in ('live', 'updated_at', 'created_at', 'id')))
)


def owners(tx: session.Tx, consumers: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return project, user and type of the consumers with a stored claim, live or ended."""
    owner_rows = tx.all(OWNERS, ids=sorted(set(consumers))) if consumers else ()
    return {
        row.consumer: {
            'project_id': row.project_id,
            'user_id': row.user_id,
            'consumer_type': row.consumer_type,
        }
        for row in owner_rows
    }


def insert_claims(tx: session.Tx, made: Sequence[Claim]) -> None:
    """Insert the rows of new claims.

    A consumer stays its project's while a claim of it is stored: a new claim takes the owner of the
    earlier ones.

    :raises Again: another transaction has created a claim that may not live beside one of these
    """
    stored_owners = owners(tx, [claim.consumer for claim in made])
    made = [
        msgspec.structs.replace(claim, **stored_owners.get(claim.consumer, {})) for claim in made
    ]
    # Transactions that insert for the same consumers wait for each other in this order.
    made = sorted(made, key=lambda claim: (claim.consumer, claim.id))
    with unique_key_guard():
        tx.many(models.claims.insert(), [claim_values(claim) for claim in made])
    amounts = [values for claim in made for values in allocation_values(claim)]
    tx.many(models.allocations.insert(), amounts)
