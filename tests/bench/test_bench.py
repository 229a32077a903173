# SPDX-License-Identifier: Apache-2.0
"""The benches run, and print what they promise; their figures are for their own runs."""

import json
import subprocess
import sys

import pytest

from bench import decide, every_filter
from bench.__main__ import names
from gantt import plugin_loader


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, '-m', 'bench', *args], capture_output=True, text=True, timeout=100
    )


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


@pytest.mark.parametrize('what', ['default', 'all'])
def test_with_nova_s_filters_and_with_all_each_has_work(what):
    done = run('decide', '--filters', what, '--hosts', '2000', '--rounds', '1', '--json')
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result['bench'], result['audit']) == (f'decide --filters {what}', 0)
    conditions = result['conditions']
    wanted = plugin_loader.installed(plugin_loader.FILTERS) if what == 'all' else every_filter.NOVAS
    assert set(conditions['removed']) == set(wanted)
    idle = {name for name, removed in conditions['removed'].items() if not removed}
    assert idle == every_filter.IDLE & set(wanted)
    assert conditions['outcomes'].get('placed', 0) > 100
    assert set(conditions['weighers']) == set(plugin_loader.installed(plugin_loader.WEIGHERS))


def test_members_that_must_be_apart_are_and_rather_on_racks_of_their_own():
    done = run('decide', '--anti-affinity', '--hosts', '800', '--rounds', '2', '--json')
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result['unit'], result['audit']) == ('decisions/s', 0)
    assert result['ratio'] == pytest.approx(result['value'] / result['yardstick']['value'], rel=0.1)
    conditions = result['conditions']
    assert conditions['racks_of_a_group'] > conditions['racks_of_a_group_without']


def test_an_unknown_bench_is_a_usage_error_that_lists_them():
    done = run('decied')
    assert done.returncode == 64
    assert 'decide' in done.stdout
    assert 'decide' in names()


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
