# SPDX-License-Identifier: Apache-2.0
"""Who keeps rows locked, as far as the server tells us."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from gantt.db.engine import session

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


def shown(tx: session.Tx, provider_ids: Sequence[int]) -> str:
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
