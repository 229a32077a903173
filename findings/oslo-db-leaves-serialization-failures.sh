#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# oslo.db 18.1.1 with SQLAlchemy 2.1.9 and psycopg 3.3.9 on PostgreSQL 16.2: of two transactions at
# the level SERIALIZABLE that write the same row the later one fails with SQLSTATE 40001, which means
# that it may be run again.  oslo.db turns a deadlock into DBDeadlock and a row that is there twice
# into DBDuplicateEntry, but this error into none of its own: it stays an OperationalError of
# SQLAlchemy.  So wrap_db_retry(retry_on_deadlock=True), which is meant to run such a transaction
# again, runs it once, whatever its number of retries.
# Ends with 0 where all of that is so still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install \
    'pgserver==0.1.4' 'psycopg[binary]==3.3.9' 'SQLAlchemy==2.1.9' 'oslo.db==18.1.1'
cd "$folder"
XDG_RUNTIME_DIR="$folder" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import pgserver
import sqlalchemy as sa
from oslo_db import api, exception
from oslo_db.sqlalchemy import enginefacade

with pgserver.get_server('data', cleanup_mode='stop') as server:
    facade = enginefacade.transaction_context()
    facade.configure(connection=server.get_uri().replace('postgresql://', 'postgresql+psycopg://'))
    engine = facade.writer.get_engine()
    with engine.begin() as connection:
        connection.exec_driver_sql('CREATE TABLE hosts (id int PRIMARY KEY, used int)')
        connection.exec_driver_sql('INSERT INTO hosts VALUES (1, 0)')

    def transaction():
        return engine.connect().execution_options(isolation_level='SERIALIZABLE')

    runs = []

    @api.wrap_db_retry(max_retries=3, retry_interval=0.01, retry_on_deadlock=True)
    def take():
        """Take a unit of the host while another transaction does the same."""
        runs.append(1)
        with transaction() as late, transaction() as early:
            for connection in (late, early):
                connection.exec_driver_sql('SELECT used FROM hosts').all()
            early.exec_driver_sql('UPDATE hosts SET used = used + 1')
            early.commit()
            late.exec_driver_sql('UPDATE hosts SET used = used + 1')
            late.commit()

    try:
        take()
    except Exception as e:
        error = e
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql('INSERT INTO hosts VALUES (1, 0)')
    except Exception as e:
        double = e
    engine.dispose()
print(f'serialization failure: {type(error).__name__}, runs: {len(runs)}')
print(f'duplicate: {type(double).__name__}')
assert error.orig.sqlstate == '40001'
assert type(error) is sa.exc.OperationalError and len(runs) == 1, 'it is retried now'
assert isinstance(double, exception.DBDuplicateEntry)
PYTHON
