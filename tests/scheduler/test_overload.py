# SPDX-License-Identifier: Apache-2.0
"""P10: far more than fits is told "busy, retry after"; memory stays as it is.

The whole scheduler with its own threads over an SQLite file, and callers that
ask from many threads, repeat themselves and never look at an answer.
"""

import collections
import gc
import threading
import time
import tracemalloc

import pytest

from gantt import exceptions, plugin_loader
from gantt.core.claims.commit import DecisionRecord
from gantt.core.messages.report import Running
from gantt.core.records.decision import Outcome
from gantt.scheduler import update_resource_stats
from gantt.scheduler.recorder import StoreRecorder
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from gantt.stores import stores_for_url
from gantt.telemetry.metrics import MetricRegistry
from tests.builders import a_host
from tests.world import Host, World, a_request, new_uuid

LIMIT = 10
THREADS = 4
#: What may stay allocated from one phase to the next, in bytes; a request is about 2,000.
GROWTH_MAX = 200_000


class Nobody:
    """Is told and keeps nothing but counts."""

    def __init__(self) -> None:
        self.told: collections.Counter[Outcome] = collections.Counter()
        self.without_hint = 0
        self._lock = threading.Lock()

    def send(self, answers) -> None:
        with self._lock:
            for _, answer in answers:
                self.told[answer.outcome] += 1
                busy = answer.outcome is Outcome.BUSY
                self.without_hint += busy and answer.retry_after_ms != 250

    send_soon = send


