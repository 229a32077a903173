# SPDX-License-Identifier: Apache-2.0
"""A refusal that is kept: no other copy of the request is placed after it."""

from collections import Counter

from gantt.core.claims.commit import CommitStatus
from tests.builders import CLEAN, a_draft, a_host, live, report_outcome
from tests.contract.test_threads import CALLERS, at_once


def reject(store, draft, answer=b'no'):
    return store.requests.reject_request(draft.id, draft.build().fingerprint, answer)


def test_a_copy_that_comes_later_is_not_placed(store, host):
    draft = a_draft().taking(host)
    assert reject(store, draft) is None
    assert report_outcome(store, draft).outcome is CommitStatus.CANCELLED
    assert live(store) == []
    stored = store.requests.load_request(draft.id)
    assert (stored.state, stored.fingerprint, stored.answer) == (
        'cancelled',
        draft.build().fingerprint,
        b'no',
    )
    again = reject(store, draft, b'something else')
    assert (again.state, again.answer) == ('cancelled', b'no')
    assert store.claims.audit() == CLEAN


def test_what_is_placed_stays(store, host):
    draft = a_draft().taking(host)
    assert report_outcome(store, draft).outcome is CommitStatus.PLACED
    row = reject(store, draft)
    assert row.state == 'placed'
    assert len(live(store, request_id=draft.id)) == 1
    assert report_outcome(store, draft).outcome is CommitStatus.REPEAT
    assert store.claims.audit() == CLEAN


def test_what_was_taken_back_stays_so(store, host):
    draft = a_draft().taking(host)
    store.requests.cancel_request(draft.id, 'not wanted')
    row = reject(store, draft)
    assert (row.state, row.answer) == ('cancelled', b'')


def test_of_a_refusal_and_a_copy_in_a_race_one_holds(store):
    host = a_host('cmp-1').with_room(vcpu=100).on(store)
    for _ in range(6):
        draft = a_draft().taking(host)

        def work(number, draft=draft):
            if number % 2:
                return reject(store, draft) is None
            return report_outcome(store, draft).outcome

        ends = Counter(at_once(work))
        placed = len(live(store, request_id=draft.id))
        assert ends[True] + placed == 1
        assert store.requests.load_request(draft.id).state == ('placed' if placed else 'cancelled')
        assert ends[CommitStatus.PLACED] == placed
    assert CALLERS > 3
    assert store.claims.audit() == CLEAN
