# SPDX-License-Identifier: Apache-2.0
"""Flow 2 in a small world: what reports do to claims, room and later placements."""

import msgspec
import pytest

from gantt import exceptions
from gantt.core.messages.report import DevicePool, HostReport, NumaCell, NumaPages, Running
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.decision import Outcome
from tests.world import World, a_request, new_uuid


def place_one(world, **needs):
    answer = world.select(a_request(**needs))
    assert answer.outcome is Outcome.PLACED
    return answer.selections[0][0]


def test_a_host_takes_nothing_before_its_first_report():
    world = World()
    from tests.world import Host

    Host(world, 'cmp-new')
    world.turn()
    assert world.select(a_request()).outcome is not Outcome.PLACED


def test_a_confirmed_claim_that_the_host_no_longer_lists_is_released():
    world = World(hosts=1)
    host = world.hosts['cmp-1']
    chosen = place_one(world)
    assert host.confirm(chosen.claim_id) == ['ok']
    host.report()
    world.turn()
    assert world.store.claims.load_claim(chosen.claim_id).state == 'released'


def test_a_reserved_claim_is_not_freed_by_absence():
    world = World(hosts=1)
    chosen = place_one(world)
    world.hosts['cmp-1'].report()
    world.turn()
    assert world.store.claims.load_claim(chosen.claim_id).state == 'reserved'


def test_no_opinion_frees_nothing():
    world = World(hosts=1)
    host = world.hosts['cmp-1']
    chosen = place_one(world)
    host.confirm(chosen.claim_id)
    host.report(running=None, pending=None)
    world.turn()
    assert world.store.claims.load_claim(chosen.claim_id).state == 'confirmed'


def test_a_guest_without_a_claim_is_adopted_and_takes_its_room():
    world = World(hosts=1)
    host = world.hosts['cmp-1']
    consumer = new_uuid()
    host.running[consumer] = Running(consumer=consumer, resources={'VCPU': 2, 'MEMORY_MB': 30_000})
    host.report()
    world.turn()
    (claim,) = world.store.claims.list_claims()
    assert (claim.consumer, claim.state, claim.adopted) == (consumer, 'confirmed', True)
    assert world.recorder.counts['gantt_guests_adopted_total'] == 1
    assert world.select(a_request(ram=4096)).outcome is Outcome.NO_VALID_HOST


def test_foreign_use_takes_room():
    world = World(hosts=1)
    world.hosts['cmp-1'].report(foreign={'MEMORY_MB': 30_000})
    world.turn()
    assert world.select(a_request(ram=4096)).outcome is Outcome.NO_VALID_HOST


def test_a_shrunken_host_takes_nothing_new_and_loses_nothing():
    world = World(hosts=1)
    host = world.hosts['cmp-1']
    chosen = place_one(world, ram=20_000)
    host.confirm(chosen.claim_id)
    host.running[chosen.consumer] = Running(consumer=chosen.consumer, claim_id=chosen.claim_id)
    small = {
        'VCPU': Inventory(total=8),
        'MEMORY_MB': Inventory(total=8000),
        'DISK_GB': Inventory(total=500),
    }
    host.report(inventories=small)
    world.turn()
    assert world.store.claims.load_claim(chosen.claim_id).state == 'confirmed'
    assert world.select(a_request(ram=512)).outcome is Outcome.NO_VALID_HOST
    host.report()
    world.turn()
    assert world.select(a_request(ram=512)).outcome is Outcome.PLACED


def test_a_repeated_report_changes_nothing():
    world = World(hosts=1)
    host = world.hosts['cmp-1']
    before = world.store.feed.load_everything().hosts[0].row
    late = HostReport(
        name='cmp-1',
        epoch=host.epoch,
        sequence=host.sequence,
        full=True,
        running=[],
        pending=[],
        inventories={'VCPU': Inventory(total=1)},
    )
    world.scheduler.report(late)
    world.turn()
    assert world.store.feed.load_everything().hosts[0].row == before
    assert world.recorder.counts['gantt_reports_total'] >= 2


def test_a_fenced_host_is_told_that_its_epoch_is_gone():
    world = World(hosts=1)
    host = world.hosts['cmp-1']
    old = host.epoch
    chosen = place_one(world)
    host.register()
    assert host.epoch > old
    words = msgspec.structs.replace(host.words(chosen.claim_id), epoch=old)
    assert [f.outcome for f in world.scheduler.confirm(words)] == ['gone']
    assert host.confirm(chosen.claim_id) == ['ok']


