# SPDX-License-Identifier: Apache-2.0
"""Providers with all fields that a search for candidates reads, and their changes.

A host is in the aggregates of its provider, and in those of operators that list it by name.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt.core.candidates.table import AMOUNT_BOUND, ClassInventory, ProviderEntry
from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.db.database import SqlStore, reading, reading_long
from gantt.db.engine import session
from gantt.db.engine.engine import is_id
from gantt.db.records import feed, gaps
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS
from gantt.scheduler.ports.providers import ProviderNews

_providers = models.providers
_inventories = models.inventories
_resource_classes = models.resource_classes
_ids: Any = sa.bindparam('ids', expanding=True)

_zero: Any = sa.literal_column('0')
_PROVIDER, _INVENTORY, _TRAIT, _AGGREGATE = range(4)
_NUMBER_COLUMNS = 11


def _rows(kind: int, pid: Any, text: Any, *numbers: Any) -> Any:
    """Return a query of one kind of row: kind, provider id, text, numbers padded with 0."""
    columns = (sa.literal_column(str(kind)), pid, text, *numbers)
    return sa.select(*columns, *([_zero] * (_NUMBER_COLUMNS - len(numbers))))


_traits, _provider_traits = models.traits, models.provider_traits
_provider_aggregates = models.provider_aggregates
_aggregates, _aggregate_members = models.aggregates, models.aggregate_members


def _parts(some: bool) -> Any:
    """Return a statement for all parts of providers.

    :param some: whether to read only the providers with the bound ``ids``
    """
    providers = _rows(
        _PROVIDER,
        _providers.c.id,
        _providers.c.uuid,
        sa.func.coalesce(_providers.c.parent_id, 0),
        sa.func.coalesce(_providers.c.root_id, _providers.c.id),
        _providers.c.version,
        *(_providers.c[f'used_{column}'] for column in CORE_CLASS_COLUMNS.values()),
        *(_providers.c[f'foreign_{column}'] for column in CORE_CLASS_COLUMNS.values()),
    )
    inventories = _rows(
        _INVENTORY,
        _inventories.c.provider_id,
        _resource_classes.c.name,
        _inventories.c.cap,
        _inventories.c.used,
        _inventories.c.foreign_use,
        _inventories.c.min_unit,
        sa.func.coalesce(_inventories.c.max_unit, _inventories.c.total),
        _inventories.c.step_size,
    ).select_from(
        _inventories.join(_resource_classes, _resource_classes.c.id == _inventories.c.class_id)
    )
    traits = _rows(_TRAIT, _provider_traits.c.provider_id, _traits.c.name).select_from(
        _provider_traits.join(_traits, _traits.c.id == _provider_traits.c.trait_id)
    )
    aggregates = _rows(_AGGREGATE, _provider_aggregates.c.provider_id, _provider_aggregates.c.uuid)
    named_aggregates = _rows(_AGGREGATE, _providers.c.id, _aggregates.c.uuid).select_from(
        _providers.join(_aggregate_members, _aggregate_members.c.host == _providers.c.name).join(
            _aggregates, _aggregates.c.id == _aggregate_members.c.aggregate_id
        )
    )
    queries = [providers, inventories, traits, aggregates, named_aggregates]
    if some:
        id_columns = [
            _providers.c.id,
            _inventories.c.provider_id,
            _provider_traits.c.provider_id,
            _provider_aggregates.c.provider_id,
            _providers.c.id,
        ]
        queries = [
            query.where(pid.in_(_ids)) for query, pid in zip(queries, id_columns, strict=True)
        ]
    return sa.union_all(*queries)


SELECT_ALL, SELECT_SOME = _parts(False), _parts(True)
_changes = models.changes
_FEED_HEADS = {
    kind: sa.select(
        *(column.label(f'head_{n}') for n, column in enumerate(head.selected_columns))
    ).subquery(name='head')
    for kind, head in feed.SELECT_HEAD.items()
}
#: The head of the feed with each entry after a position, or with none: in one round trip.
SELECT_NEWS = {
    kind: sa.select(*head.c, _changes.c.id, _changes.c.kind, _changes.c.ref)
    .select_from(head.outerjoin(_changes, _changes.c.id > sa.bindparam('since')))
    .order_by(_changes.c.id)
    .limit(feed.READ_MAX + 1)
    for kind, head in _FEED_HEADS.items()
}
SELECT_CLASS_NAMES = sa.select(_resource_classes.c.name).where(
    _resource_classes.c.name.in_(sa.bindparam('names', expanding=True))
)
SELECT_TRAIT_NAMES = sa.select(_traits.c.name).where(
    _traits.c.name.in_(sa.bindparam('names', expanding=True))
)
#: If more changed than this, all are read.
CHANGED_PROVIDERS_MAX = 2_000


class SqlCandidates(SqlStore):
    """Reads that include everything committed before they began, by any writer.

    It is ``ports.CandidateReads`` in SQL.
    """

    @property
    def connections_lost(self) -> int:
        return self.database.connections_lost

    @reading_long
    def load_provider_entries(self, tx: session.Tx) -> ProviderNews:
        return _load(tx)

    def poll_provider_entries(self, last_news: ProviderNews) -> ProviderNews:
        news = self.database.reads.read(lambda tx: _poll(tx, last_news))
        if news is None:
            return self.load_provider_entries()
        entries, now = news
        open_gaps = feed.without_abandoned_gaps(self.database, entries.gaps, now)
        return msgspec.structs.replace(entries, gaps=open_gaps)

    @reading
    def unknown_names(
        self, tx: session.Tx, classes: Collection[str], traits: Collection[str]
    ) -> tuple[Sequence[str], Sequence[str]]:
        return _unknown(tx, SELECT_CLASS_NAMES, classes), _unknown(tx, SELECT_TRAIT_NAMES, traits)


def _unknown(tx: session.Tx, query: Any, names: Collection[str]) -> list[str]:
    possible = [name for name in names if is_id(name)]
    known_names = {row.name for row in tx.all(query, names=possible)} if possible else set()
    return [name for name in names if name not in known_names]


def _load(tx: session.Tx) -> ProviderNews:
    tx.snapshot()
    now, incarnation = tx.now, tx.first(feed.SELECT_INCARNATION).incarnation
    position, missing = feed.end_of_feed(tx, now)
    return ProviderNews(
        position=position,
        incarnation=incarnation,
        gaps=missing,
        entries=_entries(tx.stream(SELECT_ALL)),
        whole=True,
    )


def _poll(tx: session.Tx, last_news: ProviderNews) -> tuple[ProviderNews, float] | None:
    """Return news, and the database's clock; None: all is to be read."""
    rows = tx.all(SELECT_NEWS[tx.kind], since=last_news.position)
    now, incarnation, last, oldest, newest = rows[0][:5]
    new_entries = last - last_news.position
    if incarnation != last_news.incarnation or not 0 <= new_entries <= feed.READ_MAX:
        return None
    if not new_entries and not last_news.gaps:
        return ProviderNews(position=last, incarnation=incarnation), now
    entry_rows = [row for row in rows if row.id is not None]
    late_rows = feed.entries_in_ranges(tx, gaps.spans(last_news.gaps)) if last_news.gaps else []
    late_rows = [row for row in late_rows if gaps.covers(last_news.gaps, row.id)]
    missing: list[tuple[int, int]] = []
    if feed.draws_number_early(tx.kind):
        missing = gaps.missing([row.id for row in entry_rows], last_news.position, last)
    filled = {row.id for row in late_rows}
    remaining, given_up = gaps.still_open(last_news.gaps, filled, missing, now, oldest, newest)
    changed = {(row.kind, row.ref) for row in (*entry_rows, *late_rows)}
    ids = sorted({int(ref) for kind, ref in changed if kind in ('host', 'provider')})
    # Hosts that are in an aggregate by name have no entries of their own.
    if (
        given_up
        or len(ids) > CHANGED_PROVIDERS_MAX
        or any(kind == 'aggregate' for kind, _ in changed)
    ):
        return None
    entries = _read(tx, ids)
    removed_ids = sorted(set(ids) - {entry.id for entry in entries})
    news = ProviderNews(
        position=last, incarnation=incarnation, gaps=remaining, entries=entries, gone=removed_ids
    )
    return news, now


