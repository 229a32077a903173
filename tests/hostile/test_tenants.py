# SPDX-License-Identifier: Apache-2.0
"""A member of one project against the others: what it can take, learn and name."""

import itertools
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx2 as httpx
import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings

from gantt.cmd import policies
from gantt.cmd.http_app import make_app
from gantt.core.messages.report import ClaimUpdate
from gantt.core.messages.request import SelectDestinations
from gantt.core.resources.host import Group
from gantt.http import policy, requested_fields
from gantt.http.context import Caller
from tests.http import identity
from tests.http.cloud import MEMBERS_CLAIM
from tests.http.site import Site, fixed

RED = Caller(user='eve', project='red', roles=('member', 'reader'))
SERVICE = Caller(user='nova', project='service', roles=('service',))
BLUE = {'project_id': 'blue-x4711', 'user_id': 'bob-x4711'}
#: What a host and an operator say: not for tenants.
OF_HOST = 'cannot be started: /opt/hook.sh ended with 1: rbd pool ssd-7 on ceph-mon-3 is full'
OF_OPERATOR = 'broken fan at the wall, all moves to the other rack'
UNKNOWN = fixed(999_999)


#: What came with later versions is asked as well.
NEWEST = {'OpenStack-API-Version': 'scheduler latest'}


class Tenants(NamedTuple):
    """A site, and the doors of a member of red and of a service.

    ``guest`` and ``group`` are of project blue.
    """

    site: Site
    red: httpx.Client
    service: httpx.Client
    guest: str
    group: str
    numbers: Iterator[int]

    def body(self, **spec: Any) -> dict[str, Any]:
        number = next(self.numbers)
        return {
            'request_id': fixed(number),
            'consumers': [fixed(number * 1000)],
            'spec': {'resources': {'VCPU': 1}, **spec},
        }

    def ask(self, dry_run: bool = False, **spec: Any) -> httpx.Response:
        body = {**self.body(**spec), 'dry_run': dry_run}
        headers = NEWEST if 'tree' in spec else {}
        return self.red.post('/v1/requests', json=body, headers=headers)

    def claims(self) -> list[Any]:
        return self.site.world.store.claims.list_claims()

    def words(self) -> set[str]:
        """Names and ids that a member of red never reads."""
        table, store = self.site.insights.table(), self.site.world.store
        words = {
            'Filter',
            self.site.world.scheduler.settings.worker,
            'ceph-mon-3',
            'broken fan',
            '-x4711',
            *BLUE.values(),
        }
        for host in table.hosts:
            words |= {host.name, host.uuid, host.node, host.facts.location}
        for claim in store.claims.list_claims():
            if claim.project_id != RED.project:
                words |= {claim.id, claim.consumer, claim.request_id or ''}
        words |= {self.group, *(aggregate.uuid for aggregate in table.known_aggregates.values())}
        return {word for word in words if word}


def _door(site: Site, caller: Caller, rules: policy.PolicyEnforcer) -> httpx.Client:
    app = make_app(
        site.insights,
        site.world.store,
        site.client,
        site.metrics,
        strategy=lambda req: caller,
        rules=rules,
    )
    return httpx.Client(transport=httpx.WSGITransport(app), base_url='http://gantt')


def _tenants(folder: pathlib.Path, text: str) -> Tenants:
    sections = {}
    if text:
        (folder / 'policy.yaml').write_text(text)
        sections = {'oslo_policy': {'policy_file': folder / 'policy.yaml'}}
    rules = policies.enforcer(identity.configuration(folder, {'api': {}, **sections}))
    site, numbers = Site(), itertools.count(100)
    store = site.world.store
    kept_for_blue = {'rule:kept': f'request.project == "{BLUE["project_id"]}"'}
    store.declarations.save_aggregate('gold-x4711', kept_for_blue, ['cmp-4'], fixed(77))
    group = {'uuid': fixed(78), 'policy': 'anti-affinity', 'project_id': BLUE['project_id']}
    service = _door(site, SERVICE, rules)
    new_tenants = Tenants(
        site, _door(site, RED, rules), service, fixed(50_000), group['uuid'], numbers
    )
    store.groups.save_group(Group(name='', max_per_host=1, **group))
    for number in (50, 51):
        body = new_tenants.body(**BLUE, group={'uuid': group['uuid']})
        body |= {'request_id': fixed(number), 'consumers': [fixed(number * 1000)]}
        assert service.post('/v1/requests', json=body).status_code == 201
    store.hosts.disable_host('cmp-3', OF_OPERATOR, 'ann-x4711')
    site.world.turn()
    return new_tenants


