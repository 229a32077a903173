# SPDX-License-Identifier: Apache-2.0
"""Filters of Nova's shape run as they are: names, answers, and nothing they can change."""

from typing import ClassVar

import pytest

from gantt import exceptions, plugin_loader
from gantt.core.filters.host_passes import BaseHostFilter, HostView, SpecView, adapted_filter
from gantt.core.messages.report import Hypervisor, ReportedMetric
from gantt.core.messages.request import Flavor, GroupRef, Image, Policy, Purpose, RequestSpec
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement.pipeline import Pipeline
from gantt.core.resources.host import Aggregate
from gantt.testing import conformance
from tests.core.builders import (
    NOW,
    a_change,
    a_guest,
    a_host,
    a_request,
    a_table,
    an_id,
    decide,
    hosts_of,
)

#: Attributes of Nova's HostState and RequestSpec that a filter may read.
HOST_NAMES = """
    host nodename uuid cell_uuid total_usable_ram_mb total_usable_disk_gb disk_mb_used
    free_ram_mb free_disk_mb vcpus_total vcpus_used pci_stats numa_topology num_instances
    num_io_ops failed_builds host_ip hypervisor_type hypervisor_version hypervisor_hostname
    cpu_info supported_instances limits metrics aggregates instances ram_allocation_ratio
    cpu_allocation_ratio disk_allocation_ratio updated allocation_candidates service stats
"""
SPEC_NAMES = """
    id image numa_topology pci_requests project_id user_id availability_zone flavor
    num_instances ignore_hosts force_hosts force_nodes requested_destination retry limits
    instance_group scheduler_hints instance_uuid security_groups network_metadata is_bfv
"""


class BigEnough(BaseHostFilter):
    """Free memory after the request, by an extra spec."""

    def host_passes(self, host_state, spec_obj):
        keep = int(spec_obj.flavor.extra_specs.get('acme:keep_mb', 0))
        return host_state.free_ram_mb - spec_obj.flavor.memory_mb >= keep


class Quiet:
    """Derives from nothing at all."""

    RUN_ON_REBUILD = True
    run_filter_once_per_request = True

    def host_passes(self, host_state, spec_obj):
        quiet = spec_obj.get_scheduler_hint('quiet')
        return not quiet or host_state.num_instances == 0


class Rude(BaseHostFilter):
    def host_passes(self, host_state, spec_obj):
        host_state.free_ram_mb = 10**9
        return True


def test_it_decides_and_sees_the_picks_of_its_own_request():
    pipeline = Pipeline([*plugin_loader.load(['ResourcesFilter']), adapted_filter(BigEnough)()], [])
    table = a_table(a_host(1, ram=16384), a_host(2, ram=8192), a_host(3, ram=5000))
    keep = Flavor(name='f', extra_specs={'acme:keep_mb': '4096'})
    decision = decide(table, a_request(5, flavor=keep), pipeline)
    assert decision.outcome == 'no_valid_host'
    assert 'removed by BigEnough' in decision.reason
    decision = decide(table, a_request(4, flavor=keep, number=1), pipeline)
    assert hosts_of(decision) == ['cmp-1', 'cmp-1', 'cmp-1', 'cmp-2']


def test_hints_and_rebuilds_are_as_with_nova():
    rule = adapted_filter(Quiet)()
    assert rule.name == 'Quiet'
    assert Purpose.REBUILD in rule.purposes
    assert Purpose.REBUILD not in adapted_filter(BigEnough).purposes
    table = a_table(a_change(a_host(1), a_guest(1, 1)), a_host(2))
    spec = RequestSpec(resources={'VCPU': 1}, hints={'quiet': ['yes']})
    assert rule.mask(table, spec).tolist() == [False, True]
    assert rule.mask(table, RequestSpec(resources={'VCPU': 1})).tolist() == [True, True]


def test_every_name_of_nova_is_there():
    table = a_table(a_host(1))
    host = HostView(table.host_state(0))
    spec = SpecView(RequestSpec(resources={'VCPU': 1}))
    for name in HOST_NAMES.split():
        getattr(host, name)
    for name in SPEC_NAMES.split():
        getattr(spec, name)
    for view in (host, spec):
        with pytest.raises(AttributeError, match='no_such_name'):
            _ = view.no_such_name


