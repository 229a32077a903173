# SPDX-License-Identifier: Apache-2.0
"""PCI devices for guests: those that the operator names, in pools like Nova's.

Devices are equal, and in one pool, where vendor, product, kind, cell and tags are the same; if
they share one physical device, the pool has its address, as Nova's have.
"""

import itertools
import json
import pathlib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from gantt import exceptions
from gantt.compute.drivers.qemu import address_of
from gantt.core.messages.report import DevicePool

DEVICES_MAX = 65_536
_DEVICES_FOLDER = 'sys/bus/pci/devices'
#: Nova matches these by resource providers, not by pools.
_PROVIDER_KEYS = ('resource_class', 'traits')
_ADDRESS_PART = re.compile(r'(?:\*|[0-9a-f]{1,4})?\Z')


class PciDeviceSpec(msgspec.Struct, frozen=True):
    """Pattern of PCI devices that an operator gives to guests.

    :ivar address: domain, bus, slot and function, '*' for any
    """

    vendor_id: str
    product_id: str
    address: tuple[str, ...]
    tags: tuple[tuple[str, str], ...]

    def has(self, device: 'PciDevice') -> bool:
        """Return whether the device matches this pattern."""
        parts = re.split('[:.]', device.address)
        return (
            self.vendor_id in ('*', device.vendor_id)
            and self.product_id in ('*', device.product_id)
            and all(
                pattern == '*' or int(pattern, 16) == int(part, 16)
                for pattern, part in zip(self.address, parts, strict=True)
            )
        )


class PciDevice(msgspec.Struct, frozen=True):
    """A device, as the kernel shows it.

    :ivar parent: address of the physical function that a virtual one belongs to, else ''
    :ivar tapped: a guest has it by a macvtap on its interface, which its command does not show
    """

    address: str
    vendor_id: str
    product_id: str
    numa_node: int | None
    dev_type: str
    parent: str
    tapped: bool = False


def parse(texts: Iterable[str]) -> list[PciDeviceSpec]:
    """Return an operator's descriptions; the first that describes a device counts.

    :raises Misconfigured: names the line and what was expected
    """
    specs: list[PciDeviceSpec] = []
    for text in texts:
        try:
            body = json.loads(text)
        except ValueError as e:
            raise _invalid_spec(text, f'it is no JSON: {e}') from None
        for description in body if isinstance(body, list) else [body]:
            specs.append(_spec(text, description))
    return specs


def _spec(text: str, body: Any) -> PciDeviceSpec:
    if not isinstance(body, dict):
        raise _invalid_spec(text, 'expected an object')
    fields = {str(key): _word(text, str(key), value) for key, value in body.items()}
    if 'devname' in fields:
        raise _invalid_spec(text, 'devices are known by their address here, not by devname')
    address = fields.pop('address', None) or '*'
    vendor, product = (fields.pop(name, None) or '*' for name in ('vendor_id', 'product_id'))
    tags = {k: v for k, v in fields.items() if v is not None and k not in _PROVIDER_KEYS}
    return PciDeviceSpec(
        vendor.lower(), product.lower(), _parts(text, address), tuple(sorted(tags.items()))
    )


def _word(text: str, key: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return str(value).lower()
    raise _invalid_spec(text, f'{key}: expected text')


def _parts(text: str, address: str) -> tuple[str, ...]:
    """Return ``*:02:00.*`` as domain, bus, slot and function; missing parts match any."""
    if address == '*':
        return ('*', '*', '*', '*')
    front, _, function = address.lower().rpartition('.')
    parts = [*front.split(':'), function]
    parts = ['*'] * (4 - len(parts)) + parts
    if len(parts) != 4 or not all(_ADDRESS_PART.match(part) for part in parts):
        raise _invalid_spec(
            text, f'{address!r} is no address; expected e.g. 0000:3b:00.0 or *:3b:00.*'
        )
    return tuple(part or '*' for part in parts)


def _invalid_spec(text: str, problem: str) -> exceptions.Misconfigured:
    return exceptions.Misconfigured(
        option='[compute] device_spec',
        problem=f'{text}: {problem}',
        fix='Write it as [pci] device_spec of Nova: {"vendor_id": "10de", "product_id": "1eb8"}',
    )


def devices(root: pathlib.Path = pathlib.Path('/')) -> list[PciDevice]:
    """Return all PCI devices of this machine."""
    folders = itertools.islice((root / _DEVICES_FOLDER).glob('*:*:*.*'), DEVICES_MAX)
    return [_device(folder) for folder in sorted(folders) if _text(folder / 'vendor')]


def _device(folder: pathlib.Path) -> PciDevice:
    node = _text(folder / 'numa_node')
    physical = folder / 'physfn'
    parent = physical.resolve().name if physical.exists() else ''
    if parent:
        kind = 'type-VF'
    else:
        virtual = _text(folder / 'sriov_totalvfs')
        kind = 'type-PF' if virtual.isdigit() and int(virtual) else 'type-PCI'
    return PciDevice(
        folder.name.lower(),
        _text(folder / 'vendor').removeprefix('0x').lower(),
        _text(folder / 'device').removeprefix('0x').lower(),
        int(node) if node.isdigit() else None,
        kind,
        parent.lower(),
        any(folder.glob('net/*/upper_mac*')),
    )


def pools(
    devices: Sequence[PciDevice], specs: Sequence[PciDeviceSpec], used: Collection[str]
) -> list[DevicePool]:
    """Return pools of devices that are for guests.

    :param used: addresses of devices that guests have
    """
    used_addresses = {address_of(item) for item in used} | {
        item.address for item in devices if item.tapped
    }
    # A physical device with a virtual one in use is not free, nor the other way round.
    busy = used_addresses | {
        item.parent for item in devices if item.address in used_addresses and item.parent
    }
    pools_by_key: dict[tuple[object, ...], DevicePool] = {}
    for device in devices:
        spec = next((item for item in specs if item.has(device)), None)
        if spec is None:
            continue
        pool = _pool(device, spec)
        key = (
            pool.vendor_id,
            pool.product_id,
            pool.address,
            pool.numa_node,
            tuple(sorted(pool.tags.items())),
        )
        pool_so_far = pools_by_key.get(key, pool)
        free = device.address not in busy and device.parent not in used_addresses
        pools_by_key[key] = msgspec.structs.replace(
            pool_so_far, count=pool_so_far.count + 1, free=pool_so_far.free + int(free)
        )
    return list(pools_by_key.values())


def _pool(device: PciDevice, spec: PciDeviceSpec) -> DevicePool:
    tags = dict(spec.tags) | {'dev_type': device.dev_type}
    if device.dev_type != 'type-PCI':
        tags.setdefault('remote_managed', 'false')  # Nova's default
    return DevicePool(
        vendor_id=device.vendor_id,
        product_id=device.product_id,
        address=device.parent or device.address,
        numa_node=device.numa_node,
        tags=tags,
    )


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(errors='replace').strip()
    except OSError:
        return ''
