# SPDX-License-Identifier: Apache-2.0
"""Events for who follows: each at least once, in the process that gave the cursor exactly once."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devel.doubles import ManualClock
from gantt import exceptions
from gantt.insights import event_log
from gantt.insights.event_log import EventFilter, EventLog
from gantt.insights.views import EventEntry
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.host_cache import HostFollower
from gantt.stores import AllStores
from tests.builders import a_draft, a_host, claimed
from tests.conftest import READERS
from tests.thorough import examples
from tests.world import sqlite_store


@pytest.fixture(params=READERS)
def store(request: pytest.FixtureRequest, make_store: Callable[[str], AllStores]) -> AllStores:
    return make_store(request.param)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question reads."""
    monkeypatch.setattr(event_log, 'LOOK_SECONDS', 0.0)


def a_log(store: AllStores, **options: Any) -> EventLog:
    """Of a process of its own."""
    return EventLog(store.hosts, HostFollower(store.feed, store.vocabulary, **options))


class Follower:
    """Asks again and again, each time one of several processes."""

    def __init__(self, *logs: EventLog, limit: int = 100) -> None:
        self.logs, self._limit = logs, limit
        self.cursor = logs[0].after(None, 1).cursor
        self.seen: list[EventEntry] = []

    def ask(self, number: int = 0) -> list[EventEntry]:
        page = self.logs[number].after(self.cursor, self._limit)
        self.cursor = page.cursor
        self.seen += page.events
        return page.events


def said(events: list[EventEntry]) -> list[tuple[str, str, str]]:
    return [(event.host, event.kind, event.actor) for event in events]


def test_what_happens_is_told_once_and_in_order(store):
    first, second = a_host('cmp-1').on(store), a_host('cmp-2').on(store)
    follower = Follower(a_log(store))
    follower.ask()
    follower.seen.clear()
    store.hosts.disable_host('cmp-2', 'disk swap', 'ann')
    [claim] = claimed(store, a_draft().taking(first))
    fresh = [event for event in follower.ask() if event.kind not in ('registered', 'facts')]
    assert sorted(said(fresh)) == [('cmp-1', 'claimed', ''), ('cmp-2', 'disabled', 'ann')]
    assert [event.claim_id for event in fresh if event.kind == 'claimed'] == [claim.id]
    assert follower.ask() == []
    first.confirm(claim)
    assert [(e.kind, e.claim_id) for e in follower.ask()] == [('confirmed', claim.id)]
    store.hosts.enable_host('cmp-2', 'bob')
    assert said(follower.ask()) == [('cmp-2', 'enabled', 'bob')]
    second.register()
    assert said(follower.ask()) == [('cmp-2', 'registered', '')]
    assert follower.ask() == []


def test_a_host_that_is_removed_is_told_by_its_name(store):
    a_host('cmp-1').on(store)
    follower = Follower(a_log(store))
    store.hosts.remove_host('cmp-1')
    assert ('cmp-1', 'removed') in [(e.host, e.kind) for e in follower.ask()]


def test_pages_leave_nothing_out(store):
    for number in range(5):
        a_host(f'cmp-{number}').on(store)
    follower = Follower(a_log(store), limit=2)
    for number in range(5):
        store.hosts.disable_host(f'cmp-{number}', 'why', 'ann')
    while follower.ask():
        pass
    disabled = [e.host for e in follower.seen if e.kind == 'disabled']
    assert sorted(disabled) == [f'cmp-{number}' for number in range(5)]


def test_another_process_goes_on_where_it_was_asked_before(store):
    a_host('cmp-1').on(store)
    first, second = a_log(store), a_log(store)
    second.after(None, 1)
    # A process begins to cover with its first question, and clocks are known to a second.
    follower = Follower(first, second)
    for log in (first, second):
        log._covers -= 2 * event_log.SLACK_SECONDS
    store.hosts.disable_host('cmp-1', 'why', 'ann')
    assert ('cmp-1', 'disabled', 'ann') in said(follower.ask(1))
    store.hosts.enable_host('cmp-1', 'bob')
    assert ('cmp-1', 'enabled', 'bob') in said(follower.ask(0))


def test_a_process_that_was_not_asked_before_says_so(store):
    a_host('cmp-1').on(store)
    follower = Follower(a_log(store), a_log(store))
    with pytest.raises(exceptions.EventsGone, match='is not remembered here') as caught:
        follower.ask(1)
    assert caught.value.http_status == 410
    assert caught.value.kwargs['after'] == follower.cursor


