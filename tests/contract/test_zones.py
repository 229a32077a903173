# SPDX-License-Identifier: Apache-2.0
"""Zones in a database: who is around, requests that may go down, and what is claimed below."""

from collections import Counter

import msgspec
import pytest
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims.allocations import WantedAllocations
from gantt.core.claims.child_claim import ChildClaim
from gantt.core.claims.claim import State
from gantt.core.claims.commit import CommitStatus
from gantt.core.claims.idempotency_keys import request_id_in_zone
from gantt.core.messages.request import GroupRef, Policy, Purpose
from gantt.db.engine import session
from gantt.db.schema import migration, models
from gantt.zones.model.messages import ClaimBelow, ParentRecord, ZoneChanges, ZoneRecord, scoped_id
from gantt.zones.ports import LocalShare, OpenRequest, ParentAllocation
from gantt.zones.sql import changes
from tests.builders import CLEAN, a_draft, claimed, new_uuid, report_outcome, uuid_of
from tests.conftest import READERS
from tests.contract.test_threads import at_once
from tests.services import PATIENT

KINDS = READERS
EAST = ZoneRecord(uuid=uuid_of('east'), name='east', url='http://127.0.0.1:1')
PARENT = ParentRecord(name='top', identity='user-1', project_id='of-top')


@pytest.fixture
def store(request, make_store):
    return make_store(request.param, timeouts=PATIENT)


def a_request(request_id=None, **fields):
    base = {
        'id': request_id or new_uuid(),
        'fingerprint': 'body',
        'owner': 'worker-1',
        'attempt': 1,
        'seconds': 60.0,
        'consumers': [uuid_of('guest')],
        'purpose': Purpose.CREATE,
    }
    return OpenRequest(**{**base, **fields})


def outcome_of(store, request):
    """'ours', or why it is not."""
    outcome = store.zone_requests.open_request(request).outcome
    return 'ours' if outcome is None else outcome.outcome


def below(request, **fields):
    base = {
        'claim_id': new_uuid(),
        'child': EAST.uuid,
        'request_id': request.id,
        'key': new_uuid(),
        'consumer': request.consumers[0],
        'purpose': request.purpose,
        'project_id': 'demo',
        'state': 'reserved',
        'sealed_host': 'g1.' + 'x' * 60_000,
    }
    return ChildClaim(**{**base, **fields})


def finish(store, request, *claims, **changes):
    owner, attempt = changes.get('owner', request.owner), changes.get('attempt', request.attempt)
    own, group = changes.get('own'), changes.get('group')
    return store.zone_requests.finish_request(
        request.id, owner, attempt, b'answer', claims, own, group
    )


def stored(store, *args, **query):
    """Claims below without their times."""
    rows = store.child_claims.find(*args, **query)
    return [msgspec.structs.replace(row, created_at=0.0, updated_at=0.0) for row in rows]


def became(store, claim, state):
    """The zone below has said what became of a claim."""
    change = ClaimBelow(
        claim_id=claim.claim_id, key=claim.key, consumer=claim.consumer, state=State(state)
    )
    note(store, claim.child, {change.claim_id: str(change.state)})


def note(store, child, states, incarnation=5):
    changes = ZoneChanges(incarnation=incarnation, revision=7.5, claims=[])
    store.zone_claims.note_child_changes(child, changes, states, 3)


def a_rule(policy='affinity', uuid='group'):
    return GroupRef(uuid=uuid_of(uuid), policy=None if policy is None else Policy(policy))


def of_group(policy='affinity', **fields):
    return a_request(group=a_rule(policy), consumers=[new_uuid()], **fields)


def test_the_rule_of_a_group_comes_with_the_opening(store):
    store.zones.save_child_zone(EAST)
    assert outcome_of(store, of_group(None)) is CommitStatus.REJECTED
    first = store.zone_requests.open_request(of_group())
    assert (first.outcome, first.rule.policy) == (None, 'affinity')
    named = of_group(None)
    assert store.zone_requests.open_request(named).rule == first.rule
    # Nobody ever was in it: it is that of whoever comes next.
    other = of_group('anti-affinity')
    assert store.zone_requests.open_request(other).rule.policy == 'anti-affinity'
    assert not finish(store, named, below(named, group=uuid_of('group')), group=a_rule())
    claim = below(other, group=uuid_of('group'))
    assert finish(store, other, claim, group=a_rule('anti-affinity'))
    refused = store.zone_requests.open_request(of_group()).outcome
    assert refused.outcome is CommitStatus.REJECTED
    assert "exists with policy 'anti-affinity'" in refused.reason
    # A zone above may say another one once nobody is left.
    above = {'of_parent': True, 'project_id': 'of-top'}
    assert outcome_of(store, of_group(**above)) is CommitStatus.REJECTED
    became(store, claim, 'released')
    assert outcome_of(store, of_group()) is CommitStatus.REJECTED
    assert outcome_of(store, of_group(**above)) is CommitStatus.REJECTED, "it is another project's"


