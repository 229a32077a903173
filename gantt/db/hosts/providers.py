# SPDX-License-Identifier: Apache-2.0
"""Rows of resource providers: read, locked in ascending order of ids, written.

Every change of a provider or a claim on it locks the provider's row first, through ``lock``.

Providers with a row in ``provider_facts`` are hosts.  Of others only counters are read and
locked here: see ``db.hosts.trees``.
"""

import contextlib
import hashlib
import itertools
import operator
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import aggregate_order_by

from gantt.core.claims.acceptance import ProviderState, why_closed
from gantt.core.messages.resource_classes import CORE_CLASSES, Inventory
from gantt.core.resources.host import HostChange, HostKind, HostRow, Placed
from gantt.core.topology.free import FreeTopology
from gantt.db.engine import arrays, retry, session
from gantt.db.engine.arrays import BulkUpdate, is_in_array, lock_by_key, numbers, texts
from gantt.db.engine.retry import RetryTransaction
from gantt.db.hosts import claim_rows, details, rows
from gantt.db.schema import models

_providers = models.providers
_provider_facts = models.provider_facts
_inventories = models.inventories
_claims = models.claims

_ids: Any = sa.bindparam('ids', expanding=True)
_SELECT_COUNTERS = sa.select(*[_providers.c[name] for name in rows.COUNTER_COLUMNS])
SELECT_COUNTERS_BY_ID = _SELECT_COUNTERS.where(_providers.c.id.in_(_ids)).order_by(_providers.c.id)
_SELECT_FOR_LOCK = sa.select(
    *[_providers.c[name] for name in rows.COUNTER_COLUMNS], session.Now().label('now')
)
_SELECT_PLACED_FOR_LOCK = _SELECT_FOR_LOCK.add_columns(
    _providers.c.uuid,
    _providers.c.kind,
    sa.func.coalesce(_providers.c.root_id, _providers.c.id).label('root'),
)


def _by_id(query: Any) -> Any:
    """Return the query with FOR NO KEY UPDATE, or FOR UPDATE elsewhere."""
    query = query.where(_providers.c.id.in_(_ids)).order_by(_providers.c.id)
    return lock_by_key(query.with_for_update(key_share=True), _providers)


def _by_ids_together(query: Any) -> Any:
    query = query.where(is_in_array(_providers.c.id, 'ids', sa.BigInteger)).order_by(
        _providers.c.id
    )
    return query.with_for_update(key_share=True)


