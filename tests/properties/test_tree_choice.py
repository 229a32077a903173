# SPDX-License-Identifier: Apache-2.0
"""What the pipeline finds of trees is what the plain product and the candidates' search find."""

import itertools
import random
import uuid
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt import plugin_loader
from gantt.core.candidates.find import find_candidates
from gantt.core.candidates.query import SHARES_TRAIT, CandidatesQuery, GroupQuery
from gantt.core.candidates.table import ProviderEntry, ProviderTable
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.messages.tree_request import (
    DeviceAmount,
    GroupPolicy,
    ResourceGroup,
    TreeRequest,
)
from gantt.core.placement import capacity
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.place import place, undo_decision
from gantt.core.placement.tree_choice import TreeChoice
from gantt.core.records.decision import Decision, Outcome
from gantt.core.resources.host import HostChange, HostFacts, HostRow
from gantt.core.resources.provider import SharedPool
from gantt.core.table.host_table import HostTable
from gantt.core.table.nested import as_inventory
from tests.properties import plain_candidates as plain
from tests.thorough import examples

seeds = st.integers(0, 2**32)
CLASSES = ('VCPU', 'DISK_GB', 'VGPU', 'SRIOV_NET_VF', 'CUSTOM_A')
TRAITS = ('HW_CPU_X86_AVX', 'STORAGE_DISK_SSD', 'CUSTOM_GOLD')
PIPELINE = plugin_loader.load_pipeline()


def an_id(pick: random.Random) -> str:
    return str(uuid.UUID(int=pick.getrandbits(128), version=4))


