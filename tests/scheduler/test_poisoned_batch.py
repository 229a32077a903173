# SPDX-License-Identifier: Apache-2.0
"""One request that nobody can place for a defect of ours costs the others nothing."""

import dataclasses
import threading

import pytest

from devel.doubles import MemoryRecorder
from devel.memory_store.requests import MemoryRequests
from devel.memory_store.stores import memory_stores
from gantt import plugin_loader
from gantt.core.records.decision import Outcome
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.work_queue import WaitingReplies
from tests.builders import CLEAN, a_host
from tests.world import a_request


class Touchy(MemoryRequests):
    """Requests of which it cannot take some, before a batch is written or after it."""

    def __init__(self, database, when):
        super().__init__(database)
        self.open = threading.Event()
        self.entered = threading.Event()
        self.poison = set()
        self._when = when

    def commit(self, batch):
        self.entered.set()
        self.open.wait(20)
        is_poisoned = any(draft.id in self.poison for draft in batch)
        if is_poisoned and self._when == 'before':
            raise OverflowError('a number that is too large')
        result = super().commit(batch)
        if is_poisoned:
            raise ZeroDivisionError('afterwards')
        return result


def touchy_store(when):
    stores = memory_stores(clock=SystemClock())
    return dataclasses.replace(stores, requests=Touchy(stores.database, when))


@pytest.fixture(params=['before', 'after'])
def store(request):
    return touchy_store(request.param)


@pytest.fixture
def scheduler(store):
    a_host('cmp-1').with_room(vcpu=100, ram=1_000_000, disk=10_000).on(store).report()
    process = Scheduler(
        store,
        plugin_loader.load_pipeline(),
        MemoryRecorder(),
        SchedulerSettings(worker='w', order_by_cost=False),
    )
    process.start()
    yield process
    store.requests.open.set()
    assert process.stop(10)


def test_the_others_of_its_batch_are_placed_and_it_alone_fails(store, scheduler):
    first, bad, *good = [a_request(budget_ms=20_000) for _ in range(9)]
    store.requests.poison = {bad.request_id}
    waiting = {}
    for request in (first, *good[:4], bad, *good[4:]):
        waiting[request.request_id] = request, WaitingReplies()
        scheduler.submit(request, None, waiting[request.request_id][1])
        if request is first:
            # The rest comes while this one is being committed, and is a batch.
            assert store.requests.entered.wait(10)
    store.requests.open.set()
    answers = {rid: waiter.wait(request, 20) for rid, (request, waiter) in waiting.items()}
    failed = answers.pop(bad.request_id)
    assert {answer.outcome for answer in answers.values()} == {Outcome.PLACED}
    assert failed.outcome is not Outcome.PLACED
    live = {claim.request_id for claim in store.claims.list_claims() if claim.is_live}
    assert set(answers) <= live <= {*answers, bad.request_id}
    assert store.claims.audit() == CLEAN
    assert scheduler.recorder.counts['gantt_commit_failures_total'] >= 2


def test_what_fails_once_an_answer_is_on_its_way_costs_no_answer_and_no_thread():
    """Who is told of answers, as the log, fails each time."""
    store = touchy_store('before')
    a_host('cmp-1').with_room(vcpu=100, ram=1_000_000, disk=10_000).on(store).report()

    def fail(*_args):
        raise OSError('no space is left for the log')

    pipeline, settings = (
        plugin_loader.load_pipeline(),
        SchedulerSettings(worker='w', order_by_cost=False),
    )
    scheduler = Scheduler(store, pipeline, MemoryRecorder(), settings, on_answers=fail)
    store.requests.open.set()
    scheduler.start()
    try:
        asked = [a_request(budget_ms=20_000) for _ in range(3)]
        asked.append(a_request(budget_ms=20_000, vcpu=1000))
        answers = [scheduler.select(request) for request in asked]
    finally:
        assert scheduler.stop(10)
    assert [answer.outcome for answer in answers] == [Outcome.PLACED] * 3 + [Outcome.NO_VALID_HOST]
    assert store.claims.audit() == CLEAN
