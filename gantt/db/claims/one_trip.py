# SPDX-License-Identifier: Apache-2.0
"""The group commit of conflict-free batches on PostgreSQL: one round trip.

Most batches are accepted as planned.  Everything from BEGIN to COMMIT is sent at once, in the
order of locks that every writer keeps, and the last statement guards in place of the pessimistic
path's reads under these locks:

- every request row was inserted by this transaction, or is that of the attempt that a draft
  continues;
- no consumer has another live claim, or an ended one of another project;
- every host is stored, is open, and has room for all that the batch puts on it;
- each claim's amounts keep to the units of its host's inventories.  Nothing else here would
  notice that these have changed since the plan: a host is not compared by its version, which any
  claim or report steps;
- the lists of hosts that decisions refer to are stored;
- no claim has one of these ids or unique keys, by the indexes of the table.

Where a guard fails the statement fails, the transaction is rolled back, and the pessimistic path
takes the batch.  A statement sees what was committed before it began: the last one begins after
all locks are held.
"""

import operator
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import psycopg

from gantt.core.claims.claim import EXPIRING_LIFECYCLES, Claim
from gantt.core.claims.commit import (
    CommitPath,
    CommitResult,
    CommitStatus,
    RequestDraft,
    RequestOutcome,
    is_plain,
)
from gantt.core.messages.request import Lifecycle
from gantt.db.claims import commit as portable
from gantt.db.claims import commit_postgresql as pessimistic
from gantt.db.engine import session
from gantt.db.engine.arrays import columns, names, numbers, sql, texts, unnest
from gantt.db.hosts import claim_rows, providers, rows
from gantt.db.schema.models import CORE_CLASS_COLUMNS

#: Columns of the consumer that gets a reservation.
_NEW_CONSUMER_COLUMNS = (
    *(('request_id', 'text'), ('attempt', 'int'), ('member', 'int'), ('consumer', 'text')),
    *(('project_id', 'text'), ('user_id', 'text'), ('consumer_type', 'text')),
    *(('image', 'text'), ('flavor', 'text')),
)
_TAKEN_RESERVATION_COLUMNS = (
    *(('id', 'text'), ('group_uuid', 'text'), ('member_name', 'text'), ('provider_id', 'bigint')),
    *(('lease', 'float8'), *_NEW_CONSUMER_COLUMNS),
)
#: Values before, as ``core.claims.claim.FormerReservation`` is written.
_FORMER_RESERVATION_SQL = ', '.join(
    f"'{name}', c.{name}" for name in ('lease_until', *(name for name, _ in _NEW_CONSUMER_COLUMNS))
)
TAKE_RESERVATIONS = sql(f"""
    WITH n AS (SELECT {pessimistic.NOW_SQL} AS now
    ), m AS (
        UPDATE claims c
           SET former_reservation = json_build_object({_FORMER_RESERVATION_SQL})::text,
               {', '.join(f'{name} = t.{name}' for name, _ in _NEW_CONSUMER_COLUMNS)},
               lease_until = n.now + t.lease, expires_at = n.now + t.lease, unique_key = t.consumer,
               reason = '', updated_at = n.now
          FROM {unnest(_TAKEN_RESERVATION_COLUMNS, 't')}, n
         WHERE c.id = t.id AND c.group_uuid = t.group_uuid AND c.member_name = t.member_name
           AND c.provider_id = t.provider_id AND c.state = 'reserved' AND c.lifecycle = 'plan'
           AND c.former_reservation IS NULL
        RETURNING c.id
    ), v AS (
        UPDATE providers SET version = version + 1, claims_stamp = %b
         WHERE id = ANY(%s::bigint[])
        RETURNING id
    ), x AS (
        INSERT INTO changes (kind, ref)
        SELECT 'host', t.id::text FROM unnest(%s::bigint[]) AS t (id)
    )
    SELECT n.now,
           1 / (CASE WHEN (SELECT count(*) FROM m) = %b AND (SELECT count(*) FROM v) = %b
                 AND (SELECT count(*) FROM provider_facts WHERE provider_id = ANY(%s::bigint[])
                         AND disabled IS NULL AND service_disabled IS NULL) = %b
                 AND NOT EXISTS (SELECT 1 FROM claims s WHERE s.consumer = ANY(%s::text[])
                                    AND s.live <> 0)
                THEN 1 ELSE 0 END)
      FROM n
""")  # noqa: S608 - names of columns only


