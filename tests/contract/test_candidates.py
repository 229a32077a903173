# SPDX-License-Identifier: Apache-2.0
"""Providers for candidates: loaded, followed, and seen by whoever asks after a write."""

import threading

import pytest

from gantt import exceptions
from gantt.core.candidates.query import SHARES_TRAIT, CandidatesQuery, GroupQuery
from gantt.core.messages.resource_classes import Inventory
from gantt.insights.candidates import ProviderTableReader
from tests.builders import a_draft, commit, set_inventories, uuid_of
from tests.conftest import READERS

#: What is read has its twin in memory in SQLite.
KINDS = READERS
VCPU = CandidatesQuery(groups=(GroupQuery(resources={'VCPU': 1}),))
DISK = CandidatesQuery(groups=(GroupQuery(resources={'VCPU': 1, 'DISK_GB': 10}),))
VGPU = CandidatesQuery(groups=(GroupQuery(suffix='1', resources={'CUSTOM_VGPU': 1}),))


def uuids(candidates: ProviderTableReader, query: CandidatesQuery) -> set[tuple[str, ...]]:
    """What is found, by the uuids of each row."""
    return candidates.answer(
        query,
        lambda table, matches: {tuple(table.entry(s).uuid for s in row) for row in matches.rows},
    )


class Followed:
    """A table that follows, compared with one made anew at each step."""

    def __init__(self, store):
        self.store = store
        self.news = store.candidates.load_provider_entries()
        self.entries = {entry.id: entry for entry in self.news.entries}
        self.wholes = 0

    def check(self):
        """What is known now, by uuid."""
        news = self.store.candidates.poll_provider_entries(self.news)
        self.wholes += news.whole
        if news.whole:
            self.entries = {}
        self.entries |= {entry.id: entry for entry in news.entries}
        for provider_id in news.gone:
            self.entries.pop(provider_id, None)
        self.news = news
        fresh = {entry.id: entry for entry in self.store.candidates.load_provider_entries().entries}
        assert self.entries == fresh
        return {entry.uuid: entry for entry in self.entries.values()}


@pytest.fixture
def followed(store):
    return Followed(store)


def test_a_pool_is_seen_with_all_that_is_written_of_it(store, followed):
    pool = store.providers.create_provider(
        'pool', inventories={'DISK_GB': Inventory(total=100, reserved=10)}
    )
    entry = followed.check()[pool.uuid]
    assert (entry.root_id, entry.parent_id, entry.inventories['DISK_GB'].cap) == (pool.id, None, 90)
    store.providers.save_provider_traits(pool.uuid, [SHARES_TRAIT, 'STORAGE_DISK_SSD'])
    store.providers.save_provider_aggregates(pool.uuid, [uuid_of('aggregate')])
    entry = followed.check()[pool.uuid]
    assert (entry.traits, entry.aggregates) == (
        (SHARES_TRAIT, 'STORAGE_DISK_SSD'),
        (uuid_of('aggregate'),),
    )
    set_inventories(store, pool.uuid, {'CUSTOM_IOPS': Inventory(total=8, step_size=2)})
    entry = followed.check()[pool.uuid]
    assert entry.inventories.keys() == {'CUSTOM_IOPS'}
    assert (
        entry.inventories['CUSTOM_IOPS'].max_unit,
        entry.inventories['CUSTOM_IOPS'].step_size,
    ) == (
        8,
        2,
    )
    store.providers.delete_provider(pool.uuid)
    assert followed.check() == {}
    assert followed.wholes == 0


def test_a_tree_is_seen_as_it_moves(store, followed):
    root, other = store.providers.create_provider('root'), store.providers.create_provider('other')
    child = store.providers.create_provider('child', parent=root.uuid)
    below = store.providers.create_provider('below', parent=child.uuid)
    entries = followed.check()
    assert (entries[below.uuid].parent_id, entries[below.uuid].root_id) == (child.id, root.id)
    store.providers.update_provider(child.uuid, parent=other.uuid)
    entries = followed.check()
    assert (entries[below.uuid].parent_id, entries[below.uuid].root_id) == (child.id, other.id)
    store.providers.update_provider(child.uuid, parent=None)
    entries = followed.check()
    assert (entries[child.uuid].parent_id, entries[below.uuid].root_id) == (None, child.id)


def test_use_of_a_host_is_seen_in_core_classes_and_others(store, host, followed):
    uuid = next(iter(followed.check().values())).uuid
    commit(store, a_draft().taking(host, vcpu=2, ram=1024))
    entry = followed.check()[uuid]
    assert entry.inventories['VCPU'].used == 2
    assert entry.inventories['MEMORY_MB'].used == 1024


def test_a_host_is_in_the_aggregates_of_operators(store, host, followed):
    followed.check()
    aggregate = store.declarations.save_aggregate('fast', metadata={}, hosts=[host.name])
    (entry,) = followed.check().values()
    assert aggregate.uuid in entry.aggregates
    assert followed.wholes == 1


