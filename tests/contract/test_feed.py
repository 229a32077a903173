# SPDX-License-Identifier: Apache-2.0
"""The change feed: what one reader learns of what another one did."""

import pytest

from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import Placed
from tests.builders import (
    a_draft,
    a_group,
    a_guest,
    a_host,
    claimed,
    generation_of,
    live,
    new_uuid,
    report_outcome,
)


class Reader:
    """Follows a store as a scheduler process does."""

    def __init__(self, store):
        self.store = store
        everything = store.feed.load_everything()
        self.position = everything.position
        self.hosts = {change.provider_id: change for change in everything.hosts}
        self.groups = dict(everything.groups)
        self.aggregates = everything.aggregates

    def poll(self, known=None):
        feed = self.store.feed.poll(self.position, known or {})
        assert feed.position >= self.position
        self.position = feed.position
        for change in feed.hosts:
            if change.row is None:
                self.hosts.pop(change.provider_id, None)
            else:
                self.hosts[change.provider_id] = change
        self.groups.update(feed.groups)
        if feed.aggregates is not None:
            self.aggregates = feed.aggregates
        return feed

    def known(self):
        return {pid: change.row.version for pid, change in self.hosts.items()}


def test_an_empty_store_has_no_news(store):
    everything = store.feed.load_everything()
    assert (everything.hosts, everything.aggregates, everything.groups) == ([], [], {})
    feed = store.feed.poll(everything.position, {})
    assert (feed.hosts, feed.aggregates, feed.groups) == ([], None, {})
    assert feed.incarnation == everything.incarnation
    assert feed.now == pytest.approx(store.database.ping(), abs=5)


def test_a_second_reader_sees_the_claims_of_the_first(store, host):
    reader = Reader(store)
    claim = claimed(store, a_draft().planned_at(0, group := new_uuid()).taking(host, vcpu=3))[0]
    feed = reader.poll()
    change = reader.hosts[host.id]
    assert change.row == host.row
    assert change.row.used == {'VCPU': 3}
    assert change.placed == [Placed(claim.id, claim.consumer, host.id, group)]
    assert feed.groups == {group: generation_of(store, group)}
    assert feed.rules == {group: GroupRule('anti-affinity', 1, generation_of(store, group))}


def test_the_generation_of_a_group_comes_with_all_hosts_of_its_members(store, host):
    """That the first was placed may never have been news, or be none any more."""
    group, second = new_uuid(), a_host('cmp-2').on(store)
    versions = {h.id: h.row.version for h in (host, second)}
    claimed(store, a_draft().planned_at(0, group).taking(host))
    reader = Reader(store)
    claimed(store, a_draft().planned_at(generation_of(store, group), group).taking(second))
    feed = reader.poll(versions)
    assert feed.groups == {group: generation_of(store, group)}
    assert {c.provider_id: len(c.placed) for c in feed.hosts} == {host.id: 1, second.id: 1}


def test_groups_can_be_read_with_the_hosts_of_their_members(store, host):
    group, gone = new_uuid(), new_uuid()
    claim = claimed(store, a_draft().planned_at(0, group).taking(host))[0]
    other = a_host('cmp-2').on(store)
    rules, hosts = store.feed.read_groups([group, gone])
    assert rules == {group: GroupRule('anti-affinity', 1, generation_of(store, group))}
    assert [(c.row, c.placed) for c in hosts] == [
        (host.row, [Placed(claim.id, claim.consumer, host.id, group)])
    ]
    assert store.feed.read_groups([]) == ({}, [])
    _, hosts = store.feed.read_groups([group], [other.id, host.id])
    assert [c.provider_id for c in hosts] == [host.id, other.id]


def test_what_a_reader_wrote_itself_is_left_out(store, host):
    reader = Reader(store)
    claimed(store, a_draft().taking(host))
    assert reader.poll({host.id: host.row.version}).hosts == []


