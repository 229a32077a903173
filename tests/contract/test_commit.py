# SPDX-License-Identifier: Apache-2.0
"""The group commit, and the life of a request around it."""

import pytest

from gantt.core.claims.commit import CommitStatus
from tests.builders import (
    CLEAN,
    a_draft,
    a_host,
    changed,
    claimed,
    commit,
    generation_of,
    live,
    new_uuid,
    report_outcome,
    state_of,
    uuid_of,
)


# -- room -------------------------------------------------------------------------------
def test_a_placed_request_has_its_claims_its_answer_and_its_usage(store, host):
    draft = a_draft().taking(host, vcpu=2, ram=512).taking(host, vcpu=3)
    result = commit(store, draft)
    assert result.outcomes[0].outcome is CommitStatus.PLACED
    assert result.outcomes[0].accepted == [0, 1]
    stored = store.requests.load_request(draft.id)
    assert (stored.state, stored.attempt, stored.answer) == ('placed', 1, b'answer')
    first, second = sorted(stored.claims, key=lambda claim: claim.member)
    assert (first.state, first.host, first.provider_id) == ('reserved', 'cmp-1', host.id)
    assert first.allocations == {host.id: {'VCPU': 2, 'MEMORY_MB': 512}}
    assert second.consumer == uuid_of('consumer', draft.id, 1)
    assert first.lease_until == pytest.approx(result.now + 120)
    assert host.row.used == {'VCPU': 5, 'MEMORY_MB': 512}
    assert store.claims.audit() == CLEAN


def test_every_touched_host_is_told_one_step_on(store, host):
    before = host.row
    result = commit(store, a_draft().taking(host))
    after = host.row
    assert (after.generation, after.version) == (before.generation + 1, before.version + 1)
    # Whole, or by the version alone.
    assert (result.hosts, result.stepped) in [([after], {}), ([], {host.id: after.version})]


def test_a_host_beside_one_that_refuses_is_told_whole(store, host):
    other = a_host('cmp-2').on(store)
    result = commit(store, a_draft().taking(host), a_draft().taking(other, vcpu=9))
    assert [outcome.outcome for outcome in result.outcomes] == ['placed', 'dropped']
    assert (result.hosts, result.stepped) == ([host.row, other.row], {})


def test_a_refused_host_is_read_back_as_it_is(store, host):
    before = host.row
    result = commit(store, a_draft().taking(host, vcpu=9))
    assert result.outcomes[0].outcome is CommitStatus.DROPPED
    assert result.hosts == [before]
    assert host.row == before


def test_a_claim_that_fits_to_the_last_unit_is_accepted_and_the_next_is_not(store, host):
    assert report_outcome(store, a_draft().taking(host, vcpu=8)).outcome is CommitStatus.PLACED
    assert report_outcome(store, a_draft().taking(host, vcpu=1)).outcome is CommitStatus.DROPPED
    assert host.row.used == {'VCPU': 8}


def test_a_batch_is_accepted_in_the_order_of_arrival(store, host):
    drafts = [a_draft().taking(host, vcpu=x) for x in (5, 4, 3)]
    assert [f.outcome for f in commit(store, *drafts).outcomes] == ['placed', 'dropped', 'placed']
    assert host.row.used == {'VCPU': 8}


def test_foreign_use_takes_room(store, host):
    host.send(host.says().outside(vcpu=6))
    assert report_outcome(store, a_draft().taking(host, vcpu=3)).outcome is CommitStatus.DROPPED
    assert report_outcome(store, a_draft().taking(host, vcpu=2)).outcome is CommitStatus.PLACED


def test_a_class_that_the_host_lacks_has_no_room(store, host):
    assert (
        report_outcome(store, a_draft().taking(host, CUSTOM_LICENSE=1)).outcome
        is CommitStatus.DROPPED
    )


