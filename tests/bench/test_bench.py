# SPDX-License-Identifier: Apache-2.0
"""The benches run, and print what they promise; their figures are for their own runs."""

import json
import subprocess
import xml.etree.ElementTree

import pytest

from bench import conditions, counted_scheduler, decide, every_filter
from bench.__main__ import names
from gantt import plugin_loader
from tests import warm


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return warm.run('bench.__main__', *args, seconds=100)


def test_decide_prints_one_json_object_last_and_every_filter_has_work():
    done = run('decide', '--hosts', '2000', '--rounds', '1', '--json')
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result['bench'] == 'decide'
    assert result['unit'] == 'us'
    assert result['audit'] == 0
    assert result['ratio'] == pytest.approx(result['value'] / result['yardstick']['value'], rel=0.1)
    conditions = result['conditions']
    assert conditions['hosts'] == 2000
    assert conditions['shapes'] == 256
    idle = {name for name, removed in conditions['removed'].items() if not removed}
    assert idle == decide.ELSEWHERE
    assert conditions['rss_mb'] > 0
    assert conditions['cached_masks'] and conditions['cold_us'] > 0


def test_a_decision_is_measured_and_drawn_by_number_of_hosts(tmp_path):
    svg = tmp_path / 'scale.svg'
    done = run('decide-scale', '--hosts', '50,400', '--rounds', '1', '--svg', str(svg), '--json')
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result['bench'], result['audit']) == ('decide-scale', 0)
    times = result['conditions']['us']
    assert {name: len(values) for name, values in times.items()} == dict.fromkeys(times, 2)
    picture = xml.etree.ElementTree.fromstring(svg.read_text())
    texts = [element.text for element in picture.iter('{http://www.w3.org/2000/svg}text')]
    assert {'warm', 'cold', 'bare NumPy loop', '50', '400', 'hosts'} <= set(texts)


@pytest.mark.parametrize('hosts', ['', '50', '400,50', '50,50', '50,x', '5,50'])
def test_sizes_of_tables_are_ascending_numbers(hosts):
    done = run('decide-scale', '--hosts', hosts)
    assert done.returncode == 2
    assert 'expected ascending numbers from 10 on' in done.stderr


@pytest.mark.parametrize('what', ['default', 'all'])
def test_with_nova_s_filters_and_with_all_each_has_work(what):
    done = run('decide', '--filters', what, '--hosts', '2000', '--rounds', '1', '--json')
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result['bench'], result['audit']) == (f'decide --filters {what}', 0)
    conditions = result['conditions']
    filters = (
        plugin_loader.installed(plugin_loader.FILTERS) if what == 'all' else every_filter.NOVAS
    )
    assert set(conditions['removed']) == set(filters)
    idle = {name for name, removed in conditions['removed'].items() if not removed}
    assert idle == every_filter.IDLE & set(filters)
    assert conditions['outcomes'].get('placed', 0) > 100
    # Of pools that are asked for alone there are none.
    weighers = set(plugin_loader.installed(plugin_loader.WEIGHERS)) - {'PoolRoomWeigher'}
    assert set(conditions['weighers']) == weighers


def test_members_that_must_be_apart_are_and_rather_on_racks_of_their_own():
    done = run('decide', '--anti-affinity', '--hosts', '800', '--rounds', '2', '--json')
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result['unit'], result['audit']) == ('decisions/s', 0)
    assert result['ratio'] == pytest.approx(result['value'] / result['yardstick']['value'], rel=0.1)
    conditions = result['conditions']
    assert conditions['racks_of_a_group'] > conditions['racks_of_a_group_without']


def test_layouts_are_found_and_what_no_host_has_together_is_refused():
    done = run('decide', '--numa', '--hosts', '600', '--rounds', '1', '--json')
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result['bench'], result['unit'], result['audit']) == ('decide --numa', 'ms', 0)
    conditions = result['conditions']
    assert conditions['outcomes'] == {'placed': 128}
    assert conditions['refused'] == 32
    assert 0 < conditions['refused_p50_ms'] <= conditions['refused_p99_ms']
    assert conditions['refused_reason'].startswith('0/600 hosts fit: ')