class TakenReservations:
    """The reservations that the drafts of a batch take over, as columns.

    Under the locks of the hosts ``TAKE_RESERVATIONS`` takes all of them, and guards the facts that
    the portable path reads and judges: each reservation is stored, no create has taken it, its host
    is open, and no consumer has another live claim.

    :ivar hosts: hosts of the reservations, ascending
    :ivar consumers: consumers that get the reservations
    """

    def __init__(self, batch: Sequence[RequestDraft]) -> None:
        pairs = sorted(
            ((reservation, draft) for draft in batch for reservation in draft.taken_reservations),
            key=lambda pair: pair[0].consumer,
        )
        self.count = len(pairs)
        self._columns: list[Any] = []
        self.hosts = sorted({reservation.provider_ids[0] for reservation, _ in pairs})
        self.consumers = [reservation.consumer for reservation, _ in pairs]
        if not pairs:
            return
        rows = [
            (
                *(
                    reservation.claim_id,
                    reservation.group,
                    reservation.member_name,
                    reservation.provider_ids[0],
                ),
                *(
                    draft.lease_seconds,
                    draft.id,
                    draft.attempt,
                    reservation.member,
                    reservation.consumer,
                ),
                *(
                    reservation.project_id,
                    reservation.user_id,
                    reservation.consumer_type,
                    reservation.image,
                    reservation.flavor,
                ),
            )
            for reservation, draft in pairs
        ]
        self._columns = columns(rows, _TAKEN_RESERVATION_COLUMNS)

    def __bool__(self) -> bool:
        return bool(self.count)

    def is_on_other_hosts(self, hosts: Collection[int]) -> bool:
        """Return whether none of the reservations is on one of these hosts."""
        return not self.count or set(self.hosts).isdisjoint(hosts)

    def values(self, stamp: int) -> list[Any]:
        """Return the parameters of ``TAKE_RESERVATIONS``."""
        hosts, host_count = numbers(self.hosts), len(self.hosts)
        return [
            *self._columns,
            stamp,
            *(hosts, hosts, self.count, host_count, hosts, host_count),
            texts(self.consumers),
        ]


def is_taking(draft: RequestDraft) -> bool:
    """Return whether a draft only takes over reservations, each on a single provider."""
    return (
        bool(draft.taken_reservations)
        and not draft.claims.ids
        and not (draft.continues or draft.replaced_reservations or draft.groups)
        and draft.takes_over is None
        and draft.group is None
        and draft.plan is None
        and draft.only_project is None
        and all(len(reservation.provider_ids) == 1 for reservation in draft.taken_reservations)
    )


_classes = list(CORE_CLASS_COLUMNS.values())

#: Common columns of ``claims`` of one kind.
_KIND_COLUMNS = (
    *(('request_id', 'text'), ('attempt', 'int'), ('lifecycle', 'text'), ('purpose', 'text')),
    *(('move_id', 'text'), ('parent_key', 'text'), ('image', 'text'), ('flavor', 'text')),
)
#: Columns of the owner.
_OWNER_COLUMNS = (('project_id', 'text'), ('user_id', 'text'), ('consumer_type', 'text'))
#: Attributes besides them that only the pessimistic path can judge.
_kind_of = operator.attrgetter(
    *(name for name, _ in (*_KIND_COLUMNS, *_OWNER_COLUMNS)), 'group', 'layout'
)
_AMOUNT_COLUMNS = tuple((c, 'bigint') for c in _classes)
_KIND_CLAIM_COLUMNS = (*_KIND_COLUMNS, *_OWNER_COLUMNS, *_AMOUNT_COLUMNS)
_KIND_ROW_COLUMNS = (
    ('number', 'int'),
    ('lease', 'float8'),
    ('unique_key_end', 'text'),
    *_KIND_CLAIM_COLUMNS,
)
_CLAIM_COLUMNS = (
    *(('id', 'text'), ('member', 'int'), ('consumer', 'text'), ('provider_id', 'bigint')),
    ('kind', 'int'),
)
_DECISION_COLUMNS = [column for column in pessimistic.DECISION_COLUMNS if column[0] != 'created_at']
_decision_values = operator.attrgetter(*(name for name, _ in _DECISION_COLUMNS))
_USAGE_COLUMNS = (('id', 'bigint'), *((c, 'bigint') for c in _classes))
#: Amounts of one claim, and the hosts of claims with these amounts.
_AMOUNTS_AND_HOSTS_COLUMNS = (*_AMOUNT_COLUMNS, ('hosts', 'text'))
#: The ids of the classes, as they are now in this database.
_CLASS_IDS_SQL = ', '.join(
    f"max(id) FILTER (WHERE name = '{n}') AS {c}" for n, c in CORE_CLASS_COLUMNS.items()
)
_AMOUNT_OF_CLASS_SQL = ' '.join(f'WHEN r.{c} THEN k.{c}' for c in _classes)
#: Condition: no claim takes amounts against its host's units, as in ``core.claims.acceptance``.
_UNITS_OBEYED_SQL = f"""NOT EXISTS (
    SELECT 1 FROM (SELECT {_CLASS_IDS_SQL} FROM resource_classes
                    WHERE name = ANY('{{{','.join(CORE_CLASS_COLUMNS)}}}')) r
           CROSS JOIN {unnest(_AMOUNTS_AND_HOSTS_COLUMNS, 'k')}
           JOIN inventories i ON i.provider_id = ANY(k.hosts::bigint[]),
           LATERAL (SELECT CASE i.class_id {_AMOUNT_OF_CLASS_SQL} END AS amount) a
     WHERE a.amount > 0 AND (a.amount < i.min_unit OR a.amount > COALESCE(i.max_unit, i.total)
                             OR mod(a.amount, i.step_size) <> 0))"""  # noqa: S608 - names only