def test_a_custom_class_is_counted_like_any_other(store):
    host = a_host().with_room(vcpu=8, CUSTOM_LICENSE=3).on(store)
    assert (
        report_outcome(store, a_draft().taking(host, vcpu=1, CUSTOM_LICENSE=2)).outcome
        is CommitStatus.PLACED
    )
    assert (
        report_outcome(store, a_draft().taking(host, vcpu=1, CUSTOM_LICENSE=2)).outcome
        is CommitStatus.DROPPED
    )
    assert host.row.used == {'VCPU': 1, 'CUSTOM_LICENSE': 2}
    assert store.claims.audit() == CLEAN


def test_one_class_too_many_takes_nothing_of_the_others(store, host):
    report_outcome(store, a_draft().taking(host, vcpu=1, ram=99_999))
    assert host.row.used == {}


def test_a_refusal_concerns_only_the_request_that_asked(store, host):
    other = a_host('cmp-2').on(store)
    small, large = a_draft().taking(other), a_draft().taking(host, vcpu=9)
    assert [f.outcome for f in commit(store, large, small).outcomes] == ['dropped', 'placed']
    assert store.requests.load_request(large.id) is None


def test_a_claim_on_a_host_that_is_gone_is_refused(store, host):
    store.hosts.remove_host('cmp-1')
    result = commit(store, a_draft().taking(host))
    assert result.outcomes[0].outcome is CommitStatus.DROPPED
    assert result.hosts == []


def test_a_disabled_host_refuses_until_it_is_enabled(store, host):
    store.hosts.disable_host('cmp-1', 'disk swap', 'ops')
    assert report_outcome(store, a_draft().taking(host)).outcome is CommitStatus.DROPPED
    store.hosts.enable_host('cmp-1')
    assert report_outcome(store, a_draft().taking(host)).outcome is CommitStatus.PLACED


def test_a_host_whose_service_is_down_refuses(store, host):
    host.send(host.says().having(disabled='maintenance'))
    assert report_outcome(store, a_draft().taking(host)).outcome is CommitStatus.DROPPED
    host.send(host.says().having(disabled=None))
    assert report_outcome(store, a_draft().taking(host)).outcome is CommitStatus.PLACED


def test_an_over_committed_host_refuses_and_may_shrink(store, host):
    first, second = claimed(store, a_draft().taking(host, vcpu=4).taking(host, vcpu=4))
    host.confirm(first, second)
    host.send(host.says().with_room(vcpu=6).listing([first, second]))
    assert host.row.over_committed
    assert report_outcome(store, a_draft().taking(host, vcpu=0)).outcome is CommitStatus.DROPPED
    assert host.release(first)[0].outcome == 'ok'
    assert host.row.used == {'VCPU': 4}
    assert store.claims.audit() == CLEAN


# -- layouts ---------------------------------------------------------------------------
def test_a_layout_holds_at_the_generation_that_it_was_chosen_at(store, host):
    at = host.row.generation
    layout = {'cells': [{'id': 0, 'pcpus': [2, 3]}]}
    draft = a_draft().taking(host, generation=at, layout=layout)
    assert claimed(store, draft)[0].layout == layout


def test_a_layout_is_void_once_the_host_changed(store, host):
    at = host.row.generation
    assert report_outcome(store, a_draft().taking(host)).outcome is CommitStatus.PLACED
    assert (
        report_outcome(store, a_draft().taking(host, generation=at)).outcome is CommitStatus.DROPPED
    )


def test_a_layout_is_void_once_a_report_changed_a_fact(store, host):
    at = host.row.generation
    host.report()
    assert host.row.generation == at
    host.send(host.says().having(traits=['HW_CPU_X86_AVX2']))
    assert (
        report_outcome(store, a_draft().taking(host, generation=at)).outcome is CommitStatus.DROPPED
    )


