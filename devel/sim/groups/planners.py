# SPDX-License-Identifier: Apache-2.0
"""A process that plans groups: the production planner, its thread as a task, and its door."""

import dataclasses
import random
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, cast

from devel.doubles import MemoryRecorder
from devel.sim import network
from devel.sim.database import SimDatabase
from devel.sim.loop import Loop, Process, ProcessClock, SimSignal
from gantt import exceptions
from gantt.core.claims.commit import CommitResult, RequestDraft
from gantt.core.placement.pipeline import Pipeline
from gantt.groups.model.group_answer import GroupAnswer
from gantt.groups.model.model import Counts, Model, SolverGoal, SolverResult
from gantt.groups.model.place_group import ChangeGroup, PlaceGroup
from gantt.groups.service.planner import GroupPlanner
from gantt.groups.service.settings import PlannerSettings
from gantt.scheduler.ports.requests import Requests
from gantt.scheduler.settings import SchedulerSettings

#: Between two polls of its thread for work that no signal announced.
IDLE_SECONDS = 0.5
#: A solver takes so long at most, and so does a plan on its way to its commit: others claim, report
#: and die meanwhile.
SOLVE_SECONDS_MAX = 2.0
#: The method of the planner for each call, beside those that are queued.
AT_ONCE = {
    'show_group_plan': 'show',
    'extend_group_plan': 'extend',
    'release_group_plan': 'release',
}


class SimSolver:
    """A solver that takes virtual time and proves nothing, or fails.

    No plan depends on how fast the machine is: search ends after a number of rounds without a
    better plan, as the clock does not advance while it runs.
    """

    def __init__(self, loop: Loop, rng: random.Random) -> None:
        self._loop, self._rng = loop, rng

    def solve(
        self,
        model: Model,
        goal: SolverGoal,
        *,
        seconds: float,
        seed: int,
        hint: Counts | None = None,
        free: Sequence[int] | None = None,
    ) -> SolverResult:
        """Solve as the port has it."""
        self._loop.sleep(self._rng.uniform(0.0, min(seconds, SOLVE_SECONDS_MAX)))
        problem = 'the solver was killed' if self._rng.random() < 0.1 else ''
        return SolverResult('unknown', problem=problem)


class SlowCommits:
    """Requests of a planner: time passes from its last read of the hosts to its commit."""

    def __init__(self, line: Requests, loop: Loop, rng: random.Random) -> None:
        self._line, self._loop, self._rng = line, loop, rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._line, name)

    def commit(self, batch: Sequence[RequestDraft]) -> CommitResult:
        """Commit as the port has it."""
        if self._rng.random() < 0.5:
            self._loop.sleep(self._rng.uniform(0.0, SOLVE_SECONDS_MAX))
        return self._line.commit(batch)


@dataclasses.dataclass
class PlanCall:
    """A call about a group that a planner took in, for the judge."""

    request: PlaceGroup | ChangeGroup
    until: float
    answered_at: float | None = None


class PlannerProcess(Process):
    """One start of one planner.

    :ivar calls_seen: calls to plan a group
    """

    def __init__(
        self,
        loop: Loop,
        database: SimDatabase,
        pipeline: Pipeline,
        settings: SchedulerSettings,
        bounds: PlannerSettings,
        rng: random.Random,
    ) -> None:
        super().__init__(loop, settings.worker)
        self.calls_seen: list[PlanCall] = []
        self.ready = False
        line = database.line(self)
        self.planner = GroupPlanner(
            dataclasses.replace(
                line, requests=cast(Requests, SlowCommits(line.requests, loop, rng))
            ),
            pipeline,
            MemoryRecorder(),
            settings,
            bounds,
            ProcessClock(self),
            SimSolver(loop, rng),
        )
        self._work = SimSignal(loop)
        loop.spawn(self, 'start', self._start)

    def _start(self) -> None:
        while True:
            try:
                self.planner.cache.fetch()
                break
            except exceptions.Unavailable:
                self.loop.sleep(1.0)
        self.ready = True
        self.loop.write_trace(self.name, 'is ready')
        while True:
            if self.planner.step() == 0:
                self._work.wait(IDLE_SECONDS)
                self._work.clear()

    # -- its door --------------------------------------------------------------------
    def take(self, method: str, message: Any, answer: network.Answer) -> None:
        """Take a call: each has a task, as it has a thread of the pool."""
        self.loop.spawn(self, method, self._handle, method, message, answer)

    def _handle(self, method: str, message: Any, answer: network.Answer) -> None:
        try:
            if method in AT_ONCE:
                answer(getattr(self.planner, AT_ONCE[method])(message), None)
            else:
                self._submit(message, answer)
        except exceptions.GanttError as e:
            answer(None, e)

    def _submit(self, request: PlaceGroup | ChangeGroup, answer: network.Answer) -> None:
        """Queue a group; the caller is answered when it is planned, or has to call again."""
        budget = request.budget_ms / 1000
        call = PlanCall(request, self.loop.now + budget)
        self.calls_seen.append(call)
        try:
            future = self.planner.submit(request)
        except exceptions.GanttError:
            call.answered_at = self.loop.now
            raise
        self._work.set()

        def send(value: object, error: Exception | None) -> None:
            if self.alive and call.answered_at is None:
                call.answered_at = self.loop.now
                answer(value, error)

        busy = exceptions.Busy(reason='the group is being planned', retry_after_ms=1000)
        self.loop.at(budget, send, None, busy)
        future.add_done_callback(lambda done: self._planned(request, done, send))

    def _planned(
        self,
        request: PlaceGroup | ChangeGroup,
        done: 'Future[GroupAnswer]',
        send: network.Answer,
    ) -> None:
        error = done.exception()
        if not self.alive:
            return
        result = f'revision {done.result().revision}' if error is None else type(error).__name__
        self.loop.write_trace(self.name, f'answers {request.request_id[:8]} {result}')
        if error is None:
            send(done.result(), None)
        elif isinstance(error, Exception):
            send(None, error)
