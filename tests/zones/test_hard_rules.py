# SPDX-License-Identifier: Apache-2.0
"""Hard rules of groups, and where guests live, whoever asks: zones below count as this one does."""

import concurrent.futures
import contextlib

import msgspec
import pytest
import sqlalchemy as sa

from gantt import exceptions, plugin_loader
from gantt.core.messages.report import Running
from gantt.core.messages.request import GroupRef, Policy
from gantt.core.records.decision import Outcome
from gantt.db.schema import models
from gantt.groups.service.planner import GroupPlanner
from gantt.groups.service.settings import PlannerSettings
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.work_queue import WaitingReplies
from gantt.zones.model.messages import ZoneCapacityOf, scoped_id
from tests.builders import new_uuid
from tests.planner import a_description, a_member, a_plan_request, before_commit, place, refused
from tests.world import a_request
from tests.zones.test_protocol import allocate, call, evaluate, tokens_of
from tests.zones.tree import VERSION, Zone, until


@pytest.fixture(params=['sqlite', 'postgresql'])
def top(request, make_store):
    """A zone to be above others, on each database whose locks differ."""
    started = Zone('top', make_store(request.param)).start()
    with contextlib.closing(started.store.database):
        yield started
        started.stop()


def children_of(answer):
    return [selections[0].child for selections in answer.selections]


def made(zone, policy='affinity', uuid=None):
    """The uuid of a group that somebody has made by itself."""
    uuid = uuid or new_uuid()
    response = zone.post('/v1/server-groups', {'uuid': uuid, 'name': 'g', 'policy': policy})
    assert response.status_code in (200, 201), response.text
    return uuid


def by_uuid(group, **fields):
    """A request of a member of a group whose rule it does not name."""
    return a_request(group=GroupRef(uuid=group), **fields)


def at_once(zone, requests):
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as threads:
        return list(threads.map(zone.select, requests))


def submitted(zone, request, **how):
    waiter = WaitingReplies()
    zone.scheduler.submit(request, None, waiter, **how)
    return waiter.wait(request, 20.0)


STAYS = ['no hop is left', 'asked so', 'dry run']


def staying(zone, how, request):
    """The answer to a request that is for hosts of this zone alone."""
    if how == 'asked so':
        return submitted(zone, request, stays=True)
    is_dry = how == 'dry run'
    return submitted(zone, msgspec.structs.replace(request, hops=0, dry_run=is_dry))


# -- the rule is read where the row is opened --------------------------------------------------
def test_the_first_request_of_a_new_group_is_placed(top, zone):
    low = zone('low').hosts(2, 16)
    top.above(low)
    for policy in ('anti-affinity', 'affinity', 'soft-affinity'):
        group = made(top, policy)
        for _ in range(2):
            answer = top.select(by_uuid(group))
            assert answer.outcome is Outcome.PLACED, answer.reason
        group_below = scoped_id('top', group)
        hosts = {
            claim.host
            for claim in low.store.claims.list_claims(state='reserved', limit=9, group=group_below)
        }
        assert len(hosts) == (2 if policy == 'anti-affinity' else 1)


def test_first_members_of_a_new_group_at_once_are_in_one_zone(top, zone):
    top.hosts(1, 64)
    west = zone('west').hosts(1, 128)
    top.above(west)
    for _ in range(3):
        group = made(top)
        answers = at_once(top, [by_uuid(group) for _ in range(8)])
        assert {answer.outcome for answer in answers} == {Outcome.PLACED}, [
            answer.reason for answer in answers
        ]
        assert len({child for answer in answers for child in children_of(answer)}) == 1


def test_callers_of_both_kinds_at_once_are_in_one_zone(top, zone):
    """Half of them know of no zones: theirs may be refused, and nobody's is apart."""
    top.hosts(1, 64)
    west = zone('west').hosts(1, 128)
    top.above(west)
    for _ in range(3):
        group = made(top)
        requests = [by_uuid(group, hops=n % 2) for n in range(8)]
        answers = at_once(top, requests)
        where = {child for answer in answers for child in children_of(answer)}
        assert len(where) == 1, answers
        assert {answer.outcome for answer in answers} <= {Outcome.PLACED, Outcome.REFUSED}
        for answer in answers:
            assert 'zone west' in answer.places or answer.outcome is Outcome.PLACED


def test_who_names_a_group_that_nobody_knows_is_told_so(top, zone):
    top.above(zone('low').hosts(1, 16))
    for dry_run in (False, True):
        answer = top.select(by_uuid(new_uuid(), dry_run=dry_run))
        assert answer.outcome is Outcome.REFUSED
        assert 'was not found' in answer.reason
    assert not top.on_their_way()


