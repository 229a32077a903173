# SPDX-License-Identifier: Apache-2.0
"""Allocations written by requests, as claims: one transaction for all of one request.

A writer of allocations locks the consumers' rows of ``written_consumers`` ascending, then all
providers concerned ascending, whatever is on them; then it reads the claims again.  Two writers of
one consumer conflict at its row, also where it does not exist yet; schedulers and hosts, which do
not use that row, conflict at the providers.
"""

import itertools
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import sqlalchemy as sa
from msgspec import UNSET

from gantt import exceptions
from gantt.core.claims import allocations as rules
from gantt.core.claims.acceptance import (
    ProviderState,
    SharesRefusal,
    why_allocations_refused,
    with_inventories,
)
from gantt.core.claims.allocations import (
    AllocationCompiler,
    ClaimChanges,
    ConsumerState,
    ProviderRoot,
    WantedAllocations,
)
from gantt.core.claims.claim import Claim, guest_of
from gantt.core.claims.inheritance import amounts_gained, has_pool_amounts
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources import provider as provider_rules
from gantt.core.resources.host import HostKind, HostRow
from gantt.db.claims import held
from gantt.db.claims.unit_of_work import UnitOfWork, providers_of
from gantt.db.database import Database, SqlStore, reading
from gantt.db.engine import retry, session
from gantt.db.engine.arrays import BulkUpdate
from gantt.db.engine.combine import RequestCombiner
from gantt.db.engine.engine import is_id
from gantt.db.engine.retry import RetryTransaction
from gantt.db.hosts import claim_rows, providers, rows, trees
from gantt.db.hosts.providers import LockedProviders
from gantt.db.schema import models
from gantt.placement_api.ports import (
    ConsumerAllocations,
    ProviderAllocations,
    ReshapedProvider,
    TypeUsage,
)
from gantt.placement_api.sql import consumers as stored
from gantt.placement_api.sql import usages
from gantt.placement_api.sql.providers import UPDATE_PROVIDER, check_classes

_claims = models.claims
_providers = models.providers
_written_consumers = models.written_consumers
_top = _providers.alias('top')
#: Positions of these providers, and whether their tree is a host's.
TREE_PLACES = sa.select(
    _providers.c.id, _providers.c.uuid, _top.c.id.label('top'), _top.c.kind.label('top_kind')
).select_from(
    _providers.join(_top, _top.c.id == sa.func.coalesce(_providers.c.root_id, _providers.c.id))
)
TREE_PLACES_BY_UUID = TREE_PLACES.where(
    _providers.c.uuid.in_(sa.bindparam('uuids', expanding=True))
)
TREE_PLACES_BY_ID = TREE_PLACES.where(_providers.c.id.in_(sa.bindparam('ids', expanding=True)))


class TreePlace(NamedTuple):
    """Position of one provider."""

    id: int
    uuid: str
    root: ProviderRoot

    def holds(self, locked: LockedProviders) -> bool:
        """Return whether the locked rows have this position still, and the root is locked, too."""
        row, root = locked.places[self.id], locked.places[self.root.id]
        is_host = root.kind == HostKind.HOST
        return (row.uuid, row.root_id, is_host) == (self.uuid, *self.root)


class PlaceCache:
    """Cache of positions in trees: bounded, thread-safe.

    Trees change rarely, so a writer of allocations reads this cache first, and locks its providers.
    The rows under lock have the positions; if the cache differs it is cleared and read anew.

    :param most: most positions to remember
    """

    def __init__(self, most: int = 32_768) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._by_uuid: dict[str, TreePlace] = {}
        self._by_id: dict[int, TreePlace] = {}

    def named(self, tx: session.Tx, uuids: Sequence[str]) -> dict[int, TreePlace]:
        """Return the positions of the providers with these uuids, by id, without absent ones."""
        cached = [self._by_uuid.get(uuid) for uuid in uuids]
        places = {place.id: place for place in cached if place is not None}
        missing = [uuid for uuid, place in zip(uuids, cached, strict=True) if place is None]
        if missing:
            places |= self._add_rows(tx.all(TREE_PLACES_BY_UUID, uuids=missing))
        return places

    def of(self, tx: session.Tx, ids: Collection[int]) -> dict[int, TreePlace]:
        """Return positions in trees of the providers with these ids, by id."""
        cached = {pid: self._by_id.get(pid) for pid in ids}
        places = {pid: place for pid, place in cached.items() if place is not None}
        missing = sorted(ids - places.keys())
        if missing:
            places |= self._add_rows(tx.all(TREE_PLACES_BY_ID, ids=missing))
        return places

    def _add_rows(self, rows: Iterable[Any]) -> dict[int, TreePlace]:
        learned = [
            TreePlace(row.id, row.uuid, ProviderRoot(row.top, row.top_kind == HostKind.HOST))
            for row in rows
        ]
        with self._lock:
            for place in learned:
                if len(self._by_id) >= self._most or len(self._by_uuid) >= self._most:
                    self._by_id = {}
                    self._by_uuid = {}
                self._by_id[place.id] = self._by_uuid[place.uuid] = place
        return {place.id: place for place in learned}

    def forget(self, places: Iterable[TreePlace]) -> None:
        """Forget these positions, so that they are read anew."""
        with self._lock:
            for place in places:
                self._by_id.pop(place.id, None)
                self._by_uuid.pop(place.uuid, None)