def _read(tx: session.Tx, ids: Sequence[int]) -> list[ProviderEntry]:
    return [
        entry for part in session.in_parts(ids) for entry in _entries(tx.all(SELECT_SOME, ids=part))
    ]


def _entries(rows: Iterable[Any]) -> list[ProviderEntry]:
    """Return the providers in the rows of ``_parts`` that have a row of their own."""
    provider_rows: dict[int, Any] = {}
    parts: dict[int, tuple[list[Any], set[str], set[str]]] = {}
    for row in rows:
        kind, pid = row[0], row[1]
        if kind == _PROVIDER:
            provider_rows[pid] = row
            continue
        inventories, traits, aggregates = parts.setdefault(pid, ([], set(), set()))
        if kind == _INVENTORY:
            inventories.append(row)
        else:
            (traits if kind == _TRAIT else aggregates).add(row[2])
    return [_entry(row, *parts.get(pid, ((), (), ()))) for pid, row in provider_rows.items()]


def _entry(
    row: Any, inventories: Iterable[Any], traits: Iterable[str], aggregates: Iterable[str]
) -> ProviderEntry:
    _, pid, uuid, parent, root, version, *used = row
    core = {
        name: used[index] + used[index + len(CORE_CLASSES)]
        for index, name in enumerate(CORE_CLASS_COLUMNS)
    }
    return ProviderEntry(
        id=pid,
        uuid=uuid,
        parent_id=parent or None,
        root_id=root,
        version=version,
        traits=tuple(sorted(traits)),
        aggregates=tuple(sorted(aggregates)),
        inventories={inventory[2]: _inventory(inventory, core) for inventory in inventories},
    )


def _inventory(row: Any, core: Mapping[str, int]) -> ClassInventory:
    """Return the inventory of a row.

    :param core: usage of the classes with columns in the row of the provider"""
    _, _, name, cap, used, foreign, least, largest, step, *_ = row
    return ClassInventory(
        cap=min(cap, AMOUNT_BOUND - 1),
        used=core[name] if name in core else used + foreign,
        min_unit=least,
        max_unit=largest,
        step_size=step,
    )
