# SPDX-License-Identifier: Apache-2.0
"""The change feed under numbers that appear late, and readers that wait for each other."""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from devel.memory_store.database import MemoryDatabase
from devel.memory_store.feed import MemoryFeed
from devel.memory_store.stores import MemoryStores, memory_stores
from gantt.core.records.decision import Outcome
from gantt.db.schema import models
from gantt.scheduler.host_cache import PENDING_NEWS_MAX, HostCache, RebuiltTable
from gantt.stores import SqlStores, stores_for_url
from tests.builders import a_draft, a_host, commit
from tests.conftest import STORES
from tests.services import UNHURRIED
from tests.world import World, a_request

SERVERS = STORES[2:]
#: No test waits so long for what is there at once.
LONG = 30


@pytest.fixture(params=SERVERS)
def store(request: pytest.FixtureRequest, make_store: Callable[[str], Any]) -> SqlStores:
    opened: SqlStores = make_store(request.param)
    return opened


@pytest.fixture
def other(store: SqlStores) -> Iterator[SqlStores]:
    """The store of another process."""
    opened = stores_for_url(
        store.database.engine.url.render_as_string(hide_password=False), timeouts=UNHURRIED
    )
    yield opened
    opened.database.close()


class Held:
    """A transaction of another process that has drawn its numbers and does not commit yet."""

    def __init__(self, store: SqlStores, work: Callable[[], object]) -> None:
        self._drawn, self._go = threading.Event(), threading.Event()
        real = store.database.writes.commit

        def commit_late(transaction: sa.Transaction) -> None:
            self._drawn.set()
            assert self._go.wait(LONG)
            if self.is_lost:
                transaction.rollback()
            else:
                real(transaction)

        self.is_lost = False
        store.database.writes.commit = commit_late  # type: ignore[method-assign]
        self._thread = threading.Thread(target=work)
        self._thread.start()
        assert self._drawn.wait(LONG)

    def end(self, is_lost: bool = False) -> None:
        self.is_lost = is_lost
        self._go.set()
        self._thread.join(LONG)


@pytest.fixture
def hold(other: SqlStores) -> Iterator[Callable[[Callable[[], object]], Held]]:
    """``hold(work)``: what the other process does, up to its COMMIT."""
    holders: list[Held] = []

    def make(work: Callable[[], object]) -> Held:
        holders.append(Held(other, work))
        return holders[-1]

    yield make
    for held in holders:
        held.end(is_lost=held.is_lost)


def others_write(store: SqlStores, count: int) -> None:
    """So many numbers of the feed, about a host that is not there."""
    entries = [{'kind': 'host', 'ref': '999999'}] * count
    with store.database.engine.begin() as connection:
        connection.execute(models.changes.insert(), entries)


def last_of(store: SqlStores) -> int:
    with store.database.engine.connect() as connection:
        number: int = connection.execute(sa.select(sa.func.max(models.changes.c.id))).scalar_one()
        return number


def full(world: World) -> Any:
    return world.select(a_request(ram=32_768), turns=3)


def filled(store: SqlStores) -> tuple[World, str]:
    """A host that is full, and the claim that it is full of."""
    world = World(store, hosts=1, stale_after_seconds=1e9)
    claim = full(world).selections[0][0].claim_id
    world.hosts['cmp-1'].confirm(claim)
    world.turn()
    return world, claim


@pytest.mark.finding('D5', 'a number that appears late is asked for until it does')
@pytest.mark.parametrize('count', [250, 2500])
def test_room_that_others_overtook_is_known_with_the_next_poll(store, other, hold, count):
    world, claim = filled(store)
    host = world.hosts['cmp-1']
    held = hold(lambda: other.claims.release_claims(host.words(claim)))
    others_write(store, count)
    world.turn(0.3)
    held.end()
    world.turn(0.3)
    assert full(world).outcome is Outcome.PLACED
    assert world.recorder.counts['gantt_change_feed_missed_total'] == 0


@pytest.mark.finding('D5', 'the age of an answer counts from the oldest gap')
def test_no_room_says_how_long_something_has_been_missing(store, other, hold):
    world, claim = filled(store)
    held = hold(lambda: other.claims.release_claims(world.hosts['cmp-1'].words(claim)))
    others_write(store, 300)
    world.turn(0.3)
    cache = world.scheduler.cache
    cache._gaps = [msgspec.structs.replace(gap, since=gap.since - 9) for gap in cache._gaps]
    world.turn(0.3)
    answer = full(world)
    assert answer.outcome is Outcome.NO_VALID_HOST
    assert answer.age_seconds >= 9
    held.end()
    for _ in range(200):  # the server may not have come to the end of it at once
        world.turn(0.3)
        if world.scheduler.cache.age_seconds < 5:
            break
        threading.Event().wait(0.1)
    assert world.scheduler.cache.age_seconds < 5


