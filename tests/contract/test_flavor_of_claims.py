# SPDX-License-Identifier: Apache-2.0
"""The name of a consumer's flavor is kept with its claim, and told with who is placed."""

import msgspec

from tests.builders import a_draft, a_guest, claimed, new_uuid

FLAVOR = 'm1.größe'


def of_flavor(host, flavor):
    draft = a_draft().taking(host)
    [drafted] = draft.fields['claims']
    claim = msgspec.structs.replace(drafted.claim, flavor=flavor)
    return draft.having(claims=[msgspec.structs.replace(drafted, claim=claim)])


def told(store, position):
    """claim id -> flavor, however it is asked; the same each time."""
    flavors = [
        {p.claim_id: p.flavor for change in hosts for p in change.placed}
        for hosts in (
            store.feed.poll(position, {}).hosts,
            store.feed.load_everything().hosts,
            store.feed.compare({}).hosts,
        )
    ]
    assert flavors[0] == flavors[1] == flavors[2]
    return flavors[0]


def test_the_flavor_is_kept_and_told(store, host):
    position = store.feed.load_everything().position
    [claim] = claimed(store, of_flavor(host, FLAVOR))
    [other] = claimed(store, of_flavor(host, None))
    assert store.claims.load_claim(claim.id).flavor == FLAVOR
    assert store.claims.load_claim(other.id).flavor is None
    assert told(store, position) == {claim.id: FLAVOR, other.id: None}


def test_hosts_may_say_the_flavor_of_a_guest_that_nobody_claimed(store, host):
    position = store.feed.load_everything().position
    named, bare = new_uuid(), new_uuid()
    reported = msgspec.structs.replace(a_guest(named), flavor=FLAVOR)
    host.report([reported, a_guest(bare)])
    by_consumer = {claim.consumer: claim for claim in store.claims.list_claims(host='cmp-1')}
    assert by_consumer[named].adopted and by_consumer[named].flavor == FLAVOR
    assert by_consumer[bare].flavor is None
    assert told(store, position) == {by_consumer[named].id: FLAVOR, by_consumer[bare].id: None}


def test_a_guest_whose_claim_was_lost_keeps_its_flavor(store, host):
    [lost] = claimed(store, of_flavor(host, FLAVOR))
    host.confirm(lost)
    host.release(lost)
    host.report([msgspec.structs.replace(a_guest(lost.consumer), claim_id=lost.id)])
    [adopted] = [
        claim for claim in store.claims.list_claims(consumer=lost.consumer) if claim.is_live
    ]
    assert adopted.adopted and adopted.flavor == FLAVOR
