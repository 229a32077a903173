# SPDX-License-Identifier: Apache-2.0
"""The columns of the host table: their declarations and the arrays that hold them.

:class:`Columns` declares every column in one line: its type, its meaning, its fill
value, and the function that reads it from the row of a host.  Allocation, growth,
copies, the writing of plain columns, the columns that plug-ins may name and their
documentation follow from that line.

There is one array per column, the last axis is the row.  Arrays are allocated in
advance and doubled; the public attributes are views of the used part, renewed whenever
the number of rows or the width of a column changes.  Names (zones, traits, resource
classes, …) become small integers once and stay so.

Columns by class are dense or sparse.  A class that many hosts have is a line of the array, with a
value for every host.  A class that few hosts have, such as one of a reservation or a type of
device, has an entry for each of these hosts and costs nothing for others.  :class:`ByClass` is the
readers' interface of a column, and returns the same for both.  A class becomes dense by the number
of hosts that have it, and stays so; the form does not affect any result.
"""

import math
import typing
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.messages.report import ReportedMetric
from gantt.core.resources.host import HostRow

T = TypeVar('T', bound=np.generic)
Rows = np.ndarray[Any, np.dtype[np.int64]]

#: Initial capacity of :class:`SparseClasses`, in entries.
ENTRIES_MIN = 16
NO_ENTRIES: dict[int, int] = {}


class SparseClasses:
    """Figures of the classes that few hosts have, by host and class.

    A host without an entry has the fill value of an unused place in every column.

    :ivar arrays: name of a column -> its values by entry
    :ivar of_class: code -> row -> entry; not to be written to
    :ivar of_row: row -> codes of the classes that it has entries of, ascending
    :ivar seq: number of entries added and dropped
    """

    def __init__(self, kinds: Mapping[str, tuple[type, Any]]) -> None:
        """Create an empty container.

        :param kinds: name of a column -> its type and fill value
        """
        self._kinds = kinds
        self.arrays: dict[str, np.ndarray] = {
            name: np.full(ENTRIES_MIN, fill, array) for name, (array, fill) in kinds.items()
        }
        self.of_class: dict[int, dict[int, int]] = {}
        self.of_row: dict[int, tuple[int, ...]] = {}
        self.seq = 0
        self.size = 0  # entries up to the last one that was ever in use
        self._unused_entries: list[int] = []  # entries below ``size`` that no host has
        self._unshared_classes: set[int] = set()  # classes whose rows no copy shares
        self._places: dict[int, tuple[Rows, Rows]] = {}

    def copy(self, arrays: dict[str, np.ndarray]) -> 'SparseClasses':
        """Return an independent copy.

        :param arrays: its values, by column, of ``size`` entries
        """
        other = SparseClasses.__new__(SparseClasses)
        other._kinds = self._kinds
        other.arrays = arrays
        other.of_class, other.of_row = dict(self.of_class), dict(self.of_row)
        other.seq, other.size, other._unused_entries = (
            self.seq,
            self.size,
            list(self._unused_entries),
        )
        # The rows of a class are copied on the first change by either version.
        self._unshared_classes = set()
        other._unshared_classes = set()
        other._places = dict(self._places)
        return other

    def get(self, code: int, row: int) -> int | None:
        """Return the entry of a host and class; None if it has none."""
        return self.of_class.get(code, NO_ENTRIES).get(row)

    def add(self, code: int, row: int) -> int:
        """Add and return an entry for a host that has none of the class."""
        if self._unused_entries:
            entry = self._unused_entries.pop()
        else:
            entry, self.size = self.size, self.size + 1
            self._reserve(self.size)
        self._rows_of(code)[row] = entry
        self.of_row[row] = tuple(sorted((*self.of_row.get(row, ()), code)))
        return entry

    def drop(self, code: int, row: int) -> None:
        """Drop the entry of a host and class."""
        rows = self._rows_of(code)
        entry = rows.pop(row)
        if not rows:
            del self.of_class[code]
        codes = tuple(other for other in self.of_row[row] if other != code)
        if codes:
            self.of_row[row] = codes
        else:
            del self.of_row[row]
        for name, (_, fill) in self._kinds.items():
            self.arrays[name][entry] = fill
        self._unused_entries.append(entry)

    def drop_blank(self, row: int) -> None:
        """Drop the entries of a host that hold only fill values, as no entry means the same."""
        for code in self.of_row.get(row, ()):
            entry = self.of_class[code][row]
            if all(self.arrays[name][entry] == fill for name, (_, fill) in self._kinds.items()):
                self.drop(code, row)

    def blank(self, row: int, names: tuple[str, ...]) -> None:
        """Reset the named columns of a host to their fill values."""
        for code in self.of_row.get(row, ()):
            for name in names:
                self.arrays[name][self.of_class[code][row]] = self._kinds[name][1]

    def move_row(self, source: int, target: int) -> None:
        """Move the entries of the source row to the target row, and replace those there."""
        for code in self.of_row.get(target, ()):
            self.drop(code, target)
        codes = self.of_row.pop(source, ())
        for code in codes:
            rows = self._rows_of(code)
            rows[target] = rows.pop(source)
        if codes:
            self.of_row[target] = codes

    def places(self, code: int) -> tuple[Rows, Rows]:
        """Return the rows that have the class, and their entries; not to be written to."""
        rows_and_entries = self._places.get(code)
        if rows_and_entries is None:
            entries = self.of_class.get(code, NO_ENTRIES)
            rows_and_entries = self._places[code] = (
                np.fromiter(entries, np.int64, len(entries)),
                np.fromiter(entries.values(), np.int64, len(entries)),
            )
        return rows_and_entries

    def line(self, name: str, code: int, count: int) -> np.ndarray:
        """Return a column of a class for all ``count`` hosts, as a new array."""
        array, fill = self._kinds[name]
        values: np.ndarray = np.full(count, fill, array)
        rows, entries = self.places(code)
        values[rows] = self.arrays[name][entries]
        return values

    def value(self, name: str, code: int, row: int) -> np.generic:
        """Return a column's value for one class and host."""
        array, fill = self._kinds[name]
        entry = self.get(code, row)
        value: np.generic = array(fill) if entry is None else self.arrays[name][entry]
        return value

    def _rows_of(self, code: int) -> dict[int, int]:
        """Return row -> entry of a class, to be modified by the caller."""
        self.seq += 1
        self._places.pop(code, None)
        if code not in self._unshared_classes or code not in self.of_class:
            self.of_class[code] = dict(self.of_class.get(code, NO_ENTRIES))
            self._unshared_classes.add(code)
        return self.of_class[code]

    def _reserve(self, size: int) -> None:
        for name, old in self.arrays.items():
            if size > len(old):
                array, fill = self._kinds[name]
                new: np.ndarray = np.full(max(size, 2 * len(old), ENTRIES_MIN), fill, array)
                new[: len(old)] = old
                self.arrays[name] = new


