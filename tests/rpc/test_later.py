# SPDX-License-Identifier: Apache-2.0
"""The timer thread: what waits for it, and what does not any more."""

import threading
import weakref

import pytest

from gantt.rpc.amqp.timers import DelayedExecutor
from tests.rpc.facade import until


class Job:
    def __init__(self):
        self.done = threading.Event()

    def __call__(self):
        self.done.set()


@pytest.fixture
def later():
    executor = DelayedExecutor(3)
    executor.start()
    yield executor
    executor.stop()


def test_there_is_room_for_so_many_and_for_more_where_one_is_given_up(later):
    numbers = [later.after(600.0, Job()) for _ in range(3)]
    assert all(numbers)
    assert later.after(0.0, Job()) == 0
    later.give_up(numbers[1])
    assert later.depth == 2
    job = Job()
    assert later.after(0.0, job)
    assert job.done.wait(10)
    assert until(lambda: later.depth == 2)
    assert later.stop() == 2
    assert later.after(0.0, Job()) == 0


def test_a_job_that_is_given_up_is_not_run_and_let_go_of(later):
    job, last = Job(), Job()
    ended, gone = job.done, weakref.ref(job)
    later.give_up(later.after(0.2, job))
    del job
    assert gone() is None
    later.after(0.3, last)
    assert last.done.wait(10)
    assert not ended.is_set()


def test_places_of_jobs_that_were_given_up_do_not_pile_up(later):
    kept, jobs = [later.after(600.0, Job()) for _ in range(2)], 2000
    for _ in range(jobs):
        later.give_up(later.after(600.0, Job()))
    assert len(later._order) < jobs / 10
    assert later.stop() == len(kept)


def test_to_give_up_what_has_run_changes_nothing(later):
    job = Job()
    number = later.after(0.0, job)
    assert job.done.wait(10)
    later.give_up(number)
    assert until(lambda: later.depth == 0)
