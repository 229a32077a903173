# SPDX-License-Identifier: Apache-2.0
"""A living group: grown, shrunk, changed, healed; who is placed stays where it is."""

import dataclasses

import msgspec
import pytest

from gantt import exceptions
from gantt.core.messages.report import Running
from gantt.core.messages.request import GroupRef
from gantt.core.records.decision import Outcome
from gantt.groups.model.group_answer import MemberState
from gantt.groups.model.place_group import (
    ExtendGroupPlan,
    ReleaseGroupPlan,
    ShowGroupPlan,
)
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
from tests.plans import created
from tests.world import World, a_request, new_uuid, sqlite_store

GROUP = '7b1d2c52-0b7e-4f0e-8a55-0d8f6a3e9b02'


@pytest.fixture(params=['memory', 'sqlite'])
def world(request):
    return World(hosts=6, store=None if request.param == 'memory' else sqlite_store)


@pytest.fixture
def planner(world):
    return a_planner(world)


@pytest.fixture
def first(planner):
    """Two of the web and one database, each on a host of its own."""
    return place(planner, a_plan_request(described()))


def described(*members, **fields):
    return a_description(*members, uuid=GROUP, **fields)


def hosts(world):
    return {name: claim.host for name, claim in places(world, GROUP).items()}


def test_a_group_grows_and_who_is_there_stays(world, planner, first):
    before = hosts(world)
    answer = place(planner, a_change(described(a_member('web', 4), a_member('db'))))
    after = hosts(world)
    assert after.keys() == {'web-1', 'web-2', 'web-3', 'web-4', 'db'}
    assert after | before == after
    assert hosts_of(answer).keys() == {'web-3', 'web-4'}
    assert sorted(answer.stayed) == ['db', 'web-1', 'web-2']
    assert len(set(after.values())) == 5
    assert world.store.plans.load_group_plan(GROUP).revision == answer.revision == 2


def test_one_that_was_alone_keeps_its_name(world, planner, first):
    place(planner, a_change(described(a_member('web', 2), a_member('db', 3))))
    assert hosts(world).keys() == {'web-1', 'web-2', 'db', 'db-1', 'db-2'}


def test_a_group_shrinks_by_places_that_nobody_has(world, planner, first):
    created(world.store, places(world, GROUP)['web-2'])
    answer = place(planner, a_change(described(a_member('web', 1), a_member('db'))))
    assert answer.released == ['web-1'] and answer.plan is None
    assert hosts(world).keys() == {'web-2', 'db'}
    assert not any(world.audit().values())


def test_a_place_that_is_created_meanwhile_is_not_given_back(world, first):
    """The next one is, and the answer says which."""
    taken = []

    def take(batch):
        if not taken:
            (ended,) = batch[0].released_reservations
            by_name = places(world, GROUP)
            taken.extend(name for name, claim in by_name.items() if claim.id == ended.claim_id)
            created(world.store, by_name[taken[0]])

    planner = a_planner(world, store=before_commit(world.store, take))
    answer = place(planner, a_change(described(a_member('web', 1), a_member('db'))))
    assert taken == ['web-2'] and answer.released == ['web-1']
    assert answer.conflicts == [
        "group_changed: the place of member 'web-2' was taken over or has ended since"
    ]
    assert hosts(world).keys() == {'web-2', 'db'}
    assert not any(world.audit().values())


def test_a_group_does_not_shrink_below_those_that_were_created(world, planner, first):
    for name in ('web-1', 'web-2'):
        created(world.store, places(world, GROUP)[name])
    error = refused(planner, a_change(described(a_member('web', 1), a_member('db'))))
    assert error.kwargs['field'] == 'request.group.members[0].count'
    assert 'expected at least 2' in error.message


def test_a_member_that_ends_between_two_tries_is_planned_as_well(world, planner):
    """Of a group that is planned again all stay where they were planned, and one is left over."""
    more = {'others': 'allowed'}
    place(planner, a_plan_request(described(a_member('web', 2), a_member('db'), **more)))
    commits = []

    def change(batch):
        commits.append(batch)
        if len(commits) == 1:
            world.turn(times=2)
            used = {*hosts(world).values(), *(commit.claim.host for commit in batch[0].claims)}
            elsewhere = sorted(world.hosts.keys() - used)[:1]
            other = world.select(a_request(group=GroupRef(uuid=GROUP), force_hosts=elsewhere))
            assert other.outcome is Outcome.PLACED
            world.store.plans.release_plan(GROUP, 'not wanted', members=['web-1'])

    planner = a_planner(world, store=before_commit(world.store, change))
    answer = place(planner, a_change(described(a_member('web', 2), a_member('db', 2), **more)))
    assert (answer.attempts, len(commits)) == (2, 2)
    assert hosts_of(answer).keys() == {'web-1', 'db-1'}
    assert hosts(world).keys() == {'web-1', 'web-2', 'db', 'db-1'}


