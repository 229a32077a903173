# SPDX-License-Identifier: Apache-2.0
"""Allocations by requests: consumers' live claims, written as a whole."""

import pytest

from gantt import exceptions
from gantt.core.claims.allocations import WantedAllocations
from gantt.core.messages.report import Running
from gantt.core.messages.request import Lifecycle, Policy
from gantt.core.messages.resource_classes import Inventory
from gantt.placement_api.ports import ReshapedProvider
from tests.builders import (
    CLEAN,
    a_draft,
    a_host,
    amounts,
    claimed,
    commit,
    new_uuid,
    set_inventories,
    uuid_of,
)

VM, MOVE = uuid_of('vm'), uuid_of('move')
DISKS = {'DISK_GB': Inventory(total=100, max_unit=60), 'CUSTOM_IOPS': Inventory(total=8)}


def wish(consumer, shares, **fields):
    """What a consumer is to have: uuid of a provider -> amounts by class."""
    base = {'project_id': 'p1', 'user_id': 'u1'}
    return WantedAllocations(consumer=consumer, allocations=dict(shares), **{**base, **fields})


def write(store, consumer, shares, **fields):
    store.allocations.write_allocations([wish(consumer, shares, **fields)])


def held(store, consumer):
    recorded = store.allocations.load_allocations(consumer)
    return {} if recorded is None else recorded.allocations


def generation(store, consumer):
    recorded = store.allocations.load_allocations(consumer)
    return None if recorded is None else recorded.generation


def step_of(store, uuid):
    return store.providers.load_provider(uuid).generation


def live(store, consumer):
    return [claim for claim in store.claims.list_claims(consumer=consumer) if claim.is_live]


@pytest.fixture
def pool(store):
    return store.providers.create_provider('pool', uuid=uuid_of('pool'), inventories=DISKS)


def test_what_is_written_is_a_claim_of_its_writer(store, host, pool):
    write(store, VM, {host.row.uuid: amounts(vcpu=2), pool.uuid: {'DISK_GB': 10}}, generation=None)
    (claim,) = live(store, VM)
    assert (claim.provider_id, claim.host, claim.lifecycle) == (host.id, host.name, Lifecycle.API)
    assert claim.allocations == {host.id: {'VCPU': 2}, pool.id: {'DISK_GB': 10}}
    assert (claim.project_id, claim.user_id, claim.consumer_type) == ('p1', 'u1', 'unknown')
    recorded = store.allocations.load_allocations(VM)
    assert recorded.allocations == {host.row.uuid: {'VCPU': 2}, pool.uuid: {'DISK_GB': 10}}
    assert (recorded.generation, recorded.consumer_type) == (1, 'unknown')
    assert recorded.generations == {uuid: step_of(store, uuid) for uuid in recorded.allocations}
    assert store.providers.load_provider(pool.uuid).used == {'DISK_GB': 10}
    assert host.row.used == {'VCPU': 2}
    assert store.claims.audit() == CLEAN


def test_a_consumer_without_a_claim_does_not_exist(store, host):
    assert store.allocations.load_allocations(VM) is None
    with pytest.raises(exceptions.NotFound):
        store.allocations.delete_allocations(VM)
    write(store, VM, {}, generation=None)
    assert store.allocations.load_allocations(VM) is None
    write(store, VM, {host.row.uuid: {'VCPU': 1}}, generation=None)
    store.allocations.delete_allocations(VM)
    assert store.allocations.load_allocations(VM) is None
    assert (host.row.used, store.claims.audit()) == ({}, CLEAN)


def test_the_generation_of_a_consumer_steps_with_each_write_and_begins_anew(store, host):
    for expected in (None, 1, 2):
        write(store, VM, {host.row.uuid: {'VCPU': 1}}, generation=expected)
    assert generation(store, VM) == 3
    write(store, VM, {}, generation=3)
    write(store, VM, {host.row.uuid: {'VCPU': 1}}, generation=None)
    assert generation(store, VM) == 1


