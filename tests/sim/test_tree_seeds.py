# SPDX-License-Identifier: Apache-2.0
"""Seeds of trees of zones: some for every change, two thousand at night, and broken rules."""

import contextlib
import functools
import json
import os
import pathlib
import subprocess
import sys

import pytest

from devel.sim import __main__ as sim
from devel.sim import plan
from devel.sim.world import SimulationRuns
from gantt import cmd
from tests.sim import broken_trees as broken

ROOT = pathlib.Path(__file__).parents[2]
#: For every change, at night, and of them in one test.
FEW, MANY, BLOCK = 4, 2000, 50
#: One of so many has to find a broken rule.
TRIED = 40


@pytest.fixture(scope='module')
def run():
    with contextlib.closing(SimulationRuns()) as new_runs:
        yield functools.partial(new_runs.run, trees=True)


def kept(run, first, count):
    verdicts = [run(seed) for seed in range(first, first + count)]
    for verdict in verdicts:
        shown = [*verdict.violations, sim.replay(verdict.seed, trees=True)]
        assert not verdict.violations, '\n'.join(shown)
    return verdicts


def finds(run, promise, first):
    """Whether some seed shows it.

    :param first: the seed that found it last
    """
    return any(promise in line for seed in (first, *range(TRIED)) for line in run(seed).violations)


def test_every_promise_is_kept_in_trees(run):
    verdicts = kept(run, 0, FEW)
    assert sum(verdict.placed for verdict in verdicts) > 3 * FEW
    assert sum(verdict.guests for verdict in verdicts) > 2 * FEW


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('first', range(FEW, MANY, BLOCK))
def test_every_promise_is_kept_in_two_thousand_trees(run, first):
    kept(run, first, BLOCK)


def test_every_kind_of_trouble_happens_in_the_first_trees():
    plans = [plan.random_tree_plan(seed) for seed in range(100)]
    assert {fault.what for dealt in plans for fault in dealt.faults} == set(plan.TREE_FAULT_KINDS)
    assert {len(dealt.zones) for dealt in plans} == {3, 4}
    assert {zone.processes for dealt in plans for zone in dealt.zones} == {1, 2}
    assert any(dealt.direct for dealt in plans) and any(dealt.strategies for dealt in plans)
    for rate in ('lost', 'doubled', 'late'):
        assert any(getattr(dealt.rates, rate) > 0.1 for dealt in plans)


@pytest.mark.parametrize(
    ('flaw', 'what', 'first'),
    [
        (broken.who_has_not_seen_a_key_notes_nothing, 'Z5: ', 8),
        (broken.leases_never_end, 'P3: ', 1),
        (broken.claims_below_are_not_followed, 'Z8: ', 0),
        # It takes minutes until a seed finds it.
        pytest.param(broken.a_consumer_is_not_noted, 'Z', 7, marks=pytest.mark.slow),
        (broken.who_is_silent_has_no_room, 'Z9: ', 5),
    ],
)
def test_a_broken_rule_is_found(run, monkeypatch, flaw, what, first):
    flaw(monkeypatch)
    assert finds(run, what, first)


def _output(hash_seed):
    words = ['faults', '--trees', '--seeds', '2', '--trace', '-f', 'json']
    return subprocess.run(
        [sys.executable, '-m', 'devel.sim', *words],
        cwd=ROOT,
        env={**os.environ, 'PYTHONHASHSEED': hash_seed},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    ).stdout.splitlines()


def test_a_tree_has_the_same_trace_in_any_process():
    """Not compared with this process: threads of other tests take from its random numbers."""
    verdicts = [json.loads(line) for line in _output('1')[:-1]]
    assert [verdict['seed'] for verdict in verdicts] == [0, 1]
    assert all(verdict['trace'] for verdict in verdicts)
    assert verdicts == [json.loads(line) for line in _output('2')[:-1]]


def test_a_tree_is_named_with_the_command_that_shows_it_again(monkeypatch, capsys):
    broken.leases_never_end(monkeypatch)
    assert sim.main(['faults', '--trees', '--first', '1', '--seeds', '1']) == 1
    shown = capsys.readouterr().out
    assert 'past its lease' in shown and 'python -m devel.sim faults --trees --first 1 ' in shown
    assert sim.main(['faults', '--trees', '--seeds', '0']) == cmd.USAGE_EXIT_CODE
