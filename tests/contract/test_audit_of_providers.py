# SPDX-License-Identifier: Apache-2.0
"""The audit looks at every provider: what is nested, what is shared, and the trees; and each fault
of these is mended by what it says is to be done.
"""

import pytest

from gantt import exceptions
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.audit_remedies import remedies_of
from tests.builders import CLEAN, a_draft, a_host, claimed, new_uuid
from tests.contract.test_allocations import held, wish, write
from tests.contract.test_audit import only
from tests.contract.test_providers import with_share

DISKS = {'DISK_GB': Inventory(total=100), 'CUSTOM_IOPS': Inventory(total=10)}


@pytest.fixture
def tree(store):
    """A root, what is below it, and two more below that."""
    root = store.providers.create_provider('root', inventories=DISKS)
    middle = store.providers.create_provider('middle', parent=root.uuid, inventories=DISKS)
    leaves = [store.providers.create_provider(f'leaf-{n}', parent=middle.uuid) for n in range(2)]
    assert store.claims.audit() == CLEAN
    return root, middle, *leaves


def roots(store, *providers):
    return {store.providers.load_provider(provider.uuid).root for provider in providers}


# -- claims on what is no host ------------------------------------------------------------------
@pytest.mark.parametrize('parent', [None, 'host'])
def test_a_share_of_a_provider_that_is_gone(store, host, damage, parent):
    above = host.row.uuid if parent else None
    gone = store.providers.create_provider('gone', parent=above, inventories=DISKS)
    stays = store.providers.create_provider('stays', inventories=DISKS)
    draft = with_share(a_draft().taking(host), gone, DISK_GB=7, CUSTOM_IOPS=1)
    claim = claimed(store, with_share(draft, stays, DISK_GB=1))[0]
    damage.forget(gone)
    assert only(store, 'lost') == (
        f'claim {claim.id} of {claim.consumer}: takes from provider {gone.id}, which is not there'
    )
    store.claims.force_release(claim.id, 'its disk is gone')
    assert store.claims.audit() == CLEAN
    assert (host.row.used, store.providers.load_provider(stays.uuid).used) == ({}, {})


def test_each_share_has_its_line_and_the_host_another(store, host, damage):
    pools = [store.providers.create_provider(f'pool-{n}', inventories=DISKS) for n in range(2)]
    draft = a_draft().taking(host)
    for pool in pools:
        draft = with_share(draft, pool, DISK_GB=1)
    claimed(store, draft)
    damage.forget_host(host)
    for pool in pools:
        damage.forget(pool)
    findings = store.claims.audit()
    assert len(findings['lost']) == 3
    assert {**findings, 'lost': []} == CLEAN
    assert [remedy.about for remedy in remedies_of(findings)] == ['a provider that is gone']


@pytest.fixture
def of_a_gone_one(store, host, damage):
    """A consumer that has something of a host, of a pool, and of one whose row is gone."""
    gone, stays = (
        store.providers.create_provider(name, inventories=DISKS) for name in ('gone', 'stays')
    )
    shares = {host.row.uuid: {'VCPU': 2}, stays.uuid: {'DISK_GB': 5, 'CUSTOM_IOPS': 1}}
    consumer = new_uuid()
    write(store, consumer, shares | {gone.uuid: {'DISK_GB': 7, 'CUSTOM_IOPS': 2}})
    damage.forget(gone)
    assert only(store, 'lost').endswith(f'takes from provider {gone.id}, which is not there')
    assert held(store, consumer) == shares
    return consumer, shares, gone, stays


