# SPDX-License-Identifier: Apache-2.0
"""What an unmodified Nova says of guests, folded by every store."""

import pytest

from gantt.core.claims.allocations import WantedAllocations
from gantt.nova.model.events import (
    GuestDeleted,
    GuestLocation,
    GuestsListed,
    GuestsUpdated,
    NovaCast,
    NovaGuest,
)
from tests.builders import CLEAN, a_draft, a_host, claimed, new_uuid, state_of

TIME = 2_000_000_000.0


class Nova:
    """Broadcasts in the name of hosts."""

    def __init__(self, store):
        self.store = store
        self.now = TIME

    def receive(self, *words, **said):
        self.now += 120
        casts = [NovaCast(id=new_uuid(), requested_at=self.now, event=word) for word in words]
        return self.store.nova.apply_guest_events(casts)

    def sync(self, host, *guests, times=1):
        for _ in range(times):
            result = self.receive(GuestsListed(host=host.name, consumers=list(guests)))
        return result

    def update(self, host, guest, **fields):
        return self.receive(
            GuestsUpdated(host=host.name, guests=[NovaGuest(consumer=guest, **fields)])
        )

    def delete(self, host, guest):
        return self.receive(GuestDeleted(host=host.name, consumer=guest))


@pytest.fixture
def nova(store):
    return Nova(store)


@pytest.fixture
def hosts(store):
    return [a_host(f'cmp-{n}').on(store, reporter='nova') for n in (1, 2)]


def live(store, guest):
    return sorted(
        (c.host, c.state.value, c.purpose.value)
        for c in store.claims.list_claims(consumer=guest)
        if c.is_live
    )


def moved(store, host, guest, lease=900, **fields):
    draft = a_draft().leased(lease)
    return claimed(store, draft.taking(host, guest, move_id=new_uuid(), **fields))[0]


def test_two_lists_confirm_and_three_without_it_release(store, nova, hosts):
    guest = new_uuid()
    claim = claimed(store, a_draft().taking(hosts[0], guest))[0]
    assert nova.sync(hosts[0], guest).confirmed == []
    result = nova.sync(hosts[0], guest)
    assert result.confirmed == [claim.id]
    assert [change.provider_id for change in result.hosts] == [hosts[0].id]
    assert nova.sync(hosts[0], times=2).released == []
    assert nova.sync(hosts[0]).released == [claim.id]
    assert hosts[0].row.used == {}
    assert hosts[0].row.reporter == 'nova'
    assert store.claims.audit() == CLEAN


def test_a_list_that_tells_more_adopts_at_once_and_follows(store, nova, hosts):
    guest, group = new_uuid(), new_uuid()
    for cpus in (2, 3):
        nova_guest = NovaGuest(consumer=guest, resources={'VCPU': cpus}, flavor='m1', group=group)
        word = GuestsListed(host='cmp-1', consumers=[guest], described=[nova_guest])
        nova.now += 120
        # It came to one scheduler, as a call.
        store.nova.apply_guest_events([NovaCast(requested_at=nova.now, event=word)])
        (claim,) = store.claims.list_claims(consumer=guest)
        assert (claim.adopted, claim.state, claim.flavor, claim.group) == (
            True,
            'confirmed',
            'm1',
            group,
        )
        assert claim.allocations == {hosts[0].id: {'VCPU': cpus}}
        assert hosts[0].row.used == {'VCPU': cpus}
    assert store.claims.audit() == CLEAN


def test_every_scheduler_hears_it_and_one_acts(store, nova, hosts):
    guest = new_uuid()
    claimed(store, a_draft().taking(hosts[0], guest))
    nova.update(hosts[0], guest)
    cast = NovaCast(
        id='one', requested_at=TIME + 999, event=GuestsListed(host='cmp-1', consumers=[])
    )
    for _ in range(5):
        store.nova.apply_guest_events([cast, cast])
    assert live(store, guest) == [('cmp-1', 'confirmed', 'create')]
    assert store.claims.list_claims(consumer=guest)[0].absences == 1