class TakesOver:
    """Plans of which a place is taken over just before somebody reads who stands."""

    def __init__(self, world):
        self._world, self._is_done = world, False

    def __getattr__(self, name):
        return getattr(self._world.store.plans, name)

    def load_reservations(self, uuids, **how):
        if not self._is_done:
            self._is_done = True
            created(self._world.store, places(self._world, GROUP)['web'])
        return self._world.store.plans.load_reservations(uuids, **how)


def test_a_member_counts_for_its_policies_whoever_has_its_place_by_now(world, planner):
    together = {'policies': [{'policy': 'affinity', 'of': 'web'}]}
    place(planner, a_plan_request(described(a_member('web'), **together)))
    (there,) = hosts(world).values()
    planner = a_planner(world, store=dataclasses.replace(world.store, plans=TakesOver(world)))
    place(planner, a_change(described(a_member('web', 3), **together)))
    assert hosts(world) == {'web': there, 'web-1': there, 'web-2': there}


def test_members_are_added_and_removed(world, planner, first):
    answer = place(planner, a_change(described(a_member('web', 2), a_member('cache', 2))))
    assert answer.released == ['db']
    assert hosts(world).keys() == {'web-1', 'web-2', 'cache-1', 'cache-2'}


def test_one_that_was_created_is_not_left_out(world, planner, first):
    created(world.store, places(world, GROUP)['db'])
    error = refused(planner, a_change(described(a_member('web', 2))))
    assert error.kwargs['field'] == 'request.group.members'
    assert 'db' in error.message


def test_what_changed_policies_would_violate_is_listed_first(world, planner, first):
    group = described(a_member('web', 2), a_member('db'), policies=['affinity'])
    answer = place(planner, a_change(group, dry_run=True))
    (violation,) = answer.violated
    assert violation.line == 'affinity at host' and violation.is_hard
    assert violation.amount == 2 and len(violation.members) >= 2
    assert world.store.plans.load_group_plan(GROUP).revision == 1
    changed = place(planner, a_change(group))
    assert changed.violated == answer.violated and changed.revision == 2
    assert 'affinity' in world.store.groups.load_group(GROUP).policies
    # Who comes now obeys what is possible: nothing is violated by it alone.
    assert hosts(world) == {member.name: member.host for member in first.plan.members}


def test_a_member_that_needs_something_else_gets_another_place(world, planner, first):
    created(world.store, places(world, GROUP)['web-1'])
    before = places(world, GROUP)
    answer = place(planner, a_change(described(a_member('web', 2, vcpu=3), a_member('db'))))
    after = places(world, GROUP)
    assert hosts_of(answer).keys() == {'web-2'}
    assert after['web-1'].id == before['web-1'].id and after['db'].id == before['db'].id
    assert after['web-2'].allocations[after['web-2'].provider_id]['VCPU'] == 3
    assert world.store.claims.load_claim(before['web-2'].id).state == 'released'
    assert not any(world.audit().values())


def test_a_lost_host_is_healed_and_the_others_stay(world, planner, first):
    store, by_name = world.store, places(world, GROUP)
    created(store, by_name['web-1'])
    world.hosts[by_name['web-1'].host].confirm(by_name['web-1'].id)
    dead = {by_name['web-1'].host, by_name['db'].host}
    for _ in range(4):
        world.turn(60)
        for name, host in world.hosts.items():
            if name not in dead:
                host.report()
    world.turn()
    shown = {
        member.name: member.state for member in planner.show(ShowGroupPlan(group=GROUP)).members
    }
    assert shown == {
        'web-1': MemberState.LOST,
        'web-2': MemberState.PLANNED,
        'db': MemberState.LOST,
    }
    group = described()
    assert place(planner, a_change(group)).plan is None  # what is not to be healed stays
    answer = place(planner, a_change(group, heal=True))
    assert hosts_of(answer).keys() == {'web-1', 'db'}
    assert dead.isdisjoint(hosts_of(answer).values())
    assert answer.stayed == ['web-2']
    live = world.store.plans.load_reservations([GROUP])[GROUP]
    assert sorted(claim.member_name for claim in live) == ['db', 'web-1', 'web-1', 'web-2']
    view = planner.show(ShowGroupPlan(group=GROUP))
    assert {member.state for member in view.members} == {MemberState.PLANNED}
    # The guest of the lost host may be there again with it: it is not hidden.
    assert view.others == [store.claims.load_claim(by_name['web-1'].id).consumer]
    assert not any(world.audit().values())


