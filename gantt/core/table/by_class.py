# SPDX-License-Identifier: Apache-2.0
"""Columns by resource class: dense for the common classes, sparse for the others.

A class that many hosts have is a line in each of the columns, with a value for every host.  A
class that few hosts have, such as one of a reservation or a type of device, has an entry for
each of these hosts and costs nothing for others.  :class:`ByClass` is the readers' interface
of a column, and returns the same for both.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

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
        self._unused: list[int] = []  # entries below ``size`` that no host has
        self._own: set[int] = set()  # classes whose rows no copy shares
        self._places: dict[int, tuple[Rows, Rows]] = {}

    def copy(self, arrays: dict[str, np.ndarray]) -> 'SparseClasses':
        """Return an independent copy.

        :param arrays: its values, by column, of ``size`` entries
        """
        other = SparseClasses.__new__(SparseClasses)
        other._kinds, other.arrays = self._kinds, arrays
        other.of_class, other.of_row = dict(self.of_class), dict(self.of_row)
        other.seq, other.size, other._unused = self.seq, self.size, list(self._unused)
        # The rows of a class are copied on the first change by either version.
        self._own, other._own = set(), set()
        other._places = dict(self._places)
        return other

    def get(self, code: int, row: int) -> int | None:
        """Return the entry of a host and class; None if it has none."""
        return self.of_class.get(code, NO_ENTRIES).get(row)

    def add(self, code: int, row: int) -> int:
        """Add and return an entry for a host that has none of the class."""
        if self._unused:
            entry = self._unused.pop()
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
        self._unused.append(entry)

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
        if code not in self._own or code not in self.of_class:
            self.of_class[code] = dict(self.of_class.get(code, NO_ENTRIES))
            self._own.add(code)
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