def test_a_zone_above_may_make_its_group_anew(store):
    store.zones.save_child_zone(EAST)
    above = {'of_parent': True, 'project_id': 'of-top'}
    first = of_group(**above)
    store.zone_requests.open_request(first)
    claim = below(first, group=uuid_of('group'), project_id='of-top')
    assert finish(store, first, claim, group=a_rule())
    assert not store.groups.is_idle_group(uuid_of('group'), 'of-top')
    became(store, claim, 'released')
    assert store.groups.is_idle_group(uuid_of('group'), 'of-top')
    assert (
        store.zone_requests.open_request(of_group('anti-affinity', **above)).rule.policy
        == 'anti-affinity'
    )


def test_a_rule_that_was_forgotten_meanwhile_is_stored_with_the_answer(store):
    store.zones.save_child_zone(EAST)
    request = of_group('soft-affinity')
    store.zone_requests.open_request(request)
    store.groups.remove_group(uuid_of('group'))
    claim = below(request, group=uuid_of('group'))
    assert finish(store, request, claim, group=a_rule('soft-affinity'))
    assert store.groups.load_group(uuid_of('group')).policy == 'soft-affinity'
    assert store.plans.zones_of_groups([uuid_of('group')]) == {uuid_of('group'): {EAST.uuid}}


def test_a_zone_stays_the_same_and_knows_of_a_database_that_went_back(store):
    first = store.zones.zone_identity()
    assert len(first.secret) == 32
    assert store.zones.zone_identity() == first
    migration.bump_incarnation(store.database.engine)
    assert store.zones.zone_identity() != first
    assert store.zones.zone_identity().uuid == first.uuid


def test_all_who_come_first_make_the_same_zone(store):
    assert (
        len(
            {
                store.zones.zone_identity().uuid
                for _ in at_once(lambda _: store.zones.zone_identity())
            }
        )
        == 1
    )


def test_zones_around_are_written_and_forgotten(store):
    store.zones.save_child_zone(EAST)
    changed = msgspec.structs.replace(EAST, enabled=False, last_resort=True, scale=0.5, offset=0.25)
    store.zones.save_child_zone(changed)
    assert store.zones.child_zones() == [changed]
    with pytest.raises(exceptions.Refused):
        store.zones.save_child_zone(msgspec.structs.replace(EAST, uuid=uuid_of('west')))
    with pytest.raises(exceptions.Refused, match=EAST.name):
        store.zones.save_child_zone(msgspec.structs.replace(EAST, name='west'))
    assert store.zones.child_zones() == [changed]
    store.zones.remove_child_zone(EAST.uuid)
    assert store.zones.child_zones() == []
    store.zones.save_parent_zone(PARENT)
    shorter = msgspec.structs.replace(PARENT, lease_seconds_max=30)
    store.zones.save_parent_zone(shorter)
    assert store.zones.parent_zones() == [shorter]
    with pytest.raises(exceptions.Refused):
        store.zones.save_parent_zone(msgspec.structs.replace(PARENT, name='other'))
    store.zones.remove_parent_zone('top')
    with pytest.raises(exceptions.NotFound):
        store.zones.remove_parent_zone('top')


def test_a_zone_above_is_not_forgotten_while_its_claims_live_below(store):
    store.zones.save_child_zone(EAST)
    store.zones.save_parent_zone(PARENT)
    request = a_request()
    assert outcome_of(store, request) == 'ours'
    claim = below(request, parent=PARENT.name)
    assert finish(store, request, claim)
    with pytest.raises(exceptions.InUse, match='1 claims'):
        store.zones.remove_parent_zone(PARENT.name)
    became(store, claim, 'released')
    store.zones.remove_parent_zone(PARENT.name)
    assert store.zones.parent_zones() == []


def test_a_request_is_opened_once_and_finished_by_its_owner(store):
    store.zones.save_child_zone(EAST)
    request = a_request()
    assert outcome_of(store, request) == 'ours'
    copy = msgspec.structs.replace(request, owner='worker-2')
    assert outcome_of(store, copy) is CommitStatus.OPEN
    other = msgspec.structs.replace(copy, fingerprint='another')
    assert outcome_of(store, other) is CommitStatus.REUSED
    claim = below(request)
    assert not finish(store, request, claim, owner='worker-2')
    assert not finish(store, request, claim, attempt=2)
    assert store.child_claims.find(request.id) == []
    assert finish(store, request, claim)
    assert stored(store, request.id) == [claim]
    assert stored(store, consumers=request.consumers) == [claim]
    assert stored(store, child=EAST.uuid) == [claim]
    repeat = store.zone_requests.open_request(copy).outcome
    assert (repeat.outcome, repeat.answer) == (CommitStatus.REPEAT, b'answer')
    assert not finish(store, request, below(request))
    with pytest.raises(exceptions.InUse):
        store.zones.remove_child_zone(EAST.uuid)
    assert store.claims.audit() == CLEAN