#: Sent after the lock of these rows; a row that is not continued as planned keeps its token.
CONTINUE_REQUESTS = sql(f"""
    UPDATE requests r
       SET state = q.state, deadline = {pessimistic.NOW_SQL} + q.budget, token = %s,
           answer = q.answer, updated_at = {pessimistic.NOW_SQL}, claims = r.claims + q.claims
      FROM {pessimistic.REQUEST_ROWS_SQL}
     WHERE r.id = q.id AND r.state = 'open' AND r.fingerprint = q.fingerprint
       AND r.owner = q.owner AND r.attempt = q.attempt
""")  # noqa: S608 - names of columns only
#: No row comes back: the new state of the hosts follows from the plan.
LOCK_PROVIDERS = sql("""
    SELECT count(*) FROM (
        SELECT 1 FROM providers WHERE id = ANY(%s::bigint[]) ORDER BY id FOR NO KEY UPDATE) p
""")
#: Sent before the hosts are locked: inserts for the same consumers wait here, and the last
#: statement sees the outcome of others.
INSERT_CLAIMS = sql(f"""
    WITH n AS (SELECT {pessimistic.NOW_SQL} AS now
    ), m AS (
        SELECT t.id, t.member, t.consumer, t.provider_id, k.*
          FROM {unnest(_CLAIM_COLUMNS, 't')}
          JOIN {unnest(_KIND_ROW_COLUMNS, 'k')} ON k.number = t.kind
    ), c AS (
        INSERT INTO claims (id, member, consumer, provider_id, {names(_KIND_CLAIM_COLUMNS)},
                            unique_key, lease_until, expires_at, state, live, reason,
                            created_at, updated_at)
        SELECT id, member, consumer, provider_id, {names(_KIND_CLAIM_COLUMNS)},
               consumer || unique_key_end, n.now + lease, n.now + lease, 'reserved', 1, '',
               n.now, n.now FROM m, n
         ORDER BY consumer COLLATE "C"
    ) SELECT now FROM n
""")  # noqa: S608 - names of columns only
#: Claims of these consumers that the pessimistic path has to see: live ones of other
#: transactions, and ended ones with another owner of the consumer.
_IS_CONFLICTING_CLAIM_SQL = f"""(live <> 0 OR NOT EXISTS (
        SELECT 1 FROM claims o WHERE o.consumer = s.consumer AND o.xmin = {pessimistic.OWN_XID_SQL}
           AND (o.project_id, o.user_id, o.consumer_type)
               IS NOT DISTINCT FROM (s.project_id, s.user_id, s.consumer_type)))"""  # noqa: S608
