# SPDX-License-Identifier: Apache-2.0
"""The periodic full comparison: what the feed missed is found all the same."""

from tests.builders import a_host


def test_it_brings_what_is_newer_than_known_and_what_is_gone(store):
    first, second = a_host('cmp-1').on(store), a_host('cmp-2').on(store)
    versions = {c.provider_id: c.row.version for c in store.feed.load_everything().hosts}
    assert store.feed.compare(versions).hosts == []
    store.hosts.disable_host('cmp-1', 'fan swap', 'ops')
    store.hosts.remove_host('cmp-2')
    changed = {c.provider_id: c.row for c in store.feed.compare(versions).hosts}
    assert set(changed) == {first.id, second.id}
    assert changed[first.id].disabled == 'fan swap'
    assert changed[second.id] is None


def test_it_brings_every_host_to_who_knows_none(store):
    host = a_host('cmp-1').on(store)
    feed = store.feed.compare({})
    assert [c.provider_id for c in feed.hosts] == [host.id]
    assert feed.aggregates == []
    assert feed.position == store.feed.load_everything().position
