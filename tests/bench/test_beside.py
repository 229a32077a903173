# SPDX-License-Identifier: Apache-2.0
"""A bench in turn with another commit: both sides run, and nothing stays behind."""

import json
import pathlib
import subprocess
import sys

import pytest

from bench import beside

ROOT = pathlib.Path(__file__).parents[2]


def git(*words):
    return subprocess.run(['git', *words], cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.fixture(autouse=True)
def commits():
    if git('rev-parse', 'HEAD').returncode:
        pytest.skip('NO GIT: this tree has no commits')


def test_both_sides_run_and_nothing_stays_behind():
    done = subprocess.run(
        [
            sys.executable,
            '-m',
            'bench',
            'beside',
            '--json',
            '--pairs',
            '2',
            'HEAD',
            'decide',
            '--hosts',
            '50',
            '--rounds',
            '1',
        ],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    stated = result['conditions']
    assert (result['bench'], stated['pairs']) == ('beside decide', 2)
    assert not stated['more_is_better']
    assert result['ratio'] == pytest.approx(result['yardstick']['value'] / result['value'])
    assert stated['cpu_ratio'] == pytest.approx(stated['cpu'][0] / stated['cpu'][1])
    assert [len(values) for values in stated['values']] == [2, 2]
    assert 'gantt-beside-' not in git('worktree', 'list').stdout


def test_a_commit_that_is_not_there_is_named():
    done = subprocess.run(
        [sys.executable, '-m', 'bench', 'beside', 'no-such-commit', 'decide'],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert 'no-such-commit' in done.stderr


def test_what_a_run_took_is_what_its_bench_counted():
    measured = {'value': 0.1, 'bench': 'x', 'conditions': {}}
    assert beside.cpu_of(measured, 3.0) == 3.0
    assert beside.cpu_of(measured | {'conditions': {'scheduler_cpu_ms_per_call': 1.2}}, 3.0) == 1.2
    both = {'measured': {name: {'cpu_us_per_placement': 70} for name in ('gantt', 'prototype')}}
    assert beside.cpu_of(measured | {'conditions': both}, 3.0) == 70
    assert beside.cpu_of(measured | {'conditions': {'reports_per_second': 200.0}}, 3.0) == 0.1 / 200