def test_a_list_that_is_older_than_the_last_one_does_not_count(store, nova, hosts):
    guest = new_uuid()
    claimed(store, a_draft().taking(hosts[0], guest))
    nova.update(hosts[0], guest)
    nova.sync(hosts[0], guest)
    for number in range(4):
        word = GuestsListed(host='cmp-1', consumers=[])
        store.nova.apply_guest_events(
            [NovaCast(id=new_uuid(), requested_at=nova.now - number, event=word)]
        )
    assert store.claims.list_claims(consumer=guest)[0].absences < 0


def test_a_list_of_a_clock_that_was_put_back_keeps_whom_it_names(store, nova, hosts, damage):
    guest, other = new_uuid(), new_uuid()
    nova.sync(hosts[0])
    claim, second = claimed(
        store, a_draft().leased(900).taking(hosts[0], guest).taking(hosts[0], other)
    )
    nova.update(hosts[0], other)
    nova.now += 240
    nova.sync(hosts[0], guest)
    nova.sync(hosts[0], guest)
    assert state_of(store, second) == 'confirmed'
    assert store.claims.load_claim(second.id).absences == 2
    third = claimed(store, a_draft().leased(900).taking(hosts[0], new_uuid()))[0]
    nova.now -= 1200
    for _ in range(8):
        damage.age(third, 600)
        result = nova.sync(hosts[0], other, third.consumer, new_uuid())
        assert (result.confirmed, result.released, result.adopted) == ([], [], [])
        assert store.claims.sweep(10).outcomes == []
    assert {state_of(store, reported) for reported in (claim, second)} == {'confirmed'}
    assert store.claims.load_claim(second.id).absences == 0
    assert state_of(store, third) == 'reserved'
    # Its clock has caught up.
    nova.now += 1200
    nova.sync(hosts[0], guest, other, third.consumer, times=2)
    assert state_of(store, third) == 'confirmed'
    assert store.claims.audit() == CLEAN


def test_a_list_that_was_begun_before_a_claim_became_what_it_is_ends_nothing(store, nova, hosts):
    guest = new_uuid()
    begun = claimed(store, a_draft().taking(hosts[0], new_uuid()))[0].created_at
    claimed(store, a_draft().taking(hosts[0], guest))
    nova.update(hosts[0], guest)
    for number in range(5):
        word = GuestsListed(host='cmp-1', consumers=[])
        store.nova.apply_guest_events(
            [NovaCast(id=new_uuid(), requested_at=begun - 600 + 120 * number, event=word)]
        )
    assert live(store, guest) == [('cmp-1', 'confirmed', 'create')]
    assert nova.sync(hosts[0], times=3).released
    # Of a clock that is hours behind nothing is known.
    second = claimed(store, a_draft().taking(hosts[1], guest))[0]
    nova.update(hosts[1], guest)
    for number in range(3):
        word = GuestsListed(host='cmp-2', consumers=[])
        store.nova.apply_guest_events(
            [NovaCast(id=new_uuid(), requested_at=begun - 9000 + number, event=word)]
        )
    assert state_of(store, second) == 'released'
    assert store.claims.audit() == CLEAN


def test_a_quiet_host_is_not_written_to(store, nova, hosts):
    guest = new_uuid()
    claimed(store, a_draft().taking(hosts[0], guest))
    nova.sync(hosts[0], guest, times=3)
    before = hosts[0].row.version
    assert nova.sync(hosts[0], guest).hosts == []
    assert hosts[0].row.version == before


def test_a_guest_without_a_claim_is_adopted_and_learns_what_it_takes(store, nova, hosts):
    guest = new_uuid()
    assert nova.sync(hosts[0], guest).adopted == []
    (adopted,) = nova.sync(hosts[0], guest).adopted
    assert store.claims.load_claim(adopted).allocations == {}
    nova.update(hosts[0], guest, resources={'VCPU': 3, 'CUSTOM_X': 1})
    assert store.claims.load_claim(adopted).allocations == {hosts[0].id: {'VCPU': 3, 'CUSTOM_X': 1}}
    assert hosts[0].row.used == {'VCPU': 3, 'CUSTOM_X': 1}
    # Nobody has said that it has any of that class.
    assert hosts[0].row.over_committed
    nova.delete(hosts[0], guest)
    nova.sync(hosts[0])
    assert live(store, guest) == []
    assert not hosts[0].row.over_committed
    assert store.claims.audit() == CLEAN


