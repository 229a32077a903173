# SPDX-License-Identifier: Apache-2.0
"""The survivors of a request with their scores, best first.

After a pick only the picked row's score is made anew where the weighers are
``local`` and the shares of the other rows stay (:mod:`gantt.core.scales`); the
totals are the same, bit for bit.
"""

import bisect
from typing import TYPE_CHECKING

import numpy as np

from gantt.core.columns import FloatArray, IntArray
from gantt.core.decision import Score
from gantt.core.request import RequestSpec
from gantt.core.scales import Scale
from gantt.core.weighers.base import Weigher

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

    def lines(self, indices: list[int]) -> tuple[list[float], list[float], list[float]]:
        """Raw values, shares and weights of some of the survivors."""
        raw, scaled = self.raw.item, self.scaled
        given = [float(raw(i)) for i in indices]
        if scaled is None:
            nothing = [0.0] * len(indices)
            return given, nothing, nothing
        if self.is_plain or self.is_turned:
            weights = [scaled.item(i) for i in indices]
            if self.is_plain:
                return given, weights, weights
            return given, [0.0 - weight for weight in weights], weights
        shares = [self.scale.one(value, i) for value, i in zip(given, indices, strict=True)]
        pairs = zip(shares, indices, strict=True)
        return given, shares, [share * self.multiplier_of(i) for share, i in pairs]

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

    def __init__(self, rows: IntArray) -> None:
        self.rows = rows
        self.total: FloatArray = np.zeros(len(rows))
        self.parts: list[Part | None] = []
        self._lively: list[Part] | None = None  # those that a pick may move
        #: (-total, index) of the best, in order; empty: not known.
        self._kept: list[tuple[float, int]] = []
        self._last = (0.0, 0)
        self._followed = False

    def add(self, part: Part) -> None:
        """Add what one weigher says."""
        self.parts.append(part)
        if part.scaled is not None:
            self.total += part.scaled

    def leave_out(self) -> None:
        """The next weigher has no preference."""
        self.parts.append(None)

    def follow(self, table: 'HostTable', spec: RequestSpec, row: int) -> bool:
        """Take over what a pick changed on one row; who has a preference is ``local``, or steady.

        :returns: whether other totals changed as well
        """
        i = int(np.searchsorted(self.rows, row))
        moved = False
        if self._lively is None:
            self._lively = [p for p in self.parts if p is not None and not p.weigher.is_steady]
        for part in self._lively:
            moved = part.follow(i, part.weigher.value(table, spec, row)) or moved
        scaled = [part.scaled for part in self.parts if part and part.scaled is not None]
        if moved:
            self.total[:] = 0.0
            for values in scaled:
                self.total += values
            self._kept.clear()
        else:
            before = self.total.item(i)
            self.total[i] = sum((values.item(i) for values in scaled), 0.0)
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

    def scores(self, table: 'HostTable', finalists: list[int]) -> list[Score]:
        """Lines of the score table for some of the survivors."""
        nothing = [0.0] * len(finalists)
        silent = (nothing, nothing, nothing)
        said = [silent if part is None else part.lines(finalists) for part in self.parts]
        rows = self.rows.take(finalists).tolist()
        totals = self.total.take(finalists).tolist()
        names, hosts = table.names, table.hosts
        return [
            Score(
                names[row],
                hosts[row].id,
                totals[at],
                [raws[at] for raws, _, _ in said],
                [shares[at] for _, shares, _ in said],
                [weights[at] for _, _, weights in said],
            )
            for at, row in enumerate(rows)
        ]
