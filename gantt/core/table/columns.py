# SPDX-License-Identifier: Apache-2.0
"""Arrays that grow together: the storage under the host table.

One array per fact, the last axis is the row.  Arrays are allocated in advance
and doubled; the public attributes are views of the used part, renewed whenever
the number of rows or the width of a column changes.  Names (zones, traits,
resource classes, …) become small integers once and stay so.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gantt import exceptions

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
CodeArray = np.ndarray[Any, np.dtype[np.int32]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]
BitArray = np.ndarray[Any, np.dtype[np.uint64]]

ROWS_MIN = 16

#: name -> (dtype, what an unused place holds, width at first or 0 for one value per row)
LAYOUT: dict[str, tuple[type, object, int]] = {
    'ids': (np.int64, 0, 0),
    'zone': (np.int32, 0, 0),
    'cell': (np.int32, 0, 0),
    'location': (np.int32, 0, 0),
    'enabled': (np.bool_, False, 0),
    'over_committed': (np.bool_, False, 0),
    'open': (np.bool_, False, 0),
    'reported_at': (np.float64, 0.0, 0),
    'generation': (np.int64, 0, 0),
    'version': (np.int64, 0, 0),
    'instances': (np.int64, 0, 0),
    'io_ops': (np.int64, 0, 0),
    'free_devices': (np.int64, 0, 0),
    'numa_cells': (np.int32, 0, 0),
    'cell_pinned': (np.int32, -1, 1),
    'cell_isolated': (np.int32, -1, 1),
    'cell_paired': (np.int32, -1, 1),
    'cell_shared': (np.int32, -1, 1),
    'cell_memory': (np.int32, -1, 1),
    'cell_base': (np.int32, -1, 1),
    'cell_pages': (np.int32, -1, 1),
    'kind_free': (np.int32, -1, 1),
    'hypervisor_version': (np.int64, 0, 0),
    'platform': (np.int32, 0, 0),
    'address': (np.uint64, 0, 2),
    'cap': (np.int64, 0, 8),
    'used': (np.int64, 0, 8),
    'free': (np.int64, 0, 8),
    'min_unit': (np.int64, 1, 8),
    'largest': (np.int64, 0, 8),
    'step': (np.int64, 1, 8),
    'total': (np.int64, 0, 8),
    'reserved': (np.int64, 0, 8),
    'ratio': (np.float64, 1.0, 8),
    'pool': (np.int32, -1, 8),
    'traits': (np.uint64, 0, 4),
    'aggregates': (np.uint64, 0, 1),
}

#: Columns with one line per resource class.
BY_CLASS = (
    'cap',
    'used',
    'free',
    'min_unit',
    'largest',
    'step',
    'total',
    'reserved',
    'ratio',
    'pool',
)

#: Columns that a pick changes; the rest changes with news of the host only.
TAKEN = frozenset(
    {'used', 'free', 'instances', 'io_ops', 'pools', 'placed', 'rooms', 'free_devices'}
)

#: Columns written with every commit or report; the others only when a fact changes.
LIVELY = frozenset(
    {'enabled', 'over_committed', 'open', 'reported_at', 'generation', 'version', 'instances'}
    | {'io_ops', 'used', 'free', 'cell_pinned', 'cell_isolated', 'cell_paired', 'cell_shared'}
    | {'cell_memory', 'cell_base', 'cell_pages', 'kind_free', 'free_devices'}
)

#: What a plugin may say it reads, beside the arrays: facts kept as objects, and what each is.
OBJECTS = {
    'names': 'names of the hosts, a list by row',
    'nodes': 'names of their hypervisors, a list by row',
    'placed': 'who is placed where: hosts.placed.on(id of the host)',
    'pools': 'what sharers have left: hosts.free_of(code)',
    'metrics': 'name -> values by row, NaN where there is none',
    'rooms': 'what is left inside of one host: hosts.room(row)',
    'numa': 'NUMA cells that one host reported: hosts.host_state(row).numa',
    'devices': 'devices that one host reported: hosts.host_state(row).devices',
    'hypervisor': 'what one host said of it: hosts.host_state(row).hypervisor',
}


class Codes:
    """Names as small integers, in order of first mention.

    :ivar names: name of each code
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._take([], {})
        for name in names:
            self.add(name)

    def _take(self, names: list[str], codes: dict[str, int]) -> None:
        self.names, self._codes = names, codes
        #: The code of a name, None where nobody mentioned it yet.
        self.get: Callable[[str], int | None] = codes.get

    def __len__(self) -> int:
        return len(self.names)

    def add(self, name: str) -> int:
        """The code of a name, a new one where needed."""
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self.names)
            self.names.append(name)
        return code

    def copy(self) -> 'Codes':
        other = Codes()
        other._take(list(self.names), dict(self._codes))
        return other


