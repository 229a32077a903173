# SPDX-License-Identifier: Apache-2.0
"""The group commit on PostgreSQL: the same book, two round trips.

psycopg is used directly, in pipeline mode and with arrays, so that a batch of
any size is one prepared statement for each step:

1. insert the request rows, lock the rows that are continued, the groups, the
   consumers and the providers, in that order and by one statement each;
2. write usage, claims, allocations, decisions and feed in one statement, and
   COMMIT.

What is rare (take-overs, claims that give way, groups to bump, classes that are
not hot, rows to correct) goes through the portable statements.  The
contract suite holds this path and the portable one to the same outcomes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.rows import namedtuple_row

from gantt.core.claims.claim import Claim, State
from gantt.core.claims.commit import CommitResult, CommitStatus, RequestDraft
from gantt.core.messages.request import Lifecycle, Purpose
from gantt.db.claims import commit as ledger
from gantt.db.claims import groups
from gantt.db.claims.batch import CommitBatch, makers_of, one_of_each_group
from gantt.db.engine import retry, session
from gantt.db.engine.arrays import numbers, texts
from gantt.db.hosts import providers, rows
from gantt.db.records import decisions
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

NOW = session.CLOCK['postgresql']
_core_class_columns = list(CORE_CLASS_COLUMNS.values())


def _sql(text: str) -> Any:
    """A statement of ours for psycopg: made of constants and placeholders only."""
    return ' '.join(text.split()).encode()


REQUESTS = _sql(f"""
    INSERT INTO requests (id, fingerprint, state, owner, attempt, deadline, token, answer,
                          created_at, updated_at, claims)
    SELECT q.id, q.fingerprint, q.state, q.owner, q.attempt, n.now + q.budget, %s, q.answer,
           n.now, n.now, q.claims
      FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::int[], %s::float8[],
                  %b::bytea[], %s::int[])
           AS q (id, fingerprint, state, owner, attempt, budget, answer, claims),
           (SELECT {NOW} AS now) n
     ORDER BY q.id COLLATE "C"
        ON CONFLICT (id) DO NOTHING
    RETURNING id
""")  # noqa: S608 - the clock's expression is a constant

_STATE = 'id, fingerprint, state, owner, attempt, deadline, answer, claims'
CONTINUED = _sql(f"""
    SELECT {_STATE} FROM requests WHERE id = ANY(%s::text[]) ORDER BY id FOR UPDATE
""")  # noqa: S608
#: Rows that were there already and are not ours to change: no lock.
REPEATED = _sql(f'SELECT {_STATE} FROM requests WHERE id = ANY(%s::text[])')  # noqa: S608

GROUPS = _sql("""
    SELECT uuid, policy, max_per_host, generation FROM group_rules WHERE uuid = ANY(%s::text[])
     ORDER BY uuid FOR NO KEY UPDATE
""")
DELETE_GROUPS = models.group_rules.delete().where(
    models.group_rules.c.uuid.in_(sa.bindparam('ids', expanding=True))
)
PROVIDERS = _sql(f"""
    SELECT {', '.join(rows.COUNTERS)}, {NOW} FROM providers WHERE id = ANY(%s::bigint[])
     ORDER BY id FOR NO KEY UPDATE
""")  # noqa: S608

#: Types as they are called in a cast; all others are text.
_KINDS = {
    sa.BigInteger: 'bigint',
    sa.Integer: 'int',
    sa.Double: 'float8',
    sa.LargeBinary: 'bytea',
}


def _columns(table: sa.Table, *but: str) -> list[tuple[str, str]]:
    """Name and type of the columns of a table, without some."""
    return [
        (c.name, next((of for kind, of in _KINDS.items() if isinstance(c.type, kind)), 'text'))
        for c in table.c
        if c.name not in but
    ]


#: What a new claim has of its own; the rest is the same for all of a batch, or a default.
_CLAIM = _columns(
    models.claims,
    *('state', 'live', 'adopted', 'absences', 'reason', 'created_at', 'updated_at'),
)
_ALLOCATION = _columns(models.allocations)
_GROUP = _columns(models.group_rules, 'name', 'members')
_CONSUMER = _columns(models.consumers, 'id', 'generation')
_DECISION = _columns(models.decisions, 'number')


def _unnest(columns: Sequence[tuple[str, str]], name: str) -> str:
    arrays = ', '.join(f'%{"b" if kind == "bytea" else "s"}::{kind}[]' for _, kind in columns)
    return f'unnest({arrays}) AS {name} ({", ".join(column for column, _ in columns)})'


def _names(columns: Sequence[tuple[str, str]]) -> str:
    return ', '.join(column for column, _ in columns)


GROUPS_UNSEEN = _sql(f"""
    INSERT INTO group_rules ({_names(_GROUP)}, name, members)
    SELECT {_names(_GROUP)}, '', '[]' FROM {_unnest(_GROUP, 't')} ORDER BY uuid COLLATE "C"
        ON CONFLICT (uuid) DO NOTHING
    RETURNING uuid
