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
    done = decide(1, 400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '400 decisions, outcomes no_valid_host, placed' in done.stdout


@pytest.mark.parametrize('plugin', sorted(no_io.BAD))
def test_a_plugin_that_does_otherwise_is_caught(plugin):
    done = decide(1, 20, plugin)
    assert done.returncode == 3, done.stdout + done.stderr
    assert plugin in done.stdout
