# SPDX-License-Identifier: Apache-2.0
"""A group that is placed as a whole: its places are claims, its answer is that of a request."""

import dataclasses

import msgspec
import pytest

from gantt import exceptions
from gantt.core.claims.reservations import placeholder_consumer
from gantt.core.messages import base
from gantt.core.messages.request import (
    CancelClaims,
    GetRequest,
    GroupRef,
    Policy,
    SelectDestinations,
)
from gantt.core.records.decision import Outcome
from gantt.core.resources.host import Group
from gantt.groups.model.place_group import ShowGroupPlan
from gantt.groups.service.planner import IDLE_TABLE_AGE_SECONDS
from tests.planner import (
    a_change,
    a_description,
    a_member,
    a_plan_request,
    a_planner,
    before_commit,
    hosts_of,
    place,
    places,
    refused,
)
from tests.world import Host, World, a_request, new_uuid, sqlite_store

CLEAN = {name: [] for name in World(hosts=1).audit()}


@pytest.fixture(params=['memory', 'sqlite'])
def world(request):
    return World(hosts=4, store=None if request.param == 'memory' else sqlite_store)


@pytest.fixture
def planner(world):
    return a_planner(world)


def test_each_member_has_a_place_that_is_a_claim(world, planner):
    request = a_plan_request(user_id='u1', lease_seconds=1800)
    answer = place(planner, request)
    by_name = places(world, answer.group)
    assert by_name.keys() == {'web-1', 'web-2', 'db'}
    assert {name: claim.host for name, claim in by_name.items()} == hosts_of(answer)
    assert len({claim.host for claim in by_name.values()}) == 3
    for member in answer.plan.members:
        claim = by_name[member.name]
        assert (member.claim_id, member.consumer) == (
            claim.id,
            placeholder_consumer(answer.group, member.name),
        )
        assert claim.is_free_reservation and claim.request_id == request.request_id
        assert (claim.project_id, claim.user_id, claim.group) == ('p1', 'u1', answer.group)
        assert claim.allocations == {claim.provider_id: {'VCPU': 1, 'MEMORY_MB': 1024}}
    record = world.store.plans.load_group_plan(answer.group)
    assert (record.revision, record.request_id) == (1, request.request_id)
    assert record.lease_until - world.clock.wall() == pytest.approx(1800, abs=30)
    assert world.audit() == CLEAN


def test_an_idle_planner_has_read_what_is_new_before_a_group_comes(world, planner):
    place(planner, a_plan_request())
    another = Host(world, 'cmp-new')
    another.report()
    world.clock.advance(IDLE_TABLE_AGE_SECONDS + 1)
    assert 'cmp-new' not in planner.cache.working.names
    assert planner.step() == 0
    assert 'cmp-new' in planner.cache.working.names


def test_a_repeat_gets_the_stored_answer_from_whoever_is_asked(world, planner):
    request = a_plan_request()
    first = place(planner, request)
    assert place(a_planner(world), request) == first
    assert len(places(world, first.group)) == 3
    assert world.recorder.counts['gantt_repeated_requests_total'] == 1


def test_another_body_under_the_same_id_is_refused(planner):
    request = a_plan_request()
    place(planner, request)
    other = a_plan_request(a_description(a_member('web', 3)), request_id=request.request_id)
    assert isinstance(refused(planner, other), exceptions.RequestIdReused)


def test_two_copies_that_wait_are_planned_once(planner):
    request = a_plan_request()
    first, second = planner.submit(request), planner.submit(request)
    assert planner.step() == 1 and planner.step() == 0
    assert first.result(0) is second.result(0)


def test_another_body_while_the_first_one_waits(planner):
    request = a_plan_request()
    planner.submit(request)
    other = a_plan_request(a_description(a_member('web')), request_id=request.request_id)
    with pytest.raises(exceptions.RequestIdReused):
        planner.submit(other)


def test_one_that_was_cancelled_is_not_planned(world, planner):
    request = a_plan_request()
    world.scheduler.cancel(CancelClaims(request_id=request.request_id))
    assert isinstance(refused(planner, request), exceptions.RequestCancelled)


