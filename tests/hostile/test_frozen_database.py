# SPDX-License-Identifier: Apache-2.0
"""A database path that falls silent, and rows that a frozen scheduler keeps locked."""

import contextlib
import logging
import threading
import time

import pytest
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims.claim import Claim
from gantt.core.claims.commit import CommitStatus
from gantt.core.messages.report import HostReport, RegisterHost
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.decision import Outcome
from gantt.db.engine import session, watch
from gantt.db.hosts import claim_rows
from gantt.db.schema import models
from tests import world as worlds
from tests.builders import a_draft, a_host, commit, new_uuid, report_outcome
from tests.nemesis.proxy import Proxy
from tests.nemesis.site import until

pytestmark = pytest.mark.leaves_sockets

SERVERS = [
    pytest.param('postgresql', marks=pytest.mark.postgresql),
    pytest.param('mysql', marks=pytest.mark.mysql),
]


@pytest.fixture
def closing():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.mark.finding('A3', 'replies that never come are given up, and another thread sees it')
@pytest.mark.parametrize('kind', SERVERS)
def test_a_reply_that_never_comes_is_given_up(kind, request, closing, caplog):
    """TCP acknowledges everything: the proxy reads, and passes nothing on."""
    url = request.getfixturevalue(f'{kind}_url')
    proxy = Proxy.of(url)
    closing.callback(proxy.close)
    engine = session.build_engine(proxy.url(url), timeouts=session.Timeouts(answer=1.0))
    closing.callback(engine.dispose)
    database = session.Transactions(engine)
    closing.callback(database.close)
    database.read(lambda tx: tx.now)
    assert database.silent_for() == 0.0
    proxy.hold()
    times = []
    waiting = threading.Thread(target=lambda: times.append(database.read(lambda tx: tx.now)))
    with caplog.at_level(logging.WARNING):
        waiting.start()
        until(lambda: database.silent_for() > 0.2, 'a wait is seen by another thread', 10)
        until(lambda: 'is given up; its work' in caplog.text, 'its connection is given up', 10)
        assert database.silent_for() > 0.5, 'and it is silent all the same: nobody answered yet'
    proxy.mend()
    waiting.join(30)
    assert times, 'the statement was tried on another connection'
    assert database.silent_for() == 0.0


@pytest.mark.finding('A3', 'replies that never come are given up, and another thread sees it')
@pytest.mark.postgresql
def test_who_looks_at_the_waits_outlives_a_connection_that_is_closed(postgresql_url, closing):
    """By another thread than the one that waits: its number cannot be had any more."""
    engine = session.build_engine(postgresql_url, timeouts=session.Timeouts(answer=0.1))
    closing.callback(engine.dispose)
    connection = engine.connect()
    below = connection.connection.driver_connection
    watch.set_patient(connection, False)
    below.exchange.begin()
    below.close()
    until(lambda: below.exchange.given_up, 'it was looked at', 10)
    time.sleep(2 * watch.CHECK_SECONDS)
    assert 'waits' in {thread.name for thread in threading.enumerate()}
    below.exchange.end()
    connection.invalidate()
    connection.close()


# -- A1: rows that stay locked ----------------------------------------------------------------
def _registration(host):
    return RegisterHost(name=host.name, boot_nonce=new_uuid())


class Frozen:
    """A scheduler that stands still inside of a transaction, which no bound ends meanwhile."""

    def __init__(self, store, closing):
        self.engine = session.build_engine(
            store.database.engine.url.render_as_string(hide_password=False),
            name='gantt-scheduler frozen',
        )
        closing.callback(self.engine.dispose)
        self._closing = closing
        self.kind = session.family(self.engine)
        self.connection = self.engine.connect()
        closing.callback(self.connection.close)
        for statement in session.without_deadlines(self.kind):
            self.connection.exec_driver_sql(statement)
        self.connection.commit()

    def lock(self, *names):
        providers = models.providers
        query = sa.select(providers.c.id).where(providers.c.name.in_(names)).with_for_update()
        assert len(self.connection.execute(query).all()) == len(names)

    def insert_request(self, request_id):
        """A row that nobody sees, and that nobody else can insert."""
        self.connection.execute(
            models.requests.insert().values(
                id=request_id,
                fingerprint='f',
                state='open',
                owner='frozen',
                attempt=1,
                deadline=0.0,
                token='t',
                created_at=0.0,
                updated_at=0.0,
                claims=0,
            )
        )

    def insert_claim(self, consumer):
        """Of a consumer that no other claim may have beside it."""
        claim = Claim(id=new_uuid(), request_id=None, consumer=consumer, provider_id=0)
        values = claim_rows.claim_values(claim)
        self.connection.execute(models.claims.insert().values(values))

    def let_go(self):
        self.connection.rollback()


@pytest.fixture(params=SERVERS)
def store(request, make_store):
    return make_store(request.param)


@pytest.fixture
def frozen(store, closing):
    return Frozen(store, closing)


@pytest.mark.finding('A1', 'others are placed while one keeps rows locked')
def test_a_commit_goes_on_without_locked_hosts(store, frozen):
    """One batch on two hosts, and on a request row that somebody is just inserting."""
    stuck, free = a_host('stuck').on(store), a_host('free').on(store)
    frozen.lock('stuck')
    drafts = [a_draft().taking(stuck), a_draft().taking(free), a_draft().taking(free)]
    frozen.insert_request(drafts[2].id)
    result = commit(store, *drafts)
    assert [outcome.outcome for outcome in result.outcomes] == [
        CommitStatus.LOCKED,
        CommitStatus.PLACED,
        CommitStatus.LOCKED,
    ]
    assert 'host stuck is locked' in result.outcomes[0].reason
    assert result.locked == {stuck.id: 'stuck'}
    again = commit(store, drafts[0])
    assert again.outcomes[0].outcome is CommitStatus.LOCKED
    frozen.let_go()
    for draft in (drafts[0], drafts[2]):
        until(
            lambda draft=draft: report_outcome(store, draft).outcome is CommitStatus.PLACED,
            'it is placed',
            10,
        )
    assert not any(store.claims.audit().values())


