# SPDX-License-Identifier: Apache-2.0
"""Providers with all fields that a search for candidates reads, and their changes.

A host is in the aggregates of its provider, and in those of operators that list it by name.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt.core.candidates.columns import AMOUNT_BOUND, ClassInventory
from gantt.core.candidates.table import ProviderEntry
from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.db.database import Database, reading, reading_long
from gantt.db.engine import session
from gantt.db.hosts.base import is_id
from gantt.db.records import feed, gaps
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS
from gantt.scheduler.ports import Gap, ProviderNews

_p = models.providers
_i = models.inventories
_c = models.resource_classes
_ids: Any = sa.bindparam('ids', expanding=True)

_zero: Any = sa.literal_column('0')
_PROVIDER, _INVENTORY, _TRAIT, _AGGREGATE = range(4)
_NUMBERS = 11


def _rows(kind: int, pid: Any, text: Any, *numbers: Any) -> Any:
    """Return a query of one kind of row: kind, id of a provider, a text, and the same numbers."""
    columns = (sa.literal_column(str(kind)), pid, text, *numbers)
    return sa.select(*columns, *([_zero] * (_NUMBERS - len(numbers))))


_t, _pt = models.traits, models.provider_traits
_pa = models.provider_aggregates
_a, _m = models.aggregates, models.aggregate_members


def _parts(some: bool) -> Any:
    """Return a statement for all parts of providers.

    :param some: only of those with ``ids``
    """
    providers = _rows(
        _PROVIDER,
        _p.c.id,
        _p.c.uuid,
        sa.func.coalesce(_p.c.parent_id, 0),
        sa.func.coalesce(_p.c.root_id, _p.c.id),
        _p.c.version,
        *(_p.c[f'used_{column}'] for column in CORE_CLASS_COLUMNS.values()),
        *(_p.c[f'foreign_{column}'] for column in CORE_CLASS_COLUMNS.values()),
    )
    inventories = _rows(
        _INVENTORY,
        _i.c.provider_id,
        _c.c.name,
        _i.c.cap,
        _i.c.used,
        _i.c.foreign_use,
        _i.c.min_unit,
        sa.func.coalesce(_i.c.max_unit, _i.c.total),
        _i.c.step_size,
    ).select_from(_i.join(_c, _c.c.id == _i.c.class_id))
    traits = _rows(_TRAIT, _pt.c.provider_id, _t.c.name).select_from(
        _pt.join(_t, _t.c.id == _pt.c.trait_id)
    )
    aggregates = _rows(_AGGREGATE, _pa.c.provider_id, _pa.c.uuid)
    named_aggregates = _rows(_AGGREGATE, _p.c.id, _a.c.uuid).select_from(
        _p.join(_m, _m.c.host == _p.c.name).join(_a, _a.c.id == _m.c.aggregate_id)
    )
    queries = [providers, inventories, traits, aggregates, named_aggregates]
    if some:
        id_columns = [_p.c.id, _i.c.provider_id, _pt.c.provider_id, _pa.c.provider_id, _p.c.id]
        queries = [
            query.where(pid.in_(_ids)) for query, pid in zip(queries, id_columns, strict=True)
        ]
    return sa.union_all(*queries)


ALL, SOME = _parts(False), _parts(True)
_x = models.changes
_HEADS = {
    kind: sa.select(
        *(column.label(f'head_{n}') for n, column in enumerate(head.selected_columns))
    ).subquery(name='head')
    for kind, head in feed.HEAD.items()
}
#: The head of the feed with each entry after a position, or with none: in one round trip.
NEWS = {
    kind: sa.select(*head.c, _x.c.id, _x.c.kind, _x.c.ref)
    .select_from(head.outerjoin(_x, _x.c.id > sa.bindparam('since')))
    .order_by(_x.c.id)
    .limit(feed.READ_MAX + 1)
    for kind, head in _HEADS.items()
}
CLASS_NAMES = sa.select(_c.c.name).where(_c.c.name.in_(sa.bindparam('names', expanding=True)))
TRAIT_NAMES = sa.select(_t.c.name).where(_t.c.name.in_(sa.bindparam('names', expanding=True)))
#: If more changed than this, all are read.
CHANGED_MAX = 2_000
CHUNK = 500


class SqlCandidates:
    """Reads that include everything committed before they began, by any writer.

    It is ``ports.CandidateReads`` in SQL.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    @property
    def connections_lost(self) -> int:
        return self.database.connections_lost

    @reading_long
    def load_provider_entries(self, tx: session.Tx) -> ProviderNews:
        return _load(tx)

    def poll_provider_entries(self, known: ProviderNews) -> ProviderNews:
        news = self.database.reads.read(lambda tx: _poll(tx, known))
        if news is None:
            return self.load_provider_entries()
        return self._without_ended(*news)

    def _without_ended(self, found: ProviderNews, now: float) -> ProviderNews:
        """Return news without gaps that no transaction will fill, where the server shows them."""
        old_gaps = [gap for gap in found.gaps if now - gap.since > feed.DRAWN_SECONDS]
        if not old_gaps or self.database.kind != 'mysql':
            return found
        ended_gaps = self.database.reads.read(lambda tx: feed.ended_gaps(tx, old_gaps, now))
        return msgspec.structs.replace(found, gaps=feed.less_gaps(found.gaps, ended_gaps))

    @reading
    def unknown_names(
        self, tx: session.Tx, classes: Collection[str], traits: Collection[str]
    ) -> tuple[Sequence[str], Sequence[str]]:
        return _unknown(tx, CLASS_NAMES, classes), _unknown(tx, TRAIT_NAMES, traits)


