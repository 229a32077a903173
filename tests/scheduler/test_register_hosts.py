# SPDX-License-Identifier: Apache-2.0
"""Hosts that register together: each gets its own answer."""

import dataclasses
import threading
import time

import pytest

from devel.doubles import MemoryRecorder
from devel.memory_store.database import MemoryDatabase
from devel.memory_store.reports import MemoryReports
from devel.memory_store.stores import memory_stores
from gantt import exceptions
from gantt.core.messages.report import RegisterHost
from gantt.scheduler import register_hosts, work_queue
from gantt.scheduler.claims import ClaimUpdates
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.host_signatures import ForgeryAlarm
from gantt.scheduler.register_hosts import RegistrationQueue
from gantt.scheduler.settings import SchedulerSettings


class Gate(MemoryReports):
    """A store that registers when it may, notes how many at a time, and fails on demand."""

    def __init__(self):
        super().__init__(MemoryDatabase(), 60)
        self.open = threading.Event()
        self.asked = threading.Event()
        self.sizes = []
        self.broken = set()
        self.away = False
        self.locked = set()

    def register_hosts(self, messages):
        self.asked.set()
        self.open.wait(20)
        self.sizes.append(len(messages))
        if self.away or self.locked & {message.name for message in messages}:
            raise exceptions.DatabaseUnavailable(problem='no answer')
        if self.broken & {message.name for message in messages}:
            raise ZeroDivisionError('of one of them')
        return super().register_hosts(messages)


def a_claims(gate):
    store = dataclasses.replace(memory_stores(), reports=gate)
    cache = HostCache(store.feed, store.vocabulary, SystemClock(), 60)
    recorder = MemoryRecorder()
    alarm = ForgeryAlarm(recorder.count, time.monotonic)
    return ClaimUpdates(
        store.claims,
        store.requests,
        store.reports,
        cache,
        recorder,
        SchedulerSettings(report_seconds=7),
        alarm,
    )


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def registrations(gate):
    queue = RegistrationQueue(a_claims(gate), MemoryRecorder())
    queue.work_queue.start()
    yield queue
    gate.open.set()
    assert queue.work_queue.stop(5)


def said(name, nonce='n'):
    return RegisterHost(name=name, boot_nonce=nonce)


def held(registrations, gate, *messages):
    """Futures of what came while something else was being registered."""
    first = registrations.submit(said('first'))
    assert gate.asked.wait(10)
    futures = [registrations.submit(message) for message in messages]
    gate.open.set()
    assert first.result(10).epoch == 1
    return futures


def test_what_comes_meanwhile_is_registered_in_one_go(registrations, gate):
    futures = held(registrations, gate, *[said(f'cmp-{n}') for n in range(30)])
    hosts = [future.result(10) for future in futures]
    assert [host.name for host in hosts] == [f'cmp-{n}' for n in range(30)]
    assert {host.report_seconds for host in hosts} == {7}
    assert gate.sizes == [1, 30]


def test_a_host_that_comes_twice_sees_its_first_word_done(registrations, gate):
    words = [said('cmp-1', 'a'), said('cmp-2'), said('cmp-1', 'b'), said('cmp-1', 'b')]
    futures = held(registrations, gate, *words)
    assert [future.result(10).epoch for future in futures] == [1, 1, 2, 2]


def test_one_that_cannot_be_stored_costs_the_others_nothing(registrations, gate):
    gate.broken = {'cmp-2'}
    first, second, third = held(registrations, gate, said('cmp-1'), said('cmp-2'), said('cmp-3'))
    assert (first.result(10).name, third.result(10).name) == ('cmp-1', 'cmp-3')
    with pytest.raises(ZeroDivisionError):
        second.result(10)


def test_one_that_somebody_has_locked_costs_the_others_nothing(registrations, gate):
    gate.locked = {'cmp-2', 'cmp-4'}
    futures = held(registrations, gate, *[said(f'cmp-{n}') for n in range(1, 7)])
    problems = [type(future.exception(10)) for future in futures]
    away = exceptions.DatabaseUnavailable
    assert problems == [type(None), away, type(None), away, type(None), type(None)]


def test_where_the_database_is_away_two_tries_tell_all(registrations, gate):
    gate.away = True
    words = [said(f'cmp-{n}') for n in range(50)]
    first = registrations.submit(said('first'))
    assert gate.asked.wait(10)
    futures = [registrations.submit(message) for message in words]
    gate.open.set()
    assert all(
        isinstance(future.exception(10), exceptions.DatabaseUnavailable)
        for future in (first, *futures)
    )
    assert gate.sizes == [1, 50, 1, 1]


def test_where_the_database_is_away_all_are_told(registrations, gate):
    gate.away = True
    gate.open.set()
    with pytest.raises(exceptions.DatabaseUnavailable):
        registrations.submit(said('cmp-1')).result(10)
    gate.away = False
    assert registrations.submit(said('cmp-1')).result(10).epoch == 1


def test_there_is_a_bound(registrations, gate, monkeypatch):
    monkeypatch.setattr(registrations.work_queue._queue, 'maxsize', 2)
    first = registrations.submit(said('first'))
    assert gate.asked.wait(10)
    futures = [registrations.submit(said(f'cmp-{n}')) for n in range(2)]
    with pytest.raises(exceptions.Busy, match='registered'):
        registrations.submit(said('cmp-9'))
    gate.open.set()
    assert all(future.result(10) for future in (first, *futures))


def test_what_was_taken_is_registered_before_it_stops(gate):
    registrations = RegistrationQueue(a_claims(gate), MemoryRecorder())
    registrations.work_queue.start()
    futures = held(registrations, gate, *[said(f'cmp-{n}') for n in range(250)])
    assert registrations.work_queue.stop(10)
    assert all(future.done() for future in futures)
    assert max(gate.sizes) == register_hosts.BATCH_REGISTRATIONS_MAX


def test_where_nothing_waits_it_ends_without_another_round(gate, monkeypatch):
    monkeypatch.setattr(work_queue, 'IDLE_SECONDS', 1000.0)
    registrations = RegistrationQueue(a_claims(gate), MemoryRecorder())
    gate.open.set()
    registrations.work_queue.start()
    registrations.submit(said('cmp-1')).result(10)
    assert registrations.work_queue.stop(60)
    assert registrations.work_queue.depth == 0
