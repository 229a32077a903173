# SPDX-License-Identifier: Apache-2.0
"""Messages of an unmodified Nova, folded into claims and aggregates: ``core.nova.guest_events``.

A batch of broadcasts is one transaction.  Hosts are locked before any claim is read that is to
be changed; further locks that turn out to be needed are taken in the next try, in the order of
all locks.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt.core.claims.claim import Claim, guest_of
from gantt.core.messages.base import derived_id
from gantt.core.nova import guest_events
from gantt.core.nova import host as nova_host
from gantt.core.nova.events import (
    AggregateDeleted,
    AggregatesUpdated,
    GuestLocation,
    NovaAggregate,
    NovaCast,
)
from gantt.core.nova.guest_events import EventsSeen
from gantt.core.nova.host import NovaEffect
from gantt.db.claims import adopted, groups
from gantt.db.claims.locks import Aside, Locks
from gantt.db.claims.unit_of_work import UnitOfWork, providers_of
from gantt.db.database import Database, reading, writing
from gantt.db.engine import session
from gantt.db.engine.retry import Again, MoreLocks, RowsLocked
from gantt.db.hosts import aggregates, claim_rows, providers, rows
from gantt.db.hosts.claim_rows import load_claims
from gantt.db.hosts.hosts import HostRecords
from gantt.db.schema import models
from gantt.scheduler.ports import NovaUpdateResult, OpenMove

_c = models.claims
_f = models.provider_facts
_a = models.aggregates
_n = models.nova_events_seen

_ids: Any = sa.bindparam('ids', expanding=True)
READ = sa.select(_n).where(_n.c.id.in_(_ids))
LOCK = READ.order_by(_n.c.id).with_for_update()
WRITE = (
    _n.update()
    .where(_n.c.id == sa.bindparam('b_id'))
    .values({name: sa.bindparam(name) for name in ('casts', 'unclaimed', 'synced_at')})
)
MOVED = (
    sa.select(claim_rows.GUEST.label('consumer'))
    .where(
        _c.c.move_id.is_not(None),
        _c.c.live == 1,
        _c.c.created_at < sa.bindparam('before'),
    )
    .order_by(_c.c.created_at)
    .limit(sa.bindparam('most'))
)
# Only of hosts of Nova: others, and planned groups, may have any number of such claims.
AWAITED = (
    sa.select(claim_rows.GUEST.label('consumer'))
    .join(_f, _f.c.provider_id == _c.c.provider_id)
    .where(
        _f.c.reporter == 'nova',
        _c.c.lifecycle == 'host',
        _c.c.state == 'reserved',
        _c.c.live == 1,
        _c.c.expires_at.is_not(None),
        _c.c.created_at < sa.bindparam('before'),
    )
    .order_by(_c.c.created_at)
    .limit(sa.bindparam('most'))
)
NAME_OF = sa.select(_a.c.name).where(_a.c.uuid == sa.bindparam('uuid'))
UUID_OF = sa.select(_a.c.uuid).where(_a.c.name == sa.bindparam('name'))


def key_of_host(name: str) -> str:
    """Return the id of a host's row in ``nova_events_seen``."""
    return derived_id('nova host', name)