def test_a_scheduler_that_is_asked_for_the_request_shows_its_claims(world, planner):
    request = a_plan_request()
    answer = place(planner, request)
    world.turn()
    stored = world.scheduler.get_request(GetRequest(request_id=request.request_id))
    shown = {selections[0].host for selections in stored.selections}
    assert shown == set(hosts_of(answer).values())


def test_too_many_that_wait_are_answered_at_once(world):
    planner = a_planner(world, queue_limit=1)
    planner.submit(a_plan_request())
    with pytest.raises(exceptions.Busy, match='1 groups wait to be planned'):
        planner.submit(a_plan_request())


def test_one_whose_time_is_over_is_not_planned(world, planner):
    future = planner.submit(a_plan_request(budget_ms=1000))
    world.clock.advance(2)
    planner.step()
    with pytest.raises(exceptions.Expired):
        future.result(0)


def test_what_cannot_be_placed_names_what_stands_in_the_way(world, planner):
    request = a_plan_request(a_description(a_member('web', 5)))
    error = refused(planner, request)
    assert isinstance(error, exceptions.NoValidHost)
    assert error.kwargs['missing_count'] == 1
    assert error.kwargs['group'] == request.uuid
    assert world.store.requests.load_request(request.request_id) is None
    assert places(world, request.uuid) == {}


def test_a_dry_run_claims_nothing(world, planner):
    request = a_plan_request(dry_run=True)
    answer = place(planner, request)
    assert len(hosts_of(answer)) == 3 and answer.revision == 0
    assert {member.claim_id for member in answer.plan.members} == {''}
    assert places(world, request.uuid) == {}
    assert world.store.requests.load_request(request.request_id) is None


def test_a_dry_run_of_what_cannot_be_placed_is_an_answer(planner):
    answer = place(planner, a_plan_request(a_description(a_member('web', 5)), dry_run=True))
    assert len(answer.plan.missing) == 1
    assert answer.plan.size.units == 5 and answer.plan.size.hosts == 4


def test_a_range_gets_as_many_as_fit(world, planner):
    answer = place(planner, a_plan_request(a_description(a_member('web', [2, 9]))))
    assert len(answer.plan.members) == 4
    assert len(answer.plan.optional) == 5


def test_an_alternative_is_claimed_as_it_was_described(world, planner):
    large = {'resources': {'VCPU': 99}}
    member = {'name': 'db', 'spec': large, 'alternatives': [{'resources': {'VCPU': 3}}]}
    answer = place(planner, a_plan_request(a_description(member)))
    (claim,) = places(world, answer.group).values()
    assert claim.allocations == {claim.provider_id: {'VCPU': 3}}
    assert answer.plan.members[0].alternative == 1


@pytest.mark.parametrize(
    ('policy', 'field'),
    [
        ({'policy': 'affinity', 'level': 'rak'}, 'request.group.policies[0].level'),
        (
            {
                'policy': 'anti-affinity',
                'target': {'group': '0' * 8 + '-0000-0000-0000-' + '0' * 12},
            },
            'request.group.policies[0].target.group',
        ),
        ({'policy': 'near', 'target': {'host': 'cmp-77'}}, 'request.group.policies[0].target.host'),
    ],
)
def test_what_is_not_there_is_named_by_its_field(planner, policy, field):
    error = refused(planner, a_plan_request(a_description(policies=[policy])))
    assert isinstance(error, exceptions.InvalidMessage)
    assert error.kwargs['field'] == field


PLAIN = {'resources': {'VCPU': 1}}
TREE = {'resources': {'VCPU': 1}, 'tree': {'groups': {'_a': {'resources': {'CUSTOM_NO': 1}}}}}
WHOLE = {
    'resources': {'VCPU': 1, 'CUSTOM_GPU': 1},
    'tree': {'devices': [{'resource_class': 'CUSTOM_GPU', 'whole': True}]},
}


