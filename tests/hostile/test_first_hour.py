# SPDX-License-Identifier: Apache-2.0
"""What somebody meets who has Gantt since an hour: mistakes, and what is said about them."""

import os
import socket
from urllib.parse import urlsplit

import httpx2 as httpx
import kombu
import msgspec
import pytest
import sqlalchemy as sa
from oslo_config import cfg
from oslo_messaging import conffixture

from gantt import conf as options
from gantt import exceptions, plugin_loader
from gantt.cli.status import _status_lines
from gantt.cmd import api, scheduler
from gantt.cmd.process_signals import ProcessSignals
from gantt.db.engine import session
from gantt.db.schema import migration
from gantt.rpc import wire
from gantt.telemetry import log
from tests import warm
from tests.http.site import Site as HttpSite
from tests.nemesis.site import until
from tests.rpc.bus import Bus
from tests.rpc.facade import Facade
from tests.services import rabbitmqctl


@pytest.fixture
def manage(tmp_path):
    """``manage(url, *arguments)``: the exit code, and all that it printed."""

    def run(url, *arguments, broker='kombu+memory:///'):
        config = tmp_path / 'gantt.conf'
        config.write_text(
            f'[DEFAULT]\nstate_path = {tmp_path}\nlog_file = {tmp_path}/log\n'
            f'transport_url = {broker}\n[database]\nconnection = {url}\n'
        )
        done = warm.run('gantt.cmd.manage', '--config-file', config, *arguments)
        return done.returncode, done.stdout + done.stderr

    return run


# -- the database ---------------------------------------------------------------------------


@pytest.mark.finding('N3', 'a wrong password or name of the database is one line of gantt-manage')
@pytest.mark.parametrize(
    ('changes', 'correct'),
    [
        ({'username': 'nobody-of-that-name', 'password': 'wr0ng'}, 'the user or the password'),
        ({'database': 'no_such_database'}, 'the name of the database'),
    ],
    ids=['password', 'name'],
)
@pytest.mark.parametrize(
    'kind',
    [
        pytest.param('postgresql', marks=pytest.mark.postgresql),
        pytest.param('mysql', marks=pytest.mark.mysql),
    ],
)
def test_a_database_that_refuses_us_is_told_in_one_line(
    manage, tmp_path, request, kind, changes, correct
):
    url = sa.make_url(request.getfixturevalue(f'{kind}_url')).set(**changes)
    shown = url.render_as_string(hide_password=False)
    for command in (['config', 'check'], ['db', 'sync']):
        code, output = manage(shown, *command)
        assert code == 1
        (line,) = (line for line in output.splitlines() if 'database' in line)
        assert 'the database runs and refuses us: ' in line
        assert f'correct in [database] connection {correct}' in line
        assert 'Start the database' not in line, 'it runs'
        assert 'unexpected' not in output and 'Traceback' not in output and 'wr0ng' not in output
    log = tmp_path / 'log'
    assert not log.exists() or 'Traceback' not in log.read_text()


@pytest.mark.finding('N24', 'words')
def test_a_database_without_a_schema_is_told_as_such(tmp_path):
    engine = session.build_engine(f'sqlite:///{tmp_path}/empty.db')
    with pytest.raises(exceptions.DatabaseNotSynced) as caught:
        migration.check(engine)
    engine.dispose()
    assert caught.value.message.startswith('the database has no schema, ')
    assert 'gantt-manage db sync' in caught.value.message


READERS = {
    'postgresql': (
        "CREATE ROLE {name} LOGIN PASSWORD 'secret'",
        'GRANT USAGE ON SCHEMA public TO {name};'
        ' GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}',
        'DROP OWNED BY {name}',
        'DROP ROLE {name}',
    ),
    'mysql': (
        "CREATE USER {name}@'%' IDENTIFIED BY 'secret'",
        "GRANT SELECT ON {database}.* TO {name}@'%'",
        "DROP USER {name}@'%'",
    ),
}


@pytest.fixture(params=[pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in READERS])
def as_reader(request):
    """The url of a database with a schema, with a user who may only read it."""
    url = sa.make_url(request.getfixturevalue(f'{request.param}_url'))
    engine = session.build_engine(url.render_as_string(hide_password=False))
    migration.sync(engine)
    name = f'reader_of_{url.database}'
    first, grant, *last = (
        text.format(name=name, database=url.database) for text in READERS[request.param]
    )

    def run(statements):
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))

    try:
        run([first])
    except sa.exc.DBAPIError as e:
        pytest.skip(f'NO USERS: the tests may make none in {request.param}: {e.orig}')
    try:
        run([grant])
        yield url.set(username=name, password='secret').render_as_string(hide_password=False)
    finally:
        run(last)
        engine.dispose()


