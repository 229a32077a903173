# SPDX-License-Identifier: Apache-2.0
"""The database of a zone: the lines to it, which fail, and the checks of what is written.

Its clock is the true one.  A line may fail before a statement has its effect, or after it: then
the caller gets the error that the database is away, and the effect is kept.
"""

import abc
import copy
import dataclasses
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from devel.memory_store.stores import MemoryStores
from devel.sim.loop import Loop, Process, ProcessClock
from devel.sim.writes import WRITES
from gantt import exceptions
from gantt.core.claims.acceptance import is_over_committed
from gantt.core.claims.claim import Claim, State
from gantt.core.claims.commit import CommitResult, RequestDraft
from gantt.core.claims.quota import Limit
from gantt.core.messages.report import ClaimUpdate, HostReport
from gantt.core.records.audit_remedies import TWO_GUESTS_LINE
from gantt.scheduler.ports.hosts import ReportOutcome, ReportResult
from gantt.scheduler.ports.process import Clock
from gantt.scheduler.ports.records import Feed
from gantt.scheduler.ports.requests import ClaimResult
from gantt.stores import AllStores

#: Read by a process under a lock of its own: no other task of it may run meanwhile.
IMMEDIATE_METHODS = {'poll', 'compare', 'load_everything', 'declared_classes', 'zone_identity'}
NO_LIMIT = 1_000_000

#: The reserved claims before a statement, by id.
Reserved = Mapping[str, Claim]

#: Makes the stores from their clock: others break a rule on purpose.
MakeStores = Callable[[Clock], MemoryStores]
#: Called with each write that had its effect: who wrote, the statement, arguments, result.
OnWrite = Callable[[str, str, tuple[Any, ...], Any], None]


