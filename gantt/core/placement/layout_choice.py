# SPDX-License-Identifier: Apache-2.0
"""Layouts for the members of one run: the best ranked hosts are fitted until one fits.

A host that has no layout is no survivor: it is struck off the ranking, and the
filter that stands for what was asked for removes it after all.  A pick of the
run only ever takes room, so that who has none now has none for its later
members.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gantt.core.messages.layout import Layout
from gantt.core.messages.topology_request import Wish
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.ranking import Ranking
from gantt.core.topology.devices import Known
from gantt.core.topology.read import Inside
from gantt.core.topology.search import layout_of

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: So many picks that do not fit, and the rest is gone through in order.
_FEW = 4


class Fitting:
    """See the module docstring.

    :ivar unfit: rows that have no layout
    """

    def __init__(
        self, table: 'HostTable', wish: Wish, inside: Inside, filter_run: FilterRun
    ) -> None:
        self._table, self._wish, self._inside = table, wish, inside
        self._filter_run = filter_run
        self.unfit: set[int] = set()
        self._found: dict[int, Layout] = {}
        self._known: Known = {}

    def on(self, filter_run: FilterRun) -> 'Fitting':
        """The same for hosts that are looked at anew."""
        return Fitting(self._table, self._wish, self._inside, filter_run)

    def choose(
        self, ranking: Ranking, pick_one: Callable[[], tuple[list[int], int]]
    ) -> tuple[list[int], int, Layout] | None:
        """Finalists, the pick and its layout; None: nobody has one.

        :param pick_one: finalists and the pick by the ranking as it is
        """
        self._found.clear()
        if self.unfit:
            known = np.isin(ranking.rows, list(self.unfit))
            ranking.strike(np.flatnonzero(known).tolist())
        failed: list[int] = []
        while True:
            finalists, pick = pick_one()
            if ranking.total[pick] == -np.inf:
                pick = finalists[0]
            if ranking.total[pick] == -np.inf:
                self._bar(failed)
                return None
            layout = self.lay(int(ranking.rows[pick]))
            if layout is not None:
                self._bar(failed)
                # Of the struck any may be named, and named twice.
                left = [i for i in dict.fromkeys(finalists) if ranking.total[i] > -np.inf]
                return left, pick, layout
            failed.append(int(ranking.rows[pick]))
            ranking.strike([pick])
            if len(failed) >= _FEW:
                failed += self._sift(ranking)

    def lay(self, row: int) -> Layout | None:
        """The layout on a host as it is now."""
        if row in self.unfit:
            return None
        layout = self._found.get(row)
        if layout is None:
            layout = layout_of(self._wish, self._table.room(row), self._inside.pack, self._known)
            if layout is None:
                self.unfit.add(row)
            else:
                self._found[row] = layout
        return layout

    def taken(self, row: int) -> None:
        """A pick was laid over a host: its layouts are others now."""
        self._found.pop(row, None)

    def _sift(self, ranking: Ranking) -> list[int]:
        """Strike the best that have no layout, up to the first that has one."""
        failed, struck = [], []
        for i in np.argsort(-ranking.total, kind='stable').tolist():
            row = int(ranking.rows[i])
            if ranking.total[i] == -np.inf or self.lay(row) is not None:
                break
            failed.append(row)
            struck.append(i)
        ranking.strike(struck)
        return failed

    def _bar(self, failed: list[int]) -> None:
        if failed:
            self._filter_run.bar(self._inside.stands_for(self._wish), failed)
