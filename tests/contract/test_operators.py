# SPDX-License-Identifier: Apache-2.0
"""Hosts, aggregates, server groups and classes as operators handle them."""

import pytest

from gantt import exceptions
from tests.builders import a_draft, a_group, a_guest, a_host, claimed, new_uuid


# -- hosts ----------------------------------------------------------------------------------
def test_a_disabled_host_says_why_and_by_whom(store, host):
    change = store.hosts.disable_host('cmp-1', 'disk swap', 'ops')
    assert (change.row.disabled, change.row.disabled_by) == ('disk swap', 'ops')
    assert change.row == host.row
    assert not host.row.is_open
    change = store.hosts.enable_host('cmp-1')
    assert (change.row.disabled, change.row.disabled_by) == (None, None)
    assert change.row == host.row


def test_disabling_again_replaces_the_reason(store, host):
    store.hosts.disable_host('cmp-1', 'one', 'a')
    store.hosts.disable_host('cmp-1', 'two', 'b')
    assert (host.row.disabled, host.row.disabled_by) == ('two', 'b')


def test_disabling_keeps_what_is_placed(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    change = store.hosts.disable_host('cmp-1', 'x', 'y')
    assert [p.claim_id for p in change.placed] == [claim.id]


def test_a_report_does_not_enable_what_an_operator_disabled(store, host):
    store.hosts.disable_host('cmp-1', 'x', 'y')
    host.send(host.says().having(disabled=None))
    host.register()
    assert host.row.disabled == 'x'


@pytest.mark.parametrize('verb', ['enable_host', 'remove_host'])
def test_a_host_that_is_not_known_is_not_found(store, verb):
    with pytest.raises(exceptions.NotFound, match='cmp-9'):
        getattr(store.hosts, verb)('cmp-9')


def test_disabling_a_host_that_is_not_known_is_not_found(store):
    with pytest.raises(exceptions.NotFound, match='cmp-9'):
        store.hosts.disable_host('cmp-9', 'x', 'y')


def test_a_host_with_live_claims_cannot_be_removed(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    with pytest.raises(exceptions.Refused, match='1 live claims'):
        store.hosts.remove_host('cmp-1')
    store.claims.force_release(claim.id, '')
    change = store.hosts.remove_host('cmp-1')
    assert (change.provider_id, change.row) == (host.id, None)
    assert store.feed.load_everything().hosts == []


def test_a_removed_host_may_come_back(store, host):
    store.hosts.remove_host('cmp-1')
    assert host.report().outcome == 'unknown_host'
    again = a_host('cmp-1').on(store)
    assert again.id != host.id
    assert again.row.used == {}


def test_words_of_a_hosts_former_life_are_gone(store, host):
    late = host.says().outside(vcpu=3)
    store.hosts.remove_host('cmp-1')
    again = a_host('cmp-1').on(store)
    assert again.epoch > host.epoch
    assert host.send(late)[0].outcome == 'gone'
    assert again.row.foreign == {}


# -- aggregates -------------------------------------------------------------------------------
def test_an_aggregate_is_made_with_a_uuid(store):
    aggregate = store.declarations.save_aggregate(
        'rack-1', {'availability_zone': 'az-1'}, ['cmp-1', 'cmp-9']
    )
    assert (aggregate.name, aggregate.metadata) == ('rack-1', {'availability_zone': 'az-1'})
    assert sorted(aggregate.hosts) == ['cmp-1', 'cmp-9']
    assert aggregate.uuid and aggregate.id
    assert store.feed.load_everything().aggregates == [aggregate]


def test_an_aggregate_may_bring_its_uuid(store):
    uuid = new_uuid()
    assert store.declarations.save_aggregate('rack-1', {}, [], uuid).uuid == uuid
    with pytest.raises(exceptions.Refused, match='rack-1'):
        store.declarations.save_aggregate('rack-2', {}, [], uuid)
    assert [a.name for a in store.feed.load_everything().aggregates] == ['rack-1']


def test_metadata_is_merged_and_none_removes_a_key(store):
    store.declarations.save_aggregate('rack-1', {'a': '1', 'b': '2'}, None)
    now = store.declarations.save_aggregate('rack-1', {'b': None, 'c': '3'}, None)
    assert now.metadata == {'a': '1', 'c': '3'}


def test_hosts_are_replaced_or_left(store):
    first = store.declarations.save_aggregate('rack-1', {}, ['cmp-1', 'cmp-2'])
    assert sorted(store.declarations.save_aggregate('rack-1', {}, None).hosts) == ['cmp-1', 'cmp-2']
    now = store.declarations.save_aggregate('rack-1', {}, ['cmp-3'])
    assert (now.id, now.uuid, now.hosts) == (first.id, first.uuid, ['cmp-3'])
    assert now.generation > first.generation


def test_a_host_knows_its_aggregates(store, host):
    uuid = store.declarations.save_aggregate('rack-1', {}, ['cmp-1']).uuid
    assert host.row.aggregates == [uuid]
    store.declarations.save_aggregate('rack-1', {}, [])
    assert host.row.aggregates == []
    store.declarations.save_aggregate('rack-1', {}, ['cmp-1'])
    store.declarations.remove_aggregate('rack-1')
    assert host.row.aggregates == []


def test_a_host_that_comes_later_is_in_its_aggregates(store):
    uuid = store.declarations.save_aggregate('rack-1', {}, ['cmp-7']).uuid
    assert a_host('cmp-7').on(store).row.aggregates == [uuid]


def test_a_change_of_membership_grows_the_generation(store, host):
    before = host.row.generation
    store.declarations.save_aggregate('rack-1', {}, ['cmp-1'])
    assert host.row.generation > before


def test_a_report_says_membership_by_name_or_uuid(store, host):
    aggregate = store.declarations.save_aggregate('rack-1', {}, [])
    other = store.declarations.save_aggregate('rack-2', {}, ['cmp-1'])
    host.send(host.says().having(aggregates=['rack-1']))
    assert host.row.aggregates == [aggregate.uuid]
    host.send(host.says().having(aggregates=[other.uuid]))
    assert host.row.aggregates == [other.uuid]
    members = {a.name: a.hosts for a in store.feed.load_everything().aggregates}
    assert members == {'rack-1': [], 'rack-2': ['cmp-1']}


def test_a_report_that_is_silent_leaves_membership_to_the_operator(store, host):
    uuid = store.declarations.save_aggregate('rack-1', {}, ['cmp-1']).uuid
    host.report()
    assert host.row.aggregates == [uuid]


def test_a_report_may_name_an_aggregate_that_nobody_made(store, host):
    host.send(host.says().having(aggregates=['rack-9']))
    aggregate = store.feed.load_everything().aggregates[0]
    assert (aggregate.name, aggregate.hosts, host.row.aggregates) == (
        'rack-9',
        ['cmp-1'],
        [aggregate.uuid],
    )


def test_an_aggregate_that_is_not_known_is_not_found(store):
    with pytest.raises(exceptions.NotFound, match='rack-1'):
        store.declarations.remove_aggregate('rack-1')


# -- groups ------------------------------------------------------------------------------------
def test_a_group_is_saved_once(store):
    group = a_group(name='web', project_id='p1')
    saved = store.groups.save_group(group)
    assert (saved.uuid, saved.name, saved.policy) == (group.uuid, 'web', 'anti-affinity')
    assert store.groups.save_group(group) == saved == store.groups.load_group(group.uuid)


@pytest.mark.parametrize('change', [{'policy': 'affinity'}, {'max_per_host': 2}])
def test_a_group_keeps_its_rule(store, change):
    group = a_group()
    store.groups.save_group(group)
    with pytest.raises(exceptions.Refused, match=group.uuid):
        store.groups.save_group(a_group(**{'uuid': group.uuid, **change}))
    assert store.groups.load_group(group.uuid).max_per_host == 1


def test_members_are_those_told_and_those_with_live_claims(store, host):
    member = new_uuid()
    group = store.groups.save_group(a_group(members=[member]))
    first, second = claimed(store, a_draft().planned_at(0, group.uuid).taking(host).taking(host))
    assert set(store.groups.load_group(group.uuid).members) == {
        member,
        first.consumer,
        second.consumer,
    }
    host.refuse(first)
    assert set(store.groups.load_group(group.uuid).members) == {member, second.consumer}


def test_a_group_with_live_claims_cannot_be_removed(store, host):
    group = new_uuid()
    claim = claimed(store, a_draft().planned_at(0, group).taking(host))[0]
    with pytest.raises(exceptions.Refused, match='1 live claims'):
        store.groups.remove_group(group)
    store.claims.force_release(claim.id, '')
    store.groups.remove_group(group)
    assert store.groups.load_group(group) is None


def test_a_group_that_is_not_known_is_not_found(store):
    assert store.groups.load_group(new_uuid()) is None
    with pytest.raises(exceptions.NotFound):
        store.groups.remove_group(new_uuid())


# -- classes ---------------------------------------------------------------------------------
def test_a_class_is_declared_once(store):
    store.vocabulary.declare_class('CUSTOM_LICENSE')
    store.vocabulary.declare_class('CUSTOM_LICENSE')
    assert 'CUSTOM_LICENSE' in store.vocabulary.declared_classes()


@pytest.mark.parametrize('name', ['LICENSE', 'CUSTOM_license', ''])
def test_a_class_that_is_neither_standard_nor_custom_is_refused(store, name):
    with pytest.raises(exceptions.UnknownResourceClass):
        store.vocabulary.declare_class(name)
    assert name not in store.vocabulary.declared_classes()


def test_a_host_with_an_adopted_guest_cannot_be_removed(store, host):
    host.report([a_guest(new_uuid())])
    with pytest.raises(exceptions.Refused):
        store.hosts.remove_host('cmp-1')
