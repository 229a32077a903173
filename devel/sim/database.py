# SPDX-License-Identifier: Apache-2.0
"""The database: the stores in memory, the lines to them, and the checks of its writes.

Its clock is the true one.  A line may fail before a statement has its effect,
or after it: then the caller gets the error that the database is away, and the effect
is kept.
"""

import copy
import dataclasses
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from devel.memory_store.stores import MemoryStores
from devel.sim.loop import Loop, Process, ProcessClock
from gantt import exceptions
from gantt.core.claims.acceptance import is_over_committed
from gantt.core.claims.claim import Claim, State
from gantt.core.claims.commit import CommitResult, RequestDraft
from gantt.core.claims.quota import Limit
from gantt.core.messages.report import ClaimUpdate, HostReport
from gantt.core.records.audit_remedies import TWO_GUESTS
from gantt.scheduler.ports import (
    ClaimResult,
    Clock,
    Feed,
    ReportOutcome,
    ReportResult,
    Stores,
)

#: Read by a process under a lock of its own: no other task of it may run meanwhile.
AT_ONCE = {'poll', 'compare', 'load_everything', 'declared_classes'}
#: Said in the trace, and worth a death.
WRITES = {
    'commit',
    'give_up',
    'bar_request',
    'cancel_request',
    'extend_request',
    'confirm_request',
    'return_request',
    'register_hosts',
    'apply_reports',
    'confirm_claims',
    'refuse_claims',
    'release_claims',
    'sweep',
    'extend_plan',
    'release_plan',
}
NO_LIMIT = 1_000_000

#: The reserved claims before a statement, by id.
Reserved = Mapping[str, Claim]


#: Makes the stores from their clock: others break a rule on purpose.
MakeStores = Callable[[Clock], MemoryStores]


