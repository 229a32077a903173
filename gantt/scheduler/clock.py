# SPDX-License-Identifier: Apache-2.0
"""The Clock port: the system's, and one that moves only on command."""

import threading
import time


class SystemClock:
    """The machine's own clocks."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    sleep = staticmethod(time.sleep)


class ManualClock:
    """Time for tests and the simulator: only ``advance`` moves it."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._start = start
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        return self._now - self._start

    def wall(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move forward by ``seconds``."""
        with self._lock:
            self._now += seconds
