# SPDX-License-Identifier: Apache-2.0
"""Preferences of each weigher on small tables, and where they differ from Nova's."""

import msgspec
import numpy as np
import pytest

from gantt import exceptions, plugin_loader
from gantt.core.messages import image_properties
from gantt.core.messages.report import DevicePool, Hypervisor, ReportedMetric
from gantt.core.messages.request import Destination, Image
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement.pipeline import Pipeline, PipelineSettings
from gantt.core.resources.host import Aggregate
from gantt.core.table.aggregates import metadata_problems
from gantt.core.table.metrics import DeclaredMetric
from gantt.core.weighers.load import LoadWeigher
from gantt.core.weighers.metrics import MetricsWeigher
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

HERE, THERE = an_id(1, 9), an_id(2, 9)


def weigh(table, names, options=None, skip_failing=False, count=1, **spec):
    """Return the decision of these weighers alone."""
    loaded = plugin_loader.load(names.split(), options or {}, plugin_loader.WEIGHERS)
    pipeline = Pipeline([], loaded, PipelineSettings(skip_failing=skip_failing))
    return decide(table, a_request(count, alternates=20, **spec), pipeline)


def totals(*args, **kwargs):
    """Return total by host."""
    return {s.host: s.total for s in weigh(*args, **kwargs).members[0].scores}


def measured(number, value=None, age=0.0, **fields):
    """Return a host that measured ``m``, or did not."""
    metrics = {} if value is None else {'m': ReportedMetric(value=value, age_seconds=age)}
    return a_host(number, metrics=metrics, **fields)


def an_aggregate(number, hosts, **metadata):
    return Aggregate(
        id=number,
        uuid=an_id(number, 5),
        name=f'agg-{number}',
        hosts=[f'cmp-{n}' for n in hosts],
        metadata=metadata,
    )


# -- Nova's ---------------------------------------------------------------------------------
def test_hosts_busy_with_builds_come_last_and_each_pick_counts_as_one():
    busy = {'stats.io_workload': ReportedMetric(value=2)}
    table = a_table(a_host(1, metrics=busy), a_host(2))
    decision = weigh(table, 'IoOpsWeigher', count=3)
    assert hosts_of(decision) == ['cmp-2', 'cmp-2', 'cmp-1']


def test_builds_of_picks_given_back_count_no_more():
    table = a_table(a_host(1), a_host(2))
    weigh(table, 'IoOpsWeigher', count=3, dry_run=True)
    assert table.io_ops.tolist() == [0, 0]


def patched(number, version, ram):
    return a_host(number, hypervisor=Hypervisor(version=version), ram=ram)


def test_a_patch_level_does_not_outweigh_memory_unless_asked_to():
    table = a_table(patched(1, 8_000_001, 16_384), patched(2, 8_000_000, 32_768))
    names = 'RAMWeigher HypervisorVersionWeigher'
    assert hosts_of(weigh(table, names)) == ['cmp-2']
    table = a_table(patched(1, 8_000_001, 16_385), patched(2, 8_000_000, 32_768))
    nova = {'hypervisor_version_weight_normalization': 'nova'}
    assert hosts_of(weigh(table, names, nova)) == ['cmp-1']


def test_hosts_with_devices_are_kept_for_those_who_need_them():
    few, many, more = ([DevicePool(count=200, free=n)] for n in (1, 99, 200))
    table = a_table(
        a_host(1, devices=few), a_host(2, devices=many), a_host(3, devices=more), a_host(4)
    )
    raw = {s.host: s.raw[0] for s in weigh(table, 'PCIWeigher').members[0].scores}
    assert raw == {'cmp-1': 99, 'cmp-2': 1, 'cmp-3': 1, 'cmp-4': 100}


def test_a_host_with_failed_builds_is_the_last_resort():
    failed = {'stats.failed_builds': ReportedMetric(value=1)}
    table = a_table(a_host(1, metrics=failed, ram=500_000), a_host(2))
    assert totals(table, 'BuildFailureWeigher') == {'cmp-1': -1e6, 'cmp-2': 0.0}


def test_a_move_that_may_leave_its_cell_rather_stays():
    table = a_table(a_host(1, cell=THERE), a_host(2, cell=HERE))
    destination = Destination(preferred_cell=HERE)
    assert totals(table, 'CrossCellWeigher', destination=destination) == {
        'cmp-2': 1e6,
        'cmp-1': 0.0,
    }
    assert totals(table, 'CrossCellWeigher') == {'cmp-1': 0.0, 'cmp-2': 0.0}


