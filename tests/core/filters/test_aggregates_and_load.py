# SPDX-License-Identifier: Apache-2.0
"""Filters on aggregates, load, addresses, metrics and amounts: whom they let pass."""

import numpy as np
import pytest

from gantt import exceptions, plugin_loader
from gantt.core.filters.aggregates import AggregateImagePropertiesIsolation
from gantt.core.messages.report import Hypervisor, ReportedMetric
from gantt.core.messages.resource_classes import Inventory
from gantt.core.table.metrics import DeclaredMetric
from tests.core.builders import (
    NOW,
    a_host,
    a_request,
    a_table,
    decide,
    hosts_of,
    passing,
)
from tests.core.filters.small import (
    a_filter,
    a_spec,
    asking,
    counting,
    in_aggregates,
    of_image,
    running,
)


# -- aggregates --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('metadata', 'extra_specs', 'pass_'),
    [
        ([{'ssd': 'true'}], {'ssd': 'true'}, ['cmp-1']),
        ([{'ssd': 'true'}], {'aggregate_instance_extra_specs:ssd': 's== true'}, ['cmp-1']),
        ([{'ssd': 'true'}], {'hw:ssd': 'no'}, ['cmp-1', 'cmp-2']),
        ([{'cpu': '4, 16'}], {'cpu': '>= 10'}, ['cmp-1']),
        ([{'cpu': '4'}, {'cpu': '16'}], {'cpu': 's!= 16'}, ['cmp-1']),
        ([{'cpu': 'gold'}], {'cpu': '>= 1'}, []),
        ([{'cpu': 'a'}], {'cpu': '<or>'}, []),
        ([], {'ssd': 'true'}, []),
    ],
)
def test_extra_specs_of_aggregates(metadata, extra_specs, pass_):
    rule = a_filter('AggregateInstanceExtraSpecsFilter')
    assert passing(in_aggregates(*metadata), rule, asking(extra_specs)) == pass_


@pytest.mark.parametrize(
    ('metadata', 'pass_'),
    [
        ([], ['cmp-1', 'cmp-2']),
        ([{'filter_tenant_id': 'blue'}], ['cmp-2']),
        ([{'filter_tenant_id': 'blue, red'}], ['cmp-1', 'cmp-2']),
        ([{'filter_tenant_id2': 'blue'}, {'filter_tenant_idx': 'red'}], ['cmp-1', 'cmp-2']),
        ([{'filter_tenant_id': ''}], ['cmp-2']),
        ([{'tenant': 'blue'}], ['cmp-1', 'cmp-2']),
    ],
)
def test_projects_of_aggregates(metadata, pass_):
    rule = a_filter('AggregateMultiTenancyIsolation')
    assert passing(in_aggregates(*metadata), rule, a_spec(project_id='red')) == pass_


@pytest.mark.parametrize(
    ('types', 'pass_'), [('small', ['cmp-1', 'cmp-2']), ('large, huge', ['cmp-2']), ('', ['cmp-2'])]
)
def test_flavors_of_aggregates(types, pass_):
    rule = a_filter('AggregateTypeAffinityFilter')
    assert passing(in_aggregates({'instance_type': types}), rule, asking({})) == pass_


@pytest.mark.parametrize(
    ('metadata', 'value', 'ours', 'novas'),
    [
        ('a, b', 'b', True, True),
        ('a', 'b', False, False),
        ('a', '', True, True),
        ('true', 'True', True, False),
        ('yes', 'True', True, False),
        ('True', 'False', False, True),
        ('5', '0', False, True),
    ],
)
def test_images_of_aggregates(metadata, value, ours, novas):
    table = in_aggregates({'hw_x': metadata}, hosts=1)
    spec = of_image(hw_x=value)
    option = 'aggregate_image_properties_isolation_as_nova'
    for as_nova, passes in ((False, ours), (True, novas)):
        rule = AggregateImagePropertiesIsolation({option: as_nova})
        assert passing(table, rule, spec) == (['cmp-1'] if passes else [])
    assert passing(table, rule, of_image(other='x')) == ['cmp-1']


def test_with_a_namespace_other_keys_of_aggregates_do_not_count():
    table = in_aggregates({'hw_x': 'a', 'img.y': 'a'}, hosts=1)
    rule = a_filter(
        'AggregateImagePropertiesIsolation', aggregate_image_properties_isolation_namespace='img'
    )
    assert passing(table, rule, of_image(hw_x='b')) == ['cmp-1']
    assert passing(table, rule, of_image(**{'img.y': 'b'})) == []


