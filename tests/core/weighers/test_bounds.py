# SPDX-License-Identifier: Apache-2.0
"""Scores are numbers, whatever operators set and hosts report."""

import math

import pytest

from gantt import exceptions, plugin_loader
from gantt.core.messages.report import ReportedMetric
from gantt.core.resources.host import Aggregate
from gantt.core.table import aggregates
from gantt.core.weighers.base import NORMALIZATIONS
from tests.core.builders import a_host, a_request, a_table, an_id, decide


def scores(table, names, **settings):
    """Return total by host."""
    pipeline = plugin_loader.load_pipeline(weighers=names, **settings)
    decision = decide(table, a_request(alternates=5), pipeline)
    assert decision.outcome == 'placed', decision.reason
    return {score.host: score.total for score in decision.members[0].scores}


@pytest.mark.parametrize('value', [1e308, -2e12, float('inf'), float('nan')])
def test_a_multiplier_beyond_the_bound_is_refused_and_of_an_aggregate_has_no_say(value):
    fast = Aggregate(
        id=1,
        uuid=an_id(1, 5),
        name='fast',
        hosts=['cmp-1', 'cmp-2'],
        metadata={'ram_weight_multiplier': str(value), 'cpu_weight_multiplier': '-1e12'},
    )
    table = a_table(a_host(1, ram=8192), a_host(2), aggregates=[fast])
    assert scores(table, ['RAMWeigher']) == {'cmp-1': 0.25, 'cmp-2': 1.0}
    (problem,) = aggregates.metadata_problems([fast])
    assert 'expected a number from -1e12 to 1e12' in problem
    option = 'cpu_weight_multiplier'
    with pytest.raises(exceptions.PluginError, match=option) as caught:
        plugin_loader.load_pipeline(options={option: value})
    assert caught.value.kwargs['option'] == option


@pytest.mark.parametrize('kind', NORMALIZATIONS)
def test_the_largest_multipliers_and_values_add_up_to_numbers(kind):
    options = {
        f'{name}_weight_multiplier': aggregates.MULTIPLIER_MAX
        for name in ('ram', 'cpu', 'disk', 'metrics')
    }
    options |= {'metrics_weight_setting': 'm=1e300'}
    table = a_table(
        *(a_host(n, metrics={'m': ReportedMetric(value=(-1) ** n * 1e308)}) for n in (1, 2, 3))
    )
    names = ['RAMWeigher', 'CPUWeigher', 'DiskWeigher', 'MetricsWeigher']
    totals = scores(table, names, options=options, normalization=kind)
    assert all(map(math.isfinite, totals.values()))
    assert totals['cmp-2'] > totals['cmp-1'] == totals['cmp-3']


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
@pytest.mark.parametrize(
    ('weigher', 'option'),
    [
        ('LoadWeigher', 'load_half_life_seconds'),
        ('LoadWeigher', 'load_stale_seconds'),
        ('MetricsWeigher', 'metrics_weight_of_unavailable'),
        ('RAMWeigher', 'ram_weight_multiplier'),
    ],
)
def test_an_option_that_is_no_number_is_refused_when_it_is_read(weigher, option, value):
    with pytest.raises(exceptions.PluginError, match=f'option {option}: expected') as caught:
        plugin_loader.load([weigher], {option: value}, plugin_loader.WEIGHERS)
    assert caught.value.kwargs['option'] == option
