# SPDX-License-Identifier: Apache-2.0
"""A database that goes back: a backup is put back, or a standby that was behind takes over.

Nobody runs ``gantt-manage db incarnation``, unless a test says so: what is promised has to
hold for those who live through it and are not told.
"""

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from gantt.compute.agent.host_agent import Reporter
from gantt.compute.agent.journal import SqliteJournal
from gantt.compute.agent.running_guests import GuestInventory
from gantt.compute.agent.session import Session
from gantt.compute.ports import HostReadings
from gantt.core.candidates.query import CandidatesQuery, GroupQuery
from gantt.core.claims.registration import EPOCH_STEP_MAX
from gantt.core.messages.report import RegisterHost, Running
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostRow
from gantt.db.schema import models
from gantt.insights.candidates import ProviderTableReader
from gantt.scheduler.host_cache import HostFollower
from gantt.stores import SqlStores, stores_for_url
from tests.builders import (
    CLEAN,
    a_decision,
    a_draft,
    a_group,
    a_host,
    a_request,
    changed,
    commit,
    new_uuid,
    report_outcome,
    set_inventories,
    uuid_of,
)
from tests.compute.hosts_in_memory import Port
from tests.conftest import STORES
from tests.nemesis.backup import Backup
from tests.services import UNHURRIED
from tests.world import World
from tests.world import a_request as world_request

SQL = STORES[1:]


@pytest.fixture(params=SQL)
def store(request: pytest.FixtureRequest, make_store: Callable[[str], Any]) -> SqlStores:
    opened: SqlStores = make_store(request.param)
    return opened


@pytest.fixture
def another(store: SqlStores) -> Iterator[SqlStores]:
    """The store of another process, which begins after the database went back."""
    url = store.database.engine.url.render_as_string(hide_password=False)
    opened = stores_for_url(url, timeouts=UNHURRIED)
    yield opened
    opened.database.close()


def said_of(store: SqlStores, link: sa.Table, names: sa.Table) -> list[tuple[str, str]]:
    """(host, trait or class) as the database has it."""
    p = models.providers
    number = link.c.trait_id if 'trait_id' in link.c else link.c.class_id
    query = (
        sa.select(p.c.name, names.c.name)
        .select_from(link)
        .join(p, p.c.id == link.c.provider_id)
        .join(names, names.c.id == number)
        .where(names.c.name.like('CUSTOM%'))
        .order_by(p.c.name, names.c.name)
    )
    with store.database.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(query)]


@pytest.mark.finding('D2', 'no id of a trait or class is taken for that of another database')
def test_a_trait_seen_after_the_backup_is_written_by_its_name(store, another):
    host, other_host = a_host('cmp-1').on(store), a_host('cmp-2').on(store)
    backup = Backup(store)
    host.facts = host.facts.having(traits=['CUSTOM_NEW'])
    assert host.report().outcome == 'applied'
    backup.put_back()
    assert host.report().outcome == 'applied', 'the id that it had is of nothing'

    backup.put_back()
    other_host.store, other_host.facts = another, other_host.facts.having(traits=['CUSTOM_OTHER'])
    assert other_host.report().outcome == 'applied'
    assert host.report().outcome == 'applied'
    links = said_of(store, models.provider_traits, models.traits)
    assert links == [('cmp-1', 'CUSTOM_NEW'), ('cmp-2', 'CUSTOM_OTHER')]


@pytest.mark.finding('D2', 'no id of a trait or class is taken for that of another database')
def test_a_class_declared_after_the_backup_is_written_by_its_name(store, another):
    host = a_host('cmp-1').on(store)
    backup = Backup(store)
    store.vocabulary.declare_class('CUSTOM_A')
    backup.put_back()
    another.vocabulary.declare_class('CUSTOM_B')  # under the id that the other one had
    store.vocabulary.declare_class('CUSTOM_A')
    host.facts = host.facts.with_room(vcpu=8, ram=16_384, disk=100, CUSTOM_A=4)
    assert host.report().outcome == 'applied'
    assert said_of(store, models.inventories, models.resource_classes) == [('cmp-1', 'CUSTOM_A')]
    # Usage and what is outside is written by name as well.
    assert report_outcome(store, a_draft().taking(host, CUSTOM_A=3)).outcome == 'placed'
    assert report_outcome(another, a_draft().taking(host, CUSTOM_B=1)).outcome == 'dropped'
    host.facts = host.facts.outside(CUSTOM_A=1)
    assert host.report().changed
    assert (host.row.used, host.row.foreign) == ({'CUSTOM_A': 3}, {'CUSTOM_A': 1})
    assert store.claims.audit() == CLEAN


