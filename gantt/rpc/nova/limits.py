# SPDX-License-Identifier: Apache-2.0
"""Limits of a Selection: what nova-compute's own claim checks a topology against.

As Nova's NUMATopologyFilter leaves them: only where the instance has a
topology and the host has one, the overcommit ratios of that host and the
networks of the request.  All else is null; nova-compute reads nothing else.
"""

from typing import Any

import msgspec

from gantt.core.resources.host import HostRow


class Topology(msgspec.Struct, frozen=True):
    """That a request has a NUMA topology.

    :ivar networks: its serialized NetworkMetadata, None without one
    """

    networks: Any = None


def asked(spec: Any) -> Topology | None:
    """What a serialized RequestSpec asks for; None: nothing that has limits."""
    data = spec.get('nova_object.data') if isinstance(spec, dict) else None
    if not isinstance(data, dict) or data.get('numa_topology') is None:
        return None
    return Topology(data.get('network_metadata'))


def scheduler_limits(topology: Topology | None, host: HostRow | None) -> dict[str, Any]:
    """A SchedulerLimits 1.0 primitive.

    :param host: that the Selection names, None where it is not known any more
    """
    return {
        'nova_object.namespace': 'nova',
        'nova_object.name': 'SchedulerLimits',
        'nova_object.version': '1.0',
        'nova_object.data': {
            'disk_gb': None,
            'memory_mb': None,
            'numa_topology': numa_limits(topology, host),
            'vcpu': None,
        },
        'nova_object.changes': ['vcpu', 'disk_gb', 'numa_topology', 'memory_mb'],
    }


def numa_limits(topology: Topology | None, host: HostRow | None) -> dict[str, Any] | None:
    """A NUMATopologyLimits 1.1 primitive, where there are such limits."""
    if topology is None or host is None or not host.facts.numa:
        return None
    data: dict[str, Any] = {
        'cpu_allocation_ratio': _ratio(host, 'VCPU'),
        'ram_allocation_ratio': _ratio(host, 'MEMORY_MB'),
    }
    if topology.networks is not None:
        data['network_metadata'] = topology.networks
    return {
        'nova_object.namespace': 'nova',
        'nova_object.name': 'NUMATopologyLimits',
        'nova_object.version': '1.1',
        'nova_object.data': data,
        'nova_object.changes': list(data),
    }


def _ratio(host: HostRow, name: str) -> float:
    inventory = host.facts.inventories.get(name)
    return 1.0 if inventory is None else float(inventory.allocation_ratio)
