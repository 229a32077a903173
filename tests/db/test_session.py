# SPDX-License-Identifier: Apache-2.0
"""Configuration, connections, and what is told where something is wrong."""

import concurrent.futures
import contextlib
import gc
import multiprocessing
import threading
import time
import uuid
import weakref

import psycopg
import pytest
import sqlalchemy as sa
from oslo_config import cfg

from gantt import exceptions
from gantt import stores as store_module
from gantt.conf import database as options
from gantt.db.engine import engine, retry, session
from gantt.db.schema import migration, models
from tests.builders import a_draft, a_host, commit


def configured(**values):
    conf = cfg.ConfigOpts()
    options.register_opts(conf)
    conf([])
    for name, value in values.items():
        conf.set_override(name, value, 'database')
    return conf


def test_no_connection_names_the_option_and_the_fix():
    with pytest.raises(exceptions.Misconfigured) as caught:
        store_module.connect(configured())
    assert '[database] connection' in caught.value.message
    assert 'postgresql+psycopg://' in caught.value.message


@pytest.mark.parametrize('url', ['oracle://x', 'not a url', 'mongodb://h/d', '://'])
def test_a_url_that_is_none_of_ours_is_refused(url):
    with pytest.raises(exceptions.Misconfigured, match='expected the url of an SQLite, PostgreSQL'):
        store_module.connect(configured(connection=url))


@pytest.mark.parametrize('url', ['sqlite://', 'sqlite:///:memory:'])
def test_sqlite_in_memory_is_refused(url):
    with pytest.raises(exceptions.Misconfigured, match='Name a file'):
        session.build_engine(url)


def test_the_clock_of_sqlite_counts_less_than_a_millisecond(tmp_path):
    """Two transactions fit in a millisecond, and openings are ordered by the clock."""
    with session.build_engine(f'sqlite:///{tmp_path / "clock.db"}').connect() as connection:
        read = f'SELECT {session.CLOCK["sqlite"]}'
        times = [connection.exec_driver_sql(read).scalar_one() for _ in range(20)]
    assert any(abs(seconds * 1000 - round(seconds * 1000)) > 0.01 for seconds in times)


def test_a_file_of_sqlite_in_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(exceptions.Misconfigured, match='the folder of .*/none/gantt.db does not'):
        session.build_engine(f'sqlite:///{tmp_path}/none/gantt.db')


def test_a_refusal_never_shows_the_password():
    with pytest.raises(exceptions.GanttError) as caught:
        url = 'postgresql+psycopg://gantt:opensesame@127.0.0.1:1/gantt'
        store_module.connect(configured(connection=url, max_retries=1))
    assert isinstance(caught.value, exceptions.DatabaseUnavailable)
    assert 'opensesame' not in caught.value.message


def test_a_database_that_is_not_synced_is_refused(tmp_path):
    conf = configured(connection=f'sqlite:///{tmp_path}/new.db')
    with pytest.raises(exceptions.DatabaseNotSynced, match='gantt-manage db sync'):
        store_module.connect(conf)
    engine = session.engine_from_conf(conf)
    migration.sync(engine)
    engine.dispose()
    store = store_module.connect(conf)
    assert store.feed.load_everything().hosts == []
    store.database.close()


def test_the_options_reach_the_store(tmp_path):
    conf = configured(
        connection=f'sqlite:///{tmp_path}/new.db', transaction_attempts=2, transaction_seconds=1.5
    )
    engine = session.engine_from_conf(conf)
    migration.sync(engine)
    engine.dispose()
    store = store_module.connect(conf)
    assert (store.database.writes.policy.attempts, store.database.writes.policy.seconds) == (2, 1.5)
    store.database.close()


@pytest.mark.parametrize('kind', ['postgresql', 'mysql'])
def test_a_url_without_a_driver_gets_the_one_that_is_tested(kind, request):
    url = request.getfixturevalue(f'{kind}_url')
    plain = url.replace('+psycopg', '').replace('+pymysql', '')
    engine = session.build_engine(plain)
    assert engine.dialect.driver in ('psycopg', 'pymysql')
    engine.dispose()


def test_text_that_no_database_keeps_is_made_storable(store, open_store):
    odd = 'a\x00b \ud800 é 漢 \U0001f600'
    store.declarations.save_aggregate('odd', {'note': odd}, [])
    host = a_host().on(store)
    store.hosts.disable_host(host.name, odd, 'me')
    host.send(host.says().having(traits=[odd], location=odd))
    other = open_store(like=store)
    row = other.feed.load_everything().hosts[0].row
    assert row.facts.traits == [engine.storable(odd)]
    stored = row.disabled
    assert stored == engine.storable(odd)
    assert '\x00' not in stored and stored.endswith('é 漢 \U0001f600')
    assert other.feed.load_everything().aggregates[0].metadata['note'] == stored
    assert store.claims.list_claims(host=odd) == []
    assert store.claims.list_claims(consumer=odd) == []
    assert store.records.load_decision(odd) is None


def test_connections_are_kept_and_bounded(store):
    host = a_host().on(store)
    works = [threading.Thread(target=commit, args=(store, a_draft().taking(host))) for _ in '12345']
    for work in works:
        work.start()
    for work in works:
        work.join()
    assert len(store.claims.list_claims()) == 5
    assert 1 <= len(store.database.writes._idle) <= 8


def _in_child(store, results):
    results.put(store.database.ping() > 0)