def words_of(codes: Iterable[int]) -> dict[int, int]:
    """Bit codes as word number -> bits of that word."""
    words: dict[int, int] = {}
    for code in codes:
        words[code >> 6] = words.get(code >> 6, 0) | (1 << (code & 63))
    return words


class Columns:
    """The arrays of a table, each a view of its used part; what is said of each is documented.

    ``arrays`` holds what is allocated; writers that add rows work there and
    call :meth:`renew` once at the end.
    """

    ids: IntArray  # id of the host in the database
    zone: CodeArray  # code of the availability zone: hosts.zone_name(row)
    cell: CodeArray  # code of the cell: hosts.cell_name(row)
    location: CodeArray  # code of the place: hosts.locations.names[code]
    enabled: BoolArray  # nobody disabled it, neither an operator nor its service
    over_committed: BoolArray  # found with more use than capacity
    open: BoolArray  # enabled and not over_committed
    reported_at: FloatArray  # last report, in seconds as hosts.now
    generation: IntArray  # grows with each change of usage or facts
    version: IntArray  # grows with each write
    instances: IntArray  # claims there, picks included
    io_ops: IntArray  # guests that are being built, moved or resized there
    free_devices: IntArray  # free devices of all kinds
    numa_cells: CodeArray  # NUMA cells; 0 where the host tells of none
    cell_pinned: CodeArray  # free dedicated CPUs
    cell_isolated: CodeArray  # the same, a core for each
    cell_paired: CodeArray  # the same, in whole cores
    cell_shared: CodeArray  # CPUs that one guest may share there
    cell_memory: CodeArray  # free MiB of memory
    cell_base: CodeArray  # free MiB in pages of the usual size
    cell_pages: CodeArray  # free pages; a line for each size and cell
    kind_free: CodeArray  # free devices; a line for each kind
    hypervisor_version: IntArray  # e.g. 8002000
    platform: CodeArray  # hosts whose hypervisors say the same
    address: BitArray  # the IP address in two words
    cap: IntArray  # what may be promised: hosts.cap_of(code)
    used: IntArray  # sum of the live claims
    free: IntArray  # left over: hosts.free_of(code)
    min_unit: IntArray  # smallest single amount
    largest: IntArray  # largest single amount
    step: IntArray  # amounts are multiples of it
    total: IntArray  # what is there
    reserved: IntArray  # what the host keeps for itself
    ratio: FloatArray  # how often it is promised
    pool: CodeArray  # the pool it is shared from; -1: none
    traits: BitArray  # a bit for each: hosts.trait_codes
    aggregates: BitArray  # a bit for each: hosts.aggregate_bits(names)

    def __init__(self, rows: int = ROWS_MIN) -> None:
        self.count = 0
        self.frozen = False
        self.metrics: dict[str, FloatArray] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self._metric_arrays: dict[str, FloatArray] = {}
        #: Seconds since a value was measured, as the host said; of metrics where one did.
        self.metric_ages: dict[str, FloatArray] = {}
        self._age_arrays: dict[str, FloatArray] = {}
        self._copies: dict[str, tuple[int, np.ndarray]] = {}
        self.facts_seq = 0
        rows = max(rows, ROWS_MIN)
        for name, (dtype, fill, width) in LAYOUT.items():
            self.arrays[name] = np.full((width, rows) if width else rows, fill, dtype)
        self.renew()

    def renew(self) -> None:
        """Let the views show ``count`` rows of what is allocated now."""
        for name, array in self.arrays.items():
            setattr(self, name, array[..., : self.count])
        self.metrics = {k: a[: self.count] for k, a in self._metric_arrays.items()}
        self.metric_ages = {k: a[: self.count] for k, a in self._age_arrays.items()}

    def check_writable(self) -> None:
        """:raises Bug: this is a snapshot"""
        if self.frozen:
            raise exceptions.Bug(invariant='a snapshot of the host table is never written')

    def reserve(self, rows: int) -> None:
        """Room for at least ``rows`` rows; the views are renewed where it was short."""
        have = self.arrays['ids'].shape[0]
        if rows <= have:
            return
        rows = max(rows, 2 * have)
        for name, (dtype, fill, _) in LAYOUT.items():
            old = self.arrays[name]
            new = np.full((*old.shape[:-1], rows), fill, dtype)
            new[..., : self.count] = old[..., : self.count]
            self.arrays[name] = new
        for arrays, fill in ((self._metric_arrays, np.nan), (self._age_arrays, 0.0)):
            for name, old in arrays.items():
                longer = np.full(rows, fill)
                longer[: self.count] = old[: self.count]
                arrays[name] = longer
        self.renew()

    def widen(self, names: Iterable[str], width: int) -> None:
        """Room for ``width`` lines in the columns named."""
        for name in names:
            old = self.arrays[name]
            if width <= old.shape[0]:
                continue
            dtype, fill, _ = LAYOUT[name]
            new = np.full((max(width, 2 * old.shape[0]), old.shape[1]), fill, dtype)
            new[: old.shape[0]] = old
            self.arrays[name] = new
            setattr(self, name, new[:, : self.count])

    def declare_metric(self, name: str) -> FloatArray:
        """The whole array of a metric, a new one of NaN where needed."""
        array = self._metric_arrays.get(name)
        if array is None:
            array = self._metric_arrays[name] = np.full(self.arrays['ids'].shape[0], np.nan)
            self.metrics = {k: a[: self.count] for k, a in self._metric_arrays.items()}
        return array

    def write_metric(self, name: str, row: int, value: float, age_seconds: float) -> None:
        """What a host measured; what is no number is not there."""
        self.declare_metric(name)[row] = value if math.isfinite(value) else np.nan
        ages = self._age_arrays.get(name)
        if ages is None and age_seconds > 0:
            ages = self._age_arrays[name] = np.zeros(self.arrays['ids'].shape[0])
            self.metric_ages = {k: a[: self.count] for k, a in self._age_arrays.items()}
        if ages is not None:
            ages[row] = age_seconds if age_seconds > 0 else 0.0

    def blank_metrics(self, row: int) -> None:
        """Forget what a host measured."""
        for array in self._metric_arrays.values():
            array[row] = np.nan
        for array in self._age_arrays.values():
            array[row] = 0.0

    def move_row(self, source: int, target: int) -> None:
        """Copy one row over another and blank the source."""
        for name, (_, fill, _) in LAYOUT.items():
            array = self.arrays[name]
            array[..., target] = array[..., source]
            array[..., source] = fill
        for array in (*self._metric_arrays.values(), *self._age_arrays.values()):
            array[target] = array[source]
        self.blank_metrics(source)

    def copy_columns(self, into: 'Columns', writable: bool) -> None:
        """Give ``into`` independent arrays of our rows.

        Read-only copies of facts are shared between snapshots until a fact
        changes: usage changes a thousand times as often.
        """
        into.count, into.facts_seq = self.count, self.facts_seq
        into.arrays = {}
        for name in LAYOUT:
            into.arrays[name] = self._copy(name, getattr(self, name), writable)
        into._metric_arrays = {
            name: self._copy(f'metric {name}', array, writable)
            for name, array in self.metrics.items()
        }
        into._age_arrays = {
            name: self._copy(f'age {name}', array, writable)
            for name, array in self.metric_ages.items()
        }
        into.renew()

    def _copy(self, name: str, array: np.ndarray, writable: bool) -> np.ndarray:
        kept = self._copies.get(name)
        if not writable and kept is not None and kept[0] == self.facts_seq:
            return kept[1]
        new = array.copy()
        if not writable:
            new.flags.writeable = False
            if name not in LIVELY:
                self._copies[name] = (self.facts_seq, new)
        return new