@pytest.mark.parametrize(('given', 'told'), [(None, 'null'), (7, 7)])
def test_a_writer_that_knows_another_generation_changes_nothing(store, host, given, told):
    write(store, VM, {host.row.uuid: {'VCPU': 1}}, generation=None)
    with pytest.raises(exceptions.ConsumerChanged) as met:
        write(store, VM, {host.row.uuid: {'VCPU': 2}}, generation=given)
    assert met.value.kwargs == {'consumer': VM, 'expected': 1, 'given': told}
    with pytest.raises(exceptions.ConsumerChanged) as met:
        write(store, MOVE, {host.row.uuid: {'VCPU': 2}}, generation=4)
    assert (met.value.kwargs['expected'], met.value.kwargs['given']) == ('null', 4)
    assert (held(store, VM), held(store, MOVE)) == ({host.row.uuid: {'VCPU': 1}}, {})
    assert host.row.used == {'VCPU': 1}


def test_a_generation_moves_with_what_schedulers_do(store, host):
    other = a_host('cmp-2').with_room(vcpu=4).on(store)
    claimed(store, a_draft().taking(host, VM))
    first = generation(store, VM)
    assert generation(store, VM) == first
    claimed(store, a_draft().taking(other, VM, purpose='resize', move_id=new_uuid()))
    second = generation(store, VM)
    assert second not in (None, first)
    with pytest.raises(exceptions.ConsumerChanged):
        write(store, VM, {}, generation=first)
    write(store, VM, held(store, VM), generation=second)
    assert generation(store, VM) == second + 1
    claim = next(claim for claim in live(store, VM) if claim.host == host.name)
    store.claims.force_release(claim.id, 'gone')
    assert generation(store, VM) not in (None, first, second, second + 1)


def test_generations_of_providers_step_where_they_are_named(store, host, pool):
    shares = {host.row.uuid: {'VCPU': 1}, pool.uuid: {'DISK_GB': 5}}
    at = step_of(store, host.row.uuid), step_of(store, pool.uuid)
    write(store, VM, shares)
    write(store, VM, shares)
    assert (step_of(store, host.row.uuid), step_of(store, pool.uuid)) == (at[0] + 2, at[1] + 2)
    write(store, VM, {host.row.uuid: {'VCPU': 1}})
    assert (step_of(store, host.row.uuid), step_of(store, pool.uuid)) == (at[0] + 3, at[1] + 2)
    write(store, VM, {})
    assert step_of(store, host.row.uuid) == at[0] + 4
    write(store, VM, shares)
    store.allocations.delete_allocations(VM)
    assert (step_of(store, host.row.uuid), step_of(store, pool.uuid)) == (at[0] + 5, at[1] + 3)


def test_what_stays_is_not_touched_and_what_differs_is_changed_in_place(store, host):
    other = a_host('cmp-2').with_room(vcpu=4).on(store)
    (before,) = claimed(store, a_draft().taking(host, VM, vcpu=2))
    write(store, VM, {host.row.uuid: {'VCPU': 2}}, project_id=before.project_id or 'p1')
    (same,) = live(store, VM)
    assert (same.id, same.state, same.lease_until) == (before.id, before.state, before.lease_until)
    write(store, VM, {host.row.uuid: {'VCPU': 3}, other.row.uuid: {'VCPU': 1}})
    claims = {claim.host: claim for claim in live(store, VM)}
    changed, added = claims[host.name], claims[other.name]
    assert (changed.id, changed.lease_until) == (before.id, before.lease_until)
    assert (changed.lifecycle, changed.allocations) == (Lifecycle.HOST, {host.id: {'VCPU': 3}})
    assert (added.lifecycle, added.allocations) == (Lifecycle.API, {other.id: {'VCPU': 1}})
    write(store, VM, {other.row.uuid: {'VCPU': 1}})
    assert [claim.id for claim in live(store, VM)] == [added.id]
    assert (host.row.used, other.row.used) == ({}, {'VCPU': 1})
    assert store.claims.audit() == CLEAN


