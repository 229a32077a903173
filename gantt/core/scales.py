# SPDX-License-Identifier: Apache-2.0
"""Raw values of one weigher as shares of 1: whole, and one row at a time.

Four ways, chosen for each weigher:

``nova``
    From the smallest raw value of this request's survivors to the largest, or between
    the declared ends: as Nova does.  A difference of 1 % then counts as much as any.
``fraction``
    Of the host's own capacity where the weigher has one (free memory of all memory),
    else of the largest raw value among the survivors: small differences stay small.
``rank``
    By place alone: the smallest gets 0, the largest 1, equal ones the same.
``absolute``
    In [0, 1] whoever else survived: comparable between requests, and between zones.

What ``one`` says of a row is what ``whole`` said of it, bit for bit: it is how the
score of a picked host is made anew without all others.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gantt.core.columns import FloatArray, IntArray
from gantt.core.request import RequestSpec

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable
    from gantt.core.weighers.base import Weigher

NORMALIZATIONS = ('nova', 'fraction', 'rank', 'absolute')

Number = TypeVar('Number', float, FloatArray)


class Scale:
    """How the raw values of one weigher become shares; made for one ranking."""

    def __init__(self, weigher: 'Weigher') -> None:
        self.weigher = weigher

    def whole(self, raw: IntArray | FloatArray) -> FloatArray | None:
        """A share for each raw value; None where all have 0.

        :raises ValueError: a value is not a finite number
        """
        raise NotImplementedError

    def one(self, value: float, i: int) -> float:
        """The share of the ``i``-th raw value, if it were ``value``."""
        raise NotImplementedError

    def keeps(self, raw: IntArray | FloatArray, was: float, now: float) -> bool:
        """Whether all other shares stay, ``raw`` having ``now`` in the place of ``was``."""
        raise NotImplementedError


class NovaScale(Scale):
    """From the low end to the high end."""

    low = high = 0.0

    def whole(self, raw: IntArray | FloatArray) -> FloatArray | None:
        values, low, high = self.weigher.scale(raw)
        self.low, self.high = low, high
        if high <= low:
            return None
        if low:
            np.subtract(values, low, out=values)
        np.divide(values, high - low, out=values)
        return values

    def one(self, value: float, i: int) -> float:
        if self.high <= self.low:
            return 0.0
        return (self.weigher.bounded(value) - self.low) / (self.high - self.low)

    def keeps(self, raw: IntArray | FloatArray, was: float, now: float) -> bool:
        # Mostly the ends of the scale are on other rows, as well or only.
        low, high = self.low, self.high
        if low < was < high and low < now < high:
            return True
        return self.weigher.ends(raw) == (low, high)


class OfCapacity(Scale):
    """Of what the host itself has; no other host matters.

    :param caps: capacity by row of the ranking; a host that has none gets 0
    :param least: no share is below it
    """

    def __init__(self, weigher: 'Weigher', caps: FloatArray, least: float) -> None:
        super().__init__(weigher)
        self._caps, self._least = caps, least

    def whole(self, raw: IntArray | FloatArray) -> FloatArray | None:
        values = self.weigher.scale(raw)[0]
        shares = np.zeros(len(values))
        np.divide(values, self._caps, out=shares, where=self._caps > 0)
        np.maximum(shares, self._least, out=shares)
        return np.minimum(shares, 1.0, out=shares)

    def one(self, value: float, i: int) -> float:
        cap = self._caps.item(i)
        share = self.weigher.bounded(value) / cap if cap > 0 else 0.0
        return min(max(share, self._least), 1.0)

    def keeps(self, raw: IntArray | FloatArray, was: float, now: float) -> bool:
        return True


class OfLargest(Scale):
    """Of the largest magnitude among the survivors: from -1 to 1."""

    most = 0.0

    def whole(self, raw: IntArray | FloatArray) -> FloatArray | None:
        values = self.weigher.scale(raw)[0]
        self.most = float(np.max(np.abs(values)))
        return values / self.most if self.most else None

    def one(self, value: float, i: int) -> float:
        return self.weigher.bounded(value) / self.most if self.most else 0.0

    def keeps(self, raw: IntArray | FloatArray, was: float, now: float) -> bool:
        bounded = self.weigher.bounded
        if abs(bounded(was)) < self.most and abs(bounded(now)) < self.most:
            return True
        return float(np.max(np.abs(self.weigher.scale(raw)[0]))) == self.most


class ByRank(Scale):
    """By place among the distinct values, from 0 to 1."""

    def whole(self, raw: IntArray | FloatArray) -> FloatArray | None:
        values = self.weigher.scale(raw)[0]
        self._levels, places = np.unique(values, return_inverse=True)
        steps = len(self._levels) - 1
        return places / steps if steps else None

    def one(self, value: float, i: int) -> float:
        steps = len(self._levels) - 1
        place = int(np.searchsorted(self._levels, self.weigher.bounded(value)))
        return place / steps if steps else 0.0

    def keeps(self, raw: IntArray | FloatArray, was: float, now: float) -> bool:
        return False  # a level may have come, or gone


class Absolute(Scale):
    """By what is known of the weigher beforehand, whoever survived.

    Linear between two ends; with one, or none, rising or falling towards what is never
    reached, half of it ``half`` away from the end (else from 0).
    """

    def __init__(self, weigher: 'Weigher', limits: tuple[float | None, float | None]) -> None:
        super().__init__(weigher)
        self._low, self._high = limits

    def whole(self, raw: IntArray | FloatArray) -> FloatArray | None:
        shares = self._share(self.weigher.scale(raw)[0], np.abs)
        np.maximum(shares, 0.0, out=shares)
        return np.minimum(shares, 1.0, out=shares)

    def one(self, value: float, i: int) -> float:
        return min(max(self._share(self.weigher.bounded(value), abs), 0.0), 1.0)

    def keeps(self, raw: IntArray | FloatArray, was: float, now: float) -> bool:
        return True

    def _share(self, value: Number, magnitude: Callable[[Number], Number]) -> Number:
        low, high, half = self._low, self._high, self.weigher.half
        if low is not None and high is not None:
            return (value - low) / (high - low) if high > low else value * 0.0
        if low is not None:
            above = value - low
            return above / (magnitude(above) + half)
        if high is not None:
            below = high - value
            return half / (magnitude(below) + half)
        return (value / (magnitude(value) + half) + 1.0) / 2.0


def make(
    kind: str, weigher: 'Weigher', hosts: 'HostTable', spec: RequestSpec, rows: IntArray
) -> Scale:
    """The scale of one kind for one weigher and the survivors at ``rows``."""
    if kind == 'nova':
        return NovaScale(weigher)
    if kind == 'rank':
        return ByRank(weigher)
    caps = weigher.capacities(hosts, spec, rows)
    if caps is not None:
        return OfCapacity(weigher, caps, -1.0 if kind == 'fraction' else 0.0)
    if kind == 'fraction':
        return OfLargest(weigher)
    return Absolute(weigher, weigher.limits(hosts, spec))
