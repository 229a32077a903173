# SPDX-License-Identifier: Apache-2.0
"""Due times: everybody gets turns, nobody two at once, and one that fails holds up no other."""

import threading
import time

import pytest

from gantt.compute.agent.runner import PeriodicTasks, Runner
from tests.compute.test_farm import until


class Counter(PeriodicTasks):
    """Counts its turns; notices two at once."""

    def __init__(self, period: float = 0.01, takes: float = 0.0, fails: bool = False) -> None:
        self.name = 'counter'
        self.turns = 0
        self.at_once = 0
        self._period, self._takes, self._fails = period, takes, fails
        self._inside = threading.Semaphore(1)

    def turn(self) -> float:
        if not self._inside.acquire(blocking=False):
            self.at_once += 1
        try:
            self.turns += 1
            time.sleep(self._takes)
            if self._fails:
                raise RuntimeError('a defect')
            return self._period
        finally:
            self._inside.release()


@pytest.fixture
def runner():
    new_runner = Runner(threads=3)
    new_runner.start()
    yield new_runner
    assert new_runner.stop(10)


def test_each_gets_its_turns_and_never_two_at_once(runner):
    counters = [Counter(0.005, takes=0.002) for _ in range(20)]
    for counter in counters:
        runner.add(counter)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        for counter in counters:
            counter.run_within(0.0)
        time.sleep(0.001)
    assert min(c.turns for c in counters) > 5
    assert sum(c.at_once for c in counters) == 0


def test_a_turn_can_be_brought_forward_also_while_it_is_taken(runner):
    counter = Counter(period=1000.0, takes=0.1)
    runner.add(counter)
    until(lambda: counter.turns == 1)
    counter.run_within(0.0)
    until(lambda: counter.turns == 2, 5)


def test_it_is_never_put_off_by_hurry(runner):
    counter = Counter(period=0.05)
    runner.add(counter)
    for _ in range(100):
        counter.run_within(50.0)
    until(lambda: counter.turns > 3, 5)


def test_one_that_was_removed_gets_no_more(runner):
    counter = Counter()
    runner.add(counter)
    until(lambda: counter.turns > 2)
    runner.remove(counter)
    time.sleep(0.05)
    turns = counter.turns
    time.sleep(0.1)
    assert counter.turns == turns
    assert len(runner) == 0
    counter.run_within(0.0)


def test_a_defect_of_one_does_not_end_the_others(runner, caplog):
    broken, sound = Counter(fails=True), Counter()
    runner.add(broken)
    runner.add(sound)
    until(lambda: sound.turns > 5 and broken.turns == 1)
    assert 'Turn of a host failed' in caplog.text


def test_a_job_beside_the_turns_runs_once(runner):
    counter = Counter(period=1000.0)
    runner.add(counter)
    threads = []
    counter.run_in_background(lambda: threads.append(threading.current_thread()))
    until(lambda: threads)
    time.sleep(0.05)
    assert len(threads) == 1
    assert len(runner) == 1


def test_the_first_turn_can_be_put_off(runner):
    counter = Counter(period=1000.0)
    began = time.monotonic()
    runner.add(counter, 0.3)
    until(lambda: counter.turns == 1)
    assert time.monotonic() - began >= 0.3
