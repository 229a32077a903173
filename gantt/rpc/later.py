# SPDX-License-Identifier: Apache-2.0
"""Things to do a little later: one thread, a bounded number of them."""

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

LOG = logging.getLogger(__name__)


class Later:
    """A timer thread with a bound on what it keeps.

    Jobs must be short and bounded themselves; one that raises is logged.
    """

    def __init__(self, limit: int, name: str = 'rpc-later') -> None:
        self._limit = limit
        self._jobs: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._changed = threading.Condition()
        self._stopping = False
        self._busy = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def after(self, seconds: float, job: Callable[[], None]) -> bool:
        """Run ``job`` in ``seconds``; False where there is no room or it is stopping."""
        with self._changed:
            if self._stopping or len(self._jobs) >= self._limit:
                return False
            heapq.heappush(self._jobs, (time.monotonic() + seconds, next(self._serial), job))
            self._changed.notify()
        return True

    @property
    def depth(self) -> int:
        """How many jobs wait or run."""
        return len(self._jobs) + self._busy

    def stop(self) -> int:
        """Stop the thread; returns how many jobs are dropped."""
        with self._changed:
            self._stopping = True
            dropped = len(self._jobs)
            self._jobs.clear()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(5.0)
        return dropped

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._busy = False
            while not self._stopping:
                wait = self._jobs[0][0] - time.monotonic() if self._jobs else 60.0
                if wait <= 0:
                    self._busy = True
                    return heapq.heappop(self._jobs)[2]
                self._changed.wait(wait)
        return None

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                job()
            except Exception:
                LOG.exception('A postponed job failed')
