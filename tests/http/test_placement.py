# SPDX-License-Identifier: Apache-2.0
"""Placement's interface: who asks, which version, which error first; and what hosts say."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from gantt.cmd import policies
from gantt.core.records.audit_trail import AuditEntry
from gantt.http import auth
from gantt.http.settings import HttpSettings
from gantt.placement_api.http import dispatch, versions
from gantt.placement_api.http.app import ROUTES, make_placement_app
from gantt.scheduler.clock import SystemClock
from gantt.telemetry.metrics import MetricRegistry
from tests.builders import a_host, uuid_of
from tests.http import identity
from tests.http.identity import Keystone
from tests.world import sqlite_store

ADMIN = {'X-Auth-Token': 'admin', 'Accept': 'application/json'}
SERVICE = {**ADMIN, 'X-Auth-Token': 'nova', 'X-Roles': 'admin, service'}
POOL, OTHER = uuid_of('pool'), uuid_of('other')


class Served:
    """The application on a store of its own, as clients see it.

    :ivar trail: what went to the audit trail
    """

    def __init__(self, strategy: auth.Strategy = auth.noauth, **settings: Any) -> None:
        self.store = sqlite_store(SystemClock())
        self.trail: list[AuditEntry] = []
        self.app = make_placement_app(
            self.store,
            MetricRegistry(),
            HttpSettings(**settings),
            policies.defaults(),
            strategy,
            self.trail.append,
        )
        self.client = httpx.Client(
            transport=httpx.WSGITransport(self.app), base_url='http://localhost'
        )

    @staticmethod
    def _own(environ: Any, start_response: Any) -> Any:
        start_response('200 OK', [])
        return [b'ours']

    def ask(self, method: str, path: str, body: Any = None, minor: int = 39, **more: Any) -> Any:
        headers = {**ADMIN, versions.HEADER: f'placement 1.{minor}', **more.pop('headers', {})}
        return self.client.request(method, path, json=body, headers=headers, **more)

    def make(self, uuid: str = POOL, name: str = 'pool', **more: Any) -> None:
        body = {'uuid': uuid, 'name': name, **more}
        assert self.ask('POST', '/resource_providers', body).status_code == 200


@pytest.fixture
def served() -> Iterator[Served]:
    api = Served()
    yield api
    api.store.database.close()


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The one error of an answer."""
    [error] = answer.json()['errors']
    return error


# -- versions ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('header', 'minor'),
    [
        ('', 0),
        ('placement 1.0', 0),
        ('placement 1.39', 39),
        ('placement latest', 39),
        ('PLACEMENT 1.7', 7),
        ('compute 2.90, placement 1.12', 12),
        ('placement 1.12, placement 1.13', 13),
        ('compute 2.90', 0),
        ('placement', 0),
    ],
)
def test_the_version_that_is_asked_for(header: str, minor: int) -> None:
    assert versions.parse(header) == minor


@pytest.mark.parametrize(
    ('header', 'status'),
    [
        ('placement 1.40', 406),
        ('placement 2.0', 406),
        ('placement 0.9', 406),
        ('placement 1.-1', 406),
        ('placement 1', 400),
        ('placement 1.2.3', 400),
        ('placement newest', 400),
        ('placement 1.' + '9' * 5000, 400),
    ],
)
def test_a_version_that_is_not_served(served: Served, header: str, status: int) -> None:
    answer = served.ask('GET', '/', headers={versions.HEADER: header})
    assert answer.status_code == status
    assert versions.HEADER not in answer.headers
    if status == 406:
        assert error_of(answer)['max_version'] == '1.39'


def test_each_answer_says_its_version_and_errors_have_codes_from_23(served: Served) -> None:
    for minor in (22, 23):
        answer = served.ask('GET', f'/resource_providers/{POOL}', minor=minor)
        assert answer.status_code == 404
        assert answer.headers[versions.HEADER] == f'placement 1.{minor}'
        assert versions.HEADER in answer.headers['vary']
        error = error_of(answer)
        assert ('code' in error) == (minor == 23)
        assert error['request_id'] == answer.headers['x-openstack-request-id']
        assert f'No resource provider with uuid {POOL} found' in error['detail']


