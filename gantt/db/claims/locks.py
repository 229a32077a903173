# SPDX-License-Identifier: Apache-2.0
"""Row locks of other transactions: detected once, then avoided for a while.

A process that is stopped inside of a transaction, or cut off from the database, keeps its
rows locked until the server ends that transaction.  A transaction that needs one of them waits
once, ``lock_wait_seconds``; then the locked rows are determined without waiting, and everything
that does not need them goes on.  While a provider is known to be locked no transaction of this
process waits for it again: whether it is free by now is queried without waiting, too.

The result is approximate: rows that are free a moment later are refused a moment too long.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from gantt import exceptions
from gantt.core.claims.claim import Claim, State
from gantt.core.claims.commit import CommitResult, RequestDraft, consumers_of, swaps_of
from gantt.core.claims.reservations import TakenReservation
from gantt.core.messages.request import Purpose
from gantt.db.claims import commit as ledger
from gantt.db.claims.batch import CommitBatch
from gantt.db.database import Database
from gantt.db.engine import retry, session
from gantt.db.engine.arrays import by_key
from gantt.db.hosts import claim_rows, providers
from gantt.db.hosts.claim_rows import load_claims
from gantt.db.schema import models

LOG = logging.getLogger(__name__)
T = TypeVar('T')

_p = models.providers
_g = models.group_rules
_c = models.claims
_ids: Any = sa.bindparam('ids', expanding=True)
NAMES = sa.select(_p.c.id, _p.c.name, _p.c.own_name, providers.is_host.label('is_host')).where(
    _p.c.id.in_(_ids)
)
FREE = by_key(
    sa.select(_p.c.id)
    .where(_p.c.id.in_(_ids))
    .order_by(_p.c.id)
    .with_for_update(key_share=True, skip_locked=True),
    _p,
)
GROUPS = sa.select(_g.c.uuid).where(_g.c.uuid.in_(_ids))
FREE_GROUPS = by_key(
    GROUPS.order_by(_g.c.uuid).with_for_update(key_share=True, skip_locked=True), _g
)

#: No-op on a conflict with any unique key.
_UNIQUE_KEYS = {
    'postgresql': postgresql.insert(_c).on_conflict_do_nothing(),
    'sqlite': sqlite.insert(_c).on_conflict_do_nothing(),
    'mysql': mysql.insert(_c).on_duplicate_key_update(id=_c.c.id),
}

#: Seconds between two queries of the same rows.
AGAIN_SECONDS = 0.1
#: Seconds after a wait in vain in which no transaction of this process waits for the same row.
SPARED_SECONDS = 2.0
#: Waits in vain of one batch; drafts that still need locked rows after them are refused.  The
#: second try always comes: it goes on without the rows known to be locked.  MariaDB waits for
#: whole seconds: there is no third wait where two have taken so long.
WAITS_MAX, WAITS_SECONDS = 3, 1.5
#: Seconds between two lines in the log.
COMPLAIN_SECONDS = 10.0
#: Seconds after which the search for held back drafts ends; the rest counts as held back.
LOOK_SECONDS = 1.0
NAMES_SHOWN = 5
#: Prefix of the names of providers that are no hosts.
PROVIDER = 'provider '

#: A row's xmax is the unfinished transaction that has locked or changed it.
PG_OF_ROWS = sa.text("""
    SELECT DISTINCT a.application_name AS name, a.pid AS pid, a.state AS state,
           EXTRACT(EPOCH FROM clock_timestamp() - a.state_change) AS seconds
      FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
     WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock'
       AND a.pid <> pg_backend_pid()
       AND l.transactionid IN (SELECT xmax FROM providers WHERE id = ANY(:ids))
     LIMIT 3
""")
#: Used where that finds none: transactions that have written and are idle.
PG_IDLE = sa.text("""
    SELECT a.application_name AS name, a.pid AS pid, a.state AS state,
           EXTRACT(EPOCH FROM clock_timestamp() - a.state_change) AS seconds
      FROM pg_stat_activity a
     WHERE a.datname = current_database() AND a.state LIKE 'idle in transaction%'
       AND a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
     ORDER BY a.xact_start LIMIT 3