def test_layouts_of_one_batch_know_of_each_other(store, host):
    at = host.row.generation
    drafts = [a_draft().taking(host, generation=at) for _ in range(3)]
    assert [f.outcome for f in commit(store, *drafts).outcomes] == ['placed'] * 3


def test_a_registration_voids_layouts(store, host):
    at = host.row.generation
    host.register()
    assert (
        report_outcome(store, a_draft().taking(host, generation=at)).outcome is CommitStatus.DROPPED
    )


# -- repeats -----------------------------------------------------------------------------
def test_a_repeat_of_a_placed_request_gets_the_stored_answer(store, host):
    draft = a_draft().taking(host)
    claimed(store, draft)
    again = report_outcome(store, a_draft(draft.id, owner='worker-2', answer=b'other').taking(host))
    assert (again.outcome, again.answer) == (CommitStatus.REPEAT, b'answer')
    assert len(live(store)) == 1


def test_a_repeat_after_the_lease_gets_the_old_answer_and_no_second_claim(store, host):
    draft = a_draft().taking(host).leased(-1)
    claim = claimed(store, draft)[0]
    store.claims.sweep(10)
    assert report_outcome(store, draft).outcome is CommitStatus.REPEAT
    assert state_of(store, claim) == 'expired'
    assert host.row.used == {}


def test_a_request_id_with_another_body_is_told_so(store, host):
    draft = a_draft().taking(host)
    claimed(store, draft)
    assert report_outcome(store, draft.having(fingerprint='other')).outcome is CommitStatus.REUSED
    assert len(live(store)) == 1


def test_another_body_under_the_id_of_an_open_request_is_told_so(store, host):
    draft = a_draft().taking(host).unfinished()
    report_outcome(store, draft)
    assert (
        report_outcome(store, draft.having(fingerprint='other', owner='x')).outcome
        is CommitStatus.REUSED
    )


def test_a_dropped_request_leaves_nothing_and_may_come_again(store, host):
    draft = a_draft().taking(host, vcpu=9)
    assert report_outcome(store, draft).outcome is CommitStatus.DROPPED
    assert store.requests.load_request(draft.id) is None
    assert report_outcome(store, a_draft(draft.id).taking(host)).outcome is CommitStatus.PLACED


# -- open requests -------------------------------------------------------------------------
def test_a_partial_request_stays_open_and_its_owner_continues_it(store, host):
    other = a_host('cmp-2').on(store)
    draft = a_draft().taking(host).taking(host, vcpu=9)
    outcome = report_outcome(store, draft)
    assert (outcome.outcome, outcome.accepted) == (CommitStatus.PARTIAL, [0])
    assert store.requests.load_request(draft.id).state == 'open'
    rest = draft.continuing(count=1).taking(other)
    assert report_outcome(store, rest).outcome is CommitStatus.PLACED
    stored = store.requests.load_request(draft.id)
    assert (stored.state, stored.answer) == ('placed', b'answer')
    assert sorted(claim.member for claim in stored.claims) == [0, 1]
    assert store.claims.audit() == CLEAN


def test_a_large_request_goes_in_several_commits(store, host):
    draft = a_draft().taking(host).taking(host).unfinished()
    assert report_outcome(store, draft).outcome is CommitStatus.PARTIAL
    rest = draft.continuing(count=2).taking(host).having(completes=True)
    assert report_outcome(store, rest).outcome is CommitStatus.PLACED
    assert len(live(store, request_id=draft.id)) == 3


def test_a_continuation_that_gets_nothing_leaves_the_row_open(store, host):
    draft = a_draft().taking(host).unfinished()
    report_outcome(store, draft)
    assert (
        report_outcome(store, draft.continuing(count=1).taking(host, vcpu=9)).outcome
        is CommitStatus.DROPPED
    )
    assert store.requests.load_request(draft.id).state == 'open'
    assert len(live(store)) == 1