def test_two_claims_on_one_host_are_one_allocation(store, host):
    claimed(store, a_draft().taking(host, VM, vcpu=2))
    claimed(store, a_draft().taking(host, VM, vcpu=3, purpose='resize', move_id=new_uuid()))
    assert held(store, VM) == {host.row.uuid: {'VCPU': 5}}
    ids = {claim.id for claim in live(store, VM)}
    write(store, VM, held(store, VM))
    assert {claim.id for claim in live(store, VM)} == ids
    write(store, VM, {host.row.uuid: {'VCPU': 3}})
    (remaining,) = live(store, VM)
    assert (remaining.id in ids, remaining.purpose) == (True, 'resize')
    assert (host.row.used, store.claims.audit()) == ({'VCPU': 3}, CLEAN)


def test_what_is_shared_belongs_to_the_claim_that_had_it(store, host, pool):
    other = a_host('cmp-2').with_room(vcpu=4).on(store)
    write(store, VM, {host.row.uuid: {'VCPU': 1}, pool.uuid: {'DISK_GB': 5}})
    (first,) = live(store, VM)
    write(
        store,
        VM,
        {host.row.uuid: {'VCPU': 1}, other.row.uuid: {'VCPU': 1}, pool.uuid: {'DISK_GB': 7}},
    )
    claims = {claim.host: claim for claim in live(store, VM)}
    assert claims[host.name].allocations == {host.id: {'VCPU': 1}, pool.id: {'DISK_GB': 7}}
    assert claims[host.name].id == first.id
    write(store, VM, {other.row.uuid: {'VCPU': 1}, pool.uuid: {'DISK_GB': 7}})
    (remaining,) = live(store, VM)
    assert remaining.allocations == {other.id: {'VCPU': 1}, pool.id: {'DISK_GB': 7}}
    assert store.providers.load_provider(pool.uuid).used == {'DISK_GB': 7}
    assert store.claims.audit() == CLEAN


def test_pools_alone_are_claimed_on_their_lowest_root(store, pool):
    below = store.providers.create_provider('below', parent=pool.uuid, inventories=DISKS)
    other = store.providers.create_provider('other', inventories=DISKS)
    write(store, VM, {below.uuid: {'CUSTOM_IOPS': 2}, other.uuid: {'DISK_GB': 3}})
    (claim,) = live(store, VM)
    assert (claim.provider_id, claim.host) == (pool.id, '')
    write(store, VM, {other.uuid: {'DISK_GB': 3}})
    (claim,) = live(store, VM)
    assert claim.provider_id == other.id
    store.providers.delete_provider(below.uuid)
    store.providers.delete_provider(pool.uuid)
    assert store.claims.audit() == CLEAN


def test_a_nested_provider_is_of_its_hosts_tree(store, host):
    card = store.providers.create_provider(
        'card', parent=host.row.uuid, inventories={'VGPU': Inventory(total=4)}
    )
    write(store, VM, {card.uuid: {'VGPU': 3}})
    (claim,) = live(store, VM)
    assert (claim.provider_id, claim.allocations) == (host.id, {card.id: {'VGPU': 3}})
    write(store, VM, {card.uuid: {'VGPU': 1}, host.row.uuid: {'VCPU': 1}})
    (again,) = live(store, VM)
    assert (again.id, store.providers.load_provider(card.uuid).used) == (claim.id, {'VGPU': 1})
    assert store.claims.audit() == CLEAN


# -- what is refused --------------------------------------------------------------------
@pytest.mark.parametrize(
    ('asked', 'why'),
    [
        ({'DISK_GB': 61}, 'units'),
        ({'CUSTOM_IOPS': 9}, 'units'),
        ({'VCPU': 1}, 'missing'),
        ({'VCPU': 1, 'DISK_GB': 1}, 'missing'),
    ],
)
def test_a_provider_that_does_not_have_it_refuses(store, pool, asked, why):
    with pytest.raises(exceptions.AllocationRefused) as met:
        write(store, VM, {pool.uuid: asked})
    assert (met.value.kwargs['provider'], met.value.kwargs['why']) == (pool.uuid, why)
    assert store.allocations.load_allocations(VM) is None
    assert store.providers.load_provider(pool.uuid) == pool


