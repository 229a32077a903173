# SPDX-License-Identifier: Apache-2.0
"""A network whose calls end in time, however slowly the other side sends.

A timeout of each read does not bound the call: a head that comes a byte at a time never ends.  So
the timeout of a read is the time left of the call.
"""

import contextlib
import hashlib
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import httpcore2 as httpcore

#: Maximum number of written bytes that are held until more follows.
WRITE_BUFFER_BYTES_MAX = 1 << 16


class _CallDeadline(threading.local):
    """The deadline of this thread's call; monotonic seconds."""

    end = float('inf')

    def seconds_left(self, timeout: float | None) -> float:
        """Return the seconds left.  :raises httpcore.ReadTimeout: there are none"""
        remaining = self.end - time.monotonic()
        if remaining <= 0:
            raise httpcore.ReadTimeout('the answer takes too long')
        return remaining if timeout is None else min(remaining, timeout)


class BoundedNetwork(httpcore.NetworkBackend):
    """Connections of any thread, each bounded by the call of that thread.

    :param pin: SHA-256 of the certificate that the other side has to present before anything is
        sent; '': any valid one
    """

    def __init__(self, pin: str = '') -> None:
        self._network = httpcore.SyncBackend()
        self._deadline = _CallDeadline()
        self._pin = pin

    @contextlib.contextmanager
    def deadline(self, end: float) -> Iterator[None]:
        """Bound this thread's calls by a deadline."""
        self._deadline.end = end
        try:
            yield
        finally:
            self._deadline.end = float('inf')

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        stream = self._network.connect_tcp(
            host, port, self._deadline.seconds_left(timeout), local_address, socket_options
        )
        return _BoundedStream(stream, self._deadline, self._pin)

    def sleep(self, seconds: float) -> None:
        self._network.sleep(seconds)


class _BoundedStream(httpcore.NetworkStream):
    """A stream that sends head and body of a request together, so that the other side wakes once.

    :ivar _unsent: bytes written since the last read
    """

    def __init__(self, stream: httpcore.NetworkStream, bound: _CallDeadline, pin: str) -> None:
        self._stream = stream
        self._deadline = bound
        self._pin = pin
        self._unsent = b''

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._unsent:
            unsent, self._unsent = self._unsent, b''
            self._stream.write(unsent, self._deadline.seconds_left(timeout))
        return self._stream.read(max_bytes, self._deadline.seconds_left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._unsent += buffer
        if len(self._unsent) > WRITE_BUFFER_BYTES_MAX:
            unsent, self._unsent = self._unsent, b''
            self._stream.write(unsent, self._deadline.seconds_left(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        stream = self._stream.start_tls(
            ssl_context, server_hostname, self._deadline.seconds_left(timeout)
        )
        peer = stream.get_extra_info('ssl_object').getpeercert(True) if self._pin else b''
        if self._pin and hashlib.sha256(peer).hexdigest() != self._pin:
            stream.close()
            raise httpcore.ConnectError(
                f'its certificate has the SHA-256 {hashlib.sha256(peer).hexdigest()}; expected '
                f'{self._pin}, the server_sha256 of its credential'
            )
        return _BoundedStream(stream, self._deadline, self._pin)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
