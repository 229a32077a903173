# SPDX-License-Identifier: Apache-2.0
"""Rows that another transaction keeps locked: found once, then left alone for a while.

A process that is stopped inside of a transaction, or cut off from the database, keeps its
rows locked until the server ends that transaction.  Who needs one of them waits for it
once, ``lock_wait_seconds``; then it is looked up, without waiting, which rows these are,
and what does not need them goes on.  While a provider is known to be locked nobody of this
process waits for it again: whether it is free by now is asked without waiting, too.

Nothing here is a promise: rows that are free a moment later are refused a moment too long.
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
from gantt.core.claims.places import PlaceTaken
from gantt.core.messages.request import Purpose
from gantt.db.claims import commit as ledger
from gantt.db.claims.batch import CommitBatch
from gantt.db.engine import retry, session
from gantt.db.engine.arrays import by_key
from gantt.db.hosts import claim_rows, providers, sole
from gantt.db.hosts.base import HostTables
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

#: Of whatever key another row has it already.
_SOLES = {
    'postgresql': postgresql.insert(_c).on_conflict_do_nothing(),
    'sqlite': sqlite.insert(_c).on_conflict_do_nothing(),
    'mysql': mysql.insert(_c).on_duplicate_key_update(id=_c.c.id),
}

#: Between two looks at the same rows.
AGAIN_SECONDS = 0.1
#: For so long after a wait in vain nobody of this process waits for the same row.
SPARED_SECONDS = 2.0
#: Waits in vain of one batch; what still needs locked rows after them is told so.  The second
#: try always comes: it goes on without what was found to be locked.  MariaDB waits for whole
#: seconds: there is no third wait where two have taken so long.
WAITS_MAX, WAITS_SECONDS = 3, 1.5
#: Between two lines in the log.
COMPLAIN_SECONDS = 10.0
#: Looking up what holds a batch back ends after so long; the rest counts as held back.
LOOK_SECONDS = 1.0
NAMES_SHOWN = 5
#: Before the names of providers that are no hosts.
PROVIDER = 'provider '

#: A row's xmax is the transaction that has it locked, or has changed it, and is not over.
PG_OF_ROWS = sa.text("""
    SELECT DISTINCT a.application_name AS name, a.pid AS pid, a.state AS state,
           EXTRACT(EPOCH FROM clock_timestamp() - a.state_change) AS seconds
      FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
     WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock'
       AND a.pid <> pg_backend_pid()
       AND l.transactionid IN (SELECT xmax FROM providers WHERE id = ANY(:ids))
     LIMIT 3
""")
#: Where that finds nobody: who has written, and says nothing.
PG_IDLE = sa.text("""
    SELECT a.application_name AS name, a.pid AS pid, a.state AS state,
           EXTRACT(EPOCH FROM clock_timestamp() - a.state_change) AS seconds
      FROM pg_stat_activity a
     WHERE a.datname = current_database() AND a.state LIKE 'idle in transaction%'
       AND a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
     ORDER BY a.xact_start LIMIT 3
