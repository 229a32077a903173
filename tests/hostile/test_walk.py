# SPDX-License-Identifier: Apache-2.0
"""A walk over every route of both interfaces, as each kind of caller there is.

No byte of an answer has the name of a host, what one has, or what is of another project, for who
may not see it; what a caller has said itself may be said to it again.
"""

import collections
import itertools
import json
import pathlib
import random
import re
import urllib.parse
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest

from gantt.cmd import policies
from gantt.cmd.http_app import ROUTES
from gantt.http import openapi
from gantt.insights.candidates import ProviderTableReader
from gantt.placement_api.http import app as placement_app
from gantt.placement_api.http.dispatch import RouteTable
from gantt.placement_api.http.handlers.dry_run import DryRunHandler
from gantt.placement_api.http.versions import HEADER
from gantt.scheduler.clock import SystemClock
from tests.hostile import walked_site
from tests.hostile.walked_site import BLUE, CALLERS, PARENTS, RED, WalkedSite
from tests.world import sqlite_store

#: Requests to one site before another one takes its place: what callers have is used up.
OF_ONE_SITE = 2_000
#: Requests after which the callers are given something more.
RENEWED = 400
#: The id of nothing.
NOBODY = '00000000-0000-4000-8000-00000000beef'
VERSIONS = {HEADER: 'scheduler latest, placement 1.39'}
DOCUMENT = openapi.document(ROUTES, policies.list_rules())
#: Rules of routes at which there is nothing to find for long.
PLAIN = {'gantt:root:show', 'gantt:dashboard:show', 'gantt:health:show'}
#: Said to everybody, and about nothing that is here.
STATIC = {'openapi_document', 'show_dashboard', 'show_dashboard_file'}
_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')


class Operation(NamedTuple):
    """One route as it is walked.

    :ivar rule: that it asks
    :ivar queries: names of its parameters -> their schemas
    """

    name: str
    method: str
    path: str
    rule: str
    queries: dict[str, Any]
    example: Any
    schema: Any


def _own() -> Iterator[Operation]:
    rules = {(route.method, route.path): route.rule for route in ROUTES}
    for path, methods in DOCUMENT['paths'].items():
        for method, document in methods.items():
            if path == '/healthcheck':
                continue  # of the process: a middleware before all routes
            parameters = [_resolved(parameter) for parameter in document['parameters']]
            queries = {
                parameter['name']: parameter['schema']
                for parameter in parameters
                if parameter['in'] == 'query'
            }
            form = document.get('requestBody', {}).get('content', {}).get('application/json', {})
            yield Operation(
                document['operationId'],
                method.upper(),
                path,
                rules.pop((method.upper(), path)),
                {name: schema for name, schema in queries.items() if name != 'wait'},
                form.get('example'),
                form.get('schema'),
            )
    assert not rules, 'the document lists every route'


def _resolved(thing: dict[str, Any]) -> dict[str, Any]:
    while '$ref' in thing:
        kind, name = thing['$ref'].split('/')[2:]
        thing = DOCUMENT['components'][kind][name]
    return thing


#: Bodies that Placement's routes take.
_INVENTORY = {'total': 8}
PLACEMENT_BODIES: dict[str, Any] = {
    'POST /resource_classes': {'name': 'CUSTOM_B'},
    'POST /resource_providers': {'name': 'p', 'uuid': NOBODY},
    'PUT /resource_providers/{uuid}': {'name': 'p'},
    'POST /resource_providers/{uuid}/inventories': {'resource_class': 'VCPU', **_INVENTORY},
    'PUT /resource_providers/{uuid}/inventories': {
        'resource_provider_generation': 0,
        'inventories': {'VCPU': _INVENTORY},
    },
    'PUT /resource_providers/{uuid}/inventories/{resource_class}': {
        'resource_provider_generation': 0,
        **_INVENTORY,
    },
    'PUT /resource_providers/{uuid}/aggregates': {
        'resource_provider_generation': 0,
        'aggregates': [NOBODY],
    },
    'PUT /resource_providers/{uuid}/traits': {
        'resource_provider_generation': 0,
        'traits': ['CUSTOM_A'],
    },
    'PUT /allocations/{consumer_uuid}': {
        'allocations': {NOBODY: {'resources': {'VCPU': 1}}},
        'project_id': 'green',
        'user_id': 'gus',
        'consumer_generation': None,
        'consumer_type': 'INSTANCE',
    },
    'POST /allocations': {},
    'POST /reshaper': {'inventories': {}, 'allocations': {}},
}
PLACEMENT_QUERIES = {
    '/usages': {'project_id': {'type': 'string'}, 'user_id': {'type': 'string'}},
    '/allocation_candidates': {'resources': {'const': 'VCPU:1'}, 'limit': {'type': 'integer'}},
    '/resource_providers': {'name': {'type': 'string'}, 'in_tree': {'type': 'string'}},
}


