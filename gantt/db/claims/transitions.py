# SPDX-License-Identifier: Apache-2.0
"""Transitions of claims after their creation: confirmed, refused, released, expired, ended.

The sweeper passes over rows that cannot be read or written.  A claim of a newer release, or a
damaged one, must not keep the leases of all others from running out: where a sweep fails, its
claims are ended one at a time, and faulty ones are left out of the next sweeps.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims import reconcile
from gantt.core.claims.adoption import GuestOutcome, GuestToAdopt
from gantt.core.claims.claim import (
    Claim,
    Event,
    State,
    state_after,
    why_not_confirmed,
    with_state,
)
from gantt.core.messages.report import ClaimUpdate
from gantt.core.records.history import ClaimCounts
from gantt.db.claims import adopted, held
from gantt.db.claims.locks import KnownLocks, SkippedProviders
from gantt.db.claims.unit_of_work import UnitOfWork, lock_claims, providers_of
from gantt.db.database import Database, SqlStore, reading, reading_long, writing
from gantt.db.engine import session
from gantt.db.engine.engine import is_id
from gantt.db.engine.retry import RetryTransaction
from gantt.db.hosts import claim_rows, providers, rows
from gantt.db.hosts.claim_rows import load_claims
from gantt.db.hosts.hosts import HostRecords
from gantt.db.records import audit, history
from gantt.db.schema import models
from gantt.scheduler.ports.requests import ClaimOutcome, ClaimResult

LOG = logging.getLogger(__name__)

_claims = models.claims
_allocations = models.allocations
_providers = models.providers

_ids: Any = sa.bindparam('ids', expanding=True)
SELECT_OTHER_SHARES = sa.union_all(
    *(
        shares(
            where=[table.c.provider_id.in_(_ids), table.c.other.is_not(None), _claims.c.live == 1]
        )
        for shares, table in (
            (claim_rows.own_shares, _claims),
            (claim_rows.other_shares, _allocations),
        )
    )
)
SELECT_PROVIDER_ID = sa.select(_providers.c.id).where(_providers.c.name == sa.bindparam('name'))
SELECT_OVERDUE_CLAIMS = (
    sa.select(_claims.c.id)
    .where(_claims.c.expires_at < sa.bindparam('now'))
    .order_by(_claims.c.expires_at, _claims.c.id)
    .limit(sa.bindparam('most'))
)
ADD_REFUSALS = (
    _providers.update()
    .where(_providers.c.name == sa.bindparam('b_name'))
    .values(refusals=_providers.c.refusals + sa.bindparam('count', type_=sa.BigInteger))
)
#: Most faulty claims to remember; further ones fail each time anew.
UNREADABLE_CLAIMS_MAX = 1000
#: Seconds in which claims are ended one at a time: the rest is left to the next sweep.
ONE_BY_ONE_SECONDS = 5.0
#: Sweeps after which faulty claims are tried again: they may have been repaired.
RETRY_SWEEPS = 60

#: ``hook(unit, due_claims)`` of a capability that keeps claims although their lease has run out:
#: returns those that it keeps, with a new lease, by id.  Their providers are locked.
LeaseHook = Callable[[UnitOfWork, Sequence[Claim]], Mapping[str, Claim]]


class SqlClaims(SqlStore):
    """Operations of hosts, operators and time on claims, and reads of claims.

    It is ``ports.Claims`` in SQL.
    """

    def __init__(
        self, database: Database, locks: KnownLocks, lease_hooks: Sequence[LeaseHook] = ()
    ) -> None:
        super().__init__(database)
        self._locks = locks
        self._lease_hooks = lease_hooks
        # Id of a claim -> problem: sweeps leave them out, so that one holds up no other.
        self._unreadable: dict[str, str] = {}
        self._sweeps = 0  # so far; every few of them the unreadable claims are tried again
        self._sweeping = threading.Lock()  # one sweep at a time

    # -- by hosts -----------------------------------------------------------------------
    def confirm_claims(self, update: ClaimUpdate) -> ClaimResult:
        return self._of_host(update, _confirm)

    def refuse_claims(self, update: ClaimUpdate) -> ClaimResult:
        return self._of_host(update, _refuse)

    def release_claims(self, update: ClaimUpdate) -> ClaimResult:
        return self._of_host(update, _release)

    def _of_host(
        self, update: ClaimUpdate, work: Callable[[UnitOfWork, ClaimUpdate], ClaimResult]
    ) -> ClaimResult:
        return self._locks.write_for_host(
            update.name,
            lambda: self.database.writes.write(
                lambda tx: work(UnitOfWork(tx, self.database.memory), update), once_locked=True
            ),
        )

    # -- by time, and by operators ---------------------------------------------------------
    def sweep(self, limit: int) -> ClaimResult:
        with self._sweeping:
            self._sweeps += 1
            if self._sweeps % RETRY_SWEEPS == 0:
                self._unreadable.clear()
            try:
                result = self._expire(lambda tx: _overdue(tx, limit, self._unreadable))
                self._leave_out(result.unreadable)
                return result
            except exceptions.DatabaseContended:  # one of the claims may never be writable
                return self._expire_one_by_one(limit)
            except exceptions.Unavailable:
                raise
            except Exception:
                return self._expire_one_by_one(limit)

    def _expire(self, ids: Callable[[session.Tx], list[str]]) -> ClaimResult:
        return self._locks.write_without_locked(
            lambda tx, skipped: self._sweep(UnitOfWork(tx, self.database.memory), ids(tx), skipped)
        )

    def _sweep(
        self, changes: UnitOfWork, ids: Sequence[str], skipped: SkippedProviders
    ) -> ClaimResult:
        """Expire the given claims that are reserved and past their lease.

        Claims on hosts that others keep locked are left to another sweep.
        """
        tx = changes.tx
        claims = load_claims(tx, ids=ids) if ids else []
        changes.lock(skipped.remaining(providers_of(claims)))
        if skipped.ids:
            ids = [claim.id for claim in claims if providers_of([claim]).isdisjoint(skipped.ids)]
        read = load_claims(tx, ids=ids) if ids else []
        readable_claims = [claim for claim in read if not claim.problem]
        # Confirmed, extended or ended since: no longer the sweeper's.
        due_claims = [
            claim
            for claim in readable_claims
            if (until := claim_rows.expires_at(claim)) is not None and until < tx.now
        ]
        due_claims.sort(key=lambda claim: (claim.lease_until, claim.id))
        prolonged_claims: dict[str, Claim] = {}
        for hook in self._lease_hooks:
            prolonged_claims.update(hook(changes, due_claims))
        for claim in due_claims:
            if claim.id in prolonged_claims:
                changes.change_claim(claim, prolonged_claims[claim.id])
        outcomes = changes.end_by_event(
            [claim for claim in due_claims if claim.id not in prolonged_claims],
            Event.EXPIRE,
            'lease ran out',
        )
        changes.write()
        result = changes.result(outcomes)
        result.unreadable.update({claim.id: claim.problem for claim in read if claim.problem})
        return result

    def _expire_one_by_one(self, limit: int) -> ClaimResult:
        result = ClaimResult(outcomes=[])
        overdue = self.database.writes.write(lambda tx: _overdue(tx, limit, self._unreadable))
        until = time.monotonic() + ONE_BY_ONE_SECONDS
        for claim_id in overdue:
            if time.monotonic() > until:
                break
            try:
                claim_result = self._expire(lambda tx, only=claim_id: [only])  # type: ignore[misc]
            except exceptions.Busy:
                continue
            except Exception as e:
                if isinstance(e, exceptions.Unavailable) and not isinstance(
                    e, exceptions.DatabaseContended
                ):
                    raise
                problem = f'{type(e).__name__}: {e}'
                result.unreadable[claim_id] = problem
            else:
                result.unreadable.update(claim_result.unreadable)
                result.outcomes.extend(claim_result.outcomes)
                result.hosts.extend(claim_result.hosts)
        self._leave_out(result.unreadable)
        return result

    def _leave_out(self, unreadable: Mapping[str, str]) -> None:
        """Leave unreadable claims out of the next sweeps."""
        for claim_id, problem in unreadable.items():
            if len(self._unreadable) < UNREADABLE_CLAIMS_MAX:
                self._unreadable[claim_id] = problem

    @writing
    def force_release(self, tx: session.Tx, claim_id: str, reason: str) -> ClaimResult:
        claims = load_claims(tx, ids=[claim_id])
        if not claims:
            return ClaimResult(outcomes=[ClaimOutcome(claim_id=claim_id, outcome='gone')])
        ids = [claim.id for claim in claims]
        changes, provider_ids = UnitOfWork(tx, self.database.memory), providers_of(claims)
        unreadable = [claim for claim in lock_claims(changes, ids, provider_ids) if claim.problem]
        for claim in unreadable:
            LOG.warning(
                'Claim cannot be read and is released: claim=%s problem=%s', claim.id, claim.problem
            )
            claim_rows.repair_amounts(tx, claim)
        if unreadable:
            _recount(changes)
        outcomes = changes.end_by_event(load_claims(tx, ids=ids), Event.FORCE, reason)
        changes.write()
        return changes.result(outcomes)

    def adopt_guests(
        self, guests: Sequence[GuestToAdopt], *, dry_run: bool = False
    ) -> list[GuestOutcome]:
        if dry_run:
            return self.database.reads.read(
                lambda tx: adopted.check(UnitOfWork(tx, self.database.memory), guests)
            )
        return self.database.writes.write(
            lambda tx: adopted.adopt(
                UnitOfWork(tx, self.database.memory), HostRecords(tx, self.database.memory), guests
            )
        )

    # -- reading ----------------------------------------------------------------------------
    def list_claims(
        self,
        *,
        state: str | None = None,
        host: str | None = None,
        consumer: str | None = None,
        request_id: str | None = None,
        limit: int = 100,
        marker: str | None = None,
        project: str | None = None,
        group: str | None = None,
    ) -> list[Claim]:
        filters = (
            *(
                (_claims.c.state, state),
                (_claims.c.consumer, consumer),
                (_claims.c.request_id, request_id),
            ),
            (_claims.c.group_uuid, group),
        )
        if not all(value is None or is_id(value) for _, value in filters):
            return []
        where = [
            column == value
            for column, value in (*filters, (_providers.c.name, host))
            if value is not None
        ]
        if project is not None:
            ids_of_project = sa.select(_claims.c.id).where(
                *claim_rows.of_projects(self.database.kind)
            )
            where.append(
                _claims.c.id.in_(ids_of_project.params(**claim_rows.bound_projects([project])))
            )
        if marker is not None:
            where.append(_claims.c.id > marker)
        return self.database.reads.read(lambda tx: load_claims(tx, where=where, limit=limit))

    @reading
    def load_claim(self, tx: session.Tx, claim_id: str) -> Claim | None:
        claims = load_claims(tx, ids=[claim_id]) if is_id(claim_id) else []
        return claims[0] if claims else None

    @reading
    def live_claims_of(self, tx: session.Tx, consumers: Collection[str]) -> list[Claim]:
        return held.live_claims_of(tx, consumers)

    @reading_long
    def count_claims(self, tx: session.Tx) -> ClaimCounts:
        return history.count_claims(tx)

    @reading
    def count_claims_on_pools(self, tx: session.Tx) -> int:
        return history.count_claims_on_pools(tx)

    @reading_long
    def audit(self, tx: session.Tx) -> dict[str, list[str]]:
        return audit.violations(tx)


def _recount(changes: UnitOfWork) -> None:
    """Count anew the amounts of classes without columns, on providers with readable claims only.

    Usage of a claim that could not be read is unknown.
    """
    counters = changes.locked.counters
    totals: dict[int, Counter[str]] = {pid: Counter() for pid in counters}
    for row in changes.tx.all(SELECT_OTHER_SHARES, ids=sorted(counters)):
        try:
            amounts = rows.decode_amounts(row.other)
        except rows.DECODE_ERRORS:
            totals.pop(row.provider_id, None)
            continue
        if row.provider_id in totals:
            totals[row.provider_id].update(amounts)
    for pid, total in totals.items():
        for name, entry in counters[pid].others.items():
            entry[1] = total[name]
        changes.mark_changed(pid)


def _confirm(changes: UnitOfWork, update: ClaimUpdate) -> ClaimResult:
    """Change reserved claims to confirmed; a late update counts, the claim's state decides.

    Usage stays the same, so only the host's row is locked.
    """
    tx = changes.tx
    changes.locked = providers.lock_named(tx, changes.memory, update.name)
    row = _reporting_host(changes, update)
    if row is None:
        return _all_gone(update)
    stamp = row.claims_stamp
    claims = load_claims(tx, ids=update.claim_ids, where=[_claims.c.provider_id == row.id])
    outcomes = _apply(changes, update, row, claims, lambda claim: _confirmed(changes, claim))
    providers.keep_members(changes.memory, row.id, stamp, row.claims_stamp)
    return changes.result(outcomes)


def _confirmed(changes: UnitOfWork, claim: Claim) -> ClaimOutcome:
    state = state_after(claim, Event.CONFIRM)
    if state is not claim.state:
        changes.change_claim(claim, with_state(claim, state, '', changes.tx.now))
    if state is State.CONFIRMED:
        return ClaimOutcome(claim_id=claim.id, outcome='ok', state=state.value)
    return ClaimOutcome(
        claim_id=claim.id, outcome='gone', state=state.value, reason=why_not_confirmed(claim)
    )


def _apply(
    changes: UnitOfWork,
    update: ClaimUpdate,
    row: rows.Counters,
    claims: Iterable[Claim],
    change: Callable[[Claim], ClaimOutcome],
) -> list[ClaimOutcome]:
    """Apply an update to the claims of the host, and write them; return an outcome for each id."""
    claims_by_id = {claim.id: claim for claim in claims}
    outcomes = {
        claim_id: change(claims_by_id[claim_id])
        if claim_id in claims_by_id
        else ClaimOutcome(claim_id=claim_id, outcome='gone')
        for claim_id in dict.fromkeys(update.claim_ids)
    }
    # A client that knows no claim that the host ever had must not be able to use up its numbers.
    if update.sequence > row.sequence and any(outcome.state for outcome in outcomes.values()):
        row.sequence = update.sequence
        changes.touched_providers.add(row.id)
    changes.write()
    return [outcomes[claim_id] for claim_id in update.claim_ids]


def _refuse(changes: UnitOfWork, update: ClaimUpdate) -> ClaimResult:
    """Change reserved claims to refused, and count them against the host."""
    result = _end(changes, update, Event.REFUSE)
    refused = {outcome.claim_id for outcome in result.outcomes if outcome.outcome == 'ok'}
    if refused:
        changes.tx.run(ADD_REFUSALS, b_name=update.name, count=len(refused))
    return result


def _release(changes: UnitOfWork, update: ClaimUpdate) -> ClaimResult:
    """Change live claims to released, in the order of (epoch, sequence)."""
    return _end(changes, update, Event.RELEASE)


def _end(changes: UnitOfWork, update: ClaimUpdate, event: Event) -> ClaimResult:
    tx = changes.tx
    host = tx.first(SELECT_PROVIDER_ID, name=update.name)
    nested = _nested(tx, update.claim_ids) if host else set()
    changes.lock({host.id} | nested if host else ())
    row = _reporting_host(changes, update) if host else None
    if row is None:
        return _all_gone(update)
    claims = [c for c in load_claims(tx, ids=update.claim_ids) if c.provider_id == row.id]
    if providers_of(claims) - nested - {row.id}:
        raise RetryTransaction('a claim came to be meanwhile')
    is_stale = event is Event.RELEASE and update.sequence <= row.sequence

    def change(claim: Claim) -> ClaimOutcome:
        if not is_stale:
            return changes.end_by_event([claim], event, update.reason)[0]
        outcome = 'kept' if claim.is_live else 'gone'
        return ClaimOutcome(claim_id=claim.id, outcome=outcome, state=claim.state.value)

    return changes.result(_apply(changes, update, row, claims, change))


def _reporting_host(changes: UnitOfWork, update: ClaimUpdate) -> rows.Counters | None:
    """Return the locked row of the host that reports, None if it is not of the current epoch.

    :raises StaleEpoch: the update's sequence number is too far beyond the host's last one
    """
    for pid, row in changes.locked.counters.items():
        template = changes.locked.templates.get(pid)
        if template is not None and template.name == update.name:
            if row.epoch != update.epoch:
                return None
            reconcile.check_sequence(update, row.sequence, template.boot_nonce)
            return row
    return None


def _all_gone(update: ClaimUpdate) -> ClaimResult:
    outcomes = [ClaimOutcome(claim_id=claim_id, outcome='gone') for claim_id in update.claim_ids]
    return ClaimResult(outcomes=outcomes)


def _nested(tx: session.Tx, claim_ids: Sequence[str]) -> set[int]:
    """Return the providers other than the host that these claims are on, read before the lock."""
    query = (
        sa.select(_allocations.c.provider_id)
        .where(_allocations.c.claim_id.in_(list(claim_ids)))
        .distinct()
    )
    return {row.provider_id for row in tx.all(query)}


def _overdue(tx: session.Tx, limit: int, but: Collection[str] = ()) -> list[str]:
    """Return the ids of reserved claims past their lease, most overdue first, except ``but``."""
    claims = tx.all(SELECT_OVERDUE_CLAIMS, now=tx.now, most=limit + len(but))
    return [row.id for row in claims if row.id not in but][:limit]
