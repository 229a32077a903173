# SPDX-License-Identifier: Apache-2.0
"""What gabbi cannot say about the application: failures, limits, the OpenAPI document."""

import io
import json
import logging
import socket
import threading
import time
import wsgiref.util
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
from openapi_spec_validator import validate

from gantt import exceptions
from gantt.cmd import http_app, policies
from gantt.cmd.http_app import make_app
from gantt.groups import http as group_plans
from gantt.http import auth, microversion, openapi, policy, request_access, requested_fields
from gantt.http.caller import Caller
from gantt.http.handlers import decisions, root
from gantt.http.server import HttpServer
from gantt.http.settings import HttpSettings
from tests.http.site import Site, fixed

BODY = {
    'request_id': fixed(1),
    'consumers': [fixed(2)],
    'spec': {'resources': {'VCPU': 1}},
}

JSON = {'Content-Type': 'application/json'}
LATEST = {'OpenStack-API-Version': 'scheduler latest'}


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def caller(site: Site) -> Iterator[httpx.Client]:
    with _caller(site.app) as client:
        yield client


def _caller(app: Any) -> httpx.Client:
    return httpx.Client(transport=httpx.WSGITransport(app), base_url='http://localhost')


def _error(answer: httpx.Response) -> dict[str, Any]:
    [error] = answer.json()['errors']
    assert error['status'] == answer.status_code
    assert error['request_id'] == answer.headers['x-openstack-request-id']
    return error


def test_five_megabytes_are_refused_unread(site: Site, caller: httpx.Client) -> None:
    answer = caller.post('/v1/requests', content=b' ' * (5 << 20))
    assert answer.status_code == 413
    assert _error(answer)['code'] == 'gantt.payload_too_large'
    assert len(site.world.store.claims.list_claims()) == 0


@pytest.mark.parametrize(
    'body', [b'[1', b'{"request_id": 1, "x"', b'[' * 100_000], ids=['list', 'object', 'deep']
)
def test_a_body_that_breaks_off_is_no_defect(site: Site, caller: httpx.Client, body: bytes) -> None:
    answer = caller.post('/v1/requests', content=body, headers=JSON)
    assert answer.status_code == 400
    assert _error(answer)['code'] == 'gantt.invalid_message'
    assert 'gantt.bug' not in caller.get('/metrics').text


def test_a_name_with_a_slash_is_measured_under_its_route(caller: httpx.Client) -> None:
    path = '/v1/aggregates/rack%2F1'
    assert caller.put(path, json={'hosts': ['cmp-1']}).status_code == 201
    assert caller.get(path).json()['name'] == 'rack/1'
    metrics = caller.get('/metrics').text
    assert 'route="/v1/aggregates/{name}"' in metrics
    assert ':path' not in metrics
    assert caller.delete(path).status_code == 200
    assert caller.get(path).status_code == 404


def test_a_body_without_a_length_is_bounded_too(site: Site) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b' ' * (1 << 17)

    environ: dict[str, Any] = {'REQUEST_METHOD': 'POST', 'PATH_INFO': '/v1/requests'}
    wsgiref.util.setup_testing_defaults(environ)
    environ |= {'CONTENT_TYPE': 'application/json', 'HTTP_TRANSFER_ENCODING': 'chunked'}
    environ['wsgi.input'] = io.BytesIO(b''.join(chunks()))
    body = b''.join(site.app(environ, lambda *_: None))
    assert json.loads(body)['errors'][0]['code'] == 'gantt.length_required'
    server = HttpServer(site.app, '127.0.0.1', 0, threads=1)
    server.start()
    url = f'http://127.0.0.1:{server.port}/v1/requests'
    answer = httpx.post(url, content=chunks(), headers=JSON)
    assert server.stop(5)
    assert answer.status_code == 413
    assert _error(answer)['code'] == 'gantt.payload_too_large'


def test_an_answer_is_sent_together_with_its_head() -> None:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response('200 OK', [('Content-Length', '2000')])
        return [b'.' * 2000]

    server = HttpServer(app, '127.0.0.1', 0, threads=1)
    server.start()
    with socket.create_connection(('127.0.0.1', server.port), 10) as connection:
        connection.sendall(b'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n')
        assert connection.recv(1 << 16).endswith(b'\r\n\r\n' + b'.' * 2000)
    assert server.stop(5)


