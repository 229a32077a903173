# SPDX-License-Identifier: Apache-2.0
"""Which zone above asks."""

from gantt.core.zones.messages import ParentRecord
from gantt.http.context import Caller, HandlerContext
from gantt.http.policy import Forbidden

#: Addresses from which somebody is believed without a token.
LOOPBACK = ('127.0.0.1', '::1')
#: The rule of what zones above ask.
ASK = 'gantt:zone:ask'


def parent_of(world: HandlerContext, caller: Caller) -> ParentRecord:
    """The zone above that asks.

    :raises Forbidden: it is none that is registered here, or says so from another machine
    """
    if caller.remote and caller.remote not in LOOPBACK:
        raise Forbidden(
            rule=ASK,
            needs='a token, from another machine than this one ([api] auth_strategy = keystone)',
            have='none',
        )
    directory = world.zones.directory
    directory.freshen()
    found = directory.parent(caller.user) if caller.user else None
    if found is None or not found.enabled:
        raise Forbidden(
            rule=ASK,
            needs='a zone above that is registered here and enabled',
            have=f'the user {caller.user or "without a name"}',
        )
    return found
