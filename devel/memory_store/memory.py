# SPDX-License-Identifier: Apache-2.0
"""The write side of the store in memory: for tests of it, and the simulator.

What people read (decisions, quotas, logs, lists, history) is in SQL alone: see decision 0040.

One lock replaces the database's transactions: every method is atomic, and a
method that raises has changed nothing.  It does in the simplest way what the
SQL store must do, and the same contract suite holds both to it.
"""

from collections.abc import Collection, Sequence

import msgspec
from msgspec import UNSET

from devel.memory_store import commit as memory_commit
from devel.memory_store.allocations import AllocationTables
from devel.memory_store.group_plans import MemoryGroupPlans
from devel.memory_store.nova import NovaTables
from devel.memory_store.operators import atomic
from devel.memory_store.tables import RequestRow
from gantt import exceptions
from gantt.core.claims import reconcile, registration
from gantt.core.claims.claim import (
    Claim,
    Event,
    State,
    guest_of,
    longer,
    of_caller,
    why_not_confirmed,
)
from gantt.core.claims.commit import CommitResult, RequestDraft
from gantt.core.claims.reconcile import Registration, RegistrationOutcome
from gantt.core.messages.base import derived_id
from gantt.core.messages.report import ClaimUpdate, HostReport, Registered, RegisterHost
from gantt.core.nova import host as nova_host
from gantt.core.resources.host import API, Aggregate, HostFacts, HostRow
from gantt.core.zones.messages import ZoneRecord
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.ports import (
    ClaimOutcome,
    ClaimResult,
    Clock,
    Inbox,
    ReportOutcome,
    ReportResult,
    StoredRequest,
)

_replace = msgspec.structs.replace


