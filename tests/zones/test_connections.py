# SPDX-License-Identifier: Apache-2.0
"""A call to another zone over a connection that is kept: what is sent, read, and used again."""

import contextlib
import queue
import socket
import threading
import time

import pytest

from gantt.zones.client.connections import CONNECT_SECONDS, ConnectError, HttpConnections

SECONDS = 5.0
#: Bytes of a body at most, in these tests.
BYTES_MAX = 100


class Server:
    """Answers each message it receives on a connection with the next one of ``answers``.

    :ivar received: each message as it was read at once, with the number of its connection
    :ivar ends_after_answer: a connection ends with the first answer
    """

    ends_after_answer = False

    def __init__(self) -> None:
        self.answers: queue.Queue[bytes] = queue.Queue()
        self.received: list[tuple[int, bytes]] = []
        self.connections: list[socket.socket] = []
        self._listener = socket.create_server(('127.0.0.1', 0))
        self.url = f'http://127.0.0.1:{self._listener.getsockname()[1]}'
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Close all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self.connections:
            connection.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections.append(connection)
                number = len(self.connections)
                threading.Thread(target=self._answer, args=(connection, number)).start()

    def _answer(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            while message := connection.recv(1 << 16):
                self.received.append((number, message))
                answer = self.answers.get()
                connection.sendall(answer)
                if self.ends_after_answer or b'Connection: close' in answer:
                    connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def server():
    with contextlib.closing(Server()) as made:
        yield made


@pytest.fixture
def connections():
    with contextlib.closing(HttpConnections(None, answer_bytes_max=BYTES_MAX)) as made:
        yield made


@pytest.fixture
def call(server, connections):
    """``call(answer, …)``: call the server, which answers this."""

    def called(answer, method='GET', path='/zone/v1', headers=None, body=None):
        server.answers.put(answer)
        end = time.monotonic() + SECONDS
        return connections.call(method, server.url, path, headers or {}, body, end)

    return called


def an_answer(body=b'{}', head=b''):
    return b'HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s' % (head, len(body), body)


def test_head_and_body_are_sent_together(server, call):
    call(an_answer(), 'PUT', '/zone/v1/allocations/1?a=b', {'X-Own': 'one two'}, b'{"a": 1}')
    ((_, message),) = server.received
    head, _, body = message.partition(b'\r\n\r\n')
    first, *lines = head.split(b'\r\n')
    assert first == b'PUT /zone/v1/allocations/1?a=b HTTP/1.1'
    host = server.url.removeprefix('http://').encode()
    assert set(lines) == {b'Host: ' + host, b'X-Own: one two', b'Content-Length: 8'}
    assert body == b'{"a": 1}'


def test_a_connection_is_used_again(server, call):
    for n in range(3):
        answer = call(an_answer(b'%d' % n, b'ETag: "x"\r\nEtag: "y"\r\n'))
        assert (answer.status, answer.body, answer.headers['etag']) == (200, b'%d' % n, '"x"')
    assert [number for number, _ in server.received] == [1, 1, 1]


def test_a_connection_that_the_other_side_closes_is_not_used_again(server, call):
    call(an_answer())
    server.connections[0].shutdown(socket.SHUT_RDWR)
    assert call(an_answer()).status == 200
    assert call(an_answer(head=b'Connection: close\r\n')).status == 200
    assert call(an_answer()).status == 200
    assert [number for number, _ in server.received] == [1, 2, 2, 3]


def test_what_nobody_asked_for_is_not_taken_for_an_answer(server, call):
    call(an_answer())
    server.connections[0].sendall(an_answer(b'of nobody'))
    assert call(an_answer(b'asked for')).body == b'asked for'


def test_an_answer_in_chunks_is_read_whole(call):
    head = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n'
    assert call(head + b'3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n').body == b'abcde'
    assert call(an_answer(b'next')).body == b'next'


def test_an_answer_up_to_the_end_of_its_connection_is_read_whole(server, call):
    assert call(b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc').body == b'abc'
    assert call(an_answer()).body == b'{}'


@pytest.mark.parametrize(
    'answer',
    [
        b'HTTP/1.1 404 No\r\nGantt-Zone: abc\r\n',
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab',
        b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab',
        an_answer(b'x' * (BYTES_MAX + 1)),
        b'HTTP/1.1 200 OK\r\n\r\n' + b'x' * (BYTES_MAX + 1),
    ],
    ids=['head cut', 'chunk cut', 'body cut', 'long', 'long to the end'],
)
def test_an_answer_that_is_cut_or_too_long_is_none(server, call, answer):
    server.ends_after_answer = True
    with pytest.raises(ValueError):
        call(answer)


def test_an_answer_that_does_not_come_has_its_time(server, connections):
    end = time.monotonic() + 0.2
    with pytest.raises(TimeoutError):
        connections.call('GET', server.url, '/zone/v1', {}, None, end)
    server.answers.put(b'')


@pytest.mark.parametrize(
    'given',
    [{'path': '/a b'}, {'path': '/a\r\nX: y'}, {'headers': {'X': 'a\r\nY: b'}}, {'method': 'GE T'}],
    ids=['space', 'path', 'header', 'method'],
)
def test_no_part_of_a_call_ends_its_line(server, call, given):
    with pytest.raises(ValueError, match='characters'):
        call(an_answer(), **given)
    assert not server.received


def test_who_is_not_there_was_sent_nothing(connections):
    with contextlib.closing(socket.create_server(('127.0.0.1', 0))) as closed:
        url = f'http://127.0.0.1:{closed.getsockname()[1]}'
    end = time.monotonic() + CONNECT_SECONDS
    with pytest.raises(ConnectError, match='refused'):
        connections.call('GET', url, '/zone/v1', {}, None, end)
