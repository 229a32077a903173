# SPDX-License-Identifier: Apache-2.0
"""What is here already: hosts that report for themselves, consumers that are claimed for."""

import pytest

from gantt import exceptions
from gantt.core.claims.allocations import WantedAllocations
from gantt.placement_api.transfer import copying, differences
from gantt.placement_api.transfer.own import OwnSide, TreeRoot, merged
from gantt.placement_api.transfer.side import ConsumerRecord
from tests.builders import CLEAN, a_draft, a_host, claimed, uuid_of
from tests.conftest import STORES
from tests.transfer import cloud

A, B, CELL, DISKS = (uuid_of(name) for name in ('a', 'b', 'cell', 'disks'))
ROOTS = {
    A: TreeRoot(A, True),
    B: TreeRoot(B, True),
    CELL: TreeRoot(A, True),
    DISKS: TreeRoot(DISKS, False),
}


@pytest.fixture
def server(built_server):
    """The cloud."""
    return built_server


@pytest.fixture
def store(request, make_store):
    return make_store(getattr(request, 'param', 'memory'))


def copied(server, store, at, **options):
    return copying.copy(at(server.url), OwnSide(store), lambda line: None, **options)


def compared(server, store, at):
    differing, *_ = differences.compare(OwnSide(store), at(server.url), lambda line: None)
    return [each.line('here', 'there') for each in differing]


@pytest.mark.parametrize(
    ('own', 'other', 'expected', 'reason'),
    [
        ({A: {'VCPU': 2}}, {A: {'VCPU': 2}}, {A: {'VCPU': 2}}, ''),
        ({A: {'VCPU': 2}}, {A: {'VCPU': 3}}, {A: {'VCPU': 2}}, 'where it has'),
        (
            {A: {'VCPU': 2}},
            {A: {'VCPU': 2}, CELL: {'PCPU': 1}, DISKS: {'DISK_GB': 5}},
            {A: {'VCPU': 2}, CELL: {'PCPU': 1}, DISKS: {'DISK_GB': 5}},
            '',
        ),
        ({A: {'VCPU': 2}}, {B: {'VCPU': 2}}, {A: {'VCPU': 2}}, 'on another host'),
        (
            {DISKS: {'DISK_GB': 5}},
            {DISKS: {'DISK_GB': 5}, A: {'VCPU': 1}},
            {DISKS: {'DISK_GB': 5}, A: {'VCPU': 1}},
            '',
        ),
    ],
)
def test_what_is_claimed_here_stays_and_is_not_claimed_twice(own, other, expected, reason):
    allocations, problem = merged(own, other, ROOTS)
    assert allocations == expected
    assert (reason in problem) if reason else not problem


def test_a_host_that_has_registered_is_attached_to_and_keeps_its_record(server, store, at):
    here = a_host('compute-0').with_room(vcpu=8, ram=16_384).on(store, uuid=cloud.host(0))
    report = copied(server, store, at)
    assert report.left == []
    assert any('its reports say what it has' in line for line in report.reported)
    assert report.written['providers'] == cloud.PROVIDERS - 1
    assert store.providers.load_provider(cloud.cell(0, 0)).parent == here.row.uuid
    assert store.providers.load_provider(here.row.uuid).inventories['VCPU'].total == 8
    shown = compared(server, store, at)
    assert shown
    assert all(f'provider {cloud.host(0)}' in line for line in shown)
    again = copied(server, store, at)
    assert (again.total, again.left) == (0, [])


def test_a_host_of_another_uuid_and_the_same_name_is_named(server, store, at):
    a_host('compute-1').on(store)
    report = copied(server, store, at)
    named = [line for line in report.left if f'provider {cloud.host(1)} (compute-1)' in line]
    assert len(named) == 1
    assert "'compute-1' is the name of provider" in named[0]
    below = [line for line in report.left if 'no provider has the uuid' in line]
    assert len(below) == 3


@pytest.mark.parametrize('store', STORES, indirect=True)
def test_a_consumer_that_a_scheduler_has_claimed_for_is_not_claimed_twice(server, store, at):
    here = a_host('compute-1').with_room(vcpu=64, ram=16_384).on(store, uuid=cloud.host(1))
    there = a_host('compute-2').with_room(vcpu=64, ram=16_384).on(store, uuid=cloud.host(2))
    # As it is there, on another host, and on the same one with other amounts.
    same, elsewhere, more = cloud.consumer(1), cloud.consumer(2), cloud.consumer(13)
    drafts = [
        a_draft().taking(here, same, vcpu=2, ram=512),
        a_draft().taking(here, elsewhere, vcpu=1, ram=512),
        a_draft().taking(here, more, vcpu=3, ram=512),
    ]
    ids = {claim.id for draft in drafts for claim in claimed(store, draft)}
    report = copied(server, store, at)
    assert report.left == []
    claims = store.claims.live_claims_of([same, elsewhere, more])
    assert {claim.id for claim in claims} == ids
    assert store.allocations.load_allocations(same).allocations == cloud.shares_of(1)
    assert there.row.uuid not in store.allocations.load_allocations(elsewhere).allocations
    assert store.allocations.load_allocations(more).allocations[here.row.uuid] == {
        'VCPU': 3,
        'MEMORY_MB': 512,
    }
    text = '\n'.join(report.reported)
    assert f'consumer {elsewhere}: claimed here already' in text
    assert f'consumer {more}: claimed here already' in text
    assert store.claims.audit() == CLEAN
    again = copied(server, store, at)
    assert (again.total, again.left) == (0, [])


def test_what_schedulers_claim_is_not_deleted(server, store, at):
    here = a_host('compute-1').on(store, uuid=cloud.host(1))
    (claim,) = claimed(store, a_draft().taking(here, vcpu=1))
    report = copied(server, store, at, delete=True)
    assert any('claims that a scheduler or a host has made' in line for line in report.left)
    assert store.claims.load_claim(claim.id).is_live


def test_what_is_not_the_state_that_was_read_is_refused(store):
    pool = store.providers.create_provider('pool', uuid=DISKS)
    own = OwnSide(store)
    with pytest.raises(exceptions.StaleGeneration):
        own.save_traits(pool.uuid, ['HW_CPU_X86_AVX2'], pool.generation + 5)
    host = a_host().on(store)
    shares = {host.row.uuid: {'VCPU': 1}}
    wish = WantedAllocations(consumer=A, allocations=shares, project_id='p', user_id='u')
    store.allocations.write_allocations([wish])
    record = ConsumerRecord(generation=0, allocations={host.row.uuid: {'VCPU': 2}})
    with pytest.raises(exceptions.ConsumerChanged):
        own.save_consumer(A, record, 7)