LOCK_BY_ID, LOCK_BY_ID_ARRAY = _by_id(_SELECT_FOR_LOCK), _by_ids_together(_SELECT_FOR_LOCK)
LOCK_WITH_ROOT_BY_ID, LOCK_WITH_ROOT_BY_ID_ARRAY = (
    _by_id(_SELECT_PLACED_FOR_LOCK),
    _by_ids_together(_SELECT_PLACED_FOR_LOCK),
)
LOCK_BY_NAME = _SELECT_FOR_LOCK.where(_providers.c.name == sa.bindparam('name')).with_for_update(
    key_share=True
)
is_host = _providers.c.kind == HostKind.HOST.value
SELECT_HOST_COUNTERS = _SELECT_COUNTERS.where(is_host).order_by(_providers.c.id)
#: The shown name of a provider: of a host its service's, of others their own.
SHOWN_NAME = sa.case((is_host, _providers.c.name), else_=_providers.c.placement_name).label('name')
SELECT_FACTS = sa.select(
    *[
        (_providers if name in _providers.c else _provider_facts).c[name]
        for name in rows.FACTS_COLUMNS
    ]
).select_from(_providers.join(_provider_facts, _provider_facts.c.provider_id == _providers.c.id))
SELECT_FACTS_BY_ID = SELECT_FACTS.where(_providers.c.id.in_(_ids))
SELECT_OTHER_CLASSES = (
    sa.select(
        _inventories.c.provider_id,
        models.resource_classes.c.name,
        _inventories.c.cap,
        _inventories.c.used,
        _inventories.c.foreign_use,
    )
    .join(models.resource_classes, models.resource_classes.c.id == _inventories.c.class_id)
    .where(models.resource_classes.c.name.not_in(CORE_CLASSES))
)
#: Providers that are no hosts, a row for each inventory, or one without any.  Usage without an
#: inventory has a row with a total of 0.
SELECT_POOL_FACTS = (
    sa.select(
        _providers.c.id,
        _providers.c.placement_name,
        models.resource_classes.c.name,
        *(_inventories.c[name] for name in Inventory.__struct_fields__),
    )
    .select_from(
        _providers.outerjoin(
            _inventories,
            sa.and_(_inventories.c.provider_id == _providers.c.id, _inventories.c.total > 0),
        ).outerjoin(
            models.resource_classes, models.resource_classes.c.id == _inventories.c.class_id
        )
    )
    .where(_providers.c.id.in_(_ids), sa.not_(is_host))
    .order_by(models.resource_classes.c.name)
)
#: Names of the unique indexes of names and uuids, as databases report them.
UNIQUE_INDEXES = (
    *('uq_providers_', 'ix_providers_placement_name'),
    *('providers.name', 'providers.placement_name', 'providers.uuid'),
)
SELECT_OTHER_CLASSES_BY_ID = SELECT_OTHER_CLASSES.where(_inventories.c.provider_id.in_(_ids))
_unsettled = sa.case((sa.and_(_claims.c.state == 'confirmed', _claims.c.absences == 0), 0), else_=1)
_SELECT_PLACED_ROWS = sa.select(
    _claims.c.provider_id,
    _claims.c.id,
    claim_rows.GUEST_UUID.label('consumer'),
    _claims.c.group_uuid,
    _unsettled.label('unsettled'),
    _claims.c.image,
    _claims.c.flavor,
    _claims.c.member_name,
    _claims.c.layout,
).order_by(_claims.c.provider_id, _claims.c.id)
SELECT_PLACED = _SELECT_PLACED_ROWS.where(_claims.c.live == 1)
SELECT_PLACED_ON = SELECT_PLACED.where(_claims.c.provider_id.in_(_ids))
# Not "live = 1", for which PostgreSQL may read all live claims and compare each with every id.
SELECT_PLACED_BY_CLAIM = _SELECT_PLACED_ROWS.where(
    claim_rows.is_live, is_in_array(_claims.c.id, 'claims', sa.Text)
)
#: Claims that are read whole, known or not, as a second statement would cost more.
FEW_CLAIMS = 32
#: A line for each live claim of a host: id, consumer, 1 where it has a layout, 1 where it is
#: unsettled.  The rest of most claims is known already, and does not change.
SELECT_GUEST_LINES = (
    sa.select(
        _claims.c.provider_id,
        sa.func.string_agg(
            sa.func.concat_ws(
                ' ',
                _claims.c.id,
                _claims.c.consumer,
                sa.case((_claims.c.layout.is_(None), 0), else_=1),
                _unsettled,
            ),
            aggregate_order_by(sa.literal('\n'), _claims.c.id),
        ),
    )
    .where(_claims.c.live == 1, is_in_array(_claims.c.provider_id, 'ids', sa.BigInteger))
    .group_by(_claims.c.provider_id)
)
SELECT_IDS_BY_NAME = sa.select(_providers.c.name, _providers.c.id).where(
    _providers.c.name.in_(sa.bindparam('names', expanding=True))
)
SELECT_IDS_BY_NAME_ARRAY = sa.select(_providers.c.name, _providers.c.id).where(
    is_in_array(_providers.c.name, 'names', sa.Text)
)

