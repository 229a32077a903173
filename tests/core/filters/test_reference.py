# SPDX-License-Identifier: Apache-2.0
"""Each of Nova's filters over all hosts at once decides what a plain one decides host by host."""

import random

import msgspec
import numpy as np
import pytest

from gantt import exceptions, plugin_loader
from gantt.core.filters.base import Filter
from gantt.core.messages.request import RequestSpec
from gantt.core.placement.pipeline import Pipeline
from tests.core.builders import a_request, decide, hosts_of
from tests.core.filters import clouds
from tests.core.filters.reference import REFERENCE

CASES = 80
MANY_CASES = 3000


@pytest.mark.parametrize('name', sorted(REFERENCE))
def test_a_filter_is_its_reference(name):
    compare(name, CASES)


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(REFERENCE))
def test_a_filter_is_its_reference_many_times(name):
    compare(name, MANY_CASES)


def compare(name: str, cases: int) -> None:
    """Compare one filter with its reference, on random clouds."""
    removed = passed = 0
    for seed in range(cases):
        rng = random.Random(f'{name} {seed}')
        table, spec = clouds.a_table(rng), clouds.a_spec(rng)
        plugin = plugin_loader.find(plugin_loader.FILTERS, name)
        rule = plugin(clouds.options_of(rng, plugin))
        mask = rule.mask(table, spec)
        mask = np.ones(len(table), np.bool_) if mask is None else mask
        expected = [REFERENCE[name](rule, table.host_state(row), spec) for row in range(len(table))]
        assert mask.tolist() == expected, (seed, spec, rule.settings())
        assert mask.dtype == np.bool_
        if rule.local:
            assert [rule.passes(table, spec, row) for row in range(len(table))] == expected, seed
        removed, passed = removed + expected.count(False), passed + expected.count(True)
    assert passed
    assert removed or name == 'AllHostsFilter', 'the cases never show it at work'


@pytest.mark.parametrize('name', sorted(REFERENCE))
def test_a_filter_can_say_why_and_what_would_help(name):
    """The parts of a removal add up, and the nearest feasible is a line of text."""
    for seed in range(CASES // 2):
        rng = random.Random(f'why {name} {seed}')
        table, spec = clouds.a_table(rng), clouds.a_spec(rng)
        plugin = plugin_loader.find(plugin_loader.FILTERS, name)
        rule = plugin(clouds.options_of(rng, plugin))
        mask = rule.mask(table, spec)
        rows = np.flatnonzero(~mask) if mask is not None else []
        if not len(rows):
            continue
        detail = rule.detail(table, spec, rows)
        assert sum(detail.get('parts', {'': len(rows)}).values()) == len(rows), (seed, detail)
        assert all(text for text in detail.get('parts', ()))
        assert rule.reason_for(spec, detail)
        assert 'fits' in rule.remedy(table, spec, rows)


def test_in_one_pipeline_the_order_does_not_matter():
    placed = 0
    for seed in range(60):
        rng = random.Random(f'order {seed}')
        table, spec = clouds.a_table(rng), clouds.a_spec(rng)
        request = msgspec.structs.replace(a_request(count=rng.randint(1, 3)), spec=spec)
        names = rng.sample(sorted(REFERENCE), rng.randint(2, 6))
        rules = plugin_loader.load(names)
        if not all(understood(rule, spec) for rule in rules):
            continue
        first, second = (
            decide(table.copy(), request, Pipeline(r, [])) for r in (rules, rules[::-1])
        )
        assert hosts_of(first) == hosts_of(second), (seed, names)
        assert [m.survivors for m in first.members] == [m.survivors for m in second.members]
        placed += first.is_placed
    assert placed > 5


def understood(rule: Filter, spec: RequestSpec) -> bool:
    """Return whether a filter takes what the request needs of it."""
    try:
        rule.check_request(spec)
    except exceptions.InvalidMessage:
        return False
    return True