#: id of a provider -> class -> inventory
Inventories = Mapping[int, Mapping[str, Inventory]]
NOTHING_RESHAPED: Inventories = MappingProxyType({})
#: Claims before and after a change.
Heirs = Sequence[tuple[Claim, Claim]]

_uuids: Any = sa.bindparam('uuids', expanding=True)
#: Versions of claims: each change of a claim writes its time.
CLAIM_STATES = sa.select(_claims.c.id, _claims.c.state, _claims.c.updated_at).where(
    _claims.c.consumer.in_(_uuids), claim_rows.is_live
)
UPDATE_CONSUMERS = BulkUpdate(
    _written_consumers, {'b_uuid': 'uuid'}, ('generation', 'digest', 'stamp')
)
DELETE_CONSUMERS = _written_consumers.delete().where(_written_consumers.c.uuid.in_(_uuids))
CONSUMERS_OF_STAMP = (
    sa.select(_written_consumers.c.uuid)
    .where(
        _written_consumers.c.uuid.in_(_uuids),
        _written_consumers.c.stamp.in_(sa.bindparam('stamps', expanding=True)),
    )
    .limit(1)
)
PROVIDER_GENERATION = sa.select(_providers.c.generation).where(
    _providers.c.uuid == sa.bindparam('uuid')
)


