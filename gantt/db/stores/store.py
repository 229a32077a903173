# SPDX-License-Identifier: Apache-2.0
"""The store that a process opens: all stores of one concept, on one database."""

from typing import Any

import sqlalchemy as sa

from gantt.db.claims.group_plans import SqlGroupPlans
from gantt.db.claims.groups import SqlGroups
from gantt.db.claims.quotas import SqlQuotas
from gantt.db.claims.requests import SqlRequests
from gantt.db.claims.transitions import SqlClaims
from gantt.db.engine import retry, session
from gantt.db.engine.session import writing
from gantt.db.hosts.administration import HostAdministration
from gantt.db.hosts.declared import SqlDeclarations
from gantt.db.hosts.nova_hosts import NovaHosts
from gantt.db.hosts.reports import SqlReports
from gantt.db.placement.candidates import SqlCandidates
from gantt.db.placement.dry_runs import SqlPlacement
from gantt.db.records.audit import Audit
from gantt.db.records.decisions import SqlDecisions
from gantt.db.records.feed import SqlChangeFeed
from gantt.db.records.history import SqlActivity
from gantt.db.records.purge import Purge
from gantt.db.records.services import SqlServices
from gantt.db.records.shadow import Shadows
from gantt.db.records.table_log import SqlTableLogs
from gantt.db.schema import migration, models
from gantt.db.zones.changes import SqlZoneChanges
from gantt.db.zones.figures import SqlZoneFigures
from gantt.db.zones.give_backs import SqlGiveBacks
from gantt.db.zones.orders import SqlAllocationOrders


def connect(conf: Any) -> 'SqlStore':
    """Return the store that ``[database]`` describes.

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
    return SqlStore(engine, policy)


class SqlStore(
    SqlAllocationOrders,
    SqlZoneChanges,
    SqlGiveBacks,
    SqlZoneFigures,
    SqlRequests,
    SqlClaims,
    SqlGroupPlans,
    SqlGroups,
    SqlQuotas,
    SqlReports,
    NovaHosts,
    HostAdministration,
    SqlPlacement,
    SqlDeclarations,
    SqlChangeFeed,
    SqlCandidates,
    SqlDecisions,
    SqlActivity,
    Audit,
    Purge,
    SqlServices,
    Shadows,
    SqlTableLogs,
):
    """The ``Store`` port on SQLite, PostgreSQL or MariaDB.

    Options are those of its parts: ``report_seconds`` and ``fast``.
    """

    @classmethod
    def for_url(cls, url: str, *, waits: session.Waits | None = None, **options: Any) -> 'SqlStore':
        """Return a store on ``url``; an absent SQLite file is created and synced.

        :param waits: bounds of its connections; None: the defaults of ``[database]``
        :param options: as the store's own
        :raises DatabaseNotSynced: an existing database has another schema
        """
        engine = session.build_engine(url, waits=waits)
        if session.family(engine) == 'sqlite' and migration.current(engine) is None:
            migration.sync(engine)
        migration.check(engine)
        return cls(engine, **options)

    @writing
    def check_rights(self, tx: session.Tx) -> None:
        """Check that the user may write every table; nothing is written, no row is locked.

        :raises DatabaseUnavailable: it may not; names a table
        """
        # The server checks the rights of a statement before it reads rows.
        for table in models.metadata.sorted_tables:
            columns = list(table.columns)
            tx.run(sa.insert(table).from_select(columns, sa.select(table).where(sa.false())))
            tx.run(sa.update(table).values({columns[0]: columns[0]}).where(sa.false()))
            tx.run(sa.delete(table).where(sa.false()))