def test_stopping_finishes_what_was_begun(site: Site) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(environ: Any, start_response: Any) -> list[bytes]:
        begun.set()
        go_on.wait(10)
        start_response('200 OK', [('Content-Length', '4')])
        return [b'done']

    server = HttpServer(slow, '127.0.0.1', 0, threads=1)
    server.start()
    url = f'http://127.0.0.1:{server.port}/'
    answers: list[httpx.Response] = []
    request_access = threading.Thread(target=lambda: answers.append(httpx.get(url, timeout=30.0)))
    request_access.start()
    assert begun.wait(10)
    stopped: list[bool] = []
    stopping = threading.Thread(target=lambda: stopped.append(server.stop(10)))
    stopping.start()
    assert _is_refused(url)
    go_on.set()
    stopping.join(10)
    request_access.join(10)
    assert (stopped, [answer.text for answer in answers]) == ([True], ['done'])


def _is_refused(url: str) -> bool:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            httpx.get(url, timeout=0.2)
        except httpx.ConnectError:
            return True
        except httpx.TransportError:
            continue  # it waits for a thread, or was not accepted before the door closed
    return False


@pytest.mark.parametrize(
    ('error', 'status'),
    [
        (exceptions.Busy(reason='2000 requests are waiting', retry_after_ms=1500), 503),
        (exceptions.Conflict(request_id=fixed(1), attempts=20), 409),
        (exceptions.Expired(budget_ms=30_000), 504),
        (exceptions.HostsUnknown(problem='none of 6 hosts has reported lately'), 503),
        (exceptions.BrokerUnavailable(url='rabbit://', problem='refused'), 503),
        (exceptions.DatabaseUnavailable(problem='refused'), 503),
    ],
    ids=lambda value: getattr(value, 'code', str(value)),
)
def test_what_a_scheduler_says_no_with_reaches_the_caller(
    site: Site, caller: httpx.Client, error: exceptions.GanttError, status: int
) -> None:
    site.client.error = error
    answer = caller.post('/v1/requests', json=BODY)
    assert answer.status_code == status
    assert _error(answer)['code'] == error.code
    assert _error(answer)['detail'] == error.message


def test_busy_says_when_to_come_back(site: Site, caller: httpx.Client) -> None:
    site.client.error = exceptions.Busy(reason='full', retry_after_ms=1500)
    assert caller.post('/v1/requests', json=BODY).headers['retry-after'] == '2'


