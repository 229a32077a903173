# SPDX-License-Identifier: Apache-2.0
"""``gantt metric``: declare, list, take back."""

from tests.cli.conftest import Gantt


def test_a_metric_is_declared_listed_and_taken_back(gantt: Gantt) -> None:
    dry = gantt('metric', 'set', 'load', '--upper', '64', '--dry-run')
    assert 'metric load would be declared' in dry.out
    declared = gantt('metric', 'set', 'load', '--lower', '0', '--upper', '0.25', '--unit', 'tasks')
    assert (declared.code, 'metric load is declared' in declared.out) == (0, True)
    [line] = [line for line in gantt('metric', 'list').out.splitlines() if line.startswith('load')]
    assert line.split() == ['load', 'yes', 'tasks', '0', '0.25', '-', '6', '(6', 'silent)']
    assert gantt('metric', 'remove', 'load').code == 0
    assert gantt('metric', 'remove', 'load').code == 1


def test_bounds_that_leave_nothing_are_refused(gantt: Gantt) -> None:
    refused = gantt('metric', 'set', 'load', '--lower', '2', '--upper', '1')
    assert refused.code == 1
    assert 'upper' in refused.err