def test_a_report_of_an_unknown_host_is_refused():
    world = World(hosts=1)
    world.scheduler.report(
        HostReport(
            name='nobody',
            epoch=1,
            sequence=1,
            full=True,
            running=None,
            pending=None,
            inventories={},
        )
    )
    world.turn()
    assert len(world.store.feed.load_everything().hosts) == 1


@pytest.mark.parametrize(
    ('changed', 'field'),
    [
        ({'inventories': {'VCPU': Inventory(total=-1)}}, 'stats.inventories.VCPU.total'),
        (
            {'inventories': {'VCPU': Inventory(total=4, allocation_ratio=float('inf'))}},
            'stats.inventories.VCPU.allocation_ratio',
        ),
        ({'inventories': {'WHATEVER': Inventory(total=4)}}, 'stats.inventories.WHATEVER'),
        ({'running': None}, 'stats.pending'),
        ({'location': '...'}, 'stats.location'),
        ({'location': 'hall..rack'}, 'stats.location'),
        ({'devices': [DevicePool(count=1, free=2)]}, 'stats.devices[0].free'),
        ({'numa': [NumaCell(id=0, cpus=[1]), NumaCell(id=0)]}, 'stats.numa[1].id'),
        ({'numa': [NumaCell(id=0, cpus=[1]), NumaCell(id=1, cpus=[1])]}, 'stats.numa[1].cpus'),
        ({'numa': [NumaCell(id=0, used_pinned_cpus=[4])]}, 'stats.numa[0].used_pinned_cpus'),
        (
            {'numa': [NumaCell(id=0, pages=[NumaPages(size_kb=0, total=1)])]},
            'stats.numa[0].pages[0].size_kb',
        ),
        ({'foreign': {'VCPU': 1}, 'used': {'VCPU': 1}}, 'stats.used'),
        ({'base': 1}, 'stats.base'),
    ],
)
def test_a_senseless_report_is_refused_naming_the_field(changed, field):
    world = World(hosts=1)
    before = world.store.feed.load_everything().hosts[0].row
    with pytest.raises(exceptions.InvalidMessage) as refused:
        world.hosts['cmp-1'].report(**changed)
    assert refused.value.kwargs['field'] == field
    world.turn()
    assert world.store.feed.load_everything().hosts[0].row == before


def test_a_declared_class_can_be_reported_and_asked_for():
    world = World(hosts=2)
    world.store.vocabulary.declare_class('CUSTOM_LICENSE')
    world.turn(2)
    inventories = {'VCPU': Inventory(total=8), 'CUSTOM_LICENSE': Inventory(total=2)}
    world.hosts['cmp-2'].report(inventories=inventories)
    world.turn()
    request = a_request(2)
    spec = msgspec.structs.replace(request.spec, resources={'CUSTOM_LICENSE': 1})
    answer = world.select(msgspec.structs.replace(request, spec=spec))
    assert [s[0].host for s in answer.selections] == ['cmp-2', 'cmp-2']


def test_a_report_that_cannot_be_stored_costs_the_others_nothing():
    world = World(hosts=2)
    real = world.store.reports.apply_reports

    def apply(batch):
        if any(report.name == 'cmp-1' for report in batch):
            raise ValueError('a defect')
        return real(batch)

    world.store.reports.apply_reports = apply
    world.hosts['cmp-1'].report(foreign={'VCPU': 1})
    world.hosts['cmp-2'].report(foreign={'VCPU': 2})
    world.turn()
    rows = {c.row.name: c.row for c in world.store.feed.load_everything().hosts}
    assert rows['cmp-2'].foreign == {'VCPU': 2}
    assert rows['cmp-1'].foreign == {}


def test_an_unknown_class_of_a_guest_is_refused_and_not_declared():
    world = World(hosts=1)
    guest = Running(consumer=new_uuid(), resources={'FOO': 1})
    with pytest.raises(exceptions.UnknownResourceClass, match='FOO'):
        world.hosts['cmp-1'].report(running=[guest])
    assert 'FOO' not in world.store.vocabulary.declared_classes()
