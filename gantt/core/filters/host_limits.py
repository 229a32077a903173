# SPDX-License-Identifier: Apache-2.0
"""Limits of a host: RAM, cores and disk by ratio or to the unit, guests, running operations.

Nova had them before Placement.  ResourcesFilter and the commit check the same inventories in any
case; these add features that some sites miss: ratios and limits set by aggregates, which can only
narrow, and hosts that a guest takes whole.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gantt.core.filters.aggregates import least_metadata_value
from gantt.core.filters.base import Ceiling, Filter, names_of
from gantt.core.messages import extra_specs
from gantt.core.messages.extra_specs import integer_of
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.resource_classes import AMOUNT_MAX, format_amount
from gantt.core.plugin import Option
from gantt.core.rules import nova_facts as facts
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.core.table.host_table import HostTable

#: Words that reveal nothing of hosts, and columns of free amounts.
_PUBLIC_REASON = 'the amounts asked for'
_AMOUNT_COLUMNS = ('total', 'reserved', 'cap', 'free')


def _mask(
    self: '_RatioFilter | _ExactFilter', hosts: HostTable, spec: RequestSpec
) -> BoolArray | None:
    """Return which hosts pass; a request that does not ask for the class passes everywhere."""
    amount = spec.resources.get(self.resource)
    return None if amount is None else self.fits(hosts, amount)


def _passes(
    self: '_RatioFilter | _ExactFilter', hosts: HostTable, spec: RequestSpec, row: int
) -> bool:
    amount = spec.resources.get(self.resource)
    return amount is None or self.fits_one(hosts, amount, row)


class _RatioFilter(Filter):
    """``total * ratio - used`` is enough, and so is the total by itself.

    Reserved amounts count as used, as Nova counts them.

    :cvar key: metadata of aggregates that may set the ratio, of which the least counts; '': the
        host's own ratio does
    """

    reason = 'too little {what} by its allocation ratio'
    public_reason = _PUBLIC_REASON
    columns: ClassVar[tuple[str, ...]] = (*_AMOUNT_COLUMNS, 'ratio')
    is_room = True
    local = True
    resource: ClassVar[str]
    key: ClassVar[str] = ''
    mask, passes = _mask, _passes

    def ratios(self, hosts: HostTable) -> tuple[FloatArray, list[str]]:
        """Return ratios by host, and texts of ratios that are not understood."""
        host_ratios = facts.ratio_of(hosts, self.resource)
        return (
            least_metadata_value(hosts, self.key, host_ratios, _parse_ratio)
            if self.key
            else (host_ratios, [])
        )

    def usable(self, hosts: HostTable) -> FloatArray:
        """Return the amount that the ratio leaves; never more than the total."""
        total = facts.total_amount(hosts, self.resource)
        used = total - facts.free_amount(hosts, self.resource)
        return np.minimum(total * self.ratios(hosts)[0] - used, total)

    def free_above_ratio(self, hosts: HostTable) -> IntArray:
        """Return the part of the free amount above the ratio; negative: the ratio allows more.

        Whole amounts: a request has its amount below the next whole number or not at all.
        """
        total = facts.total_amount(hosts, self.resource)
        promised = np.floor(total * self.ratios(hosts)[0]).astype(np.int64)
        return facts.promised_amount(hosts, self.resource) - promised

    def _cached_free_above_ratio(self, hosts: HostTable) -> tuple[IntArray | int, int]:
        """Return :meth:`free_above_ratio`, one number where all are equal, and the least total."""
        return hosts.array_cache.get(
            self,
            _RATIO_COLUMNS,
            lambda: (
                _one_if_equal(self.free_above_ratio(hosts)),
                int(facts.total_amount(hosts, self.resource).min(initial=AMOUNT_MAX)),
            ),
        )

    def fits(self, hosts: HostTable, amount: int) -> BoolArray:
        (beyond, least_total), code = (
            self._cached_free_above_ratio(hosts),
            hosts.class_code(self.resource),
        )
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
        beyond = self._cached_free_above_ratio(hosts)[0]
        room = hosts.free.item(code, row) - _value_at(beyond, row)
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


class _ExactFilter(Filter):
    """Pass hosts whose free amount equals the request, to the unit: guests take whole hosts."""

    reason = 'free amount is not exactly the one asked'
    public_reason = _PUBLIC_REASON
    columns = _AMOUNT_COLUMNS
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
            lambda: _one_if_equal(
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


class RamFilter(_RatioFilter):
    """MEMORY_MB by the host's ratio."""

    resource = 'MEMORY_MB'