""")
#: Transactions of ours that wait for the rest of a message.  Who stands still while it sends a
#: pipeline is not idle to the server, which would keep its rows locked for as long as it stands.
#: Connections of ours end their names with a process id; a COPY of anybody waits like that.
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
#: Needs the PROCESS privilege; names only where the performance schema is on.
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
    """Providers of one batch, over its tries.

    :param blocked: those of some providers that are known to be locked by others
    :ivar wanted: the providers that it was about to lock
    :ivar left: those that it does without
    """

    def __init__(self, blocked: Callable[[Collection[int]], Iterable[int]]) -> None:
        self._blocked = blocked
        self.wanted: set[int] = set()
        self.left: set[int] = set()

    def without(self, ids: Collection[int]) -> set[int]:
        """The providers to lock: all but those that are left aside."""
        self.wanted = set(ids)
        self.left.update(self._blocked(self.wanted))
        return self.wanted - self.left


class Locks:
    """What a process knows of rows that others keep locked; any thread.

    :param engine: of the database; SQLite locks no rows, and nothing is ever found there
    """

    def __init__(self, engine: sa.Engine) -> None:
        kind = session.family(engine)
        policy = retry.RetryPolicy(attempts=2, seconds=2.0, locked_seconds=0.0)
        self._database = session.Database(engine, policy, 1)
        # MariaDB 10.11 takes no SKIP LOCKED on a connection that waits for nothing.
        self._trying = session.Database(engine, policy, 1, session.unwaiting(kind))
        self._lock = threading.Lock()
        #: Provider id -> (its name, for how long nobody waits for it)
        self._spared: dict[int, tuple[str, float]] = {}
        self._looked: tuple[float, set[int], dict[int, str]] = (0.0, set(), {})
        self._complained = float('-inf')

    def close(self) -> None:
        """Give its connections back."""
        self._database.close()
        self._trying.close()

    # -- what is known ---------------------------------------------------------------
    def blocked(self, ids: Collection[int]) -> dict[int, str]:
        """Those of the providers, with their names, that were locked lately and still are."""
        if not self._spared:
            return {}
        now = time.monotonic()
        with self._lock:
            self._spared = {pid: of for pid, of in self._spared.items() if of[1] > now}
            doubtful = self._spared.keys() & ids
        if not doubtful:
            return {}
        at, requested_ids, found = self._looked
        if now - at > AGAIN_SECONDS or not doubtful <= requested_ids:
            found = self._locked_of(doubtful)
            self._looked = (time.monotonic(), set(doubtful), found)
            with self._lock:
                for pid in doubtful - found.keys():
                    self._spared.pop(pid, None)
        return {pid: found[pid] for pid in doubtful if pid in found}

    def look(self, ids: Collection[int]) -> dict[int, str]:
        """After a wait in vain: which of the providers are locked; they are spared for a while."""
        found = self._locked_of(ids) if ids else {}
        until = time.monotonic() + SPARED_SECONDS
        with self._lock:
            self._spared.update({pid: (name, until) for pid, name in found.items()})
        return found

    def _locked_of(self, ids: Collection[int]) -> dict[int, str]:
        wanted = sorted(ids)

        def work(tx: session.Tx) -> dict[int, str]:
            free = {row.id for row in tx.all(FREE, ids=wanted)}
            there = {row.id: _called(row) for row in tx.all(NAMES, ids=wanted)}
            return {pid: name for pid, name in there.items() if pid not in free}

        return self._glance(self._database, work)

    @staticmethod
    def _glance(database: session.Database, work: Callable[[session.Tx], T]) -> T:
        """What ``work`` finds; nothing of it stays."""

        def look(tx: session.Tx) -> None:
            raise _SeenLocks(work(tx))

        try:
            database.write(look)
        except _SeenLocks as e:
            found: T = e.args[0]
            return found
        raise exceptions.Bug(invariant='a glance ends its transaction itself')

    # -- what goes on without them -----------------------------------------------------
    def around(self, work: Callable[[Aside], T]) -> T:
        """Run ``work``, and again without the providers that it waited for in vain.

        :param work: one transaction, waiting once for what is locked
        :raises Busy: other rows stay locked
        """
        aside = Aside(self.blocked)
        for _ in _waits():
            try:
                return work(aside)
            except retry.RowsLocked as e:
                found = self.look(aside.wanted - aside.left)
                self._complain(found, str(e))
                aside.left |= found.keys()
        raise retry.busy()

    def one(self, name: str, work: Callable[[], T]) -> T:
        """What one host says, by a transaction that waits once.

        :raises Busy: its row is locked; where that is known already nothing is waited for
        """
        if self._spared:
            with self._lock:
                known = [pid for pid, of in self._spared.items() if of[0] == name]
            if known and self.blocked(known):
                raise retry.busy(host_is(name))
        try:
            return work()
        except retry.RowsLocked as e:
            known = self._database.read(lambda tx: list(providers.ids_by_name(tx, [name]).values()))
            found = self.look(known)
            self._complain(found, str(e))
            raise (retry.busy(host_is(name)) if found else retry.busy()) from e

    def commit(
        self, made: ledger.Ledger, database: session.Database, batch: Sequence[RequestDraft]
    ) -> CommitResult:
        """The group commit, without the drafts that need rows which others keep locked.

        :raises DatabaseUnavailable: as the ledger's
        """
        hosts = self.blocked(_named(batch)) if self._spared else {}
        waiting = {draft.id: host_is(hosts[pid]) for draft, pid in _on(hosts, batch)}
        for _ in _waits():
            if batch and len(waiting) == len(batch):
                break
            try:
                result = made.commit(database, batch, _reasons(waiting))
            except retry.RowsLocked as e:
                found, more = self._held_back([d for d in batch if d.id not in waiting])
                self._complain(found, str(e))
                hosts, waiting = hosts | found, waiting | more
            else:
                return msgspec.structs.replace(result, locked=hosts) if hosts else result
        some = 'rows that it needs are'
        commit_batch = CommitBatch(
            batch, _reasons({draft.id: waiting.get(draft.id, some) for draft in batch})
        )
        nothing = commit_batch.result(providers.LockedProviders({}, {}, {}))
        return msgspec.structs.replace(nothing, locked=hosts)

    def _held_back(self, drafts: Sequence[RequestDraft]) -> tuple[dict[int, str], dict[str, str]]:
        """The providers that are locked, and what each draft that cannot go on waits for."""
        try:
            reach = self._database.read(lambda tx: _reach(tx, drafts))
            hosts = self.look({pid for ids in reach.values() for pid in ids})
            held = {
                key: host_is(hosts[min(ids & hosts.keys())])
                for key, ids in reach.items()
                if not ids.isdisjoint(hosts)
            }
            groups = self._locked_groups(drafts)
            for draft in drafts:
                for uuid in (one.uuid for one in swaps_of(draft) if one.uuid in groups):
                    held.setdefault(draft.id, f'server group {uuid} is')
            rest = [draft for draft in drafts if draft.id not in held]
            held |= self._rows_held(rest) if rest else {}
        except exceptions.Unavailable:
            return {}, {}
        return hosts, held

    def _locked_groups(self, drafts: Sequence[RequestDraft]) -> set[str]:
        named = sorted({group.uuid for draft in drafts for group in swaps_of(draft)})
        if not named:
            return set()

        def work(tx: session.Tx) -> set[str]:
            free = {row.uuid for row in tx.all(FREE_GROUPS, ids=named)}
            return {row.uuid for row in tx.all(GROUPS, ids=named)} - free

        return self._glance(self._database, work)

    def _rows_held(self, drafts: Sequence[RequestDraft]) -> dict[str, str]:
        """Drafts whose request or consumers another transaction is at; nothing stays written.

        Rows that it has just inserted nobody can see: one has to try to insert them.
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

    # -- what is said ------------------------------------------------------------------
    def _complain(self, hosts: Mapping[int, str], problem: str) -> None:
        """Who waits for whom, as far as the server tells; now and then."""
        self._end_unfinished()
        now = time.monotonic()
        if now - self._complained < COMPLAIN_SECONDS:
            return
        self._complained = now
        names = sorted(hosts.values())
        shown = ', '.join(names[:NAMES_SHOWN]) + (', ...' if len(names) > NAMES_SHOWN else '')
        who = ''
        with contextlib.suppress(Exception):  # only its rights tell
            who = self._database.read(lambda tx: _holders(tx, sorted(hosts)))
        LOG.warning(
            'row locks: another process keeps %s locked; what needs them waits, everything else '
            'goes on. Held by %s (%s)',
            f'the rows of {len(names)} hosts ({shown})' if names else 'rows of other tables',
            who or 'a transaction that the server does not name',
            problem,
        )

    def _end_unfinished(self) -> None:
        """End transactions that were sent half, and nothing more for as long as one may idle."""
        ended: list[int] = []
        with contextlib.suppress(Exception):  # the next wait in vain tries again
            ended = self._database.read(_end_unfinished)
        if ended:
            LOG.warning(
                'row locks: ended %d transactions whose processes stood still in the middle of '
                'what they sent (processes %s of the server)',
                len(ended),
                ', '.join(map(str, ended)),
            )


