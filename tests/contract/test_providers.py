# SPDX-License-Identifier: Apache-2.0
"""Providers that are no hosts: made, moved, deleted, claimed on; and hosts that they become."""

import msgspec
import pytest

from gantt import exceptions
from gantt.core.messages.report import RegisterHost
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostKind
from tests.builders import (
    CLEAN,
    a_draft,
    a_host,
    claimed,
    commit,
    list_providers,
    new_uuid,
    register_host,
    set_inventories,
    state_of,
    uuid_of,
)

DISKS = {'DISK_GB': Inventory(total=100, reserved=10), 'CUSTOM_IOPS': Inventory(total=8)}
NOBODY = uuid_of('nobody')


def seen(store):
    """Uuid -> (kind, parent, root), of all providers."""
    return {
        provider.uuid: (str(provider.kind), provider.parent, provider.root)
        for provider in list_providers(store)
    }


def a_tree(store):
    """A root, two below it, one below the first of these; their uuids."""
    root = store.providers.create_provider('root').uuid
    first = store.providers.create_provider('first', parent=root).uuid
    second = store.providers.create_provider('second', parent=root).uuid
    return root, first, second, store.providers.create_provider('deep', parent=first).uuid


def with_share(draft, provider, **amounts):
    """The draft, its claims taking of another provider as well."""
    return draft.having(
        claims=[
            msgspec.structs.replace(
                drafted,
                claim=msgspec.structs.replace(
                    drafted.claim, allocations={**drafted.claim.allocations, provider.id: amounts}
                ),
            )
            for drafted in draft.fields['claims']
        ]
    )


def test_a_pool_is_a_root_of_its_own(store):
    pool = store.providers.create_provider('pool', uuid=uuid_of('pool'), inventories=DISKS)
    assert (pool.uuid, pool.name, pool.kind) == (uuid_of('pool'), 'pool', HostKind.POOL)
    assert (pool.root, pool.parent, pool.host) == (pool.uuid, None, None)
    assert (pool.inventories, pool.used, pool.generation) == (DISKS, {}, 0)
    assert store.providers.load_provider(pool.uuid) == pool
    assert list_providers(store) == [pool]


def test_without_a_uuid_it_gets_one(store):
    one, other = store.providers.create_provider('one'), store.providers.create_provider('other')
    assert one.uuid != other.uuid


def test_what_is_below_another_has_its_root(store):
    root, first, second, deep = a_tree(store)
    assert seen(store) == {
        root: ('pool', None, root),
        first: ('nested', root, root),
        second: ('nested', root, root),
        deep: ('nested', first, root),
    }


def test_a_host_is_a_provider_by_the_name_of_its_node(store):
    host = a_host('cmp-1').with_room(vcpu=4).on(store, node='node-1.example')
    other = a_host('cmp-2').on(store)
    provider = store.providers.load_provider(host.row.uuid)
    assert (provider.id, provider.name, provider.host) == (host.id, 'node-1.example', 'cmp-1')
    assert (provider.kind, provider.parent, provider.root) == (HostKind.HOST, None, provider.uuid)
    assert provider.inventories == host.row.facts.inventories
    assert store.providers.load_provider(other.row.uuid).name == 'cmp-2'


def test_hosts_that_say_the_same_node_have_names_apart(store):
    hosts = [a_host(f'cmp-{n}').on(store, node='cmp-3') for n in (1, 2, 3)]
    names = [store.providers.load_provider(host.row.uuid).name for host in hosts]
    assert names == ['cmp-3', 'cmp-2', hosts[2].row.uuid]
    assert [host.row.node for host in hosts] == ['cmp-3'] * 3


def test_the_placement_name_stays_when_a_host_registers_again(store):
    host = a_host('cmp-1').on(store, node='first')
    host.register(node='second')
    assert (store.providers.load_provider(host.row.uuid).name, host.row.node) == ('first', 'second')


def test_providers_are_found_by_name_and_by_tree(store):
    root, first, second, deep = a_tree(store)
    pool, host = store.providers.create_provider('pool').uuid, a_host('cmp-1').on(store).row.uuid
    assert [provider.uuid for provider in list_providers(store, name='deep')] == [deep]
    assert [provider.uuid for provider in list_providers(store, name='cmp-1')] == [host]
    assert list_providers(store, name='nobody') == []
    for inside in (root, deep):
        uuids = {provider.uuid for provider in list_providers(store, in_tree=inside)}
        assert uuids == {root, first, second, deep}
    assert [provider.uuid for provider in list_providers(store, in_tree=pool)] == [pool]
    assert list_providers(store, in_tree=NOBODY) == []
    every = [root, first, second, deep, pool, host]
    assert [provider.uuid for provider in list_providers(store)] == sorted(every)
    assert store.providers.load_provider(NOBODY) is None


