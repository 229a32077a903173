# SPDX-License-Identifier: Apache-2.0
"""Places of plans that end as their member gets another claim, in the same commit."""

import pytest

from gantt.core.claims.commit import CommitStatus, GroupPrecondition
from gantt.core.claims.reservations import ReplacedReservation
from gantt.core.resources.group_rule import POLICIES_POLICY
from tests.builders import CLEAN, a_draft, a_host, claimed, commit, new_uuid, report_outcome
from tests.plans import DOCUMENT, created, places, planned


@pytest.fixture
def other(store):
    return a_host('cmp-2').on(store)


@pytest.fixture
def place(store, host):
    """A place of six of the eight cores of a host."""
    return planned(store, {'web-1': host}, project='p1', vcpu=6)['web-1']


def go(place):
    """The place, as it is let go."""
    return ReplacedReservation(
        claim_id=place.id,
        group=place.group,
        member_name=place.member_name,
        project_id='p1',
    )


def anew(store, place, host, **taken):
    """A request that places the member of a place anew."""
    loaded = store.groups.load_group(place.group)
    precondition = GroupPrecondition(
        place.group, loaded.generation, POLICIES_POLICY, policies=DOCUMENT, makes=False
    )
    draft = a_draft(group=precondition, project_id='p1', replaced_reservations=(go(place),))
    return draft.taking(host, **({'vcpu': 1} | taken))


def test_the_place_ends_with_the_commit_of_the_claim(store, host, other, place):
    outcome = report_outcome(store, anew(store, place, other, vcpu=8))
    assert outcome.outcome is CommitStatus.PLACED
    ended = store.claims.load_claim(place.id)
    assert (ended.state, ended.former_reservation) == ('released', None)
    assert host.row.used.get('VCPU', 0) == 0
    assert other.row.used == {'VCPU': 8}
    assert store.claims.audit() == CLEAN


def test_what_finds_no_room_leaves_the_place_as_it_was(store, host, other, place):
    claimed(store, a_draft().taking(other, vcpu=8))
    assert report_outcome(store, anew(store, place, other)).outcome is CommitStatus.DROPPED
    assert store.claims.load_claim(place.id).is_free_reservation
    assert host.row.used == {'VCPU': 6}
    assert store.claims.audit() == CLEAN


def test_a_place_that_a_create_has_is_not_let_go(store, host, other, place):
    draft = created(store, place)
    assert report_outcome(store, anew(store, place, other)).outcome is CommitStatus.DROPPED
    claim = store.claims.load_claim(place.id)
    assert claim.is_taken and claim.request_id == draft.id
    assert other.row.used.get('VCPU', 0) == 0
    assert store.claims.audit() == CLEAN


def test_a_place_that_has_ended_is_no_place_to_let_go(store, host, other, place):
    store.plans.release_plan(place.group, 'done')
    loaded = store.groups.load_group(place.group)
    if loaded is None:
        return  # the group went with its last claim
    assert report_outcome(store, anew(store, place, other)).outcome is not CommitStatus.PLACED
    assert other.row.used.get('VCPU', 0) == 0


def test_of_two_in_a_batch_one_lets_the_place_go(store, host, other, place):
    drafts = [anew(store, place, other), anew(store, place, other)]
    outcomes = [outcome.outcome for outcome in commit(store, *drafts).outcomes]
    assert outcomes.count(CommitStatus.PLACED) == 1
    assert other.row.used == {'VCPU': 1}
    assert store.claims.load_claim(place.id).state == 'released'
    assert store.claims.audit() == CLEAN


def test_a_place_that_the_consumer_has_itself_ends_as_well(store, host, other, place):
    """Back in the plan, a create could take it, and two guests be one member."""
    consumer = new_uuid()
    created(store, place, consumer)
    draft = anew(store, place, other, consumer=consumer)
    assert report_outcome(store, draft).outcome is CommitStatus.PLACED
    assert not places(store, place.group)
    assert store.claims.load_claim(place.id).state == 'released'
    assert host.row.used.get('VCPU', 0) == 0
    assert other.row.used == {'VCPU': 1}
    assert store.claims.audit() == CLEAN


def test_a_place_that_the_consumer_has_itself_stays_where_it_finds_no_room(
    store, host, other, place
):
    consumer = new_uuid()
    first = created(store, place, consumer)
    claimed(store, a_draft().taking(other, vcpu=8))
    draft = anew(store, place, other, consumer=consumer)
    assert report_outcome(store, draft).outcome is CommitStatus.DROPPED
    claim = store.claims.load_claim(place.id)
    assert claim.is_taken and claim.request_id == first.id
    assert host.row.used == {'VCPU': 6}
    assert store.claims.audit() == CLEAN
