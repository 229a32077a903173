# SPDX-License-Identifier: Apache-2.0
"""What is done next to each other for requests over zones, and how a thread waits for it."""

import concurrent.futures
from collections.abc import Callable, Collection
from typing import Any, Protocol

from gantt.scheduler.waiter import Waiter


class ZoneThreads(Protocol):
    """Jobs next to each other, in bounded number."""

    def begin(self, job: Callable[..., Any], *args: Any) -> 'concurrent.futures.Future[Any]':
        """Begin a job, or let it wait for its turn."""

    def wait(self, begun: 'Collection[concurrent.futures.Future[Any]]', seconds: float) -> None:
        """Wait until all are over, for so long at most."""

    def waiter(self) -> Waiter:
        """Where an answer arrives that a job waits for."""

    def close(self) -> None:
        """Begin no more."""


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


#: Makes them from how many at once, and a name.
MakeThreads = Callable[[int, str], ZoneThreads]
