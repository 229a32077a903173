# SPDX-License-Identifier: Apache-2.0
"""What is to end in zones below: it ends whoever dies, and what comes late claims nothing."""

import time

import msgspec
import pytest
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.messages.request import Purpose
from gantt.core.records.decision import Outcome
from gantt.db.schema import models
from gantt.stores import stores_for_url
from gantt.zones.ports import ParentAllocation
from gantt.zones.service import request_lock
from gantt.zones.sql import zone_releases as rows
from tests.world import a_request
from tests.zones.tree import Zone, until


def unheard(*args):
    raise exceptions.Unavailable('the connection broke')


def waiting(top):
    return top.store.zone_releases.waiting_releases().number


@pytest.fixture
def tree(zone):
    """A zone above two hosts of another one."""
    east = zone('east').hosts(2, 8)
    return zone('top').above(east), east


@pytest.fixture
def restarted(tmp_path):
    """``restarted(top)``: another process of a zone on its database, when the first is gone."""
    zones = []

    def make(top):
        top.over_zones.follower.stop(10.0)
        process = Zone(top.name, stores_for_url(str(top.store.database.engine.url))).start()
        zones.append(process)
        return process

    yield make
    for zone in zones:
        zone.stop()
        zone.store.database.close()


def test_an_allocation_that_was_held_up_ends_none_that_was_answered(tree, monkeypatch):
    """It comes when a later request for its consumer was answered by the same zone."""
    top, east = tree
    calls = top.zones.calls
    held_up = []

    def holds_up(*args):
        held_up.append(args)
        raise exceptions.Unavailable('no answer')

    with monkeypatch.context() as broken:
        broken.setattr(calls, 'allocate', holds_up)
        for name in ('allocation', 'release'):
            broken.setattr(calls, name, unheard)
        lost = a_request(vcpu=1, budget_ms=2000)
        assert top.select(lost).outcome is not Outcome.PLACED
        # Whoever ends what was not answered does not get through for now.
        top.over_zones.follower.stop(10.0)
        top.store.zone_releases.end_releases(
            [(row.child, row.key) for row in top.store.zone_releases.due_releases(100)]
        )
    assert held_up and east.live() == 0
    answer = top.select(a_request(vcpu=1, consumers=lost.consumers))
    assert answer.outcome is Outcome.PLACED, answer.reason
    chosen = answer.selections[0][0]
    for zone, key, body, _ in held_up:
        with pytest.raises(exceptions.OfferGone, match='allocation_outdated'):
            calls.allocate(zone, key, body, 10.0)
    assert east.store.claims.load_claim(chosen.claim_id).is_live
    assert east.live() == 1
    # Neither does a copy of what was answered, which says the same again.
    assert top.select(a_request(vcpu=1, consumers=lost.consumers)).outcome is Outcome.REFUSED


def test_an_allocation_that_is_being_placed_is_ended_by_a_later_one(tree, monkeypatch):
    """It has passed the door of the zone, and its scheduler claims later."""
    top, east = tree
    record = top.zones.directory.child('east')
    calls, sent = top.zones.calls, []
    lost = a_request(vcpu=1, budget_ms=2000)
    with monkeypatch.context() as broken:
        broken.setattr(calls, 'allocate', lambda *args: (sent.append(args), unheard()))
        broken.setattr(calls, 'allocation', unheard)
        top.select(lost)
    _, key, body, _ = sent[0]
    # As the API of the zone does, before it asks its scheduler.
    first = body.request
    allocation = ParentAllocation(
        parent='top',
        key=key,
        order=body.order,
        consumers=first.consumers,
        purpose=Purpose.CREATE,
        seconds=2.0,
    )
    assert east.store.orders.note_allocation(allocation) == []
    with east.store.database.engine.begin() as connection:
        connection.execute(
            models.requests.delete().where(models.requests.c.id == allocation.request_id)
        )
    answer = top.select(a_request(vcpu=1, consumers=lost.consumers))
    assert answer.outcome is Outcome.PLACED, answer.reason
    late = msgspec.structs.replace(first, request_id=allocation.request_id, parent='top')
    assert east.scheduler.select(late).outcome is Outcome.CANCELLED
    assert east.store.claims.load_claim(answer.selections[0][0].claim_id).is_live
    assert calls.allocation(record, key, 5.0).state == 'cancelled'


