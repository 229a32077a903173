# SPDX-License-Identifier: Apache-2.0
"""Inside: how a pipeline treats what requests ask of the inside of a host."""

import msgspec

from gantt.core.messages.request import Purpose, RequestSpec
from gantt.core.messages.topology_request import Wish
from gantt.core.topology.aliases import Aliases
from gantt.core.topology.read import may_ask, read
from gantt.core.topology.settings import refuse


class Inside(msgspec.Struct, frozen=True):
    """What is laid out, and how.

    :ivar numa: number of the filter that stands for cells, cores and pages; -1: they
        are not laid out
    :ivar pci: number of the filter that stands for devices; -1: they are not laid out
    :ivar aliases: names of devices
    :ivar pack: prefer the fullest cells of a host
    """

    numa: int = -1
    pci: int = -1
    aliases: Aliases | None = None
    pack: bool = False

    def wish(self, spec: RequestSpec) -> Wish | None:
        """What is to be laid out for a request; None: nothing.

        :raises InvalidMessage: names the key and what was expected
        """
        if not may_ask(spec):
            return None
        if spec.purpose is Purpose.REBUILD:
            return None
        if self.pci < 0 and not all(one.alias for one in spec.devices):
            refuse('request.spec.devices', 'are placed where PciPassthroughFilter is enabled only')
        if self.numa < 0 > self.pci:
            return None
        wish = read(spec, self.aliases if self.pci >= 0 else None)
        if wish is not None and self.numa < 0:
            return wish.without_cells()
        return wish

    def stands_for(self, wish: Wish) -> int:
        """Number of the filter that a host is removed by where a wish cannot be laid out."""
        return self.numa if wish.cells else self.pci
