# SPDX-License-Identifier: Apache-2.0
"""Members of a group whose hosts are lost, and come back: who is the member, and who is beside."""

import pytest

from gantt.core.messages.report import Running
from gantt.core.records.audit_remedies import remedy_of
from gantt.groups.model.group_answer import MemberState
from gantt.groups.model.place_group import ExtendGroupPlan, ReleaseGroupPlan, ShowGroupPlan
from tests.planner import a_change, a_description, a_plan_request, a_planner, place, places
from tests.plans import created
from tests.world import World, sqlite_store

GROUP = '7b1d2c52-0b7e-4f0e-8a55-0d8f6a3e9b02'


@pytest.fixture(params=['memory', 'sqlite'])
def world(request):
    return World(hosts=8, store=None if request.param == 'memory' else sqlite_store)


@pytest.fixture
def planner(world):
    return a_planner(world)


def described(**fields):
    return a_description(uuid=GROUP, **fields)


def of(world, name):
    """The live claims of a member, the first that was made first."""
    live = world.store.plans.load_reservations([GROUP])[GROUP]
    return sorted(
        (claim for claim in live if claim.member_name == name), key=lambda claim: claim.created_at
    )


def runs(world, claim):
    """A create takes the place over, and its host confirms it."""
    created(world.store, claim)
    stored = world.store.claims.load_claim(claim.id)
    host = world.hosts[claim.host]
    host.confirm(claim.id)
    host.running[claim.id] = Running(consumer=stored.consumer, claim_id=claim.id)
    world.turn()
    stored = world.store.claims.load_claim(claim.id)
    assert stored.state == 'confirmed'
    return stored


def lost(world, *dead):
    """So long that hosts count as down which say nothing."""
    for _ in range(4):
        world.turn(60)
        for name, host in world.hosts.items():
            if name not in dead:
                host.report()
    world.turn()


def back(world, claim):
    """The host of a guest reports, and that it runs."""
    world.hosts[claim.host].report()
    world.turn()


def shown(planner, name):
    planner.cache.fetch()
    view = planner.show(ShowGroupPlan(group=GROUP))
    return {member.name: member for member in view.members}[name]


@pytest.fixture
def guest(world, planner):
    """The guest of web-1."""
    place(planner, a_plan_request(described()))
    return runs(world, places(world, GROUP)['web-1'])


def test_a_member_whose_second_host_is_lost_too_is_healed_again(world, planner, guest):
    lost(world, guest.host)
    place(planner, a_change(described(), heal=True))
    second = of(world, 'web-1')[-1]
    lost(world, guest.host, second.host)
    answer = place(planner, a_change(described(), heal=True))
    assert [member.name for member in answer.plan.members] == ['web-1']
    assert world.store.claims.load_claim(second.id).state == 'released'
    third = runs(world, of(world, 'web-1')[-1])
    lost(world, guest.host, second.host, third.host)
    assert place(planner, a_change(described(), heal=True)).plan is not None
    assert [claim.state for claim in of(world, 'web-1')] == ['confirmed', 'confirmed', 'reserved']
    assert shown(planner, 'web-1').state is MemberState.PLANNED


def test_of_two_guests_the_one_is_the_member_whose_host_answers(world, planner, guest):
    lost(world, guest.host)
    place(planner, a_change(described(), heal=True))
    second = runs(world, of(world, 'web-1')[-1])
    back(world, guest)
    lost(world, second.host)
    back(world, guest)
    member = shown(planner, 'web-1')
    assert (member.state, member.claim_id) == (MemberState.RUNNING, guest.id)
    assert place(planner, a_change(described(), heal=True)).plan is None  # it has a guest that runs
    back(world, second)
    assert shown(planner, 'web-1').claim_id == second.id


def test_who_replaces_a_member_by_name_gives_up_all_of_its_guests(world, planner, guest):
    lost(world, guest.host)
    place(planner, a_change(described(), heal=True))
    second = runs(world, of(world, 'web-1')[-1])
    back(world, guest)
    place(planner, a_change(described(), replace=['web-1']))
    assert shown(planner, 'web-1').state is MemberState.PLANNED
    view = planner.show(ShowGroupPlan(group=GROUP))
    assert view.others == sorted([guest.consumer, second.consumer])
    # And once more, as nobody has deleted them.
    place(planner, a_change(described(), replace=['web-1']))
    assert shown(planner, 'web-1').state is MemberState.PLANNED


def test_a_place_that_nobody_needs_is_not_held_longer(world, planner, guest):
    lost(world, guest.host)
    place(planner, a_change(described(), heal=True))
    spare = of(world, 'web-1')[-1]
    others = [claim for name in ('web-2', 'db') for claim in of(world, name)]
    assert spare.id in planner.extend(ExtendGroupPlan(group=GROUP, seconds=9000))['claims']
    held = {
        claim.id: world.store.claims.load_claim(claim.id).lease_until for claim in (spare, *others)
    }
    back(world, guest)
    planner.cache.fetch()
    extended = planner.extend(ExtendGroupPlan(group=GROUP, seconds=20_000))
    assert sorted(extended['claims']) == sorted(claim.id for claim in others)
    for claim in others:
        assert world.store.claims.load_claim(claim.id).lease_until > held[claim.id]
    assert world.store.claims.load_claim(spare.id).lease_until == held[spare.id]
    assert not any(world.audit().values())


