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
from gantt.core.claims.commit import CommitResult, RequestDraft, consumers_of, preconditions_of
from gantt.core.claims.reservations import TakenReservation
from gantt.core.messages.request import Purpose
from gantt.db.claims import commit as portable
from gantt.db.claims.batch import CommitBatch, named_providers
from gantt.db.database import Database
from gantt.db.engine import retry, session
from gantt.db.engine.arrays import lock_by_key
from gantt.db.hosts import claim_rows, providers
from gantt.db.hosts.claim_rows import load_claims
from gantt.db.schema import models

LOG = logging.getLogger(__name__)
T = TypeVar('T')

_providers = models.providers
_group_rules = models.group_rules
_claims = models.claims
_ids: Any = sa.bindparam('ids', expanding=True)
SELECT_PROVIDER_NAMES = sa.select(
    _providers.c.id,
    _providers.c.name,
    _providers.c.placement_name,
    providers.is_host.label('is_host'),
).where(_providers.c.id.in_(_ids))
LOCK_UNLOCKED_PROVIDERS = lock_by_key(
    sa.select(_providers.c.id)
    .where(_providers.c.id.in_(_ids))
    .order_by(_providers.c.id)
    .with_for_update(key_share=True, skip_locked=True),
    _providers,
)
SELECT_GROUPS = sa.select(_group_rules.c.uuid).where(_group_rules.c.uuid.in_(_ids))
LOCK_UNLOCKED_GROUPS = lock_by_key(
    SELECT_GROUPS.order_by(_group_rules.c.uuid).with_for_update(key_share=True, skip_locked=True),
    _group_rules,
)

#: No-op on a conflict with any unique key.
_INSERT_OR_IGNORE = {
    'postgresql': postgresql.insert(_claims).on_conflict_do_nothing(),
    'sqlite': sqlite.insert(_claims).on_conflict_do_nothing(),
    'mysql': mysql.insert(_claims).on_duplicate_key_update(id=_claims.c.id),
}

#: Seconds between two queries of the same rows.
POLL_SECONDS = 0.1
#: Seconds after a wait in vain in which no transaction of this process waits for the same row.
NO_WAIT_SECONDS = 2.0
#: Waits in vain of one batch; drafts that still need locked rows after them are refused.  The
#: second try always comes: it goes on without the rows known to be locked.  MariaDB waits for
#: whole seconds: there is no third wait where two have taken so long.
WAITS_MAX, WAITS_SECONDS = 3, 1.5
#: Seconds between two lines in the log.
LOG_INTERVAL_SECONDS = 10.0
#: Seconds after which the search for held back drafts ends; the rest counts as held back.
SEARCH_SECONDS_MAX = 1.0
NAMES_SHOWN = 5
#: Prefix of the names of providers that are no hosts.
PROVIDER_PREFIX = 'provider '

