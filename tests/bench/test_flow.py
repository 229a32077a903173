# SPDX-License-Identifier: Apache-2.0
"""The two flows, counted: they pass files that are there, and do not wander more than they did."""

import json
import pathlib
import subprocess
import sys

import pytest

from bench import flow

ROOT = pathlib.Path(__file__).parents[2]
#: (changes of file, files) of a flow by database and name; to be lowered, not raised.  Calls are
#: counted, not timed: the same on every machine.
MAX = {
    ('sqlite', 'request'): (246, 46),
    ('sqlite', 'report'): (86, 22),
    ('postgresql', 'request'): (217, 42),
    ('postgresql', 'report'): (108, 23),
}
EACH = pytest.mark.parametrize('name', ['request', 'report'])


@pytest.fixture(scope='module', params=flow.DATABASES)
def database(request):
    if request.param == 'postgresql':
        request.getfixturevalue('postgresql_url')  # skips where there is no server
    return request.param


@pytest.fixture(scope='module')
def flows(database):
    return flow.flows(database)


@EACH
def test_a_flow_passes_files_of_the_tree_and_no_plug_ins(flows, name):
    counted = flows[name]
    assert counted.path[0].startswith(('gantt/core/messages/', 'gantt/scheduler/'))
    assert len(counted.path) == len(set(counted.path)) > 10
    assert all((ROOT / path).is_file() for path in counted.path)
    assert not [path for path in counted.path if path == 'gantt/core/filters/compute.py']
    assert counted.calls >= counted.changes >= len(counted.path) - 1


@EACH
def test_a_flow_changes_files_no_more_often_than_before(database, flows, name):
    changes_max, files_max = MAX[database, name]
    assert flows[name].changes <= changes_max
    assert len(flows[name].path) <= files_max, 'a file more is on the way: is it needed?'


def test_the_bench_prints_what_was_counted(database, flows):
    done = subprocess.run(
        [sys.executable, '-m', 'bench', 'flow', '--json', '--database', database],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result['conditions']['database'] == database
    assert result['value'] == result['conditions']['request']['changes']
    for name, counted in flows.items():
        assert set(result['conditions'][name]) == {'calls', 'files', 'changes'}
        assert result['conditions'][name]['files'] == len(counted.path)