def test_a_route_of_a_later_version_is_not_there(served: Served) -> None:
    assert served.ask('GET', '/traits', minor=5).status_code == 404
    assert served.ask('GET', '/traits', minor=6).status_code == 200
    answer = served.ask('DELETE', f'/resource_providers/{POOL}/inventories', minor=4)
    assert answer.status_code == 405


def test_errors_are_pages_for_who_asks_for_pages(served: Served) -> None:
    answer = served.ask('GET', '/no/such/<path>', headers={'Accept': 'text/html'})
    assert answer.headers['content-type'].startswith('text/html')
    assert '<path>' not in answer.text


def test_routes_say_who_changed_last_from_15_on(served: Served) -> None:
    served.make()
    for minor in (14, 15):
        for path in ('/resource_providers', f'/resource_providers/{POOL}', '/traits'):
            answer = served.ask('GET', path, minor=minor)
            assert ('last-modified' in answer.headers) == (minor == 15)
            assert answer.headers.get('cache-control') == ('no-cache' if minor == 15 else None)


# -- who asks ---------------------------------------------------------------------------
def test_without_a_token_only_the_root_is_read(served: Served) -> None:
    assert served.client.get('/').status_code == 200
    for path in ('/resource_providers', '/nowhere'):
        assert served.client.get(path).status_code == 401


@pytest.mark.parametrize(
    ('headers', 'status'),
    [
        ({'X-Auth-Token': 'admin'}, 200),
        ({'X-Auth-Token': 'user'}, 403),
        ({'X-Auth-Token': 'user:project'}, 403),
        ({'X-Auth-Token': 'user', 'X-Roles': 'admin'}, 200),
        ({'X-Auth-Token': 'user', 'X-Roles': 'service, member'}, 200),
        ({'X-Auth-Token': 'admin', 'X-Roles': 'reader'}, 403),
        ({'X-Auth-Token': 'admin', 'OpenStack-System-Scope': 'all'}, 403),
    ],
)
def test_tokens_that_are_believed(served: Served, headers: dict[str, str], status: int) -> None:
    answer = served.ask('GET', '/resource_providers', headers=headers)
    assert answer.status_code == status
    if status == 403:
        problem = 'Policy does not allow placement:resource_providers:list to be performed.'
        assert problem in error_of(answer)['detail']


def test_tokens_of_keystone(tmp_path: pathlib.Path) -> None:
    keystone = Keystone()
    conf = identity.configuration(tmp_path, {'keystone_authtoken': identity.options(keystone.url)})
    served = Served(auth.strategy('keystone', conf))
    try:
        for role, status in (('admin', 200), ('service', 200), ('member', 403)):
            headers = {'X-Auth-Token': keystone.issue(role)}
            assert served.ask('GET', '/resource_providers', headers=headers).status_code == status
        refused = served.ask('GET', '/resource_providers')
        assert refused.status_code == 401
        assert 'Keystone uri=' in refused.headers['www-authenticate']
        assert served.client.get('/').status_code == 200
    finally:
        keystone.stop()
        served.store.database.close()


def test_a_name_that_leads_here_is_refused_without_tokens(served: Served) -> None:
    answer = served.ask('GET', '/resource_providers', headers={'Host': 'evil.example.com'})
    assert answer.status_code == 421


def test_changes_are_on_the_audit_trail_refused_ones_too(served: Served) -> None:
    served.make()
    served.ask('DELETE', f'/resource_providers/{POOL}', headers={'X-Auth-Token': 'mallory'})
    served.ask('GET', '/resource_providers')
    events = [(event.action, event.initiator.user_id, event.outcome) for event in served.trail]
    assert events == [
        ('placement:resource_providers:create', 'admin', 'success'),
        ('placement:resource_providers:delete', 'mallory', 'failure'),
    ]


