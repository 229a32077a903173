# SPDX-License-Identifier: Apache-2.0
"""Allocations written by requests, as claims: one transaction for all of one request.

A writer of allocations locks the consumers' rows of ``written_consumers`` ascending, then all
providers concerned ascending, whatever is on them; then it reads the claims again.  Two writers of
one consumer conflict at its row, also where it does not exist yet; schedulers and hosts, which do
not use that row, conflict at the providers.
"""

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
    reshaped,
    why_not_written,
)
from gantt.core.claims.allocations import (
    AllocationWish,
    ClaimChanges,
    ConsumerState,
    ProviderRoot,
    WishCompiler,
)
from gantt.core.claims.claim import Claim, guest_of
from gantt.core.claims.inheritance import gained, of_pools
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources import provider as provider_rules
from gantt.core.resources.host import HostKind, HostRow
from gantt.db.claims import held
from gantt.db.claims.unit_of_work import UnitOfWork, end_as_read, providers_of
from gantt.db.database import Database, reading
from gantt.db.engine import retry, session
from gantt.db.engine.arrays import Update
from gantt.db.engine.combine import Combined
from gantt.db.engine.retry import Again
from gantt.db.hosts import claim_rows, providers, rows, trees
from gantt.db.hosts.base import is_id
from gantt.db.hosts.providers import LockedProviders
from gantt.db.placement import consumers as stored
from gantt.db.placement import usages
from gantt.db.placement.providers import CHANGED as PROVIDER_CHANGED
from gantt.db.placement.providers import check_classes
from gantt.db.schema import models
from gantt.scheduler.ports import (
    ConsumerAllocations,
    ProviderAllocations,
    ReshapedProvider,
    TypeUsage,
)

_c = models.claims
_a = models.allocations
_p = models.providers
_w = models.written_consumers
_top = _p.alias('top')
#: Positions of these providers, and whether their tree is a host's.
PLACES = sa.select(
    _p.c.id, _p.c.uuid, _top.c.id.label('top'), _top.c.kind.label('top_kind')
).select_from(_p.join(_top, _top.c.id == sa.func.coalesce(_p.c.root_id, _p.c.id)))
PLACES_OF = PLACES.where(_p.c.uuid.in_(sa.bindparam('uuids', expanding=True)))
PLACES_BY_ID = PLACES.where(_p.c.id.in_(sa.bindparam('ids', expanding=True)))


class KnownPlace(NamedTuple):
    """Position of one provider."""

    id: int
    uuid: str
    root: ProviderRoot

    def holds(self, locked: LockedProviders) -> bool:
        """Return whether the rows under lock have this position; the root is locked as well."""
        row, root = locked.places[self.id], locked.places[self.root.id]
        is_host = root.kind == HostKind.HOST
        return (row.uuid, row.root_id, is_host) == (self.uuid, *self.root)


class KnownPlaces:
    """Cache of positions in trees: bounded, thread-safe.

    Trees change rarely, so a writer of allocations reads this cache first, and locks its providers.
    The rows under lock have the positions; if the cache differs it is cleared and read anew.

    :param most: most positions to remember
    """

    def __init__(self, most: int = 32_768) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._by_uuid: dict[str, KnownPlace] = {}
        self._by_id: dict[int, KnownPlace] = {}

    def named(self, tx: session.Tx, uuids: Sequence[str]) -> dict[int, KnownPlace]:
        """Return places of providers with these uuids, by id; absent ones are left out."""
        cached = [self._by_uuid.get(uuid) for uuid in uuids]
        places = {place.id: place for place in cached if place is not None}
        missing = [uuid for uuid, place in zip(uuids, cached, strict=True) if place is None]
        if missing:
            places |= self._learn(tx.all(PLACES_OF, uuids=missing))
        return places

    def of(self, tx: session.Tx, ids: Collection[int]) -> dict[int, KnownPlace]:
        """Return places of providers with these ids, likewise."""
        cached = {pid: self._by_id.get(pid) for pid in ids}
        places = {pid: place for pid, place in cached.items() if place is not None}
        missing = sorted(ids - places.keys())
        if missing:
            places |= self._learn(tx.all(PLACES_BY_ID, ids=missing))
        return places

    def _learn(self, found: Iterable[Any]) -> dict[int, KnownPlace]:
        learned = [
            KnownPlace(row.id, row.uuid, ProviderRoot(row.top, row.top_kind == HostKind.HOST))
            for row in found
        ]
        with self._lock:
            for place in learned:
                if len(self._by_id) >= self._most or len(self._by_uuid) >= self._most:
                    self._by_id, self._by_uuid = {}, {}
                self._by_id[place.id] = self._by_uuid[place.uuid] = place
        return {place.id: place for place in learned}

    def forget(self, places: Iterable[KnownPlace]) -> None:
        """Forget these places, so that they are read anew."""
        with self._lock:
            for place in places:
                self._by_id.pop(place.id, None)
                self._by_uuid.pop(place.uuid, None)


