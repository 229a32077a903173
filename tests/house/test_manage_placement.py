# SPDX-License-Identifier: Apache-2.0
"""gantt-manage placement, as an operator runs it, on a SQLite file and a server in a thread."""

import contextlib
import json
import os
from types import SimpleNamespace

import pytest

from gantt import exceptions
from gantt.cmd import manage_placement, policies
from gantt.http import auth
from gantt.http.server import HttpServer
from gantt.http.settings import HttpSettings
from gantt.placement_api.http.app import make_placement_app
from gantt.scheduler.clock import SystemClock
from gantt.stores import stores_for_url
from gantt.telemetry.metrics import MetricRegistry
from tests.builders import uuid_of
from tests.http import identity
from tests.http.identity import Keystone
from tests.placement.server import Server
from tests.world import sqlite_store

POOL, VM = uuid_of('pool'), uuid_of('vm')


@contextlib.contextmanager
def serving(strategy=auth.noauth):
    """URL of another Gantt that speaks Placement."""
    store = sqlite_store(SystemClock())
    app = make_placement_app(store, MetricRegistry(), HttpSettings(), policies.defaults(), strategy)
    listening = HttpServer(app, '127.0.0.1', 0, threads=2)
    listening.start()
    try:
        yield f'http://127.0.0.1:{listening.port}'
    finally:
        assert listening.stop(5)
        store.database.close()


@pytest.fixture
def server():
    """One with a pool and a consumer."""
    with serving() as url, contextlib.closing(Server(url)) as placement:
        placement.make_provider(POOL, 'pool', None)
        placement.add_inventory(POOL, 'CUSTOM_LICENCE', {'total': 5})
        placement.allocate(VM, 'ann', 'red', POOL, {'CUSTOM_LICENCE': 2})
        yield placement


def test_all_is_taken_over_compared_and_written_back(server, synced, manage):
    code, out, error = manage('placement', 'compare', server.url)
    assert (code, f'provider {POOL}: only {server.url} has it (pool)' in out) == (1, True)
    assert f'{server.url}: providers: 1 of 1' in error
    code, out, _ = manage('placement', 'import', server.url, '--token', 'admin')
    assert (code, out) == (
        0,
        f'from {server.url} to Gantt: 1 classes, 0 traits, 1 providers, 1 inventories, '
        '0 trait sets, 0 aggregates, 1 consumers written\n',
    )
    code, out, _ = manage('placement', 'compare', server.url)
    assert (code, out) == (0, 'no difference: 1 providers, 1 consumers in Gantt\n')
    store = stores_for_url(f'sqlite:///{synced}/gantt.db')
    store.allocations.delete_allocations(VM)
    store.database.close()
    code, out, _ = manage('placement', 'compare', server.url, '-f', 'json')
    comparison = json.loads(out)
    assert code == 1
    assert comparison['url'] == server.url
    [difference] = comparison['differences']
    expected = {'kind': 'consumer', 'name': VM, 'field': '', 'here': None, 'there': True}
    assert difference == expected
    code, out, _ = manage('placement', 'export', server.url, '--delete', '-f', 'json')
    report = json.loads(out)
    assert (code, report['written']['consumers'], report['left']) == (0, 1, [])
    assert manage('placement', 'compare', server.url)[0] == 0
    # Who is refused something is told what, and by 1.
    server.allocate(VM, 'ann', 'red', POOL, {'CUSTOM_LICENCE': 2})
    server.request('PUT', '/resource_classes/CUSTOM_OTHER')
    assert manage('placement', 'import', server.url)[0] == 0


def test_who_asks_is_known_by_keystone(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith('OS_')]:
        monkeypatch.delenv(name)
    keystone = Keystone()
    conf = identity.configuration(tmp_path, {'keystone_authtoken': identity.options(keystone.url)})
    try:
        with serving(auth.strategy('keystone', conf)) as url:
            command = SimpleNamespace(url=url, token=None, os_cloud=None, timeout=60.0)
            with contextlib.closing(manage_placement.server_of(command)) as placement:
                with pytest.raises(exceptions.Misconfigured, match='role admin'):
                    placement.classes()
            for name, value in {
                'AUTH_URL': f'{keystone.url}/v3',
                'USERNAME': 'admin',
                'PASSWORD': identity.PASSWORD,
                'PROJECT_NAME': 'red',
                'USER_DOMAIN_NAME': 'Default',
                'PROJECT_DOMAIN_NAME': 'Default',
            }.items():
                monkeypatch.setenv(f'OS_{name}', value)
            with contextlib.closing(manage_placement.server_of(command)) as placement:
                assert placement.outlines() == {}
                # One that is not good any more, as after a long run, is made anew.
                placement.token = 'an old one'
                assert placement.classes() == frozenset()
            monkeypatch.setenv('OS_PASSWORD', 'wrong')
            with pytest.raises(exceptions.Misconfigured, match='keystone gives no token'):
                manage_placement.server_of(command)
    finally:
        keystone.stop()


def test_what_is_wrong_is_named(synced, manage):
    for arguments, expected in (
        (('compare', 'placement'), 'URL: expected such as http://placement:8778'),
        (('import', 'http://127.0.0.1:1', '--timeout', '0'), 'expected a number above 0'),
        (('import',), 'URL'),
        (('import', 'http://x', '--token', 'a', '--os-cloud', 'b'), 'not allowed with'),
        (('compare', 'http://127.0.0.1:1', '--os-cloud', 'nowhere'), 'nowhere'),
    ):
        code, out, error = manage('placement', *arguments)
        assert (code in (1, 64), out) == (True, ''), arguments
        assert expected in error
