# SPDX-License-Identifier: Apache-2.0
"""Rows of databases that contradict each other: the audit finds each, and what it says mends it."""

import pytest

from gantt import exceptions
from gantt.core.claims.allocations import WantedAllocations
from gantt.core.messages.report import Running
from gantt.core.messages.resource_classes import CAP_MAX, FREE_RATIO_MAX, Inventory
from gantt.core.records.audit_remedies import remedies_of
from gantt.db.schema import models
from tests.builders import CLEAN, a_draft, a_host, claimed, new_uuid
from tests.contract.damage import SqlDamage
from tests.contract.test_providers import with_share
from tests.db.conftest import KINDS
from tests.shared_pools import a_shared_pool

_p = models.providers
DISKS = {'DISK_GB': Inventory(total=100), 'CUSTOM_IOPS': Inventory(total=10)}


@pytest.fixture(params=['sqlite', KINDS[1], KINDS[3]])
def store(request, open_store):
    return open_store(request.param)


@pytest.fixture
def damage(store):
    return SqlDamage(store)


@pytest.fixture
def host(store):
    return a_host().with_room(vcpu=8, CUSTOM_X=3).on(store)


@pytest.fixture
def pool(store, host):
    """Something is taken of it."""
    ceph = store.providers.create_provider('ceph', inventories=DISKS)
    claimed(store, with_share(a_draft().taking(host), ceph, DISK_GB=5, CUSTOM_IOPS=2))
    assert store.claims.audit() == CLEAN
    return ceph


def lines(store, kind='providers'):
    """What is found, all of one kind; there is something to do about each line."""
    findings = store.claims.audit()
    assert {name for name, some in findings.items() if some} == {kind}, findings
    assert remedies_of(findings)
    return findings[kind]


def written_anew(store, pool):
    """As by "gantt provider set --inventory"."""
    store.providers.change_inventories(
        pool.uuid, lambda now: {**now, 'DISK_GB': Inventory(total=100)}
    )


# -- inventories against the row of their provider ------------------------------------------------
@pytest.mark.parametrize('sparse_classes', [0, 2])
def test_a_row_that_counts_other_inventories_than_there_are(store, damage, pool, sparse_classes):
    damage.write_provider(pool, sparse_classes=sparse_classes)
    assert lines(store) == [
        f'provider {pool.uuid} (ceph): its row says {sparse_classes} inventories of other '
        'classes than VCPU, PCPU, MEMORY_MB, DISK_GB, there are 1'
    ]
    written_anew(store, pool)
    assert store.claims.audit() == CLEAN
    assert store.providers.load_provider(pool.uuid).used == {'DISK_GB': 5, 'CUSTOM_IOPS': 2}


def test_a_capacity_in_the_row_that_its_inventory_does_not_say(store, damage, pool):
    damage.write_provider(pool, cap_disk_gb=99, cap_vcpu=1)
    assert lines(store) == [
        f'provider {pool.uuid} (ceph): VCPU: its row says capacity 1, its inventory 0',
        f'provider {pool.uuid} (ceph): DISK_GB: its row says capacity 99, its inventory 100',
    ]
    written_anew(store, pool)
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('cap', [-1, 9, 11])
def test_a_capacity_that_the_numbers_do_not_make(store, damage, pool, cap):
    damage.write_inventory(pool, 'CUSTOM_IOPS', cap=cap)
    findings = store.claims.audit()
    assert findings['providers'] == [
        f'provider {pool.uuid} (ceph): CUSTOM_IOPS: its inventory says capacity {cap}, its numbers '
        'make 10'
    ]
    written_anew(store, pool)
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize(
    ('total', 'reserved', 'ratio'),
    [
        (1, 0, FREE_RATIO_MAX),
        (2**40, 0, 3.0e7),
        (2**40, 2**40, 3.0),
        (3, 1, -2.0),
        (7, 2, 0.1),
        (10, 0, 0.7),
        (3, 0, 1.1),
        (2**40, 1, 1 / 3),
        (2**40 - 1, 0, 4194303.999),
    ],
)
def test_every_capacity_that_can_be_said_is_right(store, damage, total, reserved, ratio):
    numbers = Inventory(total=total, reserved=reserved, allocation_ratio=ratio)
    pool = store.providers.create_provider(
        'pool', inventories={'VCPU': numbers, 'CUSTOM_X': numbers}
    )
    assert store.claims.audit() == CLEAN
    damage.write_provider(pool, cap_vcpu=numbers.cap - 1)
    damage.write_inventory(pool, 'CUSTOM_X', cap=numbers.cap - 1)
    assert len(store.claims.audit()['providers']) == 2
    if numbers.cap < CAP_MAX:
        damage.write_provider(pool, cap_vcpu=numbers.cap + 1)
        damage.write_inventory(pool, 'CUSTOM_X', cap=numbers.cap + 1)
        assert len(store.claims.audit()['providers']) == 2