class GuestEventBatch:
    """A batch of broadcasts about guests.

    :ivar also_locked: providers to lock beside the hosts that sent the broadcasts
    """

    def __init__(self, casts: Sequence[NovaCast]) -> None:
        self.casts = casts
        self.also_locked: set[int] = set()
        self.groups: set[str] = set()

    def run(self, changes: UnitOfWork, hosts: HostRecords, aside: Aside) -> NovaUpdateResult:
        """Fold the batch, except the broadcasts of hosts that are locked.

        :raises MoreLocks: to be run again in a new transaction
        """
        tx = changes.tx
        ids = providers.ids_by_name(tx, {host_of(cast) for cast in self.casts})
        keys = {host_of(cast): key_of_host(host_of(cast)) for cast in self.casts}
        known_events = _read(tx, READ, keys.values())
        casts = [
            cast
            for cast in self.casts
            if host_of(cast) in ids and not _seen(known_events, keys[host_of(cast)]).knows(cast)
        ]
        if not casts:
            return NovaUpdateResult()
        groups.lock(tx, self.groups)
        changes.lock(aside.without({ids[host_of(cast)] for cast in casts} | self.also_locked))
        locked_names = sorted({host_of(cast) for cast in casts if ids[host_of(cast)] in aside.left})
        casts = [cast for cast in casts if ids[host_of(cast)] not in aside.left]
        judged = [(cast, _counts(changes, ids[host_of(cast)])) for cast in casts]
        casts = [cast for cast, counts in judged if counts]
        not_novas = [host_of(cast) for cast, counts in judged if not counts]
        if not casts:
            return NovaUpdateResult(not_novas=not_novas, locked=locked_names)
        desk = GuestEventDesk(changes, casts, ids)
        seen_events = _read(tx, READ, {keys[host_of(cast)] for cast in casts})
        result = NovaEffect()
        for cast in casts:
            host = host_of(cast)
            if ids[host] not in changes.locked.counters:
                continue
            before = _seen(seen_events, keys[host])
            seen_events[keys[host]], effect = desk.fold(ids[host], before, cast)
            result = _joined(result, effect)
        self._demand_locks(changes, desk, aside)
        mark(changes, hosts, {ids[host_of(cast)] for cast in casts})
        desk.write(hosts)
        _write(tx, seen_events)
        groups.bump(tx, {claim.group for claim in desk.made if claim.group is not None})
        return NovaUpdateResult(
            confirmed=result.confirmed,
            released=result.released,
            adopted=result.adopted,
            hosts=changes.result([]).hosts,
            not_novas=not_novas,
            locked=locked_names,
        )

    def _demand_locks(self, changes: UnitOfWork, desk: 'GuestEventDesk', aside: Aside) -> None:
        needed_ids = providers_of(desk.now[claim_id] for claim_id in desk.changed)
        if not needed_ids.isdisjoint(aside.left):
            raise RowsLocked('a guest moves to or from a host whose row is locked')
        changed_groups = {claim.group for claim in desk.made if claim.group is not None}
        if not needed_ids <= set(changes.locked.counters) or not changed_groups <= self.groups:
            self.also_locked |= needed_ids
            self.groups |= changed_groups
            raise MoreLocks('a broadcast changes more than its host')


