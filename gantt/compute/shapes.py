# SPDX-License-Identifier: Apache-2.0
"""Shapes of fake hosts: resources, number of each, placement.

    shapes:
      - name: general
        weight: 8
        vcpus: 32
        memory_mb: 131072
        disk_gb: 2000
        cpu_allocation_ratio: 4.0
        numa_cells: 2
        zones: [az-1, az-2]
        aggregates: [rack-1]
        traits: [HW_CPU_X86_AVX2]
        inventories: {VGPU: {total: 4}}

A host's shape follows only from the seed and its number.
"""

import pathlib
import random
from functools import cached_property
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import UNSET

from gantt import exceptions
from gantt.compute.ports import HostReadings
from gantt.core.messages import base, expansion
from gantt.core.messages.base import Message, Name, Text
from gantt.core.messages.report import DevicePool, Hypervisor, NumaCell, NumaPages
from gantt.core.messages.resource_classes import Inventory

FILE_BYTES_MAX = 64 << 20

Ratio = Annotated[float, msgspec.Meta(gt=0, le=1000)]
SmallCount = Annotated[int, msgspec.Meta(ge=0, le=2**20)]


class Shape(Message, frozen=True, kw_only=True, dict=True):
    """Description of fake hosts that are alike: resources, traits, zones and aggregates.

    :ivar weight: share of the hosts with this shape, in relation to the weights of the other shapes
    :ivar count: number of hosts with this shape, taken from the first ones, whatever its weight is
    :ivar zones: each host is in one of them
    :ivar aggregates: names; left out: membership is managed through the API
    :ivar pages: huge pages by size in KiB, split over the cells
    :ivar inventories: further classes, or others than the sizes above give
    """

    name: Name = 'general'
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    count: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    vcpus: Annotated[int, msgspec.Meta(ge=1, le=2**16)] = 32
    pcpus: SmallCount = 0
    memory_mb: Annotated[int, msgspec.Meta(ge=64, le=2**31)] = 131_072
    disk_gb: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 2000
    reserved_memory_mb: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    cpu_allocation_ratio: Ratio = 4.0
    ram_allocation_ratio: Ratio = 1.0
    disk_allocation_ratio: Ratio = 1.0
    numa_cells: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    threads_per_core: Annotated[int, msgspec.Meta(ge=1, le=8)] = 2
    pages: dict[str, SmallCount] = {}
    zones: list[Name] = []
    location: Text = ''
    aggregates: list[Name] | None = None
    traits: list[Name] = []
    devices: list[DevicePool] = []
    foreign: dict[Name, Annotated[int, msgspec.Meta(ge=0, le=2**40)]] = {}
    inventories: dict[Name, Inventory] = {}
    hypervisor_type: Text = 'fake'

    @cached_property
    def _inventories(self) -> dict[str, Inventory]:
        inventories = {
            'VCPU': Inventory(total=self.vcpus, allocation_ratio=self.cpu_allocation_ratio),
            'MEMORY_MB': Inventory(
                total=self.memory_mb,
                reserved=self.reserved_memory_mb,
                allocation_ratio=self.ram_allocation_ratio,
            ),
            'DISK_GB': Inventory(total=self.disk_gb, allocation_ratio=self.disk_allocation_ratio),
        }
        if self.pcpus:
            inventories['PCPU'] = Inventory(total=self.pcpus)
        return inventories | self.inventories

    @cached_property
    def _numa(self) -> list[NumaCell]:
        shared = _split(range(self.vcpus), self.numa_cells)
        pinned = _split(range(self.vcpus, self.vcpus + self.pcpus), self.numa_cells)
        return [
            NumaCell(
                id=cell,
                cpus=shared[cell],
                pinned_cpus=pinned[cell],
                socket=cell,
                siblings=_groups(shared[cell] + pinned[cell], self.threads_per_core),
                memory_mb=self.memory_mb // self.numa_cells,
                pages=[
                    NumaPages(size_kb=int(size), total=total // self.numa_cells)
                    for size, total in self.pages.items()
                ],
            )
            for cell in range(self.numa_cells)
        ]

    def facts(self, host: str, zone: str | None) -> HostReadings:
        """Return the facts of a host of this shape; values are shared between hosts."""
        return HostReadings(
            inventories=self._inventories,
            foreign=self.foreign,
            node=host,
            zone=zone,
            location=f'{self.location}.{host}' if self.location else '',
            traits=self.traits,
            numa=self._numa,
            devices=self.devices,
            aggregates=UNSET if self.aggregates is None else self.aggregates,
            hypervisor=Hypervisor(type=self.hypervisor_type, hostname=host),
        )


class ShapeFile(Message, frozen=True, kw_only=True):
    """A file of shapes."""

    shapes: Annotated[list[Shape], msgspec.Meta(min_length=1, max_length=1000)]


#: Shapes where no file is given.
DEFAULT_SHAPES = [
    Shape(
        name='general',
        weight=7,
        vcpus=32,
        memory_mb=131_072,
        disk_gb=2000,
        numa_cells=2,
        zones=['az-1', 'az-2', 'az-3'],
        traits=['HW_CPU_X86_AVX2'],
    ),
    Shape(
        name='large',
        weight=2,
        vcpus=64,
        pcpus=32,
        memory_mb=524_288,
        disk_gb=4000,
        numa_cells=2,
        pages={'1048576': 64},
        zones=['az-1', 'az-2', 'az-3'],
        traits=['HW_CPU_X86_AVX2', 'HW_CPU_X86_AVX512F'],
    ),
    Shape(
        name='gpu',
        weight=1,
        vcpus=32,
        memory_mb=262_144,
        disk_gb=2000,
        numa_cells=2,
        zones=['az-1', 'az-2'],
        traits=['HW_CPU_X86_AVX2', 'CUSTOM_GPU'],
        inventories={'VGPU': Inventory(total=8)},
    ),
]


class ShapePart(msgspec.Struct, frozen=True):
    """Shape, zone and random generator of one fake host."""

    shape: Shape
    zone: str | None
    rng: random.Random


def assign_shape(shapes: list[Shape], seed: int, number: int) -> ShapePart:
    """Return shape, zone and source of randomness of host ``number``."""
    rng = random.Random(f'{seed}:{number}')
    shape = _shape_of_number(shapes, number)
    if shape is None:
        # Where all are counted, and there are more hosts than that, they follow weights too.
        weighted = [candidate for candidate in shapes if candidate.count is None] or shapes
        (shape,) = rng.choices(weighted, [candidate.weight for candidate in weighted])
    return ShapePart(shape, rng.choice(shape.zones) if shape.zones else None, rng)


def _shape_of_number(shapes: list[Shape], number: int) -> Shape | None:
    """Return the shape of host ``number`` by the counts of shapes; None: by weight."""
    for shape in shapes:
        number -= shape.count or 0
        if shape.count is not None and number < 0:
            return shape
    return None


def load_shapes(path: str) -> list[Shape]:
    """Read a file of shapes.

    :raises Misconfigured: the file cannot be read
    :raises InvalidMessage: names file, entry and field
    """
    shapes = base.decode(load_yaml(path, '--shapes'), ShapeFile, inside=path).shapes
    for index, shape in enumerate(shapes):
        for name, inventory in shape.inventories.items():
            problem = inventory.problem()
            if problem:
                field = f'{path}.shapes[{index}].inventories.{name}.{problem[0]}'
                raise exceptions.invalid(field, problem[1])
        for size in shape.pages:
            if not size.isdigit():
                field = f'{path}.shapes[{index}].pages.{size}'
                raise exceptions.invalid(field, 'expected a size in KiB as the key')
    return shapes


def load_yaml(path: str, option: str) -> Any:
    """Return the content of a YAML file.

    :raises Misconfigured: names the file, and the line where it is no YAML
    """
    try:
        with pathlib.Path(path).open('rb') as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except OSError as e:
        raise exceptions.Misconfigured(
            option=option, problem=f'{path}: {e.strerror}', fix='Name a file that can be read'
        ) from None
    if len(body) > FILE_BYTES_MAX:
        raise exceptions.PayloadTooLarge(size=len(body), limit=FILE_BYTES_MAX)
    try:
        return expansion.load_document(getattr(yaml, 'CSafeLoader', yaml.SafeLoader)(body))
    except expansion.DocumentTooLarge as e:
        problem = f'{path}: {e}'
    except (yaml.YAMLError, *expansion.CONSTRUCTOR_ERRORS) as e:
        problem = f'{path} is not YAML: {" ".join(str(e).split())}'
    raise exceptions.Misconfigured(option=option, problem=problem, fix='Correct it')


def _split(numbers: range, parts: int) -> list[list[int]]:
    """Return ``numbers`` in ``parts`` runs of nearly equal length."""
    size, remainder = divmod(len(numbers), parts)
    cuts = [i * size + min(i, remainder) for i in range(parts + 1)]
    return [list(numbers[start:end]) for start, end in zip(cuts, cuts[1:], strict=False)]


def _groups(numbers: list[int], size: int) -> list[list[int]]:
    return (
        [numbers[start : start + size] for start in range(0, len(numbers), size)]
        if size > 1
        else []
    )