class ByClass(np.lib.mixins.NDArrayOperatorsMixin, Generic[T]):
    """A column by class: ``hosts.free[code]`` is an array, a value for each host.

    It may be used as an array of two dimensions, by class and row, which is created on such a
    use: ``[code]`` and ``item(code, row)`` cost little.  It is not to be written to.
    """

    __slots__ = ('_array', '_lines', '_name', '_sparse')

    def __init__(
        self, name: str, array: np.ndarray, lines: list[int], sparse: SparseClasses
    ) -> None:
        """Create the view of a column.

        :param lines: code -> line of ``array``; negative: the class is sparse
        """
        self._name = name
        self._array = array
        self._lines = lines
        self._sparse = sparse

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of classes and number of hosts."""
        return len(self._lines), self._array.shape[1]

    def __getitem__(self, key: Any) -> np.ndarray[Any, np.dtype[T]]:
        if key.__class__ is not int:
            values: np.ndarray[Any, np.dtype[T]] = (
                self[int(key)] if isinstance(key, np.integer) else self._whole()[key]
            )
            return values
        line = self._lines[key]
        if line >= 0:
            return self._array[line]
        return self._sparse.line(self._name, key % len(self._lines), self._array.shape[1])

    def __iter__(self) -> Iterator[np.ndarray[Any, np.dtype[T]]]:
        return (self[code] for code in range(len(self._lines)))

    def item(self, code: int, row: int) -> Any:
        """Return the value of one class and host, as a Python number."""
        line = self._lines[code]
        if line >= 0:
            return self._array.item(line, row)
        return self._sparse.value(self._name, code, row).item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = self._whole()
        return whole if dtype is None else whole.astype(dtype, copy=bool(copy))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = (
            operand._whole() if isinstance(operand, ByClass) else operand for operand in inputs
        )
        return getattr(ufunc, method)(*arrays, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        return getattr(self._whole(), name)

    def _whole(self) -> np.ndarray:
        """Return a read-only array of all classes and hosts."""
        lines, count = self._lines, self._array.shape[1]
        whole = np.empty((len(lines), count), self._array.dtype)
        for code, values in enumerate(self):
            whole[code] = values
        whole.flags.writeable = False
        return whole


BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
IntArray = np.ndarray[Any, np.dtype[np.int64]]
CodeArray = np.ndarray[Any, np.dtype[np.int32]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]
BitArray = np.ndarray[Any, np.dtype[np.uint64]]

ROWS_MIN = 16
#: Upper bound of metric columns; a metric beyond them stays visible per host only.
METRICS_MAX = 1024
#: Unused values that are tolerated, beside twice the number of rows.
SPARE_ROWS = 1024
#: A class is dense if more than ``DENSE_HOSTS_MIN`` hosts and one host in
#: ``DENSE_HOSTS_DIVISOR`` have it.
DENSE_HOSTS_MIN = 16
DENSE_HOSTS_DIVISOR = 16
#: Upper bound of dense classes: the others are sparse, however many hosts have them.
DENSE_CLASSES_MAX = 64


class Column(msgspec.Struct, frozen=True):
    """Declaration of a column.

    :ivar doc: its meaning for each host, for authors of plug-ins
    :ivar read: returns its value from the row of a host; None: a part of the table writes it
    :ivar made_from: all fields of ``HostRow`` or ``HostFacts`` that it follows from, separated
        by spaces; none: it may change with every claim or report
    :ivar fill: value of an unused place
    :ivar lines: initial number of lines; 0: one value per row
    :ivar by: key of its lines: class or cell
    :ivar is_picked: whether a pick changes it
    """

    doc: str
    read: Callable[[HostRow], Any] | None = None
    made_from: str = ''
    fill: object = 0
    lines: int = 0
    by: str = ''
    is_picked: bool = False


def _by_class(doc: str, fill: object = 0) -> Column:
    """Return a column of an inventory's figures by class."""
    return Column(doc, made_from='inventories', fill=fill, lines=8, by='class')


