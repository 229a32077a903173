# SPDX-License-Identifier: Apache-2.0
"""Providers with all that a search for candidates looks at, and their news.

A host is in the aggregates that are written of its provider, and in those of operators that have it
by name.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt.core.candidates.columns import AMOUNT_BOUND, ClassInventory
from gantt.core.candidates.table import ProviderEntry
from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.db.engine import session
from gantt.db.engine.session import reading, reading_long
from gantt.db.hosts.base import HostTables, is_id
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
    """One kind of row: its number, id of a provider, a text, and as many numbers as all have."""
    columns = (sa.literal_column(str(kind)), pid, text, *numbers)
    return sa.select(*columns, *([_zero] * (_NUMBERS - len(numbers))))


_t, _pt = models.traits, models.provider_traits
_pa = models.provider_aggregates
_a, _m = models.aggregates, models.aggregate_members


def _parts(some: bool) -> Any:
    """All that is said of providers, in one statement.

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
    named = _rows(_AGGREGATE, _p.c.id, _a.c.uuid).select_from(
        _p.join(_m, _m.c.host == _p.c.name).join(_a, _a.c.id == _m.c.aggregate_id)
    )
    found = [providers, inventories, traits, aggregates, named]
    if some:
        by = [_p.c.id, _i.c.provider_id, _pt.c.provider_id, _pa.c.provider_id, _p.c.id]
        found = [one.where(pid.in_(_ids)) for one, pid in zip(found, by, strict=True)]
    return sa.union_all(*found)


ALL, SOME = _parts(False), _parts(True)
_x = models.changes
_HEADS = {
    kind: sa.select(
        *(column.label(f'head_{n}') for n, column in enumerate(head.selected_columns))
    ).subquery(name='head')
    for kind, head in feed.HEAD.items()
}
#: The head of the feed with each entry after a position, or with none: in one trip.
NEWS = {
    kind: sa.select(*head.c, _x.c.id, _x.c.kind, _x.c.ref)
    .select_from(head.outerjoin(_x, _x.c.id > sa.bindparam('since')))
    .order_by(_x.c.id)
    .limit(feed.READ_MAX + 1)
    for kind, head in _HEADS.items()
}
CLASS_NAMES = sa.select(_c.c.name).where(_c.c.name.in_(sa.bindparam('names', expanding=True)))
TRAIT_NAMES = sa.select(_t.c.name).where(_t.c.name.in_(sa.bindparam('names', expanding=True)))
#: Where more changed than this, all are read.
CHANGED_MAX = 2_000
CHUNK = 500


class SqlCandidates(HostTables):
    """See ``scheduler.ports.candidates``."""

    @reading_long
    def load_provider_entries(self, tx: session.Tx) -> ProviderNews:
        return _load(tx)

    def poll_provider_entries(self, known: ProviderNews) -> ProviderNews:
        found = self.reads.read(lambda tx: _poll(tx, known))
        if found is None:
            return self.load_provider_entries()
        return self._without_ended(*found)

    def _without_ended(self, found: ProviderNews, now: float) -> ProviderNews:
        """Without the gaps that nobody is about to fill, where the server shows who is."""
        old = [gap for gap in found.gaps if now - gap.since > feed.DRAWN_SECONDS]
        if not old or self.database.kind != 'mysql':
            return found
        ended = self.reads.read(lambda tx: feed.ended_gaps(tx, old, now))
        return msgspec.structs.replace(found, gaps=feed.less_gaps(found.gaps, ended))

    @reading
    def unknown_names(
        self, tx: session.Tx, classes: Collection[str], traits: Collection[str]
    ) -> tuple[Sequence[str], Sequence[str]]:
        return _unknown(tx, CLASS_NAMES, classes), _unknown(tx, TRAIT_NAMES, traits)


