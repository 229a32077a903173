# SPDX-License-Identifier: Apache-2.0
"""Promises that hold whatever clocks say and however much is asked."""

import gc
import tracemalloc

import pytest

from devel.doubles import ManualClock
from gantt.core.records.decision import Outcome
from gantt.scheduler.request.queue import WAITERS_MAX
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from tests.world import World, a_request

HOUR = 3600.0


class Skewed:
    """A clock that runs with another but shows another time."""

    def __init__(self, true: ManualClock, hours: float) -> None:
        self._true = true
        self.ahead = hours * HOUR

    def monotonic(self) -> float:
        # Its zero is the start of a machine: it may be anything, but does not jump.
        return self._true.monotonic() + 7 * HOUR

    def wall(self) -> float:
        return self._true.wall() + self.ahead

    def sleep(self, seconds: float) -> None:
        self._true.sleep(seconds)


class SkewedWorld(World):
    """Two schedulers whose clocks are hours apart; the database's is right."""

    def __init__(self, hours: float, **options) -> None:
        super().__init__(**options)
        self.clocks = [Skewed(self.clock, hours), Skewed(self.clock, -hours)]
        self.schedulers = [
            Scheduler(
                self.store,
                self.scheduler.placing.pipeline,
                self.recorder,
                SchedulerSettings(worker=f'skewed-{n}', **self.settings),
                clock,
            )
            for n, clock in enumerate(self.clocks)
        ]
        self.scheduler = self.schedulers[0]
        for scheduler in self.schedulers:
            scheduler.cache.fetch()
        self.turn()


@pytest.mark.parametrize('hours', [0.0, 12.0, -12.0])
def test_a_lease_ends_by_the_clock_of_the_database(hours):
    world = SkewedWorld(hours, hosts=2, lease_seconds=120.0, sweep_seconds=10.0)
    first = world.select(a_request(), world.schedulers[0]).selections[0][0]
    second = world.select(a_request(), world.schedulers[1]).selections[0][0]
    world.turn(seconds=10.0, times=11)
    states = [world.store.claims.load_claim(s.claim_id).state for s in (first, second)]
    assert states == ['reserved', 'reserved']
    assert world.hosts[first.host].confirm(first.claim_id) == ['ok']
    world.turn(seconds=10.0, times=4)
    states = [world.store.claims.load_claim(s.claim_id).state for s in (first, second)]
    assert states == ['confirmed', 'expired']
    assert not any(world.audit().values())


@pytest.mark.parametrize('hours', [0.0, 12.0, -12.0])
def test_a_clock_that_steps_changes_no_outcome(hours):
    world = SkewedWorld(0.0, hosts=2)
    request = a_request()
    answer = world.select(request, world.schedulers[0])
    for clock in world.clocks:
        clock.ahead += hours * HOUR
    again = world.select(request, world.schedulers[1])
    assert again.selections == answer.selections
    # Nobody is taken for silent, and nobody who is silent for alive.
    assert world.select(a_request(), world.schedulers[1]).outcome is Outcome.PLACED
    world.turn(seconds=100.0, times=3)
    for scheduler in world.schedulers:
        assert world.select(a_request(), scheduler).outcome is Outcome.UNKNOWN


def test_a_host_whose_clock_is_wrong_is_as_alive_as_its_reports():
    world = SkewedWorld(12.0, hosts=1)
    world.turn(seconds=170.0)
    assert world.select(a_request()).outcome is Outcome.PLACED
    world.hosts['cmp-1'].report()
    world.turn(seconds=170.0)
    assert world.select(a_request(), world.schedulers[1]).outcome is Outcome.PLACED


class Nobody:
    """Callers that do not listen: what they are told is counted."""

    def __init__(self) -> None:
        self.told: dict[Outcome, int] = {}

    def send(self, answers) -> None:
        for _, answer in answers:
            self.told[answer.outcome] = self.told.get(answer.outcome, 0) + 1

    send_soon = send


def test_overload_is_turned_away_at_once_and_leaves_nothing_behind():
    world = World(hosts=2, queue_limit=20, retry_after_ms=250)
    nobody = Nobody()
    inside = [a_request() for _ in range(20)]
    for request in inside:
        world.scheduler.submit(request, object(), nobody)

    def flood(count: int) -> None:
        for _ in range(count):
            world.scheduler.submit(a_request(), object(), nobody)
        for _ in range(count):
            world.scheduler.submit(inside[0], object(), nobody)

    flood(WAITERS_MAX)
    gc.collect()
    tracemalloc.start()
    flood(1000)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    flood(4000)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert nobody.told[Outcome.BUSY] > 9000
    assert world.scheduler.placing.admission.depth == 20
    assert grown < 50_000
    world.turn(times=3)
    assert world.scheduler.placing.admission.depth == 0
    assert nobody.told[Outcome.PLACED] >= 20
    assert len(world.store.claims.list_claims(limit=1000)) == 20


def test_what_a_scheduler_remembers_does_not_grow_with_what_it_answered():
    world = World(hosts=2, queue_limit=20, replay_seconds=0.0)
    nobody = Nobody()

    def ask(count: int) -> None:
        for _ in range(count):
            world.scheduler.submit(a_request(ram=10**6), object(), nobody)
            world.scheduler.submit(a_request(dry_run=True), object(), nobody)
            world.turn(seconds=0.01)
            world.recorder.records.clear()

    ask(100)
    gc.collect()
    tracemalloc.start()
    ask(200)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    ask(600)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert nobody.told == {Outcome.NO_VALID_HOST: 900, Outcome.PLACED: 900}
    assert grown < 100_000
