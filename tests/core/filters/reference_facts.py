# SPDX-License-Identifier: Apache-2.0
"""Facts that filters see of one host, slow and plain; and paths inside of them."""

import json
from typing import Any

from gantt.core.messages.request import RequestSpec
from gantt.core.messages.resource_classes import Inventory
from gantt.core.table.host_state import HostState
from tests.core.filters.plain_specs import match


def guests(host: HostState) -> int:
    metric = host.metrics.get('stats.num_instances')
    picks = host._table.picks().get(host.row, 0)
    return max(host.instances, int(metric.value) + picks if metric else 0)


def operations(host: HostState) -> int:
    metric = host.metrics.get('stats.io_workload')
    return (max(0, int(metric.value)) if metric else 0) + host._table.picks().get(host.row, 0)


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
    """Return the host under Nova's names."""

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
        'host': host.name,
        'nodename': host.node,
        'hypervisor_hostname': host.node,
        'uuid': host.uuid,
        'cell_uuid': host.cell,
        'host_ip': hypervisor.host_ip or None,
        'hypervisor_type': hypervisor.type or None,
        'hypervisor_version': hypervisor.version,
        'cpu_info': None if hypervisor.cpu_info == '' else hypervisor.cpu_info,
        'supported_instances': hypervisor.supported,
        'stats': hypervisor.stats,
        'service': {'disabled': not host.is_enabled},
        'num_instances': guests(host),
        'num_io_ops': operations(host),
        'failed_builds': int(failed.value) if failed else 0,
        'vcpus_total': vcpu[0],
        'vcpus_used': vcpu[0] - vcpu[1],
        'total_usable_ram_mb': ram[0],
        'free_ram_mb': ram[1],
        'total_usable_disk_gb': disk[0],
        'free_disk_mb': disk[1] * 1024,
        'disk_mb_used': (disk[0] - disk[1]) * 1024,
        'cpu_allocation_ratio': ratio('VCPU'),
        'ram_allocation_ratio': ratio('MEMORY_MB'),
        'disk_allocation_ratio': ratio('DISK_GB'),
    }


def stat(host: HostState, name: str) -> Any:
    if name in host.hypervisor.stats:
        return host.hypervisor.stats[name]
    metric = host.metrics.get(f'stats.{name}')
    if metric is None:
        return None
    return int(metric.value) if metric.value == int(metric.value) else metric.value


def look_up(host: HostState, path: list[str]) -> Any:
    """Return the host's value at a path, None where it has none."""
    facts = attributes(host)
    if path[0] == 'stats' and len(path) > 1:
        return inside(stat(host, path[1]), path[2:])
    value = inside(facts.get(path[0]), path[1:])
    return value if value is not None else inside(stat(host, path[0]), path[1:])


def capabilities(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    wants = dict(spec.flavor.extra_specs)
    bits = wants.pop('hw:maxphysaddr_bits', None)
    if bits is not None:
        wants['capabilities:cpu_info:maxphysaddr:bits'] = f'>= {bits}'
    for key, requirement in wants.items():
        path = key.split(':')
        scoped = len(path) > 1
        if scoped and path[0] != 'capabilities':
            continue
        value = look_up(host, path[1:] if scoped else path)
        if value is None:
            if scoped:
                return False
            continue
        items = None
        if isinstance(value, list) and not rule.extra_specs_as_nova:
            items = frozenset(map(str, value))
        if not match(str(value), requirement, rule.extra_specs_as_nova, items):
            return False
    return True


# -- queries ------------------------------------------------------------------------------
def query(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    texts = spec.hints.get('query')
    if not texts or not texts[0]:
        return True
    body = json.loads(texts[0])
    result = answer(host, body, rule.json_filter_as_nova) if body else True
    return any(result) if isinstance(result, Nots) else bool(result)


class Nots(list):
    """A list, as Nova's not returns."""


def answer(host: HostState, body: list[Any], as_nova: bool) -> Any:
    if not body:
        return True
    arguments = [(item, argument(host, item, as_nova)) for item in body[1:]]
    arguments = [(item, value) for item, value in arguments if value is not None]
    values = [value for _, value in arguments]
    match body[0]:
        case 'and':
            return all(truth(value, as_nova) for value in values)
        case 'or':
            return any(truth(value, as_nova) for value in values)
        case 'not':
            return Nots([not truth(value, as_nova) for value in values])
    # Here a result of not counts only by whether any of it holds; Nova has a list there.
    if not as_nova:
        arguments = [(i, any(v) if isinstance(v, Nots) else v) for i, v in arguments]
    texts = any(isinstance(i, str) and i and not is_fact(i) for i in body[1:])
    return compared(body[0], arguments, texts)


def is_fact(item: Any) -> bool:
    return isinstance(item, str) and item.startswith('$')


def truth(value: Any, as_nova: bool) -> bool:
    if isinstance(value, Nots) and not as_nova:
        return any(value)
    return bool(value)


def compared(op: str, stated: list[tuple[Any, Any]], texts: bool) -> bool:
    """Compare the first with each of the others; ``texts``: the query has a text among them."""
    if len(stated) < 2:
        return False
    first, rest = stated[0], stated[1:]

    def related(other: tuple[Any, Any]) -> bool:
        if isinstance(first[1], Nots) or isinstance(other[1], Nots):
            return False
        have, want = beside(first, other, texts), beside(other, first, texts)
        try:
            return {
                '=': lambda: have == want,
                'in': lambda: have == want,
                '<': lambda: have < want,
                '>': lambda: have > want,
                '<=': lambda: have <= want,
                '>=': lambda: have >= want,
            }[op]()
        except TypeError:
            return False

    return (any if op == 'in' else all)(related(other) for other in rest)


def beside(stated: tuple[Any, Any], other: tuple[Any, Any], texts: bool) -> Any:
    """Return a number of stats beside text as text: in Nova all stats are."""
    item, value = stated
    is_stat = is_fact(item) and item.startswith('$stats.') and item.count('.') == 1
    is_text = isinstance(other[1], str) or (texts and not is_fact(other[0]))
    return str(value) if is_stat and is_text else value


def argument(host: HostState, item: Any, as_nova: bool) -> Any:
    if isinstance(item, list):
        return answer(host, item, as_nova)
    if item == '' or item is None:
        return None
    if is_fact(item):
        path = item[1:].split('.')
        if path[0] == 'stats' and len(path) > 1:
            return inside(stat(host, path[1]), path[2:])
        return inside(attributes(host).get(path[0]), path[1:])
    return item