# -- dry runs ---------------------------------------------------------------------------
def test_a_dry_run_answers_each_request_as_after_those_before(served: Served) -> None:
    content = {'resource_provider_generation': 0, 'inventories': {'VCPU': {'total': 8}}}
    path = f'/resource_providers/{POOL}'
    requests = [
        {'method': 'POST', 'path': '/resource_providers', 'body': {'uuid': POOL, 'name': 'pool'}},
        {'method': 'PUT', 'path': f'{path}/inventories', 'body': content},
        {'method': 'PUT', 'path': f'{path}/inventories', 'body': content},
        {'method': 'GET', 'path': '/resource_providers?name=pool&resources=VCPU%3A8'},
        {'method': 'GET', 'path': '/allocation_candidates?resources=VCPU:1'},
        {'method': 'DELETE', 'path': path},
        {'method': 'GET', 'path': path},
        {'method': 'POST', 'path': '/dry_run', 'body': {'requests': []}},
    ]
    replies_of_both = [served.ask('POST', '/dry_run', {'requests': requests}) for _ in range(2)]
    for answer in replies_of_both:
        answers = answer.json()['answers']
        assert [reply['status'] for reply in answers] == [200, 200, 409, 200, 404, 204, 404, 404]
        assert answers[0]['body']['generation'] == 0
        assert answers[1]['body']['inventories']['VCPU']['total'] == 8
        assert answers[2]['body']['errors'][0]['code'] == 'placement.concurrent_update'
        assert answers[3]['body']['resource_providers'][0]['generation'] == 1
        assert answers[5]['body'] is None
    assert served.ask('GET', path).status_code == 404
    assert served.trail == []


def test_each_request_of_a_dry_run_meets_the_rule_of_its_route(served: Served) -> None:
    requests = [{'method': 'PUT', 'path': '/traits/CUSTOM_A'}]
    for headers, status in (({}, 201), ({'X-Auth-Token': 'mallory'}, 403)):
        answer = served.ask('POST', '/dry_run', {'requests': requests}, headers=headers)
        assert [reply['status'] for reply in answer.json()['answers']] == [status]
    assert served.ask('POST', '/dry_run', {'requests': []}).status_code == 400
    many = [{'method': 'GET', 'path': '/traits'}] * 51
    assert served.ask('POST', '/dry_run', {'requests': many}).status_code == 400


# -- where it is ------------------------------------------------------------------------
@pytest.mark.parametrize('at_root', [False, True])
def test_it_is_below_a_path_and_at_the_root_where_that_is_wanted(
    served: Served, at_root: bool
) -> None:
    served.make()
    app = dispatch.mounted_app(Served._own, served.app, at_root)
    client = httpx.Client(transport=httpx.WSGITransport(app), base_url='http://localhost')
    for path in ('/placement', '/placement/'):
        assert client.get(path).json()['versions'][0]['max_version'] == '1.39'
    listed = client.get('/placement/resource_providers', headers=ADMIN).json()
    links = {link['rel']: link['href'] for link in listed['resource_providers'][0]['links']}
    assert links['self'] == f'/placement/resource_providers/{POOL}'
    for path in ('/v1/hosts', '/metrics', '/healthcheck', '/dashboard/a.js'):
        assert client.get(path).text == 'ours'
    at = client.get('/resource_providers', headers=ADMIN)
    assert (at.text == 'ours') != at_root
    beside = client.get('/placements', headers=ADMIN)
    assert (beside.text == 'ours') != at_root


def test_pages_of_origins_that_are_named_may_ask() -> None:
    origin = 'http://valid.example.com'
    served = Served(cors_allowed_origins=(origin,))
    answer = served.ask('GET', '/', headers={'Origin': origin})
    assert answer.headers['access-control-allow-origin'] == origin
    foreign = served.ask('DELETE', '/traits/CUSTOM_A', headers={'Origin': 'http://other.example'})
    assert foreign.status_code == 403
    served.store.database.close()