class World:
    """Hosts with what is nested below them, and pools, as a table and as plain entries."""

    def __init__(self, seed: int) -> None:
        pick = self.random = random.Random(seed)
        self.rooms = [an_id(pick) for _ in range(2)]
        self.slots = [an_id(pick) for _ in range(2)]
        self.table = HostTable.build([], [], {}, CLASSES, now=100.0)
        self.hosts: list[int] = []
        self.pools: dict[int, SharedPool] = {}
        number = itertools.count(1)
        for _ in range(pick.randint(1, 4)):
            self._add_host(next(number))
        for host in self.hosts:
            below = [host]
            for _ in range(pick.choice([0, 1, 3, 4])):
                pid = next(number)
                self._add(pid, pick.choice(self.slots), root=host, parent=pick.choice(below))
                below.append(pid)
        for _ in range(pick.choice([0, 0, 1, 2])):
            self._add(next(number), pick.choice(self.rooms))

    def _inventories(self, most: int) -> dict[str, Inventory]:
        pick = self.random
        return {
            name: Inventory(
                total=pick.randint(1, 6),
                max_unit=pick.choice([None, None, None, 2]),
                min_unit=1,
                step_size=pick.choice([1, 1, 1, 2]),
            )
            for name in pick.sample(CLASSES, pick.randint(1, most))
        }

    def _add_host(self, pid: int) -> None:
        pick = self.random
        facts = HostFacts(
            inventories=self._inventories(4),
            traits=sorted(pick.sample(TRAITS, pick.choice([0, 1]))),
        )
        row = HostRow(
            id=pid,
            uuid=an_id(pick),
            name=f'cmp-{pid}',
            version=1,
            facts=facts,
            reported_at=99.0,
            aggregates=sorted(pick.sample(self.rooms, pick.choice([0, 1, 2]))),
        )
        self.table.apply(HostChange(provider_id=pid, row=row))
        self.hosts.append(pid)

    def _add(self, pid: int, aggregate: str, root: int = 0, parent: int = 0) -> None:
        pick = self.random
        traits = pick.sample(TRAITS, pick.choice([0, 0, 1, 2]))
        inventories = self._inventories(2)
        self.pools[pid] = SharedPool(
            id=pid,
            uuid=an_id(pick),
            name=f'provider-{pid}',
            version=1,
            inventories=inventories,
            used={
                n: 1
                for n, inventory in inventories.items()
                if pick.random() < 0.3 and inventory.step_size < 2
            },
            aggregates=[aggregate],
            root=root,
            parent=parent,
            traits=sorted(traits if root else {*traits, SHARES_TRAIT}),
        )
        self.table.set_pool(self.pools[pid])

    def entries(self) -> dict[int, ProviderEntry]:
        """All of it as it is now, for the plain product and for the search."""
        entries, table = {}, self.table
        for row, host in enumerate(table.hosts):
            as_pool = SharedPool(id=host.id, inventories=host.facts.inventories)
            inventories = {}
            for name in host.facts.inventories:
                code = table.class_code(name)
                taken = int(table.cap.item(code, row) - table.free.item(code, row))
                inventories[name] = as_inventory(as_pool, name, taken)
            entries[host.id] = ProviderEntry(
                id=host.id,
                uuid=host.uuid,
                root_id=host.id,
                traits=tuple(host.facts.traits),
                aggregates=tuple(host.aggregates),
                inventories=inventories,
            )
        for pid, pool in self.pools.items():
            entries[pid] = ProviderEntry(
                id=pid,
                uuid=pool.uuid,
                root_id=pool.root or pid,
                parent_id=pool.parent or None,
                traits=tuple(pool.traits),
                aggregates=tuple(pool.aggregates),
                inventories={
                    name: as_inventory(pool, name, table.pools.picked_amount(pid, name))
                    for name in pool.inventories
                },
            )
        return entries

    def request(self) -> SelectDestinations:
        pick = self.random
        own = {
            name: pick.choice([1, 1, 2]) for name in pick.sample(CLASSES, pick.choice([1, 1, 2]))
        }
        suffixes = [f'g{n}' for n in range(pick.choice([0, 1, 2, 2, 3]))]
        groups = {suffix: self._group() for suffix in suffixes}
        tree = None
        if groups:
            tree = TreeRequest(
                groups=groups,
                group_policy=pick.choice(list(GroupPolicy)),
                same_subtree=[pick.sample(suffixes, 2)]
                if len(groups) > 1 and pick.random() < 0.3
                else [],
                root_required=pick.sample(TRAITS, 1) if pick.random() < 0.1 else [],
            )
        return SelectDestinations(
            request_id=an_id(pick),
            spec=RequestSpec(resources=own, tree=tree),
            consumers=[an_id(pick) for _ in range(pick.choice([1, 2]))],
            alternates=pick.choice([0, 1]),
        )

    def _group(self) -> ResourceGroup:
        pick = self.random
        return ResourceGroup(
            resources={
                n: pick.choice([1, 1, 2, 3]) for n in pick.sample(CLASSES, pick.choice([1, 1, 2]))
            },
            required_traits=pick.sample(TRAITS, 1) if pick.random() < 0.2 else [],
            forbidden_traits=[],
            any_traits=[pick.sample(TRAITS, 2)] if pick.random() < 0.1 else [],
            member_of=[[pick.choice(self.slots + self.rooms)]] if pick.random() < 0.1 else [],
            in_tree=self._uuid() if pick.random() < 0.1 else None,
        )

    def _uuid(self) -> str:
        return self.random.choice(list(self.entries().values())).uuid


def as_query(spec: RequestSpec) -> CandidatesQuery:
    """The same as the HTTP interface would be asked it, written down by hand."""
    tree = spec.tree or TreeRequest(root_required=['x'])
    groups = [GroupQuery(resources=spec.resources)]
    for suffix, group in tree.groups.items():
        groups.append(
            GroupQuery(
                suffix=suffix,
                resources=group.resources,
                required=(
                    *(frozenset({name}) for name in group.required_traits),
                    *map(frozenset, group.any_traits),
                ),
                forbidden=frozenset(group.forbidden_traits),
                member_of=tuple(map(frozenset, group.member_of)),
                in_tree=group.in_tree,
            )
        )
    return CandidatesQuery(
        groups=tuple(groups),
        isolate=tree.group_policy is GroupPolicy.ISOLATE,
        same_subtree=tuple(map(frozenset, tree.same_subtree)),
        root_required=frozenset(tree.root_required if spec.tree else ()),
    )


def feasible(table: HostTable, spec: RequestSpec) -> set[int]:
    """Ids of the hosts that filters let pass, and on which the search finds a choice."""
    run = FilterRun(table, spec, PIPELINE)
    run.evaluate('')
    trees = TreeChoice.of(table, run)
    rows = [n for n in range(len(table)) if run.alive[n]]
    return {table.hosts[row].id for row in rows if trees is None or trees.solve(row) is not None}