def test_what_was_not_heard_of_is_given_back_by_whoever_comes_after(tree, restarted, monkeypatch):
    top, east = tree
    calls = top.zones.calls
    allocate = calls.allocate

    def unanswered(*args):
        allocate(*args)
        raise exceptions.Unavailable('the connection broke')

    monkeypatch.setattr(calls, 'allocate', unanswered)
    monkeypatch.setattr(calls, 'allocation', unheard)
    monkeypatch.setattr(calls, 'release', unheard)
    assert top.select(a_request(vcpu=1, budget_ms=2000)).outcome is not Outcome.PLACED
    assert east.live() and waiting(top)
    restarted(top)
    until(lambda: not waiting(top))
    assert east.live() == 0


def test_what_a_process_leaves_open_is_ended_though_nobody_repeats_it(tree, restarted, monkeypatch):
    """It dies between the claim and the answer."""
    top, east = tree
    monkeypatch.setattr(rows, 'ABANDONED_AFTER_SECONDS', 0.0)
    monkeypatch.setattr(request_lock, 'SPARE_SECONDS', 0.0)
    top.over_zones.follower.stop(10.0)
    monkeypatch.setattr(top.store.zone_requests, 'finish_request', lambda *args: 1 / 0)
    request = a_request(vcpu=1, budget_ms=2000)
    assert top.select(request).outcome is Outcome.FAILED
    assert east.live() == 1
    other = restarted(top)
    until(lambda: east.live() == 0)
    until(lambda: not waiting(top))
    assert top.store.requests.load_request(request.request_id) is None and not top.on_their_way()
    # Its caller asks again: a new one.
    again = other.select(a_request(vcpu=1, consumers=request.consumers))
    assert again.outcome is Outcome.PLACED, again.reason


def test_a_request_whose_consumer_another_one_takes_is_given_back(tree, monkeypatch):
    top, east = tree
    monkeypatch.setattr(request_lock, 'SPARE_SECONDS', 0.0)
    monkeypatch.setattr(top.store.zone_releases, 'abandoned_requests', lambda limit: [])
    with monkeypatch.context() as dies:
        dies.setattr(top.store.zone_requests, 'finish_request', lambda *args: 1 / 0)
        request = a_request(vcpu=1, budget_ms=2000)
        assert top.select(request).outcome is Outcome.FAILED
    top.host('top-1', 64)
    stays = a_request(vcpu=1, consumers=request.consumers, hops=0)
    until(lambda: top.select(stays).outcome is Outcome.PLACED)
    until(lambda: east.live() == 0)


def test_a_cancel_is_finished_by_whoever_comes_after(tree, restarted, monkeypatch):
    top, east = tree
    request = a_request(vcpu=1)
    assert top.select(request).outcome is Outcome.PLACED
    # The process ends as soon as the request is cancelled here.
    monkeypatch.setattr(top.over_zones, 'cancel', lambda request_id: None)
    top.client.cancel_claims(request.request_id)
    assert east.live() == 1
    restarted(top)
    until(lambda: east.live() == 0)
    until(lambda: top.store.child_claims.find(request.request_id)[0].state == 'released')


def test_tries_pause_longer_and_longer_are_measured_and_end_with_the_longest_lease(
    tree, monkeypatch
):
    top, east = tree
    calls, follower = top.zones.calls, top.over_zones.follower
    follower.stop(10.0)
    monkeypatch.setattr(calls, 'release', unheard)
    key = a_request().request_id
    top.store.zone_releases.add_releases([(east.uuid, key)])
    table = models.zone_releases

    def pause(**values):
        with top.store.database.engine.begin() as connection:
            row = connection.execute(sa.select(table)).one()
            connection.execute(table.update().values(next_at=0.0, **values))
        return row.tries, row.next_at

    pauses = []
    for tries in range(1, 5):
        now = time.time()
        follower.step()
        count, at = pause()
        assert count == tries
        pauses.append(at - now)
    assert pauses == pytest.approx([2, 4, 8, 16], abs=1.5)
    assert 'gantt_zone_releases_pending 1' in top.metrics.render().decode()
    # After the longest lease that there is nothing can be held by it.
    pause(created_at=1.0)
    follower.step()
    assert not waiting(top)
    assert 'gantt_zone_releases_dropped_total 1' in top.metrics.render().decode()


def test_a_zone_that_is_removed_has_nothing_to_give_back(tree):
    top, east = tree
    top.over_zones.follower.stop(10.0)
    top.store.zone_releases.add_releases([(east.uuid, a_request().request_id)])
    top.store.zones.remove_child_zone(east.uuid)
    assert not waiting(top)
