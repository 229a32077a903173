# SPDX-License-Identifier: Apache-2.0
"""Groups that wait to be planned: projects take turns, and none fills the queue.

Turns are those of ``core.fair_queue``, by the weights of projects and by the seconds for which
plans kept the planner, whatever they were asked to take.  A project may have as many groups
waiting as it leaves free, the rule of ``http.gates``; who is not known is bounded with all others
only.
"""

import collections
import queue
from collections.abc import Callable, Mapping
from typing import TypeVar

from gantt.core.fair_queue import FairQueue

Item = TypeVar('Item')
#: Charged for a turn at least, and before it is known how long it took.
LEAST_SECONDS = 0.001


class WaitingGroups(queue.Queue[Item]):
    """See the module docstring.

    :param limit: how many may wait
    :param project_of: whose an item is; '': nobody knows
    :param weights: of projects as they are now; 1 where one has none
    """

    def __init__(
        self,
        limit: int,
        project_of: Callable[[Item], str],
        weights: Callable[[], Mapping[str, float]],
    ) -> None:
        self._project_of, self._weights = project_of, weights
        self._waiting: FairQueue[Item] = FairQueue()
        self._own: collections.Counter[str] = collections.Counter()
        super().__init__(limit)

    # -- of queue.Queue, which calls these under its lock ----------------------------------
    def _init(self, maxsize: int) -> None:
        pass

    def _qsize(self) -> int:
        return len(self._waiting)

    def _put(self, item: Item) -> None:
        """:raises queue.Full: its project has as many here as it leaves free"""
        project = self._project_of(item)
        if project and self._own[project] >= self.maxsize - self._qsize():
            raise queue.Full
        self._own[project] += 1
        self._waiting.put(project, item)

    def _get(self) -> Item:
        self._waiting.weights = self._weights()
        item = self._waiting.first()
        self._waiting.pop(LEAST_SECONDS)
        project = self._project_of(item)
        self._own[project] -= 1
        if not self._own[project]:
            del self._own[project]
        return item

    def took(self, item: Item, seconds: float) -> None:
        """The turn of an item is over, and was so long."""
        with self.mutex:
            self._waiting.weights = self._weights()
            self._waiting.charge(self._project_of(item), seconds)
