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
    judge,
    strangers,
)
from gantt.core.messages.report import HostReport, RegisterHost, Running
from gantt.core.messages.resource_classes import CORE_CLASSES
from gantt.core.resources.host import HostRow
from gantt.db.claims import adopted, groups
from gantt.db.claims.locks import Aside, Locks
from gantt.db.claims.unit_of_work import UnitOfWork
from gantt.db.database import Database, writing
from gantt.db.engine import session
from gantt.db.engine.retry import MoreLocks
from gantt.db.hosts import aggregates, claim_rows, providers, rows
from gantt.db.hosts.claim_rows import load_claims
from gantt.db.hosts.hosts import HostRecords
from gantt.db.schema import models
from gantt.scheduler.ports import FactsResult, ReportOutcome, ReportResult

_c = models.claims

#: Fields of a host that a report sets, beyond counters.
_REPORTED = (
    *('node', 'cell', 'zone', 'build_topic', 'boot_nonce', 'reporter'),
    *('service_disabled', 'aggregates', 'facts'),
)


class Fold:
    """A batch of reports.

    :ivar groups: groups to lock before the hosts; grows when a round needs more
    :ivar beside: providers to lock beside the hosts
    """

    def __init__(self, reports: Sequence[HostReport]) -> None:
        self.reports = reports
        self.groups: set[str] = set()
        self.beside: set[int] = set()

    def run(self, changes: UnitOfWork, hosts: HostRecords, aside: Aside) -> ReportResult:
        """Apply the batch, except the reports of hosts that are locked.

        :raises MoreLocks: to be run again in a new transaction
        """
        tx = changes.tx
        names = aggregates.resolve(
            tx, (r.aggregates for r in self.reports if r.aggregates is not UNSET)
        )
        groups.lock(tx, self.groups)
        host_ids = providers.ids_by_name(tx, (report.name for report in self.reports))
        changes.lock(aside.without(set(host_ids.values()) | self.beside))
        desks = self._desks(changes, host_ids)
        outcomes = []
        for report in self.reports:
            if host_ids.get(report.name) in aside.left:
                outcomes.append(ReportOutcome(name=report.name, outcome='locked'))
                continue
            desk = desks.get(host_ids.get(report.name, -1))
            if desk is None:
                outcomes.append(ReportOutcome(name=report.name, outcome='unknown_host'))
                continue
            if report.aggregates is not UNSET:
                aggregate_names = sorted({names[aggregate] for aggregate in report.aggregates})
                report = msgspec.structs.replace(report, aggregates=aggregate_names)
            outcomes.append(desk.fold(report, tx.now))
        changed_desks = [desk for _, desk in sorted(desks.items()) if desk.written]
        self._demand_locks(changed_desks, aside)
        for desk in changed_desks:
            desk.write(changes, hosts)
        hosts.write_noted()
        adopted.flag(changes, hosts)  # the pools
        adopted.note_zones(changes)
        changes.write()
        groups.bump(tx, {group for desk in changed_desks for group in desk.groups})
        result = changes.result([])
        return ReportResult(outcomes=outcomes, hosts=result.hosts, now=tx.now)

    def _desks(self, changes: UnitOfWork, known: dict[str, int]) -> dict[int, 'ReportDesk']:
        """Return a desk for each stored host, with the claims that it needs."""
        tx, locked = changes.tx, changes.locked
        stored_ids = {pid for pid in known.values() if pid in locked.counters}
        stamps = {pid: locked.counters[pid].claims_stamp for pid in sorted(stored_ids)}
        digests = {}
        for pid, stamp in stamps.items():
            placed_before = changes.memory.placed(pid, stamp)
            if placed_before is not None and placed_before[1] is not None:
                digests[pid] = placed_before[1]
        missing = [pid for pid in stamps if pid not in digests]
        for pid, (placed, quiet) in providers.read_placed(tx, changes.memory, missing).items():
            changes.memory.keep_placed(pid, stamps[pid], placed, quiet)
            digests[pid] = quiet
        restated_ids = {
            pid
            for report in self.reports
            if (pid := known.get(report.name, -1)) in stored_ids
            and not locked.counters[pid].sparse_classes
            and _may_restate(report, locked.templates[pid])
        }
        providers.read_uncounted(tx, locked, restated_ids)
        desks = {pid: ReportDesk(locked.row(pid), digests[pid]) for pid in stamps}
        loud: dict[int, set[str]] = {}
        for report in self.reports:
            desk = desks.get(known.get(report.name, -1))
            if desk is not None and not desk.is_quiet(report):
                loud.setdefault(desk.row.id, set()).update(_named(report))
        self._read_claims(changes, desks, loud)
        return desks

    def _read_claims(
        self, changes: UnitOfWork, desks: dict[int, 'ReportDesk'], loud: dict[int, set[str]]
    ) -> None:
        """Read live claims of the hosts with changes, and the other claims that they name."""
        if not loud:
            return
        for pid in loud:
            desks[pid].live = {}
        for claim in load_claims(changes.tx, provider_ids=sorted(loud), live=True):
            live = desks[claim.provider_id].live
            if live is not None:
                live[claim.id] = claim
        other_ids = {
            claim_id for pid, ids in loud.items() for claim_id in ids - set(desks[pid].live or ())
        }
        if other_ids:
            other_claims = {
                claim.id: claim for claim in load_claims(changes.tx, ids=sorted(other_ids))
            }
            for pid, ids in loud.items():
                desks[pid].known = {
                    claim_id: other_claims[claim_id] for claim_id in ids if claim_id in other_claims
                }
        self._read_history(changes.tx, [desks[pid] for pid in loud])

    def _read_history(self, tx: session.Tx, desks: Sequence['ReportDesk']) -> None:
        """Read ended claims of guests that run, and are reported, without a claim."""
        of_host = {desk.row.name: desk for desk in desks}
        desks_of_consumer: dict[str, list[ReportDesk]] = {}
        for report in self.reports:
            desk = of_host.get(report.name)
            if desk is not None and desk.live is not None:
                for consumer in strangers(desk.live.values(), desk.known, report):
                    desks_of_consumer.setdefault(consumer, []).append(desk)
        consumers = sorted(desks_of_consumer)
        for start in range(0, len(consumers), adopted.PARTS):
            # Not "live = 0": the consumers are few.
            part = consumers[start : start + adopted.PARTS]
            for claim in load_claims(tx, where=[claim_rows.of_guests(part), _c.c.live != 1]):
                for desk in desks_of_consumer.get(guest_of(claim), ()):
                    desk.known[claim.id] = claim

    def _demand_locks(self, written: Sequence['ReportDesk'], aside: Aside) -> None:
        changed_groups = {group for desk in written for group in desk.groups}
        all_needed_ids: set[int] = set()
        for desk in written:
            needed_ids = desk.beside()
            all_needed_ids |= needed_ids
            if not needed_ids.isdisjoint(aside.left):
                # A pool of the host is locked: then the host waits as well.
                aside.left.add(desk.row.id)
        if any(desk.row.id in aside.left for desk in written):
            raise MoreLocks('a report changes what others keep locked')
        if not (changed_groups <= self.groups and all_needed_ids <= self.beside):
            self.groups |= changed_groups
            self.beside |= all_needed_ids
            raise MoreLocks('a report changes more than its host')


