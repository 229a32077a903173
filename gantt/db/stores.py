# SPDX-License-Identifier: Apache-2.0
"""The stores that a process opens, composed of the rest of ``gantt.db``: all on one database."""

import dataclasses
from typing import Any

import sqlalchemy as sa

from gantt.db.claims.group_plans import SqlGroupPlans
from gantt.db.claims.groups import SqlGroups
from gantt.db.claims.locks import Locks
from gantt.db.claims.quotas import SqlQuotas
from gantt.db.claims.requests import SqlRequests
from gantt.db.claims.transitions import SqlClaims
from gantt.db.database import Database
from gantt.db.engine import retry, session
from gantt.db.hosts.administration import SqlHosts
from gantt.db.hosts.declared import SqlDeclarations
from gantt.db.hosts.nova_hosts import SqlNova
from gantt.db.hosts.reports import SqlReports
from gantt.db.placement.allocations import SqlAllocations
from gantt.db.placement.candidates import SqlCandidates
from gantt.db.placement.dry_runs import SqlDryRuns
from gantt.db.placement.providers import SqlProviders
from gantt.db.placement.vocabulary import SqlVocabulary
from gantt.db.records.decisions import SqlRecords
from gantt.db.records.feed import SqlChangeFeed
from gantt.db.records.purge import SqlRetention
from gantt.db.records.services import SqlServices
from gantt.db.records.shadow import SqlShadows
from gantt.db.records.table_log import SqlTableLogs
from gantt.db.schema import migration
from gantt.db.zones.changes import SqlZoneClaims
from gantt.db.zones.figures import SqlZoneFigures
from gantt.db.zones.orders import SqlAllocationOrders
from gantt.db.zones.records import SqlZoneRequests, SqlZones
from gantt.db.zones.zone_releases import SqlZoneReleases
from gantt.scheduler.ports import Stores


@dataclasses.dataclass(frozen=True, kw_only=True)
class SqlStores(Stores):
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
    locks = Locks(database)
    return SqlStores(
        database=database,
        requests=SqlRequests(database, locks),
        claims=SqlClaims(database, locks),
        reports=SqlReports(database, locks, report_seconds),
        hosts=SqlHosts(database),
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


def stores_for_url(url: str, *, waits: session.Waits | None = None, **options: Any) -> SqlStores:
    """Return stores on ``url``; an absent SQLite file is created and synced.

    :param waits: bounds of its connections; None: the defaults of ``[database]``
    :param options: as of ``sql_stores``
    :raises DatabaseNotSynced: an existing database has another schema
    """
    engine = session.build_engine(url, waits=waits)
    if session.family(engine) == 'sqlite' and migration.current(engine) is None:
        migration.sync(engine)
    migration.check(engine)
    return sql_stores(engine, **options)