def test_an_unexpected_error_is_counted_and_logged_but_not_told(
    site: Site, caller: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    site.client.error = ZeroDivisionError('secret inside')
    with caplog.at_level(logging.ERROR):
        answer = caller.post('/v1/requests', json=BODY)
    assert answer.status_code == 500
    assert _error(answer)['code'] == 'gantt.bug'
    assert 'secret inside' not in answer.text
    assert 'secret inside' in caplog.text
    assert site.metrics.value('gantt_errors_total', component='http') == 1


def test_refusals_are_counted_by_route_and_code(site: Site, caller: httpx.Client) -> None:
    caller.get('/v1/hosts/nobody')
    counted = site.metrics.value(
        'gantt_http_requests_refused_total', method='GET /v1/hosts/{name}', code='gantt.not_found'
    )
    assert counted == 1


def test_a_database_that_goes_away_leaves_the_last_table(site: Site, caller: httpx.Client) -> None:
    assert caller.get('/v1/hosts').json()['total'] == 6

    def away(*args: object, **kwargs: object) -> Any:
        raise exceptions.DatabaseUnavailable(problem='connection refused')

    store = site.world.store
    for port, name in (
        (store.feed, 'poll'),
        (store.feed, 'load_everything'),
        (store.database, 'ping'),
        (store.claims, 'list_claims'),
        (store.records, 'list_decisions'),
    ):
        setattr(port, name, away)
    site.world.clock.advance(90)
    answer = caller.get('/v1/hosts').json()
    assert answer['total'] == 6
    assert answer['table_age_seconds'] >= 90
    assert _error(caller.get('/v1/claims'))['code'] == 'gantt.database_unavailable'
    health = caller.get('/v1/health')
    assert health.status_code == 503
    checks = {check['name']: check for check in health.json()['checks']}
    assert checks['database']['code'] == 'gantt.database_unavailable'
    assert checks['host_table']['ok'] is False
    assert caller.get('/healthcheck').status_code == 503
    assert caller.get('/metrics').status_code == 200


def test_the_file_takes_the_process_out_of_the_balance(tmp_path: Any) -> None:
    flag = tmp_path / 'out'
    site = Site(HttpSettings(disable_by_file=str(flag)))
    with _caller(site.app) as caller:
        assert caller.get('/healthcheck').status_code == 200
        flag.touch()
        answer = caller.get('/healthcheck')
        assert answer.status_code == 503
        assert 'DISABLED BY FILE' in answer.text
        assert caller.get('/v1/hosts').status_code == 200


def test_cors_only_for_the_origins_named() -> None:
    site = Site(HttpSettings(cors_allowed_origins=('https://ops.example.org',)))
    with _caller(site.app) as caller:
        ours = caller.get('/v1/hosts', headers={'Origin': 'https://ops.example.org'})
        theirs = caller.get('/v1/hosts', headers={'Origin': 'https://example.com'})
    assert ours.headers['access-control-allow-origin'] == 'https://ops.example.org'
    assert 'access-control-allow-origin' not in theirs.headers


def test_an_unknown_auth_strategy_names_the_option_and_the_choices() -> None:
    with pytest.raises(exceptions.Misconfigured) as caught:
        auth.strategy('keystoen', None)
    assert '[api] auth_strategy' in caught.value.message
    assert 'noauth' in caught.value.message


def test_a_rule_refuses_who_has_no_role_for_it() -> None:
    with pytest.raises(policy.Forbidden, match='asks for role:admin; you have the roles reader'):
        policies.defaults().check('gantt:hosts:disable', Caller(roles=('reader',)))


def test_further_checks_are_part_of_health(site: Site) -> None:
    def broker() -> str:
        raise exceptions.BrokerUnavailable(url='rabbit://there', problem='refused')

    app = make_app(
        site.insights, site.world.store, site.client, site.metrics, checks={'broker': broker}
    )
    with _caller(app) as caller:
        answer = caller.get('/v1/health')
    assert answer.status_code == 503
    assert 'rabbit://there' in answer.text


def test_a_long_answer_is_compressed_for_who_may_have_it_so(caller: httpx.Client) -> None:
    path = '/dashboard/dashboard.js'
    short = caller.get(path, headers={'Accept-Encoding': 'gzip'})
    plain = caller.get(path, headers={'Accept-Encoding': 'identity'})
    assert short.text == plain.text
    assert (short.headers['content-encoding'], plain.headers.get('content-encoding')) == (
        'gzip',
        None,
    )
    assert int(short.headers['content-length']) * 2 < int(plain.headers['content-length'])
    assert 'Accept-Encoding' in plain.headers['vary']
    etag = plain.headers['etag']
    unchanged = caller.get(path, headers={'If-None-Match': f'W/"other", {etag}'})
    assert (unchanged.status_code, unchanged.content) == (304, b'')
    assert caller.get(path, headers={'If-None-Match': 'W/"other"'}).status_code == 200


# -- the OpenAPI document ------------------------------------------------------------
def test_the_openapi_document_is_valid_and_has_every_route(caller: httpx.Client) -> None:
    document = caller.get('/v1/openapi.json').json()
    validate(document)
    documented = {
        (method.upper(), path) for path, methods in document['paths'].items() for method in methods
    }
    routes = {(route.method, route.path) for route in http_app.ROUTES}
    assert documented == routes | {('GET', '/healthcheck')}
    ids = [op['operationId'] for methods in document['paths'].values() for op in methods.values()]
    assert len(set(ids)) == len(ids)


def test_every_route_has_a_rule_and_every_rule_a_route() -> None:
    # These are asked within routes, beside the rule of the route.
    within = {
        decisions.FULL_EXPLANATION_POLICY,
        request_access.HOSTS_POLICY,
        group_plans.LONG_PLAN_POLICY,
        requested_fields.CLAIM_POLICY,
        requested_fields.MIGRATE_POLICY,
        requested_fields.RULES_POLICY,
        requested_fields.TRUSTED_POLICY,
        root.DETAILS_POLICY,
    }
    assert {route.rule for route in http_app.ROUTES} | within == policies.defaults().rules


#: Paths that are asked with a body and write nothing.
READING = ('/v1/capacity', '/v1/what-if', '/v1/decisions/{decision_id}/replay', '/v1/sealed-hosts')
#: Messages that have a dry run as a field.
TAKE_DRY_RUN = ('SelectDestinations', 'PlaceGroup', 'ChangeGroup', 'ScaleGroup')
#: Between zones an evaluation is the dry run of an allocation.
BETWEEN_ZONES = '/zone/v1/'


def test_whatever_writes_has_a_dry_run() -> None:
    document = openapi.document(http_app.ROUTES, policies.list_rules())
    for path, methods in document['paths'].items():
        for method, operation in methods.items():
            if method == 'get' or path in READING or path.startswith(BETWEEN_ZONES):
                continue
            names = {parameter.get('name') for parameter in operation['parameters']}
            body = json.dumps(operation.get('requestBody', {}))
            takes_it = any(name in body for name in TAKE_DRY_RUN)
            assert 'dry_run' in names or takes_it, f'{method} {path}'


def _schema_problems(
    document: dict[str, Any], schema: dict[str, Any], value: Any, path: str
) -> Iterator[str]:
    """Keys of ``value`` that ``schema`` does not know, and required ones that are not there."""
    while '$ref' in schema:
        schema = document['components']['schemas'][schema['$ref'].rpartition('/')[2]]
    if isinstance(value, dict) and 'properties' in schema:
        for key in value.keys() - schema['properties'].keys():
            yield f'{path}.{key}'
        for key in set(schema.get('required', ())) - value.keys():
            yield f'{path}.{key} is missing'
        for key in value.keys() & schema['properties'].keys():
            yield from _schema_problems(
                document, schema['properties'][key], value[key], f'{path}.{key}'
            )
    if isinstance(value, list) and 'items' in schema:
        for i, item in enumerate(value):
            yield from _schema_problems(document, schema['items'], item, f'{path}[{i}]')


@pytest.mark.parametrize(
    'path',
    [
        '/v1/hosts',
        '/v1/hosts/{name}',
        '/v1/status',
        '/v1/claims',
        '/v1/decisions',
        '/v1/health',
        '/v1/host-map',
        '/v1/activity',
        '/v1/refused',
    ],
)
def test_answers_are_as_documented(site: Site, caller: httpx.Client, path: str) -> None:
    site.place(1)
    with pytest.raises(exceptions.NoValidHost):
        site.place(50, VCPU=400)
    document = caller.get('/v1/openapi.json').json()
    schema = document['paths'][path]['get']['responses']['200']['content']['application/json']
    latest = {'OpenStack-API-Version': 'scheduler latest'}
    answer = caller.get(path.replace('{name}', 'cmp-1'), headers=latest)
    assert answer.status_code == 200
    assert list(_schema_problems(document, schema['schema'], answer.json(), '$')) == []


def test_the_history_file_has_every_version() -> None:
    import importlib.resources

    text = importlib.resources.files('gantt.http').joinpath('microversion_history.rst').read_text()
    for version in microversion.HISTORY:
        assert f'\n{version}\n---' in text


LISTS = [
    route.path
    for route in http_app.ROUTES
    if route.method == 'GET' and route.handler.__name__.startswith('list_')
]
#: Lists without pages, and those that go on after a project, whose id may be any text.
NO_IDS = ('/v1/resource-classes', '/v1/usages', '/v1/quotas')
PAGED = [path for path in LISTS if path not in NO_IDS]


@pytest.mark.parametrize('path', LISTS)
def test_a_list_refuses_what_it_does_not_know_by_name(caller: httpx.Client, path: str) -> None:
    answer = caller.get(path, params={'limits': '3'}, headers=LATEST)
    assert answer.status_code == 400
    assert _error(answer)['detail'].startswith('query.limits: unknown field')


@pytest.mark.parametrize('path', PAGED)
def test_a_list_does_not_begin_at_what_is_no_marker(caller: httpx.Client, path: str) -> None:
    answer = caller.get(path, params={'marker': 'nonsense'}, headers=LATEST)
    assert answer.status_code == 400
    assert _error(answer)['detail'].startswith('query.marker: ')


def test_decisions_do_not_end_after_one_that_is_not_there(caller: httpx.Client) -> None:
    answer = caller.get('/v1/decisions', params={'marker': fixed(77)})
    assert answer.status_code == 400
    assert 'begin without a marker' in _error(answer)['detail']


def test_claims_go_on_after_one_that_is_there_no_more(caller: httpx.Client) -> None:
    placed = caller.post('/v1/requests', json=BODY).json()['answer']
    claim = placed['selections'][0][0]['claim_id']
    before = '00000000-0000-0000-0000-000000000000'
    claims = caller.get('/v1/claims', params={'marker': before}).json()['claims']
    assert [entry['id'] for entry in claims] == [claim]


@pytest.mark.parametrize('path', ['/v1/health', '/v1/hosts', '/metrics', '/dashboard', '/v1'])
def test_the_head_of_an_answer_is_that_of_the_answer(caller: httpx.Client, path: str) -> None:
    head, whole = caller.head(path), caller.get(path)
    assert (head.status_code, head.content) == (whole.status_code, b'')
    assert head.headers['content-type'] == whole.headers['content-type']


def test_the_head_of_health_says_what_is_wrong(site: Site, caller: httpx.Client) -> None:
    site.world.store.database.ping = _away
    assert caller.head('/v1/health').status_code == 503


def _away() -> None:
    raise exceptions.DatabaseUnavailable(url='sqlite://', problem='away')
