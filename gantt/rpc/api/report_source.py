# SPDX-License-Identifier: Apache-2.0
"""What a report source, or an agent beside it, calls beside ``update_resource_stats``."""

from collections.abc import Callable
from typing import Any

from gantt.core.claims.host_facts import TellFacts
from gantt.core.messages import base
from gantt.core.nova.source import AggregatesTold, AskMoves, GroupsTold, GuestList, GuestsSettled
from gantt.rpc import wire
from gantt.rpc.call import Call
from gantt.rpc.server.server import Method

#: Method -> its only argument and that one's type.  All of them may wait.
WORDS: dict[str, tuple[str, type]] = {
    'list_guests': ('listed', GuestList),
    'tell_aggregates': ('told', AggregatesTold),
    'tell_groups': ('told', GroupsTold),
    'open_moves': ('asked', AskMoves),
    'settle_guests': ('told', GuestsSettled),
    'tell_facts': ('told', TellFacts),
}


def methods(scheduler: Any) -> dict[str, Method]:
    """The methods, for the interface of a topic.

    :param scheduler: the facade; its ``nova_source`` is what is called
    """

    def made(name: str, argument: str) -> Callable[[Call], Any]:
        def run(call: Call) -> Any:
            said = wire.argument(call)
            if isinstance(said, TellFacts):
                said = scheduler.signatures.introduce_beside(said, call.args[argument])
            elif isinstance(said, GuestList):
                scheduler.signatures.check_list(said, call.args[argument])
            return base.to_builtins(getattr(scheduler.nova_source, name)(said))

        return run

    # They list what a host or a whole cloud has.
    return {
        name: Method(made(name, argument), takes={argument: tp}, bytes_max=None)
        for name, (argument, tp) in WORDS.items()
    }
