# SPDX-License-Identifier: Apache-2.0
"""Members that are alike, placed by columns, are placed as one after another: bit for bit."""

import random
from typing import Any

import msgspec
import numpy as np
import pytest

from gantt import plugin_loader
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.place import LastRequest, place, undo_decision
from gantt.core.placement.run import Run
from gantt.core.records import decision_codec
from gantt.core.records.decision import Decision
from gantt.core.resources.provider import SharedPool
from gantt.core.table.columns import COLUMNS
from gantt.core.table.host_table import HostTable
from tests.core.builders import NOW, a_change, a_host, an_id
from tests.properties.clouds import a_cloud, a_random_request
from tests.properties.clouds import a_table as of_cloud
from tests.thorough import examples

SETTINGS: list[dict[str, Any]] = [
    {},
    {'subset_size': 3},
    {'shuffle_best': True},
    {'normalization': 'fraction'},
    {'normalization': 'rank'},
    {'normalization': 'absolute'},
    {'options': {'ram_weight_multiplier': -1.5, 'num_instances_weight_multiplier': -0.7}},
    {'options': {'ram_weight_physical': True, 'io_ops_weight_multiplier': -3.0}},
]
EVERY = [
    plugin_loader.load_pipeline(filters, **settings)
    for filters in (
        plugin_loader.DEFAULT_FILTERS,
        [*plugin_loader.DEFAULT_FILTERS, 'NumInstancesFilter', 'IoOpsFilter'],
    )
    for settings in SETTINGS
]


@pytest.fixture
def one_after_another(monkeypatch):
    """Turns the short ways off: each member is looked at as if it were the first."""

    def switch(is_on: bool) -> None:
        monkeypatch.undo()
        if is_on:
            monkeypatch.setattr(Run, 'go_on', lambda run, members: 0)
            monkeypatch.setattr(Run, 'may_go_on', lambda run, request: False)
            monkeypatch.setattr(FilterRun, 'reevaluate', lambda run, consumer: None)

    return switch


def a_plain_cloud(rng: random.Random, sizes: tuple[int, ...] = (1, 2, 7, 40, 200)) -> HostTable:
    """Hosts of few sizes that differ in little, so that ends of scales are met and left."""
    rows = []
    for number in range(rng.choice(sizes)):
        size = rng.choice((1, 2, 4))
        inventories = {
            'VCPU': Inventory(total=16 * size, allocation_ratio=rng.choice((1.0, 4.0))),
            'MEMORY_MB': Inventory(total=32768 * size, reserved=512),
            'DISK_GB': Inventory(total=500 * size, max_unit=rng.choice((10, 500))),
        }
        used = {
            'VCPU': rng.randrange(0, 12),
            'MEMORY_MB': 512 * rng.randrange(0, 40),
            'DISK_GB': rng.randrange(0, 90),
        }
        host = a_host(number + 1, used=used, cell=an_id(number % 2, 9), reported_at=NOW - number)
        facts = msgspec.structs.replace(host.facts, inventories=inventories)
        rows.append(msgspec.structs.replace(host, facts=facts))
    return HostTable.build([a_change(row) for row in rows], [], {}, (), NOW)


def a_plain_request(rng: random.Random, number: int, spec: RequestSpec) -> SelectDestinations:
    count = rng.choice((1, 1, 2, 5, 33, 70))
    return SelectDestinations(
        request_id=an_id(number, 5),
        spec=spec,
        consumers=[an_id(number * 1000 + i, 6) for i in range(count)],
        alternates=rng.randrange(0, 4),
        dry_run=rng.random() < 0.1,
    )


def a_plain_spec(rng: random.Random) -> RequestSpec:
    amounts = {
        'VCPU': rng.randrange(1, 4),
        'MEMORY_MB': 512 * rng.randrange(1, 6),
        'DISK_GB': rng.randrange(1, 12),
    }
    names = rng.sample(sorted(amounts), rng.randrange(1, 4))
    return RequestSpec(resources={name: amounts[name] for name in names})


def state_of(table: HostTable) -> dict[str, Any]:
    state = {name: np.array(getattr(table, name)).tolist() for name in sorted(COLUMNS)}
    state['on'] = {row.id: dict(table.placed.on_provider(row.id)) for row in table.hosts}
    state['where'] = {
        placed.consumer: sorted(table.placed.providers_of(placed.consumer))
        for placed in table.placed
    }
    pools = table.pools
    state['pools'] = {
        pid: {name: pools.free(pid, name) for name in pool.inventories}
        for pid, pool in pools.by_id.items()
    }
    state['pending'] = {row.id: table.pending_claims_of(row.id) for row in table.hosts}
    return state


def said(decision: Decision) -> bytes:
    """All that a decision says, members one by one."""
    plain = msgspec.structs.replace(decision, members=list(decision.members), table_seq=0)
    return msgspec.msgpack.encode(plain)


