# SPDX-License-Identifier: Apache-2.0
"""Kept masks are those that would be made anew; the order of filters changes no survivor."""

import random

import msgspec
import numpy as np
import pytest

from gantt import exceptions, plugin_loader
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.placement.evaluation import FilterRun
from gantt.core.records.decision import PASSED_VERDICT
from gantt.core.resources.host import Aggregate, HostChange
from gantt.core.rules import parser
from gantt.core.rules.facts import FactView
from gantt.core.table.caches import MaskCache
from gantt.core.table.host_table import HostTable
from gantt.testing import clouds
from tests.core.builders import a_host, a_request, an_id, decide
from tests.core.builders import a_table as a_plain_table
from tests.thorough import stride

ALL = plugin_loader.installed(plugin_loader.FILTERS)
EVERY = plugin_loader.load_pipeline(ALL)
KEEPING = [f for f, keeps in zip(EVERY.filters, EVERY.is_mask_cacheable, strict=True) if keeps]


def blocks(count, size=50):
    """Seeds in blocks."""
    return pytest.mark.parametrize(
        'block', [range(n * size, (n + 1) * size) for n in range(0, count, stride(2))], ids=str
    )


def change(rng: random.Random, table: HostTable) -> None:
    """News of one kind or another."""
    kind = rng.choice(('row', 'row', 'row', 'same', 'gone', 'aggregates', 'zone', 'take'))
    rows = [row for row in table.hosts]
    if kind == 'aggregates':
        _, aggregates = clouds.a_cloud(rng)
        table.set_aggregates(aggregates)
    elif kind == 'zone':
        table.default_zone = rng.choice(('nova', 'west'))
    elif kind == 'gone' and len(rows) > 2:
        table.apply(HostChange(provider_id=rng.choice(rows).id, row=None))
    elif kind == 'same' and rows:
        row = rng.choice(rows)
        row = msgspec.structs.replace(row, version=row.version + 1, reported_at=clouds.NOW)
        table.apply(HostChange(provider_id=row.id, row=row))
    else:
        hosts, _ = clouds.a_cloud(rng)
        news = rng.choice(hosts)
        versions = {row.id: row.version for row in rows}
        row = msgspec.structs.replace(news.row, version=versions.get(news.provider_id, 0) + 1)
        if rng.random() < 0.1:
            row = msgspec.structs.replace(row, name=f'{row.name}-renamed')
        table.apply(msgspec.structs.replace(news, row=row))


@blocks(4)
def test_a_kept_mask_is_the_one_that_would_be_made_anew(block):
    hits = 0
    for seed in block:
        rng = random.Random(seed)
        table = clouds.a_table(*clouds.a_cloud(rng))
        specs = [clouds.a_spec(rng) for _ in range(3)]
        for step in range(25):
            change(rng, table)
            filter_run = FilterRun(table, rng.choice(specs), EVERY)
            for k, keeps in enumerate(EVERY.is_mask_cacheable):
                if not (keeps and filter_run._applies[k]):
                    continue
                rule = EVERY.filters[k]
                kept, anew = filter_run._evaluate_for(k, ''), rule.mask(table, filter_run.spec)
                assert (kept is None) == (anew is None), f'seed {seed} step {step} {rule.name}'
                if kept is not None:
                    assert np.array_equal(kept, anew), f'seed {seed} step {step} {rule.name}'
        hits += table.mask_cache.hits
    assert hits > 100


def test_the_decision_is_the_same_with_and_without_kept_masks(monkeypatch):
    pipeline = plugin_loader.load_pipeline()
    for seed in range(100):
        rng = random.Random(seed)
        cloud = clouds.a_cloud(rng)
        keeps, asks = clouds.a_table(*cloud), clouds.a_table(*cloud)
        specs = [clouds.a_spec(rng) for _ in range(2)]
        for number in range(6):
            request = SelectDestinations(
                request_id=an_id(number, 4),
                spec=specs[number % 2],
                consumers=[an_id(number * 3 + i, 5) for i in range(rng.randint(1, 3))],
            )
            with monkeypatch.context() as patch:
                patch.setattr(MaskCache, 'get', _nothing_is_kept)
                other = _decided(asks, request, pipeline)
            assert _decided(keeps, request, pipeline) == other, f'seed {seed}'


def _nothing_is_kept(*args):
    raise KeyError


def _decided(table, request, pipeline):
    try:
        return decide(table, request, pipeline)
    except exceptions.InvalidMessage as e:
        return e.message


