# SPDX-License-Identifier: Apache-2.0
"""The shape of a filter that comes after all others: it sees who is left.

A rule that may be given up cannot be told from a mask of its own: whether a host
passes depends on whether any better one passes everything else.  Such filters run
last, wherever they are listed, so that the order of filters still changes nothing.
"""

from typing import TYPE_CHECKING

from gantt.core.filters.base import Filter
from gantt.core.messages.request import RequestSpec
from gantt.core.records.decision import Contradiction
from gantt.core.table.columns import BoolArray

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable


class ClosingFilter(Filter):
    """A rule about who is left.

    :meth:`mask` says which hosts could pass at all; :meth:`passes` says of a picked
    host that nothing has changed for any host, and may say no where it does not know.
    """

    local = True

    def mask_among(
        self, hosts: 'HostTable', spec: RequestSpec, alive: BoolArray
    ) -> BoolArray | None:
        """Which of those ``alive`` pass; of the others it may say anything.  None: all."""
        raise NotImplementedError

    def given_up(self, hosts: 'HostTable', spec: RequestSpec, row: int) -> list[tuple[int, str]]:
        """What a host that passed does not meet: (step, rule), those given up first first."""
        return []

    def contradiction(
        self, hosts: 'HostTable', spec: RequestSpec, alive: BoolArray
    ) -> Contradiction | None:
        """Rules that no host meets together, none of them in vain; None: they are not it.

        :param alive: those that all other filters let pass
        """
        return None