@pytest.mark.finding('D2', 'no id of a trait or class is taken for that of another database')
def test_a_list_of_hosts_written_after_the_backup_is_written_again(store, another):
    """What a decision refers to is there, or nobody could explain it."""
    host = a_host('cmp-1').on(store)
    backup = Backup(store)

    def decide():
        record = a_decision(host_set='of all', provider_ids=b'1')
        draft = a_draft(decision=record).taking(host)
        assert commit(store, draft).outcomes[0].outcome == 'placed'
        return store.records.load_decision(record.id)

    assert decide()[1] == b'1'
    backup.put_back()
    assert decide()[1] == b'1'
    refusal = a_decision(host_set='of none', provider_ids=b'2')
    store.records.save_decisions([refusal])
    backup.put_back()
    store.records.save_decisions([refusal])
    assert store.records.load_decision(refusal.id)[1] == b'2'


# -- a database that nobody says went back ------------------------------------------------
@pytest.fixture(params=STORES)
def any_store(request: pytest.FixtureRequest, make_store: Callable[[str], Any]) -> Any:
    return make_store(request.param)


def break_connections(store: SqlStores) -> None:
    """As where another server takes over."""
    all_of = {
        'postgresql': 'SELECT pg_terminate_backend(pid) FROM pg_stat_activity '
        'WHERE datname = current_database() AND pid <> pg_backend_pid()',
        'mysql': 'SELECT id FROM information_schema.processlist '
        'WHERE db = database() AND id <> connection_id()',
    }
    engine = sa.create_engine(store.database.engine.url)
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(all_of[store.database.kind]).all()
        for (number,) in rows if store.database.kind == 'mysql' else ():
            connection.exec_driver_sql(f'KILL {number}')
    engine.dispose()


def members_by_host(store: Any) -> list[str]:
    return sorted(
        claim.host for claim in store.claims.list_claims() if claim.is_live and claim.group
    )


NOTICED = ('D3', 'a database that went back is noticed by every process by itself')


@pytest.mark.finding(*NOTICED)
@pytest.mark.parametrize('way', ['poll', 'compare'])
def test_a_hard_rule_holds_after_the_database_went_back_unnoticed(any_store, way):
    """The scheduler knows the host at a version that the database reaches only much later."""
    seconds = 1e9 if way == 'poll' else 2.0
    world = World(any_store, hosts=1, reload_seconds=seconds, stale_after_seconds=1e9)
    backup = Backup(any_store)
    for _ in range(5):  # transactions that the standby has not
        world.hosts['cmp-1'].report()
        world.turn()
    backup.put_back()
    if way == 'compare':
        # Others wrote as many numbers as were lost, about something else.
        for n in range(8):
            any_store.groups.save_group(a_group(uuid=uuid_of('another', n)))
    other = World(any_store, stale_after_seconds=1e9)  # begins after it
    group = uuid_of('group')
    request = a_request().in_group(group)
    assert other.select(request.build()).outcome == 'placed'
    world.turn(3.0, times=4)
    again = a_request().in_group(group).build()
    assert world.select(again).outcome == 'no_valid_host'
    assert len(members_by_host(any_store)) == 1
    assert world.recorder.counts['gantt_database_restores_total'] == 1
    assert other.recorder.counts['gantt_database_restores_total'] == 0


@pytest.mark.finding(*NOTICED)
def test_a_failed_swap_shows_that_the_database_went_back(any_store):
    """Before any poll: a host of the group is at an older version than the table has it."""
    world = World(any_store, hosts=2, stale_after_seconds=1e9)
    group = uuid_of('group')
    backup = Backup(any_store)
    for _ in range(5):
        world.hosts['cmp-1'].report()
        world.turn()
    backup.put_back()
    other = World(any_store, stale_after_seconds=1e9)
    first = a_request(force_hosts=['cmp-1']).in_group(group).build()
    assert other.select(first).outcome == 'placed'
    # Housekeeping is late: nothing is polled before this.
    handle = world.ask(a_request(force_hosts=['cmp-1']).in_group(group).build())
    for _ in range(5):
        world.scheduler.placing.step()
    assert handle not in world.replies.answers, 'it waits until everything was read again'
    world.turn(1.1, times=5)
    assert world.replies.answers[handle].outcome == 'no_valid_host'
    assert members_by_host(any_store) == ['cmp-1']


