# SPDX-License-Identifier: Apache-2.0
"""Runner of many hosts in one process: a heap of due times and a few threads.

No thread per host and no timer per host: one thread sleeps until the next
member is due and hands it to a bounded pool.
"""

import abc
import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable

LOG = logging.getLogger(__name__)

#: Seconds after which a turn that met a defect is tried again.
AFTER_A_DEFECT = 30.0


class PeriodicTasks(abc.ABC):
    """A task that a runner gives turns to."""

    name = ''
    runner: 'Runner | None' = None  # the runner that gives it turns

    @abc.abstractmethod
    def turn(self) -> float:
        """Do the work that is due; return the seconds until the next turn."""

    def hurry(self, seconds: float) -> None:
        """Bring the next turn forward."""
        if self.runner is not None:
            self.runner.hurry(self, seconds)

    def aside(self, job: Callable[[], object]) -> None:
        """Run ``job`` once beside the turns; dropped without a runner."""
        if self.runner is not None:
            self.runner.add(_Once(self.name, job))


class _Once(PeriodicTasks):
    def __init__(self, name: str, job: Callable[[], object]) -> None:
        self.name = name
        self._job = job

    def turn(self) -> float:
        try:
            self._job()
        finally:
            if self.runner is not None:
                self.runner.remove(self)
        return 0.0


class Runner:
    """A heap of due times that gives members their turns.

    :param threads: how many turns run at a time
    :param clock: monotonic seconds
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, PeriodicTasks]] = []
        self._due: dict[PeriodicTasks, float] = {}
        self._turning: set[PeriodicTasks] = set()
        self._early: dict[PeriodicTasks, float] = {}
        self._serial = itertools.count()
        self._changed = threading.Condition()
        self._stopping = False
        # Members that are due wait in the heap, not here: the queue only hands over.
        self._queue: queue.Queue[PeriodicTasks | None] = queue.Queue(threads)
        self._threads = [
            threading.Thread(target=self._work, name=f'turns-{i}', daemon=True)
            for i in range(threads)
        ]
        self._timer = threading.Thread(target=self._time, name='timer', daemon=True)
        self.lateness = 0.0  # lateness of the last member handed over, in seconds

    def add(self, member: PeriodicTasks, seconds: float = 0.0) -> None:
        """Give a member its first turn in ``seconds``."""
        member.runner = self
        with self._changed:
            self._schedule(member, self._clock() + seconds)

    def remove(self, member: PeriodicTasks) -> None:
        """Remove a member; a turn that is under way is finished."""
        member.runner = None
        with self._changed:
            self._due.pop(member, None)
            self._early.pop(member, None)
            self._turning.discard(member)

    def __len__(self) -> int:
        return len(self._due.keys() | self._turning)

    def start(self) -> None:
        """Start the threads."""
        for thread in (self._timer, *self._threads):
            thread.start()

    def stop(self, seconds: float = 10.0) -> bool:
        """Start no turns; wait for those under way; return whether they ended in time."""
        end = time.monotonic() + seconds
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        threads = [thread for thread in (self._timer, *self._threads) if thread.is_alive()]
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _schedule(self, member: PeriodicTasks, due: float) -> None:
        self._due[member] = due
        heapq.heappush(self._heap, (due, next(self._serial), member))
        if self._heap[0][2] is member:
            self._changed.notify_all()

    def hurry(self, member: PeriodicTasks, within: float) -> None:
        """Bring the next turn of a member forward."""
        due = self._clock() + within
        with self._changed:
            if member in self._turning:
                self._early[member] = min(due, self._early.get(member, due))
            elif due < self._due.get(member, 0.0):
                self._schedule(member, due)

    def _next(self) -> PeriodicTasks | None:
        """Wait for the next member that is due; None when stopping."""
        with self._changed:
            while not self._stopping:
                while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
                    heapq.heappop(self._heap)  # rescheduled or removed since
                wait = self._heap[0][0] - self._clock() if self._heap else 60.0
                if wait <= 0:
                    due, _, member = heapq.heappop(self._heap)
                    del self._due[member]
                    self._turning.add(member)
                    self.lateness = self._clock() - due
                    return member
                self._changed.wait(wait)
        return None

    def _time(self) -> None:
        while (member := self._next()) is not None:
            while not self._stopping:
                try:
                    self._queue.put(member, timeout=0.5)
                    break
                except queue.Full:
                    continue

    def _work(self) -> None:
        while not self._stopping:
            try:
                member = self._queue.get(timeout=0.5)
            except queue.Empty:
                continue
            if member is None:
                return
            try:
                seconds = member.turn()
            except Exception:
                LOG.exception('Turn of a host failed unexpectedly: host=%s', member.name)
                seconds = AFTER_A_DEFECT
            self._done(member, seconds)

    def _done(self, member: PeriodicTasks, seconds: float) -> None:
        with self._changed:
            if member not in self._turning:
                return  # removed meanwhile
            self._turning.discard(member)
            due = self._clock() + seconds
            self._schedule(member, min(due, self._early.pop(member, due)))
