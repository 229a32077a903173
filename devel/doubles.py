# SPDX-License-Identifier: Apache-2.0
"""Test doubles of two ports: a clock that moves only on command, and a recorder in lists."""

import collections
import threading
from collections.abc import Iterable

from gantt.core.claims.commit import DecisionRecord


class ManualClock:
    """Clock that only ``advance`` and ``sleep`` move."""

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


class MemoryRecorder:
    """Recorder that keeps decisions in a list and counts in a counter.

    :ivar counts: totals by name; of a metric with labels also by name and the values of its labels
    """

    def __init__(self) -> None:
        self.records: list[DecisionRecord] = []
        self.counts: collections.Counter[str | tuple[str, ...]] = collections.Counter()

    def record(self, record: DecisionRecord) -> None:
        self.records.append(record)

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        self.counts[name] += int(value)
        if labels:
            self.counts[name, *labels.values()] += int(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        self.counts[f'{name} observed'] += 1

    def observe_all(self, name: str, values: Iterable[float], **labels: str) -> None:
        for value in values:
            self.observe(name, value, **labels)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.counts[name] = int(value)
