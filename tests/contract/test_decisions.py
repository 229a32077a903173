# SPDX-License-Identifier: Apache-2.0
"""Decisions as they are kept, and what purging leaves."""

import pytest

from tests.builders import (
    CLEAN,
    a_decision,
    a_draft,
    changed,
    claimed,
    new_uuid,
    report_outcome,
    state_of,
)
from tests.conftest import READERS

#: What is read has its twin in memory in SQLite.
KINDS = READERS

#: Below 0: also those of this very millisecond, which the clock of SQLite does not divide.
KEEP = {
    'decisions': 1000,
    'decision_seconds': -1.0,
    'tombstone_seconds': 1e6,
    'request_seconds': 1e6,
    'limit': 1000,
}


# -- decisions --------------------------------------------------------------------------------
def test_a_decision_is_found_by_its_id(store):
    record = a_decision(packed=b'why', provider_ids=b'\x01\x02')
    store.records.save_decisions([record])
    packed, providers, at = store.records.load_decision(record.id)
    assert (packed, providers) == (b'why', b'\x01\x02')
    assert at == pytest.approx(store.database.ping(), abs=5)


def test_the_decision_is_kept_with_the_claims(store, host):
    record = a_decision(outcome='placed', packed=b'why')
    draft = a_draft().taking(host)
    claimed(store, draft.having(decision=changed(record, request_id=draft.id)))
    assert store.records.load_decision(record.id)[:2] == (b'why', b'12345678')


def test_the_decision_of_a_dropped_request_is_not_kept(store, host):
    record = a_decision()
    report_outcome(store, a_draft(decision=record).taking(host, vcpu=9))
    assert store.records.load_decision(record.id) is None


def test_the_newest_of_a_request_is_found_by_the_request(store):
    request = new_uuid()
    store.records.save_decisions([a_decision(request_id=request, packed=b'1')])
    store.records.save_decisions([a_decision(packed=b'other')])
    store.records.save_decisions([a_decision(request_id=request, packed=b'2')])
    assert store.records.load_decision(request)[0] == b'2'


def test_a_unique_prefix_will_do(store):
    first = a_decision(id='abcdef11-0000-4000-8000-000000000000', packed=b'1')
    second = a_decision(id='abcdef22-0000-4000-8000-000000000000', packed=b'2')
    store.records.save_decisions([first, second])
    assert store.records.load_decision('abcdef1')[0] == b'1'
    assert store.records.load_decision('abcdef22')[0] == b'2'
    assert store.records.load_decision('abcdef') is None
    assert store.records.load_decision('abcde') is None


def test_a_unique_prefix_of_a_request_will_do(store):
    request = 'beefed11-0000-4000-8000-000000000000'
    store.records.save_decisions([a_decision(request_id=request, packed=b'1')])
    store.records.save_decisions([a_decision(request_id=request, packed=b'2')])
    assert store.records.load_decision('beefed')[0] == b'2'
    other = 'beefed22-0000-4000-8000-000000000000'
    store.records.save_decisions([a_decision(request_id=other, packed=b'3')])
    assert store.records.load_decision('beefed') is None
    assert store.records.load_decision('beefed2')[0] == b'3'


@pytest.mark.parametrize('what', ['', 'x' * 100, 'é' * 8, '%', '______', 'abcdef%'])
def test_nothing_is_found_by_nonsense(store, what):
    store.records.save_decisions([a_decision(id='abcdef11-0000-4000-8000-000000000000')])
    assert store.records.load_decision(what) is None


def test_a_decision_saved_twice_is_kept_once(store):
    record = a_decision()
    store.records.save_decisions([record])
    store.records.save_decisions([record])
    assert len(store.records.list_decisions()) == 1


def test_decisions_are_listed_newest_first_without_their_body(store):
    records = [a_decision(reason=f'r{i}', worker='w', project_id='p') for i in range(3)]
    for record in records:
        store.records.save_decisions([record])
    listed = store.records.list_decisions()
    assert [r.reason for r in listed] == ['r2', 'r1', 'r0']
    assert {(r.packed, r.worker, r.project_id) for r in listed} == {(b'', 'w', 'p')}
    assert listed[0].created_at == pytest.approx(store.database.ping(), abs=5)


