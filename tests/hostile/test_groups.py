# SPDX-License-Identifier: Apache-2.0
"""Group rules: what is stored is what holds, whoever asks and whatever was known before."""

from collections.abc import Callable

import msgspec
import pytest

from gantt import plugin_loader
from gantt.core.claims.commit import CommitStatus
from gantt.core.messages.request import CancelClaims, GroupRef, Policy
from gantt.core.messages.resource_classes import Inventory
from gantt.stores import AllStores
from tests.builders import (
    CLEAN,
    a_draft,
    a_group,
    a_host,
    commit,
    generation_of,
    new_uuid,
    report_outcome,
)
from tests.conftest import READERS, STORES
from tests.world import Host, World, a_request, hosts_of

Make = Callable[[str], AllStores]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, make_store: Make) -> AllStores:
    """An empty store of each kind."""
    return make_store(request.param)


def a_world(store: AllStores, hosts: int) -> World:
    """Two schedulers on the store."""
    world = World(store, hosts=hosts)
    world.another_scheduler()
    return world


def replaced(world: World, group: str, was: str, becomes: str) -> None:
    """The group is planned with by all schedulers, then removed and made with another rule."""
    world.store.groups.save_group(a_group(was, uuid=group))
    for scheduler in world.schedulers:
        request = a_request(group=GroupRef(uuid=group))
        assert world.select(request, scheduler).outcome == 'placed'
        world.scheduler.cancel(CancelClaims(request_id=request.request_id))
    world.store.groups.remove_group(group)
    world.store.groups.save_group(a_group(becomes, uuid=group))


@pytest.mark.finding('D1', 'the stored rule of a group is compared at the commit')
def test_a_group_made_again_with_another_rule_has_that_rule_at_once(store):
    world, group = a_world(store, hosts=2), new_uuid()
    replaced(world, group, 'affinity', 'anti-affinity')
    # No news was read since: what is known here of the rule is the old one.
    handles = [
        world.ask(a_request(group=GroupRef(uuid=group)), by)
        for by in (*world.schedulers, *world.schedulers)
    ]
    for _ in range(6):
        for scheduler in world.schedulers:
            scheduler.placing.step()
        world.clock.advance(0.2)
    answers = [world.replies.answers[handle] for handle in handles]
    placed = [hosts_of(a)[0] for a in answers if a.outcome == 'placed']
    assert sorted(placed) == ['cmp-1', 'cmp-2']
    assert [a.outcome for a in answers].count('no_valid_host') == 2
    assert store.groups.load_group(group).policy == 'anti-affinity'
    assert store.claims.audit() == CLEAN


@pytest.mark.finding('D1', 'the stored rule of a group is compared at the commit')
def test_room_under_the_new_rule_is_found_at_once(store):
    """Nothing is committed for who finds no host: the rule has to be the new one before."""
    world, group = a_world(store, hosts=1), new_uuid()
    replaced(world, group, 'anti-affinity', 'affinity')
    world.clock.advance(1.0)
    for by in (*world.schedulers, *world.schedulers):
        handle = world.ask(a_request(group=GroupRef(uuid=group)), by)
        by.placing.step()
        by.placing.step()
        assert world.replies.answers[handle].outcome == 'placed'


@pytest.mark.finding('D1', 'the stored rule of a group is compared at the commit')
@pytest.mark.parametrize(
    ('asked', 'words'),
    [
        ({'policy': Policy.AFFINITY}, "policy 'affinity'"),
        ({'policy': Policy.SOFT_ANTI_AFFINITY}, "policy 'soft-anti-affinity'"),
        (
            {'policy': Policy.ANTI_AFFINITY, 'max_per_host': 9},
            "policy 'anti-affinity' and max_per_host 9",
        ),
    ],
    ids=['hard', 'soft', 'more-per-host'],
)
def test_a_caller_with_another_rule_is_refused_with_both_named(store, asked, words):
    world, group = a_world(store, hosts=2), new_uuid()
    store.groups.save_group(a_group('anti-affinity', uuid=group))
    assert world.select(a_request(group=GroupRef(uuid=group))).outcome == 'placed'
    for scheduler in world.schedulers:
        answer = world.select(a_request(group=GroupRef(uuid=group, **asked)), scheduler)
        assert answer.outcome == 'refused'
        assert words in answer.reason
        assert "policy 'anti-affinity' and max_per_host 1" in answer.reason
    assert len(store.groups.load_group(group).members) == 1
    same = GroupRef(uuid=group, policy=Policy.ANTI_AFFINITY)
    assert world.select(a_request(group=same)).outcome == 'placed'


@pytest.mark.finding('D1', 'the stored rule of a group is compared at the commit')
@pytest.mark.parametrize('second', ['anti-affinity', 'soft-affinity'])
@pytest.mark.parametrize('first', ['affinity', 'soft-anti-affinity'])
def test_of_two_first_callers_with_different_rules_one_wins(store, first, second):
    world, group = a_world(store, hosts=3), new_uuid()
    handles = [
        world.ask(a_request(group=GroupRef(uuid=group, policy=Policy(policy))), by)
        for policy, by in zip((first, second), world.schedulers, strict=True)
    ]
    for scheduler in world.schedulers:  # each plans before it could hear of the other
        scheduler.placing.step()
    world.turn(times=5)
    won, lost = (world.replies.answers[handle] for handle in handles)
    assert (won.outcome, lost.outcome) == ('placed', 'refused')
    assert f'{first!r}' in lost.reason and f'{second!r}' in lost.reason
    assert store.groups.load_group(group).policy == first


