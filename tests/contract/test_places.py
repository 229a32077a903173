# SPDX-License-Identifier: Apache-2.0
"""Places of planned groups: planned, taken over, given back, confirmed, held and released."""

import msgspec
import pytest

from gantt import exceptions
from gantt.core.claims.commit import ClaimDraft, CommitStatus, GroupPrecondition, RefusalKind
from gantt.core.claims.reservations import placeholder_consumer
from gantt.core.messages.policy_set import POLICIES_POLICY, PolicySet
from gantt.core.messages.report import Running
from tests.builders import (
    CLEAN,
    a_draft,
    a_group,
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
from tests.plans import DOCUMENT, a_create, a_plan, by, created, places, planned


@pytest.fixture
def other(store):
    return a_host('cmp-2').on(store)


@pytest.fixture
def place(store, host):
    """One place of two cores, planned by project p1."""
    return planned(store, {'web-1': host}, project='p1', vcpu=2)['web-1']


def now(store, claim):
    """A claim as it is now."""
    return store.claims.load_claim(claim.id)


# -- step one ---------------------------------------------------------------------------
def test_a_plan_makes_a_place_for_each_member_and_is_kept(store, host, other):
    group = new_uuid()
    draft = a_plan(group, {'web-1': host, 'db-1': other}, project='p1', vcpu=2)
    result = commit(store, draft)
    assert result.outcomes[0].outcome is CommitStatus.PLACED
    place_of = places(store, group)
    assert {name: claim.host for name, claim in place_of.items()} == {
        'web-1': 'cmp-1',
        'db-1': 'cmp-2',
    }
    place = place_of['web-1']
    assert place.is_free_reservation and place.consumer == placeholder_consumer(group, 'web-1')
    assert (place.request_id, place.lifecycle, place.state) == (draft.id, 'plan', 'reserved')
    plan = store.plans.load_group_plan(group)
    assert (plan.request_id, plan.project_id, plan.revision) == (draft.id, 'p1', 1)
    assert (plan.description, plan.plan) == (b'{}', b'packed')
    assert plan.lease_until == place.lease_until > plan.created_at + 3000
    loaded = store.groups.load_group(group)
    assert (loaded.policy, loaded.rule.policies) == (POLICIES_POLICY, DOCUMENT)
    assert result.groups == {group: loaded.generation}
    assert host.row.used == {'VCPU': 2}
    assert store.claims.audit() == CLEAN


def test_a_repeat_of_a_plan_gets_its_answer_and_makes_nothing(store, host):
    draft = a_plan(new_uuid(), {'web-1': host})
    assert report_outcome(store, draft).outcome is CommitStatus.PLACED
    again = report_outcome(store, draft)
    assert (again.outcome, again.answer) == (CommitStatus.REPEAT, b'answer')
    assert len(live(store)) == 1


def test_a_plan_that_does_not_fit_leaves_nothing(store, host, other):
    group = new_uuid()
    claimed(store, a_draft().taking(other, vcpu=8))
    outcome = report_outcome(store, a_plan(group, {'a': host, 'b': other}))
    assert (outcome.outcome, outcome.accepted) == (CommitStatus.DROPPED, [])
    assert store.plans.load_group_plan(group) is None
    assert store.plans.load_reservations([group]) == {group: []}
    assert host.row.used == {}
    assert store.claims.audit() == CLEAN


def test_a_second_plan_of_a_group_needs_the_first_one(store, host):
    group = new_uuid()
    planned(store, {'a': host}, group=group)
    unaware = a_plan(group, {'b': host}, generation=generation_of(store, group))
    assert report_outcome(store, unaware).outcome is CommitStatus.GROUP_CHANGED
    late = a_plan(group, {'b': host}, generation=1, revision=2)
    assert report_outcome(store, late).outcome is CommitStatus.GROUP_CHANGED
    assert list(places(store, group)) == ['a']
    grown = a_plan(group, {'b': host}, generation=generation_of(store, group), revision=2)
    assert report_outcome(store, grown).outcome is CommitStatus.PLACED
    assert list(places(store, group)) == ['a', 'b']
    assert store.plans.load_group_plan(group).revision == 2
    assert store.claims.audit() == CLEAN


def test_two_plans_of_a_group_in_one_batch_are_one(store, host):
    group = new_uuid()
    result = commit(store, a_plan(group, {'a': host}), a_plan(group, {'b': host}))
    assert [outcome.outcome for outcome in result.outcomes] == ['placed', 'group_changed']
    assert list(places(store, group)) == ['a']
    assert store.claims.audit() == CLEAN


def test_a_place_that_nobody_has_gives_way_to_another_of_its_member(store, host, other, place):
    group = place.group
    fields = {'generation': generation_of(store, group), 'revision': 2, 'project': 'p1'}
    result = commit(store, a_plan(group, {'web-1': other}, **fields, vcpu=2))
    assert result.outcomes[0].outcome is CommitStatus.PLACED
    assert places(store, group)['web-1'].host == 'cmp-2'
    assert state_of(store, place) == 'released'
    assert (host.row.used, other.row.used) == ({}, {'VCPU': 2})
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('confirmed', [False, True])
def test_a_member_that_has_a_create_gets_no_second_place(store, host, other, place, confirmed):
    created(store, place)
    if confirmed:
        host.confirm(place)
    again = a_plan(
        place.group, {'web-1': other}, generation=generation_of(store, place.group), revision=2
    )
    assert report_outcome(store, again).outcome is CommitStatus.GROUP_CHANGED
    assert places(store, place.group)['web-1'].host == 'cmp-1'
    assert store.plans.load_group_plan(place.group).revision == 1


def test_a_plan_replaces_the_rule_of_a_group_that_is_there(store, host):
    group = store.groups.save_group(a_group('anti-affinity'))
    stale = GroupPrecondition(group.uuid, 7, POLICIES_POLICY, policies=DOCUMENT, replaces=True)
    draft = a_plan(group.uuid, {'a': host}, precondition=stale)
    assert report_outcome(store, draft).outcome is CommitStatus.GROUP_CHANGED
    precondition = GroupPrecondition(
        group.uuid, group.generation, POLICIES_POLICY, policies=DOCUMENT, replaces=True
    )
    assert (
        report_outcome(store, a_plan(group.uuid, {'a': host}, precondition=precondition)).outcome
        == 'placed'
    )
    loaded = store.groups.load_group(group.uuid)
    assert (loaded.policy, loaded.rule.policies) == (POLICIES_POLICY, DOCUMENT)
    rules, _ = store.feed.read_groups([group.uuid])
    assert rules[group.uuid].policies == DOCUMENT
    none = PolicySet(policies=[]).text
    other_rule = GroupPrecondition(group.uuid, loaded.generation, POLICIES_POLICY, policies=none)
    draft = a_draft(group=other_rule).taking(host)
    assert report_outcome(store, draft).outcome is CommitStatus.GROUP_CHANGED


def test_a_plan_is_taken_back_with_its_request(store, host, place):
    assert [
        outcome.outcome
        for outcome in store.requests.cancel_request(place.request_id, 'no').outcomes
    ] == ['ok']
    assert state_of(store, place) == 'released'
    assert host.row.used == {}
    assert store.claims.audit() == CLEAN


# -- step two ---------------------------------------------------------------------------
def test_a_create_takes_over_a_place(store, host, place):
    consumer, before = new_uuid(), host.row
    draft = a_create(by(place, consumer, member=0))
    result = commit(store, draft)
    outcome = result.outcomes[0]
    assert (outcome.outcome, outcome.taken, outcome.accepted) == ('placed', [0], [])
    taken = now(store, place)
    assert (taken.host, taken.allocations) == ('cmp-1', place.allocations)
    assert (taken.consumer, taken.request_id) == (consumer, draft.id)
    assert (taken.project_id, taken.user_id, taken.flavor) == ('p2', 'u2', 'created')
    assert (taken.group, taken.member_name) == (place.group, 'web-1')
    assert taken.is_taken and not taken.is_free_reservation
    assert taken.former_reservation.consumer == place.consumer
    assert taken.former_reservation.lease_until == place.lease_until > taken.lease_until
    assert store.groups.load_group(place.group).members == [consumer]
    assert [claim.id for claim in store.requests.load_request(draft.id).claims] == [place.id]
    assert store.requests.load_request(place.request_id).claims == []
    after = host.row
    assert (after.used, after.generation) == (before.used, before.generation)
    assert after.version > before.version
    assert result.handed == [host.id]
    assert store.claims.audit() == CLEAN


def test_who_follows_the_table_sees_the_consumer(store, host, place):
    feed = store.feed.load_everything()
    versions = {change.provider_id: change.row.version for change in feed.hosts}
    created(store, place, consumer := new_uuid())
    news = store.feed.poll(feed.position, versions)
    assert [[placed.consumer for placed in change.placed] for change in news.hosts] == [[consumer]]
    assert [placed.group for placed in news.hosts[0].placed] == [place.group]


def test_a_repeat_of_a_create_gets_its_answer(store, place):
    draft = created(store, place)
    assert report_outcome(store, draft).outcome is CommitStatus.REPEAT
    assert now(store, place).request_id == draft.id
    assert store.claims.audit() == CLEAN


def test_a_place_is_had_by_one_create(store, place):
    created(store, place, consumer := new_uuid())
    outcome = report_outcome(store, second := a_create(by(place)))
    assert (outcome.outcome, outcome.refused) == ('dropped', RefusalKind.RESERVATION)
    assert outcome.reason == (
        f"another request has taken over the place of member 'web-1' of group {place.group}"
    )
    assert now(store, place).consumer == consumer
    assert store.requests.load_request(second.id) is None
    assert store.claims.audit() == CLEAN


def test_of_two_creates_in_one_batch_the_first_has_it(store, place):
    first, second = a_create(by(place)), a_create(by(place))
    result = commit(store, first, second)
    assert [outcome.outcome for outcome in result.outcomes] == ['placed', 'dropped']
    assert now(store, place).request_id == first.id
    assert store.claims.audit() == CLEAN


def test_a_newer_request_for_the_same_consumer_takes_it_from_the_older(store, place):
    older = created(store, place, consumer := new_uuid())
    newer = created(store, place, consumer)
    taken = now(store, place)
    assert (taken.request_id, taken.consumer) == (newer.id, consumer)
    assert taken.former_reservation.request_id == place.request_id
    store.requests.cancel_request(older.id, 'late')
    assert now(store, place).request_id == newer.id
    assert store.claims.audit() == CLEAN


def test_what_an_older_request_has_elsewhere_gives_way_to_the_place(store, other, place):
    older = claimed(store, a_draft().taking(other))[0]
    created(store, place, older.consumer)
    assert state_of(store, older) == 'released'
    assert other.row.used == {}
    assert store.claims.audit() == CLEAN


def test_a_place_goes_back_when_its_consumer_claims_elsewhere(store, host, other, place):
    created(store, place, consumer := new_uuid())
    claimed(store, newer := a_draft().taking(other, consumer))
    assert places(store, place.group)['web-1'].is_free_reservation
    ended = now(store, place)
    assert (ended.state, ended.reason) == ('released', f'replaced by {newer.id}')
    assert (host.row.used, other.row.used) == ({'VCPU': 2}, {'VCPU': 1})
    assert store.claims.audit() == CLEAN


def test_a_consumer_changes_to_another_place(store, host):
    place_of = planned(store, {'a': host, 'b': host})
    created(store, place_of['a'], consumer := new_uuid())
    created(store, place_of['b'], consumer)
    at_last = places(store, place_of['a'].group)
    assert at_last['a'].is_free_reservation and at_last['b'].consumer == consumer
    assert store.claims.audit() == CLEAN


def test_a_consumer_that_runs_gets_no_place(store, host, place):
    running = claimed(store, a_draft().taking(host))[0]
    host.confirm(running)
    outcome = report_outcome(store, a_create(by(place, running.consumer)))
    assert outcome.outcome is CommitStatus.REJECTED
    assert now(store, place).is_free_reservation
    assert store.claims.audit() == CLEAN


def test_several_members_take_several_places(store, host, other):
    place_of = planned(store, {'a': host, 'b': other, 'c': host})
    first = created(store, place_of['a'])
    takes = [by(place) for place in place_of.values()]
    whole = report_outcome(store, a_create(*takes).whole())
    assert (whole.outcome, whole.taken) == ('dropped', [])
    assert now(store, place_of['b']).is_free_reservation
    some = report_outcome(store, draft := a_create(*takes))
    assert (some.outcome, some.taken, some.refused) == ('partial', [1, 2], 'reservation')
    store.requests.cancel_request(first.id, 'make room')
    again = by(places(store, place_of['a'].group)['a'])
    rest = a_create(again, request_id=draft.id).having(continues=True)
    assert report_outcome(store, rest).outcome is CommitStatus.PLACED
    assert {claim.request_id for claim in live(store)} == {draft.id}
    assert store.claims.audit() == CLEAN


def test_a_request_takes_a_place_and_claims_beside(store, host, other, place):
    draft = a_create(by(place)).taking(other)
    outcome = report_outcome(store, draft)
    assert (outcome.outcome, outcome.taken, outcome.accepted) == ('placed', [0], [0])
    assert {claim.host for claim in store.requests.load_request(draft.id).claims} == {
        'cmp-1',
        'cmp-2',
    }
    full = a_create(by(place), whole=True).taking(other, vcpu=9)
    assert report_outcome(store, full).outcome is CommitStatus.DROPPED
    assert store.claims.audit() == CLEAN


def test_a_whole_request_that_does_not_fit_takes_no_place(store, other, place):
    draft = a_create(by(place), whole=True).taking(other, vcpu=9)
    outcome = report_outcome(store, draft)
    assert (outcome.outcome, outcome.taken, outcome.refused) == ('dropped', [], RefusalKind.ROOM)
    assert now(store, place).is_free_reservation


@pytest.mark.parametrize(
    'wrong', ['claim_id', 'group', 'member_name', 'provider_ids', 'other project']
)
def test_a_place_is_what_the_create_names(store, place, wrong):
    fields = {'provider_ids': (place.provider_id + 100,)} if wrong == 'provider_ids' else {}
    fields = fields or ({wrong: new_uuid()} if wrong != 'other project' else {})
    named = by(place)
    draft = a_create(
        type(named)(**{f: getattr(named, f) for f in named.__struct_fields__} | fields),
        only_project='p2' if wrong == 'other project' else None,
    )
    outcome = report_outcome(store, draft)
    assert (outcome.outcome, outcome.refused) == ('dropped', RefusalKind.RESERVATION)
    assert now(store, place).is_free_reservation
    assert store.claims.audit() == CLEAN


def test_a_place_on_a_host_that_is_closed_is_not_taken(store, host, place):
    store.hosts.disable_host('cmp-1', 'repair', 'ops')
    outcome = report_outcome(store, a_create(by(place)))
    assert (outcome.outcome, outcome.refused) == ('dropped', RefusalKind.RESERVATION)
    assert outcome.reason == 'cmp-1 is disabled'
    store.hosts.enable_host('cmp-1')
    created(store, place)


def test_a_place_on_a_host_that_is_over_full_is_taken(store, host, place):
    host.send(host.says().with_room(vcpu=1))
    assert host.row.over_committed
    created(store, place)
    assert store.claims.audit() == CLEAN


def test_an_own_project_takes_its_places(store, place):
    draft = a_create(by(place, project_id='p1'), only_project='p1')
    assert report_outcome(store, draft).outcome is CommitStatus.PLACED


def test_a_claim_that_is_no_place_is_not_taken(store, host, place):
    plain = claimed(store, a_draft().taking(host, lifecycle='plan', group=place.group))[0]
    named = by(place)
    fields = {f: getattr(named, f) for f in named.__struct_fields__}
    outcome = report_outcome(store, a_create(type(named)(**fields | {'claim_id': plain.id})))
    assert outcome.refused is RefusalKind.RESERVATION


# -- how a create ends ------------------------------------------------------------------
def lease_of(how):
    return {'lease_seconds': -1} if how == 'expire' else {}


def end(how, store, host, draft, place):
    match how:
        case 'cancel':
            store.requests.cancel_request(draft.id, 'not needed')
        case 'refuse':
            assert host.refuse(place, reason='no')[0].outcome == 'ok'
        case 'release':
            assert host.release(place)[0].outcome == 'ok'
        case 'expire':
            assert [outcome.claim_id for outcome in store.claims.sweep(10).outcomes] == [place.id]


ENDED = {'cancel': 'released', 'refuse': 'refused', 'release': 'released', 'expire': 'expired'}


@pytest.mark.parametrize('how', ENDED)
def test_a_place_lives_on_for_its_plan_when_its_create_ends(store, host, place, how):
    draft = created(store, place, consumer := new_uuid(), **lease_of(how))
    before = host.row
    end(how, store, host, draft, place)
    ended, again = now(store, place), places(store, place.group)['web-1']
    assert (ended.state, ended.consumer, ended.request_id) == (ENDED[how], consumer, draft.id)
    assert ended.former_reservation is None
    assert again.is_free_reservation and again.id != place.id
    for name in ('request_id', 'attempt', 'member', 'consumer', 'lease_until', 'project_id'):
        assert getattr(again, name) == getattr(place, name), name
    for name in ('allocations', 'host', 'created_at', 'consumer_type', 'group', 'state'):
        assert getattr(again, name) == getattr(place, name), name
    assert (again.flavor, again.user_id, again.former_reservation) == ('planned', None, None)
    assert (host.row.used, host.row.generation) == (before.used, before.generation)
    assert host.row.version > before.version
    assert live(store) == [again]
    assert store.claims.audit() == CLEAN
    created(store, again)
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('how', ENDED)
def test_what_is_late_about_an_ended_create_is_not_about_the_next(store, host, place, how):
    first = created(store, place, **lease_of(how))
    end(how, store, host, first, place)
    again = places(store, place.group)['web-1']
    second = created(store, again)
    for late in (host.confirm, host.refuse, host.release):
        assert late(place)[0].outcome == 'gone'
    host.report([a_guest(new_uuid())], [place])
    store.requests.cancel_request(first.id, 'late')
    assert now(store, again).request_id == second.id
    assert host.confirm(again)[0].outcome == 'ok'
    assert host.release(place)[0].outcome == 'gone'
    assert state_of(store, again) == 'confirmed'
    assert store.claims.audit() == CLEAN


def test_a_place_that_is_over_full_stays_flagged_as_it_goes_back(store, host, place):
    draft = created(store, place)
    host.send(host.says().with_room(vcpu=1))
    store.requests.cancel_request(draft.id, '')
    assert host.row.over_committed and host.row.used == {'VCPU': 2}
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('how', ENDED)
def test_it_ends_with_its_create_where_the_plan_holds_it_no_more(store, host, how):
    place = planned(store, {'a': host}, seconds=-1)['a']
    draft = created(store, place, **lease_of(how))
    end(how, store, host, draft, place)
    ended = now(store, place)
    assert not ended.is_live and ended.former_reservation is None
    assert ended.member_name == 'a'
    assert host.row.used == {}
    assert store.claims.audit() == CLEAN


def test_an_operator_ends_a_place_whoever_has_it(store, host, place):
    created(store, place)
    store.claims.force_release(place.id, 'by hand')
    assert state_of(store, place) == 'released'
    assert host.row.used == {}
    assert store.claims.audit() == CLEAN


def test_a_place_is_confirmed_once_a_create_has_it(store, host, place):
    early = host.confirm(place)[0]
    assert (early.outcome, early.reason) == (
        'gone',
        'it is a place of a plan that no create has taken over',
    )
    created(store, place, consumer := new_uuid())
    assert host.confirm(place)[0].outcome == 'ok'
    running = now(store, place)
    assert (running.state, running.lifecycle, running.former_reservation) == (
        'confirmed',
        'host',
        None,
    )
    assert (running.member_name, running.consumer) == ('web-1', consumer)
    assert store.claims.audit() == CLEAN
    host.report([])
    assert state_of(store, place) == 'released'
    assert host.row.used == {}
    assert store.claims.audit() == CLEAN


def test_a_report_that_lists_its_consumer_confirms_it(store, host, place):
    created(store, place, consumer := new_uuid())
    host.report([a_guest(consumer)])
    running = now(store, place)
    assert (running.state, running.lifecycle, running.former_reservation) == (
        'confirmed',
        'host',
        None,
    )
    assert store.claims.audit() == CLEAN


def test_a_guest_that_runs_under_the_id_of_a_free_place_ends_it(store, host, place):
    """The database was put back: it has forgotten the create that took the place over."""
    host.report([Running(consumer=(guest := new_uuid()), claim_id=place.id)])
    assert now(store, place).state == 'released'
    running = places(store, place.group)['web-1']
    assert (running.consumer, running.state, running.lifecycle) == (guest, 'confirmed', 'host')
    assert (running.adopted, running.allocations) == (True, place.allocations)
    assert host.row.used == {'VCPU': 2}
    assert store.claims.audit() == CLEAN
    host.report([Running(consumer=guest, claim_id=place.id)])
    assert places(store, place.group)['web-1'].id == running.id


def test_a_report_without_its_consumer_ends_no_place(store, host, place):
    host.report([])
    assert now(store, place).is_free_reservation
    created(store, place)
    host.report([])
    assert now(store, place).is_taken


def test_a_place_that_was_confirmed_is_cancelled_no_more(store, host, place):
    draft = created(store, place)
    host.confirm(place)
    store.requests.cancel_request(draft.id, 'late')
    assert state_of(store, place) == 'confirmed'


def test_a_create_that_is_given_up_gives_its_places_back(store, host):
    place_of = planned(store, {'a': host, 'b': host})
    draft = a_create(by(place_of['a']), by(place_of['b'])).unfinished()
    assert report_outcome(store, draft).outcome is CommitStatus.PARTIAL
    store.requests.give_up(draft.id, 'worker-1', 1)
    assert [place.is_free_reservation for place in places(store, place_of['a'].group).values()] == [
        True,
        True,
    ]
    assert store.requests.load_request(draft.id) is None
    assert store.claims.audit() == CLEAN


def test_an_attempt_that_is_taken_over_goes_on_with_its_place_or_gives_it_back(store, host):
    place_of = planned(store, {'a': host, 'b': host})
    takes = [by(place) for place in place_of.values()]
    draft = a_create(*takes).unfinished().within(-1)
    assert report_outcome(store, draft).outcome is CommitStatus.PARTIAL
    again = a_create(takes[0], request_id=draft.id).taking_over(1)
    assert report_outcome(store, again).outcome is CommitStatus.PLACED
    taken, other = places(store, place_of['a'].group).values()
    assert (taken.id, taken.request_id, taken.attempt) == (place_of['a'].id, draft.id, 2)
    assert taken.former_reservation.request_id == place_of['a'].request_id
    assert other.is_free_reservation and state_of(store, place_of['b']) == 'released'
    assert store.claims.audit() == CLEAN


def test_an_attempt_that_is_taken_over_claims_elsewhere_for_the_same_consumer(store, host, other):
    place = planned(store, {'a': host})['a']
    draft = a_create(by(place, consumer := new_uuid())).unfinished().within(-1)
    assert report_outcome(store, draft).outcome is CommitStatus.PARTIAL
    again = a_draft(draft.id).taking_over(1).taking(other, consumer)
    assert report_outcome(store, again).outcome is CommitStatus.PLACED
    assert (state_of(store, place), now(store, place).reason) == ('released', 'taken over')
    assert places(store, place.group)['a'].is_free_reservation
    assert (host.row.used, other.row.used) == ({'VCPU': 1}, {'VCPU': 1})
    assert store.claims.audit() == CLEAN


def test_a_free_place_ends_with_the_lease_of_its_plan(store, host):
    place = planned(store, {'a': host}, seconds=-1)['a']
    assert [outcome.claim_id for outcome in store.claims.sweep(10).outcomes] == [place.id]
    assert state_of(store, place) == 'expired'
    outcome = report_outcome(store, a_create(by(place)))
    assert (outcome.outcome, outcome.reason) == (
        'dropped',
        f"the place of member 'a' of group {place.group} is expired already",
    )
    assert store.claims.audit() == CLEAN


# -- leases, and the end of a plan ------------------------------------------------------
def test_a_plan_is_extended_whoever_has_its_places(store, host):
    place_of = planned(store, {'a': host, 'b': host, 'c': host}, seconds=100)
    group = place_of['a'].group
    created(store, place_of['b'])
    created(store, place_of['c'])
    host.confirm(place_of['c'])
    before = now(store, place_of['b'])
    result = store.plans.extend_plan(group, 5000, 1000)
    assert [outcome.outcome for outcome in result.outcomes] == ['ok', 'ok', 'kept']
    free, taken, plan = (
        now(store, place_of['a']),
        now(store, place_of['b']),
        store.plans.load_group_plan(group),
    )
    assert free.lease_until == taken.former_reservation.lease_until == plan.lease_until
    assert place_of['a'].lease_until + 800 < plan.lease_until < place_of['a'].lease_until + 1000
    assert taken.lease_until == before.lease_until
    store.plans.extend_plan(group, 1, 1000)
    assert store.plans.load_group_plan(group).lease_until == plan.lease_until
    assert store.claims.audit() == CLEAN


def test_a_spare_place_is_not_held_longer_unless_a_create_has_it(store, host):
    place_of = planned(store, {'a': host, 'b': host, 'c': host}, seconds=100)
    created(store, place_of['b'])
    spare = [place_of['a'].id, place_of['b'].id]
    result = store.plans.extend_plan(place_of['a'].group, 5000, 5000, spare)
    assert [outcome.outcome for outcome in result.outcomes] == ['kept', 'ok', 'ok']
    until = store.plans.load_group_plan(place_of['a'].group).lease_until
    assert now(store, place_of['a']).lease_until == place_of['a'].lease_until < until
    assert (
        now(store, place_of['b']).former_reservation.lease_until
        == now(store, place_of['c']).lease_until
        == until
    )
    assert store.claims.audit() == CLEAN


def test_a_plan_that_holds_nothing_is_not_held_longer(store, host):
    place_of = planned(store, {'a': host}, seconds=100)
    created(store, place_of['a'])
    host.confirm(place_of['a'])
    before = store.plans.load_group_plan(place_of['a'].group)
    result = store.plans.extend_plan(before.group_uuid, 5000, 5000)
    assert [outcome.outcome for outcome in result.outcomes] == ['kept']
    assert store.plans.load_group_plan(before.group_uuid).lease_until == before.lease_until


def test_a_request_extends_the_places_that_it_has_and_no_others(store, place):
    outcomes = store.requests.extend_request(place.request_id, 9000, 9000, 9000).outcomes
    assert [outcome.outcome for outcome in outcomes] == ['kept']
    assert now(store, place).lease_until == place.lease_until
    draft = created(store, place)
    before = now(store, place)
    result = store.requests.extend_request(draft.id, 9000, 500, 9000)
    assert [outcome.outcome for outcome in result.outcomes] == ['ok']
    after = now(store, place)
    assert before.lease_until + 300 < after.lease_until < before.lease_until + 500
    assert after.former_reservation == before.former_reservation
    assert store.claims.audit() == CLEAN


def test_a_plan_is_released_and_creates_go_on_without_it(store, host):
    place_of = planned(store, {'a': host, 'b': host, 'c': host})
    group = place_of['a'].group
    draft = created(store, place_of['b'])
    created(store, place_of['c'])
    host.confirm(place_of['c'])
    result = store.plans.release_plan(group, 'not needed')
    assert [outcome.outcome for outcome in result.outcomes] == ['ok', 'kept', 'kept']
    assert (state_of(store, place_of['a']), now(store, place_of['a']).reason) == (
        'released',
        'not needed',
    )
    assert store.plans.load_group_plan(group) is None
    taken = now(store, place_of['b'])
    assert (taken.lifecycle, taken.former_reservation, taken.member_name) == ('host', None, 'b')
    assert host.row.used == {'VCPU': 2}
    assert store.claims.audit() == CLEAN
    store.requests.cancel_request(draft.id, 'over')
    assert state_of(store, place_of['b']) == 'released'
    assert state_of(store, place_of['c']) == 'confirmed'
    assert store.claims.audit() == CLEAN


def test_a_create_without_a_plan_any_more_is_confirmed(store, host, place):
    created(store, place)
    store.plans.release_plan(place.group, '')
    assert host.confirm(place)[0].outcome == 'ok'
    assert store.claims.audit() == CLEAN


def test_members_of_a_plan_are_released_alone(store, host):
    place_of = planned(store, {'a': host, 'b': host, 'c': host})
    group = place_of['a'].group
    created(store, place_of['b'])
    store.plans.release_plan(group, 'shrunk', ['a', 'b'])
    assert [state_of(store, place) for place in place_of.values()] == [
        'released',
        'reserved',
        'reserved',
    ]
    assert now(store, place_of['b']).lifecycle == 'host'
    assert now(store, place_of['c']).is_free_reservation
    assert store.plans.load_group_plan(group) is not None
    assert store.claims.audit() == CLEAN


def test_a_plan_that_was_made_beside_another_is_made_again_whatever_bars_it(store, host):
    place = planned(store, {'a': host})['a']
    created(store, place)
    host.confirm(place)
    late = a_plan(place.group, {'a': host}, generation=generation_of(store, place.group))
    [drafted] = late.build().claims
    runs = msgspec.structs.replace(drafted.claim, consumer=now(store, place).consumer)
    late = late.having(claims=[ClaimDraft(claim=runs)])
    assert commit(store, late).outcomes[0].outcome is CommitStatus.GROUP_CHANGED
    other = ClaimDraft(claim=msgspec.structs.replace(runs, member_name='b'))
    plan = msgspec.structs.replace(late.build().plan, revision=2)
    newer = late.having(plan=plan, claims=[other])
    assert commit(store, newer).outcomes[0].outcome is CommitStatus.REJECTED
    assert store.claims.audit() == CLEAN


def test_a_release_of_an_earlier_plan_ends_no_later_one(store, host):
    group = new_uuid()
    planned(store, {'a': host}, group=group)
    earlier = store.plans.load_group_plan(group).request_id
    store.plans.release_plan(group, 'not needed', planned_by=earlier)
    generation = generation_of(store, group)
    later = planned(store, {'a': host}, group=group, generation=generation)['a']
    with pytest.raises(exceptions.Refused, match=r'request\.planned_by: expected') as refusal:
        store.plans.release_plan(group, 'not needed', planned_by=earlier)
    assert refusal.value.kwargs['field'] == 'request.planned_by'
    assert now(store, later).is_free_reservation
    store.plans.release_plan(group, '', planned_by=store.plans.load_group_plan(group).request_id)
    assert not now(store, later).is_live
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('group', ['00000000-0000-4000-8000-00000000000f', 'no id' * 50, ''])
def test_what_has_no_plan_is_not_extended_and_not_released(store, group):
    with pytest.raises(exceptions.NotFound, match='plan of group'):
        store.plans.extend_plan(group, 1, 1)
    with pytest.raises(exceptions.NotFound, match='plan of group'):
        store.plans.release_plan(group, '')
    assert store.plans.load_group_plan(group) is None


def test_a_group_whose_places_are_gone_is_removed_with_its_plan(store, place):
    with pytest.raises(exceptions.InUse):
        store.groups.remove_group(place.group)
    store.plans.release_plan(place.group, '', ['web-1'])
    store.groups.remove_group(place.group)
    assert store.plans.load_group_plan(place.group) is None


# -- reading ----------------------------------------------------------------------------
def test_plans_are_listed_by_project(store, host):
    groups = sorted(new_uuid() for _ in range(3))
    for group, project in zip(groups, ('p1', 'p2', 'p1'), strict=True):
        planned(store, {'a': host}, group=group, project=project)
    assert [plan.group_uuid for plan in store.plans.group_plans(10)] == groups
    assert [plan.group_uuid for plan in store.plans.group_plans(1, groups[0])] == groups[1:2]
    assert [plan.group_uuid for plan in store.plans.group_plans(10, project='p1')] == groups[::2]


def test_places_are_read_by_group_with_those_that_ended(store, host):
    place_of = planned(store, {'b': host, 'a': host})
    group, empty = place_of['a'].group, new_uuid()
    store.plans.release_plan(group, '', ['b'])
    live_ones = store.plans.load_reservations([group, empty])
    assert [claim.id for claim in live_ones[group]] == [place_of['a'].id]
    assert live_ones[empty] == []
    ended = store.plans.load_reservations([group], ended=True)[group]
    assert [(claim.member_name, str(claim.state)) for claim in ended] == [
        ('a', 'reserved'),
        ('b', 'released'),
    ]
    assert [claim.id for claim in store.claims.list_claims(group=group)] == sorted(
        claim.id for claim in ended
    )
    assert store.claims.list_claims(group=empty) == []


def test_what_places_hold_counts_until_they_are_confirmed(store, host):
    place_of = planned(store, {'a': host, 'b': host, 'c': host}, project='p1', vcpu=2, ram=512)
    draft = a_create(*(by(place_of[name], project_id='p1') for name in 'bc'))
    assert report_outcome(store, draft).outcome is CommitStatus.PLACED
    host.confirm(place_of['c'])
    usage = store.quotas.planned_usage('p1')
    assert (usage.reservations, usage.amounts) == (2, {'VCPU': 4, 'MEMORY_MB': 1024})
    assert store.quotas.planned_usage('p2').reservations == 0