def test_facts_are_under_novas_names():
    row = a_host(
        1,
        inventories={'VCPU': Inventory(total=16, reserved=2, allocation_ratio=4.0)},
        ram=8192,
        used={'MEMORY_MB': 1024, 'VCPU': 3},
        foreign={'MEMORY_MB': 100},
        node='node-1',
        metrics={'load': ReportedMetric(value=0.5)},
        hypervisor=Hypervisor(
            type='QEMU',
            version=8002000,
            host_ip='10.0.0.1',
            cpu_info={'vendor': 'Intel'},
            supported=[['x86_64', 'kvm', 'hvm']],
        ),
    )
    gold = Aggregate(id=1, uuid=an_id(1), name='gold', hosts=['cmp-1'], metadata={'ssd': 'true'})
    host = HostView(a_table(row, aggregates=[gold]).host_state(0))
    assert (host.host, host.nodename, host.hypervisor_hostname) == ('cmp-1', 'node-1', 'node-1')
    assert (host.vcpus_total, host.vcpus_used, host.cpu_allocation_ratio) == (16, 5, 4.0)
    assert (host.total_usable_ram_mb, host.free_ram_mb) == (8192, 8192 - 1124)
    assert host.aggregates[0].metadata['ssd'] == 'true'
    assert host.metrics[0].value == 0.5
    assert host.cpu_info == '{"vendor": "Intel"}'
    assert host.service['disabled'] is False
    spec = SpecView(
        RequestSpec(
            resources={'VCPU': 2, 'MEMORY_MB': 512, 'DISK_GB': 5},
            project_id='red',
            image=Image(uuid='i', properties={'os_distro': 'debian'}),
            group=GroupRef(uuid=an_id(2), policy=Policy.AFFINITY, hosts=['cmp-1']),
        )
    )
    assert (spec.flavor.vcpus, spec.flavor.memory_mb, spec.flavor.root_gb) == (2, 512, 5)
    assert spec.image.properties.os_distro == 'debian'
    assert spec.image.properties.get('hw_vm_mode', 'hvm') == 'hvm'
    assert (spec.instance_group.policy, spec.instance_group.hosts) == ('affinity', ['cmp-1'])
    assert spec.scheduler_hints['group'] == [an_id(2)]
    assert 'project_id' in spec
    assert not spec.obj_attr_is_set('retry')


class Once(BaseHostFilter):
    """Notes who is asked about: no filter may, and the test has to."""

    run_filter_once_per_request = True
    asked: ClassVar[list[str]] = []

    def host_passes(self, host_state, spec_obj):
        self.asked.append(host_state.host)
        return host_state.num_instances == 0


class Again(Once):
    run_filter_once_per_request = False


@pytest.mark.parametrize(('plugin', 'placed'), [(Once, True), (Again, False)], ids=['once', 'each'])
def test_one_that_says_so_is_asked_once_about_a_host_of_a_request(plugin, placed):
    plugin.asked.clear()
    pipeline = Pipeline([*plugin_loader.load(['ResourcesFilter']), adapted_filter(plugin)()], [])
    table = a_table(a_host(1), a_host(2))
    decision = decide(table, a_request(3), pipeline)
    assert (decision.outcome == 'placed') is placed
    assert (sorted(plugin.asked) == ['cmp-1', 'cmp-2']) is placed
    plugin.asked.clear()
    decide(a_table(a_host(1)), a_request(1, number=1), pipeline)
    assert plugin.asked == ['cmp-1']


class Recent(BaseHostFilter):
    def host_passes(self, host_state, spec_obj):
        seen = host_state.service['last_seen_up']
        return bool(seen and seen == host_state.updated and seen.year >= 1970 and seen.tzinfo)


def test_times_are_times():
    table = a_table(a_host(1), a_host(2, reported_at=0.0))
    assert adapted_filter(Recent)().mask(table, a_request().spec).tolist() == [True, False]
    assert HostView(table.host_state(0)).updated.timestamp() == NOW - 10


class All(BaseHostFilter):
    def filter_all(self, filter_obj_list, spec_obj):
        return filter_obj_list[:1]


class Inner:
    def _filter_one(self, obj, spec_obj):
        return True

    def host_passes(self, host_state, spec_obj):
        return True


class Nothing(BaseHostFilter):
    pass


@pytest.mark.parametrize(
    ('plugin', 'said'),
    [(All, 'overrides filter_all'), (Inner, 'overrides _filter_one'), (Nothing, 'does not say')],
    ids=['all', 'one', 'none'],
)
def test_one_that_works_elsewhere_than_in_host_passes_does_not_load(plugin, said):
    with pytest.raises(exceptions.PluginError, match=f'{said}.*expected host_passes'):
        plugin_loader.load([f'{__name__}:{plugin.__name__}'])


def test_what_it_would_change_fails_that_request_by_name():
    decision = decide(a_table(a_host(1)), a_request(), Pipeline([adapted_filter(Rude)()], []))
    assert decision.outcome == 'failed'
    assert 'Rude' in decision.reason
    assert 'not changed by filters' in decision.reason


@pytest.mark.parametrize('plugin', [BigEnough, Quiet])
def test_adapted_filters_conform(plugin):
    conformance.check(adapted_filter(plugin))


def test_one_is_loaded_by_module_and_class():
    name = f'{BigEnough.__module__}:BigEnough'
    (rule,) = plugin_loader.load([name])
    assert rule.name == 'BigEnough'
    with pytest.raises(exceptions.PluginError, match='does not load'):
        plugin_loader.load(['no.such.module:Filter'])
    with pytest.raises(exceptions.PluginError, match='expected a subclass'):
        plugin_loader.load(['os:path'])