def taken_by(decision: Decision) -> dict[tuple[int, str], int]:
    """(provider, class) -> amount, of all members of a decision."""
    taken: dict[tuple[int, str], int] = {}
    for member in decision.members:
        selection = member.selection
        if selection is None:
            continue
        parts = [
            (allocation.provider_id, allocation.resources) for allocation in selection.allocations
        ]
        for pid, amounts in parts or [(selection.provider_id, selection.resources)]:
            for name, amount in amounts.items():
                taken[pid, name] = taken.get((pid, name), 0) + amount
    return taken


@settings(max_examples=examples(300), deadline=None)
@given(seeds)
def test_hosts_are_those_of_the_plain_product_and_of_the_candidates(seed):
    world = World(seed)
    for _ in range(4):
        request = world.request()
        entries, query = world.entries(), as_query(request.spec)
        expected = plain.candidates(plain.PlainProviders(entries), query)
        roots = {pid for pids in expected.values() for pid in pids} & set(world.hosts)
        assert feasible(world.table, request.spec) == roots
        table = ProviderTable()
        table.apply(entries.values())
        if not any(pool.root not in world.hosts for pool in world.pools.values()):
            candidates = find_candidates(table, query)
            assert {table.entry(slot).id for slot in candidates.roots(table)} == roots
        decision = place(world.table, request, PIPELINE, seed=seed, decision_id='d')
        assert (decision.outcome is Outcome.PLACED) <= bool(roots)
        if len(request.consumers) == 1:
            assert (decision.outcome is Outcome.PLACED) == bool(roots)
        after = world.entries()
        assert all(
            inventory.free >= 0 for e in after.values() for inventory in e.inventories.values()
        )
        taken = taken_by(decision)
        for pid, entry in entries.items():
            for name, inventory in entry.inventories.items():
                assert after[pid].inventories[name].free == inventory.free - taken.pop(
                    (pid, name), 0
                )
        assert not taken
        if world.random.random() < 0.5:
            undo_decision(world.table, decision, request)
            assert world.entries() == entries


@pytest.mark.parametrize('name', ['RulesFilter', 'ServerGroupAntiAffinityFilter'])
def test_hosts_without_a_tree_are_removed_whichever_filter_is_there(name):
    pipeline = plugin_loader.load_pipeline([name])
    for seed in range(40):
        world = World(seed)
        for _ in range(2):
            request = world.request()
            decision = place(world.table, request, pipeline, seed=seed, decision_id='d')
            assert decision.outcome in (Outcome.PLACED, Outcome.NO_VALID_HOST), decision.reason


@settings(max_examples=examples(150), deadline=None)
@given(seeds)
def test_devices_are_as_many_providers_as_are_asked_for(seed):
    world = World(seed)
    pick = world.random
    for _ in range(4):
        name, count = pick.choice(CLASSES[2:]), pick.randint(1, 3)
        amount, whole = pick.randint(1, 3), pick.random() < 0.4
        device = DeviceAmount(resource_class=name, count=count, amount=amount, whole=whole)
        spec = RequestSpec(resources={'VCPU': 1}, tree=TreeRequest(devices=[device]))
        entries = world.entries()
        expected = set()
        for host in world.hosts:
            offers = [e for e in entries.values() if _serves(entries[host], e)]
            gives = [e for e in offers if _gives(e, name, amount, whole)]
            if len(gives) >= count and any(_gives(e, 'VCPU', 1, False) for e in offers):
                expected.add(host)
        assert feasible(world.table, spec) == expected
        request = SelectDestinations(request_id=an_id(pick), spec=spec, consumers=[an_id(pick)])
        decision = place(world.table, request, PIPELINE, seed=seed, decision_id='d')
        assert (decision.outcome is Outcome.PLACED) == bool(expected)
        if decision.outcome is Outcome.PLACED and whole:
            after = world.entries()
            devices = [
                device for device in decision.members[0].selection.allocations if device.group
            ]
            assert len({device.provider_id for device in devices}) == count
            for device in devices:
                assert after[device.provider_id].inventories[name].free == 0
                assert entries[device.provider_id].inventories[name].used == 0


