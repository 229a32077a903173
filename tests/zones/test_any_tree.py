# SPDX-License-Identifier: Apache-2.0
"""Whatever strategies a tree of zones has: a refusal is final, and each keeps its guarantee."""

import concurrent.futures
import multiprocessing

import msgspec
import pytest

from devel.sim.zones.placing import carry_out
from gantt.core.records.decision import Outcome
from gantt.zones.model.summary import REMEMBERED_SECONDS
from tests.zones.any_tree import GOOD_ENOUGH, AnyTree

REQUESTS = 4
BLOCK = 50


def check_refusals(seed):
    """Requests until the tree is about full: refused is what no look at all hosts has room for."""
    tree = AnyTree(seed)
    placed = 0
    for number in range(REQUESTS):
        request = tree.request(number)
        has_room = tree.has_room(request)
        answer = carry_out(tree.top, request)
        assert answer.is_placed == has_room, (seed, number, tree.names, request.spec, answer)
        assert answer.outcome in (Outcome.PLACED, Outcome.NO_VALID_HOST)
        placed += answer.is_placed
    for zone in tree.zones:
        assert not len(zone.table) or zone.table.free_of(0).min() >= 0
    return placed


@pytest.mark.parametrize('first', range(0, 150, BLOCK))
def test_no_strategy_refuses_what_there_is_room_for(first):
    placed = sum(check_refusals(seed) for seed in range(first, first + BLOCK))
    assert BLOCK * REQUESTS * 0.2 < placed < BLOCK * REQUESTS


@pytest.mark.parametrize('seed', [395, 1065, 5734])
def test_members_find_the_one_zone_further_down_that_has_room_for_all(seed):
    check_refusals(seed)


@pytest.mark.slow
@pytest.mark.timeout(10_800)
@pytest.mark.parametrize('first', range(150, 100_150, 5000))
def test_no_strategy_refuses_what_there_is_room_for_in_a_hundred_thousand_trees(first):
    """Each tree on its own, on all processors: ten thousand take some minutes."""
    context = multiprocessing.get_context('spawn')
    with concurrent.futures.ProcessPoolExecutor(mp_context=context) as processes:
        list(processes.map(check_refusals, range(first, first + 5000), chunksize=BLOCK))


def best_of_all(tree, request):
    """The best choice of a look at all hosts, and what the tree chooses with its strategies."""
    evaluated = tree.top.parts.evaluator.evaluate(request, 5, 2.0)
    everywhere = tree.all_choices(request)
    assert bool(evaluated.choices) == bool(everywhere)
    return (evaluated.choices[0].score, everywhere[0].score) if everywhere else (None, None)


def single(tree, number, rules=False):
    request = tree.request(number, rules)
    return msgspec.structs.replace(
        request,
        spec=msgspec.structs.replace(request.spec, group=None),
        consumers=request.consumers[:1],
    )


def compared(strategies, rules=False, seeds=25):
    """Scores of the places chosen, and the best ones there were, over many trees."""
    pairs = []
    for seed in range(seeds):
        tree = AnyTree(seed, strategies, is_plain=True)
        for number in range(3):
            chosen, best = best_of_all(tree, single(tree, number, rules))
            if chosen is not None:
                pairs.append((chosen, best))
    assert len(pairs) > seeds / 2
    return pairs


def equal(chosen, best):
    return chosen.level == best.level and chosen.score == pytest.approx(best.score)


@pytest.mark.parametrize('strategies', [(), ('StaticRuleOut',), ('StaticRuleOut', 'BruteForce')])
def test_static_rule_out_leads_to_the_place_of_brute_force(strategies):
    assert all(equal(chosen, best) for chosen, best in compared(strategies))


@pytest.mark.parametrize('others', [('RandomOrder',), ('StaticRuleOut', 'WeightedRandom')])
def test_threshold_leads_to_the_best_level_there_is(others):
    pairs = compared((*others, 'Threshold'), rules=True)
    assert all(chosen.level == best.level for chosen, best in pairs)
    assert len({best.level for _, best in pairs}) > 1


def test_good_enough_has_its_share_of_the_best_for_fewer_calls():
    first_calls = later_calls = 0
    equals = []
    for seed in range(25):
        tree = AnyTree(seed, ('RandomOrder', 'GoodEnough'), is_plain=True)
        request = single(tree, 0)
        before = tree.links.evaluations
        chosen, best = best_of_all(tree, request)
        if chosen is None:
            continue
        assert equal(chosen, best), 'before one was seen all are queried'
        first_calls += tree.links.evaluations - before
        before = tree.links.evaluations
        chosen, best = best_of_all(tree, request)
        later_calls += tree.links.evaluations - before
        assert chosen.score >= GOOD_ENOUGH * best.score
        equals.append(equal(chosen, best))
        # Some minutes later it is looked for anew.
        tree.clock.now += 2 * REMEMBERED_SECONDS
        assert equal(*best_of_all(tree, request))
    assert later_calls < 0.9 * first_calls
    assert not all(equals)
