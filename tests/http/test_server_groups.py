# SPDX-License-Identifier: Apache-2.0
"""Server groups with policies at any level, as they are made and shown, and by whom."""

from typing import Any

import pytest

from tests.http.callers import as_caller, ask
from tests.http.site import Site, fixed

APART = {'policy': 'anti-affinity', 'level': 'host', 'of': 'front'}
SET = {'policies': [APART, 'soft-affinity'], 'subgroups': {'front': ['web', 'db']}}


@pytest.fixture
def site() -> Site:
    return Site()


def create(caller: Any, number: int = 1, **fields: Any) -> Any:
    return caller.post('/v1/server-groups', json={'uuid': fixed(number), **fields})


def test_a_group_with_policies_is_made_and_shown_as_it_is(site: Site) -> None:
    with as_caller(site, 'admin') as admin:
        response = create(admin, **SET, name='web')
        assert response.status_code == 201
        shown = admin.get(f'/v1/server-groups/{fixed(1)}').json()
        assert create(admin, **SET, name='web').status_code == 200
        listed = admin.get('/v1/server-groups').json()['server_groups']
    assert shown['policy'] == 'policies'
    assert shown['policies'][0] == {**shown['policies'][0], **APART}
    assert shown['policies'][1] == 'soft-affinity'
    assert shown['subgroups'] == {'front': ['db', 'web']}
    assert listed == [shown]


def test_it_is_obeyed_by_requests_that_name_their_member(site: Site) -> None:
    with as_caller(site, 'admin') as admin:
        create(admin, **SET)
        hosts = []
        for number, member in enumerate(('web-1', 'db', 'web-2'), 10):
            spec = {'resources': {'VCPU': 1}, 'group': {'uuid': fixed(1), 'member': member}}
            answer = ask(admin, number, spec)
            assert answer.status_code < 300, answer.text
            hosts.append(answer.json()['answer']['selections'][0][0]['host'])
        assert len(set(hosts)) == 3
        spec = {'resources': {'VCPU': 1}, 'group': {'uuid': fixed(1)}}
        assert ask(admin, 20, spec).json()['answer']['selections'][0][0]['host'] in hosts
        members = admin.get(f'/v1/server-groups/{fixed(1)}').json()['members']
    assert len(members) == 4


@pytest.mark.parametrize(
    ('fields', 'detail'),
    [
        ({}, 'body.policy: expected one of policy and policies, got none'),
        ({'policy': 'affinity', **SET}, 'body.policies: expected one of policy and policies'),
        ({'policy': 'affinity', 'subgroups': {'a': ['b']}}, 'body.subgroups: expected none'),
        (
            {'policies': [{'policy': 'affinity', 'level': 'rak'}]},
            "body.policies[0].level: expected a level; got 'rak'; did you mean 'rack'?",
        ),
        (
            {**SET, 'policies': [{'policy': 'affinity', 'of': 'back'}]},
            "body.policies[0].of: there is no subgroup or member 'back'",
        ),
        ({**SET, 'max_per_host': 2}, 'body.max_per_host: only the policy anti-affinity knows it'),
        ({'policies': [{'policy': 'spread'}]}, 'body.policies[0].min_domains: expected one of'),
        ({'policies': ['apart']}, 'body.policies[0]: '),
    ],
)
def test_what_is_wrong_is_named(site: Site, fields: dict[str, Any], detail: str) -> None:
    with as_caller(site, 'admin') as admin:
        answer = create(admin, **fields)
        assert admin.get('/v1/server-groups').json()['server_groups'] == []
    assert answer.status_code == 400
    assert detail in answer.json()['errors'][0]['detail']


def test_another_set_is_refused_and_both_are_told(site: Site) -> None:
    with as_caller(site, 'admin') as admin:
        create(admin, **SET)
        dry = admin.post('/v1/server-groups?dry_run=true', json={'uuid': fixed(1), **SET})
        other = create(admin, policies=['affinity'])
        spec = {
            'resources': {'VCPU': 1},
            'group': {'uuid': fixed(1), 'policies': {'policies': ['affinity']}},
        }
        request = ask(admin, 10, spec)
    assert dry.json()['message'] == f'server group {fixed(1)} is there already'
    for answer in (other, request):
        assert answer.status_code == 400
        problem = answer.json()['errors'][0]['detail']
        assert 'policies anti-affinity of front at host; affinity at host (soft 1)' in problem
        assert 'and policies affinity at host was asked for' in problem


@pytest.mark.parametrize(
    ('policy', 'field'),
    [
        ({'policy': 'affinity', 'level': 'cell'}, 'level'),
        ({'policy': 'near', 'target': {'host': 'cmp-1'}}, 'target.host'),
        ({'policy': 'near', 'target': {'domain': 'az1'}, 'level': 'zone'}, 'target.domain'),
        ({'policy': 'anti-affinity', 'target': {'group': fixed(7)}}, None),
    ],
)
def test_a_member_of_a_project_finds_out_nothing_of_hosts_by_policies(
    site: Site, policy: dict[str, Any], field: str | None
) -> None:
    with as_caller(site, 'admin', project='blue') as other:
        create(other, 7, policy='affinity')
    with as_caller(site, 'member', 'reader') as member:
        assert create(member, **SET).status_code == 201
        answer = create(member, 2, policies=[policy])
        spec = {'resources': {'VCPU': 1}, 'group': {'uuid': fixed(1), 'policies': SET}}
        inline = ask(member, 9, spec, dry_run=True)
    if field is None:
        assert answer.status_code == 404
    else:
        assert answer.status_code == 403
        assert f'body.policies[0].{field}: expected' in answer.text
    assert inline.status_code == 403
    assert 'body.spec.group.policies' in inline.text


@pytest.mark.parametrize('member', [None, 'web'])
def test_a_group_that_is_not_there_is_told_at_all_doors_alike(site: Site, member: str) -> None:
    spec = {'resources': {'VCPU': 1}, 'group': {'uuid': fixed(1), 'member': member}}
    body = {'request_id': fixed(2), 'consumers': [fixed(3)], 'spec': spec}
    with as_caller(site, 'admin', project=None) as admin:
        answers = [
            ask(admin, 10, spec),
            ask(admin, 11, spec, dry_run=True),
            admin.post('/v1/capacity', json={'spec': spec}),
            admin.post('/v1/what-if', json={'request': body, 'hosts': {}}),
        ]
    errors = [answer.json()['errors'][0] for answer in answers]
    assert {answer.status_code for answer in answers} == {400}
    assert {error['code'] for error in errors} == {'gantt.refused'}
    assert len({error['detail'] for error in errors}) == 1 and fixed(1) in errors[0]['detail']


@pytest.mark.parametrize(
    'fields', [{'rules': {'max_server_per_host': 3}}, {'max_server_per_host': 3}]
)
def test_novas_spelling_of_a_rule_is_told_ours(site: Site, fields: Any) -> None:
    with as_caller(site, 'admin') as admin:
        answer = create(admin, policy='anti-affinity', **fields)
    assert answer.status_code == 400
    assert "did you mean 'max_per_host'?" in answer.text