def _of_placement() -> Iterator[Operation]:
    store = sqlite_store(SystemClock())
    dry_runs = DryRunHandler(RouteTable(placement_app.ROUTES), store.dry_runs, policies.defaults())
    further = placement_app._stateful_routes(ProviderTableReader(store.candidates), dry_runs)
    routes = (*placement_app.ROUTES, *further)
    for route in routes:
        endpoint = f'{route.method} {route.path}'
        yield Operation(
            f'placement {endpoint} 1.{route.since}',
            route.method,
            f'/placement{route.path}',
            route.rule,
            PLACEMENT_QUERIES.get(route.path, {}),
            PLACEMENT_BODIES.get(endpoint),
            None,
        )


OPERATIONS = [*_own(), *_of_placement()]

#: What is in a path -> the kind of words that it mostly is.
KINDS = {
    'hosts': 'host',
    'server-groups': 'group',
    'group-plans': 'plan',
    'requests': 'request',
    'decisions': 'decision',
    'claims': 'claim',
    'quotas': 'project',
    'usages': 'project',
    'zone/v1/allocations': 'key',
    'explanations': 'key',
    'placement/allocations': 'consumer',
    'resource_providers': 'provider',
}
#: A field of a query or a body -> likewise.
FIELDS = {
    'host': 'host',
    'project_id': 'project',
    'consumer': 'consumer',
    'consumers': 'consumer',
    'same_host': 'consumer',
    'different_host': 'consumer',
    'members': 'consumer',
    'request_id': 'request',
    'uuid': 'group',
    'marker': 'decision',
    'force_hosts': 'host',
    'ignore_hosts': 'host',
    'sealed_host': 'sealed_host',
    'key': 'key',
}
ODD = (
    '',
    '0',
    '-1',
    'a\nb',
    '\u202e',
    '%',
    '{}',
    'x' * 300,
    '*',
    '[',
    'true',
    None,
    1e300,
    2**63,
    [],
    {},
)
#: Parts of what a request asks for; texts in them are replaced by what is there.
SPECS: tuple[dict[str, Any], ...] = (
    {'same_host': [NOBODY]},
    {'different_host': [NOBODY]},
    {'group': {'uuid': NOBODY}},
    {'group': {'uuid': NOBODY, 'policy': 'affinity', 'members': [NOBODY]}},
    {'force_hosts': ['x']},
    {'ignore_hosts': ['x']},
    {'availability_zone': 'az2'},
    {'purpose': 'rebuild'},
    {'purpose': 'migrate'},
    {'resources': {'VCPU': 5000}},
    {'resources': {'VCPU': 1}},
    {'hints': {'same_host': [NOBODY]}},
    {'hints': {'group': [NOBODY]}},
    {'required_traits': ['CUSTOM_BELOW']},
)


class Asked(NamedTuple):
    """A request that is sent."""

    method: str
    url: str
    body: Any

    @property
    def text(self) -> str:
        return f'{urllib.parse.unquote_plus(self.url)} {json.dumps(self.body)}'


