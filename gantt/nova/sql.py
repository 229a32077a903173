# SPDX-License-Identifier: Apache-2.0
"""Messages of an unmodified Nova, folded into claims and aggregates, in SQL.

The rules of the fold are those of ``gantt.nova.model.guest_events``.

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
from gantt.db.claims import adopted
from gantt.db.claims.locks import KnownLocks, SkippedProviders
from gantt.db.claims.unit_of_work import UnitOfWork, providers_of
from gantt.db.database import Database, SqlStore, reading, writing
from gantt.db.engine import session
from gantt.db.engine.retry import MoreLocks, RetryTransaction, RowsLocked
from gantt.db.hosts import aggregates, claim_rows, providers, rows
from gantt.db.hosts.claim_rows import load_claims
from gantt.db.hosts.hosts import HostRecords
from gantt.db.schema import models
from gantt.nova.model import guest_events
from gantt.nova.model import host as nova_host
from gantt.nova.model.events import (
    AggregateDeleted,
    AggregatesUpdated,
    GuestLocation,
    NovaAggregate,
    NovaCast,
)
from gantt.nova.model.guest_events import EventsSeen
from gantt.nova.model.host import NovaEffect
from gantt.nova.ports import NovaUpdateResult, OpenMigration

_claims = models.claims
_provider_facts = models.provider_facts
_aggregates = models.aggregates
_nova_events_seen = models.nova_events_seen

_ids: Any = sa.bindparam('ids', expanding=True)
SELECT_EVENTS_SEEN = sa.select(_nova_events_seen).where(_nova_events_seen.c.id.in_(_ids))
LOCK_EVENTS_SEEN = SELECT_EVENTS_SEEN.order_by(_nova_events_seen.c.id).with_for_update()
UPDATE_EVENTS_SEEN = (
    _nova_events_seen.update()
    .where(_nova_events_seen.c.id == sa.bindparam('b_id'))
    .values({name: sa.bindparam(name) for name in ('casts', 'unclaimed', 'synced_at')})
)
MOVING_GUESTS = (
    sa.select(claim_rows.GUEST_UUID.label('consumer'))
    .where(
        _claims.c.move_id.is_not(None),
        _claims.c.live == 1,
        _claims.c.created_at < sa.bindparam('before'),
    )
    .order_by(_claims.c.created_at)
    .limit(sa.bindparam('most'))
)
# Only of hosts of Nova: others, and planned groups, may have any number of such claims.
UNCONFIRMED_GUESTS = (
    sa.select(claim_rows.GUEST_UUID.label('consumer'))
    .join(_provider_facts, _provider_facts.c.provider_id == _claims.c.provider_id)
    .where(
        _provider_facts.c.reporter == 'nova',
        _claims.c.lifecycle == 'host',
        _claims.c.state == 'reserved',
        _claims.c.live == 1,
        _claims.c.expires_at.is_not(None),
        _claims.c.created_at < sa.bindparam('before'),
    )
    .order_by(_claims.c.created_at)
    .limit(sa.bindparam('most'))
)
AGGREGATE_NAME = sa.select(_aggregates.c.name).where(_aggregates.c.uuid == sa.bindparam('uuid'))
AGGREGATE_UUID = sa.select(_aggregates.c.uuid).where(_aggregates.c.name == sa.bindparam('name'))


def events_seen_id(name: str) -> str:
    """Return the id of a host's row in ``nova_events_seen``."""
    return derived_id('nova host', name)


def move_events_seen(tx: session.Tx, host: str, new: str | None) -> None:
    """Move the record of a host's events to its new name; None: remove it."""
    tx.run(
        _nova_events_seen.delete().where(
            _nova_events_seen.c.id == events_seen_id(host if new is None else new)
        )
    )
    if new is not None:
        tx.run(
            _nova_events_seen.update()
            .where(_nova_events_seen.c.id == events_seen_id(host))
            .values(id=events_seen_id(new))
        )


