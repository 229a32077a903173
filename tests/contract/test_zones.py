# SPDX-License-Identifier: Apache-2.0
"""Zones in a database: who is around, requests that may go down, and what is claimed below."""

from collections import Counter

import msgspec
import pytest

from gantt import exceptions
from gantt.core.claims.claim import State
from gantt.core.claims.commit import CommitStatus
from gantt.core.messages.request import Purpose
from gantt.core.zones.messages import ClaimBelow, ParentRecord, ZoneChanges, ZoneRecord
from gantt.db.schema import migration
from gantt.scheduler.ports.zones import OpenRequest, StoredBelow
from tests.builders import CLEAN, a_draft, claimed, new_uuid, report_outcome, uuid_of
from tests.conftest import READERS
from tests.contract.test_threads import at_once
from tests.services import PATIENT

KINDS = READERS
EAST = ZoneRecord(uuid=uuid_of('east'), name='east', url='http://127.0.0.1:1')
PARENT = ParentRecord(name='top', identity='user-1', project_id='of-top')


@pytest.fixture
def store(request, make_store):
    return make_store(request.param, waits=PATIENT)


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
    outcome = store.open_request(request).outcome
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
        'place': 'g1.' + 'x' * 60_000,
    }
    return StoredBelow(**{**base, **fields})


def finish(store, request, *claims, **changes):
    owner, attempt = changes.get('owner', request.owner), changes.get('attempt', request.attempt)
    return store.finish_request(request.id, owner, attempt, b'answer', claims)


def became(store, claim, state):
    """The zone below has said what became of a claim."""
    said = ClaimBelow(
        claim_id=claim.claim_id, key=claim.key, consumer=claim.consumer, state=State(state)
    )
    changes = ZoneChanges(incarnation=5, revision=7.5, claims=[said])
    store.note_changes_below(claim.child, changes, changes.claims)


def test_a_zone_stays_the_same_and_knows_of_a_database_that_went_back(store):
    first = store.zone_identity()
    assert len(first.secret) == 32
    assert store.zone_identity() == first
    migration.bump_incarnation(store.engine)
    assert store.zone_identity() != first
    assert store.zone_identity().uuid == first.uuid


def test_all_who_come_first_make_the_same_zone(store):
    assert len({store.zone_identity().uuid for _ in at_once(lambda _: store.zone_identity())}) == 1


def test_zones_around_are_written_and_forgotten(store):
    store.save_child_zone(EAST)
    changed = msgspec.structs.replace(EAST, enabled=False, last_resort=True, scale=0.5, offset=0.25)
    store.save_child_zone(changed)
    assert store.child_zones() == [changed]
    with pytest.raises(exceptions.Refused):
        store.save_child_zone(msgspec.structs.replace(EAST, uuid=uuid_of('west')))
    store.remove_child_zone(EAST.uuid)
    assert store.child_zones() == []
    store.save_parent_zone(PARENT)
    shorter = msgspec.structs.replace(PARENT, lease_seconds_max=30)
    store.save_parent_zone(shorter)
    assert store.parent_zones() == [shorter]
    with pytest.raises(exceptions.Refused):
        store.save_parent_zone(msgspec.structs.replace(PARENT, name='other'))
    store.remove_parent_zone('top')
    with pytest.raises(exceptions.NotFound):
        store.remove_parent_zone('top')


def test_a_request_is_opened_once_and_finished_by_its_owner(store):
    store.save_child_zone(EAST)
    request = a_request()
    assert outcome_of(store, request) == 'ours'
    copy = msgspec.structs.replace(request, owner='worker-2')
    assert outcome_of(store, copy) is CommitStatus.OPEN
    other = msgspec.structs.replace(copy, fingerprint='another')
    assert outcome_of(store, other) is CommitStatus.REUSED
    claim = below(request)
    assert not finish(store, request, claim, owner='worker-2')
    assert not finish(store, request, claim, attempt=2)
    assert store.claims_below(request.id) == []
    assert finish(store, request, claim)
    assert store.claims_below(request.id) == [claim]
    assert store.claims_below(consumers=request.consumers) == [claim]
    assert store.claims_below(child=EAST.uuid) == [claim]
    repeat = store.open_request(copy).outcome
    assert (repeat.outcome, repeat.answer) == (CommitStatus.REPEAT, b'answer')
    assert not finish(store, request, below(request))
    with pytest.raises(exceptions.InUse):
        store.remove_child_zone(EAST.uuid)
    assert store.audit() == CLEAN


def test_an_overdue_request_is_taken_over_and_its_first_owner_finishes_nothing(store):
    store.save_child_zone(EAST)
    request = a_request(seconds=-1.0)
    first = store.open_request(request)
    later = msgspec.structs.replace(request, owner='worker-2', seconds=60.0)
    found = store.open_request(later)
    assert (found.outcome.outcome, found.outcome.attempt) == (CommitStatus.OVERDUE, 1)
    assert found.opening == first.opening, 'by which what the first one claimed is ended'
    later = msgspec.structs.replace(later, takes_over=1, attempt=2)
    mine = store.open_request(later)
    assert mine.outcome is None and mine.opening != first.opening
    assert not finish(store, request, below(request))
    assert finish(store, later, below(later))


