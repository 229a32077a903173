# SPDX-License-Identifier: Apache-2.0
"""Facts of hosts under the names that Nova's filters have for them.

``capabilities:`` keys and JSON queries name attributes of Nova's HostState and keys of the
``stats`` that its computes report.  Here such a name becomes a fact of all hosts at once, by row or
by code, so that a condition is evaluated once per distinct value.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gantt.core.table.columns import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: Most steps into a structure.
PATH_STEPS_MAX = 16


@dataclasses.dataclass(slots=True, eq=False)
class NovaFact:
    """A fact of every host; None, or not a number, where a host lacks it.

    :ivar values: values by row, or by code where there are codes
    :ivar codes: code of each row
    :ivar counts: the numbers are counts: whole ones are written without a point
    """

    values: Sequence[Any] | np.ndarray
    codes: np.ndarray | None = None
    counts: bool = False

    @property
    def numbers(self) -> IntArray | FloatArray | None:
        """The values where they are one number per row."""
        return self.values if isinstance(self.values, np.ndarray) else None

    def value_at(self, row: int) -> Any:
        """Return the value of one host; None: it lacks the fact."""
        return self._plain(self.values[row if self.codes is None else self.codes[row]])

    def mask_where(self, decide: Callable[[Any], bool]) -> BoolArray:
        """Return the hosts whose value satisfies ``decide``, called once per value."""
        if self.codes is not None:
            return self._evaluated(self.values, decide).take(self.codes)
        if isinstance(self.values, np.ndarray):
            distinct, inverse = np.unique(self.values, return_inverse=True)
            return self._evaluated(distinct.tolist(), decide).take(inverse)
        if not all(isinstance(value, str) for value in self.values):
            return self._evaluated(self.values, decide)
        decisions = {value: decide(value) for value in set(self.values)}
        return np.fromiter(map(decisions.__getitem__, self.values), np.bool_, len(self.values))

    def is_there(self) -> BoolArray:
        """Return which hosts have the fact."""
        if isinstance(self.values, np.ndarray):
            return np.asarray(self.values == self.values)
        return self.mask_where(lambda value: True)

    def inside(self, path: Sequence[str]) -> 'NovaFact':
        """Return the fact at a path inside this one; text is read as JSON at every step."""
        if not path:
            return self
        if isinstance(self.values, np.ndarray):  # numbers have no inside
            return NovaFact([None], np.zeros(len(self.values), np.int32))
        return NovaFact([step_into(value, path) for value in self.values], self.codes)

    def of_rows(self, rows: IntArray) -> 'NovaFact':
        """Return the fact of some hosts, in their order."""
        if self.codes is not None:
            return NovaFact(self.values, self.codes.take(rows), self.counts)
        if isinstance(self.values, np.ndarray):
            return NovaFact(self.values.take(rows), counts=self.counts)
        return NovaFact([self.values[row] for row in rows.tolist()])

    def _evaluated(
        self, values: 'Sequence[Any] | np.ndarray', decide: Callable[[Any], bool]
    ) -> BoolArray:
        plain = map(self._plain, values)
        decided = (value is not None and decide(value) for value in plain)
        return np.fromiter(decided, np.bool_, len(values))

    def _plain(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float):
            if value != value:
                return None
            if self.counts and value.is_integer():
                return int(value)
        return value


def step_into(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a path inside a structure or its JSON text; None: no value."""
    if len(path) > PATH_STEPS_MAX:
        return None
    for name in path:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                return None
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def text_of(value: Any) -> str | None:
    """Return a value as Nova compares it: as Python prints it.  None: it cannot be printed."""
    try:
        return str(value)
    except (ValueError, RecursionError):
        return None


# -- what there is --------------------------------------------------------------------
def nova_fact(hosts: 'HostTable', name: str) -> NovaFact | None:
    """Return a fact by its name in Nova's HostState; None: there is none of that name."""
    entry = _FACTS.get(name)
    return None if entry is None else entry[1](hosts)


def stats_fact(hosts: 'HostTable', name: str) -> list[NovaFact]:
    """Return values that hosts report under a name of ``stats``: as text, and as numbers.

    A host has it in at most one of them.
    """
    stat_facts = []
    platforms = hosts.platforms.values
    texts = [platform.stats.get(name) for platform in platforms]
    if any(text is not None for text in texts):
        stat_facts.append(NovaFact(texts, hosts.platform))
    numbers = hosts.metrics.get(f'stats.{name}')
    if numbers is not None:
        stat_facts.append(NovaFact(numbers, counts=True))
    return stat_facts


def instance_counts(hosts: 'HostTable') -> IntArray:
    """Return the guests of each host: live claims, or its own count and the picks since.

    A host that is new here runs guests without claims: its own count is higher.
    """
    counted = hosts.metrics.get('stats.num_instances')
    if counted is None:
        return hosts.instances
    guest_counts = hosts.array_cache.get('counted guests', ('metrics',), lambda: _counts(counted))
    picks = hosts.picks()
    if not picks:
        return np.maximum(hosts.instances, guest_counts)
    rows, pick_counts = np.array(list(picks)), np.array(list(picks.values()))
    expected = guest_counts.copy()
    expected[rows] += pick_counts
    return np.maximum(hosts.instances, expected, out=expected)


def instance_count(hosts: 'HostTable', row: int) -> int:
    """Return the number of guests of one host."""
    counted = hosts.metrics.get('stats.num_instances')
    if counted is None:
        return int(hosts.instances.item(row))
    reported_count = int(_counts(counted[row : row + 1])[0])
    picks = len(hosts.pending_claims_of(hosts.hosts[row].id))
    return max(hosts.instances.item(row), reported_count + picks)