@pytest.fixture
def tenants(tmp_path: pathlib.Path) -> Tenants:
    """With the rules of the code."""
    return _tenants(tmp_path, '')


@pytest.fixture
def claiming(tmp_path: pathlib.Path) -> Tenants:
    """A site whose members may claim."""
    return _tenants(tmp_path, MEMBERS_CLAIM)


def _error(answer: httpx.Response) -> dict[str, Any]:
    return answer.json()['errors'][0]


# -- who takes what ----------------------------------------------------------------------------
@pytest.mark.finding('H2', 'a member asks where there is room, and takes none of it')
def test_one_member_does_not_take_the_cloud(tenants):
    before = tenants.claims()
    for _ in range(3):
        body = tenants.body()
        body['consumers'] = [fixed(number) for number in range(10**6, 10**6 + 100)]
        refused = tenants.red.post('/v1/requests', json=body)
        assert refused.status_code == 403
        assert _error(refused)['details']['field'] == 'body.dry_run'
        assert requested_fields.CLAIM_POLICY in _error(refused)['detail']
    assert tenants.claims() == before
    assert tenants.ask(dry_run=True).status_code == 200
    assert tenants.claims() == before
    body = tenants.body(project_id='red', user_id='eve')
    assert tenants.service.post('/v1/requests', json=body).status_code == 201
    # What was placed for it is its own.
    assert tenants.red.get(f'/v1/requests/{body["request_id"]}').status_code == 200


# -- what may be said --------------------------------------------------------------------------
HOST_NAMES = ['cmp-1']
#: Field that is refused -> the rule, and what says it.
BEYOND: dict[str, tuple[str, dict[str, Any]]] = {
    'hints.rules': (requested_fields.RULES_POLICY, {'hints': {'rules': ['name == "cmp-1"']}}),
    'hints.query': (
        requested_fields.RULES_POLICY,
        {'hints': {'query': ['["=", "$host", "cmp-1"]']}},
    ),
    'hints.location': (requested_fields.RULES_POLICY, {'hints': {'location': ['hall.r1']}}),
    'hints.build_near_host_ip': (
        requested_fields.RULES_POLICY,
        {'hints': {'build_near_host_ip': ['192.0.2.1']}},
    ),
    'hints.of a plugin': (requested_fields.RULES_POLICY, {'hints': {'of a plugin': ['x']}}),
    'flavor.extra_specs.rule:a': (
        requested_fields.RULES_POLICY,
        {'flavor': {'extra_specs': {'rule:a': 'free.VCPU >= 15'}}},
    ),
    'flavor.extra_specs.capabilities:free_ram_mb': (
        requested_fields.RULES_POLICY,
        {'flavor': {'extra_specs': {'capabilities:free_ram_mb': '>= 1'}}},
    ),
    'flavor.extra_specs.pci_passthrough:alias': (
        requested_fields.RULES_POLICY,
        {'flavor': {'extra_specs': {'pci_passthrough:alias': 'gpu:1'}}},
    ),
    'image.properties.img_hv_type': (
        requested_fields.RULES_POLICY,
        {'image': {'properties': {'img_hv_type': 'kvm'}}},
    ),
    'required_traits': (requested_fields.RULES_POLICY, {'required_traits': ['CUSTOM_FAST']}),
    'forbidden_traits': (requested_fields.RULES_POLICY, {'forbidden_traits': ['CUSTOM_FAST']}),
    'any_traits': (requested_fields.RULES_POLICY, {'any_traits': [['CUSTOM_FAST']]}),
    'member_of': (requested_fields.RULES_POLICY, {'member_of': [['gold-x4711']]}),
    'forbidden_aggregates': (
        requested_fields.RULES_POLICY,
        {'forbidden_aggregates': ['gold-x4711']},
    ),
    'ignore_hosts': (requested_fields.RULES_POLICY, {'ignore_hosts': HOST_NAMES}),
    'devices': (requested_fields.RULES_POLICY, {'devices': [{'any_of': [{'vendor_id': '10de'}]}]}),
    'networks': (requested_fields.RULES_POLICY, {'networks': {'physical': ['physnet1']}}),
    'tree.groups': (
        requested_fields.RULES_POLICY,
        {'tree': {'groups': {'A': {'resources': {'VCPU': 1}, 'required_traits': ['CUSTOM_FAST']}}}},
    ),
    'tree.root_required': (
        requested_fields.RULES_POLICY,
        {'tree': {'root_required': ['CUSTOM_FAST']}},
    ),
    **{
        f'tree.devices[0].{name}': (
            requested_fields.RULES_POLICY,
            {'tree': {'devices': [{'resource_class': 'VCPU', name: ['CUSTOM_FAST']}]}},
        )
        for name in ('required_traits', 'forbidden_traits')
    },
    'force_hosts': (requested_fields.TRUSTED_POLICY, {'force_hosts': HOST_NAMES}),
    'force_nodes': (requested_fields.TRUSTED_POLICY, {'force_nodes': HOST_NAMES}),
    'destination': (requested_fields.TRUSTED_POLICY, {'destination': {'host': 'cmp-1'}}),
    'group.hosts': (
        requested_fields.TRUSTED_POLICY,
        {'group': {'uuid': UNKNOWN, 'policy': 'affinity', 'hosts': HOST_NAMES}},
    ),
    'group.members': (
        requested_fields.TRUSTED_POLICY,
        {'group': {'uuid': UNKNOWN, 'policy': 'affinity', 'members': [fixed(50_000)]}},
    ),
    'move_id': (requested_fields.TRUSTED_POLICY, {'move_id': UNKNOWN}),
    'purpose': (requested_fields.TRUSTED_POLICY, {'purpose': 'evacuate'}),
}


