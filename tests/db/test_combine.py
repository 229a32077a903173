# SPDX-License-Identifier: Apache-2.0
"""Requests of several threads that one of them does, and what happens where that fails."""

import threading
import time

import pytest

from gantt import exceptions
from gantt.core.claims.allocations import WantedAllocations
from gantt.db.engine import combine
from gantt.db.engine.combine import RequestCombiner
from tests.builders import CLEAN, a_host, uuid_of
from tests.db.conftest import SERVERS
from tests.db.test_concurrency import together
from tests.services import PATIENT


class Desk:
    """Work that stands still until it is let go on."""

    def __init__(self, works=True):
        self.works, self.go_on = works, threading.Event()
        self.alone, self.together = [], []
        self.combined = RequestCombiner(self.do_one, self.do_several)

    def do_one(self, job):
        self.go_on.wait(10)
        self.alone.append(job)

    def do_several(self, several):
        if isinstance(self.works, Exception):
            raise self.works
        if self.works:
            self.together.append(list(several))
        return self.works

    def ask(self, *jobs, key=lambda job: job):
        """All of them come while as many as may work stand still."""
        threads = []
        for job in jobs:
            work = lambda job=job: self.met(job, frozenset([key(job)]))  # noqa: E731
            threads.append(threading.Thread(target=work))
            threads[-1].start()
            time.sleep(0.02)
        self.go_on.set()
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads)

    problems: list = []

    def met(self, job, keys):
        try:
            self.combined.run(job, keys)
        except exceptions.GanttError as e:
            self.problems = [*self.problems, e]


def test_who_comes_while_others_work_is_done_together():
    desk = Desk()
    desk.ask(*range(6))
    assert sorted([*desk.alone, *(job for some in desk.together for job in some)]) == list(range(6))
    assert max(map(len, desk.together)) > 1


def test_while_one_is_held_up_another_one_goes_on():
    held_up, through = threading.Event(), []

    def alone(job):
        if job == 'held up':
            assert held_up.wait(60)
        through.append(job)

    combined = RequestCombiner(alone, lambda several: False)
    first = threading.Thread(target=combined.run, args=('held up', frozenset('a')))
    first.start()
    others = [
        threading.Thread(target=combined.run, args=(job, frozenset([job]))) for job in ('b', 'c')
    ]
    for other in others:
        other.start()
    for other in others:
        other.join(60)
    assert sorted(through) == ['b', 'c']
    held_up.set()
    first.join(60)
    assert sorted(through) == ['b', 'c', 'held up']


def test_once_nobody_is_held_up_one_works_at_a_time(monkeypatch):
    monkeypatch.setattr(combine, 'HELD_UP_SECONDS', 0.01)
    held_up, working, most = threading.Event(), [], []

    def work(several):
        working.extend(several)
        most.append(len(working))
        if 'held up' in several:
            assert held_up.wait(60)
        for job in several:
            working.remove(job)
        return True

    combined = RequestCombiner(lambda job: work([job]), work)

    def come(*jobs):
        threads = [
            threading.Thread(target=combined.run, args=(job, frozenset([job]))) for job in jobs
        ]
        for thread in threads:
            thread.start()
        return threads

    first = come('held up')
    for thread in come('b', 'c'):
        thread.join(60)
    monkeypatch.setattr(combine, 'HELD_UP_SECONDS', 60)
    held_up.set()
    for thread in first:
        thread.join(60)
    del most[:]
    combined._run_one = combined._run_together = lambda jobs: (
        most.append(len(combined._batches_began_at)) or True
    )
    for thread in come(*range(40)):
        thread.join(60)
        assert not thread.is_alive()
    assert set(most) == {1}


def test_what_cannot_be_done_together_each_does_alone():
    desk = Desk(works=False)
    desk.ask(*range(6))
    assert (sorted(desk.alone), desk.together) == (list(range(6)), [])


def test_what_several_met_each_is_told():
    desk = Desk(works=exceptions.DatabaseUnavailable(problem='gone'))
    desk.ask(*range(6))
    assert len(desk.problems) > 1
    assert len(desk.problems) + len(desk.alone) == 6


def test_nothing_with_a_key_in_common_is_done_together():
    desk = Desk()
    desk.ask(*range(8), key=lambda job: job % 2)
    assert all(len({job % 2 for job in some}) == len(some) for some in desk.together)
    assert sorted([*desk.alone, *(job for some in desk.together for job in some)]) == list(range(8))


@pytest.mark.parametrize('kind', SERVERS)
def test_many_threads_of_one_process_write(kind, open_store):
    """Each gets its own answer: what is refused does not take others with it."""
    store = open_store(kind, timeouts=PATIENT)
    host = a_host().with_room(vcpu=30).on(store)

    def write(number):
        consumers = []
        for n in range(5):
            consumer = uuid_of('consumer', number, n)
            wish = WantedAllocations(
                consumer=consumer,
                allocations={host.row.uuid: {'VCPU': 1}},
                project_id='p',
                user_id='u',
                generation=None,
            )
            try:
                store.allocations.write_allocations([wish])
                consumers.append(consumer)
            except exceptions.AllocationRefused:
                pass
        return consumers

    consumers = [
        consumer
        for some in together(*(lambda n=n: write(n) for n in range(8)))
        for consumer in some
    ]
    assert (len(consumers), host.row.used['VCPU'], store.claims.audit()) == (30, 30, CLEAN)
    assert all(
        store.allocations.load_allocations(consumer).generation == 1 for consumer in consumers
    )
    generation = store.providers.load_provider(host.row.uuid).generation
    together(
        *(
            lambda n=n: [
                store.allocations.delete_allocations(consumer) for consumer in consumers[n::8]
            ]
            for n in range(8)
        )
    )
    assert (host.row.used.get('VCPU', 0), store.claims.audit()) == (0, CLEAN)
    assert store.providers.load_provider(host.row.uuid).generation == generation
    with pytest.raises(exceptions.NotFound):
        store.allocations.delete_allocations(consumers[0])
