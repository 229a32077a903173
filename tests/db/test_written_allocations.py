# SPDX-License-Identifier: Apache-2.0
"""Allocations on databases of servers: several writers at once, and beside schedulers."""

import contextlib
import random

import pytest
import sqlalchemy as sa

from gantt import exceptions
from gantt.core.claims.allocations import WantedAllocations
from gantt.core.messages.resource_classes import Inventory
from gantt.db.hosts import claim_rows, providers
from gantt.db.schema import models
from gantt.placement_api.ports import ReshapedProvider
from tests.builders import CLEAN, a_draft, a_host, commit, uuid_of
from tests.db.conftest import SERVERS
from tests.db.test_concurrency import deadlocks, together
from tests.services import PATIENT

VM = uuid_of('vm')


@pytest.fixture(params=SERVERS)
def stores(request, open_store):
    """Four stores on one database of a server."""
    kind = request.param
    first = open_store(kind, timeouts=PATIENT)
    more = (open_store(like=first, timeouts=PATIENT, fast=kind != 'portable') for _ in range(3))
    return [first, *more]


def wish(consumer, shares, **fields):
    base = {'project_id': 'p1', 'user_id': 'u1'}
    return WantedAllocations(consumer=consumer, allocations=shares, **{**base, **fields})


def written(store, *wishes):
    """Whether it was; 'changed' or 'full' where not."""
    try:
        store.allocations.write_allocations(wishes)
    except exceptions.ConsumerChanged:
        return 'changed'
    except exceptions.AllocationRefused:
        return 'full'
    return 'written'


def test_of_two_that_make_one_consumer_one_does_wherever_they_want_it(stores):
    hosts = [a_host(f'cmp-{n}').with_room(vcpu=100).on(stores[0]) for n in range(2)]
    before = deadlocks(stores[0])
    for n in range(20):
        consumer = uuid_of('consumer', n)

        def make(store, host, consumer=consumer):
            return written(store, wish(consumer, {host.row.uuid: {'VCPU': 1}}, generation=None))

        done = together(*(lambda s=s, h=h: make(s, h) for s, h in zip(stores, hosts, strict=False)))
        assert sorted(done) == ['changed', 'written']
    assert deadlocks(stores[0]) == before
    assert (sum(host.row.used['VCPU'] for host in hosts), stores[0].claims.audit()) == (20, CLEAN)


def test_no_update_is_lost(stores):
    """Each adds one to what it has read, and tries again where another was faster."""
    host = a_host().with_room(vcpu=1000).on(stores[0])
    uuid = host.row.uuid
    before = deadlocks(stores[0])

    def add(store, times):
        for _ in range(times):
            for _ in range(200):
                recorded = store.allocations.load_allocations(VM)
                amount = 1 + (recorded.allocations[uuid]['VCPU'] if recorded else 0)
                generation = recorded and recorded.generation
                if written(store, wish(VM, {uuid: {'VCPU': amount}}, generation=generation)) != (
                    'changed'
                ):
                    break
            else:
                raise AssertionError('always another was faster')

    together(*(lambda s=s: add(s, 10) for s in stores))
    assert stores[0].allocations.load_allocations(VM).allocations == {uuid: {'VCPU': 40}}
    assert stores[0].allocations.load_allocations(VM).generation == 40
    assert (deadlocks(stores[0]), stores[0].claims.audit()) == (before, CLEAN)


class Crowd:
    """Writers, schedulers, and whoever reshapes and moves providers, on one site."""

    def __init__(self, store):
        self.hosts = [a_host(f'cmp-{n}').with_room(vcpu=20).on(store) for n in range(3)]
        self.names = [host.row.uuid for host in self.hosts]
        disks = {'DISK_GB': Inventory(total=60)}
        self.pools = [
            store.providers.create_provider(f'pool {n}', inventories=disks).uuid for n in range(2)
        ]
        self.consumers = [uuid_of('consumer', n) for n in range(8)]

    def shares(self, rnd):
        names, pools = rnd.sample(self.names, rnd.randint(0, 2)), rnd.sample(self.pools, 1)
        amounts = {uuid: {'VCPU': rnd.randint(1, 6)} for uuid in names}
        return amounts | {uuid: {'DISK_GB': rnd.randint(1, 20)} for uuid in pools}

    def write(self, store, rnd):
        for _ in range(25):
            some = rnd.sample(self.consumers, rnd.randint(1, 3))
            written(store, *(wish(consumer, self.shares(rnd)) for consumer in some))
            with contextlib.suppress(exceptions.NotFound):
                store.allocations.delete_allocations(rnd.choice(self.consumers))
            giver, heir = rnd.sample(self.consumers, 2)
            recorded = store.allocations.load_allocations(giver) if rnd.random() < 0.3 else None
            if recorded is not None:
                written(store, wish(giver, {}), wish(heir, recorded.allocations))

    def schedule(self, store, rnd):
        for _ in range(25):
            host, consumer = rnd.choice(self.hosts), rnd.choice(self.consumers)
            commit(store, a_draft().taking(host, consumer, vcpu=rnd.randint(1, 3)))
            store.claims.sweep(10)

    def shape(self, store, rnd):
        for _ in range(15):
            pool = rnd.choice(self.pools)
            reshaped = ReshapedProvider(
                generation=store.providers.load_provider(pool).generation,
                inventories={'DISK_GB': Inventory(total=rnd.randint(40, 80))},
            )
            with contextlib.suppress(exceptions.Refused):
                store.allocations.reshape(
                    {pool: reshaped}, [wish(rnd.choice(self.consumers), self.shares(rnd))]
                )
            with contextlib.suppress(exceptions.InvalidMessage):
                store.providers.update_provider(
                    pool, parent=rnd.choice([None, *self.names, *self.pools])
                )


