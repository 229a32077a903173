# SPDX-License-Identifier: Apache-2.0
"""Reports: a batch of them folded into hosts and claims in one transaction.

What did not change is neither read nor written.  Most reports say nothing new
about claims: the digest of the claims that a host lists tells so, and then
neither claims nor allocations are read for it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import UNSET

from gantt import exceptions
from gantt.core.claims import host_facts
from gantt.core.claims.claim import Claim, guest_of
from gantt.core.claims.host_facts import UpdateHostFacts
from gantt.core.claims.reconcile import (
    APPLIED,
    Registration,
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
from gantt.db.claims.claims import Changes
from gantt.db.claims.locks import Aside, Locking
from gantt.db.engine import retry, session
from gantt.db.engine.retry import MoreLocks
from gantt.db.engine.session import writing
from gantt.db.hosts import aggregates, claim_rows, guests, providers, rows
from gantt.db.hosts.claim_rows import load_claims
from gantt.db.hosts.hosts import HostRecords
from gantt.db.schema import models
from gantt.scheduler.ports import FactsResult, ReportOutcome, ReportResult

_c = models.claims

#: What a report says of a host beyond counters.
_REPORTED = (
    *('node', 'cell', 'zone', 'build_topic', 'boot_nonce', 'speaks_for'),
    *('service_disabled', 'aggregates', 'facts'),
)


class Fold:
    """One batch of reports.

    :ivar groups: groups to lock before the hosts; grows when a round finds more
    :ivar beside: providers to lock beside the hosts
    """

    def __init__(self, reports: Sequence[HostReport]) -> None:
        self.reports = reports
        self.groups: set[str] = set()
        self.beside: set[int] = set()

    def run(self, changes: Changes, hosts: HostRecords, aside: Aside) -> ReportResult:
        """Apply the batch, but for the reports of hosts that are locked.

        :raises MoreLocks: to be run again in a new transaction
        """
        tx = changes.tx
        names = aggregates.resolve(
            tx, (r.aggregates for r in self.reports if r.aggregates is not UNSET)
        )
        groups.lock(tx, self.groups)
        known = providers.ids_by_name(tx, (report.name for report in self.reports))
        changes.lock(aside.without(set(known.values()) | self.beside))
        desks = self._desks(changes, known)
        outcomes = []
        for report in self.reports:
            if known.get(report.name) in aside.left:
                outcomes.append(ReportOutcome(name=report.name, outcome='locked'))
                continue
            desk = desks.get(known.get(report.name, -1))
            if desk is None:
                outcomes.append(ReportOutcome(name=report.name, outcome='unknown_host'))
                continue
            if report.aggregates is not UNSET:
                aggregate_names = sorted({names[one] for one in report.aggregates})
                report = msgspec.structs.replace(report, aggregates=aggregate_names)
            outcomes.append(desk.fold(report, tx.now))
        written = [desk for _, desk in sorted(desks.items()) if desk.written]
        self._demand_locks(written, aside)
        for desk in written:
            desk.write(changes, hosts)
        hosts.write_noted()
        adopted.flag(changes, hosts)  # the pools
        adopted.insert(tx, [claim for desk in written for claim in desk.made])
        changes.write()
        groups.bump(tx, {group for desk in written for group in desk.groups})
        result = changes.result([])
        return ReportResult(outcomes=outcomes, hosts=result.hosts, now=tx.now)

    def _desks(self, changes: Changes, known: dict[str, int]) -> dict[int, 'ReportDesk']:
        """One desk for each host that is there, with the claims that it will need."""
        tx, locked = changes.tx, changes.locked
        there = {pid for pid in known.values() if pid in locked.counters}
        stamps = {pid: locked.counters[pid].claims_stamp for pid in sorted(there)}
        digests = {}
        for pid, stamp in stamps.items():
            placed_before = changes.memory.placed(pid, stamp)
            if placed_before is not None and placed_before[1] is not None:
                digests[pid] = placed_before[1]
        missing = [pid for pid in stamps if pid not in digests]
        for pid, (placed, quiet) in providers.read_placed(tx, changes.memory, missing).items():
            changes.memory.keep_placed(pid, stamps[pid], placed, quiet)
            digests[pid] = quiet
        restated = {
            pid
            for report in self.reports
            if (pid := known.get(report.name, -1)) in there
            and not locked.counters[pid].cold
            and _may_restate(report, locked.templates[pid])
        }
        providers.read_uncounted(tx, locked, restated)
        desks = {pid: ReportDesk(locked.row(pid), digests[pid]) for pid in stamps}
        loud: dict[int, set[str]] = {}
        for report in self.reports:
            desk = desks.get(known.get(report.name, -1))
            if desk is not None and not desk.is_quiet(report):
                loud.setdefault(desk.row.id, set()).update(_named(report))
        self._read_claims(changes, desks, loud)
        return desks

    def _read_claims(
        self, changes: Changes, desks: dict[int, 'ReportDesk'], loud: dict[int, set[str]]
    ) -> None:
        """Live claims of the hosts that say something new, and the others that they name."""
        if not loud:
            return
        for pid in loud:
            desks[pid].live = {}
        for claim in load_claims(changes.tx, provider_ids=sorted(loud), live=True):
            live = desks[claim.provider_id].live
            if live is not None:
                live[claim.id] = claim
        named = {one for pid, ids in loud.items() for one in ids - set(desks[pid].live or ())}
        if named:
            found = {c.id: c for c in load_claims(changes.tx, ids=sorted(named))}
            for pid, ids in loud.items():
                desks[pid].known = {one: found[one] for one in ids if one in found}
        self._read_history(changes.tx, [desks[pid] for pid in loud])

    def _read_history(self, tx: session.Tx, desks: Sequence['ReportDesk']) -> None:
        """What guests had before that run without a claim, and whose hosts name none."""
        of_host = {desk.row.name: desk for desk in desks}
        wanted: dict[str, list[ReportDesk]] = {}
        for report in self.reports:
            desk = of_host.get(report.name)
            if desk is not None and desk.live is not None:
                for consumer in strangers(desk.live.values(), desk.known, report):
                    wanted.setdefault(consumer, []).append(desk)
        consumers = sorted(wanted)
        for start in range(0, len(consumers), adopted.PARTS):
            # Not "live = 0": of a few consumers this is.
            some = consumers[start : start + adopted.PARTS]
            for claim in load_claims(tx, where=[claim_rows.of_guests(some), _c.c.live != 1]):
                for desk in wanted.get(guest_of(claim), ()):
                    desk.known[claim.id] = claim

    def _demand_locks(self, written: Sequence['ReportDesk'], aside: Aside) -> None:
        voided = {group for desk in written for group in desk.groups}
        also_needed: set[int] = set()
        for desk in written:
            needed = desk.beside()
            also_needed |= needed
            if not needed.isdisjoint(aside.left):
                # A pool of it is locked: then the host waits as well.
                aside.left.add(desk.row.id)
        if any(desk.row.id in aside.left for desk in written):
            raise MoreLocks('a report changes what others keep locked')
        if not (voided <= self.groups and also_needed <= self.beside):
            self.groups |= voided
            self.beside |= also_needed
            raise MoreLocks('a report changes more than its host')


def _may_restate(report: HostReport, before: HostRow) -> bool:
    """Whether all inventories may be written anew, by what it states or for whom it adopts."""
    stated = {} if report.full and report.inventories is UNSET else report.inventories
    if before.reports_inventories and stated not in (UNSET, before.facts.inventories):
        return True
    return any(one.claim_id is None for one in report.running or ())


def _named(report: HostReport) -> set[str]:
    """Claims that a report names."""
    both: Iterable[Running] = (*(report.running or ()), *(report.pending or ()))
    return {one.claim_id for one in both if one.claim_id is not None}


class ReportDesk:
    """One host while a batch of reports is folded into it.

    :ivar live: its live claims by id; None: not read, nothing new is said about them
    :ivar before: claims that changed, as they are in the database
    :ivar made: adopted claims
    :ivar over: ids of places that end for good, as another guest runs in them
    :ivar groups: groups whose members changed in a way that nobody planned
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
        """Whether the report lists exactly the claims here, all of them confirmed.

        Then it cannot change a claim, whatever else it says.
        """
        if report.running is None:
            return report.used is UNSET
        if report.pending or not self._quiet:
            return False
        listed = [(one.claim_id, one.consumer) for one in report.running if one.claim_id]
        if len(listed) < len(report.running):
            return False
        return guests.quiet_digest(sorted(listed)) == self._quiet

    def fold(self, report: HostReport, now: float) -> ReportOutcome:
        """Apply one report to what is on the desk."""
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
        """Providers other than the host that its changed claims are on."""
        changed = (*self.before.values(), *self.made)
        return {pid for claim in changed for pid in claim.allocations if pid != self.row.id}

    def _take(self, effect: ReportEffect) -> None:
        self.written = True
        self.row = effect.row
        made = {claim.id for claim in self.made}
        for claim in effect.claims:
            if self.live is None:
                raise ValueError('a report that says nothing new changed a claim')
            before = self.live.get(claim.id) or self.known.get(claim.id)
            if claim.id in made or before is None:
                self.made = [one for one in self.made if one.id != claim.id] + [claim]
            else:
                self.before.setdefault(claim.id, before)
                self.now[claim.id] = claim
            if claim.is_live and claim.provider_id == self.row.id:
                self.live[claim.id] = claim
            else:
                self.live.pop(claim.id, None)
                self.known[claim.id] = claim

    def write(self, changes: Changes, hosts: HostRecords) -> None:
        """Counters, claims and facts as they became; ``changes`` writes the rows."""
        pid = self.row.id
        counters = changes.locked.counters[pid]
        counters.epoch = self.row.epoch
        counters.sequence = self.row.sequence
        counters.full_sequence = self.row.full_sequence
        counters.reported_at = self.row.reported_at
        counters.over_committed = int(self.row.over_committed)
        for claim_id, before in self.before.items():
            changes.change(before, self.now[claim_id], ends_place=claim_id in self.over)
        for claim in self.made:
            changes.count(claim, 1)
            changes.touch(pid)
        # What the fold says holds for the host itself; its pools were counted above.
        changes.grown.discard(pid)
        counters.generation = self.row.generation
        counters.used = [self.row.used.get(name, 0) for name in CORE_CLASSES]
        counters.foreign = [self.row.foreign.get(name, 0) for name in CORE_CLASSES]
        self._write_others(changes, hosts, counters)
        self._write_facts(changes, hosts)
        changes.touched.add(pid)

    def _write_others(self, changes: Changes, hosts: HostRecords, counters: rows.Counters) -> None:
        others = {
            name: [0, used, foreign]
            for name in {*self.row.used, *self.row.foreign, *self.first.used, *self.first.foreign}
            if name not in CORE_CLASSES
            and ((used := self.row.used.get(name, 0)), (foreign := self.row.foreign.get(name, 0)))
        }
        for name, of in others.items():
            of[0] = self.row.cap(name)
        inventories = self.row.facts.inventories
        same = inventories == self.first.facts.inventories
        if same and set(others) <= changes.locked.others_read(self.row.id):
            counters.others.update(others)
            return
        counters.cap = [self.row.cap(name) for name in CORE_CLASSES]
        others = {name: of for name, of in others.items() if of[1] or of[2]}
        counters.cold = hosts.write_inventories(self.row.id, self.row.facts, others)
        counters.others = {
            name: [inventory.cap, 0, 0]
            for name, inventory in inventories.items()
            if name not in CORE_CLASSES
        }
        counters.others.update(others)
        changes.locked.forget_others(self.row.id)

    def _write_facts(self, changes: Changes, hosts: HostRecords) -> None:
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
    """The fold of a report that says nothing new about claims."""
    outcome = judge(row, report)
    if outcome != APPLIED:
        return ReportEffect(outcome=outcome, row=row)
    folded = fold_facts(row, report, now, row.used, row.used)
    return ReportEffect(outcome=outcome, row=folded, changed=folded.generation != row.generation)


