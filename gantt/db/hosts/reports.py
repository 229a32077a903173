# SPDX-License-Identifier: Apache-2.0
"""Reports: a batch of them folded into hosts and claims in one transaction.

Unchanged rows are neither read nor written.  Most reports have no changes of claims: the digest
of the claims that a host lists shows this, and then neither claims nor allocations are read.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET

from gantt.core.claims import host_facts
from gantt.core.claims.claim import Claim, guest_of
from gantt.core.claims.host_facts import UpdateHostFacts
from gantt.core.claims.reconcile import (
    APPLIED,
    RegistrationOutcome,
    ReportEffect,
    apply_report,
    fold_facts,
    report_outcome,
    unclaimed_guests,
)
from gantt.core.messages.report import HostReport, RegisterHost, Running
from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.core.resources.host import HostRow
from gantt.db.claims import adopted
from gantt.db.claims.locks import KnownLocks, SkippedProviders
from gantt.db.claims.unit_of_work import UnitOfWork
from gantt.db.database import Database, SqlStore, writing
from gantt.db.engine import session
from gantt.db.engine.retry import MoreLocks
from gantt.db.hosts import aggregates, claim_rows, providers
from gantt.db.hosts.claim_rows import load_claims
from gantt.db.hosts.hosts import HostRecords
from gantt.db.schema import models
from gantt.scheduler.ports.hosts import FactsResult, ReportOutcome, ReportResult

_claims = models.claims

#: Fields of a host that a report sets, beyond counters.
_REPORTED_FIELDS = (
    *('node', 'cell', 'zone', 'build_topic', 'boot_nonce', 'reporter'),
    *('service_disabled', 'aggregates', 'facts'),
)


class ReportBatch:
    """A batch of reports.

    :ivar groups: groups to lock before the hosts; grows when a round needs more
    :ivar pools_to_lock: providers to lock beside the hosts
    """

    def __init__(self, reports: Sequence[HostReport]) -> None:
        self.reports = reports
        self.groups: set[str] = set()
        self.pools_to_lock: set[int] = set()

    def run(
        self, changes: UnitOfWork, hosts: HostRecords, skipped: SkippedProviders
    ) -> ReportResult:
        """Apply the batch, except the reports of hosts that are locked.

        :raises MoreLocks: to be run again in a new transaction
        """
        tx = changes.tx
        listed = [r.aggregates for r in self.reports if r.aggregates is not UNSET]
        names = aggregates.resolve(tx, listed) if any(listed) else {}
        host_ids = providers.ids_by_name(tx, (report.name for report in self.reports))
        changes.lock(skipped.remaining(set(host_ids.values()) | self.pools_to_lock), self.groups)
        states = self._states(changes, host_ids)
        outcomes = []
        for report in self.reports:
            if host_ids.get(report.name) in skipped.ids:
                outcomes.append(ReportOutcome(name=report.name, outcome='locked'))
                continue
            state = states.get(host_ids.get(report.name, -1))
            if state is None:
                outcomes.append(ReportOutcome(name=report.name, outcome='unknown_host'))
                continue
            if report.aggregates is not UNSET:
                aggregate_names = sorted({names[aggregate] for aggregate in report.aggregates})
                report = msgspec.structs.replace(report, aggregates=aggregate_names)
            outcomes.append(state.fold(report, tx.now))
        changed_states = [state for _, state in sorted(states.items()) if state.written]
        self._lock_remaining(changed_states, skipped)
        for state in changed_states:
            state.write(changes, hosts)
        hosts.write_collected_facts()
        adopted.write(changes, hosts, {group for state in changed_states for group in state.groups})
        result = changes.result([])
        return ReportResult(outcomes=outcomes, hosts=result.hosts, now=tx.now)

    def _states(self, changes: UnitOfWork, known: dict[str, int]) -> dict[int, 'HostReportState']:
        """Return a state for each stored host, with the claims that it needs."""
        tx, locked = changes.tx, changes.locked
        stored_ids = {pid for pid in known.values() if pid in locked.counters}
        stamps = {pid: locked.counters[pid].claims_stamp for pid in sorted(stored_ids)}
        digests = {}
        for pid, stamp in stamps.items():
            placed_before = changes.memory.placed(pid, stamp)
            if placed_before is not None and placed_before[1] is not None:
                digests[pid] = placed_before[1]
        missing = [pid for pid in stamps if pid not in digests]
        placed_of = providers.read_placed(tx, changes.memory, missing) if missing else {}
        for pid, (placed, quiet) in placed_of.items():
            changes.memory.remember_placed(pid, stamps[pid], placed, quiet)
            digests[pid] = quiet
        restated_ids = {
            pid
            for report in self.reports
            if (pid := known.get(report.name, -1)) in stored_ids
            and not locked.counters[pid].sparse_classes
            and _may_restate(report, locked.templates[pid])
        }
        if restated_ids:
            providers.read_uncounted(tx, locked, restated_ids)
        states = {pid: HostReportState(locked.row(pid), digests[pid]) for pid in stamps}
        loud: dict[int, set[str]] = {}
        for report in self.reports:
            state = states.get(known.get(report.name, -1))
            if state is not None and not state.is_quiet(report):
                loud.setdefault(state.row.id, set()).update(_named(report))
        self._read_claims(changes, states, loud)
        return states

    def _read_claims(
        self, changes: UnitOfWork, states: dict[int, 'HostReportState'], loud: dict[int, set[str]]
    ) -> None:
        """Read live claims of the hosts with changes, and the other claims that they name."""
        if not loud:
            return
        for pid in loud:
            states[pid].live = {}
        for claim in load_claims(changes.tx, provider_ids=sorted(loud), live=True):
            live = states[claim.provider_id].live
            if live is not None:
                live[claim.id] = claim
        other_ids = {
            claim_id for pid, ids in loud.items() for claim_id in ids - set(states[pid].live or ())
        }
        if other_ids:
            other_claims = {
                claim.id: claim for claim in load_claims(changes.tx, ids=sorted(other_ids))
            }
            for pid, ids in loud.items():
                states[pid].known = {
                    claim_id: other_claims[claim_id] for claim_id in ids if claim_id in other_claims
                }
        self._read_history(changes.tx, [states[pid] for pid in loud])

    def _read_history(self, tx: session.Tx, states: Sequence['HostReportState']) -> None:
        """Read ended claims of guests that run, and are reported, without a claim."""
        of_host = {state.row.name: state for state in states}
        states_of_consumer: dict[str, list[HostReportState]] = {}
        for report in self.reports:
            state = of_host.get(report.name)
            if state is not None and state.live is not None:
                for consumer in unclaimed_guests(state.live.values(), state.known, report):
                    states_of_consumer.setdefault(consumer, []).append(state)
        # Not "live = 0": the consumers are few.
        for claim in claim_rows.load_claims_of(tx, states_of_consumer, _claims.c.live != 1):
            for state in states_of_consumer.get(guest_of(claim), ()):
                state.known[claim.id] = claim

    def _lock_remaining(
        self, written: Sequence['HostReportState'], skipped: SkippedProviders
    ) -> None:
        changed_groups = {group for state in written for group in state.groups}
        all_needed_ids: set[int] = set()
        for state in written:
            needed_ids = state.pools_to_lock()
            all_needed_ids |= needed_ids
            if not needed_ids.isdisjoint(skipped.ids):
                # A pool of the host is locked: then the host waits as well.
                skipped.ids.add(state.row.id)
        if any(state.row.id in skipped.ids for state in written):
            raise MoreLocks('a report changes what others keep locked')
        if not (changed_groups <= self.groups and all_needed_ids <= self.pools_to_lock):
            self.groups |= changed_groups
            self.pools_to_lock |= all_needed_ids
            raise MoreLocks('a report changes more than its host')


def _may_restate(report: HostReport, before: HostRow) -> bool:
    """Return whether a report may rewrite all inventories, by those it states or by an adoption."""
    stated_inventories = {} if report.full and report.inventories is UNSET else report.inventories
    if stated_inventories not in (UNSET, before.facts.inventories) and before.reports_inventories:
        return True
    return any(guest.claim_id is None for guest in report.running or ())


def _named(report: HostReport) -> set[str]:
    """Return the ids of the claims that a report names."""
    guests_named: Iterable[Running] = (*(report.running or ()), *(report.pending or ()))
    return {guest.claim_id for guest in guests_named if guest.claim_id is not None}


class HostReportState:
    """State of one host while a batch of reports is folded into it.

    :ivar live: its live claims by id; None: not read, as no report changes claims
    :ivar before: changed claims, as they are in the database
    :ivar new_claims: adopted claims
    :ivar ended_reservations: ids of reservations that end for good, as another guest runs under
        them
    :ivar groups: groups whose members changed without a plan
    """

    def __init__(self, row: HostRow, quiet: bytes) -> None:
        self.first = row
        self.row = row
        self.written = False
        self.live: dict[str, Claim] | None = None
        self.known: dict[str, Claim] = {}
        self.before: dict[str, Claim] = {}
        self.now: dict[str, Claim] = {}
        self.new_claims: list[Claim] = []
        self.ended_reservations: set[str] = set()
        self.groups: set[str] = set()
        self._quiet = quiet

    def is_quiet(self, report: HostReport) -> bool:
        """Return whether the report lists exactly the claims here, all of them confirmed.

        Then it cannot change a claim, whatever else it reports.
        """
        if report.running is None:
            return report.used is UNSET
        if report.pending or not self._quiet:
            return False
        listed_guests = [
            (guest.claim_id, guest.consumer) for guest in report.running if guest.claim_id
        ]
        if len(listed_guests) < len(report.running):
            return False
        return providers.quiet_report_digest(sorted(listed_guests)) == self._quiet

    def fold(self, report: HostReport, now: float) -> ReportOutcome:
        """Apply one report to the state of the host."""
        if self.live is None:
            effect = _fold_quiet(self.row, report, now)
        else:
            effect = apply_report(self.row, list(self.live.values()), self.known, report, now)
        self.groups.update(effect.groups)
        self.ended_reservations.update(effect.over)
        if effect.row is not self.row:
            self._apply_effect(effect)
        return ReportOutcome.of(effect)

    def pools_to_lock(self) -> set[int]:
        """Return the providers other than the host that its changed claims are on."""
        changed = (*self.before.values(), *self.new_claims)
        return {pid for claim in changed for pid in claim.allocations if pid != self.row.id}

    def _apply_effect(self, effect: ReportEffect) -> None:
        self.written = True
        self.row = effect.row
        made_ids = {claim.id for claim in self.new_claims}
        for claim in effect.claims:
            if self.live is None:
                raise ValueError('a report that says nothing new changed a claim')
            before = self.live.get(claim.id) or self.known.get(claim.id)
            if claim.id in made_ids or before is None:
                self.new_claims = [
                    made_claim for made_claim in self.new_claims if made_claim.id != claim.id
                ] + [claim]
            else:
                self.before.setdefault(claim.id, before)
                self.now[claim.id] = claim
            if claim.is_live and claim.provider_id == self.row.id:
                self.live[claim.id] = claim
            else:
                self.live.pop(claim.id, None)
                self.known[claim.id] = claim

    def write(self, changes: UnitOfWork, hosts: HostRecords) -> None:
        """Write counters, claims and facts as they became; ``changes`` writes the rows."""
        pid = self.row.id
        counters = changes.locked.counters[pid]
        counters.epoch = self.row.epoch
        counters.sequence = self.row.sequence
        counters.full_sequence = self.row.full_sequence
        counters.reported_at = self.row.reported_at
        for claim_id, before in self.before.items():
            changes.change_claim(
                before, self.now[claim_id], ends_place=claim_id in self.ended_reservations
            )
        for claim in self.new_claims:
            changes.add_claim(claim)
        counters.over_committed = int(self.row.over_committed)
        counters.foreign = [self.row.foreign.get(name, 0) for name in CORE_CLASSES]
        self._write_others(changes, hosts)
        self._write_facts(changes, hosts)
        # The fold's generation holds for the host itself; that of its pools grows as they do.
        changes.set_generation(pid, self.row.generation)

    def _write_others(self, changes: UnitOfWork, hosts: HostRecords) -> None:
        """Write the usage of non-core classes, and changed inventories."""
        row, first, locked = self.row, self.first, changes.locked
        names = {*row.used, *row.foreign, *first.used, *first.foreign} - set(CORE_CLASSES)
        is_same = row.facts.inventories == first.facts.inventories
        if is_same and not names:
            return
        others = {
            name: [row.cap(name), row.used.get(name, 0), row.foreign.get(name, 0)] for name in names
        }
        if is_same and names <= locked.others_read(row.id):
            locked.counters[row.id].others.update(others)
        else:
            locked.counters[row.id].others = others
            hosts.replace_inventories(locked, row.id, row.facts)

    def _write_facts(self, changes: UnitOfWork, hosts: HostRecords) -> None:
        first, row = self.first, self.row
        hosts.collect_facts(
            changes.locked,
            msgspec.structs.replace(
                changes.locked.templates[row.id],
                **{name: getattr(row, name) for name in _REPORTED_FIELDS},
            ),
        )
        if row.facts.traits != first.facts.traits:
            hosts.write_traits(row.id, row.facts.traits)
        if row.aggregates != first.aggregates:
            aggregates.join(changes.tx, row.name, row.aggregates, row.id)


def _fold_quiet(row: HostRow, report: HostReport, now: float) -> ReportEffect:
    """Return the fold of a report without changes of claims."""
    outcome = report_outcome(row, report)
    if outcome != APPLIED:
        return ReportEffect(outcome=outcome, row=row)
    folded = fold_facts(row, report, now, row.used, row.used)
    return ReportEffect(outcome=outcome, row=folded, changed=folded.generation != row.generation)


class SqlReports(SqlStore):
    """Registrations and reports of agents about their hosts: ``ports.Reports`` in SQL.

    :param report_seconds: interval at which hosts report, in their registration
    """

    def __init__(self, database: Database, locks: KnownLocks, report_seconds: int) -> None:
        super().__init__(database)
        self._locks = locks
        self._report_seconds = report_seconds

    def register_hosts(self, messages: Sequence[RegisterHost]) -> list[RegistrationOutcome]:
        return self._locks.write_without_locked(
            lambda tx, skipped: HostRecords(tx, self.database.memory).register(
                messages, self._report_seconds, skipped
            )
        )

    def apply_reports(self, reports: Sequence[HostReport]) -> ReportResult:
        fold = ReportBatch(reports)
        return self._locks.write_without_locked(
            lambda tx, skipped: fold.run(
                UnitOfWork(tx, self.database.memory), HostRecords(tx, self.database.memory), skipped
            )
        )

    @writing
    def update_host_facts(self, tx: session.Tx, update: UpdateHostFacts) -> FactsResult:
        """Apply facts of a host of Nova; facts of other hosts, and known facts, write nothing."""
        changes, hosts = UnitOfWork(tx, self.database.memory), HostRecords(tx, self.database.memory)
        ids = providers.ids_by_name(tx, [update.host])
        changes.lock(ids.values())
        pid = ids.get(update.host, -1)
        if pid not in changes.locked.counters:
            return FactsResult(outcome=host_facts.UNKNOWN_HOST)
        row_before = changes.locked.row(pid)
        outcome = host_facts.report_outcome(row_before, update)
        if outcome != host_facts.APPLIED:
            last_update = row_before.facts.agent
            return FactsResult(
                outcome=outcome, sequence=0 if last_update is None else last_update.sequence
            )
        # An update without guests changes no claim.
        live_claims = (
            [] if update.guests is None else load_claims(tx, provider_ids=[pid], live=True)
        )
        effect = host_facts.apply(row_before, live_claims, update, tx.now)
        claims_by_id = {claim.id: claim for claim in live_claims}
        for claim in effect.claims:
            changes.change_claim(claims_by_id[claim.id], claim)
        changes.set_generation(pid, effect.row.generation)
        template = changes.locked.templates[pid]
        aggregate_names = msgspec.structs.replace(
            template, facts=effect.row.facts, key=effect.row.key
        )
        hosts.write_facts(changes.locked, aggregate_names)
        changes.write()
        return FactsResult(
            outcome=outcome, sequence=update.sequence, hosts=changes.result([]).hosts
        )
