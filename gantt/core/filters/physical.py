# SPDX-License-Identifier: Apache-2.0
"""Filters that Nova had before Placement: RAM, cores and disk by ratio, or to the unit.

ResourcesFilter and the commit check the same inventories in any case; these add features that some
sites miss: ratios set by aggregates, which can only narrow, and hosts that a guest takes whole.
"""

from typing import Any, ClassVar

import numpy as np

from gantt.core.filters.aggregate_metadata import least
from gantt.core.filters.base import Ceiling, Filter, names_of
from gantt.core.messages import extra_specs
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.resource_classes import AMOUNT_MAX, format_amount
from gantt.core.nova import facts
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.core.table.host_table import HostTable

#: Words that reveal nothing of hosts, and columns of free amounts.
_PUBLIC_REASON = 'the amounts asked for'
_COLUMNS = ('total', 'reserved', 'cap', 'free')


def _mask(self: '_ByRatio | _Exact', hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
    """Return which hosts pass; a request that does not ask for the class passes everywhere."""
    amount = spec.resources.get(self.resource)
    return None if amount is None else self.fits(hosts, amount)


def _passes(self: '_ByRatio | _Exact', hosts: HostTable, spec: RequestSpec, row: int) -> bool:
    amount = spec.resources.get(self.resource)
    return amount is None or self.fits_one(hosts, amount, row)


class _ByRatio(Filter):
    """``total * ratio - used`` is enough, and so is the total by itself.

    Reserved amounts count as used, as Nova counts them.

    :cvar key: metadata of aggregates that may set the ratio, of which the least counts; '': the
        host's own ratio does
    """

    reason = 'too little {what} by its allocation ratio'
    public_reason = _PUBLIC_REASON
    columns: ClassVar[tuple[str, ...]] = (*_COLUMNS, 'ratio')
    is_room = True
    local = True
    resource: ClassVar[str]
    key: ClassVar[str] = ''
    mask, passes = _mask, _passes

    def ratios(self, hosts: HostTable) -> tuple[FloatArray, list[str]]:
        """Return ratios by host, and texts of ratios that are not understood."""
        host_ratios = facts.ratio_of(hosts, self.resource)
        return least(hosts, self.key, host_ratios, _ratio) if self.key else (host_ratios, [])

    def usable(self, hosts: HostTable) -> FloatArray:
        """Return the amount that the ratio leaves; never more than the total."""
        total = facts.total_amount(hosts, self.resource)
        used = total - facts.free_amount(hosts, self.resource)
        return np.minimum(total * self.ratios(hosts)[0] - used, total)

    def beyond(self, hosts: HostTable) -> IntArray:
        """Return the part of the free amount above the ratio; negative: the ratio allows more.

        Whole amounts: a request has its amount below the next whole number or not at all.
        """
        total = facts.total_amount(hosts, self.resource)
        promised = np.floor(total * self.ratios(hosts)[0]).astype(np.int64)
        return facts.promised_amount(hosts, self.resource) - promised

    def _cached(self, hosts: HostTable) -> tuple[IntArray | int, int]:
        """Return the same, as one number where all are equal, and the least total of all hosts."""
        return hosts.array_cache.get(
            self,
            _RATIOS_READ,
            lambda: (
                _once(self.beyond(hosts)),
                int(facts.total_amount(hosts, self.resource).min(initial=AMOUNT_MAX)),
            ),
        )

    def fits(self, hosts: HostTable, amount: int) -> BoolArray:
        (beyond, least_total), code = self._cached(hosts), hosts.class_code(self.resource)
        free = np.zeros(len(hosts), np.int64) if code is None else hosts.free[code]
        mask: BoolArray = (
            free >= beyond + amount
            if isinstance(beyond, int)
            else np.subtract(free, beyond) >= amount
        )
        if least_total < amount:
            mask &= facts.total_amount(hosts, self.resource) >= amount
        return mask

    def fits_one(self, hosts: HostTable, amount: int, row: int) -> bool:
        code = hosts.class_code(self.resource)
        if code is None:
            return amount <= 0
        return min(self._ceiling(hosts, code, row)) >= amount

    def _ceiling(self, hosts: HostTable, code: int, row: int) -> Ceiling:
        beyond = self._cached(hosts)[0]
        room = hosts.free.item(code, row) - _of_row(beyond, row)
        return Ceiling(room, hosts.total.item(code, row))

    def ceilings(self, hosts: HostTable, spec: RequestSpec, row: int) -> dict[str, Ceiling]:
        code = hosts.class_code(self.resource)
        if code is None or self.resource not in spec.resources:
            return {}
        return {self.resource: self._ceiling(hosts, code, row)}

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        amount = spec.resources.get(self.resource, 0)
        small = facts.total_amount(hosts, self.resource).take(rows) < amount
        best = format_amount(self.resource, max(0, int(self.usable(hosts).take(rows).max())))
        need, total = format_amount(self.resource, amount), int(np.count_nonzero(small))
        parts = {
            f'{self.resource} below {need} altogether': total,
            f'{self.resource} short of {need} by ratio (best has {best})': len(rows) - total,
        }
        numbers = {'what': self.resource, 'parts': {text: n for text, n in parts.items() if n}}
        wrong = self.ratios(hosts)[1]
        return numbers | ({'not_understood': names_of(wrong)} if wrong else {})

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        usable = self.usable(hosts).take(rows)
        best = int(usable.argmax())
        amount_text = format_amount(self.resource, max(0, int(usable[best])))
        return f'fits on {hosts.names[int(rows[best])]} if {self.resource} <= {amount_text}'


class _Exact(Filter):
    """Pass hosts whose free amount equals the request, to the unit: guests take whole hosts."""

    reason = 'free amount is not exactly the one asked'
    public_reason = _PUBLIC_REASON
    columns = _COLUMNS
    is_room = True
    local = True
    resource: ClassVar[str]
    mask, passes = _mask, _passes

    def fits(self, hosts: HostTable, amount: int) -> BoolArray:
        code = hosts.class_code(self.resource)
        if code is None:
            return np.full(len(hosts), amount == 0)
        is_exact: BoolArray = hosts.free[code] == self._wanted(hosts, amount)
        return is_exact

    def fits_one(self, hosts: HostTable, amount: int, row: int) -> bool:
        return bool(facts.free_amount(hosts, self.resource).item(row) == amount)

    def ceilings(self, hosts: HostTable, spec: RequestSpec, row: int) -> dict[str, Ceiling]:
        amount = spec.resources.get(self.resource)
        return {} if amount is None else {self.resource: Ceiling(amount, amount)}

    def _wanted(self, hosts: HostTable, amount: int) -> IntArray | int:
        """Return the amount to be free by the ratio for ``amount`` to be free without it."""
        promised: IntArray | int = hosts.array_cache.get(
            (self.resource, 'promised beyond'),
            ('total', 'reserved', 'cap'),
            lambda: _once(
                facts.promised_amount(hosts, self.resource)
                - facts.total_amount(hosts, self.resource)
            ),
        )
        return amount + promised

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        amount = spec.resources.get(self.resource, 0)
        free = facts.free_amount(hosts, self.resource).take(rows)
        larger, need = int(np.count_nonzero(free > amount)), format_amount(self.resource, amount)
        parts = {
            f'{self.resource} free beyond {need}': larger,
            f'{self.resource} free below {need}': len(rows) - larger,
        }
        return {'parts': {text: n for text, n in parts.items() if n}}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        amount = spec.resources.get(self.resource, 0)
        free = facts.free_amount(hosts, self.resource).take(rows)
        near = int(abs(free - amount).argmin())
        amount_text = format_amount(self.resource, int(free[near]))
        return f'fits on {hosts.names[int(rows[near])]} with exactly {amount_text}'


class RamFilter(_ByRatio):
    """MEMORY_MB by the host's ratio."""

    resource = 'MEMORY_MB'


class CoreFilter(_ByRatio):
    """VCPU by the host's ratio."""

    resource = 'VCPU'


class DiskFilter(_ByRatio):
    """DISK_GB by the host's ratio."""

    resource = 'DISK_GB'


#: Columns of a ratio that aggregates may set.
_OF_AGGREGATES = (*_ByRatio.columns, 'aggregates')


class AggregateRamFilter(_ByRatio):
    """As RamFilter; aggregates may set ``ram_allocation_ratio``, the least counts."""

    columns = _OF_AGGREGATES
    resource = 'MEMORY_MB'
    key = 'ram_allocation_ratio'


class AggregateCoreFilter(_ByRatio):
    """As CoreFilter; aggregates may set ``cpu_allocation_ratio``, the least counts."""

    columns = _OF_AGGREGATES
    resource = 'VCPU'
    key = 'cpu_allocation_ratio'


class AggregateDiskFilter(_ByRatio):
    """As DiskFilter; aggregates may set ``disk_allocation_ratio``, the least counts."""

    columns = _OF_AGGREGATES
    resource = 'DISK_GB'
    key = 'disk_allocation_ratio'


class ExactRamFilter(_Exact):
    """Exactly the MEMORY_MB asked is free."""

    resource = 'MEMORY_MB'


class ExactCoreFilter(_Exact):
    """Exactly the VCPU asked are free."""

    resource = 'VCPU'


class ExactDiskFilter(_Exact):
    """Exactly the DISK_GB asked is free."""

    resource = 'DISK_GB'


#: Columns that ratios and totals follow from.
_RATIOS_READ = ('total', 'reserved', 'cap', 'ratio', 'aggregates')


def _once(numbers: IntArray) -> IntArray | int:
    """Return one number where all are equal, else all: usually hosts have the same ratio."""
    are_equal = len(numbers) and (numbers == numbers[0]).all()
    return int(numbers[0]) if are_equal else numbers


def _of_row(numbers: IntArray | int, row: int) -> int:
    return numbers if isinstance(numbers, int) else numbers.item(row)


def _ratio(text: str) -> float | None:
    number = extra_specs.number_of(text)
    return number if number is not None and 0 <= number <= 1e6 else None
