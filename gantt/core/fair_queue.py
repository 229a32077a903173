# SPDX-License-Identifier: Apache-2.0
"""A queue that serves its owners by weight, and the items of one owner in order.

Start-time fair queueing: P. Goyal, H. M. Vin and H. Cheng, "Start-Time Fair Queueing: A
Scheduling Algorithm for Integrated Services Packet Switching Networks", IEEE/ACM Transactions on
Networking 5(5), 1997.  Each item starts at the virtual time at which the one before it of the
same owner has had its share, and never before the present; the least start is next, and is the
present then.  Of two owners that both wait, what they are served, each by its weight, never
differs by more than one item of each.  An owner that had nothing to ask saves nothing up.

Two operations touch more than the owner at hand: forgetting owners who have nothing here, each
once, and looking for the next among owners, by a heap.
"""

import collections
import heapq
import itertools
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar('T')

#: Owners without an item who are remembered, as what they were served last is not over yet.
IDLE_MAX = 256


class _Flow(Generic[T]):
    """The items of one owner.

    :ivar start: virtual time from which its first item is due
    :ivar returned: items that were taken before: they are first
    """

    __slots__ = ('fresh', 'owner', 'returned', 'start')

    def __init__(self, owner: str, start: float) -> None:
        self.owner = owner
        self.start = start
        self.returned: collections.deque[T] = collections.deque()
        self.fresh: collections.deque[T] = collections.deque()


class FairQueue(Generic[T]):
    """See the module docstring.  Not for several threads at once.

    :ivar weights: owner -> its weight, above 0, from now on; 1 where it has none
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self.weights: Mapping[str, float] = weights or {}
        self._flows: dict[str, _Flow[T]] = {}
        # One entry for each flow that is valid, that with its start; others are left over.
        self._heap: list[tuple[float, int, _Flow[T]]] = []
        self._serial = itertools.count()
        self._top: _Flow[T] | None = None  # the next, where it was looked for
        self._now = 0.0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def owners(self) -> int:
        """How many are remembered."""
        return len(self._flows)

    def put(self, owner: str, item: T) -> None:
        """A new item, behind those of its owner."""
        flow = self._flows.get(owner)
        if flow is None or not (flow.fresh or flow.returned):
            flow = self._flow(owner)
        flow.fresh.append(item)
        self._count += 1

    def again(self, owner: str, item: T, refund: float = 0.0) -> None:
        """An item that was taken and is to be taken again, before those that never were.

        :param refund: of its cost, where it was not served at all
        """
        flow = self._flow(owner)
        flow.returned.append(item)
        self._count += 1
        if refund:
            self._move(flow, flow.start - refund / self.weights.get(owner, 1.0))

    def first(self) -> T:
        """The item that is next; it stays.  :raises IndexError: there is none"""
        flow = self._top = self._next()
        return (flow.returned or flow.fresh)[0]

    def pop(self, cost: float = 1.0) -> T:
        """Take the item that is next.

        :param cost: what its owner is charged, above 0
        :raises IndexError: there is none
        """
        flow = self._top or self._next()
        item = (flow.returned or flow.fresh).popleft()
        self._top = None
        self._count -= 1
        if flow.start > self._now:
            self._now = flow.start
        flow.start += cost / self.weights.get(flow.owner, 1.0)
        heapq.heapreplace(self._heap, (flow.start, next(self._serial), flow))
        if not self._count:
            self._rest()
        return item

    def charge(self, owner: str, cost: float) -> None:
        """Charge the owner of an item what it took beyond its cost when it was taken."""
        if self._count and cost > 0:
            flow = self._flow(owner)
            self._move(flow, flow.start + cost / self.weights.get(owner, 1.0))
            self._top = None

    def newest(self, owner: str) -> Iterator[T]:
        """The items of an owner, from the newest on; nothing is to change meanwhile."""
        flow = self._flows.get(owner)
        if flow is not None:
            yield from reversed(flow.fresh)
            yield from reversed(flow.returned)

    def remove(self, owner: str, item: T) -> None:
        """Take an item out, unserved; quickly where it is a new one.

        :raises ValueError: it is not here
        """
        self._top = None
        flow = self._flows.get(owner)
        if flow is None:
            raise ValueError(f'{owner} has nothing here')
        if flow.fresh and flow.fresh[-1] is item:
            flow.fresh.pop()
        else:
            (flow.fresh if item in flow.fresh else flow.returned).remove(item)
        self._count -= 1
        if not self._count:
            self._rest()

    def take_fresh(self) -> list[T]:
        """Take all items that were never taken, in the order of each owner."""
        found: list[T] = []
        self._top = None
        for flow in self._flows.values():
            found += flow.fresh
            flow.fresh.clear()
        self._count -= len(found)
        if not self._count:
            self._rest()
        return found

    def has_returned(self, owner: str, item: T) -> bool:
        """Whether an item is here that was taken before."""
        flow = self._flows.get(owner)
        return flow is not None and item in flow.returned

    # -- owners ------------------------------------------------------------------------
    def _flow(self, owner: str) -> _Flow[T]:
        self._top = None
        flow = self._flows.get(owner)
        if flow is None:
            if len(self._flows) >= self._count + IDLE_MAX:
                self._forget_idle()
            flow = self._flows[owner] = _Flow(owner, self._now)
            heapq.heappush(self._heap, (flow.start, next(self._serial), flow))
        elif flow.start < self._now and not (flow.fresh or flow.returned):
            self._move(flow, self._now)
        return flow

    def _move(self, flow: _Flow[T], start: float) -> None:
        flow.start = start
        heapq.heappush(self._heap, (start, next(self._serial), flow))
        if len(self._heap) > 2 * len(self._flows) + IDLE_MAX:
            self._rebuild()

    def _next(self) -> _Flow[T]:
        """The flow that is next, whose entry is the first; those before it are over."""
        heap = self._heap
        if not self._count:
            raise IndexError('nothing waits')
        while True:
            start, _, flow = heap[0]
            if start == flow.start and self._flows.get(flow.owner) is flow:
                if flow.returned or flow.fresh:
                    return flow
                # What it was served last is over; who comes back starts no earlier.
                del self._flows[flow.owner]
                self._now = max(self._now, start)
            heapq.heappop(heap)

    def _rest(self) -> None:
        """Nothing waits: nobody is behind or ahead any more."""
        if len(self._flows) == 1 and len(self._heap) == 1:
            self._now = self._heap[0][0]  # the usual case, and the cheap one
            return
        self._flows.clear()
        self._heap.clear()
        self._now = 0.0

    def _forget_idle(self) -> None:
        self._flows = {o: flow for o, flow in self._flows.items() if flow.fresh or flow.returned}
        self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(flow.start, next(self._serial), flow) for flow in self._flows.values()]
        heapq.heapify(self._heap)
