# SPDX-License-Identifier: Apache-2.0
"""The table of a process ends where the database is, in whatever order news arrive."""

import random

import pytest

from devel.doubles import ManualClock
from devel.memory_store.stores import memory_stores
from gantt import exceptions
from gantt.core.records.decision import Outcome
from gantt.scheduler import table_log
from gantt.scheduler.host_cache import HostCache
from tests.builders import a_draft, a_host, new_uuid
from tests.world import World, a_group, a_request, hosts_of

HOSTS = 5


class Process:
    """A cache, and everything that may happen around it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.store = memory_stores(self.clock)
        self.hosts = [a_host(f'cmp-{n}').with_room(vcpu=100).on(self.store) for n in range(HOSTS)]
        self.cache = HostCache(
            self.store.feed, self.store.vocabulary, self.clock, reload_seconds=20.0
        )
        self.late: list = []
        self.fetch()
        self.fold()

    def one(self):
        return self.random.choice(self.hosts)

    def fetch(self) -> None:
        self.cache.fetch()

    def fold(self) -> None:
        self.cache.fold()

    def ours(self) -> None:
        """A commit of the scheduling thread, settled at once."""
        self.commit(new_uuid())

    def commit(self, consumer: str) -> None:
        draft = a_draft().taking(self.one(), consumer).build()
        self.cache.apply_and_record(table_log.picks_added(draft.claims))
        result = self.store.requests.commit([draft])
        written = {*(row.id for row in result.hosts), *result.stepped} - set(result.freed)
        self.cache.commit_applied(result.hosts, written, stepped=result.stepped)

    def theirs(self) -> None:
        """A commit of another scheduler: only the feed tells of it."""
        self.store.requests.commit([a_draft().taking(self.one()).build()])

    def report(self) -> None:
        """A report that this process took; its news may be offered a little later."""
        host = self.one()
        report = host.says().outside(vcpu=self.random.randrange(5)).build()
        self.late.append(self.store.reports.apply_reports([report]).hosts)
        if self.random.random() < 0.7:
            self.tell()

    def tell(self) -> None:
        while self.late:
            self.cache.offer(self.late.pop(0))

    def wait(self) -> None:
        self.clock.advance(self.random.choice([0.2, 1.0, 25.0]))

    def shelve(self) -> None:
        """An operator writes through the API, another process."""
        name = self.one().name
        self.store.hosts.disable_host(name, 'repairs', 'op')
        self.store.hosts.enable_host(name)

    def replaced(self) -> None:
        """A commit of ours by which an older claim gives way."""
        live = [c for c in self.store.claims.list_claims(limit=1000) if c.is_live]
        if live:
            self.commit(self.random.choice(live).consumer)

    def read_again(self) -> None:
        """Everything is read, and the table that comes of it waits to be folded."""
        self.cache._incarnation = None
        self.fetch()

    def forget(self) -> None:
        """After a defect everything is read again."""
        self.cache.forget()
        self.fetch()
        self.fold()

    WORDS = (
        fetch,
        fetch,
        fold,
        fold,
        ours,
        ours,
        theirs,
        report,
        report,
        tell,
        wait,
        shelve,
        forget,
        replaced,
        read_again,
    )


def whole(cache: HostCache) -> list:
    """Everything a table knows of its hosts; who came first to a host does not matter."""
    hosts = table_log.everything_of(cache.working).hosts
    return [(change.row, sorted(change.placed, key=str)) for change in hosts]


@pytest.mark.parametrize('seed', range(200))
def test_the_table_ends_where_the_database_is(seed):
    process = Process(seed)
    for _ in range(60):
        process.random.choice(Process.WORDS)(process)
    process.tell()
    process.fetch()
    process.fold()
    fresh = HostCache(process.store.feed, process.store.vocabulary, process.clock)
    fresh.fetch()
    fresh.fold()
    assert whole(process.cache) == whole(fresh)


def test_news_that_is_older_than_our_commit_does_not_take_its_claim_away():
    process = Process(1)
    host = process.hosts[0]
    late = process.store.reports.apply_reports([host.says().outside(vcpu=1).build()]).hosts
    process.one = lambda: host
    process.ours()
    process.cache.offer(late)
    process.fold()
    assert len(process.cache.working.placed.on_provider(host.id)) == 1
    process.fetch()
    process.fold()
    fresh = HostCache(process.store.feed, process.store.vocabulary, process.clock)
    fresh.fetch()
    fresh.fold()
    assert whole(process.cache) == whole(fresh)


def members(source, group) -> set[str]:
    """Claims of a group, by a table or by the store."""
    if isinstance(source, HostCache):
        return {placed.claim_id for placed in source.working.placed if placed.group == group}
    return {claim.id for claim in source.claims.list_claims(limit=1000) if claim.group == group}


def test_late_news_of_a_host_brings_the_members_of_its_groups():
    """Nobody may plan on a generation whose members are not on the table."""
    process = Process(1)
    host, group = process.hosts[0], new_uuid()
    process.one = lambda: host
    process.store.requests.commit([a_draft().planned_at(0, group).taking(host).build()])
    process.fetch()
    process.ours()
    process.fold()
    # News that is older than our commit brings the member, and takes nothing of ours away.
    table = process.cache.working
    assert len(table.placed.on_provider(host.id)) == 2
    assert table.group_generation(group) == process.store.groups.load_group(group).generation
    assert members(process.cache, group) == members(process.store, group)
    process.fetch()
    process.fold()
    assert members(process.cache, group) == members(process.store, group)


@pytest.mark.parametrize('seed', range(100))
def test_a_generation_is_known_only_with_its_members(seed):
    process = Process(seed)
    groups = [new_uuid() for _ in range(2)]
    joined: dict[tuple[str, int], set[str]] = {(group, 0): set() for group in groups}

    def join(process) -> None:
        group = process.random.choice(groups)
        stored = process.store.groups.load_group(group)
        draft = a_draft().planned_at(stored.generation if stored else 0, group)
        (fate,) = process.store.requests.commit([draft.taking(process.one()).build()]).outcomes
        if fate.accepted:
            generation = process.store.groups.load_group(group).generation
            joined[group, generation] = members(process.store, group)

    words = [word for word in Process.WORDS if word is not Process.replaced]
    for _ in range(60):
        process.random.choice([*words, join, join, join])(process)
        for group in groups:
            generation = process.cache.working.group_generation(group)
            assert members(process.cache, group) >= joined[group, generation]


def test_what_this_process_wrote_is_not_read_again():
    process = Process(1)
    process.report()
    process.tell()
    before = len(process.cache._news)
    process.fetch()
    assert len(process.cache._news) == before == 1


def test_everything_read_again_in_the_middle_of_a_batch_costs_no_pick():
    world = World(hosts=2)
    group = a_group('anti-affinity')
    first = world.ask(a_request(group=group))
    world.ask(a_request(ram=10**6))  # no room: the news is read before it is refused
    world.clock.advance(1.0)
    world.scheduler.cache._incarnation = None  # as after a restored database
    world.scheduler.placing.step()
    world.turn(times=3)
    second = world.select(a_request(group=group))
    assert hosts_of(second) != hosts_of(world.replies.answers[first])
    assert world.select(a_request(group=group)).outcome is Outcome.NO_VALID_HOST


def test_a_group_that_cannot_be_read_back_is_not_taken_for_known():
    """Its swap failed: with the new generation alone the next one would succeed."""
    world = World(hosts=2)
    mine, theirs = world.scheduler, world.another_scheduler()
    group = a_group('anti-affinity')
    world.ask(a_request(group=group), by=theirs)
    theirs.placing.step()
    handle = world.ask(a_request(group=group), by=mine)
    read = world.store.feed.read_groups

    def away(uuids, beside):
        world.store.feed.read_groups = read
        raise exceptions.DatabaseUnavailable(problem='it is away')

    world.store.feed.read_groups = away
    mine.placing.step()
    assert world.store.feed.read_groups is read, 'the swap did not fail'
    mine.placing.step()
    world.turn(times=3)
    taken = [c.host for c in world.store.claims.list_claims(limit=10)]
    assert sorted(taken) == ['cmp-1', 'cmp-2']
    assert handle in world.replies.answers
