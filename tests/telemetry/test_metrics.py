# SPDX-License-Identifier: Apache-2.0
"""The metrics table and the registry made from it."""

import ast
import pathlib
import random
import re
import threading
import urllib.error
import urllib.request

import pytest

from gantt import exceptions
from gantt.telemetry import metrics
from gantt.telemetry.listener import ProbeListener

ROOT = pathlib.Path(__file__).parents[2]
METHODS = {
    'count': metrics.MetricKind.COUNTER,
    'observe': metrics.MetricKind.HISTOGRAM,
    'observe_all': metrics.MetricKind.HISTOGRAM,
    'gauge': metrics.MetricKind.GAUGE,
    'watch': metrics.MetricKind.GAUGE,
}


def _uses():
    """(where, method, name, labels or None where they are computed) of every use in the code."""
    for path in sorted(ROOT.joinpath('gantt').rglob('*.py')):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            name = node.args[0]
            if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
                continue
            if not name.value.startswith('gantt_'):
                continue
            function = node.func
            method = getattr(function, 'attr', getattr(function, 'id', '')).lstrip('_')
            if method in METHODS:
                keys = [keyword.arg for keyword in node.keywords if keyword.arg != 'value']
                labels = None if None in keys else set(keys)
                yield f'{path.relative_to(ROOT)}:{node.lineno}', method, name.value, labels


def test_every_use_in_the_code_is_one_of_the_table_with_its_kind_and_labels():
    wrong = []
    uses = 0
    for where, method, name, labels in _uses():
        uses += 1
        metric = metrics.BY_NAME.get(name)
        if metric is None:
            wrong.append(f'{where}: {name} is not in the table')
        elif metric.kind is not METHODS[method]:
            wrong.append(f'{where}: {name} is a {metric.kind.value}, used with {method}()')
        elif labels is not None and labels != set(metric.labels):
            wrong.append(f'{where}: {name} has labels {metric.labels}, used with {sorted(labels)}')
    assert uses > 5
    assert not wrong, '\n'.join(wrong)


def test_every_metric_of_the_table_is_used():
    used = {name for _, _, name, _ in _uses()}
    assert set(metrics.BY_NAME) <= used


def test_names_follow_the_rules_of_prometheus_and_say_their_kind():
    assert len(metrics.BY_NAME) == len(metrics.TABLE)
    for metric in metrics.TABLE:
        assert re.fullmatch(r'gantt_[a-z][a-z_]*', metric.name)
        assert metric.name.endswith('_total') == (metric.kind is metrics.MetricKind.COUNTER), (
            metric.name
        )
        assert metric.help.endswith('.'), metric.name
        assert bool(metric.buckets) == (metric.kind is metrics.MetricKind.HISTOGRAM), metric.name
        assert list(metric.buckets) == sorted(metric.buckets)


def test_what_was_counted_is_shown():
    world = metrics.MetricRegistry()
    world.count('gantt_filtered_hosts_total', 3, filter='ComputeFilter')
    world.count('gantt_filtered_hosts_total', filter='ComputeFilter')
    world.gauge('gantt_queue_depth', 7)
    world.observe('gantt_decision_duration_seconds', 0.004, outcome='placed')
    world.observe('gantt_decision_duration_seconds', 70.0, outcome='placed')
    text = world.render().decode()
    assert 'gantt_filtered_hosts_total{filter="ComputeFilter"} 4.0' in text
    assert 'gantt_queue_depth 7.0' in text
    assert 'gantt_decision_duration_seconds_bucket{le="0.005",outcome="placed"} 1.0' in text
    assert 'gantt_decision_duration_seconds_bucket{le="60.0",outcome="placed"} 1.0' in text
    assert 'gantt_decision_duration_seconds_bucket{le="+Inf",outcome="placed"} 2.0' in text
    assert 'process_resident_memory_bytes' in text
    assert world.value('gantt_filtered_hosts_total', filter='ComputeFilter') == 4
    assert world.value('gantt_decision_duration_seconds', outcome='placed') == 2
    assert world.value('gantt_repeated_requests_total') == 0


