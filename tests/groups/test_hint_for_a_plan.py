# SPDX-License-Identifier: Apache-2.0
"""Creates and moves with the hint ``gantt_plan``: by the plan while it is there, else without."""

import msgspec
import pytest

from gantt.core.messages.request import RequestSpec
from gantt.core.records.decision import Outcome
from tests.builders import CLEAN
from tests.groups.planned import LARGE, SPEC, a_body, plan
from tests.http.callers import as_caller, ask
from tests.http.site import Site, fixed
from tests.world import World, a_request, hosts_of, new_uuid


@pytest.fixture
def world():
    return World(hosts=6)


def hinted(uuid, member=None, *, spec=SPEC, count=1, **top):
    """A request with the hint for a plan, and for a member of it."""
    given = {'gantt_plan': [uuid]} | ({} if member is None else {'gantt_member': [member]})
    body = {**spec, 'hints': given | spec.get('hints', {})}
    template = a_request(count, **top)
    return msgspec.structs.replace(template, spec=msgspec.convert(body, RequestSpec))


def refusal(world, request):
    answer = world.select(request)
    assert answer.outcome is Outcome.REFUSED, answer
    return answer.reason


def created(world, request):
    """The chosen place of a create whose host has confirmed it."""
    answer = world.select(request)
    assert answer.outcome is Outcome.PLACED, answer
    chosen = answer.selections[0][0]
    assert world.hosts[chosen.host].confirm(chosen.claim_id) == ['ok']
    world.turn(times=2)
    return chosen


def release(world, group):
    world.store.plans.release_plan(group.uuid, 'it is not needed')
    world.turn(seconds=1.5, times=2)


def test_the_hint_alone_finds_the_place_of_a_member(world):
    group = plan(world)
    chosen = created(world, hinted(group.uuid, 'web-2'))
    assert (chosen.host, chosen.claim_id) == (group.hosts['web-2'], group.claims['web-2'])
    claim = world.store.claims.load_claim(chosen.claim_id)
    assert (claim.group, claim.member_name) == (group.uuid, 'web-2')
    next_one = created(world, hinted(group.uuid))
    assert next_one.claim_id == group.claims['web-1']
    assert world.audit() == CLEAN


def test_the_hint_beside_the_group_of_the_same_uuid_says_nothing_more(world):
    group = plan(world)
    spec = {**SPEC, 'hints': {'group': [group.uuid.upper()]}}
    assert created(world, hinted(group.uuid, 'web', spec=spec)).host == group.hosts['web-1']


def test_two_creates_for_one_member_get_one_place(world):
    group = plan(world)
    handles = [world.ask(hinted(group.uuid, 'db', spec=LARGE)) for _ in range(2)]
    world.turn(times=12)
    first, second = (world.replies.answers[handle] for handle in handles)
    assert first.selections[0][0].claim_id == group.claims['db']
    assert second.outcome is Outcome.REFUSED
    assert second.reason == (
        'the place of db is being taken by another create (hints.gantt_plan: revision 1 of the '
        f'plan of group {group.uuid})'
    )
    consumer = first.selections[0][0].consumer
    later = refusal(world, hinted(group.uuid, 'db', spec=LARGE))
    assert later.startswith(f'the place of db is taken by consumer {consumer} (hints.gantt_plan:')
    assert world.audit() == CLEAN


def test_a_member_that_there_is_not_and_one_too_many_are_refused_by_name(world):
    group = plan(world)
    line = "has no member 'wbe'; did you mean 'web'? (hints.gantt_plan: revision 1 of the plan of"
    assert line in refusal(world, hinted(group.uuid, 'wbe'))
    assert world.select(hinted(group.uuid, 'web', count=3)).outcome is Outcome.PLACED
    for member in ('web', None):
        reason = refusal(world, hinted(group.uuid, member))
        assert reason.startswith('none of the 3 places of web is free: ')
        assert '(hints.gantt_plan: revision 1 of the plan' in reason


def no_plan_text(uuid):
    return (
        f'hints.gantt_plan: expected the uuid of a planned group of this project, got {uuid}, '
        'which has no plan, or has none any more; plan it first, or leave the hint out'
    )


@pytest.mark.parametrize('member', [None, 'web'])
@pytest.mark.parametrize('lifecycle', ['host', 'hold'])
def test_a_create_by_a_plan_that_is_not_there_is_refused(world, member, lifecycle):
    unknown = new_uuid()
    assert refusal(world, hinted(unknown, member, lifecycle=lifecycle)) == no_plan_text(unknown)
    group = plan(world)
    created(world, hinted(group.uuid, 'web'))
    release(world, group)
    request = hinted(group.uuid, member, lifecycle=lifecycle)
    assert refusal(world, request) == no_plan_text(group.uuid)
    assert world.audit() == CLEAN