@pytest.mark.parametrize(
    ('spec', 'field'),
    [
        ({**PLAIN, 'any_traits': [['HW_A'], []]}, 'any_traits[1]'),
        ({**PLAIN, 'member_of': [[]]}, 'member_of[0]'),
        (
            {**PLAIN, 'required_traits': ['HW_A', 'HW_B'], 'forbidden_traits': ['HW_B']},
            'forbidden_traits',
        ),
        (TREE, 'tree.groups._a.resources.CUSTOM_NO'),
        (WHOLE, 'resources.CUSTOM_GPU'),
        ({**PLAIN, 'hints': {'rules': ['no (']}}, 'hints.rules'),
        ({**PLAIN, 'flavor': {'extra_specs': {'hw:numa_nodes': 'x'}}}, 'flavor.'),
    ],
)
@pytest.mark.parametrize('at', ['spec', 'alternatives[1]'])
def test_members_are_held_against_the_rules_of_requests_of_their_own(world, spec, field, at):
    """What a single request is refused for a member is, by its path in the description."""
    world.store.vocabulary.declare_class('CUSTOM_GPU')
    alone = refused_alone(world, spec)
    assert alone.startswith(f'request.spec.{field}')
    member = {'name': 'web', 'spec': spec}
    if at != 'spec':
        member = {'name': 'web', 'spec': PLAIN, 'alternatives': [PLAIN, spec]}
    description = a_description(a_member('db'), member)
    error = refused(a_planner(world), a_plan_request(description))
    path = f'request.group.members[1].{at}'
    assert isinstance(error, exceptions.InvalidMessage)
    assert error.message == alone.replace('request.spec', path, 1)
    assert str(error.kwargs['field']).startswith(f'{path}.{field}')


def refused_alone(world, spec):
    """What is said of a single request."""
    request = base.decode(
        {'request_id': new_uuid(), 'spec': spec, 'consumers': [new_uuid()]},
        SelectDestinations,
        inside='request',
    )
    try:
        answer = world.select(request)
    except exceptions.InvalidMessage as e:
        return e.message
    assert answer.outcome is Outcome.REFUSED
    return answer.reason


def test_a_class_that_nobody_declared_is_refused_at_once(planner):
    member = a_member('web', spec={'resources': {'CUSTOM_NO': 1}})
    with pytest.raises(exceptions.UnknownResourceClass) as caught:
        planner.submit(a_plan_request(a_description(member)))
    assert caught.value.kwargs['field'] == 'request.group.members[0].spec.resources.CUSTOM_NO'


def test_a_group_has_one_plan(planner):
    group = new_uuid()
    place(planner, a_plan_request(a_description(uuid=group)))
    error = refused(planner, a_plan_request(a_description(uuid=group)))
    assert error.kwargs['field'] == 'request.group.uuid'


def test_a_group_of_another_project_is_not_there(planner):
    group = new_uuid()
    place(planner, a_plan_request(a_description(uuid=group)))
    theirs = a_plan_request(a_description(uuid=group), project_id='p2', only_project='p2')
    assert isinstance(refused(planner, theirs), exceptions.NotFound)
    near = {'policy': 'anti-affinity', 'target': {'group': group}}
    by = a_plan_request(a_description(policies=[near]), project_id='p2', only_project='p2')
    assert refused(planner, by).kwargs['field'] == 'request.group.policies[0].target.group'


def test_places_in_a_server_group_are_its_projects(world, planner):
    """Who may plan for all projects does not take a group away from its own."""
    uuid = new_uuid()
    world.store.groups.save_group(
        Group(uuid=uuid, name='g', policy='anti-affinity', project_id='p1')
    )
    group = a_description(uuid=uuid)
    error = refused(planner, a_plan_request(group, project_id='p2'))
    assert error.kwargs['field'] == 'request.project_id' and 'expected p1' in error.message
    assert world.store.plans.load_group_plan(uuid) is None
    place(planner, a_plan_request(group, project_id=None))
    assert world.store.plans.load_group_plan(uuid).project_id == 'p1'
    assert {claim.project_id for claim in places(world, uuid).values()} == {'p1'}
    assert planner.show(ShowGroupPlan(group=uuid, only_project='p1')).project_id == 'p1'


def test_guests_that_stand_count(world, planner):
    answer = world.select(a_request(group=None, vcpu=8, count=1))
    taken = answer.selections[0][0].host
    alone = a_description(a_member('web', 3), policies=[{'policy': 'exclusive'}])
    planned = place(planner, a_plan_request(alone))
    assert taken not in hosts_of(planned).values()


