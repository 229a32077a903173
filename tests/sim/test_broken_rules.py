# SPDX-License-Identifier: Apache-2.0
"""Break a rule, and a few seeds must show it: else the simulator proves nothing.

Each rule is broken in the real code: by a store with one method done wrongly,
or by a row of the transition table or a guard replaced for the test.
"""

import pytest

from gantt.compute.words import Words
from gantt.core import claim, reconcile
from gantt.core.claim import Event, State
from gantt.db import memory_commit
from gantt.sim import world
from gantt.sim.loop import Stacks
from tests.sim import broken, undone

#: One of so many seeds must find it; what was found by chance needs more.
SEEDS, MANY = 200, 3000


def finds(what, seeds=SEEDS, **how):
    """Whether some seed shows a violation of this kind."""
    stacks = Stacks()
    return any(
        what in violation
        for seed in range(seeds)
        for violation in world.run(seed, stacks=stacks, **how).violations
    )


@pytest.mark.parametrize(
    ('store', 'what'),
    [
        (broken.ConfirmsInAnyEpoch, 'fence: '),
        (broken.SweepsWhatIsConfirmed, 'P2: '),
        (broken.NeverSweeps, 'P3: '),
        (broken.ForgetsWhatWasPlaced, 'P4: '),
        (broken.GivesUpWhatIsPlaced, 'P2: '),
        (broken.ForgetsToTell, 'view: '),
    ],
)
def test_a_broken_store_is_found(store, what):
    assert finds(what, make_store=store)


def test_absence_that_frees_a_reserved_claim_is_found(monkeypatch):
    monkeypatch.setitem(
        claim.TRANSITIONS, (State.RESERVED, Event.SEEN_ABSENT), State.RELEASED
    )  # fmt: skip
    assert finds('P2: absence')


def test_a_commit_without_its_capacity_guard_is_found(monkeypatch):
    def everything(tables, going):
        return {draft.id: list(range(len(draft.claims))) for draft in going}

    monkeypatch.setattr(memory_commit, '_accept', everything)
    assert finds('P1: ')


def test_a_commit_that_does_not_look_at_group_generations_is_found(monkeypatch):
    judge = memory_commit._judge_groups
    monkeypatch.setattr(
        memory_commit, '_judge_groups', lambda tables, going, fates: judge(tables, going, {})
    )
    assert finds('group: ')


def test_two_claims_of_one_consumer_are_found(monkeypatch):
    monkeypatch.setattr(memory_commit, 'judge_rivals', lambda live, requests: ({}, {}))
    assert finds('audit, doubled: ')


def test_reports_in_the_order_of_arrival_are_found(monkeypatch):
    def judge(row, report):
        return reconcile.APPLIED if report.epoch == row.epoch else reconcile.GONE

    monkeypatch.setattr(reconcile, 'judge', judge)
    assert finds('P7: ')


def test_a_host_that_does_not_ask_before_it_starts_a_guest_is_found(monkeypatch):
    monkeypatch.setattr(Words, 'confirm', lambda self, stamp, claim_id: 'ok')
    assert finds('never confirmed')


@pytest.mark.slow
@pytest.mark.parametrize('undo', [
    undone.a_repeat_takes_its_own_place_away,
    undone.a_batch_is_planned_beside_who_gives_way,
    undone.members_are_placed_beside_where_they_were,
    undone.late_news_takes_a_claim_away,
    undone.recovery_gives_back_what_is_being_built,
    undone.a_late_build_starts_what_is_being_stopped,
])  # fmt: skip
def test_what_was_found_once_would_be_found_again(undo, monkeypatch):
    undo(monkeypatch)
    assert finds('', MANY)