def test_what_was_written_after_that_is_not_left_out(store, host):
    reader = Reader(store)
    claimed(store, a_draft().taking(host))
    versions = {host.id: host.row.version}
    claimed(store, a_draft().taking(host))
    feed = reader.poll(versions)
    assert [change.row.used for change in feed.hosts] == [{'VCPU': 2}]


def test_a_claim_that_ends_is_news(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    reader = Reader(store)
    host.refuse(claim)
    reader.poll()
    assert reader.hosts[host.id].placed == []
    assert reader.hosts[host.id].row.used == {}


def test_an_expired_claim_is_news(store, host):
    claimed(store, a_draft().leased(-1).taking(host))
    reader = Reader(store)
    store.claims.sweep(10)
    reader.poll()
    assert reader.hosts[host.id].placed == []


def test_an_adopted_claim_is_news(store, host):
    reader = Reader(store)
    host.report([a_guest(consumer := new_uuid())])
    reader.poll()
    assert [p.consumer for p in reader.hosts[host.id].placed] == [consumer]


def test_a_report_is_news(store, host):
    reader = Reader(store)
    host.send(host.says().outside(vcpu=2))
    reader.poll()
    assert reader.hosts[host.id].row == host.row


def test_new_and_removed_hosts_are_news(store, host):
    reader = Reader(store)
    other = a_host('cmp-2').on(store)
    reader.poll()
    assert set(reader.hosts) == {host.id, other.id}
    store.hosts.remove_host('cmp-2')
    feed = reader.poll(reader.known())
    assert [(c.provider_id, c.row) for c in feed.hosts if c.row is None] == [(other.id, None)]
    assert set(reader.hosts) == {host.id}


def test_aggregates_come_whole_where_any_changed(store, host):
    store.declarations.save_aggregate('first', {}, ['cmp-1'])
    reader = Reader(store)
    store.declarations.save_aggregate('second', {'availability_zone': 'az-2'}, [])
    reader.poll()
    assert [(a.name, a.hosts) for a in reader.aggregates] == [('first', ['cmp-1']), ('second', [])]
    store.declarations.remove_aggregate('first')
    reader.poll()
    assert [a.name for a in reader.aggregates] == ['second']


def test_new_and_removed_groups_are_news(store):
    reader = Reader(store)
    group = store.groups.save_group(a_group())
    reader.poll()
    assert reader.groups == {group.uuid: group.generation}
    store.groups.remove_group(group.uuid)
    assert reader.poll().groups == {group.uuid: 0}


def test_everything_is_what_a_follower_ends_up_with(store, host):
    reader = Reader(store)
    other = a_host('cmp-2').on(store)
    group = new_uuid()
    first = claimed(store, a_draft().planned_at(0, group).taking(host).taking(other))
    store.declarations.save_aggregate('rack', {}, ['cmp-1', 'cmp-2'])
    reader.poll(reader.known())
    host.confirm(first[0])
    host.report()
    store.hosts.disable_host('cmp-2', 'x', 'y')
    report_outcome(store, a_draft().planned_at(generation_of(store, group), group).taking(host))
    reader.poll(reader.known())
    everything = store.feed.load_everything()
    assert reader.hosts == {change.provider_id: change for change in everything.hosts}
    assert reader.groups == everything.groups
    assert reader.aggregates == everything.aggregates
    placed = [p.claim_id for c in everything.hosts for p in c.placed]
    assert sorted(placed) == sorted(claim.id for claim in live(store))


def test_a_poll_may_be_repeated(store, host):
    reader = Reader(store)
    position = reader.position
    claimed(store, a_draft().taking(host))
    once = store.feed.poll(position, {})
    assert store.feed.poll(position, {}).hosts == once.hosts
    assert once.hosts[0].row == host.row


def test_declared_classes_come_with_everything(store, host):
    store.vocabulary.declare_class('CUSTOM_LICENSE')
    assert 'CUSTOM_LICENSE' in store.feed.load_everything().resource_classes