def _amounts_column(doc: str) -> Column:
    """Return a column of amounts by class that claims change."""
    return Column(doc, lines=8, by='class', is_picked=True)


def _cell_column(doc: str, by: str = '') -> Column:
    """Return a column of free amounts inside of hosts; -1: the host has no such cell or kind."""
    return Column(doc, fill=-1, lines=1, by=by)


#: Facts kept as objects, which a plug-in may name as read, beside the arrays.
OBJECT_COLUMNS = {
    'names': Column('names of the hosts, a list by row', made_from='name'),
    'nodes': Column('names of their hypervisors, a list by row', made_from='name node'),
    'placed': Column(
        'who is placed where: hosts.placed.on_provider(id of the host)', is_picked=True
    ),
    'metrics': Column('name -> values by row, NaN where there is none', made_from='metrics'),
    'rooms': Column('what is left inside of one host: hosts.free_topology(row)', is_picked=True),
    'numa': Column('NUMA cells that one host reported: hosts.host_state(row).numa'),
    'devices': Column('devices that one host reported: hosts.host_state(row).devices'),
    'hypervisor': Column(
        'what one host said of it: hosts.host_state(row).hypervisor', made_from='hypervisor'
    ),
}


class Codes:
    """Names as small integers, in order of first mention.

    :ivar names: name of each code
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = list(names)
        self._codes = {name: code for code, name in enumerate(self.names)}
        #: Returns the code of a name, None if it is not known.
        self.get: Callable[[str], int | None] = self._codes.get

    def __len__(self) -> int:
        return len(self.names)

    def add(self, name: str) -> int:
        """Return the code of a name, and add the name if it is new."""
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self.names)
            self.names.append(name)
        return code

    def copy(self) -> 'Codes':
        return Codes(self.names)


class InternedFacts:
    """Large facts as small integers, in order of first mention: hosts of one kind share one.

    A filter on such a fact evaluates it once per value, not once per host.

    :ivar values: the value of each code
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._codes: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self.values)

    def add(self, key: Hashable, value: Any) -> int:
        """Return the code of a key; ``value`` is stored if the key is new."""
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = len(self.values)
            self.values.append(value)
        return code

    def copy(self) -> 'InternedFacts':
        other = InternedFacts()
        other.values, other._codes = list(self.values), dict(self._codes)
        return other

    def compact(self, column: CodeArray) -> None:
        """Drop values that no row of ``column`` has, if most are unused; the codes change."""
        if len(self.values) <= 2 * len(column) + SPARE_ROWS:
            return
        used, inverse = np.unique(column, return_inverse=True)
        new = {int(code): i for i, code in enumerate(used)}
        self.values = [self.values[code] for code in new]
        self._codes = {key: new[code] for key, code in self._codes.items() if code in new}
        column[:] = inverse