def test_a_request_below_is_bound_by_the_rule_that_another_has_brought(top, zone):
    top.above(zone('low').hosts(2, 16))
    group = new_uuid()
    first = a_request(group=GroupRef(uuid=group, policy=Policy.ANTI_AFFINITY))
    assert top.select(first).outcome is Outcome.PLACED
    for hops in (0, 3):
        contrary = a_request(group=GroupRef(uuid=group, policy=Policy.AFFINITY), hops=hops)
        answer = top.select(contrary)
        assert answer.outcome is Outcome.REFUSED, answer
        assert "exists with policy 'anti-affinity'" in answer.reason
    assert top.select(by_uuid(group)).outcome is Outcome.PLACED


def test_a_rule_of_which_nobody_ever_was_is_that_of_whoever_comes_next(top, zone):
    top.above(zone('low').hosts(1, 16))
    group = new_uuid()
    large = a_request(vcpu=99, group=GroupRef(uuid=group, policy=Policy.AFFINITY))
    assert top.select(large).outcome is Outcome.NO_VALID_HOST
    other = a_request(group=GroupRef(uuid=group, policy=Policy.ANTI_AFFINITY))
    answer = top.select(other)
    assert answer.outcome is Outcome.PLACED, answer.reason


def test_a_group_that_is_made_anew_with_the_contrary_rule_is_placed_in_zones_below(zone):
    top, mid, leaf = zone('top'), zone('mid'), zone('leaf').hosts(2, 16)
    mid.above(leaf)
    top.above(mid)
    group = new_uuid()
    group_below = scoped_id('top', group)
    for policy, hosts in (('anti-affinity', 2), ('affinity', 1), ('anti-affinity', 2)):
        made(top, policy, group)
        first, second = by_uuid(group), by_uuid(group)
        for request in (first, second):
            answer = top.select(request)
            assert answer.outcome is Outcome.PLACED, (policy, answer.reason)
        in_leaf = scoped_id('mid', group_below)
        claims = leaf.store.claims.list_claims(state='reserved', limit=9, group=in_leaf)
        assert len({claim.host for claim in claims}) == hosts
        # While somebody of it lives there a copy of an older request changes nothing.
        contrary = Policy.AFFINITY if policy == 'anti-affinity' else Policy.ANTI_AFFINITY
        late = a_request(group=GroupRef(uuid=group_below, policy=contrary))
        select = mid.client.select_destinations
        with pytest.raises(exceptions.Refused, match='exists with policy'):
            select(msgspec.structs.replace(late, parent='top', spec=of_project(late, 'of-top')))
        for request in (first, second):
            top.client.cancel_claims(request.request_id)
        until(lambda: not leaf.live())
        until(lambda: not [row for row in top.store.child_claims.find(group=group) if row.holds])
        assert top.delete(f'/v1/server-groups/{group}').status_code in (200, 204)


def generation_in(zone, group):
    """Of the rule of a group, as it is stored in a zone."""
    columns = models.group_rules.c
    with zone.store.database.engine.connect() as connection:
        query = sa.select(columns.rule_generation).where(columns.uuid == group)
        return connection.execute(query).scalar()


def from_above(zone, group, policy, generation):
    """What a zone answers to an allocation of ``top`` for a member of its group."""
    request = a_request(group=GroupRef(uuid=group, policy=Policy(policy)))
    request = msgspec.structs.replace(request, rule_generation=generation)
    by = {**VERSION, 'X-User-Id': 'identity-of-top'}
    tokens = tokens_of(evaluate(zone, request, by))
    key, answer = allocate(zone, request, tokens, by=by)
    return key, answer


def test_the_rule_of_a_group_goes_down_with_its_generation(zone):
    top, mid, leaf = zone('top'), zone('mid'), zone('leaf').hosts(2, 16)
    mid.above(leaf)
    top.above(mid)
    group = new_uuid()
    in_mid = scoped_id('top', group)
    in_leaf = scoped_id('mid', in_mid)
    generations = []
    for policy in ('anti-affinity', 'affinity'):
        made(top, policy, group)
        request = by_uuid(group)
        answer = top.select(request)
        assert answer.outcome is Outcome.PLACED, answer.reason
        generations.append(generation_in(top, group))
        assert [generation_in(mid, in_mid), generation_in(leaf, in_leaf)] == generations[-1:] * 2
        top.client.cancel_claims(request.request_id)
        until(lambda: not leaf.live())
        until(lambda: not [row for row in top.store.child_claims.find(group=group) if row.holds])
        assert top.delete(f'/v1/server-groups/{group}').is_success
    assert generations[0] < generations[1]


