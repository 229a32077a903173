# SPDX-License-Identifier: Apache-2.0
"""The HTTP interface as a page of another site, or somebody without a token, meets it."""

import logging

import httpx2 as httpx
import pytest

from gantt import exceptions
from gantt.cmd.api import SchedulerProbe
from gantt.cmd.http_app import make_app
from gantt.http import auth
from gantt.http.microversion import HISTORY
from gantt.http.settings import HttpSettings
from tests.http import identity
from tests.http.cloud import guarded
from tests.http.site import Site, fixed

BODY = (
    f'{{"request_id": "{fixed(1)}", "consumers": ["{fixed(2)}"], '
    '"spec": {"resources": {"VCPU": 1}}}'
).encode()
OPS = 'https://ops.example.org'


@pytest.fixture(scope='module')
def site():
    return Site()


def _client(app, **fields):
    transport = httpx.WSGITransport(app)
    return httpx.Client(transport=transport, base_url='http://localhost:8790', **fields)


@pytest.fixture(scope='module')
def caller(site):
    with _client(site.app) as client:
        yield client


def _app(site, settings=None, **more):
    return make_app(site.insights, site.world.store, site.client, site.metrics, settings, **more)


def _code(answer):
    return answer.json()['errors'][0]['code']


# -- M8: pages of others -----------------------------------------------------------------
@pytest.mark.finding('M8', 'a body is JSON only where it says so, in every version')
@pytest.mark.parametrize('version', [str(version) for version in HISTORY])
@pytest.mark.parametrize(
    'kind', [None, 'text/plain;charset=UTF-8', 'multipart/form-data'], ids=['none', 'text', 'form']
)
def test_a_body_without_its_type_is_not_taken(site, caller, version, kind):
    headers = {'OpenStack-API-Version': f'scheduler {version}'}
    headers |= {'Content-Type': kind} if kind else {}
    answer = caller.post('/v1/requests', content=BODY, headers=headers)
    assert (answer.status_code, _code(answer)) == (415, 'gantt.unsupported_media_type')
    assert not site.world.store.claims.list_claims()


@pytest.mark.finding('M8', 'a page of another origin changes nothing')
@pytest.mark.parametrize('method', ['POST', 'PUT', 'DELETE'])
@pytest.mark.parametrize(
    'headers',
    [
        {'Sec-Fetch-Site': 'cross-site', 'Origin': 'https://example.com'},
        {'Sec-Fetch-Site': 'same-site', 'Origin': 'http://localhost:3000'},
        {'Sec-Fetch-Site': 'cross-site'},
        {'Origin': 'https://example.com'},
        {'Origin': 'http://localhost:3000'},
        {'Origin': 'null'},
        {'Origin': 'http://['},
    ],
    ids=['fetch', 'other-port', 'no-origin', 'old-browser', 'old-other-port', 'null', 'broken'],
)
def test_a_change_that_another_origin_asks_for_is_refused(site, caller, method, headers):
    headers = {**headers, 'Content-Type': 'application/json'}
    path = '/v1/requests' if method == 'POST' else '/v1/aggregates/rack-1'
    answer = caller.request(method, path, content=BODY, headers=headers)
    assert (answer.status_code, _code(answer)) == (403, 'gantt.foreign_origin')
    assert not site.world.store.claims.list_claims()


@pytest.mark.parametrize(
    'headers',
    [
        {},
        {'Sec-Fetch-Site': 'same-origin', 'Origin': 'http://localhost:8790'},
        {'Sec-Fetch-Site': 'none'},
        {'Origin': 'http://localhost:8790'},
        # A proxy asked by another name in front: only the browser knows whose page it is.
        {'Sec-Fetch-Site': 'same-origin', 'Origin': 'https://gantt.example.org'},
    ],
    ids=['program', 'page', 'user', 'old-browser', 'proxied'],
)
def test_our_own_page_and_programs_may_change(caller, headers):
    answer = caller.put('/v1/aggregates/rack-1?dry_run=true', json={}, headers=headers)
    assert answer.status_code == 200


def test_the_origins_that_are_named_may_change(site):
    with _client(_app(site, HttpSettings(cors_allowed_origins=(OPS,)))) as caller:
        headers = {'Origin': OPS, 'Sec-Fetch-Site': 'cross-site'}
        answer = caller.put('/v1/aggregates/rack-1?dry_run=true', json={}, headers=headers)
    assert answer.status_code == 200
    assert answer.headers['access-control-allow-origin'] == OPS