@pytest.mark.parametrize(
    ('fields', 'field'),
    [
        ({'name': 'pool'}, 'provider.name: '),
        ({'name': 'node-1'}, 'provider.name: '),
        ({'name': ''}, 'provider.name: '),
        ({'name': 'a\nb'}, 'provider.name: '),
        ({'name': 'x' * 256}, 'provider.name: '),
        ({'uuid': uuid_of('pool')}, 'provider.uuid: '),
        ({'uuid': uuid_of('host')}, 'provider.uuid: '),
        ({'uuid': 'ABC'}, 'provider.uuid: '),
        ({'parent': NOBODY}, 'provider.parent: '),
        ({'parent': 'ABC'}, 'provider.parent: '),
        ({'inventories': {'Disk': Inventory(total=1)}}, 'provider.inventories: '),
        ({'inventories': {'VCPU': Inventory(total=0)}}, 'provider.inventories.VCPU.total: '),
        (
            {'inventories': {'VCPU': Inventory(total=1, step_size=0)}},
            'provider.inventories.VCPU.step_size: ',
        ),
    ],
)
def test_what_cannot_be_made_names_the_field(store, fields, field):
    store.providers.create_provider('pool', uuid=uuid_of('pool'))
    a_host('cmp-1').on(store, uuid=uuid_of('host'), node='node-1')
    before = seen(store)
    with pytest.raises(exceptions.InvalidMessage) as e:
        store.providers.create_provider(**{'name': 'new', **fields})
    assert e.value.message.startswith(field)
    assert seen(store) == before


def test_a_subtree_moves_as_a_whole(store):
    root, first, second, deep = a_tree(store)
    host = a_host('cmp-1').on(store).row.uuid
    moved = store.providers.update_provider(first, parent=host)
    assert (moved.parent, moved.root) == (host, host)
    assert seen(store) == {
        host: ('host', None, host),
        root: ('pool', None, root),
        first: ('nested', host, host),
        second: ('nested', root, root),
        deep: ('nested', first, host),
    }
    store.providers.update_provider(first, parent=None)
    assert seen(store)[first] == ('pool', None, first)
    assert seen(store)[deep] == ('nested', first, first)
    store.providers.update_provider(root, parent=deep)  # a root goes below another tree
    assert {root for _, _, root in seen(store).values()} == {first, host}
    store.providers.update_provider(second, parent=first)  # and within its tree
    assert seen(store)[second] == ('nested', first, first)


@pytest.mark.parametrize('parent', ['root', 'first', 'deep'])
def test_nothing_goes_below_itself(store, parent):
    root, first, second, deep = a_tree(store)
    before = seen(store)
    with pytest.raises(exceptions.InvalidMessage, match='provider.parent: .*subtree'):
        store.providers.update_provider(
            root, parent={'root': root, 'first': first, 'deep': deep}[parent]
        )
    assert seen(store) == before


def test_who_or_what_is_not_there_cannot_be_moved(store):
    root = a_tree(store)[0]
    with pytest.raises(exceptions.InvalidMessage, match=f'provider.parent: .*{NOBODY}'):
        store.providers.update_provider(root, parent=NOBODY)
    for act in (
        lambda: store.providers.update_provider(NOBODY, parent=root),
        lambda: store.providers.delete_provider(NOBODY),
        lambda: set_inventories(store, NOBODY, {}),
    ):
        with pytest.raises(exceptions.NotFound):
            act()


def test_a_host_is_no_business_of_these(store):
    host, pool = a_host('cmp-1').on(store), store.providers.create_provider('pool').uuid
    uuid = host.row.uuid
    for act in (
        lambda: store.providers.update_provider(uuid, parent=pool),
        lambda: store.providers.delete_provider(uuid),
        lambda: set_inventories(store, uuid, DISKS),
    ):
        with pytest.raises(exceptions.Refused, match=r"is host 'cmp-1'"):
            act()


