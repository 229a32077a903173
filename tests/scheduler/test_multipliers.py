# SPDX-License-Identifier: Apache-2.0
"""A multiplier that an aggregate sets in vain is told, once."""

from tests.world import World


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