def _unknown(tx: session.Tx, query: Any, names: Collection[str]) -> list[str]:
    possible = [name for name in names if is_id(name)]
    known_names = {row.name for row in tx.all(query, names=possible)} if possible else set()
    return [name for name in names if name not in known_names]


def _load(tx: session.Tx) -> ProviderNews:
    tx.snapshot()
    now, incarnation = tx.now, tx.first(feed.INCARNATION).incarnation
    position, missing = feed.end_of_feed(tx, now)
    return ProviderNews(
        position=position,
        incarnation=incarnation,
        gaps=missing,
        entries=_entries(tx.stream(ALL)),
        whole=True,
    )


def _poll(tx: session.Tx, known: ProviderNews) -> tuple[ProviderNews, float] | None:
    """Return news, and the database's clock; None: all is to be read."""
    rows = tx.all(NEWS[tx.kind], since=known.position)
    now, incarnation, last, oldest, newest = rows[0][:5]
    behind = last - known.position
    if incarnation != known.incarnation or not 0 <= behind <= feed.READ_MAX:
        return None
    if not behind and not known.gaps:
        return ProviderNews(position=last, incarnation=incarnation), now
    entry_rows = [row for row in rows if row.id is not None]
    late_rows = feed.inside(tx, gaps.spans(known.gaps)) if known.gaps else []
    late_rows = [row for row in late_rows if gaps.covers(known.gaps, row.id)]
    remaining = _still_open(known.gaps, {row.id for row in late_rows}, now, oldest, newest)
    if feed.draws_early(tx.kind):
        entry_numbers = [row.id for row in entry_rows]
        missing = gaps.missing(entry_numbers, known.position, last)
        remaining += [
            Gap(first=first, last=last_missing, since=now) for first, last_missing in missing
        ]
    remaining, given_up = gaps.bounded(remaining)
    changed = {(row.kind, row.ref) for row in (*entry_rows, *late_rows)}
    ids = sorted({int(ref) for kind, ref in changed if kind in ('host', 'provider')})
    # Hosts that are in an aggregate by name have no entries of their own.
    if given_up or len(ids) > CHANGED_MAX or any(kind == 'aggregate' for kind, _ in changed):
        return None
    entries = _read(tx, ids)
    removed_ids = sorted(set(ids) - {entry.id for entry in entries})
    news = ProviderNews(
        position=last, incarnation=incarnation, gaps=remaining, entries=entries, gone=removed_ids
    )
    return news, now


def _still_open(
    known: Sequence[Gap], filled: Collection[int], now: float, oldest: int, newest: int
) -> list[Gap]:
    """Return the gaps whose numbers may still appear, see ``feed``."""
    return [
        gap if gap.before else msgspec.structs.replace(gap, before=newest)
        for gap in gaps.without(known, filled)
        if not (gap.before and oldest >= gap.before) and now - gap.since <= feed.GAP_SECONDS
    ]


def _read(tx: session.Tx, ids: Sequence[int]) -> list[ProviderEntry]:
    entries: list[ProviderEntry] = []
    for start in range(0, len(ids), CHUNK):
        entries += _entries(tx.all(SOME, ids=ids[start : start + CHUNK]))
    return entries


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
