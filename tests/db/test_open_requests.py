# SPDX-License-Identifier: Apache-2.0
"""Requests that may go down: opened before anything is claimed, finished with what they have."""

import functools
import uuid

import pytest

from gantt.core.claims.child_claim import ChildClaim
from gantt.core.claims.claim import State
from gantt.core.claims.commit import CommitStatus
from gantt.core.messages.request import Purpose
from gantt.db.engine import retry
from gantt.zones.model.messages import ClaimBelow, ZoneChanges, ZoneRecord
from gantt.zones.ports import OpenRequest
from tests.db.conftest import contents

CHILD = str(uuid.UUID(int=7))


def new() -> str:
    return str(uuid.uuid4())


def wanted(*consumers, request_id='', **more):
    given = {'fingerprint': 'f', 'owner': 'one', 'attempt': 1, 'seconds': 30.0}
    return OpenRequest(
        id=request_id or new(),
        consumers=consumers or [new()],
        purpose=Purpose.CREATE,
        **(given | more),
    )


def below(request, consumer, claim_id='', **more):
    return ChildClaim(
        claim_id=claim_id or new(),
        child=CHILD,
        request_id=request.id,
        key=new(),
        consumer=consumer,
        purpose=Purpose.CREATE,
        project_id=None,
        state='reserved',
        sealed_host='g1.x',
        **more,
    )


def finish(store, request, *claims):
    store.zones.save_child_zone(ZoneRecord(uuid=CHILD, name='below', url='http://127.0.0.1:1'))
    return store.zone_requests.finish_request(
        request.id, request.owner, request.attempt, b'answer', claims
    )


class LosingCommits:
    """Loses the answers to the first commits: they are made."""

    def __init__(self, store, lose):
        self.left = lose
        for database in {store.database.writes, store.database.autocommit or store.database.writes}:
            database.commit = functools.partial(self.commit, database, database.commit)

    def commit(self, database, real, transaction):
        real(transaction)
        if self.left:
            self.left -= 1
            transaction.connection.invalidate()
            raise retry.CommitOutcomeUnknown('connection reset by peer')


def test_a_request_is_open_for_one_and_its_consumers_are_on_their_way(store):
    request = wanted(new(), new())
    assert store.zone_requests.open_request(request).outcome is None
    assert sorted(row[0] for row in contents(store)['delegated_consumers']) == sorted(
        request.consumers
    )
    other = store.zone_requests.open_request(
        wanted(*request.consumers, request_id=request.id, owner='two')
    )
    assert other.outcome.outcome is CommitStatus.OPEN
    assert finish(store, request, *(below(request, consumer) for consumer in request.consumers))
    repeat = store.zone_requests.open_request(request)
    assert (repeat.outcome.outcome, repeat.outcome.answer) == (CommitStatus.REPEAT, b'answer')
    rows = store.child_claims.find(request.id)
    assert sorted(row.consumer for row in rows) == sorted(request.consumers)


@pytest.mark.parametrize('also', [(), ('new',)])
def test_who_is_placed_by_another_request_is_rejected_and_nothing_is_left(store, also):
    first = wanted()
    store.zone_requests.open_request(first)
    before = contents(store)
    second = store.zone_requests.open_request(wanted(*first.consumers, *(new() for _ in also)))
    assert second.outcome.outcome is CommitStatus.REJECTED
    assert contents(store) == before


@pytest.mark.parametrize('lose', [1, 2])
def test_a_lost_answer_to_a_commit_changes_nothing(store, lose):
    request = wanted()
    LosingCommits(store, lose)
    assert store.zone_requests.open_request(request).outcome is None
    LosingCommits(store, lose)
    assert finish(store, request, below(request, request.consumers[0]))
    assert len(store.child_claims.find(request.id)) == 1


def test_who_has_it_no_more_finishes_nothing(store):
    request = wanted()
    store.zone_requests.open_request(request)
    store.requests.cancel_request(request.id, 'cancelled')
    assert not finish(store, request, below(request, request.consumers[0]))
    assert not store.child_claims.find(request.id)


def test_what_a_zone_says_is_noted_of_claims_that_are_known(store):
    request = wanted(new(), new())
    store.zone_requests.open_request(request)
    claims = [below(request, consumer) for consumer in request.consumers]
    finish(store, request, *claims)
    ended, same = (claim.claim_id for claim in claims)
    reported = [
        ClaimBelow(
            claim_id=ended, key=claims[0].key, consumer=claims[0].consumer, state=State.RELEASED
        ),
        ClaimBelow(
            claim_id=same, key=claims[1].key, consumer=claims[1].consumer, state=State.RESERVED
        ),
        ClaimBelow(claim_id=new(), key=new(), consumer=new(), state=State.RESERVED),
    ]
    changes = ZoneChanges(incarnation=1, revision=2.0, claims=reported)
    before = contents(store)
    known_states = {change.claim_id: str(change.state) for change in reported}
    store.zone_claims.note_child_changes(CHILD, changes, known_states, 1)
    states = {row.claim_id: row.state for row in store.child_claims.find(request.id)}
    assert states == {ended: 'released', same: 'reserved'}
    unchanged = [row for row in contents(store)['child_claims'] if row[0] == same]
    assert unchanged == [row for row in before['child_claims'] if row[0] == same]


def test_a_zone_that_was_removed_meanwhile_finishes_nothing(store):
    request = wanted()
    store.zone_requests.open_request(request)
    claim = below(request, request.consumers[0])
    assert not store.zone_requests.finish_request(request.id, 'one', 1, b'answer', [claim])
    assert not store.child_claims.find(request.id)