def test_what_a_writer_was_answered_is_seen_by_whoever_asks_next(store):
    candidates = ProviderTableReader(store.candidates)
    assert uuids(candidates, VGPU) == set()
    pool = store.providers.create_provider('pool', inventories={'CUSTOM_VGPU': Inventory(total=1)})
    assert uuids(candidates, VGPU) == {(pool.uuid,)}
    set_inventories(store, pool.uuid, {})
    assert uuids(candidates, VGPU) == set()


def test_a_pool_serves_the_trees_of_its_aggregates(store):
    candidates = ProviderTableReader(store.candidates)
    host = store.providers.create_provider('node', inventories={'VCPU': Inventory(total=8)})
    pool = store.providers.create_provider('pool', inventories={'DISK_GB': Inventory(total=100)})
    store.providers.save_provider_traits(pool.uuid, [SHARES_TRAIT])
    assert uuids(candidates, DISK) == set()
    for uuid in (host.uuid, pool.uuid):
        store.providers.save_provider_aggregates(uuid, [uuid_of('aggregate')])
    assert uuids(candidates, DISK) == {(host.uuid, pool.uuid)}
    store.providers.save_provider_traits(pool.uuid, [])
    assert uuids(candidates, DISK) == set()


def test_names_that_there_are_not(store):
    candidates = ProviderTableReader(store.candidates)
    store.providers.create_provider('pool', inventories={'CUSTOM_VGPU': Inventory(total=1)})
    store.vocabulary.create_trait('CUSTOM_THERE')
    classes, traits = candidates.unknown_names(
        ['VCPU', 'CUSTOM_VGPU', 'CUSTOM_NOT', 'é'], [SHARES_TRAIT, 'CUSTOM_THERE', 'CUSTOM_NOT']
    )
    assert (list(classes), list(traits)) == (['CUSTOM_NOT', 'é'], ['CUSTOM_NOT'])


def test_a_search_may_take_so_many_steps(store):
    parent = store.providers.create_provider('root').uuid
    for n in range(6):
        store.providers.create_provider(
            f'{n}', parent=parent, inventories={'CUSTOM_VGPU': Inventory(total=6)}
        )
    groups = tuple(GroupQuery(suffix=f'{n}', resources={'CUSTOM_VGPU': 1}) for n in range(6))
    query = CandidatesQuery(groups=groups)
    with pytest.raises(exceptions.SearchOutOfBudget):
        uuids(ProviderTableReader(store.candidates, steps=1000), query)


def test_many_ask_while_others_write(store):
    candidates = ProviderTableReader(store.candidates)
    failed = []

    def work(name):
        for n in range(5):
            provider = store.providers.create_provider(
                f'{name}-{n}', inventories={'CUSTOM_VGPU': Inventory(total=1)}
            )
            if (provider.uuid,) not in uuids(candidates, VGPU):
                failed.append(provider.uuid)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(uuids(candidates, VGPU)) == 20


def test_a_long_search_keeps_no_other_waiting_and_sees_no_news(store):
    candidates = ProviderTableReader(store.candidates)
    first = store.providers.create_provider(
        'first', inventories={'CUSTOM_VGPU': Inventory(total=1)}
    )
    searching, done = threading.Event(), threading.Event()
    seen = []

    def long_search(table):
        before = table.entry(table.slot(first.uuid)), len(table)
        searching.set()
        assert done.wait(60)
        return before, (table.entry(table.slot(first.uuid)), len(table))

    thread = threading.Thread(target=lambda: seen.append(candidates.read_all(long_search)))
    thread.start()
    assert searching.wait(60)
    second = store.providers.create_provider(
        'second', inventories={'CUSTOM_VGPU': Inventory(total=1)}
    )
    set_inventories(store, first.uuid, {})
    answers = []
    other = threading.Thread(target=lambda: answers.append(uuids(candidates, VGPU)))
    other.start()
    other.join(30)
    is_waiting = other.is_alive()
    done.set()
    thread.join(60)
    assert not is_waiting
    assert answers == [{(second.uuid,)}]
    before, after = seen[0]
    assert before == after


def test_an_answer_is_charged_by_what_it_says(store):
    root = store.providers.create_provider('root', inventories={'VCPU': Inventory(total=100)}).uuid
    for n in range(30):
        store.providers.create_provider(
            f'{n}', parent=root, inventories={'CUSTOM_VGPU': Inventory(total=1)}
        )
    groups = tuple(GroupQuery(suffix=f'{n}', resources={'CUSTOM_VGPU': 1}) for n in range(2))
    query = CandidatesQuery(groups=groups, isolate=True)
    assert len(uuids(ProviderTableReader(store.candidates, steps=20_000), query)) == 30 * 29
    with pytest.raises(exceptions.SearchOutOfBudget):
        uuids(ProviderTableReader(store.candidates, steps=2500), query)
