# SPDX-License-Identifier: Apache-2.0
"""Tokens: looked at by keystone over TCP, kept for a while, refused in our own words."""

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx2 as httpx
import pytest

from gantt import exceptions
from gantt.http.keystone import TokenCache
from tests.http import identity
from tests.http.cloud import guarded
from tests.http.identity import Keystone
from tests.http.site import Site

OPEN = ('/', '/v1', '/v1/openapi.json', '/v1/health', '/healthcheck', '/dashboard')

Make = Callable[..., httpx.Client]


@pytest.fixture
def keystone() -> Iterator[Keystone]:
    server = Keystone()
    yield server
    server.stop()


@pytest.fixture
def make(keystone: Keystone, tmp_path: pathlib.Path) -> Iterator[Make]:
    """``make(option=value)``: a client of a site whose strategy is keystone."""
    clients = []

    def one(**changes: object) -> httpx.Client:
        transport = httpx.WSGITransport(guarded(Site(), keystone, tmp_path, **changes))
        clients.append(httpx.Client(transport=transport, base_url='http://localhost', timeout=30))
        return clients[-1]

    yield one
    for client in clients:
        client.close()


def _ask(client: httpx.Client, token: str, path: str = '/v1/hosts', **headers: str) -> Any:
    return client.get(path, headers={'X-Auth-Token': token, **headers})


def _error(answer: httpx.Response) -> dict[str, Any]:
    [error] = answer.json()['errors']
    assert error['status'] == answer.status_code
    assert error['request_id'] == answer.headers['x-openstack-request-id']
    return error


def test_a_good_token_opens_and_keystone_is_asked_once(keystone: Keystone, make: Make) -> None:
    client, token = make(), keystone.issue('admin')
    for _ in range(3):
        assert _ask(client, token).json()['total'] == 6
    assert keystone.asked == 1


def test_without_a_token_discovery_and_health_are_open_and_nothing_else(
    keystone: Keystone, make: Make
) -> None:
    client = make()
    keystone.stop()
    for path in OPEN:
        assert client.get(path).status_code in (200, 300), path
    answer = client.get('/v1/hosts')
    assert answer.status_code == 401
    assert _error(answer)['code'] == 'gantt.unauthorized'
    assert 'https://keystone.example.org/v3' in _error(answer)['detail']
    assert answer.headers['www-authenticate'] == 'Keystone uri="https://keystone.example.org/v3"'


def test_a_token_that_nobody_issued(make: Make) -> None:
    answer = _ask(make(), 'token-of-nobody')
    assert answer.status_code == 401
    assert 'not valid' in _error(answer)['detail']
    assert 'www-authenticate' in answer.headers


def test_a_token_that_expired(keystone: Keystone, make: Make) -> None:
    assert _ask(make(), keystone.issue('admin', seconds=-5)).status_code == 401


def test_a_token_that_expires_while_it_is_kept(keystone: Keystone, make: Make) -> None:
    client, token = make(), keystone.issue('admin')
    assert _ask(client, token).status_code == 200
    # What was kept of it is looked at again; only its time is in the past now.
    entry = keystone.tokens[token]
    other = keystone.issue('admin', seconds=-5)
    entry['expires_at'] = keystone.tokens[other]['expires_at']
    fresh = make(token_cache_time=-1)
    assert _ask(fresh, token).status_code == 401


def test_a_revoked_token_is_refused_at_once_where_nothing_is_kept(
    keystone: Keystone, make: Make
) -> None:
    client, token = make(token_cache_time=-1), keystone.issue('admin')
    assert _ask(client, token).status_code == 200
    keystone.revoke(token)
    assert _ask(client, token).status_code == 401


def test_a_revoked_token_is_good_for_as_long_as_it_is_kept(keystone: Keystone, make: Make) -> None:
    client, token = make(), keystone.issue('admin')
    assert _ask(client, token).status_code == 200
    keystone.revoke(token)
    assert _ask(client, token).status_code == 200


def test_keystone_away_is_503_and_not_the_fault_of_the_token(
    keystone: Keystone, make: Make
) -> None:
    client, good, unknown = make(), keystone.issue('admin'), keystone.issue('admin')
    assert _ask(client, good).status_code == 200
    keystone.stop()
    answer = _ask(client, unknown)
    assert answer.status_code == 503
    assert _error(answer)['code'] == 'gantt.identity_unavailable'
    assert _ask(client, good).status_code == 200  # it is kept
    assert _ask(client, unknown, '/v1/health').status_code == 200


def test_a_wrong_password_of_our_own_is_not_the_fault_of_the_caller(
    keystone: Keystone, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    answer = _ask(make(password='wrong'), keystone.issue('admin'))
    assert answer.status_code == 503
    assert _error(answer)['code'] == 'gantt.identity_unavailable'
    assert 'wrong' not in answer.text
    assert 'Identity server rejected authorization' in caplog.text


def test_who_says_it_is_somebody_is_not_believed(keystone: Keystone, make: Make) -> None:
    client = make()
    lies = {
        'X-Identity-Status': 'Confirmed',
        'X-Roles': 'admin',
        'X-User-Id': 'id-of-root',
        'X-Project-Id': 'blue',
        'OpenStack-System-Scope': 'all',
    }
    assert client.get('/v1/hosts', headers=lies).status_code == 401
    assert _ask(client, 'token-of-nobody', **lies).status_code == 401
    refused = _ask(client, keystone.issue('member'), **lies)
    assert refused.status_code == 403
    assert 'the roles member, reader on project red' in _error(refused)['detail']


def test_an_application_credential_does_what_its_access_rules_say(
    keystone: Keystone, make: Make
) -> None:
    keystone.catalog.append(identity.endpoints('scheduler', 'http://localhost'))
    client, token = make(), keystone.issue('admin')
    rule = {'id': 'r1', 'service': 'scheduler', 'method': 'GET', 'path': '/v1/hosts/*'}
    keystone.tokens[token]['application_credential'] = {
        'id': 'a1',
        'name': 'watcher',
        'restricted': True,
        'access_rules': [rule],
    }
    rules = {'OpenStack-Identity-Access-Rules': '1.0'}
    assert _ask(client, token, '/v1/hosts/cmp-1', **rules).status_code == 200
    assert _ask(client, token, '/v1/status', **rules).status_code == 401


def test_tokens_are_kept_up_to_a_number() -> None:
    kept = TokenCache(300)
    for number in range(5_000):
        kept.set(f'tokens/{number}', b'said')
    assert sum(kept.get(f'tokens/{number}') is not None for number in range(5_000)) == 2_000
    assert kept.get('tokens/4999') == b'said'


@pytest.mark.parametrize(
    ('changes', 'option'),
    [
        ({'auth_type': ''}, 'auth_type'),
        ({'auth_type': 'passwort'}, 'auth_type'),
        ({'auth_url': ''}, 'auth_url'),
        ({'auth_url': None}, 'auth_url'),
        ({'memcached_servers': '127.0.0.1:11211'}, 'memcached_servers'),
    ],
    ids=['none', 'misspelled', 'empty-url', 'no-url', 'no-library'],
)
def test_what_is_not_configured_is_named_at_start(
    make: Make, changes: dict[str, object], option: str
) -> None:
    with pytest.raises(exceptions.Misconfigured, match=rf'\[keystone_authtoken\] {option}'):
        make(**changes)
