# SPDX-License-Identifier: Apache-2.0
"""A batch that goes in one trip ends as the pessimistic path would have ended it.

Two databases see the same words in the same order, one of them through a scheduler that never
tries the one trip.  Afterwards all rows, what was answered and the schedulers' own tables are the
same.  Whatever is in the way of a batch sends it down the pessimistic path, to its outcome there.
"""

import random

import msgspec
import pytest
import sqlalchemy as sa

from devel.doubles import ManualClock
from gantt.core.messages.resource_classes import Inventory
from gantt.db.claims.commit_postgresql import PessimisticCommitter
from gantt.db.claims.one_trip import PESSIMISTIC_BATCHES_MAX, OptimisticBackoff
from gantt.db.schema import models
from gantt.scheduler import table_log
from gantt.scheduler.host_cache import HostCache
from tests.builders import CLEAN, a_decision, a_draft, a_host, claimed, commit, live, uuid_of

HOSTS = 5
#: Drawn, or of a clock; what follows from a clock is compared as a span of time.
DRAWN = {'token', 'claims_stamp', 'facts_stamp', 'boot_nonce'}
TIMES = {'created_at', 'updated_at', 'reported_at', 'lease_until', 'expires_at', 'deadline'}
#: Numbers that a transaction uses up which is rolled back.
SERIAL = {('consumers', 'id'), ('decisions', 'number'), ('changes', 'id')}
UNLIKE = {'meta', 'table_log', 'services', 'schema_steps', 'host_events'}


# -- the same as the pessimistic path -----------------------------------------------------------
class Scheduler:
    """A store, and the table of a scheduler on it."""

    def __init__(self, store, other, pessimistic=False):
        self.store, self.other = store, other
        if pessimistic:
            store.requests.committer = PessimisticCommitter(store.database.memory)
        self.hosts = [
            a_host(f'cmp-{n}').with_room(vcpu=24, ram=8192, VGPU=2).on(store) for n in range(HOSTS)
        ]
        self.cache = HostCache(store.feed, store.vocabulary, ManualClock())
        self.paths = []
        self.read()

    def read(self):
        self.cache.fetch()
        self.cache.fold()

    def batch(self, plans):
        """Plan, commit, and bring the table in line, as the scheduler does."""
        drafts = [self.draft(*plan).build() for plan in plans]
        for draft in drafts:
            self.cache.apply_and_record(table_log.picks_added(draft.claims))
        result = self.store.requests.commit(drafts)
        self.paths.append(result.path)
        claims, written = set(), set()
        for draft, outcome in zip(drafts, result.outcomes, strict=True):
            self.cache.apply_and_record(table_log.picks_removed(draft.claims, outcome.accepted))
            for claim in (draft.claims[i].claim for i in outcome.accepted):
                claims.add(claim.id)
                written.add(claim.provider_id)
        self.cache.commit_applied(result.hosts, written - set(result.freed), claims, result.stepped)
        freed = [self.hosts[0].id - host for host in result.freed]
        return [lasting(outcome) for outcome in result.outcomes], freed, result.groups

    def draft(self, name, takes, options):
        draft = a_draft(uuid_of(name), project_id=options.get('project'))
        if options.get('decided'):
            draft = draft.having(
                decision=a_decision(id=uuid_of('decision', name), request_id=draft.id)
            )
        if options.get('whole'):
            draft = draft.whole()
        if options.get('unfinished'):
            draft = draft.unfinished()
        for number, consumer, purpose, lifecycle, amounts in takes:
            guest = consumer and uuid_of(consumer)
            host = self.hosts[number]
            draft = draft.taking(host, guest, purpose=purpose, lifecycle=lifecycle, **amounts)
        return draft

    def elsewhere(self, plans):
        """Another scheduler is faster."""
        store, self.store = self.store, self.other
        drafts = [self.draft(*plan) for plan in plans]
        self.store = store
        return [lasting(outcome) for outcome in commit(self.other, *drafts).outcomes]

    def word(self, number, verb, picks):
        claims = [c for c in live(self.store, host=self.hosts[number].name)]
        claims.sort(key=lambda claim: claim.id)
        chosen = {c.id: c for c in (claims[i % len(claims)] for i in picks)} if claims else {}
        return chosen and getattr(self.hosts[number], verb)(*chosen.values())

    def disable(self, number, on):
        name = self.hosts[number].name
        return (
            self.store.hosts.disable_host(name, 'x', 'y')
            if on
            else self.store.hosts.enable_host(name)
        ).row

    def report(self, number, outside):
        host = self.hosts[number]
        claims = [c for c in live(self.store, host=host.name)]
        running = [c for c in claims if c.state == 'confirmed']
        rest = [c for c in claims if c.state == 'reserved']
        return host.send(host.says().listing(running, rest).outside(vcpu=outside))[0].outcome

    def seen(self):
        """What the scheduler believes of its hosts."""
        table = self.cache.working
        return [
            (
                *(row.name, row.version, row.generation, row.used, row.foreign, row.over_committed),
                *(table.used[:, i].tolist(), table.free[:, i].tolist()),
                *(int(table.instances[i]), int(table.io_ops[i])),
                sorted(p.claim_id for p in table.placed.on_provider(row.id).values()),
            )
            for i, row in enumerate(table.hosts)
        ]