def test_what_is_full_refuses_what_grows(store, pool):
    write(store, VM, {pool.uuid: {'DISK_GB': 60}})
    with pytest.raises(exceptions.AllocationRefused) as met:
        write(store, MOVE, {pool.uuid: {'DISK_GB': 41}})
    assert (met.value.kwargs['why'], met.value.kwargs['classes']) == ('capacity', ['DISK_GB'])
    store.allocations.write_allocations([wish(VM, {}), wish(MOVE, {pool.uuid: {'DISK_GB': 50}})])
    assert (held(store, VM), held(store, MOVE)) == ({}, {pool.uuid: {'DISK_GB': 50}})


def test_what_is_over_full_may_be_kept_and_made_less(store, pool):
    write(store, VM, {pool.uuid: {'DISK_GB': 60, 'CUSTOM_IOPS': 1}})
    set_inventories(store, pool.uuid, {**DISKS, 'DISK_GB': Inventory(total=100, reserved=60)})
    write(store, VM, {pool.uuid: {'DISK_GB': 60, 'CUSTOM_IOPS': 2}})
    with pytest.raises(exceptions.AllocationRefused):
        write(store, VM, {pool.uuid: {'DISK_GB': 61}})
    write(store, VM, {pool.uuid: {'DISK_GB': 55}})
    with pytest.raises(exceptions.AllocationRefused):
        write(store, MOVE, {pool.uuid: {'DISK_GB': 1}})
    assert store.claims.audit() == CLEAN


def test_a_host_that_is_disabled_is_no_concern_of_writers(store, host):
    store.hosts.disable_host(host.name, 'maintenance', 'me')
    write(store, VM, {host.row.uuid: {'VCPU': 1}})
    assert held(store, VM) == {host.row.uuid: {'VCPU': 1}}


def test_of_several_consumers_all_are_written_or_none(store, host):
    nobody = uuid_of('nobody')
    with pytest.raises(exceptions.NotFound) as met:
        store.allocations.write_allocations(
            [wish(VM, {host.row.uuid: {'VCPU': 1}}), wish(MOVE, {nobody: {'VCPU': 1}})]
        )
    assert met.value.kwargs == {'kind': 'provider', 'name': nobody}
    with pytest.raises(exceptions.AllocationRefused):
        store.allocations.write_allocations(
            [wish(VM, {host.row.uuid: {'VCPU': 5}}), wish(MOVE, {host.row.uuid: {'VCPU': 5}})]
        )
    with pytest.raises(exceptions.NotFound) as met:
        write(store, VM, {host.row.uuid: {'CUSTOM_NOBODYS': 1}})
    assert (store.allocations.load_allocations(VM), host.row.used) == (None, {})


# -- handed over --------------------------------------------------------------------------
def handed_over(store, giver, heir, **fields):
    shares = held(store, giver)
    store.allocations.write_allocations([wish(giver, {}, **fields), wish(heir, shares, **fields)])


def test_what_is_handed_over_is_the_same_claim(store, host):
    (before,) = claimed(store, a_draft().taking(host, VM, vcpu=2))
    host.confirm(before.id)
    handed_over(store, VM, MOVE, consumer_type='MIGRATION')
    (claim,) = live(store, MOVE)
    assert (claim.id, claim.guest, claim.state) == (before.id, VM, 'confirmed')
    assert (claim.lifecycle, claim.consumer_type) == (Lifecycle.HOST, 'MIGRATION')
    assert (store.allocations.load_allocations(VM), generation(store, MOVE)) == (None, 1)
    handed_over(store, MOVE, VM, consumer_type='INSTANCE')
    (claim,) = live(store, VM)
    assert (claim.id, claim.guest) == (before.id, None)
    assert (host.row.used, store.claims.audit()) == ({'VCPU': 2}, CLEAN)


def test_a_report_that_lists_the_guest_knows_the_claim(store, host):
    (before,) = claimed(store, a_draft().taking(host, VM, vcpu=2))
    host.confirm(before.id)
    handed_over(store, VM, MOVE)
    host.report([Running(consumer=VM, resources={'VCPU': 2})])
    assert [claim.id for claim in store.claims.list_claims() if claim.is_live] == [before.id]
    assert (host.row.used, host.row.foreign) == ({'VCPU': 2}, {})