class AllocationWriter:
    """A transaction that writes allocations.

    :ivar unit: the claims and providers that the transaction changes
    :ivar end_child_claims: consumers that are to have no allocations, whose claims in child zones
        end
    """

    def __init__(self, tx: session.Tx, memory: rows.RowCache, places: PlaceCache) -> None:
        self.tx = tx
        self.unit = UnitOfWork(tx, memory)
        self._place_cache = places
        self.end_child_claims: set[str] = set()
        self._wishes: Sequence[WantedAllocations] = ()
        self._states: dict[str, ConsumerState] = {}
        self._live_claims: dict[str, list[Claim]] = {}
        self._places: dict[int, TreePlace] = {}
        self._ids: dict[str, int] = {}

    @property
    def locked(self) -> providers.LockedProviders:
        """The providers, once they are locked."""
        return self.unit.locked

    @property
    def _claims(self) -> list[Claim]:
        """The live claims of all consumers."""
        return list(itertools.chain.from_iterable(self._live_claims.values()))

    # -- reading and locking ---------------------------------------------------------------
    def begin(self, wishes: Sequence[WantedAllocations], also: Iterable[str] = ()) -> None:
        """Lock consumers and providers, and read the claims.

        :param also: uuids of further providers to lock
        """
        self._wishes = wishes
        consumers = sorted(wish.consumer for wish in wishes)
        self._lock_consumers(consumers)
        self._read_claims(consumers)
        self._check_generations()
        self._check_child_zones()
        self.end_child_claims = held.end_child_claims(self.tx, _consumers_to_end(wishes))
        named_uuids = {uuid for wish in wishes for uuid in wish.allocations} | set(also)
        self._find_providers(named_uuids)
        locked_ids = self._providers_to_lock()
        if locked_ids:
            self.unit.locked = providers.lock_placed(self.tx, self.unit.memory, locked_ids)
        # Providers that only claims name and that were not found were deleted, by hand or a backup
        # restored in part: there is nothing to lock, and nothing is given back there.
        roots = {place.root.id for place in self._places.values()}
        if not self._places.keys() | roots <= self.locked.counters.keys():
            self._place_cache.forget(self._places.values())
            raise RetryTransaction('a provider was deleted meanwhile')
        if not all(place.holds(self.locked) for place in self._places.values()):
            self._place_cache.forget(self._places.values())
            self._find_providers(named_uuids)
            if not self._providers_to_lock() <= locked_ids:
                raise RetryTransaction('a tree was changed meanwhile')
        if self._depends_on_claims() and self._claims_have_changed(consumers):
            self._read_claims(consumers)
            if not self._providers_to_lock() <= locked_ids:
                raise RetryTransaction('a claim came to be meanwhile')
            self._check_generations()
        # Providers that only get amounts back are not judged.
        providers.read_pools(self.tx, self.locked, self._ids.values())

    def _read_claims(self, consumers: Sequence[str]) -> None:
        consumers_read = stored.read_consumers(self.tx, consumers)
        self._live_claims = {
            consumer: consumer_read.claims for consumer, consumer_read in consumers_read.items()
        }
        # Their rows were locked, and their generations increased, before.
        self._states = {
            consumer: consumer_read.written._replace(
                generation=consumer_read.written.generation - 1
            )
            for consumer, consumer_read in consumers_read.items()
            if consumer_read.written is not None
        }

    def _depends_on_claims(self) -> bool:
        """Return whether the write depends on the claims beyond ending them.

        Claims end as they were read; a claim created meanwhile counts as one after the write.  The
        write depends on them if a consumer may inherit, or if a generation was stated.
        """
        depends = (wish.allocations or wish.generation is not UNSET for wish in self._wishes)
        return bool(self._claims) and (any(depends) or any(map(has_pool_amounts, self._claims)))

    def _claims_have_changed(self, consumers: Sequence[str]) -> bool:
        """Return whether claims changed since they were read before their providers were locked."""
        marks = {tuple(row) for row in self.tx.all(CLAIM_STATES, uuids=list(consumers))}
        return marks != {(claim.id, claim.state.value, claim.updated_at) for claim in self._claims}

    def _lock_consumers(self, consumers: Sequence[str]) -> None:
        values = [
            {'uuid': consumer, 'generation': 0, 'digest': '', 'stamp': self.tx.stamp}
            for consumer in consumers
        ]
        self.tx.insert_or_step(_written_consumers, values, 'uuid', 'generation')

    def _check_child_zones(self) -> None:
        """Check that consumers that are new here are not in a child zone.

        :raises ConsumerInChildZone: a consumer without claims here has claims in a child zone
        :raises Busy: a request is placing the consumer, perhaps in a child zone
        """
        new_consumers = {wish.consumer for wish in self._wishes if wish.allocations}
        new_consumers -= {consumer for consumer, claims in self._live_claims.items() if claims}
        for consumer, zone in held.zones_of_consumers(self.tx, new_consumers).items():
            raise exceptions.ConsumerInChildZone(consumer=consumer, zone=zone)
        for consumer in sorted(held.consumers_being_placed(self.tx, new_consumers)):
            raise exceptions.Busy(
                reason=f'consumer {consumer} is being placed by a request that may go below',
                retry_after_ms=retry.RETRY_AFTER_MS,
            )

    def _check_generations(self) -> None:
        for wish in self._wishes:
            rules.check_generation(wish, self._visible_generation(wish.consumer))

    def _visible_generation(self, consumer: str) -> int | None:
        return rules.visible_generation(self._live_claims[consumer], self._states.get(consumer))

    def _find_providers(self, named: set[str]) -> None:
        """Find the providers of the wishes and claims.

        :raises NotFound: a named provider does not exist
        """
        places = self._place_cache.named(self.tx, sorted(filter(is_id, named)))
        self._ids = {place.uuid: pid for pid, place in places.items()}
        for uuid in sorted(named):
            if uuid not in self._ids:
                raise exceptions.NotFound(kind='provider', name=uuid)
        of_claims = providers_of(self._claims) - places.keys()
        self._places = places | self._place_cache.of(self.tx, of_claims)

    def _providers_to_lock(self) -> set[int]:
        """Return the providers to lock: named ones, those of claims, and the roots of both."""
        roots = {place.root.id for place in self._places.values()}
        return {*self._ids.values(), *roots, *providers_of(self._claims)}

    def check_distinct_guests(self, groups: Sequence[Iterable[str]]) -> None:
        """Check that requests of one transaction do not share a guest.

        :param groups: consumers of several requests
        :raises CannotCombine: one guest's claims are in two of them: one may inherit of the other
        """
        seen_guests: set[str] = set()
        for consumers in groups:
            guests = {
                guest_of(claim) for consumer in consumers for claim in self._live_claims[consumer]
            }
            guests.update(consumers)
            if not seen_guests.isdisjoint(guests):
                raise CannotCombine
            seen_guests |= guests

    def id_of(self, uuid: str) -> int:
        """Return the id of a named provider."""
        return self._ids[uuid]

    def host_of(self, uuid: str) -> HostRow | None:
        """Return the record of a named provider if it is a host."""
        return self.locked.templates.get(self._ids[uuid])

    def exists(self, consumer: str) -> bool:
        """Return whether a consumer exists, here or in a child zone."""
        return bool(self._live_claims[consumer]) or consumer in self.end_child_claims

    # -- judging and writing -------------------------------------------------------------------
    def changes(self, wishes: Sequence[WantedAllocations]) -> ClaimChanges:
        """Return the changes of the claims of some of the consumers."""
        compiler = AllocationCompiler(
            self._live_claims,
            {pid: place.root for pid, place in self._places.items()},
            self._ids,
            now=self.tx.now,
            stamp=self.tx.stamp,
        )
        return compiler.compile(wishes)

    def resolve_heirs(self, wishes: Sequence[WantedAllocations], changes: ClaimChanges) -> Heirs:
        """Complete the changes by the inheritances that follow from them.

        :returns: claims of other consumers that inherit amounts which the changes free
        """
        guests = sorted(rules.guests_concerned(changes))
        if not guests:
            return []
        guest_claims = claim_rows.load_claims(
            self.tx, where=[claim_rows.of_guests(guests), claim_rows.is_live]
        )
        guest_claims = [claim for claim in guest_claims if guest_of(claim) in guests]
        consumers = {wish.consumer for wish in wishes}
        return rules.resolve_heirs(changes, guest_claims, consumers, self.tx.now)

    def check(
        self,
        wishes: Sequence[WantedAllocations],
        changes: ClaimChanges,
        heirs: Heirs,
        union: Inventories = NOTHING_RESHAPED,
    ) -> None:
        """Check that the providers admit the allocations as they become.

        :param changes: changes of the claims of these wishes
        :param heirs: claims of others that take over amounts, see :meth:`resolve_heirs`
        :param union: id of a reshaped provider -> its old and new inventories together, by class
        :raises AllocationRefused: a provider does not have the amounts
        :raises NotFound: of kind ``resource class``
        """
        shares_before, shares_now = [], []
        for wish in wishes:
            shares_before.append(rules.allocations_of_claims(self._live_claims[wish.consumer]))
            shares_now.append(rules.allocations_of_claims(changes.of(wish.consumer)))
        provider_ids = {pid for shares in shares_now for pid in shares}
        states = {pid: self._provider_state(pid, union.get(pid)) for pid in provider_ids}
        refusal = why_allocations_refused(
            states, shares_before, shares_now, [amounts_gained(*pair) for pair in heirs]
        )
        if refusal is not None:
            self._check_classes()
            raise self._refusal_error(refusal)

    def _provider_state(self, pid: int, union: Mapping[str, Inventory] | None) -> ProviderState:
        state = self.locked.state(pid)
        return state if union is None else with_inventories(state, union)

    def _check_classes(self) -> None:
        shares = (amounts for wish in self._wishes for amounts in wish.allocations.values())
        check_classes(self.tx, {name for amounts in shares for name in amounts})

    def _refusal_error(self, refusal: SharesRefusal) -> exceptions.AllocationRefused:
        return exceptions.AllocationRefused(
            provider=self._places[refusal.provider_id].uuid,
            classes=refusal.names,
            why=refusal.why,
            reason=refusal.reason,
        )

    def increase_generations(self, wishes: Sequence[WantedAllocations]) -> None:
        """Increase the generations of named providers as Placement does: once for each provider.

        A consumer without allocations now names the providers that it had.
        """
        stepped_ids: set[int] = set()
        for wish in wishes:
            if wish.allocations:
                named_ids = {self._ids[uuid] for uuid in wish.allocations}
            else:
                named_ids = set(rules.allocations_of_claims(self._live_claims[wish.consumer]))
            for pid in (named_ids & self.locked.counters.keys()) - stepped_ids:
                self.unit.increment_generation(pid)
            stepped_ids |= named_ids

    def write(self, changes: ClaimChanges, *, usage_only: bool) -> None:
        """Write consumers, claims, providers, and the feed.

        :param usage_only: only counters that claims change have changed of providers
        """
        self._write_consumers(changes)
        self.unit.write_stated(usage_only=usage_only)

    def _write_consumers(self, changes: ClaimChanges) -> None:
        ended_consumers, remaining_states = [], []
        for wish in sorted(self._wishes, key=lambda wish: wish.consumer):
            now = changes.of(wish.consumer)
            if not now:
                ended_consumers.append(wish.consumer)
                continue
            state = rules.next_consumer_state(self._visible_generation(wish.consumer), now)
            remaining_states.append(
                {'b_uuid': wish.consumer, 'stamp': self.tx.stamp, **state._asdict()}
            )
        if ended_consumers:
            self.tx.run(DELETE_CONSUMERS, uuids=ended_consumers)
        if remaining_states:
            UPDATE_CONSUMERS.run(self.tx, remaining_states)


