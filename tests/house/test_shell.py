# SPDX-License-Identifier: Apache-2.0
"""Shell is read by bash and ShellCheck; what devstack reads, by its own checker, too."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PLUGIN = [
    ROOT / 'devstack' / name for name in ('override-defaults', 'settings', 'plugin.sh', 'lib/gantt')
]
FOLDERS = [ROOT / '.ci', ROOT / 'tests' / 'devstack', ROOT / 'tests' / 'devstack' / 'bin']
STARTS = ('#!/bin/bash', '#!/bin/sh', '# SPDX-License-Identifier: Apache-2.0\n# shellcheck shell=')
OTHERS = sorted(
    path
    for folder in FOLDERS
    for path in folder.iterdir()
    if path.is_file() and path.read_text().startswith(STARTS)
)
#: Files and variables of devstack are not here: sources not followed, variables that it
#: sets or reads.
ELSEWHERE = 'SC1090,SC1091,SC2034,SC2154'
#: Words are split on purpose where devstack has lists in variables, and file names of its
#: own in substitutions.
SPLIT = 'SC2046,SC2086'


def _lines(*words):
    process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100)
    return process.returncode, process.stdout + process.stderr


def _tool(name):
    return str(pathlib.Path(sys.executable).with_name(name))


def _id(path):
    return path.relative_to(ROOT).as_posix()


def test_there_is_something_to_look_at():
    names = {_id(path) for path in OTHERS}
    assert {'.ci/run', 'tests/devstack/run', 'tests/devstack/bin/systemctl'} <= names
    assert all(path.is_file() for path in PLUGIN)


@pytest.mark.parametrize('path', [*PLUGIN, *OTHERS], ids=_id)
def test_shell_is_well_formed(path):
    assert _lines('bash', '-n', str(path)) == (0, '')


@pytest.mark.parametrize('path', [*PLUGIN, *OTHERS], ids=_id)
def test_shellcheck_finds_nothing(path):
    leave = f'{ELSEWHERE},{SPLIT}' if path.is_relative_to(ROOT / 'devstack') else ELSEWHERE
    shell = [] if path.read_text().startswith('#!') else ['--shell', 'bash']
    assert _lines(_tool('shellcheck'), *shell, '--exclude', leave, str(path)) == (0, '')


def test_the_plugin_has_the_style_of_devstack():
    files = [str(path) for path in PLUGIN]
    words = ('--max-line-length', '100', '--ignore', 'E005')  # no suffix: devstack names them
    assert _lines(_tool('bashate'), *words, *files) == (0, '')


def test_a_fault_is_found(tmp_path):
    """The tools see what they are there for."""
    wrong = tmp_path / 'wrong.sh'
    wrong.write_text('#!/bin/bash\nif [ $1 = a ]\nthen\n  rm $undefined\nfi\n')
    assert _lines(_tool('shellcheck'), str(wrong))[0] == 1
    assert _lines(_tool('bashate'), str(wrong))[0] == 1


@pytest.mark.parametrize('given', ['', 'no/such/folder'], ids=['none', 'wrong'])
def test_no_copy_of_devstack_is_an_error(given):
    code, output = _lines(str(ROOT / 'tests' / 'devstack' / 'run'), given)
    assert code == 1
    assert 'devstack-test: ' in output
    assert 'copy of devstack' in output
