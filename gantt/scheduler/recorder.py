# SPDX-License-Identifier: Apache-2.0
"""The Recorder port: decisions that no commit stores, and what is counted.

Decisions wait in a bounded queue and are written in batches by one thread; when
the database is slow the oldest are dropped and counted, placing never waits.
"""

import collections
import logging
import threading
from typing import Protocol

from gantt import exceptions
from gantt.core.commit import DecisionRecord
from gantt.scheduler.ports import Store

LOG = logging.getLogger(__name__)
BATCH = 200


class Counting(Protocol):
    """The metrics registry, as far as it is needed here."""

    def count(self, name: str, value: float = 1, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...

    def gauge(self, name: str, value: float, **labels: str) -> None: ...


class StoreRecorder:
    """Keeps refused and dry decisions in the store, counts in a metrics registry."""

    def __init__(self, store: Store, metrics: Counting, limit: int) -> None:
        self._store = store
        self._queue: collections.deque[DecisionRecord] = collections.deque()
        self._limit = limit
        self._lock = threading.Lock()
        self.count = metrics.count
        self.observe = metrics.observe
        self.gauge = metrics.gauge

    def record(self, record: DecisionRecord) -> None:
        """Keep a decision; drops the oldest where too many wait."""
        with self._lock:
            self._queue.append(record)
            dropped = len(self._queue) > self._limit
            if dropped:
                self._queue.popleft()
        if dropped:
            self.count('gantt_decisions_dropped_total')

    def flush(self) -> int:
        """Write what waits, in bounded batches; how many were written."""
        written = 0
        for _ in range(self._limit // BATCH + 1):
            with self._lock:
                batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            if not batch:
                break
            try:
                self._store.save_decisions(batch)
            except exceptions.Unavailable as e:
                self.count('gantt_decisions_dropped_total', len(batch))
                LOG.warning('%d decisions were not kept: %s', len(batch), e)
                break
            written += len(batch)
        return written


class MemoryRecorder:
    """Keeps everything in lists, for tests and the simulator."""

    def __init__(self) -> None:
        self.records: list[DecisionRecord] = []
        self.counts: collections.Counter[str] = collections.Counter()

    def record(self, record: DecisionRecord) -> None:
        self.records.append(record)

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        self.counts[name] += int(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        self.counts[f'{name} observed'] += 1

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.counts[name] = int(value)