@pytest.mark.finding('N5', 'a user of the database who may not write is told at once')
def test_a_user_of_the_database_who_may_not_write_is_told_at_once(as_reader, manage):
    code, output = manage(as_reader, 'config', 'check')
    (line,) = (line for line in output.splitlines() if line.startswith('database '))
    assert code == 1
    assert 'WRONG' in line and 'the database runs and refuses us: ' in line
    assert 'grant it SELECT, INSERT, UPDATE and DELETE' in line
    # What needs no right but to read goes on.
    assert manage(as_reader, 'audit')[0] == 0
    for program in (scheduler_command, api_command):
        config = cfg.ConfigOpts()
        conffixture.ConfFixture(config)
        for module in (options, log):
            module.register_opts(config)
        config([], project='gantt', default_config_files=[])
        config.set_override('connection', as_reader, 'database')
        config.set_override('transport_url', 'kombu+memory:///')
        with pytest.raises(exceptions.DatabaseUnavailable, match='grant it SELECT, INSERT'):
            program(config)


@pytest.mark.finding('N5', 'a user of the database who may not write is told at once')
@pytest.mark.postgresql
def test_a_user_who_may_not_use_the_schema_is_not_told_to_make_one(postgresql_url, manage):
    engine = session.build_engine(postgresql_url)
    migration.sync(engine)
    engine.dispose()
    hidden = sa.make_url(postgresql_url).update_query_dict(
        {'options': '-c search_path=no_schema_of_that_name'}
    )
    code, output = manage(hidden.render_as_string(hide_password=False), 'config', 'check')
    (line,) = (line for line in output.splitlines() if line.startswith('database '))
    assert code == 1
    assert 'no schema of no_schema_of_that_name is there for this user' in line
    assert 'db sync' not in line


def scheduler_command(conf):
    conf.set_override('metrics_port', 0)
    return scheduler.work(conf, ProcessSignals())


def api_command(conf):
    return api.compose(conf)


# -- the broker -----------------------------------------------------------------------------


@pytest.fixture
def facade():
    new_facade = Facade()
    yield new_facade
    new_facade.stop()


@pytest.fixture
def as_nobody(rabbit_url):
    """A url with a user who may log in, and do nothing."""
    parts = urlsplit(rabbit_url)
    name, vhost = f'nobody_of_{parts.path[1:]}', parts.path[1:] or '/'
    if not rabbitmqctl('add_user', name, 'secret'):
        pytest.skip(
            'NO POLICY OF THE BROKER: rabbitmqctl makes no user here; run as its user or root'
        )
    try:
        assert rabbitmqctl('set_permissions', '-p', vhost, name, '^$', '^$', '^$')
        place = parts.netloc.rpartition('@')[2]
        yield parts._replace(netloc=f'{name}:secret@{place}').geturl(), name, vhost
    finally:
        rabbitmqctl('delete_user', name)


@pytest.mark.rabbit
@pytest.mark.finding('N6', 'a missing permission of the broker is explained with permissions')
def test_a_missing_permission_is_explained_with_permissions(as_nobody, facade):
    url, name, vhost = as_nobody
    with pytest.raises(exceptions.Misconfigured) as caught:
        Bus(url, facade, nova_enabled=False)
    message = caught.value.message
    assert '(403) ACCESS_REFUSED' in message
    assert 'gantt-manage broker users' in message
    assert f'rabbitmqctl list_user_permissions {name}' in message and f'has in {vhost}' in message
    assert 'delete' not in message
    # Not the library's count of tries, which is "inf".
    assert 'Unable to connect' not in message and 'tries' not in message


@pytest.mark.rabbit
@pytest.mark.finding('N6', 'a missing permission of the broker is explained with permissions')
def test_a_queue_with_other_settings_is_explained_with_the_queue(rabbit_url, facade):
    with kombu.Connection(rabbit_url.replace('rabbit://', 'amqp://', 1)) as connection:
        channel = connection.channel()
        queue = kombu.Queue(wire.SCHEDULER_TOPIC, durable=False, channel=channel, max_length=7)
        queue.delete()  # of another test
        queue.declare()
        try:
            with pytest.raises(exceptions.Misconfigured) as caught:
                Bus(rabbit_url, facade, nova_enabled=False)
        finally:
            queue.delete()
    message = caught.value.message
    assert '(406) PRECONDITION_FAILED' in message
    assert 'delete the queue' in message and 'set_permissions' not in message


@pytest.mark.rabbit
@pytest.mark.finding('N24', 'words')
def test_a_wrong_password_of_the_broker_is_told_in_its_own_words(rabbit_url, facade):
    parts = urlsplit(rabbit_url)
    place = parts.netloc.rpartition('@')[2]
    with pytest.raises(exceptions.BrokerUnavailable) as caught:
        Bus(parts._replace(netloc=f'guest:wr0ng@{place}').geturl(), facade, start_wait_seconds=0)
    message = caught.value.message
    assert 'runs and refuses us: (403) ACCESS_REFUSED - ' in message
    assert 'correct in transport_url the user or the password' in message
    assert '(0, 0)' not in message and 'start it' not in message and 'wr0ng' not in message