# -- load --------------------------------------------------------------------------------
def test_guests_and_operations_are_limited():
    table = counting(num_instances=[49.0, 50.0], io_workload=[8.0, 7.0])
    assert passing(table, a_filter('NumInstancesFilter'), a_spec()) == ['cmp-1']
    assert passing(table, a_filter('IoOpsFilter'), a_spec()) == ['cmp-2']


@pytest.mark.parametrize('name', ['NumInstancesFilter', 'IoOpsFilter'])
def test_members_of_one_request_count_at_once(name):
    table = counting(num_instances=[3.0, 1.0], io_workload=[3.0, 1.0])
    key = 'max_instances_per_host' if name == 'NumInstancesFilter' else 'max_io_ops_per_host'
    pipeline = plugin_loader.load_pipeline([name], [], {key: 4})
    assert (
        sorted(hosts_of(decide(table, a_request(count=4), pipeline))) == ['cmp-1'] + ['cmp-2'] * 3
    )
    refused = decide(table, a_request(count=5), pipeline)
    assert not refused.is_placed
    assert refused.reason.endswith(
        '0/2 hosts fit: 2 have 4 ' + a_filter(name).load.what + ' or more'
    )


@pytest.mark.parametrize(
    ('values', 'limit'),
    [
        (['3', '5'], 3),
        ([' 5 '], 5),
        (['-1'], -1),
        (['1_0'], 10),
        (['5,7', '3'], 3),
        (['5.0'], 50),
        (['9' * 400], 2**53),
        ([], 50),
    ],
)
def test_the_least_limit_of_aggregates_that_can_be_read_counts(values, limit):
    table = in_aggregates(*({'max_instances_per_host': value} for value in values), hosts=1)
    limits, wrong = a_filter('AggregateNumInstancesFilter').limits(table)
    assert limits.tolist() == [limit]
    assert all(text in values for text in wrong)


# -- hosts, addresses, metrics -----------------------------------------------------------
@pytest.mark.parametrize(
    ('images', 'restrict', 'image', 'pass_'),
    [
        (['i'], True, 'i', ['cmp-1']),
        (['i'], True, 'other', ['cmp-2']),
        (['i'], True, None, ['cmp-2']),
        (['i'], False, 'i', ['cmp-1']),
        (['i'], False, 'other', ['cmp-1', 'cmp-2']),
        ([], True, 'other', ['cmp-2']),
        ([], False, 'other', ['cmp-1', 'cmp-2']),
    ],
)
def test_isolated_hosts(images, restrict, image, pass_):
    rule = a_filter(
        'IsolatedHostsFilter',
        isolated_images=images,
        isolated_hosts=['cmp-1', 'CMP-2'],
        restrict_isolated_hosts_to_isolated_images=restrict,
    )
    assert passing(a_table(a_host(1), a_host(2)), rule, of_image(image)) == pass_


@pytest.mark.parametrize(
    ('near', 'cidr', 'pass_'),
    [
        ('10.0.0.1', None, ['cmp-1']),
        ('10.0.0.1', '/16', ['cmp-1', 'cmp-2']),
        ('10.0.0.1', '16', ['cmp-1', 'cmp-2']),
        ('10.0.0.1', '/0', ['cmp-1', 'cmp-2']),
        ('10.0.0.7', '/32', ['cmp-1']),
        ('fd00::1', '/64', ['cmp-3']),
        ('::', '/0', ['cmp-3']),
    ],
)
def test_near_an_address(near, cidr, pass_):
    ips = ('10.0.0.7', '10.0.1.7', 'fd00::7', '', 'nonsense')
    table = running(*(Hypervisor(host_ip=ip) for ip in ips))
    hints = {'build_near_host_ip': [near]} | ({'cidr': [cidr]} if cidr else {})
    assert passing(table, a_filter('SimpleCIDRAffinityFilter'), a_spec(hints=hints)) == pass_


