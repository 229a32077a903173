# SPDX-License-Identifier: Apache-2.0
"""Flow 1 in a small world: what callers get, and what the store then holds."""

import msgspec
import pytest

from gantt import exceptions
from gantt.core.claims.request_state import Attempt, RequestEvent, back_off, transition
from gantt.core.messages.request import CancelClaims, ExtendClaims, GetRequest
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records import decision_codec
from gantt.core.records.decision import Outcome
from tests.builders import CLEAN
from tests.world import World, a_group, a_request, hosts_of, new_uuid, sqlite_store


def test_a_request_is_answered_with_claimed_hosts_and_alternates():
    world = World(hosts=4)
    answer = world.select(a_request(2))
    assert answer.outcome is Outcome.PLACED
    assert len(answer.selections) == 2
    for selections in answer.selections:
        chosen, *alternates = selections
        claim = world.store.claims.load_claim(chosen.claim_id)
        assert (claim.host, claim.state, claim.consumer) == (
            chosen.host,
            'reserved',
            chosen.consumer,
        )
        assert chosen.lease_seconds == 120
        assert len(alternates) == 2
        assert all(a.claim_id is None for a in alternates)
    assert world.audit() == CLEAN


def test_members_spread_because_each_sees_the_picks_before_it():
    world = World(hosts=4)
    assert sorted(hosts_of(world.select(a_request(4)))) == ['cmp-1', 'cmp-2', 'cmp-3', 'cmp-4']


def test_a_repeat_gets_the_same_claims():
    world = World(hosts=3)
    request = a_request(2)
    first = world.select(request)
    world.turn(5)
    again = world.select(request)
    assert again == first
    assert len(world.store.claims.list_claims()) == 2


def test_a_repeat_to_another_scheduler_gets_the_same_claims():
    world = World(hosts=3)
    other = world.another_scheduler()
    request = a_request(2)
    assert world.select(request, by=other) == world.select(request)
    assert len(world.store.claims.list_claims()) == 2


def test_callers_of_one_request_that_is_inside_get_one_answer():
    world = World(hosts=2)
    request = a_request()
    first, second = world.ask(request), world.ask(request)
    world.turn()
    assert world.replies.answers[first] == world.replies.answers[second]
    assert len(world.store.claims.list_claims()) == 1


def test_a_request_id_with_another_body_is_refused():
    world = World(hosts=2)
    request = a_request()
    world.select(request)
    other = a_request(vcpu=2, request_id=request.request_id)
    assert world.select(other).outcome is Outcome.REUSED
    assert len(world.store.claims.list_claims()) == 1


def test_no_room_says_why_and_claims_nothing():
    world = World(hosts=3)
    answer = world.select(a_request(ram=64_000))
    assert answer.outcome is Outcome.NO_VALID_HOST
    assert answer.reason.startswith('0/3 hosts fit')
    assert 'MEMORY_MB' in answer.reason
    assert world.store.claims.list_claims() == []
    assert world.recorder.records[-1].outcome == 'no_valid_host'


def test_one_member_too_many_claims_nothing_at_all():
    world = World(hosts=2)
    answer = world.select(a_request(3, ram=20_000))
    assert answer.outcome is Outcome.NO_VALID_HOST
    assert world.store.claims.list_claims() == []
    # and the table got its room back
    assert world.select(a_request(2, ram=20_000)).outcome is Outcome.PLACED


def test_silent_hosts_are_not_known_rather_than_full():
    world = World(hosts=2)
    world.turn(200)
    answer = world.select(a_request())
    assert answer.outcome is Outcome.UNKNOWN
    assert 'none of 2 hosts has reported' in answer.reason


def test_a_second_scheduler_sees_the_claims_of_the_first():
    world = World(hosts=2)
    other = world.another_scheduler()
    world.select(a_request(ram=30_000))
    world.select(a_request(ram=30_000))
    world.turn()
    assert world.select(a_request(ram=30_000), by=other).outcome is Outcome.NO_VALID_HOST
    assert world.audit() == CLEAN


def test_two_schedulers_with_old_tables_never_over_commit():
    world = World(hosts=3, feed_seconds=1e9)
    other = world.another_scheduler()
    handles = []
    for _ in range(3):
        for scheduler in (world.scheduler, other):
            handles.append(world.ask(a_request(ram=30_000), by=scheduler))
    world.turn(times=40)
    outcomes = [world.replies.answers[h].outcome for h in handles]
    assert outcomes.count(Outcome.PLACED) == 3
    assert outcomes.count(Outcome.NO_VALID_HOST) == 3
    assert world.audit() == CLEAN


def test_who_loses_races_comes_back_later_each_time_and_not_together():
    attempts = {new_uuid(): Attempt(number=1, todo=[0]) for _ in range(50)}
    waits = []
    for lost in range(10):
        waits.append([back_off(*pair) for pair in attempts.items()])
        attempts = {
            request_id: transition(attempt, RequestEvent.DROPPED, conflict=f'cmp-{lost}')[0]
            for request_id, attempt in attempts.items()
        }
    assert waits[0] == waits[1] == [0.0] * 50
    for lost, seconds in enumerate(waits[2:]):
        most = min(0.005 * 2**lost, 0.1)
        assert most / 2 <= min(seconds) < max(seconds) <= most
        assert len(set(seconds)) > 40


