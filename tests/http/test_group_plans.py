# SPDX-License-Identifier: Apache-2.0
"""Plans of groups in lists: a page is bounded whatever is asked for."""

import concurrent.futures
import time

import msgspec
import pytest
import sqlalchemy as sa

from gantt.core.filters.rules import RulesFilter
from gantt.core.messages.request import Destination
from gantt.groups import http as group_plans
from gantt.groups.model import group_description
from gantt.http import request_access, requested_fields
from tests.http.callers import as_caller
from tests.http.site import Site, fixed
from tests.planner import (
    a_description,
    a_member,
    a_plan_request,
    a_planner,
    before_commit,
    places,
)
from tests.plans import created
from tests.world import a_request


@pytest.mark.parametrize(
    ('query', 'bound'), [('limit=1000', 'PLANS_MAX'), ('limit=1000&states=true', 'STATES_MAX')]
)
def test_a_page_of_plans_is_bounded_and_leads_to_the_next(monkeypatch, query, bound):
    site = Site()
    groups = sorted(
        site.plans.place_group(a_plan_request(a_description(a_member('web')))).group
        for _ in range(3)
    )
    monkeypatch.setattr(group_plans, bound, 2)
    caller = as_caller(site, 'admin')
    first = caller.get(f'/v1/group-plans?{query}').json()
    assert [plan['group'] for plan in first['group_plans']] == groups[:2]
    assert first['next_marker'] == groups[1]
    rest = caller.get(f'/v1/group-plans?{query}&marker={groups[1]}').json()
    assert [plan['group'] for plan in rest['group_plans']] == groups[2:]
    assert rest['next_marker'] is None


def plan_at(caller, level, **body):
    """Ask for a plan with a policy at a level, dry."""
    policy = {'policy': 'affinity', 'level': level}
    group = a_description(a_member('web'), policies=[policy])
    body = {'request_id': fixed(5), 'group': group, 'dry_run': True, **body}
    return caller.post('/v1/group-plans', json=body)


@pytest.mark.parametrize('level', ['cell', 'metadata.secret'])
def test_a_member_of_a_project_learns_nothing_of_hosts_by_levels_of_a_plan(level):
    site = Site()
    with as_caller(site, 'member', 'reader') as member:
        refused = plan_at(member, level)
        shown_to_admin = plan_at(member, 'zone')
    with as_caller(site, 'admin') as admin:
        allowed = plan_at(admin, level)
    assert refused.status_code == 403, refused.text
    assert 'body.group.policies[0].level: expected one of' in refused.text
    # They went on to whoever plans, and no host says its zone by that.
    assert (shown_to_admin.status_code, allowed.status_code) == (200, 200), (
        shown_to_admin.text,
        allowed.text,
    )


def test_who_may_use_rules_names_levels_of_facts_that_these_may_be_about(monkeypatch):
    site = Site()
    rules = next(
        host_filter
        for host_filter in site.insights.pipeline.filters
        if isinstance(host_filter, RulesFilter)
    )
    monkeypatch.setattr(rules, 'user_facts', ['metadata'])
    monkeypatch.setattr(
        request_access, 'RULES_POLICY', 'gantt:group_plans:create'
    )  # as of a site's file
    with as_caller(site, 'member', 'reader') as member:
        hidden, shown = plan_at(member, 'cell'), plan_at(member, 'metadata.rack')
    with as_caller(site, 'admin') as admin:
        operator = plan_at(admin, 'cell')
    assert hidden.status_code == 403, hidden.text
    assert 'body.group.policies[0].level: policies of users may not be about cell' in hidden.text
    assert (shown.status_code, operator.status_code) == (200, 200), (shown.text, operator.text)


def plan_of(number, count=2, vcpu=2, **body):
    group = a_description(a_member('web', count, vcpu=vcpu), uuid=fixed(number))
    return {'request_id': fixed(number), 'group': group, **body}


@pytest.fixture
def may_claim(monkeypatch):
    """Members of projects may claim, as a file of policies of a site can say."""
    monkeypatch.setattr(requested_fields, 'CLAIM_POLICY', 'gantt:group_plans:create')


def test_who_may_not_claim_holds_no_places():
    site = Site()
    with as_caller(site, 'member', 'reader') as member, as_caller(site, 'admin') as admin:
        held = member.post('/v1/group-plans', json=plan_of(1))
        tried = member.post('/v1/group-plans', json=plan_of(1, dry_run=True))
        response = admin.post('/v1/group-plans', json=plan_of(1, project_id='red'))
        path = f'/v1/group-plans/{fixed(1)}'
        changed = member.put(path, json=plan_of(2) | {'group': plan_of(1, 3)['group']})
        longer = member.put(f'{path}/lease', json={'seconds': 60})
        given_back = member.delete(path)
    for refused in (held, changed, longer):
        assert refused.status_code == 403, refused.text
        assert 'body.dry_run: expected true of you' in refused.text
    assert tried.status_code == 200, tried.text
    assert response.status_code == 201, response.text
    assert given_back.status_code == 200, given_back.text
    assert site.world.store.claims.list_claims(state='reserved') == []


