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
    guest_of,
    state_after,
    stepped,
    why_not_confirmed,
)
from gantt.core.messages.report import ClaimUpdate
from gantt.core.nova import host as nova_host
from gantt.core.records.history import ClaimCounts
from gantt.db.claims import adopted, held
from gantt.db.claims.locks import Aside, Locks
from gantt.db.claims.unit_of_work import UnitOfWork, lock_claims, providers_of
from gantt.db.database import Database, reading, reading_long, writing
from gantt.db.engine import session
from gantt.db.engine.retry import Again
from gantt.db.hosts import claim_rows, providers, rows
from gantt.db.hosts.base import is_id
from gantt.db.hosts.claim_rows import load_claims
from gantt.db.hosts.hosts import HostRecords
from gantt.db.records import audit, history
from gantt.db.schema import models
from gantt.scheduler.ports import ClaimOutcome, ClaimResult

LOG = logging.getLogger(__name__)

_c = models.claims
_a = models.allocations
_p = models.providers

_ids: Any = sa.bindparam('ids', expanding=True)
OTHERS_ON = sa.union_all(
    *(
        shares(where=[table.c.provider_id.in_(_ids), table.c.other.is_not(None), _c.c.live == 1])
        for shares, table in ((claim_rows.own_shares, _c), (claim_rows.other_shares, _a))
    )
)
NAMED = sa.select(_p.c.id).where(_p.c.name == sa.bindparam('name'))
OVERDUE = (
    sa.select(_c.c.id)
    .where(_c.c.expires_at < sa.bindparam('now'))
    .order_by(_c.c.expires_at, _c.c.id)
    .limit(sa.bindparam('most'))
)
REFUSED = (
    _p.update()
    .where(_p.c.name == sa.bindparam('b_name'))
    .values(refusals=_p.c.refusals + sa.bindparam('count', type_=sa.BigInteger))
)
#: Most faulty claims to remember; further ones fail each time anew.
UNREADABLE_MAX = 1000
#: Seconds in which claims are ended one at a time: the rest is left to the next sweep.
ONE_BY_ONE_SECONDS = 5.0
#: Sweeps after which faulty claims are tried again: they may have been repaired.
AGAIN_SWEEPS = 60


class SqlClaims:
    """Operations of hosts, operators and time on claims, and reads of claims.

    It is ``ports.Claims`` in SQL.
    """

    def __init__(self, database: Database, locks: Locks) -> None:
        self.database = database
        self._locks = locks
        # Id of a claim -> problem: sweeps leave them out, so that one holds up no other.
        self._unreadable: dict[str, str] = {}
        self._sweeps = 0  # so far; every few of them the unreadable claims are tried again
        self._sweeping = threading.Lock()  # one sweep at a time

    # -- by hosts -----------------------------------------------------------------------
    def confirm_claims(self, words: ClaimUpdate) -> ClaimResult:
        return self._of_host(words, _confirm)

    def refuse_claims(self, words: ClaimUpdate) -> ClaimResult:
        return self._of_host(words, _refuse)

    def release_claims(self, words: ClaimUpdate) -> ClaimResult:
        return self._of_host(words, _release)

    def _of_host(
        self, words: ClaimUpdate, work: Callable[[UnitOfWork, ClaimUpdate], ClaimResult]
    ) -> ClaimResult:
        return self._locks.one(
            words.name,
            lambda: self.database.writes.write(
                lambda tx: work(UnitOfWork(tx, self.database.memory), words), once_locked=True
            ),
        )

    # -- by time, and by operators ---------------------------------------------------------
    def sweep(self, limit: int) -> ClaimResult:
        with self._sweeping:
            self._sweeps += 1
            if self._sweeps % AGAIN_SWEEPS == 0:
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
        return self._locks.around(
            lambda tx, aside: _sweep(UnitOfWork(tx, self.database.memory), ids(tx), aside)
        )

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
            if len(self._unreadable) < UNREADABLE_MAX:
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
            claim_rows.put_right(tx, claim)
        if unreadable:
            _recount(changes)
        outcomes = changes.end(load_claims(tx, ids=ids), Event.FORCE, reason)
        changes.write()
        return changes.result(outcomes)

    def adopt_guests(
        self, guests: Sequence[GuestToAdopt], *, dry_run: bool = False
    ) -> list[GuestOutcome]:
        if dry_run:
            return self.database.reads.read(
                lambda tx: adopted.judge(UnitOfWork(tx, self.database.memory), guests)
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
            *((_c.c.state, state), (_c.c.consumer, consumer), (_c.c.request_id, request_id)),
            (_c.c.group_uuid, group),
        )
        if not all(value is None or is_id(value) for _, value in filters):
            return []
        where = [
            column == value for column, value in (*filters, (_p.c.name, host)) if value is not None
        ]
        if project is not None:
            ids_of_project = sa.select(_c.c.id).where(*claim_rows.of_projects(self.database.kind))
            where.append(_c.c.id.in_(ids_of_project.params(**claim_rows.bound_projects([project]))))
        if marker is not None:
            where.append(_c.c.id > marker)
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
    for row in changes.tx.all(OTHERS_ON, ids=sorted(counters)):
        try:
            amounts = rows.decode_amounts(row.other)
        except rows.UNREADABLE:
            totals.pop(row.provider_id, None)
            continue
        if row.provider_id in totals:
            totals[row.provider_id].update(amounts)
    for pid, total in totals.items():
        for name, entry in counters[pid].others.items():
            entry[1] = total[name]
        changes.touch(pid)