@pytest.mark.finding(*NOTICED)
def test_what_the_database_forgot_is_no_longer_shown(any_store):
    """A claim that is lost takes no room in the tables of schedulers and of the API."""
    world = World(any_store, hosts=1, stale_after_seconds=1e9)
    backup = Backup(any_store)
    assert world.select(world_request(ram=32_768)).outcome == 'placed'
    world.turn()
    follower = HostFollower(any_store.feed, any_store.vocabulary, world.clock)
    follower.table()
    backup.put_back()
    world.turn(1.1, times=3)
    (number,) = (change.provider_id for change in any_store.feed.load_everything().hosts)
    assert not world.scheduler.cache.fold().placed.on_provider(number)
    assert not follower.table().placed.on_provider(number)
    assert world.select(world_request(ram=32_768)).outcome == 'placed'


@pytest.mark.finding(*NOTICED)
def test_nothing_is_answered_by_a_table_that_was_just_found_to_be_lost(any_store):
    """Who finds no place reads the news first, and these show it: there may be room."""
    world = World(any_store, hosts=1, stale_after_seconds=1e9)
    backup = Backup(any_store)
    assert world.select(world_request(ram=32_000)).outcome == 'placed'
    world.turn()
    backup.put_back()
    world.clock.advance(0.1)
    small = world.ask(world_request(ram=256))
    large = world.ask(world_request(ram=1024))
    dry = world.ask(world_request(ram=128, dry_run=True))
    world.scheduler.placing.step()
    assert world.scheduler.cache.is_suspect
    assert not {small, large, dry} & world.replies.answers.keys()
    assert not any_store.claims.list_claims()
    world.turn(1.1, times=3)
    assert world.replies.answers[large].outcome == 'placed'
    assert world.replies.answers[small].outcome == 'placed'
    assert world.replies.answers[dry].outcome == 'placed'
    assert any_store.claims.audit() == CLEAN


@pytest.mark.finding(*NOTICED)
@pytest.mark.parametrize('store', SQL[1:], indirect=True)
def test_what_was_lost_before_anybody_had_polled_it_is_noticed(store):
    """The last commit alone is lost, and its number was never read: connections broke."""
    world = World(store, hosts=1, stale_after_seconds=1e9)
    backup = Backup(store)
    assert world.select(world_request(ram=32_768)).outcome == 'placed'
    backup.put_back()
    break_connections(store)
    world.turn(1.1, times=3)
    assert world.select(world_request(ram=32_768)).outcome == 'placed'
    assert world.recorder.counts['gantt_database_restores_total'] == 1


@pytest.mark.finding(*NOTICED)
def test_what_is_no_rollback_is_not_taken_for_one(any_store):
    """Hosts and groups that go and come, a purge, and a scheduler that reads in between."""
    world = World(any_store, hosts=3, reload_seconds=1.0, stale_after_seconds=1e9)
    for turn in range(6):
        group = a_group(uuid=uuid_of('group'))
        any_store.groups.save_group(group)
        host = a_host('comes').on(any_store)
        claim = world.select(a_request().in_group(group.uuid).build())
        world.turn()
        any_store.requests.cancel_request(claim.request_id, 'taken back')
        any_store.groups.remove_group(group.uuid)
        any_store.hosts.remove_host('comes')
        assert host.epoch > turn
        any_store.retention.purge(decisions=0, tombstone_seconds=0, request_seconds=0, limit=100)
        world.turn(1.1)
    assert world.recorder.counts['gantt_database_restores_total'] == 0
    assert world.recorder.counts['gantt_change_feed_missed_total'] == 0


# -- epochs ---------------------------------------------------------------------------------
EPOCHS = ('D4', 'an epoch is not given again to an agent that had it')


class Agent:
    """Session and reporter of a host over a journal on disk, as an agent has them."""

    def __init__(self, store: Any, path: pathlib.Path) -> None:
        self.store = store
        self.port = Port(store)
        self.journal = SqliteJournal(path)
        announcement = RegisterHost(name='cmp-1', boot_nonce='-')
        self.session = Session(announcement, self.port, self.journal)
        self.running: list[Running] = []
        self.reporter = Reporter(self.session, self.port, self._look)

    def _look(self) -> tuple[GuestInventory, HostReadings]:
        facts = HostReadings(inventories={'VCPU': Inventory(total=8)})
        return GuestInventory(running=list(self.running), pending=[]), facts

    def say(self) -> None:
        """Register where that is due, and report everything."""
        if not self.session.is_registered:
            self.session.register()
        self.reporter.report_all()
        self.reporter.send()

    def row(self) -> HostRow:
        (row,) = [c.row for c in self.store.feed.load_everything().hosts if c.row]
        return row


