# SPDX-License-Identifier: Apache-2.0
"""Providers as requests find and change them; resource classes and traits by name."""

import pytest

from gantt import exceptions
from gantt.core.messages.resource_classes import CAP_MAX, FREE_RATIO_MAX, Inventory
from gantt.core.resources import provider as rules
from gantt.core.resources.provider import ProviderFilter
from tests.builders import a_draft, a_host, claimed, uuid_of
from tests.contract.test_providers import DISKS, with_share

NOBODY = uuid_of('nobody')
A, B, C = (uuid_of(f'aggregate {name}') for name in 'abc')
AVX, SSE = 'HW_CPU_X86_AVX', 'HW_CPU_X86_SSE'


def names(store, **criteria):
    """Names of the providers that are found."""
    return [
        provider.name for provider in store.providers.find_providers(ProviderFilter(**criteria))
    ]


def sets(*groups):
    return tuple(frozenset(group) for group in groups)


# -- classes and traits -----------------------------------------------------------------
def test_standard_classes_are_there_and_custom_ones_come_and_go(store):
    before = {
        declared.name: declared.changed_at for declared in store.vocabulary.resource_classes()
    }
    assert {'VCPU', 'VGPU', 'FPGA'} <= before.keys()
    assert store.vocabulary.create_class('CUSTOM_A') is True
    assert store.vocabulary.create_class('CUSTOM_A') is False
    after = {declared.name: declared.changed_at for declared in store.vocabulary.resource_classes()}
    assert after.keys() - before.keys() == {'CUSTOM_A'}
    assert after['CUSTOM_A'] > 0
    store.vocabulary.rename_class('CUSTOM_A', 'CUSTOM_B')
    assert {declared.name for declared in store.vocabulary.resource_classes()} - before.keys() == {
        'CUSTOM_B'
    }
    store.vocabulary.delete_class('CUSTOM_B')
    assert {declared.name for declared in store.vocabulary.resource_classes()} == before.keys()


def test_a_class_that_a_provider_has_is_neither_renamed_nor_deleted(store):
    pool = store.providers.create_provider('pool', inventories=DISKS)
    for change in (
        lambda: store.vocabulary.rename_class('CUSTOM_IOPS', 'CUSTOM_OTHER'),
        lambda: store.vocabulary.delete_class('CUSTOM_IOPS'),
    ):
        with pytest.raises(exceptions.InUse):
            change()
    store.providers.delete_provider(pool.uuid)
    store.vocabulary.delete_class('CUSTOM_IOPS')


def test_classes_that_are_not_there_or_taken(store):
    store.vocabulary.create_class('CUSTOM_A')
    store.vocabulary.create_class('CUSTOM_B')
    with pytest.raises(exceptions.InUse):
        store.vocabulary.rename_class('CUSTOM_A', 'CUSTOM_B')
    with pytest.raises(exceptions.NotFound):
        store.vocabulary.delete_class('CUSTOM_NONE')
    with pytest.raises(exceptions.NotFound):
        store.vocabulary.rename_class('CUSTOM_NONE', 'CUSTOM_C')
    with pytest.raises(exceptions.UnknownResourceClass):
        store.vocabulary.create_class('custom_a')


def test_traits_by_name_prefix_and_whether_a_provider_has_them(store):
    pool = store.providers.create_provider('pool')
    assert store.vocabulary.create_trait('CUSTOM_FAST')[1] is True
    assert store.vocabulary.create_trait('CUSTOM_FAST')[1] is False
    assert store.vocabulary.create_trait('CUSTOM_SLOW')[1] is True
    store.providers.save_provider_traits(pool.uuid, ['CUSTOM_FAST', AVX])
    assert [trait.name for trait in store.vocabulary.traits(prefix='CUSTOM_')] == [
        'CUSTOM_FAST',
        'CUSTOM_SLOW',
    ]
    assert [trait.name for trait in store.vocabulary.traits(associated=True)] == [
        AVX,
        'CUSTOM_FAST',
    ]
    unused = store.vocabulary.traits(prefix='CUSTOM_', associated=False)
    assert [trait.name for trait in unused] == ['CUSTOM_SLOW']
    assert [trait.name for trait in store.vocabulary.traits(names=[SSE, 'CUSTOM_NONE'])] == [SSE]
    with pytest.raises(exceptions.InUse):
        store.vocabulary.delete_trait('CUSTOM_FAST')
    store.vocabulary.delete_trait('CUSTOM_SLOW')
    with pytest.raises(exceptions.NotFound):
        store.vocabulary.delete_trait('CUSTOM_SLOW')