#: A row's xmax is the unfinished transaction that has locked or changed it.
PG_SELECT_ROW_LOCK_HOLDERS = sa.text("""
    SELECT DISTINCT a.application_name AS name, a.pid AS pid, a.state AS state,
           EXTRACT(EPOCH FROM clock_timestamp() - a.state_change) AS seconds
      FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
     WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock'
       AND a.pid <> pg_backend_pid()
       AND l.transactionid IN (SELECT xmax FROM providers WHERE id = ANY(:ids))
     LIMIT 3
""")
#: Used where that finds none: transactions that have written and are idle.
PG_SELECT_IDLE_TRANSACTIONS = sa.text("""
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
PG_TERMINATE_UNFINISHED = sa.text("""
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
MYSQL_SELECT_LOCK_HOLDERS = sa.text("""
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


class SkippedProviders:
    """Locked providers that one batch leaves out, collected over its attempts.

    :param recently_locked: function of provider ids that returns those known to be locked by other
        transactions
    :ivar needed_ids: the providers that the batch was about to lock
    :ivar ids: the providers that the batch does without
    """

    def __init__(self, recently_locked: Callable[[Collection[int]], Iterable[int]]) -> None:
        self._recently_locked = recently_locked
        self.needed_ids: set[int] = set()
        self.ids: set[int] = set()

    def remaining(self, ids: Collection[int]) -> set[int]:
        """Return ``ids`` without the locked providers that the batch leaves out."""
        self.needed_ids = set(ids)
        self.ids.update(self._recently_locked(self.needed_ids))
        return self.needed_ids - self.ids


class KnownLocks:
    """Row locks of other processes, as far as this process knows them; thread-safe.

    SQLite locks no rows, so none is ever reported there.
    """

    def __init__(self, database: Database) -> None:
        policy = retry.RetryPolicy(attempts=2, seconds=2.0, locked_seconds=0.0)
        self._database = database
        self._lock_reads = database.transactions(1, policy=policy)
        # MariaDB 10.11 accepts no SKIP LOCKED on a connection with a lock wait timeout of 0.
        self._no_wait_transactions = database.transactions(
            1, session.without_lock_waits(database.kind), policy=policy
        )
        self._lock = threading.Lock()  # of ``_no_wait_until``
        #: Provider id -> (its name, monotonic time until which no transaction waits for it)
        self._no_wait_until: dict[int, tuple[str, float]] = {}
        #: Monotonic time of the last look, its providers, and the names of the locked ones.
        self._last_check: tuple[float, set[int], dict[int, str]] = (0.0, set(), {})
        self._logged_at = float('-inf')

    # -- known locks -----------------------------------------------------------------
    def recently_locked(self, ids: Collection[int]) -> dict[int, str]:
        """Return id -> name of those of ``ids`` that were locked lately and still are."""
        if not self._no_wait_until:
            return {}
        now = time.monotonic()
        with self._lock:
            self._no_wait_until = {
                pid: entry for pid, entry in self._no_wait_until.items() if entry[1] > now
            }
            doubtful = self._no_wait_until.keys() & ids
        if not doubtful:
            return {}
        read_at, requested_ids, locked_names = self._last_check
        if now - read_at > POLL_SECONDS or not doubtful <= requested_ids:
            locked_names = self._locked_of(doubtful)
            self._last_check = (time.monotonic(), set(doubtful), locked_names)
            with self._lock:
                for pid in doubtful - locked_names.keys():
                    self._no_wait_until.pop(pid, None)
        return {pid: locked_names[pid] for pid in doubtful if pid in locked_names}

    def locked_after_wait(self, ids: Collection[int]) -> dict[int, str]:
        """Return id -> name of those of ``ids`` that are locked; they are left out for a while."""
        locked_names = self._locked_of(ids) if ids else {}
        until = time.monotonic() + NO_WAIT_SECONDS
        with self._lock:
            self._no_wait_until.update({pid: (name, until) for pid, name in locked_names.items()})
        return locked_names

    def _locked_of(self, ids: Collection[int]) -> dict[int, str]:
        sorted_ids = sorted(ids)

        def work(tx: session.Tx) -> dict[int, str]:
            free = {row.id for row in tx.all(LOCK_UNLOCKED_PROVIDERS, ids=sorted_ids)}
            names = {
                row.id: _provider_name(row) for row in tx.all(SELECT_PROVIDER_NAMES, ids=sorted_ids)
            }
            return {pid: name for pid, name in names.items() if pid not in free}

        return self._rolled_back_read(self._lock_reads, work)

    @staticmethod
    def _rolled_back_read(transactions: session.Transactions, work: Callable[[session.Tx], T]) -> T:
        """Return the result of ``work``, whose transaction is rolled back."""

        def look(tx: session.Tx) -> None:
            raise _SeenLocks(work(tx))

        try:
            transactions.write(look)
        except _SeenLocks as e:
            result: T = e.args[0]
            return result
        raise exceptions.Bug(invariant='a read that looks for locks rolls its transaction back')

    # -- work without locked rows ------------------------------------------------------
    def write_without_locked(self, work: Callable[[session.Tx, SkippedProviders], T]) -> T:
        """Run ``work`` in a transaction; repeat it without the providers that stayed locked.

        :param work: runs in one transaction, which waits once for what is locked
        :raises Busy: other rows stay locked
        """
        skipped = SkippedProviders(self.recently_locked)
        for _ in _wait_numbers():
            try:
                return self._database.writes.write(lambda tx: work(tx, skipped), once_locked=True)
            except retry.RowsLocked as e:
                locked_names = self.locked_after_wait(skipped.needed_ids - skipped.ids)
                self._log_locks(locked_names, str(e))
                skipped.ids |= locked_names.keys()
        raise retry.busy()

    def write_for_host(self, name: str, work: Callable[[], T]) -> T:
        """Run ``work`` for one host, in a transaction that waits once.

        :raises Busy: the host's row is locked; where that is known there is no wait
        """
        if self._no_wait_until:
            with self._lock:
                provider_ids = [
                    pid for pid, entry in self._no_wait_until.items() if entry[0] == name
                ]
            if provider_ids and self.recently_locked(provider_ids):
                raise retry.busy(host_subject(name))
        try:
            return work()
        except retry.RowsLocked as e:
            provider_ids = self._lock_reads.read(
                lambda tx: list(providers.ids_by_name(tx, [name]).values())
            )
            locked_names = self.locked_after_wait(provider_ids)
            self._log_locks(locked_names, str(e))
            raise (retry.busy(host_subject(name)) if locked_names else retry.busy()) from e

    def commit(
        self, committer: portable.BatchCommitter, batch: Sequence[RequestDraft]
    ) -> CommitResult:
        """Run the group commit, without the drafts that need rows which others keep locked.

        :raises DatabaseUnavailable: as ``committer`` raises it
        """
        hosts = self.recently_locked(named_providers(batch)) if self._no_wait_until else {}
        waiting = {draft.id: host_subject(hosts[pid]) for draft, pid in _drafts_on(hosts, batch)}
        for _ in _wait_numbers():
            if batch and len(waiting) == len(batch):
                break
            try:
                result = committer.commit(self._database.commits, batch, _lock_reasons(waiting))
            except retry.RowsLocked as e:
                locked_names, reasons = self._locked_providers(
                    [d for d in batch if d.id not in waiting]
                )
                self._log_locks(locked_names, str(e))
                hosts, waiting = hosts | locked_names, waiting | reasons
            else:
                return msgspec.structs.replace(result, locked=hosts) if hosts else result
        default_reason = 'rows that it needs are'
        commit_batch = CommitBatch(
            batch,
            _lock_reasons({draft.id: waiting.get(draft.id, default_reason) for draft in batch}),
        )
        return CommitResult(outcomes=commit_batch.outcomes(), locked=hosts)

    def _locked_providers(
        self, drafts: Sequence[RequestDraft]
    ) -> tuple[dict[int, str], dict[str, str]]:
        """Return the locked providers, and draft id -> the locked resource that it waits for."""
        try:
            reach = self._lock_reads.read(lambda tx: _providers_of_drafts(tx, drafts))
            hosts = self.locked_after_wait({pid for ids in reach.values() for pid in ids})
            reasons = {
                key: host_subject(hosts[min(ids & hosts.keys())])
                for key, ids in reach.items()
                if not ids.isdisjoint(hosts)
            }
            groups = self._locked_groups(drafts)
            for draft in drafts:
                for uuid in (
                    group.uuid for group in preconditions_of(draft) if group.uuid in groups
                ):
                    reasons.setdefault(draft.id, f'server group {uuid} is')
            other_drafts = [draft for draft in drafts if draft.id not in reasons]
            reasons |= self._locked_row_reasons(other_drafts) if other_drafts else {}
        except exceptions.Unavailable:
            return {}, {}
        return hosts, reasons

    def _locked_groups(self, drafts: Sequence[RequestDraft]) -> set[str]:
        group_uuids = sorted({group.uuid for draft in drafts for group in preconditions_of(draft)})
        if not group_uuids:
            return set()

        def work(tx: session.Tx) -> set[str]:
            free = {row.uuid for row in tx.all(LOCK_UNLOCKED_GROUPS, ids=group_uuids)}
            return {row.uuid for row in tx.all(SELECT_GROUPS, ids=group_uuids)} - free

        return self._rolled_back_read(self._lock_reads, work)

    def _locked_row_reasons(self, drafts: Sequence[RequestDraft]) -> dict[str, str]:
        """Return reasons for the drafts whose request or consumer rows are locked; write nothing.

        Rows that others have just inserted are not visible: only a trial insert meets them.
        """
        until = time.monotonic() + SEARCH_SECONDS_MAX

        def work(tx: session.Tx) -> dict[str, str]:
            if _can_lock_rows(tx, drafts):
                return {}
            return {
                draft.id: 'the request, or a consumer of it, is'
                for draft in drafts
                if time.monotonic() > until or not _can_lock_rows(tx, [draft])
            }

        return self._rolled_back_read(self._no_wait_transactions, work)

    # -- log messages ------------------------------------------------------------------
    def _log_locks(self, hosts: Mapping[int, str], problem: str) -> None:
        """Log the locked rows and the transactions that hold them, at most once per period."""
        self._end_unfinished()
        now = time.monotonic()
        if now - self._logged_at < LOG_INTERVAL_SECONDS:
            return
        self._logged_at = now
        names = sorted(hosts.values())
        shown = ', '.join(names[:NAMES_SHOWN]) + (', ...' if len(names) > NAMES_SHOWN else '')
        holders = ''
        with contextlib.suppress(Exception):  # the role may lack the rights
            holders = self._lock_reads.read(lambda tx: _lock_holders(tx, sorted(hosts)))
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
            ended_pids = self._lock_reads.read(_end_unfinished)
        if ended_pids:
            LOG.warning(
                'Row locks of unfinished transactions were released by ending them: count=%d '
                'pids=%s',
                len(ended_pids),
                ','.join(map(str, ended_pids)),
            )


class _SeenLocks(session.WorkAbandoned):
    """Signal that ends a read-only transaction; its argument is the result."""


def _wait_numbers() -> Iterator[int]:
    """Yield the numbers of the attempts of one batch, each of which may wait for a lock in vain."""
    until = time.monotonic() + WAITS_SECONDS
    for number in range(WAITS_MAX):
        if number < 2 or time.monotonic() < until:
            yield number


def _lock_reasons(waiting: Mapping[str, str]) -> dict[str, str]:
    return {
        key: f'{locked_resource} locked by another process'
        for key, locked_resource in waiting.items()
    }


def _provider_name(row: Any) -> str:
    """Return a provider's name; a non-host is prefixed, as its name may equal a host's."""
    return str(row.name) if row.is_host else f'{PROVIDER_PREFIX}{row.placement_name}'


def host_subject(name: str) -> str:
    """Return the name of a host or provider as the subject of a sentence: "host NAME is"."""
    return f'{name} is' if name.startswith(PROVIDER_PREFIX) else f'host {name} is'


def _drafts_on(
    hosts: Mapping[int, str], drafts: Sequence[RequestDraft]
) -> Iterator[tuple[RequestDraft, int]]:
    """Yield the drafts that claim on these providers, each with the lowest such provider id."""
    for draft in drafts if hosts else ():
        draft_hosts = named_providers([draft]) & hosts.keys()
        if draft_hosts:
            yield draft, min(draft_hosts)


def _providers_of_drafts(tx: session.Tx, drafts: Sequence[RequestDraft]) -> dict[str, set[int]]:
    """Return draft -> the providers that its commit may lock, with those of claims giving way."""
    reach = {draft.id: named_providers([draft]) for draft in drafts}
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


def _can_lock_rows(tx: session.Tx, drafts: Sequence[RequestDraft]) -> bool:
    """Return whether the request and consumer rows can be locked at once; then release them."""
    commit_batch = CommitBatch(drafts)
    commit_batch.now = tx.now
    attempt = tx.connection.begin_nested()
    try:
        tx.insert_new(models.requests, commit_batch.request_rows(), 'id')
        tx.all(portable.LOCK_REQUESTS, ids=sorted(draft.id for draft in drafts))
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
    tx: session.Tx, claims: Iterable[Claim], reservations: Iterable[TakenReservation]
) -> None:
    """Insert rows that conflict by their key with rows that others insert now, and no others."""
    claim_keys = {
        claim_key for claim in claims if (claim_key := claim_rows.unique_key_of(claim)) is not None
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
        tx.connection.execute(_INSERT_OR_IGNORE[tx.kind], key_rows)


def _lock_holders(tx: session.Tx, provider_ids: Sequence[int]) -> str:
    """Return the connections that hold, or probably hold, these row locks; '' if unknown."""
    connections: Sequence[Any] = ()
    if tx.kind == 'postgresql':
        connections = (
            tx.all(PG_SELECT_ROW_LOCK_HOLDERS, ids=list(provider_ids)) if provider_ids else ()
        )
        connections = connections or tx.all(PG_SELECT_IDLE_TRANSACTIONS)
    elif tx.kind == 'mysql':
        connections = tx.all(MYSQL_SELECT_LOCK_HOLDERS)
    return ', '.join(
        f'{row.name or "?"} (process {row.pid} of the server, {row.state} for {row.seconds:.1f} s)'
        for row in connections
    )


def _end_unfinished(tx: session.Tx) -> list[int]:
    if tx.kind != 'postgresql':
        return []
    return [row.pid for row in tx.all(PG_TERMINATE_UNFINISHED) if row.ended]