def _unknown(tx: session.Tx, query: Any, names: Collection[str]) -> list[str]:
    possible = [name for name in names if is_id(name)]
    known = {row.name for row in tx.all(query, names=possible)} if possible else set()
    return [name for name in names if name not in known]


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
    """News, and the database's clock; None: all is to be read."""
    rows = tx.all(NEWS[tx.kind], since=known.position)
    now, incarnation, last, oldest, newest = rows[0][:5]
    behind = last - known.position
    if incarnation != known.incarnation or not 0 <= behind <= feed.READ_MAX:
        return None
    if not behind and not known.gaps:
        return ProviderNews(position=last, incarnation=incarnation), now
    found = [row for row in rows if row.id is not None]
    late = feed.inside(tx, gaps.spans(known.gaps)) if known.gaps else []
    late = [row for row in late if gaps.covers(known.gaps, row.id)]
    remaining = _still_open(known.gaps, {row.id for row in late}, now, oldest, newest)
    if feed.draws_early(tx.kind):
        numbers = [row.id for row in found]
        missing = gaps.missing(numbers, known.position, last)
        remaining += [Gap(first=first, last=upto, since=now) for first, upto in missing]
    remaining, given_up = gaps.bounded(remaining)
    changed = {(row.kind, row.ref) for row in (*found, *late)}
    ids = sorted({int(ref) for kind, ref in changed if kind in ('host', 'provider')})
    # Who is in an aggregate by name is not said one by one.
    if given_up or len(ids) > CHANGED_MAX or any(kind == 'aggregate' for kind, _ in changed):
        return None
    entries = _read(tx, ids)
    gone = sorted(set(ids) - {one.id for one in entries})
    news = ProviderNews(
        position=last, incarnation=incarnation, gaps=remaining, entries=entries, gone=gone
    )
    return news, now


def _still_open(
    known: Sequence[Gap], filled: Collection[int], now: float, oldest: int, newest: int
) -> list[Gap]:
    """Gaps whose numbers may still appear, see ``feed``."""
    return [
        gap if gap.before else msgspec.structs.replace(gap, before=newest)
        for gap in gaps.without(known, filled)
        if not (gap.before and oldest >= gap.before) and now - gap.since <= feed.GAP_SECONDS
    ]


def _read(tx: session.Tx, ids: Sequence[int]) -> list[ProviderEntry]:
    found: list[ProviderEntry] = []
    for start in range(0, len(ids), CHUNK):
        found += _entries(tx.all(SOME, ids=ids[start : start + CHUNK]))
    return found


def _entries(rows: Iterable[Any]) -> list[ProviderEntry]:
    """Providers from the rows of ``_parts``, those that are there themselves."""
    of: dict[int, Any] = {}
    parts: dict[int, tuple[list[Any], set[str], set[str]]] = {}
    for row in rows:
        kind, pid = row[0], row[1]
        if kind == _PROVIDER:
            of[pid] = row
            continue
        inventories, traits, aggregates = parts.setdefault(pid, ([], set(), set()))
        if kind == _INVENTORY:
            inventories.append(row)
        else:
            (traits if kind == _TRAIT else aggregates).add(row[2])
    return [_entry(row, *parts.get(pid, ((), (), ()))) for pid, row in of.items()]


def _entry(
    row: Any, inventories: Iterable[Any], traits: Iterable[str], aggregates: Iterable[str]
) -> ProviderEntry:
    _, pid, uuid, parent, root, version, *used = row
    core = {
        name: used[n] + used[n + len(CORE_CLASSES)] for n, name in enumerate(CORE_CLASS_COLUMNS)
    }
    return ProviderEntry(
        id=pid,
        uuid=uuid,
        parent_id=parent or None,
        root_id=root,
        version=version,
        traits=tuple(sorted(traits)),
        aggregates=tuple(sorted(aggregates)),
        inventories={one[2]: _inventory(one, core) for one in inventories},
    )


def _inventory(row: Any, core: Mapping[str, int]) -> ClassInventory:
    """:param core: what is used of the classes that stand in the row of the provider"""
    _, _, name, cap, used, foreign, least, largest, step, *_ = row
    return ClassInventory(
        cap=min(cap, AMOUNT_BOUND - 1),
        used=core[name] if name in core else used + foreign,
        min_unit=least,
        max_unit=largest,
        step_size=step,
    )