def test_the_plan_of_another_project_is_answered_as_none(world):
    group = plan(world, project_id='p1')
    theirs = hinted(group.uuid, 'web', spec={**SPEC, 'project_id': 'p2'})
    assert refusal(world, theirs) == no_plan_text(group.uuid)
    limited = hinted(group.uuid, 'web', only_project='p2')
    assert refusal(world, limited) == no_plan_text(group.uuid)
    own = hinted(group.uuid, 'web', spec={**SPEC, 'project_id': 'p1'})
    assert hosts_of(world.select(own)) == [group.hosts['web-1']]


def test_a_create_that_is_not_as_planned_is_told_the_fields(world):
    group = plan(world)
    spec = {**SPEC, 'hints': {'rules': ['x']}}
    reason = refusal(world, hinted(group.uuid, 'web-1', spec=spec))
    assert reason.startswith('member web-1 was planned otherwise: hints.rules: the plan has none')


def test_a_dry_run_shows_the_place_and_takes_none(world):
    group = plan(world)
    answer = world.select(hinted(group.uuid, 'web-3', dry_run=True))
    assert hosts_of(answer) == [group.hosts['web-3']]
    assert world.store.claims.load_claim(group.claims['web-3']).is_free_reservation


MOVES = ['migrate', 'live_migrate', 'evacuate', 'resize', 'unshelve']


def a_move(uuid, chosen, purpose, **fields):
    spec = {**SPEC, 'purpose': purpose, 'ignore_hosts': [chosen.host], **fields}
    return hinted(uuid, 'web', spec=spec, consumers=[chosen.consumer])


def test_a_guest_that_moves_by_the_hint_stays_its_member(world):
    group = plan(world)
    chosen = created(world, hinted(group.uuid, 'web'))
    answer = world.select(a_move(group.uuid, chosen, 'migrate'))
    moved = world.store.claims.load_claim(answer.selections[0][0].claim_id)
    assert (moved.group, moved.member_name) == (group.uuid, 'web-1')
    assert moved.host not in group.hosts.values()
    assert world.audit() == CLEAN


@pytest.mark.parametrize('purpose', MOVES)
def test_a_move_after_the_release_goes_on_without_the_plan(world, purpose):
    group = plan(world)
    chosen = created(world, hinted(group.uuid, 'web'))
    release(world, group)
    answer = world.select(a_move(group.uuid, chosen, purpose))
    assert answer.outcome is Outcome.PLACED, answer
    assert answer.selections[0][0].host != chosen.host
    moved = world.store.claims.load_claim(answer.selections[0][0].claim_id)
    assert (moved.group, moved.member_name) == (None, None)
    assert world.audit() == CLEAN


def test_a_move_in_novas_group_keeps_its_policy_where_the_plan_is_gone(world):
    group = plan(world)
    chosen = created(world, hinted(group.uuid, 'web'))
    release(world, group)
    other = created(world, a_request())
    nova = {'uuid': new_uuid(), 'policy': 'affinity', 'members': [other.consumer]}
    move = a_move(group.uuid, chosen, 'migrate', group=nova, ignore_hosts=[])
    answer = world.select(move)
    assert hosts_of(answer) == [other.host]
    moved = world.store.claims.load_claim(answer.selections[0][0].claim_id)
    assert (moved.group, moved.member_name) == (nova['uuid'], None)


def test_decisions_by_the_hint_say_so_and_are_made_again():
    site = Site()
    group = plan(site.world, a_body({'name': 'web', 'count': 2, 'spec': SPEC}))
    site.world.hosts = site.hosts
    chosen = created(site.world, hinted(group.uuid, 'web', request_id=fixed(1)))
    site.world.select(hinted(new_uuid(), 'web', request_id=fixed(2)))
    release(site.world, group)
    move = a_move(group.uuid, chosen, 'migrate')
    site.world.select(msgspec.structs.replace(move, request_id=fixed(3)))
    site.world.turn()
    site.world.scheduler.cache.log.flush(site.world.store.table_logs)
    site.insights.reload_soon()
    for number in (1, 2, 3):
        replay = site.insights.replay(fixed(number))
        assert replay.same, (number, replay.differences)
    explained = site.insights.explain(fixed(3))
    line = f'; hints.gantt_plan is ignored: group {group.uuid} has no plan any more'
    assert explained.reason.endswith(line)


def test_a_caller_of_one_project_finds_its_plan_over_http_and_no_other():
    site = Site()
    one = a_body({'name': 'web', 'count': 2, 'spec': SPEC})
    own = plan(site.world, one, project_id='red')
    theirs = plan(site.world, one, project_id='blue')
    with as_caller(site, 'member') as member:

        def asked(number, group, **fields):
            hints = {'gantt_plan': [group.uuid], 'gantt_member': ['web']}
            response = ask(member, number, {**SPEC, 'hints': hints, **fields}, dry_run=True)
            return response.status_code, response.text

        status, text = asked(1, own)
        assert status in (200, 201), text
        # Reasons of refusals are not for members.
        assert asked(2, theirs)[0] == 400
        release(site.world, own)
        assert asked(3, own)[0] == 400
        status, text = asked(4, own, purpose='unshelve')
        assert status in (200, 201), text
