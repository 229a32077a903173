# SPDX-License-Identifier: Apache-2.0
"""Groups in the simulator: what happens to them, and that a broken rule of theirs is found."""

import pytest

from devel.sim import plan
from devel.sim.groups.descriptions import PlacedUnit, broken_policies
from devel.sim.world import SimulationRuns
from tests.planner import a_description, a_member, a_plan_request
from tests.sim import broken as broken_stores
from tests.sim import broken_groups, undone

#: One of so many worlds must find it.
SEEDS = 200


@pytest.fixture
def everywhere(monkeypatch):
    """Groups are planned in every world."""
    monkeypatch.setattr(plan, 'GROUPS_SHARE', 1.0)


def finds(promise, first=0, seeds=SEEDS, make_stores=None):
    """Whether some world shows a violation of this kind.

    :param first: the seed that found it last, where to begin
    """
    runs = SimulationRuns(make_stores)
    return any(
        violation.startswith(promise)
        for seed in (*range(first, seeds), *range(first))
        for violation in runs.run(seed).violations
    )


def test_groups_are_planned_in_some_worlds_and_all_else_is_as_it_was(monkeypatch):
    plans = [plan.random_plan(seed) for seed in range(200)]
    some = [dealt for dealt in plans if dealt.groups]
    assert 30 < len(some) < 70
    assert {fault.what for dealt in some for fault in dealt.faults} >= plan.GROUP_FAULT_KINDS.keys()
    assert {dealt.planners for dealt in some} == {1, 2}
    monkeypatch.setattr(plan, 'GROUPS_SHARE', 0.0)
    for dealt in plans:
        alone = plan.random_plan(dealt.seed)
        assert alone.faults == [b for b in dealt.faults if b.what not in plan.GROUP_FAULT_KINDS]
        assert (alone.zones, alone.stories, alone.rates) == (
            dealt.zones,
            dealt.stories,
            dealt.rates,
        )


#: What a run of a few worlds has to show, as the trace says it.
HAPPENS = (
    ' takes ',
    'extend_plan',
    'release_plan',
    'is lost',
    'sees no news',
    'place_group',
    'change_group',
    'revision 2',
    'NoValidHost',
    'planner-2  is ready',
)


def test_groups_are_planned_created_changed_and_released(everywhere):
    runs = SimulationRuns()
    verdicts = [runs.run(seed, trace=True) for seed in range(12)]
    lines = [line for verdict in verdicts for line in verdict.trace]
    assert sum(verdict.planned for verdict in verdicts) > 15
    assert [event for event in HAPPENS if not any(event in line for line in lines)] == []


@pytest.mark.parametrize(
    ('undo', 'what', 'first'),
    [
        (broken_groups.a_plan_may_lack_members, 'G1: ', 2),
        (broken_groups.whoever_asks_gets_a_place, 'G2: ', 37),
        (broken_groups.a_place_keeps_its_id, 'G2: ', 0),
        (broken_groups.plans_are_stored_beside_others, 'G5: ', 6),
        (broken_groups.no_place_comes_back, 'G4: ', 0),
        (broken_groups.repeats_are_told_what_was_planned_last, 'G5: ', 3),
        (broken_groups.who_stands_counts_for_no_policy, 'G6: ', 63),
    ],
)
def test_a_broken_rule_of_groups_is_found(undo, what, first, everywhere, monkeypatch):
    undo(monkeypatch)
    assert finds(what, first)


def test_a_plan_that_leaves_its_places_behind_is_found(everywhere):
    assert finds('G4: ', first=13, make_stores=broken_stores.replacing(broken_groups.ForgetsPlaces))


@pytest.mark.slow
def test_a_change_that_gives_back_what_a_create_has_would_be_found_again(everywhere, monkeypatch):
    undone.a_change_gives_back_what_a_create_has(monkeypatch)
    assert finds('G5: ', first=234, seeds=3000)


@pytest.mark.slow
def test_a_guest_in_a_place_that_a_restore_made_free_would_be_found_again(everywhere, monkeypatch):
    monkeypatch.setitem(plan.FAULT_KINDS, 'restore', (1.0, 1))
    undone.a_free_place_is_confirmed_by_a_guest(monkeypatch)
    assert finds('P2: ', first=40)


# -- the judge of policies, which shares no code with those who place ----------------------
def broken(policies, *where, **how):
    """Lines about one web server for each of these (host, rack)."""
    body = a_description(a_member('web', 3), a_member('db'), policies=policies)
    units = [PlacedUnit('web', f'guest-{n}', *at) for n, at in enumerate(where)]
    return list(broken_policies(a_plan_request(body).group, units, **how))


A, B, C = ('cmp-1', 'rack1'), ('cmp-2', 'rack1'), ('cmp-3', 'rack2')


@pytest.mark.parametrize(
    ('policy', 'good', 'bad'),
    [
        ({'policy': 'anti-affinity'}, [A, B, C], [A, A]),
        ({'policy': 'anti-affinity', 'max_per_domain': 2}, [A, A, B], [A, A, A]),
        ({'policy': 'anti-affinity', 'level': 'rack'}, [A, C], [A, B]),
        ({'policy': 'anti-affinity', 'of': 'web'}, [A, B], [B, B]),
        ({'policy': 'affinity'}, [A, A], [A, B]),
        ({'policy': 'affinity', 'level': 'rack', 'of': 'web'}, [A, B], [B, C]),
        ({'policy': 'spread', 'max_per_domain': 2}, [A, A, C], [C, C, C]),
    ],
)
def test_a_hard_policy_that_does_not_hold_is_told(policy, good, bad):
    assert broken([policy], *good) == []
    (line,) = broken([policy], *bad)
    assert line.startswith(policy['policy'])
    assert broken([{**policy, 'soft': 1.0}], *bad) == []
    assert broken([{**policy, 'of': 'db'}], *bad) == []


@pytest.mark.parametrize(('where', 'is_good'), [(A, True), (C, True), (('cmp-4', 'rack3'), False)])
def test_who_joins_a_guest_that_is_on_its_way_meets_one_of_its_ends(where, is_good):
    body = a_description(a_member('web', 3), policies=[{'policy': 'affinity', 'level': 'rack'}])
    group = a_plan_request(body).group
    joins = PlacedUnit('web', 'guest-2', *where)
    units = [PlacedUnit('web', 'guest-1', *A), PlacedUnit('web', 'guest-1', *C), joins]
    assert (list(broken_policies(group, units, affinity=False, joined=[joins])) == []) is is_good
    assert list(broken_policies(group, units, affinity=False)) == []
