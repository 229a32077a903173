# SPDX-License-Identifier: Apache-2.0
"""Guest events of an unmodified Nova in memory."""

from collections.abc import Iterable, Sequence

import msgspec

from devel.memory_store.database import MemoryDatabase, atomic
from gantt.core.claims import reconcile
from gantt.core.claims.claim import Claim, guest_of
from gantt.core.messages.base import derived_id
from gantt.nova.model import guest_events
from gantt.nova.model import host as nova_host
from gantt.nova.model.events import (
    AggregateDeleted,
    AggregatesUpdated,
    GuestLocation,
    NovaCast,
)
from gantt.nova.model.guest_events import EventsSeen
from gantt.nova.ports import NovaUpdateResult, OpenMigration

_replace = msgspec.structs.replace


class MemoryNova:
    """Broadcasts and answers of Nova, folded into claims and aggregates.

    It is ``ports.Nova`` in memory.
    """

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database

    @atomic
    def apply_guest_events(self, casts: Sequence[NovaCast]) -> NovaUpdateResult:
        """Fold what hosts report of their guests, each broadcast once."""
        result = NovaUpdateResult()
        for cast in casts:
            assert not isinstance(cast.event, AggregatesUpdated | AggregateDeleted)
            host = self.database.tables.named(cast.event.host)
            if host is None or self._events_seen(host.name).has_applied(cast):
                continue
            if not guest_events.takes_nova_events(host):
                result.not_novas.append(host.name)
                continue
            about = set(guest_events.consumers_of(cast))
            about |= {guest_of(claim) for claim in self.database.tables.live_on(host.id)}
            claims = self._claims_of(about)
            seen_events, effect = guest_events.fold(
                host, self._events_seen(host.name), claims, cast, self.database.now
            )
            self.database.tables.events_seen[derived_id('nova host', host.name)] = seen_events
            if host.reporter != 'nova':
                self.database.tables.hosts[host.id] = _replace(host, reporter='nova')
                self.database.tables.touch(host.id)
            self._write_claims(effect.claims)
            result.confirmed.extend(effect.confirmed)
            result.released.extend(effect.released)
            result.adopted.extend(effect.adopted)
        return _replace(result, hosts=self.database.tables.write())

    def _events_seen(self, host: str) -> EventsSeen:
        return self.database.tables.events_seen.get(derived_id('nova host', host)) or EventsSeen()

    def _claims_of(self, consumers: Iterable[str]) -> list[Claim]:
        guests = set(consumers)
        return [
            claim for claim in self.database.tables.claims.values() if guest_of(claim) in guests
        ]

    def _write_claims(self, claims: Iterable[Claim]) -> None:
        tables = self.database.tables
        for claim in claims:
            before = tables.claims.get(claim.id)
            if before is None and claim.group is not None:
                tables.bump_group(claim.group)
            if before is not None and before.is_live and claim.is_live:
                # Only what its amounts differ by: the rest does not count anew.
                for provider_id in {*before.allocations, *claim.allocations}:
                    self._recount(provider_id, before, claim)
            tables.put_claim(claim)
            tables.flag(claim.allocations)

    def _recount(self, provider_id: int, before: Claim, now: Claim) -> None:
        row = self.database.tables.hosts.get(provider_id)
        if row is None or before.allocations == now.allocations:
            return
        used = reconcile.usage_after(row.used, provider_id, (), [now])
        for name, amount in before.allocations.get(provider_id, {}).items():
            used[name] = used.get(name, 0) - amount
        used = {name: amount for name, amount in used.items() if amount}
        self.database.tables.put_use(_replace(row, generation=row.generation + 1), used)

    @atomic
    def resolve_guest(self, location: GuestLocation) -> NovaUpdateResult:
        hosts = self.database.tables.hosts
        claims = [
            claim
            for claim in self.database.tables.live_of_guest(location.consumer)
            if (host := hosts.get(claim.provider_id)) is None
            or guest_events.takes_nova_events(host)
        ]
        effect = nova_host.apply_location(claims, location, self.database.now)
        self._write_claims(effect.claims)
        return NovaUpdateResult(
            confirmed=effect.confirmed,
            released=effect.released,
            hosts=self.database.tables.write(),
        )

    @atomic
    def open_moves(self, seconds: float, limit: int, reserved: bool = False) -> list[OpenMigration]:
        late = nova_host.overdue_moves(self.database.tables.all_live(), self.database.now, seconds)
        late.sort(key=lambda move: (move.target.created_at, move.target.id))
        late = late[:limit]
        if reserved:
            awaited = nova_host.unconfirmed_claims(
                self.database.tables.all_live(), self.database.now, seconds
            )
            awaited = [claim for claim in awaited if self._is_host_of_nova(claim.provider_id)]
            awaited.sort(key=lambda claim: (claim.created_at, claim.id))
            late += [
                nova_host.MigrationClaims(source=claim, target=claim) for claim in awaited[:limit]
            ]
        return [
            OpenMigration(
                source=move.source,
                target=move.target,
                seconds=self.database.now - move.target.created_at,
            )
            for move in late
            if self._is_host_of_nova(move.target.provider_id)
        ]

    def _is_host_of_nova(self, provider_id: int) -> bool:
        host = self.database.tables.hosts.get(provider_id)
        return host is not None and host.reporter == 'nova'