class GuestEventDesk:
    """The claims that a batch concerns, while it is folded."""

    def __init__(
        self, changes: UnitOfWork, casts: Sequence[NovaCast], ids: Mapping[str, int]
    ) -> None:
        self._changes = changes
        self.before: dict[str, Claim] = {}
        self.now: dict[str, Claim] = {}
        self._of: dict[str, dict[str, None]] = {}
        self._on: dict[int, dict[str, None]] = {}
        self._load(casts, ids)

    def _load(self, casts: Sequence[NovaCast], ids: Mapping[str, int]) -> None:
        tx = self._changes.tx
        host_ids = sorted({ids[host_of(cast)] for cast in casts})
        host_claims = load_claims(tx, provider_ids=host_ids, live=True)
        self._keep(host_claims)
        placed = {guest_of(claim) for claim in host_claims}
        placed_on = {(claim.provider_id, guest_of(claim)) for claim in host_claims}
        unplaced = {
            consumer
            for cast in casts
            for consumer in guest_events.consumers_of(cast)
            if (ids[host_of(cast)], consumer) not in placed_on
        }
        # For a guest with a claim here its live claims show whether it moves; for a guest that its
        # host names without a claim, its history shows its amounts, and whether it has left.  Not
        # "live = 1", for which PostgreSQL might read all live claims.
        for consumers, live in ((placed - unplaced, True), (unplaced, False)):
            for part in _parts(sorted(consumers)):
                where = [claim_rows.of_guests(part), *([_c.c.live != 0] if live else [])]
                self._keep(load_claims(tx, where=where))

    def _keep(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self.before[claim.id] = claim
            self._note(claim)

    def fold(
        self, provider_id: int, seen: EventsSeen, cast: NovaCast
    ) -> tuple[EventsSeen, NovaEffect]:
        """Fold one broadcast."""
        host = self._changes.locked.row(provider_id)
        consumers = set(guest_events.consumers_of(cast))
        consumers.update(self._on.get(host.id, ()))
        claims = [
            self.now[claim_id] for consumer in consumers for claim_id in self._of.get(consumer, ())
        ]
        seen, effect = guest_events.fold(host, seen, claims, cast, self._changes.tx.now)
        self.take(effect)
        return seen, effect

    def take(self, effect: NovaEffect) -> None:
        """Record the claims of an effect as they become."""
        for claim in effect.claims:
            self._note(claim)

    def _note(self, claim: Claim) -> None:
        self.now[claim.id] = claim
        self._of.setdefault(guest_of(claim), {})[claim.id] = None
        self._on.setdefault(claim.provider_id, {})[guest_of(claim)] = None

    @property
    def changed(self) -> list[str]:
        """The ids of claims that are new or changed."""
        return sorted(
            claim_id for claim_id, claim in self.now.items() if self.before.get(claim_id) != claim
        )

    @property
    def made(self) -> list[Claim]:
        """The claims that are new."""
        return [self.now[claim_id] for claim_id in self.changed if claim_id not in self.before]

    def write(self, hosts: HostRecords) -> None:
        """Write the claims, and flag the hosts accordingly."""
        changes = self._changes
        for claim_id in self.changed:
            before, now = self.before.get(claim_id), self.now[claim_id]
            if before is None:
                changes.make(now)
            else:
                changes.change(before, now)
        adopted.note_zones(changes)
        adopted.flag(changes, hosts)
        changes.write()


def _counts(changes: UnitOfWork, provider_id: int) -> bool:
    """Return whether Nova's messages about a host count; True too for removed or non-hosts."""
    if not changes.locked.is_host(provider_id):
        return True
    return guest_events.counts(changes.locked.row(provider_id))


def mark(changes: UnitOfWork, hosts: HostRecords, provider_ids: Iterable[int]) -> None:
    """Note that Nova speaks for these hosts."""
    for pid in sorted(set(provider_ids) & set(changes.locked.counters)):
        template = changes.locked.templates[pid]
        if template.reporter != 'nova':
            hosts.note(changes.locked, msgspec.structs.replace(template, reporter='nova'))
            changes.touched.add(pid)
    hosts.write_noted()


def host_of(cast: NovaCast) -> str:
    """Return the host that a broadcast about guests comes from."""
    if isinstance(cast.word, AggregatesUpdated | AggregateDeleted):
        raise TypeError('aggregates are no business of one host')
    return cast.word.host


def _live_of(tx: session.Tx, query: Any, seconds: float, limit: int) -> list[Claim]:
    """Return all live claims of the guests that a query names."""
    consumers = {row.consumer for row in tx.all(query, before=tx.now - seconds, most=limit)}
    claims: list[Claim] = []
    for part in _parts(sorted(consumers)):
        claims += load_claims(tx, where=[claim_rows.of_guests(part), _c.c.live != 0])
    return claims


# -- aggregates -----------------------------------------------------------------------
def _save_aggregate(hosts: HostRecords, counted: NovaAggregate) -> None:
    tx = hosts.tx
    name_before = tx.first(NAME_OF, uuid=counted.uuid)
    if name_before is not None and name_before.name != counted.name:
        if tx.first(UUID_OF, name=counted.name) is not None:
            aggregates.remove(hosts, name_before.name)
        else:
            tx.run(_a.update().where(_a.c.uuid == counted.uuid).values(name=counted.name))
    stored = next(
        (aggregate for aggregate in aggregates.load(tx) if aggregate.name == counted.name), None
    )
    metadata: dict[str, str | None] = dict.fromkeys(stored.metadata if stored else ())
    aggregates.save(
        hosts, counted.name, metadata | counted.metadata, sorted(set(counted.hosts)), counted.uuid
    )


def _forget_aggregate(hosts: HostRecords, counted: NovaAggregate) -> None:
    name_before = hosts.tx.first(NAME_OF, uuid=counted.uuid)
    if name_before is not None:
        aggregates.remove(hosts, name_before.name)


# -- rows ------------------------------------------------------------------------------
def _seen(found: Mapping[str, EventsSeen], key: str) -> EventsSeen:
    return found.get(key) or EventsSeen()


def _read(tx: session.Tx, query: Any, keys: Iterable[str]) -> dict[str, EventsSeen]:
    return {
        row.id: EventsSeen(
            casts=rows.known_texts(row.casts),
            unclaimed=rows.known_texts(row.unclaimed),
            synced_at=row.synced_at,
        )
        for row in tx.all(query, ids=sorted(set(keys)))
    }


def _write(tx: session.Tx, seen: Mapping[str, EventsSeen]) -> None:
    event_rows = [_values(key, seen[key]) for key in sorted(seen)]
    tx.insert_new(_n, event_rows, 'id')
    tx.many(WRITE, [{'b_id': row.pop('id'), **row} for row in event_rows])


def _values(key: str, seen: EventsSeen) -> dict[str, Any]:
    return {
        'id': key,
        'casts': rows.text(seen.casts),
        'unclaimed': rows.text(seen.unclaimed),
        'synced_at': seen.synced_at,
    }


def _joined(one: NovaEffect, other: NovaEffect) -> NovaEffect:
    return NovaEffect(
        confirmed=one.confirmed + other.confirmed,
        released=one.released + other.released,
        adopted=one.adopted + other.adopted,
    )


def _parts(ids: Sequence[str], size: int = 500) -> Iterable[Sequence[str]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))


