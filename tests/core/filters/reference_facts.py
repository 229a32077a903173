# SPDX-License-Identifier: Apache-2.0
"""What filters see of one host, slow and plain; and what looks inside of it."""

import json
from typing import Any

from gantt.core import extra_specs
from gantt.core.host_state import HostState
from gantt.core.request import RequestSpec
from gantt.core.resources import Inventory


def guests(host: HostState) -> int:
    said = host.metrics.get('stats.num_instances')
    picks = host._table.picks().get(host.row, 0)
    return max(host.instances, int(said.value) + picks if said else 0)


def operations(host: HostState) -> int:
    said = host.metrics.get('stats.io_workload')
    return (max(0, int(said.value)) if said else 0) + host._table.picks().get(host.row, 0)


def inside(value: Any, path: list[str]) -> Any:
    for name in path:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return None
        value = value.get(name) if isinstance(value, dict) else None
    return value


def attributes(host: HostState) -> dict[str, Any]:
    """The host under Nova's names."""

    def amount(name: str) -> tuple[int, int, int]:
        inventory = host.inventories.get(name, Inventory(total=0))
        used = host.used.get(name, 0) + host.foreign.get(name, 0)
        return inventory.total, inventory.total - inventory.reserved - used, used

    def ratio(name: str) -> float:
        return host.inventories.get(name, Inventory(total=0)).allocation_ratio

    vcpu, ram, disk = amount('VCPU'), amount('MEMORY_MB'), amount('DISK_GB')
    hypervisor = host.hypervisor
    failed = host.metrics.get('stats.failed_builds')
    return {
        'host': host.name, 'nodename': host.node, 'hypervisor_hostname': host.node,
        'uuid': host.uuid, 'cell_uuid': host.cell, 'host_ip': hypervisor.host_ip or None,
        'hypervisor_type': hypervisor.type or None, 'hypervisor_version': hypervisor.version,
        'cpu_info': None if hypervisor.cpu_info == '' else hypervisor.cpu_info,
        'supported_instances': hypervisor.supported, 'stats': hypervisor.stats,
        'service': {'disabled': not host.is_enabled}, 'num_instances': guests(host),
        'num_io_ops': operations(host), 'failed_builds': int(failed.value) if failed else 0,
        'vcpus_total': vcpu[0], 'vcpus_used': vcpu[0] - vcpu[1],
        'total_usable_ram_mb': ram[0], 'free_ram_mb': ram[1],
        'total_usable_disk_gb': disk[0], 'free_disk_mb': disk[1] * 1024,
        'disk_mb_used': (disk[0] - disk[1]) * 1024,
        'cpu_allocation_ratio': ratio('VCPU'), 'ram_allocation_ratio': ratio('MEMORY_MB'),
        'disk_allocation_ratio': ratio('DISK_GB'),
    }  # fmt: skip


def stat(host: HostState, name: str) -> Any:
    if name in host.hypervisor.stats:
        return host.hypervisor.stats[name]
    metric = host.metrics.get(f'stats.{name}')
    if metric is None:
        return None
    return int(metric.value) if metric.value == int(metric.value) else metric.value


def look_up(host: HostState, path: list[str]) -> Any:
    """What a host has at a path, None where nothing."""
    known = attributes(host)
    if path[0] == 'stats' and len(path) > 1:
        return inside(stat(host, path[1]), path[2:])
    own = inside(known.get(path[0]), path[1:])
    return own if own is not None else inside(stat(host, path[0]), path[1:])


def capabilities(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    wants = dict(spec.flavor.extra_specs)
    bits = wants.pop('hw:maxphysaddr_bits', None)
    if bits is not None:
        wants['capabilities:cpu_info:maxphysaddr:bits'] = f'>= {bits}'
    for key, wanted in wants.items():
        path = key.split(':')
        scoped = len(path) > 1
        if scoped and path[0] != 'capabilities':
            continue
        value = look_up(host, path[1:] if scoped else path)
        if value is None:
            if scoped:
                return False
            continue
        requirement = extra_specs.parse(wanted, as_nova=rule.extra_specs_as_nova)
        items = None
        if isinstance(value, list) and not rule.extra_specs_as_nova:
            items = frozenset(map(str, value))
        if not requirement.fits(str(value), items):
            return False
    return True


# -- queries ------------------------------------------------------------------------------
def query(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    texts = spec.hints.get('query')
    if not texts or not texts[0]:
        return True
    body = json.loads(texts[0])
    found = answer(host, body, rule.json_filter_as_nova) if body else True
    return any(found) if isinstance(found, Nots) else bool(found)


class Nots(list):
    """What Nova's not gives: a list."""


def answer(host: HostState, body: list[Any], as_nova: bool) -> Any:
    if not body:
        return True
    values = [argument(host, item, as_nova) for item in body[1:]]
    values = [value for value in values if value is not None]
    match body[0]:
        case 'and':
            return all(truth(value, as_nova) for value in values)
        case 'or':
            return any(truth(value, as_nova) for value in values)
        case 'not':
            return Nots([not truth(value, as_nova) for value in values])
    values = as_written(body[1:], values)
    # Of what not gave only whether any of it holds counts for us; Nova has a list there.
    if not as_nova:
        values = [any(value) if isinstance(value, Nots) else value for value in values]
    return compared(body[0], values)


def as_written(items: list[Any], values: list[Any]) -> list[Any]:
    """A number of stats beside text is text: in Nova all stats are."""
    names = {i for i in items if isinstance(i, str) and i.startswith('$')}
    texts = [i for i in items if isinstance(i, str) and i and i not in names]
    inside_of = any(isinstance(i, list) and i for i in items)
    if len(names) != 1 or not texts or inside_of:
        return values
    name = names.pop()
    if not name.startswith('$stats.') or name.count('.') > 1:
        return values
    # What the items say drops out where it is empty, in the same order.
    kept = iter(values)
    found = []
    for item in items:
        if item is None or item == '':
            continue
        if item == name and len(values) < sum(i not in (None, '') for i in items):
            continue  # the host has no such thing
        value = next(kept)
        as_text = item == name and isinstance(value, int | float)
        found.append(str(value) if as_text else value)
    return found


def truth(value: Any, as_nova: bool) -> bool:
    if isinstance(value, Nots) and not as_nova:
        return any(value)
    return bool(value)


def compared(op: str, values: list[Any]) -> bool:
    if len(values) < 2:
        return False
    first, rest = values[0], values[1:]

    def related(other: Any) -> bool:
        if isinstance(first, Nots) or isinstance(other, Nots):
            return False
        try:
            return {
                '=': lambda: first == other, 'in': lambda: first == other,
                '<': lambda: first < other, '>': lambda: first > other,
                '<=': lambda: first <= other, '>=': lambda: first >= other,
            }[op]()  # fmt: skip
        except TypeError:
            return False

    return (any if op == 'in' else all)(related(other) for other in rest)


def argument(host: HostState, item: Any, as_nova: bool) -> Any:
    if isinstance(item, list):
        return answer(host, item, as_nova)
    if item == '' or item is None:
        return None
    if isinstance(item, str) and item.startswith('$'):
        path = item[1:].split('.')
        if path[0] == 'stats' and len(path) > 1:
            return inside(stat(host, path[1]), path[2:])
        return inside(attributes(host).get(path[0]), path[1:])
    return item
