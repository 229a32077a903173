# SPDX-License-Identifier: Apache-2.0
"""Databases that go back: what the other side knows is restored, or shown as lost."""

import msgspec
import pytest

from gantt import exceptions
from gantt.core.messages.request import Purpose
from gantt.core.records import audit_remedies
from gantt.core.records.decision import Outcome
from gantt.db.schema import migration
from gantt.zones.service import follow
from gantt.zones.service.audit import ZoneAudit
from gantt.zones.sql import zone_releases
from tests.nemesis.backup import Backup
from tests.world import a_request
from tests.zones.test_over_zones import children_of
from tests.zones.tree import until


def placed(top, **spec):
    request = a_request(**{'vcpu': 1, **spec})
    answer = top.select(request)
    assert answer.outcome is Outcome.PLACED and answer.selections[0][0].child, answer
    return request, answer.selections[0][0]


def state_of(top, claim_id):
    return {row.claim_id: row.state for row in top.store.child_claims.find()}.get(claim_id)


def audited(zone):
    audit = ZoneAudit(zone.store, zone.around.calls).run()
    for kind, lines in audit.lines.items():
        for line in lines:
            assert audit_remedies.remedy_of(kind, line) is not None, line
    return audit


@pytest.fixture
def east(zone):
    return zone('east').hosts(2, 8)


@pytest.fixture
def top(zone, east):
    return zone('top').above(east)


def put_back(zone, backup, bumped=True):
    backup.put_back()
    if bumped:
        migration.bump_incarnation(zone.store.database.engine)


@pytest.mark.parametrize('bumped', [True, False])
def test_what_the_zone_above_forgets_is_restored(zone, top, east, bumped):
    west = zone('west').hosts(1, 64)
    before, _ = placed(top)
    until(lambda: top.store.zones.child_zones()[0].synced_incarnation)
    backup = Backup(top.store)
    runs, confirmed = placed(top)
    waits, reserved = placed(top)
    assert east.confirm(confirmed.claim_id) == 'ok'
    put_back(top, backup, bumped)
    assert {row.request_id for row in top.store.child_claims.find()} == {before.request_id}
    # It is read before a zone is put below where the forgotten would rather be.
    until(lambda: state_of(top, confirmed.claim_id) and state_of(top, reserved.claim_id))
    top.above(west)
    states = {state_of(top, selection.claim_id) for selection in (confirmed, reserved)}
    assert states == {'confirmed', 'reserved'}
    for forgotten in (runs, waits):
        answer = top.select(a_request(vcpu=1, consumers=forgotten.consumers))
        assert answer.outcome is Outcome.REFUSED, answer.reason
        # So is a copy of what nobody remembers here.
        assert top.select(forgotten).outcome is Outcome.REFUSED
    assert (east.live(), west.live()) == (3, 0)
    audit = audited(top)
    assert not any(audit.lines.values())
    assert [summary.restored for summary in audit.zones if summary.zone == 'east'] == [2]
    # By the key that the zone has for it, it is looked at and ended as any other.
    [row] = [row for row in top.store.child_claims.find() if row.claim_id == reserved.claim_id]
    assert top.store.requests.load_request(row.request_id).state == 'placed'
    assert east.unseal(row.sealed_host)['claim_id'] == reserved.claim_id
    top.client.cancel_claims(row.request_id)
    until(lambda: state_of(top, reserved.claim_id) == 'released')
    again = top.select(a_request(vcpu=1, consumers=waits.consumers))
    assert again.outcome is Outcome.PLACED, again.reason
    # A guest that runs below is moved where it is.
    move = a_request(
        vcpu=1, consumers=runs.consumers, purpose=Purpose.MIGRATE, move_id=a_request().request_id
    )
    assert children_of(top.select(move)) == ['east']


