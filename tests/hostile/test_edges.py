# SPDX-License-Identifier: Apache-2.0
"""What was weak at the edges: clocks set back, rows that nobody can read, threads that end."""

import logging
import queue
import shutil
import threading
import time
from concurrent.futures import Future

import msgspec
import pytest
import sqlalchemy as sa
from alembic import command, config

from devel.doubles import MemoryRecorder
from gantt import exceptions
from gantt.cmd.health import Health
from gantt.core.messages.report import HostReport
from gantt.core.records.decision import Outcome
from gantt.core.resources.host_keys import SigningModes
from gantt.db.schema import migration, models
from gantt.rpc.amqp.envelope import Incoming
from gantt.rpc.api.endpoints import StatsMethods
from gantt.rpc.api.stats import Ratios
from gantt.rpc.call import RpcCall
from gantt.scheduler.host_signatures import HostSignatures
from gantt.scheduler.service import Scheduler
from gantt.scheduler.work_queue import WorkQueue
from gantt.stores import stores_for_url
from tests.builders import (
    CLEAN,
    a_draft,
    a_host,
    changed,
    claimed,
    live,
    new_uuid,
    register_host,
    report_outcome,
)
from tests.compute.hosts_in_memory import HostsInMemory, House, a_delete
from tests.conftest import STORES
from tests.services import UNHURRIED
from tests.world import World, a_request, sqlite_store

DATABASES = STORES[1:]


@pytest.fixture(params=STORES)
def store(request, make_store):
    return make_store(request.param)


@pytest.fixture(params=DATABASES)
def database(request, make_store):
    return make_store(request.param)


# -- D6 ----------------------------------------------------------------------------------
class Door:
    """What the topic of reports needs of a scheduler, over a store and a clock of ours."""

    def __init__(self, store, wall, folds_seconds=0.0):
        self.store, self.wall, self.folds_seconds = store, wall, folds_seconds
        self.signatures = HostSignatures(
            lambda name: None,
            store.hosts.load_host_key,
            SigningModes,
            MemoryRecorder().count,
            time.monotonic,
        )

    def database_now(self):
        return self.wall[0]

    def register_host(self, message):
        return register_host(self.store, message)[0]

    def has_classes(self, names):
        return True

    def report(self, report: HostReport, wait_seconds=None):
        self.wall[0] += self.folds_seconds
        return Scheduler.report_outcome(
            report, self.store.reports.apply_reports([report]).outcomes[0]
        )


def report_by(methods, name='esx-1'):
    """The fate of one dictionary report that somebody waits for."""
    args = {'name': name, 'stats': {'vcpus': 8, 'memory_mb': 1024, 'local_gb': 10}}
    call = RpcCall(Incoming(None, {'_msg_id': 'm', '_reply_q': 'q', 'args': args}, 100))
    return methods.update_resource_stats(call).run(call)['outcome']


@pytest.mark.finding('D6', 'a clock that is set back costs a host without sequences no report')
def test_reports_without_a_sequence_count_after_the_clock_was_set_back(store):
    wall = [1_800_000_000.0]
    ratios = Ratios(cpu=1.0, ram=1.0, disk=1.0)
    doors = [StatsMethods(Door(store, wall), ratios) for _ in range(2)]
    for door in doors:
        wall[0] += 1.0
        assert report_by(door) == 'applied'
    wall[0] -= 86_400.0
    doors.append(StatsMethods(Door(store, wall), ratios))  # one that was restarted
    for _ in range(3):
        for door in doors:
            wall[0] += 20.0
            assert report_by(door) == 'applied'


@pytest.mark.finding('D6', 'a clock that is set back costs a host without sequences no report')
def test_a_report_that_came_late_stays_stale(store):
    wall, ratios = 1_800_000_000.0, Ratios(cpu=1.0, ram=1.0, disk=1.0)
    assert report_by(StatsMethods(Door(store, [wall]), ratios)) == 'applied'
    # Numbered before the other one, folded after it.
    late = StatsMethods(Door(store, [wall - 0.1], folds_seconds=0.3), ratios)
    assert report_by(late) == 'stale'


