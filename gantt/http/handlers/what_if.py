# SPDX-License-Identifier: Apache-2.0
"""What if: a request placed on hosts as they are, and as they might be."""

from gantt.core.messages.base import Message
from gantt.core.messages.request import SelectDestinations
from gantt.core.placement.what_if_edits import HostEdits
from gantt.http.world import Caller, World
from gantt.insights.what_if import WhatIfAnswer


class WhatIfBody(Message, frozen=True, kw_only=True):
    """A request, and what would be otherwise about the hosts."""

    request: SelectDestinations
    hosts: HostEdits = HostEdits()


def what_if(world: World, caller: Caller, body: WhatIfBody) -> WhatIfAnswer:
    """Place a request on the hosts as they are and as edited; nothing is claimed or kept."""
    with world.gates.trials.passing(caller):
        return world.insights.what_if(body.request, body.hosts)