@pytest.mark.finding('H5', 'a member says what is on a list; the rest is refused by its name')
def test_what_is_not_on_the_list_is_refused_and_named(claiming):
    before = claiming.claims()
    for field, (rule, spec) in BEYOND.items():
        for dry_run in (False, True):
            refused = claiming.ask(dry_run, **spec)
            assert refused.status_code == 403, (field, refused.text)
            assert _error(refused)['details']['field'] == f'body.spec.{field}'
            assert rule in _error(refused)['detail']
            assert 'asks for role:admin or role:service' in _error(refused)['detail']
            assert 'cmp-' not in refused.text
        body = {**claiming.body(**spec), 'dry_run': True}
        allowed = claiming.service.post('/v1/requests', json=body, headers=NEWEST)
        assert allowed.status_code != 403, field
    assert claiming.claims() == before


@pytest.mark.finding('H5', 'a member says what is on a list; the rest is refused by its name')
def test_what_is_on_the_list_is_placed(claiming):
    own = claiming.body()
    assert claiming.red.post('/v1/requests', json=own).status_code == 201
    group = {'uuid': fixed(90), 'policy': 'soft-anti-affinity'}
    assert claiming.red.post('/v1/server-groups', json=group).status_code == 201
    placed = claiming.ask(
        availability_zone='az1',
        same_host=own['consumers'],
        hints={'group': [group['uuid']], 'rules': []},
        flavor={'name': 'm1.small'},
        image={'uuid': UNKNOWN, 'disk_format': 'qcow2'},
        volume_backed=True,
    )
    assert placed.status_code == 201, placed.text
    first, second = [c for c in claiming.claims() if c.project_id == 'red']
    assert first.provider_id == second.provider_id


def _paths(tp: type, path: str) -> Iterator[str]:
    for field in msgspec.structs.fields(tp):
        inner = f'{path}.{field.name}'
        yield inner
        kinds = [field.type, *getattr(field.type, '__args__', ())]
        kinds += [inside for kind in kinds[1:] for inside in getattr(kind, '__args__', ())]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                yield from _paths(kind, inner)


@pytest.mark.finding('H5', 'a member says what is on a list; the rest is refused by its name')
def test_a_field_that_nobody_thought_of_needs_a_rule():
    class Tomorrow(SelectDestinations, frozen=True, kw_only=True):
        wish: str = ''

    body = {'request_id': UNKNOWN, 'consumers': [UNKNOWN], 'spec': {'resources': {'VCPU': 1}}}
    requested = msgspec.convert({**body, 'dry_run': True, 'wish': 'cmp-1'}, Tomorrow)
    assert list(requested_fields.protected_fields(requested)) == [
        ('body.wish', requested_fields.RULES_POLICY, 'nothing')
    ]
    # Nothing on the lists is a name that there is not.
    paths = set(_paths(SelectDestinations, 'body'))
    listed = (
        requested_fields.MEMBER_FIELDS
        | requested_fields.NESTED_FIELDS
        | requested_fields.TRUSTED_FIELDS
    )
    assert {path for path in listed if '.hints.' not in path} <= paths


