# SPDX-License-Identifier: Apache-2.0
"""Registrations and reports of hosts in memory."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from devel.memory_store.database import MemoryDatabase, atomic
from gantt import exceptions
from gantt.core.claims import reconcile, registration
from gantt.core.claims.claim import (
    guest_of,
)
from gantt.core.claims.reconcile import Registration, RegistrationOutcome
from gantt.core.messages.base import derived_id
from gantt.core.messages.report import HostReport, Registered, RegisterHost
from gantt.core.resources.host import INVENTORIES_BY_API, Aggregate, HostFacts, HostRow
from gantt.scheduler.ports.hosts import ReportOutcome, ReportResult

_replace = msgspec.structs.replace


class MemoryReports:
    """Registrations and reports of agents about their hosts: ``ports.Reports`` in memory.

    :param report_seconds: how often hosts are to report
    """

    def __init__(self, database: MemoryDatabase, report_seconds: int) -> None:
        self.database = database
        self._report_seconds = report_seconds

    @atomic
    def _register(self, message: RegisterHost) -> Registration:
        tables = self.database.tables
        before = tables.named(message.name)
        existing_id = self._provider_created_before(before, message)
        row = registration.register(
            before,
            message,
            provider_id=existing_id or (tables.next_id() if before is None else before.id),
            last_epoch=tables.epochs.get(message.name, 0),
            now=self.database.now,
            report_seconds=self._report_seconds,
        )
        if existing_id is not None:
            pool, place = tables.pools.pop(existing_id), tables.places[existing_id]
            row = _replace(
                row,
                generation=row.generation + pool.generation,
                version=row.version + pool.version,
                facts=HostFacts(inventories=pool.inventories, traits=sorted(place.traits)),
                inventories_by=INVENTORIES_BY_API,
                used=pool.used,
                over_committed=pool.over_committed,
            )
            tables.append_change('provider', existing_id)
        if before is not None and registration.restarts_guest_lists(before, row):
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
            incarnation=self.database.incarnation,
            report_seconds=self._report_seconds,
        )
        return registered, change

    def _provider_created_before(self, before: HostRow | None, message: RegisterHost) -> int | None:
        """Return the id of the provider that is to become this host; None: there is none."""
        tables = self.database.tables
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
                f'{place.uuid} is the uuid of provider {place.name!r}, which is not a root; '
                'expected a root',
            )
        return provider_id

    def register_hosts(self, messages: Sequence[RegisterHost]) -> list[RegistrationOutcome]:
        """Register several hosts; what was refused gives the reason."""
        outcomes: list[RegistrationOutcome] = []
        for message in messages:
            try:
                outcomes.append(self._register(message))
            except exceptions.GanttError as e:
                outcomes.append(e)
        return outcomes

    @atomic
    def apply_reports(self, reports: Sequence[HostReport]) -> ReportResult:
        now = self.database.now
        written: set[int] = set()
        outcomes = [self._apply(report, now, written) for report in reports]
        return ReportResult(outcomes=outcomes, hosts=self.database.tables.write(written), now=now)

    def _apply(self, report: HostReport, now: float, written: set[int]) -> ReportOutcome:
        tables = self.database.tables
        row = tables.named(report.name)
        if row is None:
            return ReportOutcome(name=report.name, outcome='unknown_host')
        accepted = reconcile.report_outcome(row, report) == reconcile.APPLIED
        if accepted and report.aggregates is not UNSET and row.reports_inventories:
            report = _replace(report, aggregates=self._join_aggregates(row, report.aggregates))
        live = tables.live_on(row.id)
        live_ids = {claim.id for claim in live}
        reported = {
            claim_id: tables.claims[claim_id]
            for entry in (*(report.running or ()), *(report.pending or ()))
            if (claim_id := entry.claim_id) in tables.claims and claim_id not in live_ids
        }
        lone = reconcile.unclaimed_guests(live, reported, report)
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

    def _join_aggregates(self, row: HostRow, host_aggregates: Sequence[str]) -> list[str]:
        """Make a host a member of exactly these aggregates; a name never heard makes one."""
        tables, host = self.database.tables, row.name
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