def test_groups_and_hints_see_the_guest(store, host):
    group = new_uuid()
    store.groups.save_group(a_group(group))
    claimed(
        store,
        a_draft().planned_at(store.groups.load_group(group).generation, group).taking(host, VM),
    )
    handed_over(store, VM, MOVE)
    assert store.groups.load_group(group).members == [VM]
    placed = {row.provider_id: row for row in store.feed.load_everything().hosts}[host.id].placed
    assert [guest.consumer for guest in placed] == [VM]


def a_group(uuid):
    from gantt.core.resources.host import Group

    return Group(uuid=uuid, name='g', policy=Policy('anti-affinity'))


# -- who ends what is written -----------------------------------------------------------------
def test_nobody_but_its_writer_ends_what_is_written(store, host):
    write(store, VM, {host.row.uuid: {'VCPU': 2}})
    (claim,) = live(store, VM)
    host.report()
    host.report()
    host.release(claim.id)
    store.claims.sweep(100)
    draft = a_draft().taking(host, VM, vcpu=1)
    assert commit(store, draft).outcomes[0].outcome == 'placed'
    assert claim.id in {live_claim.id for live_claim in live(store, VM)}
    assert (host.row.used, store.claims.audit()) == ({'VCPU': 3}, CLEAN)


# -- read -------------------------------------------------------------------------------------
def test_a_provider_tells_whose_claims_are_on_it(store, host, pool):
    at = step_of(store, pool.uuid)
    assert store.allocations.provider_allocations(uuid_of('nobody')) is None
    assert store.allocations.provider_allocations(pool.uuid).allocations == {}
    write(store, VM, {host.row.uuid: {'VCPU': 1}, pool.uuid: {'DISK_GB': 5}})
    claimed(store, a_draft().taking(host, MOVE, vcpu=2))
    recorded = store.allocations.provider_allocations(host.row.uuid)
    assert recorded.allocations == {VM: {'VCPU': 1}, MOVE: {'VCPU': 2}}
    assert recorded.generations == {
        consumer: generation(store, consumer) for consumer in (VM, MOVE)
    }
    recorded = store.allocations.provider_allocations(pool.uuid)
    assert (recorded.allocations, recorded.generation) == ({VM: {'DISK_GB': 5}}, at + 1)


def test_usages_of_a_project_by_type(store, host, pool):
    write(store, VM, {host.row.uuid: {'VCPU': 1}, pool.uuid: {'DISK_GB': 5, 'CUSTOM_IOPS': 1}})
    write(store, MOVE, {pool.uuid: {'DISK_GB': 5, 'CUSTOM_IOPS': 2}}, consumer_type='VOLUME')
    write(store, new_uuid(), {pool.uuid: {'DISK_GB': 1}}, consumer_type='VOLUME', user_id='u2')
    write(store, new_uuid(), {pool.uuid: {'DISK_GB': 1}}, project_id='p2')

    def by_type(*args, **kwargs):
        usages = store.allocations.type_usages(*args, **kwargs)
        return {usage.consumer_type: (usage.consumers, usage.resources) for usage in usages}

    assert by_type('p1') == {
        'unknown': (1, {'VCPU': 1, 'DISK_GB': 5, 'CUSTOM_IOPS': 1}),
        'VOLUME': (2, {'DISK_GB': 6, 'CUSTOM_IOPS': 2}),
    }
    assert by_type('p1', user='u2') == {'VOLUME': (1, {'DISK_GB': 1})}
    assert by_type('nobody') == {}


def test_another_project_is_said_by_all_claims_of_a_consumer(store, host):
    claimed(store, a_draft(project_id='p0').taking(host, VM, vcpu=1))
    write(store, VM, {host.row.uuid: {'VCPU': 1}}, project_id='p9', user_id='u9')
    assert {(claim.project_id, claim.user_id) for claim in live(store, VM)} == {('p9', 'u9')}
    assert [usage.consumer_type for usage in store.allocations.type_usages('p9')] == ['INSTANCE']
    assert store.allocations.type_usages('p0') == []
    assert store.quotas.owners_of([VM]) == {VM: 'p9'}


