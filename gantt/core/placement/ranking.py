# SPDX-License-Identifier: Apache-2.0
"""Ranking of the survivors of a request by score: raw values, shares, weights.

Raw values of a weigher become shares of 1 in one of four ways, chosen for each weigher:

``nova``
    From the smallest raw value of this request's survivors to the largest, or between
    the declared ends: as Nova does.  A difference of 1 % then counts as much as any.
``fraction``
    Of the host's own capacity where the weigher has one (free memory of all memory),
    else of the largest raw value among the survivors: small differences stay small.
``rank``
    By place alone: the smallest gets 0, the largest 1, equal ones the same.
``absolute``
    In [0, 1] whichever other hosts survived: comparable between requests, and between zones.

Prices that a request names, as the weights of soft policies, count as they are.

After a pick only the picked row's score is recomputed where the weighers are ``local`` and the
shares of the other rows stay; the totals are the same, bit for bit, since ``share_of`` of a scale
returns for a row the same share as its ``shares``.
"""

import bisect
import math
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.placement.pipeline import Weighing
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.core.weighers.base import PRICE_NORMALIZATION, Weigher

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: Raw values beyond are refused, so that the length of a scale is finite.
RAW_MAX = 1e300
#: Up to this many best are selected by repeated search for the largest.
_SEARCH_COUNT_MAX = 8
#: Number of best survivors kept in order from the second member on.
_TOP_COUNT = 64
# The methods of an array go through a layer of Python; these do not.
_minimum, _maximum = np.minimum.reduce, np.maximum.reduce

Number = TypeVar('Number', float, FloatArray)
#: Raw values of a weigher; truth values are 0 and 1.
RawArray = IntArray | FloatArray | BoolArray


class Scale:
    """Conversion of the raw values of one weigher into shares, for one ranking."""

    def __init__(self, weigher: Weigher) -> None:
        self.weigher = weigher

    def scaled(self, raw: RawArray) -> tuple[FloatArray, float, float]:
        """Return raw values as floats within the declared bounds, and the ends of Nova's scale.

        :raises ValueError: a value is not a finite number, or beyond ``RAW_MAX``
        """
        values = raw.astype(np.float64)
        low, high = float(_minimum(values)), float(_maximum(values))
        if not (low >= -RAW_MAX and high <= RAW_MAX):  # nor is it, where one is not a number
            raise ValueError(f'a raw value is not a finite number of at most {RAW_MAX:g}')
        minval, maxval = self.weigher.minval, self.weigher.maxval
        if maxval is not None and high > maxval:
            np.minimum(values, maxval, out=values)
        if minval is not None:
            if low < minval:
                np.maximum(values, minval, out=values)
            low, high = minval, max(high, minval)
        if maxval is not None:
            low, high = min(low, maxval), maxval
        return values, low, high

    def bounded(self, value: float) -> float:
        """Return one raw value within the declared bounds."""
        minval, maxval = self.weigher.minval, self.weigher.maxval
        if minval is not None and value < minval:
            return minval
        if maxval is not None and value > maxval:
            return maxval
        return value

    def shares(self, raw: RawArray) -> FloatArray | None:
        """Return a share for each raw value; None where all have 0.

        :raises ValueError: a value is not a finite number
        """
        raise NotImplementedError

    def share_of(self, value: float, i: int) -> float:
        """Return the share of the ``i``-th raw value, if it were ``value``."""
        raise NotImplementedError

    def keeps_other_shares(self, raw: RawArray, was: float, now: float) -> bool:
        """Return whether all other shares stay, ``raw`` having ``now`` in the place of ``was``."""
        return True


