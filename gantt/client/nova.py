# SPDX-License-Identifier: Apache-2.0
"""Who speaks for hosts of Nova, or beside it: what reports have no room for."""

from typing import Any

import oslo_messaging as om

from gantt.client.calls import Caller
from gantt.core import message
from gantt.core.beside import FactsHeard, TellFacts
from gantt.core.nova_source import (
    AggregatesTold,
    AskMoves,
    GroupsTold,
    GuestList,
    GuestsHeard,
    GuestsSettled,
    Moves,
)
from gantt.rpc import wire
from gantt.rpc.transport import HOSTS_EXCHANGE


class NovaClient:
    """Calls on topic ``gantt-stats``; each may be repeated, it has the effect of one.

    :param timeout: seconds that a call may take
    """

    def __init__(self, transport: om.transport.RPCTransport, *, timeout: float = 20.0) -> None:
        self._caller = Caller(transport, wire.STATS_TOPIC, HOSTS_EXCHANGE)
        self._timeout = timeout

    def list_guests(self, listed: GuestList) -> GuestsHeard:
        """All guests of a host; claims are folded when this returns.

        :raises Unavailable: not taken, or no answer
        """
        found = self._call('list_guests', listed.host, listed=message.to_builtins(listed))
        return message.decode(found, GuestsHeard, inside='heard')

    def tell_aggregates(self, told: AggregatesTold) -> None:
        """Aggregates as Nova has them."""
        self._call('tell_aggregates', '', told=message.to_builtins(told))

    def tell_groups(self, told: GroupsTold) -> int:
        """Server groups; how many were not known."""
        return int(self._call('tell_groups', '', told=message.to_builtins(told)))

    def open_moves(self, asked: AskMoves) -> Moves:
        """Moves that nobody has ended."""
        found = self._call('open_moves', '', asked=message.to_builtins(asked))
        return message.decode(found, Moves, inside='moves')

    def settle_guests(self, told: GuestsSettled) -> None:
        """Where guests are that were between two hosts."""
        self._call('settle_guests', '', told=message.to_builtins(told))

    def tell_facts(self, told: TellFacts) -> FactsHeard:
        """What an agent has read on its host.

        :raises NotFound: who speaks for the host has not told of it yet
        :raises Refused: an agent of its own speaks for the host, or a field is wrong
        :raises Unavailable: not taken, or no answer
        """
        found = self._call('tell_facts', told.host, told=message.to_builtins(told))
        return message.decode(found, FactsHeard, inside='heard', newer_minor=True)

    def _call(self, method: str, context_id: str, **args: Any) -> Any:
        return self._caller.call(method, self._timeout, context_id=context_id, **args)