def test_a_connection_in_use_while_all_are_closed_is_closed_after_its_use(store):
    connections = []

    def work(tx):
        connections.append(tx.connection.connection.driver_connection)
        store.database.close()

    store.database.writes.write(work)
    [connection] = connections
    with pytest.raises(store.database.engine.dialect.loaded_dbapi.Error):
        connection.cursor().execute('SELECT 1')


def test_a_child_process_leaves_the_connections_of_its_parent_alone(store):
    before = store.database.ping()
    context = multiprocessing.get_context('fork')
    results = context.Queue()
    child = context.Process(target=_in_child, args=(store, results))
    child.start()
    assert results.get(timeout=30)
    child.join(30)
    assert child.exitcode == 0
    assert store.database.ping() >= before


def test_a_transaction_on_sqlite_takes_the_write_lock_at_once(open_store):
    store = open_store('sqlite')
    statements = []
    with store.database.writes.connection() as connection:
        driver = connection.connection.driver_connection
        driver.set_trace_callback(statements.append)
        connection.info['gantt_reads'] = False
        with connection.begin():
            connection.exec_driver_sql('SELECT 1')
        driver.set_trace_callback(None)
    assert statements[-3:] == ['BEGIN IMMEDIATE', 'SELECT 1', 'COMMIT']


def _at_once(database, count):
    """So many of its connections in use at the same time; they are kept."""
    barrier = threading.Barrier(count)
    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        for future in [
            threads.submit(database.read, lambda tx: barrier.wait(10)) for _ in 'x' * count
        ]:
            future.result()


@pytest.mark.postgresql
@pytest.mark.parametrize('is_pool_new', [False, True])
def test_what_one_keeps_idle_of_a_small_pool_others_get(postgresql_url, is_pool_new):
    engine = session.build_engine(postgresql_url, max_pool_size=1, max_overflow=2, pool_timeout=2)
    keeper = session.Transactions(engine)
    other = session.Transactions(engine, keep=8, session_settings=['SET enable_seqscan = off'])
    if is_pool_new:
        engine.dispose()  # it has another pool since

    def seqscan(tx):
        return tx.connection.exec_driver_sql('SHOW enable_seqscan').scalar_one()

    _at_once(keeper, 3)
    assert other.read(seqscan) == 'off'
    _at_once(other, 3)
    assert keeper.read(seqscan) == 'on'
    # Who waits gets what is given back, though there would be place to keep it.
    used, release = threading.Event(), threading.Event()

    def holds(tx):
        used.set()
        release.wait(10)
        time.sleep(0.3)  # until the other one waits

    with concurrent.futures.ThreadPoolExecutor() as threads:
        held = [threads.submit(keeper.read, holds) for _ in range(3)]
        assert used.wait(10)
        waits = threads.submit(other.read, seqscan)
        release.set()
        assert waits.result(30) == 'off'
        for each in held:
            each.result(10)
    assert engine.pool.checkedout() <= 3
    for database in (keeper, other):
        database.close()
    assert engine.pool.checkedout() == 0
    engine.dispose()


def test_an_engine_that_nobody_uses_any_more_is_freed(store_url):
    store = store_module.stores_for_url(store_url('sqlite'))
    a_host().on(store)
    store.database.close()
    engine = weakref.ref(store.database.engine)
    del store
    gc.collect()
    assert engine() is None


@pytest.mark.postgresql
def test_work_that_gives_up_leaves_a_connection_that_serves(open_store):
    database = open_store('postgresql').database.writes

    def backend(tx):
        return tx.connection.exec_driver_sql('SELECT pg_backend_pid()').scalar_one()

    def gives_up(tx):
        try:
            tx.connection.exec_driver_sql('SELECT 1 / 0')
        except Exception as e:
            raise session.WorkAbandoned from e

    before = database.read(backend)
    with pytest.raises(session.WorkAbandoned):
        database.write(gives_up)
    assert database.read(backend) == before


class Cut:
    """A connection that the server has closed."""

    closed = invalidated = False

    def __init__(self):
        self.info = {}
        self.ended = False

    def begin(self):
        raise psycopg.OperationalError('server closed the connection unexpectedly')

    def invalidate(self):
        self.ended = True

    def close(self):
        pass


def test_of_many_connections_that_broke_together_one_try_is_lost(tmp_path):
    migration.sync(engine := session.build_engine(f'sqlite:///{tmp_path}/gantt.sqlite'))
    database = session.Transactions(engine, retry.RetryPolicy(attempts=2, seconds=5))
    cut = [Cut() for _ in range(8)]
    database._idle = list(cut)
    assert database.write(lambda tx: tx.kind) == 'sqlite'
    assert all(connection.ended for connection in cut)
    database.close()


def requests_there(tx):
    return tx.first(sa.select(sa.func.count()).select_from(models.requests))[0]


@pytest.mark.parametrize('fails', [False, True])
def test_after_a_snapshot_every_statement_sees_one_moment_and_the_next_work_the_present(
    store, fails
):
    seen = []

    def look(tx):
        tx.snapshot()
        seen.append(requests_there(tx))
        store.requests.cancel_request(str(uuid.uuid4()), '')
        seen.append(requests_there(tx))
        if fails:
            raise exceptions.NotFound(kind='request', name='any')

    with contextlib.suppress(exceptions.NotFound):
        store.database.reads.read(look)
    assert seen == [0, 0]
    assert store.database.reads.read(requests_there) == 1