def _consumers_to_end(wishes: Iterable[WantedAllocations]) -> set[str]:
    """Return the consumers all of whose claims are to end, in child zones too.

    A client that states a generation has read only the allocations here, and means those.
    """
    return {wish.consumer for wish in wishes if not wish.allocations and wish.generation is UNSET}


class WriteRequest(NamedTuple):
    """Allocations of one request: written completely, or not at all.

    :ivar must_exist: a consumer that does not exist is an error; generations do not grow
    """

    wishes: Sequence[WantedAllocations]
    must_exist: bool = False

    @property
    def consumers(self) -> frozenset[str]:
        return frozenset(wish.consumer for wish in self.wishes)


def _changes_of_request(writer: AllocationWriter, request: WriteRequest) -> ClaimChanges:
    """Return the changes of the claims of one request; usage and generations are counted."""
    if not request.must_exist:
        writer.increase_generations(request.wishes)
    for wish in request.wishes if request.must_exist else ():
        if not writer.exists(wish.consumer):
            raise exceptions.NotFound(kind='consumer', name=wish.consumer)
    changes = writer.changes(request.wishes)
    heirs = writer.resolve_heirs(request.wishes, changes)
    writer.check(request.wishes, changes, heirs)
    writer.unit.apply_changes(changes, heirs)
    return changes


