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
from gantt.core.messages.topology_request import TopologyRequest
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.ranking import Ranking
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.device_sets import check_rows
from gantt.core.topology.devices import MatchCache
from gantt.core.topology.read import LayoutSettings
from gantt.core.topology.search import Search

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: Failed picks before the remaining hosts are judged in order.
_FAILED_PICKS_MAX = 4
#: Most steps of searches in one evaluation; hosts not laid out by then are given up.
LAYOUT_STEPS_MAX = 200_000
_STEPS_EXCEEDED_LINE = 'gave up hosts that take more steps to lay out than are looked at'


class LayoutChoice:
    """Search for layouts of the members of one run: the best host that has one is picked."""

    def __init__(
        self,
        table: 'HostTable',
        wish: TopologyRequest,
        inside: LayoutSettings,
        filter_run: FilterRun,
    ) -> None:
        self._table = table
        self._wish = wish
        self._layout_settings = inside
        self._filter_run = filter_run
        self._counts = filter_run.pipeline.layout_hosts
        self._is_unfit: BoolArray = np.zeros(len(table), np.bool_)  # has no layout
        self._layouts_found: dict[int, Layout] = {}
        self._device_matches: MatchCache = {}
        self._is_judged: BoolArray = np.zeros(len(table), np.bool_)
        self._may_have_layout: BoolArray = np.ones(len(table), np.bool_)
        self._steps_left = LAYOUT_STEPS_MAX

    def for_filter_run(self, filter_run: FilterRun) -> 'LayoutChoice':
        """Return this search for hosts that are evaluated anew."""
        fresh = LayoutChoice(self._table, self._wish, self._layout_settings, filter_run)
        fresh._is_unfit = self._is_unfit
        return fresh

    def choose(
        self, ranking: Ranking, pick_one: Callable[[], tuple[list[int], int]]
    ) -> tuple[list[int], int, Layout] | None:
        """Return finalists, the pick and its layout; None: no survivor has one.

        :param pick_one: returns finalists and the pick by the current ranking
        """
        self._layouts_found.clear()
        failed: list[IntArray] = []
        picks = 0
        if self._is_unfit.any():
            indices = np.flatnonzero(self._is_unfit.take(ranking.rows))
            ranking.strike(indices)
            # After a new evaluation, filters have let these pass again.
            unfit = ranking.rows[indices]
            failed.append(unfit[self._filter_run.alive.take(unfit)])
        while True:
            finalists, pick = pick_one()
            if ranking.total[pick] == -np.inf:
                pick = finalists[0]
            if ranking.total[pick] == -np.inf:
                self._exclude_failed(failed)
                return None
            layout = self.layout_on(int(ranking.rows[pick]))
            if layout is not None:
                self._exclude_failed(failed)
                # Finalists may include struck hosts, and twice.
                finalists_left = [i for i in dict.fromkeys(finalists) if ranking.total[i] > -np.inf]
                self._counts['outranked'] += int(np.count_nonzero(ranking.total > -np.inf)) - 1
                return finalists_left, pick, layout
            failed.append(ranking.rows[pick : pick + 1])
            ranking.strike(np.array([pick]))
            picks += 1
            if picks >= _FAILED_PICKS_MAX:
                failed.append(self._strike_unfit(ranking))

    def layout_on(self, row: int) -> Layout | None:
        """Return the layout on a host as it is now."""
        layout = self._layouts_found.get(row)
        if layout is None:
            search = self._search(row)
            if search is not None:
                layout = self._layouts_found[row] = search.layout()
        return layout

    def fits(self, row: int) -> bool:
        """Return whether there is a layout on a host as it is now."""
        return row in self._layouts_found or self._search(row, 'alternate') is not None

    def _search(self, row: int, reason: str = 'searched') -> Search | None:
        """Return a search that found a layout; None: there is none, or no steps are left.

        :param reason: key under which the search is counted
        """
        if self._is_unfit[row]:
            return None
        if self._may_have_layout[row]:
            self._counts[reason] += self._steps_left > 0
            search = Search(
                self._wish,
                self._table.free_topology(row),
                self._layout_settings.pack,
                self._device_matches,
            )
            if self._steps_left > 0 and search.find(self._steps_left):
                self._steps_left -= search.steps
                return search
            if self._steps_left <= 0 or search.is_cut_short:
                self._note(_STEPS_EXCEEDED_LINE)
            self._steps_left -= search.steps
        self._is_unfit[row] = True
        return None

    def _note(self, line: str) -> None:
        if line not in self._filter_run.skipped:
            self._filter_run.skipped.append(line)

    def _strike_unfit(self, ranking: Ranking) -> IntArray:
        """Strike the best that have no layout, up to the first that has one; return their rows."""
        rows = ranking.rows
        # Picks only ever take room: a host ruled out now is ruled out for the whole run.
        unjudged = rows[~self._is_judged.take(rows)]
        if len(unjudged):
            self._may_have_layout[unjudged] = check_rows(
                self._table, self._table.kinds, self._wish, unjudged
            ).possible
            self._is_judged[unjudged] = True
        left = np.flatnonzero(ranking.total > -np.inf)
        may_have_layout = self._may_have_layout.take(rows)
        if may_have_layout[left].any():
            left = left[np.argsort(-ranking.total[left], kind='stable')]
            for at in np.flatnonzero(may_have_layout[left]).tolist():
                if self.layout_on(rows.item(left[at])) is not None:
                    left = left[:at]
                    break
        struck = rows[left]
        self._counts['ruled_out'] += len(left) - int(np.count_nonzero(may_have_layout[left]))
        self._is_unfit[struck] = True
        ranking.strike(left)
        return struck

    def _exclude_failed(self, failed: list[IntArray]) -> None:
        rows = np.concatenate(failed) if failed else np.zeros(0, np.int64)
        if len(rows):
            self._filter_run.exclude(self._layout_settings.stands_for(self._wish), rows)
