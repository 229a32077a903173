# SPDX-License-Identifier: Apache-2.0
"""Threads for work beside the placement, and a bounded queue in front of one."""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from gantt.core.messages.request import SelectDestinations
from gantt.core.records.decision import Answer, Outcome
from gantt.scheduler.ports.process import Recorder
from gantt.scheduler.request.queue import refusal

LOG = logging.getLogger(__name__)
Item = TypeVar('Item')

IDLE_SECONDS = 0.5
#: Consecutive failed rounds from which on a queue counts as failing.
FAILING_ROUNDS = 3
#: Pause after a failed round, times the number of failures: a round that fails before it takes
#: anything must not spin.
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.02, 1.0


class WorkThread:
    """A thread that does what is due, round by round; a failed round costs never the thread.

    :param work: does what is due; called repeatedly with the seconds that it may wait for
        something; returns how much there was
    :param depth: returns the number of items that wait, or are worked on
    """

    def __init__(
        self,
        name: str,
        work: Callable[[float], int],
        recorder: Recorder,
        depth: Callable[[], int],
    ) -> None:
        self.name = name
        #: Failed rounds since the last successful one that took something.
        self.failures = 0
        #: No more items arrive: waiting ones are processed, then the thread ends.
        self.ending = threading.Event()
        self._work = work
        self._recorder = recorder
        self._depth = depth
        self._thread: threading.Thread | None = None

    @property
    def is_failing(self) -> bool:
        """True where rounds fail repeatedly: a defect, not one item at fault."""
        return self.failures >= FAILING_ROUNDS

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Process what waits, then end; return whether that was done in time."""
        self.ending.set()
        if self._thread is not None:
            self._thread.join(seconds)
            return not self._thread.is_alive()
        return True

    def _run(self) -> None:
        while not (self.ending.is_set() and (self._depth() == 0 or self.is_failing)):
            try:
                if self._work(IDLE_SECONDS):
                    self.failures = 0
            except Exception:  # the thread must outlive any one round
                self.failures += 1
                LOG.exception(
                    'Round of a work queue failed unexpectedly: queue=%s failures=%d',
                    self.name,
                    self.failures,
                )
                self._recorder.count('gantt_errors_total', component=self.name)
                self.ending.wait(min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * self.failures))


class WorkQueue(WorkThread, Generic[Item]):
    """A queue of items from any thread, processed by one.

    A failed round costs the items that it had taken, never the thread.

    :param work: takes some with ``next`` and does what is due, see ``WorkThread``
    :param limit: bound of waiting items
    """

    def __init__(
        self, name: str, work: Callable[[float], int], limit: int, recorder: Recorder
    ) -> None:
        super().__init__(name, work, recorder, lambda: self.depth)
        self.limit = limit
        #: None is no item: it wakes the thread that waits for one.
        self._queue = queue.Queue[Item | None](limit)
        self._returned_items: list[Item] = []  # none or one
        #: Number of items that the working thread keeps for itself.
        self.set_aside_count = 0

    @property
    def depth(self) -> int:
        """Number of waiting items."""
        return self._queue.qsize() + len(self._returned_items) + self.set_aside_count

    def put(self, item: Item) -> bool:
        """Queue an item; return False where too many wait.  Never blocks."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return False
        return True

    def stop(self, seconds: float) -> bool:
        """Process the waiting items, then end; at once where there are none."""
        self.ending.set()
        with contextlib.suppress(queue.Full):  # then the thread does not wait
            self._queue.put_nowait(None)
        return super().stop(seconds)

    def next(self, seconds: float = 0.0) -> Item:
        """Return the next item, waiting for it if need be.

        :raises queue.Empty: none came
        """
        if self._returned_items:
            return self._returned_items.pop()
        item = self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()
        if item is None:
            raise queue.Empty
        return item

    def put_back(self, item: Item) -> None:
        """Make an item the next one again; only for the working thread, one item at a time."""
        self._returned_items = [item]


class EventLike(Protocol):
    """The methods of ``threading.Event`` that are used here."""

    def set(self) -> None:
        """Wake the waiting threads."""

    def wait(self, timeout: float) -> bool:
        """Wait until the event is set, for ``timeout`` seconds at most."""


class WaitingReplies:
    """A Replies that one thread waits on.

    :param event: object to wait on; None: a ``threading.Event``
    """

    def __init__(self, event: EventLike | None = None) -> None:
        self._event: EventLike = event or threading.Event()
        self._answer: Answer | None = None

    def send(self, answers: Sequence[tuple[object, Answer]]) -> None:
        for _, answer in answers:
            self._answer = answer
        self._event.set()

    send_soon = send

    def wait(self, request: SelectDestinations, seconds: float) -> Answer:
        """Return the answer, or "expired" after ``seconds``."""
        self._event.wait(seconds)
        return self._answer or refusal(request, Outcome.EXPIRED, 'no answer within the budget')
