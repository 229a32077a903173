# SPDX-License-Identifier: Apache-2.0
"""One zone with none below it, against three levels with all hosts in the lowest: same choices."""

import random

import msgspec

from gantt.core.messages.request import GroupRef, Policy
from gantt.core.records.decision import Outcome
from tests.builders import uuid_of
from tests.world import a_request
from tests.zones.tree import AS_BETWEEN_ZONES

HOSTS, REQUESTS = 12, 60


def host_below(zones, chosen):
    """The host of a selection, unsealed zone by zone."""
    sealed_host = chosen.sealed_host
    for zone in zones:
        unsealed = zone.unseal(sealed_host)
        if not unsealed['child']:
            return unsealed['host']
        sealed_host = unsealed['sealed_host']
    raise AssertionError('it is in none of these zones')


def test_depth_changes_no_choice(zone):
    dice = random.Random(16)
    names = ('top', 'middle', 'leaf', 'flat')
    top, middle, leaf, flat = (zone(name, pipeline=AS_BETWEEN_ZONES) for name in names)
    for n in range(HOSTS):
        # No two are alike: where scores are equal any of them is right.
        vcpu = 5 + 7 * n
        used = {'MEMORY_MB': int(vcpu * 4096 * dice.random() / 2)}
        traits = [f'CUSTOM_{suffix}' for suffix in 'XY' if dice.random() < 0.5]
        for bottom in (leaf, flat):
            bottom.host(f'host-{n}', vcpu, traits=traits, foreign=used)
    middle.above(leaf)
    top.above(middle)
    outcomes = []
    for n in range(REQUESTS):
        group = None
        if n % 5 == 4:
            policy = dice.choice((Policy.AFFINITY, Policy.ANTI_AFFINITY))
            group = GroupRef(uuid=uuid_of(f'group {n}'), policy=policy)
        request = a_request(
            2 if group else 1,
            vcpu=dice.choice([1, 3, 7, 20, 31]),
            ram=dice.choice([512, 4096]),
            group=group,
            required_traits=[f'CUSTOM_{dice.choice("XY")}'] if dice.random() < 0.3 else [],
            alternates=0,
        )
        deep, plain = top.select(request), flat.select(request)
        assert deep.outcome is plain.outcome, (n, deep.reason, plain.reason)
        outcomes.append(deep.outcome)
        if deep.outcome is not Outcome.PLACED:
            continue
        theirs = [chosen.host for chosen, *_ in plain.selections]
        ours = [host_below((middle, leaf), chosen) for chosen, *_ in deep.selections]
        assert ours == theirs, (n, msgspec.to_builtins(request.spec))
        assert [x.consumer for x, *_ in deep.selections] == [
            x.consumer for x, *_ in plain.selections
        ]
    assert {*outcomes} == {Outcome.PLACED, Outcome.NO_VALID_HOST}, 'the test is to fill all hosts'
    assert (top.live(), middle.live(), leaf.live()) == (0, 0, flat.live())
