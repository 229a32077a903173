# SPDX-License-Identifier: Apache-2.0
"""Numbers on the command lines of programs that ask no service: bounded, and said so."""

import pytest

from devel.demo import __main__ as demo
from devel.sim import __main__ as sim
from gantt.cmd import USAGE_EXIT_CODE


@pytest.mark.parametrize(
    ('main', 'line', 'said'),
    [
        (demo.main, '--hosts x', 'argument --hosts: expected a whole number from 20 to 100000, '),
        (demo.main, '--hosts=-5', 'argument --hosts: expected a whole number from 20 to 100000, '),
        (demo.main, '--requests 9', 'argument --requests: expected a whole number from 10 to '),
        (demo.main, '--port 99999', 'argument --port: expected a whole number from 1 to 65535, '),
        (sim.main, 'faults --seeds x', 'argument --seeds: expected a whole number from 1 to '),
        (sim.main, 'faults --first=-1', 'argument --first: expected a whole number from 0 to '),
    ],
    ids=lambda value: value.partition(':')[0] if isinstance(value, str) else value.__module__,
)
def test_a_number_out_of_bounds_is_named_with_them(main, line, said, capsys):
    try:
        code = main(line.split())
    except SystemExit as e:
        code = e.code
    assert code == USAGE_EXIT_CODE
    assert said in capsys.readouterr().err
