# SPDX-License-Identifier: Apache-2.0
"""Claims on hosts of an unmodified Nova: what its casts prove, and what they do not."""

import msgspec
import pytest

from gantt.core import nova_host
from gantt.core.claim import Claim, State
from gantt.core.host import HostRow
from gantt.core.nova_events import Guest
from gantt.core.request import Lifecycle, Purpose
from tests.builders import new_uuid, uuid_of

HERE = HostRow(id=1, uuid=uuid_of('here'), name='cmp-1', epoch=1, speaks_for='nova')
THERE = HostRow(id=2, uuid=uuid_of('there'), name='cmp-2', epoch=1, speaks_for='nova')
GUEST = uuid_of('guest')


def a_claim(host=HERE, state='reserved', purpose='create', at=0.0, **fields):
    return Claim(
        id=new_uuid(), request_id=new_uuid(), consumer=GUEST, provider_id=host.id, host=host.name,
        state=State(state), purpose=Purpose(purpose), allocations={host.id: {'VCPU': 2}},
        created_at=at, **fields,
    )  # fmt: skip


class Nova:
    """Keeps the claims as a store would, and casts."""

    def __init__(self, *claims):
        self.claims = {claim.id: claim for claim in claims}
        self.unclaimed = {1: [], 2: []}
        self.now = 100.0

    def take(self, effect):
        for claim in effect.claims:
            self.claims[claim.id] = claim
        return effect

    def sync(self, host, *present, times=1):
        for _ in range(times):
            self.now += 120
            claims = list(self.claims.values())
            effect = nova_host.sync(host, claims, present, self.now, self.unclaimed[host.id])
            self.unclaimed[host.id] = effect.unclaimed
            self.take(effect)
        return effect

    def update(self, host, **fields):
        guest = Guest(consumer=GUEST, resources={'VCPU': 3}, **fields)
        return self.take(nova_host.update(host, list(self.claims.values()), guest, self.now))

    def delete(self, host):
        return self.take(nova_host.delete(host, list(self.claims.values()), GUEST, self.now))

    def state(self, claim):
        return self.claims[claim.id].state

    def live(self):
        return [claim for claim in self.claims.values() if claim.is_live]


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
    first = nova_host.update(HERE, [], Guest(consumer=GUEST), 5.0).adopted
    again = nova_host.update(HERE, [], Guest(consumer=GUEST), 9.0).adopted
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
    [('live_migrate', 'released'), ('evacuate', 'released'), ('resize', 'confirmed'),
     ('migrate', 'confirmed')],
)  # fmt: skip
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
    found = nova_host.overdue_moves([source, target], now=100.0, seconds=60.0)
    assert [(m.source.id, m.target.id) for m in found] == [(source.id, target.id)]


def test_a_second_resize_moves_from_where_the_first_one_led():
    first = a_claim(THERE, 'confirmed', 'resize', at=1.0, move_id=new_uuid())
    second = a_claim(HERE, 'reserved', 'resize', at=2.0, move_id=new_uuid())
    move = nova_host.open_move([second, first])
    assert (move.source.id, move.target.id) == (first.id, second.id)
