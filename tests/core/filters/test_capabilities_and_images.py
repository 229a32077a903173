# SPDX-License-Identifier: Apache-2.0
"""Filters on the hypervisor of a host: the hosts that they let pass, and their reports."""

import numpy as np
import pytest

from gantt import exceptions
from gantt.core.filters.base import EVERY_PURPOSE, PLACING
from gantt.core.messages.report import Hypervisor
from gantt.core.messages.request import GroupRef, Policy
from tests.core.builders import (
    a_change,
    a_guest,
    a_host,
    a_table,
    an_id,
    passing,
)
from tests.core.filters.reference import REFERENCE
from tests.core.filters.small import (
    a_filter,
    a_spec,
    asking,
    of_image,
    running,
)

KVM = ['x86_64', 'kvm', 'hvm']
XEN = ['x86_64', 'xen', 'hvm']


# -- which requests they run for ---------------------------------------------------------
@pytest.mark.parametrize('name', sorted(REFERENCE))
def test_a_rebuild_runs_those_that_look_at_the_image(name):
    of_rebuilds = (
        'ImagePropertiesFilter',
        'AggregateImagePropertiesIsolation',
        'IsolatedHostsFilter',
    )
    filter_ = a_filter(name)
    assert filter_.purposes == (EVERY_PURPOSE if name in of_rebuilds else PLACING)
    assert not filter_.always or name == 'RetryFilter'


# -- capabilities ------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('key', 'required', 'pass_'),
    [
        ('capabilities:hypervisor_type', 'QEMU', ['cmp-1']),
        ('hypervisor_type', 's!= QEMU', ['cmp-2']),
        ('capabilities:hypervisor_version', '>= 4002000', ['cmp-1']),
        ('capabilities:cpu_info:topology:cores', '>= 4', ['cmp-1', 'cmp-2']),
        ('capabilities:cpu_info:arch', 'x86_64', ['cmp-1']),
        ('capabilities:nothing', 'x', []),
        ('nothing', 'x', ['cmp-1', 'cmp-2']),
        ('Capabilities:hypervisor_type', 'none', ['cmp-1', 'cmp-2']),
        ('hw:cpu_policy', 'dedicated', ['cmp-1', 'cmp-2']),
        ('capabilities:boot', 'uefi', ['cmp-1']),
        ('boot', 'uefi', ['cmp-1', 'cmp-2']),
        ('capabilities:stats:boot', 'uefi', ['cmp-1']),
        ('capabilities:free_ram_mb', '>= 32768', ['cmp-1', 'cmp-2']),
        ('capabilities:service:disabled', 'False', ['cmp-1', 'cmp-2']),
        ('hw:maxphysaddr_bits', '40', ['cmp-1']),
    ],
)
def test_capabilities(key, required, pass_):
    table = running(
        Hypervisor(
            type='QEMU',
            version=4_002_001,
            stats={'boot': 'uefi'},
            cpu_info={'arch': 'x86_64', 'topology': {'cores': 4}, 'maxphysaddr': {'bits': 46}},
        ),
        Hypervisor(type='ironic', version=1, cpu_info='{"topology": "{\\"cores\\": \\"8\\"}"}'),
    )
    assert passing(table, a_filter('ComputeCapabilitiesFilter'), asking({key: required})) == pass_


def test_capabilities_of_lists_are_members():
    table = running(
        Hypervisor(cpu_info={'features': ['avx2', 'aes']}),
        Hypervisor(cpu_info={'features': ['avx', 'aes']}),
    )
    spec = asking({'capabilities:cpu_info:features': '<all-in> avx aes'})
    rule, as_nova = (
        a_filter('ComputeCapabilitiesFilter', extra_specs_as_nova=old) for old in (False, True)
    )
    assert passing(table, rule, spec) == ['cmp-2']
    assert passing(table, as_nova, spec) == ['cmp-1', 'cmp-2']


@pytest.mark.parametrize(
    'key', ['free_ram_mb:numerator', 'update', '__class__', 'uuid:upper', 'numa_topology', '']
)
def test_what_is_no_fact_is_missing_not_an_attribute(key):
    table = running(Hypervisor())
    rule = a_filter('ComputeCapabilitiesFilter')
    assert passing(table, rule, asking({f'capabilities:{key}': 's!= x'})) == []


def test_capabilities_say_what_hosts_have_instead():
    table = running(Hypervisor(type='xen'), Hypervisor(type='ironic'), Hypervisor())
    rule, spec = (
        a_filter('ComputeCapabilitiesFilter'),
        asking({'capabilities:hypervisor_type': 'QEMU'}),
    )
    assert rule.detail(table, spec, np.arange(3))['parts'] == {
        "capabilities:hypervisor_type is not 'QEMU' (hosts have xen, ironic, nothing)": 3
    }


# -- images ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('properties', 'pass_'),
    [
        ({}, ['cmp-1', 'cmp-2', 'cmp-3']),
        ({'hw_architecture': 'amd64'}, ['cmp-1', 'cmp-2']),
        ({'img_hv_type': 'xapi'}, ['cmp-2']),
        ({'hw_architecture': 'x86_64', 'hw_vm_mode': 'HV'}, ['cmp-1', 'cmp-2']),
        ({'hw_architecture': 'unheard-of'}, []),
        ({'img_hv_type': 'kvm', 'img_hv_requested_version': '>=4.2,<5'}, ['cmp-1']),
        ({'img_hv_type': 'kvm', 'img_hv_requested_version': '<4'}, []),
        ({'img_hv_type': 'kvm', 'img_hv_requested_version': 'newest'}, []),
        ({'img_hv_type': 'kvm', 'hw_maxphysaddr_bits': '46'}, ['cmp-1']),
        ({'img_hv_type': 'kvm', 'hw_maxphysaddr_bits': '47'}, []),
    ],
)
def test_image_properties(properties, pass_):
    table = running(
        Hypervisor(supported=[KVM], version=4_002_001, cpu_info={'maxphysaddr': {'bits': 46}}),
        Hypervisor(supported=[XEN], version=0),
        Hypervisor(),
    )
    assert passing(table, a_filter('ImagePropertiesFilter'), of_image(**properties)) == pass_