def test_what_a_split_request_has_here_becomes_its_own_with_its_answer(store, host):
    store.zones.save_child_zone(EAST)
    request = a_request(consumers=[new_uuid(), new_uuid()])
    assert outcome_of(store, request) == 'ours'
    (own_claim,) = claimed(store, a_draft().taking(host, consumer=request.consumers[1]))
    share = LocalShare(key=own_claim.request_id, members={own_claim.id: 1}, parent='top')
    assert not finish(store, request, below(request), own=share, owner='worker-2')
    assert store.claims.load_claim(own_claim.id).request_id == share.key
    assert store.zone_claims.claims_of_parent('top', 0.0, 10) == [], 'it is no answer yet'
    assert finish(store, request, below(request), own=share)
    (claim,) = store.requests.load_request(request.id).claims
    assert (claim.id, claim.member, claim.attempt) == (own_claim.id, 1, request.attempt)
    assert store.requests.load_request(share.key) is None
    (change,) = store.zone_claims.claims_of_parent('top', 0.0, 10)
    assert (change.claim_id, change.key) == (own_claim.id, request.id)
    assert store.claims.audit() == CLEAN
    assert not store.requests.cancel_request(share.key, 'given back too late').outcomes
    store.requests.cancel_request(request.id, 'not wanted')
    assert not store.claims.load_claim(own_claim.id).is_live
    assert store.claims.audit() == CLEAN


def test_an_overdue_request_is_taken_over_and_its_first_owner_finishes_nothing(store):
    store.zones.save_child_zone(EAST)
    request = a_request(seconds=-1.0)
    first = store.zone_requests.open_request(request)
    later = msgspec.structs.replace(request, owner='worker-2', seconds=60.0)
    opened = store.zone_requests.open_request(later)
    assert (opened.outcome.outcome, opened.outcome.attempt) == (CommitStatus.OVERDUE, 1)
    assert opened.lock_token == first.lock_token, 'by which what the first one claimed is ended'
    later = msgspec.structs.replace(later, takes_over=1, attempt=2)
    mine = store.zone_requests.open_request(later)
    assert mine.outcome is None and mine.lock_token != first.lock_token
    assert not finish(store, request, below(request))
    assert finish(store, later, below(later))


def test_a_consumer_is_on_its_way_by_one_request(store):
    store.zones.save_child_zone(EAST)
    first, second = a_request(), a_request()
    assert outcome_of(store, first) == 'ours'
    outcome = store.zone_requests.open_request(second).outcome
    assert outcome.outcome is CommitStatus.REJECTED and first.consumers[0] in outcome.reason
    assert store.requests.load_request(second.id) is None, 'nothing is left of one that cannot be'
    move = a_request(purpose=Purpose.LIVE_MIGRATE)
    assert outcome_of(store, move) == 'ours'
    store.requests.give_up(first.id, first.owner, first.attempt)
    assert outcome_of(store, second) == 'ours'
    claim = below(second)
    assert finish(store, second, claim)
    store.requests.cancel_request(second.id, 'not wanted')
    assert outcome_of(store, a_request()) is CommitStatus.REJECTED, 'nobody below has heard of it'
    became(store, claim, 'released')
    assert outcome_of(store, a_request()) == 'ours'


def test_a_request_whose_consumer_was_placed_meanwhile_is_not_finished(store):
    """Its owner was frozen beyond its time, and nobody has repeated it."""
    store.zones.save_child_zone(EAST)
    frozen = a_request(seconds=-1.0)
    assert outcome_of(store, frozen) == 'ours'
    second = a_request(owner='worker-2')
    assert outcome_of(store, second) == 'ours'
    assert not finish(store, frozen, below(frozen))
    assert finish(store, second, below(second))
    again = store.zone_requests.open_request(msgspec.structs.replace(frozen, seconds=60.0)).outcome
    assert again.outcome is CommitStatus.OVERDUE
    again = msgspec.structs.replace(frozen, takes_over=again.attempt, attempt=again.attempt + 1)
    assert outcome_of(store, again) is CommitStatus.REJECTED
    assert len(store.child_claims.find()) == 1


def test_an_owner_that_wakes_up_claims_nothing_here_either(store, host):
    frozen = a_request(seconds=-1.0)
    assert outcome_of(store, frozen) == 'ours'
    draft = a_draft(frozen.id, continues=True).taking(host)
    assert outcome_of(store, a_request(owner='worker-2')) == 'ours'
    assert report_outcome(store, draft).outcome is CommitStatus.LOST
    assert store.claims.audit() == CLEAN


