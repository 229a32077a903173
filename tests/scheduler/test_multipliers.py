# SPDX-License-Identifier: Apache-2.0
"""Faults of weighers are told, once: multipliers in vain, and wrong declarations."""

from gantt import plugin_loader
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement.pipeline import Pipeline
from gantt.core.weighers.base import ColumnWeigher
from tests.world import World, a_request

AMOUNTS = ('VCPU', 'MEMORY_MB', 'DISK_GB')


def test_a_multiplier_that_is_no_number_is_told_once_by_each_worker(caplog):
    world = World(hosts=1)

    def told():
        messages = [r.getMessage() for r in caplog.records if 'weight_multiplier' in r.getMessage()]
        caplog.clear()
        return messages

    world.store.declarations.save_aggregate(
        'fast', {'ram_weight_multiplier': 'much', 'ssd': 'yes'}, ['cmp-1']
    )
    world.turn(2.0)
    assert told() == [
        'Aggregate sets a multiplier without effect: problem=aggregate fast: '
        "ram_weight_multiplier is 'much', expected a number from -1e12 to 1e12; "
        'its hosts go by the option'
    ]
    world.store.declarations.save_aggregate('fast', {'ssd': 'no'}, None)
    world.turn(2.0)
    assert told() == []
    world.store.declarations.save_aggregate('fast', {'ram_weight_multiplier': '2'}, None)
    world.turn(2.0)
    world.store.declarations.save_aggregate('fast', {'ram_weight_multiplier': 'more'}, None)
    world.turn(2.0)
    assert len(told()) == 1


def test_a_wrong_declaration_of_a_weigher_is_told_once(caplog):
    class Liar(ColumnWeigher):
        columns = ('instances',)

        def step(self, hosts, spec):
            return 2

    world = World(hosts=3)
    for host in world.hosts.values():
        host.report(inventories={name: Inventory(total=10**6) for name in AMOUNTS})
    world.turn()
    world.scheduler.placing.use_pipeline(
        Pipeline(plugin_loader.load(['ResourcesFilter']), [Liar()])
    )
    for _ in range(120):  # one in sixteen is compared
        world.select(a_request(2, ram=1))
        if world.recorder.counts['gantt_wrong_declarations_total']:
            break
    for _ in range(20):
        world.select(a_request(2, ram=1))
    assert world.recorder.counts['gantt_wrong_declarations_total'] == 1
    logged = [r for r in caplog.records if 'plugin=Liar' in r.getMessage()]
    assert [r.levelname for r in logged] == ['ERROR']