# -- hosts that were removed ------------------------------------------------------------
def removed(world, claim):
    """An operator ends the claim, as the host is gone for good, and removes the host."""
    world.store.claims.force_release(claim.id, 'gone for good')
    world.store.hosts.remove_host(claim.host)
    world.turn()


def returns(world, claim, claim_id):
    """The host registers again, and reports the guest, with its claim or without."""
    host = world.hosts[claim.host]
    host.register()
    resources = {'VCPU': 1, 'MEMORY_MB': 1024}
    host.running[claim.id] = Running(
        consumer=claim.consumer, claim_id=claim_id, resources=resources
    )
    host.report()
    world.turn()


@pytest.fixture(params=['named', 'unnamed'])
def how(request):
    """Whether the host still knows which claim its guest had."""
    return request.param


def came_back(world, claim, how):
    removed(world, claim)
    returns(world, claim, claim.id if how == 'named' else None)


def test_the_guest_of_a_host_that_was_removed_is_the_member_again(world, planner, guest, how):
    removed(world, guest)
    assert shown(planner, 'web-1').state is MemberState.LOST
    returns(world, guest, guest.id if how == 'named' else None)
    member = shown(planner, 'web-1')
    assert (member.state, member.consumer) == (MemberState.RUNNING, guest.consumer)
    assert planner.show(ShowGroupPlan(group=GROUP)).others == []
    assert place(planner, a_change(described())).plan is None
    assert not any(world.audit().values())


def test_it_is_so_where_a_place_was_planned_instead(world, planner, guest, how):
    removed(world, guest)
    place(planner, a_change(described(), heal=True))
    returns(world, guest, guest.id if how == 'named' else None)
    assert shown(planner, 'web-1').consumer == guest.consumer
    place(planner, a_change(described()))
    assert [claim.consumer for claim in of(world, 'web-1')] == [guest.consumer]


def test_it_is_none_where_another_was_created(world, planner, guest, how):
    removed(world, guest)
    place(planner, a_change(described(), heal=True))
    second = runs(world, of(world, 'web-1')[-1])
    returns(world, guest, guest.id if how == 'named' else None)
    assert shown(planner, 'web-1').claim_id == second.id
    assert planner.show(ShowGroupPlan(group=GROUP)).others == [guest.consumer]


def test_it_is_none_where_it_was_replaced_by_name(world, planner, guest, how):
    place(planner, a_change(described(), replace=['web-1']))
    came_back(world, guest, how)
    assert shown(planner, 'web-1').state is MemberState.PLANNED
    assert planner.show(ShowGroupPlan(group=GROUP)).others == [guest.consumer]


# -- the audit --------------------------------------------------------------------------
def twice(world):
    """What the audit says of members with two guests; it says nothing else."""
    audit = world.audit()
    lines = audit.pop('doubled')
    assert not any(audit.values())
    return lines


def test_the_audit_has_a_member_of_which_two_guests_run(world, planner, guest):
    lost(world, guest.host)
    place(planner, a_change(described(), heal=True))
    second = runs(world, of(world, 'web-1')[-1])
    assert twice(world) == []  # nobody knows that the first one runs
    world.turn(1)
    back(world, guest)
    (line,) = twice(world)
    assert line == (
        f"group {GROUP}: member 'web-1' has 2 guests: {guest.consumer} on {guest.host}, "
        f'{second.consumer} on {second.host}'
    )
    assert 'gantt group heal GROUP --replace MEMBER' in remedy_of('doubled', line).what


def test_what_it_says_to_do_helps(world, planner, guest):
    lost(world, guest.host)
    place(planner, a_change(described(), heal=True))
    second = runs(world, of(world, 'web-1')[-1])
    world.turn(1)
    back(world, guest)
    world.hosts[second.host].running.clear()  # it is deleted
    back(world, second)
    assert twice(world) == []
    assert shown(planner, 'web-1').claim_id == guest.id


def test_guests_that_were_given_up_by_name_are_no_finding(world, planner, guest):
    lost(world, guest.host)
    place(planner, a_change(described(), heal=True))
    runs(world, of(world, 'web-1')[-1])
    world.turn(1)
    back(world, guest)
    place(planner, a_change(described(), heal=True, replace=['web-1']))
    runs(world, of(world, 'web-1')[-1])
    world.turn(1)
    back(world, guest)
    assert len(of(world, 'web-1')) == 3 and twice(world) == []


def test_a_member_without_a_plan_any_more_is_no_finding(world, planner, guest):
    lost(world, guest.host)
    place(planner, a_change(described(), heal=True))
    runs(world, of(world, 'web-1')[-1])
    world.turn(1)
    back(world, guest)
    assert len(twice(world)) == 1
    planner.release(ReleaseGroupPlan(group=GROUP))
    assert twice(world) == []


def test_a_guest_of_a_removed_host_that_is_back_beside_another_is_a_finding(
    world, planner, guest, how
):
    removed(world, guest)
    place(planner, a_change(described(), heal=True))
    second = runs(world, of(world, 'web-1')[-1])
    world.turn(1)
    returns(world, guest, guest.id if how == 'named' else None)
    world.turn(1)
    back(world, second)
    (line,) = twice(world)
    assert guest.consumer in line and second.consumer in line