def test_who_has_a_claim_here_is_not_placed_below(store, host):
    (claim,) = claimed(store, a_draft().taking(host))
    request = a_request(consumers=[claim.consumer])
    assert outcome_of(store, request) is CommitStatus.REJECTED
    store.requests.cancel_request(claim.request_id, 'not wanted')
    assert outcome_of(store, request) == 'ours'


def test_of_a_request_that_stays_only_what_lives_below_is_in_the_way(store, host):
    store.zones.save_child_zone(EAST)
    (claim,) = claimed(store, a_draft().taking(host))
    stays = a_request(consumers=[claim.consumer], stays=True)
    assert outcome_of(store, stays) == 'ours', 'what is here is judged when it is committed'
    down = a_request()
    assert outcome_of(store, down) == 'ours'
    stays = a_request(consumers=down.consumers, stays=True)
    assert outcome_of(store, stays) is CommitStatus.REJECTED
    placed = below(down)
    assert finish(store, down, placed)
    assert outcome_of(store, stays) is CommitStatus.REJECTED
    became(store, placed, 'released')
    assert outcome_of(store, stays) == 'ours'


def test_openings_for_a_consumer_have_an_order_whatever_the_clock_says(store):
    store.zones.save_child_zone(EAST)
    orders = []
    for _ in range(3):
        request = a_request()
        orders.append(store.zone_requests.open_request(request).order)
        store.requests.give_up(request.id, request.owner, request.attempt)
    request = a_request(seconds=-1.0)
    orders.append(store.zone_requests.open_request(request).order)
    with store.database.engine.begin() as connection:
        # The clock of the server that was the database's before went ahead.
        way = models.delegated_consumers
        connection.execute(way.update().values(order_no=2**52))
    taken = msgspec.structs.replace(request, takes_over=1, attempt=2)
    orders.append(store.zone_requests.open_request(taken).order)
    assert orders == sorted(set(orders)) and orders[-1] == 2**52 + 1


def test_who_takes_over_notes_what_the_first_one_may_have_claimed(store):
    store.zones.save_child_zone(EAST)
    own = store.zones.zone_identity().uuid
    request = a_request(seconds=-1.0)
    first = store.zone_requests.open_request(request).lock_token
    taken = msgspec.structs.replace(request, owner='worker-2', takes_over=1, attempt=2)
    second = store.zone_requests.open_request(taken).lock_token
    # By the request itself, or by another one for its consumer.
    assert outcome_of(store, a_request()) == 'ours'
    releases = {
        (place, request_id_in_zone(request, place))
        for request in (first, second)
        for place in (EAST.uuid, own)
    }
    assert store.zone_releases.waiting_releases().number == len(releases)
    assert due_releases_of(store) == releases
    assert store.zone_releases.due_releases(10) == [], 'others try it for now'
    store.zone_releases.end_releases(releases)
    assert store.zone_releases.waiting_releases() == (0, 0.0)


def due_releases_of(store):
    """Zone and key of all that is to be given back, once its time has come."""
    table = models.zone_releases
    with store.database.engine.begin() as connection:
        connection.execute(table.update().values(next_at=0.0))
    return {(release.child, release.key) for release in store.zone_releases.due_releases(100)}


def test_what_is_left_open_is_found_once_its_time_is_over_and_forgotten(store, host):
    store.zones.save_child_zone(EAST)
    request, other = a_request(seconds=-60.0), a_request(consumers=[new_uuid()])
    opening = store.zone_requests.open_request(request).lock_token
    assert outcome_of(store, other) == 'ours'
    draft = a_draft(request.id, continues=True, attempt=1, owner=request.owner)
    [left_request] = store.zone_releases.abandoned_requests(10)
    assert left_request == (request.id, opening)
    store.zone_releases.end_abandoned_request(left_request._replace(lock_token='another'))
    assert store.requests.load_request(request.id) is not None
    store.zone_releases.end_abandoned_request(left_request)
    assert store.requests.load_request(request.id) is None
    assert (EAST.uuid, request_id_in_zone(opening, EAST.uuid)) in due_releases_of(store)
    assert store.zone_releases.abandoned_requests(10) == []
    assert not finish(store, request, below(request))
    assert report_outcome(store, draft.taking(host)).outcome is CommitStatus.LOST
    again = a_request(consumers=request.consumers)
    assert outcome_of(store, again) == 'ours'
    assert store.requests.load_request(other.id) is not None
    assert store.claims.audit() == CLEAN


def test_what_an_opening_may_have_claimed_is_noted_where_its_request_is_cancelled(store):
    """Its owner may have ended: nobody else knows the keys."""
    store.zones.save_child_zone(EAST)
    request = a_request()
    opening = store.zone_requests.open_request(request).lock_token
    store.requests.cancel_request(request.id, 'not wanted')
    assert (EAST.uuid, request_id_in_zone(opening, EAST.uuid)) in due_releases_of(store)
    assert not finish(store, request, below(request))
    assert store.claims.audit() == CLEAN


