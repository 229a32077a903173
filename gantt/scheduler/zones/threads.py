# SPDX-License-Identifier: Apache-2.0
"""Concurrent jobs of requests over zones, and waiting for them."""

import concurrent.futures
from collections.abc import Callable, Collection
from typing import Any, Protocol

from gantt.scheduler.waiter import Waiter


class ZoneThreads(Protocol):
    """Concurrent jobs, in bounded number."""

    def begin(self, job: Callable[..., Any], *args: Any) -> 'concurrent.futures.Future[Any]':
        """Start a job, or queue it."""

    def wait(self, begun: 'Collection[concurrent.futures.Future[Any]]', seconds: float) -> None:
        """Wait until all jobs are over, up to a timeout."""

    def waiter(self) -> Waiter:
        """Return a waiter for an answer that a job waits for."""

    def close(self) -> None:
        """Start no more jobs."""


class ThreadPool:
    """Threads of the machine.

    :param most: jobs at once
    :param name: of the threads
    """

    def __init__(self, most: int, name: str) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(most, name)

    def begin(self, job: Callable[..., Any], *args: Any) -> 'concurrent.futures.Future[Any]':
        return self._pool.submit(job, *args)

    def wait(self, begun: 'Collection[concurrent.futures.Future[Any]]', seconds: float) -> None:
        concurrent.futures.wait(begun, seconds)

    def waiter(self) -> Waiter:
        return Waiter()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


#: Factory of ``ZoneThreads`` from the number of jobs at once, and a name.
MakeThreads = Callable[[int, str], ZoneThreads]
