# SPDX-License-Identifier: Apache-2.0
"""What happened lately: decisions over time, waits for hosts, claims by state."""

import random

import pytest

from gantt.core.claims.allocations import WantedAllocations
from gantt.core.messages.resource_classes import Inventory
from gantt.db.schema import models
from tests.builders import a_decision, a_draft, a_guest, claimed, new_uuid
from tests.conftest import READERS

#: What is read has its twin in memory in SQLite.
KINDS = READERS

ASKED = {'seconds': 600.0, 'parts': 10, 'most': 1000}


def _date_back(store, decision_id, seconds):
    """Let a decision be older than it is."""
    d = models.decisions
    with store.database.engine.begin() as connection:
        connection.execute(
            d.update().where(d.c.id == decision_id).values(created_at=d.c.created_at - seconds)
        )


def _some(store, ages, rng):
    """Decisions of these ages, oldest first."""
    for age in sorted(ages, reverse=True):
        outcome = rng.choice(['placed', 'no_valid_host', 'conflict'])
        record = a_decision(outcome=outcome)
        store.records.save_decisions([record])
        _date_back(store, record.id, age)


def _plain(store, now, seconds, parts, most):
    """The same from the list of decisions."""
    counts = {}
    for record in store.records.list_decisions(limit=most):
        age = now - record.created_at
        if age <= seconds:
            line = counts.setdefault(record.outcome, [0] * parts)
            line[min(parts - 1, int((seconds - age) / seconds * parts))] += 1
    return counts


def test_without_decisions_nothing_happened(store):
    history = store.records.history(**ASKED)
    assert (history.outcomes, history.waits) == ({}, [])
    assert history.now - history.since == pytest.approx(600)
    assert history.now == pytest.approx(store.database.ping(), abs=5)


@pytest.mark.parametrize('seed', range(6))
def test_decisions_are_counted_by_outcome_and_part(store, seed):
    rng = random.Random(seed)
    # Never on a boundary: there a moment decides.
    ages = [rng.randrange(2000) + 0.5 + rng.random() * 0.1 for _ in range(rng.randrange(1, 25))]
    _some(store, ages, rng)
    for seconds, parts, most in ((600.25, 10, 1000), (60.25, 4, 1000), (5000.25, 7, 5)):
        history = store.records.history(seconds=seconds, parts=parts, most=most)
        assert history.outcomes == _plain(store, history.now, seconds, parts, most)


def test_what_was_not_read_or_is_not_kept_is_not_called_quiet(store):
    _some(store, [100, 200, 300, 5000], random.Random(1))
    assert store.records.history(**ASKED).since == pytest.approx(store.database.ping() - 600, abs=5)
    assert store.records.history(**{**ASKED, 'most': 2}).since == pytest.approx(
        store.database.ping() - 200, abs=5
    )
    store.retention.purge(decisions=3, tombstone_seconds=1e6, request_seconds=1e6, limit=10)
    assert store.records.history(**ASKED).since == pytest.approx(store.database.ping() - 300, abs=5)


def test_all_decisions_may_be_older_than_asked(store):
    _some(store, [3000, 4000], random.Random(1))
    history = store.records.history(**ASKED)
    assert history.outcomes == {}
    assert history.now - history.since == pytest.approx(600)


def _placed(store, host):
    """A claim with the decision that made it."""
    request_id = new_uuid()
    record = a_decision(outcome='placed', request_id=request_id)
    draft = a_draft(request_id).taking(host).having(decision=record)
    return claimed(store, draft)[0]


def test_a_wait_ends_with_the_word_of_the_host(store, host):
    confirmed, _, released = (_placed(store, host) for _ in range(3))
    host.confirm(confirmed)
    host.confirm(released)
    host.release(released)
    [(created_at, seconds)] = store.records.history(**ASKED).waits
    now = store.claims.load_claim(confirmed.id)
    assert (created_at, seconds) == (now.created_at, now.updated_at - now.created_at)
    assert 0 <= seconds < 60


def test_a_claim_is_waited_for_once_however_many_decisions_made_it(store, host):
    claim = _placed(store, host)
    again = a_decision(outcome='placed', request_id=claim.request_id)
    store.records.save_decisions([again])
    host.confirm(claim)
    assert len(store.records.history(**ASKED).waits) == 1


def test_claims_on_pools_are_counted_apart_from_those_on_hosts(store, host):
    disks = {'DISK_GB': Inventory(total=100)}
    pool, nested = (
        store.providers.create_provider(name, inventories=disks, parent=parent)
        for name, parent in (('pool', None), ('card', host.row.uuid))
    )
    assert store.claims.count_claims_on_pools() == 0
    on_pool, other = new_uuid(), new_uuid()
    beside = {host.row.uuid: {'VCPU': 1}, pool.uuid: {'DISK_GB': 5}, nested.uuid: {'DISK_GB': 5}}
    for consumer, shares in (
        (on_pool, {pool.uuid: {'DISK_GB': 10}}),
        (other, {pool.uuid: {'DISK_GB': 10}}),
        (new_uuid(), beside),
    ):
        owner = {'project_id': 'p1', 'user_id': 'u1'}
        store.allocations.write_allocations(
            [WantedAllocations(consumer=consumer, allocations=shares, **owner)]
        )
    _placed(store, host)
    assert store.claims.count_claims_on_pools() == 2
    store.allocations.delete_allocations(on_pool)
    assert store.claims.count_claims_on_pools() == 1


def test_claims_are_counted_by_state_and_adopted_ones_while_they_live(store, host):
    assert store.claims.count_claims().states == dict.fromkeys(
        ('reserved', 'confirmed', 'released', 'expired', 'refused'), 0
    )
    first, second, third = (_placed(store, host) for _ in range(3))
    host.confirm(first)
    host.refuse(second)
    host.report([first, a_guest(new_uuid())], [third])
    counts = store.claims.count_claims()
    assert {k: n for k, n in counts.states.items() if n} == {
        'reserved': 1,
        'confirmed': 2,
        'refused': 1,
    }
    assert counts.adopted == 1
    host.report([first], [third])
    host.report([first], [third])
    adopted = [c for c in store.claims.list_claims() if c.adopted]
    assert store.claims.count_claims().adopted == sum(c.is_live for c in adopted)