# -- whose guests ------------------------------------------------------------------------------
@pytest.mark.finding('H5', "another project's guest is answered like one that there is not")
@pytest.mark.parametrize('dry_run', [False, True], ids=['', 'dry'])
def test_no_question_tells_of_the_guests_of_others(claiming, dry_run):
    forms = (
        lambda guest: {'same_host': [guest]},
        lambda guest: {'different_host': [guest]},
        lambda guest: {'hints': {'same_host': [guest]}},
        lambda guest: {'hints': {'different_host': [guest]}},
    )
    for form in forms:
        of_blue, of_nobody = (
            claiming.ask(dry_run, **form(guest)) for guest in (claiming.guest, UNKNOWN)
        )
        assert _same(of_blue, claiming.guest) == _same(of_nobody, UNKNOWN)
        assert of_blue.status_code == 404
        assert '_host: consumer' in _error(of_blue)['detail']
    for policy_said in ({}, {'policy': 'anti-affinity'}):
        groups = (claiming.group, UNKNOWN)
        of_blue, of_nobody = (
            claiming.ask(dry_run, group={'uuid': group, **policy_said}) for group in groups
        )
        assert _same(of_blue, claiming.group) == _same(of_nobody, UNKNOWN)
        assert of_blue.status_code == 404


@pytest.mark.finding('H5', "another project's guest is answered like one that there is not")
@pytest.mark.parametrize('resources', [{'VCPU': 1}, {'VCPU': 500}], ids=['room', 'none'])
def test_who_may_only_try_finds_no_guest_of_others_by_its_uuid(tenants, resources):
    """Who may claim is refused the claim of it, and is told so in the trial."""
    answers = []
    for consumer in (tenants.guest, UNKNOWN):
        body = {**tenants.body(resources=resources), 'consumers': [consumer], 'dry_run': True}
        answer = tenants.red.post('/v1/requests', json={**body, 'request_id': fixed(99)})
        if answer.is_success:
            document = answer.json()
            text = str(
                (
                    document['answer'],
                    document['explanation']['reason'],
                    document['explanation']['outcome'],
                )
            )
            answers.append((200, text.replace(consumer, 'IT')))
        else:
            answers.append(_same(answer, consumer))
    assert answers[0] == answers[1]
    assert answers[0][0] == (200 if resources['VCPU'] == 1 else 409)


@pytest.mark.finding('H5', "another project's decision is answered like one that there is not")
def test_a_page_after_a_decision_of_others_is_one_after_none(tenants):
    theirs = tenants.service.get('/v1/decisions', params={'limit': 1}).json()['decisions'][0]['id']
    of_blue, of_nobody = (
        tenants.red.get('/v1/decisions', params={'marker': marker}) for marker in (theirs, UNKNOWN)
    )
    assert _same(of_blue, theirs) == _same(of_nobody, UNKNOWN)
    assert of_blue.status_code == 400
    assert tenants.service.get('/v1/decisions', params={'marker': theirs}).status_code == 200


@pytest.mark.finding('H5', 'no answer names a host, or what is of another project')
@pytest.mark.parametrize('theirs', ['affinity', 'soft-affinity'])
def test_a_group_that_another_project_makes_meanwhile_is_not_shown(tenants, monkeypatch, theirs):
    store, body = tenants.site.world.store, {'uuid': fixed(93), 'policy': 'affinity'}
    save = store.groups.save_group

    def second(group: Group) -> Group:
        save(Group(uuid=fixed(93), policy=theirs, name='of blue', project_id=BLUE['project_id']))
        return save(group)

    monkeypatch.setattr(store.groups, 'save_group', second)
    refused = tenants.red.post('/v1/server-groups', json=body)
    assert refused.status_code == 400
    assert _error(refused)['detail'] == f'server group {fixed(93)} cannot be created'


