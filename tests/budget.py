# SPDX-License-Identifier: Apache-2.0
"""Time of a run by folder of tests, and the budget of each folder.

Seconds are those of the processes that run tests, on a quiet machine with two cores, rounded
up.  A folder that takes longer is a loud line at the end of a run and no failure: a slow
machine is no defect.  ``tests/house/test_budget.py`` holds the sum against ``.ci/run``.
"""

import collections
from collections.abc import Iterable
from typing import Any

#: Folder of tests -> seconds.
SECONDS = {
    'bench': 100,
    'cli': 50,
    'compute': 55,
    'conductor': 30,
    'contract': 320,
    'core': 55,
    'db': 390,
    'faults': 560,
    'functional': 140,
    'groups': 20,
    'hostile': 150,
    'house': 140,
    'http': 90,
    'model': 60,
    'nova_source': 80,
    'oracle': 45,
    'placement': 20,
    'properties': 80,
    'rabbit': 130,
    'rpc': 60,
    'scheduler': 140,
    'shadow': 30,
    'sim': 120,
    'telemetry': 35,
    'templates': 20,
    'transfer': 80,
    'zones': 400,
}
#: Seconds of the clock that the next features may add to a run.
REST = 585
#: Processes that run tests, as JOBS of the Makefile states.
JOBS = 3


def by_folder(reports: Iterable[Any]) -> dict[str, float]:
    """Return seconds by folder, of pytest's reports: set-up, call and tear-down."""
    seconds_by_folder: collections.Counter[str] = collections.Counter()
    for report in reports:
        parts = str(getattr(report, 'nodeid', '')).partition('::')[0].split('/')
        seconds_by_folder[parts[1] if len(parts) > 2 else ''] += getattr(report, 'duration', 0.0)
    return dict(seconds_by_folder.most_common())


def lines(spent: dict[str, float]) -> list[str]:
    """Return the table that ends a run."""
    report_lines = []
    for folder, seconds in spent.items():
        may = SECONDS.get(folder)
        over = '  OVER ITS BUDGET' if may is not None and seconds > may else ''
        report_lines.append(f'{folder or "tests":<14}{seconds:8.0f} of {may or "-":>4}{over}')
    return report_lines
