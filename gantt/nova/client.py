# SPDX-License-Identifier: Apache-2.0
"""Client of report sources for Nova's hosts: messages besides reports."""

from typing import Any

from gantt.client.calls import ServerCaller
from gantt.client.signing import Signer
from gantt.core.messages import base
from gantt.nova.model.source import (
    AggregateUpdate,
    GroupUpdate,
    GuestList,
    GuestListResult,
    GuestLocations,
    ListPendingMigrations,
    PendingMigrations,
)
from gantt.rpc import wire
from gantt.rpc.amqp.transport import Transport


class NovaClient:
    """Calls on topic ``gantt-stats``; each may be repeated, it has the effect of one.

    :param timeout: seconds that a call may take
    :param signer: signs messages in the name of a host; None: nothing is signed
    """

    def __init__(
        self,
        transport: Transport,
        *,
        timeout: float = 20.0,
        signer: Signer | None = None,
    ) -> None:
        self._signer = signer
        self._caller = ServerCaller(transport, wire.STATS_TOPIC)
        self._timeout = timeout

    def sync_guests(self, listed: GuestList) -> GuestListResult:
        """Send all guests of a host; its claims are up to date when this returns.

        :raises NotProven: it is not signed with the key of the host
        :raises Unavailable: the scheduler does not accept it, or no answer came
        """
        body = base.to_builtins(listed)
        if self._signer is not None:
            body = self._signer.guests(body)
        answer = self._call('sync_guests', listed.host, guest_list=body)
        return base.decode(answer, GuestListResult, inside='result')

    def update_aggregates(self, update: AggregateUpdate) -> None:
        """Send aggregates as Nova has them."""
        self._call('update_aggregates', '', update=base.to_builtins(update))

    def update_server_groups(self, update: GroupUpdate) -> int:
        """Send server groups; return how many the scheduler did not know before."""
        return int(self._call('update_server_groups', '', update=base.to_builtins(update)))

    def list_open_moves(self, query: ListPendingMigrations) -> PendingMigrations:
        """Return moves that have not ended."""
        answer = self._call('list_open_moves', '', query=base.to_builtins(query))
        return base.decode(answer, PendingMigrations, inside='moves')

    def update_guest_locations(self, update: GuestLocations) -> None:
        """Send the hosts of guests that were between two hosts."""
        self._call('update_guest_locations', '', update=base.to_builtins(update))

    def _call(self, method: str, context_id: str, **args: Any) -> Any:
        return self._caller.call(method, self._timeout, context_id=context_id, **args)
