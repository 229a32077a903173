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

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import Weigher

Number = TypeVar('Number', float, FloatArray)


class Scale:
    """How the raw values of one weigher become shares; made for one ranking."""

    def __init__(self, weigher: Weigher) -> None:
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
    #: How many raw values are at an end; None: not counted since the ends were found.
    _at_low: int | None = None
    _at_high: int | None = None

    def whole(self, raw: IntArray | FloatArray) -> FloatArray | None:
        values, low, high = self.weigher.scale(raw)
        self.low, self.high = low, high
        self._at_low = self._at_high = None
        if high <= low:
            return None
        if low:
            np.subtract(values, low, out=values)
        if high - low != 1.0:
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
        weigher = self.weigher
        return (
            math.isfinite(now)
            and (weigher.minval is not None or (now >= low and self._low_stays(raw, was, now)))
            and (weigher.maxval is not None or (now <= high and self._high_stays(raw, was, now)))
        )

    # Counted once, and then followed: picks go from one host at an end to the next.
    def _low_stays(self, raw: IntArray | FloatArray, was: float, now: float) -> bool:
        if self.low in (was, now):
            self._at_low = _count(self._at_low, raw, self.low, was, now)
        return self._at_low != 0

    def _high_stays(self, raw: IntArray | FloatArray, was: float, now: float) -> bool:
        if self.high in (was, now):
            self._at_high = _count(self._at_high, raw, self.high, was, now)
        return self._at_high != 0


def _count(
    known: int | None, raw: IntArray | FloatArray, end: float, was: float, now: float
) -> int:
    """How many raw values are at an end, one having gone from ``was`` to ``now``."""
    if known is None:
        return int(np.count_nonzero(raw == end))
    return known + (now == end) - (was == end)


class OfCapacity(Scale):
    """Of what the host itself has; no other host matters.

    :param caps: capacity by row of the ranking; a host that has none gets 0
    :param least: no share is below it
    """

    def __init__(self, weigher: Weigher, caps: FloatArray, least: float) -> None:
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
        values, low, high = self.weigher.scale(raw)
        self.most = self._largest(values, low, high)
        return np.divide(values, self.most, out=values) if self.most else None

    def one(self, value: float, i: int) -> float:
        return self.weigher.bounded(value) / self.most if self.most else 0.0

    def keeps(self, raw: IntArray | FloatArray, was: float, now: float) -> bool:
        bounded = self.weigher.bounded
        if abs(bounded(was)) < self.most and abs(bounded(now)) < self.most:
            return True
        return self._largest(*self.weigher.scale(raw)) == self.most

    def _largest(self, values: FloatArray, low: float, high: float) -> float:
        # The ends are those of the values, unless they are declared.
        if self.weigher.minval is None and self.weigher.maxval is None:
            return max(abs(low), abs(high))
        return float(np.max(np.abs(values)))


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

    def __init__(self, weigher: Weigher, limits: tuple[float | None, float | None]) -> None:
        super().__init__(weigher)
        self._low, self._high = limits

    def whole(self, raw: IntArray | FloatArray) -> FloatArray | None:
        values, least, most = self.weigher.scale(raw)
        low, high = self._low, self._high
        if low == 0.0 and high == 1.0 and least >= 0.0 and most <= 1.0:
            return values  # they are shares already
        shares = self._share(values, np.abs)
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


def make(kind: str, weigher: Weigher, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> Scale:
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
