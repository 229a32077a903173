# SPDX-License-Identifier: Apache-2.0
"""Columns of a fact of all hosts as arrays, and masks of the hosts that meet a condition on it.

A condition is evaluated once per distinct value and mapped to the hosts by the codes.
A fact that a host does not have is unknown: no condition on it holds, and no opposite of one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from gantt.core.filters.base import has_any
from gantt.core.nova.facts import NovaFact as NovaFact
from gantt.core.table.columns import BoolArray, Codes, words_of

#: Returns whether a value meets a condition; None: undecidable for the value.
Predicate = Callable[[Any], bool | None]


class Numbers(msgspec.Struct, frozen=True):
    """A number per host.

    :ivar known: mask of the hosts that have it; None: all
    """

    numbers: np.ndarray
    known: BoolArray | None = None

    def found(self) -> BoolArray:
        """Return a mask of the hosts that have the fact."""
        return np.ones(self.numbers.shape, np.bool_) if self.known is None else self.known.copy()


class _Texts(msgspec.Struct, frozen=True):
    """Base of columns that are not numbers."""

    numbers: ClassVar[None] = None
    known: ClassVar[None] = None

    def where(self, predicate: Predicate, negated: bool = False) -> BoolArray:
        """Return a mask of the hosts for which the predicate, or its opposite, holds."""
        raise NotImplementedError

    def found(self) -> BoolArray:
        """Return a mask of the hosts that have the fact."""
        return self.where(lambda text: True)


class Coded(_Texts, frozen=True):
    """A text per host, '' if it has none.

    :ivar codes: index into ``names`` by host
    """

    codes: np.ndarray
    names: Sequence[str]

    def where(self, predicate: Predicate, negated: bool = False) -> BoolArray:
        expected = not negated
        return _by_code(self.codes, self.names, lambda s: s != '' and predicate(s) is expected)


class Members(_Texts, frozen=True):
    """A set of texts per host, as bits; a condition is met by some member, or by none.

    :ivar bits: words by host
    :ivar texts: (bit, text); a bit may have several texts
    """

    bits: np.ndarray
    texts: Iterable[tuple[int, str]]

    def where(self, predicate: Predicate, negated: bool = False) -> BoolArray:
        right = words_of(code for code, text in self.texts if predicate(text))
        return has_any(self.bits, right) != negated


class Sets(_Texts, frozen=True):
    """A set of texts per host, few of them different; as :class:`Members`.

    :ivar codes: index into ``sets`` by host
    """

    codes: np.ndarray
    sets: Sequence[Sequence[str]]

    def where(self, predicate: Predicate, negated: bool = False) -> BoolArray:
        return _by_code(
            self.codes, self.sets or [()], lambda texts: any(map(predicate, texts)) != negated
        )


class Values(msgspec.Struct, frozen=True):
    """A value of any type per host.

    :ivar sources: the first source that has a value of a host counts
    :ivar count: number of hosts
    """

    sources: Sequence[NovaFact]
    count: int

    @property
    def numbers(self) -> np.ndarray | None:
        """Values if they are one number per host; other values are unknown."""
        return self.sources[0].numbers if len(self.sources) == 1 else None

    @property
    def known(self) -> BoolArray:
        """Mask of the hosts that have the fact."""
        return self.found()

    def found(self) -> BoolArray:
        """Return a mask of the hosts that have the fact."""
        mask = np.zeros(self.count, np.bool_)
        for source in self.sources:
            mask |= source.is_there()
        return mask

    def where(self, predicate: Predicate, negated: bool = False) -> BoolArray:
        """Return a mask of hosts for which the predicate, or its opposite, is known to hold."""
        expected = not negated

        def decide(value: Any) -> bool:
            return predicate(value) is expected

        if len(self.sources) == 1:
            return self.sources[0].where(decide)
        mask, undecided = np.zeros(self.count, np.bool_), np.ones(self.count, np.bool_)
        for source in self.sources:
            mask |= source.where(decide) & undecided
            undecided &= ~source.is_there()
        return mask

    def plain(self) -> list[Any]:
        """Return the values by host, None if there is none."""
        values: list[Any] = [None] * self.count
        for source in reversed(self.sources):
            for row in np.flatnonzero(source.is_there()).tolist():
                values[row] = source.at(row)
        return values


Column = Numbers | Coded | Members | Sets | Values


def _by_code(codes: np.ndarray, values: Sequence[Any], decide: Callable[[Any], bool]) -> BoolArray:
    """Return a mask of the values' decisions; only values that occur are evaluated, if few."""
    if len(values) <= len(codes):
        return np.fromiter(map(decide, values), np.bool_, len(values)).take(codes)
    mask = np.zeros(len(values), np.bool_)
    for code in set(codes.tolist()):
        mask[code] = decide(values[code])
    return mask.take(codes)


