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

from gantt.core.columns import BoolArray, Codes, words_of
from gantt.core.filters.base import has_any

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

    One line per level, one number per path: what stands there, 0 beyond its end.
    """

    def __init__(self) -> None:
        self._parts = Codes([''])
        self._levels = np.zeros((4, 64), np.int32)
        self._done = 0

    def read(self, names: Sequence[str]) -> None:
        """Take the paths apart that came since the last time; paths are only ever added."""
        for code in range(self._done, len(names)):
            parts = names[code].split('.') if names[code] else []
            self._reserve(len(parts), code)
            for level, part in enumerate(parts):
                self._levels[level, code] = self._parts.add(part)
        self._done = max(self._done, len(names))

    def _reserve(self, levels: int, code: int) -> None:
        height, width = self._levels.shape
        if levels > height or code >= width:
            new = np.zeros(
                (max(height, levels), width if code < width else 2 * width + code), np.int32
            )
            new[:height, :width] = self._levels
            self._levels = new

    def below(self, place: str, codes: np.ndarray, exact: bool = False) -> BoolArray:
        """Whose path begins with ``place``, part by part; ``*`` stands for any one part.

        :param exact: nothing may follow
        """
        parts = place.split('.')
        height = self._levels.shape[0]
        if len(parts) > height:
            return np.zeros(len(codes), np.bool_)
        mask = np.ones(len(codes), np.bool_)
        for level, part in enumerate(parts):
            here = self._levels[level].take(codes)
            number = self._parts.get(part)
            if part == '*':
                mask &= here != 0
            elif number:
                mask &= here == number
            else:
                return np.zeros(len(codes), np.bool_)
        if exact and len(parts) < height:
            mask &= self._levels[len(parts)].take(codes) == 0
        return mask


_PLACES: 'WeakKeyDictionary[Codes, Places]' = WeakKeyDictionary()


def places_of(locations: Codes) -> Places:
    """The paths of a table taken apart; remembered, as paths are only ever added."""
    places = _PLACES.get(locations)
    if places is None:
        places = _PLACES[locations] = Places()
    places.read(locations.names)
    return places
