# SPDX-License-Identifier: Apache-2.0
"""A transaction of PostgreSQL that says nothing is ended, whatever it said last.

The server counts from its answer to the last Sync on; a message after that, which
psycopg's pipelines end with, would stop the clock and start no other.
"""

import contextlib
import time

import pytest
import sqlalchemy as sa

from gantt.db.engine import pipelines, session

pytestmark = [pytest.mark.postgresql]


def in_a_pipeline(connection, raw):
    with raw.pipeline():
        raw.execute('SELECT 1')
        raw.execute('SELECT 2')


def a_pipeline_whose_rows_are_read(connection, raw):
    with raw.pipeline():
        assert raw.execute('SELECT 1').fetchall() == [(1,)]


def many(connection, raw):
    cursor = raw.cursor()
    cursor.executemany('SELECT 1 WHERE %s > 0', [(1,), (2,), (3,)])


def one(connection, raw):
    connection.exec_driver_sql('SELECT 1')


@pytest.mark.parametrize('say', [one, many, in_a_pipeline, a_pipeline_whose_rows_are_read])
def test_a_transaction_that_says_no_more_is_ended(postgresql_url, say):
    engine = session.build_engine(postgresql_url, waits=session.Waits(idle_transaction=1))
    watching = session.build_engine(postgresql_url)
    with contextlib.ExitStack() as closing:
        closing.callback(watching.dispose)
        closing.callback(engine.dispose)
        connection = closing.enter_context(contextlib.closing(engine.connect()))
        raw = connection.connection.driver_connection
        assert isinstance(raw, pipelines.PipelinedConnection)
        pid = connection.exec_driver_sql('SELECT pg_backend_pid()').scalar_one()
        say(connection, raw)
        there = sa.text('SELECT 1 FROM pg_stat_activity WHERE pid = :pid')
        end = time.monotonic() + 20
        while True:
            with watching.connect() as other:
                if other.execute(there, {'pid': pid}).first() is None:
                    break
            assert time.monotonic() < end, 'the server lets it be'
            time.sleep(0.1)
        connection.invalidate()


def test_an_error_inside_of_a_pipeline_comes_out_of_it(postgresql_url):
    import psycopg

    engine = session.build_engine(postgresql_url)
    with contextlib.closing(engine.connect()) as connection:
        raw = connection.connection.driver_connection
        with pytest.raises(psycopg.errors.DivisionByZero), raw.pipeline():
            raw.execute('SELECT 1 / 0')
        raw.rollback()
        assert connection.exec_driver_sql('SELECT 7').scalar_one() == 7
    engine.dispose()
