# SPDX-License-Identifier: Apache-2.0
"""The benches over a broker and PostgreSQL at small counts: they run, and keep every promise."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql]


@pytest.fixture
def bench_result(rabbit_url, postgresql_url):
    """Run one to its end on the servers of the tests; its result and its conditions."""

    def run(name, *args, seconds=150):
        done = subprocess.run(
            [sys.executable, '-m', 'bench', name, '--json', *args],
            capture_output=True,
            text=True,
            timeout=seconds,
            env=os.environ | {'GANTT_TEST_POSTGRESQL': postgresql_url},
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        result = json.loads(done.stdout.splitlines()[-1])
        assert result['bench'] == name
        assert result['unit']
        assert result['yardstick']['value'] > 0
        assert result['ratio'] == pytest.approx(
            result['value'] / result['yardstick']['value'], rel=0.01
        )
        assert result['conditions']['processors'] > 0
        assert result['conditions']['fdatasync_ms'] > 0
        assert set(result['conditions']) >= {'load_before', 'quiet'}
        assert result['audit'] == 0, result['conditions'].get('problems')
        return result, result['conditions']

    return run


@pytest.fixture
def bench(bench_result):
    """The same of one that states what it knows of the server's disk."""

    def run(*args, **more):
        result, stated = bench_result(*args, **more)
        assert stated['fdatasync_ms_of_database'] is not None
        return result, stated

    return run


def test_rpc_batch_measures_both_sides_and_every_place_is_there(bench):
    result, stated = bench(
        'rpc-batch',
        '--hosts',
        '50',
        '--instances',
        '10',
        '--callers',
        '1,2',
        '--seconds',
        '0.2',
        '--repeats',
        '1',
    )
    assert stated['hosts'] == 50
    assert result['value'] > 0
    assert set(stated['callers']) == {'gantt', 'prototype'}
    assert set(stated['tried']['gantt']) == {'1', '2'}
    assert stated['placed'] >= 10
    assert stated['measured']['gantt']['rate'] == result['value']
    assert stated['measured']['prototype']['rate'] == result['yardstick']['value']


@pytest.mark.slow
@pytest.mark.mysql
def test_rpc_batch_on_mariadb_is_measured_in_turn_with_postgresql(bench, mysql_url, monkeypatch):
    monkeypatch.setenv('GANTT_TEST_MYSQL', mysql_url)
    result, stated = bench(
        'rpc-batch',
        '--database',
        'mysql',
        '--hosts',
        '20',
        '--instances',
        '10',
        '--callers',
        '2',
        '--seconds',
        '0.3',
        '--repeats',
        '1',
    )
    assert stated['database'] == 'MariaDB'
    assert stated['innodb_flush_log_at_trx_commit'] is not None
    assert stated['measured']['mysql']['rate'] == result['value']
    assert stated['measured']['postgresql']['rate'] == result['yardstick']['value']
    assert all(side['cpu_us_per_placement'] >= 0 for side in stated['measured'].values())


@pytest.mark.slow
def test_reports_looks_at_memory_for_so_long(bench_result):
    result, stated = bench_result(
        'reports',
        '--hosts',
        '20',
        '--consumers',
        '2',
        '--period',
        '2',
        '--seconds',
        '4',
        '--repeats',
        '1',
        '--minutes',
        '0.1',
    )
    assert result['value'] > 0
    quarters = [stated[f'scheduler_rss_mb_{quarter}_quarter'] for quarter in ('first', 'last')]
    assert stated['scheduler_rss_mb'] >= max(quarters) >= min(quarters) > 10
    assert 'highest_rate_that_keeps_up' not in stated


@pytest.mark.slow
def test_million_counts_every_claim_it_asked_for(bench):
    result, stated = bench('million', '--hosts', '50', '--claims', '100', '--instances', '5')
    assert stated['claims'] == 100
    assert len(stated['claims_per_second_by_part']) == 20
    assert stated['claims_per_second'] == pytest.approx(100 / result['value'], rel=0.05)
    assert len(stated['scheduler_rss_mb_by_part']) == 21
    first, last = (stated['claims_per_second_by_part'][part] for part in (0, -1))
    assert stated['last_twentieth'] == pytest.approx(last / first, rel=0.01)
    assert stated['database_mb'] > 1


@pytest.mark.slow
def test_tenants_measures_one_project_while_another_floods(bench):
    result, stated = bench(
        'tenants',
        '--hosts',
        '20',
        '--schedulers',
        '1',
        '--callers',
        '30',
        '--seconds',
        '1',
        '--ramp',
        '1',
        '--repeats',
        '1',
        '--rate',
        '5',
    )
    assert stated['asked'] == 5
    assert 0 <= stated['refused'] < 5, stated['first_refusals']
    assert stated['bytes'] > 100_000
    assert stated['flood_answered'].get('201', 0) + stated['flood_answered'].get('200', 0) > 0
    assert set(stated['rss_growth_mb_by_process']) == {'scheduler-1', 'api'}
    assert result['value'] == stated['p99_ms_by_repeat'][0]