def a_large(name, count):
    """Two of them have no room on one host."""
    return a_member(name, count, spec={'resources': {'VCPU': 1, 'MEMORY_MB': 20_000}})


def test_only_those_that_lost_a_race_are_planned_again(world):
    """Somebody takes a host between the plan and its commit: those on others stay."""
    planned = []

    def take_one(batch):
        planned.append({commit.claim.member_name: commit.claim.host for commit in batch[0].claims})
        if len(planned) == 1:
            victim = planned[0]['web-1']
            world.select(a_request(ram=20_000, force_hosts=[victim]))

    planner = a_planner(world, store=before_commit(world.store, take_one))
    answer = place(planner, a_plan_request(a_description(a_large('web', 3))))
    first, last = planned
    assert hosts_of(answer) == last
    assert last['web-1'] != first['web-1']
    assert {n: last[n] for n in ('web-2', 'web-3')} == {n: first[n] for n in ('web-2', 'web-3')}
    assert (answer.attempts, len(answer.conflicts)) == (2, 1)
    assert answer.plan.status == 'feasible'
    assert answer.conflicts[0].startswith('dropped: ')
    assert len(places(world, answer.group)) == 3
    assert world.audit() == CLEAN


def test_those_who_stay_together_are_planned_anew_on_the_hosts_as_they_are_now(world):
    """Room for one of two is left where they were planned: both go elsewhere, at once."""
    planned = []

    def take_one(batch):
        planned.append({commit.claim.host for commit in batch[0].claims})
        if len(planned) == 1:
            world.select(a_request(ram=31_000, force_hosts=list(planned[0])))

    planner = a_planner(world, store=before_commit(world.store, take_one))
    group = a_description(a_member('web', 2), policies=['affinity'])
    answer = place(planner, a_plan_request(group))
    first, last = planned
    assert set(hosts_of(answer).values()) == last
    assert not first & last
    assert answer.attempts == 2
    assert world.audit() == CLEAN


def test_after_too_many_races_nothing_is_claimed(world):
    def change_group(batch):
        group = GroupRef(uuid=batch[0].group.uuid, policy=Policy.ANTI_AFFINITY)
        world.select(a_request(group=group))

    planner = a_planner(world, store=before_commit(world.store, change_group), attempts_per_group=2)
    request = a_plan_request(a_description(a_member('web', 2)))
    error = refused(planner, request)
    assert isinstance(error, exceptions.Conflict), error
    assert error.kwargs['attempts'] == 2
    assert places(world, request.uuid) == {}
    assert world.store.requests.load_request(request.request_id) is None
    assert world.audit() == CLEAN


def test_a_commit_whose_outcome_is_not_known_is_found_out_by_a_repeat(world):
    def lost(batch):
        raise exceptions.DatabaseUnavailable(problem='the answer is lost')

    broken = a_planner(world, store=before_commit(world.store, None, lost))
    request = a_plan_request()
    assert isinstance(refused(broken, request), exceptions.DatabaseUnavailable)
    answer = place(a_planner(world), request)
    assert world.recorder.counts['gantt_repeated_requests_total'] == 1
    assert {c.host for c in places(world, answer.group).values()} == set(hosts_of(answer).values())
    assert len(places(world, answer.group)) == 3


# -- two copies of one request ------------------------------------------------------------
class Beside:
    """Who plans a request while another process has its repeat, just before its commit.

    :ivar told: what the other one was told
    """

    def __init__(self, world, repeat, before=None, after=None):
        self.told = []

        def other(batch):
            if before is not None:
                before()
            try:
                self.told.append(place(a_planner(world), repeat))
            except exceptions.GanttError as e:
                self.told.append(e)
            if after is not None:
                after()

        self.planner = a_planner(world, store=before_commit(world.store, other))


def repeat_of(request):
    return msgspec.structs.replace(request, repeat=True)