@pytest.mark.finding('D1', 'the stored rule of a group is compared at the commit')
def test_of_two_rules_in_one_batch_the_first_wins(store):
    host, group = a_host().on(store), new_uuid()
    drafts = [
        a_draft().planned_at(0, group, policy).taking(host)
        for policy in ('anti-affinity', 'affinity', 'anti-affinity')
    ]
    outcomes = [outcome.outcome for outcome in commit(store, *drafts).outcomes]
    # What was planned beside the second is planned again.
    assert outcomes == [CommitStatus.PLACED, CommitStatus.GROUP_CHANGED, CommitStatus.GROUP_CHANGED]
    assert store.groups.load_group(group).policy == 'anti-affinity'
    now = generation_of(store, group)
    assert (
        report_outcome(store, drafts[1].planned_at(now, group, 'affinity')).outcome
        is CommitStatus.GROUP_CHANGED
    )
    assert report_outcome(store, drafts[2].planned_at(now, group)).outcome is CommitStatus.PLACED


@pytest.mark.finding('D1', 'the stored rule of a group is compared at the commit')
def test_a_group_that_was_removed_does_not_come_back_by_what_is_remembered_of_it(store):
    world, group = a_world(store, hosts=2), new_uuid()
    replaced(world, group, 'affinity', 'anti-affinity')
    store.groups.remove_group(group)
    for scheduler in world.schedulers:
        answer = world.select(a_request(group=GroupRef(uuid=group)), scheduler)
        assert answer.outcome == 'refused'
        assert 'was not found' in answer.reason
    assert store.groups.load_group(group) is None


@pytest.mark.finding('D1', 'the stored rule of a group is compared at the commit')
def test_a_group_made_again_with_the_same_rule_is_another_one(store):
    """As many have come to it as to the one before, and one scheduler has not heard of them."""
    world, group = a_world(store, hosts=1), new_uuid()
    late, other = world.schedulers
    store.groups.save_group(a_group('anti-affinity', uuid=group))
    request = a_request(group=GroupRef(uuid=group))
    assert world.select(request, late).outcome == 'placed'
    world.scheduler.cancel(CancelClaims(request_id=request.request_id))
    world.turn(times=2)
    store.groups.remove_group(group)
    store.groups.save_group(a_group('anti-affinity', uuid=group))
    answers = []
    for by in (other, late):
        if by is other:
            by.cache.fetch_news()
        handle = world.ask(a_request(group=GroupRef(uuid=group)), by)
        for _ in range(3):
            by.placing.step()
        answers.append(world.replies.answers[handle].outcome)
    assert answers == ['placed', 'no_valid_host']
    assert len(store.groups.load_group(group).members) == 1


TITLE_TOGETHER = 'members bound to one host are placed while a host takes all of them'


def roomy(world: World, name: str, vcpu: int, ram: int, **facts: object) -> Host:
    """A host of so many cores and so much memory; more free memory ranks first."""
    host = Host(
        world,
        name,
        inventories={
            'VCPU': Inventory(total=vcpu),
            'MEMORY_MB': Inventory(total=ram),
            'DISK_GB': Inventory(total=500),
        },
        **facts,
    )
    host.report()
    return host


@pytest.mark.finding('G0.2', TITLE_TOGETHER)
def test_members_bound_to_one_host_go_where_all_of_them_fit(store):
    world = World(store)
    for number in range(20):
        roomy(world, f'best-{number}', 4, 131_072)
    roomy(world, 'whole', 16, 32_768)
    world.turn()
    answer = world.select(a_request(2, vcpu=4, group=a_ref('affinity')))
    assert answer.outcome == 'placed'
    assert hosts_of(answer) == ['whole', 'whole']
    # With a member there the others follow it, or have no place.
    group = a_ref('affinity')
    assert hosts_of(world.select(a_request(1, vcpu=4, group=group)))[0].startswith('best')
    refused = world.select(a_request(1, vcpu=4, group=group))
    assert refused.outcome == 'no_valid_host'
    too_many = world.select(a_request(5, vcpu=4, group=a_ref('affinity')))
    assert too_many.outcome == 'no_valid_host'
    assert 'member 2 of 5' in too_many.reason
    assert store.claims.audit() == CLEAN