WRITE_BATCH = sql(f"""
    WITH n AS (SELECT {pessimistic.NOW_SQL} AS now
    ), u AS (
        UPDATE providers p
           SET generation = p.generation + 1, version = p.version + 1, claims_stamp = %b,
               {pessimistic.ADD_USAGE_SQL}
          FROM {unnest(_USAGE_COLUMNS, 'd')}
         WHERE p.id = d.id AND {pessimistic.FITS_SQL} AND p.over_committed = 0
        RETURNING p.id, p.version
    ), e AS (
        INSERT INTO decisions ({names(_DECISION_COLUMNS)}, created_at)
        SELECT {names(_DECISION_COLUMNS)}, n.now FROM {unnest(_DECISION_COLUMNS, 't')}, n
            ON CONFLICT (id) DO NOTHING
    ), x AS (
        INSERT INTO changes (kind, ref)
        SELECT 'host', t.id::text FROM unnest(%s::bigint[]) AS t (id)
    )
    SELECT (SELECT array_agg(version ORDER BY id) FROM u),
           1 / (CASE WHEN (SELECT count(*) FROM u) = %b
                 AND (SELECT count(*) FROM provider_facts WHERE provider_id = ANY(%s::bigint[])
                         AND disabled IS NULL AND service_disabled IS NULL) = %b
                 AND {_UNITS_OBEYED_SQL}
                 AND (SELECT count(*) FROM requests WHERE id = ANY(%s::text[]) AND token = %s) = %b
                 AND NOT EXISTS (SELECT 1 FROM claims s
                                  WHERE consumer = ANY(%s::text[])
                                    AND s.xmin <> {pessimistic.OWN_XID_SQL}
                                    AND {_IS_CONFLICTING_CLAIM_SQL})
                 AND (SELECT count(*) FROM host_sets WHERE digest = ANY(%s::text[])) = %b
                THEN 1 ELSE 0 END)
      FROM n
""")  # noqa: S608 - names of columns only

#: The most batches that go the pessimistic path before one is tried in one trip again.
PESSIMISTIC_BATCHES_MAX = 64


class OptimisticBackoff:
    """Backoff of one-trip commits after failed ones.

    A failed try costs its trip, a batch not tried costs an unneeded trip or two.  So the number of
    batches let by doubles with each failure and is halved by each success: where less than half of
    the tries fail nearly all are tried, where more fail one in :data:`PESSIMISTIC_BATCHES_MAX` is
    tried.
    """

    def __init__(self) -> None:
        # Half of the batches to let by after the next failure, from 0.5 to PESSIMISTIC_BATCHES_MAX.
        self._next_pause = 0.5
        self._batches_to_pass = 0  # batches that are still let by

    def is_due(self) -> bool:
        """Return whether to commit the next batch by the pessimistic path; called once a batch."""
        if self._batches_to_pass:
            self._batches_to_pass -= 1
            return True
        return False

    def record_failure(self) -> None:
        """Record that a one-trip commit of a batch was refused by a guard."""
        self._next_pause = min(2 * self._next_pause, float(PESSIMISTIC_BATCHES_MAX))
        self._batches_to_pass = int(self._next_pause)

    def record_success(self) -> None:
        """Record that a one-trip commit of a batch succeeded."""
        self._next_pause = max(0.5, self._next_pause / 2)


def _is_plain(claim: Claim, amounts: Mapping[str, int]) -> bool:
    """Return whether only room on its host decides about a claim, which has no layout or group."""
    return (
        len(claim.allocations) == 1
        and claim.layout is None
        and claim.group is None
        and claim.lifecycle in EXPIRING_LIFECYCLES
        and claim.lifecycle is not Lifecycle.CALLER  # it uses pools
        and not claim.purpose.is_move  # its source is a live claim
        and all(name in CORE_CLASS_COLUMNS and amount > 0 for name, amount in amounts.items())
    )


class _NotAsPlanned(session.WorkAbandoned):
    """Signal that a guard refused the batch: nothing of it is written."""