def failed_builds(hosts: 'HostTable') -> IntArray:
    """Return recent failed builds of each host, as reported."""
    reported = hosts.metrics.get('stats.failed_builds')
    return np.zeros(len(hosts), np.int64) if reported is None else _counts(reported)


def free_amount(hosts: 'HostTable', name: str) -> IntArray:
    """Return the physical amount of a class that is neither reserved nor used, ratios aside."""
    code = hosts.class_code(name)
    if code is None:
        return np.zeros(len(hosts), np.int64)
    return hosts.total[code] - hosts.reserved[code] - (hosts.cap[code] - hosts.free[code])


def promised_amount(hosts: 'HostTable', name: str) -> IntArray:
    """Return the reserved amount of a class plus the capacity of the rest."""
    code = hosts.class_code(name)
    return (
        np.zeros(len(hosts), np.int64) if code is None else hosts.reserved[code] + hosts.cap[code]
    )


def total_amount(hosts: 'HostTable', name: str) -> IntArray:
    """Return the physical amount of a class."""
    code = hosts.class_code(name)
    return np.zeros(len(hosts), np.int64) if code is None else hosts.total[code]


def ratio_of(hosts: 'HostTable', name: str) -> FloatArray:
    """Return the allocation ratio of a class."""
    code = hosts.class_code(name)
    return np.ones(len(hosts)) if code is None else hosts.ratio[code]


def _counts(numbers: FloatArray) -> IntArray:
    # A host may report any float: counts are clipped to the range of integers.
    return np.clip(np.nan_to_num(numbers), -(2**52), 2**52).astype(np.int64)


def _platform(field: str) -> Callable[['HostTable'], NovaFact]:
    def make(hosts: 'HostTable') -> NovaFact:
        values = [getattr(platform, field) for platform in hosts.platforms.values]
        return NovaFact([None if value == '' else value for value in values], hosts.platform)

    return make


def _used(hosts: 'HostTable', name: str) -> IntArray:
    return total_amount(hosts, name) - free_amount(hosts, name)


#: Name -> the column that it follows from, which only updates of a host change, or '' where it
#: follows from several or from any; and the function that computes it.
_FACTS: dict[str, tuple[str, Callable[['HostTable'], NovaFact]]] = {
    'host': ('names', lambda hosts: NovaFact(hosts.services)),
    'nodename': ('nodes', lambda hosts: NovaFact(hosts.nodes)),
    'hypervisor_hostname': ('nodes', lambda hosts: NovaFact(hosts.nodes)),
    'uuid': ('', lambda hosts: NovaFact([row.uuid for row in hosts.hosts])),
    'cell_uuid': (
        'cell',
        lambda hosts: NovaFact([name or None for name in hosts.cells.names], hosts.cell),
    ),
    'host_ip': (
        'hypervisor',
        lambda hosts: NovaFact([row.facts.hypervisor.host_ip or None for row in hosts.hosts]),
    ),
    'hypervisor_type': ('platform', _platform('type')),
    'hypervisor_version': ('hypervisor_version', lambda hosts: NovaFact(hosts.hypervisor_version)),
    'cpu_info': ('platform', _platform('cpu_info')),
    'supported_instances': ('platform', _platform('supported')),
    'stats': ('platform', _platform('stats')),
    'service': (
        'enabled',
        lambda hosts: NovaFact(
            [{'disabled': True}, {'disabled': False}], hosts.enabled.astype(np.int32)
        ),
    ),
    'num_instances': ('', lambda hosts: NovaFact(instance_counts(hosts))),
    'num_io_ops': ('', lambda hosts: NovaFact(hosts.io_ops)),
    'failed_builds': ('metrics', lambda hosts: NovaFact(failed_builds(hosts))),
    'vcpus_total': ('total', lambda hosts: NovaFact(total_amount(hosts, 'VCPU'))),
    'vcpus_used': ('', lambda hosts: NovaFact(_used(hosts, 'VCPU'))),
    'total_usable_ram_mb': ('total', lambda hosts: NovaFact(total_amount(hosts, 'MEMORY_MB'))),
    'free_ram_mb': ('', lambda hosts: NovaFact(free_amount(hosts, 'MEMORY_MB'))),
    'total_usable_disk_gb': ('total', lambda hosts: NovaFact(total_amount(hosts, 'DISK_GB'))),
    'free_disk_mb': ('', lambda hosts: NovaFact(free_amount(hosts, 'DISK_GB') * 1024)),
    'disk_mb_used': ('', lambda hosts: NovaFact(_used(hosts, 'DISK_GB') * 1024)),
    'cpu_allocation_ratio': ('ratio', lambda hosts: NovaFact(ratio_of(hosts, 'VCPU'))),
    'ram_allocation_ratio': ('ratio', lambda hosts: NovaFact(ratio_of(hosts, 'MEMORY_MB'))),
    'disk_allocation_ratio': ('ratio', lambda hosts: NovaFact(ratio_of(hosts, 'DISK_GB'))),
}

#: The columns that a name of ``stats`` follows from.
STATS_READ = ('platform', 'metrics')


def reads_of(name: str) -> tuple[str, ...] | None:
    """Return the columns that a fact follows from; None: more than columns, or any of them."""
    column, _ = _FACTS.get(name, (None, None))
    return () if column is None else (column,) if column else None


#: Names of all facts, for documentation and error texts.
NOVA_FACT_NAMES = tuple(_FACTS)
