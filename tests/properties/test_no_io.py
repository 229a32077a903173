# SPDX-License-Identifier: Apache-2.0
"""A filter run reads nothing and asks nobody: it looks at host state only."""

import subprocess
import sys

import pytest

from tests.properties import no_io


def decide(*words):
    return subprocess.run(
        [sys.executable, '-m', 'tests.properties.no_io', *map(str, words)],
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_the_default_set_decides_without_the_outside_world():
    process = decide(1, 400)
    assert process.returncode == 0, process.stdout + process.stderr
    assert '400 decisions, outcomes no_valid_host, placed' in process.stdout


@pytest.mark.parametrize('plugin', sorted(no_io.BAD))
def test_a_plugin_that_does_otherwise_is_caught(plugin):
    process = decide(1, 20, plugin)
    assert process.returncode == 3, process.stdout + process.stderr
    assert plugin in process.stdout