@pytest.mark.parametrize('is_between', [False, True])
def test_a_rule_of_an_older_generation_comes_too_late(zone, is_between):
    low = zone('low')
    leaf = low
    if is_between:
        leaf = zone('leaf')
        low.above(leaf)
    leaf.hosts(3, 16)
    parent = {'identity': 'identity-of-top', 'project_id': 'of-top', 'trusted': True}
    assert low.put('/v1/parents/top', parent).is_success
    group = new_uuid()
    group_below = scoped_id('top', group)

    def takes(policy, generation, ended=True):
        key, answer = from_above(low, group, policy, generation)
        assert answer.status_code == 200, answer.text
        if ended:
            low.client.cancel_claims(scoped_id('top', key))
            until(lambda: not leaf.live())

    takes('anti-affinity', 100)
    takes('anti-affinity', 100)  # it is said with each request
    takes('affinity', 200)
    assert generation_in(low, group_below) == 200
    # Nobody is in it, and what comes late is another one's all the same.
    for late in (100, 200):
        _, answer = from_above(low, group, 'anti-affinity', late)
        assert answer.status_code == 400, answer.text
        assert all(word in answer.text for word in (group_below, ' 200', f' {late} ')), answer.text
        assert (generation_in(low, group_below), leaf.live()) == (200, 0)
    # The same rule is the same one, and one of before does not bring its generation back.
    takes('affinity', 150)
    takes('affinity', 300)
    assert generation_in(low, group_below) == 300
    takes('anti-affinity', 400, ended=False)
    # While somebody is in it, it has no other one; a zone of before says no generation.
    request = a_request(group=GroupRef(uuid=group, policy=Policy.AFFINITY))
    by = {**VERSION, 'X-User-Id': 'identity-of-top'}
    for generation in (500, None):
        newer = msgspec.structs.replace(request, rule_generation=generation)
        answer = evaluate(low, newer, by)
        assert answer.status_code == 400 or not answer.json()['offers'], answer.text
    takes('anti-affinity', None, ended=False)
    assert (generation_in(low, group_below), leaf.live()) == (400, 2)


def test_nobody_but_a_zone_says_the_generation_of_a_rule(zone):
    top = zone('top').hosts(1, 16)
    top.above(zone('low').hosts(1, 16))
    group = new_uuid()
    high = (1 << 63) - 1
    first = a_request(group=GroupRef(uuid=group, policy=Policy.AFFINITY))
    answer = top.select(msgspec.structs.replace(first, rule_generation=high))
    assert answer.outcome is Outcome.PLACED
    assert 0 < generation_in(top, group) < high


def of_project(request, project):
    return msgspec.structs.replace(request.spec, project_id=project)


# -- who stays is bound as well ----------------------------------------------------------------
def test_a_member_is_not_placed_here_while_its_group_lives_below(zone):
    top, low = zone('top').hosts(1, 2), zone('low').hosts(2, 16)
    top.above(low)
    group = made(top)
    first = by_uuid(group, vcpu=4)
    assert children_of(top.select(first)) == ['low']
    (claim,) = low.store.claims.list_claims(state='reserved', limit=5)
    low.confirm(claim.id)
    for how in STAYS:
        request = by_uuid(group)
        answer = staying(top, how, request)
        assert answer.outcome is Outcome.REFUSED, answer
        assert group in answer.reason and answer.places == ['zone low']
        assert not top.live() and top.store.requests.load_request(request.request_id) is None
    assert children_of(top.select(by_uuid(group))) == ['low']


def test_a_guest_below_is_not_moved_out_of_its_zone(zone):
    top, low = zone('top').hosts(1, 2), zone('low').hosts(2, 16)
    top.above(low)
    first = a_request(vcpu=4)
    assert children_of(top.select(first)) == ['low']
    (claim,) = low.store.claims.list_claims(state='reserved', limit=5)
    low.confirm(claim.id)
    for purpose in ('live_migrate', 'migrate', 'evacuate', 'resize', 'rebuild'):
        for how in STAYS:
            move = a_request(purpose=purpose, consumers=first.consumers)
            answer = staying(top, how, move)
            assert answer.outcome is Outcome.REFUSED, answer
            assert first.consumers[0] in answer.reason and answer.places == ['zone low']
            assert not top.live() and top.store.requests.load_request(move.request_id) is None
    # Who lives here, and who is known nowhere, is moved here as ever.
    for purpose in ('live_migrate', 'rebuild'):
        assert staying(top, 'asked so', a_request(purpose=purpose)).outcome is Outcome.PLACED


