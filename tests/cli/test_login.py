# SPDX-License-Identifier: Apache-2.0
"""Credentials of keystone, as ``gantt`` and ``openstack scheduler`` find and use them."""

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gantt.cli.endpoint import Exit
from gantt.http.server import HttpServer
from tests.cli.conftest import run
from tests.http import identity
from tests.http.cloud import guarded
from tests.http.identity import Keystone
from tests.http.site import Site

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def keystone(
    site: Site, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Keystone]:
    """A keystone, a site behind it that its catalog has, and no credentials around us."""
    server_of_tokens = Keystone()
    server = HttpServer(guarded(site, server_of_tokens, tmp_path), '127.0.0.1', 0, threads=4)
    server.start()
    server_of_tokens.catalog.append(
        identity.endpoints('scheduler', f'http://127.0.0.1:{server.port}')
    )
    for name in [name for name in os.environ if name.startswith(('OS_', 'GANTT_'))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv('COLUMNS', '80')
    monkeypatch.setenv('XDG_CONFIG_HOME', str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield server_of_tokens
    server_of_tokens.stop()
    assert server.stop(5)


def _credentials(keystone: Keystone, user: str) -> dict[str, str]:
    """As a file to be sourced sets them."""
    return {
        'OS_AUTH_URL': f'{keystone.url}/v3',
        'OS_USERNAME': user,
        'OS_PASSWORD': identity.PASSWORD,
        'OS_PROJECT_NAME': 'red',
        'OS_USER_DOMAIN_NAME': 'Default',
        'OS_PROJECT_DOMAIN_NAME': 'Default',
    }


def _use(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_the_environment_logs_in_and_the_catalog_says_where(
    keystone: Keystone, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(monkeypatch, _credentials(keystone, 'admin'))
    listed = run('host', 'list')
    assert listed.code == 0, listed.err
    assert '6 hosts' in listed.out
    _use(monkeypatch, {'OS_USERNAME': 'member'})
    refused = run('host', 'list')
    assert refused.code == Exit.TROUBLE
    assert 'rule gantt:hosts:list does not let you' in refused.err
    placed = run('select', '--resource', 'VCPU=1', '--dry-run', '-f', 'json')
    assert placed.code == 0, placed.err
    assert 'cmp-' not in placed.out
    for selected in (run('select', '--resource', 'VCPU=1', '--dry-run'), placed):
        assert 'would place' in selected.out or 'placed' in selected.out
    claiming = run('select', '--resource', 'VCPU=1')
    assert claiming.code == Exit.TROUBLE
    assert 'body.dry_run: expected true of you' in claiming.err


def test_clouds_yaml_has_clouds_by_name(
    keystone: Keystone, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = _credentials(keystone, 'admin')
    auth_of = {name[3:].lower(): value for name, value in credentials.items()}
    clouds = {
        'lab': {'auth': auth_of},
        'audit': {
            'auth': {
                **{k: v for k, v in auth_of.items() if not k.startswith('project')},
                'username': 'reader',
                'system_scope': 'all',
            }
        },
    }
    file = tmp_path / 'clouds.yaml'
    file.write_text(json.dumps({'clouds': clouds}))
    monkeypatch.setenv('OS_CLIENT_CONFIG_FILE', str(file))
    assert run('--os-cloud', 'lab', 'host', 'list').code == 0
    assert run('--os-cloud', 'audit', 'host', 'list').code == 0
    refused = run('--os-cloud', 'audit', 'host', 'enable', 'cmp-1')
    assert 'role:admin; you have the roles reader on the system' in refused.err
    monkeypatch.setenv('OS_CLOUD', 'lab')
    assert run('host', 'enable', 'cmp-1').code == 0
    unknown = run('--os-cloud', 'labb', 'host', 'list')
    assert unknown.code == Exit.USAGE
    assert 'labb' in unknown.err


def test_what_is_wrong_with_the_credentials_is_said(
    keystone: Keystone, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = keystone.catalog[-1]['endpoints'][0]['url']
    without = run('--endpoint', url, 'host', 'list')
    assert without.code == Exit.TROUBLE
    assert 'a token is needed' in without.err
    assert 'log in with --os-cloud' in without.err
    _use(monkeypatch, {**_credentials(keystone, 'admin'), 'OS_PASSWORD': 'wrong'})
    for words in (['host', 'list'], ['--endpoint', url, 'host', 'list']):
        wrong = run(*words)
        assert wrong.code == Exit.TROUBLE
        assert 'gantt: keystone ' in wrong.err
        assert 'wrong' not in wrong.err
    monkeypatch.setenv('OS_PASSWORD', identity.PASSWORD)
    assert run('--endpoint', url, 'host', 'list').code == 0
    keystone.catalog.pop()
    nowhere = run('host', 'list')
    assert 'no service of the type scheduler' in nowhere.err
    keystone.stop()
    assert 'gantt: keystone ' in run('host', 'list').err


HALF = {'OS_AUTH_URL': 'http://127.0.0.1:1/v3'}


@pytest.mark.parametrize(
    ('said', 'named'),
    [
        pytest.param(HALF, 'OS_PASSWORD', id='no-password'),
        pytest.param({'OS_AUTH_TYPE': 'token'}, 'OS_AUTH_URL', id='no-url'),
        pytest.param({**HALF, 'OS_AUTH_TYPE': 'token'}, 'OS_TOKEN', id='no-token'),
        pytest.param({'OS_AUTH_URL': 'nonsense', 'OS_PASSWORD': 'x'}, 'OS_AUTH_URL', id='no-http'),
        pytest.param({'OS_AUTH_URL': 'http://[x', 'OS_PASSWORD': 'x'}, 'OS_AUTH_URL', id='half'),
        pytest.param({'OS_CLOUD': 'x'}, 'clouds.yaml', id='clouds'),
    ],
)
def test_what_lacks_in_the_credentials_is_one_line_that_names_it(
    keystone: Keystone,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    said: dict[str, str],
    named: str,
) -> None:
    (tmp_path / 'clouds.yaml').write_text('clouds: {x: 5}\n')
    _use(monkeypatch, said)
    refused = run('host', 'list')
    assert refused.code == Exit.USAGE, refused.err
    assert named in refused.err
    assert refused.err.count('\n') == 1


def test_who_asks_for_no_token_is_sent_none(
    keystone: Keystone, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(monkeypatch, _credentials(keystone, 'admin'))
    keystone.stop()
    assert run('--endpoint', endpoint, 'host', 'list').code == 0


# -- openstack scheduler ------------------------------------------------------------------
def _openstack(
    keystone: Keystone, folder: pathlib.Path, user: str, *words: str
) -> subprocess.CompletedProcess[str]:
    # A cache of entry points of its own, so that nothing is written to the user's.
    own = {**_credentials(keystone, user), 'XDG_CACHE_HOME': str(folder / 'cache')}
    return subprocess.run(
        [pathlib.Path(sys.executable).with_name('openstack'), *words],
        env={**os.environ, **own, 'PYTHONPATH': str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_openstack_scheduler_is_gantt_with_the_client_s_credentials(
    keystone: Keystone, tmp_path: pathlib.Path
) -> None:
    listed = _openstack(keystone, tmp_path, 'admin', 'scheduler', 'host', 'list', '-f', 'json')
    assert listed.returncode == 0, listed.stderr
    assert [host['name'] for host in json.loads(listed.stdout)][:2] == ['cmp-1', 'cmp-2']
    select = ['scheduler', 'select', '--resource', 'VCPU=4000', '--dry-run']
    refused = _openstack(keystone, tmp_path, 'member', *select)
    assert refused.returncode == Exit.NO_VALID_HOST
    assert refused.stderr.startswith('openstack: No valid host was found. no host fits')