def lasting(outcome):
    """A fate, without how long another worker still has."""
    return {**msgspec.structs.asdict(outcome), 'wait_seconds': outcome.wait_seconds > 0}


class Chance:
    """Random words, made before any store is asked."""

    WEIGHTS = {'batch': 12, 'elsewhere': 2, 'word': 3, 'disable': 1, 'report': 3, 'read': 4}

    def __init__(self, seed):
        self.rnd = random.Random(seed)
        self.serial = 0

    def words(self, length):
        names, weights = list(self.WEIGHTS), list(self.WEIGHTS.values())
        for _ in range(length):
            name = self.rnd.choices(names, weights)[0]
            yield name, getattr(self, name)()

    def batch(self):
        return ([self.plan() for _ in range(self.rnd.choice([1, 1, 2, 5]))],)

    elsewhere = batch

    def plan(self):
        rnd = self.rnd
        self.serial += 1
        again = rnd.random() < 0.04
        options = {
            'whole': rnd.random() < 0.2,
            'unfinished': rnd.random() < 0.1,
            'decided': rnd.random() < 0.7,
            'project': rnd.choice([None, 'blue', 'red']),
        }
        purpose = rnd.choice(['create'] * 15 + ['unshelve', 'unshelve', 'resize'])
        lifecycle = rnd.choice(['host'] * 15 + ['plan', 'hold', 'api'])
        alike = self.amounts()
        takes, guests = [], set()
        for _ in range(rnd.choice([1, 1, 2, 6])):
            host = rnd.randrange(HOSTS)
            guest = f'guest {rnd.randrange(self.serial + 3)}' if rnd.random() < 0.05 else None
            if guest in guests:
                guest = None  # a request has distinct consumers
            guests.add(guest)
            amounts = alike if rnd.random() < 0.9 else self.amounts()
            takes.append((host, guest, purpose, lifecycle, amounts))
        return f'request {rnd.randrange(self.serial) if again else self.serial}', takes, options

    def amounts(self):
        amounts = {'vcpu': self.rnd.choice([1, 1, 2, 4]), 'ram': self.rnd.choice([64, 512])}
        return {**amounts, 'VGPU': 1} if self.rnd.random() < 0.02 else amounts

    def word(self):
        verb = self.rnd.choice(['confirm', 'confirm', 'refuse', 'release', 'release'])
        return self.rnd.randrange(HOSTS), verb, [self.rnd.randrange(50) for _ in range(4)]

    def disable(self):
        return self.rnd.randrange(HOSTS), self.rnd.random() < 0.3

    def report(self):
        return self.rnd.randrange(HOSTS), self.rnd.choice([0, 0, 0, 2])

    def read(self):
        return ()


def stored(scheduler):
    """Every row of every table, but for what is drawn; times as spans since the row was made."""
    first, by_table = scheduler.hosts[0].id, {}
    with scheduler.store.database.engine.connect() as connection:
        for table in models.metadata.sorted_tables:
            if table.name not in UNLIKE:
                rows = [row._mapping for row in connection.execute(sa.select(table))]
                comparable = (_comparable(table.name, row, first) for row in rows)
                by_table[table.name] = sorted(map(str, comparable))
    return by_table


