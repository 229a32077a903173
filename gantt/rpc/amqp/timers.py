# SPDX-License-Identifier: Apache-2.0
"""Jobs for other threads: jobs that may hang, and a bounded number of delayed jobs."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

LOG = logging.getLogger(__name__)

T = TypeVar('T')

#: Places of cancelled jobs that may stay in the order, in addition to as many as jobs wait.
_GIVEN_UP_JOBS_MAX = 64


def in_thread(job: Callable[[], T], name: str) -> Future[T]:
    """Run a job that may hang in a thread of its own, which no other has to wait for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(job())
        except BaseException as e:
            future.set_exception(e)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class DelayedExecutor:
    """A timer thread that runs jobs later, with a bound on their number.

    Jobs must be short and bounded themselves; one that raises is logged.  A cancelled job is
    released at once, with what it holds; only its place in the order stays a while.
    """

    def __init__(self, limit: int, name: str = 'rpc-later') -> None:
        self._limit = limit
        self._jobs: dict[int, Callable[[], None]] = {}
        self._order: list[tuple[float, int]] = []
        self._serial = itertools.count(1)
        self._changed = threading.Condition()
        self._stopping = False
        self._is_running_job = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def after(self, seconds: float, job: Callable[[], None]) -> int:
        """Run ``job`` in ``seconds``.

        :returns: its number, for :meth:`give_up`; 0 where there is no room or it is stopping
        """
        with self._changed:
            if self._stopping or len(self._jobs) >= self._limit:
                return 0
            if len(self._order) > 2 * len(self._jobs) + _GIVEN_UP_JOBS_MAX:
                self._order = [place for place in self._order if place[1] in self._jobs]
                heapq.heapify(self._order)
            number = next(self._serial)
            self._jobs[number] = job
            heapq.heappush(self._order, (time.monotonic() + seconds, number))
            self._changed.notify()
        return number

    def give_up(self, number: int) -> None:
        """Cancel a job that waits; no effect where it has run."""
        with self._changed:
            self._jobs.pop(number, None)

    @property
    def depth(self) -> int:
        """Number of jobs that wait or run."""
        return len(self._jobs) + self._is_running_job

    def stop(self) -> int:
        """Stop the thread; return how many jobs are dropped."""
        with self._changed:
            self._stopping = True
            dropped = len(self._jobs)
            self._jobs.clear()
            self._order.clear()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(5.0)
        return dropped

    def _wait_for_next(self) -> Callable[[], None] | None:
        with self._changed:
            self._is_running_job = False
            while not self._stopping:
                wait = self._order[0][0] - time.monotonic() if self._order else 60.0
                if wait > 0:
                    self._changed.wait(wait)
                    continue
                self._is_running_job = True  # set before the job stops counting as waiting
                job = self._jobs.pop(heapq.heappop(self._order)[1], None)
                if job is not None:
                    return job
                self._is_running_job = False
        return None

    def _run(self) -> None:
        while (job := self._wait_for_next()) is not None:
            try:
                job()
            except Exception:
                LOG.exception('Delayed job failed unexpectedly and is dropped')
