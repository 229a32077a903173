# SPDX-License-Identifier: Apache-2.0
"""What a flavor and an image ask for: resource amounts and traits.

The rules, and their order, are those of Nova's own translation for Placement.
What our request cannot carry (ports with bandwidth) is refused by name rather than
dropped: a silently weaker request would land on the wrong host.  Traits of features
that a guest uses are none of this: they are added to every request, whoever sent it.
"""

import re
from collections.abc import Mapping
from typing import Any

from gantt import exceptions
from gantt.core.messages import resource_classes
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.topology_request import CpuPolicy, EmulatorPolicy, ThreadPolicy
from gantt.core.topology import processors
from gantt.core.topology import read as topology
from gantt.core.topology.settings import TopologySettings, pmem_class

_RESOURCE = re.compile(r'resources([0-9A-Za-z_-]*):(.+)\Z')
_TRAIT = re.compile(r'trait([0-9A-Za-z_-]*):(.+)\Z')
#: Digits of an amount at most; larger ones are refused as numbers, with the limit.
_DIGITS_MAX = 20


class FlavorRequest:
    """Amounts by class, and traits, of one instance.

    :ivar groups: the same by suffix, of the groups that are numbered
    :ivar policy: of these; '': it says none
    """

    __slots__ = ('forbidden', 'groups', 'policy', 'required', 'resources')

    def __init__(self) -> None:
        self.resources: dict[str, int] = {}
        self.required: list[str] = []
        self.forbidden: list[str] = []
        self.groups: dict[str, FlavorRequest] = {}
        self.policy = ''

    def group(self, suffix: str) -> 'FlavorRequest':
        """The numbered group of a suffix; '': itself."""
        return self.groups.setdefault(suffix, FlavorRequest()) if suffix else self

    def classes(self) -> set[str]:
        """Those that it says amounts of, in whatever group."""
        return self.resources.keys() | {n for one in self.groups.values() for n in one.resources}

    def tree(self) -> dict[str, Any]:
        """The groups as fields of ``spec.tree``; nothing where there are none."""
        if not self.groups:
            return {}
        found: dict[str, Any] = {
            'groups': {
                suffix: {
                    'resources': {name: amount for name, amount in one.resources.items() if amount},
                    'required_traits': sorted(set(one.required)),
                    'forbidden_traits': sorted(set(one.forbidden)),
                }
                for suffix, one in self.groups.items()
            }
        }
        if self.policy:
            found['group_policy'] = self.policy
        return found


def requested(
    flavor: dict[str, Any], properties: Mapping[str, str], *, volume: bool
) -> FlavorRequest:
    """Resources and traits that an instance of ``flavor`` asks for.

    :param properties: of its image, all text
    :param volume: it boots from a volume: the root disk takes no room on the host
    :raises InvalidMessage: names the field
    """
    specs = extra_specs(flavor)
    settings = TopologySettings(specs, properties)
    found = FlavorRequest()
    _from_specs(specs, found)
    traits = properties.get('traits_required', '').split(',')
    found.required += filter(None, map(str.strip, traits))
    _from_policies(settings, _amount(flavor, 'vcpus'), found)
    _from_columns(flavor, volume, found)
    _from_features(settings, found)
    found.resources = {name: amount for name, amount in found.resources.items() if amount}
    found.required = sorted(set(found.required))
    found.forbidden = sorted(set(found.forbidden))
    return found