class Inputs:
    """Requests that mostly make sense, about what is there.

    :param words: kind -> what is there of it
    """

    def __init__(self, dice: random.Random, words: dict[str, list[str]]) -> None:
        self._dice, self._words = dice, words

    def one_in(self, many: int) -> bool:
        return self._dice.randrange(many) == 0

    def word(self, kind: str) -> str:
        """A word of a kind, of whomever; or another one, or nobody's."""
        if self.one_in(10):
            return NOBODY
        if self.one_in(10):
            kind = self._dice.choice(sorted(self._words))
        return self._dice.choice(self._words[kind])

    def asked(self, operation: Operation) -> Asked:
        path = operation.path
        for name in re.findall(r'\{(\w+)\}', path):
            before = path.partition(f'{{{name}}}')[0].rstrip('/')
            kind = next((KINDS[ending] for ending in KINDS if before.endswith(ending)), 'name')
            path = path.replace(f'{{{name}}}', urllib.parse.quote(self.word(kind), safe=''), 1)
        query = {}
        for name, schema in operation.queries.items():
            if self.one_in(3):
                value = self._value(name, schema, 0)
                query[name] = value if isinstance(value, str) else json.dumps(value)
        url = f'{path}?{urllib.parse.urlencode(query)}' if query else path
        body = None if operation.example is None else self._body(operation, path)
        return Asked(operation.method, url, body)

    def _body(self, operation: Operation, path: str) -> Any:
        body = operation.example
        if operation.schema is not None and self.one_in(4):
            body = self._value('', operation.schema, 0)
        elif self.one_in(4):
            body = self._changed(body)
        if isinstance(body, dict):
            if operation.name in ('create_request', 'create_group_plan', 'change_group_plan'):
                body = {**body, 'dry_run': self.one_in(2)}
            within = body.get('request', body)
            if isinstance(within, dict) and isinstance(within.get('spec'), dict):
                within = {**within, 'spec': {**within['spec'], **self._dice.choice(SPECS)}}
                body = {**body, 'request': within} if 'request' in body else within
        body = self._salted('', body)
        if operation.name == 'change_group_plan' and isinstance(body, dict):
            group = body.get('group')
            if isinstance(group, dict):
                body = {**body, 'group': {**group, 'uuid': path.rpartition('/')[2]}}
        return body

    def _salted(self, field: str, body: Any) -> Any:
        """The same with ids that are new, and some texts that mean something here."""
        if isinstance(body, dict):
            return {key: self._salted(key, value) for key, value in body.items()}
        if isinstance(body, list):
            return [self._salted(field, value) for value in body]
        if isinstance(body, str):
            is_id = _UUID.fullmatch(body) is not None
            if field in FIELDS and self.one_in(3 if is_id else 2):
                return self.word(FIELDS[field])
            return str(uuid.UUID(int=self._dice.getrandbits(128))) if is_id else body
        return body

    def _changed(self, body: Any) -> Any:
        """The same with one part, somewhere in it, replaced."""
        if isinstance(body, dict) and body and not self.one_in(4):
            key = self._dice.choice(sorted(body))
            return {**body, key: self._changed(body[key])}
        if isinstance(body, list) and body and not self.one_in(4):
            return [self._changed(body[0]), *body[1:]]
        return self._dice.choice(ODD)

    def _value(self, field: str, schema: dict[str, Any], depth: int) -> Any:
        """A value that mostly fits a schema."""
        schema = _resolved(schema)
        if self.one_in(20):
            return self._dice.choice(ODD)
        for key in ('anyOf', 'oneOf'):
            if key in schema:
                return self._value(field, self._dice.choice(schema[key]), depth)
        if schema.get('type') == 'object':
            needed = schema.get('required', ())
            return {
                name: self._value(name, inner, depth + 1)
                for name, inner in schema.get('properties', {}).items()
                if name in needed or (depth < 4 and self.one_in(4))
            }
        if schema.get('type') == 'array':
            count = max(schema.get('minItems', 0), self._dice.randrange(3 if depth < 4 else 1))
            return [self._value(field, schema.get('items', {}), depth + 1)] * min(count, 3)
        return self._simple(field, schema)

    def _simple(self, field: str, schema: dict[str, Any]) -> Any:
        if 'const' in schema:
            return schema['const']
        if 'enum' in schema:
            return self._dice.choice(schema['enum'])
        match schema.get('type'):
            case 'integer' | 'number':
                edges = [schema[key] for key in ('minimum', 'maximum') if key in schema]
                return self._dice.choice([*edges, 1, 2, 5, 100])
            case 'boolean':
                return self.one_in(2)
            case 'string':
                return self.word(FIELDS.get(field, 'name'))
        return self._dice.choice(ODD)