# -- bad input --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('content', 'headers', 'status', 'told'),
    [
        (b'{', {'Content-Type': 'application/json'}, 400, 'Malformed JSON'),
        (b'[' * 100_000, {'Content-Type': 'application/json'}, 400, 'Malformed JSON'),
        (b'\xff', {'Content-Type': 'application/json'}, 400, 'Malformed JSON'),
        (b'{"a":' * 900 + b'1' + b'}' * 900, {'Content-Type': 'application/json'}, 400, 'JSON'),
        (b'{"name": NaN}', {'Content-Type': 'application/json'}, 400, 'NaN is no number'),
        (b'{"name": "\\uD800"}', {'Content-Type': 'application/json'}, 400, 'surrogates'),
        (b'{"name": "\xed\xa0\x80"}', {'Content-Type': 'application/json'}, 400, 'Malformed JSON'),
        (b'[]', {'Content-Type': 'application/json'}, 400, 'JSON does not validate'),
        (b'{"name": 1}', {'Content-Type': 'application/json'}, 400, "1 is not of type 'string'"),
        (b'{"name": ""}', {'Content-Type': 'application/json'}, 400, 'name is required'),
        (b'{"name": "a\\u0000"}', {'Content-Type': 'application/json'}, 400, 'provider.name'),
        (b'{}', {'Content-Type': 'text/plain'}, 415, 'use application/json'),
        (b'', {}, 415, 'The request media type None is not supported'),
        (b'{}', {'Content-Type': ''}, 400, 'content-type header required'),
        (b' ' * (1 << 20) + b'{}', {'Content-Type': 'application/json'}, 413, '1048576 bytes'),
    ],
)
def test_bodies_that_are_refused(
    served: Served, content: bytes, headers: dict[str, str], status: int, told: str
) -> None:
    answer = served.client.post(
        '/resource_providers', content=content, headers={**ADMIN, **headers}
    )
    assert answer.status_code == status, answer.text
    assert told in error_of(answer)['detail']


def test_a_name_that_another_has_is_refused_as_placement_says_it(served: Served) -> None:
    served.make()
    served.make(OTHER, 'other')
    created = served.ask('POST', '/resource_providers', {'name': 'pool'})
    renamed = served.ask('PUT', f'/resource_providers/{OTHER}', {'name': 'pool'})
    for answer, conflict in ((created, 'name: pool'), (renamed, 'pool')):
        problem = f'Conflicting resource provider {conflict} already exists.'
        assert (answer.status_code, problem in error_of(answer)['detail']) == (409, True)


@pytest.mark.parametrize(
    'query',
    [
        'colour=red',
        'uuid=pool',
        'resources=VCPU',
        'resources=VCPU:0',
        'resources=VCPU:1:2',
        'resources=NONE:1',
        'required=',
        'required=,AVX',
        'required=CUSTOM_NONE',
        'required=in:!CUSTOM_NONE',
        'member_of=a',
        f'member_of={POOL},{OTHER}',
        'in_tree=a',
        'name=%ff',
        '&'.join(['name=a'] * 2000),
    ],
)
def test_queries_that_are_refused(served: Served, query: str) -> None:
    answer = served.ask('GET', f'/resource_providers?{query}')
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize(
    ('numbers', 'status'),
    [
        ({'total': 1}, 200),
        ({'total': 2147483647, 'allocation_ratio': 3.4e38}, 200),
        ({'total': 4, 'reserved': 4}, 200),
        ({'total': 4, 'allocation_ratio': 0}, 200),
        ({'total': 4, 'reserved': 5}, 400),
        ({'total': 4, 'allocation_ratio': -1}, 400),
        ({'total': 0}, 400),
        ({'total': 2147483648}, 400),
        ({'total': 4, 'allocation_ratio': 3.5e38}, 400),
        ({'total': 4, 'min_unit': 0}, 400),
        ({'total': 4, 'step_size': 0}, 400),
        ({'total': 4, 'max_unit': 0}, 400),
        ({'total': 4, 'size': 1}, 400),
        ({'total': True}, 400),
        ({'total': 4.5}, 400),
        ({'total': 4, 'allocation_ratio': float('nan')}, 400),
        ({'total': 4, 'allocation_ratio': float('-inf')}, 400),
        ({'total': 4, 'allocation_ratio': '-1e400'}, 400),
        ({}, 400),
    ],
)
def test_numbers_of_an_inventory(served: Served, numbers: dict[str, Any], status: int) -> None:
    served.make()
    path, headers = f'/resource_providers/{POOL}', {'Content-Type': 'application/json'}

    def generation() -> int:
        number: int = served.ask('GET', path).json()['generation']
        return number

    # Nor are they looked at where the class has a name that none can have.
    for name, expected in (('vcpu', 400), ('VCPU', status)):
        of_it = {'resource_provider_generation': 0, 'inventories': {name: numbers}}
        reshaped = {'inventories': {POOL: of_it}, 'allocations': {}}
        for method, at, body in (
            ('PUT', f'{path}/inventories', of_it),
            ('POST', '/reshaper', reshaped),
        ):
            before = generation()
            of_it['resource_provider_generation'] = before
            text = json.dumps(body).replace('"-1e400"', '-1e400')
            more = {versions.HEADER: 'placement 1.39', **SERVICE, **headers}
            answer = served.client.request(method, at, content=text, headers=more)
            assert answer.is_success == (expected == 200), answer.text
            if expected == 400:
                assert (answer.status_code, generation()) == (400, before)
            else:
                assert generation() > before