#: Write of counters; the version read guards against a concurrent write where locks are local
#: to a node.
_VERSION_GUARD = {'b_id': 'id', 'b_version': 'version'}
UPDATE_COUNTERS = BulkUpdate(
    _providers, _VERSION_GUARD, [name for name in rows.COUNTER_COLUMNS if name != 'id']
)
#: Counters that claims change.
USAGE_COLUMNS = (
    'generation',
    'version',
    'claims_stamp',
    'over_committed',
    *rows.COUNTER_COLUMNS[15:19],
)
UPDATE_USAGE = BulkUpdate(_providers, _VERSION_GUARD, USAGE_COLUMNS)
#: Id by name: an id that was read earlier may be of another class, or of none, since.
CLASS_ID = (
    sa.select(models.resource_classes.c.id)
    .where(models.resource_classes.c.name == sa.bindparam('b_class'))
    .scalar_subquery()
)
UPDATE_OTHER_CLASS = (
    _inventories.update()
    .where(
        _inventories.c.provider_id == sa.bindparam('b_provider'),
        _inventories.c.class_id == CLASS_ID,
    )
    .values(session.bound('used', 'foreign_use'))
)
INSERT_CHANGE = models.changes.insert()
INSERT_CHANGES = sa.text(
    'INSERT INTO changes (kind, ref) SELECT * '
    'FROM unnest(CAST(:kinds AS text[]), CAST(:refs AS text[])) AS r (kind, ref)'
)


class PoolFacts(NamedTuple):
    """Name and inventories of a provider that is no host."""

    name: str
    inventories: dict[str, Inventory]


class ReadPools(NamedTuple):
    """Providers that are no hosts, as read under the lock of their rows.

    :ivar facts: provider id -> name and inventories
    :ivar others: id -> class -> [cap, used, foreign], of non-core classes
    """

    facts: dict[int, PoolFacts]
    others: dict[int, dict[str, list[int]]]


NO_POOLS_READ = ReadPools({}, {})


class LockedPlace(NamedTuple):
    """Position of a provider in its tree, as its row has it under lock; a root is its own root."""

    uuid: str
    kind: str
    root_id: int


