# SPDX-License-Identifier: Apache-2.0
"""The time of the tests has a budget: by folder, and as a whole."""

import pathlib
import re
from types import SimpleNamespace

from tests import budget

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = (ROOT / '.ci' / 'run').read_text()


def limit(name):
    return int(re.search(rf'{name}=\$\{{{name}:-(\d+)\}}', SCRIPT)[1])


def test_every_folder_of_tests_has_a_budget():
    files = (path.relative_to(ROOT / 'tests') for path in ROOT.glob('tests/*/**/test_*.py'))
    assert set(budget.SECONDS) == {path.parts[0] for path in files}


def test_the_limit_of_the_script_is_twice_the_budget_with_ten_minutes_more():
    jobs = int(re.search(r'^JOBS +\?= (\d+)', (ROOT / 'Makefile').read_text(), re.M)[1])
    assert jobs == budget.JOBS
    takes = sum(budget.SECONDS.values()) / budget.JOBS
    assert 2 * (takes + budget.REST) <= limit('TEST_SECONDS')


def test_the_limits_of_the_script_are_eighty_minutes_together():
    assert limit('TEST_SECONDS') + limit('LINT_SECONDS') + 600 <= 80 * 60


def test_what_a_run_took_is_told_by_folder():
    reports = [
        SimpleNamespace(nodeid='tests/core/test_x.py::a', duration=1.0),
        SimpleNamespace(nodeid='tests/core/rules/test_y.py::b', duration=80.0),
        SimpleNamespace(nodeid='tests/rpc/test_z.py::c', duration=2.0),
        SimpleNamespace(nodeid='tests/test_plugins.py::d', duration=3.0),
    ]
    spent = budget.by_folder(reports)
    assert spent == {'core': 81.0, '': 3.0, 'rpc': 2.0}
    first, *others = budget.lines(spent)
    assert first.split()[:4] == ['core', '81', 'of', str(budget.SECONDS['core'])]
    assert 'OVER' in first
    assert not [line for line in others if 'OVER' in line]
