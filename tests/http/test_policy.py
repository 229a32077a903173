# SPDX-License-Identifier: Apache-2.0
"""Who may do what, with real tokens on every route; and what a policy file may say."""

import http.server
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2 as httpx
import msgspec
import pytest

from gantt import exceptions
from gantt.cmd import http_app, policies
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.http import policy
from gantt.http.context import Caller
from gantt.placement_api.http import app as placement_app
from tests.http import identity
from tests.http.cloud import CALLERS, MEMBERS_CLAIM, Cloud, a_cloud
from tests.http.identity import Keystone
from tests.http.site import fixed

EVERYBODY = {*CALLERS, 'nobody', 'a bad token'}
ADMINS = {'admin', 'system admin'}
OPERATORS = {*ADMINS, 'system reader', 'system member'}
PROJECT = {'reader', 'member', 'manager'}
READERS = {*OPERATORS, *PROJECT, 'service'}
MEMBERS = {*ADMINS, 'member', 'manager', 'service'}
CLASS_READERS = {*READERS, 'unscoped'}

#: Rule of a route -> who is let in.
MAY: dict[str, set[str]] = {
    'gantt:root:show': EVERYBODY,
    'gantt:health:show': EVERYBODY,
    'gantt:dashboard:show': EVERYBODY,
    'gantt:metrics:show': OPERATORS,
    'gantt:status:show': OPERATORS,
    'gantt:services:list': OPERATORS,
    'gantt:activity:show': OPERATORS,
    'gantt:refused:show': OPERATORS,
    'gantt:hosts:list': OPERATORS,
    'gantt:hosts:show': OPERATORS,
    'gantt:events:list': OPERATORS,
    'gantt:hosts:disable': ADMINS,
    'gantt:hosts:enable': ADMINS,
    'gantt:hosts:remove': ADMINS,
    'gantt:aggregates:list': OPERATORS,
    'gantt:aggregates:show': OPERATORS,
    'gantt:aggregates:set': ADMINS,
    'gantt:aggregates:remove': ADMINS,
    'gantt:server_groups:list': READERS,
    'gantt:server_groups:show': READERS,
    'gantt:server_groups:create': MEMBERS,
    'gantt:server_groups:remove': MEMBERS,
    'gantt:group_plans:list': READERS,
    'gantt:group_plans:show': READERS,
    'gantt:group_plans:create': MEMBERS,
    'gantt:group_plans:change': MEMBERS,
    'gantt:group_plans:extend': MEMBERS,
    'gantt:group_plans:release': MEMBERS,
    'gantt:requests:create': MEMBERS,
    'gantt:requests:list': READERS,
    'gantt:requests:show': READERS,
    'gantt:requests:extend': MEMBERS,
    'gantt:requests:confirm': MEMBERS,
    'gantt:requests:release': MEMBERS,
    'gantt:requests:cancel': MEMBERS,
    'gantt:decisions:list': READERS,
    'gantt:decisions:show': READERS,
    'gantt:decisions:replay': OPERATORS,
    'gantt:what_if:show': OPERATORS,
    'gantt:usages:list': READERS,
    'gantt:usages:show': READERS,
    'gantt:quotas:list': OPERATORS,
    'gantt:quotas:show': READERS,
    'gantt:quotas:set': ADMINS,
    'gantt:quotas:unset': ADMINS,
    'gantt:claims:list': READERS,
    'gantt:claims:show': READERS,
    'gantt:claims:release': ADMINS,
    'gantt:capacity:show': OPERATORS,
    'gantt:resource_classes:list': CLASS_READERS,
    'gantt:resource_classes:set': ADMINS,
    'gantt:declared_metrics:list': OPERATORS,
    'gantt:declared_metrics:set': ADMINS,
    'gantt:declared_metrics:remove': ADMINS,
    'gantt:zones:list': OPERATORS,
    'gantt:zones:set': ADMINS,
    'gantt:zones:remove': ADMINS,
    'gantt:parents:list': OPERATORS,
    'gantt:parents:set': ADMINS,
    'gantt:parents:remove': ADMINS,
    'gantt:sealed_hosts:unseal': {*OPERATORS, 'service'},
    'gantt:zone:query': CLASS_READERS,
    'gantt:zone:compare': CLASS_READERS,
}