class LockedProviders:
    """Providers under lock: as read, and as they become.

    :ivar counters: usage and capacity by provider id, to be changed in place by the holder of the
        lock
    :ivar templates: rows of the hosts, complete but for the counters
    :ivar pools: facts of the other providers, as far as they were read
    :ivar places: positions in their trees, see :func:`lock_placed`
    """

    def __init__(
        self,
        counters: dict[int, rows.Counters],
        templates: dict[int, HostRow],
        pools: dict[int, PoolFacts],
    ) -> None:
        self.counters = counters
        self.templates = templates
        self.pools = pools
        self.places: dict[int, LockedPlace] = {}
        self._versions = {row.id: row.version for row in counters.values()}
        self._used = {row.id: tuple(row.used) for row in counters.values()}
        self._others = {
            row.id: {name: list(usage) for name, usage in row.others.items()}
            for row in counters.values()
            if row.others
        }

    def hosts(self) -> list[int]:
        """Return the ids of the hosts, ascending."""
        return sorted(self.templates)

    def is_host(self, provider_id: int) -> bool:
        """Return whether the provider has the record of a host."""
        return provider_id in self.templates

    def row(self, provider_id: int) -> HostRow:
        """Return the complete row of a host, as it becomes."""
        return rows.host_row(self.templates[provider_id], self.counters[provider_id])

    def state(
        self,
        provider_id: int,
        inside: FreeTopology | None = None,
        serves: frozenset[int] = frozenset(),
    ) -> ProviderState:
        """Return the state of a provider by which claims on it are judged.

        Its facts, and so its units, are current: a change of them locks and writes its row.  Where
        locks are local to a node one of two such writes fails.

        :param inside: free topology next to its live claims, where that is to be judged
        :param serves: hosts that it serves as a pool, where that is to be judged
        """
        counters = self.counters[provider_id]
        template = self.templates.get(provider_id)
        if template is None:
            name = self.pools[provider_id].name
            closed = ''  # it cannot be disabled, and room is judged by class
        else:
            name = template.name
            closed = why_closed(template, over_full=bool(counters.over_committed))
        return ProviderState(
            name=name,
            generation=counters.generation,
            inventories=self.inventories(provider_id),
            room=rows.free_amounts(counters),
            closed=closed,
            serves=serves,
            inside=inside,
        )

    def inventories(self, provider_id: int) -> dict[str, Inventory]:
        """Return the inventories of a provider."""
        template = self.templates.get(provider_id)
        if template is None:
            return self.pools[provider_id].inventories
        return template.facts.inventories

    def version_read(self, provider_id: int) -> int:
        """Return the version under the lock, before any change."""
        return self._versions[provider_id]

    def added(self, provider_id: int) -> list[int]:
        """Return the growth of a provider's usage since it was read, a number per core class."""
        used_now = self.counters[provider_id].used
        return [now - before for now, before in zip(used_now, self._used[provider_id], strict=True)]

    def added_others(self, provider_id: int) -> dict[str, int]:
        """Return class -> growth of usage since it was read, of non-core classes."""
        before = self._others.get(provider_id, {})
        added = {
            name: used - before.get(name, (0, 0, 0))[1]
            for name, (_, used, _) in self.counters[provider_id].others.items()
        }
        return {name: amount for name, amount in added.items() if amount}

    def others_read(self, provider_id: int) -> set[str]:
        """Return the non-core classes that have a row in ``inventories``."""
        return set(self._others.get(provider_id, ()))

    def forget_others(self, provider_id: int) -> None:
        """Forget the non-core classes read, as they were written by other statements."""
        self._others[provider_id] = {
            name: list(usage) for name, usage in self.counters[provider_id].others.items()
        }

    def changed_others(self, provider_id: int) -> dict[str, list[int]]:
        """Return the usage of non-core classes, where it differs from the usage read."""
        before = self._others.get(provider_id, {})
        now = self.counters[provider_id].others
        return {name: usage for name, usage in now.items() if before.get(name) != usage}


def lock(tx: session.Tx, memory: rows.RowCache, ids: Collection[int]) -> LockedProviders:
    """Lock providers, ascending by id; removed ones are left out."""
    if not ids:
        return _locked(tx, memory, [])
    if tx.kind == 'postgresql':
        return _locked(tx, memory, tx.all(LOCK_BY_ID_ARRAY, ids=arrays.numbers(sorted(ids))))
    return _locked(tx, memory, tx.all(LOCK_BY_ID, ids=sorted(ids)))


def lock_placed(tx: session.Tx, memory: rows.RowCache, ids: Collection[int]) -> LockedProviders:
    """Lock providers and read their positions; facts of pools are left to :func:`read_pools`.

    :param ids: at least one
    """
    if tx.kind == 'postgresql':
        provider_rows = tx.all(LOCK_WITH_ROOT_BY_ID_ARRAY, ids=arrays.numbers(sorted(ids)))
    else:
        provider_rows = tx.all(LOCK_WITH_ROOT_BY_ID, ids=sorted(ids))
    locked = _locked(tx, memory, provider_rows, counters_only=True)
    locked.places = {row[0]: LockedPlace(row.uuid, row.kind, row.root) for row in provider_rows}
    return locked


def read_pools(tx: session.Tx, locked: LockedProviders, ids: Iterable[int]) -> None:
    """Read the facts of locked providers that are no hosts, if not read yet."""
    missing = sorted(set(ids) - locked.templates.keys() - locked.pools.keys())
    if missing:
        locked.pools.update(_pools(tx, missing))


