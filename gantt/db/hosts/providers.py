# SPDX-License-Identifier: Apache-2.0
"""Rows of providers: read, locked in ascending order, written.

Everything that changes a provider or a claim on it takes the provider's row
first, through ``lock``.
"""

import hashlib
import itertools
import operator
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.core.resources.host import HostChange, HostRow, Placed
from gantt.db.engine import arrays, engine, session
from gantt.db.engine.arrays import Update, by_key, one_of
from gantt.db.engine.retry import Again
from gantt.db.hosts import rows
from gantt.db.schema import models

_p = models.providers
_f = models.provider_facts
_i = models.inventories
_c = models.claims

_ids: Any = sa.bindparam('ids', expanding=True)
_COUNTERS = sa.select(*[_p.c[name] for name in rows.COUNTERS])
READ = _COUNTERS.where(_p.c.id.in_(_ids)).order_by(_p.c.id)
_LOCKED = sa.select(*[_p.c[name] for name in rows.COUNTERS], session.Now().label('now'))
# FOR NO KEY UPDATE, or FOR UPDATE elsewhere.
LOCK = by_key(
    _LOCKED.where(_p.c.id.in_(_ids)).order_by(_p.c.id).with_for_update(key_share=True), _p
)
LOCK_TOGETHER = (
    _LOCKED.where(one_of(_p.c.id, 'ids', sa.BigInteger))
    .order_by(_p.c.id)
    .with_for_update(key_share=True)
)
LOCK_NAMED = _LOCKED.where(_p.c.name == sa.bindparam('name')).with_for_update(key_share=True)
ALL = _COUNTERS.order_by(_p.c.id)
FACTS = sa.select(*[(_p if name in _p.c else _f).c[name] for name in rows.FACTS]).select_from(
    _p.join(_f, _f.c.provider_id == _p.c.id)
)
FACTS_OF = FACTS.where(_p.c.id.in_(_ids))
OTHERS = (
    sa.select(
        _i.c.provider_id, models.resource_classes.c.name, _i.c.cap, _i.c.used, _i.c.foreign_use
    )
    .join(models.resource_classes, models.resource_classes.c.id == _i.c.class_id)
    .where(models.resource_classes.c.name.not_in(CORE_CLASSES))
)
OTHERS_OF = OTHERS.where(_i.c.provider_id.in_(_ids))
_unsettled = sa.case((sa.and_(_c.c.state == 'confirmed', _c.c.absences == 0), 0), else_=1)
PLACED = (
    sa.select(
        _c.c.provider_id,
        _c.c.id,
        _c.c.consumer,
        _c.c.group_uuid,
        _unsettled.label('unsettled'),
        _c.c.image,
        _c.c.flavor,
        _c.c.layout,
    )
    .where(_c.c.live == 1)
    .order_by(_c.c.provider_id, _c.c.id)
)
PLACED_ON = PLACED.where(_c.c.provider_id.in_(_ids))
BY_NAME = sa.select(_p.c.name, _p.c.id).where(_p.c.name.in_(sa.bindparam('names', expanding=True)))
BY_NAME_TOGETHER = sa.select(_p.c.name, _p.c.id).where(one_of(_p.c.name, 'names', sa.Text))

#: The counters as they become; the version read guards against a write in between
#: where locks are local to a node.
WRITE = Update(
    _p, {'b_id': 'id', 'b_version': 'version'}, [name for name in rows.COUNTERS if name != 'id']
)
#: By its name: an id that was read earlier may be of another class, or of none, since.
CLASS_ID = (
    sa.select(models.resource_classes.c.id)
    .where(models.resource_classes.c.name == sa.bindparam('b_class'))
    .scalar_subquery()
)
WRITE_OTHER = (
    _i.update()
    .where(_i.c.provider_id == sa.bindparam('b_provider'), _i.c.class_id == CLASS_ID)
    .values(used=sa.bindparam('used'), foreign_use=sa.bindparam('foreign_use'))
)
CHANGE = models.changes.insert()
CHANGES = sa.text(
    'INSERT INTO changes (kind, ref) '
    'SELECT :kind, r.ref FROM unnest(CAST(:refs AS text[])) AS r (ref)'
)