# -- D7 ----------------------------------------------------------------------------------
# -- D9 ----------------------------------------------------------------------------------
def until(true, seconds=20.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.finding('D9', 'a round that fails ends no lane, and health says when it repeats')
def test_a_lane_goes_on_after_rounds_that_fail():
    recorder, done, healthy = MemoryRecorder(), [], threading.Event()

    def work(seconds):
        try:
            item = work_queue.next(seconds)
        except queue.Empty:
            return 0
        if not healthy.is_set():
            raise KeyError(item)
        done.append(item)
        return 1

    work_queue: WorkQueue[int] = WorkQueue('numbers', work, 100, recorder)
    work_queue.start()
    for number in range(3):
        work_queue.put(number)
    until(lambda: work_queue.is_failing and recorder.counts['gantt_errors_total'] == 3)
    healthy.set()
    work_queue.put(3)
    until(lambda: done == [3])
    assert not work_queue.is_failing
    assert work_queue.stop(10)


class Rpc:
    """A door that is open."""

    problem = paused = ''

    def attached(self):
        return {'topic': True}

    def health(self):
        return {}


@pytest.mark.finding('D9', 'a round that fails ends no lane, and health says when it repeats')
def test_reports_are_folded_and_answered_although_the_table_cannot_take_them():
    world = World(hosts=1)
    scheduler, host = world.scheduler, world.hosts['cmp-1']
    offer = scheduler.cache.offer
    health = Health(scheduler, Rpc())

    def broken(hosts):
        raise ZeroDivisionError('a defect')

    scheduler.cache.offer = broken
    scheduler.report_queue.work_queue.start()
    futures: list[Future] = []
    for _ in range(3):
        report = HostReport(
            name=host.name,
            epoch=host.epoch,
            sequence=host.stamp(),
            full=True,
            running=[],
            pending=[],
            inventories=world.store.feed.load_everything().hosts[0].row.facts.inventories,
        )
        futures.append(scheduler.report_soon(report))
        assert futures[-1].result(20).outcome == 'applied'
    until(lambda: 'reports' in scheduler.health()['failing'])
    well, body = health()
    assert not well and not body['checks']['threads']
    scheduler.cache.offer = offer
    report = msgspec.structs.replace(report, sequence=host.stamp())
    assert scheduler.report_soon(report).result(20).outcome == 'applied'
    until(lambda: not scheduler.health()['failing'])
    assert scheduler.report_queue.work_queue.stop(10)


# -- D10 ---------------------------------------------------------------------------------
@pytest.mark.finding('D10', 'claims that cannot be read stop no other lease from running out')
@pytest.mark.parametrize(
    'damage', [{'purpose': 'teleport'}, {'lifecycle': 'for_ever'}, {'layout': '{"cells'}]
)
def test_claims_that_cannot_be_read_are_left_and_named(database, damage):
    host = a_host().on(database)
    bad = [claimed(database, a_draft().leased(-9).taking(host))[0] for _ in range(3)]
    other = a_host('cmp-2').on(database)
    good = [claimed(database, a_draft().leased(-3).taking(other))[0] for _ in range(3)]
    values = models.claims.update().where(models.claims.c.id.in_([claim.id for claim in bad]))
    with database.database.engine.begin() as connection:
        connection.execute(values.values(**damage))
    unreadable: dict[str, str] = {}
    ended: list[str] = []
    for _ in range(3):
        result = database.claims.sweep(2)  # fewer than cannot be read
        unreadable.update(result.unreadable)
        ended += [outcome.claim_id for outcome in result.outcomes if outcome.outcome == 'ok']
    assert sorted(unreadable) == sorted(claim.id for claim in bad)
    assert sorted(ended) == sorted(claim.id for claim in good)
    audit = [line for lines in database.claims.audit().values() for line in lines]
    for claim in bad:
        assert any(claim.id in line and 'read' in line for line in audit)


@pytest.mark.finding('D10', 'claims that cannot be read stop no other lease from running out')
def test_an_unreadable_claim_is_counted_and_logged(make_store, caplog):
    store = make_store('sqlite')
    world = World(store, hosts=1)
    answer = world.select(a_request())
    with store.database.engine.begin() as connection:
        connection.execute(models.claims.update().values(purpose='teleport', expires_at=1.0))
    world.turn(60.0, times=3)
    assert world.recorder.counts['gantt_claims_unreadable_total'] == 1
    assert answer.selections[0][0].claim_id in caplog.text


# -- D11 ---------------------------------------------------------------------------------
@pytest.mark.finding('D11', 'a request id asked again after its row is gone is built again')
def test_a_request_id_of_days_ago_leads_to_a_guest(tmp_path):
    memory_hosts = HostsInMemory(sqlite_store)
    house = House(memory_hosts, tmp_path)
    house.member.turn()
    world = World(store=memory_hosts.store)
    world.turn()
    request = a_request(vcpu=2)

    def build():
        (chosen,) = world.select(request).selections[0]
        message = chosen.build()
        return message, house.agent.build(message)

    first, outcome = build()
    assert outcome.outcome == 'running'
    assert house.agent.delete(a_delete(first)).outcome == 'deleted'
    for clock in (memory_hosts.clock, world.clock):
        clock.advance(90_000.0)  # more than a request is kept, less than a journal keeps a claim
    settings = world.scheduler.settings
    memory_hosts.store.retention.purge(
        decisions=10,
        tombstone_seconds=settings.tombstone_seconds,
        request_seconds=settings.request_seconds,
        limit=100,
    )
    assert memory_hosts.store.requests.load_request(request.request_id) is None
    house.member.turn()
    world.turn()
    second, outcome = build()
    assert (outcome.outcome, second.claim_id != first.claim_id) == ('running', True)
    assert set(house.machine.running) == {second.claim_id}
    # One that comes late, of the first time, starts nothing.
    assert house.agent.build(first).outcome == 'finished'
    house.close()


# -- D13 ---------------------------------------------------------------------------------
@pytest.mark.finding('D13', 'what a lost commit left open is taken over by who left it, at once')
def test_a_request_goes_on_from_its_own_open_row(store):
    host = a_host().on(store)
    draft = a_draft().taking(host, vcpu=6).unfinished().within(300)
    assert report_outcome(store, draft).outcome == 'partial'  # and the answer was lost
    again = a_draft(draft.id).taking(host, vcpu=6)
    outcome = report_outcome(store, again)
    assert (outcome.outcome, outcome.attempt) == ('overdue', 1)
    heir = again.having(claims=[]).taking_over(1).taking(host, vcpu=6)
    assert report_outcome(store, heir).outcome == 'placed'
    (claim,) = live(store)
    assert (claim.attempt, claim.state) == (2, 'reserved')
    assert host.row.used == {'VCPU': 6}
    assert report_outcome(store, a_draft(draft.id).by('worker-2').taking(host)).outcome == 'repeat'
    assert store.claims.audit() == CLEAN


@pytest.mark.finding('D13', 'what a lost commit left open is taken over by who left it, at once')
def test_a_caller_that_asks_again_does_not_wait_for_a_lost_commit(make_store):
    store = make_store('sqlite')
    world = World(store, hosts=1)
    commit, lost = store.requests.commit, []

    def commit_and_be_cut_off(batch):
        if lost:
            return commit(batch)
        lost.append(commit([changed(draft, completes=False) for draft in batch]))
        raise exceptions.DatabaseUnavailable(problem='the connection was lost in COMMIT')

    store.requests.commit = commit_and_be_cut_off
    request = a_request(vcpu=2)
    assert world.select(request).outcome is not Outcome.PLACED
    assert world.select(request, turns=5).outcome is Outcome.PLACED
    assert len(live(store)) == 1
    assert store.claims.audit() == CLEAN


@pytest.mark.finding('D13', 'what a lost commit left open is taken over by who left it, at once')
def test_a_request_of_a_dead_worker_does_not_wait_for_its_whole_budget():
    """It died between two passes; the caller asks another one, within the same budget."""
    world = World(hosts=2, claims_per_commit=2)
    dead, heir = world.scheduler, world.another_scheduler()
    request = changed(a_request(vcpu=1), consumers=[new_uuid() for _ in range(4)], budget_ms=60_000)
    world.ask(request, dead)
    dead.placing.step()
    assert len(live(world.store)) == 2, 'half of it is claimed'
    world.schedulers.remove(dead)
    handle = world.ask(request, heir)
    world.turn(1.0, times=15)
    assert world.replies.answers[handle].outcome is Outcome.PLACED
    assert len(live(world.store)) == 4
    assert world.store.claims.audit() == CLEAN


# -- D12 ---------------------------------------------------------------------------------
LATER = """
import sqlalchemy as sa
from alembic import op

revision = '{name}'
down_revision = '{before}'


def upgrade():
    op.create_table('of_a_later_release', sa.Column('id', sa.Integer, primary_key=True))
"""


@pytest.fixture
def later_release(tmp_path):
    """``later_release(engine, name)``: a release with one more step syncs the database."""
    synced = []

    def sync(engine, name):
        folder = tmp_path / name
        shutil.copytree(
            migration.ALEMBIC_DIRECTORY, folder, ignore=shutil.ignore_patterns('__pycache__')
        )
        text = LATER.format(name=name, before=migration.expected())
        (folder / 'versions' / f'{name}.py').write_text(text)
        settings = config.Config()
        settings.set_main_option('script_location', str(folder))
        synced.append((engine, name))
        with engine.connect() as connection:
            settings.attributes['connection'] = connection
            command.upgrade(settings, 'head')

    yield sync
    for engine, name in synced:
        with engine.begin() as connection:
            connection.exec_driver_sql('DROP TABLE of_a_later_release')
            connection.execute(sa.text('DELETE FROM schema_steps WHERE revision = :n'), {'n': name})
            connection.execute(
                sa.text('UPDATE alembic_version SET version_num = :n'), {'n': migration.expected()}
            )


@pytest.mark.finding('D12', 'a scheduler starts again on a schema that a later release expanded')
def test_an_older_release_starts_where_later_steps_only_add(database, later_release):
    engine = database.database.engine
    later_release(engine, '9998_expand_more')
    assert migration.current(engine) == '9998_expand_more'
    url = engine.url.render_as_string(hide_password=False)
    again = stores_for_url(url, timeouts=UNHURRIED)
    assert report_outcome(again, a_draft().taking(a_host().on(again))).outcome == 'placed'
    assert again.claims.audit() == CLEAN
    again.database.close()
    assert migration.sync(engine) == '9998_expand_more'
    assert migration.bump_incarnation(engine) > 1


@pytest.mark.finding('D12', 'a scheduler starts again on a schema that a later release expanded')
def test_an_older_release_does_not_start_where_something_was_taken_away(database, later_release):
    later_release(database.database.engine, '9999_contract_something')
    with pytest.raises(exceptions.DatabaseNotSynced, match='newer release'):
        migration.check(database.database.engine)
    with pytest.raises(exceptions.DatabaseNotSynced, match='newer release'):
        migration.sync(database.database.engine)


# -- A4 ----------------------------------------------------------------------------------
def full(world, name):
    """A host that others fill."""
    world.hosts[name].facts = {'foreign': {'VCPU': 16}}


A4 = 'hosts that fell silent together are not known, rather than without room'


@pytest.mark.finding('A4', A4)
def test_hosts_that_fell_silent_together_are_not_known(caplog):
    caplog.set_level(logging.INFO)
    world = World(hosts=5)
    world.turn(200.0)
    for name in ('cmp-1', 'cmp-2'):
        full(world, name)
        world.hosts[name].report()
    world.turn(6.0)
    answer = world.select(a_request())
    assert answer.outcome is Outcome.UNKNOWN
    assert '3 hosts that would fit' in answer.reason and 'silent together' in answer.reason
    assert 'fell silent together' in caplog.text
    # What fits on none of them is refused as ever.
    assert world.select(a_request(ram=10**9)).outcome is Outcome.NO_VALID_HOST
    # One more reports: most do now. The rest may still come, for as long as a host is not down.
    full(world, 'cmp-3')
    for name in ('cmp-1', 'cmp-2', 'cmp-3'):
        world.hosts[name].report()
    world.turn(6.0)
    assert world.select(a_request()).outcome is Outcome.UNKNOWN
    for _ in range(4):
        world.turn(60.0)
        for name in ('cmp-1', 'cmp-2', 'cmp-3'):
            world.hosts[name].report()
    world.turn(6.0)
    assert world.select(a_request()).outcome is Outcome.NO_VALID_HOST
    assert 'Most hosts report again' in caplog.text


@pytest.mark.finding('A4', A4)
def test_a_host_that_is_silent_by_itself_is_left_out():
    world = World(hosts=5)
    for name in ('cmp-4', 'cmp-5'):
        full(world, name)
    for number in range(10):  # one after another falls silent, and most are in the end
        for name in list(world.hosts)[min(number // 2, 3) :]:
            world.hosts[name].report()
        world.turn(60.0)
    for _ in range(2):
        world.turn(60.0)
        for name in ('cmp-4', 'cmp-5'):
            world.hosts[name].report()
    world.turn(6.0)
    assert world.select(a_request()).outcome is Outcome.NO_VALID_HOST