@pytest.mark.parametrize(
    'hints',
    [
        {'build_near_host_ip': ['x']},
        {'build_near_host_ip': ['10.0.0.1', '10.0.0.2']},
        {'build_near_host_ip': ['10.0.0.1'], 'cidr': ['/99']},
    ],
)
def test_hints_that_are_no_network_are_refused(hints):
    rule = a_filter('SimpleCIDRAffinityFilter')
    with pytest.raises(exceptions.InvalidMessage, match='build_near_host_ip.*expected'):
        rule.check_request(a_spec(hints=hints))
    assert passing(running(Hypervisor(host_ip='10.0.0.1')), rule, a_spec(hints=hints)) == []
    rule.check_request(a_spec(hints={'cidr': ['nonsense']}))


def test_all_metrics_that_are_weighed_are_there():
    table = counting(a=[1.0, float('nan')], b=[0.0, 0.0])
    for setting, pass_ in (
        ('', ['cmp-1', 'cmp-2']),
        ('stats.a=1.0, stats.b=-2', ['cmp-1']),
        ('none=1', []),
    ):
        rule = a_filter('MetricsFilter', metrics_weight_setting=setting)
        assert passing(table, rule, a_spec()) == pass_


def test_metrics_out_of_their_bounds_or_too_old_are_not_there():
    table = a_table(
        a_host(1, metrics={'m': ReportedMetric(value=1)}),
        a_host(2, metrics={'m': ReportedMetric(value=101)}),
        a_host(3, metrics={'m': ReportedMetric(value=-1)}),
        a_host(4),
        a_host(5, metrics={'m': ReportedMetric(value=2, age_seconds=55)}),
        a_host(6, metrics={'m': ReportedMetric(value=3)}, reported_at=NOW - 61),
        a_host(7, metrics={'m': ReportedMetric(value=4, age_seconds=49)}),
    )
    rule = a_filter('MetricsFilter', metrics_weight_setting='m=1')
    assert len(passing(table, rule, a_spec())) == 6
    table.set_metrics([DeclaredMetric(name='m', lower=0, upper=100)])
    assert passing(table, rule, a_spec()) == ['cmp-1', 'cmp-5', 'cmp-6', 'cmp-7']
    table.set_metrics([DeclaredMetric(name='m', lower=0, upper=100, stale_seconds=60)])
    assert passing(table, rule, a_spec()) == ['cmp-1', 'cmp-7']
    left_out = np.flatnonzero(~rule.mask(table, a_spec()))
    assert rule.detail(table, a_spec(), left_out) == {
        'parts': {'do not report metric m': 1, 'report metric m too old or out of its bounds': 4}
    }
    table.now += 5
    assert passing(table, rule, a_spec()) == ['cmp-1']
    table.set_metrics([])
    assert len(passing(table, rule, a_spec())) == 6


# -- amounts -----------------------------------------------------------------------------
def test_no_guest_is_larger_than_its_host_and_ratios_of_aggregates_narrow():
    cores = {'inventories': {'VCPU': Inventory(total=8, allocation_ratio=4.0)}}
    table = in_aggregates({'cpu_allocation_ratio': '0.5'}, {'cpu_allocation_ratio': 'x'}, **cores)
    need = {n: a_spec(resources={'VCPU': n}) for n in (4, 5, 8, 9)}
    for amount, passes in ((8, ['cmp-1', 'cmp-2']), (9, [])):
        assert passing(table, a_filter('CoreFilter'), need[amount]) == passes
    for amount, passes in ((4, ['cmp-1', 'cmp-2']), (5, ['cmp-2'])):
        assert passing(table, a_filter('AggregateCoreFilter'), need[amount]) == passes


def test_exact_amounts_are_what_is_free():
    inventory = {'MEMORY_MB': Inventory(total=4096, reserved=1024)}
    table = a_table(
        a_host(1, inventories=inventory), a_host(2, inventories=inventory, used={'MEMORY_MB': 1024})
    )
    for amount, pass_ in ((3072, ['cmp-1']), (2048, ['cmp-2']), (1024, [])):
        spec = a_spec(resources={'MEMORY_MB': amount})
        assert passing(table, a_filter('ExactRamFilter'), spec) == pass_


def test_hosts_that_failed_before_are_left_out():
    table = a_table(a_host(1), a_host(2))
    assert passing(table, a_filter('RetryFilter'), a_spec(ignore_hosts=['CMP-1'])) == ['cmp-2']
    assert passing(table, a_filter('AllHostsFilter'), a_spec()) == ['cmp-1', 'cmp-2']
