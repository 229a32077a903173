# SPDX-License-Identifier: Apache-2.0
"""Each bench starts, measures and ends, with the smallest input that it takes."""

import json
import os
import subprocess
import sys

import pytest

from bench import conditions
from bench.__main__ import names

#: Bench -> its smallest input.
SMALLEST = {
    'allocations': '--writes 4 --rounds 1 --seconds 5 --allocations 20',
    'candidates': '--providers 8 --rounds 1 --seconds 5',
    'dashboard': '--hosts 4 --repeats 1',
    'explain': '--hosts 4 --repeats 1',
    'farm': '--hosts 4 --guests 4 --rate 4 --period 2 --seconds 4 --repeats 1',
    'frozen': '--hosts 4 --callers 2 --rate 4 --fault 4 --calm 3',
    'history': '--claims 2000 --hosts 4 --callers 2 --seconds 0.5 --repeats 1 --purge-seconds 10',
    'hostile': '--hosts 8 --examples 2',
    'million': '--hosts 40 --claims 200 --instances 5 --callers 2',
    'reports': '--hosts 4 --consumers 1 --period 1 --seconds 1 --repeats 1',
    'rpc-single': '--hosts 4 --callers 2 --seconds 0.5 --repeats 1',
    'several': '--schedulers 1 --hosts 4 --callers 2 --seconds 0.5 --repeats 1',
    'soak': '--minutes 0.2 --rate 4 --hosts 4 --guests 4 --fault-every 4',
    'survive': '--hosts 20 --requests 40 --kills 1 --callers 2',
    'tenants': '--hosts 40 --schedulers 1 --callers 20 --rate 4 --seconds 3 --ramp 1 --repeats 1',
    'zones': '--hosts 4 --requests 4 --seconds 0.5 --repeats 1',
    'zones-rate': '--hosts 4 --rate 4 --seconds 2',
}
#: Those that other files here start.
ELSEWHERE = {
    'beside',
    'decide',
    'decide-scale',
    'flow',
    'groups',
    'joint',
    'rpc-batch',
    'zones-sim',
}
#: Short enough for every run of the tests.
SHORT = {'reports'}


def test_each_bench_is_started_by_a_test():
    assert sorted({*SMALLEST, *ELSEWHERE}) == names()


@pytest.mark.rabbit
@pytest.mark.postgresql
@pytest.mark.parametrize(
    'name',
    [pytest.param(n, marks=() if n in SHORT else pytest.mark.slow) for n in sorted(SMALLEST)],
)
def test_a_bench_measures_its_smallest_input(name):
    done = subprocess.run(
        [sys.executable, '-m', 'bench', name, '--json', *SMALLEST[name].split()],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, conditions.WAIT: '0'},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result['bench'].split()[0], result['audit']) == (name, 0)
    assert result['value'] >= 0 and result['conditions']