#: id of a provider -> class -> inventory
Inventories = Mapping[int, Mapping[str, Inventory]]
NOTHING_RESHAPED: Inventories = MappingProxyType({})
#: Claims before and after a change.
Heirs = Sequence[tuple[Claim, Claim]]

_ids: Any = sa.bindparam('ids', expanding=True)
_uuids: Any = sa.bindparam('uuids', expanding=True)
#: Versions of claims: each change of a claim writes its time.
MARKS_OF = sa.select(_c.c.id, _c.c.state, _c.c.updated_at).where(
    _c.c.consumer.in_(_uuids), claim_rows.is_live
)
STATE = Update(_w, {'b_uuid': 'uuid'}, ('generation', 'digest', 'stamp'))
FORGET = _w.delete().where(_w.c.uuid.in_(_uuids))
WRITTEN_BY = (
    sa.select(_w.c.uuid)
    .where(_w.c.uuid.in_(_uuids), _w.c.stamp.in_(sa.bindparam('stamps', expanding=True)))
    .limit(1)
)
_OWNER = ('project_id', 'user_id', 'consumer_type')
#: Columns of a remaining claim that a write changes.
CHANGED = (*_OWNER, 'consumer', 'guest', 'unique_key', 'updated_at', *claim_rows.AMOUNTS)
REWRITE = Update(_c, {'b_id': 'id', 'b_state': 'state'}, CHANGED)
GENERATION = sa.select(_p.c.generation).where(_p.c.uuid == sa.bindparam('uuid'))
FORGET_SHARES = _a.delete().where(_a.c.claim_id.in_(_ids))


