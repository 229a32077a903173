# SPDX-License-Identifier: Apache-2.0
"""Claims on hosts of an unmodified Nova: facts that its casts prove, and those they do not."""

import msgspec
import pytest

from gantt.core.claims.claim import Claim, State
from gantt.core.messages.request import Lifecycle, Purpose
from gantt.core.resources.host import HostRow
from gantt.nova.model import host as nova_host
from gantt.nova.model.events import GuestLocation, NovaGuest
from tests.builders import new_uuid, uuid_of

HERE = HostRow(id=1, uuid=uuid_of('here'), name='cmp-1', epoch=1, reporter='nova')
THERE = HostRow(id=2, uuid=uuid_of('there'), name='cmp-2', epoch=1, reporter='nova')
GUEST = uuid_of('guest')


def a_claim(host=HERE, state='reserved', purpose='create', at=0.0, **fields):
    return Claim(
        id=new_uuid(),
        request_id=new_uuid(),
        consumer=GUEST,
        provider_id=host.id,
        host=host.name,
        state=State(state),
        purpose=Purpose(purpose),
        allocations={host.id: {'VCPU': 2}},
        created_at=at,
        **fields,
    )


class Nova:
    """A Nova that keeps the claims as a store would, and casts."""

    def __init__(self, *claims):
        self.claims = {claim.id: claim for claim in claims}
        self.unclaimed = {1: [], 2: []}
        self.now = 100.0

    def take(self, effect):
        for claim in effect.claims:
            self.claims[claim.id] = claim
        return effect

    def sync(self, host, *present, times=1, told=()):
        for _ in range(times):
            self.now += 120
            claims = list(self.claims.values())
            effect = nova_host.apply_guest_list(
                host, claims, present, self.now, self.unclaimed[host.id], told
            )
            self.unclaimed[host.id] = effect.unclaimed
            self.take(effect)
        return effect

    def update(self, host, **fields):
        guest = NovaGuest(consumer=GUEST, resources={'VCPU': 3}, **fields)
        return self.take(nova_host.apply_update(host, list(self.claims.values()), guest, self.now))

    def delete(self, host):
        return self.take(nova_host.apply_delete(host, list(self.claims.values()), GUEST, self.now))

    def state(self, claim):
        return self.claims[claim.id].state

    def live(self):
        return [claim for claim in self.claims.values() if claim.is_live]


# -- lists with more fields -------------------------------------------------------------------
def told(**fields):
    return [NovaGuest(consumer=GUEST, **{'resources': {'VCPU': 3}, 'flavor': 'm1'} | fields)]


def test_a_guest_that_is_told_what_it_takes_is_adopted_by_its_first_list():
    nova = Nova()
    group = new_uuid()
    nova.sync(HERE, GUEST, told=told(group=group, project_id='p'))
    (claim,) = nova.live()
    assert claim.adopted
    assert claim.state == 'confirmed'
    assert claim.allocations == {HERE.id: {'VCPU': 3}}
    assert (claim.flavor, claim.group, claim.project_id) == ('m1', group, 'p')


def test_one_list_confirms_no_claim_whatever_it_tells():
    nova = Nova(claim := a_claim())
    nova.sync(HERE, GUEST, told=told())
    assert nova.state(claim) == 'reserved'
    assert nova.live()[0].allocations == {HERE.id: {'VCPU': 2}}


def test_what_an_adopted_guest_takes_follows_what_is_told():
    nova = Nova()
    nova.sync(HERE, GUEST, told=told())
    nova.sync(HERE, GUEST, told=told(resources={'VCPU': 5}))
    assert [claim.allocations for claim in nova.live()] == [{HERE.id: {'VCPU': 5}}]
    nova.sync(HERE, GUEST, told=told(resources={}))
    assert [claim.allocations for claim in nova.live()] == [{HERE.id: {'VCPU': 5}}]


def test_while_it_moves_an_adopted_guest_keeps_what_it_took():
    source = a_claim(state='confirmed', adopted=True)
    nova = Nova(source, a_claim(THERE, purpose='resize', at=50.0))
    nova.sync(HERE, GUEST, told=told())
    assert nova.claims[source.id].allocations == {HERE.id: {'VCPU': 2}}


# -- outside moves --------------------------------------------------------------------------
def test_one_sync_is_a_hint_and_two_are_a_fact():
    nova = Nova(claim := a_claim())
    assert nova.sync(HERE, GUEST).confirmed == []
    assert nova.sync(HERE, GUEST).confirmed == [claim.id]


