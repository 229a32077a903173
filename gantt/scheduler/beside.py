# SPDX-License-Identifier: Apache-2.0
"""The part of the store's port that is about agents beside nova-compute."""

from typing import Protocol

import msgspec

from gantt.core.claims.host_facts import TellFacts
from gantt.core.resources.host import HostChange


class FactsResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the word of an agent.

    :ivar fate: applied | stale | unknown_host | refused (its own agent speaks for the host)
    :ivar sequence: the last one that is known of the host
    :ivar hosts: the host as it is now, where the word was applied
    """

    fate: str
    sequence: int = 0
    hosts: list[HostChange] = []


class FactsStore(Protocol):
    """For :class:`gantt.scheduler.ports.Store`, whose other rules hold here too."""

    def tell_facts(self, told: TellFacts) -> FactsResult:
        """Fold what an agent tells beside the reports of its host; see ``core.claims.host_facts``.

        :raises NotProven: its sender is not the agent that is known of the host
        """
