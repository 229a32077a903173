# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document as a client reads it, and what of a microversion never changes."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import jsonschema
import pytest
from openapi_spec_validator import validate

from gantt import exceptions
from tests.http import frozen
from tests.http.site import Site, fixed

LATEST = {'OpenStack-API-Version': 'scheduler latest'}


@pytest.fixture(scope='module')
def site() -> Site:
    return Site()


@pytest.fixture(scope='module')
def caller(site: Site) -> Iterator[httpx.Client]:
    transport = httpx.WSGITransport(site.app)
    with httpx.Client(transport=transport, base_url='http://localhost') as client:
        yield client


# -- what is served ----------------------------------------------------------------------
@pytest.mark.finding('API3', 'a field that is added appears in no older microversion')
def test_what_is_served_is_what_was_frozen() -> None:
    """The file is changed as long as no release has served the version."""
    assert frozen.lines() == frozen.KEPT.read_text().splitlines(), (
        'where 1.0 is open (doc/source/contributor/contribute.rst): .venv/bin/python -m '
        f'tests.http.frozen > tests/http/frozen_versions/{frozen.KEPT.name}, and read the '
        'difference; else a change needs a microversion of its own'
    )


# -- 201, links -----------------------------------------------------------------------------
CREATED: list[tuple[str, str, dict[str, Any]]] = [
    ('POST', '/v1/requests', {}),
    ('POST', '/v1/server-groups', {'policy': 'affinity'}),
    ('PUT', '/v1/aggregates/rack%2F{}', {}),
    ('PUT', '/v1/resource-classes/CUSTOM_{}', {}),
    ('PUT', '/v1/declared-metrics/watts/{}', {'unit': 'W'}),
]


def _body(path: str, body: dict[str, Any], number: int) -> dict[str, Any] | None:
    if path.endswith('requests'):
        spec = {'resources': {'VCPU': 1}}
        return {'request_id': fixed(number), 'consumers': [fixed(number + 1)], 'spec': spec}
    if path.endswith('groups'):
        return {**body, 'uuid': fixed(number)}
    return None if 'resource-classes' in path else body


@pytest.mark.finding('API5', 'what is created is answered 201 with its address')
@pytest.mark.parametrize(('method', 'path', 'body'), CREATED)
def test_what_is_created_has_an_address(
    caller: httpx.Client, method: str, path: str, body: dict[str, Any]
) -> None:
    def ask(number: int) -> httpx.Response:
        return caller.request(method, path.format(number), json=_body(path, body, number))

    new = ask(200)
    assert new.status_code == 201
    shown = caller.get(new.headers['location'], headers=LATEST)
    assert shown.status_code == 200
    if method == 'PUT':
        assert ask(200).status_code == 200
    dry = f'{path.format(300)}?dry_run=true'
    if path != '/v1/requests':
        answer = caller.request(method, dry, json=_body(path, body, 300), headers=LATEST)
        assert (answer.status_code, answer.headers.get('location')) == (200, None)


@pytest.mark.finding('API5', 'a page of a list has the address of the next one')
def test_the_link_of_a_page_leads_to_the_next(site: Site, caller: httpx.Client) -> None:
    path = '/v1/hosts?limit=4&sort=-name'
    first = caller.get(path, headers=LATEST).json()
    [link] = first['links']
    assert link['rel'] == 'next'
    last = caller.get(link['href'], headers=LATEST).json()
    assert [host['name'] for host in first['hosts'] + last['hosts']] == [
        f'cmp-{number}' for number in (6, 5, 4, 3, 2, 1)
    ]
    assert last['links'] == []


@pytest.mark.finding('API1', 'links are whole addresses, with the prefix of the mount')
def test_links_have_the_prefix(site: Site) -> None:
    transport = httpx.WSGITransport(site.app, script_name='/scheduler')
    with httpx.Client(transport=transport, base_url='http://127.0.0.1:81') as caller:
        [version] = caller.get('/').json()['versions']
        links = {link['rel']: link['href'] for link in version['links']}
        page = caller.get('/v1/hosts?limit=1', headers=LATEST).json()
        document = caller.get('/v1/openapi.json').json()
        response = caller.put('/v1/aggregates/a b', json={}, headers=LATEST)
    base = 'http://127.0.0.1:81/scheduler'
    assert links == {'self': f'{base}/v1', 'describedby': f'{base}/v1/openapi.json'}
    assert page['links'][0]['href'].startswith(f'{base}/v1/hosts?')
    assert document['servers'] == [{'url': base}]
    assert response.headers['location'] == f'{base}/v1/aggregates/a%20b'