def test_no_place_is_held_longer_than_the_longest_lease_without_a_create():
    site = Site()
    most = site.world.scheduler.settings.plan_lease_seconds_max
    with as_caller(site, 'admin') as admin:
        assert admin.post('/v1/group-plans', json=plan_of(1)).status_code == 201
        path = f'/v1/group-plans/{fixed(1)}/lease'
        site.world.turn(2000)
        held = admin.put(path, json={'seconds': int(most)}).json()
        assert f'held for {most - 2000:.0f} s' in held['message']
        site.world.turn(most - 2000 - 100)
        again = admin.put(path, json={'seconds': 3600}).json()
        assert 'held for 100 s' in again['message']
        site.world.turn(150)
    assert not [claim for claim in site.world.store.claims.list_claims(limit=10) if claim.is_live]


def test_what_races_were_lost_on_is_told_to_who_may_know_hosts_alone(may_claim):
    site, filled = Site(), []

    def fill(batch):
        """Others take the room of the first place that is committed."""
        if not filled:
            filled.append(batch[0].claims[0].claim.host)
            for _ in range(2):
                request = a_request(vcpu=5, ram=256)
                there = Destination(hosts=filled)
                spec = msgspec.structs.replace(request.spec, destination=there)
                site.world.select(msgspec.structs.replace(request, spec=spec))

    site.plans.planner = a_planner(site.world, store=before_commit(site.world.store, fill))
    with as_caller(site, 'member', 'reader') as member, as_caller(site, 'admin') as admin:
        response = member.post('/v1/group-plans', json=plan_of(1, vcpu=8, budget_ms=30_000))
        shown = member.get(f'/v1/group-plans/{fixed(1)}')
        for_admin = admin.get(f'/v1/group-plans/{fixed(1)}')
    assert response.status_code == 201, response.text
    assert filled[0] in for_admin.json()['decided']['conflicts'][0]
    for answer in (response, shown):
        assert 'cmp-' not in answer.text
    assert shown.json()['decided']['attempts'] == 2


def test_a_refusal_after_lost_races_names_no_host_to_who_may_not_know(may_claim):
    site = Site()

    def fill(batch):
        for name in {draft.claim.host for draft in batch[0].claims if batch[0].claims}:
            request = a_request(vcpu=12, ram=256)
            spec = msgspec.structs.replace(request.spec, destination=Destination(hosts=[name]))
            site.world.select(msgspec.structs.replace(request, spec=spec))

    site.plans.planner = a_planner(site.world, store=before_commit(site.world.store, fill))
    with as_caller(site, 'member', 'reader') as member:
        refused = member.post('/v1/group-plans', json=plan_of(1, 1, 12, budget_ms=30_000))
    assert refused.status_code in (409, 503), refused.text
    assert 'cmp-' not in refused.text


def test_a_description_costs_one_read_however_many_specs_it_has():
    site = Site()
    other = site.place(1).selections[0][0].consumer  # of nobody's project

    def ask(members, near=None):
        count = [0]
        listened = (site.world.store.database.engine, 'before_cursor_execute')

        def counted(*_):
            count[0] += 1

        described = [
            a_member(f'm{n}', vcpu=n + 1, spec={'different_host': [near]} if near else {})
            for n in range(members)
        ]
        body = {'request_id': fixed(5), 'group': a_description(*described), 'dry_run': True}
        with as_caller(site, 'member', 'reader') as member:
            sa.event.listen(*listened, counted)
            response = member.post('/v1/group-plans', json=body)
            sa.event.remove(*listened, counted)
        return response, count[0]

    few, most = ask(1)[1], ask(100)[1]
    assert most <= few + 1
    refused, reads = ask(100, near=other)
    assert refused.status_code == 404, refused.text
    assert 'body.group.members[0].spec.different_host' in refused.text
    assert reads <= few + 2


def scaled(caller, number, members, **body):
    body = {'request_id': fixed(90), 'members': members, **body}
    return caller.post(f'/v1/group-plans/{fixed(number)}/scale', json=body)


def web_names(caller, number):
    plan = caller.get(f'/v1/group-plans/{fixed(number)}').json()
    return sorted(m['name'] for m in plan['members'] if m['state'] == 'planned')