def test_free_memory_is_what_may_be_promised():
    hosts = [
        a_host(
            n,
            inventories={'MEMORY_MB': Inventory(total=1000, reserved=100, allocation_ratio=2.0)},
            used={'MEMORY_MB': used},
        )
        for n, used in ((1, 700), (2, 1000), (3, 1700))
    ]
    table = a_table(*hosts)

    def raw(**options):
        scores = weigh(table, 'RAMWeigher', options, dry_run=True).members[0].scores
        return [next(s.raw[0] for s in scores if s.host == f'cmp-{n}') for n in (1, 2, 3)]

    assert raw() == [1100, 800, 100]
    assert raw(ram_weight_physical=True) == [200, -100, -800]
    options = {'ram_weight_physical': True, 'ram_weight_normalization': 'fraction'}
    assert totals(table, 'RAMWeigher', options) == {'cmp-1': 200 / 900, 'cmp-2': 0, 'cmp-3': 0}


def test_one_host_is_weighed_as_well():
    assert totals(a_table(a_host(1)), 'RAMWeigher CPUWeigher') == {'cmp-1': 2.0}


def imaged(number, host, **properties):
    guest = a_guest(number, host)
    return msgspec.structs.replace(
        guest, image=image_properties.text_of(Image(properties=properties))
    )


def test_guests_of_one_kind_of_image_come_together_and_the_next_ones_follow():
    table = a_table(
        a_change(a_host(1), imaged(1, 1, os='linux'), imaged(2, 1, os='linux', bus='ide')),
        a_change(a_host(2), imaged(3, 2, os='linux', bus='virtio')),
        a_change(a_host(3), imaged(4, 3, os='windows'), a_guest(5, 3)),
    )
    image = Image(properties={'os': 'linux', 'bus': 'virtio'})
    options = {'image_props_weight_multiplier': 1.0}

    def raw(**more):
        decision = weigh(
            table, 'ImagePropertiesWeigher', {**options, **more}, dry_run=True, image=image
        ).members[0]
        scores = {s.host: s.raw[0] for s in decision.scores}
        return [scores['cmp-1'], scores['cmp-2'], scores['cmp-3']]

    assert raw() == [2, 2, 0]
    assert raw(image_props_weight_setting='os=1, bus=0') == [2, 1, 0]
    assert raw(image_props_weight_setting='bus=3') == [0, 3, 0]
    windows = Image(properties={'os': 'windows'})
    decision = weigh(table, 'ImagePropertiesWeigher', options, count=3, image=windows)
    assert hosts_of(decision) == ['cmp-3', 'cmp-3', 'cmp-3']


def test_an_aggregate_alone_may_switch_image_properties_on():
    aggregates = [an_aggregate(1, [2], image_props_weight_multiplier='4')]
    hosts = [a_change(a_host(n), imaged(n, n, os='linux')) for n in (1, 2)]
    table = a_table(*hosts, a_host(3), aggregates=aggregates)
    image = Image(properties={'os': 'linux'})
    assert totals(table, 'ImagePropertiesWeigher', image=image) == {
        'cmp-2': 4.0,
        'cmp-1': 0.0,
        'cmp-3': 0.0,
    }


@pytest.mark.parametrize('value', ['x' * 1024, '\x00\x1f', '\ud800', '"\\'])
def test_any_image_has_a_text_of_bounded_length(value):
    image = Image(properties={f'{n}{value}'[:255]: value for n in range(9)})
    text = image_properties.text_of(image)
    assert len(text) <= 6 * image_properties.STORED_BYTES_MAX
    assert image_properties.read(text) == image_properties.stored_properties(image)
    assert image_properties.read('{"a": 1') == {}


# -- metrics --------------------------------------------------------------------------------
M = {'metrics_weight_setting': 'm=1.0'}


def test_a_sum_of_metrics_each_with_its_ratio():
    table = a_table(
        a_host(1, metrics={'a': ReportedMetric(value=1), 'b': ReportedMetric(value=4)}),
        a_host(2, metrics={'a': ReportedMetric(value=3), 'b': ReportedMetric(value=1)}),
    )
    decision = weigh(table, 'MetricsWeigher', {'metrics_weight_setting': 'a=2, b = -0.5,'})
    assert {s.host: s.raw[0] for s in decision.members[0].scores} == {'cmp-1': 0.0, 'cmp-2': 5.5}


def test_a_missing_metric_is_the_worst_and_fails_nobody():
    table = a_table(measured(1), measured(2, 5), measured(3, 9))
    assert totals(table, 'MetricsWeigher', M) == {'cmp-3': 1.0, 'cmp-1': 0.0, 'cmp-2': 0.0}
    turned = {**M, 'metrics_weight_multiplier': -1.0}
    assert totals(table, 'MetricsWeigher', turned) == {'cmp-2': 0.0, 'cmp-1': -1.0, 'cmp-3': -1.0}


