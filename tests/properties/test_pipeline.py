# SPDX-License-Identifier: Apache-2.0
"""place() against a plain reference, and what must hold whatever is asked."""

import random

import numpy as np
import pytest

from gantt import plugin_loader
from gantt.core.messages.request import GroupRef, Policy, RequestSpec, SelectDestinations
from gantt.core.placement.capacity import free_capacity
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.place import undo_decision
from gantt.core.records.decision import CHOSEN_VERDICT, PASSED_VERDICT, Outcome
from gantt.core.table.host_table import HostTable
from gantt.core.topology.fit import fit
from tests.core.builders import NOW, a_change, a_host, an_id, decide, hosts_of, state_of
from tests.properties import reference
from tests.properties.clouds import a_cloud, a_random_request, a_spec, a_table
from tests.thorough import stride

PIPELINE = plugin_loader.load_pipeline(reference.FILTERS)


def seeds(blocks: int, size: int = 100):
    """Seeds in blocks: a failing one is named by its assertion's introspection."""
    return pytest.mark.parametrize(
        'block', [range(n * size, (n + 1) * size) for n in range(0, blocks, stride(2))], ids=str
    )


def without_ids(table: HostTable) -> dict:
    """What is on the hosts, claim ids aside."""
    return {
        name: (
            {c: n for c, n in table.host_state(name).used.items() if n},
            sorted((p.consumer, p.group or '') for p in table.placed.on_provider(int(i)).values()),
        )
        for name, i in zip(table.names, table.ids, strict=True)
    }


@seeds(20)
def test_the_decision_is_the_references(block):
    for seed in block:
        rng = random.Random(seed)
        cloud = a_cloud(rng)
        table, slow = a_table(cloud), reference.Cloud(*cloud, NOW)
        for number in range(3):
            request = a_random_request(rng, number)
            before = state_of(table)
            decision = decide(table, request, PIPELINE)
            members, alternates = slow.place(request)
            _check_decision(decision, members, alternates, request, f'seed {seed} request {number}')
            if decision.outcome is Outcome.NO_VALID_HOST:
                assert _unchanged(before, state_of(table)), f'seed {seed}'
            assert without_ids(table) == {
                host.row.name: (
                    {c: n for c, n in host.used.items() if n},
                    sorted((p.consumer, p.group or '') for p in host.placed),
                )
                for host in slow.hosts
            }, f'seed {seed}'


def _check_decision(decision, members, alternates, request, seed) -> None:
    assert hosts_of(decision) == [m.host for m in members], seed
    for member, plain in zip(decision.members, members, strict=True):
        assert {f.name: f.removed for f in member.filters} == plain.removed, seed
        assert member.survivors == len(plain.totals), seed
        _check_verdicts(member, plain)
        for score in member.scores:
            assert score.total == plain.totals[score.host], seed
        assert len(member.scores) == min(len(plain.totals), max(5, request.alternates + 1)), seed
        if plain.host is not None:
            assert [a.host for a in member.alternates] == alternates[plain.host], seed


def _unchanged(before: dict, after: dict) -> bool:
    """Nothing differs; a class may have been met meanwhile, with nothing of it taken."""
    width = len(before['used'])
    return not any(map(any, after['used'][width:])) and before == {
        **after,
        'used': after['used'][:width],
        'free': after['free'][:width],
    }


def _check_verdicts(member, plain) -> None:
    names = [f.name for f in member.filters]
    verdicts = ['' if v in (PASSED_VERDICT, CHOSEN_VERDICT) else names[v] for v in member.verdicts]
    assert verdicts == plain.verdicts
    assert member.verdicts.count(CHOSEN_VERDICT) == (member.selection is not None)
    assert sum(f.removed for f in member.filters) + member.survivors == len(verdicts)


@seeds(4)
def test_the_order_of_filters_never_changes_who_survives(block):
    for seed in block:
        rng = random.Random(seed)
        cloud, request = a_cloud(rng), a_random_request(rng)
        names = rng.sample(reference.FILTERS, len(reference.FILTERS))
        usual = decide(a_table(cloud), request, PIPELINE)
        other = decide(a_table(cloud), request, plugin_loader.load_pipeline(names))
        assert hosts_of(usual) == hosts_of(other), f'seed {seed}'
        for member, two in zip(usual.members, other.members, strict=True):
            assert member.survivors == two.survivors, f'seed {seed}'
            assert member.scores == two.scores, f'seed {seed}'
            assert member.alternates == two.alternates, f'seed {seed}'


@seeds(4)
def test_undone_in_any_order_picks_leave_nothing(block):
    for seed in block:
        rng = random.Random(seed)
        table = a_table(a_cloud(rng))
        before = state_of(table)
        requests = [a_random_request(rng, number) for number in range(4)]
        decided = [(decide(table, request, PIPELINE), request) for request in requests]
        rng.shuffle(decided)
        for decision, request in decided:
            undo_decision(table, decision, request)
        assert _unchanged(before, state_of(table)), f'seed {seed}'


@seeds(2)
def test_the_same_seed_gives_the_same_decision(block):
    for seed in block:
        rng = random.Random(seed)
        cloud, request = a_cloud(rng), a_random_request(rng)
        pipeline = plugin_loader.load_pipeline(subset_size=2, shuffle_best=bool(seed % 2))
        decision = decide(a_table(cloud), request, pipeline, seed=seed)
        assert decision == decide(a_table(cloud).snapshot().copy(), request, pipeline, seed=seed)