class NovaScale(Scale):
    """Scale from the low end to the high end, as in Nova."""

    low = high = 0.0
    #: Number of raw values at an end; None: not counted since the ends were computed.
    _at_low: int | None = None
    _at_high: int | None = None

    def shares(self, raw: RawArray) -> FloatArray | None:
        values, low, high = self.scaled(raw)
        self.low = low
        self.high = high
        self._at_low = self._at_high = None
        if high <= low:
            return None
        if low:
            np.subtract(values, low, out=values)
        if high - low != 1.0:
            np.divide(values, high - low, out=values)
        return values

    def share_of(self, value: float, i: int) -> float:
        low, high = self.low, self.high
        if high <= low:
            return 0.0
        if not low < value < high:
            value = self.bounded(value)
        return (value - low) / (high - low)

    def keeps_other_shares(self, raw: RawArray, was: float, now: float) -> bool:
        # Mostly the ends of the scale are on other rows, as well or only.
        low, high, weigher = self.low, self.high, self.weigher
        if low < was < high and low < now < high:
            return True
        if not math.isfinite(now):
            return False
        # Counted once, and then followed: picks go from one host at an end to the next.
        if weigher.minval is None:
            if low in (was, now):
                self._at_low = _count_at_end(self._at_low, raw, low, was, now)
            if now < low or self._at_low == 0:
                return False
        if weigher.maxval is None:
            if high in (was, now):
                self._at_high = _count_at_end(self._at_high, raw, high, was, now)
            if now > high or self._at_high == 0:
                return False
        return True


def _count_at_end(count: int | None, raw: RawArray, end: float, was: float, now: float) -> int:
    """Return the number of raw values at an end, one having changed from ``was`` to ``now``."""
    if count is None:
        return int(np.count_nonzero(raw == end))
    return count + (now == end) - (was == end)


class CapacityScale(Scale):
    """Scale by the capacity of the host itself; no other host matters.

    :param caps: capacity by row of the ranking; a host that has none gets 0
    :param least: no share is below it
    """

    def __init__(self, weigher: Weigher, caps: FloatArray, least: float) -> None:
        super().__init__(weigher)
        self._caps = caps
        self._least = least

    def shares(self, raw: RawArray) -> FloatArray | None:
        values = self.scaled(raw)[0]
        shares = np.zeros(len(values))
        np.divide(values, self._caps, out=shares, where=self._caps > 0)
        np.maximum(shares, self._least, out=shares)
        return np.minimum(shares, 1.0, out=shares)

    def share_of(self, value: float, i: int) -> float:
        cap = self._caps.item(i)
        share = self.bounded(value) / cap if cap > 0 else 0.0
        return min(max(share, self._least), 1.0)


class LargestScale(Scale):
    """Scale by the largest magnitude among the survivors: from -1 to 1."""

    most = 0.0

    def shares(self, raw: RawArray) -> FloatArray | None:
        values, low, high = self.scaled(raw)
        self.most = self._largest(values, low, high)
        return np.divide(values, self.most, out=values) if self.most else None

    def share_of(self, value: float, i: int) -> float:
        return self.bounded(value) / self.most if self.most else 0.0

    def keeps_other_shares(self, raw: RawArray, was: float, now: float) -> bool:
        bounded = self.bounded
        if abs(bounded(was)) < self.most and abs(bounded(now)) < self.most:
            return True
        return self._largest(*self.scaled(raw)) == self.most

    def _largest(self, values: FloatArray, low: float, high: float) -> float:
        # The ends are those of the values, unless they are declared.
        if self.weigher.minval is None and self.weigher.maxval is None:
            return max(abs(low), abs(high))
        return float(np.max(np.abs(values)))


class RankScale(Scale):
    """Scale by place among the distinct values, from 0 to 1."""

    def shares(self, raw: RawArray) -> FloatArray | None:
        values = self.scaled(raw)[0]
        self._levels, places = np.unique(values, return_inverse=True)
        steps = len(self._levels) - 1
        return places / steps if steps else None

    def share_of(self, value: float, i: int) -> float:
        steps = len(self._levels) - 1
        place = int(np.searchsorted(self._levels, self.bounded(value)))
        return place / steps if steps else 0.0

    def keeps_other_shares(self, raw: RawArray, was: float, now: float) -> bool:
        return False  # a level may have appeared or disappeared


