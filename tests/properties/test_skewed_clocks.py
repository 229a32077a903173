# SPDX-License-Identifier: Apache-2.0
"""P8: clocks that are hours apart, and step, change nothing: time never decides safety.

To replay a failing seed: ``pytest tests/properties/test_skewed_clocks.py -k 'kept[SEED]'``.
"""

import pytest

from tests.properties.skewed import SkewedWorld

STEPS = 60


@pytest.mark.parametrize('seed', range(40))
def test_every_promise_is_kept(seed):
    world = SkewedWorld(seed)
    for _ in range(STEPS):
        world.rng.choice(
            (world.place, world.place, world.build, world.build, world.build, world.delete,
             world.step, world.restart, world.take_over,
             lambda: world.pass_time(world.rng.choice((1.0, 5.0, 30.0))))
        )()  # fmt: skip
        world.check()
    world.check_end()
    starts = sum(len(house.machine.starts) for house in world.houses.values())
    assert starts, 'nothing was ever built'
    assert 'expired' in world.seen.values() or 'confirmed' in world.seen.values()