def test_only_a_leaf_without_claims_is_deleted(store, host):
    root, first, _, deep = a_tree(store)
    with pytest.raises(exceptions.InUse, match='1 providers are below'):
        store.providers.delete_provider(first)
    pool = set_inventories(store, deep, DISKS)
    claim = claimed(store, with_share(a_draft().taking(host), pool, CUSTOM_IOPS=1))[0]
    with pytest.raises(exceptions.InUse, match='1 live claims'):
        store.providers.delete_provider(deep)
    store.claims.force_release(claim.id, 'over')
    store.providers.delete_provider(deep)
    store.providers.delete_provider(first)
    assert store.providers.load_provider(deep) is None
    assert {provider.uuid for provider in list_providers(store, in_tree=root)} == seen(
        store
    ).keys() - {host.row.uuid}
    assert store.providers.create_provider('deep', uuid=deep).root == deep  # both are free again


def test_a_host_with_providers_below_it_is_not_removed(store, host):
    below = store.providers.create_provider('below', parent=host.row.uuid).uuid
    with pytest.raises(exceptions.Refused, match='1 providers below it'):
        store.hosts.remove_host(host.name)
    store.providers.delete_provider(below)
    store.hosts.remove_host(host.name)
    assert list_providers(store) == []


def test_inventories_are_written_whole(store):
    pool = store.providers.create_provider('pool', inventories=DISKS).uuid
    now = {'DISK_GB': Inventory(total=5, allocation_ratio=2.0), 'VCPU': Inventory(total=2)}
    assert set_inventories(store, pool, now).inventories == now
    assert store.providers.load_provider(pool).generation == 1
    with pytest.raises(exceptions.InvalidMessage, match=r'provider.inventories.VCPU.reserved: '):
        set_inventories(store, pool, {'VCPU': Inventory(total=1, reserved=2)})
    assert store.providers.load_provider(pool).inventories == now
    assert set_inventories(store, pool, {}).inventories == {}


def test_a_class_stays_while_it_is_used_and_may_become_less(store, host):
    pool = store.providers.create_provider('pool', inventories=DISKS)
    share = {'DISK_GB': 60, 'CUSTOM_IOPS': 3}
    claim = claimed(store, with_share(a_draft().taking(host), pool, **share))[0]
    for gone in DISKS:
        some = {name: inventory for name, inventory in DISKS.items() if name != gone}
        with pytest.raises(exceptions.InUse, match=f'provider.inventories.{gone}: '):
            set_inventories(store, pool.uuid, some)
    less = {'DISK_GB': Inventory(total=10), 'CUSTOM_IOPS': Inventory(total=2)}
    now = set_inventories(store, pool.uuid, less)
    assert (now.inventories, now.used) == (less, share)
    assert store.claims.audit() == CLEAN  # an operator's doing, not ours
    more = commit(store, with_share(a_draft().taking(host), pool, CUSTOM_IOPS=1))
    assert more.outcomes[0].accepted == []
    store.claims.force_release(claim.id, 'over')
    assert store.providers.load_provider(pool.uuid).used == {}
    assert claimed(store, with_share(a_draft().taking(host), pool, CUSTOM_IOPS=2))
    assert store.claims.audit() == CLEAN


def test_claims_take_from_nested_and_shared_providers_under_their_locks(store, host):
    pool = store.providers.create_provider('pool', inventories=DISKS)
    below = store.providers.create_provider('below', parent=host.row.uuid, inventories=DISKS)
    draft = with_share(a_draft().taking(host, vcpu=2), pool, DISK_GB=50, CUSTOM_IOPS=2)
    draft = with_share(draft, below, CUSTOM_IOPS=8)
    claim = claimed(store, draft)[0]
    assert store.claims.load_claim(claim.id).allocations == {
        host.id: {'VCPU': 2},
        pool.id: {'DISK_GB': 50, 'CUSTOM_IOPS': 2},
        below.id: {'CUSTOM_IOPS': 8},
    }
    used = {provider.uuid: provider.used for provider in list_providers(store)}
    assert used[pool.uuid] == {'DISK_GB': 50, 'CUSTOM_IOPS': 2}
    assert used[below.uuid] == {'CUSTOM_IOPS': 8}
    assert host.row.used == {'VCPU': 2}
    full = [with_share(a_draft().taking(host), pool, DISK_GB=41)]
    full += [with_share(a_draft().taking(host), below, CUSTOM_IOPS=1)]
    assert [commit(store, draft).outcomes[0].accepted for draft in full] == [[], []]
    assert claimed(store, with_share(a_draft().taking(host), pool, DISK_GB=40))
    assert store.claims.audit() == CLEAN
    host.confirm(claim)
    host.release(claim)
    assert store.providers.load_provider(below.uuid).used == {}
    assert store.providers.load_provider(pool.uuid).used == {'DISK_GB': 40}
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('lifecycle', ['api', 'host'])
def test_a_claim_may_lie_on_a_pool_alone(store, lifecycle):
    pool = store.providers.create_provider('pool', inventories=DISKS)
    draft = a_draft().taking(pool.id, lifecycle=lifecycle, DISK_GB=7)
    claim = claimed(store, draft)[0]
    stored = store.claims.load_claim(claim.id)
    assert (stored.host, stored.allocations) == ('', {pool.id: {'DISK_GB': 7}})
    assert store.providers.load_provider(pool.uuid).used == {'DISK_GB': 7}
    assert store.claims.audit() == CLEAN
    with pytest.raises(exceptions.InUse):
        store.providers.delete_provider(pool.uuid)
    result = store.claims.force_release(claim.id, 'over')
    assert (result.outcomes[0].outcome, result.hosts) == ('ok', [])
    assert store.providers.load_provider(pool.uuid).used == {}