def test_classes_that_few_hosts_have_change_no_decision_about_others():
    options = ('--rare-classes', '300', '--hosts', '600', '--rounds', '1')
    done = run('decide', *options, '--json')
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result['bench'], result['audit']) == ('decide --rare-classes', 0)
    conditions = result['conditions']
    assert conditions['asked_and_placed'] > 0
    # A line for each would be 13 MB, and as much in each copy.
    assert 0 < conditions['more_mb'] < 2
    assert 0 < conditions['copy_more_mb'] < 1


def test_pools_change_no_decision_about_who_does_not_ask_for_them():
    done = run('decide', '--pool', '--hosts', '600', '--rounds', '1', '--json')
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result['bench'], result['unit'], result['audit']) == ('decide --pool', 'us', 0)
    conditions = result['conditions']
    assert conditions['plain_ratio'] == result['ratio'] > 0
    assert conditions['members_ratio'] > 0
    assert conditions['asked_and_placed'] == 128


def test_a_tree_of_zones_is_compared_with_all_zones_at_once():
    small = ('--hosts', '120', '--middle', '2', '--sites', '3', '--concurrent', '8')
    done = run('zones-sim', *small, '--bursts', '2', '--samples', '16', '--json')
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result['bench'], result['audit']) == ('zones-sim', 0)
    stated = result['conditions']
    assert (stated['hosts'], stated['zones'], stated['requests']) == (120, 9, 16)
    assert stated['placed'] + stated['refused'] == 16
    assert stated['missed'] == 0
    assert 0 < stated['quality_p05'] <= result['value'] <= 1
    assert 0 < stated['messages_mean'] <= stated['messages_p99']


def test_an_unknown_bench_is_a_usage_error_that_lists_them():
    done = run('decied')
    assert done.returncode == 64
    assert 'decide' in done.stdout
    assert 'decide' in names()


@pytest.mark.parametrize('minutes', ['-3', '0', 'nan', 'soon'])
def test_minutes_that_are_none_are_a_usage_error_that_names_them(minutes):
    done = run('reports', '--minutes', minutes)
    assert done.returncode == 2
    assert f"--minutes: expected a number of minutes above 0, not '{minutes}'" in done.stderr


def test_the_help_names_every_bench():
    done = run('--help')
    assert done.returncode == 0
    for name in (
        'rpc-single',
        'rpc-batch',
        'million',
        'several',
        'history',
        'soak',
        'explain',
        'tenants',
    ):
        assert name in done.stdout


def test_a_bench_says_how_busy_the_machine_was(monkeypatch):
    monkeypatch.setattr(conditions.os, 'getloadavg', lambda: (0.25, 1.0, 1.0))
    assert conditions.wait_until_quiet() == {'load_before': 0.25, 'quiet': True}
    monkeypatch.setattr(conditions.os, 'getloadavg', lambda: (3.0, 1.0, 1.0))
    assert conditions.wait_until_quiet() == {'load_before': 3.0, 'quiet': False}
    loads = iter([3.0, 2.0, 0.4])
    monkeypatch.setattr(conditions.os, 'getloadavg', lambda: (next(loads), 0.0, 0.0))
    monkeypatch.setattr(conditions.time, 'sleep', lambda seconds: None)
    monkeypatch.setenv(conditions.WAIT, '60')
    assert conditions.wait_until_quiet() == {'load_before': 0.4, 'quiet': True}


def test_objects_are_counted_by_type_and_named_by_what_holds_them():
    class Holder:
        def __init__(self, number):
            self.bodies = [bytes([number]) * 50_000]

    before = counted_scheduler.sizes()
    holders = [Holder(number) for number in range(20)]
    after = counted_scheduler.sizes()
    name = f'{Holder.__module__}.{Holder.__qualname__}'
    assert after[name][0] == len(holders)
    first = counted_scheduler.grown(before, after, after)[0]
    assert first['type'] == f'bytes in {name}'
    assert (first['objects'], first['objects_in_use']) == ([0, 20], 20)
    assert first['more_kb'] > 1000