def test_a_consumer_with_something_of_a_provider_that_is_gone_can_be_deleted(
    store, host, of_a_gone_one
):
    consumer, _, gone, stays = of_a_gone_one
    store.allocations.delete_allocations(consumer)
    assert held(store, consumer) == {}
    assert (host.row.used, store.providers.load_provider(stays.uuid).used) == ({}, {})
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('wanted', ['the rest', 'less', 'nothing', 'the pool'])
def test_it_can_be_written_without_what_is_gone(store, host, of_a_gone_one, wanted):
    consumer, shares, gone, stays = of_a_gone_one
    now = {
        'the rest': shares,
        'less': {host.row.uuid: {'VCPU': 1}},
        'nothing': {},
        'the pool': {stays.uuid: {'DISK_GB': 9}},
    }[wanted]
    generation = store.allocations.load_allocations(consumer).generation
    write(store, consumer, now, generation=generation)
    assert held(store, consumer) == now
    assert host.row.used == now.get(host.row.uuid, {})
    assert store.providers.load_provider(stays.uuid).used == now.get(stays.uuid, {})
    assert store.claims.audit() == CLEAN


def test_it_can_be_handed_over_without_what_is_gone(store, of_a_gone_one):
    consumer, shares, gone, stays = of_a_gone_one
    heir = new_uuid()
    both = wish(consumer, {}), wish(heir, shares)
    store.allocations.write_allocations(both)
    assert (held(store, consumer), held(store, heir)) == ({}, shares)
    assert store.claims.audit() == CLEAN


def test_what_is_gone_can_not_be_named(store, host, of_a_gone_one):
    consumer, shares, gone, stays = of_a_gone_one
    with pytest.raises(exceptions.NotFound) as met:
        write(store, consumer, shares | {gone.uuid: {'DISK_GB': 7}})
    assert met.value.kwargs == {'kind': 'provider', 'name': gone.uuid}
    assert held(store, consumer) == shares
    assert host.row.used == shares[host.row.uuid]


def test_a_consumer_whose_host_is_gone_gives_back_what_it_has_of_others(store, host, damage):
    pool = store.providers.create_provider('pool', inventories=DISKS)
    consumers = [new_uuid() for _ in range(2)]
    for consumer in consumers:
        write(store, consumer, {host.row.uuid: {'VCPU': 1}, pool.uuid: {'DISK_GB': 7}})
    damage.forget_host(host)
    store.allocations.delete_allocations(consumers[0])
    write(store, consumers[1], {pool.uuid: {'DISK_GB': 8}})
    assert held(store, consumers[1]) == {pool.uuid: {'DISK_GB': 8}}
    assert store.providers.load_provider(pool.uuid).used == {'DISK_GB': 8}
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('by', ['delete', 'write'])
def test_what_was_to_be_inherited_of_a_gone_one_ends_with_its_consumer(store, host, damage, by):
    pool = store.providers.create_provider('ceph', inventories=DISKS)
    target = inheriting(store, host, pool)
    damage.forget(pool)
    if by == 'delete':
        store.allocations.delete_allocations(target.consumer)
    else:
        write(store, target.consumer, {host.row.uuid: {'VCPU': 1}})
    assert held(store, target.consumer) == ({} if by == 'delete' else {host.row.uuid: {'VCPU': 1}})
    assert store.claims.audit() == CLEAN


def inheriting(store, host, pool):
    """A guest that is on its way: what is the source's, and what the destination's."""
    consumer = new_uuid()
    source = a_draft().taking(host, consumer)
    claimed(store, with_share(source, pool, DISK_GB=30))
    other = a_host('cmp-2').on(store)
    target = a_draft().taking(other, consumer, purpose='resize', move_id=new_uuid())
    return claimed(store, with_share(target, pool, DISK_GB=40))[0]


def test_what_is_inherited_is_there(store, host, damage):
    pool = store.providers.create_provider('ceph', inventories=DISKS)
    target = store.claims.load_claim(inheriting(store, host, pool).id)
    assert target.inherits == {pool.id: {'DISK_GB': 30}}
    assert store.claims.audit() == CLEAN


def test_more_is_inherited_than_the_others_have(store, host, claim, damage):
    pool = store.providers.create_provider('ceph', inventories=DISKS)
    damage.let_inherit(claim, pool, DISK_GB=5)
    assert only(store, 'lost') == (
        f'claim {claim.id} of {claim.consumer}: inherits 5 DISK_GB of provider {pool.uuid} (ceph); '
        'other claims of its guest have 0 there'
    )


