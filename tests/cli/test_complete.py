# SPDX-License-Identifier: Apache-2.0
"""The Tab key, in a bash that runs."""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.cli.conftest import run

BIN = pathlib.Path(sys.executable).parent
#: What bash does at Tab: the function that is registered for the command fills COMPREPLY.
TAB = """
source <(gantt complete bash)
COMP_LINE={line}
COMP_POINT=${{#COMP_LINE}}
COMP_TYPE=9
read -ra COMP_WORDS <<< "$COMP_LINE"
[[ $COMP_LINE == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
registered=$(complete -p gantt)
function=${{registered##* -F }}
"${{function%% *}}" gantt "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def tab():
    """``tab(line)``: what bash would put behind it."""

    def press(line: str) -> set[str]:
        process = subprocess.run(
            ['bash', '--norc', '--noprofile', '-c', TAB.format(line=shlex.quote(line))],
            env={**os.environ, 'PATH': f'{BIN}:{os.environ["PATH"]}'},
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert process.returncode == 0, process.stderr
        return {word.strip() for word in process.stdout.splitlines()} - {''}

    return press


def test_the_tab_key_completes_commands_and_options_in_bash(tab) -> None:
    assert tab('gantt aggr') == {'aggregate'}
    assert tab('gantt host ') >= {'list', 'show', 'disable', 'enable'}
    assert tab('gantt host list --condition st') == {'stale'}
    assert tab('gantt select --res') == {'--resource'}


@pytest.mark.parametrize('shell', ['bash', 'zsh', 'fish'])
def test_there_is_a_script_for_each_shell(shell: str) -> None:
    script = run('complete', shell)
    assert script.code == 0
    assert '_ARGCOMPLETE' in script.out and 'gantt' in script.out
    # Where the shell is, it understands the script.
    if shutil.which(shell):
        checked = subprocess.run([shell, '-n'], input=script.out, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stderr


def test_a_shell_that_is_not_known_names_those_that_are(capsys: pytest.CaptureFixture) -> None:
    assert run('complete', 'tcsh').code == 64
    assert 'bash' in capsys.readouterr().err