class PlainBatch:
    """Drafts that need only room on hosts, as columns.

    :ivar hosts: providers that claims are on, ascending
    """

    def __init__(self, batch: Sequence[RequestDraft]) -> None:
        self.batch = batch
        self.drafts = sorted(batch, key=lambda draft: draft.id)
        self.fresh = [draft for draft in self.drafts if not draft.continues]
        self.continued = [draft for draft in self.drafts if draft.continues]
        self.ids = texts([draft.id for draft in self.drafts])
        self.records = [draft.decision for draft in batch if draft.decision is not None]
        self.digests = sorted({record.host_set for record in self.records if record.host_set})
        self.hosts: list[int] = []
        self.taken = TakenReservations(batch)
        self.consumers = ''
        #: Parameters of statements, by column.
        self._claims = self._kinds = self._usage = self._amounts_and_hosts = list[Any]()

    @classmethod
    def of(cls, batch: Sequence[RequestDraft]) -> 'PlainBatch | None':
        """Return the columns; None where a draft needs more, or two name one consumer.

        None too where a host gets claims and gives a reservation away: its change is reported as
        its version only, which does not hold the consumers of its claims.
        """
        if not all(is_plain(draft) or is_taking(draft) for draft in batch):
            return None
        plain_batch = cls(batch)
        return (
            plain_batch
            if plain_batch._fill_columns()
            and plain_batch.taken.is_on_other_hosts(plain_batch.hosts)
            else None
        )

    def _fill_columns(self) -> bool:
        row_values: list[tuple[str, int, str, int, int]] = []
        kinds: list[tuple[Any, ...]] = []
        for draft in self.batch:
            of_claims = draft.claims
            first_kind = len(kinds)
            for number, draft_kind in enumerate(of_claims.kinds, first_kind):
                claim = draft_kind.claim
                amounts = claim.allocations.get(claim.provider_id)
                if (
                    amounts is None
                    or draft_kind.generation is not None
                    or not _is_plain(claim, amounts)
                ):
                    return False
                shared_columns = _kind_of(claim)
                sums = [amounts.get(name, 0) for name in CORE_CLASS_COLUMNS]
                key_end = claim_rows.unique_key_end(claim.purpose)
                kinds.append((number, draft.lease_seconds, key_end, *shared_columns[:-2], *sums))
            of_kind = (
                [first_kind + number for number in of_claims.kind] if first_kind else of_claims.kind
            )
            row_values += zip(
                of_claims.ids,
                of_claims.members,
                of_claims.consumers,
                of_claims.providers,
                of_kind,
                strict=True,
            )
        row_values.sort(key=operator.itemgetter(2))  # waits for others' consumers are in this order
        self._claims = columns(row_values, _CLAIM_COLUMNS)
        self._kinds = columns(kinds, _KIND_ROW_COLUMNS)
        self.consumers = self._claims[2]
        self._add_up(Counter(map(operator.itemgetter(3, 4), row_values)), kinds)
        all_consumers = [*(values[2] for values in row_values), *self.taken.consumers]
        return len(set(all_consumers)) == len(all_consumers)

    def _add_up(
        self, count: Mapping[tuple[int, int], int], kinds: Sequence[tuple[Any, ...]]
    ) -> None:
        width = len(_classes)
        used: dict[int, list[int]] = {}
        each: dict[tuple[int, ...], list[int]] = {}
        amounts_and_hosts = [
            (amounts, each.setdefault(amounts, [])) for amounts in (kind[-width:] for kind in kinds)
        ]
        for (host, number), times in count.items():
            amounts, hosts_of_amounts = amounts_and_hosts[number]
            hosts_of_amounts.append(host)
            sums = [times * amount for amount in amounts]
            others = used.get(host)
            used[host] = sums if others is None else list(map(operator.add, others, sums))
        self.hosts = sorted(used)
        self._usage = columns([(host, *used[host]) for host in self.hosts], _USAGE_COLUMNS)
        self._amounts_and_hosts = columns(
            [(*amounts_of, numbers(host_ids)) for amounts_of, host_ids in each.items()],
            _AMOUNTS_AND_HOSTS_COLUMNS,
        )

    # -- parameters ----------------------------------------------------------------
    def claims(self) -> list[Any]:
        """Return the parameters of ``INSERT_CLAIMS``."""
        return [*self._claims, *self._kinds]

    def providers(self) -> list[Any]:
        """Return the parameters of ``LOCK_PROVIDERS``."""
        return [numbers([*self.hosts, *self.taken.hosts])] if self.taken else self._usage[:1]

    def writes(self, token: str, stamp: int) -> list[Any]:
        """Return the parameters of ``WRITE_BATCH``."""
        return [
            stamp,
            *self._usage,
            *columns([_decision_values(record) for record in self.records], _DECISION_COLUMNS),
            self._usage[0],
            len(self.hosts),
            self._usage[0],
            len(self.hosts),
            *self._amounts_and_hosts,
            self.ids,
            token,
            len(self.drafts),
            self.consumers,
            texts(self.digests),
            len(self.digests),
        ]

    # -- result ----------------------------------------------------------------------
    def result(self, now: float, **hosts: Any) -> CommitResult:
        """Return the result of a committed batch: everything as planned."""
        return CommitResult(
            outcomes=[
                RequestOutcome(
                    id=draft.id,
                    outcome=CommitStatus.PLACED if draft.completes else CommitStatus.PARTIAL,
                    accepted=list(range(len(draft.claims.ids))),
                    taken=list(range(len(draft.taken_reservations))),
                    attempt=draft.attempt,
                )
                for draft in self.batch
            ],
            now=now,
            path=CommitPath.OPTIMISTIC,
            **hosts,
        )


