# SPDX-License-Identifier: Apache-2.0
"""Registration of compute hosts, of one or of ten thousand at once after a power cut.

    take registrations from a bounded queue → assign the epochs of many in one
    transaction → offer the hosts to the host table → answer each

A lone registration does not wait for others: a batch is what arrived while the last
transaction ran.
"""

import contextlib
import logging
import queue
from concurrent.futures import Future

from gantt import exceptions
from gantt.core.messages.report import Registered, RegisterHost
from gantt.scheduler.claims import ClaimUpdates
from gantt.scheduler.ports.process import Recorder
from gantt.scheduler.work_queue import WorkQueue

LOG = logging.getLogger(__name__)
#: Registrations in one transaction, and how many may wait.
BATCH_REGISTRATIONS_MAX, WAITING_REGISTRATIONS_MAX = 100, 20_000
LOCKED_TRIES_MAX = 2

QueuedRegistration = tuple[RegisterHost, 'Future[Registered]']


class RegistrationQueue:
    """The registering thread and its queue."""

    def __init__(self, claims: ClaimUpdates, recorder: Recorder) -> None:
        self._claims = claims
        self.work_queue: WorkQueue[QueuedRegistration] = WorkQueue(
            'registrations', self.step, WAITING_REGISTRATIONS_MAX, recorder
        )

    def submit(self, message: RegisterHost) -> 'Future[Registered]':
        """Queue a registration; never blocks.

        :raises Busy: the queue is full
        """
        future: Future[Registered] = Future()
        if not self.work_queue.put((message, future)):
            raise exceptions.Busy(
                reason=f'{self.work_queue.limit} hosts wait to be registered', retry_after_ms=5000
            )
        return future

    def step(self, idle_seconds: float = 0.0) -> int:
        """Run one batch; return the number of its registrations."""
        batch = self._drain(idle_seconds)
        try:
            if batch:
                self._register(batch)
        except Exception as e:
            # No caller is left waiting for an answer that will not come.
            for _, future in batch:
                if not future.done():
                    future.set_exception(e)
            raise
        return len(batch)

    def _drain(self, idle_seconds: float) -> list[QueuedRegistration]:
        """Return waiting registrations, each host once: a second of a host waits for the first."""
        batch: dict[str, QueuedRegistration] = {}
        with contextlib.suppress(queue.Empty):
            item = self.work_queue.next(idle_seconds)
            while True:
                if item[0].name in batch:
                    self.work_queue.put_back(item)
                    break
                batch[item[0].name] = item
                if len(batch) == BATCH_REGISTRATIONS_MAX:
                    break
                item = self.work_queue.next()
        return list(batch.values())

    def _one_by_one(self, batch: list[QueuedRegistration]) -> None:
        """Register each host alone, so that a failed or locked host does not stop the others.

        Where the database is away, two failures are enough to know it.
        """
        failures = 0
        for item in batch:
            if failures == LOCKED_TRIES_MAX:
                item[1].set_exception(
                    exceptions.DatabaseUnavailable(
                        problem=f'{failures} hosts before this one could not be registered'
                    )
                )
                continue
            self._register([item])
            away = isinstance(item[1].exception(), exceptions.Unavailable)
            failures = failures + 1 if away else 0

    def _register(self, batch: list[QueuedRegistration]) -> None:
        try:
            results = self._claims.register_hosts([message for message, _ in batch])
        except Exception as e:
            if len(batch) > 1:
                self._one_by_one(batch)
                return
            if not isinstance(e, exceptions.GanttError):
                LOG.exception('Host was not registered: host=%s', batch[0][0].name)
            batch[0][1].set_exception(e)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
