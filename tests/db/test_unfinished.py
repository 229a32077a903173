# SPDX-License-Identifier: Apache-2.0
"""A transaction that was sent half keeps its rows locked until somebody ends it: of ours alone."""

import time

import psycopg
import pytest
import sqlalchemy as sa

from gantt.db.engine.engine import Timeouts
from tests.builders import a_host

pytestmark = pytest.mark.postgresql
IDLE = 0.3


@pytest.fixture
def store(make_store):
    opened = make_store('postgresql', timeouts=Timeouts(idle_transaction=IDLE))
    a_host().on(opened)
    return opened


@pytest.fixture
def half_sent(store):
    """``half_sent(name, statement)``: a pipeline without its end; the process id of its server."""
    connections = []

    def send(name: str, statement: bytes) -> int:
        url = store.database.engine.url.set(drivername='postgresql').render_as_string(
            hide_password=False
        )
        connection = psycopg.connect(url, application_name=name)
        connections.append(connection)
        driver = connection.pgconn
        driver.enter_pipeline_mode()
        for text in (b'BEGIN', statement):
            driver.send_query_params(text, None)
        driver.send_flush_request()
        driver.flush()
        return driver.backend_pid

    yield send
    for connection in connections:
        connection.close()


def is_there(store, pid: int) -> bool:
    query = sa.text('SELECT count(*) FROM pg_stat_activity WHERE pid = :pid')
    with store.database.engine.connect() as connection:
        return bool(connection.execute(query, {'pid': pid}).scalar())


LOCKS = b'SELECT id FROM providers FOR UPDATE'
READS = b'SELECT id FROM providers'


@pytest.mark.parametrize(
    ('name', 'statement', 'ends'),
    [
        ('gantt:4711', LOCKS, True),
        ('psql', LOCKS, False),
        ('gantt:4711', READS, False),
    ],
)
def test_who_stands_still_in_a_pipeline_is_ended(store, half_sent, name, statement, ends):
    pid = half_sent(name, statement)
    store.requests._locks._end_unfinished()
    assert is_there(store, pid), 'it may say more in time'
    time.sleep(2 * IDLE)
    store.requests._locks._end_unfinished()
    until = time.monotonic() + (20 if ends else 0.5)
    while is_there(store, pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert is_there(store, pid) is not ends
