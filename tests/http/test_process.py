# SPDX-License-Identifier: Apache-2.0
"""``gantt-api`` as a process: what it needs to start, what it can do without, how it ends."""

import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import httpx2 as httpx
import pytest

from tests import warm
from tests.http import identity
from tests.http.site import fixed
from tests.warm import Rig

#: Nobody listens on port 1.
NO_BROKER = 'rabbit://guest:guest@127.0.0.1:1/'
BODY = {
    'request_id': fixed(1),
    'consumers': [fixed(2)],
    'spec': {'resources': {'VCPU': 1}},
    'budget_ms': 2000,
}


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        return taken.getsockname()[1]


@pytest.fixture
def port() -> int:
    return _free_port()


@pytest.fixture
def rig(store_url: Callable[[str], str], tmp_path: pathlib.Path, port: int) -> Iterator[Rig]:
    new_rig = Rig(store_url('sqlite'), NO_BROKER, tmp_path, {'api': {'port': port}})
    yield new_rig
    new_rig.close()


def _fails(rig: Rig) -> str:
    """The one line that a start which fails says on standard error."""
    process = warm.run('gantt.cmd.api', '--config-file', rig.config, seconds=60)
    assert process.returncode == 1, process.stderr
    [line] = [x for x in process.stderr.splitlines() if x.startswith('gantt-api: ')]
    return line


def test_without_a_broker_it_answers_what_it_can_and_says_what_is_away(rig: Rig, port: int) -> None:
    rig.start('api', 'gantt-api')
    rig.wait_for('api', 'is ready')
    with httpx.Client(base_url=f'http://127.0.0.1:{port}', timeout=30) as caller:
        assert caller.get('/v1/hosts').json()['total'] == 0
        refused = caller.post('/v1/requests', json=BODY)
        assert refused.status_code == 503
        assert refused.json()['errors'][0]['code'] == 'gantt.broker_unavailable'
        health = caller.get('/v1/health')
        assert health.status_code == 503
        checks = {check['name']: check['ok'] for check in health.json()['checks']}
        assert checks == {
            'database': True,
            'host_table': True,
            'broker': False,
            'schedulers': False,
            'zones': True,
        }
        assert 'guest:guest' not in health.text
    assert rig.stop('api') == 0


def test_a_database_that_is_not_synced_is_said_before_anything_runs(
    tmp_path: pathlib.Path, port: int
) -> None:
    rig = Rig(f'sqlite:///{tmp_path}/empty.db', NO_BROKER, tmp_path, {'api': {'port': port}})
    assert 'gantt-manage db sync' in _fails(rig)


def test_a_port_that_is_taken(rig: Rig, port: int) -> None:
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', port))
        taken.listen()
        line = _fails(rig)
    assert f'[api] port: cannot listen on 127.0.0.1:{port}' in line


def test_an_auth_strategy_that_does_not_exist(
    store_url: Callable[[str], str], tmp_path: pathlib.Path
) -> None:
    options: dict[str, dict[str, object]] = {'api': {'auth_strategy': 'keystoen'}}
    rig = Rig(store_url('sqlite'), NO_BROKER, tmp_path, options)
    assert (
        "[api] auth_strategy: 'keystoen' is not known. Choose one of: keystone, noauth"
        in _fails(rig)
    )


def test_tokens_and_rules_are_those_of_the_configuration(
    store_url: Callable[[str], str], tmp_path: pathlib.Path, port: int
) -> None:
    keystone = identity.Keystone()
    rules = tmp_path / 'policy.yaml'
    rules.write_text('"gantt:status:show": "role:member"\n')
    options: dict[str, dict[str, object]] = {
        'api': {'port': port, 'auth_strategy': 'keystone'},
        'keystone_authtoken': identity.options(keystone.url),
        'oslo_policy': {'policy_file': rules},
    }
    rig = Rig(store_url('sqlite'), NO_BROKER, tmp_path, options)
    try:
        rig.start('api', 'gantt-api')
        rig.wait_for('api', 'is ready')
        token = {'X-Auth-Token': keystone.issue('member')}
        with httpx.Client(base_url=f'http://127.0.0.1:{port}', timeout=30) as caller:
            assert caller.get('/v1').status_code == 200
            assert caller.get('/v1/status').status_code == 401
            assert caller.get('/v1/status', headers=token).status_code == 200
            assert caller.get('/v1/hosts', headers=token).status_code == 403
        assert rig.stop('api') == 0
        rules.write_text('"gantt:status:shwo": "role:member"\n')
        assert 'did you mean gantt:status:show?' in _fails(rig)
    finally:
        rig.close()
        keystone.stop()


def test_the_wsgi_module_has_the_same_application(rig: Rig) -> None:
    code = (
        'import httpx2 as httpx\n'
        'from gantt.wsgi.api import application\n'
        "client = httpx.Client(transport=httpx.WSGITransport(application), base_url='http://localhost')\n"
        "print(client.get('/v1/hosts').json()['total'])\n"
    )
    process = subprocess.run(
        [sys.executable, '-c', code],
        env={**os.environ, 'OS_GANTT_CONFIG_FILE': str(rig.config)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.stdout == '0\n', process.stderr


@pytest.mark.rabbit
def test_from_the_command_line_to_a_claim(
    store_url: Callable[[str], str], rabbit_url: str, tmp_path: pathlib.Path, port: int
) -> None:
    """Scheduler, fake computes and API as processes; ``gantt`` in front of them."""
    rig = Rig(store_url('sqlite'), rabbit_url, tmp_path, {'api': {'port': port}})

    def gantt(*words: str) -> subprocess.CompletedProcess[str]:
        variables = {'GANTT_ENDPOINT': f'http://127.0.0.1:{port}', 'COLUMNS': '80'}
        return warm.run('gantt.cli.main', *words, seconds=60, environment=variables)

    try:
        rig.start('scheduler', 'gantt-scheduler')
        rig.start('compute', 'gantt-compute', '--fake', '5')
        rig.start('api', 'gantt-api')
        rig.wait_for('api', 'is ready')
        end = time.monotonic() + 40
        while 'Hosts     5: 5 up' not in gantt('status').stdout:
            assert time.monotonic() < end, rig.log('scheduler') + rig.log('compute')
            time.sleep(0.5)
        placed = gantt('select', '--resource', 'VCPU=1', '--count', '2')
        assert placed.returncode == 0, placed.stderr
        assert placed.stdout.startswith('placed 2 on ')
        assert gantt('claim', 'list', '--state', 'reserved').stdout.count('reserved') == 2
        refused = gantt('select', '--resource', 'VCPU=100000')
        assert refused.returncode == 2
        assert '0/5 hosts fit' in refused.stderr
        assert httpx.get(f'http://127.0.0.1:{port}/healthcheck').text == 'OK\nOK'
        assert rig.stop('api') == 0
    finally:
        rig.close()
