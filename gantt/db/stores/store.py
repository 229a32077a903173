# SPDX-License-Identifier: Apache-2.0
"""The real store: every method of the port is one transaction.

The queries are in the modules beside this one, a file for each thing that they
are about.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims.claim import Claim
from gantt.core.claims.commit import CommitResult, DecisionRecord, RequestDraft
from gantt.core.claims.quota import Limit, Usage
from gantt.core.claims.reconcile import Registration, RegistrationFate
from gantt.core.messages import resource_classes
from gantt.core.messages.report import ClaimWords, HostReport, RegisterHost
from gantt.core.records.history import ClaimCounts, History
from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import Aggregate, Group, HostChange
from gantt.core.table.metrics import DeclaredMetric
from gantt.db.claims import claims, commit_postgresql, groups, locks, quotas, requests, sweeping
from gantt.db.claims import commit as ledger
from gantt.db.engine import retry, session
from gantt.db.hosts import aggregates, declared, providers, reports, rows
from gantt.db.hosts.hosts import Hosts
from gantt.db.records import audit, decisions, feed, history, purge, table_log
from gantt.db.schema import migration, models
from gantt.db.stores.host_store import HostStore
from gantt.db.stores.nova_store import NovaStore
from gantt.db.stores.operator_store import OperatorStore
from gantt.db.stores.shadow import ShadowStore
from gantt.scheduler.ports import (
    ClaimResult,
    Everything,
    Feed,
    Gap,
    ReportResult,
    RequestLine,
    StoredRequest,
)

T = TypeVar('T')

#: Connections for reading that stay open while nobody uses them.
READERS_KEPT = 4

_c = models.claims


def connect(conf: Any) -> 'SqlStore':
    """The store that ``[database]`` describes.

    :raises Misconfigured: no connection url, or one that is not understood
    :raises DatabaseNotSynced: the schema is older or newer than the code
    :raises DatabaseUnavailable: it does not answer
    """
    engine = session.engine_from_conf(conf)
    migration.check(engine)
    options = conf.database
    policy = retry.Policy(
        attempts=options.transaction_attempts, seconds=options.transaction_seconds
    )
    return SqlStore(engine, policy)


class SqlStore(NovaStore, HostStore, OperatorStore, ShadowStore):
    """The ``Store`` port on SQLite, PostgreSQL or MariaDB.

    What it remembers is a cache; any number of stores may share a database.
    """

    def __init__(
        self,
        engine: sa.Engine,
        policy: retry.Policy | None = None,
        *,
        report_seconds: int = 60,
        fast: bool = True,
    ) -> None:
        self.database = session.Database(engine, policy)
        #: What only reads locks nothing that others wait for.
        self.reads = session.Database(
            engine, policy, READERS_KEPT, session.unhurried(session.family(engine))
        )
        self.locks = locks.Locks(engine)
        self.memory = rows.Memory()
        self._report_seconds = report_seconds
        self._cursor = purge.Cursor()
        self._sweeper = sweeping.Sweeper(self._change_or_locked, self.locks)
        kind: type[ledger.Ledger] = ledger.Ledger
        #: Where batches are committed.
        self.commits = self.database
        if fast and commit_postgresql.is_for(engine):
            kind = commit_postgresql.FastLedger
            self.commits = session.Database(engine, policy, 2, commit_postgresql.GREETING)
        self.ledger = kind(self.memory)

    @classmethod
    def for_url(cls, url: str, *, waits: session.Waits | None = None, **options: Any) -> 'SqlStore':
        """A store on ``url``; an SQLite file that is not there yet is made and synced.

        :param waits: bounds of its connections; None: the defaults of ``[database]``
        :param options: as the store's own
        :raises DatabaseNotSynced: a database that is there has another schema
        """
        engine = session.build_engine(url, waits=waits)
        if session.family(engine) == 'sqlite' and migration.current(engine) is None:
            migration.sync(engine)
        migration.check(engine)
        return cls(engine, **options)

    @property
    def engine(self) -> sa.Engine:
        """For migrations and tests."""
        return self.database.engine

    def close(self) -> None:
        """Close its connections."""
        self.commits.close()
        self.reads.close()
        self.locks.close()
        self.database.close()
        self.engine.dispose()

    # -- how every method runs ------------------------------------------------------
    def _change(self, work: Callable[[claims.Changes], T]) -> T:
        return self.database.write(lambda tx: work(self._changes(tx)))

    def _change_once(self, work: Callable[[claims.Changes], T]) -> T:
        """The same for who cannot wait for long: rows that stay locked are waited for once."""
        try:
            return self._change_or_locked(work)
        except retry.Locked as e:
            raise retry.busy() from e

    def _change_or_locked(self, work: Callable[[claims.Changes], T]) -> T:
        return self.database.write(lambda tx: work(self._changes(tx)), once_locked=True)

    def _changes(self, tx: session.Tx) -> claims.Changes:
        return claims.Changes(tx, self.memory)

    def _hosts(self, tx: session.Tx) -> Hosts:
        return Hosts(tx, self.memory)

    # -- the group commit and the life of requests ------------------------------------
    def commit(self, batch: Sequence[RequestDraft]) -> CommitResult:
        """See the port."""
        return self.locks.commit(self.ledger, self.commits, batch)

    def give_up(self, request_id: str, owner: str, attempt: int) -> ClaimResult:
        """See the port."""
        return self._change_once(lambda c: requests.give_up(c, request_id, owner, attempt))

    def load_request(self, request_id: str) -> StoredRequest | None:
        """See the port."""
        if not _is_id(request_id):
            return None
        return self.reads.read(lambda tx: requests.load(self._changes(tx), request_id))

    def bar_request(self, request_id: str, fingerprint: str, answer: bytes) -> StoredRequest | None:
        """See the port."""
        return self._change_once(lambda c: requests.bar(c, request_id, fingerprint, answer))

    def cancel_request(self, request_id: str, reason: str) -> tuple[StoredRequest, ClaimResult]:
        """See the port."""
        return self._change(lambda c: requests.cancel(c, request_id, reason))

    def extend_request(
        self, request_id: str, seconds: float, most: float, most_of_plans: float | None = None
    ) -> ClaimResult:
        """See the port."""
        return self._change(lambda c: requests.extend(c, request_id, seconds, most, most_of_plans))

    # -- hosts --------------------------------------------------------------------------
    def register_host(self, message: RegisterHost) -> Registration:
        """See the port."""
        (found,) = self.register_hosts([message])
        if isinstance(found, exceptions.GanttError):
            raise found
        return found

    def register_hosts(self, messages: Sequence[RegisterHost]) -> list[RegistrationFate]:
        """See the port."""
        return self.locks.around(
            lambda aside: self.database.write(
                lambda tx: self._hosts(tx).register(messages, self._report_seconds, aside),
                once_locked=True,
            )
        )

    def apply_reports(self, batch: Sequence[HostReport]) -> ReportResult:
        """See the port."""
        fold = reports.Fold(batch)
        return self.locks.around(
            lambda aside: self.database.write(
                lambda tx: fold.run(self._changes(tx), self._hosts(tx), aside), once_locked=True
            )
        )

    def _of_host(
        self, words: ClaimWords, work: Callable[[claims.Changes, ClaimWords], ClaimResult]
    ) -> ClaimResult:
        return self.locks.one(words.name, lambda: self._change_or_locked(lambda c: work(c, words)))

    def confirm_claims(self, words: ClaimWords) -> ClaimResult:
        """See the port."""
        return self._of_host(words, claims.confirm)

    def refuse_claims(self, words: ClaimWords) -> ClaimResult:
        """See the port."""
        return self._of_host(words, claims.refuse)

    def release_claims(self, words: ClaimWords) -> ClaimResult:
        """See the port."""
        return self._of_host(words, claims.release)

    def sweep(self, limit: int) -> ClaimResult:
        """See the port."""
        return self._sweeper.sweep(limit)

    # -- for operators --------------------------------------------------------------------
    def force_release(self, claim_id: str, reason: str) -> ClaimResult:
        """See the port."""
        return self._change(lambda c: claims.force(c, claim_id, reason))

    def save_aggregate(
        self,
        name: str,
        metadata: dict[str, str | None],
        hosts: list[str] | None,
        uuid: str | None = None,
    ) -> Aggregate:
        """See the port."""
        return self.database.write(
            lambda tx: aggregates.save(self._hosts(tx), name, metadata, hosts, uuid)
        )

    def remove_aggregate(self, name: str) -> None:
        """See the port."""
        self.database.write(lambda tx: aggregates.remove(self._hosts(tx), name))

    def save_group(self, group: Group) -> Group:
        """See the port."""
        return self.database.write(lambda tx: groups.save(tx, group))

    def remove_group(self, uuid: str) -> None:
        """See the port."""
        self.database.write(lambda tx: groups.remove(tx, uuid))

    def declare_class(self, name: str) -> None:
        """See the port."""
        if not resource_classes.is_class_name(name):
            raise exceptions.UnknownResourceClass(field='name', name=name)
        self.database.write(lambda tx: providers.Ids(tx, models.resource_classes).of([name]))

    def declared_classes(self) -> frozenset[str]:
        """See the port."""
        return self.reads.read(lambda tx: frozenset(row.name for row in tx.all(feed.CLASSES)))

    def save_metric(self, metric: DeclaredMetric) -> DeclaredMetric:
        """See the port."""
        return self.database.write(lambda tx: declared.save(tx, metric))

    def remove_metric(self, name: str) -> None:
        """See the port."""
        self.database.write(lambda tx: declared.remove(tx, name))

    def declared_metrics(self) -> list[DeclaredMetric]:
        """See the port."""
        return self.reads.read(declared.load)

    # -- quotas of projects ---------------------------------------------------------------
    def quotas(self) -> list[Limit]:
        """See the port."""
        return self.reads.read(quotas.load)

    def set_quotas(self, project: str, limits: Mapping[str, int | None]) -> None:
        """See the port."""
        self.database.write(lambda tx: quotas.save(tx, project, limits))

    def quota_usage(
        self, projects: Collection[str], classes: Collection[str] = ()
    ) -> dict[str, Usage]:
        """See the port."""
        return self.reads.read(lambda tx: quotas.usage(tx, projects, classes))

    def count_groups(self, project: str) -> int:
        """See the port."""
        return self.reads.read(lambda tx: quotas.count_groups(tx, project))

    # -- reading --------------------------------------------------------------------------
    @property
    def connections_lost(self) -> int:
        """See the port."""
        return self.database.lost + (self.commits.lost if self.commits is not self.database else 0)

    def load_everything(self) -> Everything:
        """See the port."""
        return self.reads.read(lambda tx: feed.load_everything(tx, self.memory), patient=True)

    def poll(self, position: int, known: dict[int, int], gaps: Sequence[Gap] = ()) -> Feed:
        """See the port."""
        found, behind = self.reads.read(
            lambda tx: feed.poll(tx, self.memory, position, known, gaps)
        )
        if behind:
            # In a transaction that begins after these were known.
            # The cache may forget a removed host meanwhile.
            before = {pid: seen for pid in behind if (seen := known.get(pid)) is not None}
            if self.reads.read(lambda tx: feed.is_behind(tx, before)):
                return msgspec.structs.replace(found, went_back=True)
        old = [gap for gap in found.gaps if found.now - gap.since > feed.DRAWN_SECONDS]
        if old and self.database.kind == 'mysql':
            ended = self.reads.read(lambda tx: feed.ended(tx, old, found.now))
            found = msgspec.structs.replace(found, gaps=feed.less(found.gaps, ended))
        return found

    def compare(self, known: dict[int, int]) -> Feed:
        """See the port."""
        return self.reads.read(lambda tx: feed.compare(tx, self.memory, known), patient=True)

    def load_group(self, uuid: str) -> Group | None:
        """See the port."""
        return self.reads.read(lambda tx: groups.load(tx, uuid)) if _is_id(uuid) else None

    def read_groups(
        self, uuids: Collection[str], beside: Collection[int] = ()
    ) -> tuple[dict[str, GroupRule], list[HostChange]]:
        """See the port."""
        return self.reads.read(lambda tx: feed.read_groups(tx, self.memory, uuids, beside))

    def groups(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[Group]:
        """See the port."""
        return self.reads.read(lambda tx: groups.page(tx, limit, marker, project))

    def claims(
        self,
        *,
        state: str | None = None,
        host: str | None = None,
        consumer: str | None = None,
        request_id: str | None = None,
        limit: int = 100,
        marker: str | None = None,
        project: str | None = None,
    ) -> list[Claim]:
        """See the port."""
        where: list[Any] = []
        for column, value in (
            (_c.c.state, state),
            (_c.c.consumer, consumer),
            (_c.c.request_id, request_id),
        ):
            if value is not None:
                if not _is_id(value):
                    return []
                where.append(column == value)
        if host is not None:
            where.append(models.providers.c.name == host)
        if project is not None:
            where.append(models.consumers.c.project_id == project)
        if marker is not None:
            where.append(_c.c.id > marker)
        return self.reads.read(lambda tx: claims.load_claims(tx, where=where, limit=limit))

    def requests(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[RequestLine]:
        """See the port."""
        return self.reads.read(lambda tx: requests.lines(tx, limit, marker, project))

    def live_claims_of(self, consumers: Collection[str]) -> list[Claim]:
        """See the port."""
        wanted = sorted(filter(_is_id, set(consumers)))
        if not wanted:
            return []
        among = [_c.c.consumer.in_(wanted)]
        return self.database.read(lambda tx: claims.load_claims(tx, live=True, where=among))

    def load_claim(self, claim_id: str) -> Claim | None:
        """See the port."""
        if not _is_id(claim_id):
            return None
        found = self.reads.read(lambda tx: claims.load_claims(tx, ids=[claim_id]))
        return found[0] if found else None

    def audit(self) -> dict[str, list[str]]:
        """See the port."""
        return self.reads.read(audit.run, patient=True)

    # -- decisions --------------------------------------------------------------------------
    def save_decisions(self, records: Sequence[DecisionRecord]) -> None:
        """See the port."""
        self.database.write(lambda tx: decisions.keep(tx, records))

    def load_decision(
        self, id_or_request: str, project: str | None = None
    ) -> tuple[bytes, bytes, float] | None:
        """See the port."""
        return self.reads.read(lambda tx: decisions.load(tx, id_or_request, project))

    def decisions(
        self,
        *,
        outcome: str | None = None,
        project: str | None = None,
        limit: int = 100,
        marker: str | None = None,
        consumer: str | None = None,
    ) -> list[DecisionRecord]:
        """See the port."""
        return self.reads.read(
            lambda tx: decisions.page(tx, outcome, project, limit, marker, consumer)
        )

    def history(self, *, seconds: float, parts: int, most: int) -> History:
        """See the port."""
        return self.reads.read(lambda tx: history.read(tx, seconds, parts, most), patient=True)

    def count_claims(self) -> ClaimCounts:
        """See the port."""
        return self.reads.read(history.count_claims, patient=True)

    def purge(
        self,
        *,
        decisions: int,
        tombstone_seconds: float,
        request_seconds: float,
        limit: int,
        again: bool = False,
        decision_bytes: int | None = None,
    ) -> int:
        """See the port."""
        return self.database.write(
            lambda tx: purge.run(
                tx,
                self._cursor,
                kept=decisions,
                tombstone_seconds=tombstone_seconds,
                request_seconds=request_seconds,
                limit=limit,
                again=again,
                kept_bytes=decision_bytes,
            ),
            patient=True,
        )

    @property
    def is_purged(self) -> bool:
        """Whether purges have come by all requests and claims, and found nothing to take."""
        return self._cursor.is_done

    # -- the change logs of host tables ------------------------------------------------------
    def save_table_log(
        self, worker: str, first: int, last: int, checkpoint: bool, chunks: list[bytes]
    ) -> None:
        """See the port."""
        self.database.write(lambda tx: table_log.save(tx, worker, first, last, checkpoint, chunks))

    def load_table_log(self, worker: str, position: int) -> list[list[bytes]]:
        """See the port."""
        return self.reads.read(lambda tx: table_log.load(tx, worker, position))

    def purge_table_log(self, keep_seconds: float) -> int:
        """See the port."""
        return self.database.write(lambda tx: table_log.purge(tx, keep_seconds))

    def silent_for(self) -> float:
        """See the port."""
        return self.database.silent_for()

    def check_rights(self) -> None:
        """Whether the user may write every table; nothing is written, no row is locked.

        :raises DatabaseUnavailable: it may not; names a table
        """
        self.database.write(_touch_all)

    def ping(self) -> float:
        """See the port."""
        return self.reads.read(lambda tx: tx.now)


def _touch_all(tx: session.Tx) -> None:
    # The server looks at the rights of a statement before it looks for rows.
    for table in models.metadata.sorted_tables:
        columns = list(table.columns)
        tx.run(sa.insert(table).from_select(columns, sa.select(table).where(sa.false())))
        tx.run(sa.update(table).values({columns[0]: columns[0]}).where(sa.false()))
        tx.run(sa.delete(table).where(sa.false()))


def _is_id(text: str) -> bool:
    """Whether an id could be stored at all: ids are ASCII, of bounded length."""
    return text.isascii() and 0 < len(text) <= 64 and '\x00' not in text
