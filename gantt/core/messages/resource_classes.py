# SPDX-License-Identifier: Apache-2.0
"""Resource classes, inventories and the integer arithmetic of capacity.

Amounts are integers in the unit of their class (MEMORY_MB in MiB, DISK_GB in GiB).  ``cap`` is the
capacity that may be promised: floor((total - reserved) * ratio).
"""

import math
import re

import msgspec

#: Classes whose usage is stored in columns of the provider's own row.
CORE_CLASSES = ('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB')

#: The standard classes of the placement vocabulary; others start with CUSTOM_.
STANDARD_CLASSES = frozenset(CORE_CLASSES) | {
    'PCI_DEVICE',
    'SRIOV_NET_VF',
    'NUMA_SOCKET',
    'NUMA_CORE',
    'NUMA_THREAD',
    'NUMA_MEMORY_MB',
    'IPV4_ADDRESS',
    'VGPU',
    'VGPU_DISPLAY_HEAD',
    'NET_BW_EGR_KILOBIT_PER_SEC',
    'NET_BW_IGR_KILOBIT_PER_SEC',
    'NET_PACKET_RATE_KILOPACKET_PER_SEC',
    'NET_PACKET_RATE_EGR_KILOPACKET_PER_SEC',
    'NET_PACKET_RATE_IGR_KILOPACKET_PER_SEC',
    'MEM_ENCRYPTION_CONTEXT',
    'FPGA',
    'PGPU',
}

CUSTOM_CLASS_NAME = re.compile(r'CUSTOM_[A-Z0-9_]{1,248}\Z')

#: Shared processors in thousandths: 500 is half of one.  A host has its shared processors in this
#: class or in VCPU, a part of them in each, never the same ones in both.
MILLI_VCPU = 'CUSTOM_MILLI_VCPU'
MILLIS_PER_UNIT = 1000

CLASS_UNITS = {'MEMORY_MB': 'MiB', 'DISK_GB': 'GiB', 'VCPU': 'vCPU', 'PCPU': 'pCPU'}

#: Amounts above this are absurd: they fit 63 bits with room for sums.
AMOUNT_MAX = 2**40
#: Largest allocation ratio that a host may report.
RATIO_MAX = 1000.0
#: Largest ratio through Placement's interface: the largest of single precision.
FREE_RATIO_MAX = 3.40282e38
#: Largest capacity: the sum of two still fits 63 bits.
CAP_MAX = 2**62 - 1


def is_class_name(name: str) -> bool:
    """Return whether ``name`` is a standard class or has the form of a custom one."""
    return name in STANDARD_CLASSES or CUSTOM_CLASS_NAME.match(name) is not None


class Inventory(
    msgspec.Struct, gc=False, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Amount of one class that a provider has.

    ``max_unit`` None means as much as the provider has; where it is given it may be more, as
    a ratio lets more be promised.  The meaning of the fields is Placement's.
    """

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int | None = None
    step_size: int = 1
    allocation_ratio: float = 1.0

    @property
    def cap(self) -> int:
        """Largest sum of amounts that may be promised."""
        promised = (self.total - self.reserved) * self.allocation_ratio
        return max(0, math.floor(min(promised, CAP_MAX)))

    @property
    def largest(self) -> int:
        """Largest single amount."""
        return self.total if self.max_unit is None else self.max_unit

    def unit_problem(self, amount: int) -> tuple[str, int] | None:
        """Return (field, its value) that forbids an amount in one piece; None: it is allowed."""
        if amount > self.largest:
            return 'max_unit', self.largest
        if amount < self.min_unit:
            return 'min_unit', self.min_unit
        if amount % self.step_size:
            return 'step_size', self.step_size
        return None

    def problem(self, free: bool = False) -> tuple[str, str] | None:
        """Return (field, expected value) where these numbers are absurd, or None.

        :param free: allow every ratio that can be stored
        """
        if not 0 <= self.total <= AMOUNT_MAX:
            return 'total', f'expected 0 to {AMOUNT_MAX}, got {self.total}'
        if not 0 <= self.reserved <= self.total:
            return 'reserved', f'expected 0 to total ({self.total}), got {self.reserved}'
        if problem := self._ratio_problem(free):
            return 'allocation_ratio', f'expected {problem}, got {self.allocation_ratio}'
        least_max_unit = 1 if free else self.min_unit
        for field, least in (('min_unit', 1), ('step_size', 1), ('max_unit', least_max_unit)):
            value = getattr(self, field)
            if value is not None and not least <= value <= AMOUNT_MAX:
                return field, f'expected {least} to {AMOUNT_MAX}, got {value}'
        return None

    def _ratio_problem(self, free: bool) -> str:
        ratio = self.allocation_ratio
        if free:
            fits = math.isfinite(ratio) and abs(ratio) <= FREE_RATIO_MAX
            return '' if fits else f'at most {FREE_RATIO_MAX:g}'
        fits = math.isfinite(ratio) and 0 < ratio <= RATIO_MAX
        return '' if fits else f'above 0 to {RATIO_MAX:g}'


def format_amount(resource_class: str, amount: int) -> str:
    """Return an amount for people: ``6.2 GiB``, ``4 vCPU``, ``0.5 vCPU``, ``3 CUSTOM_LICENSE``."""
    if resource_class == MILLI_VCPU:
        whole, part = divmod(abs(amount), MILLIS_PER_UNIT)
        text = f'{whole}.{part:03}'.rstrip('0').rstrip('.')
        return f'{"-" if amount < 0 else ""}{text} vCPU in thousandths'
    if resource_class == 'MEMORY_MB':
        if abs(amount) < 1024:
            return f'{amount} MiB'
        gib = amount / 1024
        return f'{gib:.4g} GiB' if abs(gib) < 10_000 else f'{gib:.0f} GiB'
    return f'{amount} {CLASS_UNITS.get(resource_class, resource_class)}'