@pytest.mark.parametrize('seed', range(2))
def test_nothing_is_given_twice_and_nobody_waits_in_a_circle(stores, seed):
    crowd, before = Crowd(stores[0]), deadlocks(stores[0])
    works = [crowd.write, crowd.write, crowd.schedule, crowd.shape]
    together(
        *(
            lambda work=work, n=n: work(stores[n], random.Random(f'{seed} {n}'))
            for n, work in enumerate(works)
        )
    )
    assert deadlocks(stores[0]) == before
    assert stores[0].claims.audit() == CLEAN


def test_what_is_known_of_consumers_goes_with_their_last_claim(make_store):
    store = make_store('sqlite')
    host = a_host().on(store)
    store.allocations.write_allocations([wish(VM, {host.row.uuid: {'VCPU': 1}})])
    query = sa.select(models.written_consumers.c.uuid)
    assert [row.uuid for row in store.database.writes.read(lambda tx: tx.all(query))] == [VM]
    store.allocations.delete_allocations(VM)
    assert store.database.writes.read(lambda tx: tx.all(query)) == []


def between(monkeypatch, act):
    """Let ``act`` happen once, after a writer has looked and before it locks providers."""
    real, acts = providers.lock_placed, [act]

    def lock_placed(*arguments):
        if acts:
            acts.pop()()
        return real(*arguments)

    monkeypatch.setattr(providers, 'lock_placed', lock_placed)


@pytest.mark.parametrize('ends', [True, False])
def test_what_a_claim_has_become_meanwhile_is_what_ends(stores, monkeypatch, ends):
    """It takes less than the writer has seen: that, and no more, is given back."""
    host = a_host().with_room(vcpu=100).on(stores[0])
    c, p = models.claims, models.providers
    stores[0].allocations.write_allocations([wish(VM, {host.row.uuid: {'VCPU': 5}})])

    def shrink():
        with stores[1].database.engine.begin() as connection:
            connection.execute(p.update().values(used_vcpu=3, version=p.c.version + 1))
            connection.execute(c.update().values(vcpu=3, updated_at=c.c.updated_at + 1))

    between(monkeypatch, shrink)
    if ends:
        stores[0].allocations.delete_allocations(VM)
    else:
        stores[0].allocations.write_allocations([wish(VM, {host.row.uuid: {'VCPU': 4}})])
    assert host.row.used.get('VCPU', 0) == (0 if ends else 4)
    assert stores[0].claims.audit() == CLEAN


@pytest.mark.parametrize('moves', ['away', 'below a host', 'deleted', 'made anew'])
def test_a_provider_is_where_it_stands_now(make_store, moves):
    """Whatever a writer remembers of it."""
    store = make_store('sqlite')
    host = a_host().with_room(vcpu=100).on(store)
    disks = {'DISK_GB': Inventory(total=60)}
    top = store.providers.create_provider('top').uuid
    pool = store.providers.create_provider('pool', parent=top, inventories=disks).uuid
    shares = {pool: {'DISK_GB': 10}}
    store.allocations.write_allocations([wish(VM, shares)])
    assert store.allocations.load_allocations(VM).allocations == shares
    if moves in ('deleted', 'made anew'):
        store.allocations.delete_allocations(VM)
        store.providers.delete_provider(pool)
    if moves == 'deleted':
        with pytest.raises(exceptions.NotFound):
            store.allocations.write_allocations([wish(VM, shares)])
        return
    if moves == 'made anew':
        store.providers.create_provider('another', uuid=pool, inventories=disks)
    else:
        store.providers.update_provider(
            pool, parent=host.row.uuid if moves == 'below a host' else None
        )
    other = uuid_of('other')
    store.allocations.write_allocations([wish(other, {**shares, host.row.uuid: {'VCPU': 1}})])
    claims = store.database.writes.read(lambda tx: claim_rows.load_claims(tx, live=True))
    (moved,) = (claim for claim in claims if claim.consumer == other)
    assert moved.provider_id == host.row.id
    assert store.allocations.load_allocations(other).allocations == {
        **shares,
        host.row.uuid: {'VCPU': 1},
    }
    store.allocations.delete_allocations(other)
    assert store.claims.audit() == CLEAN
    # Of it alone: on the root that it has now.
    store.allocations.write_allocations([wish(other, shares)])
    claims = store.database.writes.read(lambda tx: claim_rows.load_claims(tx, live=True))
    (moved,) = (claim for claim in claims if claim.consumer == other)
    root = store.providers.load_provider(store.providers.load_provider(pool).root)
    assert moved.provider_id == root.id
    assert store.claims.audit() == CLEAN