@pytest.mark.finding('H5', "another project's guest is answered like one that there is not")
def test_members_of_groups_are_own_ones_where_a_site_lets_members_name_them(tmp_path):
    rules = MEMBERS_CLAIM + '"gantt:requests:create:trusted": "role:member"\n'
    rules += '"gantt:requests:create": "rule:project_member_api or rule:service_api"\n'
    member_tenants = _tenants(tmp_path, rules.replace('"role:member"', '"rule:project_member_api"'))
    own = {'uuid': fixed(91), 'policy': 'affinity'}
    assert member_tenants.red.post('/v1/server-groups', json=own).status_code == 201
    answers = [
        _same(member_tenants.ask(group={**own, 'members': [guest]}), guest)
        for guest in (member_tenants.guest, UNKNOWN)
    ]
    assert answers[0] == answers[1]
    assert answers[0][0] == 404


def _same(answer: httpx.Response, said: str) -> tuple[int, str]:
    """An answer without what makes every one another: ids, and what was asked about."""
    text = answer.text.replace(said, 'IT')
    for error in answer.json().get('errors', ()):
        text = text.replace(error['request_id'], 'REQUEST')
    return answer.status_code, text


# -- what is told ------------------------------------------------------------------------------
@pytest.mark.finding('H5', 'what hosts and operators write is not for tenants')
def test_the_words_of_hosts_and_operators_are_general_for_a_member(claiming):
    site, bodies = claiming.site, [claiming.body() for _ in range(3)]
    for body in bodies:
        assert claiming.red.post('/v1/requests', json=body).status_code == 201
    by_request = {claim.request_id: claim for claim in claiming.claims()}
    refused, released, expired = (by_request[body['request_id']] for body in bodies)
    row = next(host for host in site.insights.table().hosts if host.id == refused.provider_id)
    site.world.store.claims.refuse_claims(
        ClaimUpdate(
            name=row.name, epoch=row.epoch, sequence=10_000, claim_ids=[refused.id], reason=OF_HOST
        )
    )
    site.world.store.claims.force_release(released.id, OF_OPERATOR)
    site.pass_seconds(4000)
    reasons = {}
    for claim in (refused, released, expired):
        shown = claiming.red.get(f'/v1/requests/{claim.request_id}').json()['claims'][0]
        reasons[shown['state']] = shown['reason'], shown['host']
        whole = claiming.service.get(f'/v1/requests/{claim.request_id}').json()['claims'][0]
        assert whole['host'] == claim.host
        if claim is not expired:
            assert whole['reason'] in (OF_HOST, OF_OPERATOR)
    assert reasons == {
        'refused': ('refused by its host', ''),
        'released': ('released', ''),
        'expired': ('not confirmed before its lease ran out', ''),
    }


@pytest.mark.finding('H5', 'what hosts and operators write is not for tenants')
def test_a_silence_of_hosts_names_none_of_them(claiming):
    site = claiming.site
    site.silent = set(site.hosts)
    site.world.turn(1000)
    for dry_run in (False, True):
        unknown = claiming.ask(dry_run)
        assert unknown.status_code == 503
        assert _error(unknown)['code'] == 'gantt.hosts_unknown'
        assert 'it is not known just now whether there is room' in _error(unknown)['detail']
        assert not [word for word in claiming.words() if word in unknown.text]
        assert '6 hosts' not in unknown.text


@pytest.mark.finding('H5', 'a dry run tells a member what its request would be told')
def test_a_dry_run_is_of_the_project_that_asks(claiming):
    # cmp-4 is kept for blue, and has room for what no other host has room for.
    for host in ('cmp-1', 'cmp-2', 'cmp-6'):
        claiming.site.world.store.hosts.disable_host(host, OF_OPERATOR, 'ann-x4711')
    claiming.site.world.turn()
    big = {'resources': {'VCPU': 8}}
    for dry_run in (True, False):
        refused = claiming.ask(dry_run, **big)
        assert refused.status_code == 409, refused.text
        assert _error(refused)['code'] == 'gantt.no_valid_host'
        assert not [word for word in claiming.words() if word in refused.text]
    body = {**claiming.body(**big, **BLUE), 'dry_run': True}
    assert claiming.service.post('/v1/requests', json=body).status_code == 200


