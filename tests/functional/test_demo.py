# SPDX-License-Identifier: Apache-2.0
"""``make demo``: it plays to its end, with a solver of groups and without."""

import socket
import subprocess
import sys

import pytest

from devel.demo.__main__ import played
from devel.demo.environment import Stage
from devel.demo.scenario import Tally
from gantt import exceptions
from gantt.cli import main as cli

SMALL = ('--hosts', '20', '--requests', '20')
#: What it says of its cluster, whoever plans it.
SAID = (
    'one after the other',
    'planned as a whole       60  60',
    'resources.MEMORY_MB: the plan has',
    'create all 60 in random order',
    'created: 60 running; policies violated: 0',
    '58 running, 2 lost',
    '58 of 58 others stayed where they were',
    'healed: 60 running; policies violated: 0',
    'over-commit 0, lost 0, leaked 0, doubled 0, providers 0',
)
WITHOUT = """
import sys
sys.modules['ortools'] = None
from devel.demo import __main__ as demo
sys.exit(demo.main())
"""
NO_SOLVER = 'OR-tools is not installed'


@pytest.fixture(scope='module')
def both():
    """What both print, played beside each other, with their exit codes."""
    commands = {
        'solver': [sys.executable, '-m', 'devel.demo', *SMALL],
        'search': [sys.executable, '-c', WITHOUT, *SMALL],
    }
    running = {
        name: subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, words in commands.items()
    }
    try:
        yield {
            name: (process.communicate(timeout=240)[0], process.returncode)
            for name, process in running.items()
        }
    finally:
        for process in running.values():
            process.kill()
            process.wait()


@pytest.mark.timeout(300)
@pytest.mark.parametrize('how', ['solver', 'search'])
def test_it_plays_to_its_end(both, how):
    text, code = both[how]
    assert code == 0, text
    for line in SAID:
        assert line in text, text
    # What it says by itself; of commands and explanations it is as long as it is.
    assert max(len(line) for line in text.splitlines() if not line.startswith('  ')) <= 80


def test_a_part_that_cannot_go_on_is_not_the_end(capsys):
    """A machine that is too busy to have hosts report in time shows the rest all the same."""

    def too_busy():
        raise RuntimeError('the machine is too busy')

    def refused():
        raise exceptions.NoValidHost(reason='silent hosts')

    assert [played(part) for part in (too_busy, refused, lambda: False)] == 3 * [False]
    assert played(lambda: None) and played(lambda: True)
    assert capsys.readouterr().out.splitlines() == [
        'this part ends here: the machine is too busy',
        'this part ends here: No valid host was found. silent hosts',
    ]


def test_a_refusal_that_nobody_decided_is_not_the_one_that_is_explained():
    tally = Tally()
    assert tally.refused_decisions == []
    for details in ({'decision_id': 'one'}, {'decision_id': ''}, {}):
        tally.refusals.append(exceptions.NoValidHost(reason='full', **details))
    assert tally.refused_decisions == ['one']


def test_without_a_solver_it_says_so_and_more_hosts_are_needed(both):
    assert NO_SOLVER in both['search'][0] and 'were not placed in time' in both['search'][0]
    assert NO_SOLVER not in both['solver'][0]


def test_it_serves_placements_interface_beside_its_own(tmp_path):
    stage = Stage(tmp_path, 2, 1, socket.gethostname())
    try:
        stage.open()
        url = stage.serve(0)
        assert cli.main(['--endpoint', url, 'host', 'list']) == 0
        assert cli.main(['--endpoint', url, 'provider', 'list']) == 0
    finally:
        stage.close()