def test_only_what_a_mask_follows_from_makes_it_invalid():
    table = a_plain_table(a_host(1, traits=['A']), a_host(2, traits=['B']))
    pipeline = plugin_loader.load_pipeline(['TraitsFilter', 'ComputeFilter', 'ResourcesFilter'])
    spec = RequestSpec(resources={'VCPU': 1}, required_traits=['A'])

    def misses():
        before = table.mask_cache.misses
        FilterRun(table, spec, pipeline).evaluate('')
        return table.mask_cache.misses - before

    def news(row, **fields):
        host = table.hosts[row]
        host = msgspec.structs.replace(host, version=host.version + 1, **fields)
        table.apply(HostChange(provider_id=host.id, row=host))

    assert (misses(), misses()) == (1, 0)
    news(0, used={'VCPU': 3}, reported_at=1.0, disabled='x', zone='east', generation=5)
    assert misses() == 0
    decide(table, a_request(3), pipeline)
    assert misses() == 0
    table.set_aggregates([Aggregate(id=1, uuid=an_id(1), name='red', hosts=['cmp-1'])])
    assert misses() == 0
    facts = table.hosts[1].facts
    news(1, facts=msgspec.structs.replace(facts, location='elsewhere'))
    assert misses() == 0
    news(1, facts=msgspec.structs.replace(facts, traits=['A', 'B']))
    assert misses() == 1
    table.apply(HostChange(provider_id=3, row=a_host(3)))
    assert misses() == 1
    assert len(table.snapshot().mask_cache) == 0


def test_kept_masks_have_a_bound(monkeypatch):
    monkeypatch.setattr('gantt.core.table.caches.MASKS_MAX', 5)
    table = a_plain_table(a_host(1, traits=['A']))
    pipeline = plugin_loader.load_pipeline(['TraitsFilter'])
    for number in range(50):
        spec = RequestSpec(resources={'VCPU': 1}, required_traits=['A', f'T{number}'])
        FilterRun(table, spec, pipeline).evaluate('')
        assert len(table.mask_cache) <= 5


def test_several_filters_are_kept():
    names = {rule.name for rule in KEEPING}
    assert {'TraitsFilter', 'AggregatesFilter', 'AvailabilityZoneFilter'} <= names


def _is_understood(spec):
    try:
        for rule in EVERY.request_checkers:
            rule.check_request(spec)
    except exceptions.InvalidMessage:
        return False
    return True


@blocks(2)
def test_any_order_of_every_filter_leaves_the_same_hosts(block):
    for seed in block:
        rng = random.Random(seed)
        table, spec = clouds.a_table(*clouds.a_cloud(rng)), clouds.a_spec(rng)
        if not _is_understood(spec):
            continue
        names = [f.name for f in EVERY.filters]
        survivors = []
        for _ in range(3):
            filter_run = FilterRun(table, spec, EVERY.in_order(names))
            counts = filter_run.evaluate(clouds.GUESTS[0])
            survivors.append(sorted(np.flatnonzero(filter_run.verdict >= PASSED_VERDICT).tolist()))
            assert sum(c.removed for c in counts) + filter_run.left == len(table)
            assert [c.name for c in counts] == [f.name for f in filter_run.pipeline.filters]
            rng.shuffle(names)
        assert survivors[0] == survivors[1] == survivors[2], f'seed {seed}'


CONDITIONS = (
    '"A" in traits',
    'zone == "nova"',
    'known hypervisor.version',
    'enabled',
    'metrics.load < 0.5',
    'aggregates contains "agg-1"',
    'ratio.VCPU > 1',
    'location in ["site1", "*.room1"]',
    'zone in ["west"] and not over_committed',
    'free.VCPU > 2',
)


@blocks(2, 30)
def test_what_is_kept_of_a_condition_is_what_it_says_anew(block):
    conditions, hits = [parser.parse(text) for text in CONDITIONS], 0
    for seed in block:
        rng = random.Random(seed)
        table = clouds.a_table(*clouds.a_cloud(rng))
        spec = clouds.a_spec(rng)
        for step in range(20):
            change(rng, table)
            rows = np.arange(0, len(table), 2)
            for condition in conditions:
                anew = condition._mask(FactView(table, spec))
                case = f'seed {seed} step {step} {condition.text}'
                assert np.array_equal(condition.mask(table, spec), anew), case
                assert np.array_equal(condition.mask(table, spec, rows), anew[rows]), case
        hits += table.mask_cache.hits
    assert hits > 100


def test_kept_arrays_are_made_anew_after_news_of_what_they_follow_from_only():
    table, calls = a_plain_table(a_host(1, traits=['A'])), []

    def count():
        table.array_cache.get('x', ('traits',), lambda: calls.append(1))
        return len(calls)

    def news(**fields):
        host = table.hosts[0]
        facts = msgspec.structs.replace(host.facts, **fields)
        host = msgspec.structs.replace(host, version=host.version + 1, facts=facts)
        table.apply(HostChange(provider_id=host.id, row=host))

    assert (count(), count()) == (1, 1)
    news(location='elsewhere')
    assert count() == 1
    news(traits=['B'])
    assert count() == 2
    table.copy().array_cache.get('x', ('traits',), lambda: calls.append(1))
    assert len(calls) == 3