def read_uncounted(tx: session.Tx, locked: LockedProviders, ids: Iterable[int]) -> None:
    """Read other classes of providers whose rows count none, which may be wrong.

    Called before all inventories are written anew: their usage has to stay.  Usage counted in
    this transaction is added.
    """
    provider_ids = sorted({pid for pid in ids if not locked.counters[pid].sparse_classes})
    for pid, name, cap, *stored_usage in (
        tx.all(SELECT_OTHER_CLASSES_BY_ID, ids=provider_ids) if provider_ids else ()
    ):
        counted_usage = locked.counters[pid].others.get(name, (0, 0, 0))[1:]
        locked.counters[pid].others[name] = [
            cap,
            *map(sum, zip(stored_usage, counted_usage, strict=True)),
        ]


def lock_named(tx: session.Tx, memory: rows.RowCache, name: str) -> LockedProviders:
    """Lock one host, where no other provider is to be locked."""
    return _locked(tx, memory, tx.all(LOCK_BY_NAME, name=name))


def read(tx: session.Tx, memory: rows.RowCache, ids: Collection[int]) -> LockedProviders:
    """Read hosts as ``lock`` does, without locking them."""
    provider_rows = tx.all(SELECT_COUNTERS_BY_ID, ids=sorted(ids)) if ids else []
    return complete_rows(tx, memory, {row[0]: rows.counters(row) for row in provider_rows})


def _locked(
    tx: session.Tx, memory: rows.RowCache, provider_rows: Sequence[Any], counters_only: bool = False
) -> LockedProviders:
    if provider_rows:
        tx.now = provider_rows[-1].now
    return complete_rows(
        tx, memory, {row[0]: rows.counters(row) for row in provider_rows}, counters_only
    )


def complete_rows(
    tx: session.Tx,
    memory: rows.RowCache,
    counters: dict[int, rows.Counters],
    counters_only: bool = False,
    read_pools: ReadPools = NO_POOLS_READ,
) -> LockedProviders:
    """Return locked counters with facts, and with the non-core classes.

    :param counters_only: for providers that are known to be no hosts
    :param read_pools: facts of pools that were read already
    """
    templates: dict[int, HostRow] = {}
    pools = {pid: facts for pid, facts in read_pools.facts.items() if pid in counters}
    no_hosts, unknown = set(), []
    for row in counters.values():
        if row.id in pools:
            continue
        template = memory.template(row.id, row.facts_stamp)
        if template is not None:
            templates[row.id] = template
        elif memory.is_no_host(row.id, row.facts_stamp):
            no_hosts.add(row.id)
        else:
            unknown.append(row.id)
    if unknown:
        templates |= remember_rows(tx, memory, tx.all(SELECT_FACTS_BY_ID, ids=unknown))
        unknown = [pid for pid in unknown if pid not in templates]
    pool_ids = [*unknown, *(() if counters_only else no_hosts)]
    if pool_ids:
        pools |= _pools(tx, pool_ids)
        for pid in pools.keys() & set(unknown):
            memory.remember_no_host(pid, counters[pid].facts_stamp)
    _add_others(tx, counters, read_pools)
    # A host that is just being removed may be absent from one of the two tables.
    stored_ids = templates.keys() | pools.keys() | (no_hosts if counters_only else set())
    stored_counters = {pid: row for pid, row in counters.items() if pid in stored_ids}
    return LockedProviders(stored_counters, templates, pools)


def _pools(tx: session.Tx, ids: Sequence[int]) -> dict[int, PoolFacts]:
    """Return the facts of the providers that are no hosts."""
    pools: dict[int, PoolFacts] = {}
    for pid, placement_name, class_name, *numbers_of in tx.all(SELECT_POOL_FACTS, ids=ids):
        pool = pools.setdefault(pid, PoolFacts(placement_name, {}))
        if class_name is not None:
            pool.inventories[class_name] = Inventory(*numbers_of)
    return pools


