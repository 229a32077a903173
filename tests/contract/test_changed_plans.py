# SPDX-License-Identifier: Apache-2.0
"""A plan that is changed: places that it gives back with the commit that makes others."""

import msgspec
import pytest

from gantt.core.claims.commit import ClaimDraft, CommitStatus, GroupPrecondition
from gantt.core.claims.reservations import ReleasedReservation
from gantt.core.messages.policy_set import POLICIES_POLICY
from tests.builders import CLEAN, a_host, amounts, commit, generation_of, new_uuid
from tests.plans import DOCUMENT, a_plan, created, places, planned


@pytest.fixture
def other(store):
    return a_host('cmp-2').on(store)


def now(store, claim):
    """A claim as it is now."""
    return store.claims.load_claim(claim.id)


def a_change(store, group, hosts, *ends, **fields):
    """The next revision of a plan, with places for these members, that ends others."""
    generation = generation_of(store, group)
    precondition = GroupPrecondition(
        group, generation, POLICIES_POLICY, policies=DOCUMENT, replaces=True
    )
    draft = a_plan(group, hosts, revision=2, precondition=precondition, project='p1', vcpu=2)
    ended = tuple(
        ReleasedReservation(claim_id=c.id, provider_ids=tuple(c.allocations)) for c in ends
    )
    return draft.having(released_reservations=ended, **fields)


def test_a_change_ends_places_with_the_commit_that_makes_others(store, host, other):
    group = new_uuid()
    before = planned(store, {'web-1': host, 'web-2': other}, group=group, project='p1', vcpu=2)
    result = commit(store, a_change(store, group, {'db-1': host}, before['web-2']))
    assert result.outcomes[0].outcome is CommitStatus.PLACED
    assert places(store, group).keys() == {'web-1', 'db-1'}
    assert now(store, before['web-2']).state == 'released'
    assert store.plans.load_group_plan(group).revision == 2
    assert store.claims.audit() == CLEAN


def test_a_change_that_makes_nothing_ends_places_as_well(store, host, other):
    group = new_uuid()
    before = planned(store, {'web-1': host, 'web-2': other}, group=group, project='p1', vcpu=2)
    result = commit(store, a_change(store, group, {}, before['web-2']))
    assert result.outcomes[0].outcome is CommitStatus.PLACED
    assert places(store, group).keys() == {'web-1'}
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('left', [False, True])
def test_a_change_is_void_where_a_create_has_had_a_place_that_it_ends(store, host, other, left):
    group = new_uuid()
    before = planned(store, {'web-1': host, 'web-2': other}, group=group, project='p1', vcpu=2)
    change = a_change(store, group, {'db-1': host}, before['web-2'])
    draft = created(store, before['web-2'])
    if left:  # the place lives on, under another id
        store.requests.cancel_request(draft.id, 'not wanted')
    outcome = commit(store, change).outcomes[0]
    assert outcome.outcome is CommitStatus.GROUP_CHANGED
    assert outcome.reason == "the place of member 'web-2' was taken over or has ended since"
    place_of = places(store, group)
    assert place_of.keys() == {'web-1', 'web-2'}
    assert place_of['web-2'].is_free_reservation is left
    assert store.plans.load_group_plan(group).revision == 1
    assert store.claims.audit() == CLEAN


def test_a_change_that_is_refused_ends_nothing(store, host, other):
    group = new_uuid()
    before = planned(store, {'web-1': host, 'web-2': other}, group=group, project='p1', vcpu=2)
    change = a_change(store, group, {'db-1': host}, before['web-2'])
    claim = msgspec.structs.replace(
        change.fields['claims'][0].claim, allocations={host.id: amounts(vcpu=900)}
    )
    large = change.having(claims=[ClaimDraft(claim=claim)])
    assert commit(store, large).outcomes[0].outcome is CommitStatus.DROPPED
    assert now(store, before['web-2']).is_free_reservation
    assert store.plans.load_group_plan(group).revision == 1


def test_places_of_another_group_are_not_ended(store, host, other):
    group, theirs = new_uuid(), planned(store, {'web-1': other}, project='p2', vcpu=2)
    planned(store, {'web-1': host}, group=group, project='p1', vcpu=2)
    commit(store, a_change(store, group, {}, theirs['web-1']))
    assert now(store, theirs['web-1']).is_free_reservation


def test_a_member_whose_host_is_lost_gets_another_place(store, host, other):
    group = new_uuid()
    before = planned(store, {'web-1': host}, group=group, project='p1', vcpu=2)
    created(store, before['web-1'])
    assert host.confirm(before['web-1'])[0].outcome == 'ok'
    change = a_change(store, group, {'web-1': other})
    assert commit(store, change).outcomes[0].outcome is CommitStatus.GROUP_CHANGED
    again = change.having(lost_claims=(before['web-1'].id,))
    assert commit(store, again).outcomes[0].outcome is CommitStatus.PLACED
    live = store.plans.load_reservations([group])[group]
    assert sorted((c.host, c.state) for c in live) == [
        ('cmp-1', 'confirmed'),
        ('cmp-2', 'reserved'),
    ]
    assert store.claims.audit() == CLEAN
