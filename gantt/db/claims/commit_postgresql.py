# SPDX-License-Identifier: Apache-2.0
"""The pessimistic group commit on PostgreSQL: the portable steps in two round trips.

psycopg is used directly, in pipeline mode and with arrays, so that a batch of
any size is one prepared statement for each step:

1. BEGIN, insert the request rows, lock the rows that are continued, the groups and the
   providers, in that order and by one statement each; under these locks read the facts of the
   pools that claims take from;
2. write usage, claims, allocations, decisions and feed in one statement, and COMMIT.
   Usage of non-core classes has a statement of its own before it.

Batches without conflicts take one round trip, see ``one_trip``.  Rare cases (take-overs,
claims that give way, groups to bump, rows to correct) go through the portable statements.
The contract suite holds these paths to the same outcomes.

Members of groups, layouts and shared pools always come here.  By the portable statements a batch
costs twice the CPU time of a scheduler: 8 members of groups 4.4 ms instead of 2.0, 32 of them 7.9
instead of 3.4.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.rows import namedtuple_row

from gantt.core.claims.claim import Claim, State
from gantt.core.claims.commit import CommitPath, CommitResult, CommitStatus, RequestDraft
from gantt.core.messages.request import Lifecycle, Purpose
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostKind
from gantt.core.resources.provider import SHARES_TRAIT
from gantt.db.claims import commit as portable
from gantt.db.claims import groups
from gantt.db.claims.batch import CommitBatch, drafts_creating_groups, one_of_each_group
from gantt.db.claims.unit_of_work import UnitOfWork
from gantt.db.engine import retry, session
from gantt.db.engine.arrays import (
    arrays,
    columns,
    columns_of,
    names,
    numbers,
    sql,
    texts,
    unnest,
)
from gantt.db.hosts import claim_rows, pools, providers, rows
from gantt.db.hosts.providers import NO_POOLS_READ, PoolFacts, ReadPools
from gantt.db.records import decisions
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

NOW_SQL = session.CLOCK['postgresql']
_inventory_columns = [f'i.{name}' for name in Inventory.__struct_fields__]
_core_class_columns = list(CORE_CLASS_COLUMNS.values())
_ADDED_AMOUNT_COLUMNS = [(column, 'bigint') for column in _core_class_columns]


#: Columns of new requests, see :func:`request_arrays`.
_REQUEST_COLUMNS = (
    *(('id', 'text'), ('fingerprint', 'text'), ('state', 'text'), ('owner', 'text')),
    *(('attempt', 'int'), ('budget', 'float8'), ('answer', 'bytea'), ('claims', 'int')),
)
REQUEST_ROWS_SQL = unnest(_REQUEST_COLUMNS, 'q')
INSERT_REQUESTS = sql(f"""
    INSERT INTO requests (id, fingerprint, state, owner, attempt, deadline, token, answer,
                          created_at, updated_at, claims)
    SELECT q.id, q.fingerprint, q.state, q.owner, q.attempt, n.now + q.budget, %s, q.answer,
           n.now, n.now, q.claims
      FROM {REQUEST_ROWS_SQL},
           (SELECT {NOW_SQL} AS now) n
     ORDER BY q.id COLLATE "C"
        ON CONFLICT (id) DO NOTHING
    RETURNING id
""")  # noqa: S608 - the clock's expression is a constant

_REQUEST_STATE_COLUMNS = 'id, fingerprint, state, owner, attempt, deadline, answer, claims'
LOCK_CONTINUED_REQUESTS = sql(f"""
    SELECT {_REQUEST_STATE_COLUMNS} FROM requests WHERE id = ANY(%s::text[]) ORDER BY id FOR UPDATE
""")  # noqa: S608
#: Rows that were stored before and are not ours to change: no lock.
SELECT_REPEATED_REQUESTS = sql(
    f'SELECT {_REQUEST_STATE_COLUMNS} FROM requests WHERE id = ANY(%s::text[])'  # noqa: S608
)

LOCK_GROUPS = sql("""
    SELECT uuid, policy, max_per_host, generation, policies FROM group_rules
     WHERE uuid = ANY(%s::text[])
     ORDER BY uuid FOR NO KEY UPDATE
