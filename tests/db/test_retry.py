# SPDX-License-Identifier: Apache-2.0
"""What errors mean: each one provoked on a real server."""

import socket
import threading
import time

import pytest
import sqlalchemy as sa

from gantt import exceptions
from gantt.db.engine import retry, session
from gantt.db.engine.retry import RetrySignal, signal_of

ROWS = sa.table('retry_rows', sa.column('id'), sa.column('n'))
LOCK = 'SELECT n FROM retry_rows WHERE id = {} FOR UPDATE'
SHORT = session.Timeouts(lock=1.0, idle_transaction=2)


@pytest.fixture(params=['postgresql', 'mysql'])
def engine(request):
    """A server with two rows."""
    built = session.build_engine(request.getfixturevalue(f'{request.param}_url'), timeouts=SHORT)
    with built.begin() as connection:
        connection.exec_driver_sql('CREATE TABLE retry_rows (id INT PRIMARY KEY, n INT)')
        connection.exec_driver_sql('INSERT INTO retry_rows VALUES (1, 0), (2, 0)')
    yield built
    with built.begin() as connection:
        connection.exec_driver_sql('DROP TABLE retry_rows')
    built.dispose()


def error_of(work):
    with pytest.raises(Exception) as caught:
        work()
    return caught.value


def kill(engine, connection):
    """End a session from outside, as a fail-over does."""
    if engine.dialect.name == 'postgresql':
        number = connection.exec_driver_sql('SELECT pg_backend_pid()').scalar_one()
        statement = f'SELECT pg_terminate_backend({number})'
    else:
        number = connection.exec_driver_sql('SELECT connection_id()').scalar_one()
        statement = f'KILL {number}'
    with engine.connect() as other:
        other.exec_driver_sql(statement)
    time.sleep(0.1)