def _comparable(name, row, first):
    since = row.get('created_at') or 0.0
    columns = {}
    for column, value in row.items():
        if column in DRAWN or (name, column) in SERIAL or column in ('updated_at', 'used_at'):
            continue
        if column in TIMES:
            is_span = column != 'created_at' and value and since
            value = round(value - since) if is_span else bool(value)
        if (name, column) == ('providers', 'id') or column == 'provider_id':
            value -= first
        if (name, column) == ('changes', 'ref') and row['kind'] == 'host':
            value = int(value) - first
        columns[column] = value
    return columns


def history(seed, length, store, other, pessimistic):
    """What every word of a scheduler leads to, and the paths that its batches took."""
    scheduler, steps = Scheduler(store, other, pessimistic), []
    for word, arguments in Chance(seed).words(length):
        result = getattr(scheduler, word)(*arguments)
        answered = result if word in ('batch', 'elsewhere', 'word') else None
        tables = stored(scheduler)
        scheduler.read()
        steps.append((word, arguments, answered, tables, scheduler.seen()))
    assert store.claims.audit() == CLEAN
    return steps, scheduler.paths


def check(seed, length, open_store):
    ways = []
    for pessimistic in (True, False):
        store = open_store('postgresql')
        ways.append(history(seed, length, store, open_store(like=store), pessimistic))
    (expected, never), (observed, paths) = ways
    for step, (actual, other) in enumerate(zip(observed, expected, strict=True)):
        word, arguments, answered, tables, seen = actual
        where = f'seed {seed}, step {step}: {word} {arguments}'
        assert answered == other[2], where
        for table in tables:
            assert tables[table] == other[3][table], f'{where}: {table}'
        assert seen == other[4], where
    assert 'optimistic' not in never
    return paths


@pytest.mark.postgresql
@pytest.mark.parametrize('seed', range(2))
def test_one_trip_ends_as_the_pessimistic_path_does(seed, open_store):
    paths = check(seed, 40, open_store)
    assert paths.count('optimistic') >= 5 and len(set(paths)) > 1


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.parametrize('seed', range(100, 120))
def test_one_trip_ends_as_the_pessimistic_path_does_for_long(seed, open_store):
    check(seed, 200, open_store)


@pytest.mark.postgresql
def test_a_table_needs_no_news_after_one_trip(open_store):
    """Where nobody else wrote a host, it is known whole by its version."""
    store = open_store('postgresql')
    scheduler = Scheduler(store, store)
    scheduler.batch([('a', [(0, None, 'create', 'host', {'vcpu': 2, 'ram': 64})] * 3, {})])
    scheduler.batch(
        [
            ('b', [(0, None, 'create', 'host', {'vcpu': 1})], {}),
            ('c', [(1, None, 'create', 'host', {'vcpu': 1})], {}),
        ]
    )
    assert scheduler.paths == ['optimistic'] * 2
    before = scheduler.seen()
    news = store.feed.poll(0, scheduler.cache.versions, [])
    assert {change.row.name for change in news.hosts} == set()
    scheduler.cache.forget()
    scheduler.read()
    whole = scheduler.seen()
    # A guest that is being built is counted by who has placed it until the host reports.
    assert [row[:8] for row in before] == [row[:8] for row in whole]
    assert [row[-1] for row in before] == [row[-1] for row in whole]


@pytest.mark.postgresql
def test_a_host_that_others_wrote_is_left_to_the_feed(open_store):
    store = open_store('postgresql')
    scheduler = Scheduler(store, open_store(like=store))
    takes = [(0, None, 'create', 'host', {'vcpu': 2})]
    scheduler.elsewhere([('theirs', takes, {})])
    scheduler.batch([('ours', takes, {})])
    assert scheduler.paths == ['optimistic']
    # Theirs is not known yet: what is free is believed to be more than it is, never for long.
    assert scheduler.cache.working.hosts[0].version == scheduler.hosts[0].row.version - 2
    assert scheduler.cache.working.used[0, 0] == 2
    scheduler.read()
    assert scheduler.cache.working.hosts[0].version == scheduler.hosts[0].row.version
    assert scheduler.cache.working.used[0, 0] == 4


# -- what is in the way ------------------------------------------------------------------
@pytest.fixture
def store(open_store):
    return open_store('postgresql')


@pytest.fixture
def host(store):
    return a_host().on(store)


def first(result):
    """The path of a batch, and the fate of its first request."""
    return result.path, result.outcomes[0].outcome


