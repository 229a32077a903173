# SPDX-License-Identifier: Apache-2.0
"""The name of a consumer's flavor is kept with its claim, and told with who is placed."""

import msgspec

from tests.builders import a_draft, a_guest, claimed, new_uuid

FLAVOR = 'm1.größe'


def of_flavor(host, flavor):
    draft = a_draft().taking(host)
    [one] = draft.fields['claims']
    claim = msgspec.structs.replace(one.claim, flavor=flavor)
    return draft.having(claims=[msgspec.structs.replace(one, claim=claim)])


def told(store, position):
    """claim id -> flavor, however it is asked; the same each time."""
    found = [
        {p.claim_id: p.flavor for change in hosts for p in change.placed}
        for hosts in (
            store.feed.poll(position, {}).hosts,
            store.feed.load_everything().hosts,
            store.feed.compare({}).hosts,
        )
    ]
    assert found[0] == found[1] == found[2]
    return found[0]


def test_the_flavor_is_kept_and_told(store, host):
    position = store.feed.load_everything().position
    [made] = claimed(store, of_flavor(host, FLAVOR))
    [other] = claimed(store, of_flavor(host, None))
    assert store.claims.load_claim(made.id).flavor == FLAVOR
    assert store.claims.load_claim(other.id).flavor is None
    assert told(store, position) == {made.id: FLAVOR, other.id: None}


def test_hosts_may_say_the_flavor_of_a_guest_that_nobody_claimed(store, host):
    position = store.feed.load_everything().position
    named, bare = new_uuid(), new_uuid()
    said = msgspec.structs.replace(a_guest(named), flavor=FLAVOR)
    host.report([said, a_guest(bare)])
    found = {claim.consumer: claim for claim in store.claims.list_claims(host='cmp-1')}
    assert found[named].adopted and found[named].flavor == FLAVOR
    assert found[bare].flavor is None
    assert told(store, position) == {found[named].id: FLAVOR, found[bare].id: None}


def test_a_guest_whose_claim_was_lost_keeps_its_flavor(store, host):
    [made] = claimed(store, of_flavor(host, FLAVOR))
    host.confirm(made)
    host.release(made)
    host.report([msgspec.structs.replace(a_guest(made.consumer), claim_id=made.id)])
    [adopted] = [
        claim for claim in store.claims.list_claims(consumer=made.consumer) if claim.is_live
    ]
    assert adopted.adopted and adopted.flavor == FLAVOR
