# SPDX-License-Identifier: Apache-2.0
"""Nova's filters again, slow and plain: one host after the other, from its HostState.

Written from the meaning of each filter, not from the array forms: these share
nothing with them but what takes extra specs apart and the helpers for versions.
"""

import ipaddress
from typing import Any

from oslo_utils import versionutils

from gantt.core.filters import image_properties
from gantt.core.messages import extra_specs
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.resource_classes import Inventory
from gantt.core.table.host_state import HostState
from tests.core.filters.plain_specs import match
from tests.core.filters.reference_facts import capabilities, guests, inside, operations, query


def parts(text: str) -> set[str]:
    return {part.strip() for part in text.split(',')}


def metadata_of(host: HostState) -> dict[str, set[str]]:
    """Return all values of all keys over the host's aggregates, split at commas."""
    metadata: dict[str, set[str]] = {}
    for aggregate in host.aggregates:
        for key, value in aggregate.metadata.items():
            metadata.setdefault(key, set()).update(parts(value))
    return metadata


# -- aggregates ---------------------------------------------------------------------------
def multi_tenancy(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    tenants = [v for k, v in metadata_of(host).items() if k.startswith('filter_tenant_id')]
    return not tenants or any(spec.project_id in values for values in tenants)


def type_affinity(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    types = metadata_of(host).get('instance_type')
    return types is None or spec.flavor.name in types


def one_flavor(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    unknown = rule.type_affinity_ignores_unknown
    if not spec.flavor.name:
        return unknown or not host.flavors
    return all(
        flavor == spec.flavor.name or (flavor is None and unknown) for flavor in host.flavors
    )


def image_isolation(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    space = rule.aggregate_image_properties_isolation_namespace
    as_nova = rule.aggregate_image_properties_isolation_as_nova
    for key, values in metadata_of(host).items():
        if space and not key.startswith(
            space + rule.aggregate_image_properties_isolation_separator
        ):
            continue
        image_value = spec.image.properties.get(key, '')
        if not image_value or (as_nova and image_value in ('False', '0')):
            continue
        if image_value not in values and (
            as_nova or not any(same_truth(image_value, v) for v in values)
        ):
            return False
    return True


def same_truth(first: str, second: str) -> bool:
    yes, no = ('true', 'yes', 'on'), ('false', 'no', 'off')
    return any(first.lower() in words and second.lower() in words for words in (yes, no))


def aggregate_extra_specs(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    metadata = metadata_of(host)
    for key, requirement in spec.flavor.extra_specs.items():
        scope, colon, rest = key.partition(':')
        if colon and scope != 'aggregate_instance_extra_specs':
            continue
        values = metadata.get(rest if colon else key, set())
        if not any(match(value, requirement, rule.extra_specs_as_nova) for value in values):
            return False
    return True


def least(host: HostState, key: str, read: Any, otherwise: Any) -> Any:
    """Return the least value of a key that can be read, over the host's aggregates."""
    values = [read(a.metadata[key]) for a in host.aggregates if key in a.metadata]
    return min((v for v in values if v is not None), default=otherwise)


# -- load ---------------------------------------------------------------------------------
def num_instances(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    return guests(host) < rule.max_instances_per_host


def aggregate_num_instances(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    key = 'max_instances_per_host'
    return guests(host) < least(host, key, extra_specs.integer_of, rule.max_instances_per_host)


def io_ops(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    return operations(host) < rule.max_io_ops_per_host


def aggregate_io_ops(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    key = 'max_io_ops_per_host'
    return operations(host) < least(host, key, extra_specs.integer_of, rule.max_io_ops_per_host)


# -- hosts, addresses, metrics ------------------------------------------------------------
def isolated_hosts(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    image = spec.image.uuid in rule.isolated_images
    isolated = host.name in rule.isolated_hosts
    if rule.restrict_isolated_hosts_to_isolated_images:
        return image == isolated
    return not image or isolated


def cidr(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    near = spec.hints.get('build_near_host_ip')
    if not near or near == ['']:
        return True
    bits = spec.hints.get('cidr') or ['/24']
    if len(near) > 1 or len(bits) > 1:
        return False
    try:
        text = f'{near[0]}/{bits[0].removeprefix("/")}' if bits[0] else near[0]
        network = ipaddress.ip_network(text, strict=False)
        address = ipaddress.ip_address(host.hypervisor.host_ip)
        return (getattr(address, 'ipv4_mapped', None) or address) in network
    except ValueError:
        return False


def metrics(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    names = {s.partition('=')[0].strip() for s in rule.metrics_weight_setting.split(',')} - {''}
    return names <= set(host.metrics)


# -- hypervisor ---------------------------------------------------------------------------
def image_props(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    properties, hypervisor = spec.image.properties, host.hypervisor
    default = rule.image_properties_default_architecture
    requested = [
        image_properties.canonical_name(0, properties.get('hw_architecture', default)),
        image_properties.canonical_name(1, properties.get('img_hv_type', '')),
        image_properties.canonical_name(2, properties.get('hw_vm_mode', '')),
    ]
    as_nova = rule.image_properties_as_nova
    if any(requested):
        if not any(runs(kind, requested, as_nova) for kind in hypervisor.supported):
            return False
    elif as_nova:
        return True
    return version_fits(hypervisor.version, properties.get('img_hv_requested_version', '')) and (
        bits_fit(hypervisor.cpu_info, properties.get('hw_maxphysaddr_bits', ''))
    )


def runs(kind: list[str], asked: list[str], as_nova: bool) -> bool:
    has = [image_properties.canonical_name(i, text) for i, text in enumerate(kind)]
    if as_nova:
        return all(a in has for a in asked if a)
    return all(i < len(has) and has[i] == a for i, a in enumerate(asked) if a)


def version_fits(number: int, text: str) -> bool:
    """Compare as Nova does, by the same library."""
    if not text:
        return True
    try:
        predicate = versionutils.VersionPredicate(text)
    except ValueError:
        return False
    return not number or predicate.satisfied_by(versionutils.convert_version_to_str(number))


def bits_fit(cpu_info: Any, asked: str) -> bool:
    if not asked or asked == '0':
        return True
    bits = extra_specs.number_of(asked)
    has = inside(cpu_info, ['maxphysaddr', 'bits'])
    has = extra_specs.number_of(has) if isinstance(has, str) else has
    if bits is None:
        return False
    return not isinstance(has, int | float) or not has or has >= bits


# -- amounts ------------------------------------------------------------------------------
def by_ratio(resource: str, key: str = '') -> Any:
    """Return the decision of RamFilter and its kin."""

    def passes(rule: Any, host: HostState, spec: RequestSpec) -> bool:
        amount = spec.resources.get(resource)
        if amount is None:
            return True
        has = host.inventories.get(resource, Inventory(total=0))
        used = host.used.get(resource, 0) + host.foreign.get(resource, 0) + has.reserved
        ratio = least(host, key, ratio_of, has.allocation_ratio) if key else has.allocation_ratio
        return amount <= has.total and amount <= has.total * ratio - used

    return passes


def ratio_of(text: str) -> float | None:
    number = extra_specs.number_of(text)
    return number if number is not None and 0 <= number <= 1e6 else None


def exact(resource: str) -> Any:
    """Return the decision of ExactRamFilter and its kin."""

    def passes(rule: Any, host: HostState, spec: RequestSpec) -> bool:
        amount = spec.resources.get(resource)
        has = host.inventories.get(resource, Inventory(total=0))
        used = host.used.get(resource, 0) + host.foreign.get(resource, 0)
        return amount is None or amount == has.total - has.reserved - used

    return passes


def everybody(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    return True


def retry(rule: Any, host: HostState, spec: RequestSpec) -> bool:
    return host.name.lower() not in [name.lower() for name in spec.ignore_hosts]


REFERENCE = {
    'AllHostsFilter': everybody,
    'RetryFilter': retry,
    'ComputeCapabilitiesFilter': capabilities,
    'ImagePropertiesFilter': image_props,
    'AggregateInstanceExtraSpecsFilter': aggregate_extra_specs,
    'AggregateImagePropertiesIsolation': image_isolation,
    'AggregateMultiTenancyIsolation': multi_tenancy,
    'AggregateTypeAffinityFilter': type_affinity,
    'TypeAffinityFilter': one_flavor,
    'JsonFilter': query,
    'NumInstancesFilter': num_instances,
    'AggregateNumInstancesFilter': aggregate_num_instances,
    'IoOpsFilter': io_ops,
    'AggregateIoOpsFilter': aggregate_io_ops,
    'IsolatedHostsFilter': isolated_hosts,
    'SimpleCIDRAffinityFilter': cidr,
    'MetricsFilter': metrics,
    'RamFilter': by_ratio('MEMORY_MB'),
    'CoreFilter': by_ratio('VCPU'),
    'DiskFilter': by_ratio('DISK_GB'),
    'AggregateRamFilter': by_ratio('MEMORY_MB', 'ram_allocation_ratio'),
    'AggregateCoreFilter': by_ratio('VCPU', 'cpu_allocation_ratio'),
    'AggregateDiskFilter': by_ratio('DISK_GB', 'disk_allocation_ratio'),
    'ExactRamFilter': exact('MEMORY_MB'),
    'ExactCoreFilter': exact('VCPU'),
    'ExactDiskFilter': exact('DISK_GB'),
}