# -- anything ----------------------------------------------------------------------------------
_NAMES = st.sampled_from(('cmp-1', 'cmp-5', 'gold-x4711', 'CUSTOM_FAST', 'az1', 'nowhere'))
_GUESTS = st.sampled_from((fixed(50_000), fixed(51_000), fixed(52_000), UNKNOWN))
_GROUPS = st.sampled_from((fixed(78), fixed(90), UNKNOWN))
_POLICIES = st.sampled_from(('affinity', 'anti-affinity', 'soft-affinity', 'soft-anti-affinity'))
_TEXTS = st.sampled_from(
    (
        'name == "cmp-1"',
        'free.VCPU >= 4',
        '["=", "$host", "cmp-1"]',
        '>= 1',
        'true',
        '10.0.0.1',
        '[',
    )
)
_KEYS = st.sampled_from(
    (
        'rules',
        'query',
        'location',
        'build_near_host_ip',
        'rule:a',
        'capabilities:x',
        'img_hv_type',
        'trait:CUSTOM_FAST',
        'hw:numa_nodes',
        'hw_vm_mode',
    )
)


def _few(strategy: Any) -> Any:
    return st.lists(strategy, max_size=2, unique=True)


#: Said by nearly all, so that most requests get to the hosts; and what is refused.
_PLAIN = {
    'availability_zone': st.sampled_from(('az1', 'az2', 'nowhere')),
    'flavor': st.fixed_dictionaries({'name': st.sampled_from(('small', 'large'))}),
    'image': st.fixed_dictionaries({'uuid': st.just(UNKNOWN)}),
    'same_host': _few(_GUESTS),
    'different_host': _few(_GUESTS),
    'group': st.fixed_dictionaries({'uuid': _GROUPS}, optional={'policy': _POLICIES}),
    'purpose': st.sampled_from(('create', 'create', 'resize', 'unshelve', 'rebuild')),
    'volume_backed': st.booleans(),
}
_REST = {
    'project_id': st.sampled_from(('red', BLUE['project_id'])),
    'required_traits': _few(_NAMES),
    'any_traits': st.lists(_few(_NAMES), max_size=2),
    'member_of': st.lists(_few(_NAMES), max_size=2),
    'forbidden_aggregates': _few(_NAMES),
    'ignore_hosts': _few(_NAMES),
    'force_hosts': _few(_NAMES),
    'destination': st.fixed_dictionaries({'host': _NAMES}),
    'group': st.fixed_dictionaries(
        {'uuid': _GROUPS, 'policy': _POLICIES, 'members': _few(_GUESTS), 'hosts': _few(_NAMES)}
    ),
    'hints': st.dictionaries(_KEYS, st.lists(_TEXTS, max_size=1), max_size=2)
    | st.fixed_dictionaries({'same_host': _few(_GUESTS)})
    | st.fixed_dictionaries({'different_host': _few(_GUESTS)})
    | st.fixed_dictionaries({'group': st.lists(_GROUPS, min_size=1, max_size=1)}),
    'flavor': st.fixed_dictionaries({'extra_specs': st.dictionaries(_KEYS, _TEXTS, max_size=2)}),
    'image': st.fixed_dictionaries({'properties': st.dictionaries(_KEYS, _TEXTS, max_size=2)}),
    'devices': st.just([{'any_of': [{}]}]),
    'networks': st.fixed_dictionaries({'physical': _few(_NAMES)}),
    'tree': st.fixed_dictionaries({'root_required': st.lists(_NAMES, min_size=1, max_size=2)}),
    'purpose': st.sampled_from(('migrate', 'evacuate')),
}
_RESOURCES = st.fixed_dictionaries(
    {'VCPU': st.sampled_from((1, 2, 8, 16, 500))},
    optional={'MEMORY_MB': st.sampled_from((1, 4096, 10**6)), 'CUSTOM_NONE': st.just(1)},
)


@st.composite
def _specs(draw: Any) -> dict[str, Any]:
    keys = draw(st.lists(st.sampled_from(sorted(_PLAIN)), max_size=3, unique=True))
    spec = {key: draw(_PLAIN[key]) for key in keys}
    if draw(st.integers(0, 3)) == 0:
        more = draw(st.sampled_from(sorted(_REST)))
        spec[more] = draw(_REST[more])
    return {'resources': draw(_RESOURCES), **spec}