def test_a_consumer_is_on_its_way_by_one_request(store):
    store.save_child_zone(EAST)
    first, second = a_request(), a_request()
    assert outcome_of(store, first) == 'ours'
    found = store.open_request(second).outcome
    assert found.outcome is CommitStatus.BARRED and first.consumers[0] in found.reason
    assert store.load_request(second.id) is None, 'nothing is left of one that cannot be'
    move = a_request(purpose=Purpose.LIVE_MIGRATE)
    assert outcome_of(store, move) == 'ours'
    store.give_up(first.id, first.owner, first.attempt)
    assert outcome_of(store, second) == 'ours'
    claim = below(second)
    assert finish(store, second, claim)
    store.cancel_request(second.id, 'not wanted')
    assert outcome_of(store, a_request()) is CommitStatus.BARRED, 'nobody below has heard of it'
    became(store, claim, 'released')
    assert outcome_of(store, a_request()) == 'ours'


def test_a_request_whose_consumer_was_placed_meanwhile_is_not_finished(store):
    """Its owner was frozen beyond its time, and nobody has repeated it."""
    store.save_child_zone(EAST)
    frozen = a_request(seconds=-1.0)
    assert outcome_of(store, frozen) == 'ours'
    second = a_request(owner='worker-2')
    assert outcome_of(store, second) == 'ours'
    assert not finish(store, frozen, below(frozen))
    assert finish(store, second, below(second))
    again = store.open_request(msgspec.structs.replace(frozen, seconds=60.0)).outcome
    assert again.outcome is CommitStatus.OVERDUE
    again = msgspec.structs.replace(frozen, takes_over=again.attempt, attempt=again.attempt + 1)
    assert outcome_of(store, again) is CommitStatus.BARRED
    assert len(store.claims_below()) == 1


def test_an_owner_that_wakes_up_claims_nothing_here_either(store, host):
    frozen = a_request(seconds=-1.0)
    assert outcome_of(store, frozen) == 'ours'
    draft = a_draft(frozen.id, continues=True).taking(host)
    assert outcome_of(store, a_request(owner='worker-2')) == 'ours'
    assert report_outcome(store, draft).outcome is CommitStatus.LOST
    assert store.audit() == CLEAN


def test_who_has_a_claim_here_is_not_placed_below(store, host):
    (claim,) = claimed(store, a_draft().taking(host))
    request = a_request(consumers=[claim.consumer])
    assert outcome_of(store, request) is CommitStatus.BARRED
    store.cancel_request(claim.request_id, 'not wanted')
    assert outcome_of(store, request) == 'ours'


def test_of_many_requests_for_one_consumer_one_is_opened(store):
    for n in range(4):
        guest = uuid_of('guest', n)
        found = Counter(
            at_once(
                lambda number, guest=guest: outcome_of(
                    store, a_request(owner=f'w{number}', consumers=[guest])
                )
            )
        )
        assert found['ours'] == 1, found


def test_of_many_who_take_over_and_the_owner_that_wakes_up_one_finishes(store):
    store.save_child_zone(EAST)
    for _ in range(3):
        request = a_request(seconds=-1.0, consumers=[new_uuid()])
        assert outcome_of(store, request) == 'ours'

        def work(number, request=request):
            if not number:
                return finish(store, request, below(request))
            other = a_request(owner=f'w{number}', consumers=request.consumers)
            if store.open_request(other).outcome is None:
                return finish(store, other, below(other))
            return False

        assert sum(at_once(work)) == 1
        assert len(store.claims_below(consumers=request.consumers)) == 1


def test_a_zone_that_was_removed_meanwhile_has_no_claims(store):
    store.save_child_zone(EAST)
    request = a_request()
    assert outcome_of(store, request) == 'ours'
    store.remove_child_zone(EAST.uuid)
    assert not finish(store, request, below(request))
    assert store.claims_below() == []


def test_what_became_of_claims_is_noted_and_shown_to_the_zone_above(store):
    store.save_child_zone(EAST)
    request = a_request()
    store.open_request(request)
    claim = below(request, parent='top')
    finish(store, request, claim)
    (first,) = store.claims_of_parent('top', 0.0, 10)
    assert (first.claim.claim_id, first.claim.state) == (claim.claim_id, 'reserved')
    became(store, claim, 'confirmed')
    (then,) = store.claims_of_parent('top', first.at, 10)
    assert (then.claim.state, then.claim.key) == ('confirmed', request.id)
    assert then.at >= first.at
    assert store.claims_of_parent('other', 0.0, 10) == []
    (zone,) = store.child_zones()
    assert (zone.incarnation, zone.revision) == (5, 7.5)


def test_changes_are_shown_oldest_first_as_many_as_wanted(store):
    store.save_child_zone(EAST)
    made = []
    for n in range(5):
        request = a_request(consumers=[uuid_of('guest', n)])
        store.open_request(request)
        made.append(below(request, parent='top'))
        finish(store, request, made[-1])
    found = store.claims_of_parent('top', 0.0, 3)
    assert [one.claim.consumer for one in found] == [one.consumer for one in made[:3]]
    rest = store.claims_of_parent('top', found[-1].at, 10)
    seen = {one.claim.consumer for one in [*found, *rest]}
    assert seen == {one.consumer for one in made}


def test_old_requests_are_forgotten_with_what_they_had_below(store):
    store.save_child_zone(EAST)
    request = a_request()
    store.open_request(request)
    claim = below(request)
    finish(store, request, claim)
    everything = {'decisions': 10, 'tombstone_seconds': -1.0, 'request_seconds': -1.0, 'limit': 100}
    for _ in range(3):
        store.purge(**everything)
    assert store.claims_below() == [claim], 'it lives'
    became(store, claim, 'expired')
    for _ in range(3):
        store.purge(**everything)
    assert store.claims_below() == []
    assert store.load_request(request.id) is None
