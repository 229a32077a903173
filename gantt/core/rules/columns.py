# SPDX-License-Identifier: Apache-2.0
"""A fact of all hosts as arrays, and which hosts a condition on it holds for.

A condition is asked once per distinct value and mapped to the hosts by the codes.
What a host does not have is unknown: no condition on it holds, and no opposite of one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from gantt.core.filters.base import has_any
from gantt.core.nova.facts import NovaFact as NovaFact
from gantt.core.table.columns import BoolArray, Codes, words_of

#: Whether a value meets a condition; None: that cannot be decided for this one.
Predicate = Callable[[Any], bool | None]


class Numbers(msgspec.Struct, frozen=True):
    """A number per host.

    :ivar known: which hosts have it; None: all
    """

    numbers: np.ndarray
    known: BoolArray | None = None

    def found(self) -> BoolArray:
        """Which hosts have the fact."""
        return np.ones(self.numbers.shape, np.bool_) if self.known is None else self.known.copy()


class _Texts(msgspec.Struct, frozen=True):
    """Base of what is no number."""

    numbers: ClassVar[None] = None
    known: ClassVar[None] = None

    def where(self, predicate: Predicate, negated: bool = False) -> BoolArray:
        """Which hosts the predicate, or its opposite, holds for."""
        raise NotImplementedError

    def found(self) -> BoolArray:
        """Which hosts have the fact."""
        return self.where(lambda text: True)


class Coded(_Texts, frozen=True):
    """A text per host, '' where it has none.

    :ivar codes: index into ``names`` by host
    """

    codes: np.ndarray
    names: Sequence[str]

    def where(self, predicate: Predicate, negated: bool = False) -> BoolArray:
        wanted = not negated
        return _by_code(self.codes, self.names, lambda s: s != '' and predicate(s) is wanted)


class Members(_Texts, frozen=True):
    """A set of texts per host, as bits; some member meets a condition, or none does.

    :ivar bits: words by host
    :ivar texts: (bit, text); a bit may go by several texts
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

    :ivar sources: the first in which a host has something counts
    :ivar count: of hosts
    """

    sources: Sequence[NovaFact]
    count: int

    @property
    def numbers(self) -> np.ndarray | None:
        """The values where they are one number per host; what is not a number is not known."""
        return self.sources[0].numbers if len(self.sources) == 1 else None

    @property
    def known(self) -> BoolArray:
        """Which hosts have the fact."""
        return self.found()

    def found(self) -> BoolArray:
        """Which hosts have the fact."""
        mask = np.zeros(self.count, np.bool_)
        for source in self.sources:
            mask |= source.is_there()
        return mask

    def where(self, predicate: Predicate, negated: bool = False) -> BoolArray:
        """Which hosts the predicate, or its opposite, holds for; None is neither."""
        wanted = not negated

        def decide(value: Any) -> bool:
            return predicate(value) is wanted

        if len(self.sources) == 1:
            return self.sources[0].where(decide)
        mask, left = np.zeros(self.count, np.bool_), np.ones(self.count, np.bool_)
        for source in self.sources:
            mask |= source.where(decide) & left
            left &= ~source.is_there()
        return mask

    def plain(self) -> list[Any]:
        """The values by host, None where there is none."""
        found: list[Any] = [None] * self.count
        for source in reversed(self.sources):
            for row in np.flatnonzero(source.is_there()).tolist():
                found[row] = source.at(row)
        return found


Column = Numbers | Coded | Members | Sets | Values


def _by_code(codes: np.ndarray, values: Sequence[Any], decide: Callable[[Any], bool]) -> BoolArray:
    """What is decided of each value, by host; where few of the values occur, of those only."""
    if len(values) <= len(codes):
        return np.fromiter(map(decide, values), np.bool_, len(values)).take(codes)
    mask = np.zeros(len(values), np.bool_)
    for code in set(codes.tolist()):
        mask[code] = decide(values[code])
    return mask.take(codes)


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

    def below_any(
        self, places: Sequence[str], codes: np.ndarray, exact: bool = False, negated: bool = False
    ) -> BoolArray:
        """Whose path begins with one of ``places``; as :meth:`below`.

        :param negated: whose path does not, and who has one
        """
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
        if negated:
            # Of each path once: a host may have one of its own, or share it with all others.
            np.greater(self._levels[0, : self._done] != 0, found, out=found)
        return found.take(codes)

    def domains(self, depth: int, codes: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Whose paths are the same down to their part at ``depth``, from 0.

        :returns: an index into the places by row, -1 where a path ends before; and the places
        """
        if depth >= self._places.shape[0]:
            return np.full(len(codes), -1, np.int32), []
        here = self._places[depth, : self._done].take(codes)
        numbers, found = np.unique(here, return_inverse=True)
        names = self._inside.names
        at = np.cumsum(numbers != 0) - 1
        at[numbers == 0] = -1
        return at.astype(np.int32)[found], [names[n] for n in numbers.tolist() if n]

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
