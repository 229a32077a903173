# SPDX-License-Identifier: Apache-2.0
"""Rows of providers: read, locked in ascending order, written.

Everything that changes a provider or a claim on it takes the provider's row
first, through ``lock``.

Those with a row in ``provider_facts`` are hosts.  Of others nothing but counters
is read and locked here: what they are is the business of ``db.hosts.trees``.
"""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import aggregate_order_by

from gantt.core.claims.acceptance import ProviderState, why_closed
from gantt.core.messages.resource_classes import CORE_CLASSES, Inventory
from gantt.core.resources.host import HostChange, HostKind, HostRow, Placed
from gantt.core.topology.free import FreeTopology
from gantt.db.engine import arrays, retry, session
from gantt.db.engine.arrays import Update, by_key, numbers, one_of, texts
from gantt.db.engine.retry import Again
from gantt.db.hosts import claim_rows, details, guests, rows
from gantt.db.hosts.inventories import NONE_READ, PoolFacts, ReadPools, pools_of
from gantt.db.schema import models

_p = models.providers
_f = models.provider_facts
_i = models.inventories
_c = models.claims

_ids: Any = sa.bindparam('ids', expanding=True)
_COUNTERS = sa.select(*[_p.c[name] for name in rows.COUNTERS])
READ = _COUNTERS.where(_p.c.id.in_(_ids)).order_by(_p.c.id)
_LOCKED = sa.select(*[_p.c[name] for name in rows.COUNTERS], session.Now().label('now'))
_PLACED = _LOCKED.add_columns(
    _p.c.uuid, _p.c.kind, sa.func.coalesce(_p.c.root_id, _p.c.id).label('root')
)


def _by_id(query: Any) -> Any:
    """FOR NO KEY UPDATE, or FOR UPDATE elsewhere."""
    query = query.where(_p.c.id.in_(_ids)).order_by(_p.c.id)
    return by_key(query.with_for_update(key_share=True), _p)


def _by_ids_together(query: Any) -> Any:
    query = query.where(one_of(_p.c.id, 'ids', sa.BigInteger)).order_by(_p.c.id)
    return query.with_for_update(key_share=True)


LOCK, LOCK_TOGETHER = _by_id(_LOCKED), _by_ids_together(_LOCKED)
LOCK_PLACED, LOCK_PLACED_TOGETHER = _by_id(_PLACED), _by_ids_together(_PLACED)
LOCK_NAMED = _LOCKED.where(_p.c.name == sa.bindparam('name')).with_for_update(key_share=True)
is_host = _p.c.kind == HostKind.HOST.value
ALL = _COUNTERS.where(is_host).order_by(_p.c.id)
#: What a provider is called: a host by its service, another one by its own name.
SHOWN_NAME = sa.case((is_host, _p.c.name), else_=_p.c.own_name).label('name')
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
#: Of the indexes that hold names and uuids apart, as databases call them.
UNIQUE = (
    *('uq_providers_', 'ix_providers_own_name'),
    *('providers.name', 'providers.own_name', 'providers.uuid'),
)
OTHERS_OF = OTHERS.where(_i.c.provider_id.in_(_ids))
_unsettled = sa.case((sa.and_(_c.c.state == 'confirmed', _c.c.absences == 0), 0), else_=1)
_PLACED_ROWS = sa.select(
    _c.c.provider_id,
    _c.c.id,
    claim_rows.GUEST.label('consumer'),
    _c.c.group_uuid,
    _unsettled.label('unsettled'),
    _c.c.image,
    _c.c.flavor,
    _c.c.member_name,
    _c.c.layout,
).order_by(_c.c.provider_id, _c.c.id)
PLACED = _PLACED_ROWS.where(_c.c.live == 1)
PLACED_ON = PLACED.where(_c.c.provider_id.in_(_ids))
# Not "live = 1", by which PostgreSQL may read all live claims and compare each with every id.
PLACED_CLAIMS = _PLACED_ROWS.where(claim_rows.is_live, one_of(_c.c.id, 'claims', sa.Text))
#: A line for each live claim of a host: id, consumer, 1 where it has a layout, 1 where it is
#: unsettled.  Of most of them everything else is known already, and does not change.
MEMBERS_ON = (
    sa.select(
        _c.c.provider_id,
        sa.func.string_agg(
            sa.func.concat_ws(
                ' ',
                _c.c.id,
                _c.c.consumer,
                sa.case((_c.c.layout.is_(None), 0), else_=1),
                _unsettled,
            ),
            aggregate_order_by(sa.literal('\n'), _c.c.id),
        ),
    )
    .where(_c.c.live == 1, one_of(_c.c.provider_id, 'ids', sa.BigInteger))
    .group_by(_c.c.provider_id)
)
BY_NAME = sa.select(_p.c.name, _p.c.id).where(_p.c.name.in_(sa.bindparam('names', expanding=True)))
BY_NAME_TOGETHER = sa.select(_p.c.name, _p.c.id).where(one_of(_p.c.name, 'names', sa.Text))

