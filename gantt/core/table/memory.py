# SPDX-License-Identifier: Apache-2.0
"""Memory of a host table, counted from its own structures.

Arrays and containers know their sizes; of the objects in a large container a sample is followed.
So a table of ten thousand hosts is measured in milliseconds, while other threads change it.
"""

import sys
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np

#: Entries of a larger container that are followed at least; at most twice as many are.
SAMPLE_MIN = 32


class TableMemory(NamedTuple):
    """Hosts and live claims of a table, and the bytes that each of the two take in all."""

    hosts: int
    host_bytes: float
    claims: int
    claim_bytes: float


class MemoryCount:
    """Sizes of objects; one that is reached again, also from another table, counts nothing."""

    def __init__(self) -> None:
        # By id; it holds the objects, so that no other object gets the id of one.
        self._counted: dict[int, object] = {}

    def of(self, *values: object) -> float:
        """Return the bytes of objects and of everything that they refer to.

        Keys of dictionaries are left out: nearly all of them are names and ids of their values.
        """
        return sum(map(self._size, values))

    def of_containers(self, *values: object) -> float:
        """Return the bytes of nested containers alone: what is in them is counted elsewhere."""
        return sum(
            sys.getsizeof(value) + _scaled(value, self.of_containers)
            for value in values
            if isinstance(value, Collection) and not isinstance(value, str)
        )

    def _size(self, value: object) -> float:
        if id(value) in self._counted:
            return 0.0
        self._counted[id(value)] = value
        return sys.getsizeof(value) + _scaled(value, self.of)


def _scaled(value: object, size: Any) -> float:
    """Return the bytes of the entries of an object, those of a sample multiplied."""
    entries = entries_of(value)
    if not entries:
        return 0.0
    is_sample = isinstance(value, dict | list | tuple | set | frozenset)
    scale = len(value) / len(entries) if is_sample else 1.0  # type: ignore[arg-type]
    return scale * float(size(*entries))


def entries_of(value: object) -> Collection[Any]:
    """Return the objects that an object refers to; of a large container a sample of them.

    The distance of two entries is a power of two: of a copy with a few more entries the same
    ones are chosen, and what both share is recognised.
    """
    if isinstance(value, list | tuple):
        return value[:: _distance(value)]
    if isinstance(value, dict):
        return list(islice(value.values(), 0, None, _distance(value)))
    if isinstance(value, set | frozenset):
        return list(islice(value, 0, None, _distance(value)))
    if isinstance(value, np.ndarray):
        return [] if value.base is None else [value.base]
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    if not kind.__module__.startswith('gantt.'):
        return []
    names = getattr(kind, '__slots__', ())
    attributes: Mapping[str, Any] = getattr(value, '__dict__', {})
    return [*attributes.values(), *(getattr(value, name, None) for name in names)]


def _distance(entries: Collection[Any]) -> int:
    return 1 << max(0, (len(entries) // SAMPLE_MIN).bit_length() - 1)
