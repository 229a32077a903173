# SPDX-License-Identifier: Apache-2.0
"""The benches run, and print what they promise; their figures are for their own runs."""

import json
import subprocess
import sys

import pytest

from bench import decide
from bench.__main__ import names


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


def test_an_unknown_bench_is_a_usage_error_that_lists_them():
    done = run('decied')
    assert done.returncode == 64
    assert 'decide' in done.stdout
    assert 'decide' in names()


def test_the_help_names_every_bench():
    done = run('--help')
    assert done.returncode == 0
    for name in ('rpc-single', 'rpc-batch', 'million', 'several', 'history', 'soak', 'explain'):
        assert name in done.stdout