def _shown(registry):
    """Figures of the service as they are exposed; those of the process change by themselves."""
    return [line for line in registry.render().decode().splitlines() if 'gantt_' in line]


def test_values_of_a_batch_are_shown_as_if_each_had_been_added_by_itself():
    rng = random.Random(7)
    # Sums of such values differ in their last digits by the order in which they are added.
    bounds = metrics.BY_NAME['gantt_decision_duration_seconds'].buckets
    values = [rng.choice((rng.random() / 3, rng.choice(bounds), 61.7)) for _ in range(400)]
    one_by_one, together = metrics.MetricRegistry(), metrics.MetricRegistry()
    for outcome in ('placed', 'no_valid_host', 'placed'):
        for value in values:
            one_by_one.observe('gantt_decision_duration_seconds', value, outcome=outcome)
        for begin in range(0, len(values), 50):
            batch = values[begin : begin + 50]
            together.observe_all('gantt_decision_duration_seconds', batch, outcome=outcome)
    assert _shown(together) == _shown(one_by_one)
    assert together.value('gantt_decision_duration_seconds', outcome='placed') == 800


def test_two_registries_share_nothing():
    first, second = metrics.MetricRegistry(), metrics.MetricRegistry()
    first.count('gantt_repeated_requests_total')
    assert (
        first.value('gantt_repeated_requests_total'),
        second.value('gantt_repeated_requests_total'),
    ) == (1, 0)


@pytest.mark.parametrize(
    ('use', 'expected'),
    [
        (lambda m: m.count('gantt_no_such_total'), 'gantt_no_such_total is a declared counter'),
        (lambda m: m.count('gantt_queue_depth'), 'gantt_queue_depth is a declared counter'),
        (
            lambda m: m.gauge('gantt_repeated_requests_total', 1),
            'gantt_repeated_requests_total is a declared gauge',
        ),
        (lambda m: m.observe('gantt_commit_batch_size', 1, host='a'), r'with the labels \[\]'),
        (
            lambda m: m.observe_all('gantt_commit_batch_size', [1], host='a'),
            r'with the labels \[\]',
        ),
        (lambda m: m.observe_all('gantt_queue_depth', [1]), 'is a declared histogram'),
        (
            lambda m: m.count('gantt_filtered_hosts_total'),
            r"with the labels \['filter'\], not \[\]",
        ),
        (lambda m: m.value('gantt_no_such_total'), 'gantt_no_such_total is a declared metric'),
    ],
)
def test_what_nobody_declared_is_refused(use, expected):
    with pytest.raises(exceptions.Bug, match=expected):
        use(metrics.MetricRegistry())


def test_a_watched_gauge_is_read_when_it_is_scraped():
    world = metrics.MetricRegistry()
    depth = [3]
    world.watch('gantt_queue_depth', lambda: depth[0])
    assert 'gantt_queue_depth 3.0' in world.render().decode()
    depth[0] = 9
    assert world.value('gantt_queue_depth') == 9


def test_counting_from_many_threads_loses_nothing():
    world = metrics.MetricRegistry()

    def work():
        for _ in range(500):
            world.count('gantt_reports_total', outcome='applied')

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.value('gantt_reports_total', outcome='applied') == 4000


def test_the_listener_shows_metrics_and_stops():
    world = metrics.MetricRegistry()
    world.count('gantt_repeated_requests_total')
    listener = ProbeListener(world, '127.0.0.1', 0)
    url = f'http://127.0.0.1:{listener.port}/metrics'
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert b'gantt_repeated_requests_total 1.0' in answer.read()
    listener.stop()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=10)


def test_a_port_in_use_names_the_option():
    listener = ProbeListener(metrics.MetricRegistry(), '127.0.0.1', 0)
    try:
        with pytest.raises(exceptions.Misconfigured, match=r'\[DEFAULT\] metrics_port: cannot'):
            ProbeListener(metrics.MetricRegistry(), '127.0.0.1', listener.port)
    finally:
        listener.stop()
