# SPDX-License-Identifier: Apache-2.0
"""PyMySQL's connections, with waits that are seen."""

from collections.abc import Callable
from typing import Any

from pymysql import connections, err

from gantt.db.engine.watch import Exchange

LOST = 2013


class PacketConnection(connections.Connection):
    """See PyMySQL.

    :ivar exchange: what others see of its waits
    """

    exchange: Exchange | None = None

    def fileno(self) -> int:
        """The file number of its socket; -1 where it is closed."""
        return -1 if self._sock is None else self._sock.fileno()

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        return self._seen(lambda: super(PacketConnection, self)._read_query_result(unbuffered))

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