def test_a_batch_is_folded_in_its_order(store, nova, hosts):
    guest = new_uuid()
    word = GuestsUpdated(host='cmp-1', guests=[NovaGuest(consumer=guest, resources={'VCPU': 1})])
    gone = GuestDeleted(host='cmp-1', consumer=guest)
    nova.receive(word, gone, GuestsListed(host='cmp-2', consumers=[guest]))
    nova.receive(
        GuestsListed(host='cmp-2', consumers=[guest]), GuestsListed(host='?', consumers=[])
    )
    assert [row[0] for row in live(store, guest)] in (['cmp-2'], ['cmp-1', 'cmp-2'])
    assert store.claims.audit() == CLEAN


def test_while_a_move_is_open_no_lease_ends_its_claims(store, nova, hosts):
    guest = new_uuid()
    claimed(store, a_draft().taking(hosts[0], guest))
    nova.update(hosts[0], guest)
    nova.sync(hosts[1])
    target = moved(store, hosts[1], guest, lease=-1, purpose='live_migrate')
    for _ in range(3):
        assert store.claims.sweep(10).outcomes == []
    assert store.claims.load_claim(target.id).lease_until > target.lease_until
    assert len(live(store, guest)) == 2
    assert store.claims.audit() == CLEAN


def test_where_an_agent_of_ours_speaks_the_lease_ends_them(store):
    hosts = [a_host(f'cmp-{n}').on(store) for n in (1, 2)]
    guest = new_uuid()
    source = claimed(store, a_draft().taking(hosts[0], guest))[0]
    hosts[0].confirm(source)
    target = moved(store, hosts[1], guest, lease=-1, purpose='live_migrate')
    assert [outcome.claim_id for outcome in store.claims.sweep(10).outcomes] == [target.id]


def test_a_target_whose_source_left_has_a_lease_anew(store, nova, hosts):
    guest = new_uuid()
    claimed(store, a_draft().taking(hosts[0], guest))
    nova.update(hosts[0], guest)
    nova.sync(hosts[1])
    target = moved(store, hosts[1], guest, lease=-1, purpose='resize')
    nova.delete(hosts[0], guest)
    assert live(store, guest) == [('cmp-2', 'reserved', 'resize')]
    assert store.claims.sweep(10).outcomes == []
    nova.sync(hosts[1], guest, times=2)
    assert live(store, guest) == [('cmp-2', 'confirmed', 'resize')]
    assert store.claims.load_claim(target.id).lease_until > target.lease_until


def test_moves_that_nobody_ended_are_found_and_settled(store, nova, hosts):
    guest = new_uuid()
    source = claimed(store, a_draft().taking(hosts[0], guest))[0]
    nova.update(hosts[0], guest)
    nova.sync(hosts[1])
    target = moved(store, hosts[1], guest, purpose='live_migrate')
    assert store.nova.open_moves(3600.0, 10) == []
    (move,) = store.nova.open_moves(-1.0, 10)
    assert (move.source.id, move.target.id) == (source.id, target.id)
    result = store.nova.resolve_guest(GuestLocation(consumer=guest, host='cmp-1'))
    assert result.released == [target.id]
    assert store.nova.open_moves(-1.0, 10) == []
    assert store.nova.resolve_guest(GuestLocation(consumer=guest)).released == [source.id]
    assert hosts[0].row.used == hosts[1].row.used == {}
    assert store.claims.audit() == CLEAN


