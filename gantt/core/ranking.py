# SPDX-License-Identifier: Apache-2.0
"""The survivors of a request with their scores, best first.

After a pick only the picked row's score is made anew where the weighers are
``local`` and the ends of their scales are on other rows; the totals are the
same, bit for bit.
"""

import bisect
from typing import TYPE_CHECKING, Any

import numpy as np

from gantt.core.columns import FloatArray, IntArray
from gantt.core.decision import Score
from gantt.core.request import RequestSpec
from gantt.core.weighers.base import Weigher, normalize

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable

#: Up to this many best are found by looking for the largest again and again.
_FEW = 8
#: So many best are kept in order from the second member on.
_KEPT = 64


def top(values: FloatArray, count: int) -> IntArray:
    """Indices of the ``count`` largest, largest first, the earlier first where equal."""
    if count >= len(values):
        return np.argsort(-values, kind='stable')
    if count <= _FEW:
        left, found = values.copy(), np.empty(count, np.int64)
        for i in range(count):
            found[i] = best = left.argmax()
            left[best] = -np.inf
        return found
    bound = np.partition(values, len(values) - count)[len(values) - count]
    near = np.flatnonzero(values >= bound)
    return near[np.argsort(-values[near], kind='stable')[:count]]


class Ranking:
    """The survivors of one member with their scores.

    :ivar rows: rows of the survivors, ascending
    :ivar total: their weights, same order
    :ivar parts: per weigher (raw values, low, high, multiplier) or None
    :ivar scaled: per weigher its values as they were added; None: nothing was
    """

    def __init__(self, rows: IntArray) -> None:
        self.rows = rows
        self.total: FloatArray = np.zeros(len(rows))
        self.parts: list[tuple[Weigher, np.ndarray, float, float, Any] | None] = []
        self.scaled: list[FloatArray | None] = []
        #: (-total, index) of the best, in order; empty: not known.
        self._kept: list[tuple[float, int]] = []
        self._last = (0.0, 0)
        self._followed = False

    def add(self, weigher: Weigher, raw: np.ndarray, multiplier: float | FloatArray) -> None:
        """Add what one weigher says."""
        part, scaled = _scaled(weigher, raw, multiplier)
        self.parts.append(part)
        self.scaled.append(scaled)
        if scaled is not None:
            self.total += scaled

    def leave_out(self) -> None:
        """The next weigher has no preference."""
        self.parts.append(None)
        self.scaled.append(None)

    def follow(self, table: 'HostTable', spec: RequestSpec, row: int) -> bool:
        """Take over what a pick changed on one row; who has a preference is ``local``.

        :returns: whether the scale of any weigher changed, and so other totals as well
        """
        i = int(np.searchsorted(self.rows, row))
        moved = False
        for k, part in enumerate(self.parts):
            if part is None:
                continue
            weigher, raw, low, high, multiplier = part
            was, now = raw.item(i), weigher.value(table, spec, row)
            if was == now:
                continue
            raw[i] = now
            scaled = self.scaled[k]
            # Mostly the ends of the scale are on other rows, as well or only.
            same = low < was < high and low < now < high
            if scaled is not None and (same or weigher.ends(raw) == (low, high)):
                share = (weigher.bounded(float(now)) - low) / (high - low)
                scaled[i] = share if multiplier == 1.0 else share * multiplier
            else:
                self.parts[k], self.scaled[k] = _scaled(weigher, raw, multiplier)
                moved = True
        if moved:
            self.total[:] = 0.0
            for scaled in self.scaled:
                if scaled is not None:
                    self.total += scaled
            self._kept.clear()
        else:
            before = self.total.item(i)
            self.total[i] = sum((s.item(i) for s in self.scaled if s is not None), 0.0)
            self._keep(i, before)
        return moved

    def best(self, count: int) -> list[int]:
        """Indices of the ``count`` best, best first, the earlier first where equal."""
        kept = self._kept
        if len(kept) < min(count, len(self.total)):
            if self._followed:
                most = top(self.total, min(max(_KEPT, count), len(self.total))).tolist()
                kept[:] = [(-self.total.item(i), i) for i in most]
                self._last = kept[-1]
            else:
                return top(self.total, min(count, len(self.total))).tolist()
        return [i for _, i in kept[:count]]

    def _keep(self, i: int, before: float) -> None:
        """Bring those kept in order up to date with one changed total.

        They are all whose place is not behind ``_last``'s, as it was when they were found.
        """
        self._followed = True
        if not self._kept:
            return
        at = bisect.bisect_left(self._kept, (-before, i))
        if at < len(self._kept) and self._kept[at][1] == i:
            del self._kept[at]
        place = (-self.total.item(i), i)
        if place <= self._last:
            bisect.insort(self._kept, place)

    def scores(self, table: 'HostTable', finalists: list[int]) -> list[Score]:
        """Lines of the score table for some of the survivors."""
        return [self._score(table, i) for i in finalists]

    def _score(self, table: 'HostTable', i: int) -> Score:
        raws, norms, weights = [], [], []
        for part in self.parts:
            given = share = weight = 0.0
            if part is not None:
                weigher, raw, low, high, multiplier = part
                given = float(raw.item(i))
                if high > low:
                    share = (weigher.bounded(given) - low) / (high - low)
                weight = share * (
                    multiplier if isinstance(multiplier, float) else multiplier.item(i)
                )
            raws.append(given)
            norms.append(share)
            weights.append(weight)
        row = self.rows.item(i)
        return Score(
            table.names[row], table.hosts[row].id, self.total.item(i), raws, norms, weights
        )


def _scaled(
    weigher: Weigher, raw: np.ndarray, multiplier: float | FloatArray
) -> tuple[tuple[Weigher, np.ndarray, float, float, Any], FloatArray | None]:
    values, low, high = weigher.scale(raw)
    scaled = normalize(values, low, high)
    if scaled is not None and not (isinstance(multiplier, float) and multiplier == 1.0):
        scaled *= multiplier
    return (weigher, raw, low, high, multiplier), scaled