# -- of a provider ----------------------------------------------------------------------
def test_a_change_of_traits_is_one_generation_and_what_is_none_is_none(store):
    pool = store.providers.create_provider('pool')
    assert store.providers.load_provider_traits(pool.uuid).traits == []
    saved = store.providers.save_provider_traits(pool.uuid, [SSE, AVX], 0)
    assert ([trait.name for trait in saved.traits], saved.generation) == ([AVX, SSE], 1)
    assert store.providers.save_provider_traits(pool.uuid, [AVX, SSE], 1).generation == 1
    with pytest.raises(exceptions.StaleGeneration) as met:
        store.providers.save_provider_traits(pool.uuid, [], 0)
    assert met.value.kwargs == {'uuid': pool.uuid, 'generation': 0, 'current': 1}
    with pytest.raises(exceptions.NotFound) as unknown:
        store.providers.save_provider_traits(pool.uuid, ['CUSTOM_NONE', AVX], 1)
    assert unknown.value.kwargs['names'] == ['CUSTOM_NONE']
    assert store.providers.load_provider_traits(pool.uuid) == saved
    assert store.providers.save_provider_traits(pool.uuid, []).generation == 2
    assert store.providers.load_provider_traits(NOBODY) is None
    with pytest.raises(exceptions.NotFound):
        store.providers.save_provider_traits(NOBODY, [])


def test_aggregates_count_a_generation_where_one_is_given(store):
    pool = store.providers.create_provider('pool')
    assert store.providers.save_provider_aggregates(pool.uuid, [B, A]).generation == 0
    assert store.providers.load_provider_aggregates(pool.uuid).aggregates == sorted([A, B])
    saved = store.providers.save_provider_aggregates(pool.uuid, [A, C], 0)
    assert (saved.aggregates, saved.generation) == (sorted([A, C]), 1)
    assert store.providers.save_provider_aggregates(pool.uuid, [A, C], 1).generation == 2
    with pytest.raises(exceptions.StaleGeneration):
        store.providers.save_provider_aggregates(pool.uuid, [], 1)
    assert store.providers.load_provider_aggregates(NOBODY) is None
    store.providers.delete_provider(pool.uuid)
    assert names(store, member_of=sets([A, B, C])) == []