class CoreFilter(_RatioFilter):
    """VCPU by the host's ratio."""

    resource = 'VCPU'


class DiskFilter(_RatioFilter):
    """DISK_GB by the host's ratio."""

    resource = 'DISK_GB'


#: Columns of a ratio that aggregates may set.
_AGGREGATE_RATIO_COLUMNS = (*_RatioFilter.columns, 'aggregates')


class AggregateRamFilter(_RatioFilter):
    """As RamFilter; aggregates may set ``ram_allocation_ratio``, the least counts."""

    columns = _AGGREGATE_RATIO_COLUMNS
    resource = 'MEMORY_MB'
    key = 'ram_allocation_ratio'


class AggregateCoreFilter(_RatioFilter):
    """As CoreFilter; aggregates may set ``cpu_allocation_ratio``, the least counts."""

    columns = _AGGREGATE_RATIO_COLUMNS
    resource = 'VCPU'
    key = 'cpu_allocation_ratio'


class AggregateDiskFilter(_RatioFilter):
    """As DiskFilter; aggregates may set ``disk_allocation_ratio``, the least counts."""

    columns = _AGGREGATE_RATIO_COLUMNS
    resource = 'DISK_GB'
    key = 'disk_allocation_ratio'


class ExactRamFilter(_ExactFilter):
    """Exactly the MEMORY_MB asked is free."""

    resource = 'MEMORY_MB'


class ExactCoreFilter(_ExactFilter):
    """Exactly the VCPU asked are free."""

    resource = 'VCPU'


class ExactDiskFilter(_ExactFilter):
    """Exactly the DISK_GB asked is free."""

    resource = 'DISK_GB'


#: Columns that ratios and totals follow from.
_RATIO_COLUMNS = ('total', 'reserved', 'cap', 'ratio', 'aggregates')


def _one_if_equal(numbers: IntArray) -> IntArray | int:
    """Return one number where all are equal, as usually for ratios; else the array itself."""
    are_equal = len(numbers) and (numbers == numbers[0]).all()
    return int(numbers[0]) if are_equal else numbers


def _value_at(numbers: IntArray | int, row: int) -> int:
    return numbers if isinstance(numbers, int) else numbers.item(row)


def _parse_ratio(text: str) -> float | None:
    number = extra_specs.number_of(text)
    return number if number is not None and 0 <= number <= 1e6 else None


#: Limits in aggregates beyond this are as good as none.
_LIMIT_MAX = 2**53

_MAX_INSTANCES_OPTION = Option(
    'max_instances_per_host', int, 50, 'Guests that a host may have, at most', min=1
)
_MAX_IO_OPS_OPTION = Option(
    'max_io_ops_per_host',
    int,
    8,
    'Operations that load its disks (builds, resizes, snapshots, migrations, rescues, '
    'unshelvings) that may be at work on a host for another one to begin',
    min=0,
)


class _HostCount(NamedTuple):
    """Something that a host has a number of.

    :ivar what: its name in words
    :ivar columns: that the numbers follow from
    :ivar numbers: returns the number on each host
    :ivar number: returns the number on one host
    """

    what: str
    columns: tuple[str, ...]
    numbers: Callable[[HostTable], IntArray]
    number: Callable[[HostTable, int], int]


_GUEST_COUNT = _HostCount(
    'guests', ('instances', 'placed', 'metrics'), facts.instance_counts, facts.instance_count
)
_IO_OPS_COUNT = _HostCount(
    'operations at work',
    ('io_ops',),
    lambda hosts: hosts.io_ops,
    lambda hosts, row: int(hosts.io_ops.item(row)),
)