class AbsoluteScale(Scale):
    """Scale by the known limits of the weigher, whichever hosts survived.

    Linear between two ends; with one, or none, rising or falling towards what is never reached,
    half of it ``half`` away from the end (else from 0).
    """

    def __init__(self, weigher: Weigher, limits: tuple[float | None, float | None]) -> None:
        super().__init__(weigher)
        self._low, self._high = limits

    def shares(self, raw: RawArray) -> FloatArray | None:
        low, high = self._low, self._high
        ends = self.bounded(0.0), self.bounded(1.0)
        if raw.dtype == np.bool_ and (low, high) == ends == (0.0, 1.0):
            return raw.astype(np.float64)  # they are shares already, with no need to look
        values, smallest, largest = self.scaled(raw)
        if low == 0.0 and high == 1.0 and smallest >= 0.0 and largest <= 1.0:
            return values  # they are shares already
        shares = self._share(values, np.abs)
        np.maximum(shares, 0.0, out=shares)
        return np.minimum(shares, 1.0, out=shares)

    def share_of(self, value: float, i: int) -> float:
        return min(max(self._share(self.bounded(value), abs), 0.0), 1.0)

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


class UnchangedScale(Scale):
    """Scale that keeps raw values as they are; see ``Weigher.priced``."""

    def shares(self, raw: RawArray) -> FloatArray | None:
        values, low, high = self.scaled(raw)
        return values if low or high else None

    def share_of(self, value: float, i: int) -> float:
        return self.bounded(value)


def make_scale(
    kind: str, weigher: Weigher, hosts: 'HostTable', spec: RequestSpec, rows: IntArray
) -> Scale:
    """Return the scale of one kind for one weigher and the survivors at ``rows``."""
    if kind == 'nova':
        return NovaScale(weigher)
    if kind == PRICE_NORMALIZATION:
        return UnchangedScale(weigher)
    if kind == 'rank':
        return RankScale(weigher)
    caps = weigher.capacities(hosts, spec, rows)
    if caps is not None:
        return CapacityScale(weigher, caps, -1.0 if kind == 'fraction' else 0.0)
    if kind == 'fraction':
        return LargestScale(weigher)
    return AbsoluteScale(weigher, weigher.limits(hosts, spec))


def indices_of_largest(values: FloatArray, count: int) -> IntArray:
    """Return indices of the ``count`` largest, largest first, the earlier first where equal."""
    if count >= len(values):
        return np.argsort(-values, kind='stable')
    if count <= _SEARCH_COUNT_MAX:
        remaining, indices = values.copy(), np.empty(count, np.int64)
        for i in range(count):
            indices[i] = best = remaining.argmax()
            remaining[best] = -np.inf
        return indices
    bound = np.partition(values, len(values) - count)[len(values) - count]
    near = np.flatnonzero(values >= bound)
    return near[np.argsort(-values[near], kind='stable')[:count]]


class ScorePart:
    """The values of one weigher for the survivors, and how they count.

    :ivar is_plain: it counts once: a share is its weight
    :ivar is_negated: it counts once, the other way: a share is its weight with another sign
    :ivar scaled: its shares times the multiplier, as they are added; None: nothing is
    """

    def __init__(
        self,
        weigher: Weigher,
        raw: np.ndarray,
        shape: tuple[int, ...],
        scale: Scale,
        multiplier: float | FloatArray,
    ) -> None:
        if not isinstance(raw, np.ndarray) or raw.shape != shape:
            raise ValueError(f'raw values: expected one value per host, {shape[0]} of them')
        self.weigher = weigher
        self.raw = raw
        self.scale = scale
        self.multiplier = multiplier
        self.is_plain = isinstance(multiplier, float) and multiplier == 1.0
        self.is_negated = isinstance(multiplier, float) and multiplier == -1.0
        self.scaled: FloatArray | None = None
        self.measure()

    def measure(self) -> None:
        """Weigh all survivors anew."""
        scaled = self.scale.shares(self.raw)
        if scaled is not None and not self.is_plain:
            np.multiply(scaled, self.multiplier, out=scaled)
        self.scaled = scaled

    def multiplier_of(self, i: int) -> float:
        """Return the multiplier of one survivor."""
        multiplier = self.multiplier
        return multiplier.item(i) if isinstance(multiplier, np.ndarray) else multiplier

    def line(self, i: int) -> tuple[float, float, float]:
        """Return raw value, share and weight of one survivor."""
        raw, scaled = float(self.raw.item(i)), self.scaled
        if scaled is None:
            return raw, 0.0, 0.0
        if self.is_negated:
            weight = scaled.item(i)
            return raw, 0.0 - weight, weight
        share = self.scale.share_of(raw, i)
        return raw, share, share * self.multiplier_of(i)

    def follow(self, i: int, now: float) -> bool:
        """Update the raw value of one survivor.

        :returns: whether other survivors had to be weighed anew as well
        """
        raw, scaled, scale = self.raw, self.scaled, self.scale
        was = raw.item(i)
        if was == now:
            return False
        raw[i] = now
        if scaled is not None and scale.keeps_other_shares(raw, was, now):
            share = scale.share_of(float(now), i)
            scaled[i] = share if self.is_plain else share * self.multiplier_of(i)
            return False
        self.measure()
        return True