def test_an_open_request_makes_others_wait_as_long_as_its_deadline(store, host):
    draft = a_draft().taking(host).unfinished().within(50)
    report_outcome(store, draft)
    outcome = report_outcome(store, a_draft(draft.id, owner='worker-2').taking(host))
    assert outcome.outcome is CommitStatus.OPEN
    assert 40 < outcome.wait_seconds <= 50


def test_an_overdue_request_says_which_attempt_to_take_over(store, host):
    draft = a_draft().taking(host).unfinished().within(-1)
    report_outcome(store, draft)
    outcome = report_outcome(store, a_draft(draft.id, owner='worker-2').taking(host))
    assert (outcome.outcome, outcome.attempt) == (CommitStatus.OVERDUE, 1)
    assert len(live(store)) == 1


def test_a_take_over_releases_the_old_claims_in_the_same_transaction(store, host):
    draft = a_draft().taking(host, vcpu=8).unfinished().within(-1)
    report_outcome(store, draft)
    heir = a_draft(draft.id).by('worker-2').taking_over(1).taking(host, vcpu=8)
    assert report_outcome(store, heir).outcome is CommitStatus.PLACED
    old, new = sorted(
        store.claims.list_claims(request_id=draft.id), key=lambda claim: claim.attempt
    )
    assert (old.state, new.state, new.attempt) == ('released', 'reserved', 2)
    assert host.row.used == {'VCPU': 8}
    assert store.claims.audit() == CLEAN


def test_a_take_over_before_the_deadline_waits(store, host):
    draft = a_draft().taking(host).unfinished().within(50)
    report_outcome(store, draft)
    heir = a_draft(draft.id).by('worker-2').taking_over(1).taking(host)
    assert report_outcome(store, heir).outcome is CommitStatus.OPEN
    assert len(live(store)) == 1


def test_a_take_over_that_places_nothing_still_releases(store, host):
    draft = a_draft().taking(host).unfinished().within(-1)
    report_outcome(store, draft)
    heir = a_draft(draft.id).by('worker-2').taking_over(1).taking(host, vcpu=9)
    assert report_outcome(store, heir).outcome is CommitStatus.DROPPED
    assert host.row.used == {}
    assert store.requests.load_request(draft.id) is None


def test_the_owner_that_was_taken_over_has_lost(store, host):
    draft = a_draft().taking(host).unfinished().within(-1)
    report_outcome(store, draft)
    report_outcome(store, a_draft(draft.id).by('worker-2').taking_over(1).taking(host).unfinished())
    rest = draft.continuing(count=1)
    assert report_outcome(store, rest.taking(host)).outcome is CommitStatus.LOST
    assert report_outcome(store, rest.by('worker-2').taking(host)).outcome is CommitStatus.LOST
    assert len(live(store)) == 1


def test_only_one_of_two_takes_over(store, host):
    draft = a_draft().taking(host).unfinished().within(-1)
    report_outcome(store, draft)
    heirs = [
        a_draft(draft.id).by(f'worker-{i}').taking_over(1).taking(host).unfinished().within(50)
        for i in (2, 3)
    ]
    assert [report_outcome(store, heir).outcome for heir in heirs] == [
        CommitStatus.PARTIAL,
        CommitStatus.OPEN,
    ]


def test_continuing_what_was_never_begun_is_lost(store, host):
    assert (
        report_outcome(store, a_draft().continuing(count=0).taking(host)).outcome
        is CommitStatus.LOST
    )
    assert live(store) == []


# -- whole requests ----------------------------------------------------------------------
def test_a_whole_request_takes_all_or_nothing(store, host):
    draft = a_draft().whole().taking(host, vcpu=5).taking(host, vcpu=5)
    assert report_outcome(store, draft).outcome is CommitStatus.DROPPED
    assert host.row.used == {}


