# SPDX-License-Identifier: Apache-2.0
"""The survivors of a request with their scores, best first.

After a pick only the picked row's score is made anew where the weighers are
``local`` and the shares of the other rows stay (:mod:`gantt.core.weighers.normalization`); the
totals are the same, bit for bit.
"""

import bisect
from typing import TYPE_CHECKING

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.records.decision import Score
from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.weighers.base import Weigher
from gantt.core.weighers.normalization import Scale

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

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


class Part:
    """What one weigher says of the survivors, and how it counts.

    :ivar is_plain: it counts once: a share is its weight
    :ivar is_turned: it counts once, the other way: a share is its weight with another sign
    :ivar scaled: its shares times the multiplier, as they are added; None: nothing is
    """

    def __init__(
        self, weigher: Weigher, raw: np.ndarray, scale: Scale, multiplier: float | FloatArray
    ) -> None:
        self.weigher, self.raw = weigher, raw
        self.scale, self.multiplier = scale, multiplier
        self.is_plain = isinstance(multiplier, float) and multiplier == 1.0
        self.is_turned = isinstance(multiplier, float) and multiplier == -1.0
        self.scaled: FloatArray | None = None
        self.measure()

    def measure(self) -> None:
        """Weigh all survivors anew."""
        scaled = self.scale.whole(self.raw)
        if scaled is not None and not self.is_plain:
            np.multiply(scaled, self.multiplier, out=scaled)
        self.scaled = scaled

    def multiplier_of(self, i: int) -> float:
        """Of one survivor."""
        multiplier = self.multiplier
        return multiplier.item(i) if isinstance(multiplier, np.ndarray) else multiplier

    def line(self, i: int) -> tuple[float, float, float]:
        """Raw value, share and weight of one survivor."""
        raw, scaled = float(self.raw.item(i)), self.scaled
        if scaled is None:
            return raw, 0.0, 0.0
        if self.is_plain:
            share = scaled.item(i)
            return raw, share, share
        if self.is_turned:
            weight = scaled.item(i)
            return raw, 0.0 - weight, weight
        share = self.scale.one(raw, i)
        return raw, share, share * self.multiplier_of(i)

    def follow(self, i: int, now: float) -> bool:
        """Take over the raw value of one survivor.

        :returns: whether others had to be weighed anew as well
        """
        was = self.raw.item(i)
        if was == now:
            return False
        self.raw[i] = now
        if self.scaled is not None and self.scale.keeps(self.raw, was, now):
            self.scaled[i] = self.scale.one(float(now), i) * self.multiplier_of(i)
            return False
        self.measure()
        return True


class Ranking:
    """The survivors of one member with their scores.

    :ivar rows: rows of the survivors, ascending
    :ivar total: their weights, same order
    :ivar parts: per weigher what it says; None: it has no preference
    """

    def __init__(self, rows: IntArray, parts: list[Part | None]) -> None:
        self.rows = rows
        self.parts = parts
        self.total: FloatArray = np.zeros(len(rows))
        for part in parts:
            if part is not None and part.scaled is not None:
                self.total += part.scaled
        self._asked: list[tuple[int, Part]] | None = None
        self._lively: list[Part] | None = None  # those that a pick may move
        self._added: list[FloatArray] = []  # what the total is the sum of, likewise
        #: (-total, index) of the best, in order; empty: not known.
        self._kept: list[tuple[float, int]] = []
        self._last = (0.0, 0)
        self._followed = False

    def follow(self, table: 'HostTable', spec: RequestSpec, row: int) -> bool:
        """Take over what a pick changed on one row; who has a preference is ``local``, or steady.

        :returns: whether other totals changed as well
        """
        i = int(np.searchsorted(self.rows, row))
        moved = False
        if self._lively is None:
            self._lively = [part for _, part in self._said() if not part.weigher.is_steady]
            self._add_up()
        for part in self._lively:
            moved = part.follow(i, part.weigher.value(table, spec, row)) or moved
        if moved:
            self._add_up()
            self.total[:] = 0.0
            for values in self._added:
                self.total += values
            self._kept.clear()
        else:
            before, now = self.total.item(i), 0.0
            for values in self._added:
                now += values.item(i)
            self.total[i] = now
            self._keep(i, before)
        return moved

    def _add_up(self) -> None:
        """Find what is added: weighed anew, a part has another array or none."""
        self._added = [part.scaled for _, part in self._said() if part.scaled is not None]

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

    def strike(self, indices: list[int]) -> None:
        """Let these be worse than anybody."""
        if indices:
            self.total[indices] = -np.inf
            self._kept.clear()

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

    def score(self, table: 'HostTable', i: int) -> Score:
        """The line of the score table for one of the survivors."""
        row = self.rows.item(i)
        nothing = [0.0] * len(self.parts)
        raws, shares, weights = nothing, nothing.copy(), nothing.copy()
        for k, part in self._said():
            raws[k], shares[k], weights[k] = part.line(i)
        host = table.hosts[row]
        return Score(table.names[row], host.id, self.total.item(i), raws, shares, weights)

    def _said(self) -> list[tuple[int, Part]]:
        """Those with a preference, by their place."""
        if self._asked is None:
            self._asked = [(k, part) for k, part in enumerate(self.parts) if part is not None]
        return self._asked
