# SPDX-License-Identifier: Apache-2.0
"""Foreign reports as facts: the plain dictionary and Nova's ComputeNode object.

Both carry parts as JSON text inside (cpu_info, numa_topology, metrics); both
forms of each part, text or structure, are taken.
"""

import json
import math
import re
from typing import Any, TypeGuard, TypeVar

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.report import DevicePool, Hypervisor, NumaCell, ReportedMetric
from gantt.rpc import wire
from gantt.rpc.api.stats import Ratios, ReportedFacts, ResourceDictionary

T = TypeVar('T')

#: Keys of cpu_info that filters and extra specs read.
_CPU_KEYS = ('arch', 'model', 'vendor', 'topology', 'cells', 'features', 'maxphysaddr')
#: Texts in stats that change with every report and that placement does not use.
_CHANGING_KEYS = frozenset({'uptime'})
#: Numbers that are written again as they were: without zeros at the end, and few digits.
_PLAIN_NUMBER = re.compile(
    r'(?!-0\Z)-?(?:0|[1-9][0-9]{0,14}|(?:0|[1-9][0-9]{0,8})\.[0-9]{0,3}[1-9])\Z', re.ASCII
)
_PERCENT_SUFFIX = '.percent'


def reported_facts(name: str, stats: dict[str, Any], defaults: Ratios) -> ReportedFacts:
    """Return the facts that form 2 or 3 reports about the host ``name``.

    :raises InvalidMessage: names the field and what was expected
    """
    is_node = 'nova_object.name' in stats
    if is_node:
        stats = _compute_node(stats)
    wire.check_finite(stats, 'stats')
    dictionary = base.decode(stats, ResourceDictionary, inside='stats')
    if dictionary.host is not None and dictionary.host != name:
        raise _invalid_field(
            'host', f'expected {name!r} as in the argument name, got {dictionary.host!r}'
        )
    used = {
        'vcpus_used': dictionary.vcpus_used,
        'memory_mb_used': _used(
            dictionary.memory_mb_used, dictionary.memory_mb, dictionary.free_ram_mb
        ),
        'local_gb_used': _used(
            dictionary.local_gb_used, dictionary.local_gb, dictionary.free_disk_gb
        ),
    }
    if is_node:
        # Nova's mark of a node that was created and whose use is not counted yet.
        used['free_disk_gb'] = dictionary.free_disk_gb
    reported = ReportedFacts(
        host=name,
        node=dictionary.hypervisor_hostname,
        uuid=dictionary.uuid,
        vcpus=dictionary.vcpus,
        memory_mb=dictionary.memory_mb,
        local_gb=dictionary.local_gb,
        vcpus_used=used['vcpus_used'] or 0,
        memory_mb_used=used['memory_mb_used'] or 0,
        local_gb_used=used['local_gb_used'] or 0,
        unknown=tuple(field for field, amount in used.items() if amount is None),
        disk_available_least=dictionary.disk_available_least,
        ratios=_ratios(dictionary, defaults),
        hypervisor=_hypervisor(dictionary),
        numa=_numa(dictionary.numa_topology),
        devices=_devices(
            dictionary.pci_device_pools
            if dictionary.pci_device_pools is not None
            else dictionary.pci_stats
        ),
        metrics=_metrics(dictionary),
    )
    # The parts were read one by one: here they are checked against our own reports' bounds.
    return base.decode(base.to_builtins(reported), ReportedFacts, inside='stats')


def _invalid_field(field: str, problem: str) -> exceptions.InvalidMessage:
    return exceptions.invalid(f'stats.{field}', problem)


def _used(used: int | None, total: int, free: int | None) -> int | None:
    """Return use as reported, or as total less free; free may be negative where overcommitted.

    None where the report has neither: it is unknown, not zero.
    """
    if used is not None:
        return used
    return max(0, total - free) if free is not None else None


def _ratios(dictionary: ResourceDictionary, defaults: Ratios) -> Ratios:
    """Return the reported ratios; 0 and null mean the default."""
    return Ratios(
        cpu=dictionary.cpu_allocation_ratio or defaults.cpu,
        ram=dictionary.ram_allocation_ratio or defaults.ram,
        disk=dictionary.disk_allocation_ratio or defaults.disk,
    )


def _decode_json(value: Any, field: str) -> Any:
    """Return a part that may come as JSON text."""
    if not isinstance(value, str):
        return value
    if not value:
        return None
    try:
        structure = json.loads(value)
    except (ValueError, RecursionError):
        raise _invalid_field(field, 'expected a structure or its JSON text') from None
    wire.check_finite(structure, f'stats.{field}')
    return structure


def _nova_object_data(value: Any, field: str, name: str | None = None) -> dict[str, Any]:
    """Return the fields of a serialized object, or a plain dictionary as it is.

    :param name: class that a serialized object must have
    """
    if not isinstance(value, dict):
        raise _invalid_field(field, f'expected an object, got {type(value).__name__}')
    if 'nova_object.name' not in value:
        return value
    if name is not None and value['nova_object.name'] != name:
        raise _invalid_field(f'{field}.nova_object.name', f'expected {name}')
    data = value.get('nova_object.data')
    if not isinstance(data, dict):
        raise _invalid_field(f'{field}.nova_object.data', 'expected an object')
    return data


