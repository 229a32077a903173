# SPDX-License-Identifier: Apache-2.0
""" "No valid host" is said of places that were looked at: who else may have one is named."""

import random

import httpx2 as httpx
import msgspec
import pytest

from gantt.core.messages.policy_set import GroupPolicyKind, LevelPolicy, PolicySet
from gantt.core.messages.request import (
    GroupRef,
    Lifecycle,
    OfferedPlace,
    Policy,
    RequestKind,
    RequestSpec,
)
from gantt.core.messages.resource_classes import Inventory
from gantt.core.messages.tree_request import DeviceAmount, TreeRequest
from gantt.core.records.decision import Answer, Outcome, error_of
from gantt.groups import plan_lines
from gantt.insights.explain import redacting
from gantt.zones.model.choice import GoneOffers, ZoneChoice, ZoneScore, ZoneShare
from gantt.zones.model.messages import ZoneRecord, scoped_id
from tests.builders import uuid_of
from tests.nested import below
from tests.planner import a_description, a_member, a_plan_request, a_planner, place, refused
from tests.world import World, a_request, hosts_of, sqlite_store

RACKS = PolicySet(policies=[LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY, level='rack')])


@pytest.fixture
def two(zone):
    """A full zone above one with room, and above one that is disabled."""
    top, east, west = zone('top').hosts(1, 1), zone('east').hosts(3), zone('west').hosts(3)
    top.above(east)
    top.above(west, enabled=False)
    return top


def answered(top, request):
    """Placed, over HTTP: status, and the error."""
    version = {'OpenStack-API-Version': 'scheduler latest'}
    body = msgspec.to_builtins(request)
    response = httpx.post(f'{top.url}/v1/requests', json=body, headers=version, timeout=20.0)
    return response.status_code, response.json()['errors'][0]


@pytest.mark.parametrize('dry_run', [True, False])
@pytest.mark.parametrize('kind', ['pool', 'policies', 'lifecycle'])
def test_what_stays_in_its_zone_is_told_whom_to_ask(two, kind, dry_run):
    fields = {
        'pool': {'kind': RequestKind.POOL},
        'policies': {'group': GroupRef(uuid=uuid_of('racks'), policies=RACKS)},
        'lifecycle': {'lifecycle': Lifecycle.PLAN},
    }[kind]
    request = a_request(vcpu=4, dry_run=dry_run, **fields)
    if kind == 'pool':
        spec = msgspec.structs.replace(request.spec, resources={'DISK_GB': 1})
        request = msgspec.structs.replace(request, spec=spec)
    status, error = answered(two, request)
    assert (status, error['code']) == (409, 'gantt.not_known_here'), error
    assert error['details']['zones'] == ['east']
    assert 'ask zone east' in error['detail']
    answer = two.select(msgspec.structs.replace(request, request_id=uuid_of(kind)))
    assert (answer.outcome, answer.zones_not_queried) == (Outcome.UNKNOWN, ['east'])
    again = msgspec.structs.replace(request, request_id=uuid_of(f'{kind} again'), repeat=True)
    for _ in range(2):  # the refusal of a repeat is kept
        answer = two.select(again)
        assert (answer.outcome, answer.zones_not_queried) == (Outcome.UNKNOWN, ['east'])
    # Who wants a place of this zone alone has all of it.
    alone = msgspec.structs.replace(request, hops=0, request_id=uuid_of(f'{kind} here'))
    assert answered(two, alone)[1]['code'] == 'gantt.no_valid_host'


def test_a_group_that_is_planned_is_told_whom_to_ask():
    world = World(sqlite_store, hosts=1)
    planner = a_planner(world)
    group = a_description(a_member('web', 3))
    assert refused(planner, a_plan_request(group)).code == 'gantt.no_valid_host'
    for name, enabled in (('east', True), ('west', False)):
        world.store.zones.save_child_zone(
            ZoneRecord(uuid=uuid_of(name), name=name, url='http://127.0.0.1:1', enabled=enabled)
        )
    error = refused(planner, a_plan_request(group))
    assert (error.code, error.kwargs['zones']) == ('gantt.not_known_here', ['east'])
    assert 'ask zone east' in error.message and error.kwargs['missing_count'] == 2
    tried = place(planner, a_plan_request(group, dry_run=True))
    assert len(tried.plan.missing) == 2 and tried.zones_not_queried == ['east']
    fits = place(planner, a_plan_request(a_description(a_member('web', 1)), dry_run=True))
    assert fits.zones_not_queried == []


def test_members_that_are_to_be_apart_may_be_in_several_zones(zone):
    top, east, west = zone('top').hosts(2), zone('east').hosts(4), zone('west').hosts(3)
    top.above(east, west)
    group = GroupRef(uuid=uuid_of('apart'), policy=Policy.ANTI_AFFINITY)
    answer = top.select(a_request(8, group=group))
    assert answer.outcome is Outcome.PLACED, answer.reason
    zones = {'': top, 'east': east, 'west': west}
    hosts = [zones[c.child].store.claims.load_claim(c.claim_id).host for c, *_ in answer.selections]
    assert len({*hosts}) == 8
    # One host is left; then there is none, and everybody was asked.
    assert top.select(a_request(1, group=group)).outcome is Outcome.PLACED
    assert top.select(a_request(1, group=group)).outcome is Outcome.NO_VALID_HOST