def test_no_zone_hears_of_a_cancel_of_a_request_that_stays(store):
    """Cancelled or taken over: none of them was sent anything of it."""
    store.zones.save_child_zone(EAST)
    request, other = (
        a_request(stays=True),
        a_request(seconds=-1.0, stays=True, consumers=[new_uuid()]),
    )
    opened = store.zone_requests.open_request(request).lock_token
    store.requests.cancel_request(request.id, 'not wanted')
    assert outcome_of(store, other) == 'ours'
    taken = msgspec.structs.replace(other, owner='worker-2', takes_over=1, attempt=2, stays=False)
    last = store.zone_requests.open_request(taken).lock_token
    assert due_releases_of(store) == set()
    store.requests.cancel_request(other.id, 'not wanted either')
    assert {key for _, key in due_releases_of(store)} >= {request_id_in_zone(last, EAST.uuid)}
    assert request_id_in_zone(opened, EAST.uuid) not in {key for _, key in due_releases_of(store)}
    assert store.claims.audit() == CLEAN


def sent(parent, key, order, consumers, purpose=Purpose.CREATE, **said):
    """An allocation of a zone above."""
    return ParentAllocation(
        **{'parent': parent, 'key': key, 'order': order, 'consumers': consumers},
        **{'purpose': purpose, 'seconds': 30.0, **said},
    )


def here(*keys, parent='top'):
    """What they are called here."""
    return sorted(scoped_id(parent, key) for key in keys)


def noted(store, *allocation, **said):
    """As a zone notes one that is sent to it: at once where nothing is known of it."""
    for parent in ('top', 'other'):
        store.zones.save_parent_zone(
            ParentRecord(name=parent, identity=f'of-{parent}', project_id='demo')
        )
    message = sent(*allocation, **said)
    return (
        [] if store.orders.note_new_allocation(message) else store.orders.note_allocation(message)
    )


def test_an_allocation_is_noted_at_once_where_nothing_is_known_of_it(store):
    store.zones.save_parent_zone(PARENT)
    one, two, cancelled_key = new_uuid(), new_uuid(), new_uuid()

    def note(key, order, *consumers):
        return store.orders.note_new_allocation(sent('top', key, order, consumers))

    def orders():
        with store.database.engine.begin() as connection:
            rows = connection.execute(sa.select(models.allocation_orders))
            return {row.consumer: row.request_key for row in rows}

    may = store.database.autocommit is not None
    assert note('k1', 5, one) is may
    assert orders() == ({one: scoped_id('top', 'k1')} if may else {})
    for seen in (('k1', 5, one), ('k2', 7, one)):
        assert not note(*seen)
    store.requests.cancel_request(
        scoped_id('top', cancelled_key), 'it was given back before it came'
    )
    assert not note(cancelled_key, 8, two)
    assert two not in orders()
    if may:
        # Others on this connection wait for the disk.
        waits = store.database.autocommit.read(
            lambda tx: tx.first(sa.text('SHOW synchronous_commit'))[0]
        )
        assert waits == 'on'


def test_allocations_of_a_parent_for_a_consumer_go_in_their_order(store):
    one, two = new_uuid(), new_uuid()

    def note(key, order, *consumers, parent='top', purpose=Purpose.CREATE):
        return noted(store, parent, key, order, consumers, purpose)

    assert note('k1', 5, one) == []
    assert note('k1', 5, one) == [], 'a copy'
    assert note('k2', 7, two, one) == here('k1')
    for late in (('k1', 5, one), ('k0', 7, one), ('k3', 6, two)):
        with pytest.raises(exceptions.AllocationOutdated):
            note(*late)
    assert note('k2', 7, one, two) == []
    assert note('k1', 5, one, parent='other') == []
    assert note('k1', 5, one, purpose=Purpose.MIGRATE) == []
    with pytest.raises(exceptions.AllocationOutdated):
        note('k0', 4, one, purpose=Purpose.RESIZE)
    everything = {'decisions': 10, 'tombstone_seconds': -1.0, 'request_seconds': 60, 'limit': 100}
    assert store.retention.purge(**everything) == 4
    assert note('k1', 5, one) == []


def test_the_place_of_a_group_is_promised_to_a_request_as_long_as_it_is_open(store):
    store.zones.save_child_zone(EAST)
    group, own = uuid_of('group'), uuid_of('own')
    first, second = a_request(), a_request(consumers=[new_uuid()])
    for request in (first, second):
        assert outcome_of(store, request) == 'ours'

    def decide(request, place):
        return store.zone_requests.decide_group_zone(group, own, place, request.id, 60.0)

    assert decide(first, EAST.uuid) == EAST.uuid
    assert store.zone_requests.zone_of_group(group, own) == EAST.uuid
    assert decide(second, own) == EAST.uuid
    store.requests.give_up(first.id, first.owner, first.attempt)
    assert store.zone_requests.zone_of_group(group, own) == ''
    assert decide(second, own) == own
    assert decide(second, EAST.uuid) == EAST.uuid, 'it may think otherwise'
    claim = below(second, group=group)
    assert finish(store, second, claim)
    third = a_request()
    assert outcome_of(store, third) == 'ours'
    assert decide(third, own) == store.zone_requests.zone_of_group(group, own) == EAST.uuid
    became(store, claim, 'released')
    assert store.zone_requests.zone_of_group(group, own) == ''
    assert decide(third, own) == own


