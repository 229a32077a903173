# SPDX-License-Identifier: Apache-2.0
"""Connection to the broker, by the public interface of kombu and py-amqp.

Address, TLS and heartbeats are those of ``transport_url`` and [oslo_messaging_rabbit], as a peer
that uses oslo.messaging has them.
"""

import contextlib
import errno
import functools
import logging
import math
import os
import random
import socket
import ssl
import struct
import sys
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from typing import Any

import amqp
import kombu
from amqp.transport import SSLTransport, TCPTransport
from kombu.exceptions import OperationalError
from kombu.transport import pyamqp

LOG = logging.getLogger(__name__)

#: Scheme of the broker within the process, as oslo.messaging has it.
IN_PROCESS_SCHEME = 'kombu+memory'

#: Errors of a broker that is away, or that ends a connection.
BROKER_AWAY_ERRORS = (OperationalError, amqp.RecoverableConnectionError, OSError)
#: Errors of a broker that is away, or that refuses.
BROKER_ERRORS = (*BROKER_AWAY_ERRORS, amqp.AMQPError)

#: Bytes read at once: some twenty calls of Nova, or a hundred of our own.
READ_AHEAD_BYTES = 1 << 17
#: Seconds for the broker to agree to the end of a connection.
CLOSE_SECONDS = 2.0

#: A frame of AMQP 0-9-1 (section 2.3.5): type, channel and size come before the payload, and a
#: mark after it.
_FRAME_HEADER_BYTES, _FRAME_END_MARK = 7, 0xCE
_unpack_frame_header = struct.Struct('>BHI').unpack_from
#: Errors of a socket that is not broken.
_WOULD_BLOCK_ERRNOS = frozenset({errno.EAGAIN, errno.EINTR, errno.ENOENT, errno.EWOULDBLOCK})
#: Values of ``ssl_version`` -> name in the standard library, which may lack it.
_TLS_VERSIONS = {
    'sslv2': 'PROTOCOL_SSLv2',
    'sslv23': 'PROTOCOL_SSLv23',
    'sslv3': 'PROTOCOL_SSLv3',
    'tlsv1': 'PROTOCOL_TLSv1',
    'tlsv1_1': 'PROTOCOL_TLSv1_1',
    'tlsv1_2': 'PROTOCOL_TLSv1_2',
}


# -- reading ahead -----------------------------------------------------------------------------
class ReadAheadTransport:
    """A transport of py-amqp that reads as much as is there, not each frame in three pieces.

    :ivar unread: bytes read off the socket that belong to later frames
    :ivar frame_max: bytes of a frame that were agreed with the broker
    """

    sock: Any
    connected: bool
    unread = b''
    frame_max = 1 << 17

    def read_frame(self, unpack: Any = None) -> tuple[int, int, bytes]:
        """Return the next frame: type, channel, payload.

        :raises OSError: the connection broke; TimeoutError: the frame is not there in time, and
            what there is of it is read with the next call
        :raises amqp.UnexpectedFrame: what comes is no frame
        """
        while True:
            unread = self.unread
            if len(unread) > _FRAME_HEADER_BYTES:
                kind, channel, size = _unpack_frame_header(unread)
                if size > self.frame_max:
                    raise amqp.UnexpectedFrame(
                        f'Received a frame of {size} bytes while expecting {self.frame_max} at most'
                    )
                end = _FRAME_HEADER_BYTES + size
                if len(unread) > end:
                    if unread[end] != _FRAME_END_MARK:
                        raise amqp.UnexpectedFrame(
                            f'Received frame_end {unread[end]:#04x} '
                            f'while expecting {_FRAME_END_MARK:#04x}'
                        )
                    self.unread = unread[end + 1 :]
                    return kind, channel, unread[_FRAME_HEADER_BYTES:end]
            self.unread = unread + self._receive()

    def _receive(self) -> bytes:
        try:
            received: bytes = self.sock.recv(READ_AHEAD_BYTES)
        except TimeoutError:
            raise
        except OSError as e:
            if e.errno not in _WOULD_BLOCK_ERRNOS:
                self.connected = False
            raise
        except (AttributeError, ValueError):  # another thread closed it
            self.connected = False
            raise ConnectionResetError(errno.ECONNRESET, 'the connection is closed') from None
        if not received:
            self.connected = False
            raise ConnectionResetError(errno.ECONNRESET, 'Server unexpectedly closed connection')
        return received

    @property
    def has_frame(self) -> bool:
        """True where a whole frame was read off the socket already."""
        unread = self.unread
        return (
            len(unread) > _FRAME_HEADER_BYTES
            and len(unread) > _FRAME_HEADER_BYTES + _unpack_frame_header(unread)[2]
        )