def test_what_is_inherited_of_one_that_has_less(store, host, damage):
    pool = store.providers.create_provider('ceph', inventories=DISKS)
    target = inheriting(store, host, pool)
    taken = store.claims.load_claim(target.id).allocations[pool.id]
    damage.let_inherit(target, pool, DISK_GB=31, CUSTOM_IOPS=2)
    lost = store.claims.audit()['lost']
    assert [line.partition(': inherits ')[2] for line in lost] == [
        f'2 CUSTOM_IOPS of provider {pool.uuid} (ceph); other claims of its guest have 0 there',
        f'31 DISK_GB of provider {pool.uuid} (ceph); other claims of its guest have 30 there',
    ]
    assert taken == {'DISK_GB': 10}


@pytest.fixture
def claim(store, host):
    return claimed(store, a_draft().taking(host, vcpu=2))[0]


# -- trees --------------------------------------------------------------------------------------
@pytest.mark.parametrize('above', ['none', 'host', 'pool'])
def test_a_parent_that_is_gone_and_another_for_what_was_below_it(store, host, tree, damage, above):
    root, middle, *leaves = tree
    pool = store.providers.create_provider('pool')
    damage.forget(root)
    assert only(store, 'providers') == (
        f'provider {middle.uuid} (middle): its parent, row {root.id}, is gone; 2 are below it'
    )
    parent = {'none': None, 'host': host.row.uuid, 'pool': pool.uuid}[above]
    store.providers.update_provider(middle.uuid, parent=parent)
    assert store.claims.audit() == CLEAN
    assert roots(store, middle, *leaves) == {parent or middle.uuid}
    assert store.providers.load_provider(middle.uuid).parent == parent


def test_it_becomes_a_root_by_the_words_of_the_interface_too(store, tree, damage):
    """Which shows none for the parent that is gone: to say so again is no change, and mends it."""
    root, middle, *leaves = tree
    damage.forget(root)
    assert store.providers.load_provider(middle.uuid).parent is None
    store.providers.update_provider(middle.uuid, name='middle', parent=None)
    assert store.claims.audit() == CLEAN
    assert roots(store, middle, *leaves) == {middle.uuid}


def test_what_is_below_a_gone_parent_can_go_elsewhere_and_be_deleted(store, tree, damage):
    root, middle, leaf, other = tree
    damage.forget(root)
    store.providers.delete_provider(leaf.uuid)
    store.providers.update_provider(other.uuid, parent=None)
    assert only(store, 'providers').endswith(f'row {root.id}, is gone')
    store.providers.delete_provider(middle.uuid)
    assert store.claims.audit() == CLEAN


def test_two_that_are_below_each_other(store, tree, damage):
    root, middle, *leaves = tree
    damage.put_below(root, middle.id)
    assert only(store, 'providers') == (
        f'provider {root.uuid} (root): is below itself, by root, middle'
    )
    store.providers.update_provider(root.uuid, parent=None)
    assert store.claims.audit() == CLEAN
    assert roots(store, *tree) == {root.uuid}


def test_a_circle_goes_below_another_one_as_a_whole(store, host, tree, damage):
    root, middle, *leaves = tree
    damage.put_below(root, leaves[0].id)
    assert only(store, 'providers').endswith(': is below itself, by root, leaf-0, middle')
    with pytest.raises(exceptions.InvalidMessage, match='provider.parent: '):
        store.providers.update_provider(middle.uuid, parent=leaves[1].uuid)
    store.providers.update_provider(middle.uuid, parent=host.row.uuid)
    assert store.claims.audit() == CLEAN
    assert roots(store, *tree) == {host.row.uuid}


def test_one_that_is_its_own_parent(store, tree, damage):
    leaf = tree[2]
    damage.put_below(leaf, leaf.id)
    assert only(store, 'providers').endswith(': is below itself, by leaf-0')
    store.providers.update_provider(leaf.uuid, parent=tree[0].uuid)
    assert store.claims.audit() == CLEAN