def test_a_plain_batch_goes_in_one_trip(store, host):
    other = a_host('cmp-2').on(store)
    before = {each_host.id: each_host.row.version for each_host in (host, other)}
    result = commit(
        store, a_draft().taking(host, vcpu=2).taking(host, vcpu=1), a_draft().taking(other)
    )
    assert first(result) == ('optimistic', 'placed')
    assert result.hosts == []
    assert result.stepped == {id: version + 1 for id, version in before.items()}
    assert (host.row.used, other.row.used) == ({'VCPU': 3}, {'VCPU': 1})
    assert store.claims.audit() == CLEAN


def test_a_request_is_continued_in_one_trip(store, host):
    begun = a_draft().unfinished().taking(host).taking(host)
    assert first(commit(store, begun)) == ('optimistic', 'partial')
    rest = begun.having(completes=True).continuing(2).taking(host)
    assert first(commit(store, a_draft().taking(host), rest)) == ('optimistic', 'placed')
    stored = store.requests.load_request(begun.id)
    assert (stored.state, stored.answer) == ('placed', b'answer')
    assert sorted(claim.member for claim in stored.claims) == [0, 1, 2]
    assert [line.claims for line in store.requests.list_requests(10) if line.id == begun.id] == [3]
    assert host.row.used == {'VCPU': 4}
    assert store.claims.audit() == CLEAN


def test_its_times_are_of_the_database(store, host):
    result = commit(store, a_draft().leased(60).taking(host))
    claim = live(store)[0]
    assert claim.created_at == claim.updated_at == result.now
    assert claim.lease_until == result.now + 60


def a_repeat(store, host):
    draft = a_draft().taking(host)
    commit(store, draft)
    return draft, 'repeat'


def a_cancelled_request(store, host):
    draft = a_draft().taking(host)
    store.requests.cancel_request(draft.id, 'no')
    return draft, 'cancelled'


def a_rival(store, host):
    commit(store, a_draft().taking(host, uuid_of('guest'), vcpu=2))
    return a_draft().taking(host, uuid_of('guest')), 'placed'


def a_running_rival(store, host):
    commit(store, a_draft().taking(host, uuid_of('guest')))
    host.confirm(*live(store))
    return a_draft().taking(host, uuid_of('guest')), 'rejected'


def a_full_host(store, host):
    commit(store, a_draft().taking(host, vcpu=8))
    return a_draft().taking(host), 'dropped'


def too_much_together(store, host):
    return a_draft().taking(host, vcpu=5).taking(host, vcpu=4), 'partial'


def what_runs_outside(store, host):
    host.send(host.says().outside(vcpu=8))
    return a_draft().taking(host), 'dropped'


def a_disabled_host(store, host):
    store.hosts.disable_host(host.name, 'repair', 'me')
    return a_draft().taking(host), 'dropped'


def a_host_that_takes_nothing(store, host):
    host.send(host.says().having(disabled='its service is down'))
    return a_draft().taking(host), 'dropped'


def an_over_committed_host(store, host):
    host.send(host.says().with_room(vcpu=8, ram=100).outside(ram=101))
    assert host.row.over_committed
    return a_draft().taking(host), 'dropped'


def units_that_have_changed(store, host):
    steps = {'VCPU': Inventory(total=8, step_size=2)}
    host.send(host.says().having(inventories=steps))
    return a_draft().taking(host, vcpu=2).taking(host, vcpu=3), 'partial'


def a_host_that_is_gone(store, host):
    store.hosts.remove_host(host.name)
    return a_draft().taking(host), 'dropped'


def a_list_of_hosts_that_is_gone(store, host):
    commit(store, a_draft(decision=a_decision()).taking(host))
    with store.database.engine.begin() as connection:
        connection.execute(models.host_sets.delete())
    return a_draft(decision=a_decision()).taking(host), 'placed'


def a_tombstone(store, host):
    draft = a_draft().taking(host)
    commit(store, draft.unfinished())
    store.requests.give_up(draft.id, 'worker-1', 1)
    return draft, 'placed'


def another_owner(store, host):
    begun = a_draft().unfinished().taking(host)
    commit(store, begun)
    return begun.continuing(1).by('worker-2').taking(host), 'lost'


def another_attempt(store, host):
    begun = a_draft().unfinished().taking(host)
    commit(store, begun)
    return begun.continuing(1).attempt(2).taking(host), 'lost'


