# SPDX-License-Identifier: Apache-2.0
"""What an unmodified Nova says of aggregates."""

import pytest

from gantt.nova.model.events import AggregateDeleted, AggregatesUpdated, NovaAggregate, NovaCast
from tests.builders import a_host, new_uuid
from tests.conftest import READERS

KINDS = READERS


@pytest.fixture
def hosts(store):
    return [a_host(f'cmp-{n}').on(store, reporter='nova') for n in (1, 2)]


def hear(store, *aggregates, deleted=False, cast=None):
    word = (
        AggregateDeleted(aggregate=aggregates[0])
        if deleted
        else AggregatesUpdated(aggregates=list(aggregates))
    )
    return store.nova.apply_aggregates(NovaCast(id=cast or new_uuid(), event=word))


def aggregates(store):
    return {aggregate.name: aggregate for aggregate in store.feed.load_everything().aggregates}


def test_aggregates_are_as_nova_says(store, hosts):
    uuid = new_uuid()
    store.declarations.save_aggregate('ours', {'ssd': 'yes'}, ['cmp-1'])
    first = NovaAggregate(uuid=uuid, name='fast', metadata={'a': '1', 'b': '2'}, hosts=['cmp-1'])
    hear(store, first)
    assert len(hosts[0].row.aggregates) == 2
    hear(store, NovaAggregate(uuid=uuid, name='fast', metadata={'b': '3'}, hosts=['cmp-2']))
    by_name = aggregates(store)
    assert (by_name['fast'].uuid, by_name['fast'].metadata) == (uuid, {'b': '3'})
    assert (by_name['fast'].hosts, by_name['ours'].hosts) == (['cmp-2'], ['cmp-1'])
    assert hosts[1].row.aggregates == [uuid]
    hear(store, first, deleted=True)
    assert set(aggregates(store)) == {'ours'}
    assert hosts[1].row.aggregates == []


@pytest.mark.parametrize('is_taken', [False, True])
def test_a_renamed_aggregate_keeps_its_uuid(store, hosts, is_taken):
    uuid = new_uuid()
    hear(store, NovaAggregate(uuid=uuid, name='fast', hosts=['cmp-1']))
    if is_taken:
        store.declarations.save_aggregate('faster', {'ssd': 'yes'}, ['cmp-2'])
    hear(store, NovaAggregate(uuid=uuid, name='faster', metadata={'x': 'y'}, hosts=['cmp-1']))
    (aggregate,) = aggregates(store).values()
    assert (aggregate.uuid, aggregate.name, aggregate.metadata) == (uuid, 'faster', {'x': 'y'})
    assert aggregate.hosts == ['cmp-1']
    assert (hosts[0].row.aggregates, hosts[1].row.aggregates) == ([uuid], [])


def test_what_another_scheduler_heard_before_changes_nothing(store, hosts):
    uuid = new_uuid()
    older = NovaAggregate(uuid=uuid, name='fast', hosts=['cmp-1'])
    assert hear(store, older, cast='1')
    assert hear(store, NovaAggregate(uuid=uuid, name='fast', hosts=['cmp-2']), cast='2')
    assert not hear(store, older, cast='1')
    assert aggregates(store)['fast'].hosts == ['cmp-2']