def test_what_is_left_out_of_an_inventory_has_the_values_of_placement(served: Served) -> None:
    served.make()
    path = f'/resource_providers/{POOL}/inventories'
    response = served.ask(
        'POST', path, {'resource_class': 'VCPU', 'total': 8, 'allocation_ratio': 4}
    )
    assert response.status_code == 201
    assert response.json() == {
        'total': 8,
        'reserved': 0,
        'min_unit': 1,
        'max_unit': 2147483647,
        'step_size': 1,
        'allocation_ratio': 4.0,
        'resource_provider_generation': 1,
    }
    for amount, names in ((32, ['pool']), (33, [])):
        answer = served.ask('GET', f'/resource_providers?resources=VCPU:{amount}').json()
        assert [provider['name'] for provider in answer['resource_providers']] == names


def test_a_generation_that_is_past_changes_nothing(served: Served) -> None:
    served.make()
    path = f'/resource_providers/{POOL}'
    served.ask('POST', f'{path}/inventories', {'resource_class': 'VCPU', 'total': 8})
    stale = {'resource_provider_generation': 0}
    for answer in (
        served.ask('PUT', f'{path}/inventories', {**stale, 'inventories': {}}),
        served.ask('PUT', f'{path}/inventories/VCPU', {**stale, 'total': 9}),
        served.ask('PUT', f'{path}/traits', {**stale, 'traits': []}),
        served.ask('PUT', f'{path}/aggregates', {**stale, 'aggregates': []}),
    ):
        assert answer.status_code == 409
        assert error_of(answer)['code'] == 'placement.concurrent_update'
    assert served.ask('GET', path).json()['generation'] == 1


def test_a_host_is_read_and_says_itself_what_it_has(served: Served) -> None:
    a_host().on(served.store)
    [provider] = served.ask('GET', '/resource_providers').json()['resource_providers']
    path = f'/resource_providers/{provider["uuid"]}'
    inventories = served.ask('GET', f'{path}/inventories').json()['inventories']
    assert inventories['VCPU']['total'] == 8
    assert served.ask('GET', f'{path}/usages').json()['usages']['VCPU'] == 0
    generation = {'resource_provider_generation': provider['generation']}
    for method, below, body in (
        ('PUT', '/inventories', {**generation, 'inventories': {}}),
        ('PUT', '/inventories/VCPU', {**generation, 'total': 1}),
        ('POST', '/inventories', {'resource_class': 'FPGA', 'total': 1}),
        ('DELETE', '/inventories', None),
        ('DELETE', '/inventories/VCPU', None),
        ('PUT', '/traits', {**generation, 'traits': []}),
        ('PUT', '/aggregates', {**generation, 'aggregates': []}),
        ('PUT', '', {'name': 'other'}),
        ('DELETE', '', None),
    ):
        answer = served.ask(method, path + below, body)
        assert answer.status_code == 409, (method, below, answer.text)
        why = 'its reports say what it has' if below or body else 'it is deleted by "gantt-manage'
        assert why in error_of(answer)['detail'], (method, below)
    assert served.ask('GET', f'{path}/inventories').json()['inventories'] == inventories