class AllocationWriter:
    """A transaction that writes allocations.

    :ivar unit: what it changes
    :ivar end_below: consumers without allocations now, whose claims in child zones end
    """

    def __init__(self, tx: session.Tx, memory: rows.Memory, known: KnownPlaces) -> None:
        self.tx = tx
        self.unit = UnitOfWork(tx, memory)
        self._known = known
        self.end_below: set[str] = set()
        self._wishes: Sequence[AllocationWish] = ()
        self._states: dict[str, ConsumerState] = {}
        self._live: dict[str, list[Claim]] = {}
        self._places: dict[int, KnownPlace] = {}
        self._ids: dict[str, int] = {}

    @property
    def locked(self) -> providers.LockedProviders:
        """The providers, once they are locked."""
        return self.unit.locked

    # -- reading and locking ---------------------------------------------------------------
    def begin(self, wishes: Sequence[AllocationWish], also: Iterable[str] = ()) -> None:
        """Lock consumers and providers, and read the claims.

        :param also: uuids of further providers to lock
        """
        self._wishes = wishes
        consumers = sorted(wish.consumer for wish in wishes)
        self._lock_consumers(consumers)
        self._look(consumers)
        self._check_generations()
        self._must_not_be_below()
        self.end_below = held.end_below(self.tx, _to_have_nothing(wishes))
        named_uuids = {uuid for wish in wishes for uuid in wish.allocations} | set(also)
        self._find(named_uuids)
        locked_ids = self._concerned()
        if locked_ids:
            self.unit.locked = providers.lock_placed(self.tx, self.unit.memory, locked_ids)
        # Providers that only claims name and that were not found were deleted, by hand or a backup
        # restored in part: there is nothing to lock, and nothing is given back there.
        roots = {place.root.id for place in self._places.values()}
        if not self._places.keys() | roots <= self.locked.counters.keys():
            self._known.forget(self._places.values())
            raise Again('a provider was deleted meanwhile')
        if not all(place.holds(self.locked) for place in self._places.values()):
            self._known.forget(self._places.values())
            self._find(named_uuids)
            if not self._concerned() <= locked_ids:
                raise Again('a tree was changed meanwhile')
        if self._matters_what_there_is() and self._have_changed(consumers):
            self._look(consumers)
            if not self._concerned() <= locked_ids:
                raise Again('a claim came to be meanwhile')
            self._check_generations()
        # Providers that only get amounts back are not judged.
        providers.read_pools(self.tx, self.locked, self._ids.values())

    def _look(self, consumers: Sequence[str]) -> None:
        consumers_read = stored.read(self.tx, consumers)
        self._live = {
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

    def _matters_what_there_is(self) -> bool:
        """Return whether the write depends on the claims beyond ending them.

        Claims end as they were read; a claim created meanwhile counts as one after the write.  The
        write depends on them if a consumer may inherit, or if a generation was stated.
        """
        claims = [claim for consumer_claims in self._live.values() for claim in consumer_claims]
        depends = (wish.allocations or wish.generation is not UNSET for wish in self._wishes)
        return bool(claims) and (any(depends) or any(map(of_pools, claims)))

    def _have_changed(self, consumers: Sequence[str]) -> bool:
        """Return whether claims differ from those before their providers were locked."""
        marks = {tuple(row) for row in self.tx.all(MARKS_OF, uuids=list(consumers))}
        live_claims = (
            claim for consumer_claims in self._live.values() for claim in consumer_claims
        )
        return marks != {(claim.id, claim.state.value, claim.updated_at) for claim in live_claims}

    def _lock_consumers(self, consumers: Sequence[str]) -> None:
        values = [
            {'uuid': consumer, 'generation': 0, 'digest': '', 'stamp': self.tx.stamp}
            for consumer in consumers
        ]
        self.tx.insert_or_step(_w, values, 'uuid', 'generation')

    def _must_not_be_below(self) -> None:
        """Check that consumers that are new here are not in a child zone.

        :raises ConsumerBelow: one without claims here, that gets some, has claims in a child zone
        :raises Busy: it is being placed, perhaps in a child zone
        """
        new_consumers = {wish.consumer for wish in self._wishes if wish.allocations}
        new_consumers -= {consumer for consumer, claims in self._live.items() if claims}
        for consumer, zone in held.zones_of(self.tx, new_consumers).items():
            raise exceptions.ConsumerBelow(consumer=consumer, zone=zone)
        for consumer in sorted(held.on_their_way(self.tx, new_consumers)):
            raise exceptions.Busy(
                reason=f'consumer {consumer} is being placed by a request that may go below',
                retry_after_ms=retry.RETRY_AFTER_MS,
            )

    def _check_generations(self) -> None:
        for wish in self._wishes:
            rules.check_generation(wish, self._visible(wish.consumer))

    def _visible(self, consumer: str) -> int | None:
        return rules.visible_generation(self._live[consumer], self._states.get(consumer))

    def _find(self, named: set[str]) -> None:
        """Find the providers of the wishes and claims.

        :raises NotFound: a named provider does not exist
        """
        places = self._known.named(self.tx, sorted(filter(is_id, named)))
        self._ids = {place.uuid: pid for pid, place in places.items()}
        for uuid in sorted(named):
            if uuid not in self._ids:
                raise exceptions.NotFound(kind='provider', name=uuid)
        claims = [claim for consumer_claims in self._live.values() for claim in consumer_claims]
        self._places = places | self._known.of(self.tx, providers_of(claims) - places.keys())

    def _concerned(self) -> set[int]:
        """Return the named providers, those of claims, and the roots of both."""
        claims = [claim for consumer_claims in self._live.values() for claim in consumer_claims]
        roots = {place.root.id for place in self._places.values()}
        return {*self._ids.values(), *roots, *providers_of(claims)}

    def must_be_apart(self, groups: Sequence[Iterable[str]]) -> None:
        """Check that requests of one transaction do not share a guest.

        :param groups: consumers of several requests
        :raises NotTogether: one guest's claims are in two of them: one may inherit of the other
        """
        seen_guests: set[str] = set()
        for consumers in groups:
            guests = {guest_of(claim) for consumer in consumers for claim in self._live[consumer]}
            guests.update(consumers)
            if not seen_guests.isdisjoint(guests):
                raise NotTogether
            seen_guests |= guests

    def id_of(self, uuid: str) -> int:
        """Return the id of a named provider."""
        return self._ids[uuid]

    def host_of(self, uuid: str) -> HostRow | None:
        """Return the record of a named provider if it is a host."""
        return self.locked.templates.get(self._ids[uuid])

    def has_any(self, consumer: str) -> bool:
        """Return whether a consumer exists, here or in a child zone."""
        return bool(self._live[consumer]) or consumer in self.end_below

    # -- judging and writing -------------------------------------------------------------------
    def changes(self, wishes: Sequence[AllocationWish]) -> ClaimChanges:
        """Return the changes of the claims of some of the consumers."""
        compiler = WishCompiler(
            self._live,
            {pid: place.root for pid, place in self._places.items()},
            self._ids,
            now=self.tx.now,
            stamp=self.tx.stamp,
        )
        return compiler.compile(wishes)

    def resolve_heirs(self, wishes: Sequence[AllocationWish], changes: ClaimChanges) -> Heirs:
        """Complete the changes by the inheritances that follow from them.

        :returns: claims of other consumers that take over amounts that these give up
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

    def judge(
        self,
        wishes: Sequence[AllocationWish],
        changes: ClaimChanges,
        heirs: Heirs,
        union: Inventories = NOTHING_RESHAPED,
    ) -> None:
        """Check that the providers admit the allocations as they become.

        :param changes: changes of the claims of these wishes
        :param heirs: claims of others that take over amounts, see :meth:`resolve_heirs`
        :param union: id of a reshaped provider -> its inventories meanwhile, by class
        :raises AllocationRefused: a provider does not have the amounts
        :raises NotFound: of kind ``resource class``
        """
        shares_before, shares_now = [], []
        for wish in wishes:
            shares_before.append(rules.shares_of(self._live[wish.consumer]))
            shares_now.append(rules.shares_of(changes.of(wish.consumer)))
        provider_ids = {pid for shares in shares_now for pid in shares}
        states = {pid: self._state(pid, union.get(pid)) for pid in provider_ids}
        refusal = why_not_written(
            states, shares_before, shares_now, [gained(*pair) for pair in heirs]
        )
        if refusal is not None:
            self._must_be_classes()
            raise self._refused(refusal)

    def _state(self, pid: int, union: Mapping[str, Inventory] | None) -> ProviderState:
        state = self.locked.state(pid)
        return state if union is None else reshaped(state, union)

    def _must_be_classes(self) -> None:
        shares = (amounts for wish in self._wishes for amounts in wish.allocations.values())
        check_classes(self.tx, {name for amounts in shares for name in amounts})

    def _refused(self, refusal: SharesRefusal) -> exceptions.AllocationRefused:
        return exceptions.AllocationRefused(
            provider=self._places[refusal.provider_id].uuid,
            classes=refusal.names,
            why=refusal.why,
            reason=refusal.reason,
        )

    def count(self, changes: ClaimChanges, heirs: Heirs) -> None:
        """Count the usage as it becomes, with the amounts that heirs take over."""
        counted_claims: list[tuple[Claim, int]] = [(claim, -1) for claim in changes.gone]
        counted_claims += [(claim, 1) for claim in changes.new]
        for before, now in changes.changed:
            counted_claims += [(before, -1), (now, 1)]
        for claim, sign in counted_claims:
            self.unit.count(claim, sign)
            self.unit.touch(claim.provider_id)
        for before, now in heirs:
            self.unit.inherit(before, now)

    def step_named(self, wishes: Sequence[AllocationWish]) -> None:
        """Increase the generations of named providers as Placement does: once for each provider.

        A consumer without allocations now names the providers that it had.
        """
        stepped_ids: set[int] = set()
        for wish in wishes:
            if wish.allocations:
                named_ids = {self._ids[uuid] for uuid in wish.allocations}
            else:
                named_ids = set(rules.shares_of(self._live[wish.consumer]))
            for pid in (named_ids & self.locked.counters.keys()) - stepped_ids:
                self.unit.step(pid)
            stepped_ids |= named_ids

    def write(self, changes: ClaimChanges, *, usage_only: bool) -> None:
        """Write claims, consumers, providers, and the feed.

        :param usage_only: only counters that claims change have changed of providers
        """
        tx = self.tx
        end_as_read(tx, changes.gone, rules.WRITTEN)
        changed = sorted(
            (_values(*pair) for pair in changes.changed), key=lambda row_values: row_values['b_id']
        )
        if changed:
            with claim_rows.unique_key_guard():
                written = REWRITE.run(tx, changed)
            if written != len(changed):
                raise Again('a claim was written meanwhile')
            tx.run(FORGET_SHARES, ids=[row_values['b_id'] for row_values in changed])
        new_claims = sorted(changes.new, key=lambda claim: (claim.consumer, claim.id))
        tx.many(_c.insert(), [claim_rows.claim_values(claim) for claim in new_claims])
        shares = [*new_claims, *(now for _, now in changes.changed)]
        values = [
            share_values for claim in shares for share_values in claim_rows.allocation_values(claim)
        ]
        tx.many(_a.insert(), values)
        self._write_consumers(changes)
        self.unit.write_claims()  # of heirs
        providers.save(tx, self.locked, self.unit.touched, usage_only=usage_only)

    def _write_consumers(self, changes: ClaimChanges) -> None:
        ended_consumers, remaining_states = [], []
        for wish in sorted(self._wishes, key=lambda wish: wish.consumer):
            now = changes.of(wish.consumer)
            if not now:
                ended_consumers.append(wish.consumer)
                continue
            state = rules.next_state(self._visible(wish.consumer), now)
            remaining_states.append(
                {'b_uuid': wish.consumer, 'stamp': self.tx.stamp, **state._asdict()}
            )
        if ended_consumers:
            self.tx.run(FORGET, uuids=ended_consumers)
        if remaining_states:
            STATE.run(self.tx, remaining_states)


def _values(before: Claim, now: Claim) -> dict[str, Any]:
    values = {name: claim_rows.CLAIM[name](now) for name in CHANGED}
    return {'b_id': before.id, 'b_state': before.state.value, **values}


def _to_have_nothing(wishes: Iterable[AllocationWish]) -> set[str]:
    """Return the consumers all of whose claims are to end, in child zones too.

    A client that states a generation has read only the allocations here, and means those.
    """
    return {wish.consumer for wish in wishes if not wish.allocations and wish.generation is UNSET}


class WriteRequest(NamedTuple):
    """Allocations of one request: written completely, or not at all.

    :ivar must_exist: a consumer that does not exist is an error; generations do not grow
    """

    wishes: Sequence[AllocationWish]
    must_exist: bool = False

    @property
    def consumers(self) -> frozenset[str]:
        return frozenset(wish.consumer for wish in self.wishes)


def _one_of(writer: AllocationWriter, request: WriteRequest) -> ClaimChanges:
    """Return the changes of the claims of one request; usage and generations are counted."""
    if not request.must_exist:
        writer.step_named(request.wishes)
    for wish in request.wishes if request.must_exist else ():
        if not writer.has_any(wish.consumer):
            raise exceptions.NotFound(kind='consumer', name=wish.consumer)
    changes = writer.changes(request.wishes)
    heirs = writer.resolve_heirs(request.wishes, changes)
    writer.judge(request.wishes, changes, heirs)
    writer.count(changes, heirs)
    return changes


def _reshape(
    tx: session.Tx,
    memory: rows.Memory,
    known_places: KnownPlaces,
    declarations: Mapping[str, ReshapedProvider],
    wishes: Sequence[AllocationWish],
) -> None:
    """Change inventories of providers and allocations of consumers together."""
    # Checked before any consumer is read, as in Placement; and again under the locks.
    for uuid, declared in declarations.items():
        provider_row = tx.first(GENERATION, uuid=uuid)
        if provider_row is None:
            raise provider_rules.not_there(uuid)
        provider_rules.check_generation(uuid, provider_row.generation, declared.generation)
    check_classes(tx, {name for declared in declarations.values() for name in declared.inventories})
    for declared in declarations.values():
        provider_rules.check_inventories(declared.inventories)
    writer = AllocationWriter(tx, memory, known_places)
    writer.begin(wishes, declarations)
    locked = writer.locked
    union = {}
    for uuid, declared in declarations.items():
        pid, host = writer.id_of(uuid), writer.host_of(uuid)
        provider_rules.check_generation(uuid, locked.counters[pid].generation, declared.generation)
        if host is not None and host.reports_inventories:
            raise provider_rules.reports_it_itself(uuid, host.name)
        union[pid] = {**locked.inventories(pid), **declared.inventories}
    changes = writer.changes(wishes)
    heirs = writer.resolve_heirs(wishes, changes)
    writer.judge(wishes, changes, heirs, union)
    writer.count(changes, heirs)
    writer.step_named(wishes)
    for uuid, declared in sorted(declarations.items()):
        pid = writer.id_of(uuid)
        # One step for the inventories meanwhile, as in Placement, and one for the outcome.
        writer.unit.step(pid, by=int(bool(declared.inventories)))
        trees.write_inventories(tx, memory, locked, uuid, declared.inventories)
        tx.run(PROVIDER_CHANGED.values(changed_at=tx.now), b_id=pid)
    writer.write(changes, usage_only=False)


class NotTogether(Exception):
    """Signal that requests of one transaction depend on each other."""


class SqlAllocations:
    """Allocations written as a whole, under the locks of all providers concerned.

    It is ``ports.Allocations`` in SQL.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.known_places = KnownPlaces()
        self._writers = Combined(lambda request: self._write([request]), self._write_together)

    def write_allocations(self, wishes: Sequence[AllocationWish]) -> None:
        self._do(WriteRequest(wishes))

    def delete_allocations(self, consumer: str) -> None:
        if not is_id(consumer):
            raise exceptions.NotFound(kind='consumer', name=consumer)
        wish = AllocationWish(consumer=consumer, allocations={}, project_id='', user_id='')
        self._do(WriteRequest([wish], must_exist=True))

    @reading
    def load_allocations(self, tx: session.Tx, consumer: str) -> ConsumerAllocations | None:
        return usages.of_consumer(tx, consumer)

    @reading
    def provider_allocations(self, tx: session.Tx, uuid: str) -> ProviderAllocations | None:
        return usages.of_provider(tx, uuid)

    @reading
    def type_usages(
        self, tx: session.Tx, project: str, *, user: str | None = None
    ) -> list[TypeUsage]:
        return usages.by_type(tx, project, user=user)

    def reshape(
        self, providers: Mapping[str, ReshapedProvider], wishes: Sequence[AllocationWish]
    ) -> None:
        stamps: list[int] = []

        def work(tx: session.Tx) -> bool:
            stamps.append(tx.stamp)
            _reshape(tx, self.database.memory, self.known_places, providers, wishes)
            return True

        self._run(work, wishes, stamps)

    def _do(self, request: WriteRequest) -> None:
        self._writers.do(request, request.consumers)

    def _write_together(self, requests: Sequence[WriteRequest]) -> bool:
        """Write all requests at once; return False, with nothing written, if one of them fails."""
        try:
            self._write(requests)
        except exceptions.DatabaseUnavailable:
            raise  # perhaps it was done
        except (exceptions.GanttError, NotTogether):
            return False
        return True

    def _write(self, requests: Sequence[WriteRequest]) -> None:
        """Write some requests, one after another, in one transaction."""
        wishes = [wish for request in requests for wish in request.wishes]
        stamps: list[int] = []

        def work(tx: session.Tx) -> bool:
            stamps.append(tx.stamp)
            writer = AllocationWriter(tx, self.database.memory, self.known_places)
            writer.begin(wishes)
            writer.must_be_apart([request.consumers for request in requests])
            all_changes = ClaimChanges(same=[], changed=[], gone=[], new=[])
            for request in requests:
                all_changes.extend(_one_of(writer, request))
            writer.write(all_changes, usage_only=True)
            return True

        self._run(work, wishes, stamps)

    def _run(self, work: Any, wishes: Sequence[AllocationWish], stamps: Sequence[int]) -> None:
        """Run one transaction, again where that helps.

        :param stamps: of the transactions that were begun
        """

        def already_committed(tx: session.Tx) -> bool | None:
            consumers = [wish.consumer for wish in wishes]
            if tx.first(WRITTEN_BY, uuids=consumers, stamps=list(stamps)) is not None:
                return True
            if any(wish.allocations for wish in wishes):
                return None
            if held.zones_of(tx, _to_have_nothing(wishes)):
                return None  # noting their end there once more changes nothing
            return (
                None
                if any(
                    stored_consumer.claims
                    for stored_consumer in stored.read(tx, consumers).values()
                )
                else True
            )

        try:
            self.database.writes.write(work, already_committed, once_locked=True)
        except retry.RowsLocked as e:
            raise retry.busy() from e
