# SPDX-License-Identifier: Apache-2.0
"""Facts of hosts under the names that Nova's filters know them by.

``capabilities:`` keys and JSON queries name attributes of Nova's HostState and
keys of the ``stats`` that its computes report.  Here such a name becomes a fact
of all hosts at once, by row or by code, so that a question is asked once per
distinct value.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gantt.core.table.columns import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: Steps into a structure that are taken at most.
STEPS_MAX = 16


@dataclasses.dataclass(slots=True, eq=False)
class NovaFact:
    """One fact of every host; None, or not a number, where a host lacks it.

    :ivar values: by row, or by code where there are codes
    :ivar codes: of each row
    :ivar counts: the numbers are counts: whole ones are written without a point
    """

    values: Sequence[Any] | np.ndarray
    codes: np.ndarray | None = None
    counts: bool = False

    @property
    def numbers(self) -> IntArray | FloatArray | None:
        """The values where they are one number per row."""
        return self.values if isinstance(self.values, np.ndarray) else None

    def at(self, row: int) -> Any:
        """What one host has; None: it lacks it."""
        return self._plain(self.values[row if self.codes is None else self.codes[row]])

    def where(self, decide: Callable[[Any], bool]) -> BoolArray:
        """Which hosts have it, and such that ``decide`` says yes; asked once per value."""
        if self.codes is not None:
            return self._evaluated(self.values, decide).take(self.codes)
        if isinstance(self.values, np.ndarray):
            distinct, inverse = np.unique(self.values, return_inverse=True)
            return self._evaluated(distinct.tolist(), decide).take(inverse)
        if not all(isinstance(value, str) for value in self.values):
            return self._evaluated(self.values, decide)
        known = {value: decide(value) for value in set(self.values)}
        return np.fromiter(map(known.__getitem__, self.values), np.bool_, len(self.values))

    def is_there(self) -> BoolArray:
        """Which hosts have it."""
        if isinstance(self.values, np.ndarray):
            return np.asarray(self.values == self.values)
        return self.where(lambda value: True)

    def inside(self, path: Sequence[str]) -> 'NovaFact':
        """The fact at a path inside this one; text is read as JSON at every step."""
        if not path:
            return self
        if isinstance(self.values, np.ndarray):  # numbers have no inside
            return NovaFact([None], np.zeros(len(self.values), np.int32))
        return NovaFact([step_into(value, path) for value in self.values], self.codes)

    def of_rows(self, rows: IntArray) -> 'NovaFact':
        """The fact of some hosts, in their order."""
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
    """What stands at a path inside a structure or its JSON text; None: nothing."""
    if len(path) > STEPS_MAX:
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
    """A value as Nova compares it: as Python prints it.  None: it cannot be printed."""
    try:
        return str(value)
    except (ValueError, RecursionError):
        return None


# -- what there is --------------------------------------------------------------------
def fact(hosts: 'HostTable', name: str) -> NovaFact | None:
    """A fact by its name in Nova's HostState; None: there is none of that name."""
    known = _FACTS.get(name)
    return None if known is None else known[1](hosts)


def stats(hosts: 'HostTable', name: str) -> list[NovaFact]:
    """What hosts report under a name of ``stats``: as text, and as numbers.

    A host has it in at most one of them.
    """
    found = []
    platforms = hosts.platforms.values
    texts = [platform.stats.get(name) for platform in platforms]
    if any(text is not None for text in texts):
        found.append(NovaFact(texts, hosts.platform))
    numbers = hosts.metrics.get(f'stats.{name}')
    if numbers is not None:
        found.append(NovaFact(numbers, counts=True))
    return found


def instance_counts(hosts: 'HostTable') -> IntArray:
    """Guests of each host: live claims, or what the host counted and the picks since.

    A host that is new here runs guests that nobody claimed: its own word is higher.
    """
    counted = hosts.metrics.get('stats.num_instances')
    if counted is None:
        return hosts.instances
    guest_counts = hosts.array_cache.get('counted guests', ('metrics',), lambda: _counts(counted))
    picks = hosts.picks()
    if not picks:
        return np.maximum(hosts.instances, guest_counts)
    rows, more = np.array(list(picks)), np.array(list(picks.values()))
    found = guest_counts.copy()
    found[rows] += more
    return np.maximum(hosts.instances, found, out=found)


def instance_count(hosts: 'HostTable', row: int) -> int:
    """The value of one host."""
    counted = hosts.metrics.get('stats.num_instances')
    if counted is None:
        return int(hosts.instances.item(row))
    reported_count = int(_counts(counted[row : row + 1])[0])
    picks = len(hosts.pending_of(hosts.hosts[row].id))
    return max(hosts.instances.item(row), reported_count + picks)


def failed_builds(hosts: 'HostTable') -> IntArray:
    """Builds that failed lately on each host, as reported."""
    reported = hosts.metrics.get('stats.failed_builds')
    return np.zeros(len(hosts), np.int64) if reported is None else _counts(reported)


def free_amount(hosts: 'HostTable', name: str) -> IntArray:
    """Physical amount of a class that is neither reserved nor used, ratios aside."""
    code = hosts.class_code(name)
    if code is None:
        return np.zeros(len(hosts), np.int64)
    return hosts.total[code] - hosts.reserved[code] - (hosts.cap[code] - hosts.free[code])


def promised_amount(hosts: 'HostTable', name: str) -> IntArray:
    """What of a class is reserved, and what may be promised of the rest."""
    code = hosts.class_code(name)
    return (
        np.zeros(len(hosts), np.int64) if code is None else hosts.reserved[code] + hosts.cap[code]
    )


def total_amount(hosts: 'HostTable', name: str) -> IntArray:
    """Physical amount of a class."""
    code = hosts.class_code(name)
    return np.zeros(len(hosts), np.int64) if code is None else hosts.total[code]


def ratio_of(hosts: 'HostTable', name: str) -> FloatArray:
    """Allocation ratio of a class."""
    code = hosts.class_code(name)
    return np.ones(len(hosts)) if code is None else hosts.ratio[code]


def _counts(numbers: FloatArray) -> IntArray:
    # What a host says may be any float: a count is within what integers hold.
    return np.clip(np.nan_to_num(numbers), -(2**52), 2**52).astype(np.int64)


def _platform(field: str) -> Callable[['HostTable'], NovaFact]:
    def make(hosts: 'HostTable') -> NovaFact:
        values = [getattr(platform, field) for platform in hosts.platforms.values]
        return NovaFact([None if value == '' else value for value in values], hosts.platform)

    return make


def _used(hosts: 'HostTable', name: str) -> IntArray:
    return total_amount(hosts, name) - free_amount(hosts, name)


#: Name -> the column that only news of a host changes, from which it follows, or '' where it
#: follows from more or from any; and how it is made.
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
    """Columns that a fact follows from; None: more than columns, or any of them."""
    column, _ = _FACTS.get(name, (None, None))
    return () if column is None else (column,) if column else None


#: Names of all facts, for documentation and error texts.
NAMES = tuple(_FACTS)
