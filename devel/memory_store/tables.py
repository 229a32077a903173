# SPDX-License-Identifier: Apache-2.0
"""The rows of the in-memory store, and the few ways to change them.

Invariant: after ``put_claim`` the usage of every provider is the sum of the
live claims' allocations there.  What one verb touched is written up once, by
``write``: one version further, and in the feed.
"""

from collections.abc import Collection, Container, Iterable

import msgspec

from gantt.core.claims import inheritance, reconcile
from gantt.core.claims.acceptance import is_over_committed
from gantt.core.claims.allocations import ConsumerState
from gantt.core.claims.claim import (
    EXPIRING_LIFECYCLES,
    RESERVATION_ENDING_EVENTS,
    Claim,
    Event,
    State,
    after_event,
    guest_of,
    state_after,
)
from gantt.core.claims.reservations import GroupPlanRecord, restored_reservation
from gantt.core.messages.layout import layout_with_amounts
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import Aggregate, Group, HostChange, HostFacts, HostRow, Placed
from gantt.core.resources.provider import SHARES_TRAIT, PoolUsage, SharedPool, kind_of, subtree
from gantt.nova.model.guest_events import EventsSeen
from gantt.scheduler.ports.requests import ClaimOutcome

_replace = msgspec.structs.replace


class RequestRow(msgspec.Struct, kw_only=True):
    """A request: open until it is placed; a cancelled one stays as a tombstone.

    :ivar claims: how many its attempt has created
    """

    id: str
    fingerprint: str
    state: str
    owner: str
    attempt: int
    deadline: float
    answer: bytes = b''
    claims: int = 0


class PoolRow(msgspec.Struct, kw_only=True):
    """A provider that is no host."""

    id: int
    generation: int = 0
    version: int = 0
    inventories: dict[str, Inventory] = {}
    used: dict[str, int] = {}
    over_committed: bool = False

    def free(self, resource_class: str) -> int:
        """Return capacity less use; negative where more is used than there is."""
        inventory = self.inventories.get(resource_class)
        return (inventory.cap if inventory else 0) - self.used.get(resource_class, 0)

    def usage(self, is_written: bool) -> PoolUsage:
        """Return the usage as a commit reports it."""
        return PoolUsage(
            id=self.id,
            version=self.version,
            is_written=is_written,
            inventories=self.inventories,
            used=self.used,
        )

    @property
    def is_over(self) -> bool:
        """True where more of a class is used than there is."""
        return any(self.free(name) < 0 for name in self.used)


class ProviderPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a provider in its tree, and its name there.

    :ivar parent: its id; None: it is a root
    :ivar traits: of one that is no host; of a host they are among its facts
    :ivar aggregates: those that it is in by their uuids alone
    """

    uuid: str
    name: str
    parent: int | None = None
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()
    changed_at: float | None = None


class Tables:
    """All rows of the store.  Nothing here takes a lock or reads a clock."""

    def __init__(self) -> None:
        self.hosts: dict[int, HostRow] = {}
        self.pools: dict[int, PoolRow] = {}  # providers that are no hosts
        self.places: dict[int, ProviderPlace] = {}  # of both
        self.ids: dict[str, int] = {}
        self.epochs: dict[str, int] = {}  # of hosts that were removed: never handed out again
        self.refusals: dict[int, int] = {}
        self.claims: dict[str, Claim] = {}
        self.requests: dict[str, RequestRow] = {}
        self.groups: dict[str, Group] = {}  # members as told; claims count beside
        self.plans: dict[str, GroupPlanRecord] = {}  # of groups
        self.handed: set[int] = set()  # hosts of claims that became another consumer's
        self.aggregates: dict[int, Aggregate] = {}
        self.classes: set[str] = set()
        self.class_changes: dict[str, float] = {}
        self.traits: dict[str, float] = {}
        self.events_seen: dict[str, EventsSeen] = {}  # of hosts and aggregates of Nova
        self.written: dict[str, ConsumerState] = {}  # of consumers that allocations were written of
        self.serial = 0
        self.position = 0
        self.news: dict[tuple[str, object], int] = {}
        self._live: dict[int, dict[str, Claim]] = {}
        self._of_request: dict[str, dict[str, None]] = {}
        self._of_consumer: dict[str, dict[str, Claim]] = {}  # live ones
        self._changed: set[int] = set()  # usage
        self._touched: set[int] = set()

    # -- claims ----------------------------------------------------------------
    def live_on(self, provider_id: int) -> list[Claim]:
        """Return the live claims on a host, by id."""
        claims = self._live.get(provider_id, {})
        return [claims[claim_id] for claim_id in sorted(claims)]

    def of_request(self, request_id: str, live: bool = False) -> list[Claim]:
        """Return the claims of a request, by id."""
        claims = [
            self.claims[claim_id] for claim_id in sorted(self._of_request.get(request_id, ()))
        ]
        return [claim for claim in claims if claim.is_live] if live else claims

    def live_of(self, consumer: str) -> list[Claim]:
        """Return the live claims of a consumer, wherever they are, by id."""
        claims = self._of_consumer.get(consumer, {})
        return [claims[claim_id] for claim_id in sorted(claims)]

    def live_of_guest(self, guest: str) -> list[Claim]:
        """Return the live claims of a guest, also under a former consumer, by id."""
        claims = [claim for claim in self.all_live() if guest_of(claim) == guest]
        return sorted(claims, key=lambda claim: claim.id)

    def owners_of(self, consumers: Collection[str]) -> dict[str, str | None]:
        """Return the project of each of these consumers: of live claims, else of the last one."""
        claims = [claim for claim in self.claims.values() if claim.consumer in consumers]
        claims.sort(key=lambda item: (item.is_live, item.updated_at, item.created_at, item.id))
        return {claim.consumer: claim.project_id for claim in claims}

    def put_claim(
        self,
        claim: Claim,
        *,
        count: bool = True,
        no_heirs: Container[str] = (),
        ends_place: bool = False,
    ) -> None:
        """Write a claim; usage follows on every provider that it is on.

        :param count: False: the row of its host has been written with it already
        :param no_heirs: claims that inherit nothing from it
        :param ends_place: a place that a create has ends with the create's claim
        """
        before = self.claims.get(claim.id)
        if before is not None and before.is_live and not claim.is_live and not ends_place:
            revived = restored_reservation(before, claim.updated_at)
            if revived is not None:  # what it took is taken still
                self.put_written(claim)
                self.put_written(revived)
                self.handed.add(claim.provider_id)
                return
        was_live = before is not None and before.is_live
        if was_live and before is not None and not claim.is_live:
            # It may have inherited since it was read, of a claim that ended just before.
            claim = _replace(claim, allocations=before.allocations, inherits=before.inherits)
        if was_live != claim.is_live:
            claims_before = [before] if before is not None else []
            for provider_id in claim.allocations:
                row = self.row(provider_id)
                if row is None or (provider_id == claim.provider_id and not count):
                    continue
                used = reconcile.usage_after(row.used, provider_id, claims_before, [claim])
                self.put_use(row, used)
                self._changed.add(provider_id)
            if was_live and before is not None:
                self.pass_on(before, no_heirs)
        self._index_claim(claim)
        if count:
            self.touch(claim.provider_id)

    def put_written(self, claim: Claim) -> None:
        """Write a claim whose use is counted already."""
        self._index_claim(claim)
        self.touch(claim.provider_id)

    def _index_claim(self, claim: Claim) -> None:
        before = self.claims.get(claim.id)
        if before is not None and before.consumer != claim.consumer:
            self._forget_consumer(before)
            self.handed.add(claim.provider_id)
        if before is not None and before.request_id not in (None, claim.request_id):
            self._of_request[before.request_id].pop(claim.id, None)
        self.claims[claim.id] = claim
        if claim.request_id is not None:
            self._of_request.setdefault(claim.request_id, {})[claim.id] = None
        on_provider = self._live.setdefault(claim.provider_id, {})
        of_consumer = self._of_consumer.setdefault(claim.consumer, {})
        if claim.is_live:
            on_provider[claim.id] = of_consumer[claim.id] = claim
        else:
            on_provider.pop(claim.id, None)
            of_consumer.pop(claim.id, None)
        if not of_consumer:
            del self._of_consumer[claim.consumer]

    def _forget_consumer(self, claim: Claim) -> None:
        claims = self._of_consumer.get(claim.consumer, {})
        claims.pop(claim.id, None)
        if not claims:
            self._of_consumer.pop(claim.consumer, None)

    def pass_on(self, ended: Claim, no_heirs: Container[str] = ()) -> None:
        """Pass what a claim took of pools on to those that inherit it, without some."""
        claims_of_guest = self.live_of_guest(guest_of(ended))
        heirs = [
            claim for claim in claims_of_guest if claim.id != ended.id and claim.id not in no_heirs
        ]
        for before, now in inheritance.heirs(ended, heirs):
            self.claims[now.id] = self._live[now.provider_id][now.id] = now
            self._of_consumer[now.consumer][now.id] = now
            for provider_id, amounts in inheritance.amounts_gained(before, now).items():
                row = self.row(provider_id)
                if row is not None:
                    used = {n: row.used.get(n, 0) + a for n, a in amounts.items()}
                    self.put_use(row, {**row.used, **used})
                    self._changed.add(provider_id)

    def put_use(self, row: HostRow | PoolRow, used: dict[str, int]) -> None:
        """Write what is used of a provider; where all of it fits it is not flagged any more."""
        now = _replace(row, used=used)
        self._put(_replace(now, over_committed=row.over_committed and _is_over(now)))

    def flag(self, provider_ids: Iterable[int]) -> None:
        """Flag providers as over-full, or no more, after what the world did."""
        for provider_id in set(provider_ids):
            row = self.row(provider_id)
            if row is not None:
                self._put(_replace(row, over_committed=_is_over(row)))

    def happen(
        self, claims: Iterable[Claim], event: Event, reason: str, now: float
    ) -> list[ClaimOutcome]:
        """Let ``event`` happen to claims; what became of each."""
        outcomes = []
        for claim in claims:
            state = state_after(claim, event)
            outcome = 'gone' if not claim.is_live else 'kept'
            becomes = after_event(claim, event, reason, now)
            if becomes is not claim:
                self.put_claim(becomes, ends_place=event in RESERVATION_ENDING_EVENTS)
                outcome = 'ok'
            outcomes.append(ClaimOutcome(claim_id=claim.id, outcome=outcome, state=state.value))
        return outcomes

    def overdue(self, now: float, grace: float = 0.0) -> list[Claim]:
        """Return reserved claims whose lease ended over ``grace`` seconds ago, oldest first."""
        ended = [
            claim
            for claims in self._live.values()
            for claim in claims.values()
            if claim.state is State.RESERVED
            and claim.lifecycle in EXPIRING_LIFECYCLES
            and claim.lease_until + grace < now
        ]
        return sorted(ended, key=lambda claim: (claim.lease_until, claim.id))

    def all_live(self) -> Iterable[Claim]:
        """Return every live claim."""
        for claims in self._live.values():
            yield from claims.values()

    # -- providers ---------------------------------------------------------------
    def row(self, provider_id: int) -> HostRow | PoolRow | None:
        """Return a host, or another provider."""
        return self.hosts.get(provider_id) or self.pools.get(provider_id)

    def _put(self, row: HostRow | PoolRow) -> None:
        if isinstance(row, PoolRow):
            self.pools[row.id] = row
        else:
            self.hosts[row.id] = row

    def with_uuid(self, uuid: str) -> int | None:
        """Return the id of a provider."""
        return next((pid for pid, place in self.places.items() if place.uuid == uuid), None)

    def root(self, provider_id: int) -> int:
        """Return the id of the root of its tree; of a broken one where its parents end."""
        path = [provider_id]
        while (parent := self.places[path[-1]].parent) in self.places and parent not in path:
            path.append(parent)
        return path[-1]

    def children(self, provider_id: int) -> list[int]:
        """Return the ids of its children."""
        return [pid for pid, place in self.places.items() if place.parent == provider_id]

    def subtree(self, provider_id: int) -> set[int]:
        """Return its own id, and those of all below it."""
        return subtree(provider_id, {pid: place.parent for pid, place in self.places.items()})

    def claims_on(self, provider_id: int) -> int:
        """Return how many live claims are on it or take from it."""
        return sum(
            provider_id == claim.provider_id or provider_id in claim.allocations
            for claim in self.all_live()
        )

    def place_host(self, row: HostRow) -> None:
        """Let a host have a place as a root, and a name of its own: by its node if that is free."""
        old_place = self.places.get(row.id)
        if old_place is None:
            names = {place.name for place in self.places.values()}
            name = next(
                (candidate for candidate in (row.node, row.name) if candidate not in names),
                row.uuid,
            )
            old_place = ProviderPlace(uuid=row.uuid, name=name)
        self.places[row.id] = _replace(old_place, uuid=row.uuid)

    def shared_pools(self, ids: Iterable[int] | None = None) -> list[SharedPool]:
        """Return the pools that hosts share, and what is nested below hosts, by id.

        All there are, or those among these providers.
        """
        pool_ids = sorted(self.pools.keys() & (self.pools if ids is None else set(ids)))
        roots = {pid: root for pid in pool_ids if (root := self.root(pid)) in self.hosts}
        return [
            SharedPool(
                id=pid,
                uuid=self.places[pid].uuid,
                name=self.places[pid].name,
                version=self.pools[pid].version,
                inventories=self.pools[pid].inventories,
                used=self.pools[pid].used,
                aggregates=sorted(self.places[pid].aggregates),
                root=roots.get(pid, 0),
                parent=(self.places[pid].parent or 0) if pid in roots else 0,
                traits=sorted(self.places[pid].traits),
            )
            for pid in pool_ids
            if pid in roots or self._sharing_aggregates(pid)
        ]

    def serves(self, pool: int, host: int) -> bool:
        """Return whether a pool shares with a host."""
        row = self.hosts.get(host)
        if row is None:
            return False
        names = {row.name, row.facts.hypervisor.service}
        listed = {a.uuid for a in self.aggregates.values() if names.intersection(a.hosts)}
        aggregates = listed | set(row.aggregates)
        return pool in self.pools and not aggregates.isdisjoint(self._sharing_aggregates(pool))

    def _sharing_aggregates(self, provider_id: int) -> frozenset[str]:
        """Return the aggregates that a provider shares its inventory in."""
        place = self.places[provider_id]
        return place.aggregates if SHARES_TRAIT in place.traits else frozenset()

    def pools_alone(self, ids: Iterable[int] | None = None) -> list[HostChange]:
        """Return pools that may be requested alone, by id: all, or those of these providers."""
        pool_ids = sorted(self.pools.keys() & (self.pools if ids is None else set(ids)))
        return [self._may_be_alone(pid) for pid in pool_ids if self.root(pid) in self.pools]

    def _may_be_alone(self, provider_id: int) -> HostChange:
        pool, place = self.pools[provider_id], self.places[provider_id]
        row = HostRow(
            id=provider_id,
            uuid=place.uuid,
            name=place.name,
            kind=kind_of(place.parent),
            parent=place.parent or 0,
            generation=pool.generation,
            version=pool.version,
            facts=HostFacts(inventories=pool.inventories, traits=sorted(place.traits)),
            used=pool.used,
            aggregates=sorted(place.aggregates),
        )
        return HostChange(provider_id=provider_id, row=row)

    # -- hosts -------------------------------------------------------------------
    def named(self, name: str) -> HostRow | None:
        """Return a host by its name."""
        provider_id = self.ids.get(name)
        return None if provider_id is None else self.hosts[provider_id]

    def step(self, provider_id: int) -> None:
        """Step its generation by one with this verb."""
        self._changed.add(provider_id)

    def touch(self, provider_id: int) -> None:
        """Mark the row as written by this verb, whatever else changes."""
        if self.row(provider_id) is not None:
            self._touched.add(provider_id)

    @property
    def to_write(self) -> set[int]:
        """Providers that ``write`` is about to count up."""
        return self._touched | self._changed

    def write(self, written: Collection[int] = ()) -> list[HostChange]:
        """Step the versions of touched rows, append to the feed; return the hosts as they are now.

        :param written: rows that were stored whole, their version counted up already
        """
        for provider_id in self._touched | self._changed:
            row = self.row(provider_id)
            assert row is not None
            grown = int(provider_id in self._changed)
            row = _replace(row, version=row.version + 1, generation=row.generation + grown)
            if isinstance(row, PoolRow) and grown:
                row.over_committed = row.is_over
            self._put(row)
        ids = sorted(self._touched | self._changed | set(written))
        self._touched, self._changed = set(), set()
        for provider_id in ids:
            kind = 'host' if provider_id in self.hosts else 'provider'
            self.append_change(kind, provider_id)
        return [self.change_of(provider_id) for provider_id in ids if provider_id in self.hosts]

    def change_of(self, provider_id: int) -> HostChange:
        """Return a host with all that is placed on it; without a row where it is deleted."""
        placed = [
            Placed(
                claim.id,
                guest_of(claim),
                provider_id,
                claim.group,
                layout_with_amounts(claim.layout),
                claim.image,
                claim.flavor,
                claim.member_name,
            )
            for claim in self.live_on(provider_id)
        ]
        return HostChange(provider_id=provider_id, row=self.hosts.get(provider_id), placed=placed)

    # -- the rest --------------------------------------------------------------------
    def next_id(self) -> int:
        """Return a number that was never given before."""
        self.serial += 1
        return self.serial

    def append_change(self, kind: str, ref: object) -> None:
        """Append an entry to the feed; of one thing only the last counts."""
        self.position += 1
        self.news.pop((kind, ref), None)
        self.news[(kind, ref)] = self.position

    def bump_group(self, uuid: str) -> None:
        """Void what is planned for a group elsewhere."""
        group = self.groups.get(uuid)
        if group is not None:
            self.groups[uuid] = _replace(group, generation=group.generation + 1)
            self.append_change('group', uuid)

    def hosts_of_groups(self, uuids: Iterable[str]) -> set[int]:
        """Return the hosts that members of groups are on."""
        groups = set(uuids)
        if not groups:
            return set()
        return {claim.provider_id for claim in self.all_live() if claim.group in groups}

    def group(self, uuid: str) -> Group | None:
        """Return a group with its declared members and the consumers of its live claims."""
        group = self.groups.get(uuid)
        if group is None:
            return None
        claims = [claim for claim in self.all_live() if claim.group == uuid]
        claims.sort(key=lambda claim: (claim.created_at, claim.id))
        members = dict.fromkeys([*group.members, *(guest_of(claim) for claim in claims)])
        return _replace(group, members=list(members))

    def aggregate(self, name: str) -> Aggregate | None:
        """Return an aggregate by its name."""
        return next((a for a in self.aggregates.values() if a.name == name), None)

    def put_aggregate(self, aggregate: Aggregate) -> None:
        """Write an aggregate, one generation further."""
        grown = _replace(aggregate, generation=aggregate.generation + 1)
        self.aggregates[aggregate.id] = grown
        self.append_change('aggregate', aggregate.id)

    def aggregates_of(self, row: HostRow) -> list[str]:
        """Return the uuids of those that a host is in, by its name and by their uuids alone."""
        named = {a.uuid for a in self.aggregates.values() if row.name in a.hosts}
        return sorted(named | self.places[row.id].aggregates)

    def refresh_membership(self, names: Iterable[str]) -> None:
        """Bring the uuids in the rows of these hosts in line with the aggregates."""
        for name in names:
            row = self.named(name)
            if row is None:
                continue
            uuids = self.aggregates_of(row)
            if uuids != row.aggregates:
                self.hosts[row.id] = _replace(row, aggregates=uuids)
                self._changed.add(row.id)


def _is_over(row: HostRow | PoolRow) -> bool:
    return row.is_over if isinstance(row, PoolRow) else is_over_committed(row)