def extended_by_moves(changes: UnitOfWork, due: Sequence[Claim]) -> Mapping[str, Claim]:
    """Return the due claims that an open move keeps: a ``db.claims.transitions.LeaseHook``."""
    templates = changes.locked.templates
    consumers = {
        guest_of(claim)
        for claim in due
        if claim.provider_id in templates and templates[claim.provider_id].reporter == 'nova'
    }
    if not consumers:
        return {}
    live_claims = claim_rows.load_claims_of(changes.tx, consumers, claim_rows.is_live)
    return nova_host.protected_by_moves(due, list(live_claims), changes.tx.now)


class GuestEventBatch:
    """A batch of broadcasts about guests.

    :ivar further_locks: providers to lock besides the hosts that sent the broadcasts
    """

    def __init__(self, casts: Sequence[NovaCast]) -> None:
        self.casts = casts
        self.further_locks: set[int] = set()
        self.groups: set[str] = set()

    def run(
        self, changes: UnitOfWork, hosts: HostRecords, skipped: SkippedProviders
    ) -> NovaUpdateResult:
        """Fold the batch, except the broadcasts of hosts that are locked.

        :raises MoreLocks: to be run again in a new transaction
        """
        tx = changes.tx
        ids = providers.ids_by_name(tx, {host_of(cast) for cast in self.casts})
        keys = {host_of(cast): events_seen_id(host_of(cast)) for cast in self.casts}
        known_events = _read_events_seen(tx, SELECT_EVENTS_SEEN, keys.values())
        casts = [
            cast
            for cast in self.casts
            if host_of(cast) in ids
            and not _events_seen(known_events, keys[host_of(cast)]).has_applied(cast)
        ]
        if not casts:
            return NovaUpdateResult()
        host_ids = {ids[host_of(cast)] for cast in casts}
        changes.lock(skipped.remaining(host_ids | self.further_locks), self.groups)
        locked_names = sorted(
            {host_of(cast) for cast in casts if ids[host_of(cast)] in skipped.ids}
        )
        casts = [cast for cast in casts if ids[host_of(cast)] not in skipped.ids]
        casts_and_use = [(cast, _takes_nova_events(changes, ids[host_of(cast)])) for cast in casts]
        casts = [cast for cast, takes_nova_events in casts_and_use if takes_nova_events]
        not_novas = [
            host_of(cast) for cast, takes_nova_events in casts_and_use if not takes_nova_events
        ]
        if not casts:
            return NovaUpdateResult(not_novas=not_novas, locked=locked_names)
        state = GuestEventState(changes, casts, ids)
        seen_events = _read_events_seen(
            tx, SELECT_EVENTS_SEEN, {keys[host_of(cast)] for cast in casts}
        )
        result = NovaEffect()
        for cast in casts:
            host = host_of(cast)
            if ids[host] not in changes.locked.counters:
                continue
            before = _events_seen(seen_events, keys[host])
            seen_events[keys[host]], effect = state.fold(ids[host], before, cast)
            result = _joined_effect(result, effect)
        self._demand_locks(changes, state, skipped)
        set_reporter(changes, hosts, {ids[host_of(cast)] for cast in casts})
        state.write(hosts)
        _write_events_seen(tx, seen_events)
        return NovaUpdateResult(
            confirmed=result.confirmed,
            released=result.released,
            adopted=result.adopted,
            hosts=changes.result([]).hosts,
            not_novas=not_novas,
            locked=locked_names,
        )

    def _demand_locks(
        self, changes: UnitOfWork, state: 'GuestEventState', skipped: SkippedProviders
    ) -> None:
        needed_ids = providers_of(state.now[claim_id] for claim_id in state.changed)
        if not needed_ids.isdisjoint(skipped.ids):
            raise RowsLocked('a guest moves to or from a host whose row is locked')
        changed_groups = state.new_groups()
        if not needed_ids <= set(changes.locked.counters) or not changed_groups <= self.groups:
            self.further_locks |= needed_ids
            self.groups |= changed_groups
            raise MoreLocks('a broadcast changes more than its host')