def test_a_group_grows_by_a_number_once_however_often_it_is_asked():
    site = Site()
    with as_caller(site, 'admin') as admin:
        assert admin.post('/v1/group-plans', json=plan_of(1)).status_code == 201
        dry = scaled(admin, 1, {'web': '+2'}, dry_run=True)
        assert web_names(admin, 1) == ['web-1', 'web-2']
        first, again = scaled(admin, 1, {'web': '+2'}), scaled(admin, 1, {'web': '+2'})
        assert [r.status_code for r in (dry, first, again)] == [200] * 3, (first.text, again.text)
        assert [m['name'] for m in dry.json()['plan']['members']] == ['web-3', 'web-4']
        assert again.json()['plan'] == first.json()['plan']
        assert web_names(admin, 1) == ['web-1', 'web-2', 'web-3', 'web-4']
        late = scaled(admin, 1, {'web': '+1'}, request_id=fixed(91), revision=1)
        assert late.status_code == 400 and 'request.revision: expected 2' in late.text, late.text
        more = scaled(admin, 1, {'web': 3}, request_id=fixed(92))
        assert more.json()['released'] == ['web-4'], more.text
        # The first request again, after another one: it is not done twice.
        repeated = scaled(admin, 1, {'web': '+2'})
        assert repeated.status_code == 200, repeated.text
        assert repeated.json()['plan'] == first.json()['plan']
        other = scaled(admin, 1, {'web': '-2'})
        assert other.status_code == 409 and 'used before with another body' in other.text
        assert web_names(admin, 1) == ['web-1', 'web-2', 'web-3']


def test_a_group_that_cannot_grow_stays_as_it_is():
    site = Site()
    with as_caller(site, 'admin') as admin:
        assert admin.post('/v1/group-plans', json=plan_of(1)).status_code == 201
        refused = scaled(admin, 1, {'web': '+40'})
        assert refused.status_code == 409, refused.text
        assert web_names(admin, 1) == ['web-1', 'web-2']
        some = scaled(admin, 1, {'web': [2, 40]}, request_id=fixed(91))
        assert some.status_code == 200, some.text
        assert 2 < len(web_names(admin, 1)) < 40
        by = scaled(admin, 1, {'web': '-1'}, request_id=fixed(92))
        assert 'body.members.web: expected [least, most], as it has [2, 40]' in by.text


@pytest.mark.parametrize(
    ('members', 'problem'),
    [
        ({'wbe': 3}, 'body.members.wbe: expected a member of the group: one of web'),
        ({'web': 'many'}, 'body.members.web: expected a number, [least, most], or a difference'),
        ({'web': '-2'}, 'body.members.web: expected to leave 1 at least of 2'),
        ({'web': 0}, 'body.members.web: '),
        ({'web': [5, 2]}, 'body.members.web: expected [least, most] with least <= most'),
        ({'web': 100_000}, 'body.members.web: '),
        ({}, 'members'),
    ],
)
def test_a_wrong_number_of_members_is_named(members, problem):
    site = Site()
    with as_caller(site, 'admin') as admin:
        assert admin.post('/v1/group-plans', json=plan_of(1)).status_code == 201
        refused = scaled(admin, 1, members)
        assert refused.status_code == 400, refused.text
        assert problem in refused.text
        assert web_names(admin, 1) == ['web-1', 'web-2']


def test_who_was_created_is_counted_by_the_name_of_the_member():
    site = Site()
    with as_caller(site, 'admin') as admin:
        assert admin.post('/v1/group-plans', json=plan_of(1)).status_code == 201
        for name in ('web-1', 'web-2'):
            created(site.world.store, places(site.world, fixed(1))[name])
        refused = scaled(admin, 1, {'web': 1})
    assert refused.status_code == 400
    assert 'body.members.web: expected at least 2, as many as were created; got 1' in refused.text


def test_nobody_scales_a_group_of_another_project(may_claim):
    site = Site()
    with as_caller(site, 'member', 'reader') as member, as_caller(site, 'admin') as admin:
        assert admin.post('/v1/group-plans', json=plan_of(1, project_id='blue')).status_code == 201
        refused = scaled(member, 1, {'web': 3})
        nobody = scaled(admin, 2, {'web': 3})
    assert (refused.status_code, nobody.status_code) == (404, 404), refused.text


def named(name='shop', count=2, **fields):
    return a_description(a_member('web', count), name=name, **fields)


