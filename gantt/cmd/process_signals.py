# SPDX-License-Identifier: Apache-2.0
"""Signals to a serving process, as requests in the order in which they came."""

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: Without a signal, between two calls of what is done meanwhile.
IDLE_CALLBACK_SECONDS = 60.0
#: The longest wait of the main thread.  Python runs handlers in that thread, between two of its
#: steps: a signal that another thread received, or that came just before the wait, ends no wait.
SIGNAL_POLL_SECONDS = 1.0


class ProcessSignals:
    """Signals, or a supervisor's messages, as requests to be taken one after another."""

    def __init__(self) -> None:
        # Of all queues and events only this one may be used by a signal's handler: the others have
        # a lock that the interrupted thread may hold.
        self._signals: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._is_stopping = False
        #: Why the process ends by itself, for a supervisor to start another one; else nothing.
        self.problem = ''

    def is_stopping(self) -> bool:
        """Return whether the process was requested to finish and end."""
        return self._is_stopping

    def stop(self, *_: Any) -> None:
        """Request the process to finish and end."""
        self._is_stopping = True
        self._signals.put('stop')

    def give_up(self, problem: str, seconds: float) -> None:
        """Finish what goes well and end with an error, after so many seconds in any case."""
        self.problem = problem
        anyway = threading.Timer(seconds, os._exit, (1,))
        anyway.daemon = True
        anyway.start()
        self.stop()

    def reload(self, *_: Any) -> None:
        """Request the process to read its options again, or to log its state."""
        self._signals.put('reload')

    def handle_signals(self, others: Mapping[int, str] | None = None) -> 'ProcessSignals':
        """Handle signals: SIGTERM and SIGINT stop, SIGHUP reloads.

        :param others: number of a further signal -> the request that it makes
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)
        signal.signal(signal.SIGHUP, self.reload)
        for extra, request in (others or {}).items():
            signal.signal(extra, lambda *_, request=request: self._signals.put(request))
        return self

    def requests_until_stop(self, idle: Callable[[], None] = lambda: None) -> Iterator[str]:
        """Yield every request (reload, or a signal's), until the process is requested to stop.

        :param idle: called after each minute without a request
        """
        idle_at = time.monotonic() + IDLE_CALLBACK_SECONDS
        while True:
            try:
                request = self._signals.get(timeout=min(SIGNAL_POLL_SECONDS, IDLE_CALLBACK_SECONDS))
            except queue.Empty:
                if time.monotonic() >= idle_at:
                    idle()
                    idle_at = time.monotonic() + IDLE_CALLBACK_SECONDS
                continue
            if request == 'stop':
                return
            yield request
            idle_at = time.monotonic() + IDLE_CALLBACK_SECONDS
