# SPDX-License-Identifier: Apache-2.0
"""The audit finds each planted violation, and nothing on a clean store."""

import pytest

from gantt.core.messages.request import Purpose
from gantt.core.records.audit_remedies import remedy_of
from tests.builders import CLEAN, a_draft, a_guest, a_host, claimed, new_uuid, report_outcome
from tests.plans import created, planned


@pytest.fixture
def claim(store, host):
    """A claim of two cores."""
    return claimed(store, a_draft().taking(host, vcpu=2))[0]


def only(store, kind):
    """The one line that the audit finds, under ``kind``; there is something to do about it."""
    findings = store.claims.audit()
    assert {name for name, lines in findings.items() if lines} == {kind}, findings
    assert all(remedy_of(kind, line) is not None for line in findings[kind]), findings
    return findings[kind][0]


def test_a_store_that_was_used_honestly_is_clean(store, host, claim):
    other = a_host('cmp-2').on(store)
    host.confirm(claim)
    move = {'purpose': 'resize', 'move_id': new_uuid()}
    report_outcome(store, a_draft().taking(other, claim.consumer, **move))
    report_outcome(store, a_draft().taking(host, lifecycle='api'))
    report_outcome(store, a_draft().leased(-1).taking(other))
    store.requests.cancel_request(new_uuid(), '')
    host.report([claim, a_guest(new_uuid(), vcpu=20)])
    other.send(other.says().with_room(vcpu=1))
    assert host.row.over_committed and other.row.over_committed
    assert store.claims.audit() == CLEAN


def test_use_above_capacity_without_a_flag(store, host, claim, damage):
    damage.shrink(host, vcpu=1)
    line = only(store, 'over_commit')
    assert 'cmp-1' in line and 'VCPU' in line


def test_a_counter_below_the_sum_of_its_claims(store, host, claim, damage):
    damage.set_used(host, vcpu=1)
    assert 'cmp-1' in only(store, 'over_commit')


def test_a_counter_above_the_sum_of_its_claims(store, host, claim, damage):
    damage.set_used(host, vcpu=3)
    assert 'cmp-1' in only(store, 'over_commit')


def test_a_placed_request_whose_claim_is_gone(store, host, claim, damage):
    damage.lose(claim)
    assert claim.request_id in only(store, 'lost')


def test_a_live_claim_whose_host_is_gone(store, host, claim, damage):
    damage.forget_host(host)
    assert claim.id in only(store, 'lost')


def test_a_lease_that_nobody_swept(store, host, claim, damage):
    damage.age(claim, 1000)
    assert claim.id in only(store, 'leaked')


def test_a_confirmed_claim_that_no_report_ends(store, host, claim, damage):
    host.confirm(claim)
    damage.set_lifecycle(claim, 'plan')
    [line] = store.claims.audit()['leaked']
    assert line.startswith(f'claim {claim.id} of {claim.consumer}: nothing ends it: confirmed')


def test_a_reserved_claim_without_a_lease(store, host, claim, damage):
    damage.set_lifecycle(claim, 'hold', lease=False)
    [line] = store.claims.audit()['leaked']
    assert line.endswith('nothing ends it: reserved, without a lease')


def test_what_its_writer_ends_is_no_leak(store, host):
    written = claimed(store, a_draft().taking(host, lifecycle='api'))[0]
    host.confirm(written)
    assert store.claims.audit() == CLEAN


def test_a_lease_that_ran_out_just_now_is_no_leak(store, host, claim, damage):
    damage.age(claim, 125)
    assert store.claims.audit() == CLEAN


def test_two_live_claims_of_one_consumer_for_one_purpose(store, host, claim, damage):
    damage.double(claim, new_uuid(), request_id=new_uuid())
    assert claim.consumer in only(store, 'doubled')


def test_two_open_destinations_of_one_move(store, host, damage):
    target = claimed(store, a_draft().taking(host, vcpu=2, purpose='resize'))[0]
    damage.double(target, new_uuid(), request_id=new_uuid(), purpose=Purpose.MIGRATE)
    assert target.consumer in only(store, 'doubled')


def test_a_guest_found_on_another_host_while_its_own_is_silent_is_no_double(store, host, claim):
    other = a_host('cmp-2').on(store)
    host.confirm(claim)
    other.report([a_guest(claim.consumer, vcpu=2)])
    assert len([c for c in store.claims.list_claims(consumer=claim.consumer) if c.is_live]) == 2
    assert store.claims.audit() == CLEAN


def test_two_live_claims_for_one_member(store, host, claim, damage):
    damage.double(claim, new_uuid(), consumer=new_uuid())
    assert claim.request_id in only(store, 'doubled')


def test_an_ended_claim_that_is_counted(store, host, claim, damage):
    damage.end_without_counting(claim)
    assert only(store, 'leaked') == (
        f'claim {claim.id} of {claim.consumer}: released, and counted as live'
    )


def test_a_live_claim_that_is_not_counted(store, host, claim, damage):
    damage.leave_out(claim)
    assert only(store, 'lost') == (
        f'claim {claim.id} of {claim.consumer}: reserved, and not counted as live'
    )


# -- places of plans ----------------------------------------------------------------------
@pytest.fixture
def place(store, host):
    """A place of two cores of a planned group."""
    return planned(store, {'web-1': host}, vcpu=2)['web-1']


@pytest.mark.parametrize('taken', [False, True])
def test_a_place_without_a_plan(store, place, damage, taken):
    if taken:
        created(store, place)
    damage.forget_plan(place.group)
    line = only(store, 'leaked')
    assert line.startswith(f'claim {place.id} ')
    assert line.endswith(f': a place of group {place.group}, without a plan')


@pytest.mark.parametrize('taken', [False, True])
def test_a_place_that_is_held_longer_than_its_plan(store, place, damage, taken):
    if taken:
        created(store, place)
    damage.shorten_plan(place.group, 100)
    assert only(store, 'leaked').endswith(
        f': a place that is held 100 s longer than the plan of group {place.group}'
    )


def test_a_guest_whose_claim_goes_back_to_a_plan(store, host, place, damage):
    created(store, place)
    taken = store.claims.load_claim(place.id)
    host.confirm(place)
    damage.store_former_reservation(taken)
    assert 'confirmed, of lifecycle host, and goes back to a plan' in only(store, 'lost')


def test_two_places_of_one_member(store, host, place, damage):
    damage.double(place, new_uuid(), consumer=new_uuid(), member=1)
    assert only(store, 'doubled') == f"group {place.group}: 2 live claims for member 'web-1'"


def test_plans_and_their_places_are_no_findings(store, host, place):
    draft = created(store, place)
    assert store.claims.audit() == CLEAN
    store.requests.cancel_request(draft.id, '')
    store.requests.cancel_request(place.request_id, '')
    assert store.claims.audit() == CLEAN
