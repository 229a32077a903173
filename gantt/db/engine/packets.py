# SPDX-License-Identifier: Apache-2.0
"""PyMySQL's connections: waits that are watched, and answers parsed with less work.

A server sends the columns of each answer, in a packet for each.  PyMySQL parses these anew each
time, which for a few rows takes longer than the rows.  They are the same whenever the statement is
the same, so a connection remembers the parsed columns.
"""

import functools
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from pymysql import connections, err, protocol

from gantt.db.engine.watch import AnswerWait

SERVER_LOST_CODE = 2013
#: Most kinds of answers whose columns a connection remembers.
KNOWN_ANSWERS_MAX = 512
#: First byte of a longer length -> number of bytes that follow.
_LENGTH_BYTES = {252: 2, 253: 3, 254: 8}
_NULL_BYTE = 251


class _Packets:
    """Stand-in for a connection: it returns packets that were read before."""

    def __init__(self, connection: connections.Connection, packets: Sequence[bytes]) -> None:
        self.use_unicode = connection.use_unicode
        self.encoding = connection.encoding
        self.decoders = connection.decoders
        self._packets = iter(packets)

    def _read_packet(self, kind: Any = protocol.MysqlPacket) -> Any:
        return kind(next(self._packets), self.encoding)


class AnswerRows(connections.MySQLResult):
    """See PyMySQL."""

    connection: Any
    fields: list[Any]
    converters: list[tuple[str | None, Callable[[Any], Any] | None]]
    description: tuple[Any, ...]

    def _get_descriptions(self) -> None:
        connection = self.connection
        packets = [connection._read_packet().get_all_data() for _ in range(self.field_count)]
        column_packets = tuple(packets)
        parsed = connection.known_columns.get(column_packets)
        if parsed is None:
            self.connection = _Packets(connection, [*packets, _read_end(connection)])
            super()._get_descriptions()
            self.connection = connection
            parsed = self.fields, self.converters, self.description
            if len(connection.known_columns) >= KNOWN_ANSWERS_MAX:
                connection.known_columns.clear()
            connection.known_columns[column_packets] = parsed
        else:
            _read_end(connection)
            self.fields, self.converters, self.description = parsed

    def _read_row_from_packet(self, packet: Any) -> tuple[Any, ...]:
        """Return a row like PyMySQL, without a call for each value's length and bytes."""
        data = packet.get_all_data()
        offset, row = 0, list[Any]()
        for encoding, converter in self.converters:
            length = data[offset]
            offset += 1
            if length == _NULL_BYTE:
                row.append(None)
                continue
            if length > _NULL_BYTE:
                end = offset + _LENGTH_BYTES[length]
                length = int.from_bytes(data[offset:end], 'little')
                offset = end
            value = data[offset : offset + length]
            offset += length
            if encoding is not None:
                value = value.decode(encoding)
            row.append(value if converter is None else converter(value))
        return tuple(row)


def _read_end(connection: connections.Connection) -> bytes:
    """Return the packet after the columns of an answer."""
    end_packet: bytes = connection._read_packet().get_all_data()
    return end_packet


@functools.cache
def _unverified() -> ssl.SSLContext:
    """Return a context for servers without verification: encrypted if possible, as in PyMySQL.

    PyMySQL creates one for each connection, with all certificates of the system, which takes some
    25 ms of CPU time, and uses none of them.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class PacketConnection(connections.Connection):
    """See PyMySQL.

    :ivar exchange: its current wait for an answer, for the watching thread
    """

    exchange: AnswerWait | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        #: Columns of answers as PyMySQL parses them, by their packets: see ``AnswerRows``.
        self.known_columns: dict[tuple[bytes, ...], tuple[Any, ...]] = {}
        super().__init__(*arguments, **options)

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        # Files are read for each connection: certificates are renewed.
        context: ssl.SSLContext = super()._create_ssl_ctx(sslp) if sslp else _unverified()
        return context

    def fileno(self) -> int:
        """Return the file number of its socket; -1 if closed."""
        return -1 if self._sock is None else self._sock.fileno()

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        return self._seen(lambda: self._read_answer(unbuffered))

    def _read_answer(self, unbuffered: bool) -> Any:
        """Read an answer like PyMySQL, with a result of ours."""
        self._result = None
        answer = AnswerRows(self)
        if unbuffered:
            answer.init_unbuffered_query()
        else:
            answer.read()
        self._result = answer
        if answer.server_status is not None:
            self.server_status = answer.server_status
        return answer.affected_rows

    def _read_ok_packet(self) -> Any:
        return self._seen(super()._read_ok_packet)

    def _seen(self, read: Callable[[], Any]) -> Any:
        exchange = self.exchange
        if exchange is None:
            return read()
        exchange.begin()
        try:
            result = read()
        except BaseException as e:
            if self.open:  # the server answered with an error
                exchange.end()
                raise
            exchange.end_unanswered()
            if exchange.given_up:
                raise err.OperationalError(
                    SERVER_LOST_CODE, 'the answer did not come in time'
                ) from e
            raise
        exchange.end()
        return result