""")
DELETE_GROUPS = models.group_rules.delete().where(
    models.group_rules.c.uuid.in_(sa.bindparam('ids', expanding=True))
)
LOCK_PROVIDERS = sql(f"""
    SELECT {', '.join(rows.COUNTER_COLUMNS)}, {NOW_SQL} FROM providers WHERE id = ANY(%s::bigint[])
     ORDER BY id FOR NO KEY UPDATE
""")  # noqa: S608
#: Read under the locks, of providers that claims take from and are not on: a row for each
#: inventory, or one without any.  Usage without an inventory has a row with a total of 0.
SELECT_POOLS = sql(f"""
    SELECT p.id, p.placement_name, c.name, i.cap, i.used, i.foreign_use,
           {', '.join(_inventory_columns)}
      FROM providers p
      LEFT JOIN inventories i ON i.provider_id = p.id
      LEFT JOIN resource_classes c ON c.id = i.class_id
     WHERE p.id = ANY(%s::bigint[]) AND p.kind <> '{HostKind.HOST.value}'
     ORDER BY p.id, c.name
""")  # noqa: S608 - names only
#: The aggregates that they share in.
SELECT_SHARING_AGGREGATES = sql(f"""
    SELECT a.provider_id, a.uuid FROM provider_aggregates a
     WHERE a.provider_id = ANY(%s::bigint[]) AND EXISTS (
           SELECT 1 FROM provider_traits h JOIN traits t ON t.id = h.trait_id
            WHERE h.provider_id = a.provider_id AND t.name = '{SHARES_TRAIT}')
""")  # noqa: S608

#: Columns of a new claim that are the same in all of a batch, or have their default.
_COMMON_CLAIM_COLUMNS = (
    'state',
    'live',
    'adopted',
    'absences',
    'reason',
    'created_at',
    'updated_at',
)
#: Columns that no claim created here has.
_UNSET_CLAIM_COLUMNS = ('guest', 'former_reservation')
_CLAIM_COLUMNS = columns_of(models.claims, *_UNSET_CLAIM_COLUMNS, *_COMMON_CLAIM_COLUMNS)
_ALLOCATION_COLUMNS = columns_of(models.allocations)
_GROUP_COLUMNS = columns_of(models.group_rules, 'name', 'members', 'rule_generation')
DECISION_COLUMNS = columns_of(models.decisions, 'number')
_OTHER_USAGE_COLUMNS = (('b_provider', 'bigint'), ('b_class', 'text'), ('add', 'bigint'))


INSERT_GROUPS = sql(f"""
    INSERT INTO group_rules ({names(_GROUP_COLUMNS)}, name, members)
    SELECT {names(_GROUP_COLUMNS)}, '', '[]' FROM {unnest(_GROUP_COLUMNS, 't')}
     ORDER BY uuid COLLATE "C"
        ON CONFLICT (uuid) DO NOTHING
    RETURNING uuid
""")  # noqa: S608
#: Ended claims are read too: they hold the owner of a consumer.
SELECT_CLAIMS_OF_CONSUMERS = sql("""
    SELECT id, request_id, consumer, provider_id, state, lifecycle, purpose, live,
           project_id, user_id, consumer_type
      FROM claims WHERE consumer = ANY(%s::text[])
""")

FITS_SQL = ' AND '.join(
    f'(d.{c} <= 0 OR p.used_{c} + p.foreign_{c} + d.{c} <= p.cap_{c})' for c in _core_class_columns
)
ADD_USAGE_SQL = ', '.join(f'used_{c} = p.used_{c} + d.{c}' for c in _core_class_columns)
#: Rows that this transaction has written.
OWN_XID_SQL = '(SELECT (txid_current() & 4294967295)::text::xid)'
#: Run after the write, which waits for inserts for the same consumers: fails if any claim of
#: another transaction lives for them but the judged ones.
CHECK_CONCURRENT_CLAIMS = sql(f"""
    SELECT 1 / (CASE WHEN EXISTS (
        SELECT 1 FROM claims WHERE consumer = ANY(%s::text[]) AND live <> 0
           AND xmin <> {OWN_XID_SQL} AND id <> ALL(%s::text[])) THEN 0 ELSE 1 END)
