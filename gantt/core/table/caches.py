# SPDX-License-Identifier: Apache-2.0
"""Masks and arrays of earlier requests, reused while their columns are unchanged.

A filter that names the ``fields`` of the spec and the ``columns`` that its mask follows from,
and reads nothing else, returns the same mask while these are the same.  Every followed column
has a version; a cached mask is valid at exactly the versions at which it was computed.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from gantt.core.resources.host import HostFacts, HostRow
from gantt.core.table.columns import COLUMNS_BY_FIELD, VERSIONED_COLUMNS, BoolArray

T = TypeVar('T')

#: Upper bounds of the masks of one table: in bytes, and in number for a small table.
MASK_BYTES_MAX = 64 << 20
MASKS_MAX = 4096
#: Upper bound of cached arrays.
ARRAYS_MAX = 256

_COLUMNS_BY_FACT = {
    f: names for f, names in COLUMNS_BY_FIELD.items() if f in HostFacts.__struct_fields__
}
_COLUMNS_BY_ROW_FIELD = {
    f: names for f, names in COLUMNS_BY_FIELD.items() if f not in _COLUMNS_BY_FACT and f != 'id'
}


class Versions:
    """Number of changes of each followed column.

    :ivar rows: number of hosts added and removed
    """

    __slots__ = ('_change_counts', 'rows')

    def __init__(self) -> None:
        self._change_counts = dict.fromkeys(VERSIONED_COLUMNS, 0)
        self.rows = 0

    def copy(self) -> 'Versions':
        other = Versions()
        other._change_counts, other.rows = dict(self._change_counts), self.rows
        return other

    def touch(self, columns: Iterable[str]) -> None:
        """Count a change of the columns."""
        for column in columns:
            self._change_counts[column] += 1

    def note(self, old: HostRow, new: HostRow) -> bool:
        """Count the changes of a row that was overwritten; ``old`` of version -1: a host was added.

        :returns: whether a followed column has changed
        """
        if old.version < 0:
            self.rows += 1
            return True
        fields = [
            field for field in _COLUMNS_BY_ROW_FIELD if getattr(old, field) != getattr(new, field)
        ]
        if old.facts is not new.facts:
            old_facts, new_facts = old.facts, new.facts
            fields += [
                f for f in _COLUMNS_BY_FACT if getattr(old_facts, f) != getattr(new_facts, f)
            ]
            if old_facts.hypervisor.service != new_facts.hypervisor.service:
                fields.append('name')  # a name as well
        for field in fields:
            self.touch(COLUMNS_BY_FIELD[field])
        return bool(fields)

    def of_columns(self, columns: tuple[str, ...]) -> tuple[int, ...]:
        """Return the versions of the columns."""
        column_versions = self._change_counts
        return (self.rows, *[column_versions[column] for column in columns])


class MaskCache:
    """Masks by filter and signature; the oldest are evicted if there are too many.

    :ivar hits, misses: number of look-ups with and without a valid mask
    """

    def __init__(self) -> None:
        # (filter, signature) -> stamp and mask, in the order in which they were cached
        self._cached: dict[tuple[Hashable, bytes], tuple[object, BoolArray | None]] = {}
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._cached)

    @property
    def nbytes(self) -> int:
        """Bytes of the masks."""
        return sum(mask.nbytes for _, mask in self._cached.values() if mask is not None)

    def get(self, rule: Hashable, signature: bytes, stamp: object) -> BoolArray | None:
        """Return the cached mask of a filter, or of another rule.

        :raises KeyError: it is not cached, or is not valid at ``stamp``
        """
        stamp_and_mask = self._cached.get((rule, signature))
        if stamp_and_mask is None or stamp_and_mask[0] != stamp:
            self.misses += 1
            raise KeyError(rule)
        self.hits += 1
        return stamp_and_mask[1]

    def put(
        self, rule: Hashable, signature: bytes, stamp: object, mask: BoolArray | None, rows: int
    ) -> None:
        """Cache a mask and make it read-only."""
        if mask is not None:
            mask.flags.writeable = False
        masks_max = min(MASKS_MAX, MASK_BYTES_MAX // max(rows, 1))
        while len(self._cached) >= max(masks_max, 1):
            del self._cached[next(iter(self._cached))]
        self._cached[rule, signature] = (stamp, mask)


class ArrayCache:
    """Cached results that follow only from followed columns of one table."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        # key -> versions of its columns, and the result at these
        self._cached: dict[Hashable, tuple[tuple[int, ...], Any]] = {}

    def get(self, key: Hashable, columns: tuple[str, ...], make: Callable[[], T]) -> T:
        """Return the result of ``make``, cached until one of the columns changes; read-only."""
        stamp = self._versions.of_columns(columns)
        stamp_and_result = self._cached.get(key)
        if stamp_and_result is not None and stamp_and_result[0] == stamp:
            cached_copy: T = stamp_and_result[1]
            return cached_copy
        result = make()
        while len(self._cached) >= ARRAYS_MAX:
            del self._cached[next(iter(self._cached))]
        self._cached[key] = (stamp, result)
        return result
