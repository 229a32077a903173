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
    engine = session.build_engine(postgresql_url, timeouts=session.Timeouts(idle_transaction=1))
    watching = session.build_engine(postgresql_url)
    with contextlib.ExitStack() as closing:
        closing.callback(watching.dispose)
        closing.callback(engine.dispose)
        connection = closing.enter_context(contextlib.closing(engine.connect()))
        raw = connection.connection.driver_connection
        assert isinstance(raw, pipelines.PipelinedConnection)
        pid = connection.exec_driver_sql('SELECT pg_backend_pid()').scalar_one()
        say(connection, raw)
        query = sa.text('SELECT 1 FROM pg_stat_activity WHERE pid = :pid')
        end = time.monotonic() + 20
        while True:
            with watching.connect() as other:
                if other.execute(query, {'pid': pid}).first() is None:
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


@pytest.fixture
def raw(postgresql_url):
    """psycopg's own connection, and a table of nobody else's."""
    engine = session.build_engine(postgresql_url)
    with contextlib.closing(engine.connect()) as connection:
        raw = connection.connection.driver_connection
        raw.execute('CREATE TEMPORARY TABLE kept (number int PRIMARY KEY)')
        raw.commit()
        yield raw
        raw.rollback()
    engine.dispose()


def kept(raw):
    rows = raw.execute('SELECT number FROM kept ORDER BY number').fetchall()
    raw.rollback()
    return [number for (number,) in rows]


def test_a_pipeline_is_one_transaction_from_its_first_statement(raw):
    with pytest.raises(pipelines.psycopg.errors.UniqueViolation), raw.pipeline():
        raw.execute('INSERT INTO kept VALUES (1)')
        raw.execute('INSERT INTO kept VALUES (1)')
    raw.rollback()
    assert kept(raw) == []


def test_what_a_pipeline_commits_stays_and_what_follows_does_not(raw):
    with raw.pipeline():
        raw.execute('INSERT INTO kept VALUES (1)')
        raw.commit()
        raw.execute('INSERT INTO kept VALUES (2)')
    raw.rollback()
    assert kept(raw) == [1]


def test_a_pipeline_that_is_rolled_back_inside_begins_again(raw):
    with raw.pipeline():
        raw.execute('INSERT INTO kept VALUES (1)')
        raw.rollback()
        raw.execute('INSERT INTO kept VALUES (2)')
        raw.commit()
    assert kept(raw) == [2]


def test_a_commit_behind_a_statement_that_failed_commits_nothing(raw):
    with pytest.raises(pipelines.psycopg.errors.DivisionByZero), raw.pipeline():
        raw.execute('INSERT INTO kept VALUES (1)')
        raw.execute('SELECT 1 / 0')
        raw.commit()
    raw.rollback()
    assert kept(raw) == []


def test_statements_stay_prepared_over_a_rollback(raw):
    def run():
        raw.execute('INSERT INTO kept VALUES (%s)', [1], prepare=True)

    run()
    raw.rollback()
    run()
    prepared = raw.execute('SELECT statement FROM pg_prepared_statements').fetchall()
    assert [text for (text,) in prepared if 'INSERT' in text] == ['INSERT INTO kept VALUES ($1)']
    raw.commit()
    assert kept(raw) == [1]


def test_one_that_was_not_prepared_in_the_end_is_prepared_again(raw):
    with pytest.raises(pipelines.psycopg.errors.DivisionByZero), raw.pipeline():
        raw.execute('SELECT 1 / 0')
        raw.execute('INSERT INTO kept VALUES (%s)', [1], prepare=True)
    raw.rollback()
    raw.execute('INSERT INTO kept VALUES (%s)', [2], prepare=True)
    raw.commit()
    assert kept(raw) == [2]


def test_any_number_of_statements_go_through_one_pipeline(raw):
    with raw.pipeline():
        for number in range(700):
            raw.execute('INSERT INTO kept VALUES (%s)', [number], prepare=True)
        raw.commit()
    assert kept(raw) == list(range(700))


def test_any_number_of_rows_are_written_by_one_statement(raw):
    raw.cursor().executemany('INSERT INTO kept VALUES (%s)', [(number,) for number in range(700)])
    raw.commit()
    assert kept(raw) == list(range(700))


def test_a_statement_that_is_larger_than_the_sockets_buffers_is_sent_whole(raw):
    text = 'x' * 8_000_000
    with raw.pipeline():
        raw.execute('INSERT INTO kept VALUES (%s)', [1])
        length = raw.execute('SELECT length(%s), %s', [text, text])
        raw.commit()
    assert length.fetchone() == (len(text), text)
    assert kept(raw) == [1]


def test_what_a_later_pipeline_commits_stays(raw):
    with raw.pipeline():
        raw.execute('INSERT INTO kept VALUES (1)')
    with raw.pipeline():
        raw.execute('INSERT INTO kept VALUES (2)')
        raw.commit()
        raw.execute('INSERT INTO kept VALUES (3)')
    raw.rollback()
    assert kept(raw) == [1, 2]


def test_a_cursor_that_is_kept_has_the_rows_of_its_last_execution(raw):
    import psycopg

    statement = b'SELECT 12 / %s::int, %s::text'
    for number, text in ((3, 'three'), (2, None)):
        with raw.pipeline():
            cursor = raw.cursor_of(statement).execute(statement, [number, text], prepare=True)
        assert cursor.fetchall() == [(12 // number, text)]
    with pytest.raises(psycopg.errors.DivisionByZero), raw.pipeline():
        raw.cursor_of(statement).execute(statement, [0, 'zero'], prepare=True)
    raw.rollback()
    assert raw.cursor_of(statement).execute(statement, [4, 'four']).fetchall() == [(3, 'four')]
