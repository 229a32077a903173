# SPDX-License-Identifier: Apache-2.0
"""Trees of zones in virtual time: what the figures are made of, and the command that shows them."""

import json

import msgspec
import pytest

from devel.sim import __main__ as sim
from devel.sim.zones.run import SUMMARIES, TreePlan, TreeRun
from gantt import cmd

SMALL = TreePlan(hosts=120, middle=3, sites=4, concurrent=8, bursts=3, samples=24)


def figures(**fields):
    return TreeRun(msgspec.structs.replace(SMALL, **fields)).figures()


def test_one_request_at_a_time_gets_the_best_place_from_all_zones():
    totals = figures(strategies=(), concurrent=1, bursts=24)
    assert (totals.missed, totals.conflicts, totals.overcommitted) == (0, 0.0, 0)
    assert totals.defects == []
    assert totals.sampled > 12
    assert totals.quality == pytest.approx(totals.brute)
    # Each zone prefers by its own scale: that may be another host than the best on absolute ones.
    assert totals.brute > 0.98
    # All 15 zones below are queried, and one call for each level claims.
    assert totals.messages == pytest.approx(17, abs=1)


def test_drawn_zones_cost_less_and_give_nearly_as_good_places():
    totals = figures(strategies=('WeightedRandom',), concurrent=1, bursts=24, sites=10, hosts=600)
    assert totals.missed == 0
    assert totals.messages < 12
    assert 0.7 < totals.quality <= 1.0


@pytest.mark.parametrize('summaries', SUMMARIES)
def test_whatever_zones_say_of_their_room_nobody_is_refused_what_there_is(summaries):
    totals = figures(summaries=summaries, load=0.97, concurrent=16, strategies=('LikelyFirst',))
    assert totals.placed + totals.refused == totals.requests
    assert totals.refused
    assert (totals.missed, totals.overcommitted, totals.defects) == (0, 0, [])


def test_the_same_seed_gives_the_same_figures():
    assert figures(bursts=2) == figures(bursts=2)
    assert figures(bursts=2) != figures(bursts=2, seed=2)


def test_sets_of_strategies_are_compared_on_the_same_tree(capsys):
    small = ['--hosts', '60', '--middle', '2', '--sites', '3', '--bursts', '1', '--samples', '8']
    sets = ['--strategies', '', '--strategies', 'StaticRuleOut,WeightedRandom']
    assert sim.main(['zones', *small, *sets, '-f', 'json']) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line['strategies'] for line in lines] == [[], ['StaticRuleOut', 'WeightedRandom']]
    assert lines[0]['requests'] == lines[1]['requests'] == 16
    assert sim.main(['zones', *small, *sets]) == 0
    assert 'StaticRuleOut WeightedRandom' in capsys.readouterr().out


def test_a_strategy_that_there_is_not_is_wrong_usage(capsys):
    assert sim.main(['zones', '--strategies', 'Nothing']) == cmd.USAGE_EXIT_CODE
    assert 'Nothing' in capsys.readouterr().err
