# SPDX-License-Identifier: Apache-2.0
"""What requests say of hosts that they speak for; reports of these leave it alone."""

import pytest

from gantt import exceptions
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import INVENTORIES_BY_API
from tests.builders import CLEAN, a_draft, a_host, claimed, commit, set_inventories, uuid_of

OTHERS = {'VCPU': Inventory(total=4), 'VGPU': Inventory(total=3, reserved=1, max_unit=2)}
AVX, NVME = 'HW_CPU_X86_AVX2', 'STORAGE_DISK_SSD'
RACK = uuid_of('rack')


@pytest.fixture
def mine(store, host):
    """A host that requests speak for."""
    store.hosts.set_inventories_by(host.name, INVENTORIES_BY_API)
    return host


def test_what_the_reports_of_a_host_say_is_refused_to_requests(store, host):
    uuid, before = host.row.uuid, host.row
    for act in (
        lambda: store.providers.change_inventories(uuid, lambda _: OTHERS),
        lambda: store.providers.save_provider_traits(uuid, [AVX]),
        lambda: store.providers.save_provider_aggregates(uuid, [RACK]),
    ):
        with pytest.raises(exceptions.ReportedByHost, match='host inventories cmp-1 --by api'):
            act()
    assert host.row == before


def test_requests_say_all_of_it_and_everybody_reads_that(store, mine):
    uuid, versions = mine.row.uuid, {mine.id: mine.row.version}
    position, generation = store.feed.load_everything().position, mine.row.generation
    assert set_inventories(store, uuid, OTHERS).inventories == OTHERS
    assert mine.row.generation == generation + 1
    traits = store.providers.save_provider_traits(uuid, [NVME, AVX], generation + 1)
    assert [trait.name for trait in traits.traits] == [AVX, NVME]
    assert traits.generation == mine.row.generation == generation + 2
    with pytest.raises(exceptions.StaleGeneration):
        store.providers.save_provider_aggregates(uuid, [RACK], generation)
    assert store.providers.save_provider_aggregates(uuid, [RACK]).aggregates == [RACK]
    row = mine.row
    assert (row.facts.inventories, row.facts.traits) == (OTHERS, [AVX, NVME])
    assert row.aggregates == [RACK]
    (change,) = store.feed.poll(position, versions).hosts
    assert change.row == row
    assert [change.row for change in store.feed.compare({}).hosts] == [row]
    mine.report()
    again = mine.row
    assert (again.facts, again.aggregates) == (row.facts, row.aggregates)
    assert store.providers.load_provider_aggregates(uuid).aggregates == [RACK]
    assert [trait.name for trait in store.providers.load_provider_traits(uuid).traits] == [
        AVX,
        NVME,
    ]
    assert store.claims.audit() == CLEAN


def test_claims_are_judged_by_what_requests_say(store, mine):
    set_inventories(store, mine.row.uuid, OTHERS)
    refused = commit(store, a_draft().taking(mine, DISK_GB=1)).outcomes[0]
    assert refused.accepted == []
    claim = claimed(store, a_draft().taking(mine, vcpu=3, VGPU=2))[0]
    assert commit(store, a_draft().taking(mine, vcpu=2)).outcomes[0].accepted == []
    with pytest.raises(exceptions.InUse, match=r'provider.inventories.VGPU'):
        set_inventories(store, mine.row.uuid, {'VCPU': Inventory(total=4)})
    now = set_inventories(store, mine.row.uuid, {**OTHERS, 'VCPU': Inventory(total=2)})
    assert now.used == {'VCPU': 3, 'VGPU': 2}
    assert mine.row.over_committed
    assert store.claims.audit() == CLEAN
    mine.report([claim])
    assert mine.row.over_committed
    set_inventories(store, mine.row.uuid, OTHERS)
    assert not mine.row.over_committed
    assert claimed(store, a_draft().taking(mine, vcpu=1))
    assert store.claims.audit() == CLEAN


def test_a_host_is_in_aggregates_by_its_name_and_by_their_uuids(store, mine):
    named = store.declarations.save_aggregate('rack-1', {}, [mine.name])
    store.providers.save_provider_aggregates(mine.row.uuid, [RACK])
    assert mine.row.aggregates == sorted([named.uuid, RACK])
    store.declarations.save_aggregate('rack-2', {}, [mine.name], uuid_of('rack-2'))
    store.declarations.save_aggregate('rack-1', {}, [])
    assert mine.row.aggregates == sorted([uuid_of('rack-2'), RACK])
    mine.send(mine.says().having(aggregates=['rack-1']))
    assert mine.row.aggregates == sorted([uuid_of('rack-2'), RACK])
    assert store.providers.load_provider_aggregates(mine.row.uuid).aggregates == [RACK]
    store.hosts.set_inventories_by(mine.name, None)
    mine.send(mine.says().having(aggregates=['rack-1']))
    assert mine.row.aggregates == [named.uuid]
    assert store.providers.load_provider_aggregates(mine.row.uuid).aggregates == []


def test_what_a_provider_has_it_has_as_a_host(store):
    uuid = store.providers.create_provider('node-1', uuid=uuid_of('node'), inventories=OTHERS).uuid
    store.providers.save_provider_traits(uuid, [AVX])
    store.providers.save_provider_aggregates(uuid, [RACK])
    named = store.declarations.save_aggregate('rack-1', {}, ['cmp-1'])
    host = a_host('cmp-1').having(traits=[NVME], aggregates=['rack-2']).on(store, uuid=uuid)
    row = host.row
    assert (row.facts.inventories, row.facts.traits) == (OTHERS, [AVX])
    assert row.aggregates == sorted([named.uuid, RACK])
    store.providers.save_provider_traits(uuid, [])
    assert host.row.facts.traits == []
    assert store.claims.audit() == CLEAN


def test_it_is_still_a_host(store, mine):
    uuid = mine.row.uuid
    parent = store.providers.create_provider('pool').uuid
    for act in (
        lambda: store.providers.update_provider(uuid, parent=parent),
        lambda: store.providers.delete_provider(uuid),
    ):
        with pytest.raises(exceptions.ReportedByHost, match=r"is host 'cmp-1'"):
            act()
    store.hosts.remove_host(mine.name)
    assert store.providers.load_provider(uuid) is None
