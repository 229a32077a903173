# SPDX-License-Identifier: Apache-2.0
"""Dry runs of writes: carried out one after another, and undone, on every kind of database."""

import pytest

from gantt import exceptions
from gantt.core.claims.allocations import WantedAllocations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.provider import ProviderFilter
from gantt.db.engine import retry
from tests.builders import a_host, uuid_of
from tests.db.conftest import SERVERS, contents

POOL, BELOW, VM = (uuid_of(name) for name in ('pool', 'below', 'vm'))


def licences(total):
    return {'CUSTOM_LICENCE': Inventory(total=total)}


def allocate(records, amount, provider=POOL):
    shares = {provider: {'CUSTOM_LICENCE': amount}}
    records.allocations.write_allocations(
        [WantedAllocations(consumer=VM, allocations=shares, project_id='p', user_id='u')]
    )


def fill(records):
    """Make one write of each kind; return what is there then."""
    records.vocabulary.create_class('CUSTOM_LICENCE')
    records.vocabulary.create_trait('CUSTOM_SITE')
    records.providers.create_provider('pool', uuid=POOL)
    records.providers.create_provider('below', uuid=BELOW, parent=POOL)
    records.providers.change_inventories(POOL, lambda now: licences(3))
    records.providers.save_provider_traits(POOL, ['CUSTOM_SITE'])
    records.providers.save_provider_aggregates(POOL, [uuid_of('aggregate')])
    records.providers.update_provider(BELOW, parent=None)
    allocate(records, 2)
    return (
        records.providers.load_provider(POOL).used,
        [entry.name for entry in records.providers.load_provider_traits(POOL).traits],
        records.providers.find_providers(ProviderFilter(uuid=BELOW))[0].parent,
        records.allocations.load_allocations(VM).allocations,
    )


def test_each_write_is_seen_by_the_next_and_none_stays(store):
    a_host().on(store)
    before = contents(store)
    outcome = store.dry_runs.dry_run(fill)
    assert contents(store) == before
    assert outcome == fill(store)
    assert contents(store) != before


def test_a_write_that_is_refused_leaves_nothing_for_the_next(store):
    store.vocabulary.create_class('CUSTOM_LICENCE')
    store.providers.create_provider('pool', uuid=POOL, inventories=licences(3))

    def work(records):
        with pytest.raises(exceptions.InvalidMessage):
            records.providers.create_provider('pool')
        with pytest.raises(exceptions.AllocationRefused):
            allocate(records, 4)
        allocate(records, 3)
        with pytest.raises(exceptions.InUse):
            records.providers.change_inventories(POOL, lambda now: {})
        records.allocations.delete_allocations(VM)
        records.providers.delete_provider(POOL)
        return records.providers.load_provider(POOL)

    before = contents(store)
    assert store.dry_runs.dry_run(work) is None
    assert contents(store) == before


def test_nothing_undone_is_remembered(store):
    """The provider of the dry run has another id than that of the same uuid afterwards."""
    store.dry_runs.dry_run(fill)
    store.vocabulary.create_class('CUSTOM_LICENCE')
    store.providers.create_provider('another')
    store.providers.create_provider('pool', uuid=POOL, inventories=licences(3))
    allocate(store, 3)
    assert store.providers.load_provider(POOL).used == {'CUSTOM_LICENCE': 3}


def test_it_is_repeated_after_a_conflict(store):
    rounds = []

    def work(records):
        records.providers.create_provider('pool', uuid=POOL)
        rounds.append(records)
        if len(rounds) == 1:
            raise retry.RetryTransaction('another transaction was there')
        return len(rounds)

    assert store.dry_runs.dry_run(work) == 2
    assert store.providers.load_provider(POOL) is None


@pytest.mark.parametrize('store', SERVERS, indirect=True)
def test_rows_that_stay_locked_refuse_it(store):
    store.vocabulary.create_class('CUSTOM_LICENCE')
    store.providers.create_provider('pool', uuid=POOL, inventories=licences(3))

    def work(records):
        records.providers.change_inventories(POOL, lambda now: licences(4))
        with pytest.raises(exceptions.Busy):
            store.dry_runs.dry_run(
                lambda other: other.providers.change_inventories(POOL, lambda now: licences(5))
            )

    store.dry_runs.dry_run(work)
    assert store.providers.load_provider(POOL).inventories['CUSTOM_LICENCE'].total == 3