def test_a_guest_that_was_found_here_is_moved_here(zone):
    """What runs, runs: that nobody below has confirmed it does not send it there."""
    top, low = zone('top').hosts(2, 2), zone('low').hosts(2, 16)
    top.above(low)
    first = a_request(vcpu=4)
    assert children_of(top.select(first)) == ['low']
    runs = Running(consumer=first.consumers[0], resources={'VCPU': 1})
    top.report('top-1', 2, running=[runs])
    rebuild = a_request(purpose='rebuild', consumers=first.consumers)
    assert children_of(top.select(rebuild)) == ['']
    move = a_request(purpose='live_migrate', consumers=first.consumers)
    assert children_of(top.select(move)) == ['']


def test_a_dry_run_over_http_is_bound_as_its_request_is(zone):
    top, low = zone('top').hosts(1, 2), zone('low').hosts(2, 16)
    top.above(low)
    group = made(top)
    assert children_of(top.select(by_uuid(group, vcpu=4))) == ['low']
    body = {
        'request_id': new_uuid(),
        'spec': {'resources': {'VCPU': 1, 'MEMORY_MB': 1}, 'group': {'uuid': group}},
        'consumers': [new_uuid()],
        'dry_run': True,
        'hops': 0,
    }
    response = top.post('/v1/requests', body)
    assert response.status_code == 400, response.text
    assert 'low' in response.text


def test_a_zone_between_two_places_nobody_here_whose_group_lives_below(zone):
    top, mid, leaf = zone('top'), zone('mid').hosts(1, 2), zone('leaf').hosts(1, 16)
    mid.above(leaf)
    top.above(mid)
    group = made(top)
    assert top.select(by_uuid(group, vcpu=4)).outcome is Outcome.PLACED
    assert (mid.live(), leaf.live()) == (0, 1)
    answers = at_once(top, [by_uuid(group) for _ in range(6)])
    assert {answer.outcome for answer in answers} == {Outcome.PLACED}, [
        answer.reason for answer in answers
    ]
    assert (mid.live(), leaf.live()) == (0, 7)


def test_room_for_a_group_is_counted_where_it_may_go(zone):
    top, low, other = zone('top').hosts(1, 2), zone('low').hosts(1, 16), zone('other').hosts(1, 16)
    top.above(low)
    group = made(top)
    spec = {'resources': {'VCPU': 1, 'MEMORY_MB': 1}, 'group': {'uuid': group}}
    assert children_of(top.select(by_uuid(group, vcpu=4))) == ['low']
    top.above(other)
    capacity = top.post('/v1/capacity', {'spec': spec}).json()
    assert capacity['count'] == capacity['eligible'] == 0 and 'child zone' in capacity['verdict']
    assert [(child['zone'], child['count']) for child in capacity['below']] == [('low', 12)]
    # A zone above is told the same.
    parent = {'identity': 'identity-of-all', 'project_id': 'of-all', 'trusted': True}
    assert top.put('/v1/parents/all', parent).is_success
    rule = GroupRef(uuid=group, policy=Policy.AFFINITY)
    by = {**VERSION, 'X-User-Id': 'identity-of-all'}
    first = a_request(vcpu=4, group=rule)
    _, answer = allocate(top, first, tokens_of(evaluate(top, first, by)), by=by)
    assert answer.status_code == 200, answer.text
    capacity = call(
        top, 'POST', '/capacity', ZoneCapacityOf(request=a_request(group=rule)), by
    ).json()
    where = 12 if other.live() else 8
    assert (capacity['count'], low.live() + other.live()) == (where, 2)


# -- who plans counts those below --------------------------------------------------------------
@contextlib.contextmanager
def planner_of(zone, store=None):
    settings = SchedulerSettings(worker='planner')
    pipeline, bounds = plugin_loader.load_pipeline(), PlannerSettings(plan_seconds=0.2)
    planner = GroupPlanner(store or zone.store, pipeline, zone.recorder, settings, bounds)
    planner.cache.fetch()
    yield planner


def a_plan(group, *policies):
    description = a_description(a_member('web'), uuid=group, policies=list(policies))
    return a_plan_request(description, project_id=None)