@pytest.fixture(scope='module')
def keystone() -> Iterator[Keystone]:
    server = Keystone()
    yield server
    server.stop()


@pytest.fixture(scope='module')
def quiet(keystone: Keystone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """A cloud that nothing is written to."""
    new_cloud = a_cloud(keystone, tmp_path_factory.mktemp('quiet'))
    with new_cloud.client:
        yield new_cloud


@pytest.fixture
def cloud(keystone: Keystone, tmp_path: pathlib.Path) -> Iterator[Cloud]:
    """Its members may claim: what one does is seen at once."""
    new_cloud = a_cloud(keystone, tmp_path, MEMBERS_CLAIM)
    with new_cloud.client:
        yield new_cloud


# -- every route ------------------------------------------------------------------------
def test_the_table_has_the_rule_of_every_route() -> None:
    assert {route.rule for route in http_app.ROUTES} == set(MAY)


def test_a_rule_names_the_operations_that_ask_for_it() -> None:
    asked: dict[str, set[tuple[str, str]]] = {}
    for route in http_app.ROUTES:
        asked.setdefault(route.rule, set()).add((route.method, route.path))
    for rule in policies.list_rules():
        if rule.name in asked:
            named = {(operation['method'], operation['path']) for operation in rule.operations}
            assert named == asked[rule.name], rule.name


def test_a_rule_within_a_route_names_routes_that_there_are() -> None:
    routes = {(route.method, route.path) for route in http_app.ROUTES}
    for rule in policies.list_rules():
        if rule.name.startswith('placement:'):
            continue
        for operation in getattr(rule, 'operations', ()):
            assert (operation['method'], operation['path']) in routes, rule.name


def test_a_route_of_placement_asks_for_a_rule_that_names_it() -> None:
    rules = {rule.name: rule for rule in policies.list_rules()}
    for route in placement_app.ROUTES:
        if route.rule:
            asked = {'method': route.method, 'path': f'/placement{route.path}'}
            assert asked in rules[route.rule].operations


@pytest.mark.parametrize(
    'route', http_app.ROUTES, ids=lambda route: f'{route.method}-{route.path.strip("/")}'
)
def test_who_is_let_in(quiet: Cloud, route: Any) -> None:
    path = route.path.replace('{file}', 'dashboard.js')
    path = path.replace('{', 'no-such-').replace('}', '')
    let_in = set()
    for caller in EVERYBODY:
        answer = quiet.ask(caller, route.method, path)
        assert answer.status_code < 500, answer.text
        if answer.status_code == 401:
            assert caller in ('nobody', 'a bad token')
        elif answer.status_code == 403:
            [error] = answer.json()['errors']
            assert error['code'] == 'gantt.forbidden'
            assert route.rule in error['detail']
            assert 'rule:' not in error['detail'].replace('rule gantt', '')
        else:
            let_in.add(caller)
    # None of them is registered as a zone above: a body that is none is looked at before.
    is_zone = route.rule == 'gantt:zone:query' and route.method not in ('POST', 'PUT')
    assert let_in == (set() if is_zone else MAY[route.rule])


def test_no_method_of_a_path_is_without_a_rule(quiet: Cloud) -> None:
    ruled = {(route.method, route.path) for route in http_app.ROUTES}
    for path in {route.path for route in http_app.ROUTES}:
        for method in ('GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'TRACE', 'CONNECT'):
            # What HEAD would answer, GET says: under the same rule, see below.
            same = 'GET' if method == 'HEAD' else method
            if (same, path) not in ruled:
                asked = path.replace('{', '').replace('}', '')
                assert quiet.ask('admin', method, asked).status_code == 405, (method, path)


def test_the_head_of_an_answer_has_the_rule_of_the_answer(quiet: Cloud) -> None:
    for caller in ('admin', 'reader', 'nobody'):
        for path in ('/v1/hosts', '/v1/claims', '/v1/status', '/v1/health'):
            head, whole = (quiet.ask(caller, method, path) for method in ('HEAD', 'GET'))
            assert head.status_code == whole.status_code
            assert head.content == b''


# -- what a rule says beside that of the route ----------------------------------------------
def _request(number: int, **spec: Any) -> SelectDestinations:
    return SelectDestinations(
        request_id=fixed(number),
        consumers=[fixed(number * 1000)],
        spec=RequestSpec(resources={'VCPU': 1}, **spec),
    )


def _place(cloud: Cloud, caller: str, request: SelectDestinations) -> httpx.Response:
    return cloud.ask(caller, 'POST', '/v1/requests', msgspec.to_builtins(request))


@pytest.mark.parametrize(
    ('changes', 'may'),
    [
        ({'purpose': 'migrate'}, {'manager', 'service', *ADMINS}),
        ({'purpose': 'live_migrate'}, {'manager', 'service', *ADMINS}),
        ({'purpose': 'evacuate'}, {'service', *ADMINS}),
        ({'purpose': 'resize'}, MEMBERS),
        ({'force_hosts': ['cmp-1']}, {'service', *ADMINS}),
        ({'force_nodes': ['cmp-1']}, {'service', *ADMINS}),
        ({'destination': {'host': 'cmp-1'}}, {'service', *ADMINS}),
        ({'lifecycle': 'hold'}, {'service', *ADMINS}),
        ({'ignore_hosts': ['cmp-1']}, {'service', *ADMINS}),
        ({'hints': {'rules': ['name == "cmp-1"']}}, {'service', *ADMINS}),
        ({'dry_run': False}, {'service', *ADMINS}),
        ({'availability_zone': 'az2'}, MEMBERS),
    ],
    ids=[
        'migrate',
        'live',
        'evacuate',
        'resize',
        'hosts',
        'nodes',
        'destination',
        'lifecycle',
        'ignore',
        'rules',
        'claim',
        'zone',
    ],
)
def test_who_may_ask_for_what(quiet: Cloud, changes: dict[str, Any], may: set[str]) -> None:
    body = msgspec.to_builtins(_request(7))
    body['dry_run'] = True
    if changes.keys() & {'lifecycle', 'dry_run'}:
        body.update(changes)
    else:
        body['spec'].update(changes)
    body['spec']['resources'] = {'VCPU': 1000}  # of which there is nowhere room: nothing is kept
    allowed = {
        caller
        for caller in CALLERS
        if quiet.ask(caller, 'POST', '/v1/requests', body).status_code != 403
    }
    assert allowed == may


@pytest.mark.parametrize(
    'spec',
    [
        {'hints': {'rules': ['name == "cmp-1"']}},
        {'hints': {'query': ['["=", "$host", "cmp-1"]']}},
        {'ignore_hosts': ['cmp-1']},
    ],
    ids=['rules', 'query', 'ignore'],
)
def test_a_site_may_let_members_choose_among_hosts(
    keystone: Keystone, tmp_path: pathlib.Path, spec: dict[str, Any]
) -> None:
    rules = '"gantt:requests:create:rules": "rule:admin_api or rule:project_member_api"\n'
    site_cloud = a_cloud(keystone, tmp_path, rules)
    with site_cloud.client:
        body = msgspec.to_builtins(_request(8, **spec)) | {'dry_run': True}
        assert site_cloud.ask('member', 'POST', '/v1/requests', body).status_code != 403
        assert site_cloud.ask('service', 'POST', '/v1/requests', body).status_code == 403


def test_hosts_are_told_to_operators_and_services_alone(cloud: Cloud) -> None:
    for number, caller in enumerate(('member', 'manager', 'service', 'admin'), 10):
        answer = _place(cloud, caller, _request(number))
        assert answer.status_code == 201, answer.text
        shown = cloud.ask(caller, 'GET', f'/v1/requests/{fixed(number)}')
        [[selection, *others]] = answer.json()['answer']['selections']
        assert selection['claim_id'] == shown.json()['claims'][0]['id']
        knows = caller in ('service', 'admin')
        for text in (answer.text, shown.text):
            assert ('cmp-' in text) is knows
        assert bool(others) is knows
    reads = cloud.ask('system reader', 'GET', f'/v1/requests/{fixed(10)}')
    assert 'cmp-' in reads.text


def test_what_a_member_places_is_its_project_s(cloud: Cloud) -> None:
    assert _place(cloud, 'member', _request(10)).status_code == 201
    [claim] = cloud.site.world.store.claims.list_claims()
    assert (claim.project_id, claim.user_id) == ('red', 'id-of-eve')
    for field in ('project_id', 'user_id'):
        answer = _place(cloud, 'member', _request(11, **{field: 'blue'}))
        assert answer.status_code == 400
        assert f'body.spec.{field}' in answer.text


# -- what belongs to another project ------------------------------------------------------------
@pytest.fixture
def theirs(cloud: Cloud) -> Cloud:
    """A request that was placed, one that was refused and a group, all of project blue."""
    assert _place(cloud, 'other member', _request(20)).status_code == 201
    body = msgspec.to_builtins(_request(21))
    body['spec']['resources'] = {'VCPU': 400}
    assert cloud.ask('other member', 'POST', '/v1/requests', body).status_code == 409
    group = {'uuid': fixed(22), 'policy': 'affinity'}
    assert cloud.ask('other member', 'POST', '/v1/server-groups', group).status_code == 201
    cloud.site.world.turn()
    return cloud


@pytest.fixture
def planned(theirs: Cloud) -> Cloud:
    """The same, with a plan of a group of that project."""
    member = {'name': 'web', 'spec': {'resources': {'VCPU': 1}}}
    plan = {'request_id': fixed(24), 'group': {'uuid': fixed(23), 'members': [member]}}
    assert theirs.ask('other member', 'POST', '/v1/group-plans', plan).status_code == 201
    return theirs


PATHS = (
    ('GET', f'/v1/requests/{fixed(20)}'),
    ('GET', f'/v1/requests/{fixed(21)}'),
    ('GET', f'/v1/requests/{fixed(21)[:8]}'),
    ('DELETE', f'/v1/requests/{fixed(20)}'),
    ('GET', f'/v1/decisions/{fixed(21)}'),
    ('GET', f'/v1/server-groups/{fixed(22)}'),
    ('DELETE', f'/v1/server-groups/{fixed(22)}'),
    ('GET', f'/v1/group-plans/{fixed(23)}'),
    ('DELETE', f'/v1/group-plans/{fixed(23)}'),
)


def test_what_is_of_another_project_is_not_there(planned: Cloud) -> None:
    before = [claim.state for claim in planned.site.world.store.claims.list_claims()]
    for method, path in PATHS:
        for caller in ('reader', 'member', 'manager'):
            answer = planned.ask(caller, method, path)
            expected = 403 if caller == 'reader' and method == 'DELETE' else 404
            assert answer.status_code == expected, (caller, method, path, answer.text)
    assert [claim.state for claim in planned.site.world.store.claims.list_claims()] == before
    for method, path in PATHS:
        # A refused request leaves a decision and no request.
        there = not path.startswith(f'/v1/requests/{fixed(21)[:8]}')
        answer = planned.ask('other member', method, path)
        assert answer.status_code == (200 if there else 404), (method, path, answer.text)


def test_lists_have_what_is_of_the_own_project(planned: Cloud) -> None:
    for path, key in (
        ('/v1/decisions', 'decisions'),
        ('/v1/server-groups', 'server_groups'),
        ('/v1/group-plans', 'group_plans'),
    ):
        assert planned.ask('manager', 'GET', path).json()[key] == []
        for caller in ('other member', 'system reader', 'service'):
            assert planned.ask(caller, 'GET', path).json()[key] != [], (caller, path)


def test_a_group_of_another_project_is_of_no_use(theirs: Cloud) -> None:
    joining = _request(30)
    body = msgspec.to_builtins(joining)
    body['spec']['group'] = {'uuid': fixed(22)}
    assert theirs.ask('member', 'POST', '/v1/requests', body).status_code == 404
    again = {'uuid': fixed(22), 'policy': 'affinity'}
    taken = theirs.ask('member', 'POST', '/v1/server-groups', again)
    assert taken.status_code == 400
    assert 'blue' not in taken.text
    foreign = {'uuid': fixed(31), 'policy': 'affinity', 'project_id': 'blue'}
    assert theirs.ask('member', 'POST', '/v1/server-groups', foreign).status_code == 400


CONSUMER = fixed(20 * 1000)
TAKING = ('create', 'resize', 'unshelve', 'rebuild')


def _taking(purpose: str, number: int = 50) -> SelectDestinations:
    """A request for the consumer that project blue has placed."""
    request = _request(number, purpose=purpose)
    return msgspec.structs.replace(request, consumers=[fixed(number * 1000), CONSUMER])


@pytest.mark.parametrize('running', [False, True], ids=['reserved', 'runs'])
@pytest.mark.parametrize('dry', [False, True], ids=['', 'dry'])
@pytest.mark.parametrize('purpose', TAKING)
def test_a_consumer_of_another_project_is_not_there(
    theirs: Cloud, purpose: str, dry: bool, running: bool
) -> None:
    store = theirs.site.world.store
    if running:
        [claim] = store.claims.list_claims()
        theirs.site.run(claim.host, CONSUMER, claim.id, VCPU=1)
    before = store.claims.list_claims()
    body = msgspec.structs.replace(_taking(purpose), dry_run=dry)
    for caller in ('member', 'manager'):
        answer = _place(theirs, caller, body)
        assert answer.status_code == 404, answer.text
        [error] = answer.json()['errors']
        assert error['detail'] == f'consumer {CONSUMER!r} was not found'
        assert not any(word in answer.text for word in ('cmp-', 'blue', before[0].id))
    assert store.claims.list_claims() == before


def test_a_consumer_of_another_project_that_comes_meanwhile_is_left_alone(cloud: Cloud) -> None:
    place = cloud.site.client.select_destinations

    def meanwhile(request: SelectDestinations) -> Any:
        cloud.site.client.select_destinations = place  # type: ignore[method-assign]
        theirs = RequestSpec(resources={'VCPU': 1}, project_id='blue', user_id='bob')
        place(SelectDestinations(request_id=fixed(20), consumers=[CONSUMER], spec=theirs))
        return place(request)

    cloud.site.client.select_destinations = meanwhile  # type: ignore[method-assign]
    answer = _place(cloud, 'member', _taking('create'))
    assert answer.status_code == 404, answer.text
    assert 'cmp-' not in answer.text
    [claim] = cloud.site.world.store.claims.list_claims()
    assert (claim.state, claim.project_id) == ('reserved', 'blue')


def test_where_an_own_consumer_runs_is_told_to_who_may_know_hosts(theirs: Cloud) -> None:
    [claim] = theirs.site.world.store.claims.list_claims()
    theirs.site.run(claim.host, CONSUMER, claim.id, VCPU=1)
    answer = _place(theirs, 'other member', _taking('create'))
    assert answer.status_code == 400
    [error] = answer.json()['errors']
    assert error['detail'] == f'consumer {CONSUMER} has a place already'
    assert 'cmp-' not in answer.text
    assert claim.id not in answer.text
    whole = _place(theirs, 'service', _taking('create', 51))
    [error] = whole.json()['errors']
    where = f'host {claim.host}, claim {claim.id}'
    assert error['detail'] == f'consumer {CONSUMER} has a place already: {where}'
    assert error['details']['places'] == [where]


@pytest.mark.parametrize('purpose', TAKING)
def test_a_service_places_the_consumers_of_all(theirs: Cloud, purpose: str) -> None:
    assert _place(theirs, 'service', _taking(purpose)).status_code == 201


def test_an_unknown_request_is_cancelled_by_who_may_cancel_all(cloud: Cloud) -> None:
    path = f'/v1/requests/{fixed(40)}'
    assert cloud.ask('member', 'DELETE', path).status_code == 404
    assert cloud.ask('service', 'DELETE', path).status_code == 200


def test_a_refusal_is_explained_whole_to_operators(theirs: Cloud) -> None:
    path = f'/v1/decisions/{fixed(21)}'
    whole = theirs.ask('system reader', 'GET', path, explain='true', host='cmp-1')
    assert 'ResourcesFilter' in whole.text
    brief = theirs.ask('other member', 'GET', path, explain='true')
    assert 'the amounts asked for' in brief.json()['reason']
    assert 'Filter' not in brief.text
    assert 'cmp-' not in brief.text


# -- policy files ---------------------------------------------------------------------------
Read = Callable[..., policy.PolicyEnforcer]


@pytest.fixture
def read(tmp_path: pathlib.Path) -> Read:
    """``read(text)``: the rules with a policy file of that text."""

    def one(text: str | None, **said: object) -> policy.PolicyEnforcer:
        file = tmp_path / 'policy.yaml'
        if text is not None:
            file.write_text(text)
        sections = {'oslo_policy': {'policy_file': file, **said}}
        return policies.enforcer(identity.configuration(tmp_path, sections))

    return one


MEMBER = Caller(user='eve', project='red', roles=('member', 'reader'))


def test_a_file_changes_the_rules_that_it_names(read: Read) -> None:
    rules = read(
        '"gantt:hosts:list": "rule:project_member_api"\n'
        '"gantt:metrics:show": "@"\n'
        '"operators": "role:operator"\n'
        '"gantt:claims:release": "rule:operators or rule:admin_api"\n'
    )
    assert rules.allows('gantt:hosts:list', MEMBER)
    assert not rules.allows('gantt:hosts:show', MEMBER)
    assert 'gantt:metrics:show' in rules.open
    assert rules.allows('gantt:claims:release', Caller(project='red', roles=('operator',)))


SOME_CALLERS = [
    Caller(user='eve', project=project, roles=roles, system=system, everywhere=everywhere)
    for project in (None, 'red', 'blue')
    for roles in ((), ('reader',), ('member', 'reader'), ('service',), ('admin',))
    for system in (False, True)
    for everywhere in (False, True)
]


def test_an_answer_that_is_remembered_is_what_the_rule_says(read: Read) -> None:
    rules = read(
        '"gantt:hosts:list": "not role:reader or project_id:%(project_id)s"\n'
        '"placement:allocations:list": "user_id:%(user_id)s and role:member"\n'
    )
    targets = [{'project_id': 'red', 'user_id': 'eve'}, {'project_id': None, 'user_id': 'adam'}]
    for rule in ('gantt:hosts:list', 'gantt:claims:release', 'placement:allocations:list'):
        for caller in SOME_CALLERS:
            for target in targets:
                expected = rules.enforcer.enforce(rule, target, caller.credentials())
                verdicts = [rules.meets(rule, caller, target) for _ in range(2)]
                assert verdicts == [expected, expected], (rule, caller, target)


def test_what_another_service_decides_is_asked_each_time(read: Read) -> None:
    answers = ['True', 'False', 'True']

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers['Content-Length']))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers.pop(0).encode())

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) as service:
        thread = threading.Thread(target=service.serve_forever, daemon=True)
        thread.start()
        rules = read(
            f'"elsewhere": "http://127.0.0.1:{service.server_port}/rule"\n'
            '"gantt:hosts:list": "role:member and rule:elsewhere"\n'
        )
        verdicts = [rules.allows('gantt:hosts:list', MEMBER) for _ in range(3)]
        service.shutdown()
        thread.join(10)
    assert verdicts == [True, False, True]