def test_decisions_are_listed_by_outcome_and_in_pages(store):
    for i in range(6):
        store.records.save_decisions(
            [a_decision(outcome='busy' if i % 2 else 'failed', reason=str(i))]
        )
    assert [r.reason for r in store.records.list_decisions(outcome='busy')] == ['5', '3', '1']
    seen = []
    while page := store.records.list_decisions(limit=2, marker=seen[-1].id if seen else None):
        assert len(page) <= 2
        seen += page
    assert [r.reason for r in seen] == ['5', '4', '3', '2', '1', '0']


def test_decisions_of_a_project_come_without_those_of_others(store):
    for i in range(6):
        store.records.save_decisions(
            [a_decision(reason=str(i), project_id=('red', 'blue', None)[i % 3])]
        )
    newest = store.records.list_decisions(project='blue', limit=1)
    assert [r.reason for r in newest] == ['4']
    rest = store.records.list_decisions(
        project='blue', marker=newest[0].id, outcome=newest[0].outcome
    )
    assert [r.reason for r in rest] == ['1']
    assert store.records.list_decisions(project='green') == []


# -- purge ----------------------------------------------------------------------------------
def test_a_purge_within_its_bounds_takes_nothing(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    store.claims.force_release(claim.id, '')
    store.records.save_decisions([a_decision()])
    assert store.retention.purge(**KEEP) == 0
    assert state_of(store, claim) == 'released'


def test_the_oldest_decisions_go_first(store):
    records = [a_decision(reason=str(i)) for i in range(5)]
    for record in records:
        store.records.save_decisions([record])
    assert store.retention.purge(**{**KEEP, 'decisions': 2}) == 3
    assert [r.reason for r in store.records.list_decisions()] == ['4', '3']
    assert store.records.load_decision(records[0].id) is None


def test_a_purge_takes_no_more_than_its_limit(store):
    for _ in range(5):
        store.records.save_decisions([a_decision()])
    assert store.retention.purge(**{**KEEP, 'decisions': 0, 'limit': 2}) == 2
    assert len(store.records.list_decisions()) == 3


def test_a_purge_keeps_what_is_live(store, host):
    draft = a_draft().taking(host).taking(host)
    first, second = claimed(store, draft)
    host.confirm(first)
    everything = {**KEEP, 'decisions': 0, 'tombstone_seconds': -10, 'request_seconds': -10}
    store.retention.purge(**everything)
    assert (state_of(store, first), state_of(store, second)) == ('confirmed', 'reserved')
    assert store.requests.load_request(draft.id).state == 'placed'
    assert host.row.used == {'VCPU': 2}
    assert store.claims.audit() == CLEAN


def test_a_tombstone_stays_as_long_as_its_request(store, host):
    draft = a_draft().taking(host).taking(host)
    first, second = claimed(store, draft)
    host.refuse(first)
    store.retention.purge(**{**KEEP, 'tombstone_seconds': -10, 'request_seconds': -10})
    assert state_of(store, first) == 'refused'
    host.refuse(second)
    assert store.retention.purge(**{**KEEP, 'tombstone_seconds': -10, 'request_seconds': -10}) > 0
    assert store.claims.load_claim(first.id) is None
    assert store.requests.load_request(draft.id) is None
    assert store.claims.audit() == CLEAN


def test_a_tombstone_of_nobody_goes_by_itself(store, host):
    draft = a_draft().taking(host).unfinished()
    report_outcome(store, draft)
    claim = store.claims.list_claims()[0]
    store.requests.give_up(draft.id, 'worker-1', 1)
    assert store.retention.purge(**{**KEEP, 'tombstone_seconds': -10}) == 1
    assert store.claims.load_claim(claim.id) is None


def test_an_open_request_is_not_purged_before_its_deadline(store, host):
    draft = a_draft().taking(host).unfinished().within(1000)
    report_outcome(store, draft)
    store.claims.force_release(store.claims.list_claims()[0].id, '')
    store.retention.purge(**{**KEEP, 'request_seconds': -10})
    assert store.requests.load_request(draft.id).state == 'open'


def test_a_cancelled_request_goes_in_its_time(store):
    request = new_uuid()
    store.requests.cancel_request(request, '')
    store.retention.purge(**KEEP)
    assert store.requests.load_request(request).state == 'cancelled'
    store.retention.purge(**{**KEEP, 'request_seconds': -10})
    assert store.requests.load_request(request) is None
