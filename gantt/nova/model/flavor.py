# SPDX-License-Identifier: Apache-2.0
"""Resource amounts and traits that a flavor and an image request; image properties as text.

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
from gantt.core.topology import read as topology


def requested_resources(
    flavor: dict[str, Any], properties: Mapping[str, str], *, volume: bool
) -> FlavorRequest:
    """Return resources and traits that an instance of ``flavor`` requests.

    :param properties: properties of the image, all text
    :param volume: whether the instance boots from a volume: its root disk takes no room on the host
    :raises InvalidMessage: names the field
    """
    specs = extra_specs(flavor)
    settings = TopologySettings(specs, properties)
    try:
        flavor_request = nova_extra_specs.read(specs, properties)
    except base.FieldError as e:
        raise exceptions.invalid(e.field, e.problem) from None
    _add_cpu_policies(settings, _amount(flavor, 'vcpus'), flavor_request)
    _add_column_amounts(flavor, volume, flavor_request)
    flavor_request.resources = {
        name: amount for name, amount in flavor_request.resources.items() if amount
    }
    flavor_request.required = sorted(set(flavor_request.required))
    flavor_request.forbidden = sorted(set(flavor_request.forbidden))
    return flavor_request


def needs_of(flavor: dict[str, Any], image: dict[str, Any], *, volume: bool) -> dict[str, Any]:
    """Return what a flavor and an image need, as fields of our spec.

    Nova's topic and descriptions of groups both have it from here, so that a create is as planned.

    :param image: fields of our image, its properties all text
    :param volume: see :func:`requested_resources`
    :raises InvalidMessage: names the field
    """
    flavor_request = requested_resources(flavor, image.get('properties') or {}, volume=volume)
    return {
        'resources': flavor_request.resources,
        'required_traits': flavor_request.required,
        'forbidden_traits': flavor_request.forbidden,
        'tree': _resource_groups(flavor_request),
        'flavor': {'name': flavor.get('name') or '', 'extra_specs': extra_specs(flavor)},
        'image': image,
        'volume_backed': volume,
    }


def _resource_groups(flavor_request: FlavorRequest) -> dict[str, Any]:
    """Return numbered groups of a flavor as fields of ``spec.tree``; empty without groups."""
    if not flavor_request.groups:
        return {}
    groups = {suffix: group.as_group() for suffix, group in flavor_request.groups.items()}
    return {'groups': groups, 'group_policy': flavor_request.policy or None}


def check_cells(flavor: dict[str, Any], spec: RequestSpec) -> None:
    """Check that a guest's claim has the amounts that Nova builds its NUMA cells of.

    :raises InvalidMessage: extra specs claim another amount for a guest with cells
    """
    claimed = dict(spec.resources)
    if thousandths := claimed.get(resource_classes.MILLI_VCPU):
        # Parts of processors are processors of the guest.
        whole = -(-thousandths // resource_classes.MILLIS_PER_UNIT)
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
        return requested_resources(flavor, properties, volume=volume).resources
    except exceptions.InvalidMessage:
        return requested_resources(flavor | {'extra_specs': {}}, {}, volume=volume).resources


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


def _add_cpu_policies(settings: TopologySettings, vcpus: int, request: FlavorRequest) -> None:
    """Add dedicated processors, and traits for hosts with or without threads."""
    policy = topology.requested_cpu_policy(settings)
    if policy in (CpuPolicy.DEDICATED, CpuPolicy.MIXED):
        pinned = len(topology.requested_dedicated(settings, policy, vcpus))
        if policy is CpuPolicy.MIXED:
            request.resources['VCPU'] = vcpus - pinned
        emulator_cpus = topology.requested_emulator_policy(settings) is EmulatorPolicy.ISOLATE
        request.resources['PCPU'] = pinned + emulator_cpus
    threads, _ = topology.requested_thread_policy(settings)
    if threads is ThreadPolicy.ISOLATE:
        request.forbidden.append(topology.HYPERTHREADING)
    elif threads is ThreadPolicy.REQUIRE:
        request.required.append(topology.HYPERTHREADING)


def _add_column_amounts(flavor: dict[str, Any], volume: bool, request: FlavorRequest) -> None:
    """Add amounts from the flavor's columns, where its extra specs do not have them."""
    given_classes = request.classes()
    if 'VCPU' not in given_classes and 'PCPU' not in given_classes:
        request.resources['VCPU'] = _amount(flavor, 'vcpus')
    if 'MEMORY_MB' not in given_classes:
        request.resources['MEMORY_MB'] = _amount(flavor, 'memory_mb')
    swap_gb = -(-_amount(flavor, 'swap') // 1024)
    root_gb = 0 if volume else _amount(flavor, 'root_gb')
    disk_gb = root_gb + _amount(flavor, 'ephemeral_gb') + swap_gb
    if 'DISK_GB' not in given_classes:
        request.resources['DISK_GB'] = disk_gb


#: Properties that have a value for each NUMA cell; operators write ``name.0``, ``name.1``, ...
_PROPERTIES_BY_CELL = ('hw_numa_cpus', 'hw_numa_mem')
#: Prefix of image properties in an instance's own metadata.
_IMAGE_PREFIX = 'image_'


def image_properties(properties: dict[str, Any], field: str) -> dict[str, str]:
    """Return fields of ImageMetaProps as text; lists joined by commas, those by cell one by one.

    :param field: their name in an error
    :raises InvalidMessage: names the property
    """
    given_properties = {
        name: ','.join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in properties.items()
        if value is not None
    }
    for name in _PROPERTIES_BY_CELL:
        if properties.get(name) is not None:
            given_properties |= _cell_properties(name, properties[name], f'{field}.{name}')
    return given_properties


def _cell_properties(name: str, value: Any, field: str) -> dict[str, str]:
    """Return ``[[0], [1, 2]]`` as ``name.0`` and ``name.1``; sets of numbers joined by commas."""
    if not isinstance(value, list):
        raise exceptions.invalid(field, 'expected a list with a value by cell')
    return {
        f'{name}.{cell}': ','.join(map(str, sorted(cell_value)))
        if isinstance(cell_value, list)
        else str(cell_value)
        for cell, cell_value in enumerate(value)
    }


def instance_image(metadata: Any) -> dict[str, str]:
    """Return image properties that an instance keeps in its ``system_metadata``."""
    if not isinstance(metadata, dict):
        return {}
    return {
        name.removeprefix(_IMAGE_PREFIX): str(value)
        for name, value in metadata.items()
        if name.startswith(_IMAGE_PREFIX) and value is not None
    }