def _reshape(
    tx: session.Tx,
    memory: rows.RowCache,
    place_cache: PlaceCache,
    declarations: Mapping[str, ReshapedProvider],
    wishes: Sequence[WantedAllocations],
) -> None:
    """Change inventories of providers and allocations of consumers together."""
    # Checked before any consumer is read, as in Placement; and again under the locks.
    for uuid, declared in declarations.items():
        provider_row = tx.first(PROVIDER_GENERATION, uuid=uuid)
        if provider_row is None:
            raise provider_rules.unknown_provider(uuid)
        provider_rules.check_generation(uuid, provider_row.generation, declared.generation)
    check_classes(tx, {name for declared in declarations.values() for name in declared.inventories})
    for declared in declarations.values():
        provider_rules.check_inventories(declared.inventories)
    writer = AllocationWriter(tx, memory, place_cache)
    writer.begin(wishes, declarations)
    locked = writer.locked
    union = {}
    for uuid, declared in declarations.items():
        pid, host = writer.id_of(uuid), writer.host_of(uuid)
        provider_rules.check_generation(uuid, locked.counters[pid].generation, declared.generation)
        if host is not None and host.reports_inventories:
            raise provider_rules.reported_by_host(uuid, host.name)
        union[pid] = {**locked.inventories(pid), **declared.inventories}
    changes = writer.changes(wishes)
    heirs = writer.resolve_heirs(wishes, changes)
    writer.check(wishes, changes, heirs, union)
    writer.unit.apply_changes(changes, heirs)
    writer.increase_generations(wishes)
    for uuid, declared in sorted(declarations.items()):
        pid = writer.id_of(uuid)
        # One step for the inventories meanwhile, as in Placement, and one for the outcome.
        writer.unit.increment_generation(pid, by=int(bool(declared.inventories)))
        trees.write_inventories(tx, memory, locked, uuid, declared.inventories)
        tx.run(UPDATE_PROVIDER.values(changed_at=tx.now), b_id=pid)
    writer.write(changes, usage_only=False)