class SimDatabase:
    """The one database of a run.

    :ivar away_until: it answers no process before
    :ivar lost_answers: so many of the next writes have their effect and no answer
    :ivar blind: names of processes whose feed leaves everything out.  Only the next whole
        comparison finds what they missed
    :ivar confirmed: ids of claims that were confirmed at some time
    :ivar broken: violations that were seen when they happened
    :ivar on_write: called for each write that had its effect: name, arguments, result
    """

    def __init__(self, loop: Loop, rng: random.Random, make: MakeStores) -> None:
        self.loop = loop
        self.rng = rng
        self.stores = make(ProcessClock(Process(loop, 'database')))
        self.away_until = 0.0
        self.lost_answers = 0
        self.blind: set[str] = set()
        self.confirmed: set[str] = set()
        self.restored = 0
        self.broken: list[str] = []
        self.on_write: Callable[[str, tuple[Any, ...], Any], None] | None = None
        self._stored: Any = None
        self._applied: dict[tuple[int, str, int], int] = {}

    # -- backups -----------------------------------------------------------------
    def keep(self) -> None:
        """Make a backup."""
        self._stored = copy.deepcopy(self.stores.database.tables)

    def restore(self) -> None:
        """Restore the backup, as in the operator's handbook: with a new incarnation."""
        if self._stored is not None:
            self.stores.database.tables = copy.deepcopy(self._stored)
            self.stores.database.incarnation += 1
            self.restored += 1

    # -- what a line does ----------------------------------------------------------
    def line(self, process: Process) -> Stores:
        """Return the stores as a process has them."""
        ports = [field.name for field in dataclasses.fields(Stores)]
        return Stores(**{port: cast(Any, Line(self, process, port)) for port in ports})

    def call(self, process: Process, port: str, name: str, args: tuple[Any, ...]) -> Any:
        """Run one statement of a process: the way there, the effect, the way back."""
        waits = name not in AT_ONCE
        if waits:
            self.loop.sleep(self.rng.uniform(0.001, 0.02))
        writes = name in WRITES
        if self.loop.now < self.away_until:
            raise exceptions.DatabaseUnavailable(problem='it is away')
        if writes:
            process.step('before', name)
        result = self.effect(process, port, name, args)
        if writes:
            process.step('after', name)
            if self.lost_answers:
                self.lost_answers -= 1
                self.loop.say(process.name, f'receives no answer to {name}')
                raise exceptions.DatabaseUnavailable(problem='the answer is lost')
        if waits:
            self.loop.sleep(self.rng.uniform(0.001, 0.02))
        if name == 'poll' and process.name in self.blind:
            return Feed(position=result.position, now=result.now, incarnation=result.incarnation)
        return result

    def effect(self, process: Process, port: str, name: str, args: tuple[Any, ...]) -> Any:
        """Run the statement itself, and check what it did."""
        watch = getattr(self, f'_watch_{name}', None)
        reserved = {c.id: c for c in self.live() if c.state is State.RESERVED} if watch else {}
        result = getattr(getattr(self.stores, port), name)(*args)
        if name in WRITES:
            summary = _shown(name, args, result)
            if summary:
                self.loop.say(process.name, f'{name} {summary}')
        if watch is not None:
            watch(args, result, reserved)
        if name in WRITES and self.on_write is not None:
            self.on_write(name, args, result)
        return result

    # -- what is watched -------------------------------------------------------------
    def live(self) -> list[Claim]:
        """Return every live claim."""
        states = (State.RESERVED, State.CONFIRMED)
        return [
            c
            for state in states
            for c in self.stores.claims.list_claims(state=state, limit=NO_LIMIT)
        ]

    def _watch_commit(
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
                self._watch_group(draft)
        for line in audited(self.stores.claims.audit()):
            self._break(line)

    def _watch_confirm_claims(
        self, args: tuple[ClaimUpdate], result: ClaimResult, reserved: Reserved
    ) -> None:
        """Check that an old epoch always gets "gone"."""
        update, ok = args[0], [f.claim_id for f in result.outcomes if f.outcome == 'ok']
        self.confirmed.update(ok)
        row = self.stores.database.tables.named(update.name)
        if ok and (row is None or row.epoch != update.epoch):
            self._break(f'fence: epoch {update.epoch} of {update.name} may start {ok}')

    def _watch_apply_reports(
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
            self._watch_order(report, outcome)

    def _watch_order(self, report: HostReport, outcome: ReportOutcome) -> None:
        """Check that a later message is never undone by an earlier one."""
        key = (self.restored, report.name, report.epoch)
        if outcome.outcome == 'applied':
            if report.sequence <= self._applied.get(key, 0):
                self._break(f'P7: report {report.sequence} of {report.name} was applied too late')
            self._applied[key] = max(report.sequence, self._applied.get(key, 0))

    def _watch_sweep(self, args: object, result: ClaimResult, reserved: Reserved) -> None:
        """Check that time ends what is reserved past its lease, and nothing else."""
        now = self.stores.database.ping()
        for outcome in result.outcomes:
            claim = reserved.get(outcome.claim_id)
            if outcome.outcome == 'ok' and (claim is None or claim.lease_until >= now):
                self._break(f'P2: the sweeper ended claim {outcome.claim_id} before its time')

    def _watch_group(self, draft: RequestDraft) -> None:
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

    def _break(self, what: str) -> None:
        if what in self.broken:
            return
        self.loop.say('database', f'broken: {what}')
        self.broken.append(what)


class Line:
    """A port of the database, as one process reaches it."""

    connections_lost = 0  # whoever answers is always the same
    may_refer = False  # decisions are not in the store in memory

    def __init__(self, database: SimDatabase, process: Process, port: str) -> None:
        self._database = database
        self._process = process
        self._port = port

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith('_') or not hasattr(getattr(self._database.stores, self._port), name):
            raise AttributeError(name)
        return functools.partial(self._call, name)

    def limits(self) -> list[Limit]:
        """Return the limits without waiting, which stay as they are where the database is away."""
        return self._database.stores.quotas.limits()

    def silent_for(self) -> float:
        """Return 0: a line fails at once, or it answers."""
        return 0.0

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if kwargs:  # purge and readers: nothing that a caller waits for
            if name in WRITES:
                raise exceptions.Bug(invariant=f'{name} is watched, by its arguments in order')
            return getattr(getattr(self._database.stores, self._port), name)(*args, **kwargs)
        return self._database.call(self._process, self._port, name, args)


def _shown(name: str, args: tuple[Any, ...], result: Any) -> str:
    """Return what a write did, for the trace; '' where it did nothing."""
    if isinstance(result, CommitResult):
        return ', '.join(
            f'{draft.id[:8]}.{draft.attempt} {outcome.outcome.value}'
            + ''.join(
                f' {draft.claims[i].claim.id[:8]}@{draft.claims[i].claim.host}'
                for i in outcome.accepted
            )
            + ''.join(f' takes {draft.taken_reservations[i].claim_id[:8]}' for i in outcome.taken)
            for draft, outcome in zip(args[0], result.outcomes, strict=True)
        )
    if name == 'register_hosts':
        return ', '.join(
            f'{message.name} refused'
            if isinstance(registered, Exception)
            else f'{message.name} epoch {registered[0].epoch}'
            for message, registered in zip(args[0], result, strict=True)
        )
    if name == 'apply_reports':
        return ', '.join(
            f'{report.name} {report.epoch}.{report.sequence} {outcome.outcome}'
            + ''.join(f' +{c[:8]}' for c in outcome.confirmed)
            + ''.join(f' -{c[:8]}' for c in outcome.released)
            + ''.join(f' adopted {c[:8]}' for c in outcome.adopted)
            for report, outcome in zip(args[0], result.outcomes, strict=True)
        )
    if name == 'bar_request':
        return f'{args[0][:8]}: {"barred" if result is None else result.state}'
    if name == 'cancel_request':
        return f'{args[0][:8]}: {_outcomes(result)}'
    if name == 'sweep':
        return _outcomes(result)
    sender = f'{args[0].name} ' if isinstance(args[0], ClaimUpdate) else f'{args[0][:8]} '
    return sender + _outcomes(result)


def _outcomes(result: ClaimResult) -> str:
    return ' '.join(f'{f.claim_id[:8]}={f.outcome}' for f in result.outcomes)


def audited(found: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the findings of an audit that the world did not cause.

    A host that comes back after its guest was created elsewhere is one: two guests of a member run.
    """
    return [
        f'audit, {kind}: {line}'
        for kind, lines in found.items()
        for line in lines
        if TWO_GUESTS.search(line) is None
    ]