""")
#: Transactions of ours that wait for the rest of a message.  A process that stops while it sends
#: a pipeline is not idle to the server, which would keep its rows locked for as long.
#: Connections of ours end their names with a process id; a COPY of any client waits like that.
PG_UNFINISHED = sa.text("""
    SELECT a.pid AS pid, pg_terminate_backend(a.pid) AS ended
      FROM pg_stat_activity a, pg_settings s
     WHERE s.name = 'idle_in_transaction_session_timeout' AND s.setting::bigint > 0
       AND a.datname = current_database() AND a.usename = current_user
       AND a.state = 'active' AND a.wait_event = 'ClientRead' AND a.backend_xid IS NOT NULL
       AND a.pid <> pg_backend_pid() AND a.application_name ~ '[:][0-9]+$'
       AND a.query NOT ILIKE 'copy %'
       AND a.state_change < clock_timestamp() - s.setting::bigint * interval '1 millisecond'
""")
#: Needs the PROCESS privilege; has names only where the performance schema is on.
MYSQL = sa.text("""
    SELECT COALESCE(MAX(c.attr_value), CONCAT(p.user, '@', p.host)) AS name, p.id AS pid,
           p.command AS state, MAX(p.time) AS seconds
      FROM information_schema.innodb_trx t
      JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
      LEFT JOIN performance_schema.session_account_connect_attrs c
             ON c.processlist_id = p.id AND c.attr_name = 'program_name'
     WHERE t.trx_rows_locked > 0 AND p.id <> CONNECTION_ID()
     GROUP BY p.id, p.user, p.host, p.command, t.trx_started
     ORDER BY t.trx_started LIMIT 3
