# SPDX-License-Identifier: Apache-2.0
"""Words about claims, in every state: table-driven from the transitions."""

import pytest

from gantt import exceptions
from gantt.core.claims.claim import EXPIRING_LIFECYCLES, LIVE_STATES, Event, State, next_state
from gantt.core.messages.request import Lifecycle
from tests.builders import (
    CLEAN,
    a_draft,
    a_host,
    claimed,
    live,
    new_uuid,
    report_outcome,
    state_of,
)


def a_claim_in(state, store, host, lifecycle='host'):
    """A claim of one core that got into a state in the way that claims do."""
    lease = -1 if state is State.EXPIRED else 120
    claim = claimed(store, a_draft().leased(lease).taking(host, lifecycle=lifecycle))[0]
    match state:
        case State.CONFIRMED:
            host.confirm(claim)
        case State.RELEASED:
            store.claims.force_release(claim.id, 'test')
        case State.EXPIRED:
            store.claims.sweep(10)
        case State.REFUSED:
            host.refuse(claim)
    assert state_of(store, claim) == state
    return claim


def a_word(event, store, host, claim):
    """Say it; the fate of the claim."""
    match event:
        case Event.CONFIRM:
            return host.confirm(claim)[0].outcome
        case Event.REFUSE:
            return host.refuse(claim, reason='no room here')[0].outcome
        case Event.RELEASE:
            return host.release(claim)[0].outcome
        case Event.FORCE:
            return store.claims.force_release(claim.id, 'by hand').outcomes[0].outcome
        case Event.CANCEL:
            outcomes = store.requests.cancel_request(claim.request_id, 'not needed').outcomes
            return outcomes[0].outcome if outcomes else 'gone'
        case Event.EXPIRE:
            outcomes = store.claims.sweep(10).outcomes
            return outcomes[0].outcome if outcomes else 'kept'
        case Event.SEEN_RUNNING:
            return host.report([claim]).outcome
        case Event.SEEN_ABSENT:
            return host.report().outcome
        case Event.RETURN:
            with pytest.raises(exceptions.Refused):
                store.requests.return_request(claim.request_id)
            return 'kept'
    raise AssertionError(event)


@pytest.mark.parametrize('event', list(Event), ids=lambda e: e.value)
@pytest.mark.parametrize('state', list(State), ids=lambda s: s.value)
def test_every_word_in_every_state_does_what_the_table_says(store, host, state, event):
    claim = a_claim_in(state, store, host)
    expected = next_state(state, event)
    if event is Event.EXPIRE:
        expected = state  # its lease has not run out
    outcome = a_word(event, store, host, claim)
    assert state_of(store, claim) == expected
    adopted = event is Event.SEEN_RUNNING and state not in LIVE_STATES
    mine = int(expected in LIVE_STATES or adopted)
    assert host.row.used == ({'VCPU': mine} if mine else {})
    if event in (Event.CONFIRM, Event.REFUSE, Event.RELEASE, Event.FORCE):
        changed = expected is not state or (event is Event.CONFIRM and state in LIVE_STATES)
        assert outcome == ('gone' if state not in LIVE_STATES else 'ok' if changed else 'kept')
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('event', [Event.RELEASE, Event.REFUSE, Event.SEEN_ABSENT])
@pytest.mark.parametrize('lifecycle', ['api', 'plan', 'hold'])
def test_a_host_ends_only_claims_of_its_own_lifecycle(store, host, lifecycle, event):
    claim = claimed(store, a_draft().taking(host, lifecycle=lifecycle))[0]
    if event is not Event.REFUSE and lifecycle == 'api':
        host.confirm(claim)
    before = state_of(store, claim)
    a_word(event, store, host, claim)
    assert state_of(store, claim) == before
    assert host.row.used == {'VCPU': 1}


@pytest.mark.parametrize('lifecycle', list(Lifecycle), ids=lambda lifecycle: lifecycle.value)
def test_the_sweeper_ends_what_has_a_lease(store, host, lifecycle):
    claim = claimed(store, a_draft().leased(-1).taking(host, lifecycle=lifecycle.value))[0]
    result = store.claims.sweep(10)
    ended = lifecycle in EXPIRING_LIFECYCLES
    assert [f.claim_id for f in result.outcomes] == ([claim.id] if ended else [])
    assert state_of(store, claim) == ('expired' if ended else 'reserved')
    assert host.row.used == ({} if ended else {'VCPU': 1})


