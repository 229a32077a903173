# SPDX-License-Identifier: Apache-2.0
"""A scheduler process: the production service, its threads as tasks, and its door."""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

from devel.doubles import MemoryRecorder
from devel.sim import network, plan
from devel.sim.database import SimDatabase
from devel.sim.loop import Loop, Process, ProcessClock, SimSignal
from gantt import exceptions
from gantt.compute.ports import report_outcome
from gantt.core.messages.report import HostReport, Registered
from gantt.core.messages.request import SelectDestinations
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Answer
from gantt.groups.service.group_members import GroupMembers
from gantt.scheduler.ports.hosts import ReportOutcome
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings

#: A pause of a thread that found nothing to do but knows of something that waits.
AGAIN_SECONDS = 0.05
#: How much later than its budget a call may be answered: to the database and back.
LATE_SECONDS = 1.0


@dataclasses.dataclass
class RequestSeen:
    """A call that a scheduler took in, for the judge."""

    request: SelectDestinations
    taken_at: float
    until: float
    answered_at: float | None = None


class SchedulerProcess(Process):
    """One start of one scheduler.

    :ivar requests_seen: the requests that it accepted
    :ivar idle_seconds: after which a thread polls for work that no signal announced
    :ivar late_seconds: how much later than its budget a request may be answered
    """

    idle_seconds = 0.5
    late_seconds = LATE_SECONDS

    def __init__(
        self,
        loop: Loop,
        database: SimDatabase,
        pipeline: Pipeline,
        settings: SchedulerSettings,
    ) -> None:
        super().__init__(loop, settings.worker)
        self.requests_seen: list[RequestSeen] = []
        self.ready = False
        self.clock, self.recorder = ProcessClock(self), MemoryRecorder()
        self.stores = database.line(self)
        self.scheduler = Scheduler(
            self.stores, pipeline, self.recorder, settings, self.clock, make_hook=GroupMembers
        )
        self._requests, self._reports, self._registrations = (SimSignal(loop) for _ in range(3))
        loop.spawn(self, 'start', self._start)

    # -- its threads -----------------------------------------------------------------
    def _start(self) -> None:
        while True:
            try:
                self.scheduler.cache.fetch()
                break
            except exceptions.Unavailable:
                self.loop.sleep(1.0)
        self.ready = True
        self.loop.write_trace(self.name, 'is ready')
        placing = self.scheduler.placing
        for name, part, signal, is_more in (
            ('placing', placing, self._requests, lambda: placing.admission.depth > 0),
            ('reports', self.scheduler.report_queue, self._reports, lambda: False),
            ('registrations', self.scheduler.registrations, self._registrations, lambda: False),
        ):
            self.loop.spawn(self, name, self._work, part.step, signal, is_more)
        self.loop.spawn(self, 'housekeeping', self._housekeeping)

    def _work(
        self, step: Callable[[], int], signal: SimSignal, is_more: Callable[[], bool]
    ) -> None:
        """Work off what comes, in a thread.

        :param is_more: whether something waits that it could do nothing about just now
        """
        while True:
            if step() == 0:
                signal.wait(AGAIN_SECONDS if is_more() else self.idle_seconds)
                signal.clear()

    def _housekeeping(self) -> None:
        while True:
            self.loop.sleep(max(0.005, self.scheduler.housekeeping.step()))

    # -- its door --------------------------------------------------------------------
    def take(self, method: str, message: Any, answer: network.Answer) -> None:
        """Take a call: each has a task, as it has a thread of the pool."""
        self.loop.spawn(self, method, self._handle, method, message, answer)

    def _handle(self, method: str, message: Any, answer: network.Answer) -> None:
        try:
            if method == 'select_destinations':
                self._select(message, answer)
            elif method == 'report':
                self._report(message, answer)
            elif method == 'register_host':
                future = self.scheduler.register_soon(message)
                self._registrations.set()
                future.add_done_callback(lambda done: answer(*_registered(done)))
            else:
                answer(getattr(self.scheduler, method)(message), None)
        except exceptions.GanttError as e:
            answer(None, e)

    def _select(self, request: SelectDestinations, answer: network.Answer) -> None:
        now = self.loop.now
        requests_seen = RequestSeen(request, now, now + request.budget_ms / 1000)
        self.requests_seen.append(requests_seen)
        try:
            self.scheduler.submit(request, (requests_seen, answer), self)
        except exceptions.GanttError:
            requests_seen.answered_at = self.loop.now
            raise
        self._requests.set()

    def send(self, answers: Sequence[tuple[object, Answer]]) -> None:
        """Send as the Replies port."""
        for handle, answer_sent in answers:
            requests_seen, answer = cast(tuple[RequestSeen, network.Answer], handle)
            if requests_seen.answered_at is not None:
                self.loop.defects.append(f'{self.name} answered {answer_sent.request_id} twice')
            requests_seen.answered_at = self.loop.now
            self.loop.write_trace(
                self.name, f'answers {answer_sent.request_id[:8]} {answer_sent.outcome.value}'
            )
            answer(answer_sent, None)

    send_soon = send

    def _report(self, report: HostReport, answer: network.Answer) -> None:
        future = self.scheduler.report_queue.submit(report, notify=report.full)
        self._reports.set()
        if future is None:
            answer(None, None)
        else:
            future.add_done_callback(lambda done: answer(*_answer_of(report, done)))


def _answer_of(
    report: HostReport, future: 'Future[ReportOutcome]'
) -> tuple[str | None, Exception | None]:
    """Return the answer that ``Scheduler.report`` gives to its caller."""
    error = future.exception()
    if error is not None:
        return None, cast(Exception, error)
    outcome = future.result()
    if outcome.outcome == 'gone':
        current = outcome.current_epoch
        return None, exceptions.StaleEpoch(host=outcome.name, epoch=report.epoch, current=current)
    if outcome.outcome == 'unknown_host':
        return None, exceptions.NotFound(kind='host', name=outcome.name)
    return report_outcome(report, outcome.outcome, outcome.current_sequence), None


def _registered(future: 'Future[Registered]') -> tuple[Registered | None, Exception | None]:
    error = future.exception()
    return (None, cast(Exception, error)) if error is not None else (future.result(), None)


def settings(
    worker: str,
    queue_limit: int = 100,
    report_limit: int = 100,
    feed_seconds: float = plan.FEED_SECONDS,
) -> SchedulerSettings:
    """Return settings with small bounds and short periods."""
    return SchedulerSettings(
        worker=worker,
        queue_limit=queue_limit,
        report_queue_limit=report_limit,
        batch_wait_ms=0.0,
        lease_seconds=plan.LEASE_SECONDS,
        lease_seconds_max=plan.LEASE_SECONDS_MAX,
        plan_lease_seconds=plan.PLAN_LEASE_SECONDS,
        plan_lease_seconds_max=plan.PLAN_LEASE_MOST,
        sweep_seconds=plan.SWEEP_SECONDS,
        report_seconds=plan.REPORT_SECONDS,
        stale_after_seconds=3.5 * plan.REPORT_SECONDS,
        feed_seconds=feed_seconds,
        reload_seconds=plan.RELOAD_SECONDS,
        unknown_after_seconds=2.0 * plan.RELOAD_SECONDS,
        replay_seconds=0.0,
    )
