# SPDX-License-Identifier: Apache-2.0
"""The careful group commit on PostgreSQL: the portable steps in two round trips.

psycopg is used directly, in pipeline mode and with arrays, so that a batch of
any size is one prepared statement for each step:

1. BEGIN, insert the request rows, lock the rows that are continued, the groups and the
   providers, in that order and by one statement each; behind these locks read the facts of the
   pools that claims take from;
2. write usage, claims, allocations, decisions and feed in one statement, and COMMIT.
   Usage of classes that are not hot has a statement of its own before it.

Batches without conflicts take one round trip, see ``one_trip``.  Rare cases (take-overs,
claims that give way, groups to bump, rows to correct) go through the portable statements.
The contract suite holds these paths to the same outcomes.
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
from gantt.core.resources.shared_pool import SHARES
from gantt.db.claims import commit as ledger
from gantt.db.claims import groups
from gantt.db.claims.batch import CommitBatch, makers_of, one_of_each_group
from gantt.db.claims.unit_of_work import UnitOfWork
from gantt.db.engine import retry, session
from gantt.db.engine.arrays import array, arrays, columns_of, names, numbers, sql, texts, unnest
from gantt.db.hosts import claim_rows, pools, providers, rows
from gantt.db.hosts.inventories import NONE_READ, PoolFacts, ReadPools
from gantt.db.records import decisions
from gantt.db.schema import models
from gantt.db.schema.models import CORE_CLASS_COLUMNS

NOW = session.CLOCK['postgresql']
_inventory = [f'i.{name}' for name in Inventory.__struct_fields__]
_core_class_columns = list(CORE_CLASS_COLUMNS.values())


#: Rows of requests from arrays, see :func:`request_arrays`.
REQUEST_ROWS = """unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::int[], %s::float8[],
                  %b::bytea[], %s::int[])
           AS q (id, fingerprint, state, owner, attempt, budget, answer, claims)"""
REQUESTS = sql(f"""
    INSERT INTO requests (id, fingerprint, state, owner, attempt, deadline, token, answer,
                          created_at, updated_at, claims)
    SELECT q.id, q.fingerprint, q.state, q.owner, q.attempt, n.now + q.budget, %s, q.answer,
           n.now, n.now, q.claims
      FROM {REQUEST_ROWS},
           (SELECT {NOW} AS now) n
     ORDER BY q.id COLLATE "C"
        ON CONFLICT (id) DO NOTHING
    RETURNING id
""")  # noqa: S608 - the clock's expression is a constant

_STATE = 'id, fingerprint, state, owner, attempt, deadline, answer, claims'
CONTINUED = sql(f"""
    SELECT {_STATE} FROM requests WHERE id = ANY(%s::text[]) ORDER BY id FOR UPDATE
""")  # noqa: S608
#: Rows that were stored before and are not ours to change: no lock.
REPEATED = sql(f'SELECT {_STATE} FROM requests WHERE id = ANY(%s::text[])')  # noqa: S608

GROUPS = sql("""
    SELECT uuid, policy, max_per_host, generation, policies FROM group_rules
     WHERE uuid = ANY(%s::text[])
     ORDER BY uuid FOR NO KEY UPDATE
""")
DELETE_GROUPS = models.group_rules.delete().where(
    models.group_rules.c.uuid.in_(sa.bindparam('ids', expanding=True))
)
PROVIDERS = sql(f"""
    SELECT {', '.join(rows.COUNTERS)}, {NOW} FROM providers WHERE id = ANY(%s::bigint[])
     ORDER BY id FOR NO KEY UPDATE
""")  # noqa: S608
#: Read behind the locks, of providers that claims take from and are not on: a row for each
#: inventory, or one without any.  Usage without an inventory has a row with a total of 0.
POOLS = sql(f"""
    SELECT p.id, p.own_name, c.name, i.cap, i.used, i.foreign_use, {', '.join(_inventory)}
      FROM providers p
      LEFT JOIN inventories i ON i.provider_id = p.id
      LEFT JOIN resource_classes c ON c.id = i.class_id
     WHERE p.id = ANY(%s::bigint[]) AND p.kind <> '{HostKind.HOST.value}'
     ORDER BY p.id, c.name