@pytest.fixture
def healed(world, planner, first):
    """The web-1 that runs on a host which was lost, and has a place on another one."""
    before = places(world, GROUP)['web-1']
    created(world.store, before)
    world.hosts[before.host].confirm(before.id)
    for _ in range(4):
        world.turn(60)
        for name, host in world.hosts.items():
            if name != before.host:
                host.report()
    world.turn()
    assert place(planner, a_change(described(), heal=True)).plan is not None
    world.turn()
    return world.store.claims.load_claim(before.id)


def comes_back(world, guest):
    """The host of a guest reports, and that it runs."""
    world.hosts[guest.host].report(running=[Running(consumer=guest.consumer, claim_id=guest.id)])
    world.turn()


def a_create_of(name):
    request = a_request(group=GroupRef(uuid=GROUP, member=name))
    spec = msgspec.structs.replace(request.spec, resources={'VCPU': 1, 'MEMORY_MB': 1024})
    return msgspec.structs.replace(request, spec=spec)


def of_web_1(world):
    live = world.store.plans.load_reservations([GROUP])[GROUP]
    return [claim for claim in live if claim.member_name == 'web-1']


def test_a_guest_that_is_back_is_the_member_again_and_its_new_place_is_given_back(
    world, planner, healed
):
    comes_back(world, healed)
    view = planner.show(ShowGroupPlan(group=GROUP))
    member = {entry.name: entry for entry in view.members}['web-1']
    assert (member.state, member.claim_id) == (MemberState.RUNNING, healed.id)
    answer = world.select(a_create_of('web-1'))
    assert answer.outcome is Outcome.REFUSED
    assert f'as consumer {healed.consumer}, and runs' in answer.reason
    assert len(of_web_1(world)) == 2  # the place waits for whoever sees to the group
    changed = place(planner, a_change(described()))
    assert 'web-1' in changed.stayed and changed.plan is None
    assert [claim.id for claim in of_web_1(world)] == [healed.id]
    assert planner.show(ShowGroupPlan(group=GROUP)).others == []
    assert not any(world.audit().values())


def test_a_guest_that_is_back_after_another_was_created_is_named_beside_it(world, planner, healed):
    assert world.select(a_create_of('web-1')).outcome is Outcome.PLACED
    comes_back(world, healed)
    view = planner.show(ShowGroupPlan(group=GROUP))
    member = {entry.name: entry for entry in view.members}['web-1']
    assert member.state is MemberState.CREATED and member.claim_id != healed.id
    assert view.others == [healed.consumer]
    answer = world.select(a_create_of('web-1'))
    assert answer.outcome is Outcome.REFUSED  # never a third


def test_a_guest_that_is_back_can_be_replaced(world, planner, healed):
    comes_back(world, healed)
    answer = place(planner, a_change(described(), replace=['web-1']))
    assert hosts_of(answer).keys() == {'web-1'}
    assert sorted(claim.is_free_reservation for claim in of_web_1(world)) == [False, True]
    view = planner.show(ShowGroupPlan(group=GROUP))
    assert {member.name: member.state for member in view.members}['web-1'] is MemberState.PLANNED
    assert view.others == [healed.consumer]


def test_a_guest_that_was_replaced_by_name_is_no_member_though_its_host_answers(
    world, planner, first
):
    before = places(world, GROUP)['web-1']
    created(world.store, before)
    world.hosts[before.host].confirm(before.id)
    world.turn()
    place(planner, a_change(described(), replace=['web-1']))
    place(planner, a_change(described(a_member('web', 3), a_member('db'))))  # and is none later
    view = planner.show(ShowGroupPlan(group=GROUP))
    member = {entry.name: entry for entry in view.members}['web-1']
    assert member.state is MemberState.PLANNED
    assert view.others == [world.store.claims.load_claim(before.id).consumer]
    world.turn()
    assert world.select(a_create_of('web-1')).outcome is Outcome.PLACED


def test_one_is_moved_that_is_named(world, planner, first):
    before = hosts(world)
    answer = place(planner, a_change(described(), replace=['db']))
    assert hosts_of(answer).keys() == {'db'}
    assert {n: h for n, h in hosts(world).items() if n != 'db'} == {
        n: h for n, h in before.items() if n != 'db'
    }