def _add_others(
    tx: session.Tx, counters: Mapping[int, rows.Counters], read_pools: ReadPools
) -> None:
    """Add the non-core classes, for providers that have any."""
    sparse_ids = []
    for row in counters.values():
        if row.sparse_classes and row.id in read_pools.facts:
            row.others.update(read_pools.others.get(row.id, {}))
        elif row.sparse_classes:
            sparse_ids.append(row.id)
    if sparse_ids:
        for pid, name, cap, used, foreign in tx.all(SELECT_OTHER_CLASSES_BY_ID, ids=sparse_ids):
            counters[pid].others[name] = [cap, used, foreign]


def remember_rows(
    tx: session.Tx, memory: rows.RowCache, fact_rows: Iterable[Any]
) -> dict[int, HostRow]:
    """Return the rows of hosts beyond counters, by id.

    Details are read for one host of each mark.  Where they were written after the record was
    read they are read for the other hosts as well.

    :param fact_rows: rows of ``SELECT_FACTS``
    """
    records = {row.id: row for row in fact_rows}
    marks = {pid: details.details_digest(row.facts) for pid, row in records.items()}
    known_details = {pid: memory.details_of(pid, mark) for pid, mark in marks.items()}
    details_of = {
        pid: provider_details
        for pid, provider_details in known_details.items()
        if provider_details is not None
    }
    missing = {pid: mark for pid, mark in marks.items() if pid not in details_of}
    firsts = {mark: pid for pid, mark in missing.items() if mark is not None}
    ids_to_read = [pid for pid, mark in missing.items() if mark is None or firsts[mark] == pid]
    read_details = details.read(tx, ids_to_read)
    details_of_mark = {
        provider_details.digest: provider_details for provider_details in read_details.values()
    }
    details_of |= read_details | {
        pid: details_of_mark[mark]
        for pid, mark in missing.items()
        if mark is not None and mark in details_of_mark and pid not in read_details
    }
    details_of |= details.read(tx, records.keys() - details_of.keys())
    return {pid: memory.remember_row(row, details_of[pid]) for pid, row in records.items()}


def save(
    tx: session.Tx, locked: LockedProviders, touched: Iterable[int], *, usage_only: bool = False
) -> None:
    """Write changed counters, one version up, with their feed entries.

    A provider that is no longer over-full loses its flag here, by any writer.

    :param usage_only: only counters that claims change have changed
    :raises RetryTransaction: another transaction wrote them meanwhile (locks local to a node)
    """
    ids = sorted(touched)
    values = []
    others = []
    for provider_id in ids:
        row = locked.counters[provider_id]
        rows.clear_over_full_flag(row)
        row.version += 1
        values.append(counter_values(row, locked.version_read(provider_id)))
        for name, (_, used, foreign) in locked.changed_others(provider_id).items():
            others.append(
                {
                    'b_provider': provider_id,
                    'b_class': name,
                    'used': used,
                    'foreign_use': foreign,
                }
            )
    if usage_only:
        values = [
            {name: row_values[name] for name in (*_VERSION_GUARD, *USAGE_COLUMNS)}
            for row_values in values
        ]
    all_written = (UPDATE_USAGE if usage_only else UPDATE_COUNTERS).run(tx, values) == len(values)
    if not all_written or (others and tx.run_many(UPDATE_OTHER_CLASS, others) != len(others)):
        raise RetryTransaction('a provider was written meanwhile')
    announce_written(tx, locked, ids)


def counter_values(row: rows.Counters, version_read: int) -> dict[str, Any]:
    """Return the bound values of ``UPDATE_COUNTERS`` for a provider's counters."""
    values: dict[str, Any] = {
        'b_id': row.id,
        'b_version': version_read,
        **{name: getattr(row, name) for name in rows.COUNTER_COLUMNS[1:11]},
    }
    values.update(zip(rows.COUNTER_COLUMNS[11:15], row.cap, strict=True))
    values.update(zip(rows.COUNTER_COLUMNS[15:19], row.used, strict=True))
    values.update(zip(rows.COUNTER_COLUMNS[19:23], row.foreign, strict=True))
    return values