def words_of(codes: Iterable[int]) -> dict[int, int]:
    """Return bit codes as word number -> bits of that word."""
    words: dict[int, int] = {}
    for code in codes:
        words[code >> 6] = words.get(code >> 6, 0) | (1 << (code & 63))
    return words


def write_bits(columns: 'Columns', name: str, i: int, words: dict[int, int]) -> None:
    """Rewrite the bits of one row."""
    columns.widen((name,), max(words, default=0) + 1)
    bits = columns.arrays[name]
    bits[:, i] = 0
    for word, value in words.items():
        bits[word, i] = value


class Columns:
    """The arrays of a table, each a view of its used part, and the declaration of each.

    ``arrays`` holds the allocated arrays; writers that add rows work there and
    call :meth:`renew` once at the end.

    :ivar count: rows in use
    :ivar lines: code of a class -> its line in columns by class; -1: it is sparse
    :ivar dense: line -> code of the class
    :ivar sparse: figures of the other classes
    :ivar facts_seq: number of changes of columns that do not change with every claim or report
    """

    ids: Annotated[IntArray, Column('id of the host in the database', attrgetter('id'), 'id')]
    zone: Annotated[
        CodeArray,
        Column(
            'code of the availability zone: hosts.zone_name(row)', made_from='name zone aggregates'
        ),
    ]
    cell: Annotated[CodeArray, Column('code of the cell: hosts.cell_name(row)', made_from='cell')]
    location: Annotated[
        CodeArray, Column('code of the place: hosts.locations.names[code]', made_from='location')
    ]
    enabled: Annotated[
        BoolArray,
        Column(
            'nobody disabled it, neither an operator nor its service',
            lambda row: row.disabled is None and row.service_disabled is None,
            'disabled service_disabled',
        ),
    ]
    over_committed: Annotated[
        BoolArray,
        Column('found with more use than capacity', attrgetter('over_committed'), 'over_committed'),
    ]
    open: Annotated[
        BoolArray,
        Column(
            'enabled and not over_committed',
            attrgetter('is_open'),
            'disabled service_disabled over_committed',
        ),
    ]
    reported_at: Annotated[
        FloatArray, Column('last report, in seconds as hosts.now', attrgetter('reported_at'))
    ]
    generation: Annotated[
        IntArray, Column('grows with each change of usage or facts', attrgetter('generation'))
    ]
    version: Annotated[IntArray, Column('grows with each write', attrgetter('version'))]
    instances: Annotated[IntArray, Column('claims there, picks included', is_picked=True)]
    io_ops: Annotated[
        IntArray, Column('guests that are being built, moved or resized there', is_picked=True)
    ]
    free_devices: Annotated[IntArray, Column('free devices of all kinds', is_picked=True)]
    numa_cells: Annotated[CodeArray, Column('NUMA cells; 0 where the host tells of none')]
    cell_pinned: Annotated[CodeArray, _cell_column('free dedicated CPUs', 'cell')]
    cell_isolated: Annotated[CodeArray, _cell_column('the same, a core for each', 'cell')]
    cell_paired: Annotated[CodeArray, _cell_column('the same, in whole cores', 'cell')]
    cell_shared: Annotated[CodeArray, _cell_column('CPUs that one guest may share there', 'cell')]
    cell_memory: Annotated[CodeArray, _cell_column('free MiB of memory', 'cell')]
    cell_base: Annotated[CodeArray, _cell_column('free MiB in pages of the usual size', 'cell')]
    cell_page: Annotated[
        CodeArray, _cell_column('KiB of a usual page, 0 where none is listed', 'cell')
    ]
    cell_socket: Annotated[
        CodeArray, _cell_column('the same for cells of a socket, 0: unknown', 'cell')
    ]
    cell_pages: Annotated[CodeArray, _cell_column('free pages; a line for each size and cell')]
    kind_free: Annotated[CodeArray, _cell_column('free devices; a line for each kind and place')]
    hypervisor_version: Annotated[
        IntArray, Column('e.g. 8002000', lambda row: row.facts.hypervisor.version, 'hypervisor')
    ]
    platform: Annotated[
        CodeArray, Column('hosts whose hypervisors say the same', made_from='hypervisor')
    ]
    address: Annotated[
        BitArray, Column('the IP address in two words', made_from='hypervisor', lines=2)
    ]
    cap: Annotated[ByClass[np.int64], _by_class('what may be promised: hosts.cap_of(code)')]
    used: Annotated[ByClass[np.int64], _amounts_column('sum of the live claims')]
    free: Annotated[ByClass[np.int64], _amounts_column('left over: hosts.free_of(code)')]
    min_unit: Annotated[ByClass[np.int64], _by_class('smallest single amount', 1)]
    largest: Annotated[ByClass[np.int64], _by_class('largest single amount')]
    step: Annotated[ByClass[np.int64], _by_class('amounts are multiples of it', 1)]
    total: Annotated[ByClass[np.int64], _by_class('what is there')]
    reserved: Annotated[ByClass[np.int64], _by_class('what the host keeps for itself')]
    ratio: Annotated[ByClass[np.float64], _by_class('how often it is promised', 1.0)]
    traits: Annotated[
        BitArray, Column('a bit for each: hosts.trait_codes', made_from='traits', lines=4)
    ]
    aggregates: Annotated[
        BitArray,
        Column('a bit for each: hosts.aggregate_bits(names)', made_from='name aggregates', lines=1),
    ]

    def __init__(self, rows: int = ROWS_MIN) -> None:
        self.count = 0
        self.frozen = False  # true of a snapshot, which any thread reads: never written again
        # Views of the first ``count`` rows; ``renew`` replaces them after an addition of rows.
        self.metrics: dict[str, FloatArray] = {}
        # The arrays as allocated, with room for more rows than are in use.
        self.arrays: dict[str, np.ndarray] = {}
        self._metric_arrays: dict[str, FloatArray] = {}
        #: Seconds since a value was measured, of the metrics of which a host reported an age.
        self.metric_ages: dict[str, FloatArray] = {}
        self._age_arrays: dict[str, FloatArray] = {}
        # Column -> the changes that it was copied at, and the read-only copy, which snapshots
        # share until a fact changes.
        self._copies: dict[str, tuple[tuple[int, int], np.ndarray]] = {}
        self.facts_seq = 0
        self.lines: list[int] = []
        self.dense: list[int] = []
        self.sparse = SparseClasses(
            {name: (COLUMN_TYPES[name], COLUMNS[name].fill) for name in BY_CLASS}
        )
        rows = max(rows, ROWS_MIN)
        for name, column in COLUMNS.items():
            shape = (column.lines, rows) if column.lines else rows
            self.arrays[name] = np.full(shape, column.fill, COLUMN_TYPES[name])
        self.renew()

    def renew(self) -> None:
        """Renew the views, to show ``count`` rows of the arrays as allocated now."""
        for name in self.arrays:
            self._show(name)
        self.metrics = {k: a[: self.count] for k, a in self._metric_arrays.items()}
        self.metric_ages = {k: a[: self.count] for k, a in self._age_arrays.items()}

    def _show(self, name: str) -> None:
        view: Any = self.arrays[name][..., : self.count]
        if name in _BY_CLASS:
            view = ByClass(name, view, self.lines, self.sparse)
        setattr(self, name, view)

    def check_writable(self) -> None:
        """Check that the table may be written.

        :raises Bug: this is a snapshot
        """
        if self.frozen:
            raise exceptions.Bug(invariant='a snapshot of the host table is never written')

    def reserve(self, rows: int) -> None:
        """Reserve capacity for ``rows`` rows, and renew the views if arrays were reallocated."""
        capacity = self.arrays['ids'].shape[0]
        if rows <= capacity:
            return
        rows = max(rows, 2 * capacity)
        for name, column in COLUMNS.items():
            old = self.arrays[name]
            new = np.full((*old.shape[:-1], rows), column.fill, old.dtype)
            new[..., : self.count] = old[..., : self.count]
            self.arrays[name] = new
        for arrays, fill in ((self._metric_arrays, np.nan), (self._age_arrays, 0.0)):
            for name, old in arrays.items():
                longer = np.full(rows, fill)
                longer[: self.count] = old[: self.count]
                arrays[name] = longer
        self.renew()

    def widen(self, names: Iterable[str], width: int) -> None:
        """Reserve ``width`` lines in the named columns."""
        for name in names:
            old = self.arrays[name]
            if width <= old.shape[0]:
                continue
            shape = (max(width, 2 * old.shape[0]), old.shape[1])
            new = np.full(shape, COLUMNS[name].fill, old.dtype)
            new[: old.shape[0]] = old
            self.arrays[name] = new
            self.facts_seq += 1
            self._show(name)

    # -- by class ----------------------------------------------------------------

    def append_class(self, is_dense: bool) -> None:
        """Append the next class; ``is_dense``: whether it is dense from the start."""
        self.lines.append(-1)
        if is_dense:
            self._make_dense(len(self.lines) - 1)

    def place(self, code: int, row: int) -> tuple[dict[str, np.ndarray], Any]:
        """Return the place to write the figures of a class and host.

        :returns: the columns, and the place in each of them; valid until the next class or host
        """
        line = self.lines[code]
        if line < 0:
            entry = self.sparse.get(code, row)
            if entry is not None:
                return self.sparse.arrays, entry
            if not self._is_dense(1 + len(self.sparse.of_class.get(code, ()))):
                entry = self.sparse.add(code, row)
                return self.sparse.arrays, entry
            line = self._make_dense(code)
        return self.arrays, (line, row)

    def anybody_has(self, code: int) -> bool:
        """Return whether any host may have inventory or usage of a class."""
        return self.lines[code] >= 0 or bool(self.sparse.of_class.get(code))

    def codes_at(self, row: int) -> list[int]:
        """Return the codes of the classes that a host may have figures of, ascending."""
        return sorted((*self.dense, *self.sparse.of_row.get(row, ())))

    def _is_dense(self, hosts: int) -> bool:
        room = self.arrays['ids'].shape[0]
        return len(self.dense) < DENSE_CLASSES_MAX and hosts > max(
            DENSE_HOSTS_MIN, room // DENSE_HOSTS_DIVISOR
        )

    def _make_dense(self, code: int) -> int:
        """Move the figures of a class from sparse entries to a new line, and return the line."""
        line = self.lines[code] = len(self.dense)
        self.dense.append(code)
        self.widen(BY_CLASS, line + 1)
        for row, entry in list(self.sparse.of_class.get(code, NO_ENTRIES).items()):
            for name in BY_CLASS:
                self.arrays[name][line, row] = self.sparse.arrays[name][entry]
            self.sparse.drop(code, row)
        self.facts_seq += 1
        return line

    def declare_metric(self, name: str) -> FloatArray:
        """Return the allocated array of a metric, and add one of NaN if it is new."""
        array = self._metric_arrays.get(name)
        if array is None:
            array = self._metric_arrays[name] = np.full(self.arrays['ids'].shape[0], np.nan)
            self.metrics = {k: a[: self.count] for k, a in self._metric_arrays.items()}
        return array

    def write_metrics(self, i: int, metrics: Mapping[str, ReportedMetric]) -> None:
        """Rewrite the metrics of a host; a value that is not finite becomes NaN."""
        self.blank_metrics(i)
        for name, metric in metrics.items():
            if name not in self._metric_arrays and len(self._metric_arrays) >= METRICS_MAX:
                continue
            self.declare_metric(name)[i] = metric.value if math.isfinite(metric.value) else np.nan
            ages = self._age_arrays.get(name)
            if ages is None and metric.age_seconds > 0:
                ages = self._age_arrays[name] = np.zeros(self.arrays['ids'].shape[0])
                self.metric_ages = {k: a[: self.count] for k, a in self._age_arrays.items()}
            if ages is not None:
                ages[i] = max(metric.age_seconds, 0.0)

    def blank_metrics(self, row: int) -> None:
        """Reset the metrics of a host."""
        for array in self._metric_arrays.values():
            array[row] = np.nan
        for array in self._age_arrays.values():
            array[row] = 0.0

    def move_row(self, source: int, target: int) -> None:
        """Copy one row over another and blank the source."""
        for name, column in COLUMNS.items():
            array = self.arrays[name]
            array[..., target] = array[..., source]
            array[..., source] = column.fill
        self.sparse.move_row(source, target)
        for array in (*self._metric_arrays.values(), *self._age_arrays.values()):
            array[target] = array[source]
        self.blank_metrics(source)

    def copy_columns(self, into: 'Columns', writable: bool) -> None:
        """Give ``into`` independent copies of the arrays.

        Read-only copies of facts are shared between snapshots until a fact
        changes: usage changes a thousand times as often.
        """
        into.count = self.count
        into.facts_seq = self.facts_seq
        into.frozen = not writable
        into.arrays = {}
        into._copies = {}
        for name in COLUMNS:
            into.arrays[name] = self._copy(name, self.arrays[name][..., : self.count], writable)
        into.lines, into.dense = list(self.lines), list(self.dense)
        into.sparse = self.sparse.copy(
            {
                name: self._copy(f'sparse {name}', array[: self.sparse.size], writable)
                for name, array in self.sparse.arrays.items()
            }
        )
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
        shared, stamp = self._copies.get(name), (self.facts_seq, self.sparse.seq)
        if not writable and shared is not None and shared[0] == stamp:
            return shared[1]
        copied = array.copy()
        if not writable:
            copied.flags.writeable = False
            if name.removeprefix('sparse ') not in _COMMIT_COLUMNS:
                self._copies[name] = (stamp, copied)
        return copied