def test_another_project_is_said_by_no_claim_that_has_ended(store, host):
    """However many there are: a write costs what lives."""
    at = host.row.uuid
    for _ in range(3):
        write(store, VM, {at: {'VCPU': 1}}, project_id='p1')
        store.allocations.delete_allocations(VM)
    before = {claim.id: claim for claim in store.claims.list_claims(consumer=VM)}
    write(store, VM, {at: {'VCPU': 1}}, project_id='p9')
    assert store.quotas.owners_of([VM]) == {VM: 'p9'}
    after = {claim.id: claim for claim in store.claims.list_claims(consumer=VM)}
    assert {key: after[key] for key in before} == before
    # It stays that project's when nothing of it lives, and who asks for it next is that project.
    store.allocations.delete_allocations(VM)
    assert store.quotas.owners_of([VM]) == {VM: 'p9'}
    (claim,) = claimed(store, a_draft(project_id='p9').taking(host, VM, vcpu=1))
    assert store.claims.load_claim(claim.id).project_id == 'p9'


# -- reshaped -----------------------------------------------------------------------------------
def reshape(store, inventories, *wishes):
    """Each with the generation that its provider has."""
    store.allocations.reshape(
        {
            uuid: ReshapedProvider(generation=step_of(store, uuid), inventories=classes)
            for uuid, classes in inventories.items()
        },
        wishes,
    )


def test_what_a_pool_has_goes_to_one_below_it_with_what_is_used(store, pool):
    write(store, VM, {pool.uuid: {'DISK_GB': 40, 'CUSTOM_IOPS': 8}})
    card = store.providers.create_provider('card', parent=pool.uuid)
    at = step_of(store, pool.uuid), step_of(store, card.uuid)
    reshape(
        store,
        {pool.uuid: {'DISK_GB': DISKS['DISK_GB']}, card.uuid: {'CUSTOM_IOPS': Inventory(total=8)}},
        wish(VM, {pool.uuid: {'DISK_GB': 40}, card.uuid: {'CUSTOM_IOPS': 8}}, generation=1),
    )
    assert (step_of(store, pool.uuid), step_of(store, card.uuid)) == (at[0] + 3, at[1] + 3)
    assert store.providers.load_provider(pool.uuid).used == {'DISK_GB': 40}
    provider = store.providers.load_provider(card.uuid)
    assert (provider.used, list(provider.inventories)) == ({'CUSTOM_IOPS': 8}, ['CUSTOM_IOPS'])
    assert (generation(store, VM), store.claims.audit()) == (2, CLEAN)


def test_what_is_used_still_is_not_reshaped_away(store, pool):
    write(store, VM, {pool.uuid: {'CUSTOM_IOPS': 8}})
    with pytest.raises(exceptions.InUse) as met:
        reshape(store, {pool.uuid: {'DISK_GB': Inventory(total=5)}})
    assert met.value.kwargs['classes'] == ['CUSTOM_IOPS']
    with pytest.raises(exceptions.AllocationRefused):
        reshape(
            store,
            {pool.uuid: {'DISK_GB': Inventory(total=5)}},
            wish(VM, {pool.uuid: {'DISK_GB': 6}}),
        )
    assert store.providers.load_provider(pool.uuid).inventories == DISKS
    reshape(
        store,
        {pool.uuid: {'DISK_GB': Inventory(total=5)}},
        wish(VM, {pool.uuid: {'DISK_GB': 5}}),
    )
    assert (store.providers.load_provider(pool.uuid).used, store.claims.audit()) == (
        {'DISK_GB': 5},
        CLEAN,
    )
    reshape(store, {pool.uuid: {}}, wish(VM, {}))
    provider = store.providers.load_provider(pool.uuid)
    assert (provider.inventories, provider.used, store.claims.audit()) == ({}, {}, CLEAN)


def test_of_a_provider_that_was_changed_meanwhile_nothing_is_reshaped(store, pool):
    stale = ReshapedProvider(generation=7, inventories={})
    with pytest.raises(exceptions.StaleGeneration):
        store.allocations.reshape({pool.uuid: stale}, [])
    with pytest.raises(exceptions.NotFound):
        store.allocations.reshape({uuid_of('nobody'): stale}, [])


def test_a_host_says_itself_what_it_has(store, host):
    with pytest.raises(exceptions.ReportedByHost):
        reshape(store, {host.row.uuid: {}})
