# SPDX-License-Identifier: Apache-2.0
"""What a flavor and an image ask for: resource amounts and traits.

The rules are those of Nova's own translation for Placement.  What our request
cannot carry (numbered groups, ports with bandwidth) is refused by name rather
than dropped: a silently weaker request would land on the wrong host.
"""

import re
from typing import Any

from gantt import exceptions
from gantt.core import resources

_RESOURCE = re.compile(r'resources([0-9A-Za-z_-]*):(.+)\Z')
_TRAIT = re.compile(r'trait([0-9A-Za-z_-]*):(.+)\Z')
_RANGE = re.compile(r'(\d{1,5})(?:-(\d{1,5}))?\Z')

_TPM_TRAITS = {'1.2': 'COMPUTE_SECURITY_TPM_1_2', '2.0': 'COMPUTE_SECURITY_TPM_2_0'}
_HYPERTHREADING = 'HW_CPU_HYPERTHREADING'


class Asked:
    """Amounts by class, and traits, of one instance."""

    __slots__ = ('forbidden', 'required', 'resources')

    def __init__(self) -> None:
        self.resources: dict[str, int] = {}
        self.required: list[str] = []
        self.forbidden: list[str] = []


def asked(flavor: dict[str, Any], image_properties: dict[str, Any], *, volume: bool) -> Asked:
    """Resources and traits that an instance of ``flavor`` asks for.

    :param image_properties: fields of the image's ImageMetaProps
    :param volume: it boots from a volume: the root disk takes no room on the host
    :raises InvalidMessage: names the field
    """
    specs = extra_specs(flavor)
    found = Asked()
    vcpus = _amount(flavor, 'vcpus')
    pinned = _pinned(specs, image_properties, vcpus)
    swap_gb = -(-_amount(flavor, 'swap') // 1024)
    root_gb = 0 if volume else _amount(flavor, 'root_gb')
    amounts = {
        'VCPU': vcpus - min(pinned, vcpus),
        'PCPU': pinned,
        'MEMORY_MB': _amount(flavor, 'memory_mb'),
        'DISK_GB': root_gb + _amount(flavor, 'ephemeral_gb') + swap_gb,
    }
    _from_features(specs, image_properties, amounts, found)
    if pinned:
        _thread_policy(specs, image_properties, found)
    _from_specs(specs, amounts, found)
    for trait in image_properties.get('traits_required') or []:
        found.required.append(_text(trait, 'image.properties.traits_required'))
    found.resources = {name: amount for name, amount in amounts.items() if amount}
    found.required = sorted(set(found.required))
    found.forbidden = sorted(set(found.forbidden))
    return found


def extra_specs(flavor: dict[str, Any]) -> dict[str, str]:
    """The extra specs, all text."""
    specs = flavor.get('extra_specs') or {}
    if not isinstance(specs, dict):
        raise exceptions.InvalidMessage(field='flavor.extra_specs', problem='expected an object')
    return {str(k): v if isinstance(v, str) else str(v) for k, v in specs.items() if v is not None}


def _amount(flavor: dict[str, Any], name: str) -> int:
    value = flavor.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise exceptions.InvalidMessage(
            field=f'flavor.{name}', problem=f'expected an integer of 0 or more, got {value!r}'
        )
    return value


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise exceptions.InvalidMessage(field=field, problem=f'expected text, got {value!r}')
    return value


def _either(specs: dict[str, str], image: dict[str, Any], name: str) -> str | None:
    """A setting that flavor or image may make; the flavor's word counts first."""
    found = specs.get(f'hw:{name}', image.get(f'hw_{name}'))
    return None if found is None else str(found)


def _pinned(specs: dict[str, str], image: dict[str, Any], vcpus: int) -> int:
    """How many processors must be dedicated ones."""
    policy = _either(specs, image, 'cpu_policy')
    if policy == 'mixed':
        name = 'cpu_dedicated_mask' if 'hw:cpu_dedicated_mask' in specs else 'cpu_realtime_mask'
        mask = specs.get(f'hw:{name}') or ''
        if name == 'cpu_realtime_mask':
            mask = str(image.get('hw_cpu_realtime_mask') or mask)
        pinned = len(_mask(mask, vcpus, f'flavor.extra_specs.hw:{name}'))
    elif policy == 'dedicated':
        pinned = vcpus
    else:
        return 0
    return pinned + (_either(specs, image, 'emulator_threads_policy') == 'isolate')


def _mask(text: str, vcpus: int, field: str) -> set[int]:
    """Processors of a mask such as ``0-3,^2``; exclusions alone start from all."""
    chosen: set[int] = set()
    excluded: set[int] = set()
    for part in filter(None, (p.strip() for p in text.split(','))):
        into = excluded if part.startswith('^') else chosen
        match = _RANGE.match(part.lstrip('^'))
        if match is None:
            raise exceptions.InvalidMessage(
                field=field, problem=f'expected processors such as 0-3,^2, got {part!r}'
            )
        into.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    if excluded and not chosen:
        chosen = set(range(vcpus))
    return {cpu for cpu in chosen - excluded if cpu < vcpus}


def _thread_policy(specs: dict[str, str], image: dict[str, Any], found: Asked) -> None:
    policy = _either(specs, image, 'cpu_thread_policy')
    if policy == 'isolate':
        found.forbidden.append(_HYPERTHREADING)
    elif policy == 'require':
        found.required.append(_HYPERTHREADING)


def _from_features(
    specs: dict[str, str], image: dict[str, Any], amounts: dict[str, int], found: Asked
) -> None:
    """Features that stand for a resource or a trait."""
    encryption = _either(specs, image, 'mem_encryption')
    if encryption is not None and encryption.lower() in ('true', '1', 'yes', 'on'):
        amounts['MEM_ENCRYPTION_CONTEXT'] = 1
    tpm = _either(specs, image, 'tpm_version')
    if tpm in _TPM_TRAITS:
        found.required.append(_TPM_TRAITS[tpm])
    for label in filter(None, (p.strip() for p in specs.get('hw:pmem', '').split(','))):
        name = f'CUSTOM_PMEM_NAMESPACE_{label.upper()}'
        amounts[name] = amounts.get(name, 0) + 1


def _from_specs(specs: dict[str, str], amounts: dict[str, int], found: Asked) -> None:
    """``resources:X`` and ``trait:X``; the amounts override, 0 takes a class out."""
    for key, value in specs.items():
        field = f'flavor.extra_specs.{key}'
        resource, trait = _RESOURCE.match(key), _TRAIT.match(key)
        for match in (resource, trait):
            if match is not None and match[1]:
                raise exceptions.InvalidMessage(
                    field=field, problem='numbered request groups cannot be placed by this version'
                )
        if resource is not None:
            if not value.isdigit() or not resources.is_class_name(resource[2]):
                raise exceptions.InvalidMessage(
                    field=field, problem=f'expected a resource class and an amount, got {value!r}'
                )
            amounts[resource[2]] = int(value)
        elif trait is not None:
            lists = {'required': found.required, 'forbidden': found.forbidden}
            if value not in lists:
                raise exceptions.InvalidMessage(
                    field=field, problem=f"expected 'required' or 'forbidden', got {value!r}"
                )
            lists[value].append(trait[2])
