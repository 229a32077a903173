# SPDX-License-Identifier: Apache-2.0
"""The group commit of conflict-free batches on PostgreSQL: one round trip.

Most batches are accepted as planned.  Everything from BEGIN to COMMIT is sent at once, in the
order of locks that every writer keeps, and the last statement guards in place of the careful
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

Where a guard fails the statement fails, the transaction is rolled back, and the careful path
takes the batch.  A statement sees what was committed before it began: the last one begins after
all locks are held.
"""

import operator
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import psycopg

from gantt.core.claims.claim import EXPIRES, Claim
from gantt.core.claims.commit import (
    ClaimColumns,
    CommitPath,
    CommitResult,
    CommitStatus,
    RequestDraft,
    RequestOutcome,
    is_plain,
)
from gantt.core.messages.request import Lifecycle
from gantt.db.claims import commit as ledger
from gantt.db.claims import commit_postgresql as careful
from gantt.db.engine import session
from gantt.db.engine.arrays import Typed, array, arrays, names, numbers, sql, texts, unnest
from gantt.db.hosts import claim_rows, providers, rows
from gantt.db.records import decisions
from gantt.db.schema.models import CORE_CLASS_COLUMNS

#: Columns of the consumer that gets a reservation.
_NEW = (
    *(('request_id', 'text'), ('attempt', 'int'), ('member', 'int'), ('consumer', 'text')),
    *(('project_id', 'text'), ('user_id', 'text'), ('consumer_type', 'text')),
    *(('image', 'text'), ('flavor', 'text')),
)
_TAKEN = (
    *(('id', 'text'), ('group_uuid', 'text'), ('member_name', 'text'), ('provider_id', 'bigint')),
    *(('lease', 'float8'), *_NEW),
)
#: Values before, as ``core.claims.claim.PlannedFor`` is written.
_OLD = ', '.join(f"'{name}', c.{name}" for name in ('lease_until', *(name for name, _ in _NEW)))
TAKE = sql(f"""
    WITH n AS (SELECT {careful.NOW} AS now
    ), m AS (
        UPDATE claims c
           SET planned = json_build_object({_OLD})::text,
               {', '.join(f'{name} = t.{name}' for name, _ in _NEW)},
               lease_until = n.now + t.lease, expires_at = n.now + t.lease, unique_key = t.consumer,
               reason = '', updated_at = n.now
          FROM {unnest(_TAKEN, 't')}, n
         WHERE c.id = t.id AND c.group_uuid = t.group_uuid AND c.member_name = t.member_name
           AND c.provider_id = t.provider_id AND c.state = 'reserved' AND c.lifecycle = 'plan'
           AND c.planned IS NULL
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

    Behind the locks of the hosts ``TAKE`` takes all of them, and guards the facts that the portable
    path reads and judges: each reservation is stored, no create has taken it, its host is open, and
    no consumer has another live claim.

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
        self._columns = [
            array(kind, list(column_values))
            for (_, kind), column_values in zip(_TAKEN, zip(*rows, strict=True), strict=True)
        ]

    def __bool__(self) -> bool:
        return bool(self.count)

    def is_apart(self, hosts: Collection[int]) -> bool:
        """Return whether none of the reservations is on one of these hosts."""
        return not self.count or set(self.hosts).isdisjoint(hosts)

    def values(self, stamp: int) -> list[Any]:
        """Return the parameters of ``TAKE``."""
        hosts, host_count = numbers(self.hosts), len(self.hosts)
        return [
            *self._columns,
            stamp,
            *(hosts, hosts, self.count, host_count, hosts, host_count),
            texts(self.consumers),
        ]


def is_taking(draft: RequestDraft) -> bool:
    """Return whether a draft takes reservations of one provider each, and nothing else."""
    return (
        bool(draft.taken_reservations)
        and not draft.claims
        and not (draft.continues or draft.replaced_reservations or draft.groups)
        and draft.takes_over is None
        and draft.group is None
        and draft.plan is None
        and draft.only_project is None
        and all(len(reservation.provider_ids) == 1 for reservation in draft.taken_reservations)
    )


_classes = list(CORE_CLASS_COLUMNS.values())

#: Common columns of ``claims`` of one kind.
_KIND = (
    *(('request_id', 'text'), ('attempt', 'int'), ('lifecycle', 'text'), ('purpose', 'text')),
    *(('move_id', 'text'), ('parent_key', 'text'), ('image', 'text'), ('flavor', 'text')),
)
#: Columns of the owner.
_OWNER = (('project_id', 'text'), ('user_id', 'text'), ('consumer_type', 'text'))
#: Attributes beside them that only the careful path can judge.
_kind_of = operator.attrgetter(*(name for name, _ in (*_KIND, *_OWNER)), 'group', 'layout')
_AMOUNTS = tuple((c, 'bigint') for c in _classes)
_OF_KIND = (*_KIND, *_OWNER, *_AMOUNTS)
_KINDS = (('number', 'int'), ('lease', 'float8'), ('unique_key_end', 'text'), *_OF_KIND)
_CLAIM = (
    *(('id', 'text'), ('member', 'int'), ('consumer', 'text'), ('provider_id', 'bigint')),
    ('kind', 'int'),
)
_DECISION = [column for column in careful.DECISION if column[0] != 'created_at']
_USED = (('id', 'bigint'), *((c, 'bigint') for c in _classes))
#: Amounts of one claim, and the hosts of claims with these amounts.
_EACH = (*_AMOUNTS, ('hosts', 'text'))
#: The ids of the classes, as they are now in this database.
_IDS = ', '.join(
    f"max(id) FILTER (WHERE name = '{n}') AS {c}" for n, c in CORE_CLASS_COLUMNS.items()
)
_AMOUNT = ' '.join(f'WHEN r.{c} THEN k.{c}' for c in _classes)
#: Condition: no claim takes amounts against its host's units, as in ``core.claims.acceptance``.
_UNITS = f"""NOT EXISTS (
    SELECT 1 FROM (SELECT {_IDS} FROM resource_classes
                    WHERE name = ANY('{{{','.join(CORE_CLASS_COLUMNS)}}}')) r
           CROSS JOIN {unnest(_EACH, 'k')}
           JOIN inventories i ON i.provider_id = ANY(k.hosts::bigint[]),
           LATERAL (SELECT CASE i.class_id {_AMOUNT} END AS amount) a
     WHERE a.amount > 0 AND (a.amount < i.min_unit OR a.amount > COALESCE(i.max_unit, i.total)
                             OR mod(a.amount, i.step_size) <> 0))"""  # noqa: S608 - names only

#: Sent behind the lock of these rows; a row that is not continued as planned keeps its token.
CONTINUE = sql(f"""
    UPDATE requests r
       SET state = q.state, deadline = {careful.NOW} + q.budget, token = %s, answer = q.answer,
           updated_at = {careful.NOW}, claims = r.claims + q.claims
      FROM {careful.REQUEST_ROWS}
     WHERE r.id = q.id AND r.state = 'open' AND r.fingerprint = q.fingerprint
       AND r.owner = q.owner AND r.attempt = q.attempt
""")  # noqa: S608 - names of columns only
#: No row comes back: the new state of the hosts follows from the plan.
PROVIDERS = sql("""
    SELECT count(*) FROM (
        SELECT 1 FROM providers WHERE id = ANY(%s::bigint[]) ORDER BY id FOR NO KEY UPDATE) p
""")
#: Sent before the hosts are locked: inserts for the same consumers wait here, and the last
#: statement sees the outcome of others.
CLAIMS = sql(f"""
    WITH n AS (SELECT {careful.NOW} AS now
    ), m AS (
        SELECT t.id, t.member, t.consumer, t.provider_id, k.*
          FROM {unnest(_CLAIM, 't')} JOIN {unnest(_KINDS, 'k')} ON k.number = t.kind
    ), c AS (
        INSERT INTO claims (id, member, consumer, provider_id, {names(_OF_KIND)}, unique_key,
                            lease_until, expires_at, state, live, reason, created_at, updated_at)
        SELECT id, member, consumer, provider_id, {names(_OF_KIND)}, consumer || unique_key_end,
               n.now + lease, n.now + lease, 'reserved', 1, '', n.now, n.now FROM m, n
         ORDER BY consumer COLLATE "C"
    ) SELECT now FROM n
""")  # noqa: S608 - names of columns only
#: Claims of these consumers that the careful path has to see: live claims of other transactions,
#: and ended ones with another owner of the consumer.
_SEEN = f"""(live <> 0 OR NOT EXISTS (
        SELECT 1 FROM claims o WHERE o.consumer = s.consumer AND o.xmin = {careful.MINE}
           AND (o.project_id, o.user_id, o.consumer_type)
               IS NOT DISTINCT FROM (s.project_id, s.user_id, s.consumer_type)))"""  # noqa: S608
WRITE = sql(f"""
    WITH n AS (SELECT {careful.NOW} AS now
    ), u AS (
        UPDATE providers p
           SET generation = p.generation + 1, version = p.version + 1, claims_stamp = %b,
               {careful.ADDS}
          FROM {unnest(_USED, 'd')}
         WHERE p.id = d.id AND {careful.FITS} AND p.over_committed = 0
        RETURNING p.id, p.version
    ), e AS (
        INSERT INTO decisions ({names(_DECISION)}, created_at)
        SELECT {names(_DECISION)}, n.now FROM {unnest(_DECISION, 't')}, n
            ON CONFLICT (id) DO NOTHING
    ), x AS (
        INSERT INTO changes (kind, ref)
        SELECT 'host', t.id::text FROM unnest(%s::bigint[]) AS t (id)
    )
    SELECT (SELECT array_agg(version ORDER BY id) FROM u),
           1 / (CASE WHEN (SELECT count(*) FROM u) = %b
                 AND (SELECT count(*) FROM provider_facts WHERE provider_id = ANY(%s::bigint[])
                         AND disabled IS NULL AND service_disabled IS NULL) = %b
                 AND {_UNITS}
                 AND (SELECT count(*) FROM requests WHERE id = ANY(%s::text[]) AND token = %s) = %b
                 AND NOT EXISTS (SELECT 1 FROM claims s
                                  WHERE consumer = ANY(%s::text[]) AND s.xmin <> {careful.MINE}
                                    AND {_SEEN})
                 AND (SELECT count(*) FROM host_sets WHERE digest = ANY(%s::text[])) = %b
                THEN 1 ELSE 0 END)
      FROM n
""")  # noqa: S608 - names of columns only

#: The most batches that go the careful path before one is tried in one trip again.
CAREFUL_MOST = 64


class Caution:
    """Backoff of one-trip commits after failed ones.

    A failed try costs its trip, a batch not tried costs an unneeded trip or two.  So the number of
    batches let by doubles with each failure and is halved by each success: where less than half of
    the tries fail nearly all are tried, where more fail one in :data:`CAREFUL_MOST` is tried.
    """

    def __init__(self) -> None:
        # Half of the batches to let by after the next failure, from 0.5 to CAREFUL_MOST.
        self._next = 0.5
        self._left = 0  # batches that are still let by

    def is_due(self) -> bool:
        """Return whether the next batch takes the careful path; called once for each batch."""
        if self._left:
            self._left -= 1
            return True
        return False

    def failed(self) -> None:
        """Record that a tried batch was not as planned."""
        self._next = min(2 * self._next, float(CAREFUL_MOST))
        self._left = int(self._next)

    def went_well(self) -> None:
        """Record that a tried batch is committed."""
        self._next = max(0.5, self._next / 2)


def _is_plain(claim: Claim, amounts: Mapping[str, int]) -> bool:
    """Return whether only the room on its host decides about a claim."""
    return (
        len(claim.allocations) == 1
        and claim.layout is None
        and claim.group is None
        and claim.lifecycle in EXPIRES
        and claim.lifecycle is not Lifecycle.CALLER  # it uses pools
        and not claim.purpose.is_move  # its source is a live claim
        and all(name in CORE_CLASS_COLUMNS and amount > 0 for name, amount in amounts.items())
    )


def _columns(found: Sequence[tuple[Any, ...]], columns: Typed) -> list[Any]:
    kinds = [kind for _, kind in columns]
    return [
        array(kind, values) for kind, values in zip(kinds, zip(*found, strict=True), strict=True)
    ]


class _NotAsPlanned(session.GivenUp):
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
        self._claims = self._kinds = self._used = self._each = list[Any]()

    @classmethod
    def of(cls, batch: Sequence[RequestDraft]) -> 'PlainBatch | None':
        """Return the columns; None where a draft needs more, or two name one consumer.

        None too where a host gets claims and gives a reservation away: its change is reported as
        its version alone, which does not hold the consumers of its claims.
        """
        if not all(is_plain(draft) or is_taking(draft) for draft in batch):
            return None
        plain_batch = cls(batch)
        return (
            plain_batch
            if plain_batch._fill() and plain_batch.taken.is_apart(plain_batch.hosts)
            else None
        )

    def _fill(self) -> bool:
        row_values: list[tuple[str, str, int, int, int]] = []
        kinds: list[tuple[Any, ...]] = []
        for draft in self.batch:
            columns = ClaimColumns.of(draft.claims)
            first_kind = len(kinds)
            for number, draft_kind in enumerate(columns.kinds, first_kind):
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
                [first_kind + number for number in columns.kind] if first_kind else columns.kind
            )
            row_values += zip(
                columns.consumers,
                columns.ids,
                columns.members,
                columns.providers,
                of_kind,
                strict=True,
            )
        if not row_values:  # reservations alone
            return self._fill_with_nothing()
        row_values.sort()  # waits for others' consumers are in this order
        consumers, ids, members, hosts, numbers_of = zip(*row_values, strict=True)
        self.consumers = texts(consumers)
        self._claims = [
            *(texts(ids), numbers(members), self.consumers, numbers(hosts), numbers(numbers_of)),
        ]
        self._kinds = _columns(kinds, _KINDS)
        self._add_up(Counter(zip(hosts, numbers_of, strict=True)), kinds)
        return self._is_one_each(consumers)

    def _fill_with_nothing(self) -> bool:
        self.consumers = texts([])
        self._used, self._each = arrays([], _USED), arrays([], _EACH)
        return self._is_one_each(())

    def _is_one_each(self, who: Sequence[str]) -> bool:
        """Return whether no consumer is named twice."""
        consumers = [*who, *self.taken.consumers]
        return len(set(consumers)) == len(consumers)

    def _add_up(
        self, count: Mapping[tuple[int, int], int], kinds: Sequence[tuple[Any, ...]]
    ) -> None:
        width = len(_classes)
        used: dict[int, list[int]] = {}
        each: dict[tuple[int, ...], list[int]] = {}
        for (host, number), times in count.items():
            amounts = kinds[number][-width:]
            each.setdefault(amounts, []).append(host)
            sums = used.setdefault(host, [0] * width)
            for i, amount in enumerate(amounts):
                sums[i] += times * amount
        self.hosts = sorted(used)
        self._used = _columns([(host, *used[host]) for host in self.hosts], _USED)
        self._each = _columns(
            [(*amounts_of, numbers(host_ids)) for amounts_of, host_ids in each.items()], _EACH
        )

    # -- parameters ----------------------------------------------------------------
    def claims(self) -> list[Any]:
        """Return the parameters of ``CLAIMS``."""
        return [*self._claims, *self._kinds]

    def providers(self) -> list[Any]:
        """Return the parameters of ``PROVIDERS``."""
        return [numbers([*self.hosts, *self.taken.hosts])] if self.taken else self._used[:1]

    def writes(self, token: str, stamp: int) -> list[Any]:
        """Return the parameters of ``WRITE``."""
        records = [decisions.values(record, 0.0) for record in self.records]
        return [
            stamp,
            *self._used,
            *arrays(records, _DECISION),
            self._used[0],
            len(self.hosts),
            self._used[0],
            len(self.hosts),
            *self._each,
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
                    accepted=list(range(len(draft.claims))),
                    taken=list(range(len(draft.taken_reservations))),
                    attempt=draft.attempt,
                )
                for draft in self.batch
            ],
            now=now,
            path=CommitPath.OPTIMISTIC,
            **hosts,
        )


class OneTripLedger(careful.CarefulLedger):
    """Writer of batches in one round trip; uses the careful path where that fails."""

    def __init__(self, memory: rows.Memory) -> None:
        super().__init__(memory)
        self.caution = Caution()

    def commit(
        self,
        transactions: session.Transactions,
        batch: Sequence[RequestDraft],
        locked: Mapping[str, str] = ledger.NONE_LOCKED,
    ) -> CommitResult:
        """Commit a batch in one round trip; see ``commit.Ledger.commit``."""
        plain_batch = PlainBatch.of(batch) if batch and not locked else None
        if plain_batch is None or not self.host_sets.fresh().issuperset(plain_batch.digests):
            return super().commit(transactions, batch, locked)
        if self.caution.is_due():
            return super().commit(transactions, batch, locked)
        tokens: list[str] = []
        try:
            result = transactions.write(
                lambda tx: self._write_at_once(tx, plain_batch, tokens),
                lambda tx: self._find_whole(tx, plain_batch, tokens),
                once_locked=True,
            )
        except _NotAsPlanned:
            self.caution.failed()
            return super().commit(transactions, batch, locked)
        self.caution.went_well()
        return result

    def _write_at_once(self, tx: session.Tx, made: PlainBatch, tokens: list[str]) -> CommitResult:
        raw = careful.driver_of(tx)
        token = uuid.uuid4().hex
        tokens.append(token)
        try:
            with raw.pipeline():
                if made.fresh:
                    parameters = careful.request_arrays(token, made.fresh)
                    self.execute(raw, careful.REQUESTS, parameters)
                if made.continued:
                    continued_ids = texts([draft.id for draft in made.continued])
                    self.execute(raw, careful.CONTINUED, [continued_ids])
                    parameters = careful.request_arrays(token, made.continued)
                    self.execute(raw, CONTINUE, parameters)
                if made.hosts:
                    claims_row = self.execute(raw, CLAIMS, made.claims())
                self.execute(raw, PROVIDERS, made.providers())
                if made.taken:
                    taken_row = self.execute(raw, TAKE, made.taken.values(tx.stamp))
                written_row = self.execute(raw, WRITE, made.writes(token, tx.stamp))
                self.send_commit(raw)
        except careful.REFUSED as e:
            raise _NotAsPlanned from e
        except psycopg.Error as e:
            raise careful.lost_in_commit(e) from e
        now = (claims_row if made.hosts else taken_row).fetchone()[0]
        versions = written_row.fetchone()[0] or ()
        return made.result(
            now,
            stepped=dict(zip(made.hosts, versions, strict=True)),
            handed=made.taken.hosts,
        )

    def _find_whole(
        self, tx: session.Tx, made: PlainBatch, tokens: Sequence[str]
    ) -> CommitResult | None:
        """Return the result if one of the transactions turns out to be committed."""
        ids = [draft.id for draft in made.drafts]
        if not any(tx.all(ledger.TOKENS, ids=ids, token=token) for token in tokens):
            return None
        locked_hosts = providers.read(tx, self.memory, made.hosts)
        host_rows = list(map(locked_hosts.row, locked_hosts.hosts()))
        return made.result(tx.now, hosts=host_rows, handed=made.taken.hosts)
