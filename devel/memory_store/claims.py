# SPDX-License-Identifier: Apache-2.0
"""Claims in memory after they are committed: by hosts, by time, by operators, and as read."""

from collections.abc import Collection, Sequence

import msgspec

from devel.memory_store import audit as memory_audit
from devel.memory_store.database import MemoryDatabase, atomic
from gantt.core.claims import reconcile
from gantt.core.claims.claim import (
    Claim,
    Event,
    State,
    guest_of,
    why_not_confirmed,
)
from gantt.core.messages.report import ClaimUpdate
from gantt.nova.model import host as nova_host
from gantt.scheduler.ports.requests import ClaimOutcome, ClaimResult

_replace = msgspec.structs.replace


class MemoryClaims:
    """Operations of hosts, operators and time on claims, and reads of claims.

    It is ``ports.Claims`` in memory.
    """

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database

    @atomic
    def confirm_claims(self, update: ClaimUpdate) -> ClaimResult:
        return self._apply_update(update, Event.CONFIRM)

    @atomic
    def refuse_claims(self, update: ClaimUpdate) -> ClaimResult:
        result = self._apply_update(update, Event.REFUSE)
        refused = sum(outcome.outcome == 'ok' for outcome in result.outcomes)
        if refused:
            provider_id = self.database.tables.ids[update.name]
            count = self.database.tables.refusals.get(provider_id, 0)
            self.database.tables.refusals[provider_id] = count + refused
        return result

    @atomic
    def release_claims(self, update: ClaimUpdate) -> ClaimResult:
        return self._apply_update(update, Event.RELEASE)

    @atomic
    def sweep(self, limit: int) -> ClaimResult:
        overdue = self.database.tables.overdue(self.database.now)[:limit]
        protected = nova_host.protected_by_moves(
            overdue, self._claims_of_nova(overdue), self.database.now
        )
        for claim in protected.values():
            self.database.tables.put_claim(claim)
        ends = [claim for claim in overdue if claim.id not in protected]
        outcomes = self.database.tables.happen(
            ends, Event.EXPIRE, 'lease ran out', self.database.now
        )
        return ClaimResult(outcomes=outcomes, hosts=self.database.tables.write())

    def _apply_update(self, update: ClaimUpdate, event: Event) -> ClaimResult:
        tables = self.database.tables
        row = tables.named(update.name)
        if row is None or row.epoch != update.epoch:
            return ClaimResult(
                outcomes=[
                    ClaimOutcome(claim_id=claim_id, outcome='gone') for claim_id in update.claim_ids
                ]
            )
        reconcile.check_sequence(update, row.sequence, row.boot_nonce)
        is_late = update.sequence <= row.sequence
        outcomes = [
            self._advance_claims(row.id, updated_id, event, is_late, update.reason)
            for updated_id in update.claim_ids
        ]
        if not is_late and any(outcome.state for outcome in outcomes):
            tables.hosts[row.id] = _replace(tables.hosts[row.id], sequence=update.sequence)
            tables.touch(row.id)
        return ClaimResult(outcomes=outcomes, hosts=tables.write())

    def _advance_claims(
        self, provider_id: int, claim_id: str, event: Event, is_late: bool, reason: str
    ) -> ClaimOutcome:
        """Apply one event to one claim.

        Late ones are as good as others where their effect rests on the state of
        the claim alone; a release is not: the guest may have been started since.
        """
        claim = self.database.tables.claims.get(claim_id)
        if claim is None or claim.provider_id != provider_id:
            return ClaimOutcome(claim_id=claim_id, outcome='gone')
        if event is Event.RELEASE and is_late:
            outcome = 'kept' if claim.is_live else 'gone'
            return ClaimOutcome(claim_id=claim_id, outcome=outcome, state=claim.state.value)
        host_aggregates = self.database.tables.happen([claim], event, reason, self.database.now)[0]
        if event is Event.CONFIRM:
            outcome = 'ok' if host_aggregates.state == State.CONFIRMED else 'gone'
            why = '' if outcome == 'ok' else why_not_confirmed(claim)
            return _replace(host_aggregates, outcome=outcome, reason=why)
        return host_aggregates

    def _claims_of_nova(self, due: Sequence[Claim]) -> list[Claim]:
        """Return the live claims of the consumers of these claims on hosts that Nova runs."""
        hosts = self.database.tables.hosts
        consumers = {
            guest_of(claim)
            for claim in due
            if claim.provider_id in hosts and hosts[claim.provider_id].reporter == 'nova'
        }
        return [
            claim
            for guest in sorted(consumers)
            for claim in self.database.tables.live_of_guest(guest)
        ]

    @atomic
    def force_release(self, claim_id: str, reason: str) -> ClaimResult:
        claim = self.database.tables.claims.get(claim_id)
        if claim is None:
            return ClaimResult(outcomes=[ClaimOutcome(claim_id=claim_id, outcome='gone')])
        outcomes = self.database.tables.happen([claim], Event.FORCE, reason, self.database.now)
        return ClaimResult(outcomes=outcomes, hosts=self.database.tables.write())

    @atomic
    def list_claims(
        self,
        *,
        limit: int = 100,
        marker: str | None = None,
        project: str | None = None,
        **equal: str | None,
    ) -> list[Claim]:
        fields = {name: value for name, value in equal.items() if value is not None}
        if project is not None:
            fields['project_id'] = project
        matching = [
            claim
            for claim in self.database.tables.claims.values()
            if all(getattr(claim, name) == value for name, value in fields.items())
            and (marker is None or claim.id > marker)
        ]
        return sorted(matching, key=lambda claim: claim.id)[:limit]

    @atomic
    def live_claims_of(self, consumers: Collection[str]) -> list[Claim]:
        guests = set(consumers)
        claims = [
            claim
            for claim in self.database.tables.claims.values()
            if claim.is_live and (claim.consumer in guests or claim.guest in guests)
        ]
        return sorted(claims, key=lambda claim: claim.id)

    @atomic
    def load_claim(self, claim_id: str) -> Claim | None:
        return self.database.tables.claims.get(claim_id)

    @atomic
    def audit(self) -> dict[str, list[str]]:
        """Return violations of P1 to P4; see ``devel.memory_store.audit``."""
        return memory_audit.audit(self.database.tables, self.database.now)