def test_nova_fails_the_request_where_a_required_metric_is_missing_and_so_may_we():
    as_nova = {**M, 'metrics_fail_on_missing': True}
    decision = weigh(a_table(measured(1), measured(2, 5)), 'MetricsWeigher', as_nova)
    assert decision.outcome == 'failed'
    assert 'host cmp-1 lacks one of the metrics m' in decision.reason
    assert hosts_of(weigh(a_table(measured(1)), 'MetricsWeigher', as_nova)) == ['cmp-1']


def test_a_metric_that_is_not_required_has_a_weight_of_its_own_where_missing():
    options = {**M, 'metrics_required': False, 'metrics_weight_of_unavailable': -11.0}
    table = a_table(measured(1), measured(2, 5), measured(3, 9))
    assert totals(table, 'MetricsWeigher', options) == {'cmp-3': 1.0, 'cmp-2': 0.8, 'cmp-1': 0.0}


def test_where_metrics_do_not_count_none_is_missed():
    options = {**M, 'metrics_required': False, 'metrics_weight_of_unavailable': -11.0}
    still = [an_aggregate(1, [1], metrics_weight_multiplier='0')]
    table = a_table(measured(1), measured(2, 5), measured(3, 10), aggregates=still)
    assert totals(table, 'MetricsWeigher', options) == {'cmp-3': 1.0, 'cmp-2': 0.5, 'cmp-1': 0.0}


def test_what_is_out_of_bounds_or_too_old_has_no_say():
    table = a_table(measured(1, 200), measured(2, 5), measured(3, 9, age=100), measured(4, 7))
    table.set_metrics([DeclaredMetric(name='m', upper=100, stale_seconds=60)])
    raw = MetricsWeigher(M).raw(table, a_request().spec, np.arange(4))
    assert raw.tolist() == [5, 5, 5, 7]


@pytest.mark.parametrize('value', [float('nan'), float('inf'), 1e308])
def test_no_number_of_a_host_fails_a_request(value):
    table = a_table(measured(1, value), measured(2, 5), measured(3, -value))
    table.set_metrics([])
    for names, option in (('MetricsWeigher', 'metrics'), ('LoadWeigher', 'load')):
        options = {f'{option}_weight_setting': 'm=10'}
        assert weigh(table, names, options).outcome == 'placed'


@pytest.mark.parametrize('text', ['m', 'm=', '=1', 'm=x', 'm=1,m=2', 'm=nan'])
def test_a_setting_that_cannot_be_read_stops_the_service(text):
    with pytest.raises(exceptions.PluginError, match='option metrics_weight_setting: expected '):
        MetricsWeigher({'metrics_weight_setting': text})


def test_the_absolute_scale_goes_from_one_declared_bound_to_the_other():
    options = {**M, 'metrics_weight_normalization': 'absolute'}
    table = a_table(measured(1, 25), measured(2, 50))
    table.set_metrics([DeclaredMetric(name='m', lower=0, upper=100)])
    assert totals(table, 'MetricsWeigher', options) == {'cmp-1': 0.25, 'cmp-2': 0.5}


# -- load -----------------------------------------------------------------------------------
def loads(table, **options):
    weigher = LoadWeigher({'load_weight_setting': 'm=1', **options})
    return weigher.raw(table, a_request().spec, np.arange(len(table))).tolist()


def test_idle_hosts_are_preferred():
    table = a_table(measured(1, 8), measured(2, 1))
    assert hosts_of(weigh(table, 'LoadWeigher', {'load_weight_setting': 'm=1'})) == ['cmp-2']


def test_a_measurement_moves_to_what_is_expected_of_anybody_with_its_age():
    declared = [DeclaredMetric(name='m', lower=0, upper=10)]
    for age, expected in ((0, 0.0), (60, 2.5), (180, 3.75)):
        table = a_table(measured(1, 0, age=age, reported_at=NOW), measured(2, 9, reported_at=NOW))
        table.set_metrics(declared)
        assert loads(table, load_stale_seconds=1000.0) == [expected, 9.0]


def test_without_bounds_it_moves_to_the_mean_of_the_others():
    hosts = [measured(n, v, reported_at=NOW) for n, v in ((1, 2), (2, 6))]
    table = a_table(*hosts, measured(3, reported_at=NOW))
    assert loads(table) == [2, 6, 4]


def test_a_stale_measurement_has_no_say_or_counts_as_the_worst():
    hosts = [measured(1, 0, reported_at=NOW - 181), measured(2, 3, reported_at=NOW)]
    table = a_table(*hosts, measured(3, 5, reported_at=NOW))
    assert loads(table) == [4, 3, 5]
    assert loads(table, load_when_stale='worst') == [5, 3, 5]
    assert loads(table, load_half_life_seconds=0.0, load_stale_seconds=1e6) == [0, 3, 5]