""")  # noqa: S608
#: Counted up rather than left alone: that locks the row until we are done, and
#: clusters whose locks are local to a node see the write.
CONSUMERS = _sql(f"""
    INSERT INTO consumers ({_names(_CONSUMER)})
    SELECT {_names(_CONSUMER)} FROM {_unnest(_CONSUMER, 't')} ORDER BY uuid COLLATE "C"
        ON CONFLICT (uuid) DO UPDATE SET generation = consumers.generation + 1
""")  # noqa: S608
#: Not "live = 1": an empty table's plan would read every live claim by that.
RIVALS = _sql("""
    SELECT id, request_id, consumer, provider_id, state, lifecycle, purpose
      FROM claims WHERE consumer = ANY(%s::text[]) AND live <> 0
""")

_fits = ' AND '.join(
    f'(d.{c} <= 0 OR p.used_{c} + p.foreign_{c} + d.{c} <= p.cap_{c})' for c in _core_class_columns
)
_adds = ', '.join(f'used_{c} = p.used_{c} + d.{c}' for c in _core_class_columns)
#: The division fails, and with it the transaction, where a guard refused a row
#: that was accepted under the lock, or a list of hosts that the decisions refer to
#: is not stored in this database, whatever this process stored once.
WRITE = _sql(f"""
    WITH u AS (
        UPDATE providers p
           SET generation = p.generation + 1, version = p.version + 1, claims_stamp = %b, {_adds}
          FROM {_unnest((('id', 'bigint'), *((c, 'bigint') for c in _core_class_columns)), 'd')}
         WHERE p.id = d.id AND {_fits}
        RETURNING p.id
    ), c AS (
        INSERT INTO claims ({_names(_CLAIM)}, state, live, reason, created_at, updated_at)
        SELECT {_names(_CLAIM)}, 'reserved', 1, '', n.now, n.now
          FROM {_unnest(_CLAIM, 't')}, (SELECT %b::float8 AS now) n
    ), a AS (
        INSERT INTO allocations ({_names(_ALLOCATION)})
        SELECT {_names(_ALLOCATION)} FROM {_unnest(_ALLOCATION, 't')}
    ), e AS (
        INSERT INTO decisions ({_names(_DECISION)})
        SELECT {_names(_DECISION)} FROM {_unnest(_DECISION, 't')}
            ON CONFLICT (id) DO NOTHING
    ), x AS (
        INSERT INTO changes (kind, ref)
        SELECT 'host', t.id::text FROM unnest(%s::bigint[]) AS t (id)
    )
    SELECT 1 / (CASE WHEN (SELECT count(*) FROM u) = %b AND
        (SELECT count(*) FROM host_sets WHERE digest = ANY(%s::text[])) = %b THEN 1 ELSE 0 END)
