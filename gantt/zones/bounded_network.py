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
HELD_BYTES = 1 << 16


class _CallBound(threading.local):
    """The deadline of this thread's call; monotonic seconds."""

    end = float('inf')

    def left(self, timeout: float | None) -> float:
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
        self._network, self._bound, self._pin = httpcore.SyncBackend(), _CallBound(), pin

    @contextlib.contextmanager
    def until(self, end: float) -> Iterator[None]:
        """Bound this thread's calls by a deadline."""
        self._bound.end = end
        try:
            yield
        finally:
            self._bound.end = float('inf')

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        stream = self._network.connect_tcp(
            host, port, self._bound.left(timeout), local_address, socket_options
        )
        return _BoundedStream(stream, self._bound, self._pin)

    def sleep(self, seconds: float) -> None:
        self._network.sleep(seconds)


class _BoundedStream(httpcore.NetworkStream):
    """A stream that sends head and body of a request together, so that the other side wakes once.

    :ivar _unsent: bytes written since the last read
    """

    def __init__(self, stream: httpcore.NetworkStream, bound: _CallBound, pin: str) -> None:
        self._stream, self._bound, self._pin = stream, bound, pin
        self._unsent = b''

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._unsent:
            unsent, self._unsent = self._unsent, b''
            self._stream.write(unsent, self._bound.left(timeout))
        return self._stream.read(max_bytes, self._bound.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._unsent += buffer
        if len(self._unsent) > HELD_BYTES:
            unsent, self._unsent = self._unsent, b''
            self._stream.write(unsent, self._bound.left(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        stream = self._stream.start_tls(ssl_context, server_hostname, self._bound.left(timeout))
        peer = stream.get_extra_info('ssl_object').getpeercert(True) if self._pin else b''
        if self._pin and hashlib.sha256(peer).hexdigest() != self._pin:
            stream.close()
            raise httpcore.ConnectError(
                f'its certificate has the SHA-256 {hashlib.sha256(peer).hexdigest()}; expected '
                f'{self._pin}, which server_sha256 of its credential is'
            )
        return _BoundedStream(stream, self._bound, self._pin)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