@pytest.mark.finding('M8', 'a name that somebody else leads here reads nothing (DNS rebinding)')
@pytest.mark.parametrize('path', ['/v1/hosts', '/metrics', '/v1/nothing', '/v1'])
@pytest.mark.parametrize(
    'host',
    ['rebound.example.com', 'rebound.example.com:8790', '[::1'],
    ids=['name', 'port', 'broken'],
)
def test_a_name_that_is_not_ours_is_not_served_without_tokens(caller, path, host):
    answer = caller.get(path, headers={'Host': host})
    assert (answer.status_code, _code(answer)) == (421, 'gantt.foreign_host')


@pytest.mark.parametrize(
    'host',
    ['127.0.0.1:8790', '[::1]:8790', 'LOCALHOST.', 'gantt.localhost', 'ops-1:80'],
    ids=['v4', 'v6', 'upper', 'below', 'named'],
)
def test_addresses_and_the_names_that_are_configured_are_served(site, host):
    with _client(_app(site, HttpSettings(served_names=('ops-1',)))) as caller:
        assert caller.get('/v1', headers={'Host': host}).status_code == 200


# -- L9, L10 ------------------------------------------------------------------------------
@pytest.mark.finding('L9', 'a page of a named origin can send its token')
def test_a_preflight_lets_the_token_through(site):
    with _client(_app(site, HttpSettings(cors_allowed_origins=(OPS,)))) as caller:
        headers = {
            'Origin': OPS,
            'Access-Control-Request-Method': 'POST',
            'Access-Control-Request-Headers': (
                'x-auth-token, content-type, openstack-api-version, x-openstack-request-id'
            ),
        }
        answer = caller.options('/v1/requests', headers=headers)
        response = caller.get('/v1', headers={'Origin': OPS})
    assert answer.status_code == 200
    assert answer.headers['access-control-allow-origin'] == OPS
    allowed = {
        name.strip().lower() for name in answer.headers['access-control-allow-headers'].split(',')
    }
    assert set(headers['Access-Control-Request-Headers'].split(', ')) <= allowed
    exposed = response.headers['access-control-expose-headers'].lower()
    assert all(name in exposed for name in ('x-openstack-request-id', 'retry-after', 'location'))


@pytest.mark.finding('L9', 'every origin without tokens is refused at the start')
def test_every_origin_may_ask_only_with_tokens(site):
    settings = HttpSettings(cors_allowed_origins=('*',))
    with pytest.raises(exceptions.Misconfigured, match='cors_allowed_origins'):
        _app(site, settings)
    assert _app(site, settings, strategy=lambda req: auth.noauth(req))


@pytest.mark.finding('L10', 'no answer is kept by others, and no type is guessed')
@pytest.mark.parametrize(
    'path', ['/v1/hosts', '/v1/nothing', '/healthcheck', '/metrics', '/v1/hosts/nobody']
)
def test_answers_are_kept_by_nobody(caller, path):
    answer = caller.get(path)
    assert answer.headers['x-content-type-options'] == 'nosniff'
    assert answer.headers['cache-control'] == 'no-store'
    page = caller.get('/dashboard')
    assert page.headers.get_list('cache-control') == ['no-cache']


@pytest.mark.finding('API5', 'the microversion is said with 404 and 405 too')
@pytest.mark.parametrize(
    ('method', 'path', 'status'),
    [
        ('GET', '/v1/nothing', 404),
        ('POST', '/v1/hosts', 405),
        ('GET', '/v1/hosts', 200),
    ],
)
def test_the_version_is_said_with_every_answer(caller, method, path, status):
    answer = caller.request(method, path, headers={'OpenStack-API-Version': 'scheduler 1.0'})
    assert answer.status_code == status
    assert answer.headers['openstack-api-version'] == 'scheduler 1.0'
    assert 'OpenStack-API-Version' in answer.headers['vary']


# -- L1, L2, L3, L4 --------------------------------------------------------------------------
def _away(*args, **kwargs):
    raise exceptions.DatabaseUnavailable(problem='10.1.2.3 refused')


@pytest.fixture(scope='module')
def keystone():
    new_keystone = identity.Keystone()
    yield new_keystone
    new_keystone.stop()


