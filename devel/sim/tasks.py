# SPDX-License-Identifier: Apache-2.0
"""Jobs of a process as tasks of the loop, in place of its pools of threads."""

import collections
from collections.abc import Callable, Collection
from concurrent.futures import ALL_COMPLETED, Future
from typing import Any, cast

from devel.sim.loop import Loop, Process, SimSignal
from gantt.scheduler.work_queue import EventLike, WaitingReplies
from gantt.zones.service.threads import Job

_Job = tuple[Callable[..., Any], tuple[Any, ...], 'Future[Any]']


class TaskPool:
    """Tasks of which a bounded number runs at a time; the others wait for their turn.

    :param wake: is called when a job is about to wait for the thread that places
    """

    def __init__(
        self, loop: Loop, process: Process, most: int, wake: Callable[[], None] = lambda: None
    ) -> None:
        self._loop, self._process, self._most, self._wake = loop, process, most, wake
        self._running = 0
        self._waiting: collections.deque[_Job] = collections.deque()

    def begin(self, job: Callable[..., Any], *args: Any) -> 'Future[Any]':
        future: Future[Any] = Future()
        self._waiting.append((job, args, future))
        self._next()
        return future

    def close(self) -> None:
        self._waiting.clear()

    def wait(
        self, begun: Collection[Job], seconds: float, return_when: str = ALL_COMPLETED
    ) -> tuple[list[Job], list[Job]]:
        end = self._loop.now + seconds
        most_left = 0 if return_when == ALL_COMPLETED else len(begun) - 1
        signal = SimSignal(self._loop)
        for future in begun:
            future.add_done_callback(lambda _: signal.set())
        while sum(not future.done() for future in begun) > most_left and self._loop.now < end:
            signal.wait(end - self._loop.now)
            signal.clear()
        return [job for job in begun if job.done()], [job for job in begun if not job.done()]

    def waiter(self) -> WaitingReplies:
        self._wake()
        return WaitingReplies(cast(EventLike, SimSignal(self._loop)))

    def _next(self) -> None:
        while self._waiting and self._running < self._most:
            job, args, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                self._running += 1
                self._loop.spawn(self._process, 'job', self._do, job, args, future)

    def _do(self, job: Callable[..., Any], args: tuple[Any, ...], future: 'Future[Any]') -> None:
        try:
            future.set_result(job(*args))
        except Exception as e:
            future.set_exception(e)
        finally:
            self._running -= 1
            self._next()