@pytest.fixture
def start_scheduler(tmp_path, nowhere):
    """``start_scheduler(broker)``: a gantt-scheduler that starts, with a database of its own."""
    started = []

    def start(broker):
        url = f'sqlite:///{tmp_path}/gantt.db'
        engine = session.build_engine(url)
        migration.sync(engine)
        engine.dispose()
        config = tmp_path / 'scheduler.conf'
        config.write_text(
            f'[DEFAULT]\nstate_path = {tmp_path}\nlog_file = {tmp_path}/scheduler.log\n'
            f'transport_url = {broker}\nmetrics_port = 0\n[database]\nconnection = {url}\n'
            '[rpc]\nstart_wait_seconds = 3600\n'
        )
        words = ['gantt.cmd.scheduler', '--config-file', str(config)]
        out, error = tmp_path / 'out', tmp_path / 'error'
        process = warm.Started(words, out, error, os.environ)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(10)


@pytest.fixture
def nowhere():
    """The url of a broker that is not there, nor comes while the test runs."""
    with socket.socket() as held:
        held.bind(('127.0.0.1', 0))
        yield f'rabbit://guest:hunter2@127.0.0.1:{held.getsockname()[1]}/'


@pytest.mark.rabbit
@pytest.mark.finding('N4', 'a broker that refuses us is told at once, and by config check')
def test_a_wrong_password_of_the_broker_ends_the_start_with_one_line(
    rabbit_url, start_scheduler, manage, tmp_path
):
    parts = urlsplit(rabbit_url)
    place = parts.netloc.rpartition('@')[2]
    url = parts._replace(netloc=f'guest:wr0ng@{place}').geturl()
    # Trying for an hour is configured.
    assert start_scheduler(url).wait(100) == 1
    (line,) = (tmp_path / 'error').read_text().splitlines()
    assert 'runs and refuses us: (403) ACCESS_REFUSED - ' in line and 'wr0ng' not in line
    code, output = manage(f'sqlite:///{tmp_path}/gantt.db', 'config', 'check', broker=url)
    (line,) = (line for line in output.splitlines() if line.startswith('broker '))
    assert code == 1
    assert 'WRONG' in line and 'refuses us' in line and 'wr0ng' not in output


@pytest.mark.finding('N4', 'a broker that refuses us is told at once, and by config check')
def test_who_waits_for_the_broker_hears_sigterm(start_scheduler, nowhere, tmp_path):
    process = start_scheduler(nowhere)
    log = tmp_path / 'scheduler.log'
    until(
        lambda: log.exists() and 'does not answer; the start waits' in log.read_text(),
        'it tries',
        100,
    )
    process.terminate()
    assert process.wait(100) == 0, 'it would try for an hour'


# -- filters and weighers -------------------------------------------------------------------


@pytest.mark.finding('N1', '"gantt status" says that processes run different filters')
def test_the_status_says_that_processes_run_different_filters():
    site = HttpSite()
    site.place(1)
    (own,) = site.insights.status().configurations
    assert own.is_here and len(own.workers) == 1
    fewer = [name for name in plugin_loader.DEFAULT_FILTERS if name != 'TraitsFilter']
    site.world.scheduler.placing.use_pipeline(plugin_loader.load_pipeline(fewer))
    site.place(2)
    site.insights.reload_soon()
    (other,) = site.insights.status().configurations
    assert (other.is_here, other.workers) == (False, own.workers)
    assert other.digest != own.digest
    text = '\n'.join(_status_lines(msgspec.to_builtins(site.insights.status()), 100))
    assert f'{other.digest}: decided with' in text and 'SIGHUP' in text
    # What was decided long ago says nothing of now.
    site.pass_seconds(700)
    assert site.insights.status().configurations == []


# -- the page -------------------------------------------------------------------------------


BROWSER = 'text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8'


@pytest.mark.finding('N15', 'a browser at the root is shown the dashboard')
def test_a_browser_at_the_root_is_shown_the_dashboard():
    client = httpx.Client(
        transport=httpx.WSGITransport(app=HttpSite().app), base_url='http://localhost'
    )
    response = client.get('/', headers={'Accept': BROWSER})
    assert (response.status_code, response.headers['Location']) == (
        302,
        'http://localhost/dashboard',
    )
    for accept in ('*/*', 'application/json', 'application/json, text/html;q=0.5'):
        answer = client.get('/', headers={'Accept': accept})
        assert answer.status_code == 300 and answer.json()['versions'], accept
        assert 'Accept' in answer.headers['Vary']
    assert client.get('/v1', headers={'Accept': BROWSER}).json()['id'] == 'v1.0'
