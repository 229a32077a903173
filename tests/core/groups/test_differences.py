# SPDX-License-Identifier: Apache-2.0
"""Creates beside the member that was planned: equal, or different in fields that are named."""

import random

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from gantt.core.messages.request import RequestSpec
from gantt.groups.model import differences
from tests.core.builders import an_id
from tests.thorough import examples


def a_spec(**fields):
    return msgspec.convert({'resources': {'VCPU': 2, 'MEMORY_MB': 8192}, **fields}, RequestSpec)


def lines(planned, requested):
    return [difference.line for difference in differences.plan_differences(planned, requested)]


def test_an_equal_description_differs_in_nothing():
    full = {
        'required_traits': ['HW_CPU_X86_AVX2', 'STORAGE_DISK_SSD'],
        'any_traits': [['A', 'B'], ['C']],
        'flavor': {'name': 'm1', 'extra_specs': {'hw:cpu_policy': 'dedicated'}},
        'image': {'uuid': 'i', 'properties': {'hw_vm_mode': 'hvm'}},
        'hints': {'rules': ['traits contains "X"']},
        'tree': {'groups': {'_A': {'resources': {'VGPU': 1}}}},
    }
    reordered = full | {
        'required_traits': full['required_traits'][::-1],
        'any_traits': [['C'], ['B', 'A']],
    }
    assert lines(a_spec(**full), a_spec(**reordered)) == []
    assert differences.fixed_fields_key(a_spec(**full)) == differences.fixed_fields_key(
        a_spec(**reordered)
    )


#: Each: what the plan has, what is requested, and the line.
DIFFERENT = {
    'amount': (
        {},
        {'resources': {'VCPU': 2, 'MEMORY_MB': 16384}},
        'resources.MEMORY_MB: the plan has 8192, the request 16384',
    ),
    'class': (
        {},
        {'resources': {'VCPU': 2, 'MEMORY_MB': 8192, 'VGPU': 1}},
        'resources.VGPU: the plan has none, the request 1',
    ),
    'range': (
        {'max_resources': {'VCPU': 4}},
        {},
        'max_resources.VCPU: the plan has 4, the request none',
    ),
    'trait': (
        {'required_traits': ['A', 'B']},
        {'required_traits': ['A']},
        'required_traits: the plan has A, B, the request A',
    ),
    'consumer-type': (
        {},
        {'consumer_type': 'VOLUME'},
        'consumer_type: the plan has none, the request VOLUME',
    ),
    'rule': (
        {'hints': {'rules': ['drop 1: zone == "a"']}},
        {},
        'hints.rules: the plan has drop 1: zone == "a", the request none',
    ),
    'flavor': (
        {'flavor': {'name': 'm1.small'}},
        {'flavor': {'name': 'm1.large'}},
        'flavor.name: the plan has m1.small, the request m1.large',
    ),
    'extra-spec': (
        {},
        {'flavor': {'extra_specs': {'hw:cpu_policy': 'dedicated'}}},
        'flavor.extra_specs.hw:cpu_policy: the plan has none, the request dedicated',
    ),
    'image-property': (
        {'image': {'properties': {'hw_disk_bus': 'virtio'}}},
        {'image': {'properties': {'hw_disk_bus': 'scsi'}}},
        'image.properties.hw_disk_bus: the plan has virtio, the request scsi',
    ),
    'property-that-asks-something': (
        {},
        {'image': {'properties': {'hw_cpu_policy': 'dedicated'}}},
        'image.properties.hw_cpu_policy: the plan has none, the request dedicated',
    ),
    'tree': (
        {'tree': {'groups': {'_A': {'resources': {'VGPU': 1}}}}},
        {'tree': {'groups': {'_A': {'resources': {'VGPU': 2}}}}},
        'tree.groups._A.resources.VGPU: the plan has 1, the request 2',
    ),
    'volume': (
        {},
        {'volume_backed': True},
        'volume_backed: the plan has none, the request true',
    ),
    'zone': (
        {'availability_zone': 'a'},
        {'availability_zone': 'b'},
        'availability_zone: the plan has a, the request b',
    ),
    'forced': ({}, {'force_hosts': ['cmp-1']}, 'force_hosts: the plan has none, the request cmp-1'),
    'networks-of-cells': (
        {'flavor': {'extra_specs': {'hw:numa_nodes': '2'}}},
        {
            'flavor': {'extra_specs': {'hw:numa_nodes': '2'}},
            'networks': {'physical': ['net1']},
        },
        'networks.physical: the plan has none, the request net1',
    ),
}


@pytest.mark.parametrize('case', DIFFERENT)
def test_a_difference_names_the_field_and_both_values(case):
    planned, requested, line = DIFFERENT[case]
    assert lines(a_spec(**planned), a_spec(**requested)) == [line]


