# SPDX-License-Identifier: Apache-2.0
"""What a process does next to each other, as tasks of a loop."""

import collections
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, cast

from gantt.scheduler.waiter import Signal, Waiter
from gantt.sim.loop import Loop, Process, SimSignal

_Job = tuple[Callable[..., Any], tuple[Any, ...], 'Future[Any]']


class TaskThreads:
    """See ``scheduler.zones.threads``.

    :param most: jobs at once
    :param wake: is called when a job is about to wait for the thread that places
    """

    def __init__(
        self, loop: Loop, process: Process, wake: Callable[[], None], most: int, name: str
    ) -> None:
        self._loop, self._process, self._wake = loop, process, wake
        self._most, self._name = most, name
        self._running = 0
        self._waiting: collections.deque[_Job] = collections.deque()

    def begin(self, job: Callable[..., Any], *args: Any) -> 'Future[Any]':
        found: Future[Any] = Future()
        self._waiting.append((job, args, found))
        self._next()
        return found

    def wait(self, begun: 'Collection[Future[Any]]', seconds: float) -> None:
        end = self._loop.now + seconds
        signal = SimSignal(self._loop)
        for one in begun:
            one.add_done_callback(lambda _: signal.set())
        while not all(one.done() for one in begun) and self._loop.now < end:
            signal.wait(end - self._loop.now)
            signal.clear()

    def waiter(self) -> Waiter:
        self._wake()
        return Waiter(cast(Signal, SimSignal(self._loop)))

    def close(self) -> None:
        self._waiting.clear()

    def _next(self) -> None:
        while self._waiting and self._running < self._most:
            self._running += 1
            self._loop.spawn(self._process, self._name, self._do, *self._waiting.popleft())

    def _do(self, job: Callable[..., Any], args: tuple[Any, ...], found: 'Future[Any]') -> None:
        try:
            found.set_result(job(*args))
        except Exception as e:
            found.set_exception(e)
        finally:
            self._running -= 1
            self._next()