def test_a_report_gives_back_what_its_guest_took_of_a_pool(store, host):
    pool = store.providers.create_provider('pool', inventories=DISKS)
    draft = a_draft().taking(host).taking(host)
    stays, goes = claimed(store, with_share(draft, pool, DISK_GB=3, CUSTOM_IOPS=1))
    host.report([stays, goes])
    assert store.providers.load_provider(pool.uuid).used == {'DISK_GB': 6, 'CUSTOM_IOPS': 2}
    host.report([stays])
    assert str(state_of(store, goes)) == 'released'
    assert store.providers.load_provider(pool.uuid).used == {'DISK_GB': 3, 'CUSTOM_IOPS': 1}
    assert store.claims.audit() == CLEAN


def test_a_request_that_is_taken_over_gives_back_what_it_took_of_a_pool(store, host):
    pool = store.providers.create_provider('pool', inventories={'DISK_GB': Inventory(total=5)})
    late = a_draft().unfinished().within(-1).taking(host)
    commit(store, with_share(late, pool, DISK_GB=4))
    again = late.by('worker-2').having(claims=[]).taking_over(1).taking(host)
    result = commit(store, with_share(again, pool, DISK_GB=5))
    assert result.outcomes[0].accepted == [0]
    assert store.providers.load_provider(pool.uuid).used == {'DISK_GB': 5}
    assert [row.name for row in result.hosts] == [host.name]
    assert store.claims.audit() == CLEAN


def test_an_expired_claim_gives_back_what_it_took_of_a_pool(store, host):
    pool = store.providers.create_provider('pool', inventories=DISKS)
    claim = claimed(store, with_share(a_draft().leased(-1).taking(host), pool, DISK_GB=1))[0]
    store.claims.sweep(10)
    assert str(state_of(store, claim)) == 'expired'
    assert store.providers.load_provider(pool.uuid).used == {}
    assert store.claims.audit() == CLEAN


# -- nothing but a host passes for one ------------------------------------------------
def test_only_hosts_are_among_the_hosts(store, host):
    everything = store.feed.load_everything()
    root, *_, deep = a_tree(store)
    below = store.providers.create_provider('below', parent=host.row.uuid, inventories=DISKS)
    pool = set_inventories(store, root, DISKS)
    draft = with_share(a_draft().taking(host), below, DISK_GB=1)
    result = commit(store, with_share(draft, pool, DISK_GB=1))
    assert [row.name for row in result.hosts] in ([host.name], [])
    assert result.stepped.keys() <= {host.id}
    feed = store.feed.poll(everything.position, {})
    assert [change.row.name for change in feed.hosts] == [host.name]
    ids = sorted(
        provider.id for provider in list_providers(store) if provider.kind is not HostKind.HOST
    )
    assert feed.providers == ids
    for listing in (store.feed.load_everything(), store.feed.compare({})):
        assert [change.row.name for change in listing.hosts] == [host.name]
    assert store.feed.compare({}).providers == ids
    assert store.feed.poll(feed.position, {}).providers == []
    store.providers.delete_provider(deep)
    gone = store.feed.poll(feed.position, {})
    assert set(ids) - {provider.id for provider in list_providers(store)} <= set(gone.providers)
    assert gone.hosts == []