class _SeenLocks(session.GivenUp):
    """Ends a transaction that only looks; its argument is what was found."""


def _waits() -> Iterator[int]:
    """The tries of one batch, each of which may wait in vain."""
    until = time.monotonic() + WAITS_SECONDS
    for number in range(WAITS_MAX):
        if number < 2 or time.monotonic() < until:
            yield number


def _reasons(waiting: Mapping[str, str]) -> dict[str, str]:
    return {key: f'{what} locked by another process' for key, what in waiting.items()}


def _called(row: Any) -> str:
    """Its own name may be that of another host: words about that one must not wait for it."""
    return str(row.name) if row.is_host else f'{PROVIDER}{row.own_name}'


def host_is(name: str) -> str:
    """For reasons."""
    return f'{name} is' if name.startswith(PROVIDER) else f'host {name} is'


def _named(drafts: Sequence[RequestDraft]) -> set[int]:
    """Providers that drafts claim on, or have places on."""
    named = {pid for draft in drafts for made in draft.claims for pid in made.claim.allocations}
    for draft in drafts:
        named.update(pid for place in draft.takes_places for pid in place.provider_ids)
        named.update(pid for place in draft.ends_places for pid in place.provider_ids)
    return named


def _on(
    hosts: Mapping[int, str], drafts: Sequence[RequestDraft]
) -> Iterator[tuple[RequestDraft, int]]:
    """Drafts that claim on these providers, with one of them."""
    for draft in drafts if hosts else ():
        mine = _named([draft]) & hosts.keys()
        if mine:
            yield draft, min(mine)


