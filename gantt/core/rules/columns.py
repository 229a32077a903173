# SPDX-License-Identifier: Apache-2.0
"""A fact of all hosts as arrays, and which hosts a condition on it holds for.

A condition on text is asked once per distinct value and mapped to the hosts by the
codes.  What a host does not have is unknown: no condition on it holds, and no
opposite of one.
"""

from collections.abc import Callable, Iterable, Sequence
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from gantt.core.filters.base import has_any
from gantt.core.table.columns import BoolArray, Codes, words_of

#: Whether a text is as wanted; None: that cannot be said of this one.
Predicate = Callable[[str], bool | None]


class Numbers(msgspec.Struct, frozen=True):
    """A number per host.

    :ivar known: which hosts have it; None: all
    """

    values: np.ndarray
    known: BoolArray | None = None

    def found(self) -> BoolArray:
        """Which hosts have the fact."""
        return np.ones(self.values.shape, np.bool_) if self.known is None else self.known.copy()


class Coded(msgspec.Struct, frozen=True):
    """A text per host, '' where it has none.

    :ivar codes: index into ``names`` by host
    """

    codes: np.ndarray
    names: Sequence[str]

    def where(self, predicate: Predicate, negated: bool) -> BoolArray:
        """Which hosts the predicate, or its opposite, holds for."""
        names = self.names
        if len(names) <= len(self.codes):
            answers = [predicate(name) if name else None for name in names]
            # Neither True nor False is None: who is not known is never among them.
            return np.array([said is (not negated) for said in answers], np.bool_).take(self.codes)
        said = np.zeros(len(names), np.bool_)
        for code in set(self.codes.tolist()):
            said[code] = bool(names[code]) and predicate(names[code]) is (not negated)
        return said.take(self.codes)

    def found(self) -> BoolArray:
        """Which hosts have the fact."""
        return self.where(bool, False)


class Members(msgspec.Struct, frozen=True):
    """A set of texts per host, as bits.

    :ivar bits: words by host
    :ivar texts: (bit, text); a bit may go by several texts
    """

    bits: np.ndarray
    texts: Iterable[tuple[int, str]]

    def where(self, predicate: Predicate, negated: bool) -> BoolArray:
        """Which hosts have a member, or none, that the predicate holds for."""
        right = words_of(code for code, text in self.texts if predicate(text))
        return has_any(self.bits, right) != negated

    def found(self) -> BoolArray:
        """Which hosts have any member."""
        return has_any(self.bits, words_of(code for code, _ in self.texts))


class Sets(msgspec.Struct, frozen=True):
    """A set of texts per host, few of them different.

    :ivar codes: index into ``sets`` by host
    """

    codes: np.ndarray
    sets: Sequence[Sequence[str]]

    def where(self, predicate: Predicate, negated: bool) -> BoolArray:
        """Which hosts have a member, or none, that the predicate holds for."""
        said = np.zeros(len(self.sets) or 1, np.bool_)
        for code in used_codes(self.codes, len(self.sets)):
            said[code] = any(map(predicate, self.sets[code])) != negated
        return said.take(self.codes)

    def found(self) -> BoolArray:
        """Which hosts have any member."""
        return self.where(lambda text: True, False)


class Same(msgspec.Struct, frozen=True):
    """One set of texts, the same for every host."""

    texts: Sequence[str]
    count: int

    def where(self, predicate: Predicate, negated: bool) -> BoolArray:
        """All hosts or none."""
        return np.full(self.count, any(map(predicate, self.texts)) != negated)

    def found(self) -> BoolArray:
        """All hosts or none."""
        return np.full(self.count, bool(self.texts))


Column = Numbers | Coded | Members | Sets | Same


def used_codes(codes: np.ndarray, count: int) -> Iterable[int]:
    """The codes that occur, or simply all where that is less work."""
    return range(count) if count <= len(codes) else set(codes.tolist())


def coded(values: Iterable[str]) -> Coded:
    """Texts by host as codes."""
    found: dict[str, int] = {}
    codes = [found.setdefault(value, len(found)) for value in values]
    return Coded(np.array(codes, np.int64), list(found))


class Places:
    """Dotted paths taken apart: which of them lie at or below a place.

    One line per level, one number per path: what stands there, and the place that the
    path is in down to there; 0 beyond its end.
    """

    def __init__(self) -> None:
        self._parts, self._inside = Codes(['']), Codes([''])
        self._levels = np.zeros((4, 64), np.int32)
        self._places = np.zeros((4, 64), np.intp)
        self._done = 0

    def read(self, names: Sequence[str]) -> None:
        """Take the paths apart that came since the last time; paths are only ever added."""
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
        """Whose path begins with ``place``, part by part; ``*`` stands for any one part.

        :param exact: nothing may follow
        """
        return self.below_any((place,), codes, exact)

    def below_any(self, places: Sequence[str], codes: np.ndarray, exact: bool = False) -> BoolArray:
        """Whose path begins with one of ``places``; as :meth:`below`."""
        found = np.zeros(self._done, np.bool_)
        plain: dict[int, list[int]] = {}
        for place in places:
            parts = place.split('.')
            if '*' in parts:
                found |= self._like(parts, exact)
            elif all(parts) and (number := self._inside.get(place)):
                plain.setdefault(len(parts) - 1, []).append(number)
        for level, numbers in plain.items():
            # Asked once per place that there is, however many are wanted.
            wanted = np.zeros(len(self._inside), np.bool_)
            wanted[numbers] = True
            here = wanted.take(self._places[level, : self._done])
            found |= self._end(here, level + 1, exact)
        return found.take(codes)

    def _like(self, parts: Sequence[str], exact: bool) -> BoolArray:
        """Which paths begin with such parts."""
        if len(parts) > self._levels.shape[0]:
            return np.zeros(self._done, np.bool_)
        mask = np.ones(self._done, np.bool_)
        for level, part in enumerate(parts):
            here = self._levels[level, : self._done]
            # What nobody has stands nowhere, the empty part included.
            number = self._parts.get(part) or -1
            mask &= here != 0 if part == '*' else here == number
        return self._end(mask, len(parts), exact)

    def _end(self, mask: BoolArray, level: int, exact: bool) -> BoolArray:
        """``mask``, where nothing may follow at a level narrowed to paths that end there."""
        if exact and level < self._levels.shape[0]:
            mask &= self._levels[level, : self._done] == 0
        return mask


_PLACES: 'WeakKeyDictionary[Codes, Places]' = WeakKeyDictionary()


def places_of(locations: Codes) -> Places:
    """The paths of a table taken apart; remembered, as paths are only ever added."""
    places = _PLACES.get(locations)
    if places is None:
        places = _PLACES[locations] = Places()
    places.read(locations.names)
    return places