def test_nobody_measured_nobody_is_preferred():
    table = a_table(measured(1), measured(2))
    assert totals(table, 'LoadWeigher', {'load_weight_setting': 'm=1'}) == {'cmp-1': 0, 'cmp-2': 0}


# -- multipliers of aggregates -------------------------------------------------------------
def test_the_least_multiplier_of_a_hosts_aggregates_counts_and_one_that_is_none_voids_all():
    aggregates = [
        an_aggregate(1, [1, 2], ram_weight_multiplier='5'),
        an_aggregate(2, [2, 3], ram_weight_multiplier='-2'),
        an_aggregate(3, [3], ram_weight_multiplier='1,2'),
    ]
    table = a_table(*(a_host(n) for n in range(1, 5)), aggregates=aggregates)
    expected = {'cmp-1': 5.0, 'cmp-2': -2.0, 'cmp-3': 1.0, 'cmp-4': 1.0}
    assert totals(table, 'RAMWeigher') == expected
    assert metadata_problems(aggregates) == [
        "aggregate agg-3: ram_weight_multiplier is '1,2', expected a number from -1e12 to 1e12; "
        'its hosts go by the option'
    ]


def test_a_weigher_that_is_off_is_on_where_an_aggregate_says_so():
    guests = [an_aggregate(1, [1], num_instances_weight_multiplier='-1')]
    table = a_table(a_host(1), a_host(2), aggregates=guests)
    decision = weigh(table, 'RAMWeigher NumInstancesWeigher', count=2)
    assert decision.weighers == ['RAMWeigher', 'NumInstancesWeigher']
    table = a_table(a_host(1), a_host(2))
    assert weigh(table, 'RAMWeigher NumInstancesWeigher').weighers == ['RAMWeigher']


def test_multipliers_follow_the_aggregates_and_their_hosts():
    table = a_table(a_host(1), a_host(2))

    def now():
        by_host = totals(table, 'RAMWeigher', dry_run=True)
        return [by_host['cmp-1'], by_host['cmp-2']]

    assert now() == [1.0, 1.0]
    table.set_aggregates([an_aggregate(1, [1], ram_weight_multiplier='3')])
    assert now() == [3.0, 1.0]
    table.set_aggregates([an_aggregate(1, [2], ram_weight_multiplier='3')])
    assert now() == [1.0, 3.0]
    other = table.copy()
    other.set_aggregates([an_aggregate(1, [2], ram_weight_multiplier='4')])
    table.set_aggregates([an_aggregate(1, [2], ram_weight_multiplier='5')])
    assert now() == [1.0, 5.0]


def test_no_array_is_made_where_no_aggregate_sets_a_multiplier():
    table = a_table(a_host(1), aggregates=[an_aggregate(1, [1], ssd='true')])
    weigher = plugin_loader.load(['RAMWeigher'], {}, plugin_loader.WEIGHERS)[0]
    assert weigher.multipliers(table, np.arange(1)) == 1.0
    assert not table.array_cache._cached


# -- normalization -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('kind', 'shares'),
    [
        ('nova', [1 / 3, 2 / 3, 1.0]),
        ('fraction', [1.0, 0.5, 0.25]),
        ('rank', [0.0, 0.5, 1.0]),
        ('absolute', [1.0, 0.5, 0.25]),
    ],
)
def test_free_memory_in_four_ways(kind, shares):
    hosts = [
        a_host(n, ram=total, used={'MEMORY_MB': total - 1000 * n})
        for n, total in ((1, 1000), (2, 4000), (3, 12_000))
    ]
    by_host = totals(a_table(*hosts), 'RAMWeigher', {'ram_weight_normalization': kind})
    assert [by_host[f'cmp-{n}'] for n in (1, 2, 3)] == pytest.approx(shares)


def test_one_setting_for_all_weighers_that_have_none_of_their_own():
    loaded = plugin_loader.load(
        ['RAMWeigher', 'CPUWeigher', 'HypervisorVersionWeigher'],
        {'cpu_weight_normalization': 'absolute'},
        plugin_loader.WEIGHERS,
    )
    table = a_table(a_host(1))
    kinds = (
        Pipeline([], loaded, PipelineSettings(normalization='rank')).weighing(table).normalizations
    )
    assert kinds == ['rank', 'absolute', 'rank']
    assert Pipeline([], loaded).weighing(table).normalizations == ['nova', 'absolute', 'fraction']


def test_a_normalization_that_is_none_is_refused():
    with pytest.raises(exceptions.PluginError, match='ram_weight_normalization.*one of'):
        plugin_loader.load(
            ['RAMWeigher'], {'ram_weight_normalization': 'best'}, plugin_loader.WEIGHERS
        )