#: Fields of a create that no plan has, and that do not count as a difference.
LEFT_OPEN = {
    'flavor': {'flavor': {'name': 'm1.small'}},
    'image': {'image': {'uuid': 'i', 'disk_format': 'qcow2', 'properties': {'os_distro': 'x'}}},
    'whose': {'project_id': 'p', 'user_id': 'u'},
    'elsewhere': {'ignore_hosts': ['cmp-1'], 'destination': {'hosts': ['cmp-2']}},
    'quota-of-the-guest': {'flavor': {'extra_specs': {'quota:cpu_shares': '10', 'hw_rng:x': '1'}}},
    'heat': {'hints': {'heat_resource_name': ['web'], 'heat_root_stack_id': ['s']}},
    'names': {'hints': {'group': [an_id(1)], 'gantt_member': ['web-1']}},
    'plan': {'hints': {'gantt_plan': [an_id(1)], 'gantt_member': ['web-1']}},
    'group': {'group': {'uuid': an_id(1), 'policy': 'affinity', 'members': [an_id(2)]}},
    'networks': {'networks': {'physical': ['net1'], 'tunneled': True}},
}


@pytest.mark.parametrize('case', LEFT_OPEN)
def test_what_a_plan_leaves_open_is_not_compared(case):
    assert lines(a_spec(), a_spec(**LEFT_OPEN[case])) == []


def test_many_differences_are_counted_and_a_long_value_is_cut():
    many = a_spec(resources={f'CUSTOM_{i}': 1 for i in range(9)})
    changed = differences.plan_differences(a_spec(), many)
    assert len(changed) == 11
    assert differences.differences_text(changed).endswith('; and 5 more')
    long = a_spec(flavor={'extra_specs': {'hw:cpu_policy': 'x' * 900}})
    assert len(lines(a_spec(), long)[0]) < 250


NAMES = st.sampled_from(['A', 'B', 'C'])
TEXTS = st.sampled_from(['x', 'y', ''])
FIELDS = {
    'resources': st.dictionaries(
        st.sampled_from(['VCPU', 'MEMORY_MB', 'VGPU']), st.integers(1, 3), min_size=1
    ),
    'consumer_type': NAMES,
    'availability_zone': NAMES,
    'required_traits': st.lists(NAMES, unique=True),
    'forbidden_aggregates': st.lists(NAMES, unique=True),
    'any_traits': st.lists(st.lists(NAMES, unique=True, min_size=1), max_size=2),
    'force_nodes': st.lists(NAMES, unique=True),
    'volume_backed': st.booleans(),
    'flavor': st.fixed_dictionaries(
        {}, optional={'extra_specs': st.dictionaries(st.sampled_from(['hw:x', 'a']), TEXTS)}
    ),
    'hints': st.dictionaries(st.sampled_from(['rules', 'query', 'own']), st.lists(TEXTS)),
    'tree': st.none() | st.just({'groups': {'_1': {'resources': {'VGPU': 1}}}}),
    'image': st.fixed_dictionaries(
        {}, optional={'properties': st.dictionaries(st.sampled_from(['hw_vm_mode', 'o']), TEXTS)}
    ),
}
SPECS = st.fixed_dictionaries(
    {'resources': FIELDS['resources']},
    optional={name: of for name, of in FIELDS.items() if name != 'resources'},
).map(lambda body: msgspec.convert(body, RequestSpec))


def shuffled(spec, seed):
    """Return the same spec in another order."""
    rng = random.Random(seed)

    def again(value, is_ordered=False):
        if isinstance(value, dict):
            items = [(k, again(v, is_ordered or k == 'hints')) for k, v in value.items()]
            rng.shuffle(items)
            return dict(items)
        if isinstance(value, list) and not is_ordered:
            items = [again(item) for item in value]
            rng.shuffle(items)
            return items
        return value

    return msgspec.convert(again(msgspec.to_builtins(spec)), RequestSpec)


@settings(max_examples=examples(200))
@given(SPECS, st.integers(0, 99))
def test_what_is_said_in_another_order_is_the_same(spec, seed):
    other = shuffled(spec, seed)
    assert differences.plan_differences(spec, other) == []
    assert differences.fixed_fields_key(spec) == differences.fixed_fields_key(other)


@settings(max_examples=examples(200))
@given(SPECS, SPECS)
def test_keys_are_equal_where_nothing_that_counts_differs(planned, requested):
    changed = differences.plan_differences(planned, requested)
    left_open = differences.differences_left_open(planned, requested)
    is_same = differences.fixed_fields_key(planned) == differences.fixed_fields_key(requested)
    assert is_same == (len(changed) == len(left_open))
    assert all(difference in changed for difference in left_open)
    # A field that differs is named once, with two values that are not the same to people either.
    assert len({difference.field for difference in changed}) == len(changed)


@settings(max_examples=examples(200))
@given(SPECS, st.sampled_from(['resources', 'required_traits', 'availability_zone', 'tree']))
def test_a_field_that_is_changed_is_the_one_that_is_named(spec, name):
    changes = {
        'resources': {**spec.resources, 'CUSTOM_X': 7},
        'required_traits': [*spec.required_traits, 'CUSTOM_TRAIT'],
        'availability_zone': 'elsewhere',
        'tree': {'groups': {'_1': {'resources': {'VGPU': 9}}}},
    }
    body = msgspec.to_builtins(spec)
    body[name] = changes[name]
    other = msgspec.convert(body, RequestSpec)
    changed = differences.plan_differences(spec, other)
    assert changed and {difference.field.split('.')[0] for difference in changed} == {name}
