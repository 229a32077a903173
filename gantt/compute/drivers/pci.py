# SPDX-License-Identifier: Apache-2.0
"""PCI devices for guests: those that the operator names, in pools as Nova makes them.

Devices are equal, and in one pool, where vendor, product, kind, cell and tags are the same; of
those that share one physical device the pool has its address, as Nova's have.
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
_FOLDER = 'sys/bus/pci/devices'
#: Nova matches these by resource providers, not by pools.
_OF_PROVIDERS = ('resource_class', 'traits')
_PART = re.compile(r'(?:\*|[0-9a-f]{1,4})?\Z')


class Spec(msgspec.Struct, frozen=True):
    """Devices that are for guests.

    :ivar address: domain, bus, slot and function, '*' for any
    """

    vendor_id: str
    product_id: str
    address: tuple[str, ...]
    tags: tuple[tuple[str, str], ...]

    def has(self, device: 'Device') -> bool:
        """Whether this names the device."""
        at = re.split('[:.]', device.address)
        return (
            self.vendor_id in ('*', device.vendor_id)
            and self.product_id in ('*', device.product_id)
            and all(
                mine == '*' or int(mine, 16) == int(theirs, 16)
                for mine, theirs in zip(self.address, at, strict=True)
            )
        )


class Device(msgspec.Struct, frozen=True):
    """One device, as the kernel shows it.

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


def parse(texts: Iterable[str]) -> list[Spec]:
    """What an operator wrote; the first that names a device counts.

    :raises Misconfigured: says which line and what was expected
    """
    found: list[Spec] = []
    for text in texts:
        try:
            body = json.loads(text)
        except ValueError as e:
            raise _wrong(text, f'it is no JSON: {e}') from None
        for one in body if isinstance(body, list) else [body]:
            found.append(_spec(text, one))
    return found


def _spec(text: str, body: Any) -> Spec:
    if not isinstance(body, dict):
        raise _wrong(text, 'expected an object')
    fields = {str(key): _word(text, str(key), value) for key, value in body.items()}
    if 'devname' in fields:
        raise _wrong(text, 'devices are known by their address here, not by devname')
    address = fields.pop('address', None) or '*'
    vendor, product = (fields.pop(name, None) or '*' for name in ('vendor_id', 'product_id'))
    tags = {k: v for k, v in fields.items() if v is not None and k not in _OF_PROVIDERS}
    return Spec(vendor.lower(), product.lower(), _parts(text, address), tuple(sorted(tags.items())))


def _word(text: str, key: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return str(value).lower()
    raise _wrong(text, f'{key}: expected text')


def _parts(text: str, address: str) -> tuple[str, ...]:
    """``*:02:00.*`` as domain, bus, slot and function; what is left out may be any."""
    if address == '*':
        return ('*', '*', '*', '*')
    front, _, function = address.lower().rpartition('.')
    parts = [*front.split(':'), function]
    parts = ['*'] * (4 - len(parts)) + parts
    if len(parts) != 4 or not all(_PART.match(part) for part in parts):
        raise _wrong(text, f'{address!r} is no address; expected e.g. 0000:3b:00.0 or *:3b:00.*')
    return tuple(part or '*' for part in parts)


def _wrong(text: str, problem: str) -> exceptions.Misconfigured:
    return exceptions.Misconfigured(
        option='[compute] device_spec',
        problem=f'{text}: {problem}',
        fix='Write it as [pci] device_spec of Nova: {"vendor_id": "10de", "product_id": "1eb8"}',
    )


def devices(root: pathlib.Path = pathlib.Path('/')) -> list[Device]:
    """All PCI devices of this machine."""
    folders = itertools.islice((root / _FOLDER).glob('*:*:*.*'), DEVICES_MAX)
    return [_device(folder) for folder in sorted(folders) if _text(folder / 'vendor')]


def _device(folder: pathlib.Path) -> Device:
    node = _text(folder / 'numa_node')
    physical = folder / 'physfn'
    parent = physical.resolve().name if physical.exists() else ''
    if parent:
        kind = 'type-VF'
    else:
        virtual = _text(folder / 'sriov_totalvfs')
        kind = 'type-PF' if virtual.isdigit() and int(virtual) else 'type-PCI'
    return Device(
        folder.name.lower(),
        _text(folder / 'vendor').removeprefix('0x').lower(),
        _text(folder / 'device').removeprefix('0x').lower(),
        int(node) if node.isdigit() else None,
        kind,
        parent.lower(),
        any(folder.glob('net/*/upper_mac*')),
    )


def pools(
    found: Sequence[Device], specs: Sequence[Spec], used: Collection[str]
) -> list[DevicePool]:
    """Devices that are for guests.

    :param used: addresses of those that guests have
    """
    taken = {address_of(one) for one in used} | {one.address for one in found if one.tapped}
    # A physical device with a virtual one in use is not free, nor the other way round.
    busy = taken | {one.parent for one in found if one.address in taken and one.parent}
    made: dict[tuple[object, ...], DevicePool] = {}
    for device in found:
        spec = next((one for one in specs if one.has(device)), None)
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
        known = made.get(key, pool)
        free = device.address not in busy and device.parent not in taken
        made[key] = msgspec.structs.replace(
            known, count=known.count + 1, free=known.free + int(free)
        )
    return list(made.values())


def _pool(device: Device, spec: Spec) -> DevicePool:
    tags = dict(spec.tags) | {'dev_type': device.dev_type}
    if device.dev_type != 'type-PCI':
        tags.setdefault('remote_managed', 'false')  # as Nova has it where nobody says
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