@pytest.fixture
def an_agent(any_store: Any, tmp_path: pathlib.Path) -> Iterator[Callable[[], Agent]]:
    """``an_agent()``: one more start of the agent of one host."""
    agents: list[Agent] = []

    def start() -> Agent:
        for agent in agents[-1:]:
            agent.journal.close()
        agents.append(Agent(any_store, tmp_path / 'journal.db'))
        return agents[-1]

    yield start
    agents[-1].journal.close()


@pytest.mark.finding(*EPOCHS)
@pytest.mark.parametrize('restarts', [0, 1])
def test_a_late_report_of_a_life_that_was_undone_is_not_taken(any_store, an_agent, restarts):
    """It would release what runs, and make the host's own reports stale for hours."""
    an_agent().say()
    backup = Backup(any_store)
    agent = an_agent()
    agent.say()
    late = changed(agent.reporter.next_report(), sequence=500)
    backup.put_back()
    if restarts:
        agent = an_agent()
    agent.say()  # is told that its epoch is gone
    agent.say()
    assert agent.session.epoch > late.epoch
    consumer = new_uuid()
    agent.running = [Running(consumer=consumer, resources={'VCPU': 1})]
    agent.say()
    (outcome,) = any_store.reports.apply_reports([late]).outcomes
    assert (outcome.outcome, outcome.released) == ('gone', [])
    agent.say()
    assert [c.consumer for c in any_store.claims.list_claims() if c.is_live] == [consumer]
    assert agent.row().sequence < 10


@pytest.mark.finding('D4', 'an agent whose full reports stay stale registers anew')
def test_an_agent_whose_numbers_were_used_up_registers_anew(any_store, an_agent):
    agent = an_agent()
    agent.say()
    spoilt = changed(
        agent.reporter.next_report(),
        sequence=500,
        full=True,
        base=None,
        inventories={'VCPU': Inventory(total=1)},
    )
    assert any_store.reports.apply_reports([spoilt]).outcomes[0].outcome == 'applied'
    for _ in range(6):
        agent.say()
    assert agent.row().facts.inventories['VCPU'].total == 8
    assert agent.session.epoch == agent.row().epoch == spoilt.epoch + 1


@pytest.mark.finding(*EPOCHS)
def test_nobody_can_use_up_the_epochs_of_a_host(any_store):
    host = a_host().on(any_store)
    for turn in range(3):
        before = host.epoch
        assert before < host.register(last_epoch=2**53) <= before + EPOCH_STEP_MAX + 1, turn
    assert host.register() == host.row.epoch
    assert host.report().outcome == 'applied'


def offers(candidates, amount):
    """Names of the providers that are offered for so many vCPUs."""
    query = CandidatesQuery(groups=(GroupQuery(resources={'VCPU': amount}),))
    return candidates.answer(
        query, lambda table, matches: {table.entry(s).uuid for row in matches.rows for s in row}
    )


@pytest.mark.finding('D3', 'candidates notice a database that went back and on')
def test_candidates_are_those_of_the_database_that_went_back(store):
    provider = store.providers.create_provider('one', inventories={'VCPU': Inventory(total=4)})
    other_provider = store.providers.create_provider(
        'two', inventories={'VCPU': Inventory(total=1)}
    )
    backup = Backup(store)
    lost = ProviderTableReader(store.candidates, reload_seconds=1e9)
    compared = ProviderTableReader(store.candidates, reload_seconds=0.0)
    set_inventories(store, provider.uuid, {'VCPU': Inventory(total=100)})
    assert offers(lost, 50) == offers(compared, 50) == {provider.uuid}
    backup.put_back()
    # Nobody asks until more has been written than was known.
    for number in range(6):
        set_inventories(store, other_provider.uuid, {'VCPU': Inventory(total=2 + number)})
    assert offers(compared, 50) == set()
    store.database.writes.lost += 1  # as where a standby has taken over
    assert offers(lost, 50) == set()