@pytest.mark.finding('L1', 'health says one word without a token')
def test_health_names_no_server_to_strangers(site, keystone, tmp_path, monkeypatch):
    monkeypatch.setattr(site.world.store.database, 'ping', _away)
    with _client(guarded(site, keystone, tmp_path)) as caller:
        stranger = caller.get('/v1/health')
        balancer = caller.get('/healthcheck')
        token = {'X-Auth-Token': keystone.issue('admin')}
        operator = caller.get('/v1/health', headers=token)
        member = caller.get('/v1/health', headers={'X-Auth-Token': keystone.issue('member')})
    assert (stranger.status_code, stranger.json()) == (503, {'healthy': False, 'checks': []})
    assert member.json() == stranger.json()
    assert (balancer.status_code, balancer.text.split()) == (503, ['UNAVAILABLE', 'OK'])
    assert '10.1.2.3' in operator.text


@pytest.mark.finding('L1', 'health says one word without a token')
def test_health_is_told_while_keystone_is_away(site, tmp_path):
    keystone = identity.Keystone()
    app = guarded(site, keystone, tmp_path, http_connect_timeout=1)
    keystone.stop()
    with _client(app) as caller:
        answer = caller.get('/v1/health', headers={'X-Auth-Token': 'whatever'})
    assert (answer.status_code, answer.json()) == (200, {'healthy': True, 'checks': []})


class _SlowSchedulers:
    """Answers when it is let, and counts who waits for it."""

    def __init__(self):
        self.asked = 0
        self.inside = None

    def get_request(self, request_id, timeout):
        self.asked += 1
        if self.inside is not None:
            self.inside()
        raise exceptions.NotFound(kind='request', name=request_id)


@pytest.mark.finding('L1', 'who asks for health does not wait for another who does')
def test_a_probe_under_way_holds_nobody_else():
    schedulers = _SlowSchedulers()
    probe = SchedulerProbe(schedulers)
    assert probe.broker() == 'the broker takes messages'
    probe._probed_at -= 60
    probes = []
    schedulers.inside = lambda: probes.append(probe.schedulers())
    assert probe.schedulers() == 'a scheduler answers'
    assert (probes, schedulers.asked) == (['a scheduler answers'], 2)


@pytest.mark.finding('L2', 'a path of a stranger is one line in the log')
def test_a_path_with_a_newline_is_logged_in_one_line(site, tmp_path, caplog):
    keystone = identity.Keystone()
    app = guarded(site, keystone, tmp_path, http_connect_timeout=1)
    keystone.stop()
    with _client(app) as caller, caplog.at_level(logging.WARNING, 'gantt.http'):
        path = '/v1/hosts/x%0a2026-01-01 CRITICAL all is lost'
        answer = caller.get(path, headers={'X-Auth-Token': 'whatever'})
    assert answer.status_code == 503
    assert 'all is lost' in caplog.text
    assert not any('\n' in record.getMessage() for record in caplog.records)


@pytest.mark.finding('L3', 'with delay_auth_decision a bad token is still 401')
@pytest.mark.parametrize('name', ['X-Auth-Token', 'X-Service-Token'])
def test_a_bad_token_that_is_passed_on_is_unauthorized(site, keystone, tmp_path, caplog, name):
    app = guarded(site, keystone, tmp_path, delay_auth_decision='true')
    headers = {'X-Auth-Token': keystone.issue('admin'), name: 'token-of-nobody'}
    with _client(app) as caller, caplog.at_level(logging.ERROR, 'gantt'):
        answer = caller.get('/v1/hosts', headers=headers)
    assert (answer.status_code, _code(answer)) == (401, 'gantt.unauthorized')
    assert not caplog.records


@pytest.mark.finding('L4', "a service's token is one that has a service's role")
def test_the_role_of_a_service_is_required_whatever_the_library_says(site, keystone, tmp_path):
    conf = identity.configuration(tmp_path, {'keystone_authtoken': identity.options(keystone.url)})
    auth.strategy('keystone', conf)
    # Releases before 13 have False here; their options are ours to set.
    location = conf.get_location('service_token_roles_required', 'keystone_authtoken')
    assert conf.keystone_authtoken.service_token_roles_required is True
    assert location.location.name == 'set_default'