class _CountLimitFilter(Filter):
    """Fewer of something than a limit, which is an option of the same name everywhere.

    :cvar by_aggregate: the aggregates of a host may set the limit under the option's name; the
        least counts
    """

    reason = 'has too many {what} already'
    is_room = True
    local = True
    load: ClassVar[_HostCount]
    key: ClassVar[str]
    by_aggregate: ClassVar[bool] = False

    def limits(self, hosts: HostTable) -> tuple[IntArray | int, list[str]]:
        """Return the limits, and texts of limits that are not understood."""
        limit = int(getattr(self, self.key))
        if not self.by_aggregate:
            return limit, []
        return hosts.array_cache.get(
            ('limits', self.key, limit),
            ('aggregates',),
            lambda: least_metadata_value(hosts, self.key, limit, _parse_limit),
        )

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        is_below: BoolArray = self.load.numbers(hosts) < self.limits(hosts)[0]
        return is_below

    def passes(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        limits = self.limits(hosts)[0]
        limit = limits if isinstance(limits, int) else limits.item(row)
        return bool(self.load.number(hosts, row) < limit)

    def picks_left(self, hosts: HostTable, spec: RequestSpec, row: int) -> int | None:
        limits = self.limits(hosts)[0]
        limit = limits if isinstance(limits, int) else limits.item(row)
        return int(limit - self.load.number(hosts, row))

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Return parts that count hosts by their limit."""
        limits, wrong = self.limits(hosts)
        parts: dict[str, int] = {}
        for limit in (
            [limits] * len(rows) if isinstance(limits, int) else limits.take(rows).tolist()
        ):
            text = f'have {limit} {self.load.what} or more'
            parts[text] = parts.get(text, 0) + 1
        least_loaded = int(self.load.numbers(hosts).take(rows).min())
        numbers: dict[str, Any] = {'what': self.load.what, 'parts': parts, 'least': least_loaded}
        if wrong:
            numbers['not_understood'] = f'{self.key}: {names_of(wrong)}'
        return numbers

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        counts = self.load.numbers(hosts).take(rows)
        best = int(counts.argmin())
        rest = f' (the same or alike on {len(rows) - 1} more)' if len(rows) > 1 else ''
        return (
            f'fits on {hosts.names[int(rows[best])]} with {self.key} {int(counts[best]) + 1}{rest}'
        )


class NumInstancesFilter(_CountLimitFilter):
    """Fewer guests than ``max_instances_per_host``: live claims, or more if the host says so."""

    columns = _GUEST_COUNT.columns
    load = _GUEST_COUNT
    key = 'max_instances_per_host'
    options = (_MAX_INSTANCES_OPTION,)
    max_instances_per_host: int


class AggregateNumInstancesFilter(_CountLimitFilter):
    """As NumInstancesFilter; aggregates may set ``max_instances_per_host``, the least counts."""

    columns = (*_GUEST_COUNT.columns, 'aggregates')
    load = _GUEST_COUNT
    key = 'max_instances_per_host'
    by_aggregate = True
    options = (_MAX_INSTANCES_OPTION,)
    max_instances_per_host: int


class IoOpsFilter(_CountLimitFilter):
    """Fewer operations at work than ``max_io_ops_per_host``: as reported, and picks since."""

    columns = _IO_OPS_COUNT.columns
    load = _IO_OPS_COUNT
    key = 'max_io_ops_per_host'
    options = (_MAX_IO_OPS_OPTION,)
    max_io_ops_per_host: int


class AggregateIoOpsFilter(_CountLimitFilter):
    """As IoOpsFilter; aggregates may set ``max_io_ops_per_host``, the least counts."""

    columns = (*_IO_OPS_COUNT.columns, 'aggregates')
    load = _IO_OPS_COUNT
    key = 'max_io_ops_per_host'
    by_aggregate = True
    options = (_MAX_IO_OPS_OPTION,)
    max_io_ops_per_host: int


def _parse_limit(text: str) -> int | None:
    number = integer_of(text)
    return None if number is None else max(-_LIMIT_MAX, min(number, _LIMIT_MAX))
