# SPDX-License-Identifier: Apache-2.0
"""Items that wait as others keep the row of their host locked, in order of arrival."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from gantt.scheduler.ports import Clock

Item = TypeVar('Item')

#: Seconds between two tries.
AGAIN_SECONDS = 0.1
#: Items that waited so many seconds, or exceed this number, are given up.
MOST_SECONDS, MOST_ITEMS = 10.0, 1000


class SetAside(Generic[Item]):
    """Waiting items of one working thread.

    :param host_of: returns the host that an item is about; its items stay in order
    """

    def __init__(self, clock: Clock, host_of: Callable[[Item], str]) -> None:
        self._clock = clock
        self._host_of = host_of
        self._items: list[Item] = []
        #: Times since which each host waits: those that wait now, and those of this round's try.
        self._since: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._due = 0.0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    @property
    def wait_seconds(self) -> float:
        """Seconds until the next try; infinite where nothing waits."""
        if not self._items:
            return float('inf')
        return max(0.0, self._due - self._clock.monotonic())

    def take(self) -> list[Item]:
        """Return all waiting items, once due.  Called once each round, before anything is put."""
        self._before = {}
        if self.wait_seconds > 0:
            return []
        # A host not put back was free: the next time it is locked it waits anew.
        self._before, self._since = self._since, {}
        items, self._items = self._items, []
        return items

    def behind(self, batch: Iterable[Item]) -> list[Item]:
        """Return a newer batch without items of hosts that wait: those wait behind them."""
        if not self._items:
            return list(batch)
        waiting = {self._host_of(item) for item in self._items}
        free: list[Item] = []
        for item in batch:
            (self._items if self._host_of(item) in waiting else free).append(item)
        return free

    def put(self, items: Iterable[Item], *, ending: bool = False) -> list[Item]:
        """Let items wait, taken before all that wait now; return those that are given up."""
        now = self._clock.monotonic()
        self._items = [*items, *self._items]
        hosts = {self._host_of(item) for item in self._items}
        since_before = self._before | self._since
        self._since = {host: since_before.get(host, now) for host in hosts}
        self._due = now + AGAIN_SECONDS
        late = {host for host, since in self._since.items() if ending or now - since > MOST_SECONDS}
        expired = [item for item in self._items if self._host_of(item) in late]
        if expired:
            self._items = [item for item in self._items if self._host_of(item) not in late]
        self._items, excess = self._items[:MOST_ITEMS], self._items[MOST_ITEMS:]
        return expired + excess