# -- confirm ------------------------------------------------------------------------------
def test_a_confirm_keeps_the_lease_from_mattering(store, host):
    claim = claimed(store, a_draft().leased(-1).taking(host))[0]
    assert host.confirm(claim)[0].outcome == 'ok'
    assert store.claims.sweep(10).outcomes == []
    assert state_of(store, claim) == 'confirmed'


def test_a_confirm_after_the_sweep_is_told_that_it_is_gone(store, host):
    claim = claimed(store, a_draft().leased(-1).taking(host))[0]
    store.claims.sweep(10)
    outcome = host.confirm(claim)[0]
    assert (outcome.outcome, outcome.state) == ('gone', 'expired')


def test_a_repeated_confirm_is_fine(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    at = host.stamp()
    assert [host.confirm(claim, sequence=at)[0].outcome for _ in range(3)] == ['ok'] * 3
    assert host.row.used == {'VCPU': 1}


def test_a_late_confirm_of_the_current_epoch_counts(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    at = host.stamp()
    host.report(pending=[claim])
    assert host.confirm(claim, sequence=at)[0].outcome == 'ok'
    assert state_of(store, claim) == 'confirmed'


def test_a_late_refuse_of_the_current_epoch_counts(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    at = host.stamp()
    host.report()
    assert host.refuse(claim, sequence=at)[0].outcome == 'ok'
    assert host.row.used == {}


def test_a_late_release_waits_for_the_next_report(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    host.confirm(claim)
    at = host.stamp()
    host.report([claim])
    outcome = host.release(claim, sequence=at)[0]
    assert (outcome.outcome, outcome.state) == ('kept', 'confirmed')
    host.report()
    assert state_of(store, claim) == 'released'


def test_a_repeated_release_gives_back_once(store, host):
    first, second = claimed(store, a_draft().taking(host, vcpu=3).taking(host, vcpu=4))
    host.confirm(first, second)
    at = host.stamp()
    assert host.release(first, sequence=at)[0].outcome == 'ok'
    assert host.release(first, sequence=at)[0].outcome == 'gone'
    assert host.release(first)[0].outcome == 'gone'
    assert host.row.used == {'VCPU': 4}


def test_words_about_several_claims_are_answered_one_by_one(store, host):
    first, second = claimed(store, a_draft().taking(host).taking(host))
    store.claims.force_release(second.id, '')
    strange = new_uuid()
    outcomes = host.confirm(first, second, strange)
    assert [(f.claim_id, f.outcome) for f in outcomes] == [
        (first.id, 'ok'),
        (second.id, 'gone'),
        (strange, 'gone'),
    ]


@pytest.mark.parametrize('word', ['confirm', 'refuse', 'release'])
def test_a_word_about_another_hosts_claim_is_gone(store, host, word):
    other = a_host('cmp-2').on(store)
    claim = claimed(store, a_draft().taking(host))[0]
    assert getattr(other, word)(claim)[0].outcome == 'gone'
    assert state_of(store, claim) == 'reserved'


# -- epochs --------------------------------------------------------------------------------
@pytest.mark.parametrize('word', ['confirm', 'refuse', 'release'])
def test_an_old_epoch_is_always_gone(store, host, word):
    claim = claimed(store, a_draft().taking(host))[0]
    old = host.epoch
    host.register()
    assert getattr(host, word)(claim, epoch=old, sequence=99)[0].outcome == 'gone'
    assert state_of(store, claim) == 'reserved'
    assert host.row.sequence == 0


@pytest.mark.parametrize('word', ['confirm', 'refuse', 'release'])
def test_an_epoch_that_was_never_handed_out_is_gone_too(store, host, word):
    claim = claimed(store, a_draft().taking(host))[0]
    assert getattr(host, word)(claim, epoch=host.epoch + 7)[0].outcome == 'gone'
    assert state_of(store, claim) == 'reserved'


def test_a_host_that_nobody_knows_is_told_gone(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    words = host.words(claim, name='nobody')
    assert [f.outcome for f in store.claims.confirm_claims(words).outcomes] == ['gone']
    assert state_of(store, claim) == 'reserved'


def test_the_new_epoch_may_confirm_what_the_old_one_was_promised(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    host.register()
    assert host.confirm(claim)[0].outcome == 'ok'


def test_an_accepted_word_advances_the_sequence_and_a_late_one_does_not(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    host.confirm(claim, sequence=50)
    assert host.row.sequence == 50
    host.confirm(claim, sequence=20)
    assert host.row.sequence == 50


def test_a_word_brings_its_host_as_it_became(store, host):
    claim = claimed(store, a_draft().taking(host, vcpu=3))[0]
    before = host.row
    result = store.claims.refuse_claims(host.words(claim, reason='no such cores'))
    change = result.hosts[0]
    assert change.row == host.row
    assert change.row.version > before.version
    assert change.row.generation > before.generation
    assert (change.row.used, change.placed) == ({}, [])
    assert store.claims.load_claim(claim.id).reason == 'no such cores'


# -- the sweeper ------------------------------------------------------------------------------
def test_the_sweeper_takes_the_oldest_first_and_no_more_than_its_limit(store, host):
    late = [claimed(store, a_draft().leased(-x).taking(host))[0] for x in (10, 30, 20)]
    fine = claimed(store, a_draft().leased(100).taking(host))[0]
    assert [f.claim_id for f in store.claims.sweep(2).outcomes] == [late[1].id, late[2].id]
    assert [f.claim_id for f in store.claims.sweep(2).outcomes] == [late[0].id]
    assert store.claims.sweep(2).outcomes == []
    assert state_of(store, fine) == 'reserved'
    assert host.row.used == {'VCPU': 1}


def test_an_expired_claim_makes_room_again(store, host):
    claimed(store, a_draft().leased(-1).taking(host, vcpu=8))
    assert report_outcome(store, a_draft().taking(host)).outcome == 'dropped'
    result = store.claims.sweep(10)
    assert result.hosts[0].row.used == {}
    assert report_outcome(store, a_draft().taking(host)).outcome == 'placed'


# -- operators ---------------------------------------------------------------------------------
def test_a_forced_release_is_kept_as_a_tombstone_with_its_reason(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    host.confirm(claim)
    result = store.claims.force_release(claim.id, 'guest is gone for good')
    assert (result.outcomes[0].outcome, result.hosts[0].row.used) == ('ok', {})
    tombstone = store.claims.load_claim(claim.id)
    assert (tombstone.state, tombstone.reason) == ('released', 'guest is gone for good')


def test_an_operator_ends_claims_of_every_lifecycle(store, host):
    claim = claimed(store, a_draft().taking(host, lifecycle='api'))[0]
    assert store.claims.force_release(claim.id, '').outcomes[0].outcome == 'ok'
    assert host.row.used == {}


def test_a_claim_that_nobody_knows_is_gone(store):
    assert store.claims.force_release(new_uuid(), '').outcomes[0].outcome == 'gone'
    assert store.claims.load_claim(new_uuid()) is None


# -- lists -----------------------------------------------------------------------------------
def test_claims_are_listed_by_every_column(store, host):
    other = a_host('cmp-2').on(store)
    first, second = claimed(store, a_draft().taking(host).taking(other))
    third = claimed(store, a_draft().taking(host))[0]
    host.confirm(third)

    def ids(**where):
        return {claim.id for claim in store.claims.list_claims(**where)}

    assert ids() == {first.id, second.id, third.id}
    assert ids(host='cmp-1') == {first.id, third.id}
    assert ids(state='confirmed') == {third.id}
    assert ids(consumer=second.consumer) == {second.id}
    assert ids(request_id=first.request_id) == {first.id, second.id}
    assert ids(host='cmp-1', state='reserved') == {first.id}
    assert ids(host='cmp-9') == set()


def test_claims_come_in_pages(store, host):
    draft = a_draft()
    for _ in range(5):
        draft = draft.taking(host)
    expected = sorted(claim.id for claim in claimed(store, draft))
    seen = []
    while page := store.claims.list_claims(limit=2, marker=seen[-1] if seen else None):
        assert len(page) <= 2
        seen += [claim.id for claim in page]
    assert seen == expected


def test_tombstones_are_listed_with_the_rest(store, host):
    claim = a_claim_in(State.RELEASED, store, host)
    assert [listed.id for listed in store.claims.list_claims(state='released')] == [claim.id]
    assert live(store) == []
