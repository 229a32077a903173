# SPDX-License-Identifier: Apache-2.0
"""Whatever is written of a guest that moves, nobody inherits what is not there."""

import random

import msgspec
import pytest

from gantt.core.claims import inheritance
from gantt.core.claims.claim import Claim
from tests.core.builders import an_id

POOLS, CLASSES = (101, 102), ('DISK_GB', 'CUSTOM_A')


def a_claim(rng, number, allocations=None):
    shares = {pid: {n: rng.randint(0, 6) for n in CLASSES} for pid in POOLS}
    return Claim(
        id=an_id(number, 6),
        request_id=None,
        consumer=an_id(number, 4),
        provider_id=number,
        allocations={number: {'VCPU': 1}, **(shares if allocations is None else allocations)},
        created_at=float(number),
    )


def need(claim):
    needed = inheritance.amounts_with_inherited(claim)
    return {(p, n): a for p, of in needed.items() if p in POOLS for n, a in of.items() if a}


def total(claims):
    totals: dict[tuple[int, str], int] = {}
    for pid, amounts in inheritance.held_outside_host(claims).items():
        for name, amount in amounts.items():
            totals[pid, name] = totals.get((pid, name), 0) + amount
    return totals


def is_there(claim, claims):
    others = inheritance.held_outside_host(other for other in claims if other.id != claim.id)
    return all(
        amount <= others.get(pid, {}).get(name, 0)
        for pid, amounts in claim.inherits.items()
        for name, amount in amounts.items()
    )


@pytest.mark.parametrize('seed', range(300))
def test_nobody_inherits_what_is_not_there(seed):
    rng = random.Random(seed)
    claims = [a_claim(rng, 1)]
    for number in range(2, rng.randint(3, 5)):
        claims.append(
            inheritance.with_inherited(a_claim(rng, number), inheritance.held_outside_host(claims))
        )
    assert all(is_there(claim, claims) for claim in claims)
    reported = {claim.id for claim in claims if rng.random() < 0.4}
    after = []
    for claim in claims:
        if claim.id in reported:
            if rng.random() < 0.3:
                continue  # it ends
            fresh = a_claim(rng, claim.provider_id).allocations
            claim = msgspec.structs.replace(claim, allocations=fresh)
        after.append(claim)
    pairs = dict(
        (was.id, (was, now))
        for was, now in inheritance.inheritance_after_write(claims, after, reported)
    )
    settled = [pairs[claim.id][1] if claim.id in pairs else claim for claim in after]
    assert all(is_there(claim, settled) for claim in settled)
    for was, now in zip(after, settled, strict=True):
        if was.id in reported:
            assert now.allocations == was.allocations, 'its writer said all that it takes'
        else:
            assert need(now) == need(was)
    before, written, now = total(claims), total(after), total(settled)
    for key, amount in now.items():
        assert amount <= max(before.get(key, 0), written.get(key, 0))
