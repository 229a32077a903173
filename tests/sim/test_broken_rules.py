# SPDX-License-Identifier: Apache-2.0
"""Break a rule, and a few seeds must show it: else the simulator proves nothing.

Each rule is broken in the real code: by a store with one method done wrongly,
or by a row of the transition table or a guard replaced for the test.
"""

import random

import msgspec
import pytest

from devel.memory_store import commit
from devel.sim import plan
from devel.sim.world import SimulationRuns
from gantt.compute.agent import running_guests
from gantt.compute.agent.journal import PENDING, Journal
from gantt.compute.agent.session import Session
from gantt.core.claims import claim, reconcile
from gantt.core.claims.acceptance import Acceptance
from gantt.core.claims.claim import Event, State
from tests.sim import broken, undone

#: One of so many seeds must find it; what was found by chance needs more.
SEEDS, MANY = 200, 3000


def finds(promise, seeds=SEEDS, first=0, make_stores=None):
    """Whether some seed shows a violation of this kind.

    :param first: where to begin, the seed that found it last: those below it are tried last
    """
    runs = SimulationRuns(make_stores)
    return any(
        promise in violation
        for seed in (*range(first, seeds), *range(first))
        for violation in runs.run(seed).violations
    )


@pytest.mark.parametrize(
    ('store', 'what', 'first'),
    [
        (broken.ConfirmsInAnyEpoch, 'fence: ', 74),
        (broken.SweepsWhatIsConfirmed, 'P2: ', 0),
        (broken.NeverSweeps, 'P3: ', 0),
        (broken.ForgetsWhatWasPlaced, 'P4: ', 0),
        (broken.GivesUpWhatIsPlaced, 'P2: ', 5),
        (broken.ForgetsToTell, 'view: ', 2),
        (broken.KnowsNoEpochs, 'P3: ', 0),
        (broken.ReleasesAgain, 'audit, ', 3),
    ],
)
def test_a_broken_store_is_found(store, what, first):
    assert finds(what, first=first, make_stores=broken.replacing(store))


def test_absence_that_frees_a_reserved_claim_is_found(monkeypatch):
    monkeypatch.setitem(claim.TRANSITIONS, (State.RESERVED, Event.SEEN_ABSENT), State.RELEASED)
    assert finds('P2: absence')


def test_a_commit_without_its_capacity_guard_is_found(monkeypatch):
    def everything(tables, going, rivals):
        return {draft.id: Acceptance(list(range(len(draft.claims)))) for draft in going}

    monkeypatch.setattr(commit, '_accept_drafts', everything)
    assert finds('P1: ', first=18)


def test_a_commit_that_does_not_look_at_group_generations_is_found(monkeypatch):
    monkeypatch.setattr(commit, 'requests_with_changed_group', lambda batch, ended, rules: set())
    assert finds('group: ', first=28)


def test_two_claims_of_one_consumer_are_found(monkeypatch):
    monkeypatch.setattr(commit, 'resolve_rivals', lambda *_: ({}, {}))
    assert finds('audit, doubled: ', first=1)


def test_reports_in_the_order_of_arrival_are_found(monkeypatch):
    def report_outcome(row, report):
        return reconcile.APPLIED if report.epoch == row.epoch else reconcile.GONE

    monkeypatch.setattr(reconcile, 'report_outcome', report_outcome)
    assert finds('P7: ')


def test_a_host_that_does_not_ask_before_it_starts_a_guest_is_found(monkeypatch):
    monkeypatch.setattr(Session, 'confirm', lambda self, stamp, claim_id: 'ok')
    assert finds('never confirmed')


def test_reports_without_what_is_pending_are_found(monkeypatch):
    """The variant that looks complete: it fails between a confirmation and the start."""
    take = running_guests.take_inventory

    def without(driver, journal):
        seen = take(driver, journal)
        return seen if seen.pending is None else running_guests.GuestInventory(seen.running, [])

    monkeypatch.setattr(running_guests, 'take_inventory', without)
    assert finds('its claim is released')


def test_a_confirmation_that_revives_an_expired_claim_is_found(monkeypatch):
    monkeypatch.setitem(claim.TRANSITIONS, (State.EXPIRED, Event.CONFIRM), State.CONFIRMED)
    # Rare: the place has to be sold again before the late question comes.
    assert finds('audit, over_commit: ', first=137)


def test_a_host_that_forgets_what_it_built_is_found(monkeypatch):
    monkeypatch.setattr(Journal, 'get', _only_pending)
    monkeypatch.setattr(Journal, 'add', _over_again)
    assert finds('it runs already')


def _only_pending(journal, claim_id):
    entry = journal._entries.get(claim_id)
    return entry if entry is not None and entry.state == PENDING else None


def _over_again(journal, entry):
    journal._entries.pop(entry.claim_id, None)
    journal._put(entry)
    return True


def test_a_late_registration_that_fences_the_living_is_found(monkeypatch):
    """Where agents are killed all the time: of usual worlds one in three thousand shows it."""
    random_plan = plan.random_plan

    def killed_often(seed):
        rng = random.Random(f'killed often {seed}')
        faults = [
            plan.SimFault(
                at=at,
                what='kill_compute',
                whom=rng.randrange(1000),
                seconds=rng.uniform(0.1, 2.0),
                when=rng.choice(('now', 'before', 'after')),
            )
            for at in range(1, 56)
        ]
        usual = random_plan(seed)
        return msgspec.structs.replace(
            usual,
            zones=[msgspec.structs.replace(usual.zones[0], hosts=4)],
            stories=14,
            rates=plan.Rates(late=0.3),
            faults=faults,
        )

    monkeypatch.setattr(plan, 'random_plan', killed_often)
    assert not finds('', seeds=20)
    undone.a_late_registration_of_the_dead_counts(monkeypatch)
    assert finds('P3: ', MANY, first=35)


@pytest.mark.slow
@pytest.mark.parametrize(
    'undo',
    [
        undone.a_repeat_takes_its_own_place_away,
        undone.a_batch_is_planned_beside_who_gives_way,
        undone.members_are_placed_beside_where_they_were,
        undone.late_news_takes_a_claim_away,
        undone.recovery_gives_back_what_is_being_built,
        undone.a_late_build_starts_what_is_being_stopped,
    ],
)
def test_what_was_found_once_would_be_found_again(undo, monkeypatch):
    undo(monkeypatch)
    assert finds('', MANY)