def test_room_that_a_whole_request_gives_back_goes_to_the_next(store, host):
    whole = a_draft().whole().taking(host, vcpu=5).taking(host, vcpu=5)
    other = a_draft().taking(host, vcpu=8)
    assert [f.outcome for f in commit(store, whole, other).outcomes] == ['dropped', 'placed']


# -- giving up, cancelling, extending ------------------------------------------------------
def test_giving_up_releases_everything_and_forgets_the_request(store, host):
    draft = a_draft().taking(host).taking(host).unfinished()
    report_outcome(store, draft)
    result = store.requests.give_up(draft.id, 'worker-1', 1)
    assert [outcome.state for outcome in result.outcomes] == ['released', 'released']
    assert result.hosts[0].row.used == {}
    assert store.requests.load_request(draft.id) is None


def test_a_request_that_was_given_up_may_be_asked_again(store, host):
    draft = a_draft().taking(host).unfinished()
    report_outcome(store, draft)
    store.requests.give_up(draft.id, 'worker-1', 1)
    assert claimed(store, a_draft(draft.id).taking(host))[0].state == 'reserved'
    assert host.row.used == {'VCPU': 1}
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize(('owner', 'attempt'), [('worker-2', 1), ('worker-1', 2)])
def test_only_the_owner_of_the_attempt_may_give_up(store, host, owner, attempt):
    draft = a_draft().taking(host).unfinished()
    report_outcome(store, draft)
    assert store.requests.give_up(draft.id, owner, attempt).outcomes == []
    assert len(live(store)) == 1


def test_a_placed_request_cannot_be_given_up(store, host):
    draft = a_draft().taking(host)
    claimed(store, draft)
    assert store.requests.give_up(draft.id, 'worker-1', 1).outcomes == []
    assert len(live(store)) == 1


def test_a_cancel_releases_what_is_reserved_and_says_what_is_confirmed(store, host):
    draft = a_draft().taking(host, vcpu=2).taking(host, vcpu=3)
    first, second = claimed(store, draft)
    host.confirm(first)
    result = store.requests.cancel_request(draft.id, 'changed my mind')
    assert store.requests.load_request(draft.id).state == 'cancelled'
    assert {f.claim_id: (f.outcome, f.state) for f in result.outcomes} == {
        first.id: ('kept', 'confirmed'),
        second.id: ('ok', 'released'),
    }
    assert store.claims.load_claim(second.id).reason == 'changed my mind'
    assert host.row.used == {'VCPU': 2}


def test_a_repeat_after_a_cancel_is_told_so(store, host):
    draft = a_draft().taking(host)
    claimed(store, draft)
    store.requests.cancel_request(draft.id, '')
    assert report_outcome(store, draft).outcome is CommitStatus.CANCELLED
    assert live(store) == []


def test_a_cancel_that_comes_before_its_request_stops_it(store, host):
    draft = a_draft().taking(host)
    result = store.requests.cancel_request(draft.id, 'too late')
    stored = store.requests.load_request(draft.id)
    assert (stored.state, stored.claims, result.outcomes) == ('cancelled', [], [])
    assert report_outcome(store, draft).outcome is CommitStatus.CANCELLED
    assert host.row.used == {}


def test_a_cancel_stops_the_owner_of_an_open_request(store, host):
    draft = a_draft().taking(host).unfinished()
    report_outcome(store, draft)
    store.requests.cancel_request(draft.id, '')
    assert host.row.used == {}
    assert (
        report_outcome(store, draft.continuing(count=1).taking(host)).outcome
        is CommitStatus.CANCELLED
    )
    assert store.requests.give_up(draft.id, 'worker-1', 1).outcomes == []
    assert store.requests.load_request(draft.id).state == 'cancelled'


def test_a_second_cancel_changes_nothing(store, host):
    draft = a_draft().taking(host)
    claimed(store, draft)
    store.requests.cancel_request(draft.id, '')
    assert store.requests.cancel_request(draft.id, '').outcomes == []
    assert store.requests.load_request(draft.id).state == 'cancelled'
    assert host.row.used == {}