class OneTripCommitter(pessimistic.PessimisticCommitter):
    """Writer of batches in one round trip; uses the pessimistic path where that fails."""

    def __init__(self, memory: rows.RowCache) -> None:
        super().__init__(memory)
        self.backoff = OptimisticBackoff()

    def commit(
        self,
        transactions: session.Transactions,
        batch: Sequence[RequestDraft],
        locked: Mapping[str, str] = portable.NO_LOCKED_DRAFTS,
    ) -> CommitResult:
        """Commit a batch in one round trip; see ``commit.BatchCommitter.commit``."""
        plain_batch = PlainBatch.of(batch) if batch and not locked else None
        if plain_batch is None or not self.host_sets.fresh().issuperset(plain_batch.digests):
            return super().commit(transactions, batch, locked)
        if self.backoff.is_due():
            return super().commit(transactions, batch, locked)
        tokens: list[str] = []
        try:
            result = transactions.write(
                lambda tx: self._write_in_one_trip(tx, plain_batch, tokens),
                lambda tx: self._find_committed(tx, plain_batch, tokens),
                once_locked=True,
            )
        except _NotAsPlanned:
            self.backoff.record_failure()
            return super().commit(transactions, batch, locked)
        self.backoff.record_success()
        return result

    def _write_in_one_trip(
        self, tx: session.Tx, plain_batch: PlainBatch, tokens: list[str]
    ) -> CommitResult:
        raw = pessimistic.driver_of(tx)
        token = uuid.uuid4().hex
        tokens.append(token)
        try:
            with raw.pipeline():
                if plain_batch.fresh:
                    parameters = pessimistic.request_arrays(token, plain_batch.fresh)
                    self.execute(raw, pessimistic.INSERT_REQUESTS, parameters)
                if plain_batch.continued:
                    continued_ids = texts([draft.id for draft in plain_batch.continued])
                    self.execute(raw, pessimistic.LOCK_CONTINUED_REQUESTS, [continued_ids])
                    parameters = pessimistic.request_arrays(token, plain_batch.continued)
                    self.execute(raw, CONTINUE_REQUESTS, parameters)
                if plain_batch.hosts:
                    claims_row = self.execute(raw, INSERT_CLAIMS, plain_batch.claims())
                self.execute(raw, LOCK_PROVIDERS, plain_batch.providers())
                if plain_batch.taken:
                    taken_row = self.execute(
                        raw, TAKE_RESERVATIONS, plain_batch.taken.values(tx.stamp)
                    )
                written_row = self.execute(raw, WRITE_BATCH, plain_batch.writes(token, tx.stamp))
                self.send_commit(raw)
        except pessimistic.REFUSAL_ERRORS as e:
            raise _NotAsPlanned from e
        except psycopg.Error as e:
            raise pessimistic.commit_outcome_error(e) from e
        now = (claims_row if plain_batch.hosts else taken_row).fetchone()[0]
        versions = written_row.fetchone()[0] or ()
        return plain_batch.result(
            now,
            stepped=dict(zip(plain_batch.hosts, versions, strict=True)),
            handed=plain_batch.taken.hosts,
        )

    def _find_committed(
        self, tx: session.Tx, plain_batch: PlainBatch, tokens: Sequence[str]
    ) -> CommitResult | None:
        """Return the result if one of the transactions turns out to be committed."""
        ids = [draft.id for draft in plain_batch.drafts]
        if not any(
            tx.all(portable.SELECT_REQUESTS_WITH_TOKEN, ids=ids, token=token) for token in tokens
        ):
            return None
        locked_hosts = providers.read(tx, self.memory, plain_batch.hosts)
        host_rows = list(map(locked_hosts.row, locked_hosts.hosts()))
        return plain_batch.result(tx.now, hosts=host_rows, handed=plain_batch.taken.hosts)