@pytest.mark.finding('A1', 'others are placed while one keeps rows locked')
def test_a_commit_goes_on_without_a_consumer_that_is_just_claimed_for(store, frozen):
    free = a_host('free').on(store)
    consumer = new_uuid()
    frozen.insert_claim(consumer)
    drafts = [a_draft().taking(free, consumer), a_draft().taking(free)]
    result = commit(store, *drafts)
    assert [outcome.outcome for outcome in result.outcomes] == [
        CommitStatus.LOCKED,
        CommitStatus.PLACED,
    ]
    assert 'a consumer of it, is locked' in result.outcomes[0].reason
    frozen.let_go()
    assert report_outcome(store, drafts[0]).outcome is CommitStatus.PLACED
    assert not any(store.claims.audit().values())


@pytest.mark.finding('A1', 'others are placed while one keeps rows locked')
def test_requests_are_placed_elsewhere(store, frozen):
    """And who can go nowhere else is answered "busy", and which host is locked."""
    world = worlds.World(store, hosts=3)
    frozen.lock('cmp-1')
    answers = [world.select(worlds.a_request(2)) for _ in range(3)]
    assert {host for answer in answers for host in worlds.hosts_of(answer)} == {'cmp-2', 'cmp-3'}
    answer = world.select(worlds.a_request(force_hosts=['cmp-1'], budget_ms=3000), turns=60)
    assert answer.outcome is Outcome.BUSY
    assert 'host cmp-1 is locked by another process' in answer.reason
    waiting = world.ask(worlds.a_request(force_hosts=['cmp-1'], budget_ms=60_000))
    world.turn(times=3)
    frozen.let_go()

    def is_answered():
        world.turn()
        return waiting in world.replies.answers

    until(is_answered, 'it is answered', 30)
    assert worlds.hosts_of(world.replies.answers[waiting]) == ['cmp-1'], 'it is placed after all'
    assert not any(world.audit().values())


@pytest.mark.finding('A1', 'others are placed while one keeps rows locked')
def test_reports_and_words_of_other_hosts_go_on(store, frozen):
    stuck, free = a_host('stuck').on(store), a_host('free').on(store)
    frozen.lock('stuck')
    reports = [stuck.says().build(), free.says().build(), stuck.says().build()]
    result = store.reports.apply_reports(reports)
    assert [outcome.outcome for outcome in result.outcomes] == ['locked', 'applied', 'locked']
    with pytest.raises(exceptions.Busy, match='host stuck is locked'):
        stuck.confirm('some-claim')
    assert free.confirm('some-claim')[0].outcome == 'gone'
    assert store.claims.sweep(100).outcomes == []
    registered = store.reports.register_hosts([_registration(stuck), _registration(free)])
    assert isinstance(registered[0], exceptions.Busy)
    assert not isinstance(registered[1], Exception)
    frozen.let_go()
    until(
        lambda: store.reports.apply_reports(reports[:1]).outcomes[0].outcome == 'applied',
        'it is taken',
        10,
    )
    assert store.reports.apply_reports(reports[2:]).outcomes[0].outcome == 'applied'


def reported(world, name, *running):
    """The fate of a full report of a host, once it has one."""
    host = world.hosts[name]
    body = HostReport(
        name=name,
        epoch=host.epoch,
        sequence=host.stamp(),
        full=True,
        inventories={'MEMORY_MB': Inventory(total=2048)},
        running=list(running),
        pending=[],
    )
    return world.scheduler.report_queue.submit(body, notify=True)


@pytest.mark.finding('A1', 'a report of a locked host waits and is taken, the others at once')
def test_a_report_of_a_locked_host_is_taken_once_it_is_free(store, frozen):
    world = worlds.World(store, hosts=2)
    frozen.lock('cmp-1')

    stuck, free, later = (reported(world, name) for name in ('cmp-1', 'cmp-2', 'cmp-1'))
    world.turn()
    assert free.result(0).outcome == 'applied'
    assert not stuck.done()
    assert world.scheduler.report_queue.work_queue.depth == 2, 'what is set aside counts as waiting'
    frozen.let_go()

    def taken():
        world.turn()
        return later.done()

    until(taken, 'they are taken', 10)
    assert [stuck.result(0).outcome, later.result(0).outcome] == ['applied', 'applied']
    assert world.scheduler.report_queue.work_queue.depth == 0


@pytest.mark.finding('A1', 'a report of a locked host waits and is taken, the others at once')
def test_a_report_of_a_host_that_stays_locked_is_given_up(store, frozen):
    world = worlds.World(store, hosts=1)
    frozen.lock('cmp-1')
    replies = reported(world, 'cmp-1')
    world.scheduler.report_queue.step()
    world.clock.advance(11.0)
    world.scheduler.report_queue.step()
    assert isinstance(replies.exception(0), exceptions.Busy)


@pytest.mark.finding('A6', 'a wait for a lock is worded so, and names who keeps it')
def test_who_keeps_the_rows_is_logged(store, frozen, caplog):
    stuck = a_host('stuck').on(store)
    frozen.lock('stuck')
    with caplog.at_level(logging.WARNING):
        commit(store, a_draft().taking(stuck))
    (line,) = [
        record.message
        for record in caplog.records
        if record.message.startswith('Row locks are held')
    ]
    assert 'rows=1 hosts (stuck)' in line
    if frozen.kind == 'postgresql':
        assert 'holders=gantt-scheduler frozen:' in line