@pytest.mark.parametrize('adopts', [False, True])
def test_a_host_that_restates_what_it_has_mends_the_count(store, damage, host, adopts):
    """What is used stays, and what runs there without a claim comes on top."""
    claims = claimed(store, a_draft().taking(host, vcpu=1, CUSTOM_X=2))
    host.confirm(*claims)
    damage.write_provider(host, sparse_classes=0)
    assert [line.partition(': ')[2] for line in lines(store)] == [
        'its row says 0 inventories of other classes than VCPU, PCPU, MEMORY_MB, DISK_GB, there '
        'are 1'
    ]
    host.facts = host.facts.with_room(vcpu=9, CUSTOM_X=3)
    stranger = [Running(consumer=new_uuid(), resources={'CUSTOM_X': 1})] if adopts else []
    host.report([*claims, *stranger])
    assert store.claims.audit() == CLEAN
    assert host.row.used == {'VCPU': 1, 'CUSTOM_X': 2 + len(stranger)}
    assert host.row.foreign == {}


def test_a_host_that_adopts_what_it_has_nothing_of_keeps_what_is_used(store, damage, host):
    claims = claimed(store, a_draft().taking(host, vcpu=1, CUSTOM_X=2))
    host.confirm(*claims)
    damage.write_provider(host, sparse_classes=0)
    store.vocabulary.declare_class('CUSTOM_Y')
    host.report([*claims, Running(consumer=new_uuid(), resources={'CUSTOM_X': 1, 'CUSTOM_Y': 1})])
    assert store.claims.audit() == CLEAN
    assert host.row.used == {'VCPU': 1, 'CUSTOM_X': 3, 'CUSTOM_Y': 1}


def test_what_is_claimed_of_a_class_without_a_row(store, damage, host):
    """Of a host and of a pool, where nothing is left that a statement of inventories could read."""
    ceph = store.providers.create_provider('ceph', inventories={'CUSTOM_IOPS': Inventory(total=10)})
    claimed(store, with_share(a_draft().taking(host, vcpu=1, CUSTOM_X=1), ceph, CUSTOM_IOPS=2))
    for provider in (host, ceph):
        damage.drop_inventories(provider)
    findings = store.claims.audit()
    assert findings['over_commit'] == [
        'cmp-1: CUSTOM_X used is 0, its live claims take 1',
        'ceph: CUSTOM_IOPS used is 0, its live claims take 2',
    ]
    assert len(findings['providers']) == 3  # how many rows there are, and the capacity for VCPU


# -- where a provider stands -----------------------------------------------------------------------
@pytest.fixture
def tree(store):
    """A root, what is below it, and what is below that."""
    root = store.providers.create_provider('root')
    middle = store.providers.create_provider('middle', parent=root.uuid)
    return root, middle, store.providers.create_provider('leaf', parent=middle.uuid)


def whole(store, *tree):
    root = tree[0].uuid
    return store.claims.audit() == CLEAN and {
        store.providers.load_provider(provider.uuid).root for provider in tree
    } == {root}


@pytest.mark.parametrize('wrong', ['own', 'other', 'gone'])
@pytest.mark.parametrize('by', ['move', 'update'])
def test_a_wrong_root_is_mended_by_the_parent_that_it_has(store, damage, tree, wrong, by):
    root, middle, leaf = tree
    other = store.providers.create_provider('other')
    noted = {'own': None, 'other': other.id, 'gone': 10**6}[wrong]
    damage.write_provider(middle, root_id=noted)
    shown = {
        'own': f'provider {middle.uuid} (middle)',
        'other': f'provider {other.uuid} (other)',
        'gone': 'row 1000000, which is gone',
    }[wrong]
    assert lines(store) == [
        f'provider {middle.uuid} (middle): its root is provider {root.uuid} (root), its row says '
        f'{shown}'
    ]
    if by == 'move':
        store.providers.update_provider(middle.uuid, parent=root.uuid)
    else:
        store.providers.update_provider(middle.uuid, parent=root.uuid)
    assert whole(store, *tree)


def test_a_whole_subtree_with_a_wrong_root(store, damage, tree):
    root, middle, leaf = tree
    other = store.providers.create_provider('other')
    for provider in (middle, leaf):
        damage.write_provider(provider, root_id=other.id)
    assert len(lines(store)) == 2
    store.providers.update_provider(middle.uuid, parent=root.uuid)
    assert whole(store, *tree)


