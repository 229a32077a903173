# SPDX-License-Identifier: Apache-2.0
"""The Recorder port: decisions that no commit stores, and metrics.

Decisions wait in a bounded queue and are written in batches by one thread; when
the database is slow the oldest of the project with the most there are dropped and
counted, placing never waits.
"""

import collections
import itertools
import logging
import threading
from collections.abc import Iterable
from typing import Protocol

from gantt import exceptions
from gantt.core.claims.commit import DecisionRecord
from gantt.scheduler.ports.records import Records

LOG = logging.getLogger(__name__)
BATCH_DECISIONS_MAX = 200
#: Bytes of a batch: below what MariaDB takes in one packet (16 MiB by default).
BATCH_BYTES_MAX = 4 << 20
#: Bytes of all waiting decisions.
WAITING_BYTES_MAX = 64 << 20


class MetricsSink(Protocol):
    """Methods of the metrics registry that are used here."""

    def count(self, name: str, value: float = 1, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...

    def observe_all(self, name: str, values: Iterable[float], **labels: str) -> None: ...

    def gauge(self, name: str, value: float, **labels: str) -> None: ...


class StoreRecorder:
    """A recorder of refused and dry decisions in the store, and of counts in a metrics registry."""

    def __init__(self, records: Records, metrics: MetricsSink, limit: int) -> None:
        self._records = records
        # By project, each with the number of its arrival.
        self._queues: dict[str | None, collections.deque[tuple[int, DecisionRecord]]] = {}
        self._sizes: collections.Counter[str | None] = collections.Counter()
        self._serial = itertools.count()
        self._count = self._bytes = 0
        self._limit = limit
        self._lock = threading.Lock()
        self.count = metrics.count
        self.observe = metrics.observe
        self.observe_all = metrics.observe_all
        self.gauge = metrics.gauge

    def record(self, record: DecisionRecord) -> None:
        """Store a decision; where too many wait, the oldest of the largest project is dropped."""
        size = _size(record)
        with self._lock:
            queue = self._queues.get(record.project_id)
            if queue is None:
                queue = self._queues[record.project_id] = collections.deque()
            queue.append((next(self._serial), record))
            self._sizes[record.project_id] += size
            self._count, self._bytes = self._count + 1, self._bytes + size
            dropped = 0
            while self._count > self._limit or self._bytes > WAITING_BYTES_MAX:
                self._pop_oldest(self._largest_project())
                dropped += 1
        if dropped:
            self.count('gantt_decisions_dropped_total', dropped)

    def flush(self) -> int:
        """Write waiting decisions, in bounded batches; return the number written."""
        written = 0
        for _ in range(self._limit + 1):
            with self._lock:
                batch = self._next_batch()
            if not batch:
                break
            try:
                self._records.save_decisions(batch)
            except exceptions.Unavailable as e:
                self.count('gantt_decisions_dropped_total', len(batch))
                LOG.warning(
                    'Decisions cannot be stored and are dropped: count=%d error=%s', len(batch), e
                )
                break
            written += len(batch)
        return written

    def _next_batch(self) -> list[DecisionRecord]:
        """Return the next batch: few enough bytes for one statement."""
        batch: list[DecisionRecord] = []
        size = 0
        while self._queues and len(batch) < BATCH_DECISIONS_MAX:
            project = min(self._queues, key=lambda name: self._queues[name][0][0])
            size += _size(self._queues[project][0][1])
            if batch and size > BATCH_BYTES_MAX:
                break
            batch.append(self._pop_oldest(project))
        return batch

    def _largest_project(self) -> str | None:
        """Return the project that has the most of the number or bytes above the bound."""
        if self._bytes > WAITING_BYTES_MAX:
            return max(self._queues, key=self._sizes.__getitem__)
        return max(self._queues, key=lambda project: len(self._queues[project]))

    def _pop_oldest(self, project: str | None) -> DecisionRecord:
        """Take the oldest decision of a project."""
        queue = self._queues[project]
        record = queue.popleft()[1]
        self._sizes[project] -= _size(record)
        self._count, self._bytes = self._count - 1, self._bytes - _size(record)
        if not queue:
            del self._queues[project], self._sizes[project]
        return record


def _size(record: DecisionRecord) -> int:
    return len(record.packed) + len(record.reason)