""")  # noqa: S608


#: Planning a batch anew each time takes longer than running it, and its statements
#: are alike for all values.  A plan made while a table was small must not read all of
#: it for ever, so whole tables are never read here.  Hence connections of its own.
SESSION_SETTINGS = ('SET plan_cache_mode = force_generic_plan', 'SET enable_seqscan = off')


def is_for(engine: sa.Engine) -> bool:
    """Whether this path may be used: PostgreSQL through psycopg 3."""
    return engine.dialect.name == 'postgresql' and engine.dialect.driver == 'psycopg'


class _Rare(session.GivenUp):
    """The portable path is to write this batch, and knows how."""


class FastLedger(ledger.Ledger):
    """Writes batches in two round trips; the portable path where that does not serve."""

    def __init__(self, memory: rows.Memory) -> None:
        super().__init__(memory)
        self.host_sets = decisions.HostSets()

    def commit(
        self,
        database: session.Database,
        batch: Sequence[RequestDraft],
        locked: Mapping[str, str] = ledger.NONE_LOCKED,
    ) -> CommitResult:
        """See ``ledger.Ledger.commit``."""
        if not batch or any(draft.takes_over is not None for draft in batch):
            return super().commit(database, batch, locked)
        tried: list[tuple[CommitBatch, CommitResult]] = []

        def work(tx: session.Tx) -> CommitResult:
            try:
                return self._write_fast(tx, CommitBatch(batch, locked), tried)
            except (psycopg.errors.UniqueViolation, psycopg.errors.DivisionByZero) as e:
                # A tombstone with the id of a claim, or a guard that refused.
                self.host_sets.forget()
                raise _Rare from e

        try:
            return database.write(
                work, lambda tx: ledger.find_committed(tx, tried), once_locked=True
            )
        except _Rare:
            return super().commit(database, batch, locked)

    def _write_fast(
        self,
        tx: session.Tx,
        commit_batch: CommitBatch,
        tried: list[tuple[CommitBatch, CommitResult]],
    ) -> CommitResult:
        raw = tx.connection.connection.driver_connection
        if raw is None:
            raise retry.Again('the connection was closed')
        locked = self._lock(tx, raw, commit_batch)
        commit_batch.finish(locked, rows.layouts_on(tx, commit_batch.laid_on()))
        self._write_rare(tx, commit_batch)
        commit_batch.step(locked, tx.stamp)
        result = commit_batch.result(locked)
        tried.append((commit_batch, result))
        self._flush(raw, tx, commit_batch)
        return result

    # -- the first round trip -----------------------------------------------------------
    def _lock(
        self, tx: session.Tx, raw: Any, commit_batch: CommitBatch
    ) -> providers.LockedProviders:
        fresh = commit_batch.insertable()
        drafts = [entry.draft for entry in commit_batch.going()]
        continued = [draft.id for draft in drafts if draft.continues]
        grouped = one_of_each_group(drafts)
        with raw.pipeline():
            inserted = (
                self.execute(raw, REQUESTS, _request_arrays(commit_batch, fresh)) if fresh else None
            )
            found = self.execute(raw, CONTINUED, [texts(continued)]) if continued else None
            made, rules = self._lock_groups(raw, grouped, tx.stamp) if grouped else (None, None)
            live = self._lock_consumers(raw, commit_batch)
            counters = self.execute(raw, PROVIDERS, [numbers(sorted(commit_batch.wanted()))])
        known: dict[str, Any] = {}
        new = set() if inserted is None else {row[0] for row in inserted.fetchall()}
        if found is not None:
            found.row_factory = namedtuple_row
            known.update((row.id, row) for row in found.fetchall())
        hosts = counters.fetchall()
        commit_batch.now = hosts[0][-1] if hosts else tx.now
        missing = [draft.id for draft in fresh if draft.id not in new]
        if missing:
            again = self.execute(raw, REPEATED, [texts(missing)])
            again.row_factory = namedtuple_row
            known.update((row.id, row) for row in again.fetchall())
        commit_batch.judge_requests(known, new)
        going = {entry.draft.id for entry in commit_batch.going()}
        self._check_makers(grouped, commit_batch)
        if rules is not None:
            commit_batch.judge_groups(groups.rules_of(rules.fetchall()))
        if made is not None:
            # The rule of a draft whose request goes no further was not asked for.
            needed = {d.group.uuid for d in makers_of(grouped) if d.id in going and d.group}
            needed |= commit_batch.groups_going()
            idle = [row[0] for row in made.fetchall() if row[0] not in needed]
            if idle:
                tx.run(DELETE_GROUPS, ids=idle)
        self._judge_consumers(commit_batch, live.fetchall())
        found_rows = (rows.counters(row) for row in hosts)
        return providers.complete(tx, self.memory, {row.id: row for row in found_rows})

    @staticmethod
    def _check_makers(grouped: Sequence[RequestDraft], commit_batch: CommitBatch) -> None:
        """The one draft that speaks for a group goes on wherever another of the group does.

        Which drafts go on is not known when the groups are locked: the rule of a group that is
        new may be that of a draft that goes no further.
        """
        going = {entry.draft.id for entry in commit_batch.going()}
        silent = {d.group.uuid for d in grouped if d.group and d.id not in going}
        if silent and any(
            e.draft.group and e.draft.group.uuid in silent for e in commit_batch.going()
        ):
            raise _Rare

    def _lock_groups(
        self, raw: Any, grouped: Sequence[RequestDraft], stamp: int
    ) -> tuple[Any, Any]:
        unseen = [ledger.group_values(draft, stamp) for draft in makers_of(grouped)]
        made = self.execute(raw, GROUPS_UNSEEN, _arrays(unseen, _GROUP)) if unseen else None
        wanted = [draft.group.uuid for draft in grouped if draft.group]
        return made, self.execute(raw, GROUPS, [texts(wanted)])

    def _lock_consumers(self, raw: Any, commit_batch: CommitBatch) -> Any:
        people = commit_batch.consumers()
        arrays = _arrays(people, _CONSUMER)
        self.execute(raw, CONSUMERS, arrays)
        return self.execute(raw, RIVALS, arrays[:1])

    @staticmethod
    def _judge_consumers(commit_batch: CommitBatch, found: Sequence[tuple[Any, ...]]) -> None:
        commit_batch.judge_consumers(
            Claim(
                id=claim_id,
                request_id=request_id,
                consumer=consumer,
                provider_id=provider_id,
                state=State(state),
                lifecycle=Lifecycle(lifecycle),
                purpose=Purpose(purpose),
            )
            for claim_id, request_id, consumer, provider_id, state, lifecycle, purpose in found
        )
        ends = any(
            e.outcome is not None and e.outcome.outcome is CommitStatus.BARRED
            for e in commit_batch.entries
        )
        if commit_batch.rivals or ends:
            raise _Rare

    # -- the second ------------------------------------------------------------------------
    def _write_rare(self, tx: session.Tx, commit_batch: CommitBatch) -> None:
        """What most batches do not need, by the portable statements."""
        self.forget_idle(tx, commit_batch)
        self.swap_groups(tx, commit_batch)
        self.use_others(tx, commit_batch)
        self.write_requests(tx, commit_batch)
        providers.announce(tx, 'group', commit_batch.bumped)
        records = list(commit_batch.decisions())
        fresh = self.host_sets.fresh()
        decisions.save_sets(tx, fresh, records, commit_batch.now)
        written = {record.host_set for record in records if record.host_set} - fresh
        if written:
            tx.after.append(lambda: self.host_sets.stored(written))

    def _flush(self, raw: Any, tx: session.Tx, commit_batch: CommitBatch) -> None:
        """Write and commit; nothing is read after this."""
        if not commit_batch.touched:
            return
        try:
            with raw.pipeline():
                self.execute(raw, WRITE, _write_arrays(commit_batch, tx.stamp))
                self.send_commit(raw)
        except psycopg.Error as e:
            if retry.signal_of(e) is retry.RetrySignal.LOST:
                raise retry.LostInCommit(retry.problem_of(e)) from e
            raise

    def send_commit(self, raw: Any) -> None:
        """COMMIT, behind the writes; its own method so that a test can lose it."""
        raw.commit()

    def execute(self, raw: Any, statement: Any, parameters: Sequence[Any]) -> Any:
        """One prepared statement; its own method so that a test can fail it."""
        return raw.cursor(binary=True).execute(statement, parameters, prepare=True)


def _arrays(found: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, str]]) -> list[Any]:
    """The columns of rows, each as one array."""
    return [_array(kind, [row[column] for row in found]) for column, kind in columns]


def _array(kind: str, values: Sequence[Any]) -> Any:
    if kind == 'text':
        return texts(values)
    return list(values) if kind == 'bytea' else numbers(values)


def _request_arrays(commit_batch: CommitBatch, fresh: Sequence[RequestDraft]) -> list[Any]:
    return [
        commit_batch.token,
        texts([draft.id for draft in fresh]),
        texts([draft.fingerprint for draft in fresh]),
        texts(['placed' if draft.completes else 'open' for draft in fresh]),
        texts([draft.owner for draft in fresh]),
        numbers([draft.attempt for draft in fresh]),
        numbers([draft.budget_seconds for draft in fresh]),
        [draft.answer if draft.completes else None for draft in fresh],
        numbers([len(draft.claims) for draft in fresh]),
    ]


def _write_arrays(commit_batch: CommitBatch, stamp: int) -> list[Any]:
    touched = sorted(commit_batch.touched)
    hosts = numbers(touched)
    made = commit_batch.claims
    shares = [values for claim in made for values in rows.allocation_values(claim)]
    records = list(commit_batch.decisions())
    digests = sorted({record.host_set for record in records if record.host_set})
    return [
        stamp,
        hosts,
        *(
            numbers([commit_batch.core_amounts[pid][i] for pid in touched])
            for i in range(len(_core_class_columns))
        ),
        *(_array(kind, [*map(rows.CLAIM[column], made)]) for column, kind in _CLAIM),
        commit_batch.now,
        *_arrays(shares, _ALLOCATION),
        *_arrays([decisions.values(record, commit_batch.now) for record in records], _DECISION),
        hosts,
        len(touched),
        texts(digests),
        len(digests),
    ]
