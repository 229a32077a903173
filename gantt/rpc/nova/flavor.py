# SPDX-License-Identifier: Apache-2.0
"""Resource amounts and traits that a flavor and an image request.

The rules, and their order, are those of Nova's own translation for Placement.  What a flavor has in
columns, and by policies, is read only here; extra specs are read as in every interface.  Traits of
features that a guest uses are not added here, but to every request, from any sender.
"""

from collections.abc import Mapping
from typing import Any

from gantt import exceptions
from gantt.core.messages import base, resource_classes
from gantt.core.messages.keys import nova_extra_specs
from gantt.core.messages.keys.nova_extra_specs import FlavorRequest
from gantt.core.messages.keys.topology_settings import TopologySettings
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.topology_request import CpuPolicy, EmulatorPolicy, ThreadPolicy
from gantt.core.topology import processors
from gantt.core.topology import read as topology


def requested(
    flavor: dict[str, Any], properties: Mapping[str, str], *, volume: bool
) -> FlavorRequest:
    """Return resources and traits that an instance of ``flavor`` requests.

    :param properties: those of its image, all text
    :param volume: it boots from a volume: the root disk takes no room on the host
    :raises InvalidMessage: names the field
    """
    specs = extra_specs(flavor)
    settings = TopologySettings(specs, properties)
    try:
        flavor_request = nova_extra_specs.read(specs, properties)
    except base.Misfit as e:
        raise exceptions.invalid(e.field, e.problem) from None
    _from_policies(settings, _amount(flavor, 'vcpus'), flavor_request)
    _from_columns(flavor, volume, flavor_request)
    flavor_request.resources = {
        name: amount for name, amount in flavor_request.resources.items() if amount
    }
    flavor_request.required = sorted(set(flavor_request.required))
    flavor_request.forbidden = sorted(set(flavor_request.forbidden))
    return flavor_request


def check_cells(flavor: dict[str, Any], spec: RequestSpec) -> None:
    """Check that a guest's claim has the amounts that Nova builds its NUMA cells of.

    :raises InvalidMessage: extra specs claim another amount for a guest with cells
    """
    claimed = dict(spec.resources)
    if thousandths := claimed.get(resource_classes.MILLI_VCPU):
        # Parts of processors are processors of the guest.
        whole = -(-thousandths // resource_classes.MILLI)
        claimed['VCPU'] = claimed.get('VCPU', 0) + whole
    mismatches = [
        (name, column)
        for name, column in (('VCPU', 'vcpus'), ('MEMORY_MB', 'memory_mb'))
        if f'resources:{name}' in spec.flavor.extra_specs
        and claimed.get(name) not in (None, _amount(flavor, column))
    ]
    if not mismatches:
        return
    try:
        requested_topology = topology.read(spec)
    except exceptions.InvalidMessage:
        return  # refused where cells are read
    if requested_topology is not None and requested_topology.cells:
        name, column = mismatches[0]
        raise exceptions.invalid(
            f'flavor.extra_specs.resources:{name}',
            f'the guest has NUMA cells; expected {flavor[column]} for them as in the '
            f'flavor, got {claimed[name]}',
        )


def in_use(
    flavor: dict[str, Any], properties: Mapping[str, str], *, volume: bool
) -> dict[str, int]:
    """Return amounts of an existing instance; anything without an amount is left out.

    :raises InvalidMessage: names the column of the flavor
    """
    try:
        return requested(flavor, properties, volume=volume).resources
    except exceptions.InvalidMessage:
        return requested(flavor | {'extra_specs': {}}, {}, volume=volume).resources


def extra_specs(flavor: dict[str, Any]) -> dict[str, str]:
    """Return the extra specs, all text."""
    specs = flavor.get('extra_specs') or {}
    if not isinstance(specs, dict):
        raise exceptions.invalid('flavor.extra_specs', 'expected an object')
    return {str(k): v if isinstance(v, str) else str(v) for k, v in specs.items() if v is not None}


def _amount(flavor: dict[str, Any], name: str) -> int:
    value = flavor.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise exceptions.invalid(
            f'flavor.{name}', f'expected an integer of 0 or more, got {value!r}'
        )
    return value


def _from_policies(settings: TopologySettings, vcpus: int, found: FlavorRequest) -> None:
    """Add dedicated processors, and traits for hosts with or without threads."""
    policy = processors.cpu_policy(settings)
    if policy in (CpuPolicy.DEDICATED, CpuPolicy.MIXED):
        pinned = len(processors.dedicated(settings, policy, vcpus))
        if policy is CpuPolicy.MIXED:
            found.resources['VCPU'] = vcpus - pinned
        emulator_cpus = processors.emulator_policy(settings) is EmulatorPolicy.ISOLATE
        found.resources['PCPU'] = pinned + emulator_cpus
    threads, _ = processors.thread_policy(settings)
    if threads is ThreadPolicy.ISOLATE:
        found.forbidden.append(processors.HYPERTHREADING)
    elif threads is ThreadPolicy.REQUIRE:
        found.required.append(processors.HYPERTHREADING)


def _from_columns(flavor: dict[str, Any], volume: bool, found: FlavorRequest) -> None:
    """Add amounts from the flavor's columns, where its extra specs do not have them."""
    given_classes = found.classes()
    if 'VCPU' not in given_classes and 'PCPU' not in given_classes:
        found.resources['VCPU'] = _amount(flavor, 'vcpus')
    if 'MEMORY_MB' not in given_classes:
        found.resources['MEMORY_MB'] = _amount(flavor, 'memory_mb')
    swap_gb = -(-_amount(flavor, 'swap') // 1024)
    root_gb = 0 if volume else _amount(flavor, 'root_gb')
    disk_gb = root_gb + _amount(flavor, 'ephemeral_gb') + swap_gb
    if 'DISK_GB' not in given_classes:
        found.resources['DISK_GB'] = disk_gb
