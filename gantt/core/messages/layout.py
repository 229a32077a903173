# SPDX-License-Identifier: Apache-2.0
"""Layout of a guest: the cells, cores, pages and devices that it got.

It travels with its claim as plain JSON: to the caller, to the compute, to other schedulers.
"""

from typing import Annotated, Any

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.base import Message, Text

#: Numbers of processors above this are absurd; a bit set of them stays small.
CPU_MAX = 16_383
Cpu = Annotated[int, msgspec.Meta(ge=0, le=CPU_MAX)]
Cpus = Annotated[list[Cpu], msgspec.Meta(max_length=4096)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class CellLayout(Message, frozen=True, kw_only=True):
    """One cell of the guest, on one cell of the host.

    :ivar cell: id of the host's cell
    :ivar page_kb: size of the pages behind the memory; 0: none was asked for
    :ivar vcpus: the guest's processors in this cell
    :ivar pins: (processor of the guest, processor of the host), of the dedicated ones
    :ivar emulator: processors of the host for the emulator's own threads
    :ivar blocked: siblings of the above that nobody may have
    """

    cell: Count
    memory_mb: Count = 0
    page_kb: Count = 0
    vcpus: Cpus = []
    pins: Annotated[list[tuple[Cpu, Cpu]], msgspec.Meta(max_length=4096)] = []
    emulator: Cpus = []
    blocked: Cpus = []

    @property
    def shared(self) -> int:
        """Number of its processors that float over the shared ones of the host's cell."""
        return len(self.vcpus) - len(self.pins)

    @property
    def held(self) -> int:
        """Dedicated processors of the host that no other guest may use, as bits."""
        bits = 0
        for _, cpu in self.pins:
            bits |= 1 << cpu
        for cpu in (*self.emulator, *self.blocked):
            bits |= 1 << cpu
        return bits

    @property
    def held_count(self) -> int:
        """Number of processors that it names, one named twice counted twice."""
        return len(self.pins) + len(self.emulator) + len(self.blocked)


class DeviceLayout(Message, frozen=True, kw_only=True):
    """Devices out of one pool of the host.

    :ivar alias: under which the request asked for them
    :ivar pool: key of the pool
    """

    alias: Text = ''
    pool: Text
    count: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 1
    vendor_id: Text = ''
    product_id: Text = ''
    address: Text = ''
    numa_node: int | None = None


class Layout(Message, frozen=True, kw_only=True):
    """Processors, memory and devices of a guest inside its host.

    :ivar reported: the host's own figures contain it, and count in place of it
    """

    cells: Annotated[list[CellLayout], msgspec.Meta(max_length=256)] = []
    devices: Annotated[list[DeviceLayout], msgspec.Meta(max_length=1000)] = []
    reported: bool = False

    def __bool__(self) -> bool:
        return bool(self.cells or self.devices)


#: Stands in for an unreadable layout: a cell that no host has, so that no host holds it.
UNREADABLE_LAYOUT = Layout(cells=[CellLayout(cell=2**40)])


def read(body: Any, inside: str = 'layout') -> Layout:
    """Return a layout from its JSON form.

    :raises InvalidMessage: names the field and the expected value
    """
    layout = base.decode(body, Layout, inside=inside)
    for index, cell in enumerate(layout.cells):
        if len(cell.pins) > len(cell.vcpus):
            raise exceptions.invalid(
                f'{inside}.cells[{index}].pins',
                f'expected at most one for each of {len(cell.vcpus)} vcpus, got {len(cell.pins)}',
            )
    return layout


def readable(body: Any) -> Layout | None:
    """Return a layout from its JSON form; None where it is none."""
    if body is None:
        return None
    try:
        return read(body)
    except exceptions.InvalidMessage:
        return None


def layout_with_amounts(body: Any) -> Layout | None:
    """Return a layout from its JSON form, where it takes anything; None where not.

    A layout that cannot be read, as of a later release, may take all that the host has inside.
    """
    layout = readable(body)
    if layout is None and body is not None:
        counts = not isinstance(body, dict) or body.get('reported') is not True
        return UNREADABLE_LAYOUT if counts else None
    return layout if layout and not layout.reported else None


def layout_json(layout: Layout) -> dict[str, Any]:
    """Return a layout in its JSON form."""
    body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(layout))
    return body