def _may_restate(report: HostReport, before: HostRow) -> bool:
    """Return whether a report may rewrite all inventories, by those it states or by an adoption."""
    stated_inventories = {} if report.full and report.inventories is UNSET else report.inventories
    if before.reports_inventories and stated_inventories not in (UNSET, before.facts.inventories):
        return True
    return any(guest.claim_id is None for guest in report.running or ())


def _named(report: HostReport) -> set[str]:
    """Return the ids of the claims that a report names."""
    guests_named: Iterable[Running] = (*(report.running or ()), *(report.pending or ()))
    return {guest.claim_id for guest in guests_named if guest.claim_id is not None}


class ReportDesk:
    """State of one host while a batch of reports is folded into it.

    :ivar live: its live claims by id; None: not read, as no report changes claims
    :ivar before: changed claims, as they are in the database
    :ivar made: adopted claims
    :ivar over: ids of places that end for good, as another guest runs in them
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
        self.made: list[Claim] = []
        self.over: set[str] = set()
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
        return providers.quiet_digest(sorted(listed_guests)) == self._quiet

    def fold(self, report: HostReport, now: float) -> ReportOutcome:
        """Apply one report to the state of the host."""
        if self.live is None:
            effect = _fold_quiet(self.row, report, now)
        else:
            effect = apply_report(self.row, list(self.live.values()), self.known, report, now)
        self.groups.update(effect.groups)
        self.over.update(effect.over)
        if effect.row is not self.row:
            self._take(effect)
        return ReportOutcome.of(effect)

    def beside(self) -> set[int]:
        """Return the providers other than the host that its changed claims are on."""
        changed = (*self.before.values(), *self.made)
        return {pid for claim in changed for pid in claim.allocations if pid != self.row.id}

    def _take(self, effect: ReportEffect) -> None:
        self.written = True
        self.row = effect.row
        made_ids = {claim.id for claim in self.made}
        for claim in effect.claims:
            if self.live is None:
                raise ValueError('a report that says nothing new changed a claim')
            before = self.live.get(claim.id) or self.known.get(claim.id)
            if claim.id in made_ids or before is None:
                self.made = [
                    made_claim for made_claim in self.made if made_claim.id != claim.id
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
            changes.change(before, self.now[claim_id], ends_place=claim_id in self.over)
        for claim in self.made:
            changes.make(claim)
        # The fold's generation holds for the host itself; its pools were counted above.
        changes.grown.discard(pid)
        counters.generation = self.row.generation
        counters.over_committed = int(self.row.over_committed)
        counters.foreign = [self.row.foreign.get(name, 0) for name in CORE_CLASSES]
        self._write_others(changes, hosts, counters)
        self._write_facts(changes, hosts)
        changes.touched.add(pid)

    def _write_others(
        self, changes: UnitOfWork, hosts: HostRecords, counters: rows.Counters
    ) -> None:
        others = {
            name: [0, used, foreign]
            for name in {*self.row.used, *self.row.foreign, *self.first.used, *self.first.foreign}
            if name not in CORE_CLASSES
            and ((used := self.row.used.get(name, 0)), (foreign := self.row.foreign.get(name, 0)))
        }
        for name, usage in others.items():
            usage[0] = self.row.cap(name)
        inventories = self.row.facts.inventories
        is_same = inventories == self.first.facts.inventories
        if is_same and set(others) <= changes.locked.others_read(self.row.id):
            counters.others.update(others)
            return
        counters.cap = [self.row.cap(name) for name in CORE_CLASSES]
        others = {name: usage for name, usage in others.items() if usage[1] or usage[2]}
        counters.sparse_classes = hosts.write_inventories(self.row.id, self.row.facts, others)
        counters.others = {
            name: [inventory.cap, 0, 0]
            for name, inventory in inventories.items()
            if name not in CORE_CLASSES
        }
        counters.others.update(others)
        changes.locked.forget_others(self.row.id)

    def _write_facts(self, changes: UnitOfWork, hosts: HostRecords) -> None:
        first, row = self.first, self.row
        hosts.note(
            changes.locked,
            msgspec.structs.replace(
                changes.locked.templates[row.id],
                **{name: getattr(row, name) for name in _REPORTED},
            ),
        )
        if row.facts.traits != first.facts.traits:
            hosts.write_traits(row.id, row.facts.traits)
        if row.aggregates != first.aggregates:
            aggregates.join(changes.tx, row.name, row.aggregates, row.id)


def _fold_quiet(row: HostRow, report: HostReport, now: float) -> ReportEffect:
    """Return the fold of a report without changes of claims."""
    outcome = judge(row, report)
    if outcome != APPLIED:
        return ReportEffect(outcome=outcome, row=row)
    folded = fold_facts(row, report, now, row.used, row.used)
    return ReportEffect(outcome=outcome, row=folded, changed=folded.generation != row.generation)


class SqlReports:
    """Registrations and reports of agents about their hosts: ``ports.Reports`` in SQL.

    :param report_seconds: interval at which hosts report, in their registration
    """

    def __init__(self, database: Database, locks: Locks, report_seconds: int) -> None:
        self.database = database
        self._locks = locks
        self._report_seconds = report_seconds

    def register_hosts(self, messages: Sequence[RegisterHost]) -> list[RegistrationOutcome]:
        return self._locks.around(
            lambda tx, aside: HostRecords(tx, self.database.memory).register(
                messages, self._report_seconds, aside
            )
        )

    def apply_reports(self, reports: Sequence[HostReport]) -> ReportResult:
        fold = Fold(reports)
        return self._locks.around(
            lambda tx, aside: fold.run(
                UnitOfWork(tx, self.database.memory), HostRecords(tx, self.database.memory), aside
            )
        )

    @writing
    def update_host_facts(self, tx: session.Tx, update: UpdateHostFacts) -> FactsResult:
        """Apply facts of a host of Nova; others, and known facts, write nothing."""
        changes, hosts = UnitOfWork(tx, self.database.memory), HostRecords(tx, self.database.memory)
        ids = providers.ids_by_name(tx, [update.host])
        changes.lock(ids.values())
        pid = ids.get(update.host, -1)
        counters = changes.locked.counters.get(pid)
        if counters is None:
            return FactsResult(outcome=host_facts.UNKNOWN)
        row_before = changes.locked.row(pid)
        outcome = host_facts.judge(row_before, update)
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
            changes.change(claims_by_id[claim.id], claim)
        counters.generation = effect.row.generation
        template = changes.locked.templates[pid]
        aggregate_names = msgspec.structs.replace(
            template, facts=effect.row.facts, key=effect.row.key
        )
        hosts.write_facts(changes.locked, aggregate_names)
        changes.touched.add(pid)
        changes.write()
        return FactsResult(
            outcome=outcome, sequence=update.sequence, hosts=changes.result([]).hosts
        )