class ReadAheadTcp(ReadAheadTransport, TCPTransport):
    """A TCP transport that reads ahead."""


class ReadAheadTls(ReadAheadTransport, SSLTransport):
    """A TLS transport that reads ahead."""


class _AmqpConnection(pyamqp.Connection):
    """A connection of py-amqp over a transport that reads ahead."""

    def Transport(
        self, host: Any, connect_timeout: Any, ssl: Any = False, *args: Any, **kwargs: Any
    ) -> Any:
        names = ('read_timeout', 'write_timeout')
        kwargs |= dict(zip(names, args, strict=False))
        make = ReadAheadTls if ssl else ReadAheadTcp
        return make(host, connect_timeout=connect_timeout, ssl=ssl, **kwargs)


class _AmqpTransport(pyamqp.Transport):
    Connection = _AmqpConnection


# -- one connection ----------------------------------------------------------------------------
class Connection:
    """A connection to one of the hosts of a broker; not open at first.

    Not thread-safe.

    :param url: ``oslo_messaging.TransportURL``
    :param rabbit: [oslo_messaging_rabbit], with what the URL adds
    :ivar is_amqp: whether the connection speaks AMQP, to a broker outside of this process
    :ivar raw: py-amqp's connection, or that of the in-process broker; None where it is not open
    :ivar transport: py-amqp's transport below it: asking ``raw`` for it may connect again
    :ivar declared: exchanges that exist, as far as this connection knows
    """

    def __init__(self, url: Any, rabbit: Any) -> None:
        self.is_amqp = url.transport != IN_PROCESS_SCHEME
        self.raw: Any = None
        self.transport: Any = None
        self.declared: set[str] = set()
        #: What else is kept as long as it is open, by its owner.
        self.held: Any = None
        self.used_at = time.monotonic()
        self._rabbit = rabbit
        self._hosts = _hosts(url, rabbit)
        random.shuffle(self._hosts)

    @property
    def is_open(self) -> bool:
        """True where it is open, as far as is known here."""
        transport = self.transport
        return bool(transport.connected if self.is_amqp and transport else self.raw)

    def open(self) -> None:
        """Connect, to the next host where one does not answer, each tried once.

        :raises Exception: the error of the last host
        """
        self.drop()
        for tried in range(len(self._hosts)):
            host = self._hosts[0]
            try:
                self.raw = host.transport.establish_connection()
                if self.is_amqp:
                    self.transport = self.raw.transport
                    self.transport.frame_max = self.raw.frame_max
                    self._bound_waits(self.transport.sock)
                break
            except Exception:
                self.drop()
                self._hosts.append(self._hosts.pop(0))
                if tried == len(self._hosts) - 1:
                    raise
        self.used_at = time.monotonic()

    def _bound_waits(self, sock: Any) -> None:
        """Bound each read and write of a socket by the time for which the broker may be silent."""
        seconds = self._rabbit.heartbeat_timeout_threshold or None
        sock.settimeout(seconds)
        if seconds:
            # Only on Linux.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(seconds * 1000))

    def channel(self) -> Any:
        """Return a new channel."""
        return self._hosts[0].transport.create_channel(self.raw)

    def wait(self, seconds: float) -> None:
        """Wait for the broker's next frame and handle it.

        :raises TimeoutError: nothing came in time
        """
        self._hosts[0].transport.drain_events(self.raw, timeout=seconds)

    def send_heartbeat(self) -> None:
        """Send a heartbeat where one is due, and check that those of the broker come.

        :raises amqp.ConnectionForced: the broker has been silent for too long
        """
        if self.is_amqp and self._rabbit.heartbeat_timeout_threshold > 0:
            self.raw.heartbeat_tick(rate=self._rabbit.heartbeat_rate)

    def keep_alive(self) -> None:
        """Read and send heartbeats of an idle connection.

        :raises Exception: the connection broke
        """
        with contextlib.suppress(TimeoutError):
            while True:
                self.wait(0.001)
        self.send_heartbeat()

    def break_connection(self) -> None:
        """Break the connection, so that the thread that reads it ends.  Any thread.

        Not by the socket's own method: that of TLS drops what a read needs.
        """
        with contextlib.suppress(OSError, AttributeError, TypeError):  # it is closed already
            socket.socket.shutdown(self.transport.sock, socket.SHUT_RDWR)

    def drop(self) -> None:
        """Close the socket without a message to the broker, which may be silent."""
        raw, self.raw, self.transport, self.held = self.raw, None, None, None
        self.declared.clear()
        if raw is not None:
            with contextlib.suppress(Exception):  # whatever it raises, it is of no more use
                if self.is_amqp:
                    raw.collect()
                else:
                    self._hosts[0].transport.close_connection(raw)

    def close(self) -> None:
        """Close the connection by the protocol's handshake, within a bound."""
        if self.is_amqp and self.is_open:
            with contextlib.suppress(Exception):  # whatever it raises, it is of no more use
                self.transport.sock.settimeout(CLOSE_SECONDS)
                self.raw.close()
        self.drop()

    @contextlib.contextmanager
    def answered_within(self, seconds: float) -> Iterator[None]:
        """Bound each wait for the broker.

        :raises OSError: raised inside where the broker falls silent; the connection is dropped then
        """
        transport = self.transport
        try:
            with transport.having_timeout(seconds) if transport else contextlib.nullcontext():
                yield
        except OSError:
            self.drop()
            raise


