# SPDX-License-Identifier: Apache-2.0
"""Nova's objects of a cloud, and its options, from plain data.

Runs in the environment that Nova is installed in and imports nothing of ours.
"""

import contextlib
import datetime
import functools
import json
from typing import Any

import nova.conf
from nova import objects
from nova.pci import request as pci_request
from nova.scheduler import host_manager
from oslo_utils import timeutils

CONF = nova.conf.CONF
#: What Nova takes for the time of day.
NOW = datetime.datetime(2026, 1, 1)

_PLAIN = (
    'uuid',
    'host',
    'vcpus',
    'vcpus_used',
    'memory_mb',
    'memory_mb_used',
    'free_ram_mb',
    'local_gb',
    'local_gb_used',
    'free_disk_gb',
    'disk_available_least',
    'hypervisor_type',
    'hypervisor_version',
    'hypervisor_hostname',
    'host_ip',
    'cpu_info',
    'stats',
    'cpu_allocation_ratio',
    'ram_allocation_ratio',
    'disk_allocation_ratio',
)


#: What of a cell is made of objects of its own.
_MADE = ('mempages', 'siblings', 'network_metadata')


def stop_the_clock() -> None:
    """Make it ``NOW`` for Nova."""
    timeutils.set_time_override(NOW)


def let_aliases_change() -> None:
    """Nova reads the option once and for ever; its slow check is kept by its text."""
    read = pci_request.get_alias_from_config.__wrapped__

    @functools.lru_cache(256)
    def aliases(text: tuple[str, ...]):
        return read()

    pci_request.get_alias_from_config = lambda: aliases(tuple(CONF.pci.alias))


@contextlib.contextmanager
def options(values: dict[str, dict[str, Any]]):
    """Nova's options as the case sets them: group -> name -> value."""
    touched = [(group, name) for group, values_by_name in values.items() for name in values_by_name]
    for group, name in touched:
        CONF.set_override(name, values[group][name], None if group == 'DEFAULT' else group)
    try:
        yield
    finally:
        for group, name in touched:
            CONF.clear_override(name, None if group == 'DEFAULT' else group)


def compute_node(host: dict[str, Any]) -> objects.ComputeNode:
    """What the compute service of a host would have saved."""
    fields = {name: host[name] for name in _PLAIN}
    node = objects.ComputeNode(updated_at=NOW, created_at=NOW, **fields)
    node.supported_hv_specs = [objects.HVSpec.from_list(spec) for spec in host['supported']]
    node.metrics = json.dumps(host['metrics']) if host['metrics'] is not None else None
    node.numa_topology = _numa(host['numa'])
    pools = [objects.PciDevicePool(**pool) for pool in host['pci']]
    node.pci_device_pools = objects.PciDevicePoolList(objects=pools)
    return node


def _numa(cells: list[dict[str, Any]] | None) -> str | None:
    if not cells:
        return None
    objects_of_cells = []
    for cell in cells:
        plain = {k: v for k, v in cell.items() if k not in _MADE}
        if cell['network_metadata'] is not None:
            plain['network_metadata'] = network_metadata(cell['network_metadata'])
        for name in ('cpuset', 'pcpuset', 'pinned_cpus'):
            plain[name] = set(plain[name])
        pages = [objects.NUMAPagesTopology(**page) for page in cell['mempages']]
        siblings = [set(pair) for pair in cell['siblings']]
        objects_of_cells.append(objects.NUMACell(mempages=pages, siblings=siblings, **plain))
    return objects.NUMATopology(cells=objects_of_cells)._to_json()


def network_metadata(networks: dict[str, Any]) -> objects.NetworkMetadata:
    """The networks of a cell, or of a guest."""
    return objects.NetworkMetadata(
        physnets=set(networks['physnets']), tunneled=networks['tunneled']
    )


def aggregates(described: list[dict[str, Any]]) -> list[objects.Aggregate]:
    """The host aggregates."""
    return [objects.Aggregate(**aggregate) for aggregate in described]


def guests(hosts: list[dict[str, Any]]) -> dict[str, objects.Instance]:
    """What runs on a service's nodes, with the image that each was made from."""
    instances = {}
    for host in hosts:
        for guest in host['guests']:
            metadata = {f'image_{name}': str(value) for name, value in guest['image'].items()}
            instances[guest['uuid']] = objects.Instance(
                uuid=guest['uuid'], host=host['host'], image_ref='', system_metadata=metadata
            )
    return instances


def host_states(
    hosts: list[dict[str, Any]], nodes: list[objects.ComputeNode], groups: list[objects.Aggregate]
) -> list[host_manager.HostState]:
    """Hosts as Nova's scheduler sees them for one request: the guests of a service together."""
    instances = {
        name: guests([host for host in hosts if host['host'] == name])
        for name in {host['host'] for host in hosts}
    }
    return [
        _host_state(host, node, groups, instances[host['host']])
        for host, node in zip(hosts, nodes, strict=True)
    ]


def _host_state(
    host: dict[str, Any],
    node: objects.ComputeNode,
    groups: list[objects.Aggregate],
    here: dict[str, objects.Instance],
) -> host_manager.HostState:
    state = host_manager.HostState(host['host'], host['hypervisor_hostname'], host['cell'])
    service = dict(host['service'])
    for name in ('last_seen_up', 'created_at'):
        age = service.pop(name)
        service[name] = None if age is None else NOW - datetime.timedelta(seconds=age)
    service.update(host=host['host'], binary='nova-compute', disabled_reason='')
    state.update(
        compute=node,
        service=service,
        aggregates=[a for a in groups if host['host'] in a.hosts],
        inst_dict=here,
    )
    state.allocation_candidates = [{'mappings': {'': [host['uuid']]}}]
    return state