def test_a_request_that_is_finished_while_claims_are_compared_is_not_forgotten(store, monkeypatch):
    store.zones.save_child_zone(EAST)
    request = a_request()
    token = store.zone_requests.open_request(request).lock_token
    claim = below(request, key=request_id_in_zone(token, EAST.uuid))
    claim_below = ClaimBelow(
        claim_id=claim.claim_id, key=claim.key, consumer=claim.consumer, state=State.RESERVED
    )
    read, finished = session.Tx.all, []

    def meanwhile(self, query, **given):
        rows = read(self, query, **given)
        if not finished and any(
            query is statement for statement in (changes.KNOWN_STATES, changes.OPEN_LOCK_TOKENS)
        ):
            finished.append(query)
            assert finish(store, request, claim)
        return rows

    monkeypatch.setattr(session.Tx, 'all', meanwhile)
    assert store.zone_claims.unknown_child_claims(EAST.uuid, [claim_below]) == ([], set())
    assert finished
    assert store.zone_claims.unknown_child_claims(EAST.uuid, [claim_below]) == ([], set())


def test_a_parent_claims_for_no_consumer_with_a_claim_of_others(store, host):
    draft = a_draft().taking(host)
    [claim] = claimed(store, draft)
    other = new_uuid()

    def note(parent, order, *consumers):
        return noted(store, parent, new_uuid(), order, consumers, Purpose.CREATE)

    def is_of(parent):
        with store.database.engine.begin() as connection:
            connection.execute(models.claims.update().values(parent_key=parent))

    for parent in (None, 'top'):
        is_of(parent)
        with pytest.raises(exceptions.Refused, match=claim.consumer):
            note('other', 5, other, claim.consumer)
    assert note('top', 5, claim.consumer) == []
    store.requests.cancel_request(draft.id, 'not wanted')
    assert note('other', 4, other, claim.consumer) == [], 'nothing was noted of what was refused'


def test_what_was_written_here_bars_who_may_place_it_below_and_zones_above(store, host):
    """The request that had it open before, too; on hosts of here its writer is not asked."""
    store.zones.save_child_zone(EAST)
    overdue = a_request(consumers=[uuid_of('written')], seconds=-1.0)
    assert outcome_of(store, overdue) == 'ours'
    own = {'project_id': 'red', 'user_id': 'eve'}
    shares = {host.row.uuid: {'VCPU': 1}}
    [consumer] = overdue.consumers
    store.allocations.write_allocations(
        [WantedAllocations(consumer=consumer, allocations=shares, **own)]
    )
    again = msgspec.structs.replace(overdue, owner='w2', attempt=2, takes_over=1, seconds=9.0)
    assert outcome_of(store, again) is CommitStatus.REJECTED
    assert outcome_of(store, a_request(consumers=[consumer])) is CommitStatus.REJECTED
    assert outcome_of(store, a_request(consumers=[consumer], stays=True)) == 'ours'
    for order in (0, 5):
        with pytest.raises(exceptions.Refused, match=consumer):
            noted(store, 'top', new_uuid(), order, [consumer], Purpose.CREATE)


def test_of_many_allocations_for_a_consumer_none_comes_before_one_that_is_known(store):
    for _ in range(3):
        guest, seen = new_uuid(), []

        def work(number, guest=guest, seen=seen):
            try:
                ended_keys = noted(store, 'top', f'k{number}', number + 1, [guest], Purpose.CREATE)
            except exceptions.AllocationOutdated:
                return
            seen.append((number, ended_keys))

        at_once(lambda number: work(number))
        numbers = [number for number, _ in seen]
        # Each but the first one has ended the one that was let in before it.
        ended = {key for _, ended_keys in seen for key in ended_keys}
        last = max(numbers)
        assert ended == set(here(*(f'k{number}' for number in numbers if number != last)))


def test_a_zone_above_is_not_forgotten_while_an_allocation_of_it_is_under_way(store):
    """What it claims would be nobody's."""
    for order in (0, 5):
        assert noted(store, 'top', 'k1', order, [new_uuid()]) == []
        with pytest.raises(exceptions.InUse, match='under way'):
            store.zones.remove_parent_zone('top')
    store.requests.cancel_request(scoped_id('top', 'k1'), 'it is given back')
    store.zones.remove_parent_zone('top')
    for order in (0, 6):
        message = sent('top', 'k2', order, [new_uuid()])
        assert not store.orders.note_new_allocation(message)
        with pytest.raises(exceptions.NotFound, match='top'):
            store.orders.note_allocation(message)
    # Of one whose time is over nothing comes any more.
    assert noted(store, 'top', 'k3', 7, [new_uuid()], seconds=-1.0) == []
    store.zones.remove_parent_zone('top')


