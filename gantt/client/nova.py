# SPDX-License-Identifier: Apache-2.0
"""Who speaks for hosts of Nova, or beside it: what reports have no room for."""

from typing import Any

import oslo_messaging as om

from gantt.client.calls import Caller
from gantt.client.signing import Signer
from gantt.core.claims.host_facts import FactsHeard, TellFacts
from gantt.core.messages import base
from gantt.core.nova.source import (
    AggregatesTold,
    AskMoves,
    GroupsTold,
    GuestList,
    GuestsHeard,
    GuestsSettled,
    Moves,
)
from gantt.rpc import wire
from gantt.rpc.amqp.transport import HOSTS_EXCHANGE


class NovaClient:
    """Calls on topic ``gantt-stats``; each may be repeated, it has the effect of one.

    :param timeout: seconds that a call may take
    :param signer: of what is told in the name of a host; None: nothing is signed
    """

    def __init__(
        self,
        transport: om.transport.RPCTransport,
        *,
        timeout: float = 20.0,
        signer: Signer | None = None,
    ) -> None:
        self._signer = signer
        self._caller = Caller(transport, wire.STATS_TOPIC, HOSTS_EXCHANGE)
        self._timeout = timeout

    def list_guests(self, listed: GuestList) -> GuestsHeard:
        """All guests of a host; claims are folded when this returns.

        :raises NotProven: it is not signed with the key of the host
        :raises Unavailable: not taken, or no answer
        """
        body = base.to_builtins(listed)
        if self._signer is not None:
            body = self._signer.guests(body)
        found = self._call('list_guests', listed.host, self._version, listed=body)
        return base.decode(found, GuestsHeard, inside='heard')

    def tell_aggregates(self, told: AggregatesTold) -> None:
        """Aggregates as Nova has them."""
        self._call('tell_aggregates', '', told=base.to_builtins(told))

    def tell_groups(self, told: GroupsTold) -> int:
        """Server groups; how many were not known."""
        return int(self._call('tell_groups', '', told=base.to_builtins(told)))

    def open_moves(self, asked: AskMoves) -> Moves:
        """Moves that nobody has ended."""
        found = self._call('open_moves', '', asked=base.to_builtins(asked))
        return base.decode(found, Moves, inside='moves')

    def settle_guests(self, told: GuestsSettled) -> None:
        """Where guests are that were between two hosts."""
        self._call('settle_guests', '', told=base.to_builtins(told))

    def tell_facts(self, told: TellFacts) -> FactsHeard:
        """What an agent has read on its host.

        :raises NotFound: who speaks for the host has not told of it yet
        :raises Refused: an agent of its own speaks for the host, or a field is wrong
        :raises NotProven: it is not signed by the agent that is known of the host
        :raises Unavailable: not taken, or no answer
        """
        body = base.to_builtins(told)
        if self._signer is not None:
            body = self._signer.facts(body)
        found = self._call('tell_facts', told.host, self._version, told=body)
        return base.decode(found, FactsHeard, inside='heard', newer_minor=True)

    @property
    def _version(self) -> str:
        """What is signed needs schedulers that know the fields for it."""
        return wire.SENT if self._signer is None else wire.VERSION

    def _call(self, method: str, context_id: str, version: str = wire.SENT, **args: Any) -> Any:
        return self._caller.call(
            method, self._timeout, context_id=context_id, version=version, **args
        )
