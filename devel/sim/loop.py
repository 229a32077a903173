# SPDX-License-Identifier: Apache-2.0
"""Virtual time and the tasks in it.

A task has a stack of its own (a thread of the machine), so that production
code that waits can be run as it is.  But only one of them runs at any moment:
the loop takes the next event of its heap, lets one task run until that waits
again, and then takes the next.  No clock and no lock of the machine decides
anything.
"""

import contextlib
import dataclasses
import heapq
import itertools
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

#: Real seconds that a task may run before the loop reports that it is stuck.
STUCK_SECONDS = 60.0


class Killed(BaseException):
    """The process of this task is dead; nothing more happens in it."""


class Process:
    """A process: the tasks that live and die together.

    :ivar skew: its wall clock minus the true one, seconds
    :ivar frozen_until: none of its tasks runs before
    """

    def __init__(self, loop: 'Loop', name: str) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self.skew = 0.0
        self.frozen_until = 0.0
        self._armed: str | None = None

    def arm(self, when: str) -> None:
        """Let it die ``before`` or ``after`` its next step that matters."""
        self._armed = when

    def step(self, when: str, what: str) -> None:
        """Pass a step that matters.  :raises Killed: it is to die here"""
        if self._armed == when:
            self.loop.write_trace(self.name, f'dies {when} {what}')
            self.die()
            raise Killed

    def die(self) -> None:
        """Die as by kill -9."""
        self.alive = False
        self.loop.bury(self)


class TaskThreadPool:
    """Threads that are kept from task to task, and from run to run."""

    def __init__(self) -> None:
        self._idle: list[TaskThread] = []
        self._all: list[TaskThread] = []

    def take(self) -> 'TaskThread':
        """Return an unused stack."""
        if self._idle:
            return self._idle.pop()
        stack = TaskThread(self, len(self._all) + 1)
        self._all.append(stack)
        return stack

    def release(self, stack: 'TaskThread') -> None:
        """Return a stack whose job is done."""
        self._idle.append(stack)

    @contextlib.contextmanager
    def on_one_core(self) -> Iterator[None]:
        """Keep all stacks, and the caller, on one core, where Linux can.

        Only one of them runs at any moment.  To hand over to a thread on another core, which has
        to be woken first, takes a third of the time of a run.
        """
        try:
            before = os.sched_getaffinity(0)
            core = {_core_of_this_thread()}
            for thread in (0, *(stack.thread_id for stack in self._all)):
                os.sched_setaffinity(thread, core)
        except (AttributeError, OSError):  # not here, or not allowed
            yield
            return
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


def _core_of_this_thread() -> int:
    with open('/proc/thread-self/stat', encoding='ascii') as stat:
        return int(stat.read().rpartition(')')[2].split()[36])


class TaskThread:
    """A thread that runs only when it is resumed, and alone."""

    def __init__(self, stacks: TaskThreadPool, number: int) -> None:
        self._stacks = stacks
        self._mine = threading.Lock()
        self._theirs = threading.Lock()
        self._mine.acquire()
        self._theirs.acquire()
        self._job: Callable[[], None] | None = None
        thread = threading.Thread(target=self._run, name=f'stack-{number}', daemon=True)
        thread.start()
        self.thread_id = thread.native_id or 0

    def begin(self, job: Callable[[], None]) -> None:
        """Run ``job`` until it waits or ends."""
        self._job = job
        self.go()

    def go(self) -> None:
        """Go on until the next wait.  Called by the loop."""
        self._mine.release()
        if not self._theirs.acquire(timeout=STUCK_SECONDS):
            raise RuntimeError('a task waits for a lock of the machine; only the loop may wait')

    def wait(self) -> None:
        """Let the loop go on until it comes back to us.  Called by the task."""
        self._theirs.release()
        self._mine.acquire()

    def _run(self) -> None:
        while True:
            self._mine.acquire()
            job, self._job = self._job, None
            assert job is not None
            job()
            self._stacks.release(self)
            self._theirs.release()


@dataclasses.dataclass(slots=True, eq=False)
class Task:
    """A job of a process."""

    process: Process
    name: str
    stack: TaskThread
    ticket: 'Ticket | None' = None


@dataclasses.dataclass(slots=True, eq=False)
class Ticket:
    """One wait of a task; it ends once."""

    task: Task
    is_over: bool = False