def coded(values: Iterable[str]) -> Coded:
    """Return texts by host as codes."""
    code_of: dict[str, int] = {}
    codes = [code_of.setdefault(value, len(code_of)) for value in values]
    return Coded(np.array(codes, np.int64), list(code_of))


class Places:
    """Parsed dotted paths of locations, to find those at or below a place.

    One line per level, one number per path: the part at the level, and the place of the
    path down to the level; 0 beyond its end.
    """

    def __init__(self) -> None:
        self._parts = Codes([''])
        self._inside = Codes([''])
        self._levels = np.zeros((4, 64), np.int32)
        self._places = np.zeros((4, 64), np.intp)
        self._done = 0

    def read(self, names: Sequence[str]) -> None:
        """Parse the paths that were added since the last call; paths are only ever added."""
        for code in range(self._done, len(names)):
            parts = names[code].split('.') if names[code] else []
            self._reserve(len(parts), code)
            for level, part in enumerate(parts):
                self._levels[level, code] = self._parts.add(part)
                self._places[level, code] = self._inside.add('.'.join(parts[: level + 1]))
        self._done = max(self._done, len(names))

    def _reserve(self, levels: int, code: int) -> None:
        height, width = self._levels.shape
        if levels > height or code >= width:
            shape = (max(height, levels), width if code < width else 2 * width + code)
            for name in ('_levels', '_places'):
                old = getattr(self, name)
                new = np.zeros(shape, old.dtype)
                new[:height, :width] = old
                setattr(self, name, new)

    def below(self, place: str, codes: np.ndarray, exact: bool = False) -> BoolArray:
        """Return a mask of the rows whose path begins with ``place``; ``*`` matches any one part.

        :param exact: the path must end there
        """
        return self.below_any((place,), codes, exact)

    def below_any(
        self, places: Sequence[str], codes: np.ndarray, exact: bool = False, negated: bool = False
    ) -> BoolArray:
        """Return a mask of the rows whose path begins with one of ``places``, as :meth:`below`.

        :param negated: of the rows whose path does not, and which have one
        """
        path_mask = np.zeros(self._done, np.bool_)
        plain: dict[int, list[int]] = {}
        for place in places:
            parts = place.split('.')
            if '*' in parts:
                path_mask |= self._like(parts, exact)
            elif all(parts) and (number := self._inside.get(place)):
                plain.setdefault(len(parts) - 1, []).append(number)
        for level, numbers in plain.items():
            # Evaluated once per known place, however many are requested.
            is_requested = np.zeros(len(self._inside), np.bool_)
            is_requested[numbers] = True
            matches = is_requested.take(self._places[level, : self._done])
            path_mask |= self._end(matches, level + 1, exact)
        if negated:
            # Evaluated once per path: a host may have its own, or share it with others.
            np.greater(self._levels[0, : self._done] != 0, path_mask, out=path_mask)
        return path_mask.take(codes)

    def domains(self, depth: int, codes: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Return the domains of rows: equal paths down to their part at ``depth``, from 0.

        :returns: an index into the places by row, -1 if a path ends before; and the places
        """
        if depth >= self._places.shape[0]:
            return np.full(len(codes), -1, np.int32), []
        place_numbers = self._places[depth, : self._done].take(codes)
        numbers, inverse = np.unique(place_numbers, return_inverse=True)
        names = self._inside.names
        index_of_number = np.cumsum(numbers != 0) - 1
        index_of_number[numbers == 0] = -1
        return index_of_number.astype(np.int32)[inverse], [names[n] for n in numbers.tolist() if n]

    def _like(self, parts: Sequence[str], exact: bool) -> BoolArray:
        """Return a mask of the paths that begin with the parts."""
        if len(parts) > self._levels.shape[0]:
            return np.zeros(self._done, np.bool_)
        mask = np.ones(self._done, np.bool_)
        for level, part in enumerate(parts):
            level_parts = self._levels[level, : self._done]
            # A part that no path has matches nothing, the empty part included.
            number = self._parts.get(part) or -1
            mask &= level_parts != 0 if part == '*' else level_parts == number
        return self._end(mask, len(parts), exact)

    def _end(self, mask: BoolArray, level: int, exact: bool) -> BoolArray:
        """Return ``mask``, narrowed to paths that end at a level if ``exact``."""
        if exact and level < self._levels.shape[0]:
            mask &= self._levels[level, : self._done] == 0
        return mask


_PLACES: 'WeakKeyDictionary[Codes, Places]' = WeakKeyDictionary()


def places_of(locations: Codes) -> Places:
    """Return the parsed paths of a table; cached, as paths are only ever added."""
    places = _PLACES.get(locations)
    if places is None:
        places = _PLACES[locations] = Places()
    places.read(locations.names)
    return places
