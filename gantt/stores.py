# SPDX-License-Identifier: Apache-2.0
"""The stores that a process opens, of the base and of all capabilities: all on one database."""

import dataclasses
from typing import Any

import sqlalchemy as sa

from gantt.db.claims.child_claims import SqlChildClaims
from gantt.db.claims.group_plans import SqlGroupPlans
from gantt.db.claims.groups import SqlGroups
from gantt.db.claims.locks import KnownLocks
from gantt.db.claims.quotas import SqlQuotas
from gantt.db.claims.requests import SqlRequests
from gantt.db.claims.transitions import SqlClaims
from gantt.db.database import Database
from gantt.db.engine import retry, session
from gantt.db.hosts.administration import SqlHosts
from gantt.db.hosts.candidates import SqlCandidates
from gantt.db.hosts.declared import SqlDeclarations
from gantt.db.hosts.reports import SqlReports
from gantt.db.hosts.vocabulary import SqlVocabulary
from gantt.db.records.decisions import SqlRecords
from gantt.db.records.feed import SqlChangeFeed
from gantt.db.records.purge import SqlRetention
from gantt.db.records.services import SqlServices
from gantt.db.records.shadow import SqlShadows
from gantt.db.records.table_log import SqlTableLogs
from gantt.db.schema import migration
from gantt.nova.ports import NovaStores
from gantt.nova.sql import SqlNova, extended_by_moves, move_events_seen
from gantt.placement_api.ports import ApiStores
from gantt.placement_api.sql.allocations import SqlAllocations
from gantt.placement_api.sql.dry_runs import SqlDryRuns
from gantt.placement_api.sql.providers import SqlProviders
from gantt.zones.ports import ZoneStores
from gantt.zones.sql.changes import SqlZoneClaims
from gantt.zones.sql.figures import SqlZoneFigures
from gantt.zones.sql.orders import SqlAllocationOrders
from gantt.zones.sql.records import SqlZoneRequests, SqlZones
from gantt.zones.sql.zone_releases import SqlZoneReleases


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllStores(NovaStores, ApiStores, ZoneStores):
    """The stores of the base and of all capabilities."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SqlStores(AllStores):
    """Stores on SQLite, PostgreSQL or MariaDB."""

    database: Database


def connect(conf: Any) -> SqlStores:
    """Return the stores on the database that ``[database]`` describes.

    :raises Misconfigured: no connection url, or an invalid one
    :raises DatabaseNotSynced: the schema is older or newer than the code
    :raises DatabaseUnavailable: the database does not answer
    """
    engine = session.engine_from_conf(conf)
    migration.check(engine)
    options = conf.database
    policy = retry.RetryPolicy(
        attempts=options.transaction_attempts, seconds=options.transaction_seconds
    )
    return sql_stores(engine, policy)


def sql_stores(
    engine: sa.Engine,
    policy: retry.RetryPolicy | None = None,
    *,
    fast: bool = True,
    report_seconds: int = 60,
) -> SqlStores:
    """Return stores on a synced database.

    :param fast: see ``Database``
    :param report_seconds: see ``SqlReports``
    """
    database = Database(engine, policy, fast=fast)
    locks = KnownLocks(database)
    return SqlStores(
        database=database,
        requests=SqlRequests(database, locks),
        claims=SqlClaims(database, locks, [extended_by_moves]),
        child_claims=SqlChildClaims(database),
        reports=SqlReports(database, locks, report_seconds),
        hosts=SqlHosts(database, [move_events_seen]),
        nova=SqlNova(database, locks),
        declarations=SqlDeclarations(database),
        providers=SqlProviders(database),
        vocabulary=SqlVocabulary(database),
        allocations=SqlAllocations(database),
        dry_runs=SqlDryRuns(database),
        candidates=SqlCandidates(database),
        groups=SqlGroups(database),
        plans=SqlGroupPlans(database),
        quotas=SqlQuotas(database),
        feed=SqlChangeFeed(database),
        records=SqlRecords(database),
        table_logs=SqlTableLogs(database),
        retention=SqlRetention(database),
        services=SqlServices(database),
        shadows=SqlShadows(database),
        zones=SqlZones(database),
        zone_requests=SqlZoneRequests(database),
        zone_claims=SqlZoneClaims(database),
        zone_figures=SqlZoneFigures(database),
        zone_releases=SqlZoneReleases(database),
        orders=SqlAllocationOrders(database),
    )


def stores_for_url(
    url: str, *, timeouts: session.Timeouts | None = None, **options: Any
) -> SqlStores:
    """Return stores on ``url``; an absent SQLite file is created and synced.

    :param timeouts: bounds of its connections; None: the defaults of ``[database]``
    :param options: as of ``sql_stores``
    :raises DatabaseNotSynced: an existing database has another schema
    """
    engine = session.build_engine(url, timeouts=timeouts)
    if session.family(engine) == 'sqlite' and migration.current(engine) is None:
        migration.sync(engine)
    migration.check(engine)
    return sql_stores(engine, **options)
