# SPDX-License-Identifier: Apache-2.0
"""Threads of cross-zone scheduling: calls to child zones, and requests."""

import concurrent.futures
from collections.abc import Callable, Collection
from typing import Any, Protocol

from gantt.scheduler.work_queue import WaitingReplies

Job = concurrent.futures.Future[Any]


class ZoneThreads(Protocol):
    """Concurrent jobs, in bounded number."""

    def begin(self, job: Callable[..., Any], *args: Any) -> Job:
        """Start a job, or queue it."""

    def wait(
        self,
        begun: Collection[Job],
        seconds: float,
        return_when: str = concurrent.futures.ALL_COMPLETED,
    ) -> tuple[Collection[Job], Collection[Job]]:
        """Wait until all jobs are over or the first is, up to a timeout.

        :returns: the jobs that are over, and the others
        """

    def waiter(self) -> WaitingReplies:
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

    def begin(self, job: Callable[..., Any], *args: Any) -> Job:
        return self._pool.submit(job, *args)

    def wait(
        self,
        begun: Collection[Job],
        seconds: float,
        return_when: str = concurrent.futures.ALL_COMPLETED,
    ) -> tuple[Collection[Job], Collection[Job]]:
        return concurrent.futures.wait(begun, seconds, return_when)

    def waiter(self) -> WaitingReplies:
        return WaitingReplies()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


#: Factory of ``ZoneThreads`` from the number of jobs at once, and a name.
MakeThreads = Callable[[int, str], ZoneThreads]
