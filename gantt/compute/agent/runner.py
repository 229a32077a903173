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
DEFECT_PAUSE_SECONDS = 30.0


class PeriodicTasks(abc.ABC):
    """A task that a runner gives turns to."""

    name = ''
    runner: 'Runner | None' = None  # the runner that gives it turns

    @abc.abstractmethod
    def turn(self) -> float:
        """Do the work that is due; return the seconds until the next turn."""

    def run_within(self, seconds: float) -> None:
        """Bring the next turn forward."""
        if self.runner is not None:
            self.runner.run_within(self, seconds)

    def run_in_background(self, job: Callable[[], object]) -> None:
        """Run ``job`` once on a thread of the runner; without a runner it is dropped."""
        if self.runner is not None:
            self.runner.add(_OneTimeTask(self.name, job))


class _OneTimeTask(PeriodicTasks):
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
    """A heap of due times that gives tasks their turns.

    :param threads: how many turns run at a time
    :param clock: monotonic seconds
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, PeriodicTasks]] = []
        self._due: dict[PeriodicTasks, float] = {}
        self._running_tasks: set[PeriodicTasks] = set()
        self._requested_due: dict[PeriodicTasks, float] = {}
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

    def add(self, task: PeriodicTasks, seconds: float = 0.0) -> None:
        """Give a task its first turn in ``seconds``."""
        task.runner = self
        with self._changed:
            self._schedule(task, self._clock() + seconds)

    def remove(self, task: PeriodicTasks) -> None:
        """Remove a task; a turn that is under way is finished."""
        task.runner = None
        with self._changed:
            self._due.pop(task, None)
            self._requested_due.pop(task, None)
            self._running_tasks.discard(task)

    def __len__(self) -> int:
        return len(self._due.keys() | self._running_tasks)

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

    def _schedule(self, task: PeriodicTasks, due: float) -> None:
        self._due[task] = due
        heapq.heappush(self._heap, (due, next(self._serial), task))
        if self._heap[0][2] is task:
            self._changed.notify_all()

    def run_within(self, task: PeriodicTasks, within: float) -> None:
        """Bring the next turn of a task forward."""
        due = self._clock() + within
        with self._changed:
            if task in self._running_tasks:
                self._requested_due[task] = min(due, self._requested_due.get(task, due))
            elif due < self._due.get(task, 0.0):
                self._schedule(task, due)

    def _wait_for_next(self) -> PeriodicTasks | None:
        """Wait for the next task that is due; None when stopping."""
        with self._changed:
            while not self._stopping:
                while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
                    heapq.heappop(self._heap)  # rescheduled or removed since
                wait = self._heap[0][0] - self._clock() if self._heap else 60.0
                if wait <= 0:
                    due, _, task = heapq.heappop(self._heap)
                    del self._due[task]
                    self._running_tasks.add(task)
                    self.lateness = self._clock() - due
                    return task
                self._changed.wait(wait)
        return None

    def _time(self) -> None:
        while (task := self._wait_for_next()) is not None:
            while not self._stopping:
                try:
                    self._queue.put(task, timeout=0.5)
                    break
                except queue.Full:
                    continue

    def _work(self) -> None:
        while not self._stopping:
            try:
                task = self._queue.get(timeout=0.5)
            except queue.Empty:
                continue
            if task is None:
                return
            try:
                seconds = task.turn()
            except Exception:
                LOG.exception(
                    'Turn of a host failed unexpectedly; the next one follows: host=%s', task.name
                )
                seconds = DEFECT_PAUSE_SECONDS
            self._schedule_next(task, seconds)

    def _schedule_next(self, task: PeriodicTasks, seconds: float) -> None:
        with self._changed:
            if task not in self._running_tasks:
                return  # removed meanwhile
            self._running_tasks.discard(task)
            due = self._clock() + seconds
            self._schedule(task, min(due, self._requested_due.pop(task, due)))
