# SPDX-License-Identifier: Apache-2.0
"""Who deletes the allocations of a consumer ends its claims in zones below, and nobody else's."""

import pytest

from gantt import exceptions
from gantt.cmd import policies
from gantt.core.claims.claim import LOST_STATE, State
from gantt.core.records.decision import Outcome
from gantt.db.schema import models
from gantt.zones.model.messages import ZoneChanges
from tests.world import a_request
from tests.zones.test_written_beside_below import OPERATOR, placement_of


@pytest.fixture
def tree(zone):
    top, low = zone('top'), zone('low').hosts(1, 16)
    top.above(low)
    top.over_zones.follower.stop(10.0)
    return top, low


def heard(*zones):
    """What is noted in each of them is sent down, and what became of it is read."""
    for zone in zones:
        zone.over_zones.follower.step()


def operator_of(zone):
    return placement_of(zone, OPERATOR, policies.defaults())


def of(zone, consumer):
    """State of the one claim that a consumer has below."""
    [row] = zone.store.child_claims.find(consumers=[consumer])
    return row.state


def in_zone(zone, consumer):
    [claim] = zone.store.claims.list_claims(consumer=consumer)
    return claim.state


def test_it_is_answered_at_once_and_goes_on_until_the_zone_has_heard(tree, monkeypatch):
    top, low = tree
    request = a_request(2, vcpu=2, alternates=0)
    assert top.select(request).outcome is Outcome.PLACED
    assert len({row.key for row in top.store.child_claims.find()}) == 1, 'one allocation'
    deleted, remaining = request.consumers
    client, calls, tries = operator_of(top), top.zones.calls, []
    release = calls.release

    def at_first_silent(*given):
        tries.append(given)
        if len(tries) == 1:
            raise exceptions.Unavailable('the zone is away')
        release(*given)

    monkeypatch.setattr(calls, 'release', at_first_silent)
    assert client.delete(f'/allocations/{deleted}').status_code == 204
    assert client.get(f'/allocations/{deleted}').json() == {'allocations': {}}
    heard(top)
    assert (of(top, deleted), len(tries)) == ('reserved', 1)
    with top.store.database.engine.begin() as connection:
        connection.execute(models.zone_releases.update().values(next_at=0.0))
    heard(top)
    assert (in_zone(low, deleted), in_zone(low, remaining)) == (State.RELEASED, State.RESERVED)
    assert (of(top, deleted), of(top, remaining), len(tries)) == ('released', 'reserved', 2)
    assert top.store.zone_releases.waiting_releases().number == 0
    assert client.delete(f'/allocations/{deleted}').status_code == 404
    assert top.select(a_request(vcpu=1, consumers=[deleted])).outcome is Outcome.PLACED


@pytest.mark.parametrize('trusted', [True, False])
def test_of_a_guest_that_runs_it_ends_where_the_zones_have_one_owner(tree, trusted):
    top, low = tree
    own = {'identity': top.uuid, 'project_id': 'of-top', 'trusted': trusted}
    assert low.put('/v1/parents/top', own).status_code == 200
    request = a_request(vcpu=2, alternates=0)
    [[chosen]] = top.select(request).selections
    [consumer] = request.consumers
    assert low.confirm(chosen.claim_id) == 'ok'
    heard(top)
    assert of(top, consumer) == 'confirmed'
    assert operator_of(top).delete(f'/allocations/{consumer}').status_code == 204
    heard(top)
    assert top.store.zone_releases.waiting_releases().number == 0
    assert in_zone(low, consumer) is (State.RELEASED if trusted else State.CONFIRMED)
    low.report('low-1', 16, running=[])  # its guest is gone
    assert in_zone(low, consumer) is State.RELEASED
    heard(top)
    assert of(top, consumer) == 'released'


def test_it_ends_further_down_too(zone):
    top, mid, leaf = zone('top'), zone('mid'), zone('leaf').hosts(1, 8)
    mid.above(leaf)
    top.above(mid)
    for parent in (top, mid):
        parent.over_zones.follower.stop(10.0)
    request = a_request(vcpu=1, alternates=0)
    assert top.select(request).outcome is Outcome.PLACED
    [consumer] = request.consumers
    assert operator_of(top).delete(f'/allocations/{consumer}').status_code == 204
    heard(top, mid, top)
    assert in_zone(leaf, consumer) is State.RELEASED
    assert of(mid, consumer) == of(top, consumer) == 'released'


def test_a_zone_ends_only_what_it_has_claimed_itself(tree):
    top, low = tree
    own, theirs = a_request(vcpu=1, alternates=0), a_request(vcpu=1, alternates=0)
    assert low.select(own).outcome is top.select(theirs).outcome is Outcome.PLACED
    [row] = top.store.child_claims.find()
    [claim] = low.store.claims.list_claims(consumer=own.consumers[0])
    calls, record = top.zones.calls, top.store.zones.child_zones()[0]
    calls.release(record, row.key, 5.0, claim.id)
    calls.release(record, theirs.request_id, 5.0, row.claim_id)
    assert [
        low.store.claims.load_claim(claim_id).state for claim_id in (claim.id, row.claim_id)
    ] == ([State.RESERVED] * 2)


def test_of_what_is_lost_the_one_that_is_deleted_ends(tree):
    top, low = tree
    request = a_request(2, vcpu=1, alternates=0)
    assert top.select(request).outcome is Outcome.PLACED
    states = {row.claim_id: LOST_STATE for row in top.store.child_claims.find()}
    with low.store.database.engine.begin() as connection:
        for table in (models.claims, models.requests):
            connection.execute(table.delete())
    changes = ZoneChanges(incarnation=1, revision=1.0, claims=[])
    top.store.zone_claims.note_child_changes(low.uuid, changes, states, 1)
    deleted, remaining = request.consumers
    assert operator_of(top).delete(f'/allocations/{deleted}').status_code == 204
    heard(top)
    assert (of(top, deleted), of(top, remaining)) == ('released', LOST_STATE)


def test_a_list_that_says_nothing_of_what_it_has_read_ends_it_too(tree):
    """Before writers said the generation of a consumer; who says that there is none knows none."""
    top, low = tree
    request = a_request(vcpu=1, alternates=0)
    assert top.select(request).outcome is Outcome.PLACED
    [consumer] = request.consumers
    nothing = {'allocations': {}, 'project_id': 'red', 'user_id': 'eve'}
    client = operator_of(top)
    wish = {**nothing, 'consumer_generation': None, 'consumer_type': 'INSTANCE'}
    assert client.post('/allocations', json={consumer: wish}).status_code == 204
    assert top.store.zone_releases.waiting_releases().number == 0
    older = {'OpenStack-API-Version': 'placement 1.27'}
    answer = client.post('/allocations', json={consumer: nothing}, headers=older)
    assert answer.status_code == 204
    heard(top)
    assert (of(top, consumer), low.live()) == ('released', 0)