def test_a_deadlock_is_a_conflict(engine):
    met = threading.Barrier(2)
    errors = []

    def cross(first, second):
        with engine.connect() as connection:
            try:
                if engine.dialect.name == 'postgresql':  # it looks for deadlocks after a second
                    connection.exec_driver_sql("SET lock_timeout = '15s'")
                connection.exec_driver_sql(LOCK.format(first))
                met.wait(5)
                connection.exec_driver_sql(LOCK.format(second))
            except Exception as e:
                errors.append(e)

    threads = [threading.Thread(target=cross, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors
    assert {signal_of(e) for e in errors} == {RetrySignal.CONFLICT}


def test_a_row_that_stays_locked_is_told_from_other_conflicts(engine):
    with engine.connect() as holder, engine.connect() as waiter:
        holder.exec_driver_sql(LOCK.format(1))
        started = time.monotonic()
        error = error_of(lambda: waiter.exec_driver_sql(LOCK.format(1)))
        assert time.monotonic() - started < 30, 'not until the statement ends'
    assert signal_of(error) is RetrySignal.LOCKED


@pytest.mark.parametrize('engine', ['postgresql'], indirect=True)  # MariaDB says deadlock
def test_a_serialization_failure_is_a_conflict(engine):
    with engine.connect() as reader, engine.connect() as writer:
        reader = reader.execution_options(isolation_level='REPEATABLE READ')
        reader.exec_driver_sql('SELECT n FROM retry_rows')
        writer.exec_driver_sql('UPDATE retry_rows SET n = n + 1 WHERE id = 1')
        writer.commit()
        error = error_of(
            lambda: reader.exec_driver_sql('UPDATE retry_rows SET n = n + 1 WHERE id = 1')
        )
    assert signal_of(error) is RetrySignal.CONFLICT


def test_a_session_that_was_ended_is_lost(engine):
    with engine.connect() as connection:
        kill(engine, connection)
        error = error_of(lambda: connection.exec_driver_sql(LOCK.format(1)))
        connection.invalidate()
    assert signal_of(error) is RetrySignal.LOST


def test_a_transaction_that_idles_is_ended_and_its_locks_are_free(engine):
    with engine.connect() as stopped, engine.connect() as other:
        stopped.exec_driver_sql(LOCK.format(1))
        time.sleep(2.5)
        assert other.exec_driver_sql(LOCK.format(1)).scalar_one() == 0
        error = error_of(lambda: stopped.exec_driver_sql(LOCK.format(2)))
        stopped.invalidate()
    assert signal_of(error) is RetrySignal.LOST


def test_nobody_at_the_address_is_lost():
    for url in ('postgresql+psycopg://x@127.0.0.1:1/x', 'mysql+pymysql://x@127.0.0.1:1/x'):
        engine = session.build_engine(url)
        assert signal_of(error_of(engine.connect)) is RetrySignal.LOST


@pytest.mark.parametrize(
    ('changes', 'correct'),
    [
        ({'username': 'nobody-of-that-name', 'password': 'wr0ng'}, 'the user'),
        ({'database': 'no_such_database'}, 'the name of the database'),
    ],
    ids=['user', 'database'],
)
@pytest.mark.parametrize('kind', ['postgresql', 'mysql'])
def test_a_server_that_refuses_us_is_told_from_one_that_is_away(request, kind, changes, correct):
    url = sa.make_url(request.getfixturevalue(f'{kind}_url')).set(**changes)
    engine = session.build_engine(url.render_as_string(hide_password=False))
    error = retry.unavailable(error_of(engine.connect))
    assert error.message.startswith('the database runs and refuses us: ')
    assert error.kwargs['correct'].startswith(correct)
    assert 'wr0ng' not in error.message
    away = session.build_engine(url.set(port=1).render_as_string(hide_password=False))
    error = retry.unavailable(error_of(away.connect))
    assert error.message.startswith('the database does not answer: ')
    assert 'correct' not in error.kwargs


@pytest.mark.parametrize('driver', ['postgresql+psycopg', 'mysql+pymysql'])
def test_a_server_that_says_nothing_holds_nobody(driver):
    with socket.socket() as silent:
        silent.bind(('127.0.0.1', 0))
        silent.listen()
        url = f'{driver}://x@127.0.0.1:{silent.getsockname()[1]}/x'
        engine = session.build_engine(url, timeouts=session.Timeouts(connect=2))
        started = time.monotonic()
        error = error_of(engine.connect)
    assert time.monotonic() - started < 60, 'the drivers alone wait for ever'
    assert signal_of(error) is RetrySignal.LOST


def test_what_is_asked_later_may_take_longer_than_the_handshake(mysql_url):
    waits = session.Timeouts(connect=1, statement=30)
    engine = session.build_engine(mysql_url, timeouts=waits)
    with engine.connect() as connection:
        assert connection.exec_driver_sql('SELECT SLEEP(1.5)').scalar_one() == 0
    engine.dispose()


def test_a_busy_sqlite_is_a_conflict(tmp_path):
    engine = session.build_engine(f'sqlite:///{tmp_path}/busy.db')
    with engine.connect() as holder, engine.connect() as waiter:
        waiter.exec_driver_sql('PRAGMA busy_timeout = 10')
        waiter.rollback()
        holder.exec_driver_sql('CREATE TABLE t (x)')
        error = error_of(lambda: waiter.exec_driver_sql('SELECT 1'))
    assert signal_of(error) is RetrySignal.CONFLICT


FULL = {
    'postgresql': [
        "DO $$ BEGIN RAISE 'could not extend file' USING ERRCODE = 'disk_full'; END $$",
    ],
    'mysql': [
        # A table in memory: really full, which is said of files with the same number.
        'INSERT INTO retry_full SELECT REPEAT(0, 200) FROM seq_1_to_1000',
        "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1021, MESSAGE_TEXT = 'Disk full'",
        "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1030, MESSAGE_TEXT = "
        '\'Got error 28 "No space left on device" from storage engine Aria\'',
        "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1026, MESSAGE_TEXT = "
        '\'Error writing file x (errno: 28 "No space left on device")\'',
    ],
}


def test_a_full_disk_is_told_as_such_and_not_tried_again(engine):
    database = session.Transactions(engine)
    calls = []

    def work(tx, statement):
        calls.append(1)
        tx.connection.exec_driver_sql('UPDATE retry_rows SET n = 7 WHERE id = 1')
        tx.connection.exec_driver_sql(statement)

    if engine.dialect.name == 'mysql':
        with engine.begin() as connection:
            connection.exec_driver_sql('SET SESSION max_heap_table_size = 16384')
            connection.exec_driver_sql('CREATE TABLE retry_full (x CHAR(200)) ENGINE = MEMORY')
    for statement in FULL[engine.dialect.name]:
        with pytest.raises(exceptions.DatabaseFull) as caught:
            database.write(lambda tx, statement=statement: work(tx, statement))
        assert 'nothing that was acknowledged is lost. Make room' in str(caught.value)
        # What it was told before in the same transaction is undone.
        read = sa.select(ROWS.c.n).where(ROWS.c.id == 1)
        assert database.read(lambda tx, read=read: tx.first(read)) == (0,)
    assert len(calls) == len(FULL[engine.dialect.name])
    if engine.dialect.name == 'mysql':
        with engine.begin() as connection:
            connection.exec_driver_sql('DROP TABLE retry_full')
    database.close()


@pytest.mark.parametrize('engine', ['mysql'], indirect=True)
def test_another_error_of_a_file_is_no_full_disk(engine):
    with engine.connect() as connection:
        error = error_of(
            lambda: connection.exec_driver_sql(
                "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1030, MESSAGE_TEXT = "
                "'Got error 128 from storage engine'"
            )
        )
    assert not retry.is_disk_full(error)


def test_a_full_sqlite_is_told_as_such(tmp_path):
    engine = session.build_engine(f'sqlite:///{tmp_path}/full.db')
    database = session.Transactions(engine)
    database.write(lambda tx: tx.connection.exec_driver_sql('CREATE TABLE t (x)') and None)

    def work(tx):
        tx.connection.exec_driver_sql('PRAGMA max_page_count = 3')
        tx.connection.exec_driver_sql('INSERT INTO t VALUES (zeroblob(100000))')

    with pytest.raises(exceptions.DatabaseFull, match='database or disk is full'):
        database.write(work)
    assert database.read(lambda tx: tx.all(sa.text('SELECT x FROM t'))) == []
    database.close()


def test_a_statement_that_is_wrong_is_not_tried_again(engine):
    calls = []

    def wrong(tx):
        calls.append(1)
        tx.connection.exec_driver_sql('SELECT nothing FROM nowhere')

    expected = exceptions.Bug, exceptions.DatabaseNotSynced
    with pytest.raises(expected, match='nowhere'):
        session.Transactions(engine).write(wrong)
    assert calls == [1]


def test_work_goes_on_where_its_session_was_ended(engine):
    database = session.Transactions(engine)
    attempts = []

    def work(tx):
        attempts.append(1)
        tx.connection.exec_driver_sql('UPDATE retry_rows SET n = n + 1 WHERE id = 1')
        if len(attempts) < 3:
            kill(engine, tx.connection)
        return tx.connection.exec_driver_sql('SELECT n FROM retry_rows WHERE id = 1').scalar_one()

    assert database.write(work) == 1
    assert len(attempts) == 3
    assert database.read(lambda tx: tx.all(sa.select(ROWS.c.n).order_by(ROWS.c.id))) == [(1,), (0,)]
    database.close()


@pytest.mark.parametrize('attempts', [1, 4])
def test_the_number_of_attempts_is_bounded(engine, attempts):
    database = session.Transactions(engine, retry.RetryPolicy(attempts=attempts))
    calls = []

    def work(tx):
        calls.append(1)
        raise retry.RetryTransaction('others were faster')

    with pytest.raises(exceptions.DatabaseUnavailable, match='others were faster'):
        database.write(work)
    assert len(calls) == attempts
    database.close()


def test_the_time_of_all_attempts_is_bounded(engine):
    database = session.Transactions(engine, retry.RetryPolicy(attempts=10_000, seconds=0.3))

    def work(tx):
        raise retry.RetryTransaction('others were faster')

    started = time.monotonic()
    with pytest.raises(exceptions.DatabaseUnavailable):
        database.write(work)
    assert 0.25 < time.monotonic() - started < 30
    database.close()


def test_an_answer_that_is_no_keeps_its_meaning_and_its_connection(engine):
    database = session.Transactions(engine)

    def work(tx):
        tx.connection.exec_driver_sql('UPDATE retry_rows SET n = 7 WHERE id = 1')
        raise exceptions.NotFound(kind='host', name='x')

    with pytest.raises(exceptions.NotFound):
        database.write(work)
    assert database.read(lambda tx: tx.first(sa.select(ROWS.c.n).where(ROWS.c.id == 1))) == (0,)
    database.close()


def test_statements_see_what_was_committed_since_the_transaction_began(engine):
    """READ COMMITTED, whatever the server's default is."""
    database = session.Transactions(engine)

    def work(tx):
        tx.connection.exec_driver_sql('SELECT n FROM retry_rows WHERE id = 1')
        with engine.begin() as other:
            other.exec_driver_sql('UPDATE retry_rows SET n = 5 WHERE id = 1')
        return tx.connection.exec_driver_sql('SELECT n FROM retry_rows WHERE id = 1').scalar_one()

    assert database.read(work) == 5
    database.close()
