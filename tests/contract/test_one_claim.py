# SPDX-License-Identifier: Apache-2.0
"""One live claim per (consumer, purpose), whoever asks, and under whatever ids."""

import pytest
from msgspec.structs import replace

from gantt.core.claims.commit import CommitStatus, GroupPrecondition
from tests.builders import (
    CLEAN,
    a_draft,
    a_guest,
    a_host,
    claimed,
    commit,
    generation_of,
    live,
    new_uuid,
    report_outcome,
    state_of,
)


@pytest.fixture
def older(store, host):
    """A claim of two cores that an older request has reserved."""
    return claimed(store, a_draft().taking(host, vcpu=2))[0]


def test_what_an_older_request_reserved_gives_way(store, host, older):
    other = a_host('cmp-2').on(store)
    result = commit(store, newer := a_draft().taking(other, older.consumer, vcpu=3))
    assert result.outcomes[0].outcome is CommitStatus.PLACED
    assert {row.name: row.used.get('VCPU', 0) for row in result.hosts} == {'cmp-1': 0, 'cmp-2': 3}
    tombstone = store.claims.load_claim(older.id)
    assert (tombstone.state, tombstone.reason) == ('released', f'replaced by {newer.id}')
    assert [claim.request_id for claim in live(store)] == [newer.id]
    assert host.confirm(older)[0].outcome == 'gone'
    assert store.claims.audit() == CLEAN


def test_it_gives_way_on_the_very_host_too_but_its_room_counts_until_then(store, host, older):
    assert (
        report_outcome(store, a_draft().taking(host, older.consumer, vcpu=7)).outcome
        is CommitStatus.DROPPED
    )
    assert state_of(store, older) == 'reserved'
    assert (
        report_outcome(store, a_draft().taking(host, older.consumer, vcpu=6)).outcome
        is CommitStatus.PLACED
    )
    assert host.row.used == {'VCPU': 6}
    assert store.claims.audit() == CLEAN


def test_what_was_planned_beside_a_member_that_gives_way_is_planned_again(store, host):
    group = new_uuid()
    precondition = GroupPrecondition(group, 0, 'affinity')
    older = claimed(store, a_draft(group=precondition).taking(host, group=group))[0]
    other = a_host('cmp-2').on(store)
    precondition = GroupPrecondition(group, generation_of(store, group), 'affinity')
    result = commit(
        store,
        a_draft(group=precondition).taking(other, older.consumer, group=group),
        a_draft(group=precondition).taking(host, group=group),
    )
    assert [f.outcome for f in result.outcomes] == [CommitStatus.PLACED, CommitStatus.GROUP_CHANGED]
    assert [claim.host for claim in live(store)] == ['cmp-2']


def test_what_was_planned_beside_a_second_claim_is_planned_again(store, host):
    group, consumer, other = new_uuid(), new_uuid(), a_host('cmp-2').on(store)
    precondition = GroupPrecondition(group, 0, 'affinity')
    result = commit(
        store,
        a_draft(group=precondition).taking(host, consumer, group=group),
        a_draft(group=precondition).taking(other, consumer, group=group),
        a_draft(group=precondition).taking(other, group=group),
    )
    assert [f.outcome for f in result.outcomes] == [
        CommitStatus.PLACED,
        CommitStatus.DROPPED,
        CommitStatus.GROUP_CHANGED,
    ]
    assert [claim.host for claim in live(store)] == ['cmp-1']


def test_a_guest_that_runs_bars_a_second_claim(store, host, older):
    host.confirm(older)
    outcome = report_outcome(store, draft := a_draft().taking(host, older.consumer))
    assert outcome.outcome is CommitStatus.REJECTED
    assert outcome.reason == f'consumer {older.consumer} has a place already'
    assert outcome.places == [f'host cmp-1, claim {older.id}']
    assert store.requests.load_request(draft.id) is None
    assert host.row.used == {'VCPU': 2}
    assert store.claims.audit() == CLEAN


def test_a_guest_that_was_found_running_bars_it_as_well(store, host):
    host.report([a_guest(consumer := new_uuid(), vcpu=1)])
    assert report_outcome(store, a_draft().taking(host, consumer)).outcome is CommitStatus.REJECTED


def owned(draft, project):
    """The draft with its claims made in the name of a project."""
    claims = [
        replace(drafted, claim=replace(drafted.claim, project_id=project))
        for drafted in draft.fields['claims']
    ]
    return draft.having(project_id=project, claims=claims)