class TableWalk:
    """Callers who ask for everything, by a seed.

    :ivar kinds: (operation, who, status) -> how often
    :ivar found: what was told that may not be, once for each operation and caller
    """

    def __init__(self, folder: pathlib.Path, template: pathlib.Path, seed: int) -> None:
        self._folder, self._template = folder, template
        self._dice = random.Random(f'walk {seed}')
        self.kinds: collections.Counter[tuple[str, str, int]] = collections.Counter()
        self.found: dict[tuple[str, str], tuple[Any, ...]] = {}
        #: Project -> what it has said that was kept, and may be read again.
        self._kept: collections.defaultdict[Any, str] = collections.defaultdict(str)
        self._numbers = itertools.count(1)
        self.site = WalkedSite(folder, template)

    def run(self, requests: int) -> None:
        """Everything by everybody, and more often what is allowed to who may not see everything."""
        pairs = list(itertools.product(OPERATIONS, CALLERS))
        allowed = [
            (operation, role)
            for operation, role in pairs
            if role != 'service' and operation.rule not in PLAIN and self._may(operation, role)
        ]
        more = self._dice.choices(allowed, k=requests - len(pairs))
        turns = [*pairs, *more]
        self._dice.shuffle(turns)
        for operation, role in turns:
            self._step(operation, role)

    def _may(self, operation: Operation, role: str) -> bool:
        return not operation.rule or self.site.rules.allows(operation.rule, CALLERS[role])

    def _step(self, operation: Operation, role: str) -> None:
        number = next(self._numbers)
        if number % OF_ONE_SITE == 0:
            self.site.stop()
            self.site = WalkedSite(self._folder, self._template)
        elif number % RENEWED == 0:
            self.site.renew()
        if operation.name == 'allocate_in_zone' and role in PARENTS:
            for answer in self.site.allocate(role):
                self._read(operation, role, Asked('PUT', operation.path, None), answer)
        sent = Inputs(self._dice, self.site.words).asked(operation)
        answer = self.send(operation, role, sent)
        if not operation.path.startswith('/placement'):
            self.as_of_nobody(operation, role, sent, answer)

    def send(self, operation: Operation, role: str, asked: Asked) -> httpx.Response:
        answer = self.site.ask(role, *asked, headers=VERSIONS)
        if asked.method != 'GET' and answer.status_code < 300:
            project = _owner(role, asked.body)
            for reader in {project, CALLERS[role].project}:
                self._kept[reader] += asked.text
            if answer.status_code == 201:
                self.site.hand_over(project, _made(asked.body))
        self._read(operation, role, asked, answer)
        return answer

    def _read(self, operation: Operation, role: str, asked: Asked, answer: httpx.Response) -> None:
        self.kinds[operation.name, role, answer.status_code] += 1
        if operation.name in STATIC:
            return
        sent_text = asked.text + self._kept[CALLERS[role].project]
        leaked = self.site.leaks(role, self._may(operation, role), sent_text, answer)
        if leaked:
            leak = (sorted(leaked), asked, answer.text[:3000])
            self.found.setdefault((operation.name, role), leak)

    # -- whether there is one ------------------------------------------------------------
    def as_of_nobody(
        self, operation: Operation, role: str, asked: Asked, answer: httpx.Response
    ) -> None:
        """What is refused, or only looked at, is answered as if there were no such thing."""
        project = CALLERS[role].project
        theirs = [
            identifier
            for owner, ids in self.site.ids.items()
            if owner != project
            for identifier in ids
            if identifier in asked.text
        ]
        is_look = asked.method == 'GET' or answer.status_code >= 400
        if role == 'service' or len(theirs) != 1 or not is_look:
            return
        [word] = theirs
        if f'marker={word}' in asked.url and operation.name != 'list_decisions':
            return  # what comes after an id in order does not depend on whether there is one
        if word in _made(asked.body):
            return  # who may make something is told where that id is taken
        nobody = str(uuid.UUID(int=self._dice.getrandbits(128)))
        other = Asked(
            asked.method,
            asked.url.replace(word, nobody),
            json.loads(json.dumps(asked.body).replace(word, nobody)),
        )
        again = self.send(operation, role, other)
        if _plain(answer, word) != _plain(again, nobody):
            self.found.setdefault(
                (f'{operation.name} tells', role), (asked, answer.text[:1500], again.text[:1500])
            )


