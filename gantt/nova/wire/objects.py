# SPDX-License-Identifier: Apache-2.0
"""Serialized objects of Nova: reading their fields, writing Selections, the one error.

Shapes as an unmodified Nova sends and needs them; samples of real messages are
in ``devel/captures`` and ``tests/data/nova``.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.records.decision import Selection
from gantt.core.resources.host import HostRow

#: Name of the availability zone where none is configured.
DEFAULT_ZONE = 'nova'

#: A Selection must name a cell; the conductor finds the cell by host and
#: does not use this one.
_NO_CELL_UUID = '00000000-0000-0000-0000-000000000000'


def fields(primitive: Any, name: str, field: str) -> dict[str, Any]:
    """Return the fields of a serialized object of class ``name``, major version 1 or 2.

    :raises InvalidMessage: it is no such object; names ``field``
    """
    if not isinstance(primitive, dict) or 'nova_object.name' not in primitive:
        raise exceptions.invalid(
            field, f'expected a serialized {name}, got {type(primitive).__name__}'
        )
    if primitive['nova_object.name'] != name:
        raise exceptions.invalid(
            f'{field}.nova_object.name', f'expected {name!r}, got {primitive["nova_object.name"]!r}'
        )
    data = primitive.get('nova_object.data')
    if not isinstance(data, dict):
        raise exceptions.invalid(f'{field}.nova_object.data', 'expected an object')
    return data


def fields_of_any(primitive: Any) -> dict[str, Any]:
    """Return the fields of a serialized object of any class; empty for anything else."""
    data = primitive.get('nova_object.data') if isinstance(primitive, dict) else None
    return data if isinstance(data, dict) else {}


def optional_fields(primitive: Any, name: str, field: str) -> dict[str, Any]:
    """Return fields as :func:`fields` does; empty for null."""
    return {} if primitive is None else fields(primitive, name, field)


def objects(primitive: Any, name: str, item: str, field: str) -> list[dict[str, Any]]:
    """Return the fields of each object in a serialized list object."""
    items = optional_fields(primitive, name, field).get('objects') or []
    if not isinstance(items, list):
        raise exceptions.invalid(f'{field}.objects', 'expected a list')
    return [fields(item_, item, f'{field}.objects') for item_ in items]


class NoValidHost(Exception):
    """The only refusal that Nova's callers handle cleanly.

    It travels as ``nova.exception.NoValidHost`` and is rebuilt as that there;
    Nova itself is never imported.
    """

    is_wire_error = True
    code = 'gantt.no_valid_host'

    def __init__(self, reason: str) -> None:
        super().__init__(f'No valid host was found. {reason}')
        self.kwargs = {'reason': reason, 'code': 500}


NoValidHost.__module__ = 'nova.exception'


def _primitive(
    name: str, version: str, data: dict[str, Any], changes: list[str] | None = None
) -> dict[str, Any]:
    """Return a serialized object.

    :param changes: names of the fields to mark as changed; None: all
    """
    return {
        'nova_object.name': name,
        'nova_object.namespace': 'nova',
        'nova_object.version': version,
        'nova_object.data': data,
        'nova_object.changes': list(data) if changes is None else changes,
    }


_SELECTION_CHANGES = [
    'compute_node_uuid',
    'allocation_request',
    'cell_uuid',
    'limits',
    'allocation_request_version',
    'availability_zone',
    'nodename',
    'service_host',
]


def allocation_request(selection: Selection) -> str:
    """Return the allocations as Placement would get them, as JSON text of version 1.36."""
    if not selection.allocations:
        # Names of classes and uuids are written as they are.
        amounts = ', '.join(f'"{name}": {n}' for name, n in sorted(selection.resources.items()))
        uuid = selection.uuid
        return (
            f'{{"allocations": {{"{uuid}": {{"resources": {{{amounts}}}}}}}, '
            f'"mappings": {{"": ["{uuid}"]}}}}'
        )
    providers: dict[str, dict[str, int]] = {}
    mappings: dict[str, list[str]] = {}
    for allocation in selection.allocations:
        if not allocation.resources:
            continue  # the host, where all resources come from other providers
        mappings.setdefault(allocation.group, []).append(allocation.uuid)
        provider_resources = providers.setdefault(allocation.uuid, {})
        for name, amount in sorted(allocation.resources.items()):
            provider_resources[name] = provider_resources.get(name, 0) + amount
    allocations = {
        uuid: {'resources': provider_resources} for uuid, provider_resources in providers.items()
    }
    return json.dumps({'allocations': allocations, 'mappings': mappings})


def _service_host(selected: Selection, host: HostRow | None) -> str:
    """Return the service host; a host of several nodes is not named as they are."""
    return (host.facts.hypervisor.service if host is not None else '') or selected.host


def selection(
    selected: Selection,
    limits: dict[str, Any],
    *,
    claimed: bool = True,
    host: HostRow | None = None,
) -> dict[str, Any]:
    """Return a Selection 1.1 primitive.

    :param limits: limits of the host, from :func:`scheduler_limits`
    :param host: row of the host; None: it is not known
    :param claimed: False for a rebuild, which allocates nothing
    """
    data = {
        'allocation_request': allocation_request(selected) if claimed else None,
        'allocation_request_version': '1.36' if claimed else None,
        'availability_zone': selected.zone or DEFAULT_ZONE,
        'cell_uuid': selected.cell or _NO_CELL_UUID,
        'compute_node_uuid': selected.uuid,
        'limits': limits,
        'nodename': selected.node,
        'service_host': _service_host(selected, host),
    }
    return _primitive('Selection', '1.1', data, _SELECTION_CHANGES)


def destinations(
    selections: Sequence[list[Selection]],
    *,
    as_objects: bool,
    alternates: bool,
    claimed: bool = True,
    topology: 'Topology | None' = None,
    host: Callable[[int], HostRow | None] = lambda _: None,
) -> list[Any]:
    """Return the result of ``select_destinations`` as Nova's callers expect it.

    :param selections: per instance the chosen host, then alternates; those of
        another cell than the chosen are left out, as Nova cannot use them
    :param as_objects: False: one plain dictionary per instance (before 4.5)
    :param topology: topology of the instances; None: they have none
    :param host: the row of a provider, for its limits
    """
    if not as_objects:
        return [_selection_dict(hosts[0], topology, host) for hosts in selections]
    per_instance = []
    for hosts in selections:
        usable = (
            [candidate for candidate in hosts if candidate.cell == hosts[0].cell]
            if alternates
            else hosts[:1]
        )
        rows = [host(candidate.provider_id) for candidate in usable]
        per_instance.append(
            [
                selection(candidate, scheduler_limits(topology, row), claimed=claimed, host=row)
                for candidate, row in zip(usable, rows, strict=True)
            ]
        )
    return per_instance


def _selection_dict(
    chosen: Selection,
    topology: 'Topology | None',
    host: Callable[[int], HostRow | None],
) -> dict[str, Any]:
    row = host(chosen.provider_id)
    numa = numa_limits(topology, row)
    limits = {} if numa is None else {'numa_topology': numa}
    return {'host': _service_host(chosen, row), 'nodename': chosen.node, 'limits': limits}


# -- Limits of a Selection, against which nova-compute's own claim checks a topology.
class Topology(msgspec.Struct, frozen=True):
    """NUMA topology of a request.

    :ivar networks: the request's serialized NetworkMetadata; None: it has none
    """

    networks: Any = None


def topology_of(spec: Any) -> Topology | None:
    """Return the topology in a serialized RequestSpec; None: nothing that has limits."""
    data = fields_of_any(spec)
    if data.get('numa_topology') is None:
        return None
    return Topology(data.get('network_metadata'))


def scheduler_limits(topology: 'Topology | None', host: HostRow | None) -> dict[str, Any]:
    """Return a SchedulerLimits 1.0 primitive; nova-compute reads only the topology's limits.

    :param host: row of the Selection's host, None where it is not known any more
    """
    data = {
        'disk_gb': None,
        'memory_mb': None,
        'numa_topology': numa_limits(topology, host),
        'vcpu': None,
    }
    changes = ['vcpu', 'disk_gb', 'numa_topology', 'memory_mb']
    return _primitive('SchedulerLimits', '1.0', data, changes)


def numa_limits(topology: 'Topology | None', host: HostRow | None) -> dict[str, Any] | None:
    """Return a NUMATopologyLimits 1.1 primitive, as Nova's NUMATopologyFilter does.

    None unless both the instance and the host have a topology.
    """
    if topology is None or host is None or not host.facts.numa:
        return None
    data: dict[str, Any] = {
        'cpu_allocation_ratio': _ratio(host, 'VCPU'),
        'ram_allocation_ratio': _ratio(host, 'MEMORY_MB'),
    }
    if topology.networks is not None:
        data['network_metadata'] = topology.networks
    return _primitive('NUMATopologyLimits', '1.1', data)


def _ratio(host: HostRow, name: str) -> float:
    inventory = host.facts.inventories.get(name)
    return 1.0 if inventory is None else float(inventory.allocation_ratio)