class Ranking:
    """Survivors of one member with their scores.

    :ivar rows: rows of the survivors, ascending
    :ivar total: their weights, same order
    :ivar parts: per weigher its values; None: it has no preference
    """

    def __init__(self, rows: IntArray, parts: list[ScorePart | None]) -> None:
        self.rows = rows
        self.parts = parts
        self.total: FloatArray = np.zeros(len(rows))
        for part in parts:
            if part is not None and part.scaled is not None:
                self.total += part.scaled
        self._parts_by_row: list[tuple[int, ScorePart]] | None = None
        self._local_parts: list[ScorePart] | None = None  # parts that a pick may change
        self._summands: list[FloatArray] = []  # summands of the total, likewise
        self._steps: list[tuple[ScorePart, float]] = []  # of parts that a pick changes
        #: (-total, index) of the best, in order; empty: not computed.
        self._top_totals: list[tuple[float, int]] = []
        self._last_change = (0.0, 0)
        self._followed = False

    def follow(self, table: 'HostTable', spec: RequestSpec, row: int) -> None:
        """Update one row after a pick, by weighers that are ``local`` or steady."""
        i = int(np.searchsorted(self.rows, row))
        moved = False
        if self._local_parts is None:
            self._local_parts = [
                part for _, part in self._parts_used() if not part.weigher.is_steady
            ]
            self._collect_summands()
        for part in self._local_parts:
            moved = part.follow(i, part.weigher.value(table, spec, row)) or moved
        self._update_total(i, moved)

    def store_steps(
        self, table: 'HostTable', spec: RequestSpec, distrusted: Container[str]
    ) -> bool:
        """Store, by weigher, what one more member on a host adds to the value of that host.

        Return whether every weigher with a preference could tell.

        :param distrusted: names of weighers that are evaluated whole
        :raises Exception: any error of a weigher
        """
        self._steps = []
        for _, part in self._parts_used():
            weigher = part.weigher
            if weigher.name in distrusted:
                return False
            if weigher.is_steady:
                continue
            step = weigher.step(table, spec) if weigher.local else None
            if step is None:
                return False
            if step:
                self._steps.append((part, step))
        self._collect_summands()
        return True

    def step(self, i: int) -> bool:
        """Update one survivor as :meth:`follow` does, by the steps of the weighers alone.

        :returns: whether other totals changed as well
        """
        moved = False
        for part, step in self._steps:
            moved = part.follow(i, part.raw.item(i) + step) or moved
        self._update_total(i, moved)
        return moved

    def disagreeing(
        self,
        table: 'HostTable',
        spec: RequestSpec,
        row: int | None,
        failed: Callable[[str, Exception], None],
    ) -> list[str]:
        """Return names of weighers whose values here disagree with those of a whole evaluation.

        :param row: row of a pick whose steps are not part of the values yet
        :param failed: called with the name of a weigher that raised, and its error
        """
        steps = {} if row is None else {part.weigher.name: step for part, step in self._steps}
        names = []
        for _, part in self._parts_used():
            values, weigher = part.raw, part.weigher
            if row is not None and weigher.name in steps:
                values = values.copy()
                values[np.searchsorted(self.rows, row)] += steps[weigher.name]
            try:
                raw = weigher.raw(table, spec, self.rows)
                if raw is None or not np.array_equal(values, raw):
                    names.append(weigher.name)
            except Exception as e:
                # A plugin may raise anything: each error counts as its failure.
                failed(weigher.name, e)
        return names

    def _update_total(self, i: int, moved: bool) -> None:
        """Recompute the total of one survivor from the parts; all totals where ``moved``."""
        if moved:
            self._collect_summands()
            self.total[:] = 0.0
            for values in self._summands:
                self.total += values
            self._top_totals.clear()
        else:
            before, now = self.total.item(i), 0.0
            for values in self._summands:
                now += values.item(i)
            self.total[i] = now
            self._update_top(i, before)

    def _collect_summands(self) -> None:
        """Collect the summands: weighed anew, a part has another array or none."""
        self._summands = [part.scaled for _, part in self._parts_used() if part.scaled is not None]

    def best(self, count: int) -> list[int]:
        """Return indices of the ``count`` best, best first, the earlier first where equal."""
        stored = self._top_totals
        if len(stored) < min(count, len(self.total)):
            if self._followed:
                indices = indices_of_largest(
                    self.total, min(max(_TOP_COUNT, count), len(self.total))
                ).tolist()
                stored[:] = [(-self.total.item(i), i) for i in indices]
                self._last_change = stored[-1]
            else:
                return indices_of_largest(self.total, min(count, len(self.total))).tolist()
        return [i for _, i in stored[:count]]

    def prefer(self, rows: Sequence[int]) -> None:
        """Rank the survivors of ``rows`` first, in this order; others come last."""
        at = {row: -1.0 - n for n, row in enumerate(rows)}
        last = -1.0 - len(at)
        self.total[:] = [at.get(row, last) for row in self.rows.tolist()]
        self._top_totals.clear()

    def strike(self, indices: IntArray) -> None:
        """Rank these survivors below all others."""
        if len(indices):
            self.total[indices] = -np.inf
            self._top_totals.clear()

    def _update_top(self, i: int, before: float) -> None:
        """Update the best kept in order after one changed total.

        They are all survivors whose place is not behind ``_last_change``, as it was when they were
        computed.
        """
        self._followed = True
        if not self._top_totals:
            return
        at = bisect.bisect_left(self._top_totals, (-before, i))
        if at < len(self._top_totals) and self._top_totals[at][1] == i:
            del self._top_totals[at]
        place = (-self.total.item(i), i)
        if place <= self._last_change:
            bisect.insort(self._top_totals, place)

    def line(self, i: int) -> list[float]:
        """Return the total of one survivor, then raw value, share and weight per weigher in use."""
        line = [self.total.item(i)]
        for _, part in self._parts_used():
            if part.is_plain and part.scaled is not None:  # most are
                share = part.scaled.item(i)
                line += float(part.raw.item(i)), share, share
            else:
                line += part.line(i)
        return line

    @property
    def used(self) -> list[int]:
        """Positions of the weighers that have a preference."""
        return [k for k, _ in self._parts_used()]

    def _parts_used(self) -> list[tuple[int, ScorePart]]:
        """Return the parts with a preference, with their positions."""
        if self._parts_by_row is None:
            self._parts_by_row = [
                (k, part) for k, part in enumerate(self.parts) if part is not None
            ]
        return self._parts_by_row


def weigh(
    table: 'HostTable',
    spec: RequestSpec,
    weighing: Weighing,
    rows: IntArray,
    failed: Callable[[str, Exception], None],
) -> Ranking:
    """Weigh the survivors at ``rows``.

    :param failed: called with the name of a weigher that raised, and its error
    """
    raws: list[tuple[np.ndarray, float | FloatArray] | None] = []
    for weigher in weighing.weighers:
        values = None
        try:
            raw = weigher.raw(table, spec, rows)
            if raw is not None:
                sets_multipliers = weighing.of_aggregates
                multipliers = (
                    weigher.multipliers(table, rows) if sets_multipliers else weigher.multiplier
                )
                values = raw, multipliers
        except Exception as e:
            # A plugin may raise anything: each error counts as its failure.
            failed(weigher.name, e)
        raws.append(values)
    parts: list[ScorePart | None] = []
    for weigher, kind, values in zip(weighing.weighers, weighing.normalizations, raws, strict=True):
        part = None
        try:
            if values is not None:
                scale = make_scale(kind, weigher, table, spec, rows)
                part = ScorePart(weigher, values[0], rows.shape, scale, values[1])
        except Exception as e:
            failed(weigher.name, e)
        parts.append(part)
    return Ranking(rows, parts)