def test_a_rule_is_refused_in_the_words_of_the_file(read: Read) -> None:
    rules = read('"gantt:hosts:list": "role:operator or rule:admin_api"\n')
    with pytest.raises(policy.Forbidden, match='asks for role:operator or role:admin; you have'):
        rules.check('gantt:hosts:list', MEMBER)


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        (
            '"gantt:hosts:lst": "@"',
            'gantt:hosts:lst: there is no such rule; did you mean gantt:h',
        ),
        ('"gantt:hosts:list": "role:admin and admin"', "'role:admin and admin' is not understood"),
        (
            '"gantt:hosts:list": "rule:admin_ap"',
            'rule:admin_ap is not defined; did you mean rule',
        ),
        ('"gantt:hosts:list": "not rule:nobody"', 'rule:nobody is not defined'),
        ('"a": "rule:b"\n"b": "rule:a"', 'in a circle'),
        ('"gantt:hosts:list": [', 'policy.yaml: while parsing'),
        ('- gantt', 'expected a mapping'),
        ('gantt', 'expected a mapping'),
        ('"gantt:hosts:list": 5', 'expected a mapping'),
        (None, 'there is no such file'),
    ],
    ids=range(10),
)
def test_a_wrong_file_is_told_at_start(read: Read, text: str | None, said: str) -> None:
    with pytest.raises(exceptions.Misconfigured) as caught:
        read(text)
    assert '[oslo_policy] policy_file: ' in caught.value.message
    assert said in caught.value.message


def test_no_file_at_all_is_well(tmp_path: pathlib.Path) -> None:
    conf = identity.configuration(tmp_path, {'api': {}})
    assert not policies.enforcer(conf).allows('gantt:hosts:list', MEMBER)