def check_cells(flavor: dict[str, Any], spec: RequestSpec) -> None:
    """Cells are made of what is claimed, and Nova builds them of what the flavor has.

    :raises InvalidMessage: extra specs claim another amount for a guest with cells
    """
    claimed = dict(spec.resources)
    if thousandths := claimed.get(resource_classes.MILLI_VCPU):
        # Parts of processors are processors of the guest.
        whole = -(-thousandths // resource_classes.MILLI)
        claimed['VCPU'] = claimed.get('VCPU', 0) + whole
    other = [
        (name, column)
        for name, column in (('VCPU', 'vcpus'), ('MEMORY_MB', 'memory_mb'))
        if f'resources:{name}' in spec.flavor.extra_specs
        and claimed.get(name) not in (None, _amount(flavor, column))
    ]
    if not other:
        return
    try:
        wish = topology.read(spec)
    except exceptions.InvalidMessage:
        return  # refused where cells are looked at
    if wish is not None and wish.cells:
        name, column = other[0]
        raise exceptions.invalid(
            f'flavor.extra_specs.resources:{name}',
            f'the guest has NUMA cells; expected {flavor[column]} for them as in the '
            f'flavor, got {claimed[name]}',
        )


def in_use(
    flavor: dict[str, Any], properties: Mapping[str, str], *, volume: bool
) -> dict[str, int]:
    """Amounts of an instance that is there: what cannot be said in amounts is left out.

    :raises InvalidMessage: names the column of the flavor
    """
    try:
        return requested(flavor, properties, volume=volume).resources
    except exceptions.InvalidMessage:
        return requested(flavor | {'extra_specs': {}}, {}, volume=volume).resources


def extra_specs(flavor: dict[str, Any]) -> dict[str, str]:
    """The extra specs, all text."""
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


def _from_specs(specs: dict[str, str], found: FlavorRequest) -> None:
    """``resources:X`` and ``trait:X``; the amounts stand for a flavor's own, 0 for none at all.

    ``resourcesN:X`` and ``traitN:X`` are the numbered group N; ``group_policy`` is of these.
    """
    for key, value in specs.items():
        field = f'flavor.extra_specs.{key}'
        resource, trait = _RESOURCE.match(key), _TRAIT.match(key)
        if key == 'group_policy':
            if value not in ('none', 'isolate'):
                raise exceptions.invalid(field, f"expected 'none' or 'isolate', got {value!r}")
            found.policy = value
        elif resource is not None:
            group = found.group(resource[1])
            group.resources[resource[2]] = _amount_of(resource[2], value, field)
        elif trait is not None:
            group = found.group(trait[1])
            lists = {'required': group.required, 'forbidden': group.forbidden}
            if value not in lists:
                raise exceptions.invalid(
                    field, f"expected 'required' or 'forbidden', got {value!r}"
                )
            lists[value].append(trait[2])
    if len(found.groups) > 1 and not found.policy:
        problem = f"expected 'none' or 'isolate' with {len(found.groups)} numbered groups, got none"
        raise exceptions.invalid('flavor.extra_specs.group_policy', problem)


def _amount_of(name: str, text: str, field: str) -> int:
    stripped = text.strip()
    if not (
        stripped.isascii()
        and stripped.isdigit()
        and len(stripped) <= _DIGITS_MAX
        and resource_classes.is_class_name(name)
    ):
        raise exceptions.invalid(
            field, f'expected a resource class and an amount, got {text[:_DIGITS_MAX]!r}'
        )
    return int(stripped)


def _from_policies(settings: TopologySettings, vcpus: int, found: FlavorRequest) -> None:
    """Dedicated processors, and hosts with or without threads."""
    policy = processors.cpu_policy(settings)
    if policy in (CpuPolicy.DEDICATED, CpuPolicy.MIXED):
        pinned = len(processors.dedicated(settings, policy, vcpus))
        if policy is CpuPolicy.MIXED:
            found.resources['VCPU'] = vcpus - pinned
        apart = processors.emulator_policy(settings) is EmulatorPolicy.ISOLATE
        found.resources['PCPU'] = pinned + apart
    threads, _ = processors.thread_policy(settings)
    if threads is ThreadPolicy.ISOLATE:
        found.forbidden.append(processors.HYPERTHREADING)
    elif threads is ThreadPolicy.REQUIRE:
        found.required.append(processors.HYPERTHREADING)


def _from_columns(flavor: dict[str, Any], volume: bool, found: FlavorRequest) -> None:
    """What the flavor has by itself, where its extra specs do not say it."""
    given = found.classes()
    if 'VCPU' not in given and 'PCPU' not in given:
        found.resources['VCPU'] = _amount(flavor, 'vcpus')
    if 'MEMORY_MB' not in given:
        found.resources['MEMORY_MB'] = _amount(flavor, 'memory_mb')
    swap_gb = -(-_amount(flavor, 'swap') // 1024)
    root_gb = 0 if volume else _amount(flavor, 'root_gb')
    disk_gb = root_gb + _amount(flavor, 'ephemeral_gb') + swap_gb
    if 'DISK_GB' not in given:
        found.resources['DISK_GB'] = disk_gb


def _from_features(settings: TopologySettings, found: FlavorRequest) -> None:
    """Features that take something of the host."""
    if settings.is_on('mem_encryption'):
        found.resources['MEM_ENCRYPTION_CONTEXT'] = 1
    labels = settings.pmem()
    for name in set(map(pmem_class, labels)):
        found.resources[name] = sum(pmem_class(label) == name for label in labels)