def test_inventories_change_from_what_they_are_now(store):
    pool = store.providers.create_provider('pool', inventories=DISKS)
    seen = []

    def grow(now):
        seen.append(now)
        return {**now, 'VGPU': Inventory(total=4, max_unit=8)}

    changed = store.providers.change_inventories(pool.uuid, grow, 0)
    assert seen[-1] == DISKS
    assert (changed.inventories['VGPU'].largest, changed.generation) == (8, 1)
    assert changed.changed_at >= pool.changed_at
    with pytest.raises(exceptions.StaleGeneration):
        store.providers.change_inventories(pool.uuid, grow, 0)
    with pytest.raises(exceptions.NotFound) as unknown:
        store.providers.change_inventories(
            pool.uuid, lambda now: {'CUSTOM_NONE': Inventory(total=1)}
        )
    assert unknown.value.kwargs['kind'] == 'resource class'
    with pytest.raises(ZeroDivisionError):
        store.providers.change_inventories(pool.uuid, lambda now: 1 // 0)
    assert store.providers.load_provider(pool.uuid) == changed


@pytest.mark.parametrize(
    ('inventory', 'cap'),
    [
        (Inventory(total=8, reserved=8), 0),
        (Inventory(total=2**31 - 1, allocation_ratio=FREE_RATIO_MAX), CAP_MAX),
        (Inventory(total=8, allocation_ratio=0.0), 0),
        (Inventory(total=8, allocation_ratio=4.0, max_unit=2**31 - 1), 32),
        (Inventory(total=8, min_unit=4, max_unit=2), 8),
    ],
)
def test_ratios_and_units_at_their_ends(store, inventory, cap):
    pool = store.providers.create_provider('pool')
    provider = store.providers.change_inventories(
        pool.uuid, lambda now: {'VCPU': inventory, 'FPGA': inventory}
    )
    assert provider.inventories == {'VCPU': inventory, 'FPGA': inventory}
    assert inventory.cap == cap
    for name in provider.inventories:
        most = min(cap, inventory.largest)
        if most >= inventory.min_unit:
            assert names(store, resources={name: most}) == ['pool']
        assert names(store, resources={name: most + 1}) == []


def test_less_than_is_used_is_fine_and_none_of_it_is_not(store):
    host = a_host().on(store)
    pool = store.providers.create_provider('pool', inventories=DISKS)
    assert claimed(store, with_share(a_draft().taking(host), pool, CUSTOM_IOPS=6))
    assert names(store, resources={'CUSTOM_IOPS': 2}) == ['pool']
    assert names(store, resources={'CUSTOM_IOPS': 3}) == []
    less = {**DISKS, 'CUSTOM_IOPS': Inventory(total=2)}
    assert store.providers.change_inventories(pool.uuid, lambda now: less).used == {
        'CUSTOM_IOPS': 6
    }
    with pytest.raises(exceptions.InUse):
        store.providers.change_inventories(pool.uuid, lambda now: {})
    assert store.providers.load_provider(pool.uuid).inventories == less


# -- names and places -------------------------------------------------------------------
def test_a_name_and_a_parent_change_together_and_no_generation_does(store):
    root, other = store.providers.create_provider('root'), store.providers.create_provider('other')
    provider = store.providers.update_provider(other.uuid, name='child', parent=root.uuid)
    assert (provider.name, provider.parent, provider.root) == ('child', root.uuid, root.uuid)
    assert provider.generation == 0
    assert names(store, in_tree=other.uuid) == ['root', 'child']
    assert store.providers.update_provider(other.uuid, name='child').parent == root.uuid
    with pytest.raises(exceptions.InvalidMessage) as refusal:
        store.providers.update_provider(other.uuid, parent=None, reparent=False)
    assert refusal.value.kwargs['why'] == rules.PARENT_FIXED
    assert store.providers.update_provider(other.uuid, parent=None).parent is None


@pytest.mark.parametrize('reparent', [True, False])
def test_parents_and_names_that_cannot_be(store, reparent):
    root, other = store.providers.create_provider('root'), store.providers.create_provider('other')
    store.providers.update_provider(other.uuid, parent=root.uuid)
    refused = {
        rules.PARENT_UNKNOWN: {'parent': NOBODY},
        rules.PARENT_LOOP: {'parent': other.uuid},
        rules.NAME_TAKEN: {'name': 'other'},
    }
    for why, change in refused.items():
        with pytest.raises(exceptions.InvalidMessage) as met:
            store.providers.update_provider(root.uuid, reparent=reparent, **change)
        assert met.value.kwargs['why'] == why
    with pytest.raises(exceptions.NotFound):
        store.providers.update_provider(NOBODY, name='x')


def test_providers_are_found_by_all_that_is_asked(store):
    for name in ('one', 'two', 'three'):
        store.providers.create_provider(name, uuid=uuid_of(name))
    store.providers.save_provider_traits(uuid_of('one'), [AVX, SSE])
    store.providers.save_provider_traits(uuid_of('two'), [AVX])
    store.providers.save_provider_aggregates(uuid_of('one'), [A])
    store.providers.save_provider_aggregates(uuid_of('two'), [A, B])
    assert names(store) == ['one', 'two', 'three']
    assert names(store, name='two') == names(store, uuid=uuid_of('two')) == ['two']
    assert names(store, name='none') == names(store, uuid=NOBODY) == []
    assert names(store, in_tree=NOBODY) == []
    assert names(store, required=sets([AVX])) == ['one', 'two']
    assert names(store, required=sets([AVX], [SSE])) == ['one']
    assert names(store, required=sets([SSE, AVX]), forbidden=frozenset([SSE])) == ['two']
    assert names(store, forbidden=frozenset([AVX])) == ['three']
    assert names(store, member_of=sets([A])) == ['one', 'two']
    assert names(store, member_of=sets([A], [B, C])) == ['two']
    assert names(store, not_member_of=frozenset([B, C])) == ['one', 'three']
    assert names(store, resources={'VCPU': 2**70}) == []
    with pytest.raises(exceptions.NotFound) as trait:
        names(store, forbidden=frozenset(['CUSTOM_NONE']))
    assert trait.value.kwargs['kind'] == 'trait'
    with pytest.raises(exceptions.NotFound):
        names(store, resources={'CUSTOM_NONE': 1})


def test_a_host_is_found_and_says_itself_what_it_has(store):
    a_host().on(store)
    [provider] = store.providers.find_providers(ProviderFilter())
    uuid = provider.uuid
    assert (provider.root, provider.parent) == (uuid, None)
    assert names(store, resources={'VCPU': 1}) == [provider.name]
    for change in (
        lambda: store.providers.change_inventories(uuid, lambda now: {}),
        lambda: store.providers.save_provider_traits(uuid, [AVX]),
        lambda: store.providers.save_provider_aggregates(uuid, [A]),
        lambda: store.providers.update_provider(uuid, name='other'),
    ):
        with pytest.raises(exceptions.ReportedByHost):
            change()


def test_others_hear_of_each_change(store):
    store.vocabulary.create_class('CUSTOM_IOPS')
    pool = store.providers.create_provider('pool')
    for change in (
        lambda: store.providers.save_provider_traits(pool.uuid, [AVX]),
        lambda: store.providers.save_provider_aggregates(pool.uuid, [A]),
        lambda: store.providers.change_inventories(pool.uuid, lambda now: DISKS),
        lambda: store.providers.update_provider(pool.uuid, name='other'),
    ):
        before = store.feed.load_everything().position
        change()
        assert set(store.feed.poll(before, {}).providers) == {pool.id}
