# SPDX-License-Identifier: Apache-2.0
"""The state machine of a request; whether it may go on, by the row that all schedulers share."""

import pathlib
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantt.core.claims.commit import ClaimColumns, CommitStatus, RequestDraft
from gantt.core.claims.request_state import (
    TRANSITIONS,
    Attempt,
    Effect,
    RequestEvent,
    RequestState,
    check_request_row,
    conflict_line,
    seed_of_try,
    takes_over,
    transition,
)

ROOT = pathlib.Path(__file__).parents[2]
NOW = 1000.0
ROW = {
    'fingerprint': 'f',
    'state': 'open',
    'owner': 'me',
    'attempt': 2,
    'deadline': NOW + 5.0,
    'answer': None,
}
DRAFT = RequestDraft(id='r', fingerprint='f', owner='me', claims=ClaimColumns())


def judged(row=None, **draft):
    request_row = None if row is None else SimpleNamespace(**ROW | row)
    return check_request_row(request_row, msgspec.structs.replace(DRAFT, **draft), NOW)


@pytest.mark.parametrize(
    ('row', 'draft', 'fate'),
    [
        (None, {}, CommitStatus.LOST),
        ({'state': 'cancelled', 'fingerprint': 'other'}, {}, CommitStatus.CANCELLED),
        ({'fingerprint': 'other'}, {}, CommitStatus.REUSED),
        ({'state': 'placed', 'answer': b'x'}, {}, CommitStatus.REPEAT),
        ({}, {'continues': True, 'attempt': 2}, None),
        ({}, {'continues': True, 'attempt': 1}, CommitStatus.LOST),
        ({'owner': 'other'}, {'continues': True, 'attempt': 2}, CommitStatus.LOST),
        ({'owner': 'other'}, {}, CommitStatus.OPEN),
        ({'owner': 'other', 'deadline': NOW}, {}, CommitStatus.OVERDUE),
        ({'owner': 'other', 'deadline': NOW}, {'takes_over': 2}, None),
        ({'owner': 'other', 'deadline': NOW}, {'takes_over': 1}, CommitStatus.OVERDUE),
        ({}, {}, CommitStatus.OVERDUE),
        ({}, {'takes_over': 2}, None),
        ({}, {'takes_over': 1}, None),
        ({'owner': 'other'}, {'takes_over': 2}, CommitStatus.OPEN),
    ],
)
def test_a_request_goes_on_or_is_told_why_not(row, draft, fate):
    judgement = judged(row, **draft)
    assert (judgement if judgement is None else judgement.outcome) == fate
    if fate is CommitStatus.REPEAT:
        assert judgement.answer == b'x'
    if fate is CommitStatus.OPEN:
        assert judgement.wait_seconds == 5.0


def test_only_an_overdue_attempt_is_replaced():
    row = SimpleNamespace(**ROW)
    assert takes_over(row, msgspec.structs.replace(DRAFT, takes_over=2))
    assert not takes_over(row, msgspec.structs.replace(DRAFT, takes_over=1))
    assert not takes_over(None, msgspec.structs.replace(DRAFT, takes_over=2))
    assert not takes_over(row, msgspec.structs.replace(DRAFT, takes_over=2, continues=True))


# -- the table ----------------------------------------------------------------
GOES_ON = {Effect.PLAN_AGAIN, Effect.BACK_OFF, Effect.WAIT}
TRIES_MAX = 5


def test_every_event_is_decided_in_every_state():
    assert set(TRANSITIONS) == {(state, event) for state in RequestState for event in RequestEvent}
    assert {fate.value for fate in CommitStatus} <= {event.value for event in RequestEvent}


def test_the_glossary_has_the_states_of_the_code():
    lines = (ROOT / 'doc/source/reference/glossary.rst').read_text().splitlines()
    start = lines.index('   request state')
    entry = ' '.join(map(str.strip, lines[start + 1 : lines.index('', start)]))
    assert ', '.join(state.value for state in RequestState) in entry


@pytest.mark.parametrize(('state', 'event'), sorted(TRANSITIONS))
def test_an_open_request_is_either_answered_or_goes_on(state, event):
    after, effects = TRANSITIONS[state, event]
    if state is RequestState.ANSWERED:
        assert (after, effects) == (RequestState.ANSWERED, ())
        return
    assert len(set(effects)) == len(effects)
    assert list(effects) == [effect for effect in Effect if effect in effects], 'in their order'
    assert (after is RequestState.ANSWERED) == (Effect.ANSWER in effects)
    assert (after is not RequestState.ANSWERED) == (len(GOES_ON & set(effects)) == 1)
    assert Effect.RELEASE not in effects or state is RequestState.OPENED