def announce_written(tx: session.Tx, locked: LockedProviders, ids: Sequence[int]) -> None:
    """Write feed entries for providers, by their kind."""
    _announce(tx, [('host' if locked.is_host(pid) else 'provider', pid) for pid in ids])


def announce(tx: session.Tx, kind: str, refs: Iterable[object]) -> None:
    """Write feed entries."""
    _announce(tx, [(kind, ref) for ref in refs])


def _announce(tx: session.Tx, entries: Sequence[tuple[str, object]]) -> None:
    values = [{'kind': kind, 'ref': str(ref)} for kind, ref in entries]
    if tx.kind == 'postgresql' and values:
        kinds, refs = zip(*((entry['kind'], entry['ref']) for entry in values), strict=True)
        tx.run(INSERT_CHANGES, kinds=list(kinds), refs=list(refs))
    else:
        tx.run_many(INSERT_CHANGE, values)


def changes_of(
    tx: session.Tx, memory: rows.RowCache, locked: LockedProviders, ids: Iterable[int]
) -> list[HostChange]:
    """Return changed hosts, with all claims placed on them."""
    host_ids = [pid for pid in sorted(ids) if locked.is_host(pid)]
    placed = placed_on(tx, memory, {pid: locked.counters[pid].claims_stamp for pid in host_ids})
    return [
        HostChange(provider_id=pid, row=locked.row(pid), placed=list(placed[pid]))
        for pid in host_ids
    ]


def placed_on(
    tx: session.Tx, memory: rows.RowCache, stamps: dict[int, int]
) -> dict[int, tuple[Placed, ...]]:
    """Return provider id -> its live claims, by the claims stamp that was read with it."""
    claims_of_host = {}
    missing = []
    for pid, stamp in stamps.items():
        cached = memory.placed(pid, stamp)
        if cached is None:
            missing.append(pid)
        else:
            claims_of_host[pid] = cached[0]
    for pid, (placed, quiet) in read_placed(tx, memory, missing).items():
        memory.remember_placed(pid, stamps[pid], placed, quiet)
        claims_of_host[pid] = placed
    return claims_of_host


def keep_members(memory: rows.RowCache, provider_id: int, before: int, now: int) -> None:
    """Keep the known claims of a host in memory after they changed but stayed the same ones."""
    cached = memory.placed(provider_id, before)
    if cached is not None:
        memory.remember_placed(provider_id, now, cached[0], None)


def read_placed(
    tx: session.Tx, memory: rows.RowCache, ids: Sequence[int]
) -> dict[int, tuple[tuple[Placed, ...], bytes]]:
    """Return provider id -> (its live claims, the digest of a quiet report about them)."""
    members: dict[int, tuple[tuple[Placed, ...], bytes]] = {}
    if tx.kind == 'postgresql':
        last_placed = {pid: placed for pid in ids if (placed := memory.last_placed(pid))}
        if sum(map(len, last_placed.values())) > FEW_CLAIMS:
            members = _read_members(tx, last_placed)
    others = [pid for pid in ids if pid not in members]
    members |= fold_guests(tx.all(SELECT_PLACED_ON, ids=others) if others else ())
    return {pid: members.get(pid) or NO_GUESTS for pid in ids}