class CannotCombine(Exception):
    """Signal that requests of one transaction depend on each other."""


class SqlAllocations(SqlStore):
    """Allocations written as a whole, under the locks of all providers concerned.

    It is ``ports.Allocations`` in SQL.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.place_cache = PlaceCache()
        self._writers = RequestCombiner(
            lambda request: self._write([request]), self._write_together
        )

    def write_allocations(self, wishes: Sequence[WantedAllocations]) -> None:
        self._write_request(WriteRequest(wishes))

    def delete_allocations(self, consumer: str) -> None:
        if not is_id(consumer):
            raise exceptions.NotFound(kind='consumer', name=consumer)
        wish = WantedAllocations(consumer=consumer, allocations={}, project_id='', user_id='')
        self._write_request(WriteRequest([wish], must_exist=True))

    @reading
    def load_allocations(self, tx: session.Tx, consumer: str) -> ConsumerAllocations | None:
        return usages.consumer_allocations(tx, consumer)

    @reading
    def provider_allocations(self, tx: session.Tx, uuid: str) -> ProviderAllocations | None:
        return usages.provider_allocations(tx, uuid)

    @reading
    def type_usages(
        self, tx: session.Tx, project: str, *, user: str | None = None
    ) -> list[TypeUsage]:
        return usages.usage_by_type(tx, project, user=user)

    def reshape(
        self, providers: Mapping[str, ReshapedProvider], wishes: Sequence[WantedAllocations]
    ) -> None:
        stamps: list[int] = []

        def work(tx: session.Tx) -> bool:
            stamps.append(tx.stamp)
            _reshape(tx, self.database.memory, self.place_cache, providers, wishes)
            return True

        self._run_transaction(work, wishes, stamps)

    def _write_request(self, request: WriteRequest) -> None:
        self._writers.run(request, request.consumers)

    def _write_together(self, requests: Sequence[WriteRequest]) -> bool:
        """Write all requests at once; return False, with nothing written, if one of them fails."""
        try:
            self._write(requests)
        except exceptions.DatabaseUnavailable:
            raise  # perhaps it was done
        except (exceptions.GanttError, CannotCombine):
            return False
        return True

    def _write(self, requests: Sequence[WriteRequest]) -> None:
        """Write some requests, one after another, in one transaction."""
        wishes = [wish for request in requests for wish in request.wishes]
        stamps: list[int] = []

        def work(tx: session.Tx) -> bool:
            stamps.append(tx.stamp)
            writer = AllocationWriter(tx, self.database.memory, self.place_cache)
            writer.begin(wishes)
            writer.check_distinct_guests([request.consumers for request in requests])
            all_changes = ClaimChanges(same=[], changed=[], gone=[], new=[])
            for request in requests:
                all_changes.extend(_changes_of_request(writer, request))
            writer.write(all_changes, usage_only=True)
            return True

        self._run_transaction(work, wishes, stamps)

    def _run_transaction(
        self, work: Any, wishes: Sequence[WantedAllocations], stamps: Sequence[int]
    ) -> None:
        """Run one transaction, again where that helps.

        :param stamps: stamps of the transactions begun so far
        """

        def already_committed(tx: session.Tx) -> bool | None:
            consumers = [wish.consumer for wish in wishes]
            if tx.first(CONSUMERS_OF_STAMP, uuids=consumers, stamps=list(stamps)) is not None:
                return True
            if any(wish.allocations for wish in wishes):
                return None
            if held.zones_of_consumers(tx, _consumers_to_end(wishes)):
                return None  # noting their end there once more changes nothing
            has_claims = any(
                consumer.claims for consumer in stored.read_consumers(tx, consumers).values()
            )
            return None if has_claims else True

        try:
            self.database.writes.write(work, already_committed, once_locked=True)
        except retry.RowsLocked as e:
            raise retry.busy() from e