def _confirm(changes: UnitOfWork, words: ClaimUpdate) -> ClaimResult:
    """Change reserved claims to confirmed; a late update counts, the claim's state decides.

    Usage stays the same, so only the host's row is locked.
    """
    tx = changes.tx
    changes.locked = providers.lock_named(tx, changes.memory, words.name)
    row = _speaker(changes, words)
    if row is None:
        return _all_gone(words)
    stamp = row.claims_stamp
    host_claims = load_claims(tx, ids=words.claim_ids, where=[_c.c.provider_id == row.id])
    claims_by_id = {claim.id: claim for claim in host_claims}
    outcomes = {}
    for claim_id in dict.fromkeys(words.claim_ids):
        claim = claims_by_id.get(claim_id)
        if claim is None:
            outcomes[claim_id] = ClaimOutcome(claim_id=claim_id, outcome='gone')
            continue
        state = state_after(claim, Event.CONFIRM)
        if state is not claim.state:
            changes.change(claim, stepped(claim, state, '', tx.now))
        outcome = 'ok' if state is State.CONFIRMED else 'gone'
        reason = '' if outcome == 'ok' else why_not_confirmed(claim)
        outcomes[claim_id] = ClaimOutcome(
            claim_id=claim_id, outcome=outcome, state=state.value, reason=reason
        )
    _advance(changes, row, words, outcomes.values())
    changes.write()
    providers.keep_members(changes.memory, row.id, stamp, row.claims_stamp)
    return changes.result([outcomes[claim_id] for claim_id in words.claim_ids])


def _refuse(changes: UnitOfWork, words: ClaimUpdate) -> ClaimResult:
    """Change reserved claims to refused, and count them against the host."""
    result = _end(changes, words, Event.REFUSE)
    refused = {outcome.claim_id for outcome in result.outcomes if outcome.outcome == 'ok'}
    if refused:
        changes.tx.run(REFUSED, b_name=words.name, count=len(refused))
    return result


def _release(changes: UnitOfWork, words: ClaimUpdate) -> ClaimResult:
    """Change live claims to released, in the order of (epoch, sequence)."""
    return _end(changes, words, Event.RELEASE)


def _end(changes: UnitOfWork, words: ClaimUpdate, event: Event) -> ClaimResult:
    tx = changes.tx
    host = tx.first(NAMED, name=words.name)
    nested = _nested(tx, words.claim_ids) if host else set()
    changes.lock({host.id} | nested if host else ())
    row = _speaker(changes, words) if host else None
    if row is None:
        return _all_gone(words)
    claims_by_id = {claim.id: claim for claim in load_claims(tx, ids=words.claim_ids)}
    host_claims = {
        claim_id: claim for claim_id, claim in claims_by_id.items() if claim.provider_id == row.id
    }
    if providers_of(host_claims.values()) - nested - {row.id}:
        raise Again('a claim came to be meanwhile')
    is_stale = event is Event.RELEASE and words.sequence <= row.sequence
    outcomes = {}
    for claim_id in dict.fromkeys(words.claim_ids):
        claim = host_claims.get(claim_id)
        if claim is None:
            outcomes[claim_id] = ClaimOutcome(claim_id=claim_id, outcome='gone')
        elif is_stale:
            outcome = 'kept' if claim.is_live else 'gone'
            outcomes[claim_id] = ClaimOutcome(
                claim_id=claim_id, outcome=outcome, state=claim.state.value
            )
        else:
            outcomes[claim_id] = changes.end([claim], event, words.reason)[0]
    _advance(changes, row, words, outcomes.values())
    changes.write()
    return changes.result([outcomes[claim_id] for claim_id in words.claim_ids])