class Loop:
    """The clock, the heap of what happens next, and the trace of what did.

    :ivar now: seconds since the run began
    :ivar defects: exceptions that no task caught
    """

    def __init__(self, stacks: TaskThreadPool | None = None) -> None:
        self.now = 0.0
        self.trace: list[str] = []
        self.defects: list[str] = []
        self._stacks = stacks or TaskThreadPool()
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._serial = itertools.count()
        self._current: Task | None = None
        self._tasks: dict[Task, None] = {}

    # -- what anybody may do -----------------------------------------------------
    def write_trace(self, who: str, what: str) -> None:
        """Write a line of the trace."""
        self.trace.append(f'{self.now:9.3f} {who:<10} {what}')

    def at(self, seconds: float, action: Callable[..., object], *args: Any) -> None:
        """Do something in ``seconds``; it must not wait."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._serial), action, args))

    def spawn(self, process: Process, name: str, job: Callable[..., object], *args: Any) -> Task:
        """Start a new task of a process; it begins at once, after what is due before it."""
        task = Task(process, name, self._stacks.take())
        self._tasks[task] = None
        self.at(0, self._begin, task, job, args)
        return task

    def run(self, until: float) -> None:
        """Let everything happen that is due until then."""
        with self._stacks.on_one_core():
            while self._heap and self._heap[0][0] <= until:
                self.now, _, action, args = heapq.heappop(self._heap)
                action(*args)
        self.now = until

    def close(self) -> None:
        """End every task; the stacks can be used again."""
        self._heap.clear()
        for task in list(self._tasks):
            task.process.alive = False
        while self._tasks or self._heap:
            for task in list(self._tasks):
                self._resume(task)
            self._heap.clear()

    # -- what a task may do --------------------------------------------------------
    def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        ticket = self.ticket()
        self.at(seconds, self.wake, ticket)
        self.park()

    def ticket(self) -> Ticket:
        """Return a ticket for the wait that the current task is about to begin."""
        task = self._current
        assert task is not None, 'only a task can wait'
        task.ticket = Ticket(task)
        return task.ticket

    def park(self) -> None:
        """Wait until the ticket is woken.

        :raises Killed: the process died meanwhile
        """
        task = self._current
        assert task is not None
        task.stack.wait()
        if not task.process.alive:
            raise Killed

    def wake(self, ticket: Ticket) -> None:
        """End a wait; at once, so only from the loop (``at``)."""
        process = ticket.task.process
        if process.frozen_until > self.now and process.alive:
            self.at(process.frozen_until - self.now, self.wake, ticket)
        elif not ticket.is_over:
            ticket.is_over = True
            self._resume(ticket.task)

    def bury(self, process: Process) -> None:
        """End the tasks of a dead process."""
        for task in self._tasks:
            if task.process is process and task is not self._current and task.ticket is not None:
                self.at(0, self.wake, task.ticket)

    # -- inside ------------------------------------------------------------------------
    def _begin(self, task: Task, job: Callable[..., object], args: tuple[Any, ...]) -> None:
        process = task.process
        if process.frozen_until > self.now and process.alive:
            self.at(process.frozen_until - self.now, self._begin, task, job, args)
            return
        if not process.alive:
            del self._tasks[task]
            self._stacks.release(task.stack)
            return
        self._current = task
        task.stack.begin(lambda: self._do(task, job, args))
        self._current = None

    def _resume(self, task: Task) -> None:
        if task not in self._tasks:
            return
        if task.ticket is None:  # it never began
            del self._tasks[task]
            self._stacks.release(task.stack)
            return
        self._current = task
        task.stack.go()
        self._current = None

    def _do(self, task: Task, job: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            job(*args)
        except Killed:
            pass
        except Exception:
            self.write_trace(task.process.name, f'defect in {task.name}')
            self.defects.append(f'{task.process.name} {task.name}: {traceback.format_exc()}')
        finally:
            del self._tasks[task]


class SimSignal:
    """A signal like ``threading.Event``, in virtual time."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._is_set = False
        self._waiting: list[Ticket] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Wake all waiting tasks."""
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            self._loop.at(0, self._loop.wake, ticket)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it is set, at the latest after ``timeout`` seconds."""
        if self._is_set:
            return True
        ticket = self._loop.ticket()
        self._waiting.append(ticket)
        if timeout is not None:
            self._loop.at(max(0.0, timeout), self._loop.wake, ticket)
        self._loop.park()
        return self._is_set


class ProcessClock:
    """The Clock port of a process: its wall clock may be wrong, its monotonic one is not."""

    START = 1_700_000_000.0

    def __init__(self, process: Process) -> None:
        self._process = process

    def monotonic(self) -> float:
        return self._process.loop.now

    def wall(self) -> float:
        return self.START + self._process.loop.now + self._process.skew

    def sleep(self, seconds: float) -> None:
        self._process.loop.sleep(seconds)
