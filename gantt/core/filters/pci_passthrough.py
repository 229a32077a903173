# SPDX-License-Identifier: Apache-2.0
"""PciPassthroughFilter: the devices that a flavor requests by name, and those of ports."""

from collections.abc import Mapping, Sequence
from typing import Any

from gantt.core.filters.base import Filter
from gantt.core.filters.numa_topology import InsideFilter, NUMATopologyFilter
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.topology_request import Wish
from gantt.core.plugin import Option
from gantt.core.table import topology
from gantt.core.table.columns import BoolArray
from gantt.core.table.host_table import HostTable
from gantt.core.topology.aliases import KEY, Aliases, read_option
from gantt.core.topology.read import Inside


class PciPassthroughFilter(InsideFilter):
    """The host has the devices of ``pci_passthrough:alias`` and of the request itself free.

    Whether they are as near to the guest's cells as they have to be is decided
    with the cells, for the best hosts.
    """

    reason = 'too few free devices'
    options = (
        Option(
            'pci_aliases',
            str,
            '',
            'Names of devices that flavors may ask for in pci_passthrough:alias, as a JSON list: '
            '[{"name": "gpu", "vendor_id": "10de", "product_id": "1eb8"}]. Further keys are '
            'device_type (type-PCI, type-PF, type-VF, vdpa), numa_policy (required, preferred, '
            'legacy, socket), resource_class, traits, live_migratable and tags (an object). '
            'Of several objects with one name any will do.',
        ),
    )
    pci_aliases: str

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values)
        self.aliases: Aliases = read_option(self.pci_aliases, '[filters] pci_aliases')

    def wish(self, spec: RequestSpec) -> Wish | None:
        if KEY not in spec.flavor.extra_specs and not spec.devices:
            return None
        devices = self.aliases.wishes(spec)
        return Wish(devices=devices) if devices else None

    def may(self, hosts: HostTable, wish: Wish, at: slice) -> BoolArray:
        return topology.may_have(hosts, hosts.kinds, wish, at)


def inside_of(filters: Sequence[Filter]) -> Inside:
    """Return the layout rules of a pipeline of these filters."""
    numa, pci, pack = -1, -1, False
    aliases: Aliases | None = None
    for k, rule in enumerate(filters):
        if isinstance(rule, NUMATopologyFilter):
            numa, pack = k, rule.packing_host_numa_cells_allocation_strategy
        elif isinstance(rule, PciPassthroughFilter):
            pci, aliases = k, rule.aliases
    return Inside(numa, pci, aliases, pack)