def test_what_is_on_its_way_or_about_to_end_is_not_restored(top, east, monkeypatch):
    """It is read while it is made, and again while it ends."""
    calls, follower = top.zones.calls, top.over_zones.follower
    follower.stop(10.0)
    [record] = top.store.zones.child_zones()
    allocate, seen = calls.allocate, []

    def watched(*args):
        allocated = allocate(*args)
        assert follower.follow(record)
        seen.append(top.store.child_claims.find())
        return allocated

    monkeypatch.setattr(calls, 'allocate', watched)
    request, chosen = placed(top)
    assert seen == [[]]
    [row] = top.store.child_claims.find()
    assert (row.request_id, row.restored) == (request.request_id, False)
    top.store.zone_releases.add_releases([(east.uuid, row.key)])
    assert follower.follow(record)
    assert audited(top).zones[0].restored == 0
    assert east.store.claims.load_claim(chosen.claim_id).is_live


def test_what_was_on_its_way_in_the_backup_is_restored_once_it_is_left(top, east, monkeypatch):
    """Guests that run below are known again, though no later change of theirs is reported."""
    monkeypatch.setattr(follow, 'OVERLAP_SECONDS', 0.0)
    monkeypatch.setattr(zone_releases, 'ABANDONED_AFTER_SECONDS', 0.5)
    calls, follower = top.zones.calls, top.over_zones.follower
    until(lambda: top.store.zones.child_zones()[0].synced_incarnation)
    follower.stop(10.0)
    allocate, backups = calls.allocate, []

    def saved(*args):
        allocated = allocate(*args)
        backups.append(Backup(top.store))
        return allocated

    monkeypatch.setattr(calls, 'allocate', saved)
    _, runs = placed(top, budget_ms=1000)
    assert east.confirm(runs.claim_id) == 'ok'
    put_back(top, backups[0])
    top.zones.directory.refresh()
    follower.step()
    assert state_of(top, runs.claim_id) is None, 'its request may still be finished'
    _, later = placed(top)
    assert east.confirm(later.claim_id) == 'ok'

    def is_known() -> bool:
        top.zones.directory.refresh()
        follower.step()
        return state_of(top, runs.claim_id) == 'confirmed'

    until(is_known)
    assert east.store.claims.load_claim(runs.claim_id).state == 'confirmed'
    assert not any(audited(top).lines.values())
    [record] = top.store.zones.child_zones()
    assert record.synced_incarnation == top.store.zones.zone_identity().incarnation


def test_a_zone_that_cannot_be_followed_keeps_no_other_one_from_it(zone, top, east, monkeypatch):
    follower = top.over_zones.follower
    follower.stop(10.0)
    others = [zone('a').hosts(1, 8), zone('z').hosts(1, 8)]
    top.above(*others)
    calls = top.zones.calls
    changes, followed = calls.changes, []

    def fails(asked, *given):
        followed.append(asked.name)
        if asked.name == 'a':
            raise ZeroDivisionError('not foreseen')
        return changes(asked, *given)

    monkeypatch.setattr(calls, 'changes', fails)
    follower.step()
    assert followed == ['a', 'east', 'z']
    rows = {child.name: child.synced_incarnation for child in top.store.zones.child_zones()}
    assert not rows['a'] and rows['east'] and rows['z']


