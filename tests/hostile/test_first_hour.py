# SPDX-License-Identifier: Apache-2.0
"""What somebody meets who has Gantt since an hour: mistakes, and what is said about them."""

import subprocess
import sys
from urllib.parse import urlsplit

import kombu
import pytest
import sqlalchemy as sa

from gantt import exceptions
from gantt.db import migration, session
from gantt.rpc import wire
from tests.house.conftest import ROOT
from tests.rpc.bus import Bus
from tests.rpc.facade import Facade
from tests.services import rabbitmqctl


@pytest.fixture
def manage(tmp_path):
    """``manage(url, *arguments)``: the exit code, and all that it printed."""

    def run(url, *arguments):
        config = tmp_path / 'gantt.conf'
        config.write_text(
            f'[DEFAULT]\nstate_path = {tmp_path}\nlog_file = {tmp_path}/log\n'
            f'[database]\nconnection = {url}\n'
        )
        done = subprocess.run(
            [sys.executable, '-m', 'gantt.cmd.manage', '--config-file', config, *arguments],
            cwd=ROOT, capture_output=True, text=True, timeout=110,
        )  # fmt: skip
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
        code, said = manage(shown, *command)
        assert code == 1
        (line,) = (one for one in said.splitlines() if 'database' in one)
        assert 'the database runs and refuses us: ' in line
        assert f'correct in [database] connection {correct}' in line
        assert 'Start the database' not in line, 'it runs'
        assert 'unexpected' not in said and 'Traceback' not in said and 'wr0ng' not in said
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


# -- the broker -----------------------------------------------------------------------------


@pytest.fixture
def facade():
    made = Facade()
    yield made
    made.stop()


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
    said = caught.value.message
    assert '(403) ACCESS_REFUSED' in said
    assert f"rabbitmqctl set_permissions -p {vhost} {name} '.*' '.*' '.*'" in said
    assert 'delete' not in said
    # Not the library's count of tries, which is "inf".
    assert 'Unable to connect' not in said and 'tries' not in said


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
    said = caught.value.message
    assert '(406) PRECONDITION_FAILED' in said
    assert 'delete the queue' in said and 'set_permissions' not in said


@pytest.mark.rabbit
@pytest.mark.finding('N24', 'words')
def test_a_wrong_password_of_the_broker_is_told_in_its_own_words(rabbit_url, facade):
    parts = urlsplit(rabbit_url)
    place = parts.netloc.rpartition('@')[2]
    with pytest.raises(exceptions.BrokerUnavailable) as caught:
        Bus(parts._replace(netloc=f'guest:wr0ng@{place}').geturl(), facade, start_wait_seconds=0)
    said = caught.value.message
    assert 'runs and refuses us: (403) ACCESS_REFUSED - ' in said
    assert 'correct in transport_url the user or the password' in said
    assert '(0, 0)' not in said and 'start it' not in said and 'wr0ng' not in said