def _declared() -> tuple[dict[str, Column], dict[str, type]]:
    columns, types = {}, {}
    for name, hint in typing.get_type_hints(Columns, include_extras=True).items():
        if typing.get_origin(hint) is Annotated:
            array, columns[name] = typing.get_args(hint)
            by_class = typing.get_origin(array) is ByClass
            (types[name],) = typing.get_args(array if by_class else typing.get_args(array)[1])
    return columns, types


#: The columns by name, in the order of their declaration.
COLUMNS, COLUMN_TYPES = _declared()
#: Columns with one line per resource class, and per NUMA cell.
BY_CLASS, BY_CELL = (
    tuple(name for name, column in COLUMNS.items() if column.by == by) for by in ('class', 'cell')
)
_BY_CLASS = frozenset(BY_CLASS)
#: Columns that a pick changes; the others change only with their host.
PICK_DEPENDENT_COLUMNS = frozenset(
    name for name, column in (COLUMNS | OBJECT_COLUMNS).items() if column.is_picked
)
#: Columns written with every commit or report; the others only when a fact changes.
_COMMIT_COLUMNS = frozenset(name for name, column in COLUMNS.items() if not column.made_from)
#: Columns that are read directly from the row of a host: all, and those of every write.
PLAIN_COLUMNS = [(name, column.read) for name, column in COLUMNS.items() if column.read is not None]
PLAIN_COMMIT_COLUMNS = [(name, read) for name, read in PLAIN_COLUMNS if name in _COMMIT_COLUMNS]
#: Field of ``HostRow`` or ``HostFacts`` -> the columns that follow from it.
COLUMNS_BY_FIELD = {
    field: tuple(
        n for n, other in (COLUMNS | OBJECT_COLUMNS).items() if field in other.made_from.split()
    )
    for column in (COLUMNS | OBJECT_COLUMNS).values()
    for field in column.made_from.split()
}
#: Columns whose changes are counted; results that follow from them alone may be reused.
VERSIONED_COLUMNS = frozenset(name for columns in COLUMNS_BY_FIELD.values() for name in columns)
