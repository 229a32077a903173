# SPDX-License-Identifier: Apache-2.0
"""Requests over zones take turns by project, and the project that has the most gives way."""

import threading

import msgspec
import pytest

from devel.doubles import MemoryRecorder
from gantt.core.claims.request_state import RequestEvent
from gantt.core.records.decision import Answer, Outcome
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.request.life import RequestTransition
from gantt.scheduler.request.queue import RequestQueue
from gantt.scheduler.request.serial import SerialLoop
from gantt.zones.service.place_over_zones import THREADS_MAX, WAITING_MAX, RequestThreads
from gantt.zones.service.request_lock import PendingZoneRequest
from gantt.zones.service.threads import ThreadPool
from tests.world import World, a_request

SECONDS = 30.0


class Requests:
    """Requests that wait until they are let go; what they were answered, in order."""

    def __init__(self) -> None:
        clock, weights = SystemClock(), {'heavy': 100.0}
        queue = RequestQueue(THREADS_MAX + WAITING_MAX, 500, clock, weights, 'under way')
        loop = SerialLoop(queue, self, World().store.requests, MemoryRecorder(), clock, 'w')
        self.carried = RequestThreads(loop, ThreadPool(THREADS_MAX, 'test'))
        self.go, self.done = threading.Event(), threading.Condition()
        self.answers: list[tuple[str, Outcome]] = []

    def send(self, replies) -> None:
        with self.done:
            self.answers += [(project, answer.outcome) for project, answer in replies]
            self.done.notify_all()

    send_soon = send

    # -- as a planner of them -----------------------------------------------------------
    def attempt(self, call) -> RequestTransition:
        self.go.wait(SECONDS)
        request_id = call.request.request_id
        answer = Answer(request_id=request_id, decision_id='d', outcome=Outcome.PLACED)
        return RequestTransition(RequestEvent.PLACED, answer)

    def end_before_step(self, call, is_late) -> None:
        assert not is_late

    def answered(self, call, answer) -> None:
        pass

    def ask(self, project: str, count: int = 1) -> None:
        for _ in range(count):
            template = a_request()
            spec = msgspec.structs.replace(template.spec, project_id=project)
            request = msgspec.structs.replace(template, spec=spec, budget_ms=60_000)

            deadline = SystemClock().monotonic() + 60.0
            call = PendingZoneRequest(request, deadline, 1, may_go_down=True)
            self.carried.enter(call, project, self)

    def all_answered(self, count: int) -> list[tuple[str, Outcome]]:
        self.go.set()
        with self.done:
            assert self.done.wait_for(lambda: len(self.answers) >= count, SECONDS)
        return self.answers


@pytest.fixture
def requests():
    turns = Requests()
    yield turns
    turns.go.set()
    assert turns.carried.stop(SECONDS)


def test_a_small_project_does_not_wait_for_all_of_a_greedy_one(requests):
    requests.ask('greedy', THREADS_MAX + 100)
    requests.ask('small', 2)
    answers = requests.all_answered(THREADS_MAX + 102)
    last = max(n for n, (project, _) in enumerate(answers) if project == 'small')
    # Those whom threads had already, and those who came to an end beside it.
    assert last < 3 * THREADS_MAX
    assert {outcome for _, outcome in answers} == {Outcome.PLACED}


def test_where_as_many_wait_as_may_the_one_with_the_most_gives_way(requests):
    requests.ask('greedy', THREADS_MAX + WAITING_MAX)
    requests.ask('small', 3)
    assert requests.answers == [('greedy', Outcome.BUSY)] * 3
    requests.ask('greedy', 2)
    assert requests.answers == [('greedy', Outcome.BUSY)] * 5
    answers = requests.all_answered(THREADS_MAX + WAITING_MAX + 5)
    assert [outcome for project, outcome in answers if project == 'small'] == [Outcome.PLACED] * 3


def test_a_project_of_more_weight_may_have_more_waiting(requests):
    requests.ask('heavy', THREADS_MAX + WAITING_MAX)
    requests.ask('small', 10)
    # A weight of 100 is worth as much as a hundred projects: 256 of it are fewer than 3 of one.
    assert requests.answers == [('heavy', Outcome.BUSY)] * 2 + [('small', Outcome.BUSY)] * 8
