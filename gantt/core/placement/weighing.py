# SPDX-License-Identifier: Apache-2.0
"""The weighers that are asked on one table, and what follows from who they are."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gantt.core.weighers.base import Weigher, check_multiplier

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable


class Weighing:
    """Weighers in order.

    :ivar normalizations: per weigher, how its raw values become shares
    :ivar locally: no pick changes a multiplier
    :ivar whole: those whose raw values of all hosts a pick may change
    """

    def __init__(self, weighers: Sequence[Weigher], normalization: str) -> None:
        self.weighers = list(weighers)
        self.names = [w.name for w in self.weighers]
        self.normalizations = [w.normalized_by(normalization) for w in self.weighers]
        self.locally = all(type(w).multipliers is Weigher.multipliers for w in self.weighers)
        self.whole = [k for k, w in enumerate(self.weighers) if not w.local and not w.is_steady]


class Weighings:
    """Which weighers are asked where: without a multiplier a weigher has no say.

    One whose option is 0 is asked where an aggregate sets its multiplier.

    :ivar usual: where no aggregate sets any of these
    """

    def __init__(self, weighers: Sequence[Weigher], normalization: str) -> None:
        for weigher in weighers:
            check_multiplier(weigher)
        self._all, self._normalization = list(weighers), normalization
        self._silent = [
            w.multiplier_option
            for w in weighers
            if not w.multiplier and type(w).multipliers is Weigher.multipliers
        ]
        self._known: dict[tuple[str, ...], Weighing] = {}
        self.usual = self._of(())

    def on(self, table: 'HostTable') -> Weighing:
        """The weighers that are asked on this table."""
        metadata = table.aggregate_metadata
        woken = tuple(option for option in self._silent if option in metadata)
        return self._of(woken) if woken else self.usual

    def _of(self, woken: tuple[str, ...]) -> Weighing:
        found = self._known.get(woken)
        if found is None:
            silent = set(self._silent) - set(woken)
            asked = [w for w in self._all if w.multiplier_option not in silent or w.multiplier]
            found = self._known[woken] = Weighing(asked, self._normalization)
        return found