def test_an_extension_lengthens_leases_and_never_shortens_them(store, host):
    draft = a_draft().taking(host).leased(100)
    claim = claimed(store, draft)[0]
    assert [f.outcome for f in store.requests.extend_request(draft.id, 500, 900).outcomes] == ['ok']
    longer = store.claims.load_claim(claim.id).lease_until
    assert longer - claim.lease_until == pytest.approx(400, abs=30)
    store.requests.extend_request(draft.id, 10, 900)
    assert store.claims.load_claim(claim.id).lease_until == longer


def test_an_extension_is_capped(store, host):
    draft = a_draft().taking(host).leased(100)
    claim = claimed(store, draft)[0]
    store.requests.extend_request(draft.id, 86_400, 300)
    lengthened = store.claims.load_claim(claim.id).lease_until - claim.lease_until
    assert lengthened == pytest.approx(200, abs=30)


def test_an_extension_never_changes_a_state(store, host):
    draft = a_draft().taking(host).taking(host)
    first, second = claimed(store, draft)
    host.confirm(first)
    host.refuse(second)
    outcomes = store.requests.extend_request(draft.id, 60, 900).outcomes
    assert [(f.claim_id, f.outcome, f.state) for f in outcomes] == [(first.id, 'kept', 'confirmed')]
    assert state_of(store, second) == 'refused'


def test_nothing_is_known_of_a_request_that_never_came(store):
    assert store.requests.load_request(new_uuid()) is None
    assert store.requests.extend_request(new_uuid(), 60, 900).outcomes == []
    assert store.requests.give_up(new_uuid(), 'worker-1', 1).outcomes == []


# -- groups in a commit -----------------------------------------------------------------------
def test_a_group_first_seen_gets_its_rule_and_counts_its_placements(store, host):
    group = new_uuid()
    result = commit(store, a_draft().planned_at(0, group).taking(host))
    assert result.outcomes[0].outcome is CommitStatus.PLACED
    assert result.groups == {group: generation_of(store, group)}
    loaded = store.groups.load_group(group)
    assert (loaded.policy, len(loaded.members)) == ('anti-affinity', 1)
    assert not loaded.rule.is_untouched


def test_a_group_that_changed_meanwhile_drops_its_requests(store, host):
    group = new_uuid()
    claimed(store, a_draft().planned_at(0, group).taking(host))
    before = generation_of(store, group)
    late, other = a_draft().planned_at(0, group).taking(host), a_draft().taking(host)
    result = commit(store, late, other)
    assert [f.outcome for f in result.outcomes] == ['group_changed', 'placed']
    assert result.groups[group] == before
    assert store.requests.load_request(late.id) is None
    assert report_outcome(store, late.planned_at(before, group)).outcome is CommitStatus.PLACED


def test_members_of_one_batch_share_one_precondition(store, host):
    group = new_uuid()
    drafts = [a_draft().planned_at(0, group).taking(host) for _ in range(3)]
    result = commit(store, *drafts)
    assert [f.outcome for f in result.outcomes] == ['placed'] * 3
    assert result.groups == {group: generation_of(store, group)}


def test_what_was_planned_beside_a_member_that_is_not_made_is_planned_again(store, host):
    """News in the middle of a batch: the table is newer, and the member still stands on it."""
    group = new_uuid()
    draft = a_draft().planned_at(0, group).taking(host)
    claimed(store, draft)
    for ended in (draft, a_draft().planned_at(0, group).taking(host)):
        beside = a_draft().planned_at(generation_of(store, group), group).taking(host)
        outcomes = [f.outcome for f in commit(store, ended, beside).outcomes]
        assert outcomes[0] in (CommitStatus.REPEAT, CommitStatus.GROUP_CHANGED)
        assert outcomes[1] is CommitStatus.GROUP_CHANGED
        assert store.requests.load_request(beside.id) is None
    assert report_outcome(store, beside).outcome is CommitStatus.PLACED