@pytest.mark.parametrize('heard_of', ['claims', 'nothing', 'never'])
def test_what_the_zone_below_forgets_is_shown_as_lost(top, east, heard_of):
    """Also where there was nothing to hear of before the first claim, or nobody has listened."""
    follower = top.over_zones.follower
    if heard_of == 'nothing':
        until(lambda: top.store.zones.child_zones()[0].synced_incarnation)
    if heard_of != 'claims':
        follower.stop(10.0)
        record = msgspec.structs.replace(
            top.store.zones.child_zones()[0],
            synced_incarnation=top.store.zones.zone_identity().incarnation
            if heard_of == 'nothing'
            else 0,
        )
    request, _ = placed(top)
    if heard_of == 'claims':
        until(lambda: top.store.zones.child_zones()[0].revision > 0)
    backup = Backup(east.store)
    runs, confirmed = placed(top)
    waits, reserved = placed(top)
    assert east.confirm(confirmed.claim_id) == 'ok'
    put_back(east, backup)
    if heard_of != 'claims':
        assert record.revision == 0
        until(lambda: follower.follow(record) and state_of(top, reserved.claim_id) == 'lost')
    until(lambda: state_of(top, confirmed.claim_id) == 'lost')
    assert state_of(top, reserved.claim_id) == 'lost'
    assert [row.state for row in top.store.child_claims.find(request.request_id)] == ['reserved']
    lines = audited(top).lines
    assert len(lines['lost']) == 2 and not lines['leaked'] and not lines['doubled']
    assert all(line.endswith('zone east does not know it') for line in lines['lost'])
    # A guest may run there: nobody starts it once more.
    for lost in (runs, waits):
        answer = top.select(a_request(vcpu=1, consumers=lost.consumers))
        assert answer.outcome is Outcome.REFUSED, answer.reason
    # Whoever has looked ends it.
    top.client.cancel_claims(waits.request_id)
    until(lambda: state_of(top, reserved.claim_id) == 'released')
    answer = top.select(a_request(vcpu=1, consumers=waits.consumers))
    assert answer.outcome is Outcome.PLACED, answer.reason
    assert state_of(top, confirmed.claim_id) == 'lost'
    assert not any(east.store.claims.audit().values())


def test_a_zone_between_two_others_says_of_what_is_lost_below_it_nothing(zone):
    top, mid, leaf = zone('top'), zone('mid'), zone('leaf').hosts(1, 8)
    mid.above(leaf)
    top.above(mid)
    placed(top)
    until(lambda: mid.store.zones.child_zones()[0].revision > 0)
    until(lambda: top.store.zones.child_zones()[0].synced_incarnation)
    backup = Backup(leaf.store)
    _, chosen = placed(top)
    put_back(leaf, backup)
    until(lambda: state_of(mid, chosen.claim_id) == 'lost')
    top.over_zones.follower.step()
    assert state_of(top, chosen.claim_id) == 'reserved'
    [row] = top.store.child_claims.find(claim_id=chosen.claim_id)
    calls, zones = top.zones.calls, top.zones.directory
    assert calls.allocation(zones.child('mid'), row.key, 5.0).state == 'placed'


def test_a_lease_below_that_is_forgotten_while_it_is_extended_is_not_known(top, east, monkeypatch):
    backup = Backup(east.store)
    request, _ = placed(top)
    monkeypatch.setattr(east.client, 'extend_claims', lambda *_: put_back(east, backup))
    with pytest.raises(exceptions.NotFound):
        top.client.extend_claims(request.request_id, 60)


def test_what_is_claimed_while_all_is_read_is_not_lost(top, east, monkeypatch):
    """It need not be in what was read; what stands there already has to be."""
    calls, follower = top.zones.calls, top.over_zones.follower
    follower.stop(10.0)
    changes, claim_ids = calls.changes, []

    def meanwhile(*args):
        page = changes(*args)
        claim_ids.append(placed(top)[1].claim_id)
        return page

    monkeypatch.setattr(calls, 'changes', meanwhile)
    for _ in range(2):
        assert follower.follow(top.zones.directory.child('east'))
    assert [state_of(top, claim_id) for claim_id in claim_ids] == ['reserved', 'reserved']


def test_a_database_above_that_goes_back_claims_once_for_a_consumer(top, east):
    """Its caller asks again before all is read."""
    backup = Backup(top.store)
    top.over_zones.follower.stop(10.0)
    request, _ = placed(top, vcpu=2)
    put_back(top, backup)
    top.zones.directory.refresh()
    again = top.select(request)
    assert again.outcome is Outcome.PLACED, again.reason
    assert east.live() == 1
    assert east.store.claims.load_claim(again.selections[0][0].claim_id).is_live
    top.over_zones.follower.step()
    assert [row.restored for row in top.store.child_claims.find()] == [False]
    assert not any(east.store.claims.audit().values())