def test_a_zone_that_is_too_far_down_was_not_queried(zone):
    top, middle, leaf = zone('top').hosts(1, 1), zone('middle').hosts(1, 1), zone('leaf').hosts(1)
    middle.above(leaf)
    top.above(middle)
    near = top.select(a_request(vcpu=4, hops=1))
    assert (near.outcome, 'middle' in near.reason) == (Outcome.UNKNOWN, True), near.reason
    assert top.select(a_request(vcpu=4)).outcome is Outcome.PLACED


@pytest.mark.parametrize('dry_run', [True, False])
def test_a_search_here_that_was_ended_is_said_to_be(zone, dry_run):
    """Amounts that fill devices to the last unit take long to search."""
    top = zone('top').hosts(1)
    top.above(zone('east').hosts(1))
    host = top.insights.table().hosts[0].uuid
    for n in range(12):
        below(top.store, f'gpu{n}', host, VGPU=Inventory(total=100 + n, reserved=n))
    pick, amounts = random.Random(1), []
    for _ in range(12):
        remaining = 100
        while remaining > 0:
            amounts.append(min(remaining, pick.randint(15, 60)))
            remaining -= amounts[-1]
    pick.shuffle(amounts)
    devices = TreeRequest(devices=[DeviceAmount(resource_class='VGPU', amount=n) for n in amounts])
    request = a_request(dry_run=dry_run, budget_ms=60_000)
    request = msgspec.structs.replace(
        request, spec=RequestSpec(resources={'VCPU': 1}, tree=devices)
    )
    answer = top.select(request)
    assert answer.outcome is Outcome.UNKNOWN
    assert 'not known: the search was ended' in answer.reason


def test_what_a_zone_above_was_offered_is_no_destination_that_it_named(zone):
    top, east = zone('top').hosts(1, 1), zone('east').hosts(8)
    top.above(east)
    request = a_request(vcpu=2)
    assert top.select(request).outcome is Outcome.PLACED
    [row] = top.store.child_claims.find(request.request_id)
    east.recorder.flush()
    east.scheduler.cache.log.flush(east.store.table_logs)
    parent = east.store.zones.parent_zones()[0].name
    text = ' '.join(east.insights.explain(scoped_id(parent, row.key)).lines)
    assert 'offered, where a zone above asks' in text, text
    assert 'not the requested destination' not in text


def test_who_may_not_see_hosts_is_not_told_names_of_zones(two):
    request = a_request(vcpu=4, lifecycle=Lifecycle.PLAN, dry_run=True)
    answer = two.select(request)
    assert answer.zones_not_queried == ['east']
    shown = redacting.redacted_answer(answer)
    error = redacting.redacted_error(error_of(answer))
    for public in (msgspec.json.encode(shown).decode(), error.message, str(error.kwargs)):
        assert 'east' not in public
    assert error.code == 'gantt.not_known_here'


def test_the_command_line_says_whom_to_ask_besides():
    answer = {'plan': None, 'dry_run': True, 'zones_not_queried': ['east', 'west']}
    assert 'request it at east, west' in ' '.join(plan_lines.answer_lines(answer, 100))
    assert 'ask' not in ' '.join(plan_lines.answer_lines({'plan': None, 'dry_run': True}, 100))


def test_own_hosts_that_could_not_say_are_busy_and_not_full():
    own = ZoneChoice(None, OfferedPlace(hosts=['host-1']), ZoneScore(0, 0.0, 1.0), 1)
    gone = GoneOffers()
    gone.drop(ZoneShare(own, [0]), Answer(request_id='r', decision_id=None, outcome=Outcome.BUSY))
    assert gone.own_refusal is not None and gone.remaining([own]) == []
    gone = GoneOffers()
    full = Answer(request_id='r', decision_id=None, outcome=Outcome.NO_VALID_HOST)
    gone.drop(ZoneShare(own, [0]), full)
    assert gone.own_refusal is None and gone.remaining([own]) == []


def test_own_hosts_are_explained_as_they_scored(zone):
    top, east = zone('top').hosts(5), zone('east').hosts(1, 1)
    top.above(east)
    request = a_request(2, vcpu=2)
    chosen = hosts_of(top.select(request))
    top.recorder.flush()
    top.scheduler.cache.log.flush(top.store.table_logs)
    explanation = top.insights.explain(request.request_id)
    text = '\n'.join(explanation.lines)
    assert '5/5 hosts fit' in text and 'not the requested destination' not in text, text
    totals = [score.total for score in explanation.members[0].scores]
    assert totals == sorted(totals, reverse=True) and totals[0] >= 0
    for name in {f'top-{n}' for n in range(1, 6)} - {*chosen}:
        explained = top.insights.explain(request.request_id, host=name)
        assert explained.host_verdicts and 'removed' not in str(explained.host_verdicts)
    assert top.insights.replay(explanation.id).same
