# SPDX-License-Identifier: Apache-2.0
"""Layouts for the members of one run: the best ranked hosts are fitted until one fits.

A host that has no layout is no survivor: it is struck off the ranking, and the filter responsible
for the requested topology removes it after all.  A pick of the run only ever takes room, so that a
host without a layout now has none for later members.

After a few failures all hosts are judged at once by arrays, and only those that may have a layout
are laid out.  Hosts ranked after the one that fits are not evaluated: they cannot win, whatever
they have.  All three are counted in the pipeline's ``layout_hosts``.  The searches for one request
are bounded by steps, not by time, so that a replay has the same result.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gantt.core.messages.layout import Layout
from gantt.core.messages.topology_request import Wish
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.ranking import Ranking
from gantt.core.table.columns import BoolArray
from gantt.core.table.together import judge
from gantt.core.topology.devices import Known
from gantt.core.topology.read import Inside
from gantt.core.topology.search import Search

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: Failed picks before the remaining hosts are judged in order.
_FEW = 4
#: Most steps of searches in one evaluation; hosts not laid out by then are given up.
STEPS_MAX = 200_000
_GIVEN_UP = 'gave up hosts that take more steps to lay out than are looked at'


class Fitting:
    """A search for layouts of one run; see the module docstring.

    :ivar unfit: rows that have no layout
    """

    def __init__(
        self, table: 'HostTable', wish: Wish, inside: Inside, filter_run: FilterRun
    ) -> None:
        self._table = table
        self._wish = wish
        self._inside = inside
        self._filter_run = filter_run
        self._counts = filter_run.pipeline.layout_hosts
        self.unfit: set[int] = set()
        self._found: dict[int, Layout] = {}
        self._known: Known = {}
        self._judged: BoolArray = np.zeros(len(table), np.bool_)
        self._may: BoolArray = np.ones(len(table), np.bool_)
        self._steps = STEPS_MAX

    def on(self, filter_run: FilterRun) -> 'Fitting':
        """Return the same search for hosts that are evaluated anew."""
        return Fitting(self._table, self._wish, self._inside, filter_run)

    def choose(
        self, ranking: Ranking, pick_one: Callable[[], tuple[list[int], int]]
    ) -> tuple[list[int], int, Layout] | None:
        """Return finalists, the pick and its layout; None: no survivor has one.

        :param pick_one: returns finalists and the pick by the current ranking
        """
        self._found.clear()
        if self.unfit:
            is_unfit = np.isin(ranking.rows, list(self.unfit))
            ranking.strike(np.flatnonzero(is_unfit).tolist())
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
                # Finalists may include struck hosts, and twice.
                finalists_left = [i for i in dict.fromkeys(finalists) if ranking.total[i] > -np.inf]
                self._counts['outranked'] += int(np.count_nonzero(ranking.total > -np.inf)) - 1
                return finalists_left, pick, layout
            failed.append(int(ranking.rows[pick]))
            ranking.strike([pick])
            if len(failed) >= _FEW:
                failed += self._sift(ranking)

    def lay(self, row: int) -> Layout | None:
        """Return the layout on a host as it is now."""
        layout = self._found.get(row)
        if layout is None:
            search = self._search(row)
            if search is not None:
                layout = self._found[row] = search.layout()
        return layout

    def fits(self, row: int) -> bool:
        """Return whether there is a layout on a host as it is now."""
        return row in self._found or self._search(row, 'alternate') is not None

    def _search(self, row: int, reason: str = 'searched') -> Search | None:
        """Return a search that found a layout; None: there is none, or no steps are left.

        :param reason: key under which the search is counted
        """
        if row in self.unfit:
            return None
        if self._may[row]:
            self._counts[reason] += self._steps > 0
            search = Search(self._wish, self._table.room(row), self._inside.pack, self._known)
            if self._steps > 0 and search.find(self._steps):
                self._steps -= search.steps
                return search
            if self._steps <= 0 or search.is_cut_short:
                self._note(_GIVEN_UP)
            self._steps -= search.steps
        self.unfit.add(row)
        return None

    def _note(self, line: str) -> None:
        if line not in self._filter_run.skipped:
            self._filter_run.skipped.append(line)

    def _sift(self, ranking: Ranking) -> list[int]:
        """Strike the best that have no layout, up to the first that has one."""
        rows = ranking.rows
        # Picks only ever take room: a host ruled out now is ruled out for the whole run.
        unjudged = rows[~self._judged.take(rows)]
        if len(unjudged):
            self._may[unjudged] = judge(self._table, self._table.kinds, self._wish, unjudged).may
            self._judged[unjudged] = True
        order = np.argsort(-ranking.total, kind='stable')
        order = order[: np.count_nonzero(ranking.total > -np.inf)]
        struck = len(order)
        for at in np.flatnonzero(self._may.take(rows.take(order))).tolist():
            if self.lay(rows.item(order[at])) is not None:
                struck = at
                break
        struck_indices = order[:struck]
        failed: list[int] = rows.take(struck_indices).tolist()
        self._counts['ruled_out'] += struck - int(np.count_nonzero(self._may.take(failed)))
        self.unfit.update(failed)
        ranking.strike(struck_indices.tolist())
        return failed

    def _bar(self, failed: list[int]) -> None:
        if failed:
            self._filter_run.bar(self._inside.stands_for(self._wish), failed)
