# SPDX-License-Identifier: Apache-2.0
"""Trees of providers on databases: changed by several at once, and beside releases of before."""

import random

import pytest
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.messages.report import RegisterHost
from gantt.db.schema import models
from tests.builders import CLEAN, a_draft, a_host, claimed, list_providers, register_host, uuid_of
from tests.db.conftest import KINDS, SERVERS
from tests.db.test_concurrency import deadlocks, together
from tests.services import PATIENT

_p = models.providers


@pytest.fixture(params=SERVERS)
def stores(request, open_store):
    """Four stores on one database of a server."""
    kind = request.param
    first = open_store(kind, timeouts=PATIENT)
    more = (open_store(like=first, timeouts=PATIENT, fast=kind != 'portable') for _ in range(3))
    return [first, *more]


def the_trees(store):
    """Uuid -> parent, of providers of which each leads to its root and says the right one."""
    by_uuid = {provider.uuid: provider for provider in list_providers(store)}
    for provider in by_uuid.values():
        top, steps = provider, 0
        while top.parent is not None:
            top, steps = by_uuid[top.parent], steps + 1
            assert steps <= len(by_uuid), 'a circle'
        assert provider.root == top.uuid
        kinds = ['pool', 'host'] if provider.parent is None else ['nested']
        assert str(provider.kind) in kinds
    return {provider.uuid: provider.parent for provider in by_uuid.values()}


def moved(store, uuid, parent):
    try:
        store.providers.update_provider(uuid, parent=parent)
    except exceptions.InvalidMessage as e:
        assert e.kwargs['field'] == 'provider.parent'
        return False
    return True


def test_of_two_that_go_below_each_other_at_once_one_does(stores):
    one = stores[0].providers.create_provider('one').uuid
    other = stores[0].providers.create_provider('other').uuid
    below = stores[0].providers.create_provider('below', parent=other).uuid
    before = deadlocks(stores[0])
    for _ in range(15):
        done = together(lambda: moved(stores[1], one, below), lambda: moved(stores[2], other, one))
        assert sorted(done) == [False, True]
        parents = the_trees(stores[0])
        assert parents[below] == other
        for uuid in (one, other):
            stores[0].providers.update_provider(uuid, parent=None)
    assert deadlocks(stores[0]) == before


def test_no_circle_and_no_deadlock_whatever_is_moved_made_and_deleted(stores):
    """Two trees below hosts among them, whose rows claims lock at the same time."""
    first = stores[0]
    hosts = [a_host(f'cmp-{n}').with_room(vcpu=10_000).on(first) for n in range(2)]
    roots = [host.row.uuid for host in hosts]
    uuids = [uuid_of('provider', n) for n in range(10)]
    for uuid in uuids:
        first.providers.create_provider(uuid, uuid=uuid)
    before = deadlocks(first)

    def work(store, seed):
        rnd = random.Random(seed)
        created = []
        for n in range(25):
            uuid = rnd.choice(uuids)
            moved(store, uuid, rnd.choice([*uuids, *roots, None]))
            if n % 5 == 0:
                name = f'{seed} {n}'
                created.append(store.providers.create_provider(name, parent=rnd.choice(uuids)).uuid)
            if n % 7 == 0:
                store.providers.delete_provider(created.pop(rnd.randrange(len(created))))
            claimed(store, a_draft().taking(rnd.choice(hosts)))
        return created

    by_thread = together(*(lambda s=s, n=n: work(s, n) for n, s in enumerate(stores)))
    parents = the_trees(first)
    assert parents.keys() == {*uuids, *roots, *(uuid for some in by_thread for uuid in some)}
    assert deadlocks(first) == before
    assert first.claims.audit() == CLEAN


def test_several_mend_a_broken_tree_at_once(stores):
    """A parent that is gone cannot be locked; all else is, and whoever comes later sees it."""
    pool = stores[0].providers.create_provider('pool').uuid
    before = deadlocks(stores[0])
    for n in range(10):
        root = stores[0].providers.create_provider(f'root {n}')
        middle = stores[0].providers.create_provider(f'middle {n}', parent=root.uuid).uuid
        leaf = stores[0].providers.create_provider(f'leaf {n}', parent=middle).uuid
        with stores[0].database.engine.begin() as connection:
            connection.execute(_p.delete().where(_p.c.id == root.id))
        done = together(
            lambda middle=middle: moved(stores[1], middle, None),
            lambda middle=middle: moved(stores[2], middle, pool),
            lambda leaf=leaf: moved(stores[3], leaf, pool),
        )
        assert done == [True] * 3
        assert the_trees(stores[0])[leaf] == pool
        assert stores[0].claims.audit() == CLEAN
    assert deadlocks(stores[0]) == before


