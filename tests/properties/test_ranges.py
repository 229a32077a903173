# SPDX-License-Identifier: Apache-2.0
"""Amounts that are ranges rule nobody out, and each member gets what counting says that it gets."""

import random
from collections.abc import Mapping

import msgspec
import pytest

from gantt import plugin_loader
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.placement.place import place, undo_decision
from gantt.core.records.decision import Decision, Outcome
from gantt.core.table.host_table import HostTable
from tests.properties import clouds

PIPELINE = plugin_loader.load_pipeline()


def placed(table: HostTable, request: SelectDestinations) -> Decision:
    return place(table, request, PIPELINE, seed=7, decision_id='d')


def with_ranges(rng: random.Random, request: SelectDestinations) -> SelectDestinations:
    spec = request.spec
    most = {
        name: amount + rng.randint(0, 9)
        for name, amount in spec.resources.items()
        if rng.random() < 0.8
    }
    return msgspec.structs.replace(request, spec=msgspec.structs.replace(spec, max_resources=most))


def counted(
    free: dict[str, int], spec: RequestSpec, behind: int, inventories: Mapping
) -> dict[str, int]:
    """What a member gets, by trying: the reference.

    :param free: of the host, by class, before this member
    """
    least = spec.resources
    others = 0
    while others < behind and all(free[n] >= least[n] * (others + 2) for n in least):
        others += 1
    got = {}
    for name, amount in least.items():
        of, got[name] = inventories[name], amount
        for more in range(amount, spec.max_resources.get(name, amount) + 1):
            is_piece = more % of.step_size == 0 and of.min_unit <= more <= of.largest
            if is_piece and free[name] - more >= others * amount:
                got[name] = more
    return got


def a_request(rng: random.Random) -> SelectDestinations:
    """Mostly one whose members are free to go anywhere."""
    request = clouds.a_random_request(rng, 1)
    if rng.random() < 0.7:
        spec = msgspec.structs.replace(request.spec, group=None, destination=None)
        request = msgspec.structs.replace(request, spec=spec)
    return request


def left(table: HostTable) -> dict[int, dict[str, int]]:
    """What is free by the columns: host -> class -> amount."""
    return {
        row.id: {name: table.free.item(table.class_code(name), i) for name in row.facts.inventories}
        for i, row in enumerate(table.hosts)
    }


@pytest.mark.parametrize('seed', range(300))
def test_ranges_are_what_counting_says(seed):
    rng = random.Random(seed)
    cloud, plain = clouds.a_cloud(rng), a_request(rng)
    table, ranged = clouds.a_table(cloud), with_ranges(rng, plain)
    before, free = left(table), left(table)
    with_least, decision = placed(clouds.a_table(cloud), plain), placed(table, ranged)
    if plain.spec.group is None:
        assert decision.outcome is with_least.outcome
    if decision.outcome is Outcome.PLACED:
        assert decision.members[0].selection.host == with_least.members[0].selection.host
        members, inventories = decision.members, {row.id: row.facts for row in table.hosts}
        for number, member in enumerate(members):
            host = member.selection.provider_id
            behind, has = len(members) - number - 1, inventories[host].inventories
            expected = counted(free[host], ranged.spec, behind, has)
            assert member.selection.resources == expected
            for name, amount in expected.items():
                free[host][name] -= amount
        assert left(table) == free
        undo_decision(table, decision, ranged)
    assert left(table) == before