@pytest.mark.parametrize(
    ('change', 'field'),
    [
        ({'replace': ['web-9']}, 'request.replace[0]'),
        ({'revision': 7}, 'request.revision'),
    ],
)
def test_what_a_change_names_that_is_not_there(planner, first, change, field):
    assert refused(planner, a_change(described(), **change)).kwargs['field'] == field


def test_a_change_of_a_group_without_a_plan(planner):
    assert isinstance(refused(planner, a_change(described())), exceptions.NotFound)


def test_two_changes_of_one_revision_do_not_both_happen(world, planner, first):
    place(planner, a_change(described(a_member('web', 3), a_member('db')), revision=1))
    late = a_change(described(a_member('web', 4), a_member('db')), revision=1)
    assert refused(planner, late).kwargs['field'] == 'request.revision'


def test_a_repeated_change_is_one(world, planner, first):
    change = a_change(described(a_member('web', 4), a_member('db')))
    assert place(planner, change) == place(planner, change)
    assert world.store.plans.load_group_plan(GROUP).revision == 2


# -- shown, held, given back --------------------------------------------------------------
def test_a_plan_is_shown_with_its_members_and_where_they_are(world, planner, first):
    by_name = places(world, GROUP)
    created(world.store, by_name['web-1'])
    created(world.store, by_name['db'])
    world.hosts[by_name['db'].host].confirm(by_name['db'].id)
    view = planner.show(ShowGroupPlan(group=GROUP, check=True))
    states = {member.name: member.state for member in view.members}
    assert states == {
        'web-1': MemberState.CREATED,
        'web-2': MemberState.PLANNED,
        'db': MemberState.RUNNING,
    }
    assert [member.name for member in view.members] == ['web-1', 'web-2', 'db']
    assert view.violated == [] and view.others == []
    assert view.decided == first
    assert view.members[2].lease_seconds is None and view.members[1].lease_seconds > 3000


def test_a_place_whose_lease_ends_is_expired(world, planner):
    place(planner, a_plan_request(described(), lease_seconds=30))
    for _ in range(6):
        world.turn(20)
    view = planner.show(ShowGroupPlan(group=GROUP))
    assert {member.state for member in view.members} == {MemberState.EXPIRED}
    with pytest.raises(exceptions.Refused, match='no lease can be extended'):
        planner.extend(ExtendGroupPlan(group=GROUP, seconds=600))
    assert planner.show(ShowGroupPlan(group=GROUP)).lease_seconds == 0
    answer = place(planner, a_change(described()))
    assert hosts_of(answer).keys() == {'web-1', 'web-2', 'db'}


def test_a_plan_is_held_longer_and_at_most_as_long_as_may_be(world, planner, first):
    extended = planner.extend(ExtendGroupPlan(group=GROUP, seconds=7200))
    assert len(extended['claims']) == 3 and extended['lease_seconds'] == 7200
    view = planner.show(ShowGroupPlan(group=GROUP))
    assert view.lease_seconds == pytest.approx(7200, abs=5)
    assert planner.extend(ExtendGroupPlan(group=GROUP, seconds=604_800))['lease_seconds'] == 86_400


def test_a_plan_is_released_and_who_runs_stays(world, planner, first):
    by_name = places(world, GROUP)
    created(world.store, by_name['db'])
    world.hosts[by_name['db'].host].confirm(by_name['db'].id)
    planner.release(ReleaseGroupPlan(group=GROUP, reason='no longer wanted'))
    assert hosts(world).keys() == {'db'}
    with pytest.raises(exceptions.NotFound):
        planner.show(ShowGroupPlan(group=GROUP))
    # Planned again the one that runs is one of its members.
    answer = place(planner, a_plan_request(described()))
    assert answer.stayed == ['db'] and hosts_of(answer).keys() == {'web-1', 'web-2'}


@pytest.mark.parametrize('message', [ShowGroupPlan, ExtendGroupPlan, ReleaseGroupPlan])
def test_a_plan_of_another_project_is_not_there(planner, first, message):
    fields = {'seconds': 600} if message is ExtendGroupPlan else {}
    verb = {ShowGroupPlan: 'show', ExtendGroupPlan: 'extend', ReleaseGroupPlan: 'release'}[message]
    for group in (GROUP, new_uuid()):
        with pytest.raises(exceptions.NotFound):
            getattr(planner, verb)(message(group=group, only_project='p2', **fields))
    change = a_change(described(), only_project='p2')
    assert isinstance(refused(planner, change), exceptions.NotFound)
