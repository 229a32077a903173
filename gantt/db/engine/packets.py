# SPDX-License-Identifier: Apache-2.0
"""PyMySQL's connections: waits that are seen, and answers read with less to do.

A server says of each answer what its columns are, in a packet for each.  PyMySQL makes these out
anew each time, which for a few rows takes longer than the rows.  They are the same whenever the
statement is the same, so a connection remembers what it has made out of them.
"""

import functools
import ssl
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pymysql import connections, err, protocol

from gantt.db.engine.watch import Exchange

LOST = 2013
#: Of so many kinds of answers a connection remembers the columns.
KNOWN_MAX = 512
#: First byte of a length that is longer -> bytes of it that follow.
_LONGER = {252: 2, 253: 3, 254: 8}
_NULL = 251


class KnownColumns(NamedTuple):
    """What PyMySQL makes out of the columns of an answer."""

    fields: list[Any]
    converters: list[tuple[str | None, Callable[[Any], Any] | None]]
    description: tuple[Any, ...]


class _Packets:
    """Packets that were read, for who reads them from a connection."""

    def __init__(self, connection: connections.Connection, packets: Sequence[bytes]) -> None:
        self.use_unicode, self.encoding = connection.use_unicode, connection.encoding
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
        columns = tuple(packets)
        known = connection.known_columns.get(columns)
        if known is None:
            self.connection = _Packets(connection, [*packets, _read_end(connection)])
            super()._get_descriptions()
            self.connection = connection
            known = KnownColumns(self.fields, self.converters, self.description)
            if len(connection.known_columns) >= KNOWN_MAX:
                connection.known_columns.clear()
            connection.known_columns[columns] = known
        else:
            _read_end(connection)
            self.fields, self.converters, self.description = known

    def _read_row_from_packet(self, packet: Any) -> tuple[Any, ...]:
        """The same as PyMySQL, without a call for each value's length and bytes."""
        data = packet.get_all_data()
        at, row = 0, list[Any]()
        for encoding, converter in self.converters:
            length = data[at]
            at += 1
            if length == _NULL:
                row.append(None)
                continue
            if length > _NULL:
                end = at + _LONGER[length]
                length = int.from_bytes(data[at:end], 'little')
                at = end
            value = data[at : at + length]
            at += length
            if encoding is not None:
                value = value.decode(encoding)
            row.append(value if converter is None else converter(value))
        return tuple(row)


def _read_end(connection: connections.Connection) -> bytes:
    """What stands behind the columns of an answer."""
    found: bytes = connection._read_packet().get_all_data()
    return found


@functools.cache
def _unverified() -> ssl.SSLContext:
    """For a server of which nobody asks who it is: encrypted where it can be, as PyMySQL does.

    PyMySQL makes one for each connection, with all certificates of the system, which takes some
    25 ms of computing, and looks at none of them.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


class PacketConnection(connections.Connection):
    """See PyMySQL.

    :ivar exchange: what others see of its waits
    """

    exchange: Exchange | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        #: What the columns of answers are, by the packets that say so.
        self.known_columns: dict[tuple[bytes, ...], KnownColumns] = {}
        super().__init__(*arguments, **options)

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        # What files say is read for each connection: certificates are renewed.
        made: ssl.SSLContext = super()._create_ssl_ctx(sslp) if sslp else _unverified()
        return made

    def fileno(self) -> int:
        """The file number of its socket; -1 where it is closed."""
        return -1 if self._sock is None else self._sock.fileno()

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        return self._seen(lambda: self._read_answer(unbuffered))

    def _read_answer(self, unbuffered: bool) -> Any:
        """As PyMySQL does, with a result of ours."""
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
            found = read()
        except BaseException as e:
            if self.open:  # it was an answer
                exchange.end()
                raise
            exchange.end_in_vain()
            if exchange.given_up:
                raise err.OperationalError(LOST, 'the answer did not come in time') from e
            raise
        exchange.end()
        return found