#: The counters as they become; the version read guards against a write in between
#: where locks are local to a node.
_KEY = {'b_id': 'id', 'b_version': 'version'}
WRITE = Update(_p, _KEY, [name for name in rows.COUNTERS if name != 'id'])
#: What claims change of them.
USAGE = ('generation', 'version', 'claims_stamp', 'over_committed', *rows.COUNTERS[15:19])
WRITE_USAGE = Update(_p, _KEY, USAGE)
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
    'INSERT INTO changes (kind, ref) SELECT * '
    'FROM unnest(CAST(:kinds AS text[]), CAST(:refs AS text[])) AS r (kind, ref)'
)


class LockedPlace(NamedTuple):
    """Where a provider stands, as its row says under lock; a root is its own root."""

    uuid: str
    kind: str
    root_id: int


class LockedProviders:
    """Providers under lock: as read, and as they become.

    :ivar counters: to be changed in place by whoever holds the lock
    :ivar templates: of those that are hosts, what their rows say beyond counters
    :ivar pools: the others, as far as they were read
    :ivar places: where they stand, see :func:`lock_placed`
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
        self._others = {
            row.id: {name: list(of) for name, of in row.others.items()}
            for row in counters.values()
            if row.others
        }

    def hosts(self) -> list[int]:
        """Those that are hosts, ascending."""
        return sorted(self.templates)

    def is_host(self, provider_id: int) -> bool:
        """Whether there is the record of a host."""
        return provider_id in self.templates

    def row(self, provider_id: int) -> HostRow:
        """A host, whole, as it becomes."""
        return rows.host_row(self.templates[provider_id], self.counters[provider_id])

    def state(
        self,
        provider_id: int,
        inside: FreeTopology | None = None,
        serves: frozenset[int] = frozenset(),
    ) -> ProviderState:
        """A provider as claims on it are judged.

        Its facts, and so its units, are those of this moment: who changes them locks its row
        and writes it.  Where locks are local to a node one of two such writes fails.

        :param inside: what its live claims leave inside of it, where that is to be judged
        :param serves: hosts that it serves as a pool, likewise
        """
        counters = self.counters[provider_id]
        template = self.templates.get(provider_id)
        if template is None:
            name = self.pools[provider_id].name
            closed = ''  # nobody disables it, and room is judged by class
        else:
            name = template.name
            closed = why_closed(template, over_full=bool(counters.over_committed))
        return ProviderState(
            name=name,
            generation=counters.generation,
            inventories=self.inventories(provider_id),
            room=rows.room(counters),
            closed=closed,
            serves=serves,
            inside=inside,
        )

    def inventories(self, provider_id: int) -> dict[str, Inventory]:
        """What a provider has."""
        template = self.templates.get(provider_id)
        if template is None:
            return self.pools[provider_id].inventories
        return template.facts.inventories

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


def lock_placed(tx: session.Tx, memory: rows.Memory, ids: Collection[int]) -> LockedProviders:
    """The same, with their places; what is said of pools is left to :func:`read_pools`.

    :param ids: at least one
    """
    if tx.kind == 'postgresql':
        found = tx.all(LOCK_PLACED_TOGETHER, ids=arrays.numbers(sorted(ids)))
    else:
        found = tx.all(LOCK_PLACED, ids=sorted(ids))
    locked = _locked(tx, memory, found, counters_only=True)
    locked.places = {row[0]: LockedPlace(row.uuid, row.kind, row.root) for row in found}
    return locked


def read_pools(tx: session.Tx, locked: LockedProviders, ids: Iterable[int]) -> None:
    """Read what is said of those locked that are no hosts, where that is not done."""
    missing = sorted(set(ids) - locked.templates.keys() - locked.pools.keys())
    if missing:
        locked.pools.update(pools_of(tx, missing))


def read_uncounted(tx: session.Tx, locked: LockedProviders, ids: Iterable[int]) -> None:
    """Read the other classes of those whose rows say that they have none, which may be wrong.

    Before all inventories are written anew: what is used of them has to stay.  What was counted
    meanwhile comes on top.
    """
    wanted = sorted({pid for pid in ids if not locked.counters[pid].cold})
    for pid, name, cap, *taken in tx.all(OTHERS_OF, ids=wanted) if wanted else ():
        counted = locked.counters[pid].others.get(name, (0, 0, 0))[1:]
        locked.counters[pid].others[name] = [cap, *map(sum, zip(taken, counted, strict=True))]


def lock_named(tx: session.Tx, memory: rows.Memory, name: str) -> LockedProviders:
    """Lock one host, where nothing beside it is to be locked."""
    return _locked(tx, memory, tx.all(LOCK_NAMED, name=name))


def read(tx: session.Tx, memory: rows.Memory, ids: Collection[int]) -> LockedProviders:
    """Read hosts as ``lock`` does, without locking them."""
    found = tx.all(READ, ids=sorted(ids)) if ids else []
    return complete(tx, memory, {row[0]: rows.counters(row) for row in found})


def _locked(
    tx: session.Tx, memory: rows.Memory, found: Sequence[Any], counters_only: bool = False
) -> LockedProviders:
    if found:
        tx.now = found[-1].now
    return complete(tx, memory, {row[0]: rows.counters(row) for row in found}, counters_only)


def complete(
    tx: session.Tx,
    memory: rows.Memory,
    counters: dict[int, rows.Counters],
    counters_only: bool = False,
    read_pools: ReadPools = NONE_READ,
) -> LockedProviders:
    """Add what is not in the counters: facts that are not known yet, other classes.

    :param counters_only: of those that are known to be no hosts
    :param read_pools: those that were read already
    """
    templates: dict[int, HostRow] = {}
    pools = {pid: of for pid, of in read_pools.facts.items() if pid in counters}
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
        templates |= learn(tx, memory, tx.all(FACTS_OF, ids=unknown))
        unknown = [pid for pid in unknown if pid not in templates]
    wanted = [*unknown, *(() if counters_only else no_hosts)]
    if wanted:
        pools |= pools_of(tx, wanted)
        for pid in pools.keys() & set(unknown):
            memory.keep_no_host(pid, counters[pid].facts_stamp)
    _add_others(tx, counters, read_pools)
    # A host that is just being removed may be gone from one of the two tables.
    there = templates.keys() | pools.keys() | (no_hosts if counters_only else set())
    known = {pid: row for pid, row in counters.items() if pid in there}
    return LockedProviders(known, templates, pools)


def _add_others(
    tx: session.Tx, counters: Mapping[int, rows.Counters], read_pools: ReadPools
) -> None:
    """Add the classes that are not hot, of those that have any."""
    cold = []
    for row in counters.values():
        if row.cold and row.id in read_pools.facts:
            row.others.update(read_pools.others.get(row.id, {}))
        elif row.cold:
            cold.append(row.id)
    if cold:
        for pid, name, cap, used, foreign in tx.all(OTHERS_OF, ids=cold):
            counters[pid].others[name] = [cap, used, foreign]


def learn(tx: session.Tx, memory: rows.Memory, found: Iterable[Any]) -> dict[int, HostRow]:
    """What hosts say beyond counters, by id.

    Of those whose records have the same mark one is asked what its rows say.  Where they were
    written after the record was read the others are asked as well.

    :param found: rows of ``FACTS``
    """
    records = {row.id: row for row in found}
    marks = {pid: details.mark_of(row.facts) for pid, row in records.items()}
    known = {pid: memory.details_of(pid, mark) for pid, mark in marks.items()}
    of = {pid: one for pid, one in known.items() if one is not None}
    missing = {pid: mark for pid, mark in marks.items() if pid not in of}
    firsts = {mark: pid for pid, mark in missing.items() if mark is not None}
    asked = [pid for pid, mark in missing.items() if mark is None or firsts[mark] == pid]
    has = details.read(tx, asked)
    alike = {one.digest: one for one in has.values()}
    of |= has | {
        pid: alike[mark]
        for pid, mark in missing.items()
        if mark is not None and mark in alike and pid not in has
    }
    of |= details.read(tx, records.keys() - of.keys())
    return {pid: memory.learn(row, of[pid]) for pid, row in records.items()}


def save(
    tx: session.Tx, locked: LockedProviders, touched: Iterable[int], *, usage_only: bool = False
) -> None:
    """Write counters as they became, one version up, with their feed entries.

    A provider that is over-full no more loses its flag here, whoever writes it.

    :param usage_only: nothing has changed but what claims change
    :raises Again: somebody wrote in between, where locks are local to a node
    """
    ids = sorted(touched)
    values = []
    others = []
    for provider_id in ids:
        row = locked.counters[provider_id]
        rows.unflag(row)
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
        values = [{name: of[name] for name in (*_KEY, *USAGE)} for of in values]
    done = (WRITE_USAGE if usage_only else WRITE).run(tx, values) == len(values)
    if not done or (others and tx.many(WRITE_OTHER, others) != len(others)):
        raise Again('a provider was written meanwhile')
    announce_written(tx, locked, ids)


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


def announce_written(tx: session.Tx, locked: LockedProviders, ids: Sequence[int]) -> None:
    """Entries of the feed for providers, by what they are."""
    _announce(tx, [('host' if locked.is_host(pid) else 'provider', pid) for pid in ids])


def announce(tx: session.Tx, kind: str, refs: Iterable[object]) -> None:
    """Entries of the feed."""
    _announce(tx, [(kind, ref) for ref in refs])


def _announce(tx: session.Tx, entries: Sequence[tuple[str, object]]) -> None:
    values = [{'kind': kind, 'ref': str(ref)} for kind, ref in entries]
    if tx.kind == 'postgresql' and values:
        kinds, refs = zip(*((one['kind'], one['ref']) for one in values), strict=True)
        tx.run(CHANGES, kinds=list(kinds), refs=list(refs))
    else:
        tx.many(CHANGE, values)


def changes_of(
    tx: session.Tx, memory: rows.Memory, locked: LockedProviders, ids: Iterable[int]
) -> list[HostChange]:
    """Hosts as they became, with all that is placed on them."""
    wanted = [pid for pid in sorted(ids) if locked.is_host(pid)]
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
    for pid, (placed, quiet) in read_placed(tx, memory, missing).items():
        memory.keep_placed(pid, stamps[pid], placed, quiet)
        found[pid] = placed
    return found


def keep_members(memory: rows.Memory, provider_id: int, before: int, now: int) -> None:
    """The claims of a host changed, but it has the same ones: no need to read them again."""
    known = memory.placed(provider_id, before)
    if known is not None:
        memory.keep_placed(provider_id, now, known[0], None)


def read_placed(
    tx: session.Tx, memory: rows.Memory, ids: Sequence[int]
) -> dict[int, tuple[tuple[Placed, ...], bytes]]:
    """Provider id -> its live claims and the digest of a quiet report about them."""
    found: dict[int, tuple[tuple[Placed, ...], bytes]] = {}
    if tx.kind == 'postgresql':
        before = {pid: placed for pid in ids if (placed := memory.last_placed(pid))}
        found = _read_members(tx, before) if before else {}
    others = [pid for pid in ids if pid not in found]
    found |= guests.fold(tx.all(PLACED_ON, ids=others) if others else ())
    return {pid: found.get(pid) or guests.NOBODY for pid in ids}


def _read_members(
    tx: session.Tx, before: dict[int, tuple[Placed, ...]]
) -> dict[int, tuple[tuple[Placed, ...], bytes]]:
    """The same of hosts of which some claims are known: only the others are read whole.

    :param before: what was placed on the hosts earlier
    :returns: without the hosts where a claim went between the two statements
    """
    known = {one.claim_id: one for placed in before.values() for one in placed}
    members: dict[int, list[list[str]]] = {pid: [] for pid in before}
    unknown = []
    for pid, lines in tx.all(MEMBERS_ON, ids=numbers(list(before))):
        members[pid] = [line.split(' ') for line in lines.split('\n')]
        for claim_id, consumer, has_layout, _ in members[pid]:
            one = known.get(claim_id)
            same = one is not None and one.consumer == consumer and one.provider_id == pid
            if not same or has_layout == '1' or (one is not None and one.layout is not None):
                unknown.append(claim_id)
    if unknown:
        read = tx.all(PLACED_CLAIMS, claims=texts(unknown))
        for claim_id in unknown:
            known.pop(claim_id, None)
        for placed, _ in guests.fold(read).values():
            known.update((one.claim_id, one) for one in placed)
    found = {}
    for pid, lines_of in members.items():
        now = [known.get(claim_id) for claim_id, *_ in lines_of]
        here = tuple(one for one in now if one is not None and one.provider_id == pid)
        if len(here) == len(lines_of):
            is_complete = all(unsettled == '0' for *_, unsettled in lines_of)
            digest = (
                guests.quiet_digest((one.claim_id, one.consumer) for one in here)
                if is_complete
                else b''
            )
            found[pid] = here, digest
    return found


@contextlib.contextmanager
def unless_taken() -> Iterator[None]:
    """Around a statement that gives a provider a name or uuid which looked free.

    :raises Again: another transaction has given it away meanwhile
    """
    try:
        yield
    except Exception as e:
        problem = str(retry.root_of(e))
        if not any(name in problem for name in UNIQUE):
            raise
        raise Again('a name or uuid of a provider was taken meanwhile') from e


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