def a_request_that_is_cancelled_half_way(store, host):
    begun = a_draft().unfinished().taking(host)
    commit(store, begun)
    store.requests.cancel_request(begun.id, 'not wanted')
    return begun.continuing(1).taking(host), 'cancelled'


def a_request_that_is_placed_already(store, host):
    placed = a_draft().taking(host)
    commit(store, placed)
    return placed.continuing(1).taking(host), 'repeat'


def another_request_of_its_id(store, host):
    begun = a_draft().unfinished().taking(host)
    commit(store, begun)
    return begun.having(fingerprint='other').continuing(1).taking(host), 'reused'


def another_project(store, host):
    (ended,) = claimed(store, a_draft(project_id='red').taking(host))
    store.claims.force_release(ended.id, 'ended')
    return a_draft(project_id='blue').taking(host, ended.consumer), 'placed'


IN_THE_WAY = [
    another_project,
    *(another_owner, another_attempt, a_request_that_is_cancelled_half_way),
    *(a_request_that_is_placed_already, another_request_of_its_id),
    *(a_repeat, a_cancelled_request, a_rival, a_running_rival, a_full_host, too_much_together),
    *(
        what_runs_outside,
        a_disabled_host,
        a_host_that_takes_nothing,
        an_over_committed_host,
        units_that_have_changed,
        a_host_that_is_gone,
    ),
    *(a_list_of_hosts_that_is_gone, a_tombstone),
]


@pytest.mark.postgresql
@pytest.mark.parametrize('scenario', IN_THE_WAY)
def test_what_is_in_the_way_sends_it_the_pessimistic_path(scenario, store, host):
    draft, expected = scenario(store, host)
    beside = a_host('cmp-2').on(store)
    result = commit(store, draft, a_draft().taking(beside))
    assert result.path in ('pessimistic', 'portable')
    assert [outcome.outcome for outcome in result.outcomes] == [expected, 'placed']
    assert beside.row.used == {'VCPU': 1}
    assert store.claims.audit() == CLEAN
    assert store.requests.committer.backoff.is_due()


def twice_for_one(host):
    draft = a_draft().taking(host, uuid_of('guest'))
    return draft, a_draft().taking(host, uuid_of('guest'), purpose='resize')


NOT_TRIED = {
    'two claims for one consumer': twice_for_one,
    'a move': lambda host: [a_draft().taking(host, purpose='migrate')],
    'a group': lambda host: [a_draft().planned_at(0, uuid_of('group')).taking(host)],
    'one project': lambda host: [a_draft(only_project='blue', project_id='blue').taking(host)],
    'a class of its own': lambda host: [a_draft().taking(host, VGPU=1)],
    'a take-over': lambda host: [a_draft().taking_over(1).taking(host)],
    'no lease': lambda host: [a_draft().taking(host, lifecycle='api')],
    'a list of hosts that is not stored': lambda host: [
        a_draft(decision=a_decision()).taking(host)
    ],
    'nothing': lambda host: [a_draft()],
}


@pytest.mark.postgresql
@pytest.mark.parametrize('what', list(NOT_TRIED))
def test_what_asks_for_more_than_room_is_not_tried(what, store):
    host = a_host().with_room(vcpu=8, VGPU=2).on(store)
    result = commit(store, *NOT_TRIED[what](host))
    assert result.path in ('pessimistic', 'portable')
    assert {outcome.outcome for outcome in result.outcomes} <= {'placed', 'lost'}
    assert not store.requests.committer.backoff.is_due()
    assert store.claims.audit() == CLEAN


# -- chosen ahead ---------------------------------------------------------------------------
def tried(backoff, fails, batches):
    """How many of so many batches are tried where so many of ten fail."""
    count = 0
    for _ in range(batches):
        if backoff.is_due():
            continue
        backoff.record_failure() if count % 10 < fails else backoff.record_success()
        count += 1
    return count


def test_where_hardly_any_fails_nearly_all_are_tried():
    assert tried(OptimisticBackoff(), 0, 1000) == 1000
    assert tried(OptimisticBackoff(), 1, 1000) > 850


def test_where_all_fail_hardly_any_is_tried():
    assert tried(OptimisticBackoff(), 10, 1000) < 1000 / PESSIMISTIC_BATCHES_MAX + 10


def test_who_has_failed_a_lot_is_soon_trusted_again():
    backoff = OptimisticBackoff()
    tried(backoff, 10, 1000)
    assert tried(backoff, 0, 1000) > 800