def _owner(role: str, body: Any) -> Any:
    """The project of what a request makes: the caller's, or the one that a service names."""
    while role == 'service' and isinstance(body, dict):
        if 'project_id' in body:
            return body['project_id']
        body = body.get('request', body.get('spec'))
    return CALLERS[role].project


def _made(body: Any) -> set[str]:
    """Ids under which a request makes something: of it, its consumers, its group."""
    if not isinstance(body, dict):
        return set()
    group, consumers = body.get('group'), body.get('consumers')
    ids = [body.get('request_id'), body.get('uuid')]
    ids += consumers if isinstance(consumers, list) else []
    ids += [group.get('uuid')] if isinstance(group, dict) else []
    return {identifier for identifier in ids if isinstance(identifier, str)} | _made(
        body.get('request')
    )


def _plain(answer: httpx.Response, word: str) -> tuple[int, str]:
    """An answer without what makes each another one."""
    # A group of a zone above has another name here, made of that.
    group = rf"server group '{_UUID.pattern}'|\"name\":\"{_UUID.pattern}\""
    changing = rf'req-[0-9a-f-]{{36}}|\d+\.\d+|{group}'
    text = re.sub(changing, 'OTHER', answer.text.replace(word, 'IT'))
    return answer.status_code, text


def _walk(folder: pathlib.Path, template: pathlib.Path, requests: int, seed: int) -> TableWalk:
    walk = TableWalk(folder, template, seed)
    try:
        walk.run(requests)
    finally:
        walk.site.stop()
    assert not walk.found, '\n\n'.join(f'{key}: {value}' for key, value in walk.found.items())
    return walk


@pytest.mark.finding('H5', 'no answer names a host, or what is of another project')
def test_no_answer_of_any_route_has_what_its_caller_may_not_see(tmp_path, sqlite_template):
    walk = _walk(tmp_path, sqlite_template, 1000, 1)
    walked = {(name, role) for name, role, _ in walk.kinds}
    assert len(walked) == len(OPERATIONS) * len(CALLERS), 'each was walked by everybody'
    fine = sum(count for (*_, status), count in walk.kinds.items() if status < 300)
    assert fine > 150, 'else nothing is shown'


@pytest.mark.parametrize('role', ['service', 'member'])
def test_a_group_under_the_id_of_one_that_is_gone_is_its_own_projects(
    tmp_path, sqlite_template, role
):
    walk = TableWalk(tmp_path, sqlite_template, 1)
    operations = {operation.name: operation for operation in OPERATIONS}
    try:
        group = next(uuid for uuid in walk.site.words['plan'] if uuid in walk.site.ids[BLUE])
        for path in (f'/v1/group-plans/{group}', f'/v1/server-groups/{group}'):
            assert walk.site.ask('service', 'DELETE', path).status_code == 200
        body = {'uuid': group, 'policy': 'affinity', 'name': 'web'}
        if role == 'service':
            body['project_id'] = RED
        create = Asked('POST', '/v1/server-groups', body)
        assert walk.send(operations['create_group'], role, create).status_code == 201
        show = Asked('GET', f'/v1/server-groups/{group}', None)
        shown = walk.send(operations['show_group'], 'reader', show)
        assert shown.json()['name'] == 'web'
        walk.as_of_nobody(operations['show_group'], 'reader', show, shown)
        assert not walk.found
    finally:
        walk.site.stop()


