# SPDX-License-Identifier: Apache-2.0
"""Guests with parts that a provider below the host gives, or a pool: none is held against it."""

import types

import msgspec
import pytest

from gantt.cmd import compute, standalone
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.messages.tree_request import DeviceAmount, TreeRequest
from gantt.core.records.decision import Outcome
from gantt.insights import views
from gantt.insights.host_views import HostReader
from tests.compute.hosts_in_memory import HostsInMemory, House, a_delete
from tests.nested import below
from tests.shared_pools import a_shared_pool
from tests.world import World, new_uuid, sqlite_store

OWN = {'VCPU': 2, 'MEMORY_MB': 512}
SHARE = TreeRequest(devices=[DeviceAmount(resource_class='VGPU', amount=400)])


@pytest.fixture
def site(tmp_path):
    """A host without a disk, a GPU below it, and a pool of disks that it shares."""
    town = HostsInMemory(sqlite_store)
    house = House(town, tmp_path)
    house.machine.inventories.pop('DISK_GB')
    house.member.turn()
    world = World(store=town.store)
    uuid = world.scheduler.cache.working.hosts[0].uuid
    rack = town.store.declarations.save_aggregate('rack', {}, ['cmp-1']).uuid
    providers = [below(town.store, 'gpu', uuid, VGPU=1000)]
    providers.append(a_shared_pool(town.store, 'ceph', [rack], DISK_GB=100))
    world.turn()
    yield world, house, providers
    house.close()


def from_answer(world, selection):
    """The build of a conductor that has the answer."""
    return selection.build()


def from_store(world, selection):
    """The build of ``gantt-standalone --fake``."""
    (reserved,) = standalone.reserved_claims(world.store.claims, world.scheduler)
    return reserved


def from_api(world, selection):
    """The build of ``gantt-compute --build-claims``."""
    (claim,) = world.store.claims.list_claims(state='reserved', limit=10)
    page = {'claims': [msgspec.to_builtins(views.claim_view(claim, 0.0))], 'next_marker': None}
    (reserved,) = compute.reserved_claims(types.SimpleNamespace(get=lambda path, **query: page))
    return reserved


def selected(world, **amounts):
    spec = RequestSpec(resources={**OWN, 'DISK_GB': 10, **amounts}, tree=SHARE)
    request = SelectDestinations(request_id=new_uuid(), spec=spec, consumers=[new_uuid()])
    answer = world.select(request)
    assert answer.outcome is Outcome.PLACED, answer.reason
    return answer.selections[0][0]


@pytest.mark.parametrize('build_of', [from_answer, from_store, from_api])
def test_a_guest_with_a_share_of_a_gpu_and_of_a_pool_is_built_reported_and_deleted(site, build_of):
    world, house, (gpu, pool) = site
    store = world.store
    for guests in (1, 2):
        selection = selected(world)
        build = build_of(world, selection)
        assert (build.resources, build.claim_id) == (OWN, selection.claim_id)
        assert house.agent.build(build).outcome == 'running'
        house.member.turn()
        world.turn()
        assert house.town.state(build) == 'confirmed'
        assert store.providers.load_provider(gpu.uuid).used == {'VGPU': 400 * guests}
        assert store.providers.load_provider(pool.uuid).used == {'DISK_GB': 10 * guests}
    assert house.town.adopted() == []
    table = world.scheduler.cache.working
    assert not table.over_committed[0]
    claims = [views.claim_view(c, 0.0) for c in store.claims.list_claims(limit=10)]
    detail = HostReader(table, 1e9).detail(0, claims, False)
    assert {use.resource_class: use.claimed for use in detail.use} == {'VCPU': 4, 'MEMORY_MB': 1024}
    assert detail.differences == []
    below = [(use.provider, use.resource_class, use.cap, use.used) for use in detail.below]
    assert below == [('gpu', 'VGPU', 1000, 800)]
    assert house.agent.delete(a_delete(build)).outcome == 'deleted'
    assert store.providers.load_provider(gpu.uuid).used == {'VGPU': 400}
    house.town.audit()


def test_what_the_host_itself_has_is_checked_as_before(site):
    world, house, _ = site
    build = selected(world).build()
    house.machine.foreign = {'VCPU': 7}
    refused = house.agent.build(build)
    assert (refused.outcome, house.town.state(build)) == ('refused', 'refused')
    assert 'VCPU' in refused.reason


def test_a_build_needs_a_claim_on_a_host_of_here(site):
    world, _, _ = site
    selection = selected(world)
    for change in ({'claim_id': None}, {'child': 'north'}):
        with pytest.raises(Exception, match='expected a claim'):
            msgspec.structs.replace(selection, **change).build()