def _speaker(changes: UnitOfWork, words: ClaimUpdate) -> rows.Counters | None:
    """Return the locked row of the host that reports, None if it is not of the current epoch.

    :raises StaleEpoch: its sequence number is too far beyond the last one
    """
    for pid, row in changes.locked.counters.items():
        template = changes.locked.templates.get(pid)
        if template is not None and template.name == words.name:
            if row.epoch != words.epoch:
                return None
            reconcile.check_number(words, row.sequence, template.boot_nonce)
            return row
    return None


def _all_gone(words: ClaimUpdate) -> ClaimResult:
    outcomes = [ClaimOutcome(claim_id=claim_id, outcome='gone') for claim_id in words.claim_ids]
    return ClaimResult(outcomes=outcomes)


def _advance(
    changes: UnitOfWork, row: rows.Counters, words: ClaimUpdate, outcomes: Iterable[ClaimOutcome]
) -> None:
    """Record an accepted update's sequence number as the last received, unless it is late.

    An update that names no claim that the host ever had is not recorded: a client that knows no
    claim of the host must not be able to use up its numbers.
    """
    if words.sequence > row.sequence and any(outcome.state for outcome in outcomes):
        row.sequence = words.sequence
        changes.touched.add(row.id)


def _nested(tx: session.Tx, claim_ids: Sequence[str]) -> set[int]:
    """Return the providers beside the host that these claims are on, read before the lock."""
    query = sa.select(_a.c.provider_id).where(_a.c.claim_id.in_(list(claim_ids))).distinct()
    return {row.provider_id for row in tx.all(query)}


def _overdue(tx: session.Tx, limit: int, but: Collection[str] = ()) -> list[str]:
    """Return the ids of reserved claims past their lease, longest first, except some."""
    claims = tx.all(OVERDUE, now=tx.now, most=limit + len(but))
    return [row.id for row in claims if row.id not in but][:limit]


def _sweep(changes: UnitOfWork, ids: Sequence[str], aside: Aside) -> ClaimResult:
    """Expire the given claims that are reserved and past their lease.

    Claims on hosts that others keep locked are left to another sweep.
    """
    tx = changes.tx
    claims = load_claims(tx, ids=ids) if ids else []
    changes.lock(aside.without(providers_of(claims)))
    if aside.left:
        ids = [claim.id for claim in claims if providers_of([claim]).isdisjoint(aside.left)]
    read = load_claims(tx, ids=ids) if ids else []
    readable_claims = [claim for claim in read if not claim.problem]
    # Confirmed, extended or ended since: no longer the sweeper's.
    due_claims = [
        claim
        for claim in readable_claims
        if (until := claim_rows.expires_at(claim)) is not None and until < tx.now
    ]
    due_claims.sort(key=lambda claim: (claim.lease_until, claim.id))
    protected_claims = nova_host.protected_by_moves(
        due_claims, _of_nova(changes, due_claims), tx.now
    )
    for claim in due_claims:
        if claim.id in protected_claims:
            changes.change(claim, protected_claims[claim.id])
    outcomes = changes.end(
        [claim for claim in due_claims if claim.id not in protected_claims],
        Event.EXPIRE,
        'lease ran out',
    )
    changes.write()
    result = changes.result(outcomes)
    result.unreadable.update({claim.id: claim.problem for claim in read if claim.problem})
    return result


def _of_nova(changes: UnitOfWork, due: Sequence[Claim]) -> list[Claim]:
    """Return the live claims of these claims' consumers, of consumers on hosts of Nova."""
    templates = changes.locked.templates
    consumers = {
        guest_of(claim)
        for claim in due
        if claim.provider_id in templates and templates[claim.provider_id].reporter == 'nova'
    }
    where = [claim_rows.of_guests(sorted(consumers)), _c.c.live != 0]
    return load_claims(changes.tx, where=where) if consumers else []
