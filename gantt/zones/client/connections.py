# SPDX-License-Identifier: Apache-2.0
"""HTTP connections to other zones, kept open; each call has one deadline, whatever the other side
sends.

A timeout of each read does not bound the call: a head that comes a byte at a time never ends.  So
the timeout of a read is the time left of the call.  Redirects are never followed, and nothing is
decompressed.
"""

import functools
import hashlib
import http.client
import io
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

#: Maximum number of connections in use, and of those kept open.
CONNECTIONS_MAX, IDLE_CONNECTIONS_MAX = 128, 64
#: Timeout of connecting, and how long a connection is kept open without use, in seconds.
CONNECT_SECONDS, IDLE_SECONDS = 2.0, 50.0
#: Characters of a method, a path or a header, which has spaces as well.
_TARGET, _HEADER = re.compile(r'[!-~]+'), re.compile(r'[ -~]+')
#: Bytes that are read at once.
_READ_BYTES = 1 << 16


class ConnectError(OSError):
    """No connection was made: nothing was sent."""


class HttpAnswer(msgspec.Struct, frozen=True):
    """An answer that is whole.

    :ivar headers: first value by name in lower case
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Address(msgspec.Struct, frozen=True):
    """Where a server listens, and how it is named in a call."""

    is_tls: bool
    host: str
    port: int
    name: str
    path: str


class HttpConnections:
    """Connections with one TLS setting, used by one call each.  Any thread.

    :param context: None: the trust store of the system
    :param pin: SHA-256 of the certificate that the other side has to present before anything is
        sent; '': any valid one
    :param answer_bytes_max: of the body of an answer
    """

    def __init__(
        self, context: ssl.SSLContext | None, pin: str = '', *, answer_bytes_max: int
    ) -> None:
        self._context = context
        self._pin = pin
        self._answer_bytes_max = answer_bytes_max
        self._in_use = threading.Semaphore(CONNECTIONS_MAX)
        self._lock = threading.Lock()
        #: The one used last is the last.
        self._idle: list[_Connection] = []
        self._is_closed = False

    def close(self) -> None:
        """Close the connections that no call uses, and the others after their call."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def call(
        self,
        method: str,
        url: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        end: float,
    ) -> HttpAnswer:
        """Return the whole answer to a call.

        :param url: of the server; ``path`` is below it
        :param end: deadline by the monotonic clock
        :raises ConnectError: nothing was sent
        :raises OSError: no answer
        :raises ValueError: an answer that cannot be read
        """
        address = _address_of(url)
        head = _head(method, address, path, headers, body)
        if not self._in_use.acquire(timeout=_seconds_left(end)):
            raise TimeoutError(f'all {CONNECTIONS_MAX} connections are in use')
        try:
            connection = self._idle_connection(address) or self._connect(address, end)
            is_open = False
            try:
                answer, is_open = connection.call(
                    method, head + (body or b''), end, self._answer_bytes_max
                )
            finally:
                if is_open:
                    self._keep(connection)
                else:
                    connection.close()
            return answer
        finally:
            self._in_use.release()

    # -- connections -------------------------------------------------------------------
    def _idle_connection(self, address: _Address) -> '_Connection | None':
        """Return an open connection to a server, no longer among the idle ones."""
        server = address.is_tls, address.host, address.port
        while True:
            with self._lock:
                for number in reversed(range(len(self._idle))):
                    if self._idle[number].server == server:
                        connection = self._idle.pop(number)
                        break
                else:
                    return None
            is_old = connection.used_at < time.monotonic() - IDLE_SECONDS
            # Readable: the other side has closed it, or has sent what nobody asked for.
            if not is_old and not connection.is_readable():
                return connection
            connection.close()

    def _keep(self, connection: '_Connection') -> None:
        """Keep a connection for the next call; close those that are too many or too old."""
        connection.used_at = now = time.monotonic()
        with self._lock:
            self._idle.append(connection)
            number = max(0, len(self._idle) - IDLE_CONNECTIONS_MAX)
            while number < len(self._idle) and self._idle[number].used_at < now - IDLE_SECONDS:
                number += 1
            if self._is_closed:
                number = len(self._idle)
            closed, self._idle[:number] = self._idle[:number], []
        for old in closed:
            old.close()

    def _connect(self, address: _Address, end: float) -> '_Connection':
        seconds = min(CONNECT_SECONDS, _seconds_left(end))
        try:
            line = socket.create_connection((address.host, address.port), seconds)
        except TimeoutError:
            raise
        except OSError as e:
            raise ConnectError(str(e) or type(e).__name__) from None
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.is_tls:
                line.settimeout(min(CONNECT_SECONDS, _seconds_left(end)))
                line = self._tls_context().wrap_socket(line, server_hostname=address.host)
                self._check_pin(line)
        except OSError as e:
            line.close()
            if isinstance(e, TimeoutError):
                raise
            raise ConnectError(str(e) or type(e).__name__) from None
        return _Connection(line, (address.is_tls, address.host, address.port))

    def _tls_context(self) -> ssl.SSLContext:
        with self._lock:
            if self._context is None:
                self._context = ssl.create_default_context()
            return self._context

    def _check_pin(self, line: ssl.SSLSocket) -> None:
        presented = hashlib.sha256(line.getpeercert(True) or b'').hexdigest() if self._pin else ''
        if presented != self._pin:
            raise ConnectError(
                f'its certificate has the SHA-256 {presented}; expected '
                f'{self._pin}, the server_sha256 of its credential'
            )