def _reach(tx: session.Tx, drafts: Sequence[RequestDraft]) -> dict[str, set[int]]:
    """Draft -> every provider that its commit may lock: also those of claims that give way."""
    reach = {draft.id: _named([draft]) for draft in drafts}
    of_consumer: dict[str, list[str]] = {}
    for draft in drafts:
        for consumer in consumers_of(draft):
            of_consumer.setdefault(consumer, []).append(draft.id)
    over = [draft.id for draft in drafts if draft.takes_over is not None]
    found = load_claims(tx, consumers=sorted(of_consumer), live=True)
    found += load_claims(tx, request_ids=over, live=True) if over else []
    for claim in found:
        for key in (*of_consumer.get(claim.consumer, ()), claim.request_id):
            if key in reach:
                reach[key] |= claim.allocations.keys()
    return reach


def _takes(tx: session.Tx, drafts: Sequence[RequestDraft]) -> bool:
    """Whether the rows of requests and consumers can be had at once; they are let go again."""
    commit_batch = CommitBatch(drafts)
    commit_batch.now = tx.now
    attempt = tx.connection.begin_nested()
    try:
        values = [commit_batch.request_values(draft) for draft in commit_batch.insertable()]
        tx.insert_new(models.requests, values, 'id')
        tx.all(ledger.LOCK_REQUESTS, ids=sorted(draft.id for draft in drafts))
        made = [made.claim for draft in drafts for made in draft.claims]
        places = [place for draft in drafts for place in draft.takes_places]
        _insert_soles(tx, made, places)
    except Exception as e:
        if retry.signal_of(e) is not retry.RetrySignal.LOCKED:
            raise
        return False
    finally:
        attempt.rollback()
    return True


def _insert_soles(tx: session.Tx, made: Iterable[Claim], places: Iterable[PlaceTaken]) -> None:
    """Insert rows that meet claims which others are just inserting, and no others."""
    wanted = {of for claim in made if (of := sole.sole_of(claim)) is not None}
    soles = sorted(wanted | {place.consumer + sole.sole_end(Purpose.CREATE) for place in places})
    ended = Claim(id='', request_id=None, consumer='', provider_id=0, state=State.RELEASED)
    values = claim_rows.claim_values(ended)
    found = [{**values, 'id': f'? {n}', 'sole': sole} for n, sole in enumerate(soles)]
    if found:
        tx.connection.execute(_SOLES[tx.kind], found)


def _holders(tx: session.Tx, provider_ids: Sequence[int]) -> str:
    """The connections that keep these rows locked, or probably do; '': nobody is known."""
    found: Sequence[Any] = ()
    if tx.kind == 'postgresql':
        found = tx.all(PG_OF_ROWS, ids=list(provider_ids)) if provider_ids else ()
        found = found or tx.all(PG_IDLE)
    elif tx.kind == 'mysql':
        found = tx.all(MYSQL)
    return ', '.join(
        f'{row.name or "?"} (process {row.pid} of the server, {row.state} for {row.seconds:.1f} s)'
        for row in found
    )


def _end_unfinished(tx: session.Tx) -> list[int]:
    if tx.kind != 'postgresql':
        return []
    return [row.pid for row in tx.all(PG_UNFINISHED) if row.ended]


class Locking(HostTables):
    """A store whose transactions go on without what others keep locked."""

    def __init__(
        self, engine: sa.Engine, policy: retry.RetryPolicy | None = None, **options: Any
    ) -> None:
        super().__init__(engine, policy, **options)
        self.locks = Locks(engine)

    def close(self) -> None:
        """Close its connections."""
        self.locks.close()
        super().close()

    def _around(self, work: Callable[[session.Tx, Aside], T]) -> T:
        """Run ``work``, and again without the providers that it waited for in vain.

        :raises Busy: other rows stay locked
        """
        return self.locks.around(
            lambda aside: self.database.write(lambda tx: work(tx, aside), once_locked=True)
        )