# -- the document ---------------------------------------------------------------------------
@pytest.mark.finding('API2', 'the document says how to log in, every code, headers and examples')
def test_the_document_is_complete(caller: httpx.Client) -> None:
    document = caller.get('/v1/openapi.json').json()
    validate(document)
    assert document['components']['securitySchemes']['token']['name'] == 'X-Auth-Token'
    declared = set(document['components']['responses'])
    for path, methods in document['paths'].items():
        for method, operation in methods.items():
            name = f'{method} {path}'
            if path == '/healthcheck':
                continue
            assert {'400', '406', '500', '503'} <= operation['responses'].keys(), name
            assert ({'401', '403'} <= operation['responses'].keys()) == (
                'security' not in operation
            ), name
            if 'requestBody' in operation:
                assert 'example' in operation['requestBody']['content']['application/json'], name
                assert {'411', '413', '415'} <= operation['responses'].keys(), name
    codes = {error.http_status for error in _errors(exceptions.GanttError)}
    # 405 is of no operation: the method is not one.
    assert {str(code) for code in codes - {405}} <= declared


def _errors(of: type[exceptions.GanttError]) -> Iterator[type[exceptions.GanttError]]:
    yield of
    for inner in of.__subclasses__():
        yield from _errors(inner)


class Client:
    """A program that knows the interface by its document only."""

    def __init__(self, caller: httpx.Client) -> None:
        self._caller = caller
        self.document = caller.get('/v1/openapi.json').json()
        self.operations = {
            operation['operationId']: (method.upper(), path, operation)
            for path, methods in self.document['paths'].items()
            for method, operation in methods.items()
        }
        self.asked: set[str] = set()

    def _resolved(self, thing: dict[str, Any]) -> dict[str, Any]:
        while '$ref' in thing:
            kind, name = thing['$ref'].split('/')[2:]
            thing = self.document['components'][kind][name]
        return thing

    def ask(self, operation_id: str, /, **changes: Any) -> httpx.Response:
        """Send the examples, and hold the answer against the document."""
        self.asked.add(operation_id)
        method, path, operation = self.operations[operation_id]
        query, headers = {}, {}
        for parameter in map(self._resolved, operation['parameters']):
            value = changes.get(parameter['name'], parameter.get('example'))
            if parameter['in'] == 'path':
                path = path.replace(f'{{{parameter["name"]}}}', str(value))
            elif parameter['in'] == 'header':
                headers[parameter['name']] = value
            elif parameter['required'] or parameter['name'] in changes:
                query[parameter['name']] = value
        body = None
        if 'requestBody' in operation:
            content = operation['requestBody']['content']['application/json']
            body = changes.get('body', content['example'])
            self._validate(body, content['schema'])
        answer = self._caller.request(method, path, params=query, json=body, headers=headers)
        self._compare(operation_id, operation, answer)
        return answer

    def _compare(self, name: str, operation: dict[str, Any], answer: httpx.Response) -> None:
        assert str(answer.status_code) in operation['responses'], (name, answer.text)
        described = self._resolved(operation['responses'][str(answer.status_code)])
        optional = {'Retry-After', 'WWW-Authenticate'}
        assert (
            not described['headers'].keys()
            - optional
            - {header for header in described['headers'] if header in answer.headers}
        ), name
        if answer.status_code == 304:
            return
        kind = answer.headers['content-type'].partition(';')[0]
        [content] = [media for form, media in described['content'].items() if _is_kind(kind, form)]
        if kind == 'application/json':
            self._validate(answer.json(), content['schema'])

    def _validate(self, value: Any, schema: dict[str, Any]) -> None:
        whole = {**schema, 'components': self.document['components']}
        jsonschema.Draft202012Validator(whole).validate(json.loads(json.dumps(value)))


