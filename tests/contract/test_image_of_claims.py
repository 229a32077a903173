# SPDX-License-Identifier: Apache-2.0
"""What a consumer's image was like is kept with its claim, and told with who is placed."""

import msgspec

from tests.builders import a_draft, claimed

IMAGE = '{"hw_disk_bus":"virtio","os_distro":"débian"}'


def imaged(host, image):
    draft = a_draft().taking(host)
    [drafted] = draft.fields['claims']
    claim = msgspec.structs.replace(drafted.claim, image=image)
    return draft.having(claims=[msgspec.structs.replace(drafted, claim=claim)])


def test_the_image_is_kept_and_told(store, host):
    position = store.feed.load_everything().position
    [claim] = claimed(store, imaged(host, IMAGE))
    [other] = claimed(store, imaged(host, None))
    assert store.claims.load_claim(claim.id).image == IMAGE
    assert store.claims.load_claim(other.id).image is None
    expected = {claim.id: IMAGE, other.id: None}
    for hosts in (
        store.feed.poll(position, {}).hosts,
        store.feed.load_everything().hosts,
        store.feed.compare({}).hosts,
    ):
        assert {p.claim_id: p.image for change in hosts for p in change.placed} == expected