@pytest.mark.parametrize(
    'seed', [pytest.param(n, marks=pytest.mark.slow) if n else n for n in range(9)]
)
def test_broken_trees_are_changed_by_several_at_once_and_mended_in_the_end(stores, seed):
    """Roots and parents that rows name, and that are wrong or gone, hide no part from a lock."""
    first, rnd = stores[0], random.Random(seed)
    host = a_host().with_room(vcpu=10_000).on(first)
    uuids = [uuid_of('provider', n) for n in range(12)]
    for n, uuid in enumerate(uuids):
        above = rnd.choice([*uuids[:n], host.row.uuid, None])
        first.providers.create_provider(uuid, uuid=uuid, parent=above)
    ids = {provider.uuid: provider.id for provider in list_providers(first)}
    gone = first.providers.create_provider('gone')
    with first.database.engine.begin() as connection:
        connection.execute(_p.delete().where(_p.c.id == gone.id))
        for uuid in uuids[::2]:
            wrong = rnd.choice([{'root_id': gone.id}, {'parent_id': gone.id}, {}])
            wrong = wrong or {'root_id': ids[rnd.choice(uuids)]}
            connection.execute(_p.update().where(_p.c.id == ids[uuid]).values(wrong))
    before = deadlocks(first)

    def work(store, seed):
        rnd, count = random.Random(seed), 0
        for n in range(12):
            moved(store, rnd.choice(uuids), rnd.choice([*uuids, host.row.uuid, None]))
            if n % 5 == 0:
                claimed(store, a_draft().taking(host))
                below = store.providers.create_provider(
                    f'{seed} {n}', parent=rnd.choice(uuids)
                ).uuid
                count += 1
                moved(store, below, rnd.choice(uuids))
            elif n % 5 == 1:
                moved(store, below, None)
                store.providers.delete_provider(below)
                count -= 1
        return count

    counts = together(*(lambda s=s, n=n: work(s, f'{seed} {n}') for n, s in enumerate(stores)))
    assert deadlocks(first) == before
    parents = {provider.uuid: provider.parent for provider in list_providers(first)}
    assert len(parents) == len(uuids) + 1 + sum(counts)
    for uuid in sorted(parents.keys() - {host.row.uuid}, key=lambda child: depth(parents, child)):
        first.providers.update_provider(uuid, parent=parents[uuid])
    the_trees(first)
    assert first.claims.audit() == CLEAN


def depth(parents, uuid):
    steps = 0
    while (uuid := parents[uuid]) is not None:
        steps += 1
        assert steps <= len(parents), 'a circle'
    return steps


def test_nobody_is_left_below_what_another_deletes(stores):
    for n in range(15):
        parent = stores[0].providers.create_provider(f'parent {n}').uuid

        def make(parent=parent, n=n):
            try:
                return stores[1].providers.create_provider(f'child {n}', parent=parent).uuid
            except exceptions.InvalidMessage as e:
                assert e.kwargs['field'] == 'provider.parent'
                return None

        def delete(parent=parent):
            try:
                stores[2].providers.delete_provider(parent)
            except exceptions.InUse:
                return False
            return True

        child, deleted = together(make, delete)
        assert (child is None) == deleted
        the_trees(stores[0])


def test_a_name_is_given_once(stores):
    def make(store):
        try:
            return store.providers.create_provider('the one').uuid
        except exceptions.InvalidMessage as e:
            assert e.kwargs['field'] == 'provider.name'
            return None

    uuids = together(*(lambda s=s: make(s) for s in stores))
    assert sum(uuid is not None for uuid in uuids) == 1
    assert len(list_providers(stores[0])) == 1


def test_copies_of_a_registration_attach_once(stores):
    """Two schedulers read the same message, and another host says the same uuid."""
    uuid = stores[0].providers.create_provider('node-1').uuid

    def register(store, name):
        try:
            registration = RegisterHost(name=name, boot_nonce='nonce', uuid=uuid)
            return register_host(store, registration)[0]
        except exceptions.InvalidMessage as e:
            assert e.kwargs['field'] == 'register_host.uuid'
            return None

    names = ['cmp-1', 'cmp-1', 'cmp-2', 'cmp-2']
    registered = together(
        *(lambda s=s, n=n: register(s, n) for s, n in zip(stores, names, strict=True))
    )
    (winner,) = {record.name for record in registered if record is not None}
    assert [record is not None for record in registered] == [name == winner for name in names]
    assert {record.epoch for record in registered if record is not None} == {1}
    (host,) = list_providers(stores[0])
    assert (host.uuid, host.host) == (uuid, winner)


@pytest.fixture(params=KINDS)
def store(request, open_store):
    return open_store(request.param)


def test_hosts_without_a_name_have_one_when_they_register_again(store):
    """Until then the host goes by its service, which nobody else may be."""
    host = a_host('cmp-1').on(store, node='node-1')
    with store.database.engine.begin() as connection:
        connection.execute(_p.update().values(placement_name=None))
    (provider,) = list_providers(store)
    assert (provider.name, provider.root, provider.parent) == ('cmp-1', provider.uuid, None)
    assert list_providers(store, name='cmp-1') == [provider]
    with pytest.raises(exceptions.InvalidMessage, match=r'provider.name: '):
        store.providers.create_provider('cmp-1')
    a_host('cmp-2').on(store, node='cmp-1')
    assert {provider.host: provider.name for provider in list_providers(store)} == {
        'cmp-1': 'cmp-1',
        'cmp-2': 'cmp-2',
    }
    host.register(node='node-1')
    assert list_providers(store, name='node-1')[0].host == 'cmp-1'


def test_a_renamed_host_has_the_new_name_where_it_had_the_old_one(store):
    a_host('cmp-1').on(store)
    a_host('cmp-2').on(store, node='node-2')
    store.hosts.rename_host('cmp-1', 'new-1')
    store.hosts.rename_host('cmp-2', 'new-2')
    assert {provider.host: provider.name for provider in list_providers(store)} == {
        'new-1': 'new-1',
        'new-2': 'node-2',
    }


def test_none_is_a_host_to_who_asks_for_records_of_hosts(store):
    host = a_host('cmp-1').on(store)
    store.providers.create_provider('below', parent=host.row.uuid)
    store.providers.create_provider('pool')
    facts = models.provider_facts
    joined = sa.select(_p.c.name).join(facts, facts.c.provider_id == _p.c.id)
    with store.database.engine.connect() as connection:
        assert connection.execute(joined).scalars().all() == ['cmp-1']
        called = connection.execute(sa.select(_p.c.name)).scalars().all()
    # And none is found by a name that a host could have.
    assert sum(name.startswith('\x7f') for name in called) == 2
