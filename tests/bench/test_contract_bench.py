# SPDX-License-Identifier: Apache-2.0
"""The bench of the two forms of claims, at small counts: it runs, and keeps every promise."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.postgresql


def test_both_forms_are_compared_and_the_step_is_taken(postgresql_url):
    counts = {'claims': 3000, 'hosts': 40, 'batches': 3, 'repeats': 1, 'instances': 10}
    words = [word for name, count in counts.items() for word in (f'--{name}', str(count))]
    done = subprocess.run(
        [sys.executable, '-m', 'bench', 'contract', '--json', *words],
        capture_output=True,
        text=True,
        timeout=100,
        env=os.environ | {'GANTT_TEST_POSTGRESQL': postgresql_url},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    stated = result['conditions']
    assert result['ratio'] == pytest.approx(
        result['value'] / result['yardstick']['value'], rel=0.01
    )
    assert stated['step_seconds'] > 0
    assert stated['database_mb']['wide']['allocations'] > 0
    assert stated['database_mb']['narrow']['allocations'] == 0
    assert result['audit'] == 0, stated['problems']
