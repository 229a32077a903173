# SPDX-License-Identifier: Apache-2.0
"""Limits on the number of guests, and of running operations, of a host."""

from typing import Any, ClassVar

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


class _Counted(Filter):
    """Fewer of something than a limit, which is an option of the same name everywhere."""

    reason = 'has too many {what} already'
    columns: ClassVar[tuple[str, ...]] = ('instances', 'placed', 'metrics')
    is_room = True
    local = True
    what: ClassVar[str]
    key: ClassVar[str]

    def counts(self, hosts: HostTable) -> IntArray:
        """Return the number on each host."""
        raise NotImplementedError

    def count(self, hosts: HostTable, row: int) -> int:
        """Return the number on one host."""
        raise NotImplementedError

    def limits(self, hosts: HostTable) -> tuple[IntArray | int, list[str]]:
        """Return the limits, and texts of limits that are not understood."""
        return int(getattr(self, self.key)), []

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        is_below: BoolArray = self.counts(hosts) < self.limits(hosts)[0]
        return is_below

    def passes(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        limits = self.limits(hosts)[0]
        limit = limits if isinstance(limits, int) else limits.item(row)
        return bool(self.count(hosts, row) < limit)

    def picks_left(self, hosts: HostTable, spec: RequestSpec, row: int) -> int | None:
        limits = self.limits(hosts)[0]
        limit = limits if isinstance(limits, int) else limits.item(row)
        return int(limit - self.count(hosts, row))

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Return parts that count hosts by their limit."""
        limits, wrong = self.limits(hosts)
        parts: dict[str, int] = {}
        for limit in (
            [limits] * len(rows) if isinstance(limits, int) else limits.take(rows).tolist()
        ):
            text = f'have {limit} {self.what} or more'
            parts[text] = parts.get(text, 0) + 1
        least_loaded = int(self.counts(hosts).take(rows).min())
        numbers: dict[str, Any] = {'what': self.what, 'parts': parts, 'least': least_loaded}
        if wrong:
            numbers['not_understood'] = f'{self.key}: {names_of(wrong)}'
        return numbers

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        counts = self.counts(hosts).take(rows)
        best = int(counts.argmin())
        rest = f' (the same or alike on {len(rows) - 1} more)' if len(rows) > 1 else ''
        return (
            f'fits on {hosts.names[int(rows[best])]} with {self.key} {int(counts[best]) + 1}{rest}'
        )


class _ByAggregate(_Counted):
    """The least limit that the host's aggregates set under the option's name, else the option."""

    columns: ClassVar[tuple[str, ...]] = ('instances', 'placed', 'metrics', 'aggregates')

    def limits(self, hosts: HostTable) -> tuple[IntArray | int, list[str]]:
        otherwise = int(getattr(self, self.key))
        return hosts.array_cache.get(
            ('limits', self.key, otherwise),
            ('aggregates',),
            lambda: least(hosts, self.key, otherwise, _limit_of),
        )


class NumInstancesFilter(_Counted):
    """Fewer guests than ``max_instances_per_host``: live claims, or more if the host says so."""

    what = 'guests'
    key = 'max_instances_per_host'
    options = (_INSTANCES,)
    max_instances_per_host: int

    def counts(self, hosts: HostTable) -> IntArray:
        return facts.instance_counts(hosts)

    def count(self, hosts: HostTable, row: int) -> int:
        return facts.instance_count(hosts, row)


class AggregateNumInstancesFilter(_ByAggregate, NumInstancesFilter):
    """As NumInstancesFilter; aggregates may set ``max_instances_per_host``, the least counts."""

    options = (_INSTANCES,)


class IoOpsFilter(_Counted):
    """Fewer operations at work than ``max_io_ops_per_host``: as reported, and picks since."""

    columns: ClassVar[tuple[str, ...]] = ('io_ops',)
    what = 'operations at work'
    key = 'max_io_ops_per_host'
    options = (_IO_OPS,)
    max_io_ops_per_host: int

    def counts(self, hosts: HostTable) -> IntArray:
        return hosts.io_ops

    def count(self, hosts: HostTable, row: int) -> int:
        return int(hosts.io_ops.item(row))


class AggregateIoOpsFilter(_ByAggregate, IoOpsFilter):
    """As IoOpsFilter; aggregates may set ``max_io_ops_per_host``, the least counts."""

    columns = ('io_ops', 'aggregates')
    options = (_IO_OPS,)


def _limit_of(text: str) -> int | None:
    number = integer_of(text)
    return None if number is None else max(-_LIMIT_MAX, min(number, _LIMIT_MAX))