RACK = {'policy': 'anti-affinity', 'level': 'rack'}


@pytest.mark.parametrize('policy', ['affinity', 'anti-affinity'])
def test_a_group_with_members_below_is_planned_with_them_counted(zone, policy):
    top, low = zone('top').hosts(2, 2), zone('low').hosts(1, 16)
    top.above(low)
    group = new_uuid()
    first = a_request(vcpu=4, group=GroupRef(uuid=group, policy=Policy(policy)))
    assert children_of(top.select(first)) == ['low']
    with planner_of(top) as planner:
        for hard_policy in (
            'affinity',
            RACK,
            {'policy': 'spread', 'level': 'host', 'max_skew': 1},
        ):
            error = refused(planner, a_plan(group, hard_policy))
            assert isinstance(error, exceptions.Refused), error
            assert 'low' in error.message and 'at ' in error.message
        assert not top.live()
        # They are on no host of here, and what may be given up is.
        soft = {'policy': 'affinity', 'soft': 1.0}
        answer = place(planner, a_plan(group, 'anti-affinity', soft))
        assert len(answer.plan.members) == 1


def test_a_plan_beside_which_a_member_got_its_place_below_is_void(zone):
    top, low = zone('top').hosts(1, 2), zone('low').hosts(1, 16)
    top.above(low)
    group = new_uuid()
    first = a_request(vcpu=4, group=GroupRef(uuid=group, policy=Policy.AFFINITY))
    placed = []

    def meanwhile(batch):
        if not placed:
            placed.append(top.select(first))

    with planner_of(top, before_commit(top.store, meanwhile)) as planner:
        error = refused(planner, a_plan(group, 'affinity'))
    assert children_of(placed[0]) == ['low']
    assert isinstance(error, exceptions.Refused) and 'low' in error.message
    assert (top.live(), low.live()) == (0, 1)


def test_a_member_is_not_left_below_by_a_group_that_was_planned_meanwhile(zone, monkeypatch):
    top, low = zone('top').hosts(1, 2), zone('low').hosts(1, 16)
    top.above(low)
    group = new_uuid()
    finish, planned = top.store.zone_requests.finish_request, []

    def after_plan(*args):
        if not planned:
            with planner_of(top) as planner:
                planned.append(place(planner, a_plan(group, 'affinity')))
        return finish(*args)

    monkeypatch.setattr(top.store.zone_requests, 'finish_request', after_plan)
    first = a_request(vcpu=4, group=GroupRef(uuid=group, policy=Policy.AFFINITY))
    answer = top.select(first)
    assert len(planned[0].plan.members) == 1
    assert answer.outcome is Outcome.BUSY, answer
    assert 'its server group' in answer.reason
    until(lambda: (top.live(), low.live()) == (1, 0))
    assert not top.on_their_way()


# -- a no is an answer -------------------------------------------------------------------------
def test_a_zone_that_says_no_is_not_silent(zone):
    top, low = zone('top'), zone('low').hosts(1, 16)
    top.above(low)
    assert low.put('/v1/parents/top', {'trusted': False}).is_success
    answer = top.select(a_request(ignore_hosts=['low-1']))
    assert answer.outcome is Outcome.NO_VALID_HOST, answer.reason
    assert 'low' in answer.reason and 'refused' in answer.reason
    # What no zone has is known as well.
    request = a_request()
    spec = msgspec.structs.replace(request.spec, resources={'CUSTOM_NOWHERE': 1})
    answer = top.select(msgspec.structs.replace(request, spec=spec))
    assert answer.outcome is Outcome.NO_VALID_HOST, answer


def test_a_create_by_a_plan_stays_in_its_zone_whatever_group_it_is_in(zone):
    top, low = zone('top').hosts(2, 2), zone('low').hosts(1, 16)
    top.above(low)
    group = new_uuid()
    spec = {'resources': {'VCPU': 1, 'MEMORY_MB': 1024, 'DISK_GB': 1}}
    description = a_description(a_member('web', spec=spec), uuid=group, policies=[])
    with planner_of(top) as planner:
        planned = place(planner, a_plan_request(description, project_id=None)).plan.members[0]
    hints = {'gantt_plan': [group], 'gantt_member': ['web']}
    nova = GroupRef(uuid=new_uuid(), policy=Policy.ANTI_AFFINITY)
    create = a_request(group=nova, hints=hints)
    (chosen,) = [selections[0] for selections in top.select(create).selections]
    assert (chosen.host, chosen.child) == (planned.host, '')