def _read_members(
    tx: session.Tx, before: dict[int, tuple[Placed, ...]]
) -> dict[int, tuple[tuple[Placed, ...], bytes]]:
    """Return live claims and digest by provider id; only claims unknown so far are read whole.

    :param before: claims placed on the hosts earlier
    :returns: without the hosts where a claim moved between the two statements
    """
    placed_by_id = {member.claim_id: member for placed in before.values() for member in placed}
    members: dict[int, list[list[str]]] = {pid: [] for pid in before}
    unknown = []
    for pid, lines in tx.all(SELECT_GUEST_LINES, ids=numbers(list(before))):
        members[pid] = [line.split(' ') for line in lines.split('\n')]
        for claim_id, consumer, has_layout, _ in members[pid]:
            known_one = placed_by_id.get(claim_id)
            is_same = (
                known_one is not None
                and known_one.consumer == consumer
                and known_one.provider_id == pid
            )
            if (
                not is_same
                or has_layout == '1'
                or (known_one is not None and known_one.layout is not None)
            ):
                unknown.append(claim_id)
    if unknown:
        read = tx.all(SELECT_PLACED_BY_CLAIM, claims=texts(unknown))
        for claim_id in unknown:
            placed_by_id.pop(claim_id, None)
        for placed, _ in fold_guests(read).values():
            placed_by_id.update((member.claim_id, member) for member in placed)
    members_of_host = {}
    for pid, lines_of in members.items():
        placed_now = [placed_by_id.get(claim_id) for claim_id, *_ in lines_of]
        host_members = tuple(
            member for member in placed_now if member is not None and member.provider_id == pid
        )
        if len(host_members) == len(lines_of):
            is_complete = all(unsettled == '0' for *_, unsettled in lines_of)
            digest = (
                quiet_report_digest((member.claim_id, member.consumer) for member in host_members)
                if is_complete
                else b''
            )
            members_of_host[pid] = host_members, digest
    return members_of_host


@contextlib.contextmanager
def unless_taken() -> Iterator[None]:
    """Wrap a statement that assigns a provider a name or uuid which was free when it was read.

    :raises RetryTransaction: another transaction has taken it meanwhile
    """
    try:
        yield
    except Exception as e:
        problem = str(retry.root_cause(e))
        if not any(name in problem for name in UNIQUE_INDEXES):
            raise
        raise RetryTransaction('a name or uuid of a provider was taken meanwhile') from e


def ids_by_name(tx: session.Tx, names: Iterable[str]) -> dict[str, int]:
    """Return the provider ids of the hosts known by these names."""
    sorted_names = sorted(set(names))
    if not sorted_names:
        return {}
    if tx.kind == 'postgresql':
        rows_found = tx.all(SELECT_IDS_BY_NAME_ARRAY, names=arrays.texts(sorted_names))
    else:
        rows_found = tx.all(SELECT_IDS_BY_NAME, names=sorted_names)
    return {row.name: row.id for row in rows_found}


def fold_guests(guest_rows: Iterable[Any]) -> dict[int, tuple[tuple[Placed, ...], bytes]]:
    """Return rows of ``SELECT_PLACED`` by provider, with the digest of a quiet report."""
    by_host = {}
    for pid, host_rows in itertools.groupby(guest_rows, key=operator.itemgetter(0)):
        placed, is_complete = [], True
        for _, claim_id, consumer, group, unsettled, image, flavor, member, layout in host_rows:
            # Thousands of guests share a few of these strings.
            image = image and sys.intern(image)
            flavor = flavor and sys.intern(flavor)
            placed.append(
                Placed(
                    claim_id,
                    consumer,
                    pid,
                    group,
                    rows.decode_layout(layout),
                    image,
                    flavor,
                    member,
                )
            )
            is_complete = is_complete and not unsettled
        digest = (
            quiet_report_digest((guest.claim_id, guest.consumer) for guest in placed)
            if is_complete
            else b''
        )
        by_host[pid] = tuple(placed), digest
    return by_host


def quiet_report_digest(guests: Iterable[tuple[str, str]]) -> bytes:
    """Return the digest of a report without changes of claims.

    :param guests: ids of claims, ascending, each with its guest
    """
    return hashlib.blake2b('\n'.join(map(' '.join, guests)).encode(), digest_size=16).digest()


NO_GUESTS: tuple[tuple[Placed, ...], bytes] = ((), quiet_report_digest(()))
