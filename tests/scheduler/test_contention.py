# SPDX-License-Identifier: Apache-2.0
"""Who loses races picks among more of the best, and comes back to the best one."""

import functools
import random

from devel.doubles import ManualClock
from gantt.core.messages.request import CancelClaims
from gantt.core.records import decision_codec
from gantt.core.records.decision import Outcome
from gantt.scheduler.request import planner
from gantt.scheduler.request.planner import (
    FEED_READ_FACTOR,
    SPREAD_GROWTH,
    SPREAD_HALF_LIFE_MEMBERS,
    SPREAD_HALF_LIFE_SECONDS,
    SPREAD_MAX,
    Contention,
)
from tests.world import World, a_group, a_request, hosts_of, sqlite_store


def test_without_lost_races_the_best_one_is_taken():
    seen = Contention(ManualClock())
    for _ in range(100):
        seen.note(placed=150, lost=0)
    assert (seen.spread, seen.haste) == (1, 1)


def test_each_batch_that_loses_widens_the_choice_up_to_a_bound():
    seen = Contention(ManualClock())
    spreads = []
    for lost in (1, 1, 7, 1, 100):
        seen.note(placed=0, lost=lost)
        spreads.append(seen.spread)
    assert spreads == [SPREAD_GROWTH, SPREAD_GROWTH**2, SPREAD_GROWTH**3, SPREAD_MAX, SPREAD_MAX]
    assert seen.haste == FEED_READ_FACTOR


def test_what_is_placed_narrows_it_again():
    seen = Contention(ManualClock())
    seen.note(placed=0, lost=1)
    spreads = []
    for _ in range(3):
        for _ in range(10):
            seen.note(placed=SPREAD_HALF_LIFE_MEMBERS // 10, lost=0)
        spreads.append(round(seen._spread, 6))
    assert spreads == [2.0, 1.0, 1.0]


def test_time_alone_narrows_it_as_well_also_where_nothing_is_placed():
    clock = ManualClock()
    seen = Contention(clock)
    for _ in range(3):
        seen.note(placed=0, lost=1)
    clock.advance(SPREAD_HALF_LIFE_SECONDS)
    assert seen.spread == SPREAD_GROWTH**3 // 2
    seen.note(placed=0, lost=0)
    assert seen.spread == SPREAD_GROWTH**3 // 2, 'time counts once'
    clock.advance(100 * SPREAD_HALF_LIFE_SECONDS)
    assert (seen.spread, seen.haste) == (1, 1)
    seen.note(placed=0, lost=1)
    assert seen.spread == SPREAD_GROWTH


def seen_by(scheduler):
    return scheduler.placing._planner.contention


def test_the_decision_says_among_how_many_it_picked():
    world = World(sqlite_store, hosts=8, feed_seconds=1e9)
    seen_by(world.scheduler).note(placed=0, lost=1)
    answer = world.select(a_request())
    decision = decision_codec.unpack(
        world.store.records.load_decision(answer.decision_id)[0]
    ).decision
    assert (decision.spread, decision.conflicts) == (SPREAD_GROWTH, [])
    assert decision.members[0].selection.host in [s.host for s in decision.members[0].scores]


def test_a_race_for_the_only_host_widens_nothing():
    world = World(hosts=8, feed_seconds=1e9)
    other = world.another_scheduler()
    world.turn()  # both have read the feed for the last time
    asked = [
        world.ask(a_request(ram=30_000, force_hosts=['cmp-3']), by=by)
        for by in (world.scheduler, other)
    ]
    world.turn(times=20)
    outcomes = [world.replies.answers[handle].outcome for handle in asked]
    assert sorted(outcomes) == [Outcome.NO_VALID_HOST, Outcome.PLACED]
    assert world.recorder.counts['gantt_conflicts_total'] > 0
    assert seen_by(world.scheduler).spread == seen_by(other).spread == 1


def test_a_race_for_a_group_widens_nothing():
    world = World(hosts=8, feed_seconds=1e9)
    other = world.another_scheduler()
    world.turn()  # both have read the feed for the last time
    group = a_group()
    asked = [world.ask(a_request(group=group), by=by) for by in (world.scheduler, other)]
    world.turn(times=20)
    assert len({h for a in asked for h in hosts_of(world.replies.answers[a])}) == 2
    assert world.recorder.counts['gantt_conflicts_total'] > 0
    assert seen_by(world.scheduler).spread == seen_by(other).spread == 1


def turnover(schedulers, seconds):
    """(lost, placed) of schedulers that keep 100 hosts at nine tenths; 40 places a second."""
    world = World(hosts=100, stale_after_seconds=1e9)
    handles = [world.ask(a_request(10, ram=2048)) for _ in range(144)]
    world.turn(times=5)
    while len(world.schedulers) < schedulers:
        world.another_scheduler()
    rng = random.Random(7)
    kept_, asked = [], {}
    lost = placed = 0
    for step in range(int(seconds / 0.05)):
        if step == int(seconds / 0.1):  # the first half is for learning
            lost, placed = world.recorder.counts['gantt_conflicts_total'], 0
        for _ in range(2):
            request = a_request(ram=2048)
            handle = world.ask(request, by=rng.choice(world.schedulers))
            kept_.append(handle)
            asked[handle] = request.request_id
            placed += 1
        if kept_[0] in world.replies.answers and len(kept_) > 20:
            for handle in (kept_.pop(0), kept_.pop(0)):
                by = rng.choice(world.schedulers)
                by.cancel(CancelClaims(request_id=asked[handle]))
        world.turn(0.05)
    assert handles[0] in world.replies.answers
    assert all(not lines for lines in world.audit().values())
    return world.recorder.counts['gantt_conflicts_total'] - lost, placed


@functools.cache
def usual_turnover():
    """Of four schedulers, which two tests look at; ask before anything is made otherwise."""
    return turnover(4, seconds=40)


def test_four_schedulers_on_hosts_that_are_nearly_full_lose_few_races():
    lost, placed = usual_turnover()
    assert lost <= 0.05 * placed, 'a tenth of the hosts of the bench, so more meet'


def test_taking_the_best_one_always_loses_ten_times_as_many(monkeypatch):
    lost, placed = usual_turnover()
    monkeypatch.setattr(planner, 'SPREAD_MAX', 1)
    always, as_many = turnover(4, seconds=40)
    assert as_many == placed
    assert always >= 10 * max(1, lost)


def test_one_scheduler_loses_none():
    assert turnover(1, seconds=10)[0] == 0