@pytest.mark.parametrize('bound', ['REMEMBERED', 'READ_MAX', 'NAMED_HOSTS_MAX'])
def test_what_is_too_much_is_told_and_not_left_out_in_silence(store, monkeypatch, bound):
    monkeypatch.setattr(event_log, bound, 2)
    for number in range(4):
        a_host(f'cmp-{number}').on(store)
    log = a_log(store)
    follower = Follower(log)
    other = Follower(log)
    for number in range(4):
        store.hosts.disable_host(f'cmp-{number}', 'why', 'ann')
    with pytest.raises(exceptions.EventsGone):
        follower.ask()
    with pytest.raises(exceptions.EventsGone):
        other.ask()
    again = Follower(log)
    assert again.ask() == []


@pytest.mark.parametrize('cursor', ['', 'x', '12345678-1', 'zzzzzzzz-1-1.000', '1' * 64])
def test_what_is_no_cursor_is_refused_by_name(cursor):
    with pytest.raises(exceptions.InvalidMessage, match=r'query\.after: expected the cursor'):
        a_log(sqlite_store(SystemClock())).after(cursor, 1)


def test_who_waits_is_answered_when_something_happens_or_the_process_ends():
    store = sqlite_store(SystemClock())
    a_host('cmp-1').on(store)
    log = a_log(store)
    cursor = log.after(None, 1).cursor
    pages: list[Any] = []

    def waits(condition: EventFilter) -> None:
        pages.append(log.wait(cursor, 10, 600.0, condition))

    threads = [
        threading.Thread(target=waits, args=[condition])
        for condition in (lambda event: event.kind == 'enabled', lambda event: False)
    ]
    for thread in threads:
        thread.start()
    store.hosts.disable_host('cmp-1', 'why', 'ann')
    store.hosts.enable_host('cmp-1', 'ann')
    threads[0].join(60)
    assert [event.kind for page in pages for event in page.events] == ['enabled']
    log.stop()
    threads[1].join(60)
    assert pages[1].events == []
    assert not threads[1].is_alive()


def test_the_database_is_away_for_a_while(make_store, monkeypatch):
    store = make_store('sqlite')
    a_host('cmp-1').on(store)
    follower = Follower(a_log(store))
    store.hosts.disable_host('cmp-1', 'why', 'ann')
    away = exceptions.DatabaseUnavailable(problem='it does not answer')

    def fails(*args: object) -> None:
        raise away

    with monkeypatch.context() as patch:
        patch.setattr(store.hosts, 'recent_events', fails)
        with pytest.raises(exceptions.DatabaseUnavailable):
            follower.ask()
    assert ('cmp-1', 'disabled', 'ann') in said(follower.ask())


HOSTS = ['cmp-1', 'cmp-2', 'cmp-3']
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(['disable', 'enable', 'claim', 'confirm']), st.integers(0, 2)),
        st.tuples(st.just('ask'), st.integers(0, 1)),
        st.tuples(st.just('pass'), st.sampled_from([0, 1, 30, 200])),
    ),
    max_size=40,
)


@settings(max_examples=examples(150), deadline=None)
@given(steps=STEPS, seed=st.integers(0, 2**16))
def test_nothing_is_left_out_whoever_is_asked(steps, seed):
    """Against all that the store has: what is left out there was overtaken."""
    rng = random.Random(seed)
    clock = ManualClock()
    store = sqlite_store(clock)
    hosts = [
        a_host(name).with_room(vcpu=10_000, ram=1 << 24, disk=10_000).on(store) for name in HOSTS
    ]
    logs = [a_log(store, clock=clock) for _ in range(2)]
    for log in logs:
        log.after(None, 1)
    clock.advance(2)
    follower = Follower(*logs, limit=rng.choice([1, 3, 100]))
    begun = clock.wall()
    claims: list[tuple[int, Any]] = []
    for step, number in steps:
        if step == 'ask':
            follower.ask(number)
        elif step == 'pass':
            clock.advance(number)
        elif step == 'disable':
            store.hosts.disable_host(HOSTS[number], f'why {rng.random()}', 'ann')
        elif step == 'enable':
            store.hosts.enable_host(HOSTS[number])
        elif step == 'claim':
            store.hosts.enable_host(HOSTS[number])
            [claim] = claimed(store, a_draft().taking(hosts[number], vcpu=1, ram=1, disk=1))
            claims.append((number, claim))
        elif claims:
            at, claim = claims.pop(rng.randrange(len(claims)))
            hosts[at].confirm(claim)
    quiet = 0
    while quiet < 2:
        clock.advance(1)
        quiet = 0 if follower.ask(rng.randrange(2)) else quiet + 1
    seen = {(event.host, event.kind, event.message, event.claim_id) for event in follower.seen}
    there = {
        (name, event.kind, event.message, event.claim_id)
        for name in HOSTS
        for event in store.hosts.host_history(name, 10_000)
        if event.at >= begun
    }
    assert there <= seen
