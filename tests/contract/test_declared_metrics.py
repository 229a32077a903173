# SPDX-License-Identifier: Apache-2.0
"""Metrics that operators declare: kept, told to everybody, checked."""

import pytest

from gantt import exceptions
from gantt.core.table import metrics
from gantt.core.table.metrics import DeclaredMetric
from tests.conftest import READERS

KINDS = READERS
LOAD = DeclaredMetric(name='load', unit='', lower=0, upper=64.5, stale_seconds=120, description='x')


def test_a_declaration_is_kept_whole_and_may_be_changed(store):
    assert store.declarations.save_metric(LOAD) == LOAD
    other = DeclaredMetric(name='power.watts', unit='W')
    store.declarations.save_metric(other)
    assert store.declarations.declared_metrics() == [LOAD, other]
    wider = DeclaredMetric(name='load', upper=128)
    assert store.declarations.save_metric(wider) == wider
    assert store.declarations.declared_metrics() == [wider, other]


def test_removed_it_is_gone(store):
    store.declarations.save_metric(LOAD)
    store.declarations.remove_metric('load')
    assert store.declarations.declared_metrics() == []
    with pytest.raises(exceptions.NotFound, match='load'):
        store.declarations.remove_metric('load')


def test_the_feed_tells_of_all_declarations_where_any_changed(store):
    position = store.feed.load_everything().position
    assert store.feed.poll(position, {}).metrics is None
    store.declarations.save_metric(LOAD)
    feed = store.feed.poll(position, {})
    assert feed.metrics == [LOAD]
    assert store.feed.load_everything().metrics == [LOAD]
    assert store.feed.compare({}).metrics == [LOAD]
    store.declarations.remove_metric('load')
    assert store.feed.poll(feed.position, {}).metrics == []


@pytest.mark.parametrize(
    ('fields', 'field'),
    [
        ({'lower': 2, 'upper': 2}, 'upper'),
        ({'lower': float('nan')}, 'lower'),
        ({'upper': float('inf')}, 'upper'),
        ({'stale_seconds': 0}, 'stale_seconds'),
    ],
)
def test_a_declaration_that_says_nothing_is_refused(store, fields, field):
    with pytest.raises(exceptions.InvalidMessage, match=f'metric.{field}'):
        store.declarations.save_metric(DeclaredMetric(name='load', **fields))
    assert store.declarations.declared_metrics() == []


def test_there_is_a_bound(store, monkeypatch):
    monkeypatch.setattr(metrics, 'DECLARED_METRICS_MAX', 1)
    store.declarations.save_metric(LOAD)
    store.declarations.save_metric(LOAD)
    with pytest.raises(exceptions.Refused, match='1 metrics'):
        store.declarations.save_metric(DeclaredMetric(name='other'))