""")


class Aside:
    """Providers that one batch avoids, over its tries.

    :param blocked: returns those of some providers that are known to be locked by others
    :ivar wanted: the providers that the batch was about to lock
    :ivar left: the providers that the batch does without
    """

    def __init__(self, blocked: Callable[[Collection[int]], Iterable[int]]) -> None:
        self._blocked = blocked
        self.wanted: set[int] = set()
        self.left: set[int] = set()

    def without(self, ids: Collection[int]) -> set[int]:
        """Return the providers to lock: all but those that are left aside."""
        self.wanted = set(ids)
        self.left.update(self._blocked(self.wanted))
        return self.wanted - self.left


class Locks:
    """Row locks of other processes, as far as this process knows them; thread-safe.

    SQLite locks no rows, so none is ever reported there.
    """

    def __init__(self, database: Database) -> None:
        policy = retry.RetryPolicy(attempts=2, seconds=2.0, locked_seconds=0.0)
        self._database = database
        self._looks = database.transactions(1, policy=policy)
        # MariaDB 10.11 accepts no SKIP LOCKED on a connection with a lock wait timeout of 0.
        self._trying = database.transactions(1, session.unwaiting(database.kind), policy=policy)
        self._lock = threading.Lock()  # of ``_spared``
        #: Provider id -> (its name, monotonic time until which no transaction waits for it)
        self._spared: dict[int, tuple[str, float]] = {}
        #: Monotonic time of the last look, its providers, and the names of the locked ones.
        self._looked: tuple[float, set[int], dict[int, str]] = (0.0, set(), {})
        self._complained = float('-inf')

    # -- known locks -----------------------------------------------------------------
    def blocked(self, ids: Collection[int]) -> dict[int, str]:
        """Return id -> name of the providers that were locked lately and still are."""
        if not self._spared:
            return {}
        now = time.monotonic()
        with self._lock:
            self._spared = {pid: entry for pid, entry in self._spared.items() if entry[1] > now}
            doubtful = self._spared.keys() & ids
        if not doubtful:
            return {}
        read_at, requested_ids, locked_names = self._looked
        if now - read_at > AGAIN_SECONDS or not doubtful <= requested_ids:
            locked_names = self._locked_of(doubtful)
            self._looked = (time.monotonic(), set(doubtful), locked_names)
            with self._lock:
                for pid in doubtful - locked_names.keys():
                    self._spared.pop(pid, None)
        return {pid: locked_names[pid] for pid in doubtful if pid in locked_names}

    def look(self, ids: Collection[int]) -> dict[int, str]:
        """Return the locked providers after a wait in vain; they are spared for a while."""
        locked_names = self._locked_of(ids) if ids else {}
        until = time.monotonic() + SPARED_SECONDS
        with self._lock:
            self._spared.update({pid: (name, until) for pid, name in locked_names.items()})
        return locked_names

    def _locked_of(self, ids: Collection[int]) -> dict[int, str]:
        sorted_ids = sorted(ids)

        def work(tx: session.Tx) -> dict[int, str]:
            free = {row.id for row in tx.all(FREE, ids=sorted_ids)}
            names = {row.id: _called(row) for row in tx.all(NAMES, ids=sorted_ids)}
            return {pid: name for pid, name in names.items() if pid not in free}

        return self._glance(self._looks, work)

    @staticmethod
    def _glance(transactions: session.Transactions, work: Callable[[session.Tx], T]) -> T:
        """Return the result of ``work``, whose transaction is rolled back."""

        def look(tx: session.Tx) -> None:
            raise _SeenLocks(work(tx))

        try:
            transactions.write(look)
        except _SeenLocks as e:
            result: T = e.args[0]
            return result
        raise exceptions.Bug(invariant='a glance ends its transaction itself')

    # -- work without locked rows ------------------------------------------------------
    def around(self, work: Callable[[session.Tx, Aside], T]) -> T:
        """Write, and again without the providers that were waited for in vain.

        :param work: runs in one transaction, which waits once for what is locked
        :raises Busy: other rows stay locked
        """
        aside = Aside(self.blocked)
        for _ in _waits():
            try:
                return self._database.writes.write(lambda tx: work(tx, aside), once_locked=True)
            except retry.RowsLocked as e:
                locked_names = self.look(aside.wanted - aside.left)
                self._complain(locked_names, str(e))
                aside.left |= locked_names.keys()
        raise retry.busy()

    def one(self, name: str, work: Callable[[], T]) -> T:
        """Run ``work`` for one host, in a transaction that waits once.

        :raises Busy: the host's row is locked; where that is known there is no wait
        """
        if self._spared:
            with self._lock:
                provider_ids = [pid for pid, entry in self._spared.items() if entry[0] == name]
            if provider_ids and self.blocked(provider_ids):
                raise retry.busy(host_is(name))
        try:
            return work()
        except retry.RowsLocked as e:
            provider_ids = self._looks.read(
                lambda tx: list(providers.ids_by_name(tx, [name]).values())
            )
            locked_names = self.look(provider_ids)
            self._complain(locked_names, str(e))
            raise (retry.busy(host_is(name)) if locked_names else retry.busy()) from e

    def commit(self, made: ledger.Ledger, batch: Sequence[RequestDraft]) -> CommitResult:
        """Run the group commit, without the drafts that need rows which others keep locked.

        :raises DatabaseUnavailable: as the ledger's
        """
        hosts = self.blocked(_named(batch)) if self._spared else {}
        waiting = {draft.id: host_is(hosts[pid]) for draft, pid in _on(hosts, batch)}
        for _ in _waits():
            if batch and len(waiting) == len(batch):
                break
            try:
                result = made.commit(self._database.commits, batch, _reasons(waiting))
            except retry.RowsLocked as e:
                locked_names, reasons = self._held_back([d for d in batch if d.id not in waiting])
                self._complain(locked_names, str(e))
                hosts, waiting = hosts | locked_names, waiting | reasons
            else:
                return msgspec.structs.replace(result, locked=hosts) if hosts else result
        default_reason = 'rows that it needs are'
        commit_batch = CommitBatch(
            batch, _reasons({draft.id: waiting.get(draft.id, default_reason) for draft in batch})
        )
        return CommitResult(outcomes=commit_batch.outcomes(), locked=hosts)

    def _held_back(self, drafts: Sequence[RequestDraft]) -> tuple[dict[int, str], dict[str, str]]:
        """Return the locked providers, and draft id -> the locked resource that it waits for."""
        try:
            reach = self._looks.read(lambda tx: _reach(tx, drafts))
            hosts = self.look({pid for ids in reach.values() for pid in ids})
            reasons = {
                key: host_is(hosts[min(ids & hosts.keys())])
                for key, ids in reach.items()
                if not ids.isdisjoint(hosts)
            }
            groups = self._locked_groups(drafts)
            for draft in drafts:
                for uuid in (group.uuid for group in swaps_of(draft) if group.uuid in groups):
                    reasons.setdefault(draft.id, f'server group {uuid} is')
            other_drafts = [draft for draft in drafts if draft.id not in reasons]
            reasons |= self._rows_held(other_drafts) if other_drafts else {}
        except exceptions.Unavailable:
            return {}, {}
        return hosts, reasons

    def _locked_groups(self, drafts: Sequence[RequestDraft]) -> set[str]:
        group_uuids = sorted({group.uuid for draft in drafts for group in swaps_of(draft)})
        if not group_uuids:
            return set()

        def work(tx: session.Tx) -> set[str]:
            free = {row.uuid for row in tx.all(FREE_GROUPS, ids=group_uuids)}
            return {row.uuid for row in tx.all(GROUPS, ids=group_uuids)} - free

        return self._glance(self._looks, work)

    def _rows_held(self, drafts: Sequence[RequestDraft]) -> dict[str, str]:
        """Return reasons for the drafts whose request or consumer rows are locked; write nothing.

        Rows that others have just inserted are not visible: only a trial insert meets them.
        """
        until = time.monotonic() + LOOK_SECONDS

        def work(tx: session.Tx) -> dict[str, str]:
            if _takes(tx, drafts):
                return {}
            return {
                draft.id: 'the request, or a consumer of it, is'
                for draft in drafts
                if time.monotonic() > until or not _takes(tx, [draft])
            }

        return self._glance(self._trying, work)

    # -- log messages ------------------------------------------------------------------
    def _complain(self, hosts: Mapping[int, str], problem: str) -> None:
        """Log the locked rows and the transactions that hold them, at most once per period."""
        self._end_unfinished()
        now = time.monotonic()
        if now - self._complained < COMPLAIN_SECONDS:
            return
        self._complained = now
        names = sorted(hosts.values())
        shown = ', '.join(names[:NAMES_SHOWN]) + (', ...' if len(names) > NAMES_SHOWN else '')
        holders = ''
        with contextlib.suppress(Exception):  # the role may lack the rights
            holders = self._looks.read(lambda tx: _holders(tx, sorted(hosts)))
        LOG.warning(
            'Row locks are held by another process; only work that needs these rows waits: '
            'rows=%s holders=%s error=%s',
            f'{len(names)} hosts ({shown})' if names else 'other tables',
            holders or 'unknown',
            problem,
        )

    def _end_unfinished(self) -> None:
        """End transactions that were sent half and then were idle for longer than allowed."""
        ended_pids: list[int] = []
        with contextlib.suppress(Exception):  # the next wait in vain tries again
            ended_pids = self._looks.read(_end_unfinished)
        if ended_pids:
            LOG.warning(
                'Row locks of unfinished transactions were released by ending them: count=%d '
                'pids=%s',
                len(ended_pids),
                ','.join(map(str, ended_pids)),
            )


class _SeenLocks(session.GivenUp):
    """Signal that ends a read-only transaction; its argument is the result."""


def _waits() -> Iterator[int]:
    """Yield the numbers of the tries of one batch, each of which may wait in vain."""
    until = time.monotonic() + WAITS_SECONDS
    for number in range(WAITS_MAX):
        if number < 2 or time.monotonic() < until:
            yield number


def _reasons(waiting: Mapping[str, str]) -> dict[str, str]:
    return {
        key: f'{locked_resource} locked by another process'
        for key, locked_resource in waiting.items()
    }


def _called(row: Any) -> str:
    """Return a provider's name; a non-host is prefixed, as its own name may equal a host's."""
    return str(row.name) if row.is_host else f'{PROVIDER}{row.own_name}'


def host_is(name: str) -> str:
    """Return the host's or provider's name as the subject of a reason."""
    return f'{name} is' if name.startswith(PROVIDER) else f'host {name} is'


def _named(drafts: Sequence[RequestDraft]) -> set[int]:
    """Return the providers that drafts claim on, or have places on."""
    provider_ids = {
        pid
        for draft in drafts
        for claim_draft in draft.claims
        for pid in claim_draft.claim.allocations
    }
    for draft in drafts:
        provider_ids.update(
            pid for reservation in draft.taken_reservations for pid in reservation.provider_ids
        )
        provider_ids.update(
            pid for reservation in draft.released_reservations for pid in reservation.provider_ids
        )
    return provider_ids


def _on(
    hosts: Mapping[int, str], drafts: Sequence[RequestDraft]
) -> Iterator[tuple[RequestDraft, int]]:
    """Yield the drafts that claim on these providers, each with the lowest such provider id."""
    for draft in drafts if hosts else ():
        draft_hosts = _named([draft]) & hosts.keys()
        if draft_hosts:
            yield draft, min(draft_hosts)


def _reach(tx: session.Tx, drafts: Sequence[RequestDraft]) -> dict[str, set[int]]:
    """Return draft -> the providers that its commit may lock, with those of claims giving way."""
    reach = {draft.id: _named([draft]) for draft in drafts}
    of_consumer: dict[str, list[str]] = {}
    for draft in drafts:
        for consumer in consumers_of(draft):
            of_consumer.setdefault(consumer, []).append(draft.id)
    overtaken_ids = [draft.id for draft in drafts if draft.takes_over is not None]
    claims = load_claims(tx, consumers=sorted(of_consumer), live=True)
    claims += load_claims(tx, request_ids=overtaken_ids, live=True) if overtaken_ids else []
    for claim in claims:
        for key in (*of_consumer.get(claim.consumer, ()), claim.request_id):
            if key in reach:
                reach[key] |= claim.allocations.keys()
    return reach


def _takes(tx: session.Tx, drafts: Sequence[RequestDraft]) -> bool:
    """Return whether the request and consumer rows can be locked at once; then release them."""
    commit_batch = CommitBatch(drafts)
    commit_batch.now = tx.now
    attempt = tx.connection.begin_nested()
    try:
        values = [commit_batch.request_values(draft) for draft in commit_batch.insertable()]
        tx.insert_new(models.requests, values, 'id')
        tx.all(ledger.LOCK_REQUESTS, ids=sorted(draft.id for draft in drafts))
        new_claims = [new_claims.claim for draft in drafts for new_claims in draft.claims]
        reservations = [reservation for draft in drafts for reservation in draft.taken_reservations]
        _insert_unique_keys(tx, new_claims, reservations)
    except Exception as e:
        if retry.signal_of(e) is not retry.RetrySignal.LOCKED:
            raise
        return False
    finally:
        attempt.rollback()
    return True


def _insert_unique_keys(
    tx: session.Tx, made: Iterable[Claim], reservations: Iterable[TakenReservation]
) -> None:
    """Insert rows that conflict by their key with rows that others insert now, and no others."""
    claim_keys = {
        claim_key for claim in made if (claim_key := claim_rows.unique_key_of(claim)) is not None
    }
    unique_keys = sorted(
        claim_keys
        | {
            reservation.consumer + claim_rows.unique_key_end(Purpose.CREATE)
            for reservation in reservations
        }
    )
    ended_claim = Claim(id='', request_id=None, consumer='', provider_id=0, state=State.RELEASED)
    values = claim_rows.claim_values(ended_claim)
    key_rows = [
        {**values, 'id': f'? {n}', 'unique_key': unique_key}
        for n, unique_key in enumerate(unique_keys)
    ]
    if key_rows:
        tx.connection.execute(_UNIQUE_KEYS[tx.kind], key_rows)


def _holders(tx: session.Tx, provider_ids: Sequence[int]) -> str:
    """Return the connections that hold, or probably hold, these row locks; '' if unknown."""
    connections: Sequence[Any] = ()
    if tx.kind == 'postgresql':
        connections = tx.all(PG_OF_ROWS, ids=list(provider_ids)) if provider_ids else ()
        connections = connections or tx.all(PG_IDLE)
    elif tx.kind == 'mysql':
        connections = tx.all(MYSQL)
    return ', '.join(
        f'{row.name or "?"} (process {row.pid} of the server, {row.state} for {row.seconds:.1f} s)'
        for row in connections
    )


def _end_unfinished(tx: session.Tx) -> list[int]:
    if tx.kind != 'postgresql':
        return []
    return [row.pid for row in tx.all(PG_UNFINISHED) if row.ended]