class SqlReports(Locking):
    """See ``scheduler.ports.hosts``.

    :param report_seconds: how often hosts are told to report
    """

    def __init__(
        self,
        engine: sa.Engine,
        policy: retry.RetryPolicy | None = None,
        *,
        report_seconds: int = 60,
        **options: Any,
    ) -> None:
        super().__init__(engine, policy, **options)
        self._report_seconds = report_seconds

    def register_host(self, message: RegisterHost) -> Registration:
        (found,) = self.register_hosts([message])
        if isinstance(found, exceptions.GanttError):
            raise found
        return found

    def register_hosts(self, messages: Sequence[RegisterHost]) -> list[RegistrationOutcome]:
        return self._around(
            lambda tx, aside: HostRecords(tx, self.memory).register(
                messages, self._report_seconds, aside
            )
        )

    def apply_reports(self, reports: Sequence[HostReport]) -> ReportResult:
        fold = Fold(reports)
        return self._around(
            lambda tx, aside: fold.run(
                Changes(tx, self.memory), HostRecords(tx, self.memory), aside
            )
        )

    @writing
    def tell_facts(self, tx: session.Tx, update: UpdateHostFacts) -> FactsResult:
        """What is neither new nor of a host of Nova writes nothing."""
        changes, hosts = Changes(tx, self.memory), HostRecords(tx, self.memory)
        ids = providers.ids_by_name(tx, [update.host])
        changes.lock(ids.values())
        pid = ids.get(update.host, -1)
        counters = changes.locked.counters.get(pid)
        if counters is None:
            return FactsResult(outcome=host_facts.UNKNOWN)
        before = changes.locked.row(pid)
        outcome = host_facts.judge(before, update)
        if outcome != host_facts.APPLIED:
            known = before.facts.beside
            return FactsResult(outcome=outcome, sequence=0 if known is None else known.sequence)
        # Without a word about guests no claim changes.
        live = [] if update.guests is None else load_claims(tx, provider_ids=[pid], live=True)
        effect = host_facts.apply(before, live, update, tx.now)
        was = {claim.id: claim for claim in live}
        for claim in effect.claims:
            changes.change(was[claim.id], claim)
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
