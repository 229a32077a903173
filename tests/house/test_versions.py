# SPDX-License-Identifier: Apache-2.0
"""A microversion that a release has served is what it was then: its file has not changed."""

import pathlib
import re
import shutil
import subprocess

import pytest

from gantt.http import microversion
from gantt.rpc import wire
from tests.releases import BEFORE

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = 'tests/http/frozen_versions'
LAST = list(BEFORE)[-1]


def _git(*arguments: str) -> str:
    """What git answers; skips where the history is not there."""
    git = shutil.which('git')
    done = git and subprocess.run(
        [git, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    if not done or done.returncode:
        pytest.skip(f'NO HISTORY: commit {LAST[:7]} cannot be had; fetch all of it')
    return done.stdout


def test_what_a_release_has_served_has_not_changed():
    served = _git('ls-tree', '--name-only', LAST, f'{FOLDER}/').split()
    assert served, 'the release has microversions'
    changed = [
        name for name in served if (ROOT / name).read_text() != _git('show', f'{LAST}:{name}')
    ]
    assert changed == [], f'served since {LAST[:7]}, so that a change needs a version of its own'


def test_no_version_goes_back_behind_that_of_a_release():
    [minor] = re.findall(
        r'^MAJOR, MINOR = 1, (\d+)$', _git('show', f'{LAST}:gantt/rpc/wire.py'), re.M
    )
    assert (1, int(minor)) <= (wire.MAJOR, wire.MINOR)
    known = {f'1.{version.minor}.txt' for version in microversion.HISTORY}
    assert {path.name for path in (ROOT / FOLDER).iterdir()} == known