def test_every_route_refuses_who_may_not() -> None:
    served = Served()
    for route in ROUTES:
        if route.path == '/':
            continue
        path = route.path.replace('{', 'no-such-').replace('}', '')
        content = {'content': b'{}'} if route.reads else {}
        headers = {
            'X-Auth-Token': 'mallory',
            'Content-Type': 'application/json',
            versions.HEADER: f'placement 1.{route.until}',
        }
        answer = served.client.request(route.method, path, headers=headers, **content)
        assert answer.status_code in (400, 403), (route.method, path)
        if answer.status_code == 400:  # what is asked for decides whether one may
            assert route.path == '/usages'
    served.store.database.close()


# -- keys of bodies ---------------------------------------------------------------------------
def a_write(amount, **more):
    return {
        'allocations': {POOL: {'resources': {'VCPU': amount}}},
        'project_id': 'p',
        'user_id': 'u',
        'consumer_generation': None,
        'consumer_type': 'INSTANCE',
        **more,
    }


@pytest.fixture
def with_room():
    served = Served()
    served.make()
    room = {'resource_provider_generation': 0, 'inventories': {'VCPU': {'total': 100}}}
    assert served.ask('PUT', f'/resource_providers/{POOL}/inventories', room).status_code == 200
    return served


def used(served):
    return served.ask('GET', f'/resource_providers/{POOL}/usages').json()['usages']['VCPU']


def test_a_consumer_in_capitals_is_the_same_consumer_by_every_method(with_room):
    guest = uuid_of('guest')
    response = with_room.ask('POST', '/allocations', {guest.upper(): a_write(10)})
    assert response.status_code == 204, response.text
    again = with_room.ask('PUT', f'/allocations/{guest}', a_write(10))
    assert again.status_code == 409, 'it exists'
    assert used(with_room) == 10
    shown = with_room.ask('GET', f'/allocations/{guest.upper()}').json()['allocations']
    assert shown[POOL]['resources'] == {'VCPU': 10}
    on_it = with_room.ask('GET', f'/resource_providers/{POOL}/allocations').json()
    assert [*on_it['allocations']] == [guest]
    assert with_room.ask('DELETE', f'/allocations/{guest.upper()}').status_code == 204
    assert used(with_room) == 0


def test_a_provider_in_capitals_is_the_same_provider(with_room):
    body = a_write(3, allocations={POOL.upper(): {'resources': {'VCPU': 3}}})
    written = with_room.ask('POST', '/allocations', {uuid_of('guest'): body})
    assert written.status_code == 204, written.text
    assert used(with_room) == 3


@pytest.mark.parametrize(
    'key', [uuid_of('guest') + '\n', '-' * 36, uuid_of('guest')[:-1] + '-', uuid_of('guest')[:-1]]
)
def test_a_key_that_is_no_whole_uuid_is_refused(with_room, key):
    refused = with_room.ask('POST', '/allocations', {key: a_write(1)})
    assert refused.status_code == 400, refused.text
    providers = a_write(1, allocations={key: {'resources': {'VCPU': 1}}})
    refused = with_room.ask('PUT', f'/allocations/{uuid_of("guest")}', providers)
    assert refused.status_code == 400, refused.text
    assert used(with_room) == 0


def test_one_consumer_under_two_keys_is_refused(with_room):
    guest = uuid_of('guest')
    body = {guest: a_write(1), guest.upper(): a_write(2)}
    refused = with_room.ask('POST', '/allocations', body)
    assert (refused.status_code, f'{guest} is a key twice' in refused.text) == (400, True)


def test_no_name_ends_with_a_newline(with_room):
    odd = a_write(1, consumer_type='INSTANCE\n')
    for method, path, body in (
        ('PUT', f'/allocations/{uuid_of("guest")}', odd),
        ('PUT', '/traits/CUSTOM_A%0A', None),
        ('PUT', '/resource_classes/CUSTOM_A%0A', None),
        ('POST', '/resource_classes', {'name': 'CUSTOM_A\n'}),
        ('GET', '/usages?project_id=p&consumer_type=all%0A', None),
        ('GET', '/allocation_candidates?resources=VCPU:1&limit=5%0A', None),
        ('GET', '/allocation_candidates?resources_A%0A=VCPU:1', None),
    ):
        refused = with_room.ask(method, path, body)
        assert (refused.status_code, r'\Z' in refused.text) == (400, False), path