class LockedProviders:
    """Providers under lock: as read, and as they become.

    :ivar counters: to be changed in place by whoever holds the lock
    """

    def __init__(self, counters: dict[int, rows.Counters], templates: dict[int, HostRow]) -> None:
        self.counters = counters
        self.templates = templates
        self._versions = {row.id: row.version for row in counters.values()}
        self._others = {
            row.id: {name: list(of) for name, of in row.others.items()}
            for row in counters.values()
            if row.others
        }

    def row(self, provider_id: int) -> HostRow:
        """A provider, whole, as it becomes."""
        return rows.host_row(self.templates[provider_id], self.counters[provider_id])

    def is_open(self, provider_id: int) -> bool:
        """Whether a new claim may be written there."""
        template = self.templates[provider_id]
        return (
            template.disabled is None
            and template.service_disabled is None
            and not self.counters[provider_id].over_committed
        )

    def version_read(self, provider_id: int) -> int:
        """The version under the lock, before any change."""
        return self._versions[provider_id]

    def others_read(self, provider_id: int) -> set[str]:
        """Classes that are not hot and have a row in ``inventories``."""
        return set(self._others.get(provider_id, ()))

    def forget_others(self, provider_id: int) -> None:
        """The classes that are not hot were written otherwise."""
        self._others[provider_id] = {
            name: list(of) for name, of in self.counters[provider_id].others.items()
        }

    def changed_others(self, provider_id: int) -> dict[str, list[int]]:
        """Usage of the classes that are not hot, where it differs from what was read."""
        before = self._others.get(provider_id, {})
        now = self.counters[provider_id].others
        return {name: of for name, of in now.items() if before.get(name) != of}


def lock(tx: session.Tx, memory: rows.Memory, ids: Collection[int]) -> LockedProviders:
    """Lock providers, ascending by id; those that are gone are left out."""
    if not ids:
        return _locked(tx, memory, [])
    if tx.kind == 'postgresql':
        return _locked(tx, memory, tx.all(LOCK_TOGETHER, ids=arrays.numbers(sorted(ids))))
    return _locked(tx, memory, tx.all(LOCK, ids=sorted(ids)))


def lock_named(tx: session.Tx, memory: rows.Memory, name: str) -> LockedProviders:
    """Lock one host, where nothing beside it is to be locked."""
    return _locked(tx, memory, tx.all(LOCK_NAMED, name=name))


def read(tx: session.Tx, memory: rows.Memory, ids: Collection[int]) -> LockedProviders:
    """Read hosts as ``lock`` does, without locking them."""
    found = tx.all(READ, ids=sorted(ids)) if ids else []
    return complete(tx, memory, {row[0]: rows.counters(row) for row in found})


def _locked(tx: session.Tx, memory: rows.Memory, found: Sequence[Any]) -> LockedProviders:
    if found:
        tx.now = found[-1].now
    return complete(tx, memory, {row[0]: rows.counters(row) for row in found})


def complete(
    tx: session.Tx, memory: rows.Memory, counters: dict[int, rows.Counters]
) -> LockedProviders:
    """Add what is not in the counters: facts that are not known yet, other classes."""
    templates: dict[int, HostRow] = {}
    unknown = []
    for row in counters.values():
        template = memory.template(row.id, row.facts_stamp)
        if template is None:
            unknown.append(row.id)
        else:
            templates[row.id] = template
    if unknown:
        for facts in tx.all(FACTS_OF, ids=unknown):
            templates[facts.id] = memory.learn(facts)
    cold = [row.id for row in counters.values() if row.cold]
    if cold:
        for pid, name, cap, used, foreign in tx.all(OTHERS_OF, ids=cold):
            counters[pid].others[name] = [cap, used, foreign]
    # A host that is just being removed may be gone from one of the two tables.
    return LockedProviders(
        {pid: row for pid, row in counters.items() if pid in templates}, templates
    )


def save(tx: session.Tx, locked: LockedProviders, touched: Iterable[int]) -> None:
    """Write counters as they became, one version up, with their feed entries.

    :raises Again: somebody wrote in between, where locks are local to a node
    """
    ids = sorted(touched)
    values = []
    others = []
    for provider_id in ids:
        row = locked.counters[provider_id]
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
    done = WRITE.run(tx, values) == len(values)
    if not done or (others and tx.many(WRITE_OTHER, others) != len(others)):
        raise Again('a provider was written meanwhile')
    announce(tx, 'host', ids)


def counter_values(row: rows.Counters, version_read: int) -> dict[str, Any]:
    """Bound values of ``WRITE``."""
    values: dict[str, Any] = {
        'b_id': row.id,
        'b_version': version_read,
        'generation': row.generation,
        'version': row.version,
        'claims_stamp': row.claims_stamp,
        'facts_stamp': row.facts_stamp,
        'epoch': row.epoch,
        'sequence': row.sequence,
        'full_sequence': row.full_sequence,
        'reported_at': row.reported_at,
        'over_committed': row.over_committed,
        'cold': row.cold,
    }
    values.update(zip(rows.COUNTERS[11:15], row.cap, strict=True))
    values.update(zip(rows.COUNTERS[15:19], row.used, strict=True))
    values.update(zip(rows.COUNTERS[19:23], row.foreign, strict=True))
    return values