""")  # noqa: S608 - names only
#: The aggregates that they share in.
SHARED_IN = sql(f"""
    SELECT a.provider_id, a.uuid FROM provider_aggregates a
     WHERE a.provider_id = ANY(%s::bigint[]) AND EXISTS (
           SELECT 1 FROM provider_traits h JOIN traits t ON t.id = h.trait_id
            WHERE h.provider_id = a.provider_id AND t.name = '{SHARES}')
""")  # noqa: S608

#: Columns of a new claim that are the same in all of a batch, or have their default.
_REST = ('state', 'live', 'adopted', 'absences', 'reason', 'created_at', 'updated_at')
#: Columns that no claim created here has.
_RARE = ('guest', 'planned')
_CLAIM = columns_of(models.claims, *_RARE, *_REST)
_ALLOCATION = columns_of(models.allocations)
_GROUP = columns_of(models.group_rules, 'name', 'members', 'rule_generation')
DECISION = columns_of(models.decisions, 'number')
_USED_OTHER = (('b_provider', 'bigint'), ('b_class', 'text'), ('add', 'bigint'))


GROUPS_UNSEEN = sql(f"""
    INSERT INTO group_rules ({names(_GROUP)}, name, members)
    SELECT {names(_GROUP)}, '', '[]' FROM {unnest(_GROUP, 't')} ORDER BY uuid COLLATE "C"
        ON CONFLICT (uuid) DO NOTHING
    RETURNING uuid
""")  # noqa: S608
#: Ended claims are read too: they hold the owner of a consumer.
STORED = sql("""
    SELECT id, request_id, consumer, provider_id, state, lifecycle, purpose, live,
           project_id, user_id, consumer_type
      FROM claims WHERE consumer = ANY(%s::text[])
""")

FITS = ' AND '.join(
    f'(d.{c} <= 0 OR p.used_{c} + p.foreign_{c} + d.{c} <= p.cap_{c})' for c in _core_class_columns
)
ADDS = ', '.join(f'used_{c} = p.used_{c} + d.{c}' for c in _core_class_columns)
#: Rows that this transaction has written.
MINE = '(SELECT (txid_current() & 4294967295)::text::xid)'
#: Run behind the write, which waits for inserts for the same consumers: fails if any claim of
#: another transaction lives for them but the judged ones.
NEWCOMERS = sql(f"""
    SELECT 1 / (CASE WHEN EXISTS (
        SELECT 1 FROM claims WHERE consumer = ANY(%s::text[]) AND live <> 0 AND xmin <> {MINE}
           AND id <> ALL(%s::text[])) THEN 0 ELSE 1 END)
""")  # noqa: S608
#: The division fails, and with it the transaction, where a guard refused a row
#: that was accepted under the lock, or a list of hosts that the decisions refer to
#: is not stored in this database, whatever this process stored once.
WRITE = sql(f"""
    WITH u AS (
        UPDATE providers p
           SET generation = p.generation + 1, version = p.version + 1, claims_stamp = %b, {ADDS}
          FROM {unnest((('id', 'bigint'), *((c, 'bigint') for c in _core_class_columns)), 'd')}
         WHERE p.id = d.id AND {FITS}
        RETURNING p.id
    ), c AS (
        INSERT INTO claims ({names(_CLAIM)}, state, live, reason, created_at, updated_at)
        SELECT {names(_CLAIM)}, 'reserved', 1, '', n.now, n.now
          FROM {unnest(_CLAIM, 't')}, (SELECT %b::float8 AS now) n
    ), a AS (
        INSERT INTO allocations ({names(_ALLOCATION)})
        SELECT {names(_ALLOCATION)} FROM {unnest(_ALLOCATION, 't')}
    ), e AS (
        INSERT INTO decisions ({names(DECISION)})
        SELECT {names(DECISION)} FROM {unnest(DECISION, 't')}
            ON CONFLICT (id) DO NOTHING
    ), x AS (
        INSERT INTO changes (kind, ref)
        SELECT t.kind, t.id::text FROM unnest(%s::text[], %s::bigint[]) AS t (kind, id)
    )
    SELECT 1 / (CASE WHEN (SELECT count(*) FROM u) = %b AND
        (SELECT count(*) FROM host_sets WHERE digest = ANY(%s::text[])) = %b THEN 1 ELSE 0 END)
