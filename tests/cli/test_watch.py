# SPDX-License-Identifier: Apache-2.0
"""Lists that are printed again and again, within a bound."""

import pytest

from tests.cli.conftest import Gantt


@pytest.mark.parametrize(
    'words', [('status',), ('host', 'list'), ('claim', 'list'), ('decision', 'list')]
)
def test_it_is_printed_again_until_the_time_is_over(gantt: Gantt, words: tuple[str, ...]) -> None:
    once = gantt(*words).out.splitlines()[0]
    watched = gantt(*words, '--watch', '0.5', '--for', '0.6')
    assert watched.code == 0, watched.err
    assert watched.out.splitlines().count(once) >= 2
    assert '\x1b' not in watched.out


def test_its_bounds_are_said(gantt: Gantt, capsys: pytest.CaptureFixture[str]) -> None:
    assert gantt('host', 'list', '--watch', '0.01').code == 64
    assert gantt('host', 'show', 'cmp-1', '--watch').code == 64
    assert 'from 0.5 to 3600' in capsys.readouterr().err