def test_a_group_of_which_nothing_was_placed_keeps_its_generation(store, host):
    group = new_uuid()
    assert (
        report_outcome(store, a_draft().planned_at(0, group).taking(host, vcpu=9)).outcome
        == 'dropped'
    )
    assert report_outcome(store, a_draft().planned_at(0, group).taking(host)).outcome == 'placed'


def test_planning_with_a_group_that_was_removed_is_planned_again(store, host):
    group = new_uuid()
    assert (
        report_outcome(store, a_draft().planned_at(4, group).taking(host)).outcome
        == 'group_changed'
    )
    assert store.groups.load_group(group) is None


def test_a_group_change_leaves_a_continued_row_open(store, host):
    group = new_uuid()
    draft = a_draft().planned_at(0, group).taking(host).unfinished()
    report_outcome(store, draft)
    rest = draft.planned_at(0, group).continuing(count=1).taking(host)
    assert report_outcome(store, rest).outcome is CommitStatus.GROUP_CHANGED
    assert store.requests.load_request(draft.id).state == 'open'


# -- moves and lifecycles -----------------------------------------------------------------------
def test_a_move_is_two_claims_with_one_consumer(store, host):
    target_host = a_host('cmp-2').on(store)
    source = claimed(store, a_draft().taking(host, vcpu=2))[0]
    host.confirm(source)
    move = new_uuid()
    draft = a_draft().taking(target_host, source.consumer, purpose='resize', move_id=move, vcpu=4)
    target = claimed(store, draft)[0]
    assert (target.consumer, target.move_id, target.purpose) == (source.consumer, move, 'resize')
    assert (host.row.used, target_host.row.used) == ({'VCPU': 2}, {'VCPU': 4})
    assert store.claims.audit() == CLEAN


def test_a_revert_ends_the_target_and_keeps_the_source(store, host):
    target_host = a_host('cmp-2').on(store)
    source = claimed(store, a_draft().taking(host))[0]
    host.confirm(source)
    draft = a_draft().taking(target_host, source.consumer, purpose='migrate', move_id=new_uuid())
    claimed(store, draft)
    store.requests.cancel_request(draft.id, 'reverted')
    assert (host.row.used, target_host.row.used) == ({'VCPU': 1}, {})
    assert state_of(store, source) == 'confirmed'


def test_a_claim_of_the_allocation_api_has_no_lease(store, host):
    claim = claimed(store, a_draft().leased(-1).taking(host, lifecycle='api'))[0]
    assert claim.lease_until == 0
    assert store.claims.sweep(10).outcomes == []
    assert state_of(store, claim) == 'reserved'


@pytest.mark.parametrize('lifecycle', ['host', 'plan', 'hold'])
def test_other_lifecycles_have_one(store, host, lifecycle):
    claim = claimed(store, a_draft().leased(-1).taking(host, lifecycle=lifecycle))[0]
    assert [f.claim_id for f in store.claims.sweep(10).outcomes] == [claim.id]


# -- what goes with it -----------------------------------------------------------------------
def test_an_empty_batch_is_no_news(store, host):
    before = store.feed.load_everything().position
    result = commit(store)
    assert (result.outcomes, result.hosts) == ([], [])
    assert result.now == pytest.approx(store.database.ping(), abs=5)
    assert store.feed.load_everything().position == before


def test_projects_and_users_come_back_with_the_claims(store, host):
    draft = a_draft().taking(host)
    drafted = draft.fields['claims'][0]
    claim = changed(drafted.claim, project_id='p1', user_id='u1', consumer_type='VOLUME')
    mine = claimed(store, draft.having(claims=[changed(drafted, claim=claim)]))[0]
    assert (mine.project_id, mine.user_id, mine.consumer_type) == ('p1', 'u1', 'VOLUME')