def test_lost_races_are_counted_by_member_and_end_where_there_is_room():
    world = World(sqlite_store, hosts=12, feed_seconds=1e9)
    others = [world.another_scheduler() for _ in range(3)]
    world.turn()  # everybody has read the feed for the last time
    asked = [
        world.ask(a_request(ram=30_000), by=scheduler)
        for scheduler in (world.scheduler, *others)
        for _ in range(3)
    ]
    world.turn(times=60)
    placed = [world.replies.answers[handle] for handle in asked]
    assert sorted(host for answer in placed for host in hosts_of(answer)) == sorted(world.hosts)
    decisions = [world.store.records.load_decision(answer.decision_id) for answer in placed]
    lost = sum(len(decision_codec.unpack(record[0]).decision.conflicts) for record in decisions)
    assert 0 < lost == world.recorder.counts['gantt_conflicts_total']
    assert world.audit() == CLEAN


def test_units_that_changed_since_the_table_was_read_are_met_once_and_then_known():
    world = World(sqlite_store, hosts=2, feed_seconds=1e9)
    world.turn()  # the feed is read for the last time
    steps = {
        'VCPU': Inventory(total=64, step_size=2),
        'MEMORY_MB': Inventory(total=1 << 20),
        'DISK_GB': Inventory(total=500),
    }
    # Others receive what the hosts report now.
    main, world.scheduler = world.scheduler, world.another_scheduler()
    for host in world.hosts.values():
        host.report(inventories=steps)
    world.turn()
    answer = world.select(a_request(vcpu=3), by=main)
    assert answer.outcome is Outcome.NO_VALID_HOST
    (record,) = world.recorder.records
    (conflict,) = decision_codec.unpack(record.packed).decision.conflicts
    assert conflict.endswith(': VCPU: only multiples of 2 vCPU, need 3 vCPU')
    assert world.recorder.counts['gantt_conflicts_total'] == 1
    assert world.select(a_request(vcpu=4), by=main).outcome is Outcome.PLACED
    assert world.recorder.counts['gantt_conflicts_total'] == 1
    assert world.audit() == CLEAN


def test_anti_affinity_holds_between_schedulers():
    world = World(hosts=3, feed_seconds=1e9)
    other = world.another_scheduler()
    group = a_group()
    handles = [
        world.ask(a_request(group=group), by=s) for s in (world.scheduler, other, world.scheduler)
    ]
    world.turn(times=20)
    answers = [world.replies.answers[h] for h in handles]
    assert all(a.outcome is Outcome.PLACED for a in answers)
    assert sorted(h for a in answers for h in hosts_of(a)) == ['cmp-1', 'cmp-2', 'cmp-3']
    assert world.select(a_request(group=group)).outcome is Outcome.NO_VALID_HOST


def test_affinity_keeps_the_members_together():
    world = World(hosts=3)
    group = a_group('affinity')
    first = hosts_of(world.select(a_request(2, group=group)))
    second = hosts_of(world.select(a_request(group=group)))
    assert len(set(first + second)) == 1


@pytest.mark.parametrize('turns', [0, 1], ids=['in one batch', 'in the next batch'])
def test_affinity_is_to_where_a_member_is_now(turns):
    world = World(hosts=3, feed_seconds=1e9)
    group = a_group('affinity')
    (before,) = hosts_of(world.select(first := a_request(group=group)))
    again = a_request(group=group, consumers=first.consumers, ignore_hosts=[before])
    handles = [world.ask(again)]
    world.turn(times=turns)
    handles.append(world.ask(a_request(group=group)))
    world.turn(times=5)
    (now,), (beside,) = (hosts_of(world.replies.answers[handle]) for handle in handles)
    assert now == beside != before
    assert world.audit() == CLEAN


def test_members_that_are_placed_anew_together_stay_together():
    world = World(hosts=3)
    group = a_group('affinity')
    (before, _) = hosts_of(world.select(first := a_request(2, group=group)))
    again = a_request(group=group, consumers=first.consumers, ignore_hosts=[before])
    (now, beside) = hosts_of(world.select(again))
    assert now == beside != before
    assert world.audit() == CLEAN


def test_a_group_without_a_rule_must_be_known():
    world = World(hosts=2)
    group = msgspec.structs.replace(a_group(), policy=None)
    answer = world.select(a_request(group=group))
    assert answer.outcome is Outcome.REFUSED
    assert group.uuid in answer.reason


def test_a_large_request_goes_in_several_commits_and_is_answered_whole():
    world = World(hosts=5, claims_per_commit=4)
    answer = world.select(a_request(15))
    assert answer.outcome is Outcome.PLACED
    assert len(answer.selections) == 15
    assert len({s[0].claim_id for s in answer.selections}) == 15
    assert world.audit() == CLEAN


