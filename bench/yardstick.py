# SPDX-License-Identifier: Apache-2.0
"""The bare NumPy loop: the cost of a decision with everything left out.

Four comparisons, one trait test and one flag make a mask; three weighers are
each brought to [0, 1] over the survivors and added; the largest wins and its
amounts are taken.  No verdicts, no counts, no alternates, no explanation, no
names: a lower bound for one thread with these arrays.
"""

import numpy as np


class BareLoop:
    """The loop over given arrays.

    :param free: int64 [4, hosts], one contiguous line per resource
    :param traits: uint64 [hosts]
    :param enabled: bool [hosts]
    :param needs: per shape the amounts (int64 [4]) and the trait bit (uint64)
    """

    def __init__(
        self,
        free: np.ndarray,
        traits: np.ndarray,
        enabled: np.ndarray,
        needs: list[tuple[np.ndarray, np.uint64]],
    ) -> None:
        self.free = np.ascontiguousarray(free)
        self.traits, self.enabled, self.needs = traits, enabled, needs
        self._fits = np.empty(free.shape[1], bool)
        self._one = np.empty(free.shape[1], bool)

    def decide(self, number: int) -> int:
        """Pick a host for shape ``number`` and take from it, or give, in turn."""
        amounts, trait = self.needs[number % len(self.needs)]
        free, fits, fits_one = self.free, self._fits, self._one
        np.greater_equal(free[0], amounts[0], out=fits)
        for line in range(1, 4):
            if amounts[line]:
                np.greater_equal(free[line], amounts[line], out=fits_one)
                np.logical_and(fits, fits_one, out=fits)
        np.logical_and(fits, (self.traits & trait) != 0, out=fits)
        np.logical_and(fits, self.enabled, out=fits)
        rows = np.flatnonzero(fits)
        weight = np.zeros(len(rows))
        for line in range(3):
            raw = free[line].take(rows).astype(float)
            low, high = raw.min(), raw.max()
            if high > low:
                raw -= low
                raw *= 1.0 / (high - low)
                weight += raw
        row = int(rows[int(weight.argmax())])
        # Every second decision gives back, so that the load stays level.
        free[:, row] -= amounts if number & 1 else -amounts
        return row