def test_a_zone_above_hears_of_its_claims_by_its_own_keys_and_with_its_receipts(store):
    store.zones.save_child_zone(EAST)
    assert noted(store, 'top', 'k1', 5, [uuid_of('guest')], receipt='sealed') == []
    request = a_request(id=scoped_id('top', 'k1'))
    assert outcome_of(store, request) == 'ours'
    assert finish(store, request, below(request, parent='top'))
    (change,) = store.zone_claims.claims_of_parent('top', 0.0, 10)
    assert (change.key, change.receipt) == ('k1', 'sealed')


def test_of_many_requests_for_one_consumer_one_is_opened(store):
    for n in range(4):
        guest = uuid_of('guest', n)
        outcomes = Counter(
            at_once(
                lambda number, guest=guest: outcome_of(
                    store, a_request(owner=f'w{number}', consumers=[guest])
                )
            )
        )
        assert outcomes['ours'] == 1, outcomes


def test_of_many_who_take_over_and_the_owner_that_wakes_up_one_finishes(store):
    store.zones.save_child_zone(EAST)
    for _ in range(3):
        request = a_request(seconds=-1.0, consumers=[new_uuid()])
        assert outcome_of(store, request) == 'ours'

        def work(number, request=request):
            if not number:
                return finish(store, request, below(request))
            other = a_request(owner=f'w{number}', consumers=request.consumers)
            if store.zone_requests.open_request(other).outcome is None:
                return finish(store, other, below(other))
            return False

        assert sum(at_once(work)) == 1
        assert len(store.child_claims.find(consumers=request.consumers)) == 1


def test_a_zone_that_was_removed_meanwhile_has_no_claims(store):
    store.zones.save_child_zone(EAST)
    request = a_request()
    assert outcome_of(store, request) == 'ours'
    store.zones.remove_child_zone(EAST.uuid)
    assert not finish(store, request, below(request))
    assert store.child_claims.find() == []


def test_what_became_of_claims_is_noted_and_shown_to_the_zone_above(store):
    store.zones.save_child_zone(EAST)
    request = a_request()
    store.zone_requests.open_request(request)
    claim = below(request, parent='top')
    finish(store, request, claim)
    (first,) = store.zone_claims.claims_of_parent('top', 0.0, 10)
    assert (first.claim_id, first.state) == (claim.claim_id, 'reserved')
    became(store, claim, 'confirmed')
    (then,) = store.zone_claims.claims_of_parent('top', first.changed_at, 10)
    assert (then.state, then.key) == ('confirmed', request.id)
    assert then.changed_at >= first.changed_at
    assert store.zone_claims.claims_of_parent('other', 0.0, 10) == []
    (zone,) = store.zones.child_zones()
    assert (zone.incarnation, zone.revision, zone.synced_incarnation) == (5, 7.5, 3)


def as_said(claim, **changes):
    """A claim as its zone says it."""
    claim_below = ClaimBelow(
        claim_id=claim.claim_id,
        key=claim.key,
        consumer=claim.consumer,
        state=State.RESERVED,
        purpose=claim.purpose,
    )
    return msgspec.structs.replace(claim_below, **changes)


def test_of_what_lives_below_only_what_nobody_here_makes_or_ends_is_unknown(store):
    store.zones.save_child_zone(EAST)
    request = a_request()
    opening = store.zone_requests.open_request(request).lock_token
    made_now = as_said(below(request, key=request_id_in_zone(opening, EAST.uuid)))
    ending = as_said(below(request, consumer=new_uuid()))
    store.zone_releases.add_releases([(EAST.uuid, ending.key)])
    ended = as_said(below(request), state=State.RELEASED)
    forgotten = as_said(below(request), state=State.CONFIRMED)
    other = as_said(below(request, consumer=new_uuid()))
    reported = [made_now, ending, ended, forgotten, other]
    assert store.zone_claims.unknown_child_claims(EAST.uuid, reported) == (
        [forgotten, other],
        set(),
    )
    runs = [msgspec.structs.replace(c, state=State.CONFIRMED) for c in (made_now, ending)]
    for claim in runs:
        assert store.zone_claims.unknown_child_claims(EAST.uuid, [claim]) == ([], {claim.claim_id})
    assert finish(store, request, below(request, claim_id=forgotten.claim_id))
    assert store.zone_claims.unknown_child_claims(EAST.uuid, [forgotten]) == ([], set())
    assert store.zone_claims.unknown_child_claims(uuid_of('west'), [forgotten]) == (
        [forgotten],
        set(),
    )
    assert store.zone_claims.unknown_child_claims(EAST.uuid, []) == ([], set())
    store.zone_releases.end_releases([(EAST.uuid, ending.key)])
    assert store.zone_claims.unknown_child_claims(EAST.uuid, runs) == (runs, set())


