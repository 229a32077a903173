# SPDX-License-Identifier: Apache-2.0
"""While PostgreSQL works on a COMMIT, what comes on other sockets is read, and nothing is lost."""

import contextlib
import socket
import threading

import psycopg
import pytest

from gantt.core.claims.commit import CommitStatus
from gantt.db.engine import session
from tests.builders import CLEAN, a_draft, a_host, report_outcome

pytestmark = [pytest.mark.postgresql]


class Letters:
    """An inbox of one socket."""

    def __init__(self) -> None:
        self.far, self.near = socket.socketpair()
        self.got: list[bytes] = []
        self.asked = 0

    def sockets(self) -> list[int]:
        self.asked += 1
        return [self.near.fileno()]

    def read(self) -> bool:
        self.got.append(self.near.recv(100))
        return True

    def close(self) -> None:
        self.far.close()
        self.near.close()


@pytest.fixture
def letters():
    with contextlib.closing(Letters()) as opened:
        yield opened


@pytest.fixture
def raw(postgresql_url, letters):
    engine = session.build_engine(postgresql_url)
    with contextlib.closing(engine.connect()) as connection:
        raw = connection.connection.driver_connection
        raw.meanwhile = letters
        yield raw
        with contextlib.suppress(psycopg.Error):
            raw.rollback()
        connection.invalidate()
    engine.dispose()


def later(letters, *texts):
    """Send each a while after the one before."""

    def run():
        for text in texts:
            waiting.wait(0.1)
            letters.far.send(text)

    waiting = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_what_comes_before_the_answer_to_a_commit_is_read(raw, letters):
    sending = later(letters, b'one', b'two')
    with raw.pipeline():
        cursor = raw.execute('SELECT 7 FROM pg_sleep(1)')
        raw.commit()
    assert cursor.fetchall() == [(7,)]
    sending.join()
    assert letters.got == [b'one', b'two']


def test_nothing_is_read_while_others_wait_for_what_is_locked(raw, letters):
    letters.far.send(b'one')
    with raw.pipeline():
        cursor = raw.execute('SELECT 7 FROM pg_sleep(0.2)')
    assert cursor.fetchall() == [(7,)]
    raw.execute('SELECT 1 FROM pg_sleep(0.1)')
    raw.commit()
    assert (letters.asked, letters.got) == (0, [])


def test_an_error_comes_out_as_it_does_without(raw, letters):
    letters.far.send(b'one')
    with pytest.raises(psycopg.errors.DivisionByZero), raw.pipeline():
        raw.execute('SELECT 1 FROM pg_sleep(0.2)')
        raw.execute('SELECT 1 / 0')
        raw.commit()
    raw.rollback()
    assert raw.execute('SELECT 8').fetchall() == [(8,)]
    assert letters.got == [b'one']


def test_a_server_that_ends_the_connection_is_noticed(postgresql_url, raw, letters):
    other = session.build_engine(postgresql_url)
    pid = raw.info.backend_pid

    def end():
        with other.connect() as connection:
            connection.exec_driver_sql(f'SELECT pg_terminate_backend({pid})')

    ending = threading.Timer(0.3, end)
    ending.start()
    with pytest.raises(psycopg.OperationalError), raw.pipeline():
        raw.execute('SELECT pg_sleep(30)')
        raw.commit()
    ending.join()
    other.dispose()


def test_a_socket_that_was_closed_meanwhile_holds_nothing_up(raw, letters):
    letters.far.close()
    with raw.pipeline():
        cursor = raw.execute('SELECT 7 FROM pg_sleep(0.2)')
        raw.commit()
    assert cursor.fetchall() == [(7,)]
    assert set(letters.got) == {b''}


class Busy(Letters):
    """Another thread is at its socket."""

    def read(self) -> bool:
        self.got.append(b'?')
        return False


def test_one_that_cannot_be_read_is_not_asked_without_a_pause(raw):
    with contextlib.closing(Busy()) as busy:
        busy.far.send(b'one')
        raw.meanwhile = busy
        with raw.pipeline():
            raw.execute('SELECT 7 FROM pg_sleep(0.3)')
            raw.commit()
        assert 1 <= len(busy.got) < 300


def test_a_batch_is_committed_while_calls_come(make_store, letters):
    store = make_store('postgresql')
    host = a_host().on(store)
    store.requests.do_meanwhile(letters)
    sending = later(letters, b'one')
    store.requests.committer.send_commit = slowly(store.requests.committer.send_commit)
    assert report_outcome(store, a_draft().taking(host)).outcome is CommitStatus.PLACED
    sending.join()
    assert letters.got == [b'one']
    assert store.claims.audit() == CLEAN


def slowly(send_commit):
    """COMMIT is sent behind a statement that takes a while."""

    def send(raw):
        raw.execute('SELECT pg_sleep(0.5)')
        send_commit(raw)

    return send
