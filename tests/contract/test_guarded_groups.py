# SPDX-License-Identifier: Apache-2.0
"""Requests whose hard policies are about other groups: guarded by the generations of these, too."""

import pytest

from gantt.core.claims.commit import CommitStatus, GroupPrecondition
from tests.builders import CLEAN, a_draft, a_group, commit, generation_of, new_uuid, report_outcome


@pytest.fixture
def other(store):
    """Another group that is there."""
    return store.groups.save_group(a_group('anti-affinity')).uuid


def beside(store, other, at=None, **fields):
    """A request in a group of its own, planned beside that other group."""
    own = GroupPrecondition(new_uuid(), 0, 'affinity')
    at = generation_of(store, other) if at is None else at
    guard = GroupPrecondition(other, at, 'anti-affinity', makes=False)
    return a_draft(group=own, groups=(guard,), **fields)


def test_the_other_group_is_guarded_and_not_counted_up(store, host, other):
    before = generation_of(store, other)
    draft = beside(store, other).taking(host)
    result = commit(store, draft)
    assert result.outcomes[0].outcome is CommitStatus.PLACED
    own = draft.fields['group'].uuid
    assert result.groups == {own: generation_of(store, own), other: before}
    assert generation_of(store, other) == before
    assert store.claims.audit() == CLEAN


def test_what_was_planned_beside_an_older_one_is_planned_again(store, host, other):
    draft = beside(store, other).taking(host)
    member = a_draft().planned_at(generation_of(store, other), other).taking(host)
    assert report_outcome(store, member).outcome is CommitStatus.PLACED
    assert report_outcome(store, draft).outcome is CommitStatus.GROUP_CHANGED
    assert host.row.used == {'VCPU': 1}
    assert store.requests.load_request(draft.id) is None
    assert report_outcome(store, beside(store, other).taking(host)).outcome is CommitStatus.PLACED
    assert store.claims.audit() == CLEAN


def test_in_one_batch_it_is_planned_after_those_before_it(store, host, other):
    at = generation_of(store, other)
    lost = a_draft().planned_at(at, other).taking(host, vcpu=9)
    result = commit(store, lost, beside(store, other).taking(host))
    assert [outcome.outcome for outcome in result.outcomes] == ['dropped', 'placed']
    stale = a_draft().planned_at(1, other).taking(host)
    result = commit(store, stale, beside(store, other).taking(host))
    assert [outcome.outcome for outcome in result.outcomes] == ['group_changed', 'group_changed']
    assert store.claims.audit() == CLEAN


def test_a_group_that_is_not_there_guards_nothing_away(store, host):
    draft = beside(store, new_uuid(), at=0).taking(host)
    assert report_outcome(store, draft).outcome is CommitStatus.GROUP_CHANGED
    assert host.row.used == {}


def test_under_another_rule_it_is_planned_again(store, host, other):
    guard = GroupPrecondition(other, generation_of(store, other), 'affinity', makes=False)
    draft = a_draft(group=GroupPrecondition(new_uuid(), 0, 'affinity'), groups=(guard,)).taking(
        host
    )
    assert report_outcome(store, draft).outcome is CommitStatus.GROUP_CHANGED
    assert store.claims.audit() == CLEAN


def test_without_a_group_of_its_own_others_guard_it_as_well(store, host, other):
    guard = GroupPrecondition(other, generation_of(store, other) + 1, 'anti-affinity', makes=False)
    draft = a_draft(groups=(guard,)).taking(host)
    assert report_outcome(store, draft).outcome is CommitStatus.GROUP_CHANGED