def test_claims_that_nobody_confirmed_are_found_where_they_are_asked_for(store, nova, hosts):
    failed, moving, alternate = new_uuid(), new_uuid(), new_uuid()
    first = claimed(store, a_draft().taking(hosts[0], failed))[0]
    second = claimed(store, a_draft().taking(hosts[0], alternate))[0]
    claimed(store, a_draft().taking(hosts[0], moving))
    nova.update(hosts[1], alternate)
    nova.update(hosts[0], moving)
    moved(store, hosts[1], moving, purpose='resize')
    assert [move.target.consumer for move in store.nova.open_moves(-1.0, 10)] == [moving]
    assert len(store.nova.open_moves(3600.0, 10, reserved=True)) == 0
    moves = store.nova.open_moves(-1.0, 10, reserved=True)
    assert [move.target.consumer for move in moves] == [moving, failed, alternate]
    assert [move.source.id for move in moves[1:]] == [first.id, second.id]
    assert store.nova.resolve_guest(GuestLocation(consumer=failed)).released == [first.id]
    settled = store.nova.resolve_guest(GuestLocation(consumer=alternate, host='cmp-2'))
    assert settled.released == [second.id]
    assert [move.target.consumer for move in store.nova.open_moves(-1.0, 10, reserved=True)] == [
        moving
    ]
    assert store.claims.audit() == CLEAN


def test_those_of_other_hosts_do_not_stand_in_the_way_of_what_is_asked_for(store, hosts):
    other = a_host('cmp-9').on(store)
    claimed(store, a_draft().taking(other))
    planned = claimed(store, a_draft().taking(hosts[0], lifecycle='plan'))[0]
    awaited = claimed(store, a_draft().taking(hosts[0]))[0]
    assert planned.lifecycle == 'plan'
    moves = store.nova.open_moves(-1.0, 1, reserved=True)
    assert [move.target.id for move in moves] == [awaited.id]


# -- claims that Nova hands over to its migrations ------------------------------------------
def handed_over(store, giver, heir):
    shares = store.allocations.load_allocations(giver).allocations
    fields = {'project_id': 'p', 'user_id': 'u'}
    store.allocations.write_allocations(
        [
            WantedAllocations(consumer=giver, allocations={}, **fields),
            WantedAllocations(consumer=heir, allocations=shares, **fields),
        ]
    )


def test_a_list_of_the_source_knows_the_claim_that_the_migration_has(store, nova, hosts):
    guest, migration = new_uuid(), new_uuid()
    claim = claimed(store, a_draft().taking(hosts[0], guest, vcpu=2))[0]
    nova.sync(hosts[0], guest, times=2)
    handed_over(store, guest, migration)
    target = moved(store, hosts[1], guest, vcpu=2, purpose='live_migrate')
    for _ in range(3):
        assert nova.sync(hosts[0], guest).adopted == []
        assert nova.sync(hosts[1]).released == []
    assert {c.id for c in store.claims.list_claims() if c.is_live} == {claim.id, target.id}
    assert [m.source.id for m in store.nova.open_moves(0.0, 10)] == [claim.id]
    nova.sync(hosts[1], guest, times=2)
    nova.sync(hosts[0], times=3)
    store.allocations.write_allocations(
        [WantedAllocations(consumer=migration, allocations={}, project_id='p', user_id='u')]
    )
    assert [c.id for c in store.claims.list_claims() if c.is_live] == [target.id]
    assert (hosts[0].row.used, store.claims.audit()) == ({}, CLEAN)


def test_a_move_that_is_taken_back_gives_the_claim_back(store, nova, hosts):
    guest, migration = new_uuid(), new_uuid()
    claim = claimed(store, a_draft().taking(hosts[0], guest, vcpu=2))[0]
    nova.sync(hosts[0], guest, times=2)
    handed_over(store, guest, migration)
    target = moved(store, hosts[1], guest, vcpu=3, purpose='resize')
    handed_over(store, migration, guest)
    (remaining,) = [c for c in store.claims.list_claims() if c.is_live]
    assert (remaining.id, remaining.consumer, remaining.guest) == (claim.id, guest, None)
    assert state_of(store, target) == 'released'
    assert nova.sync(hosts[0], guest, times=2).adopted == []
    assert (hosts[1].row.used, store.claims.audit()) == ({}, CLEAN)
