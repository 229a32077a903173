# SPDX-License-Identifier: Apache-2.0
"""Limits on the number of guests, and of running operations, of a host."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from gantt.core.filters.aggregate_metadata import least
from gantt.core.filters.base import Filter, names_of
from gantt.core.messages.extra_specs import integer_of
from gantt.core.messages.request import RequestSpec
from gantt.core.nova import facts
from gantt.core.plugin import Option
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

#: Limits in aggregates beyond this are as good as none.
_LIMIT_MAX = 2**53

_INSTANCES = Option(
    'max_instances_per_host', int, 50, 'Guests that a host may have, at most', min=1
)
_IO_OPS = Option(
    'max_io_ops_per_host',
    int,
    8,
    'Operations that load its disks (builds, resizes, snapshots, migrations, rescues, '
    'unshelvings) that may be at work on a host for another one to begin',
    min=0,
)


class _Load(NamedTuple):
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


_GUESTS = _Load(
    'guests', ('instances', 'placed', 'metrics'), facts.instance_counts, facts.instance_count
)
_OPERATIONS = _Load(
    'operations at work',
    ('io_ops',),
    lambda hosts: hosts.io_ops,
    lambda hosts, row: int(hosts.io_ops.item(row)),
)


class _Counted(Filter):
    """Fewer of something than a limit, which is an option of the same name everywhere.

    :cvar by_aggregate: the aggregates of a host may set the limit under the option's name; the
        least counts
    """

    reason = 'has too many {what} already'
    is_room = True
    local = True
    load: ClassVar[_Load]
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
            lambda: least(hosts, self.key, limit, _limit_of),
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


class NumInstancesFilter(_Counted):
    """Fewer guests than ``max_instances_per_host``: live claims, or more if the host says so."""

    columns = _GUESTS.columns
    load = _GUESTS
    key = 'max_instances_per_host'
    options = (_INSTANCES,)
    max_instances_per_host: int


class AggregateNumInstancesFilter(_Counted):
    """As NumInstancesFilter; aggregates may set ``max_instances_per_host``, the least counts."""

    columns = (*_GUESTS.columns, 'aggregates')
    load = _GUESTS
    key = 'max_instances_per_host'
    by_aggregate = True
    options = (_INSTANCES,)
    max_instances_per_host: int


class IoOpsFilter(_Counted):
    """Fewer operations at work than ``max_io_ops_per_host``: as reported, and picks since."""

    columns = _OPERATIONS.columns
    load = _OPERATIONS
    key = 'max_io_ops_per_host'
    options = (_IO_OPS,)
    max_io_ops_per_host: int


class AggregateIoOpsFilter(_Counted):
    """As IoOpsFilter; aggregates may set ``max_io_ops_per_host``, the least counts."""

    columns = (*_OPERATIONS.columns, 'aggregates')
    load = _OPERATIONS
    key = 'max_io_ops_per_host'
    by_aggregate = True
    options = (_IO_OPS,)
    max_io_ops_per_host: int


def _limit_of(text: str) -> int | None:
    number = integer_of(text)
    return None if number is None else max(-_LIMIT_MAX, min(number, _LIMIT_MAX))