def test_a_group_is_found_by_its_name_in_its_project_alone(may_claim):
    site = Site()
    with as_caller(site, 'member', 'reader') as member, as_caller(site, 'admin') as admin:
        body = {'request_id': fixed(1), 'group': named()}
        planned = member.post('/v1/group-plans', json=body)
        assert planned.status_code == 201, planned.text
        elsewhere = {'request_id': fixed(2), 'group': named(), 'project_id': 'blue'}
        assert admin.post('/v1/group-plans', json=elsewhere).status_code == 201
        assert admin.get('/v1/group-plans/shop').status_code == 404  # that of no project
        shown = member.get('/v1/group-plans/shop')
        assert shown.json()['group'] == planned.json()['group']
        assert shown.json()['description']['name'] == 'shop'
        assert [p['name'] for p in member.get('/v1/group-plans').json()['group_plans']] == ['shop']
        more = member.post(
            '/v1/group-plans/shop/scale', json={'request_id': fixed(3), 'members': {'web': '+1'}}
        )
        assert more.json()['stayed'] == ['web-1', 'web-2'], more.text
        assert member.put('/v1/group-plans/shop/lease', json={'seconds': 60}).status_code == 200
        again = member.post('/v1/group-plans', json={**body, 'request_id': fixed(4)})
        assert again.status_code == 400 and 'group shop has a plan already' in again.text
        gone = member.get('/v1/group-plans/nothing')
        assert gone.status_code == 404 and 'nothing' in gone.text
        assert member.delete('/v1/group-plans/shop').status_code == 200
        assert member.get('/v1/group-plans/shop').status_code == 404


@pytest.mark.parametrize(
    ('group', 'problem'),
    [
        (named(uuid=fixed(7)), 'group.name: expected none beside a uuid'),
        (named(name=fixed(7)), 'group.name: expected a name that is no uuid'),
        (named(name=''), 'group.name'),
        (named(name='a\nb'), 'group.name'),
        (named(name='a/b'), 'group.name: expected letters, digits'),
        (named(name='..'), 'group.name: expected letters, digits'),
        (named(name=' shop'), 'group.name: expected letters, digits'),
    ],
)
def test_a_name_that_no_group_may_have_is_refused(group, problem):
    with as_caller(Site(), 'admin') as admin:
        refused = admin.post('/v1/group-plans', json={'request_id': fixed(1), 'group': group})
    assert refused.status_code == 400 and problem in refused.text


def test_a_group_keeps_its_name():
    site = Site()
    with as_caller(site, 'admin') as admin:
        body = {'request_id': fixed(1), 'group': named()}
        uuid = admin.post('/v1/group-plans', json=body).json()['group']
        for name in ('store', None):
            group = named(name=name, uuid=uuid)
            refused = admin.put(
                f'/v1/group-plans/{uuid}', json={'request_id': fixed(2), 'group': group}
            )
            assert refused.status_code == 400
            assert 'request.group.name: expected shop, as the group was planned' in refused.text


def test_nobody_takes_the_name_of_another_project(may_claim):
    site = Site()
    theirs = group_description.uuid_of_name('red', 'prod')
    with as_caller(site, 'admin') as admin, as_caller(site, 'member', 'reader') as member:
        group = a_description(a_member('web'), uuid=theirs)
        for dry_run in (True, False):
            body = {'request_id': fixed(1), 'group': group, 'dry_run': dry_run}
            refused = member.post('/v1/group-plans', json=body)
            assert refused.status_code == 400
            assert 'group.uuid: expected no uuid of version 8' in refused.text
        made = admin.post('/v1/server-groups', json={'uuid': theirs, 'policy': 'affinity'})
        assert made.status_code == 400 and 'body.uuid: expected no uuid' in made.text
        spec = {'resources': {'VCPU': 1}, 'group': {'uuid': theirs, 'policy': 'affinity'}}
        body = {'request_id': fixed(2), 'consumers': [fixed(3)], 'spec': spec, 'dry_run': True}
        asked = member.post('/v1/requests', json=body)
        assert asked.status_code == 400
        assert 'body.spec.group.policy: expected none' in asked.text


def test_a_description_that_is_shown_can_be_planned_again(may_claim):
    site = Site()
    with as_caller(site, 'member', 'reader') as member:
        body = {'request_id': fixed(1), 'group': named()}
        assert member.post('/v1/group-plans', json=body).status_code == 201
        shown = member.get('/v1/group-plans/shop').json()['description']
        assert member.delete('/v1/group-plans/shop').status_code == 200
        again = member.post('/v1/group-plans', json={'request_id': fixed(2), 'group': shown})
        assert again.status_code == 201, again.text
        other = {**shown, 'name': 'store'}
        refused = member.post('/v1/group-plans', json={'request_id': fixed(3), 'group': other})
        assert refused.status_code == 400
        assert 'request.group.uuid: expected none or' in refused.text


def test_autoscalers_at_once_each_have_their_member():
    site = Site()
    with as_caller(site, 'admin') as admin:
        assert admin.post('/v1/group-plans', json=plan_of(1)).status_code == 201

        def grown(number):
            """Ask until the planner is not busy, under the same id."""
            for _ in range(200):
                answer = scaled(admin, 1, {'web': '+1'}, request_id=fixed(number))
                if answer.status_code != 503:
                    break
                time.sleep(0.02)
            return answer

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(grown, (91, 92)))
        assert [answer.status_code for answer in answers] == [200] * 2, answers
        assert len(web_names(admin, 1)) == 4