@pytest.mark.finding('H5', 'no answer names a host, or what is of another project')
def test_a_refusal_for_what_is_below_names_no_zone_to_a_member(tmp_path, sqlite_template):
    site = WalkedSite(tmp_path, sqlite_template)
    try:
        group = {'uuid': str(uuid.uuid4()), 'policy': 'affinity'}
        assert site.ask('member', 'POST', '/v1/server-groups', group).status_code == 201
        resources, in_group = {'resources': {'VCPU': 1}}, {'group': {'uuid': group['uuid']}}
        below = {**resources, **in_group, 'required_traits': ['CUSTOM_BELOW'], 'project_id': RED}
        assert site.place(below).status_code == 201
        plan = {'uuid': group['uuid'], 'policies': ['affinity']}
        plan['members'] = [{'name': 'a', 'spec': resources}]
        common = {'request_id': str(uuid.uuid4()), 'consumers': [str(uuid.uuid4())]}
        common['hops'] = 0  # to stay here
        for path, body in (
            ('/v1/requests', {**common, 'spec': {**resources, **in_group}}),
            ('/v1/requests', {**common, 'spec': {**resources, **in_group}, 'dry_run': True}),
            ('/v1/group-plans', {'request_id': common['request_id'], 'group': plan}),
        ):
            refused = site.ask('member', 'POST', path, body)
            [error] = refused.json()['errors']
            assert re.search('in another zone|in child zones', error['detail']), refused.text
            assert error['details'].keys().isdisjoint({'places', 'reason'})
            assert 'x33' not in refused.text
            # The same sentence goes on for who may know.
            [whole] = site.ask('service', 'POST', path, body).json()['errors']
            [place] = whole['details']['places']
            assert whole['detail'] == f'{error["detail"]}: {place}'
            assert 'x33' in place
    finally:
        site.stop()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.finding('H5', 'no answer names a host, or what is of another project')
def test_no_answer_has_what_its_caller_may_not_see_for_long(tmp_path, sqlite_template):
    walk = _walk(tmp_path, sqlite_template, 10_000, 2)
    fine = sum(count for (*_, status), count in walk.kinds.items() if status < 300)
    assert fine > 2000, 'else nothing is shown'


def test_a_zone_below_that_is_silent_is_not_named_to_a_tenant(tmp_path, sqlite_template):
    site = WalkedSite(tmp_path, sqlite_template)
    try:
        guest = next(row for row in site.top.store.child_claims.find(project=RED) if row.holds)
        body = {'consumers': [guest.consumer], 'spec': {'resources': {'VCPU': 1}}}
        body['spec']['purpose'] = 'rebuild'
        url = site.low.url
        site.low.cut()
        answers = [
            site.ask('member', 'PUT', f'/v1/requests/{guest.request_id}/lease', {'seconds': 60}),
            *(
                site.ask('member', 'POST', '/v1/requests', {**body, **more})
                for more in (
                    {'request_id': str(uuid.uuid4()), 'dry_run': True},
                    {'request_id': str(uuid.uuid4())},
                )
            ),
        ]
        for answer in answers:
            assert answer.status_code == 503, answer.text
            assert not site.leaks('member', True, '', answer), answer.text
            assert url not in answer.text and guest.key not in answer.text, answer.text
    finally:
        site.stop()


def test_a_trial_says_nothing_of_a_guest_of_another_project_below(
    tmp_path, sqlite_template, monkeypatch
):
    monkeypatch.setattr(walked_site, 'MEMBERS_CLAIM', '{}')
    site = WalkedSite(tmp_path, sqlite_template)
    try:
        spec = {'resources': {'VCPU': 1}, 'purpose': 'rebuild'}
        own, blue = (
            next(
                row.consumer
                for row in site.top.store.child_claims.find(project=project)
                if row.holds
            )
            for project in (RED, BLUE)
        )
        answers = []
        for consumer in (own, blue, NOBODY):
            body = {'request_id': NOBODY, 'consumers': [consumer], 'spec': spec, 'dry_run': True}
            answer = site.ask('member', 'POST', '/v1/requests', body)
            assert answer.status_code == 200, answer.text
            [chosen] = answer.json()['answer']['selections'][0]
            answers.append({**chosen, 'consumer': ''})
        assert answers[0] != answers[1] == answers[2]
    finally:
        site.stop()