class _Member:
    """A member who asks, and who looks at everything that it may afterwards."""

    def __init__(self, tenants: Tenants) -> None:
        self.of = tenants
        self.site = tenants.site
        self.kinds: dict[int, int] = {}
        own = {**tenants.body(), 'consumers': [fixed(52_000)]}
        assert tenants.red.post('/v1/requests', json=own).status_code == 201
        group = {'uuid': fixed(90), 'policy': 'soft-anti-affinity'}
        assert tenants.red.post('/v1/server-groups', json=group).status_code == 201
        self.secrets = tenants.words()

    def asks(self, spec: dict[str, Any], consumer: str | None, dry_run: bool) -> None:
        """One request, then what is kept of it."""
        body = {**self.of.body(), 'spec': spec, 'dry_run': dry_run}
        if consumer is not None:
            body['consumers'].append(consumer)
        text = msgspec.json.encode(body).decode()
        trial = self.of.red.post('/v1/requests', json={**body, 'dry_run': True})
        answer = self.of.red.post('/v1/requests', json=body)
        assert _outcome(trial) == _outcome(answer), text
        self.read(answer, text)
        self.kinds[answer.status_code] = self.kinds.get(answer.status_code, 0) + 1
        self.as_of_nobody(body, answer)
        if answer.is_success and not dry_run:
            self.look(body['request_id'], text)
            self.read(self.of.red.delete(f'/v1/requests/{body["request_id"]}'), text)
        elif answer.status_code == 409 and not dry_run:
            self.site.world.turn()
            self.look(_error(answer)['details'].get('decision_id', ''), text)

    def look(self, name: str, said: str) -> None:
        paths = (
            f'/v1/requests/{name}',
            f'/v1/decisions/{name}?explain=true',
            f'/v1/decisions/{name}?format=text',
            f'/v1/decisions?consumer={fixed(50_000)}',
            '/v1/decisions?limit=5',
            '/v1/server-groups',
            f'/v1/requests/{fixed(50)}',
        )
        for path in paths:
            self.read(self.of.red.get(path), said + path)

    def read(self, answer: httpx.Response, said: str) -> None:
        """Nothing is in an answer that is another's, unless the member said it itself."""
        assert answer.status_code not in (500, 502), answer.text
        leaked = [w for w in self.secrets if w in answer.text and w not in said]
        assert not leaked, (said, answer.text)

    def as_of_nobody(self, body: dict[str, Any], answer: httpx.Response) -> None:
        """Whom of another project it asks about does not matter: nobody is answered alike."""
        text = msgspec.json.encode({**body, 'consumers': body['consumers'][:1]}).decode()
        theirs = next((named for named in (self.of.guest, self.of.group) if named in text), None)
        if theirs is None or not body['dry_run'] or len(body['consumers']) > 1:
            return
        nobody = str(uuid.uuid4())
        other = msgspec.json.decode(text.replace(theirs, nobody))
        again = self.of.red.post('/v1/requests', json=other)
        if not (answer.is_success and again.is_success):
            assert _same(answer, theirs) == _same(again, nobody), text


def _outcome(answer: httpx.Response) -> tuple[int, str]:
    return (0, '') if answer.is_success else (answer.status_code, _error(answer)['code'])


def _anything(tenants: Tenants, examples: int) -> dict[int, int]:
    member, count = _Member(tenants), itertools.count()
    consumers = st.sampled_from((None, None, None, fixed(50_000), fixed(52_000)))

    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
    )
    @hypothesis.given(_specs(), consumers, st.booleans())
    def run(spec: dict[str, Any], consumer: str | None, dry_run: bool) -> None:
        if next(count) % 50 == 49:  # its hosts go on to report
            tenants.site.pass_seconds(1)
        member.asks(spec, consumer, dry_run)

    run()
    return member.kinds


@pytest.mark.finding('H5', 'no answer names a host, or what is of another project')
def test_nothing_that_a_member_asks_names_a_host_or_another_project(claiming):
    kinds = _anything(claiming, 200)
    # It has seen places, refusals for want of room, of its words, and of what is not its own.
    assert {200, 403, 404, 409} <= kinds.keys(), kinds


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.finding('H5', 'no answer names a host, or what is of another project')
def test_nothing_that_a_member_asks_names_a_host_or_another_project_for_long(claiming):
    kinds = _anything(claiming, 10_000)
    assert all(kinds.get(status, 0) >= 100 for status in (200, 403, 404, 409)), kinds