""")  # noqa: S608
#: The division fails, and with it the transaction, where a guard refused a row
#: that was accepted under the lock, or a list of hosts that the decisions refer to
#: is not stored in this database, whatever this process stored once.
WRITE_BATCH = sql(f"""
    WITH u AS (
        UPDATE providers p
           SET generation = p.generation + 1, version = p.version + 1, claims_stamp = %b,
               {ADD_USAGE_SQL}
          FROM {unnest((('id', 'bigint'), *_ADDED_AMOUNT_COLUMNS), 'd')}
         WHERE p.id = d.id AND {FITS_SQL}
        RETURNING p.id
    ), c AS (
        INSERT INTO claims ({names(_CLAIM_COLUMNS)}, state, live, reason, created_at, updated_at)
        SELECT {names(_CLAIM_COLUMNS)}, 'reserved', 1, '', n.now, n.now
          FROM {unnest(_CLAIM_COLUMNS, 't')}, (SELECT %b::float8 AS now) n
    ), a AS (
        INSERT INTO allocations ({names(_ALLOCATION_COLUMNS)})
        SELECT {names(_ALLOCATION_COLUMNS)} FROM {unnest(_ALLOCATION_COLUMNS, 't')}
    ), e AS (
        INSERT INTO decisions ({names(DECISION_COLUMNS)})
        SELECT {names(DECISION_COLUMNS)} FROM {unnest(DECISION_COLUMNS, 't')}
            ON CONFLICT (id) DO NOTHING
    ), x AS (
        INSERT INTO changes (kind, ref)
        SELECT t.kind, t.id::text FROM unnest(%s::text[], %s::bigint[]) AS t (kind, id)
    )
    SELECT 1 / (CASE WHEN (SELECT count(*) FROM u) = %b AND
        (SELECT count(*) FROM host_sets WHERE digest = ANY(%s::text[])) = %b THEN 1 ELSE 0 END)
""")  # noqa: S608


#: Usage of non-core classes; the division fails as in ``WRITE_BATCH``.
ADD_OTHER_USAGE = sql("""
    WITH u AS (
        UPDATE inventories i SET used = i.used + d.add
          FROM unnest(%s::bigint[], %s::text[], %s::bigint[]) AS d (provider_id, name, add)
          JOIN resource_classes c ON c.name = d.name
         WHERE i.provider_id = d.provider_id AND i.class_id = c.id
           AND (d.add <= 0 OR i.used + i.foreign_use + d.add <= i.cap)
        RETURNING 1
    )
    SELECT 1 / (CASE WHEN (SELECT count(*) FROM u) = %b THEN 1 ELSE 0 END)