def test_two_syncs_must_follow_each_other():
    nova = Nova(claim := a_claim())
    nova.sync(HERE, GUEST)
    nova.sync(HERE)
    assert nova.sync(HERE, GUEST).confirmed == []
    assert nova.state(claim) == 'reserved'


def test_an_update_confirms_at_once():
    nova = Nova(claim := a_claim())
    assert nova.update(HERE).confirmed == [claim.id]


def test_an_update_while_it_moves_proves_nothing():
    nova = Nova(a_claim())
    assert nova.update(HERE, moving=True).claims == []


def test_absence_never_releases_a_reserved_claim():
    nova = Nova(claim := a_claim())
    nova.sync(HERE, times=9)
    assert nova.state(claim) == 'reserved'


def test_three_absences_in_a_row_release_a_confirmed_claim():
    nova = Nova(claim := a_claim(state='confirmed'))
    nova.sync(HERE, times=2)
    nova.sync(HERE, GUEST)
    nova.sync(HERE, times=2)
    assert nova.state(claim) == 'confirmed'
    assert nova.sync(HERE).released == [claim.id]


def test_a_quiet_host_is_not_written_to():
    nova = Nova(a_claim(state='confirmed'))
    nova.sync(HERE, GUEST, times=2)
    assert nova.sync(HERE, GUEST).claims == []


def test_syncs_of_another_host_say_nothing_about_a_claim_here():
    nova = Nova(claim := a_claim(state='confirmed'))
    nova.sync(THERE, times=9)
    assert nova.state(claim) == 'confirmed'


@pytest.mark.parametrize(('before', 'after'), [('confirmed', 'released'), ('reserved', 'reserved')])
def test_a_delete_releases_what_is_confirmed(before, after):
    nova = Nova(claim := a_claim(state=before))
    nova.delete(HERE)
    assert nova.state(claim) == after


def test_a_delete_on_another_host_changes_nothing():
    nova = Nova(a_claim(state='confirmed'))
    assert nova.delete(THERE).claims == []


def test_claims_of_the_allocation_api_are_ended_by_nobody_here():
    nova = Nova(claim := a_claim(state='confirmed', lifecycle=Lifecycle.API))
    nova.sync(HERE, times=5)
    nova.delete(HERE)
    assert nova.state(claim) == 'confirmed'


# -- adoption ----------------------------------------------------------------------------------
def test_a_guest_without_a_claim_is_adopted_by_its_second_sync():
    nova = Nova()
    effect = nova.sync(HERE, GUEST)
    assert (effect.claims, effect.unclaimed) == ([], [GUEST])
    effect = nova.sync(HERE, GUEST)
    assert len(effect.adopted) == 1
    assert nova.sync(HERE, GUEST).adopted == []
    assert [c.adopted for c in nova.live()] == [True]


def test_an_update_adopts_with_what_the_guest_takes():
    nova = Nova()
    nova.update(HERE)
    assert nova.live()[0].allocations == {1: {'VCPU': 3}}


def test_what_an_adopted_guest_takes_is_learned_from_its_update():
    nova = Nova()
    nova.sync(HERE, GUEST, times=2)
    assert nova.live()[0].allocations == {}
    effect = nova.update(HERE)
    assert (effect.adopted, effect.confirmed) == ([], [])
    assert nova.live()[0].allocations == {1: {'VCPU': 3}}


def test_a_guest_that_turns_up_elsewhere_is_adopted_with_what_it_takes():
    nova = Nova(a_claim(state='confirmed'))
    nova.sync(THERE, GUEST, times=2)
    assert sorted(c.host for c in nova.live()) == ['cmp-1', 'cmp-2']
    nova.sync(HERE, times=3)
    assert [(c.host, c.allocations) for c in nova.live()] == [('cmp-2', {2: {'VCPU': 2}})]


def test_the_same_cast_adopts_once_and_a_later_life_anew():
    nova = Nova()
    first = nova_host.apply_update(HERE, [], NovaGuest(consumer=GUEST), 5.0).adopted
    again = nova_host.apply_update(HERE, [], NovaGuest(consumer=GUEST), 9.0).adopted
    assert first == again
    nova.update(HERE)
    nova.delete(HERE)
    second = nova.update(HERE).adopted
    assert second and second != first


# -- moves -----------------------------------------------------------------------------------
def a_move(purpose, target='reserved', host=THERE):
    source = a_claim(state='confirmed', at=1.0)
    return source, a_claim(host, target, purpose, at=2.0, move_id=new_uuid())


@pytest.mark.parametrize('purpose', ['resize', 'migrate', 'live_migrate', 'evacuate'])
def test_while_a_move_is_open_absence_ends_neither_claim(purpose):
    source, target = a_move(purpose)
    nova = Nova(source, target)
    nova.sync(HERE, times=9)
    nova.sync(THERE, times=9)
    assert (nova.state(source), nova.state(target)) == ('confirmed', 'reserved')


