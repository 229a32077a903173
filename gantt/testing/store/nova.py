# SPDX-License-Identifier: Apache-2.0
"""The in-memory store: what an unmodified Nova says of its guests and aggregates."""

from collections.abc import Iterable, Sequence

import msgspec

from gantt.core.claims import host_facts, reconcile
from gantt.core.claims.claim import Claim
from gantt.core.claims.host_facts import UpdateHostFacts
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
from gantt.scheduler.ports import FactsResult, NovaUpdateResult, OpenMove
from gantt.testing.store.operators import Operators, atomic

_replace = msgspec.structs.replace


class NovaTables(Operators):
    """Hosts that an unmodified Nova runs."""

    @atomic
    def apply_guest_events(self, casts: Sequence[NovaCast]) -> NovaUpdateResult:
        """Fold what hosts say of their guests, each broadcast once."""
        result = NovaUpdateResult()
        for cast in casts:
            assert not isinstance(cast.word, AggregatesUpdated | AggregateDeleted)
            host = self._tables.named(cast.word.host)
            if host is None or self._events_seen(host.name).knows(cast):
                continue
            if not guest_events.counts(host, cast):
                result.not_novas.append(host.name)
                continue
            about = set(guest_events.consumers_of(cast))
            about |= {claim.consumer for claim in self._tables.live_on(host.id)}
            claims = self._claims_of(about)
            seen, effect = guest_events.fold(
                host, self._events_seen(host.name), claims, cast, self._now
            )
            self._tables.events_seen[derived_id('nova host', host.name)] = seen
            if host.speaks_for != 'nova':
                self._tables.hosts[host.id] = _replace(host, speaks_for='nova')
                self._tables.touch(host.id)
            self._put_claims(effect.claims)
            result.confirmed.extend(effect.confirmed)
            result.released.extend(effect.released)
            result.adopted.extend(effect.adopted)
        return _replace(result, hosts=self._tables.write())

    def _events_seen(self, host: str) -> EventsSeen:
        return self._tables.events_seen.get(derived_id('nova host', host)) or EventsSeen()

    def _claims_of(self, consumers: Iterable[str]) -> list[Claim]:
        wanted = set(consumers)
        return [claim for claim in self._tables.claims.values() if claim.consumer in wanted]

    def _put_claims(self, claims: Iterable[Claim]) -> None:
        tables = self._tables
        touched: set[int] = set()
        for claim in claims:
            before = tables.claims.get(claim.id)
            if before is None and claim.group is not None:
                tables.bump_group(claim.group)
            if before is not None and before.is_live and claim.is_live:
                # Only what its amounts differ by: the rest does not count anew.
                for provider_id in {*before.allocations, *claim.allocations}:
                    self._recount(provider_id, before, claim)
            tables.put_claim(claim)
            touched |= {claim.provider_id, *claim.allocations}
        for provider_id in touched & set(tables.hosts):
            row = tables.hosts[provider_id]
            over = reconcile.is_over_committed(row)
            tables.hosts[provider_id] = _replace(row, over_committed=over)

    def _recount(self, provider_id: int, before: Claim, now: Claim) -> None:
        row = self._tables.hosts.get(provider_id)
        if row is None or before.allocations == now.allocations:
            return
        used = reconcile.usage(row.used, provider_id, (), [now])
        for name, amount in before.allocations.get(provider_id, {}).items():
            used[name] = used.get(name, 0) - amount
        used = {name: amount for name, amount in used.items() if amount}
        self._tables.hosts[provider_id] = _replace(row, used=used, generation=row.generation + 1)

    @atomic
    def apply_aggregates(self, cast: NovaCast) -> bool:
        event, news = cast.word, False
        named = [event.aggregate] if isinstance(event, AggregateDeleted) else []
        if isinstance(event, AggregatesUpdated):
            named = event.aggregates
        for one in named:
            key = derived_id('nova aggregate', one.uuid)
            seen = self._tables.events_seen.get(key) or EventsSeen()
            if seen.knows(cast):
                continue
            news = True
            self._tables.events_seen[key] = guest_events.noted(seen, cast)
            if isinstance(event, AggregateDeleted):
                self._forget_aggregate(one)
            else:
                self._save_aggregate(one)
        return news

    def _save_aggregate(self, location: NovaAggregate) -> None:
        tables = self._tables
        before = next((a for a in tables.aggregates.values() if a.uuid == location.uuid), None)
        if before is not None and before.name != location.name:
            if tables.aggregate(location.name) is not None:
                self.remove_aggregate(before.name)
            else:
                tables.aggregates[before.id] = _replace(before, name=location.name)
        known = tables.aggregate(location.name)
        metadata: dict[str, str | None] = dict.fromkeys(known.metadata if known else ())
        self.save_aggregate(
            location.name, metadata | location.metadata, list(location.hosts), location.uuid
        )

    def _forget_aggregate(self, location: NovaAggregate) -> None:
        before = next(
            (a for a in self._tables.aggregates.values() if a.uuid == location.uuid), None
        )
        if before is not None:
            self.remove_aggregate(before.name)

    @atomic
    def resolve_guest(self, location: GuestLocation) -> NovaUpdateResult:
        hosts = self._tables.hosts
        claims = [
            claim
            for claim in self._tables.live_of(location.consumer)
            if (host := hosts.get(claim.provider_id)) is None or guest_events.counts(host)
        ]
        effect = nova_host.located(claims, location, self._now)
        self._put_claims(effect.claims)
        return NovaUpdateResult(
            confirmed=effect.confirmed,
            released=effect.released,
            hosts=self._tables.write(),
        )

    @atomic
    def tell_facts(self, update: UpdateHostFacts) -> FactsResult:
        row = self._tables.named(update.host)
        if row is None:
            return FactsResult(outcome=host_facts.UNKNOWN)
        effect = host_facts.apply(row, self._tables.live_on(row.id), update, self._now)
        known = effect.row.facts.beside
        sequence = 0 if known is None else known.sequence
        if effect.outcome != host_facts.APPLIED:
            return FactsResult(outcome=effect.outcome, sequence=sequence)
        self._tables.hosts[row.id] = effect.row
        for claim in effect.claims:
            self._tables.put_claim(claim, count=False)
        return FactsResult(
            outcome=effect.outcome, sequence=sequence, hosts=self._tables.write([row.id])
        )

    @atomic
    def open_moves(self, seconds: float, limit: int, reserved: bool = False) -> list[OpenMove]:
        late = nova_host.overdue_moves(self._tables.all_live(), self._now, seconds)
        late.sort(key=lambda move: (move.target.created_at, move.target.id))
        late = late[:limit]
        if reserved:
            found = nova_host.awaited(self._tables.all_live(), self._now, seconds)
            found = [claim for claim in found if self._is_novas(claim.provider_id)]
            found.sort(key=lambda claim: (claim.created_at, claim.id))
            late += [nova_host.NovaMove(source=claim, target=claim) for claim in found[:limit]]
        return [
            OpenMove(
                source=move.source,
                target=move.target,
                seconds=self._now - move.target.created_at,
            )
            for move in late
            if self._is_novas(move.target.provider_id)
        ]

    def _is_novas(self, provider_id: int) -> bool:
        host = self._tables.hosts.get(provider_id)
        return host is not None and host.speaks_for == 'nova'
