# SPDX-License-Identifier: Apache-2.0
"""Calls next to each other, without threads that anybody waits for."""

import collections
import concurrent.futures
from collections.abc import Callable, Collection

from devel.sim.loop import Loop, Process, SimSignal
from gantt.scheduler.zones.offers.queries import CALLS_MAX, Call, QueriedZone


class TaskRunner:
    """Calls as tasks of a loop, as many at once as a process has threads for them."""

    def __init__(self, loop: Loop, process: Process) -> None:
        self._loop, self._process = loop, process
        self._running = 0
        self._waiting: collections.deque[tuple[Callable[[], QueriedZone], Call]] = (
            collections.deque()
        )

    def begin(self, job: Callable[[], QueriedZone]) -> Call:
        call: Call = concurrent.futures.Future()
        self._waiting.append((job, call))
        self._next()
        return call

    def wait(self, calls: Collection[Call], seconds: float) -> tuple[list[Call], list[Call]]:
        end = self._loop.now + seconds
        signal = SimSignal(self._loop)
        for call in calls:
            call.add_done_callback(lambda _: signal.set())
        while not any(call.done() for call in calls) and self._loop.now < end:
            signal.wait(end - self._loop.now)
        return _parted(calls)

    def close(self) -> None:
        self._waiting.clear()

    def _next(self) -> None:
        while self._waiting and self._running < CALLS_MAX:
            job, call = self._waiting.popleft()
            if call.set_running_or_notify_cancel():
                self._running += 1
                self._loop.spawn(self._process, 'call', self._do, job, call)

    def _do(self, job: Callable[[], QueriedZone], call: Call) -> None:
        try:
            call.set_result(job())
        finally:
            self._running -= 1
            self._next()


class RunAtOnce:
    """A runner whose calls are over when they have begun: no time passes."""

    def begin(self, job: Callable[[], QueriedZone]) -> Call:
        call: Call = concurrent.futures.Future()
        call.set_result(job())
        return call

    def wait(self, calls: Collection[Call], seconds: float) -> tuple[list[Call], list[Call]]:
        return _parted(calls)

    def close(self) -> None:
        pass


def _parted(calls: Collection[Call]) -> tuple[list[Call], list[Call]]:
    """Return the calls that are over, and the others."""
    return [call for call in calls if call.done()], [call for call in calls if not call.done()]
