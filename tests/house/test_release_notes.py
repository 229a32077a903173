# SPDX-License-Identifier: Apache-2.0
"""Release notes: in the form of reno, and on a page of the documents."""

import pathlib
import subprocess
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]
NOTES = sorted((ROOT / 'releasenotes' / 'notes').glob('*.yaml'))
KINDS = {
    'prelude',
    'features',
    'issues',
    'upgrade',
    'deprecations',
    'critical',
    'security',
    'fixes',
    'other',
}


def test_there_are_notes():
    assert NOTES


@pytest.mark.parametrize('path', NOTES, ids=lambda path: path.stem)
def test_a_note_has_kinds_that_are_shown(path):
    sections = yaml.safe_load(path.read_text())
    assert sections.keys() <= KINDS
    assert all(
        isinstance(text, str) for kind in sections.keys() - {'prelude'} for text in sections[kind]
    )
    assert all(len(line) <= 110 for line in path.read_text().splitlines())


def test_reno_finds_nothing_wrong():
    reno = pathlib.Path(sys.executable).with_name('reno')
    process = subprocess.run([reno, 'lint'], cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert process.returncode == 0, process.stdout + process.stderr
