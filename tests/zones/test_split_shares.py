# SPDX-License-Identifier: Apache-2.0
"""A request with members on hosts of a zone and in zones below it is one request all the same."""

import msgspec
import pytest

from gantt.core.messages.request import Purpose
from gantt.core.records.decision import Outcome
from gantt.zones.model.messages import scoped_id
from gantt.zones.service.audit import ZoneAudit
from tests.world import a_request
from tests.zones.test_over_zones import children_of
from tests.zones.tree import until


@pytest.fixture
def split(zone):
    """A zone with two places, one below it with four, and six guests in them."""
    top, east = zone('top').hosts(1, 2), zone('east').hosts(1, 4)
    top.above(east)
    request = a_request(6, lease_seconds=60)
    answer = top.select(request)
    assert sorted(children_of(answer)) == 2 * [''] + 4 * ['east'], answer.reason
    return top, east, request, answer


def leases(*zones):
    return [
        round(claim.lease_until - claim.created_at, -1)
        for zone in zones
        for claim in zone.store.claims.list_claims(state='reserved', limit=9)
    ]


def test_a_cancel_ends_the_share_of_the_own_hosts(split):
    top, east, request, _ = split
    top.client.cancel_claims(request.request_id)
    until(lambda: (top.live(), east.live()) == (0, 0))
    until(
        lambda: (
            {row.state for row in top.store.child_claims.find(request.request_id)} == {'released'}
        )
    )
    assert top.store.zone_releases.waiting_releases().number == 0
    assert top.select(a_request(consumers=request.consumers)).outcome is Outcome.PLACED
    assert not any(top.store.claims.audit().values())


def test_a_cancel_leaves_a_guest_that_runs_on_the_own_hosts(split):
    top, east, request, answer = split
    runs = next(selection.claim_id for selection, *_ in answer.selections if not selection.child)
    assert top.confirm(runs) == 'ok'
    top.client.cancel_claims(request.request_id)
    until(lambda: (top.live(), east.live()) == (1, 0))
    assert top.store.claims.load_claim(runs).state == 'confirmed'


def test_a_lease_is_extended_of_the_share_of_the_own_hosts_too(split):
    top, east, request, answer = split
    assert leases(top, east) == 6 * [60]
    extended = top.client.extend_claims(request.request_id, 300)
    assert extended['request_id'] == request.request_id
    assert leases(top, east) == 6 * [300]
    # Also where all that is below runs.
    for selection, *_ in answer.selections:
        if selection.child:
            assert east.confirm(selection.claim_id) == 'ok'
    until(
        lambda: (
            {row.state for row in top.store.child_claims.find(request.request_id)} == {'confirmed'}
        )
    )
    top.client.extend_claims(request.request_id, 500)
    assert leases(top) == 2 * [500]


def test_what_is_split_between_two_others_is_the_parents_all_of_it(zone):
    top, middle, leaf = zone('top'), zone('middle').hosts(1, 2), zone('leaf').hosts(1, 4)
    middle.above(leaf)
    top.above(middle)
    request = a_request(6, lease_seconds=60)
    answer = top.select(request)
    assert children_of(answer) == 6 * ['middle'], answer.reason
    assert (middle.live(), leaf.live()) == (2, 4)
    audit = ZoneAudit(top.store, top.zones.calls)
    assert not any(audit.run().lines.values())
    # What becomes of each is heard of at the top.
    (own, _) = (claim.id for claim in middle.store.claims.list_claims(limit=9))
    assert middle.confirm(own) == 'ok'
    until(
        lambda: (
            {row.claim_id: row.state for row in top.store.child_claims.find(request.request_id)}[
                own
            ]
            == 'confirmed'
        )
    )
    # Such a guest is found where it is to be rebuilt.
    consumer = next(
        selection.consumer for selection, *_ in answer.selections if selection.claim_id == own
    )
    rebuilt = a_request(consumers=[consumer], purpose=Purpose.REBUILD)
    assert (
        top.select(msgspec.structs.replace(rebuilt, lease_seconds=None)).outcome is Outcome.PLACED
    )
    # Where all further down has ended, what is left of it is still placed.
    (key,) = {row.key for row in top.store.child_claims.find(request.request_id)}
    request_below = scoped_id('top', key)
    (key_there,) = {row.key for row in middle.store.child_claims.find(request_below)}
    leaf.client.cancel_claims(scoped_id('middle', key_there))
    until(
        lambda: {row.state for row in middle.store.child_claims.find(request_below)} == {'released'}
    )
    [zone_below] = top.around.directory.children()
    assert top.around.calls.allocation(zone_below, key, 5.0).state == 'placed'
    top.client.cancel_claims(request.request_id)
    until(lambda: (middle.live(), leaf.live()) == (1, 0))
    [row] = [row for row in top.store.child_claims.find(request.request_id) if row.claim_id == own]
    assert row.state == 'confirmed'