@pytest.mark.finding('D5', 'what was rolled back is not waited for')
def test_a_gap_of_a_transaction_that_was_rolled_back_is_closed(store, other, hold):
    world, claim = filled(store)
    held = hold(lambda: other.claims.release_claims(world.hosts['cmp-1'].words(claim)))
    others_write(store, 300)
    world.turn(0.3)
    assert world.scheduler.cache._gaps
    held.end(is_lost=True)
    end = 200
    while world.scheduler.cache._gaps and end:
        end -= 1
        threading.Event().wait(0.1)
        world.turn(0.3)
    assert world.scheduler.cache._gaps == []


@pytest.mark.finding('D5', 'what a full comparison finds is counted')
def test_what_only_a_comparison_finds_is_counted(store, other):
    world, claim = filled(store)
    host = world.hosts['cmp-1']
    other.claims.release_claims(host.words(claim))
    world.scheduler.cache._position = last_of(store)  # as if its number had been given up
    world.turn(0.3)
    assert full(world).outcome is Outcome.NO_VALID_HOST
    world.turn(world.scheduler.settings.reload_seconds + 1)
    assert world.recorder.counts['gantt_change_feed_missed_total'] == 1
    assert full(world).outcome is Outcome.PLACED


@pytest.mark.finding('D5', 'too many gaps are given up for comparisons')
def test_who_gives_up_gaps_compares_everything_until_they_are_over(store, other, hold):
    world, claim = filled(store)
    host = world.hosts['cmp-1']
    held = hold(lambda: other.claims.release_claims(host.words(claim)))
    for _ in range(2):
        far = {'id': last_of(store) + 15_000, 'kind': 'host', 'ref': '999999'}
        with store.database.engine.begin() as connection:
            connection.execute(models.changes.insert(), far)
        world.turn(0.3)
    assert len(world.scheduler.cache._gaps) <= 2500
    held.end()
    for _ in range(8):
        world.turn(1.0)
    assert full(world).outcome is Outcome.PLACED


class SlowWhole(MemoryFeed):
    """A feed whose full readings take as long as the test likes."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.inside, self.go = threading.Event(), threading.Event()
        self.is_slow = False

    def compare(self, *arguments: Any) -> Any:
        news = super().compare(*arguments)
        if self.is_slow:
            self.inside.set()
            assert self.go.wait(LONG)
        return news


def slow_store() -> tuple[MemoryStores, SlowWhole]:
    """Return stores with a slow feed, and that."""
    fast = memory_stores()
    feed = SlowWhole(fast.database)
    return dataclasses.replace(fast, feed=feed), feed


@pytest.mark.finding('D14', 'no room is answered while a full reading is under way')
def test_no_room_does_not_wait_for_a_full_reading():
    store, feed = slow_store()
    world = World(store, hosts=1)
    cache = world.scheduler.cache
    world.clock.advance(cache.reload_seconds + 1)
    world.hosts['cmp-1'].report()
    world.scheduler.report_queue.step()
    feed.is_slow = True
    comparing = threading.Thread(target=cache.fetch)
    comparing.start()
    assert feed.inside.wait(LONG)
    handle = world.ask(a_request(ram=99_999_999))
    placing = threading.Thread(target=world.scheduler.placing.step, daemon=True)
    placing.start()
    placing.join(LONG / 6)
    answered = handle in world.replies.answers
    feed.go.set()
    comparing.join(LONG)
    placing.join(LONG)
    assert answered
    assert world.replies.answers[handle].outcome is Outcome.NO_VALID_HOST


@pytest.mark.finding('D14', 'what is known when a full reading ends is not taken back by it')
def test_a_host_that_goes_while_all_are_compared_stays_gone():
    store, feed = slow_store()
    world = World(store, hosts=2)
    cache = world.scheduler.cache
    world.clock.advance(cache.reload_seconds + 1)
    commit(store, a_draft().taking(1))  # a change that the comparison brings
    commit(store, a_draft().taking(2, ram=1))
    for claim in store.claims.list_claims():
        if claim.provider_id == 2:
            store.claims.force_release(claim.id, 'gone')
    feed.is_slow = True
    comparing = threading.Thread(target=cache.fetch)
    comparing.start()
    assert feed.inside.wait(LONG)
    store.hosts.remove_host('cmp-2')
    cache.fetch_news()
    feed.go.set()
    comparing.join(LONG)
    assert cache.fold().names == ['cmp-1']


@pytest.mark.finding('D15', 'tables that wait are counted right when news is dropped')
def test_news_dropped_while_a_table_is_taken_over_does_not_upset_the_count(make_store, monkeypatch):
    store = make_store('memory')
    host = a_host().on(store)
    cache = HostCache(store.feed, store.vocabulary)
    cache.fetch()
    (change,) = store.feed.load_everything().hosts
    replace = cache._replace_table

    def replace_late(rebuilt: RebuiltTable) -> None:
        for _ in range(PENDING_NEWS_MAX + 1):
            cache.offer([change])
        replace(rebuilt)

    monkeypatch.setattr(cache, '_replace_table', replace_late)
    cache.fold()
    monkeypatch.undo()
    cache.fetch()
    cache.fold()
    # A commit of our own is known here, and not read again.
    commit(store, a_draft().taking(host))
    cache.commit_applied([host.row], {host.id})
    assert cache.versions[host.id] == host.row.version