def test_what_was_forgotten_is_restored_and_holds_its_consumer(store):
    store.zones.save_child_zone(EAST)
    group, key = uuid_of('group'), new_uuid()
    lost = a_request()
    claims = [
        below(
            lost,
            request_id=key,
            key=key,
            consumer=uuid_of('guest', n),
            restored=True,
            project_id=None,
            group=group,
        )
        for n in range(2)
    ]
    for _ in range(2):
        store.zone_claims.restore(claims, {key: b'answer'})
    assert sorted(stored(store, key), key=str) == sorted(claims, key=str)
    assert store.requests.load_request(key).answer == b'answer'
    for claim in claims:
        template = a_request(consumers=[claim.consumer])
        for request in (template, msgspec.structs.replace(template, stays=True)):
            assert outcome_of(store, request) is CommitStatus.REJECTED
    assert store.zone_figures.claims_to_check() == {EAST.uuid: (0, 2, 0)}
    assert store.zone_requests.zone_of_group(group, uuid_of('own')) == EAST.uuid
    assert store.claims.audit() == CLEAN
    became(store, claims[0], 'released')
    assert outcome_of(store, a_request(consumers=[claims[0].consumer])) == 'ours'
    assert store.zone_figures.claims_to_check() == {EAST.uuid: (0, 1, 0)}


def test_who_was_placed_elsewhere_meanwhile_stays_that_requests(store):
    store.zones.save_child_zone(EAST)
    request = a_request()
    assert outcome_of(store, request) == 'ours'
    key = new_uuid()
    back = below(request, request_id=key, key=key, restored=True, project_id=None)
    store.zone_claims.restore([back], {key: b'answer'})
    assert finish(store, request, below(request))
    assert outcome_of(store, a_request()) is CommitStatus.REJECTED


def test_what_is_lost_holds_its_consumer_until_somebody_ends_it_or_it_is_found(store):
    store.zones.save_child_zone(EAST)
    first, second = a_request(), a_request(consumers=[new_uuid()])
    claims = []
    for request in (first, second):
        store.zone_requests.open_request(request)
        claims.append(below(request, parent='top'))
        finish(store, request, claims[-1])
    note(store, EAST.uuid, {claim.claim_id: 'lost' for claim in claims})
    assert store.zone_figures.claims_to_check() == {EAST.uuid: (2, 0, 0)}
    assert store.zone_claims.claims_of_parent('top', 0.0, 10) == [], (
        'nobody knows that it has ended'
    )
    for request in (first, second):
        assert outcome_of(store, a_request(consumers=request.consumers)) is CommitStatus.REJECTED
    everything = {'decisions': 10, 'tombstone_seconds': -1.0, 'request_seconds': -1.0, 'limit': 100}
    store.retention.purge(**everything)
    assert len(store.child_claims.find()) == 2
    with pytest.raises(exceptions.InUse):
        store.zones.remove_child_zone(EAST.uuid)
    store.zone_claims.end_lost(EAST.uuid, claims[0].key)
    became(store, claims[1], 'confirmed')
    assert {row.claim_id: row.state for row in store.child_claims.find()} == {
        claims[0].claim_id: 'released',
        claims[1].claim_id: 'confirmed',
    }
    assert store.zone_figures.claims_to_check() == {}


def test_changes_are_shown_oldest_first_as_many_as_wanted(store):
    store.zones.save_child_zone(EAST)
    child_claims = []
    for n in range(5):
        request = a_request(consumers=[uuid_of('guest', n)])
        store.zone_requests.open_request(request)
        child_claims.append(below(request, parent='top'))
        finish(store, request, child_claims[-1])
    page = store.zone_claims.claims_of_parent('top', 0.0, 3)
    assert [change.consumer for change in page] == [claim.consumer for claim in child_claims[:3]]
    rest = store.zone_claims.claims_of_parent('top', page[-1].changed_at, 10)
    seen = {change.consumer for change in [*page, *rest]}
    assert seen == {claim.consumer for claim in child_claims}


def test_old_requests_are_forgotten_with_what_they_had_below(store):
    store.zones.save_child_zone(EAST)
    request = a_request()
    store.zone_requests.open_request(request)
    claim = below(request)
    finish(store, request, claim)
    everything = {'decisions': 10, 'tombstone_seconds': -1.0, 'request_seconds': -1.0, 'limit': 100}
    for _ in range(3):
        store.retention.purge(**everything)
    assert stored(store) == [claim], 'it lives'
    became(store, claim, 'expired')
    for _ in range(3):
        store.retention.purge(**everything)
    assert store.child_claims.find() == []
    assert store.requests.load_request(request.id) is None
