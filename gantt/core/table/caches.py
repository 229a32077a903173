# SPDX-License-Identifier: Apache-2.0
"""Masks and arrays of earlier requests, which are used again while their columns are the same.

A filter that names the ``fields`` of the spec and the ``columns`` that its mask follows from,
and reads nothing else, gives the same mask while these are the same.  Every followed column
has a version; a cached mask is valid at exactly the versions that it was made at.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from gantt.core.resources.host import HostFacts, HostRow
from gantt.core.table.columns import FOLLOWED, MADE_FROM, BoolArray

T = TypeVar('T')

#: Bytes that the masks of one table may take, and how many there may be of a small table.
BYTES_MAX = 64 << 20
MASKS_MAX = 4096
#: Arrays that are kept beside them.
ARRAYS_MAX = 256

_OF_FACTS = {f: names for f, names in MADE_FROM.items() if f in HostFacts.__struct_fields__}
_OF_ROW = {f: names for f, names in MADE_FROM.items() if f not in _OF_FACTS and f != 'id'}


class Versions:
    """How often each followed column has changed.

    :ivar rows: how often a host has come or gone
    """

    __slots__ = ('_of', 'rows')

    def __init__(self) -> None:
        self._of = dict.fromkeys(FOLLOWED, 0)
        self.rows = 0

    def copy(self) -> 'Versions':
        other = Versions()
        other._of, other.rows = dict(self._of), self.rows
        return other

    def touch(self, columns: Iterable[str]) -> None:
        """These columns have changed."""
        for column in columns:
            self._of[column] += 1

    def note(self, old: HostRow, new: HostRow) -> bool:
        """A row has been written over another; ``old`` of version -1: a host has come.

        :returns: whether anything has changed that is followed
        """
        if old.version < 0:
            self.rows += 1
            return True
        fields = [field for field in _OF_ROW if getattr(old, field) != getattr(new, field)]
        if old.facts is not new.facts:
            before, facts = old.facts, new.facts
            fields += [f for f in _OF_FACTS if getattr(before, f) != getattr(facts, f)]
            if before.hypervisor.service != facts.hypervisor.service:
                fields.append('name')  # a name as well
        for field in fields:
            self.touch(MADE_FROM[field])
        return bool(fields)

    def at(self, columns: tuple[str, ...]) -> tuple[int, ...]:
        """The versions of these columns."""
        of = self._of
        return (self.rows, *[of[column] for column in columns])


class MaskCache:
    """Masks by filter and signature, the oldest given up where there are too many.

    :ivar hits, misses: how often a mask was there, and was not or was no longer valid
    """

    def __init__(self) -> None:
        self._cached: dict[tuple[Hashable, bytes], tuple[object, BoolArray | None]] = {}
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._cached)

    def get(self, rule: Hashable, signature: bytes, stamp: object) -> BoolArray | None:
        """The mask of a filter, or of another rule.

        :raises KeyError: it is not kept, or is not valid at ``stamp``
        """
        found = self._cached.get((rule, signature))
        if found is None or found[0] != stamp:
            self.misses += 1
            raise KeyError(rule)
        self.hits += 1
        return found[1]

    def put(
        self, rule: Hashable, signature: bytes, stamp: object, mask: BoolArray | None, rows: int
    ) -> None:
        """Keep a mask; nobody may write to it from now on."""
        if mask is not None:
            mask.flags.writeable = False
        most = min(MASKS_MAX, BYTES_MAX // max(rows, 1))
        while len(self._cached) >= max(most, 1):
            del self._cached[next(iter(self._cached))]
        self._cached[rule, signature] = (stamp, mask)


class ArrayCache:
    """What follows from followed columns of one table, and from nothing else."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._cached: dict[Hashable, tuple[tuple[int, ...], Any]] = {}

    def get(self, key: Hashable, columns: tuple[str, ...], make: Callable[[], T]) -> T:
        """What ``make`` made, anew where one of the columns has changed; not to be written to."""
        stamp = self._versions.at(columns)
        found = self._cached.get(key)
        if found is not None and found[0] == stamp:
            cached_copy: T = found[1]
            return cached_copy
        made = make()
        while len(self._cached) >= ARRAYS_MAX:
            del self._cached[next(iter(self._cached))]
        self._cached[key] = (stamp, made)
        return made