class GuestEventState:
    """The claims that a batch concerns, while it is folded."""

    def __init__(
        self, changes: UnitOfWork, casts: Sequence[NovaCast], ids: Mapping[str, int]
    ) -> None:
        self._changes = changes
        self.before: dict[str, Claim] = {}
        self.now: dict[str, Claim] = {}
        self._claims_by_guest: dict[str, dict[str, None]] = {}
        self._guests_by_host: dict[int, dict[str, None]] = {}
        self._load(casts, ids)

    def _load(self, casts: Sequence[NovaCast], ids: Mapping[str, int]) -> None:
        tx = self._changes.tx
        host_ids = sorted({ids[host_of(cast)] for cast in casts})
        host_claims = load_claims(tx, provider_ids=host_ids, live=True)
        self._add_stored(host_claims)
        placed = {guest_of(claim) for claim in host_claims}
        placed_on = {(claim.provider_id, guest_of(claim)) for claim in host_claims}
        unplaced = {
            consumer
            for cast in casts
            for consumer in guest_events.consumers_of(cast)
            if (ids[host_of(cast)], consumer) not in placed_on
        }
        # For a guest with a claim here its live claims show whether it moves; for a guest that its
        # host names without a claim, its history shows its amounts, and whether it has left.
        for consumers, live in ((placed - unplaced, True), (unplaced, False)):
            self._add_stored(
                claim_rows.load_claims_of(tx, consumers, *([claim_rows.is_live] if live else []))
            )

    def _add_stored(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self.before[claim.id] = claim
            self._add_claim(claim)

    def fold(
        self, provider_id: int, seen: EventsSeen, cast: NovaCast
    ) -> tuple[EventsSeen, NovaEffect]:
        """Fold one broadcast about the guests of a host into the claims."""
        host = self._changes.locked.row(provider_id)
        consumers = set(guest_events.consumers_of(cast))
        consumers.update(self._guests_by_host.get(host.id, ()))
        claims = [
            self.now[claim_id]
            for consumer in consumers
            for claim_id in self._claims_by_guest.get(consumer, ())
        ]
        seen, effect = guest_events.fold(host, seen, claims, cast, self._changes.tx.now)
        self.record_effect(effect)
        return seen, effect

    def record_effect(self, effect: NovaEffect) -> None:
        """Record the claims of an effect as they become."""
        for claim in effect.claims:
            self._add_claim(claim)

    def _add_claim(self, claim: Claim) -> None:
        self.now[claim.id] = claim
        self._claims_by_guest.setdefault(guest_of(claim), {})[claim.id] = None
        self._guests_by_host.setdefault(claim.provider_id, {})[guest_of(claim)] = None

    @property
    def changed(self) -> list[str]:
        """The ids of claims that are new or changed."""
        return sorted(
            claim_id for claim_id, claim in self.now.items() if self.before.get(claim_id) != claim
        )

    def new_groups(self) -> set[str]:
        """Return the groups of new claims."""
        new_claims = [
            self.now[claim_id] for claim_id in self.changed if claim_id not in self.before
        ]
        return {claim.group for claim in new_claims if claim.group is not None}

    def write(self, hosts: HostRecords) -> None:
        """Write the claims, and flag the hosts accordingly."""
        changes = self._changes
        for claim_id in self.changed:
            before, now = self.before.get(claim_id), self.now[claim_id]
            if before is None:
                changes.add_claim(now)
            else:
                changes.change_claim(before, now)
        adopted.write(changes, hosts, self.new_groups())


def _takes_nova_events(changes: UnitOfWork, provider_id: int) -> bool:
    """Return whether Nova's messages about a host count; True too for removed or non-hosts."""
    if not changes.locked.is_host(provider_id):
        return True
    return guest_events.takes_nova_events(changes.locked.row(provider_id))


def set_reporter(changes: UnitOfWork, hosts: HostRecords, provider_ids: Iterable[int]) -> None:
    """Set the reporter of hosts to Nova."""
    for pid in sorted(set(provider_ids) & set(changes.locked.counters)):
        template = changes.locked.templates[pid]
        if template.reporter != 'nova':
            hosts.collect_facts(changes.locked, msgspec.structs.replace(template, reporter='nova'))
            changes.touched_providers.add(pid)
    hosts.write_collected_facts()


def host_of(cast: NovaCast) -> str:
    """Return the host that a broadcast about guests comes from."""
    if isinstance(cast.event, AggregatesUpdated | AggregateDeleted):
        raise TypeError('expected a broadcast about guests, got one about aggregates')
    return cast.event.host


def _live_claims_of(tx: session.Tx, query: Any, seconds: float, limit: int) -> list[Claim]:
    """Return all live claims of the guests that a query names."""
    consumers = {row.consumer for row in tx.all(query, before=tx.now - seconds, most=limit)}
    return list(claim_rows.load_claims_of(tx, consumers, claim_rows.is_live))


# -- aggregates -----------------------------------------------------------------------
def _save_aggregate(hosts: HostRecords, counted: NovaAggregate) -> None:
    tx = hosts.tx
    name_before = tx.first(AGGREGATE_NAME, uuid=counted.uuid)
    if name_before is not None and name_before.name != counted.name:
        if tx.first(AGGREGATE_UUID, name=counted.name) is not None:
            aggregates.remove(hosts, name_before.name)
        else:
            tx.run(
                _aggregates.update()
                .where(_aggregates.c.uuid == counted.uuid)
                .values(name=counted.name)
            )
    stored = next(
        (aggregate for aggregate in aggregates.load(tx) if aggregate.name == counted.name), None
    )
    metadata: dict[str, str | None] = dict.fromkeys(stored.metadata if stored else ())
    aggregates.save(
        hosts, counted.name, metadata | counted.metadata, sorted(set(counted.hosts)), counted.uuid
    )


def _forget_aggregate(hosts: HostRecords, counted: NovaAggregate) -> None:
    name_before = hosts.tx.first(AGGREGATE_NAME, uuid=counted.uuid)
    if name_before is not None:
        aggregates.remove(hosts, name_before.name)


# -- rows ------------------------------------------------------------------------------
def _events_seen(seen_events: Mapping[str, EventsSeen], key: str) -> EventsSeen:
    return seen_events.get(key) or EventsSeen()


def _read_events_seen(tx: session.Tx, query: Any, keys: Iterable[str]) -> dict[str, EventsSeen]:
    return {
        row.id: EventsSeen(
            casts=rows.readable_texts(row.casts),
            unclaimed=rows.readable_texts(row.unclaimed),
            synced_at=row.synced_at,
        )
        for row in tx.all(query, ids=sorted(set(keys)))
    }


def _write_events_seen(tx: session.Tx, seen: Mapping[str, EventsSeen]) -> None:
    event_rows = [_row_values(key, seen[key]) for key in sorted(seen)]
    tx.insert_new(_nova_events_seen, event_rows, 'id')
    tx.run_many(UPDATE_EVENTS_SEEN, [{'b_id': row.pop('id'), **row} for row in event_rows])


def _row_values(key: str, seen: EventsSeen) -> dict[str, Any]:
    return {
        'id': key,
        'casts': rows.json_text(seen.casts),
        'unclaimed': rows.json_text(seen.unclaimed),
        'synced_at': seen.synced_at,
    }


def _joined_effect(effect: NovaEffect, other: NovaEffect) -> NovaEffect:
    return NovaEffect(
        confirmed=effect.confirmed + other.confirmed,
        released=effect.released + other.released,
        adopted=effect.adopted + other.adopted,
    )


class SqlNova(SqlStore):
    """Broadcasts and answers of Nova, folded into claims and aggregates: ``ports.Nova`` in SQL."""

    def __init__(self, database: Database, locks: KnownLocks) -> None:
        super().__init__(database)
        self._locks = locks

    def apply_guest_events(self, casts: Sequence[NovaCast]) -> NovaUpdateResult:
        batch = GuestEventBatch(casts)
        return self._locks.write_without_locked(
            lambda tx, skipped: batch.run(
                UnitOfWork(tx, self.database.memory), HostRecords(tx, self.database.memory), skipped
            )
        )

    @writing
    def apply_aggregates(self, tx: session.Tx, cast: NovaCast) -> bool:
        hosts, event = HostRecords(tx, self.database.memory), cast.event
        if isinstance(event, AggregatesUpdated):
            cast_aggregates = event.aggregates
        elif isinstance(event, AggregateDeleted):
            cast_aggregates = [event.aggregate]
        else:
            raise TypeError('expected a broadcast about aggregates, got one about guests')
        keys = [derived_id('nova aggregate', aggregate.uuid) for aggregate in cast_aggregates]
        tx.insert_new(
            _nova_events_seen, [_row_values(key, EventsSeen()) for key in sorted(set(keys))], 'id'
        )
        seen_events = _read_events_seen(tx, LOCK_EVENTS_SEEN, keys)
        has_news = False
        for key, aggregate in zip(keys, cast_aggregates, strict=True):
            if seen_events[key].has_applied(cast):
                continue
            has_news = True
            seen_events[key] = guest_events.with_cast(seen_events[key], cast)
            if isinstance(event, AggregateDeleted):
                _forget_aggregate(hosts, aggregate)
            else:
                _save_aggregate(hosts, aggregate)
        _write_events_seen(tx, seen_events)
        return has_news

    @writing
    def resolve_guest(self, tx: session.Tx, counted: GuestLocation) -> NovaUpdateResult:
        changes = UnitOfWork(tx, self.database.memory)
        where = [claim_rows.of_guests([counted.consumer]), _claims.c.live != 0]
        claims_before = load_claims(tx, where=where)
        changes.lock(providers_of(claims_before))
        claims_now = load_claims(tx, where=where)
        if providers_of(claims_now) - providers_of(claims_before):
            raise RetryTransaction('a claim came to be meanwhile')
        claims_now = [claim for claim in claims_now if guest_of(claim) == counted.consumer]
        nova_claims = [
            claim for claim in claims_now if _takes_nova_events(changes, claim.provider_id)
        ]
        effect = nova_host.apply_location(nova_claims, counted, tx.now)
        claims_by_id = {claim.id: claim for claim in claims_now}
        for claim in effect.claims:
            changes.change_claim(claims_by_id[claim.id], claim)
        changes.write()
        return NovaUpdateResult(
            confirmed=effect.confirmed,
            released=effect.released,
            hosts=changes.result([]).hosts,
        )

    @reading
    def open_moves(
        self, tx: session.Tx, seconds: float, limit: int, reserved: bool = False
    ) -> list[OpenMigration]:
        late_moves = nova_host.overdue_moves(
            _live_claims_of(tx, MOVING_GUESTS, seconds, limit), tx.now, seconds
        )
        late_moves.sort(key=lambda move: (move.target.created_at, move.target.id))
        if reserved:
            waiting_claims = nova_host.unconfirmed_claims(
                _live_claims_of(tx, UNCONFIRMED_GUESTS, seconds, limit), tx.now, seconds
            )
            waiting_claims.sort(key=lambda claim: (claim.created_at, claim.id))
            late_moves += [
                nova_host.MigrationClaims(source=claim, target=claim) for claim in waiting_claims
            ]
        templates = providers.read(
            tx, self.database.memory, {m.target.provider_id for m in late_moves}
        ).templates
        return [
            OpenMigration(
                source=move.source, target=move.target, seconds=tx.now - move.target.created_at
            )
            for move in late_moves
            if (host := templates.get(move.target.provider_id)) and host.reporter == 'nova'
        ]