def test_of_two_copies_the_one_that_was_told_no_has_no_plan(world):
    """There is no room while the repeat is planned, and there is again for the first copy."""
    request = a_plan_request(a_description(a_large('web', 3)))
    takes_all = [a_request(ram=20_000) for _ in range(4)]

    def fill():
        for taker in takes_all:
            assert world.select(taker).outcome is Outcome.PLACED

    def leave():
        for taker in takes_all:
            world.store.requests.cancel_request(taker.request_id, 'over')

    beside = Beside(world, repeat_of(request), fill, leave)
    error = refused(beside.planner, request)
    (refusal,) = beside.told
    assert isinstance(refusal, exceptions.NoValidHost)
    assert (error.code, error.message, error.kwargs) == (
        refusal.code,
        refusal.message,
        refusal.kwargs,
    )
    assert places(world, request.uuid) == {}
    assert world.store.plans.load_group_plan(request.uuid) is None
    again = refused(a_planner(world), request)
    assert (again.code, again.message) == (refusal.code, refusal.message)
    other = msgspec.structs.replace(request, project_id='p2')
    assert isinstance(refused(a_planner(world), other), exceptions.RequestIdReused)
    assert world.audit() == CLEAN


def test_one_that_was_told_no_and_is_no_repeat_may_ask_again(world, planner):
    request = a_plan_request(a_description(a_large('web', 3)))
    takes_all = [a_request(ram=20_000) for _ in range(4)]
    for taker in takes_all:
        world.select(taker)
    world.clock.advance(1)
    assert isinstance(refused(planner, request), exceptions.NoValidHost)
    for taker in takes_all:
        world.store.requests.cancel_request(taker.request_id, 'over')
    world.clock.advance(1)
    assert len(place(planner, repeat_of(request)).plan.members) == 3


class PlannedMeanwhile:
    """Plans that are read when another copy of a request has just been placed."""

    def __init__(self, world, request):
        self._world, self._request, self.told = world, request, []

    def load_group_plan(self, uuid):
        if not self.told:
            self.told.append(place(a_planner(self._world), self._request))
        return self._world.store.plans.load_group_plan(uuid)

    def __getattr__(self, name):
        return getattr(self._world.store.plans, name)


@pytest.mark.parametrize('repeats', [False, True])
def test_a_copy_that_finds_the_plan_of_the_other_one_is_told_the_same(world, repeats):
    request = a_plan_request()
    plans = PlannedMeanwhile(world, request)
    copy = repeat_of(request) if repeats else request
    assert (
        place(a_planner(world, store=dataclasses.replace(world.store, plans=plans)), copy)
        == plans.told[0]
    )
    change = a_change(a_description(uuid=request.uuid), revision=1)
    plans = PlannedMeanwhile(world, change)
    copy = repeat_of(change) if repeats else change
    assert (
        place(a_planner(world, store=dataclasses.replace(world.store, plans=plans)), copy)
        == plans.told[0]
    )
    assert world.store.plans.load_group_plan(request.uuid).revision == 2
    assert world.audit() == CLEAN


def test_a_repeat_that_gave_up_after_races_is_told_the_same_once_more(world):
    def change_group(batch):
        group = GroupRef(uuid=batch[0].group.uuid, policy=Policy.ANTI_AFFINITY)
        world.select(a_request(group=group))

    planner = a_planner(world, store=before_commit(world.store, change_group), attempts_per_group=2)
    request = repeat_of(a_plan_request(a_description(a_member('web', 2))))
    first = refused(planner, request)
    assert isinstance(first, exceptions.Conflict)
    again = refused(a_planner(world), request)
    assert (again.code, again.message, again.kwargs) == (first.code, first.message, first.kwargs)
    assert places(world, request.uuid) == {}


def test_a_repeat_that_joins_its_first_copy_is_refused_as_a_repeat(world, planner):
    request = a_plan_request(a_description(a_large('web', 9)))
    first = planner.submit(request)
    second = planner.submit(repeat_of(request))
    assert [planner.step() for _ in range(2)] == [1, 0]
    assert first.exception(0) is second.exception(0)
    assert isinstance(first.exception(0), exceptions.NoValidHost)
    assert world.store.requests.load_request(request.request_id).state == 'cancelled'