@settings(max_examples=examples(150), deadline=None)
@given(seeds, st.sampled_from(CLASSES[1:]), st.integers(1, 2))
def test_of_those_below_a_host_that_comes_first_which_others_need_the_least(seed, name, amount):
    world = World(seed)
    group = ResourceGroup(resources={name: amount})
    spec = RequestSpec(resources={'VCPU': 1}, tree=TreeRequest(groups={'g': group}))
    entries, trees = world.entries(), TreeChoice(world.table, spec)
    for row, host in enumerate(world.table.hosts):
        solution = trees.solve(row)
        near = [entry for entry in entries.values() if _serves(entries[host.id], entry)]
        gives = {entry.id for entry in near if _gives(entry, name, amount, False)}
        if solution is None or host.id in gives:
            continue
        below = {pid for pid in gives if entries[pid].root_id == host.id}
        kinds = {entry.id: _kind(entry) for entry in near}
        times: Counter[tuple[str, ...]] = Counter()
        for entry in near:
            if entry.id != host.id and name in entry.inventories:
                times[kinds[entry.id]] += entry.inventories[name].cap // amount
        costs = {
            pid: (len(kinds[pid]), -times[kinds[pid]], (inventory.free - amount) / inventory.cap)
            for pid in gives
            for inventory in [entries[pid].inventories[name]]
        }
        (taken,) = [group.provider_id for group in solution.groups if group.suffix == 'g']
        assert costs[taken] == min(costs[pid] for pid in below or gives)


def _kind(entry: ProviderEntry) -> tuple[str, ...]:
    classes = [name for name, inventory in entry.inventories.items() if inventory.cap]
    return (*sorted(entry.traits), *sorted(classes))


def _serves(host: ProviderEntry, entry: ProviderEntry) -> bool:
    return entry.root_id == host.id or (
        SHARES_TRAIT in entry.traits and bool(set(host.aggregates) & set(entry.aggregates))
    )


def _gives(entry: ProviderEntry, name: str, amount: int, whole: bool) -> bool:
    inventory = entry.inventories.get(name)
    if inventory is None or (whole and (inventory.used or inventory.cap < amount)):
        return False
    needed = inventory.cap if whole else amount
    return (
        inventory.used + needed <= inventory.cap
        and inventory.min_unit <= needed <= inventory.max_unit
        and not needed % inventory.step_size
    )


@settings(max_examples=50, deadline=None)
@given(seeds)
def test_a_copy_of_a_table_finds_the_same(seed):
    world = World(seed)
    specs = [world.request().spec for _ in range(3)]
    before = [feasible(world.table, spec) for spec in specs]
    copy = world.table.copy()
    for spec in specs:
        request = SelectDestinations(
            request_id=an_id(world.random), spec=spec, consumers=[an_id(world.random)]
        )
        place(copy, request, PIPELINE, seed=1, decision_id='d')
    assert [feasible(world.table, spec) for spec in specs] == before
    for pid, pool in world.pools.items():
        world.table.set_pool(msgspec.structs.replace(pool, version=2, used={}))
        assert world.table.pools.by_id[pid].used == {}
    fresh = World(seed)
    for pool in world.table.pools.by_id.values():
        fresh.table.set_pool(msgspec.structs.replace(pool, version=3))
    assert [feasible(world.table, spec) for spec in specs] == [
        feasible(fresh.table, spec) for spec in specs
    ]


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_as_many_are_counted_as_are_placed_one_after_the_other(seed):
    world = World(seed)
    request = world.request()
    request = msgspec.structs.replace(request, consumers=[an_id(world.random)], alternates=0)
    run = FilterRun(world.table, request.spec, PIPELINE)
    run.evaluate('')
    rows = np.flatnonzero(run.alive)
    if TreeChoice.of(world.table, run) is None:
        return
    counted = capacity.free_capacity(world.table, request.spec, rows)
    assert not counted.uncounted
    on_each = dict(zip(counted.rows.tolist(), counted.counts.tolist(), strict=True))
    spec = request.spec
    for row in rows.tolist():  # host after host, as it is counted
        placed = 0
        while True:
            only = msgspec.structs.replace(spec, force_hosts=[world.table.names[row]])
            again = msgspec.structs.replace(request, request_id=an_id(world.random), spec=only)
            decision = place(world.table, again, PIPELINE, seed=1, decision_id='d')
            if decision.outcome is not Outcome.PLACED:
                break
            placed += 1
        assert on_each[row] == placed