@pytest.mark.parametrize('purpose', ['create', 'unshelve', 'resize', 'migrate'])
@pytest.mark.parametrize('state', ['reserved', 'confirmed', 'written', 'found'])
def test_who_acts_for_one_project_leaves_the_consumers_of_others(store, host, purpose, state):
    if state == 'found':
        host.report([a_guest(new_uuid(), vcpu=2)])
        theirs = live(store)[0]
    else:
        lifecycle = 'api' if state == 'written' else 'host'
        draft = a_draft().taking(host, vcpu=2, lifecycle=lifecycle)
        theirs = claimed(store, owned(draft, 'blue'))[0]
    if state == 'confirmed':
        host.confirm(theirs)
    before = store.claims.load_claim(theirs.id)
    draft = a_draft(only_project='red').taking(host, theirs.consumer, purpose=purpose)
    outcome = report_outcome(store, owned(draft.taking(host), 'red'))
    assert outcome.outcome is CommitStatus.REJECTED
    assert outcome.reason == f'consumer {theirs.consumer!r} was not found'
    assert store.requests.load_request(draft.id) is None
    assert live(store) == [before]
    assert store.claims.audit() == CLEAN


def test_who_acts_for_one_project_replaces_what_is_its_own(store, host):
    ours = claimed(store, owned(a_draft().taking(host), 'red'))[0]
    draft = owned(a_draft(only_project='red').taking(host, ours.consumer), 'red')
    assert report_outcome(store, draft).outcome is CommitStatus.PLACED
    assert [claim.request_id for claim in live(store)] == [draft.id]


@pytest.mark.parametrize('event', ['release', 'expire', 'cancel'])
def test_a_consumer_stays_its_projects_after_its_claim_has_ended(store, host, event):
    lease = -1 if event == 'expire' else 60
    theirs = claimed(store, owned(a_draft().leased(lease).taking(host), 'blue'))[0]
    if event == 'release':
        host.confirm(theirs)
        host.release(theirs)
    elif event == 'expire':
        store.claims.sweep(10)
    else:
        store.requests.cancel_request(theirs.request_id, 'not needed')
    assert live(store) == []
    assert store.quotas.owners_of([theirs.consumer, new_uuid()]) == {theirs.consumer: 'blue'}
    draft = owned(a_draft(only_project='red').taking(host, theirs.consumer), 'red')
    outcome = report_outcome(store, draft)
    assert outcome.outcome is CommitStatus.REJECTED
    assert outcome.reason == f'consumer {theirs.consumer!r} was not found'
    assert live(store) == []
    assert store.claims.load_claim(theirs.id).project_id == 'blue'
    assert store.claims.audit() == CLEAN


def test_other_members_of_both_requests_go_their_way(store, host):
    older = claimed(store, a_draft().taking(host).taking(host))
    draft = a_draft().taking(host, older[0].consumer).taking(host)
    assert report_outcome(store, draft).outcome is CommitStatus.PLACED
    assert [state_of(store, claim) for claim in older] == ['released', 'reserved']
    assert host.row.used == {'VCPU': 3}


def test_of_two_in_one_batch_the_second_is_planned_again(store, host):
    consumer = new_uuid()
    drafts = [a_draft().taking(host, consumer) for _ in range(2)]
    assert [f.outcome for f in commit(store, *drafts).outcomes] == [
        CommitStatus.PLACED,
        CommitStatus.DROPPED,
    ]
    assert report_outcome(store, drafts[1]).outcome is CommitStatus.PLACED
    assert [claim.request_id for claim in live(store)] == [drafts[1].id]


def test_a_move_leaves_its_source_and_replaces_only_an_open_destination(store, host, older):
    host.confirm(older)
    hosts = [a_host(f'cmp-{i}').on(store) for i in (2, 3, 4)]
    for to in hosts[:2]:
        draft = a_draft().taking(to, older.consumer, purpose='resize', move_id=new_uuid())
        assert report_outcome(store, draft).outcome is CommitStatus.PLACED
    assert [to.row.used.get('VCPU', 0) for to in hosts[:2]] == [0, 1]
    destination = next(claim for claim in live(store) if claim.provider_id == hosts[1].id)
    hosts[1].confirm(destination)
    # It has arrived: the next move starts from there.
    draft = a_draft().taking(hosts[2], older.consumer, purpose='migrate', move_id=new_uuid())
    assert report_outcome(store, draft).outcome is CommitStatus.PLACED
    assert len(live(store)) == 3
    assert store.claims.audit() == CLEAN


def test_another_purpose_and_the_allocation_api_are_no_rivals(store, host, older):
    assert report_outcome(store, a_draft().taking(host, older.consumer, purpose='unshelve'))
    written = claimed(store, a_draft().taking(host, lifecycle='api'))[0]
    assert (
        report_outcome(store, a_draft().taking(host, written.consumer)).outcome
        is CommitStatus.PLACED
    )
    assert state_of(store, older) == state_of(store, written) == 'reserved'


def test_a_request_that_came_to_nothing_leaves_the_consumer_as_it_was(store, host, older):
    nothing = a_draft().taking(host, new_uuid(), vcpu=9)
    assert report_outcome(store, nothing).outcome is CommitStatus.DROPPED
    assert (
        report_outcome(store, a_draft().taking(host, older.consumer, vcpu=9)).outcome
        is CommitStatus.DROPPED
    )
    assert store.claims.load_claim(older.id) == older