def announce(tx: session.Tx, kind: str, refs: Iterable[object]) -> None:
    """Entries of the feed."""
    named = [str(ref) for ref in refs]
    if tx.kind == 'postgresql' and named:
        tx.run(CHANGES, kind=kind, refs=named)
    else:
        tx.many(CHANGE, [{'kind': kind, 'ref': ref} for ref in named])


def changes_of(
    tx: session.Tx, memory: rows.Memory, locked: LockedProviders, ids: Iterable[int]
) -> list[HostChange]:
    """Hosts as they became, with all that is placed on them."""
    wanted = [pid for pid in sorted(ids) if pid in locked.counters]
    placed = placed_on(tx, memory, {pid: locked.counters[pid].claims_stamp for pid in wanted})
    return [
        HostChange(provider_id=pid, row=locked.row(pid), placed=list(placed[pid])) for pid in wanted
    ]


def placed_on(
    tx: session.Tx, memory: rows.Memory, stamps: dict[int, int]
) -> dict[int, tuple[Placed, ...]]:
    """Provider id -> its live claims, by the claims stamp that was read with it."""
    found = {}
    missing = []
    for pid, stamp in stamps.items():
        known = memory.placed(pid, stamp)
        if known is None:
            missing.append(pid)
        else:
            found[pid] = known[0]
    for pid, (placed, quiet) in read_placed(tx, missing).items():
        memory.keep_placed(pid, stamps[pid], placed, quiet)
        found[pid] = placed
    return found


def keep_members(memory: rows.Memory, provider_id: int, before: int, now: int) -> None:
    """The claims of a host changed, but it has the same ones: no need to read them again."""
    known = memory.placed(provider_id, before)
    if known is not None:
        memory.keep_placed(provider_id, now, known[0], None)


def read_placed(tx: session.Tx, ids: Sequence[int]) -> dict[int, tuple[tuple[Placed, ...], bytes]]:
    """Provider id -> its live claims and the digest of a quiet report about them."""
    found = fold_placed(tx.all(PLACED_ON, ids=list(ids)) if ids else ())
    return {pid: found.get(pid) or NOTHING_PLACED for pid in ids}


def fold_placed(found: Iterable[Any]) -> dict[int, tuple[tuple[Placed, ...], bytes]]:
    """Rows of ``PLACED`` by provider, with the digest of a quiet report."""
    by_host = {}
    for pid, of in itertools.groupby(found, key=operator.itemgetter(0)):
        placed, is_complete = [], True
        for _, claim_id, consumer, group, unsettled, image, flavor, layout in of:
            # Thousands of guests have a few of them.
            image = image and sys.intern(image)
            flavor = flavor and sys.intern(flavor)
            placed.append(
                Placed(claim_id, consumer, pid, group, rows.layout(layout), image, flavor)
            )
            is_complete = is_complete and not unsettled
        digest = quiet_digest(one.claim_id for one in placed) if is_complete else b''
        by_host[pid] = tuple(placed), digest
    return by_host


def quiet_digest(claim_ids: Iterable[str]) -> bytes:
    """What a report that says nothing new about claims is known by.

    :param claim_ids: ascending
    """
    return hashlib.blake2b('\n'.join(claim_ids).encode(), digest_size=16).digest()


NOTHING_PLACED: tuple[tuple[Placed, ...], bytes] = ((), quiet_digest(()))


def ids_by_name(tx: session.Tx, names: Iterable[str]) -> dict[str, int]:
    """Provider ids of the hosts known by these names."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    if tx.kind == 'postgresql':
        found = tx.all(BY_NAME_TOGETHER, names=arrays.texts(wanted))
    else:
        found = tx.all(BY_NAME, names=wanted)
    return {row.name: row.id for row in found}


#: Made once: to make a statement takes longer than to run it.
IDS = {
    table: sa.select(table.c.name, table.c.id).where(
        table.c.name.in_(sa.bindparam('names', expanding=True))
    )
    for table in (models.resource_classes, models.traits)
}


class Ids:
    """Ids of resource classes, or of traits, for one transaction; made when first seen.

    Never kept beyond it: a database that was put back to an older state gives an id that
    it had given before to another name.
    """

    def __init__(self, tx: session.Tx, table: sa.Table) -> None:
        self._tx = tx
        self._table = table
        self._known: dict[str, int] = {}

    def of(self, names: Iterable[str]) -> dict[str, int]:
        """The ids of names; those never seen are inserted."""
        stored = {name: engine.storable(name) for name in names}
        missing = sorted({name for name in stored.values() if name not in self._known})
        if missing:
            self._find(missing)
            unknown = [name for name in missing if name not in self._known]
            if unknown:
                self._tx.insert_new(self._table, [{'name': name} for name in unknown], 'name')
                self._find(unknown)
        return {name: self._known[cached] for name, cached in stored.items()}

    def _find(self, names: list[str]) -> None:
        found = self._tx.all(IDS[self._table], names=names)
        self._known.update((row.name, row.id) for row in found)