@pytest.mark.parametrize('purpose', ['resize', 'live_migrate'])
def test_while_a_move_is_open_neither_claim_expires(purpose):
    source, target = a_move(purpose)
    assert not nova_host.may_expire(target, [source, target])
    assert nova_host.may_expire(target, [msgspec.structs.replace(source, state='released'), target])


def test_an_update_in_a_live_migration_comes_from_the_source_and_proves_nothing():
    nova = Nova(*a_move('live_migrate'))
    assert nova.update(HERE).claims == []
    assert nova.update(THERE).claims == []


def test_presence_at_the_destination_confirms_its_claim():
    source, target = a_move('live_migrate')
    nova = Nova(source, target)
    nova.sync(THERE, GUEST, times=2)
    assert (nova.state(source), nova.state(target)) == ('confirmed', 'confirmed')


@pytest.mark.parametrize(
    ('purpose', 'after'),
    [
        ('live_migrate', 'released'),
        ('evacuate', 'released'),
        ('resize', 'confirmed'),
        ('migrate', 'confirmed'),
    ],
)
def test_three_absences_end_the_source_only_where_nobody_deletes_it(purpose, after):
    source, target = a_move(purpose)
    nova = Nova(source, target)
    nova.sync(THERE, GUEST, times=2)
    nova.sync(HERE, times=3)
    assert (nova.state(source), nova.state(target)) == (after, 'confirmed')


def test_a_confirmed_resize_deletes_at_the_source():
    source, target = a_move('resize')
    nova = Nova(source, target)
    nova.sync(THERE, GUEST, times=2)
    nova.delete(HERE)
    assert (nova.state(source), nova.state(target)) == ('released', 'confirmed')


def test_a_reverted_resize_says_nothing_and_is_seen_by_both_hosts():
    source, target = a_move('resize')
    nova = Nova(source, target)
    nova.sync(THERE, GUEST, times=2)
    nova.sync(HERE, times=2)
    nova.sync(THERE, times=3)
    assert nova.state(target) == 'confirmed'
    nova.sync(HERE, GUEST)
    nova.sync(THERE)
    assert (nova.state(source), nova.state(target)) == ('confirmed', 'released')


def test_a_target_that_was_never_reached_is_not_taken_for_a_revert():
    source, target = a_move('resize')
    nova = Nova(source, target)
    nova.sync(HERE, GUEST, times=3)
    nova.sync(THERE, times=9)
    assert nova.state(target) == 'reserved'


def test_a_delete_during_a_move_on_one_host_ends_only_the_old_claim():
    source, target = a_move('resize', 'confirmed', HERE)
    nova = Nova(source, target)
    nova.delete(HERE)
    assert (nova.state(source), nova.state(target)) == ('released', 'confirmed')


def test_presence_on_one_host_does_not_tell_which_claim_of_a_move_is_used():
    source, target = a_move('resize', host=HERE)
    nova = Nova(source, target)
    nova.sync(HERE, GUEST, times=5)
    assert nova.state(target) == 'reserved'
    nova.delete(HERE)
    nova.sync(HERE, GUEST, times=2)
    assert (nova.state(source), nova.state(target)) == ('released', 'confirmed')


def test_a_move_that_stays_open_is_found_and_not_ended():
    source, target = a_move('resize')
    assert nova_host.overdue_moves([source, target], now=50.0, seconds=60.0) == []
    overdue = nova_host.overdue_moves([source, target], now=100.0, seconds=60.0)
    assert [(m.source.id, m.target.id) for m in overdue] == [(source.id, target.id)]


def test_a_second_resize_moves_from_where_the_first_one_led():
    first = a_claim(THERE, 'confirmed', 'resize', at=1.0, move_id=new_uuid())
    second = a_claim(HERE, 'reserved', 'resize', at=2.0, move_id=new_uuid())
    move = nova_host.open_move([second, first])
    assert (move.source.id, move.target.id) == (first.id, second.id)


def test_an_update_from_the_destination_of_a_resize_confirms_its_claim():
    source, target = a_move('resize')
    nova = Nova(source, target)
    assert nova.update(THERE, moving=True).confirmed == [target.id]
    assert nova.update(HERE, moving=True).claims == []


def test_a_target_whose_source_left_has_a_lease_of_its_own_again():
    source, target = a_move('resize')
    nova = Nova(source, target)
    nova.delete(HERE)
    assert nova.state(target) == 'reserved'
    assert nova.claims[target.id].lease_until == nova.now + nova_host.SEEN_LEASE_SECONDS