@pytest.mark.finding('G0.2', TITLE_TOGETHER)
def test_where_rules_count_other_things_than_room_other_hosts_are_tried():
    """Guests of a host are counted by a filter: the best ones have as many as they may."""
    world = World()
    filters = [*plugin_loader.DEFAULT_FILTERS, 'NumInstancesFilter']
    pipeline = plugin_loader.load_pipeline(filters, options={'max_instances_per_host': 4})
    world.scheduler.placing.use_pipeline(pipeline)
    hosts = [roomy(world, f'cmp-{number}', 64, 131_072 - number) for number in range(4)]
    world.turn()
    for host in hosts[:3]:
        for _ in range(2):
            assert world.select(a_request(force_hosts=[host.name])).outcome == 'placed'
    answer = world.select(a_request(3, ram=1, group=a_ref('affinity')))
    assert hosts_of(answer) == ['cmp-3'] * 3


@pytest.mark.finding('G0.3', 'requests of a soft group are whole')
@pytest.mark.parametrize('policy', ['soft-affinity', 'soft-anti-affinity', 'affinity'])
def test_a_request_of_a_group_is_one_commit(store, policy):
    world = World(store, hosts=3, claims_per_commit=4)
    sizes = []
    inner = store.requests.commit

    def commit(batch):
        sizes.append([(draft.whole, len(draft.claims)) for draft in batch])
        return inner(batch)

    store.requests.commit = commit
    answer = world.select(a_request(9, ram=64, group=a_ref(policy)))
    assert answer.outcome == 'placed'
    assert sizes == [[(True, 9)]]
    assert store.groups.load_group(answer_group(store)).policy == policy


def a_ref(policy: str) -> GroupRef:
    return GroupRef(uuid=new_uuid(), policy=Policy(policy))


def answer_group(store: AllStores) -> str:
    (uuid,) = store.feed.load_everything().rules
    return uuid


def purged(store: AllStores) -> int:
    return store.retention.purge(
        decisions=1000, tombstone_seconds=-1.0, request_seconds=-1.0, limit=100
    )


@pytest.mark.finding('D8', 'rules that requests brought go when nobody is left')
@pytest.mark.parametrize('store', READERS, indirect=True)
def test_the_rule_that_a_request_brought_goes_with_its_last_claim(store):
    world, group, hand_made = a_world(store, hosts=2), new_uuid(), new_uuid()
    store.groups.save_group(a_group('affinity', uuid=hand_made, name='made by hand'))
    request = a_request(group=GroupRef(uuid=group, policy=Policy.ANTI_AFFINITY))
    assert world.select(request).outcome == 'placed'
    world.turn()
    purged(store)
    assert store.groups.load_group(group) is not None
    assert all(s.cache.working.group_generation(group) for s in world.schedulers)
    world.scheduler.cancel(CancelClaims(request_id=request.request_id))
    while purged(store):
        pass
    assert [group.uuid for group in store.groups.list_groups(10)] == [hand_made]
    world.turn(times=2)
    for scheduler in world.schedulers:
        assert list(scheduler.cache.working.generations()) == [hand_made]
        assert list(scheduler.cache.rules) == [hand_made]
    # Another rule is nobody's business now.
    again = a_request(group=GroupRef(uuid=group, policy=Policy.AFFINITY))
    assert world.select(again).outcome == 'placed'


@pytest.mark.finding('D8', 'a group that somebody made by itself stays, named or not')
@pytest.mark.parametrize('store', READERS, indirect=True)
def test_a_group_without_a_name_stays_until_it_is_removed(store):
    world, group = a_world(store, hosts=1), new_uuid()
    store.groups.save_group(msgspec.structs.replace(a_group('affinity', uuid=group), name=''))
    while purged(store):
        pass
    request = a_request(group=GroupRef(uuid=group))
    assert world.select(request).outcome == 'placed'
    world.scheduler.cancel(CancelClaims(request_id=request.request_id))
    while purged(store):
        pass
    assert store.groups.load_group(group) is not None


@pytest.mark.finding('D8', 'rules that requests brought go when nobody is left')
@pytest.mark.parametrize('store', READERS, indirect=True)
def test_what_is_remembered_of_a_group_that_went_matches_nothing_of_its_next_life(store):
    host, group = a_host().on(store), new_uuid()
    first = a_draft().planned_at(0, group).taking(host)
    assert report_outcome(store, first).outcome is CommitStatus.PLACED
    remembered = generation_of(store, group)
    store.requests.cancel_request(first.id, 'no more')
    while purged(store):
        pass
    assert generation_of(store, group) == 0
    assert (
        report_outcome(store, a_draft().planned_at(0, group).taking(host)).outcome
        is CommitStatus.PLACED
    )
    late = a_draft().planned_at(remembered, group).taking(host)
    assert report_outcome(store, late).outcome is CommitStatus.GROUP_CHANGED


@pytest.mark.finding('D8', 'rules that requests brought go when nobody is left')
def test_a_full_reading_forgets_groups_that_are_gone():
    world = World(hosts=2, reload_seconds=5.0)
    for _ in range(3):
        assert world.select(a_request(group=a_ref('affinity'))).outcome == 'placed'
    cache = world.scheduler.cache
    assert len(cache.working.generations()) == 3
    # Gone without a word, as where the feed was not read for long.
    gone = next(iter(world.store.database.tables.groups))
    del world.store.database.tables.groups[gone]
    world.turn(10.0, times=2)
    assert len(cache.working.generations()) == len(cache.rules) == 2