@pytest.mark.slow
def test_zones_measures_a_tree_in_turn_with_one_zone_and_counts_what_goes_between(bench):
    small = ('--hosts', '5', '--requests', '4', '--seconds', '0.3', '--repeats', '1')
    result, stated = bench('zones', *small, seconds=600)  # six zones are started
    assert (stated['levels'], stated['zones'], stated['requests']) == (2, 4, 4)
    assert sum(stated['placed_in'].values()) == 4
    assert set(stated['placed_in']) <= {'hall-1', 'hall-2', 'hall-3'}
    assert 2 <= stated['calls']['POST evaluations'] <= 3
    assert stated['calls']['PUT allocations'] == 1
    assert stated['calls_per_request'] == pytest.approx(sum(stated['calls'].values()), abs=0.05)
    assert stated['bytes_per_request'] > 1000
    assert stated['p99_ms'] >= result['value'] > 0
    assert stated['brute_p99_ms'] >= stated['brute_p50_ms'] > 0
    assert stated['tree_rate'] > 0 < stated['flat_rate']
    assert stated['cpu_ms_per_request'] > 0


@pytest.mark.slow
def test_zones_rate_measures_requests_from_when_they_are_due(bench):
    small = ('--hosts', '3', '--rate', '4', '--seconds', '4')
    result, stated = bench('zones-rate', *small, seconds=900)  # thirteen zones are started
    assert (stated['zones'], stated['requests'], stated['placed']) == (13, 16, 16)
    assert (stated['refused'], stated['unknown'], stated['over_commit']) == (0, 0, 0)
    assert sum(stated['placed_in'].values()) == 16
    assert len(stated['placed_in']) == 9
    assert 0 < result['value'] <= stated['p90_ms'] <= stated['p99_ms'] <= stated['slowest_ms']


@pytest.mark.slow
def test_several_counts_conflicts_and_measures_one_again_at_the_end(bench):
    result, stated = bench(
        'several',
        '--hosts',
        '20',
        '--schedulers',
        '1,2',
        '--callers',
        '4',
        '--seconds',
        '0.3',
        '--repeats',
        '1',
        '--instances',
        '3',
    )
    assert result['value'] > 0
    assert set(stated['by_schedulers']) == {'1', '2'}
    assert set(stated['ratios_to_one']) == {'1', '2'}
    # As many as at first, each request of three: those that fill are of fifty.
    assert stated['instances_held'] == 20 * 16 * 0.9
    assert all(figures['placed'] % 3 == 0 for figures in stated['by_schedulers'].values())
    assert all(figures['placed'] > 0 for figures in stated['by_schedulers'].values())
    assert all(0 <= figures['conflict_share'] < 1 for figures in stated['by_schedulers'].values())
    assert len(stated['by_schedulers']['2']['rss_mb']) == 2
    assert stated['one_at_the_end']['rate'] > 0


@pytest.mark.slow
def test_history_is_written_measured_beside_an_empty_database_and_purged(bench):
    result, stated = bench(
        'history',
        '--hosts',
        '10',
        '--claims',
        '3000',
        '--callers',
        '4',
        '--seconds',
        '0.3',
        '--repeats',
        '1',
        '--purge-seconds',
        '4',
    )
    assert result['value'] > 0
    assert all(rows > 3000 for rows in stated['rows'].values())
    assert stated['purge']['to_purge'] > 5000
    assert stated['purge']['left_at_the_end'] < stated['purge']['to_purge']


@pytest.mark.slow
def test_soak_looks_at_memory_while_it_does_harm(bench):
    result, stated = bench(
        'soak',
        '--minutes',
        '0.1',
        '--hosts',
        '10',
        '--guests',
        '10',
        '--rate',
        '10',
        '--fault-every',
        '1',
        '--lease',
        '5',
        '--period',
        '1',
    )
    assert stated['faults']
    assert stated['outcomes']['running'] > 0
    for process in ('keeper', 'farm'):
        assert stated['processes'][process]['rss_mb_minimum'] > 0
    assert result['value'] == stated['processes']['keeper']['slope_mb_per_hour']
    assert all(size > 10 for size in stated['objects_mb'] + stated['objects_in_use_mb'])
    assert len(stated['objects_in_use_mb']) == 2
    more = [growth['more_kb'] for growth in stated['grown_by_type']]
    assert more == sorted(more, reverse=True)
    assert 0 < len(more) <= 10


@pytest.mark.slow
def test_rpc_single_measures_half_load_and_callers_with_a_monitor(bench):
    _, stated = bench(
        'rpc-single',
        '--hosts',
        '10',
        '--callers',
        '2',
        '--beside',
        '',
        '--seconds',
        '0.2',
        '--repeats',
        '1',
        '--no-quorum',
        '--half-load',
        '--monitored',
    )
    half = stated['half_load']
    # The yardstick comes at the same moments.
    assert half['empty_calls'] == half['calls'] > 0
    assert half['p99_ms'] >= half['p50_ms'] > 0
    assert half['p99_ratio'] == half['p99_ratios'][0] > 0
    assert half['empty_p99_ms'] >= half['empty_p50_ms'] > 0
    assert stated['monitored']['ratio'] == pytest.approx(
        stated['monitored']['rate'] / stated['monitored']['rate_without'], rel=0.01
    )
