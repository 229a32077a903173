# SPDX-License-Identifier: Apache-2.0
"""Guests of planned groups that are found without a claim: which member they are again."""

import pytest

from gantt.core.claims.claim import guest_of
from gantt.core.messages.report import Running
from gantt.nova.model.events import GuestsUpdated, NovaCast, NovaGuest
from tests.builders import (
    CLEAN,
    a_draft,
    a_guest,
    a_host,
    amounts,
    claimed,
    generation_of,
    live,
    new_uuid,
    state_of,
)
from tests.plans import created, planned


@pytest.fixture
def guest(store, host):
    """The claim of the guest of web-1, which takes two cores."""
    place = planned(store, {'web-1': host}, project='p1', vcpu=2)['web-1']
    created(store, place)
    assert host.confirm(place)[0].outcome == 'ok'
    return store.claims.load_claim(place.id)


def members(store, guest):
    """Live claims of its group by consumer, with the member that each is."""
    claims = store.plans.load_reservations([guest.group])[guest.group]
    return {guest_of(claim): claim.member_name for claim in claims}


def test_it_is_the_member_again_that_its_claim_was_of(store, host, guest):
    store.claims.force_release(guest.id, 'by mistake')
    before = generation_of(store, guest.group)
    host.report([a_guest(guest)])
    (again,) = live(store)
    assert (again.consumer, again.member_name, again.group) == (
        guest.consumer,
        'web-1',
        guest.group,
    )
    assert (again.allocations, again.adopted) == (guest.allocations, True)
    assert generation_of(store, guest.group) > before  # its members are others than was planned
    assert store.claims.audit() == CLEAN


def test_it_is_so_where_its_host_was_removed_and_knows_no_claim(store, host, guest):
    store.claims.force_release(guest.id, 'the host is gone')
    store.hosts.remove_host(host.name)
    back = a_host(host.name).on(store)
    assert back.id != host.id
    back.report([a_guest(guest.consumer, vcpu=3), a_guest(other := new_uuid())])
    by_consumer = {claim.consumer: claim for claim in live(store)}
    again = by_consumer[guest.consumer]
    assert (again.member_name, again.group) == ('web-1', guest.group)
    assert (again.project_id, again.flavor) == (guest.project_id, guest.flavor)
    assert again.allocations == {back.id: amounts(vcpu=3)}  # what the host says
    assert (by_consumer[other].member_name, by_consumer[other].group) == (None, None)
    assert store.claims.audit() == CLEAN


def test_what_was_no_member_last_is_none(store, host, guest):
    store.claims.force_release(guest.id, 'deleted')
    later = claimed(store, a_draft().taking(host, guest.consumer))[0]
    store.claims.force_release(later.id, 'deleted as well')
    host.report([a_guest(guest.consumer)])
    assert [claim.member_name for claim in live(store)] == [None]


def test_another_guest_under_the_id_of_its_claim_is_not_it(store, host, guest):
    store.claims.force_release(guest.id, 'by mistake')
    host.report([Running(consumer=(other := new_uuid()), claim_id=guest.id)])
    assert members(store, guest) == {}
    assert [claim.consumer for claim in live(store)] == [other]


def test_it_is_so_on_hosts_that_nova_speaks_for(store, guest):
    store.claims.force_release(guest.id, 'its host is gone')
    assert state_of(store, guest) == 'released'
    nova_host = a_host('cmp-9').on(store, reporter='nova')
    word = GuestsUpdated(host=nova_host.name, guests=[NovaGuest(consumer=guest.consumer)])
    store.nova.apply_guest_events(
        [NovaCast(id=new_uuid(), requested_at=2_000_000_000.0, event=word)]
    )
    assert members(store, guest) == {guest.consumer: 'web-1'}


def test_it_is_no_member_of_a_group_that_nova_does_not_name(store, guest):
    store.claims.force_release(guest.id, 'its host is gone')
    nova_host = a_host('cmp-9').on(store, reporter='nova')
    named = NovaGuest(consumer=guest.consumer, group=new_uuid())
    word = GuestsUpdated(host=nova_host.name, guests=[named])
    store.nova.apply_guest_events(
        [NovaCast(id=new_uuid(), requested_at=2_000_000_000.0, event=word)]
    )
    assert members(store, guest) == {}
    assert [claim.member_name for claim in live(store)] == [None]


# -- a database that was put back ---------------------------------------------------------
@pytest.fixture
def place(store, host):
    """A place of two cores; the create that had it is forgotten, as the database was put back."""
    return planned(store, {'web-1': host}, project='p1', vcpu=2)['web-1']


def test_what_is_late_about_a_forgotten_create_leaves_its_place_free(store, host, place):
    assert [outcome.outcome for outcome in host.confirm(place)] == [
        'gone'
    ]  # its guest is not started
    host.refuse(place)
    host.release(place)
    host.report(pending=[Running(consumer=new_uuid(), claim_id=place.id)])
    host.report([])
    assert store.claims.load_claim(place.id).is_free_reservation
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('is_confirmed', [False, True])
def test_a_guest_of_a_forgotten_create_is_not_taken_for_that_of_the_next(
    store, host, place, is_confirmed
):
    """The next one has the claim of the same id; what its host says about it is of the first."""
    created(store, place, following := new_uuid())
    if is_confirmed:
        host.confirm(place)
        host.report([Running(consumer=following, claim_id=place.id)])
    host.report([Running(consumer=(first := new_uuid()), claim_id=place.id)])
    ended = store.claims.load_claim(place.id)
    assert (ended.state, ended.reason) == ('released', 'a guest runs in it')
    assert members(store, place) == {first: 'web-1'}
    (runs,) = live(store)
    assert (runs.allocations, runs.project_id) == (
        place.allocations,
        'p2' if is_confirmed else 'p1',  # what is known of it
    )
    assert host.row.used == {'VCPU': 2}
    assert store.claims.audit() == CLEAN
    host.report([Running(consumer=first, claim_id=place.id)])
    assert [claim.id for claim in live(store)] == [runs.id]


def test_a_late_report_ends_no_place_and_makes_no_member(store, host, place):
    strange = Running(consumer=new_uuid(), claim_id=place.id)
    late = host.says().listing([strange], [])
    assert host.report([]).outcome == 'applied'
    assert [outcome.outcome for outcome in host.send(late)] == ['stale']
    host.register()
    assert [outcome.outcome for outcome in host.send(late)] == ['gone']
    assert store.claims.load_claim(place.id).is_free_reservation
    assert members(store, place) == {place.consumer: 'web-1'}
    assert store.claims.audit() == CLEAN