class SqlNova:
    """Broadcasts and answers of Nova, folded into claims and aggregates: ``ports.Nova`` in SQL."""

    def __init__(self, database: Database, locks: Locks) -> None:
        self.database = database
        self._locks = locks

    def apply_guest_events(self, casts: Sequence[NovaCast]) -> NovaUpdateResult:
        batch = GuestEventBatch(casts)
        return self._locks.around(
            lambda tx, aside: batch.run(
                UnitOfWork(tx, self.database.memory), HostRecords(tx, self.database.memory), aside
            )
        )

    @writing
    def apply_aggregates(self, tx: session.Tx, cast: NovaCast) -> bool:
        hosts, event = HostRecords(tx, self.database.memory), cast.word
        if isinstance(event, AggregatesUpdated):
            cast_aggregates = event.aggregates
        elif isinstance(event, AggregateDeleted):
            cast_aggregates = [event.aggregate]
        else:
            raise TypeError('this is about guests')
        keys = [derived_id('nova aggregate', aggregate.uuid) for aggregate in cast_aggregates]
        tx.insert_new(_n, [_values(key, EventsSeen()) for key in sorted(set(keys))], 'id')
        seen_events = _read(tx, LOCK, keys)
        has_news = False
        for key, aggregate in zip(keys, cast_aggregates, strict=True):
            if seen_events[key].knows(cast):
                continue
            has_news = True
            seen_events[key] = guest_events.noted(seen_events[key], cast)
            if isinstance(event, AggregateDeleted):
                _forget_aggregate(hosts, aggregate)
            else:
                _save_aggregate(hosts, aggregate)
        _write(tx, seen_events)
        return has_news

    @writing
    def resolve_guest(self, tx: session.Tx, counted: GuestLocation) -> NovaUpdateResult:
        changes = UnitOfWork(tx, self.database.memory)
        where = [claim_rows.of_guests([counted.consumer]), _c.c.live != 0]
        claims_before = load_claims(tx, where=where)
        changes.lock(providers_of(claims_before))
        claims_now = load_claims(tx, where=where)
        if providers_of(claims_now) - providers_of(claims_before):
            raise Again('a claim came to be meanwhile')
        claims_now = [claim for claim in claims_now if guest_of(claim) == counted.consumer]
        nova_claims = [claim for claim in claims_now if _counts(changes, claim.provider_id)]
        effect = nova_host.located(nova_claims, counted, tx.now)
        claims_by_id = {claim.id: claim for claim in claims_now}
        for claim in effect.claims:
            changes.change(claims_by_id[claim.id], claim)
        changes.write()
        return NovaUpdateResult(
            confirmed=effect.confirmed,
            released=effect.released,
            hosts=changes.result([]).hosts,
        )

    @reading
    def open_moves(
        self, tx: session.Tx, seconds: float, limit: int, reserved: bool = False
    ) -> list[OpenMove]:
        late_moves = nova_host.overdue_moves(_live_of(tx, MOVED, seconds, limit), tx.now, seconds)
        late_moves.sort(key=lambda move: (move.target.created_at, move.target.id))
        if reserved:
            waiting_claims = nova_host.awaited(
                _live_of(tx, AWAITED, seconds, limit), tx.now, seconds
            )
            waiting_claims.sort(key=lambda claim: (claim.created_at, claim.id))
            late_moves += [
                nova_host.NovaMove(source=claim, target=claim) for claim in waiting_claims
            ]
        templates = providers.read(
            tx, self.database.memory, {m.target.provider_id for m in late_moves}
        ).templates
        return [
            OpenMove(
                source=move.source, target=move.target, seconds=tx.now - move.target.created_at
            )
            for move in late_moves
            if (host := templates.get(move.target.provider_id)) and host.reporter == 'nova'
        ]
