# SPDX-License-Identifier: Apache-2.0
"""Where the time of a run goes, by folder of tests, and how much of it each folder may take.

Seconds are those of the processes that run tests, on a quiet machine with two cores, rounded
up.  A folder that takes longer is a loud line at the end of a run and no failure: a slow
machine is no defect.  ``tests/house/test_budget.py`` holds the sum against ``.ci/run``.
"""

import collections
from collections.abc import Iterable
from typing import Any

#: Folder of tests -> seconds.
SECONDS = {
    'bench': 60,
    'cli': 60,
    'compute': 60,
    'conductor': 40,
    'contract': 310,
    'core': 45,
    'db': 270,
    'faults': 720,
    'functional': 180,
    'groups': 40,
    'hostile': 280,
    'house': 135,
    'http': 100,
    'model': 140,
    'nova_source': 75,
    'oracle': 100,
    'placement': 30,
    'properties': 100,
    'rabbit': 135,
    'rpc': 45,
    'scheduler': 140,
    'shadow': 45,
    'sim': 135,
    'telemetry': 45,
    'transfer': 75,
    'zones': 400,
}
#: What the next features may add to a run, in seconds of the clock.
REST = 483
#: Processes that run tests, as JOBS of the Makefile says.
JOBS = 3


def by_folder(reports: Iterable[Any]) -> dict[str, float]:
    """Seconds by folder, of pytest's reports: set-up, call and tear-down."""
    found: collections.Counter[str] = collections.Counter()
    for report in reports:
        parts = str(getattr(report, 'nodeid', '')).partition('::')[0].split('/')
        found[parts[1] if len(parts) > 2 else ''] += getattr(report, 'duration', 0.0)
    return dict(found.most_common())


def lines(spent: dict[str, float]) -> list[str]:
    """The table that ends a run."""
    said = []
    for folder, seconds in spent.items():
        may = SECONDS.get(folder)
        over = '  OVER ITS BUDGET' if may is not None and seconds > may else ''
        said.append(f'{folder or "tests":<14}{seconds:8.0f} of {may or "-":>4}{over}')
    return said
