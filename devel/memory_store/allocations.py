# SPDX-License-Identifier: Apache-2.0
"""Allocations of the in-memory store: consumers' live claims, as their writers see them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from devel.memory_store import provider_rows
from devel.memory_store.database import MemoryDatabase, atomic
from devel.memory_store.tables import PoolRow
from gantt import exceptions
from gantt.core.claims import allocations as rules
from gantt.core.claims import inheritance
from gantt.core.claims.acceptance import ProviderState, why_allocations_refused, with_inventories
from gantt.core.claims.allocations import (
    AllocationCompiler,
    ClaimChanges,
    ProviderRoot,
    WantedAllocations,
)
from gantt.core.claims.claim import Claim
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources import provider as provider_rules
from gantt.placement_api.ports import (
    ConsumerAllocations,
    ProviderAllocations,
    ReshapedProvider,
    TypeUsage,
)

_replace = msgspec.structs.replace
#: Claims as they were, and as they become.
Heirs = Sequence[tuple[Claim, Claim]]
NOTHING_RESHAPED: Mapping[int, Mapping[str, Inventory]] = MappingProxyType({})


class MemoryAllocations:
    """Allocations written as a whole, under the locks of all providers concerned.

    It is ``ports.Allocations`` in memory.
    """

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database

    # -- reading -------------------------------------------------------------------------
    @atomic
    def load_allocations(self, consumer: str) -> ConsumerAllocations | None:
        tables = self.database.tables
        claims, generation = tables.live_of(consumer), self._visible_generation(consumer)
        if generation is None:
            return None
        newest = max(claims, key=lambda claim: (claim.created_at, claim.id))
        shares = {
            pid: amounts
            for pid, amounts in rules.allocations_of_claims(claims).items()
            if tables.row(pid) is not None
        }
        return ConsumerAllocations(
            consumer=consumer,
            generation=generation,
            project_id=newest.project_id,
            user_id=newest.user_id,
            consumer_type=newest.consumer_type,
            allocations={tables.places[pid].uuid: amounts for pid, amounts in shares.items()},
            generations={tables.places[pid].uuid: self._generation(pid) for pid in shares},
            updated_at=max(claim.updated_at for claim in claims),
        )

    @atomic
    def provider_allocations(self, uuid: str) -> ProviderAllocations | None:
        tables, pid = self.database.tables, self.database.tables.with_uuid(uuid)
        if pid is None:
            return None
        claims = [claim for claim in tables.all_live() if pid in claim.allocations]
        consumers = sorted({claim.consumer for claim in claims})
        amounts = {
            consumer: rules.allocations_of_claims(
                claim for claim in claims if claim.consumer == consumer
            )
            for consumer in consumers
        }
        return ProviderAllocations(
            generation=self._generation(pid),
            allocations={
                holder: amounts_of[pid]
                for holder, amounts_of in amounts.items()
                if amounts_of.get(pid)
            },
            generations={holder: self._visible_generation(holder) or 0 for holder in consumers},
            updated_at=max((claim.updated_at for claim in claims), default=None),
        )

    @atomic
    def type_usages(self, project: str, *, user: str | None = None) -> list[TypeUsage]:
        claims_of_project = [
            claim
            for claim in self.database.tables.all_live()
            if claim.project_id == project and user in (None, claim.user_id)
        ]
        usages = []
        for name in sorted({claim.consumer_type for claim in claims_of_project}):
            claims_of_type = [claim for claim in claims_of_project if claim.consumer_type == name]
            total: Counter[str] = Counter()
            for amounts in rules.allocations_of_claims(claims_of_type).values():
                total.update(amounts)
            consumers = len({claim.consumer for claim in claims_of_type})
            usages.append(TypeUsage(consumer_type=name, consumers=consumers, resources=dict(total)))
        return usages

    def _visible_generation(self, consumer: str) -> int | None:
        tables = self.database.tables
        return rules.visible_generation(tables.live_of(consumer), tables.written.get(consumer))

    def _generation(self, pid: int) -> int:
        row = self.database.tables.row(pid)
        assert row is not None
        return row.generation

    # -- writing -------------------------------------------------------------------------------
    @atomic
    def write_allocations(self, wishes: Sequence[WantedAllocations]) -> None:
        named = self._named_providers(wishes)
        self._apply_changes(wishes, *self._checked_changes(wishes))
        for pid in named:
            self.database.tables.step(pid)
        self.database.tables.write()

    @atomic
    def delete_allocations(self, consumer: str) -> None:
        if not self.database.tables.live_of(consumer):
            raise exceptions.NotFound(kind='consumer', name=consumer)
        wish = WantedAllocations(consumer=consumer, allocations={}, project_id='', user_id='')
        self._apply_changes([wish], *self._checked_changes([wish]))
        self.database.tables.write()

    @atomic
    def reshape(
        self, providers: Mapping[str, ReshapedProvider], wishes: Sequence[WantedAllocations]
    ) -> None:
        tables, union = self.database.tables, {}
        for uuid, declared in providers.items():
            generation = self._generation(provider_rows.existing_id(self.database.tables, uuid))
            provider_rules.check_generation(uuid, generation, declared.generation)
        provider_rows.check_classes(
            self.database.tables,
            {name for declared in providers.values() for name in declared.inventories},
        )
        for declared in providers.values():
            provider_rules.check_inventories(declared.inventories)
        named = self._named_providers(wishes)
        for uuid, declared in providers.items():
            pid = provider_rows.changed_by_requests(self.database.tables, uuid)
            union[pid] = {
                **provider_rows.provider_of(self.database.tables, pid).inventories,
                **declared.inventories,
            }
        changes, heirs = self._checked_changes(wishes, union)
        self._check_used_classes(providers, wishes, changes, heirs)
        self._apply_changes(wishes, changes, heirs)
        for pid in named:
            tables.step(pid)
        for uuid, declared in providers.items():
            pid = provider_rows.write_inventories(self.database.tables, uuid, declared.inventories)
            if declared.inventories:
                self._increase_generation_again(pid)
            provider_rows.change(self.database.tables, self.database.now, pid)
        tables.write()

    def _check_used_classes(
        self,
        providers: Mapping[str, ReshapedProvider],
        wishes: Sequence[WantedAllocations],
        changes: ClaimChanges,
        heirs: Heirs,
    ) -> None:
        """Check that no class in use ends.  :raises InUse: an amount of it is still used"""
        before, now = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
        for wish in wishes:
            for total, claims in (
                (before, self.database.tables.live_of(wish.consumer)),
                (now, changes.of(wish.consumer)),
            ):
                for pid, amounts in rules.allocations_of_claims(claims).items():
                    total.update({(pid, name): amount for name, amount in amounts.items()})
        for pair in heirs:
            for pid, amounts in inheritance.amounts_gained(*pair).items():
                now.update({(pid, name): amount for name, amount in amounts.items()})
        for uuid, declared in providers.items():
            row = self.database.tables.row(
                pid := provider_rows.existing_id(self.database.tables, uuid)
            )
            assert row is not None
            names = {*row.used, *(name for provider_id, name in now if provider_id == pid)}
            used = {
                name: row.used.get(name, 0) - before[pid, name] + now[pid, name] for name in names
            }
            provider_rules.check_used(uuid, used, declared.inventories)

    def _increase_generation_again(self, pid: int) -> None:
        tables, row = self.database.tables, self.database.tables.row(pid)
        if isinstance(row, PoolRow):
            tables.pools[pid] = _replace(row, generation=row.generation + 1)
        elif row is not None:
            tables.hosts[pid] = _replace(row, generation=row.generation + 1)

    def _named_providers(self, wishes: Sequence[WantedAllocations]) -> set[int]:
        """Return the providers whose generations a write steps."""
        tables, provider_ids = self.database.tables, set()
        for wish in wishes:
            rules.check_generation(wish, self._visible_generation(wish.consumer))
        for wish in wishes:
            for uuid in wish.allocations:
                pid = tables.with_uuid(uuid)
                if pid is None:
                    raise exceptions.NotFound(kind='provider', name=uuid)
                provider_ids.add(pid)
            if not wish.allocations:
                provider_ids |= rules.allocations_of_claims(tables.live_of(wish.consumer)).keys()
        return {pid for pid in provider_ids if tables.row(pid) is not None}

    def _checked_changes(
        self,
        wishes: Sequence[WantedAllocations],
        union: Mapping[int, Mapping[str, Inventory]] = NOTHING_RESHAPED,
    ) -> tuple[ClaimChanges, Heirs]:
        """Return the changes of the claims, and of other claims that inherit something."""
        tables = self.database.tables
        roots = {
            pid: ProviderRoot(tables.root(pid), tables.root(pid) in tables.hosts)
            for pid in tables.places
        }
        live = {wish.consumer: tables.live_of(wish.consumer) for wish in wishes}
        changes = AllocationCompiler(
            live,
            roots,
            {place.uuid: pid for pid, place in tables.places.items()},
            now=self.database.now,
            stamp=tables.next_id(),
        ).compile(wishes)
        guests = sorted(rules.guests_concerned(changes))
        claims_of_guests = [claim for guest in guests for claim in tables.live_of_guest(guest)]
        heirs = rules.resolve_heirs(changes, claims_of_guests, live, self.database.now)
        before = [rules.allocations_of_claims(live[wish.consumer]) for wish in wishes]
        now = [rules.allocations_of_claims(changes.of(wish.consumer)) for wish in wishes]
        states = {
            pid: self._provider_state(pid) for pid in {pid for amounts in now for pid in amounts}
        }
        states |= {pid: with_inventories(states[pid], union[pid]) for pid in union.keys() & states}
        taken_over = [inheritance.amounts_gained(*pair) for pair in heirs]
        refusal = why_allocations_refused(states, before, now, taken_over)
        if refusal is not None:
            self._check_classes(wishes)
            raise exceptions.AllocationRefused(
                provider=tables.places[refusal.provider_id].uuid,
                classes=refusal.names,
                why=refusal.why,
                reason=refusal.reason,
            )
        return changes, heirs

    def _provider_state(self, pid: int) -> ProviderState:
        row = self.database.tables.row(pid)
        assert row is not None
        if isinstance(row, PoolRow):
            name, inventories = self.database.tables.places[pid].name, row.inventories
        else:
            name, inventories = row.name, row.facts.inventories
        room = {
            resource_class: row.free(resource_class) for resource_class in {*inventories, *row.used}
        }
        return ProviderState(
            name=name, generation=row.generation, inventories=inventories, room=room
        )

    def _check_classes(self, wishes: Sequence[WantedAllocations]) -> None:
        shares = (amounts for wish in wishes for amounts in wish.allocations.values())
        provider_rows.check_classes(
            self.database.tables, {name for amounts in shares for name in amounts}
        )

    def _apply_changes(
        self, wishes: Sequence[WantedAllocations], changes: ClaimChanges, heirs: Heirs
    ) -> None:
        tables = self.database.tables
        visible = {wish.consumer: self._visible_generation(wish.consumer) for wish in wishes}
        for before, now in changes.changed:
            self._count_use(before, -1)
            self._count_use(now, 1)
            tables.put_written(now)
        for before, now in changes.ended(self.database.now):
            self._count_use(before, -1)
            tables.put_written(now)
        for before, now in heirs:
            self._count_use(before, -1)
            self._count_use(now, 1)
            tables.put_written(now)
        for claim in changes.new:
            self._count_use(claim, 1)
            tables.put_written(self._is_on_host(claim))
        for wish in wishes:
            own_changes = changes.of(wish.consumer)
            if own_changes:
                state = rules.next_consumer_state(visible[wish.consumer], own_changes)
                tables.written[wish.consumer] = state
            else:
                tables.written.pop(wish.consumer, None)

    def _is_on_host(self, claim: Claim) -> Claim:
        host = self.database.tables.hosts.get(claim.provider_id)
        return claim if host is None else _replace(claim, host=host.name)

    def _count_use(self, claim: Claim, sign: int) -> None:
        for pid, amounts in claim.allocations.items():
            row = self.database.tables.row(pid)
            if row is None:
                continue  # gone, by hand
            used = Counter(row.used)
            for name, amount in amounts.items():
                used[name] += sign * amount
            self.database.tables.put_use(
                row, {name: amount for name, amount in used.items() if amount}
            )
            self.database.tables.touch(pid)