@pytest.mark.parametrize(
    ('properties', 'ours', 'novas'),
    [
        # the third of the three is the mode, not the second
        ({'hw_vm_mode': 'xen'}, [], ['cmp-1']),
        ({'img_hv_requested_version': '>=5'}, [], ['cmp-1']),
        ({'hw_maxphysaddr_bits': '47'}, [], ['cmp-1']),
    ],
)
def test_images_are_matched_in_place_and_whole(properties, ours, novas):
    host = Hypervisor(supported=[XEN], version=4_000_000, cpu_info={'maxphysaddr': {'bits': 46}})
    spec = of_image(**properties)
    assert passing(running(host), a_filter('ImagePropertiesFilter'), spec) == ours
    as_nova = a_filter('ImagePropertiesFilter', image_properties_as_nova=True)
    assert passing(running(host), as_nova, spec) == novas


def test_the_default_architecture_is_checked_when_it_is_configured():
    rule = a_filter('ImagePropertiesFilter', image_properties_default_architecture='aarch64')
    assert passing(running(Hypervisor(supported=[KVM])), rule, a_spec()) == []
    with pytest.raises(exceptions.PluginError, match='no architecture'):
        a_filter('ImagePropertiesFilter', image_properties_default_architecture='pentium')


# -- queries -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('query', 'pass_'),
    [
        ('["=", "$host", "cmp-1"]', ['cmp-1']),
        ('["and", [">=", "$free_ram_mb", 32768], ["=", "$hypervisor_type", "QEMU"]]', ['cmp-1']),
        ('["or", ["=", "$host", "cmp-1"], ["=", "$host", "cmp-2"]]', ['cmp-1', 'cmp-2']),
        ('["in", "$host", "cmp-2", "cmp-3"]', ['cmp-2']),
        ('["=", "$host_ip", "10.0.0.7"]', ['cmp-1']),
        ('["=", "$cpu_info.cores", 4]', ['cmp-1']),
        ('["=", "$stats.boot", "uefi"]', ['cmp-1']),
        ('["<", "$host", 5]', []),
        ('["=", "$nothing", 5]', []),
        ('["not", ["=", "$nothing", 5]]', ['cmp-1', 'cmp-2']),
        ('["=", "$free_ram_mb", "$total_usable_ram_mb"]', ['cmp-1', 'cmp-2']),
        ('["=", true, 1]', ['cmp-1', 'cmp-2']),
        ('["=", 1]', []),
        ('[]', ['cmp-1', 'cmp-2']),
        ('null', ['cmp-1', 'cmp-2']),
        ('{}', ['cmp-1', 'cmp-2']),
    ],
)
def test_queries(query, pass_):
    table = running(
        Hypervisor(
            type='QEMU', host_ip='10.0.0.7', cpu_info='{"cores": 4}', stats={'boot': 'uefi'}
        ),
        Hypervisor(),
    )
    assert passing(table, a_filter('JsonFilter'), a_spec(hints={'query': [query]})) == pass_


def test_not_is_the_opposite():
    spec = a_spec(hints={'query': ['["and", ["not", ["=", 1, 1]]]']})
    assert passing(running(Hypervisor()), a_filter('JsonFilter'), spec) == []
    as_nova = a_filter('JsonFilter', json_filter_as_nova=True)
    assert passing(running(Hypervisor()), as_nova, spec) == ['cmp-1']


@pytest.mark.parametrize(
    ('queries', 'said'),
    [
        (['["=="', 'x'], 'expected one query'),
        (['["="'], 'expected JSON'),
        (['"="'], 'expected a list'),
        (['5'], 'expected a list'),
        (['["=="]'], "did you mean '='"),
        (['[["="]]'], 'expected one of'),
        (['["in", "$host", ["a", "b"]]'], 'expected one of'),
        (['["and"' + ', 1' * 200 + ']'], 'at most 128 arguments'),
        (['["not",' * 40 + '1' + ']' * 40], 'at most 32 levels'),
        (['[' * 900], 'expected JSON'),
        (['["and"' + ', ["=", "$host", "$uuid"]' * 9 + ']'], 'at most 8 comparisons'),
    ],
)
def test_queries_that_cannot_be_understood_are_refused(queries, said):
    spec = a_spec(hints={'query': queries})
    with pytest.raises(exceptions.InvalidMessage, match=said):
        a_filter('JsonFilter').check_request(spec)
    assert passing(running(Hypervisor()), a_filter('JsonFilter'), spec) == []


def test_a_member_does_not_count_itself_but_the_others_do():
    group = GroupRef(uuid=an_id(9), policy=Policy.ANTI_AFFINITY)
    mine, other = a_guest(1, 1, group.uuid), a_guest(2, 1, group.uuid)
    rule = a_filter('ServerGroupAntiAffinityFilter')
    spec = a_spec(group=group)
    assert rule.mask_for(a_table(a_change(a_host(1), mine)), spec, mine.consumer) is None
    both = a_table(a_change(a_host(1), mine, other))
    assert rule.mask_for(both, spec, mine.consumer).tolist() == [False]