def both(
    rng: random.Random,
    table: HostTable,
    requests: list[SelectDestinations],
    pipelines: tuple[Any, Any],
    switch: Any,
) -> int:
    """Place by columns and one after another; how many requests were placed."""
    seeds = [rng.randrange(2**31) for _ in requests]
    spread = rng.choice((1, 1, 1, 4))
    plain, seen, placed = table.copy(), LastRequest(), 0
    decided = []
    for request, seed in zip(requests, seeds, strict=True):
        ids: dict[str, Any] = {'seed': seed, 'decision_id': 'one', 'spread': spread}
        switch(False)
        by_columns = place(table, request, pipelines[0], seen=seen, **ids)
        record = decision_codec.pack(by_columns, request)
        switch(True)
        slowly = place(plain, request, pipelines[1], **ids)
        switch(False)
        assert said(by_columns) == said(slowly)
        assert state_of(table) == state_of(plain)
        stored = decision_codec.unpack(record).decision
        assert list(stored.members) == list(slowly.members)
        assert decision_codec.pack(stored, request) == record or not len(stored.members)
        placed += slowly.is_placed
        decided.append((by_columns, request))
    for decision, request in reversed(decided):
        undo_decision(table, decision, request)
        undo_decision(plain, decision, request)
    assert state_of(table) == state_of(plain)
    return placed


def check_plain(first: int, many: int, switch: Any) -> int:
    placed = 0
    for seed in range(first, first + many):
        rng = random.Random(seed)
        pipeline = EVERY[seed % len(EVERY)]
        specs = [a_plain_spec(rng) for _ in range(2)]
        requests = [a_plain_request(rng, n + 1, rng.choice(specs)) for n in range(5)]
        if not seed % 5:  # a repeat, which may find its own claims
            requests.insert(rng.randrange(1, 5), requests[0])
        try:
            placed += both(rng, a_plain_cloud(rng), requests, (pipeline, pipeline), switch)
        except AssertionError as e:
            raise AssertionError(f'seed {seed}') from e
    return placed


def a_pooled_cloud(rng: random.Random) -> HostTable:
    """Hosts of which some share pools, of a class of their own or of one that hosts have too."""
    plain, rows = a_plain_cloud(rng), []
    lacking = rng.random() < 0.5
    for row in plain.hosts:
        has = dict(row.facts.inventories)
        if lacking and rng.random() < 0.8:
            del has['DISK_GB']
        facts = msgspec.structs.replace(row.facts, inventories=has)
        racks = [an_id(rack, 8) for rack in range(3) if rng.random() < 0.5]
        rows.append(msgspec.structs.replace(row, facts=facts, aggregates=racks))
    table = HostTable.build([a_change(row) for row in rows], [], {}, (), NOW)
    for number in range(rng.choice((1, 2, 4))):
        has = {
            name: Inventory(total=rng.choice((3, 40, 2000)), max_unit=rng.choice((None, None, 4)))
            for name in rng.choice((['CUSTOM_P'], ['DISK_GB'], ['CUSTOM_P', 'DISK_GB']))
        }
        table.set_pool(
            SharedPool(
                id=1000 + number,
                uuid=an_id(number, 4),
                name=f'pool-{number}',
                version=1,
                inventories=has,
                aggregates=rng.sample([an_id(rack, 8) for rack in range(3)], rng.choice((1, 2))),
            )
        )
    return table


def a_pooled_spec(rng: random.Random) -> RequestSpec:
    spec = a_plain_spec(rng)
    more = {'CUSTOM_P': rng.randrange(1, 4)} if rng.random() < 0.6 else {'DISK_GB': 1}
    return msgspec.structs.replace(spec, resources=spec.resources | more)


def check_pooled(first: int, many: int, switch: Any) -> int:
    placed = 0
    for seed in range(first, first + many):
        rng = random.Random(seed)
        pipeline = EVERY[seed % len(EVERY)]
        table, specs = a_pooled_cloud(rng), [a_pooled_spec(rng) for _ in range(2)]
        requests = [a_plain_request(rng, n + 1, rng.choice(specs)) for n in range(5)]
        are_known = all(table.class_code(n) is not None for spec in specs for n in spec.resources)
        if not seed % 5:
            requests.insert(rng.randrange(1, 5), requests[0])
        try:
            placed += both(rng, table, requests, (pipeline, pipeline), switch) if are_known else 0
        except AssertionError as e:
            raise AssertionError(f'seed {seed}') from e
    return placed


def check_any(first: int, many: int, switch: Any) -> int:
    placed = 0
    for seed in range(first, first + many):
        rng = random.Random(seed)
        table = of_cloud(a_cloud(rng))
        request = a_random_request(rng, 0)
        requests = [
            msgspec.structs.replace(request, request_id=an_id(number, 7))
            if rng.random() < 0.5
            else a_random_request(rng, number)
            for number in range(4)
        ]
        pipeline = EVERY[seed % len(EVERY)]
        try:
            placed += both(rng, table, requests, (pipeline, pipeline), switch)
        except AssertionError as e:
            raise AssertionError(f'seed {seed}') from e
    return placed


def test_columns_are_one_after_another(one_after_another):
    seeds = examples(150)
    assert check_plain(0, seeds, one_after_another) > 2 * seeds
    assert check_any(0, seeds, one_after_another) > 2 * seeds / 3
    assert check_pooled(0, seeds, one_after_another) > seeds


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_columns_are_one_after_another_for_long(one_after_another):
    check_plain(1000, 5000, one_after_another)
    check_any(1000, 5000, one_after_another)
    check_pooled(1000, 5000, one_after_another)