def test_a_large_request_that_does_not_fit_gives_back_what_it_had_claimed():
    world = World(hosts=3, claims_per_commit=2)
    answer = world.select(a_request(4, ram=30_000))
    assert answer.outcome is Outcome.NO_VALID_HOST
    assert [c for c in world.store.claims.list_claims() if c.is_live] == []
    assert world.select(a_request(3, ram=30_000)).outcome is Outcome.PLACED
    assert world.audit() == CLEAN


def test_a_dry_run_answers_and_changes_nothing():
    world = World(hosts=1)
    answer = world.select(a_request(ram=30_000, dry_run=True))
    assert answer.outcome is Outcome.PLACED
    assert answer.dry_run
    assert answer.selections[0][0].claim_id is None
    assert world.store.claims.list_claims() == []
    assert world.select(a_request(ram=30_000)).outcome is Outcome.PLACED


def test_a_rebuild_checks_and_claims_nothing():
    world = World(hosts=1)
    assert world.select(a_request(purpose='rebuild')).outcome is Outcome.PLACED
    assert world.store.claims.list_claims() == []


def test_a_full_queue_says_busy_and_when_to_retry():
    world = World(hosts=1, queue_limit=2, retry_after_ms=750)
    world.ask(a_request()), world.ask(a_request())
    answer = world.replies.answers[world.ask(a_request())]
    assert answer.outcome is Outcome.BUSY
    assert answer.retry_after_ms == 750


def test_a_budget_spent_in_the_queue_is_refused_before_any_work():
    world = World(hosts=1)
    handle = world.ask(a_request(budget_ms=1000))
    world.clock.advance(2)
    world.turn()
    assert world.replies.answers[handle].outcome is Outcome.EXPIRED
    assert world.store.claims.list_claims() == []


def test_a_budget_spent_on_the_way_is_refused_at_the_door():
    world = World(hosts=1)
    handle = object()
    world.scheduler.submit(a_request(budget_ms=1000), handle, world.replies, spent_ms=1500)
    assert world.replies.answers[handle].outcome is Outcome.EXPIRED


def test_a_cancelled_request_is_never_placed_again():
    world = World(hosts=2)
    request = a_request()
    answer = world.select(request)
    cancelled = world.scheduler.cancel(CancelClaims(request_id=request.request_id))
    assert cancelled['state'] == 'cancelled'
    assert world.store.claims.load_claim(answer.selections[0][0].claim_id).state == 'released'
    assert world.select(request).outcome is Outcome.CANCELLED
    assert world.audit() == CLEAN


def test_a_request_cancelled_before_it_came_is_not_placed():
    world = World(hosts=2)
    request = a_request()
    world.scheduler.cancel(CancelClaims(request_id=request.request_id))
    assert world.select(request).outcome is Outcome.CANCELLED
    assert world.store.claims.list_claims() == []


def test_the_stored_answer_can_be_fetched():
    world = World(hosts=2)
    request = a_request()
    answer = world.select(request)
    assert world.scheduler.get_request(GetRequest(request_id=request.request_id)) == answer
    with pytest.raises(exceptions.NotFound):
        world.scheduler.get_request(GetRequest(request_id=new_uuid()))


def test_a_lease_can_be_extended_up_to_the_longest():
    world = World(hosts=1)
    request = a_request()
    claim_id = world.select(request).selections[0][0].claim_id
    world.scheduler.extend(ExtendClaims(request_id=request.request_id, seconds=600))
    world.turn(300)
    assert world.store.claims.load_claim(claim_id).state == 'reserved'
    world.turn(601)
    assert world.store.claims.load_claim(claim_id).state == 'expired'


def test_an_unknown_resource_class_is_refused_by_name():
    world = World(hosts=1)
    request = a_request()
    spec = msgspec.structs.replace(request.spec, resources={'CUSTOM_LICENSE': 1})
    with pytest.raises(exceptions.UnknownResourceClass, match='CUSTOM_LICENSE'):
        world.ask(msgspec.structs.replace(request, spec=spec))


def test_an_unconfirmed_claim_is_free_again_after_its_lease():
    world = World(hosts=1)
    world.select(a_request(ram=30_000))
    world.hosts['cmp-1'].report()
    world.turn(100)
    assert world.select(a_request(ram=30_000)).outcome is Outcome.NO_VALID_HOST
    world.turn(40)
    world.hosts['cmp-1'].report()
    world.turn(1, times=2)
    assert world.select(a_request(ram=30_000)).outcome is Outcome.PLACED
    assert world.audit() == CLEAN


def test_an_answer_says_how_old_the_oldest_host_state_was_that_it_rests_on():
    world = World(hosts=2)
    world.turn(100)
    world.hosts['cmp-1'].report()
    world.turn(1)
    assert 100 <= world.select(a_request(alternates=1)).age_seconds <= 110


def test_callers_of_one_request_are_bounded():
    world = World(hosts=1)
    request = a_request()
    handles = [world.ask(request) for _ in range(70)]
    assert world.replies.answers[handles[-1]].outcome is Outcome.BUSY
    world.turn()
    assert sum(world.replies.answers[h].outcome is Outcome.PLACED for h in handles) == 64
