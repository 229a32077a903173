# SPDX-License-Identifier: Apache-2.0
"""A queue that serves its owners by weight, and the items of one owner in order.

Start-time fair queueing: P. Goyal, H. M. Vin and H. Cheng, "Start-Time Fair Queueing: A
Scheduling Algorithm for Integrated Services Packet Switching Networks", IEEE/ACM Transactions on
Networking 5(5), 1997.  Each item starts at the virtual time at which the previous item
of the same owner has had its share, and never before the present; the item with the least start
is next, and its start becomes the present.  The service of two waiting owners, each by its weight,
never differs by more than one item of each.  An idle owner accumulates no credit.

Two operations touch more than one owner: forgetting owners without items, each once, and the
choice of the next owner, by a heap.
"""

import collections
import heapq
import itertools
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar('T')

#: Upper bound of remembered owners without an item, whose last share is not over yet.
IDLE_MAX = 256


class _Flow(Generic[T]):
    """The items of one owner.

    :ivar start: virtual time from which its first item is due
    :ivar returned: items that were taken before and put back: they are served first
    """

    __slots__ = ('fresh', 'owner', 'returned', 'start')

    def __init__(self, owner: str, start: float) -> None:
        self.owner = owner
        self.start = start
        self.returned: collections.deque[T] = collections.deque()
        self.fresh: collections.deque[T] = collections.deque()


class FairQueue(Generic[T]):
    """A queue with start-time fair queueing over owners.  Not thread-safe.

    :ivar weights: owner -> its current weight, above 0; default 1
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self.weights: Mapping[str, float] = weights or {}
        self._flows: dict[str, _Flow[T]] = {}
        # Each flow has one valid entry, the one with its start; others are stale.
        self._heap: list[tuple[float, int, _Flow[T]]] = []
        self._serial = itertools.count()
        self._next_flow: _Flow[T] | None = None  # cached next flow
        self._virtual_time = 0.0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def owners(self) -> int:
        """Number of remembered owners."""
        return len(self._flows)

    def count_of(self, owner: str) -> int:
        """Return the number of items of an owner."""
        flow = self._flows.get(owner)
        return 0 if flow is None else len(flow.fresh) + len(flow.returned)

    def put(self, owner: str, item: T) -> None:
        """Append a new item to those of its owner."""
        flow = self._flows.get(owner)
        if flow is None or not (flow.fresh or flow.returned):
            flow = self._flow(owner)
        flow.fresh.append(item)
        self._count += 1

    def put_back(self, owner: str, item: T, refund: float = 0.0) -> None:
        """Put back an item that was taken, before its owner's items that never were.

        :param refund: part of its cost to return, if it was not served at all
        """
        flow = self._flow(owner)
        flow.returned.append(item)
        self._count += 1
        if refund:
            self._move_flow(flow, flow.start - refund / self.weights.get(owner, 1.0))

    def first(self) -> T:
        """Return the next item without taking it.

        :raises IndexError: there is none
        """
        flow = self._next_flow = self._find_next_flow()
        return (flow.returned or flow.fresh)[0]

    def pop(self, cost: float = 1.0) -> T:
        """Take the next item.

        :param cost: cost charged to its owner, above 0
        :raises IndexError: there is none
        """
        flow = self._next_flow or self._find_next_flow()
        item = (flow.returned or flow.fresh).popleft()
        self._next_flow = None
        self._count -= 1
        if flow.start > self._virtual_time:
            self._virtual_time = flow.start
        flow.start += cost / self.weights.get(flow.owner, 1.0)
        heapq.heapreplace(self._heap, (flow.start, next(self._serial), flow))
        if not self._count:
            self._reset_virtual_time()
        return item

    def charge(self, owner: str, cost: float) -> None:
        """Charge an owner additional cost of an item, beyond the cost at ``pop``."""
        if self._count and cost > 0:
            flow = self._flow(owner)
            self._move_flow(flow, flow.start + cost / self.weights.get(owner, 1.0))
            self._next_flow = None

    def newest(self, owner: str) -> Iterator[T]:
        """Yield the items of an owner, newest first; the queue must not change meanwhile."""
        flow = self._flows.get(owner)
        if flow is not None:
            yield from reversed(flow.fresh)
            yield from reversed(flow.returned)

    def remove(self, owner: str, item: T) -> None:
        """Remove an item, unserved; fast for the newest item.

        :raises ValueError: it is not in the queue
        """
        self._next_flow = None
        flow = self._flows.get(owner)
        if flow is None:
            raise ValueError(f'owner {owner} has no item in the queue')
        if flow.fresh and flow.fresh[-1] is item:
            flow.fresh.pop()
        else:
            (flow.fresh if item in flow.fresh else flow.returned).remove(item)
        self._count -= 1
        if not self._count:
            self._reset_virtual_time()

    def take_fresh(self) -> list[T]:
        """Take all items that were never taken, in the order of each owner."""
        items: list[T] = []
        self._next_flow = None
        for flow in self._flows.values():
            items += flow.fresh
            flow.fresh.clear()
        self._count -= len(items)
        if not self._count:
            self._reset_virtual_time()
        return items

    def has_returned(self, owner: str, item: T) -> bool:
        """Return whether an item is queued that was taken before."""
        flow = self._flows.get(owner)
        return flow is not None and item in flow.returned

    # -- owners ------------------------------------------------------------------------
    def _flow(self, owner: str) -> _Flow[T]:
        self._next_flow = None
        flow = self._flows.get(owner)
        if flow is None:
            if len(self._flows) >= self._count + IDLE_MAX:
                self._forget_idle()
            flow = self._flows[owner] = _Flow(owner, self._virtual_time)
            heapq.heappush(self._heap, (flow.start, next(self._serial), flow))
        elif flow.start < self._virtual_time and not (flow.fresh or flow.returned):
            self._move_flow(flow, self._virtual_time)
        return flow

    def _move_flow(self, flow: _Flow[T], start: float) -> None:
        flow.start = start
        heapq.heappush(self._heap, (start, next(self._serial), flow))
        if len(self._heap) > 2 * len(self._flows) + IDLE_MAX:
            self._rebuild_heap()

    def _find_next_flow(self) -> _Flow[T]:
        """Return the next flow, after dropping stale entries before it."""
        heap = self._heap
        if not self._count:
            raise IndexError('the queue is empty')
        while True:
            start, _, flow = heap[0]
            if start == flow.start and self._flows.get(flow.owner) is flow:
                if flow.returned or flow.fresh:
                    return flow
                # Its last share is over; if the owner returns, it starts no earlier.
                del self._flows[flow.owner]
                self._virtual_time = max(self._virtual_time, start)
            heapq.heappop(heap)

    def _reset_virtual_time(self) -> None:
        """Reset the virtual time once the queue is empty, as no owner is behind or ahead."""
        if len(self._flows) == 1 and len(self._heap) == 1:
            self._virtual_time = self._heap[0][0]  # the usual case, and the cheap one
            return
        self._flows.clear()
        self._heap.clear()
        self._virtual_time = 0.0

    def _forget_idle(self) -> None:
        self._flows = {o: flow for o, flow in self._flows.items() if flow.fresh or flow.returned}
        self._rebuild_heap()

    def _rebuild_heap(self) -> None:
        self._heap = [(flow.start, next(self._serial), flow) for flow in self._flows.values()]
        heapq.heapify(self._heap)