""")

#: A tombstone with the id of a claim, or a guard that refused.
REFUSAL_ERRORS = (psycopg.errors.UniqueViolation, psycopg.errors.DivisionByZero)


def driver_of(tx: session.Tx) -> Any:
    """Return the psycopg connection that a transaction is on.

    :raises RetryTransaction: the connection was closed
    """
    raw = tx.connection.connection.driver_connection
    if raw is None:
        raise retry.RetryTransaction('the connection was closed')
    return raw


def commit_outcome_error(error: psycopg.Error) -> Exception:
    """Return the meaning of an error among statements that were sent with COMMIT."""
    if retry.signal_of(error) is retry.RetrySignal.LOST:
        return retry.CommitOutcomeUnknown(retry.problem_text(error))
    return error


class _Rare(session.WorkAbandoned):
    """Signal that the portable path is to write this batch."""


def _is_rare(draft: RequestDraft) -> bool:
    """Return whether a draft needs rows that only the portable path writes."""
    return (
        draft.takes_over is not None
        or draft.plan is not None
        or bool(draft.taken_reservations or draft.replaced_reservations or draft.groups)
    )


class PessimisticCommitter(portable.BatchCommitter):
    """Writer of batches in two round trips; uses the portable path for rare cases."""

    def __init__(self, memory: rows.RowCache) -> None:
        super().__init__(memory)
        self.host_sets = decisions.StoredHostSets()

    def commit(
        self,
        transactions: session.Transactions,
        batch: Sequence[RequestDraft],
        locked: Mapping[str, str] = portable.NO_LOCKED_DRAFTS,
    ) -> CommitResult:
        """Commit a batch in few statements; see ``commit.BatchCommitter.commit``."""
        if not batch or any(map(_is_rare, batch)):
            return super().commit(transactions, batch, locked)
        tried: list[tuple[CommitBatch, CommitResult]] = []

        def work(tx: session.Tx) -> CommitResult:
            try:
                commit_batch = CommitBatch(batch, locked)
                return self._write_fast(tx, commit_batch, tried)
            except REFUSAL_ERRORS as e:
                self.host_sets.forget()
                raise _Rare from e

        try:
            return transactions.write(
                work, lambda tx: portable.find_committed(tx, tried), once_locked=True
            )
        except _Rare:
            return super().commit(transactions, batch, locked)

    def _write_fast(
        self,
        tx: session.Tx,
        commit_batch: CommitBatch,
        tried: list[tuple[CommitBatch, CommitResult]],
    ) -> CommitResult:
        if commit_batch.moving_consumers():
            raise _Rare  # the claims of their consumers are read under the locks
        raw = driver_of(tx)
        unit = UnitOfWork(tx, self.memory)
        unit.locked, shares = self._lock(tx, raw, commit_batch)
        laid_on, served = commit_batch.read_under_lock()
        serves = pools.serving(tx, unit.locked, served, shares) if served else {}
        commit_batch.finish(unit, claim_rows.layouts_on(tx, laid_on), serves)
        if unit.touched_providers != unit.grown:
            raise _Rare  # claims without any amounts on their hosts
        self._write_rare(tx, commit_batch)
        unit.increment_versions()
        result = commit_batch.result(unit, CommitPath.PESSIMISTIC)
        tried.append((commit_batch, result))
        self._flush(raw, unit, commit_batch)
        return result

    # -- the first round trip -----------------------------------------------------------
    def _lock(
        self, tx: session.Tx, raw: Any, commit_batch: CommitBatch
    ) -> tuple[providers.LockedProviders, list[tuple[int, str]]]:
        """Lock the batch's rows; return the providers, and (pool, aggregate) of sharing pools."""
        fresh = commit_batch.drafts_to_insert()
        drafts = [entry.draft for entry in commit_batch.open_entries()]
        continued = [draft.id for draft in drafts if draft.continues]
        grouped = one_of_each_group(drafts)
        pool_ids = (
            [numbers(sorted(other_ids))] if (other_ids := commit_batch.pools_to_lock()) else None
        )
        with raw.pipeline():
            inserted = (
                self.execute(raw, INSERT_REQUESTS, request_arrays(commit_batch.token, fresh))
                if fresh
                else None
            )
            continued_rows = (
                self.execute(raw, LOCK_CONTINUED_REQUESTS, [texts(continued)])
                if continued
                else None
            )
            new_groups, rules = (
                self._lock_groups(raw, grouped, tx.stamp) if grouped else (None, None)
            )
            stored_claims = self.execute(
                raw, SELECT_CLAIMS_OF_CONSUMERS, [texts(sorted(commit_batch.owners()))]
            )
            counters = self.execute(
                raw, LOCK_PROVIDERS, [numbers(sorted(commit_batch.providers_to_lock()))]
            )
            pool_rows = self.execute(raw, SELECT_POOLS, pool_ids) if pool_ids else None
            shared = self.execute(raw, SELECT_SHARING_AGGREGATES, pool_ids) if pool_ids else None
        stored_rows: dict[str, Any] = {}
        inserted_ids = set() if inserted is None else {row[0] for row in inserted.fetchall()}
        if continued_rows is not None:
            continued_rows.row_factory = namedtuple_row
            stored_rows.update((row.id, row) for row in continued_rows.fetchall())
        hosts = counters.fetchall()
        commit_batch.now = hosts[0][-1] if hosts else tx.now
        missing = [draft.id for draft in fresh if draft.id not in inserted_ids]
        if missing:
            repeated_rows = self.execute(raw, SELECT_REPEATED_REQUESTS, [texts(missing)])
            repeated_rows.row_factory = namedtuple_row
            stored_rows.update((row.id, row) for row in repeated_rows.fetchall())
        commit_batch.check_requests(stored_rows, inserted_ids)
        open_entries = {entry.draft.id for entry in commit_batch.open_entries()}
        self._check_makers(grouped, commit_batch)
        if rules is not None:
            commit_batch.check_groups(groups.rules_of(rules.fetchall()))
        if new_groups is not None:
            # The rule of a draft whose request goes no further is not needed.
            needed = {
                d.group.uuid
                for d in drafts_creating_groups(grouped)
                if d.id in open_entries and d.group
            }
            needed |= commit_batch.open_group_uuids()
            idle = [row[0] for row in new_groups.fetchall() if row[0] not in needed]
            if idle:
                tx.run(DELETE_GROUPS, ids=idle)
        self._check_consumers(commit_batch, stored_claims.fetchall(), self.owners(tx, commit_batch))
        found_rows = (rows.counters(row) for row in hosts)
        found_pools = _pools(pool_rows.fetchall()) if pool_rows else NO_POOLS_READ
        locked = {row.id: row for row in found_rows}
        return (
            providers.complete_rows(tx, self.memory, locked, read_pools=found_pools),
            shared.fetchall() if shared else [],
        )

    @staticmethod
    def _check_makers(grouped: Sequence[RequestDraft], commit_batch: CommitBatch) -> None:
        """Check that the draft that creates a group goes on if another of the group does.

        Which drafts go on is not known when the groups are locked: a new group's rule may be that
        of a draft that goes no further.
        """
        open_entries = {entry.draft.id for entry in commit_batch.open_entries()}
        stopped_groups = {d.group.uuid for d in grouped if d.group and d.id not in open_entries}
        if stopped_groups and any(
            e.draft.group and e.draft.group.uuid in stopped_groups
            for e in commit_batch.open_entries()
        ):
            raise _Rare

    def _lock_groups(
        self, raw: Any, grouped: Sequence[RequestDraft], stamp: int
    ) -> tuple[Any, Any]:
        rules = [portable.group_values(draft, stamp) for draft in drafts_creating_groups(grouped)]
        new_groups = (
            self.execute(raw, INSERT_GROUPS, arrays(rules, _GROUP_COLUMNS)) if rules else None
        )
        group_uuids = [draft.group.uuid for draft in grouped if draft.group]
        return new_groups, self.execute(raw, LOCK_GROUPS, [texts(group_uuids)])

    @staticmethod
    def _check_consumers(
        commit_batch: CommitBatch,
        claim_rows: Sequence[tuple[Any, ...]],
        owners: Mapping[str, str | None],
    ) -> None:
        try:
            live_claims = [
                Claim(
                    id=row[0],
                    request_id=row[1],
                    consumer=row[2],
                    provider_id=row[3],
                    state=State(row[4]),
                    lifecycle=Lifecycle(row[5]),
                    purpose=Purpose(row[6]),
                )
                for row in claim_rows
                if row[7]
            ]
        except ValueError:  # a claim is unreadable, which the portable path reports
            raise _Rare from None
        if claim_rows:
            # A claim takes the owner of its consumer from stored claims.
            owner_of_consumer = commit_batch.owners()
            if any(row[-3:] != owner_of_consumer.get(row[2], row[-3:]) for row in claim_rows):
                raise _Rare
        commit_batch.check_consumers(live_claims, owners)
        has_rejected = any(
            e.outcome is not None and e.outcome.outcome is CommitStatus.REJECTED
            for e in commit_batch.entries
        )
        if commit_batch.rivals or has_rejected:
            raise _Rare

    # -- the second round trip -------------------------------------------------------------
    def _write_rare(self, tx: session.Tx, commit_batch: CommitBatch) -> None:
        """Write by the portable statements the rows that most batches do not have."""
        self.step_groups(tx, commit_batch)
        self.write_requests(tx, commit_batch)
        records = list(commit_batch.decisions())
        fresh = self.host_sets.fresh()
        decisions.save_sets(tx, fresh, records, commit_batch.now)
        stored_digests = {record.host_set for record in records if record.host_set} - fresh
        if stored_digests:
            tx.after.append(lambda: self.host_sets.stored(stored_digests))

    def _flush(self, raw: Any, unit: UnitOfWork, commit_batch: CommitBatch) -> None:
        """Write and commit; nothing is read after this."""
        if not unit.grown:
            return
        try:
            others = unit.added_other_amounts()
            with raw.pipeline():
                if others:
                    self.execute(
                        raw, ADD_OTHER_USAGE, [*arrays(others, _OTHER_USAGE_COLUMNS), len(others)]
                    )
                self.execute(raw, WRITE_BATCH, _write_arrays(commit_batch, unit))
                if unit.created:
                    consumers = sorted({claim.consumer for claim in unit.created})
                    judged_ids = texts(sorted(commit_batch.judged_ids))
                    self.execute(raw, CHECK_CONCURRENT_CLAIMS, [texts(consumers), judged_ids])
                self.send_commit(raw)
        except psycopg.Error as e:
            raise commit_outcome_error(e) from e

    def send_commit(self, raw: Any) -> None:
        """Send COMMIT, after the writes; a method of its own so that a test can lose it."""
        raw.meanwhile = self.meanwhile
        raw.commit()

    def execute(self, raw: Any, statement: Any, parameters: Sequence[Any]) -> Any:
        """Execute one prepared statement; a method of its own so that a test can fail it."""
        return raw.cursor_of(statement).execute(statement, parameters, prepare=True)