def _list(value: Any, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise _invalid_field(field, f'expected a list, got {type(value).__name__}')
    return value


def _int(value: Any, field: str, default: int = 0) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid_field(field, f'expected an integer, got {type(value).__name__}')
    if not 0 <= value <= 2**53:
        raise _invalid_field(field, f'expected 0 to 2**53, got {value}')
    return value


def _ints(value: Any, field: str) -> list[int]:
    """Return processor numbers from a list, or from the old text ``0,1,4-7``."""
    if value is None or value == '':
        return []
    if isinstance(value, str):
        numbers: list[int] = []
        for part in value.split(','):
            low, _, high = part.strip().partition('-')
            if not low.isdigit() or (high and not high.isdigit()):
                raise _invalid_field(
                    field, f'expected processor numbers such as 0,1,4-7, got {part!r}'
                )
            last = int(high or low)
            if last - int(low) > 65_536:
                raise _invalid_field(field, 'more than 65536 processors in one range')
            numbers += range(int(low), last + 1)
        return numbers
    return sorted(_int(x, field) for x in _list(value, field))


# -- form 3 -------------------------------------------------------------------
def _compute_node(stats: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a ComputeNode primitive under the names of the dictionary."""
    if stats.get('nova_object.name') != 'ComputeNode':
        raise _invalid_field(
            'nova_object.name', f"expected 'ComputeNode', got {stats['nova_object.name']!r}"
        )
    version = stats.get('nova_object.version')
    if not isinstance(version, str) or version.partition('.')[0] != '1':
        raise exceptions.UnsupportedVersion(
            method='update_resource_stats: ComputeNode', version=str(version), expected='1.x'
        )
    data = stats.get('nova_object.data')
    if not isinstance(data, dict):
        raise _invalid_field('nova_object.data', 'expected an object')
    known_fields = set(ResourceDictionary.__struct_fields__)
    # A newer object of the same major version may have fields that we do not know.
    return {key: value for key, value in data.items() if key in known_fields}


# -- parts --------------------------------------------------------------------
def _hypervisor(dictionary: ResourceDictionary) -> Hypervisor:
    info = _decode_json(dictionary.cpu_info, 'cpu_info')
    if info is not None and not isinstance(info, dict):
        raise _invalid_field('cpu_info', f'expected an object, got {type(info).__name__}')
    specs = (
        dictionary.supported_hv_specs
        if dictionary.supported_hv_specs is not None
        else dictionary.supported_instances
    )
    return Hypervisor(
        type=dictionary.hypervisor_type or '',
        version=_version(dictionary.hypervisor_version),
        hostname=dictionary.hypervisor_hostname or '',
        host_ip=dictionary.host_ip or '',
        cpu_info={k: info[k] for k in _CPU_KEYS if k in info} if info else '',
        supported=_supported(specs),
        stats=_texts(dictionary),
    )


def _texts(dictionary: ResourceDictionary) -> dict[str, str]:
    """Return the stats that are text; numbers are metrics, odd ones both."""
    texts: dict[str, str] = {}
    for name, value in (dictionary.stats or {}).items():
        text = str(value)
        plain = not isinstance(value, str) or _PLAIN_NUMBER.match(text)
        if value is None or name in _CHANGING_KEYS or (_as_number(value) is not None and plain):
            continue
        if 0 < len(name) <= 255 and len(text) <= base.TEXT_MAX and len(texts) < 256:
            texts[name] = text
    return texts


def _version(value: int | str | None) -> int:
    if value is None or value == '':
        return 0
    if isinstance(value, str):
        if not value.isdigit():
            raise _invalid_field('hypervisor_version', f'expected an integer, got {value!r}')
        value = int(value)
    return _int(value, 'hypervisor_version')


def _supported(value: Any) -> list[list[str]]:
    field = 'supported_instances'
    supported = []
    for spec in _list(_decode_json(value, field) or [], field):
        if isinstance(spec, dict):
            data = _nova_object_data(spec, field, 'HVSpec')
            spec = [data.get('arch'), data.get('hv_type'), data.get('vm_mode')]
        parts = ['' if part is None else part for part in _list(spec, field)]
        if not all(isinstance(part, str) for part in parts):
            raise _invalid_field(
                field, 'expected lists of [architecture, hypervisor type, vm mode]'
            )
        supported.append(parts)
    return supported


def _devices(value: Any) -> list[DevicePool]:
    field = 'pci_device_pools'
    value = _decode_json(value, field)
    if isinstance(value, dict):
        value = _nova_object_data(value, field, 'PciDevicePoolList').get('objects')
    return [
        _pool(_nova_object_data(pool, field, 'PciDevicePool')) for pool in _list(value or [], field)
    ]


def _pool(pool: dict[str, Any]) -> DevicePool:
    field = 'pci_device_pools'
    tags = pool.get('tags') or {}
    if not isinstance(tags, dict):
        raise _invalid_field(f'{field}.tags', 'expected an object')
    pool_fields = ('vendor_id', 'product_id', 'numa_node', 'count', 'tags', 'address')
    tags = {k: v for k, v in pool.items() if k not in pool_fields and isinstance(v, str)} | tags
    count = _int(pool.get('count'), f'{field}.count')
    numa = pool.get('numa_node')
    return _convert(
        DevicePool,
        {
            'vendor_id': pool.get('vendor_id') or '',
            'product_id': pool.get('product_id') or '',
            'address': pool.get('address') or '',
            'numa_node': None if numa is None or numa == -1 else _int(numa, f'{field}.numa_node'),
            'count': count,
            'free': count,
            'tags': {str(k): str(v) for k, v in tags.items() if v is not None},
        },
        field,
    )


def _numa(value: Any) -> list[NumaCell]:
    field = 'numa_topology'
    value = _decode_json(value, field)
    if value is None:
        return []
    cells = _nova_object_data(value, field, 'NUMATopology').get('cells')
    return [
        _cell(_nova_object_data(cell, f'{field}.cells', 'NUMACell'))
        for cell in _list(cells or [], field)
    ]


def _cell(cell: dict[str, Any]) -> NumaCell:
    field = 'numa_topology.cells'
    mem = _nova_object_data(cell.get('mem') or {}, f'{field}.mem')
    pages = [
        _nova_object_data(p, f'{field}.mempages', 'NUMAPagesTopology')
        for p in cell.get('mempages') or []
    ]
    body = {
        'id': _int(cell.get('id'), f'{field}.id'),
        'cpus': _ints(cell.get('cpuset', cell.get('cpus')), f'{field}.cpuset'),
        'pinned_cpus': _ints(cell.get('pcpuset'), f'{field}.pcpuset'),
        'used_pinned_cpus': _ints(cell.get('pinned_cpus'), f'{field}.pinned_cpus'),
        'siblings': [
            _ints(s, f'{field}.siblings')
            for s in _list(cell.get('siblings') or [], f'{field}.siblings')
        ],
        'memory_mb': _int(cell.get('memory', mem.get('total')), f'{field}.memory'),
        'memory_used_mb': _int(cell.get('memory_usage', mem.get('used')), f'{field}.memory_usage'),
        'cpu_used': _int(cell.get('cpu_usage'), f'{field}.cpu_usage'),
        'pages': [
            {
                key: _int(page.get(key), f'{field}.mempages.{key}')
                for key in ('size_kb', 'total', 'used', 'reserved')
            }
            for page in pages
        ],
        'socket': cell.get('socket'),
        **_networks(cell.get('network_metadata')),
    }
    return _convert(NumaCell, body, field)


def _networks(value: Any) -> dict[str, Any]:
    """Return the networks that a cell is near to."""
    if value is None:
        return {}
    field = 'numa_topology.cells.network_metadata'
    data = _nova_object_data(value, field, 'NetworkMetadata')
    names = _list(data.get('physnets') or [], f'{field}.physnets')
    if not all(isinstance(name, str) for name in names):
        raise _invalid_field(f'{field}.physnets', 'expected a list of text')
    return {'networks': sorted(set(names)), 'tunneled': bool(data.get('tunneled'))}


def _metrics(dictionary: ResourceDictionary) -> dict[str, ReportedMetric]:
    metrics: dict[str, ReportedMetric] = {}
    for item in _list(_decode_json(dictionary.metrics, 'metrics') or [], 'metrics'):
        data = _nova_object_data(item, 'metrics', 'MonitorMetric')
        name, value = data.get('name'), data.get('value')
        number = float(value) if _is_number(value) else None
        if not isinstance(name, str) or not name or number is None:
            # NUMA metrics have a list of values, which no weigher reads.
            continue
        if name.endswith(_PERCENT_SUFFIX):
            # Reported as a fraction, and weighed by Nova, and so by its ratios, as a percentage.
            number = round(100 * number, 6)
        metrics[name[:255]] = ReportedMetric(
            value=number, source=str(data.get('source') or '')[:1024]
        )
    for name in ('running_vms', 'current_workload'):
        counted: int | None = getattr(dictionary, name)
        if counted is not None:
            metrics[name] = ReportedMetric(value=float(counted), source='stats')
    for name, text in (dictionary.stats or {}).items():
        number = _as_number(text)
        if number is not None and len(metrics) < 256:
            metrics[f'stats.{name}'[:255]] = ReportedMetric(value=number, source='stats')
    return metrics


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _as_number(value: Any) -> float | None:
    """Return a stat as a number, or None; trackers keep their counts as text."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if _is_number(value) else None


def _convert(tp: type[T], body: dict[str, Any], field: str) -> T:
    try:
        return msgspec.convert(body, tp)
    except msgspec.ValidationError as e:
        raise base.invalid(e, tp, f'stats.{field}') from None