def test_what_is_below_a_host_is_news_of_the_host(store, host):
    position = store.feed.load_everything().position
    versions = {host.id: host.row.version}
    store.providers.create_provider('below', parent=host.row.uuid)
    assert [change.provider_id for change in store.feed.poll(position, versions).hosts] == [host.id]


def test_no_word_of_a_host_is_about_a_provider_of_its_name(store):
    """The name of a provider in Placement may be what the service of a host is called."""
    pool = store.providers.create_provider('cmp-1', inventories=DISKS)
    host = a_host('cmp-1').on(store)
    assert host.id != pool.id
    assert store.providers.load_provider(host.row.uuid).name == host.row.uuid
    store.hosts.disable_host('cmp-1', 'swap', 'ops')
    assert store.providers.load_provider(pool.uuid) == pool


# -- a provider becomes a host ----------------------------------------------------------
def test_the_provider_that_somebody_has_made_becomes_the_host(store):
    provider = store.providers.create_provider('node-1', uuid=uuid_of('node'), inventories=DISKS)
    below = store.providers.create_provider('below', parent=provider.uuid)
    position = store.feed.load_everything().position
    host = a_host('cmp-1').on(store, uuid=provider.uuid, node='node-1')
    assert (host.id, host.row.uuid, host.row.name) == (provider.id, provider.uuid, 'cmp-1')
    now = store.providers.load_provider(provider.uuid)
    assert (now.name, now.kind, now.host) == ('node-1', HostKind.HOST, 'cmp-1')
    assert store.providers.load_provider(below.uuid).root == provider.uuid
    feed = store.feed.poll(position, {})
    assert [change.provider_id for change in feed.hosts] == [provider.id]
    assert feed.providers == [provider.id]
    assert store.feed.compare({}).providers == [below.id]
    claimed(store, a_draft().taking(host, DISK_GB=1))
    assert store.claims.audit() == CLEAN


def test_what_is_claimed_there_before_stays(store):
    provider = store.providers.create_provider('node-1', uuid=uuid_of('node'), inventories=DISKS)
    claim = claimed(store, a_draft().taking(provider.id, lifecycle='api', DISK_GB=7))[0]
    registration = RegisterHost(name='cmp-1', boot_nonce=new_uuid(), uuid=provider.uuid)
    registered, change = register_host(store, registration)
    assert (change.row.used, change.row.cap('DISK_GB')) == ({'DISK_GB': 7}, 90)
    assert [placed.claim_id for placed in change.placed] == [claim.id]
    assert register_host(store, registration)[0] == registered  # the same nonce again
    assert store.claims.audit() == CLEAN


def test_a_host_that_was_removed_gets_the_next_epoch_there(store):
    host = a_host('cmp-1').on(store)
    last = host.epoch
    store.hosts.remove_host('cmp-1')
    provider = store.providers.create_provider('node-1')
    assert a_host('cmp-1').on(store, uuid=provider.uuid).epoch > last


def test_a_provider_below_another_does_not_become_a_host(store):
    deep = a_tree(store)[3]
    with pytest.raises(exceptions.InvalidMessage, match='register_host.uuid: .*not a root'):
        a_host('cmp-1').on(store, uuid=deep)
    assert store.providers.load_provider(deep).kind is HostKind.NESTED
    assert store.feed.load_everything().hosts == []


def test_the_uuid_of_another_host_is_refused(store, host):
    with pytest.raises(exceptions.InvalidMessage, match=r"is the uuid of host 'cmp-1'"):
        a_host('cmp-2').on(store, uuid=host.row.uuid)


def test_a_host_that_is_known_does_not_take_over_another_provider(store, host):
    pool = store.providers.create_provider('pool')
    with pytest.raises(exceptions.InvalidMessage, match=r"provider 'pool', which is no host"):
        host.register(uuid=pool.uuid)
    assert store.providers.load_provider(pool.uuid) == pool


def test_two_hosts_do_not_become_one_provider(store):
    provider = store.providers.create_provider('node-1')
    registrations = [
        RegisterHost(name=name, boot_nonce=new_uuid(), uuid=provider.uuid)
        for name in ('cmp-1', 'cmp-2', 'cmp-3')
    ]
    registered = store.reports.register_hosts(registrations[:2])
    assert registered[0][0].uuid == provider.uuid
    assert isinstance(registered[1], exceptions.InvalidMessage)
    assert registered[1].message.startswith('register_host.uuid: ')
    assert isinstance(store.reports.register_hosts(registrations[2:])[0], exceptions.InvalidMessage)