def test_a_large_request_goes_in_several_commits_and_loses_nothing_by_that():
    attempt = Attempt(number=7, todo=range(4))
    attempt, effects = transition(attempt, RequestEvent.PARTIAL, made={0: 'a', 1: 'b'})
    assert (attempt.continues, attempt.tries, effects) == (True, 1, (Effect.PLAN_AGAIN,))
    attempt, effects = transition(
        attempt, RequestEvent.PARTIAL, made={3: 'd'}, conflict='partial: cmp-9'
    )
    assert attempt.done == {0: 'a', 1: 'b', 3: 'd'}
    assert (attempt.todo, attempt.tries) == ([2], 2)
    assert attempt.conflicts == ('partial: cmp-9',)
    again, _ = transition(attempt, RequestEvent.DROPPED, conflict='dropped: cmp-1')
    assert again.conflicts == ('partial: cmp-9', 'dropped: cmp-1')
    attempt, effects = transition(attempt, RequestEvent.LOST)
    assert (attempt.state, list(attempt.todo), attempt.done) == (
        RequestState.WAITING,
        [0, 1, 2, 3],
        {},
    )
    assert attempt.tries == 2


def test_a_lost_race_names_each_host_once_and_the_first_reason():
    assert conflict_line('partial', ['cmp-9', 'cmp-9'], '') == 'partial: cmp-9'
    assert conflict_line('dropped', ['b', 'a'], 'a: too full') == 'dropped: a, b; a: too full'
    assert conflict_line('locked', (), 'cmp-1 is locked') == 'locked: cmp-1 is locked'
    assert conflict_line('group_changed', (), '') == 'group_changed'


def test_a_row_that_is_opened_first_is_ours_by_the_number_it_was_opened_for():
    attempt, _ = transition(Attempt(number=7, todo=[0]), RequestEvent.OVERDUE, number=41)
    attempt, effects = transition(attempt, RequestEvent.OPENED, number=42)
    assert (attempt.continues, attempt.number, attempt.takes_over) == (True, 42, None)
    assert effects == (Effect.PLAN_AGAIN,)
    attempt, effects = transition(attempt, RequestEvent.OFFER_GONE)
    assert (attempt.continues, attempt.tries, effects) == (True, 1, (Effect.PLAN_AGAIN,))
    _, effects = transition(attempt, RequestEvent.OUT_OF_TRIES)
    assert effects == (Effect.RELEASE, Effect.ANSWER), 'no later request waits for its row'


def test_who_takes_over_counts_on_and_a_commit_of_its_own_ends_that():
    attempt, _ = transition(Attempt(number=7, todo=[0, 1]), RequestEvent.OVERDUE, number=41)
    assert (attempt.number, attempt.takes_over, attempt.tries) == (42, 41, 1)
    assert attempt.may_hold_claims
    attempt, _ = transition(attempt, RequestEvent.PARTIAL, made={0: 'a'})
    assert (attempt.number, attempt.takes_over) == (42, None)


def test_only_a_lock_is_remembered_as_a_lock():
    attempt, _ = transition(
        Attempt(number=1, todo=[0]), RequestEvent.LOCKED, reason='cmp-1 is locked'
    )
    assert attempt.locked == 'cmp-1 is locked'
    assert transition(attempt, RequestEvent.OPEN)[0].locked == ''


def test_the_seed_is_that_of_the_try():
    assert seed_of_try('r', 1) == seed_of_try('r', 1)
    assert len({seed_of_try('r', tries) for tries in range(50)}) == 50


@given(st.lists(st.tuples(st.sampled_from(RequestEvent), st.integers(0, 3), st.integers(0, 3))))
def test_whatever_happens_there_is_one_answer_and_races_are_counted_once(happens):
    attempt, answers, lost = Attempt(number=1, todo=range(6)), 0, 0
    for event, finished, missed in [*happens, (RequestEvent.OUT_OF_TIME, 0, 0)]:
        if len(attempt.conflicts) == TRIES_MAX:
            event = RequestEvent.OUT_OF_TRIES  # as the scheduler does
        is_race = event in (RequestEvent.PARTIAL, RequestEvent.DROPPED, RequestEvent.GROUP_CHANGED)
        before = attempt
        finished_members = dict.fromkeys(
            attempt.todo[:finished] if event is RequestEvent.PARTIAL else ()
        )
        attempt, effects = transition(
            before, event, made=finished_members, conflict='cmp-1' * missed, number=before.number
        )
        is_open = before.state is not RequestState.ANSWERED
        lost += is_open and is_race and missed > 0
        assert len(attempt.conflicts) == lost <= TRIES_MAX
        assert attempt.conflicts[: len(before.conflicts)] == before.conflicts
        assert sorted([*attempt.done, *attempt.todo]) == list(range(6))
        assert attempt.number >= before.number
        assert (attempt.takes_over is not None) == (
            attempt.state is RequestState.TAKING_OVER
            or (attempt.state is RequestState.ANSWERED and before.takes_over is not None)
        )
        answers += effects.count(Effect.ANSWER)
        if attempt.state is RequestState.ANSWERED:
            assert not GOES_ON & set(effects)
    assert answers == 1