class SimDatabase(abc.ABC):
    """The one database of a zone.

    :ivar stores: as they are read from outside
    :ivar away_until: it answers no process before
    :ivar lost_answers: so many of the next writes have their effect and no answer
    :ivar blind: names of processes whose feed leaves everything out.  Only the next whole
        comparison finds what they missed
    :ivar confirmed: ids of claims that were confirmed at some time
    :ivar broken: violations that were seen when they happened
    """

    stores: AllStores

    def __init__(self, loop: Loop, rng: random.Random, name: str) -> None:
        self.loop, self.rng, self.name = loop, rng, name
        self.clock = ProcessClock(Process(loop, name))
        self.away_until = 0.0
        self.lost_answers = 0
        self.blind: set[str] = set()
        self.confirmed: set[str] = set()
        self.restored = 0
        self.broken: list[str] = []
        self.on_write: OnWrite | None = None

    def heal(self) -> None:
        """End the trouble."""
        self.away_until = 0.0
        self.lost_answers = 0
        self.blind.clear()

    def live(self) -> list[Claim]:
        """Return every live claim."""
        states = (State.RESERVED, State.CONFIRMED)
        return [
            c
            for state in states
            for c in self.stores.claims.list_claims(state=state, limit=NO_LIMIT)
        ]

    # -- backups -----------------------------------------------------------------
    @abc.abstractmethod
    def back_up(self) -> None:
        """Make a backup."""

    @abc.abstractmethod
    def restore(self) -> None:
        """Restore the backup, as in the operator's handbook: with a new incarnation."""

    # -- what a line does ----------------------------------------------------------
    def line(self, process: Process) -> AllStores:
        """Return the stores as a process has them."""
        stores = self.open()
        ports = {field.name: getattr(stores, field.name) for field in dataclasses.fields(AllStores)}
        return AllStores(
            **{name: cast(Any, DatabasePort(self, process, port)) for name, port in ports.items()}
        )

    @abc.abstractmethod
    def open(self) -> AllStores:
        """Return the stores of one more process."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close all connections."""

    def call(
        self, process: Process, name: str, method: Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        """Run one statement of a process: the way there, the effect, the way back."""
        waits = name not in IMMEDIATE_METHODS
        if waits:
            self.loop.sleep(self.rng.uniform(0.001, 0.02))
        writes = name in WRITES
        if self.loop.now < self.away_until:
            raise exceptions.DatabaseUnavailable(problem='it is away')
        if writes:
            process.step('before', name)
        result = self.effect(process, name, method, args)
        if writes:
            process.step('after', name)
            if self.lost_answers:
                self.lost_answers -= 1
                self.loop.write_trace(process.name, f'receives no answer to {name}')
                raise exceptions.DatabaseUnavailable(problem='the answer is lost')
        if waits:
            self.loop.sleep(self.rng.uniform(0.001, 0.02))
        if name == 'poll' and process.name in self.blind:
            return Feed(position=result.position, now=result.now, incarnation=result.incarnation)
        return result

    def effect(
        self, process: Process, name: str, method: Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        """Run the statement itself."""
        result = method(*args)
        if name in WRITES:
            summary = WRITES[name](args, result)
            if summary:
                self.loop.write_trace(process.name, f'{name} {summary}')
        if name == 'confirm_claims':
            self.confirmed.update(_is_placed(result))
        if name in WRITES and self.on_write is not None:
            self.on_write(process.name, name, args, result)
        return result

    def _break(self, what: str) -> None:
        if what in self.broken:
            return
        self.loop.write_trace(self.name, f'broken: {what}')
        self.broken.append(what)


class SimMemoryDatabase(SimDatabase):
    """A database of stores in memory, with a check for each kind of write."""

    stores: MemoryStores

    def __init__(self, loop: Loop, rng: random.Random, name: str, make: MakeStores) -> None:
        super().__init__(loop, rng, name)
        self.stores = make(self.clock)
        self._stored: Any = None
        self._applied: dict[tuple[int, str, int], int] = {}

    def back_up(self) -> None:
        self._stored = copy.deepcopy(self.stores.database.tables)

    def restore(self) -> None:
        if self._stored is not None:
            self.stores.database.tables = copy.deepcopy(self._stored)
            self.stores.database.incarnation += 1
            self.restored += 1

    def open(self) -> AllStores:
        return self.stores

    def close(self) -> None:
        """Close nothing: there are no connections."""

    def effect(
        self, process: Process, name: str, method: Callable[..., Any], args: tuple[Any, ...]
    ) -> Any:
        """Run the statement itself, and check what it did."""
        check = getattr(self, f'_check_{name}', None)
        reserved = {c.id: c for c in self.live() if c.state is State.RESERVED} if check else {}
        result = super().effect(process, name, method, args)
        if check is not None:
            check(args, result, reserved)
        return result

    # -- checks of writes ------------------------------------------------------------
    def _check_commit(
        self, args: tuple[Sequence[RequestDraft]], result: CommitResult, reserved: Reserved
    ) -> None:
        """Check that no commit leaves too much on a host, or breaks a group's rule."""
        rows = self.stores.database.tables.hosts
        for draft, outcome in zip(args[0], result.outcomes, strict=True):
            provider_ids = {p for i in outcome.accepted for p in draft.claims[i].claim.allocations}
            for row in (rows[p] for p in sorted(provider_ids) if p in rows):
                if is_over_committed(row):
                    self._break(f'P1: a commit of {draft.id} left {row.name} over-committed')
            if outcome.accepted and not self.restored:
                self._check_group(draft)
        for line in audited(self.stores.claims.audit()):
            self._break(line)

    def _check_confirm_claims(
        self, args: tuple[ClaimUpdate], result: ClaimResult, reserved: Reserved
    ) -> None:
        """Check that an old epoch always gets "gone"."""
        update, ok = args[0], _is_placed(result)
        row = self.stores.database.tables.named(update.name)
        if ok and (row is None or row.epoch != update.epoch):
            self._break(f'fence: epoch {update.epoch} of {update.name} may start {ok}')

    def _check_apply_reports(
        self, args: tuple[Sequence[HostReport]], result: ReportResult, reserved: Reserved
    ) -> None:
        """Check that no absence of a guest ends a reserved claim.

        After a restore a place may be free again, or another create's, that a guest runs in: it
        ends.
        """
        for outcome in result.outcomes:
            for claim_id in outcome.released:
                before = reserved.get(claim_id)
                if before is not None and not (self.restored and before.member_name):
                    self._break(
                        f'P2: absence on {outcome.name} ended the reserved claim {claim_id}'
                    )
        for report, outcome in zip(args[0], result.outcomes, strict=True):
            self._check_order(report, outcome)

    def _check_order(self, report: HostReport, outcome: ReportOutcome) -> None:
        """Check that a later message is never undone by an earlier one."""
        key = (self.restored, report.name, report.epoch)
        if outcome.outcome == 'applied':
            if report.sequence <= self._applied.get(key, 0):
                self._break(f'P7: report {report.sequence} of {report.name} was applied too late')
            self._applied[key] = max(report.sequence, self._applied.get(key, 0))

    def _check_sweep(self, args: object, result: ClaimResult, reserved: Reserved) -> None:
        """Check that time ends what is reserved past its lease, and nothing else."""
        now = self.stores.database.ping()
        for outcome in result.outcomes:
            claim = reserved.get(outcome.claim_id)
            if outcome.outcome == 'ok' and (claim is None or claim.lease_until >= now):
                self._break(f'P2: the sweeper ended claim {outcome.claim_id} before its time')

    def _check_group(self, draft: RequestDraft) -> None:
        if draft.group is None:
            return
        claims = [c for c in self.live() if c.group == draft.group.uuid and not c.adopted]
        counts = Counter(c.host for c in claims)
        if draft.group.policy == 'affinity' and len(counts) > 1:
            self._break(f'group: {draft.group.uuid} (affinity) is on {sorted(counts)}')
        if draft.group.policy == 'anti-affinity':
            for host, count in sorted(counts.items()):
                if count > draft.group.max_per_host:
                    self._break(f'group: {draft.group.uuid} has {count} members on {host}')


class DatabasePort:
    """A port of the database, as one process reaches it."""

    connections_lost = 0  # whoever answers is always the same
    may_refer = False  # decisions are not written

    def __init__(self, database: SimDatabase, process: Process, port: object) -> None:
        self._database, self._process, self._port = database, process, port

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith('_'):
            raise AttributeError(name)
        return functools.partial(self._call, name, getattr(self._port, name))

    def limits(self) -> list[Limit]:
        """Return no limits: there are none."""
        return []

    def note_new_allocation(self, *new: Any) -> bool:
        """Return that it is checked statement by statement, as on SQLite."""
        return False

    def silent_for(self) -> float:
        """Return 0: a line fails at once, or it answers."""
        return 0.0

    def purge(self, **keep: Any) -> int:
        """Delete nothing: no run is long enough for that."""
        return 0

    def _call(self, name: str, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if named:
            method = functools.partial(method, **named)
        return self._database.call(self._process, name, method, args)


def _is_placed(result: ClaimResult) -> list[str]:
    return [outcome.claim_id for outcome in result.outcomes if outcome.outcome == 'ok']


def audited(findings: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the findings of an audit that the world did not cause.

    A host that comes back after its guest was created elsewhere is one: two guests of a member run.
    """
    return [
        f'audit, {kind}: {line}'
        for kind, lines in findings.items()
        for line in lines
        if TWO_GUESTS_LINE.search(line) is None
    ]
