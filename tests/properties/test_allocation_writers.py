# SPDX-License-Identifier: Apache-2.0
"""Writers of allocations beside a plain dictionary of what each consumer has.

Whatever is written, handed over, deleted and reshaped, and whatever schedulers and hosts do
meanwhile: a consumer has what its writers said last, and what is used is the sum.
"""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gantt import exceptions
from gantt.core.claims.allocations import WantedAllocations
from gantt.core.messages.resource_classes import Inventory
from tests.builders import CLEAN, a_host, uuid_of
from tests.properties.claim_world import a_store

HOSTS, POOLS, CONSUMERS = 2, 2, 3
ROOM = 12
LENIENT = {'deadline': None, 'print_blob': True, 'suppress_health_check': list(HealthCheck)}
WHO = st.integers(0, CONSUMERS - 1)
#: Number of a provider -> how much of its class.
SHARES = st.dictionaries(st.integers(0, HOSTS + POOLS), st.integers(1, 6), max_size=3)
#: By how much the generation that a writer gives is wrong.
OFF = st.sampled_from([0, 0, 0, 0, 1])
WORDS = st.one_of(
    st.tuples(st.just('write'), WHO, SHARES, OFF),
    st.tuples(st.just('write'), WHO, SHARES, OFF),
    st.tuples(st.just('both'), WHO, WHO, SHARES),
    st.tuples(st.just('hand over'), WHO, WHO),
    st.tuples(st.just('delete'), WHO),
    st.tuples(st.sampled_from(['report', 'sweep'])),
)


class Site:
    """Two hosts, one with a card below it, two pools; and what is known of its consumers."""

    def __init__(self, store):
        self.store = store
        self.hosts = [a_host(f'cmp-{n}').with_room(vcpu=ROOM).on(store) for n in range(HOSTS)]
        shared = {'DISK_GB': Inventory(total=ROOM)}
        self.pools = [
            store.providers.create_provider(f'pool {n}', inventories=shared) for n in range(POOLS)
        ]
        card = store.providers.create_provider(
            'card', parent=self.hosts[0].row.uuid, inventories={'VGPU': Inventory(total=ROOM)}
        )
        self.classes = {host.row.uuid: 'VCPU' for host in self.hosts}
        self.classes |= {pool.uuid: 'DISK_GB' for pool in self.pools} | {card.uuid: 'VGPU'}
        self.uuids = list(self.classes)
        self.held = {uuid_of('consumer', n): {} for n in range(CONSUMERS)}
        self.generations = dict.fromkeys(self.held)

    def wish(self, consumer, shares, **fields):
        return WantedAllocations(
            consumer=consumer, allocations=shares, project_id='p', user_id='u', **fields
        )

    def shares(self, numbers):
        return {self.uuids[n]: {self.classes[self.uuids[n]]: of} for n, of in numbers.items()}

    def used(self, held):
        total = Counter()
        for shares in held.values():
            for uuid, amounts in shares.items():
                total[uuid] += sum(amounts.values())
        return total

    def write(self, shares_of, off=0):
        """Consumer -> all that it is to have; off: by how much generations are wrong."""
        wishes = []
        for consumer, shares in shares_of.items():
            generation = self.generations[consumer]
            given = generation if not off else (generation or 0) + off
            wishes.append(self.wish(consumer, shares, generation=given))
        before, after = self.used(self.held), self.used(self.held | shares_of)
        fits = all(total <= ROOM or total <= before[uuid] for uuid, total in after.items())
        try:
            self.store.allocations.write_allocations(wishes)
        except exceptions.ConsumerChanged:
            assert off
            return
        except exceptions.AllocationRefused as e:
            assert (e.kwargs['why'], fits, off) == ('capacity', False, 0)
            return
        assert (fits, off) == (True, 0)
        for consumer, shares in shares_of.items():
            self.held[consumer] = shares
            generation = self.generations[consumer]
            self.generations[consumer] = (generation or 0) + 1 if shares else None

    def play(self, word, *args):
        consumers = list(self.held)
        if word == 'write':
            number, numbers, off = args
            self.write({consumers[number]: self.shares(numbers)}, off)
        elif word == 'both':
            source, other, numbers = args
            if source != other:
                self.write({consumers[source]: {}, consumers[other]: self.shares(numbers)})
        elif word == 'hand over':
            giver, heir = (consumers[n] for n in args)
            if giver != heir and self.held[giver]:
                ids = self.ids(giver)
                self.write({giver: {}, heir: self.held[giver]})
                assert self.ids(heir) == ids
        elif word == 'delete':
            self.delete(consumers[args[0]])
        elif word == 'report':
            for host in self.hosts:
                assert host.report().outcome == 'applied'
        else:
            self.store.claims.sweep(100)

    def delete(self, consumer):
        if self.held[consumer]:
            self.store.allocations.delete_allocations(consumer)
            self.held[consumer], self.generations[consumer] = {}, None
        else:
            with pytest.raises(exceptions.NotFound):
                self.store.allocations.delete_allocations(consumer)

    def ids(self, consumer):
        return {
            claim.id
            for claim in self.store.claims.list_claims(consumer=consumer, limit=1000)
            if claim.is_live
        }

    def check(self):
        for consumer, shares in self.held.items():
            stored = self.store.allocations.load_allocations(consumer)
            assert (stored.allocations if stored else {}) == shares
            assert (stored and stored.generation) == self.generations[consumer]
        used = self.used(self.held)
        for uuid in self.uuids:
            assert sum(self.store.providers.load_provider(uuid).used.values()) == used[uuid]
            on_it = self.store.allocations.provider_allocations(uuid)
            assert on_it.allocations == {
                consumer: shares[uuid] for consumer, shares in self.held.items() if uuid in shares
            }
        total = Counter()
        for usage in self.store.allocations.type_usages('p'):
            total.update(usage.resources)
        by_class = Counter()
        for uuid, amount in used.items():
            by_class[self.classes[uuid]] += amount
        assert +total == +by_class
        assert self.store.claims.audit() == CLEAN


@pytest.mark.parametrize('kind', ['memory', 'sqlite'])
@settings(max_examples=25, **LENIENT)
@given(words=st.lists(WORDS, min_size=3, max_size=14))
def test_a_consumer_has_what_its_writers_said_last(kind, words):
    with a_store(kind) as store:
        site = Site(store)
        for word in words:
            site.play(*word)
            site.check()