class MemoryStore(NovaTables, AllocationTables, MemoryGroupPlans):
    """The store of callers, hosts and time; see ``scheduler.ports`` for what each method does.

    :param clock: its ``wall`` is the database's clock
    :param report_seconds: how often hosts are to report
    """

    def __init__(self, clock: Clock | None = None, *, report_seconds: int = 60) -> None:
        super().__init__(clock or SystemClock())
        self._report_seconds = report_seconds

    def child_zones(self) -> list[ZoneRecord]:
        return []  # zones speak to each other by what they have in a database

    # -- the group commit and the life of requests -------------------------
    @atomic
    def commit(self, batch: Sequence[RequestDraft]) -> CommitResult:
        return memory_commit.commit(self._tables, batch, self._now)

    #: Decisions have their twin in SQLite.
    may_refer = False

    def do_meanwhile(self, inbox: Inbox) -> None:
        pass  # nothing is waited for

    @atomic
    def give_up(self, request_id: str, owner: str, attempt: int) -> ClaimResult:
        row = self._tables.requests.get(request_id)
        if row is None or (row.state, row.owner, row.attempt) != ('open', owner, attempt):
            return ClaimResult(outcomes=[])
        del self._tables.requests[request_id]
        live = self._tables.of_request(request_id, live=True)
        return self._happen(live, Event.CANCEL, 'given up')

    @atomic
    def load_request(self, request_id: str) -> StoredRequest | None:
        row = self._tables.requests.get(request_id)
        if row is None:
            return None
        return StoredRequest(
            id=row.id,
            state=row.state,
            fingerprint=row.fingerprint,
            attempt=row.attempt,
            owner=row.owner,
            wait_seconds=max(0.0, row.deadline - self._now) if row.state == 'open' else 0.0,
            answer=row.answer,
            claims=self._tables.of_request(request_id),
        )

    @atomic
    def bar_request(self, request_id: str, fingerprint: str, answer: bytes) -> StoredRequest | None:
        stored = self.load_request(request_id)
        if stored is None:
            self._tables.requests[request_id] = RequestRow(
                id=request_id,
                fingerprint=fingerprint,
                state='cancelled',
                owner='',
                attempt=0,
                deadline=0.0,
                answer=answer,
            )
        return stored

    @atomic
    def cancel_request(self, request_id: str, reason: str) -> ClaimResult:
        row = self._tables.requests.setdefault(
            request_id,
            RequestRow(id=request_id, fingerprint='', state='', owner='', attempt=0, deadline=0.0),
        )
        row.state = 'cancelled'
        live = self._tables.of_request(request_id, live=True)
        return self._happen(live, Event.CANCEL, reason or 'cancelled')

    @atomic
    def extend_request(
        self, request_id: str, seconds: float, most: float, most_of_plans: float | None = None
    ) -> ClaimResult:
        now = self._now
        outcomes = []
        for claim in self._tables.of_request(request_id, live=True):
            becomes = longer(claim, seconds, now, most, most_of_plans)
            if becomes is not None and becomes is not claim:
                self._tables.put_claim(becomes)
            outcome = 'kept' if becomes is None else 'ok'
            outcomes.append(
                ClaimOutcome(claim_id=claim.id, outcome=outcome, state=claim.state.value)
            )
        return ClaimResult(outcomes=outcomes, hosts=self._tables.write())

    @atomic
    def confirm_request(self, request_id: str, consumers: Collection[str] = ()) -> ClaimResult:
        claims = of_caller(request_id, self._tables.of_request(request_id), consumers)
        result = self._happen(claims, Event.CONFIRM, '')
        outcomes = [
            _replace(outcome, outcome='ok' if outcome.state == State.CONFIRMED else 'gone')
            for outcome in result.outcomes
        ]
        return _replace(result, outcomes=outcomes)

    @atomic
    def return_request(
        self, request_id: str, consumers: Collection[str] = (), reason: str = ''
    ) -> ClaimResult:
        claims = of_caller(request_id, self._tables.of_request(request_id), consumers)
        return self._happen(claims, Event.RETURN, reason or 'returned')

    def _happen(self, claims: Sequence[Claim], event: Event, reason: str) -> ClaimResult:
        outcomes = self._tables.happen(claims, event, reason, self._now)
        return ClaimResult(outcomes=outcomes, hosts=self._tables.write())

    # -- hosts ------------------------------------------------------------------
    @atomic
    def register_host(self, message: RegisterHost) -> Registration:
        tables = self._tables
        before = tables.named(message.name)
        existing_id = self._made_before(before, message)
        row = registration.register(
            before,
            message,
            provider_id=existing_id or (tables.next_id() if before is None else before.id),
            last_epoch=tables.epochs.get(message.name, 0),
            now=self._now,
            report_seconds=self._report_seconds,
        )
        if existing_id is not None:
            pool, place = tables.pools.pop(existing_id), tables.places[existing_id]
            row = _replace(
                row,
                generation=row.generation + pool.generation,
                version=row.version + pool.version,
                facts=HostFacts(inventories=pool.inventories, traits=sorted(place.traits)),
                inventories_by=API,
                used=pool.used,
                over_committed=pool.over_committed,
            )
            tables.append_change('provider', existing_id)
        if before is not None and registration.begins_lists_anew(before, row):
            for claim in tables.live_on(row.id):
                tables.put_claim(msgspec.structs.replace(claim, absences=0))
        tables.hosts[row.id] = row
        tables.ids[row.name] = row.id
        tables.place_host(row)
        if before is None:
            tables.refresh_membership([row.name])
        change = tables.write(written=[row.id])[0]
        registered = Registered(
            name=row.name,
            uuid=row.uuid,
            epoch=row.epoch,
            incarnation=self.incarnation,
            report_seconds=self._report_seconds,
        )
        return registered, change

    def _made_before(self, before: HostRow | None, message: RegisterHost) -> int | None:
        """Return the id of the provider that is to become this host; None: there is none."""
        tables = self._tables
        provider_id = None if message.uuid is None else tables.with_uuid(message.uuid)
        if provider_id is None or (before is not None and provider_id == before.id):
            return None
        place, host = tables.places[provider_id], tables.hosts.get(provider_id)
        if host is not None or before is not None:
            owner = f'provider {place.name!r}, which is no host'
            if host is not None:
                owner = f'host {host.name!r}'
            raise exceptions.invalid(
                'register_host.uuid',
                f'{place.uuid} is the uuid of {owner}; expected one of its own',
            )
        if place.parent is not None:
            raise exceptions.invalid(
                'register_host.uuid',
                f'{place.uuid} is the uuid of provider {place.name!r}, which is below another one; '
                'expected a root',
            )
        return provider_id

    def register_hosts(self, messages: Sequence[RegisterHost]) -> list[RegistrationOutcome]:
        """Register several hosts; what was refused gives the reason."""
        outcomes: list[RegistrationOutcome] = []
        for message in messages:
            try:
                outcomes.append(self.register_host(message))
            except exceptions.GanttError as e:
                outcomes.append(e)
        return outcomes

    @atomic
    def apply_reports(self, reports: Sequence[HostReport]) -> ReportResult:
        now = self._now
        written: set[int] = set()
        outcomes = [self._apply(report, now, written) for report in reports]
        return ReportResult(outcomes=outcomes, hosts=self._tables.write(written), now=now)

    def _apply(self, report: HostReport, now: float, written: set[int]) -> ReportOutcome:
        tables = self._tables
        row = tables.named(report.name)
        if row is None:
            return ReportOutcome(name=report.name, outcome='unknown_host')
        accepted = reconcile.judge(row, report) == reconcile.APPLIED
        if accepted and report.aggregates is not UNSET and row.reports_inventories:
            report = _replace(report, aggregates=self._join(row, report.aggregates))
        live = tables.live_on(row.id)
        live_ids = {claim.id for claim in live}
        reported = {
            claim_id: tables.claims[claim_id]
            for entry in (*(report.running or ()), *(report.pending or ()))
            if (claim_id := entry.claim_id) in tables.claims and claim_id not in live_ids
        }
        lone = reconcile.strangers(live, reported, report)
        if lone:
            reported |= {
                claim.id: claim
                for claim in tables.claims.values()
                if not claim.is_live and guest_of(claim) in lone
            }
        effect = reconcile.apply_report(row, live, reported, report, now)
        if accepted:
            tables.hosts[row.id] = effect.row
            written.add(row.id)
        for claim in effect.claims:
            tables.put_claim(claim, count=False, ends_place=claim.id in effect.over)
            tables.flag(claim.allocations)
        for group in effect.groups:
            tables.bump_group(group)
        return ReportOutcome.of(effect)

    def _join(self, row: HostRow, host_aggregates: Sequence[str]) -> list[str]:
        """Make a host a member of exactly these aggregates; a name never heard makes one."""
        tables, host = self._tables, row.name
        uuids: dict[str, str] = {}
        for aggregate in tables.aggregates.values():
            uuids.setdefault(aggregate.uuid, aggregate.uuid)
            uuids[aggregate.name] = aggregate.uuid
        for name in host_aggregates:
            if name not in uuids:
                uuids[name] = derived_id('aggregate', name)
                tables.put_aggregate(Aggregate(id=tables.next_id(), uuid=uuids[name], name=name))
        aggregate_uuids = {uuids[name] for name in host_aggregates}
        if sorted(aggregate_uuids) == row.aggregates:
            return row.aggregates
        place = tables.places[row.id]
        tables.places[row.id] = _replace(place, aggregates=frozenset())
        for aggregate in list(tables.aggregates.values()):
            if (host in aggregate.hosts) != (aggregate.uuid in aggregate_uuids):
                hosts = set(aggregate.hosts) ^ {host}
                tables.put_aggregate(_replace(aggregate, hosts=sorted(hosts)))
        return sorted(aggregate_uuids)

    @atomic
    def confirm_claims(self, update: ClaimUpdate) -> ClaimResult:
        return self._apply_update(update, Event.CONFIRM)

    @atomic
    def refuse_claims(self, update: ClaimUpdate) -> ClaimResult:
        result = self._apply_update(update, Event.REFUSE)
        refused = sum(outcome.outcome == 'ok' for outcome in result.outcomes)
        if refused:
            provider_id = self._tables.ids[update.name]
            count = self._tables.refusals.get(provider_id, 0)
            self._tables.refusals[provider_id] = count + refused
        return result

    @atomic
    def release_claims(self, update: ClaimUpdate) -> ClaimResult:
        return self._apply_update(update, Event.RELEASE)

    def _apply_update(self, update: ClaimUpdate, event: Event) -> ClaimResult:
        tables = self._tables
        row = tables.named(update.name)
        if row is None or row.epoch != update.epoch:
            return ClaimResult(
                outcomes=[
                    ClaimOutcome(claim_id=claim_id, outcome='gone') for claim_id in update.claim_ids
                ]
            )
        reconcile.check_number(update, row.sequence, row.boot_nonce)
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
        claim = self._tables.claims.get(claim_id)
        if claim is None or claim.provider_id != provider_id:
            return ClaimOutcome(claim_id=claim_id, outcome='gone')
        if event is Event.RELEASE and is_late:
            outcome = 'kept' if claim.is_live else 'gone'
            return ClaimOutcome(claim_id=claim_id, outcome=outcome, state=claim.state.value)
        host_aggregates = self._tables.happen([claim], event, reason, self._now)[0]
        if event is Event.CONFIRM:
            outcome = 'ok' if host_aggregates.state == State.CONFIRMED else 'gone'
            why = '' if outcome == 'ok' else why_not_confirmed(claim)
            return _replace(host_aggregates, outcome=outcome, reason=why)
        return host_aggregates

    @atomic
    def sweep(self, limit: int) -> ClaimResult:
        overdue = self._tables.overdue(self._now)[:limit]
        protected = nova_host.protected_by_moves(overdue, self._of_nova(overdue), self._now)
        for claim in protected.values():
            self._tables.put_claim(claim)
        ends = [claim for claim in overdue if claim.id not in protected]
        return self._happen(ends, Event.EXPIRE, 'lease ran out')

    def _of_nova(self, due: Sequence[Claim]) -> list[Claim]:
        """Return the live claims of the consumers of these claims on hosts that Nova runs."""
        hosts = self._tables.hosts
        consumers = {
            guest_of(claim)
            for claim in due
            if claim.provider_id in hosts and hosts[claim.provider_id].speaks_for == 'nova'
        }
        return [claim for guest in sorted(consumers) for claim in self._tables.live_of_guest(guest)]