@seeds(4)
def test_the_mask_of_resources_is_the_fit_librarys_answer(block):
    (rule,) = plugin_loader.load(['ResourcesFilter'])
    for seed in block:
        rng = random.Random(seed)
        table, spec = a_table(a_cloud(rng)), a_spec(rng)
        mask = rule.mask(table, spec)
        for row, host in enumerate(table.hosts):
            answer = fit(spec.resources, host.facts.inventories, host.used, host.foreign)
            assert answer.ok == mask[row], f'seed {seed}: {host.name}: {answer.reason}'


@seeds(4)
def test_capacity_is_what_placing_one_after_another_places(block):
    for seed in block:
        rng = random.Random(seed)
        table, spec = a_table(a_cloud(rng)), a_spec(rng)
        counted = free_capacity(table, spec, _eligible(table, spec))
        placed = _place_all(table, spec)
        assert sum(counted.bound_counts().values()) == len(counted.rows)
        if spec.group is not None and spec.group.policy is Policy.AFFINITY:
            # The first of a group goes to the best host, which need not be the roomiest.
            assert placed <= counted.total, f'seed {seed}'
            assert bool(placed) == bool(counted.total), f'seed {seed}'
        elif spec.group is not None and spec.group.hosts:
            # Of a host that the caller names, a member of ours there hides the unknown one.
            assert counted.total <= placed, f'seed {seed}'
        else:
            assert counted.total == placed, f'seed {seed}'


def _eligible(table: HostTable, spec: RequestSpec) -> np.ndarray:
    request = SelectDestinations(
        request_id=an_id(0, 3), spec=spec, consumers=[an_id(0, 4)], dry_run=True
    )
    decision = decide(table, request, PIPELINE)
    return np.flatnonzero(np.frombuffer(decision.members[0].verdicts, np.uint8) >= PASSED_VERDICT)


def _place_all(table: HostTable, spec: RequestSpec) -> int:
    for placed in range(500):
        request = SelectDestinations(
            request_id=an_id(placed, 3), spec=spec, consumers=[an_id(placed, 4)], alternates=0
        )
        if not decide(table, request, PIPELINE).is_placed:
            return placed
    raise AssertionError('more was placed than the cloud has')


def test_many_members_are_placed_as_one_by_one():
    """What is kept between members changes nothing: a larger cloud, long requests."""
    rng = random.Random(4)
    for round_ in range(6):
        hosts = []
        for number in range(1, 60):
            row, placed = (
                a_host(
                    number,
                    vcpu=rng.randint(1, 12),
                    ram=rng.randint(1, 30) * 1024,
                    disk=rng.randint(1, 200),
                    zone=rng.choice([None, 'east']),
                    traits=rng.sample('ABC', rng.randint(0, 3)),
                ),
                [],
            )
            hosts.append((row, placed))
        spec = RequestSpec(
            resources={'VCPU': 1, 'MEMORY_MB': 1024, 'DISK_GB': rng.randint(1, 9)},
            forbidden_traits=rng.sample('ABC', 1),
            group=GroupRef(
                uuid=an_id(1, 8), policy=list(Policy)[round_ % 4], max_per_host=rng.randint(1, 3)
            ),
        )
        request = SelectDestinations(
            request_id=an_id(round_, 3), spec=spec, consumers=[an_id(n, 4) for n in range(40)]
        )
        table, slow = a_table((hosts, [])), reference.Cloud(hosts, [], NOW)
        decision = decide(table, request, PIPELINE)
        members, _ = slow.place(request)
        assert hosts_of(decision) == [m.host for m in members]
        for member, plain in zip(decision.members, members, strict=True):
            _check_verdicts(member, plain)
            assert [s.total for s in member.scores] == sorted(plain.totals.values(), reverse=True)[
                :5
            ]


@seeds(4)
def test_looking_at_the_picked_row_only_is_the_same_as_looking_at_all(block, monkeypatch):
    for seed in block:
        rng = random.Random(seed)
        cloud = a_cloud(rng)
        spec = RequestSpec(resources=a_spec(rng).resources)
        request = SelectDestinations(
            request_id=an_id(seed), spec=spec, consumers=[an_id(i, 7) for i in range(12)]
        )
        fast = decide(a_table(cloud), request, PIPELINE)
        with monkeypatch.context() as patch:
            patch.setattr(FilterRun, 'reevaluate', lambda self, consumer: None)
            slow = decide(a_table(cloud), request, PIPELINE)
        assert fast == slow, f'seed {seed}'


def test_members_after_the_first_are_not_looked_at_anew(monkeypatch):
    evaluations = []
    evaluate = FilterRun.evaluate
    monkeypatch.setattr(
        FilterRun, 'evaluate', lambda *args: evaluations.append(1) or evaluate(*args)
    )
    table = HostTable.build([a_change(a_host(n)) for n in range(1, 9)], [], {}, (), NOW)
    request = SelectDestinations(
        request_id=an_id(1),
        spec=RequestSpec(resources={'VCPU': 1, 'MEMORY_MB': 512}),
        consumers=[an_id(i, 7) for i in range(12)],
    )
    assert decide(table, request, PIPELINE).is_placed
    assert len(evaluations) == 1