def _is_kind(kind: str, form: str) -> bool:
    return re.fullmatch(form.replace('*', '.*'), kind) is not None


#: In this order each finds what it is about; {} stands for the examples.
TOUR: list[tuple[str, dict[str, Any], int]] = [
    ('set_class', {}, 201),
    ('set_metric', {}, 201),
    ('set_aggregate', {}, 201),
    ('create_group', {}, 201),
    ('create_request', {}, 201),
    ('create_request', {}, 201),
    ('create_group_plan', {}, 201),
    ('create_group_plan', {}, 201),
    ('change_group_plan', {}, 200),
    ('extend_group_plan', {}, 200),
    ('show_group_plan', {'check': 'true'}, 200),
    ('list_group_plans', {'limit': 1}, 200),
    ('extend_lease', {}, 200),
    ('confirm_request', {}, 400),  # it is on a host
    ('release_request', {}, 400),
    ('show_request', {}, 200),
    ('list_requests', {'limit': 1}, 200),
    ('what_if', {}, 200),
    ('capacity', {}, 200),
    ('disable_host', {}, 200),
    ('enable_host', {}, 200),
    ('list_hosts', {'name': 'cmp', 'limit': 2}, 200),
    ('show_decision', {'explain': 'true'}, 200),
    ('show_decision', {'format': 'text'}, 200),
    ('show_decision', {'decision_id': 'nothing'}, 404),
    ('show_host', {'name': 'nobody'}, 404),
    ('show_dashboard_file', {}, 200),
    ('list_claims', {}, 200),
    ('list_decisions', {}, 200),
]
LAST: list[tuple[str, dict[str, Any], int]] = [
    ('set_parent', {}, 200),
    ('list_parents', {}, 200),
    ('remove_parent', {}, 200),
    ('set_zone', {}, 400),  # nobody answers there
    ('list_zones', {}, 200),
    ('show_zone', {}, 404),
    ('remove_zone', {}, 404),
    ('unseal_host', {}, 410),
    # Who calls is no zone above.
    ('discover_zone', {}, 403),
    ('evaluate_zone', {}, 403),
    ('allocate_in_zone', {}, 403),
    ('show_zone_allocation', {}, 403),
    ('release_zone_allocation', {}, 403),
    ('end_claim_of_zone', {}, 403),
    ('show_zone_changes', {}, 403),
    ('summarize_zone', {}, 403),
    ('count_capacity_of_zone', {}, 403),
    ('extend_zone_lease', {}, 403),
    ('explain_zone_allocation', {}, 403),
    ('show_host_digests', {}, 403),
    ('cancel_request', {}, 200),
    ('release_group_plan', {}, 200),
    ('remove_group', {}, 200),
    ('remove_aggregate', {}, 200),
    ('remove_metric', {}, 200),
    ('remove_host', {}, 200),
    ('remove_host', {}, 404),
]


def test_a_client_made_from_the_document_comes_through_every_route() -> None:
    site = Site()
    site.place(7)
    transport = httpx.WSGITransport(site.app)
    with httpx.Client(transport=transport, base_url='http://localhost') as caller:
        client = Client(caller)
        for name, changes, status in TOUR:
            answer = client.ask(name, **changes)
            assert answer.status_code == status, (name, answer.text)
        claim = client.ask('list_claims', request_id=fixed(7)).json()['claims'][0]['id']
        assert client.ask('show_claim', claim_id=claim).status_code == 200
        assert client.ask('release_claim', claim_id=claim).status_code == 200
        # The site keeps no log of its table: the decision is there, a replay of it is not.
        client.ask('replay_decision')
        for name in sorted(client.operations.keys() - client.asked - {n for n, _, _ in LAST}):
            answer = client.ask(name)
            expected = 300 if name == 'discover' else 200
            assert answer.status_code == expected, (name, answer.text)
        for name, changes, status in LAST:
            answer = client.ask(name, **changes)
            assert answer.status_code == status, (name, answer.text)
    assert client.asked == client.operations.keys()