""")  # noqa: S608


#: Usage of classes that are not hot; the division fails as in ``WRITE``.
USE_OTHERS = sql("""
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
REFUSED = (psycopg.errors.UniqueViolation, psycopg.errors.DivisionByZero)


def driver_of(tx: session.Tx) -> Any:
    """Return the psycopg connection that a transaction is on.

    :raises Again: the connection was closed
    """
    raw = tx.connection.connection.driver_connection
    if raw is None:
        raise retry.Again('the connection was closed')
    return raw


def lost_in_commit(error: psycopg.Error) -> Exception:
    """Return the meaning of an error among statements that were sent with COMMIT."""
    if retry.signal_of(error) is retry.RetrySignal.LOST:
        return retry.LostInCommit(retry.problem_of(error))
    return error


class _Rare(session.GivenUp):
    """Signal that the portable path is to write this batch."""


def _is_rare(draft: RequestDraft) -> bool:
    """Return whether a draft needs rows that only the portable path writes."""
    return (
        draft.takes_over is not None
        or draft.plan is not None
        or bool(draft.taken_reservations or draft.replaced_reservations or draft.groups)
    )


class CarefulLedger(ledger.Ledger):
    """Writer of batches in two round trips; uses the portable path for rare cases."""

    def __init__(self, memory: rows.Memory) -> None:
        super().__init__(memory)
        self.host_sets = decisions.HostSets()

    def commit(
        self,
        transactions: session.Transactions,
        batch: Sequence[RequestDraft],
        locked: Mapping[str, str] = ledger.NONE_LOCKED,
    ) -> CommitResult:
        """Commit a batch in few statements; see ``commit.Ledger.commit``."""
        if not batch or any(map(_is_rare, batch)):
            return super().commit(transactions, batch, locked)
        tried: list[tuple[CommitBatch, CommitResult]] = []

        def work(tx: session.Tx) -> CommitResult:
            try:
                commit_batch = CommitBatch(batch, locked)
                return self._write_fast(tx, commit_batch, tried)
            except REFUSED as e:
                self.host_sets.forget()
                raise _Rare from e

        try:
            return transactions.write(
                work, lambda tx: ledger.find_committed(tx, tried), once_locked=True
            )
        except _Rare:
            return super().commit(transactions, batch, locked)

    def _write_fast(
        self,
        tx: session.Tx,
        commit_batch: CommitBatch,
        tried: list[tuple[CommitBatch, CommitResult]],
    ) -> CommitResult:
        if commit_batch.movers():
            raise _Rare  # the claims of their consumers are read under the locks
        raw = driver_of(tx)
        unit = UnitOfWork(tx, self.memory)
        unit.locked, shares = self._lock(tx, raw, commit_batch)
        laid_on, served = commit_batch.read_under_lock()
        serves = pools.serving(tx, unit.locked, served, shares) if served else {}
        commit_batch.finish(unit, claim_rows.layouts_on(tx, laid_on), serves)
        if unit.touched != unit.grown:
            raise _Rare  # claims without any amounts on their hosts
        self._write_rare(tx, commit_batch)
        unit.step_all()
        result = commit_batch.result(unit, CommitPath.PESSIMISTIC)
        tried.append((commit_batch, result))
        self._flush(raw, unit, commit_batch)
        return result

    # -- the first round trip -----------------------------------------------------------
    def _lock(
        self, tx: session.Tx, raw: Any, commit_batch: CommitBatch
    ) -> tuple[providers.LockedProviders, list[tuple[int, str]]]:
        """Lock the batch's rows; return the providers, and (pool, aggregate) of sharing pools."""
        fresh = commit_batch.insertable()
        drafts = [entry.draft for entry in commit_batch.going()]
        continued = [draft.id for draft in drafts if draft.continues]
        grouped = one_of_each_group(drafts)
        pool_ids = (
            [numbers(sorted(other_ids))] if (other_ids := commit_batch.other_providers()) else None
        )
        with raw.pipeline():
            inserted = (
                self.execute(raw, REQUESTS, request_arrays(commit_batch.token, fresh))
                if fresh
                else None
            )
            continued_rows = self.execute(raw, CONTINUED, [texts(continued)]) if continued else None
            new_groups, rules = (
                self._lock_groups(raw, grouped, tx.stamp) if grouped else (None, None)
            )
            stored_claims = self.execute(raw, STORED, [texts(sorted(commit_batch.owners()))])
            counters = self.execute(raw, PROVIDERS, [numbers(sorted(commit_batch.wanted()))])
            pool_rows = self.execute(raw, POOLS, pool_ids) if pool_ids else None
            shared = self.execute(raw, SHARED_IN, pool_ids) if pool_ids else None
        stored_rows: dict[str, Any] = {}
        inserted_ids = set() if inserted is None else {row[0] for row in inserted.fetchall()}
        if continued_rows is not None:
            continued_rows.row_factory = namedtuple_row
            stored_rows.update((row.id, row) for row in continued_rows.fetchall())
        hosts = counters.fetchall()
        commit_batch.now = hosts[0][-1] if hosts else tx.now
        missing = [draft.id for draft in fresh if draft.id not in inserted_ids]
        if missing:
            repeated_rows = self.execute(raw, REPEATED, [texts(missing)])
            repeated_rows.row_factory = namedtuple_row
            stored_rows.update((row.id, row) for row in repeated_rows.fetchall())
        commit_batch.judge_requests(stored_rows, inserted_ids)
        going = {entry.draft.id for entry in commit_batch.going()}
        self._check_makers(grouped, commit_batch)
        if rules is not None:
            commit_batch.judge_groups(groups.rules_of(rules.fetchall()))
        if new_groups is not None:
            # The rule of a draft whose request goes no further is not needed.
            needed = {d.group.uuid for d in makers_of(grouped) if d.id in going and d.group}
            needed |= commit_batch.groups_going()
            idle = [row[0] for row in new_groups.fetchall() if row[0] not in needed]
            if idle:
                tx.run(DELETE_GROUPS, ids=idle)
        self._judge_consumers(commit_batch, stored_claims.fetchall(), self.owners(tx, commit_batch))
        found_rows = (rows.counters(row) for row in hosts)
        found_pools = _pools(pool_rows.fetchall()) if pool_rows else NONE_READ
        locked = {row.id: row for row in found_rows}
        return (
            providers.complete(tx, self.memory, locked, read_pools=found_pools),
            shared.fetchall() if shared else [],
        )

    @staticmethod
    def _check_makers(grouped: Sequence[RequestDraft], commit_batch: CommitBatch) -> None:
        """Check that the draft that creates a group goes on if another of the group does.

        Which drafts go on is not known when the groups are locked: a new group's rule may be that
        of a draft that goes no further.
        """
        going = {entry.draft.id for entry in commit_batch.going()}
        stopped_groups = {d.group.uuid for d in grouped if d.group and d.id not in going}
        if stopped_groups and any(
            e.draft.group and e.draft.group.uuid in stopped_groups for e in commit_batch.going()
        ):
            raise _Rare

    def _lock_groups(
        self, raw: Any, grouped: Sequence[RequestDraft], stamp: int
    ) -> tuple[Any, Any]:
        rules = [ledger.group_values(draft, stamp) for draft in makers_of(grouped)]
        new_groups = self.execute(raw, GROUPS_UNSEEN, arrays(rules, _GROUP)) if rules else None
        group_uuids = [draft.group.uuid for draft in grouped if draft.group]
        return new_groups, self.execute(raw, GROUPS, [texts(group_uuids)])

    @staticmethod
    def _judge_consumers(
        commit_batch: CommitBatch,
        found: Sequence[tuple[Any, ...]],
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
                for row in found
                if row[7]
            ]
        except ValueError:  # a claim is unreadable, which the portable path reports
            raise _Rare from None
        if found:
            # A claim takes the owner of its consumer from stored claims.
            owner_of_consumer = commit_batch.owners()
            if any(row[-3:] != owner_of_consumer.get(row[2], row[-3:]) for row in found):
                raise _Rare
        commit_batch.judge_consumers(live_claims, owners)
        has_barred = any(
            e.outcome is not None and e.outcome.outcome is CommitStatus.BARRED
            for e in commit_batch.entries
        )
        if commit_batch.rivals or has_barred:
            raise _Rare

    # -- the second round trip -------------------------------------------------------------
    def _write_rare(self, tx: session.Tx, commit_batch: CommitBatch) -> None:
        """Write by the portable statements the rows that most batches do not have."""
        self.swap_groups(tx, commit_batch)
        self.write_requests(tx, commit_batch)
        providers.announce(tx, 'group', commit_batch.bumped)
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
            others = unit.added_others()
            with raw.pipeline():
                if others:
                    self.execute(raw, USE_OTHERS, [*arrays(others, _USED_OTHER), len(others)])
                self.execute(raw, WRITE, _write_arrays(commit_batch, unit))
                if unit.made:
                    consumers = sorted({claim.consumer for claim in unit.made})
                    judged_ids = texts(sorted(commit_batch.known))
                    self.execute(raw, NEWCOMERS, [texts(consumers), judged_ids])
                self.send_commit(raw)
        except psycopg.Error as e:
            raise lost_in_commit(e) from e

    def send_commit(self, raw: Any) -> None:
        """Send COMMIT, behind the writes; a method of its own so that a test can lose it."""
        raw.meanwhile = self.meanwhile
        raw.commit()

    def execute(self, raw: Any, statement: Any, parameters: Sequence[Any]) -> Any:
        """Execute one prepared statement; a method of its own so that a test can fail it."""
        return raw.cursor(binary=True).execute(statement, parameters, prepare=True)