def test_what_a_late_word_has_made_is_no_source_of_a_move():
    arrived = a_claim(THERE, 'confirmed', 'resize', at=2.0, move_id=new_uuid())
    nova = Nova(arrived)
    nova.update(HERE)
    assert len(nova.live()) == 2
    nova.sync(HERE, times=3)
    assert [claim.id for claim in nova.live()] == [arrived.id]


def test_a_guest_that_is_adopted_at_its_source_moves_from_there():
    target = a_claim(THERE, 'reserved', 'live_migrate', at=2.0, move_id=new_uuid())
    nova = Nova(target)
    nova.sync(HERE, GUEST, times=2)
    assert len(nova.live()) == 2
    assert not nova_host.may_expire(target, nova.live())


def test_of_two_stays_on_one_host_the_newer_one_counts_once_it_is_confirmed():
    old, new = a_claim(state='confirmed', at=1.0), a_claim(purpose='unshelve', at=2.0)
    nova = Nova(old, new)
    assert nova.sync(HERE, GUEST).released == []
    assert nova.sync(HERE, GUEST).released == [old.id]
    assert nova.state(new) == 'confirmed'


# -- words about earlier stays -------------------------------------------------------------
@pytest.mark.parametrize(
    ('requested_at', 'at_once', 'after_a_list'),
    [
        (None, 'released', 'released'),
        (140.0, 'released', 'released'),
        (120.0, 'confirmed', 'released'),
        (95.0, 'confirmed', 'released'),
        (60.0, 'confirmed', 'confirmed'),
    ],
)
def test_a_delete_that_was_asked_for_before_the_claim(requested_at, at_once, after_a_list):
    nova = Nova(claim := a_claim(state='confirmed', at=100.0))
    nova.take(nova_host.apply_delete(HERE, nova.live(), GUEST, 200.0, requested_at, 30.0))
    assert nova.state(claim) == at_once
    nova.sync(HERE)
    assert nova.state(claim) == after_a_list


def test_a_delete_that_is_unclear_is_forgotten_where_the_guest_is_listed():
    nova = Nova(claim := a_claim(state='confirmed', at=100.0))
    nova.take(nova_host.apply_delete(HERE, nova.live(), GUEST, 200.0, 110.0, 30.0))
    nova.sync(HERE, GUEST)
    nova.sync(HERE, times=2)
    assert nova.state(claim) == 'confirmed'


def test_a_delete_from_before_a_move_does_not_end_its_source():
    source, target = a_move('resize', 'confirmed')
    nova = Nova(source, msgspec.structs.replace(target, created_at=500.0))
    nova.take(nova_host.apply_delete(HERE, nova.live(), GUEST, 600.0, 400.0, 30.0))
    assert nova.state(source) == 'confirmed'
    nova.take(nova_host.apply_delete(HERE, nova.live(), GUEST, 600.0, 510.0, 30.0))
    assert nova.state(source) == 'confirmed'
    # It may have been about this move: the next list without it decides.
    nova.sync(HERE)
    assert nova.state(source) == 'released'


# -- settled by locations --------------------------------------------------------------------
def settled(nova, **said):
    claims = list(nova.claims.values())
    return nova.take(
        nova_host.apply_location(claims, GuestLocation(consumer=GUEST, **said), nova.now)
    )


@pytest.mark.parametrize(
    ('host', 'here', 'there'),
    [
        ('cmp-1', 'confirmed', 'released'),
        ('cmp-2', 'released', 'confirmed'),
        (None, 'released', 'released'),
        ('cmp-9', 'released', 'released'),
    ],
)
def test_a_guest_has_a_claim_where_it_is_and_nowhere_else(host, here, there):
    source, target = a_move('resize')
    nova = Nova(source, target)
    settled(nova, host=host)
    assert (nova.state(source), nova.state(target)) == (here, there)


def test_of_two_claims_on_its_host_the_one_stays_that_takes_what_it_takes():
    source, target = a_move('resize', host=HERE)
    larger = msgspec.structs.replace(target, allocations={1: {'VCPU': 8}})
    for resources, stays in (({'VCPU': 2}, source), ({'VCPU': 8}, target), ({}, target)):
        nova = Nova(source, larger)
        settled(nova, host='cmp-1', resources=resources)
        assert [claim.id for claim in nova.live()] == [stays.id]


def test_claims_that_were_made_since_are_left_alone():
    source, target = a_move('live_migrate')
    nova = Nova(source, target)
    settled(nova, host='cmp-1', cutoff=1.5)
    assert len(nova.live()) == 2