class _Connection:
    """An open connection.

    :ivar server: whether by TLS, host and port
    :ivar used_at: monotonic seconds
    """

    def __init__(self, line: socket.socket, server: tuple[bool, str, int]) -> None:
        self._line = line
        self.server = server
        self.used_at = 0.0

    def close(self) -> None:
        self._line.close()

    def is_readable(self) -> bool:
        """Return whether the other side has sent something, or has closed the connection."""
        poll = select.poll()  # as select() knows descriptors below 1024 only
        poll.register(self._line, select.POLLIN)
        return bool(poll.poll(0))

    def call(
        self, method: str, message: bytes, end: float, body_bytes_max: int
    ) -> tuple[HttpAnswer, bool]:
        """Return the answer to a message, and whether the connection may be used again.

        Head and body are sent together, so that the other side wakes once.
        """
        self._line.settimeout(_seconds_left(end))
        self._line.sendall(message)
        reader = _BoundedReader(self._line, end)
        response = http.client.HTTPResponse(reader, method=method)  # type: ignore[arg-type]
        try:
            response.begin()
            if reader.is_ended:
                raise ValueError('the head of the answer was cut')
            may_stay = not response.will_close
            body = _whole_body(response, body_bytes_max)
        except http.client.RemoteDisconnected:
            raise
        except http.client.HTTPException as e:
            raise ValueError(f'{type(e).__name__}: {e}') from None
        finally:
            response.close()
        headers = {name.lower(): value for name, value in reversed(response.headers.items())}
        return HttpAnswer(response.status, headers, body), may_stay


class _BoundedReader(io.RawIOBase):
    """Reader of one answer; its end does not end the connection.

    :ivar is_ended: the other side sends no more
    """

    def __init__(self, line: socket.socket, end: float) -> None:
        self._line = line
        self._end = end
        self.is_ended = False

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return a buffer for this reader, as of a socket."""
        return io.BufferedReader(self, _READ_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._line.settimeout(_seconds_left(self._end))
        count = self._line.recv_into(buffer)
        self.is_ended = not count
        return count


def _whole_body(response: http.client.HTTPResponse, bytes_max: int) -> bytes:
    """Return the body.  :raises ValueError: it is too long"""
    if response.length is None:  # in chunks, or until the other side closes the connection
        body = response.read(bytes_max + 1)
        if len(body) <= bytes_max:
            return body
    elif response.length <= bytes_max:
        return response.read()
    raise ValueError(f'the answer has more than {bytes_max} bytes')


def _seconds_left(end: float) -> float:
    """Return the seconds left until a deadline.  :raises TimeoutError: there are none"""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError('the answer takes too long')
    return left


@functools.lru_cache(maxsize=1024)
def _address_of(url: str) -> _Address:
    """Return the parts of the URL of a server.  :raises ValueError: it is none"""
    parts = urlsplit(url)
    if parts.scheme not in ('http', 'https') or not parts.hostname:
        raise ValueError(f'{url} is not the URL of a server')
    is_tls = parts.scheme == 'https'
    port = parts.port or (443 if is_tls else 80)
    name = parts.netloc.rpartition('@')[2]
    return _Address(is_tls, parts.hostname, port, name, parts.path.rstrip('/'))


def _head(
    method: str, address: _Address, path: str, headers: Mapping[str, str], body: bytes | None
) -> bytes:
    """Return the head of a call.  :raises ValueError: a part of it would end its line"""
    target = address.path + path
    lines = [f'Host: {address.name}', *(f'{name}: {value}' for name, value in headers.items())]
    if body is not None:
        lines.append(f'Content-Length: {len(body)}')
    if not _TARGET.fullmatch(method + target) or not all(map(_HEADER.fullmatch, lines)):
        raise ValueError('a part of the call has characters that no head has')
    return '\r\n'.join([f'{method} {target} HTTP/1.1', *lines, '', '']).encode('ascii')