def _pools(found: Sequence[tuple[Any, ...]]) -> ReadPools:
    """Return the pools in the rows of ``POOLS``."""
    pools_read = ReadPools({}, {})
    for pid, own_name, name, cap, used, foreign, *numbers_of in found:
        facts = pools_read.facts.setdefault(pid, PoolFacts(own_name, {}))
        if name is None:
            continue
        inventory = Inventory(*numbers_of)
        if inventory.total > 0:
            facts.inventories[name] = inventory
        if name not in CORE_CLASS_COLUMNS:
            pools_read.others.setdefault(pid, {})[name] = [cap, used, foreign]
    return pools_read


def request_arrays(token: str, fresh: Sequence[RequestDraft]) -> list[Any]:
    """Return the parameters of ``REQUESTS``."""
    return [
        token,
        texts([draft.id for draft in fresh]),
        texts([draft.fingerprint for draft in fresh]),
        texts(['placed' if draft.completes else 'open' for draft in fresh]),
        texts([draft.owner for draft in fresh]),
        numbers([draft.attempt for draft in fresh]),
        numbers([draft.budget_seconds for draft in fresh]),
        [draft.answer if draft.completes else None for draft in fresh],
        numbers([len(draft.claims) for draft in fresh]),
    ]


def _write_arrays(commit_batch: CommitBatch, unit: UnitOfWork) -> list[Any]:
    grown = sorted(unit.grown)
    hosts = numbers(grown)
    claims = sorted(unit.made, key=lambda claim: claim.consumer)
    shares = [values for claim in claims for values in claim_rows.allocation_values(claim)]
    records = list(commit_batch.decisions())
    digests = sorted({record.host_set for record in records if record.host_set})
    return [
        unit.tx.stamp,
        hosts,
        *map(numbers, zip(*map(unit.locked.added, grown), strict=True)),
        *(array(kind, [*map(claim_rows.CLAIM[column], claims)]) for column, kind in _CLAIM),
        commit_batch.now,
        *arrays(shares, _ALLOCATION),
        *arrays([decisions.values(record, commit_batch.now) for record in records], DECISION),
        texts(['host' if unit.locked.is_host(pid) else 'provider' for pid in grown]),
        hosts,
        len(grown),
        texts(digests),
        len(digests),
    ]