def _hosts(url: Any, rabbit: Any) -> list[kombu.Connection]:
    """Return how to connect to each host of a URL."""
    if url.transport == IN_PROCESS_SCHEME:
        return [kombu.Connection(f'memory://{url.virtual_host or ""}')]
    places = [(host.hostname, host.port, host.username, host.password) for host in url.hosts]
    return [
        kombu.Connection(
            hostname=name or 'localhost',
            port=port or 5672,
            userid=user or 'guest',
            password=password or 'guest',
            virtual_host=urllib.parse.unquote(url.virtual_host or '') or '/',
            ssl=_tls(rabbit, name),
            transport=_AmqpTransport,
            login_method=rabbit.rabbit_login_method,
            heartbeat=rabbit.heartbeat_timeout_threshold,
            transport_options={
                'client_properties': {
                    'capabilities': {
                        'authentication_failure_close': True,
                        'connection.blocked': True,
                        'consumer_cancel_notify': True,
                    },
                    'connection_name': (
                        f'{os.path.basename(sys.argv[0])}:{os.getpid()}:{uuid.uuid4()}'
                    ),
                },
                'on_blocked': functools.partial(
                    LOG.error, 'The broker has blocked the connection: reason=%s'
                ),
                'on_unblocked': functools.partial(
                    LOG.info, 'The broker has unblocked the connection'
                ),
            },
        )
        for name, port, user, password in places or [('', None, '', '')]
    ]


def _tls(rabbit: Any, host: str | None) -> Any:
    """Return the parameters of TLS to a host; False: TLS is not used.

    :raises ValueError: the version is unknown here
    """
    if not rabbit.ssl:
        return False
    options: dict[str, Any] = {}
    if rabbit.ssl_version:
        options['ssl_version'] = tls_version(rabbit.ssl_version)
    if rabbit.ssl_key_file:
        options['keyfile'] = rabbit.ssl_key_file
    if rabbit.ssl_cert_file:
        options['certfile'] = rabbit.ssl_cert_file
    if rabbit.ssl_ca_file:
        options['ca_certs'] = rabbit.ssl_ca_file
        options['cert_reqs'] = ssl.CERT_REQUIRED
        options['server_hostname'] = host
    return options or True


def tls_version(name: str) -> int:
    """Return the version of TLS for ``ssl_version``.

    :raises ValueError: it is unknown here
    """
    version = getattr(ssl, _TLS_VERSIONS.get(name.lower(), ''), None)
    if version is None:
        raise ValueError(f'ssl_version {name!r} is unknown here')
    return int(version)