class Flood:
    """A scheduler, and threads that ask without end."""

    def __init__(self, path) -> None:
        self.store = stores_for_url(f'sqlite:///{path}')
        a_host().on(self.store)
        self.metrics = MetricRegistry()
        self.recorder = StoreRecorder(self.store.records, self.metrics, 100)
        self.scheduler = Scheduler(
            self.store,
            plugin_loader.load_pipeline(),
            self.recorder,
            SchedulerSettings(
                queue_limit=LIMIT,
                retry_after_ms=250,
                decisions_stored=200,
                purge_seconds=0.2,
                decision_queue_limit=100,
                stale_after_seconds=1e6,
            ),
        )
        self.nobody = Nobody()
        self.deepest = 0
        self.scheduler.start()

    def phase(self, each: int) -> None:
        """``each`` requests from every thread, each asked three times; then quiet."""
        threads = [threading.Thread(target=self._ask, args=(each,)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        end = time.monotonic() + 60
        while self.scheduler.placing.admission.depth:
            assert time.monotonic() < end, 'what is inside does not end'
            time.sleep(0.01)
        # What waits to be written grows with the load of the machine, within its bounds.
        self.recorder.flush()
        self.scheduler.cache.log.flush(self.store.table_logs)

    def _ask(self, each: int) -> None:
        for number in range(each):
            # Some fit, most do not; some are asked dry.
            request = a_request(ram=1 if number % 50 == 0 else 10**6, dry_run=number % 3 == 0)
            for _ in range(3):
                self.scheduler.submit(request, object(), self.nobody)
            self.deepest = max(self.deepest, self.scheduler.placing.admission.depth)

    def close(self) -> None:
        assert self.scheduler.stop(30)
        self.store.database.close()


@pytest.fixture
def flood(tmp_path):
    new_flood = Flood(tmp_path / 'gantt.sqlite')
    yield new_flood
    new_flood.close()


def test_a_flood_is_turned_away_with_a_hint_and_memory_stays_flat(flood):
    flood.phase(400)
    gc.collect()
    tracemalloc.start()
    try:
        flood.phase(400)
        gc.collect()
        sizes = [tracemalloc.get_traced_memory()[0]]
        for _ in range(2):
            flood.phase(800)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    outcomes = flood.nobody.told
    assert outcomes.total() == 2400 * THREADS * 3, 'everybody is answered, once'
    assert outcomes[Outcome.BUSY] > outcomes.total() / 2
    assert outcomes[Outcome.NO_VALID_HOST] > 0
    assert flood.nobody.without_hint == 0
    assert 0 < flood.deepest <= LIMIT
    # Statements that are seen for the first time stay compiled, in whichever phase that is.
    assert min(sizes[1] - sizes[0], sizes[2] - sizes[1]) < GROWTH_MAX
    assert not any(flood.store.claims.audit().values())


def test_what_was_turned_away_left_no_row(flood):
    flood.phase(300)
    placed = flood.nobody.told[Outcome.PLACED]
    assert len(flood.store.claims.list_claims(limit=1000)) <= placed


def test_reports_beyond_the_limit_are_turned_away_with_a_hint():
    world = World(hosts=1, report_queue_limit=10)
    host: Host = world.hosts['cmp-1']
    for _ in range(10):
        host.report()
    for _ in range(1000):
        with pytest.raises(exceptions.Busy) as caught:
            host.report()
        assert caught.value.kwargs['retry_after_ms'] > 0
    assert world.scheduler.report_queue.work_queue.depth == 10
    world.turn()
    assert world.scheduler.report_queue.work_queue.depth == 0
    host.report()


def test_reports_of_too_many_bytes_are_turned_away_until_others_are_folded(monkeypatch):
    monkeypatch.setattr(update_resource_stats, 'WAITING_BYTES_MAX', 60_000)
    world = World(hosts=2)
    large, small = world.hosts.values()
    guests, more = ([Running(consumer=new_uuid()) for _ in range(990)] for _ in range(2))
    large.report(running=guests)
    small.report()
    with pytest.raises(exceptions.Busy):
        large.report(running=guests)
    small.report()
    world.turn()
    assert world.scheduler.report_queue.work_queue.depth == 0
    # One alone always has room, however large it is.
    large.report(running=guests + more)
    world.turn()
    large.report(running=guests)


def test_names_of_a_report_count_as_its_guests_do(monkeypatch):
    monkeypatch.setattr(update_resource_stats, 'WAITING_BYTES_MAX', 60_000)
    world = World(hosts=1)
    traits = [f'CUSTOM_{n:0200}' for n in range(200)]
    (host,) = world.hosts.values()
    host.report(traits=traits)
    with pytest.raises(exceptions.Busy):
        host.report(traits=traits)


def test_decisions_that_wait_too_long_are_dropped_oldest_first(flood):
    metrics = MetricRegistry()
    recorder = StoreRecorder(flood.store.records, metrics, 10)
    ids = [new_uuid() for _ in range(1000)]
    for decision_id in ids:
        recorder.record(
            DecisionRecord(id=decision_id, request_id=new_uuid(), outcome='no_valid_host')
        )
    assert metrics.value('gantt_decisions_dropped_total') == 990
    assert recorder.flush() == 10
    assert flood.store.records.load_decision(ids[-1]) is not None
    assert flood.store.records.load_decision(ids[-11]) is None


def test_a_repeat_of_what_was_turned_away_is_taken_when_there_is_room():
    world = World(hosts=1, queue_limit=1)
    first, second = a_request(), a_request(request_id=new_uuid())
    handles = [world.ask(first), world.ask(second)]
    assert world.replies.answers[handles[1]].outcome is Outcome.BUSY
    world.turn(times=3)
    assert world.select(second).outcome is Outcome.PLACED
    assert len(world.store.claims.list_claims()) == 2


def test_every_answer_of_a_batch_is_measured_by_its_outcome():
    world = World(hosts=1)
    world.recorder.observe_all = (metrics := MetricRegistry()).observe_all
    for vcpu in (1, 1, 1000, 2):
        world.ask(a_request(vcpu=vcpu))
    assert world.scheduler.placing.step() == 4
    assert metrics.value('gantt_decision_duration_seconds', outcome='placed') == 3
    assert metrics.value('gantt_decision_duration_seconds', outcome='no_valid_host') == 1