def _pools(pool_rows: Sequence[tuple[Any, ...]]) -> ReadPools:
    """Return the pools in the rows of ``SELECT_POOLS``."""
    pools_read = ReadPools({}, {})
    for pid, placement_name, name, cap, used, foreign, *numbers_of in pool_rows:
        facts = pools_read.facts.setdefault(pid, PoolFacts(placement_name, {}))
        if name is None:
            continue
        inventory = Inventory(*numbers_of)
        if inventory.total > 0:
            facts.inventories[name] = inventory
        if name not in CORE_CLASS_COLUMNS:
            pools_read.others.setdefault(pid, {})[name] = [cap, used, foreign]
    return pools_read


def request_arrays(token: str, fresh: Sequence[RequestDraft]) -> list[Any]:
    """Return the parameters of ``INSERT_REQUESTS``."""
    rows = [
        (
            draft.id,
            draft.fingerprint,
            'placed' if draft.completes else 'open',
            draft.owner,
            draft.attempt,
            draft.budget_seconds,
            draft.answer if draft.completes else None,
            len(draft.claims.ids),
        )
        for draft in fresh
    ]
    return [token, *columns(rows, _REQUEST_COLUMNS)]


def _write_arrays(commit_batch: CommitBatch, unit: UnitOfWork) -> list[Any]:
    grown = sorted(unit.grown)
    hosts = numbers(grown)
    claims = sorted(unit.created, key=lambda claim: claim.consumer)
    shares = [values for claim in claims for values in claim_rows.allocation_values(claim)]
    records = list(commit_batch.decisions())
    digests = sorted({record.host_set for record in records if record.host_set})
    return [
        unit.tx.stamp,
        hosts,
        *columns([unit.locked.added(pid) for pid in grown], _ADDED_AMOUNT_COLUMNS),
        *arrays([claim_rows.claim_values(claim) for claim in claims], _CLAIM_COLUMNS),
        commit_batch.now,
        *arrays(shares, _ALLOCATION_COLUMNS),
        *arrays(
            [decisions.values(record, commit_batch.now) for record in records], DECISION_COLUMNS
        ),
        texts(['host' if unit.locked.is_host(pid) else 'provider' for pid in grown]),
        hosts,
        len(grown),
        texts(digests),
        len(digests),
    ]
