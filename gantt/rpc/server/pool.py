# SPDX-License-Identifier: Apache-2.0
"""Worker threads behind a bounded queue.

oslo.messaging's own executor queues without bound, and prefetch does not limit
it, so messages that may wait for the database go through this one instead.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable

LOG = logging.getLogger(__name__)


class WorkerPool:
    """``threads`` threads; at most ``limit`` jobs wait."""

    def __init__(self, name: str, threads: int, limit: int) -> None:
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(limit)
        self._threads = [
            threading.Thread(target=self._run, name=f'{name}-{i}', daemon=True)
            for i in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], None]) -> bool:
        """Queue a job; False where the queue is full."""
        try:
            self._queue.put_nowait(job)
        except queue.Full:
            return False
        return True

    def take_back(self) -> list[Callable[[], None]]:
        """The jobs that wait, none of which will run."""
        found = []
        try:
            while (job := self._queue.get_nowait()) is not None:
                found.append(job)
            self._queue.put_nowait(None)  # it ends a thread
        except (queue.Empty, queue.Full):
            pass
        return found

    @property
    def depth(self) -> int:
        """How many jobs wait."""
        return self._queue.qsize()

    def stop(self, seconds: float) -> bool:
        """Finish what is queued; whether that was done within ``seconds``."""
        end = time.monotonic() + seconds
        for _ in self._threads:
            try:
                self._queue.put(None, timeout=max(0.0, end - time.monotonic()))
            except queue.Full:
                return False
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except Exception:
                LOG.exception('A worker thread met an error that nobody answered')