def test_what_is_below_is_found_whatever_root_it_says(store, damage, tree):
    """Else a part of the tree would stay behind, and a circle could come to be."""
    root, middle, leaf = tree
    deep = store.providers.create_provider('deep', parent=leaf.uuid)
    damage.write_provider(leaf, root_id=leaf.id)
    damage.write_provider(deep, root_id=deep.id)
    for below in (leaf, deep):
        with pytest.raises(exceptions.InvalidMessage, match='subtree'):
            store.providers.update_provider(middle.uuid, parent=below.uuid)
    store.providers.update_provider(middle.uuid, parent=None)
    assert whole(store, middle, leaf, deep)


def test_a_root_that_says_another_root(store, damage, tree):
    root, middle, leaf = tree
    damage.write_provider(root, root_id=leaf.id)
    assert lines(store)[0].startswith(f'provider {root.uuid} (root): its root is provider ')
    store.providers.update_provider(root.uuid, parent=None)
    assert whole(store, *tree)


@pytest.mark.parametrize('which', ['root', 'middle'])
def test_a_kind_that_the_parent_contradicts(store, damage, tree, which):
    provider = dict(zip(('root', 'middle'), tree, strict=False))[which]
    kind, place = ('nested', 'is a root') if which == 'root' else ('pool', 'is below another one')
    damage.write_provider(provider, kind=kind)
    assert lines(store) == [
        f'provider {provider.uuid} ({which}): is of kind {kind}, has no record of a host '
        f'and {place}'
    ]
    store.providers.update_provider(provider.uuid, parent=None if which == 'root' else tree[0].uuid)
    assert whole(store, *tree)


@pytest.mark.parametrize('by', ['move', 'update'])
def test_a_host_below_another_provider_becomes_a_root_again(store, damage, host, by):
    pool = store.providers.create_provider('pool')
    below = store.providers.create_provider('below', parent=host.row.uuid)
    uuid = host.row.uuid
    damage.write_provider(host, parent_id=pool.id, root_id=pool.id)
    assert f'provider {uuid} (cmp-1): is a host, and below another provider' in lines(store)
    with pytest.raises(exceptions.Refused, match=r"is host 'cmp-1'"):
        store.providers.update_provider(uuid, parent=pool.uuid)
    if by == 'move':
        store.providers.update_provider(uuid, parent=None)
    else:
        store.providers.update_provider(uuid, parent=None)
    assert store.claims.audit() == CLEAN
    assert store.providers.load_provider(below.uuid).root == uuid
    assert str(store.providers.load_provider(uuid).kind) == 'host'


def test_a_host_without_its_record_and_a_record_of_no_host(store, damage, host):
    other = a_host('cmp-2').on(store)
    damage.drop_record(host)
    damage.write_provider(other, kind='pool')
    reasons = [line.partition('): ')[2] for line in lines(store)]
    assert reasons == [
        'is of kind host, has no record of a host and is a root',
        'is of kind pool, has the record of a host and is a root',
    ]


# -- what is inherited ----------------------------------------------------------------------------
def test_a_claim_that_is_gone_and_would_inherit(store, damage, host, pool):
    claim = claimed(store, a_draft().taking(host, lifecycle='api'))[0]
    damage.let_inherit(claim, pool, DISK_GB=5)
    with store.database.engine.begin() as connection:
        c = models.claims
        connection.execute(c.delete().where(c.c.id == claim.id))
    damage.set_used(host, vcpu=1)
    assert (
        f'claim {claim.id}: is not there, and is to inherit of provider {pool.id}'
        in (store.claims.audit()['lost'])
    )


def test_an_inheritance_that_cannot_be_read(store, damage, host, pool):
    claim = claimed(store, a_draft().taking(host))[0]
    damage.let_inherit(claim, pool, DISK_GB=5)
    with store.database.engine.begin() as connection:
        connection.execute(models.allocations.update().values(inherits='{"DISK_GB":'))
    (line, *_) = [line for line in store.claims.audit()['lost'] if claim.id in line]
    assert ': cannot be read: ' in line


def test_what_a_consumer_is_written_to_have_ends_an_inheritance_without_one(store, damage, host):
    rack = store.declarations.save_aggregate('rack', {}, [host.name]).uuid
    pool = a_shared_pool(store, 'ceph', [rack], DISK_GB=100)
    consumer = new_uuid()
    claim = claimed(store, with_share(a_draft().taking(host, consumer), pool, DISK_GB=2))[0]
    damage.let_inherit(claim, pool, DISK_GB=5)
    assert ': inherits 5 DISK_GB of ' in lines(store, 'lost')[0]
    shares = {host.row.uuid: {'VCPU': 1}, pool.uuid: {'DISK_GB': 7}}
    store.allocations.write_allocations(
        [WantedAllocations(consumer=consumer, allocations=shares, project_id='p', user_id='u')]
    )
    assert store.allocations.load_allocations(consumer).allocations == shares
    assert store.claims.audit() == CLEAN
