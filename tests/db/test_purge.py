# SPDX-License-Identifier: Apache-2.0
"""Purging goes round all rows in bounded steps, and does not look twice for nothing."""

import math

import sqlalchemy as sa

from gantt.db.engine.session import Tx
from gantt.db.records import purge
from gantt.db.schema import models
from tests.builders import CLEAN, a_decision, a_draft, a_host, claimed, new_uuid
from tests.plans import created, planned

OLD = {'tombstone_seconds': -10, 'request_seconds': -10}
KEEP = {'tombstone_seconds': 1e6, 'request_seconds': 1e6}


def test_what_may_go_is_found_behind_many_that_stay(store):
    host = a_host().with_room(vcpu=200).on(store)
    drafts = [a_draft().taking(host) for _ in range(60)]
    claims = [claimed(store, draft)[0] for draft in drafts]
    going = sorted(draft.id for draft in drafts)[-5:]
    for draft, claim in zip(drafts, claims, strict=True):
        if draft.id in going:
            host.refuse(claim)
        else:
            host.confirm(claim)
    rounds = 0
    while store.retention.purge(decisions=1000, limit=2, **OLD) or not store.retention.is_purged:
        rounds += 1
        assert rounds < 100
    assert [request_id for request_id in going if store.requests.load_request(request_id)] == []
    assert all(store.requests.load_request(d.id) for d in drafts if d.id not in going)
    assert store.claims.audit() == CLEAN


def test_again_goes_on_where_some_were_left(store):
    store.records.save_decisions([a_decision() for _ in range(5)])
    request = new_uuid()
    store.requests.cancel_request(request, '')
    assert store.retention.purge(decisions=0, limit=2, **KEEP) == 2
    assert store.retention.purge(decisions=0, limit=2, again=True, **OLD) == 2
    assert store.requests.load_request(request) is not None, 'none of its kind were left over'
    assert store.retention.purge(decisions=0, limit=2, again=True, **OLD) == 1
    assert store.retention.purge(decisions=0, limit=2, again=True, **OLD) == 0
    store.retention.purge(decisions=0, limit=2, **OLD)
    assert store.requests.load_request(request) is None


def test_as_many_decisions_stay_as_are_to(store):
    for _ in range(4):
        store.records.save_decisions([a_decision() for _ in range(3)])
    with store.database.engine.begin() as connection:  # numbers that no decision has
        numbers = connection.execute(sa.select(models.decisions.c.number)).scalars().all()
        connection.execute(
            models.decisions.delete().where(models.decisions.c.number.in_(sorted(numbers)[4:7]))
        )
    assert store.retention.purge(decisions=9, limit=2, **KEEP) == 0
    assert store.retention.purge(decisions=5, limit=2, **KEEP) == 2
    assert store.retention.purge(decisions=8, limit=2, **KEEP) == 0, 'more are to stay than before'
    assert store.retention.purge(decisions=5, limit=20, **KEEP) == 2
    assert len(store.records.list_decisions(limit=20)) == 5


def test_the_more_decisions_are_too_young_to_go_the_fewer_pieces_each_has(store, monkeypatch):
    monkeypatch.setattr(purge, 'PIECES', 10)
    walk, newest = purge.DecisionsWalk(), sa.select(sa.func.max(models.decisions.c.number))
    for _ in range(40):
        store.records.save_decisions([a_decision(project_id='one') for _ in range(20)])
        with store.database.engine.connect() as connection:
            tx = Tx(connection, store.database.engine.dialect.name)
            last = connection.execute(newest).scalar_one()
            assert walk.excess(tx, last, 20, None, 100, young=0.0) == []
    pieces = walk._pieces['one']
    assert sum(piece.rows for piece in pieces) == 800
    # Each has a tenth of what there was when it was begun.
    assert len(pieces) < 10 * (1 + math.log(800 / 20)) + 10


def test_the_newest_entries_of_the_feed_stay(store, monkeypatch):
    monkeypatch.setattr(purge, 'CHANGES_STORED', 5)
    for _ in range(12):
        a_host().on(store)
    before = _changes(store)
    gone = 0
    while went := store.retention.purge(decisions=1000, limit=3, **KEEP):
        assert went <= 3
        gone += went
    assert _changes(store) == before[-5:]
    assert gone >= len(before) - 5


def _changes(store):
    with store.database.engine.connect() as connection:
        return (
            connection.execute(sa.select(models.changes.c.id).order_by(models.changes.c.id))
            .scalars()
            .all()
        )


def test_a_plan_goes_when_its_lease_and_all_claims_of_its_members_are_gone(store):
    host = a_host().on(store)
    running, ended, held = (
        planned(store, {'a': host}, seconds=seconds)['a'] for seconds in (-20, -20, 3600)
    )
    created(store, running)
    host.confirm(running)
    store.claims.sweep(10)
    assert store.plans.load_group_plan(ended.group) is not None
    rounds = 0
    while store.retention.purge(decisions=1000, limit=2, **OLD) or not store.retention.is_purged:
        rounds += 1
        assert rounds < 100
    plans = {plan.group_uuid for plan in store.plans.group_plans(10)}
    assert plans == {running.group, held.group}
    assert store.groups.load_group(ended.group) is None
    assert store.groups.load_group(held.group) is not None
    assert store.claims.audit() == CLEAN
