# SPDX-License-Identifier: Apache-2.0
"""Rules from strangers: spoilt, cut, glued together, or nonsense; none of them does harm."""

import random

import numpy as np
import pytest

from gantt import exceptions
from gantt.core.filters.location import LocationFilter
from gantt.core.filters.rules import RulesFilter
from gantt.core.messages.request import RequestSpec
from gantt.core.rules import tree
from gantt.core.weighers.rules import RulesWeigher
from tests.core.builders import an_id
from tests.core.rules.worlds import a_site, asked

GOOD = (
    'location in "s1.r1" and not "SSD" in traits',
    'drop 3: free.VCPU in 2..8 or instances == 0',
    'soft 2.5: hypervisor.version >= v4.2.1',
    'metadata."a b" == "x" or known metrics.load',
    'zone in ["a", "b", \'c\']',
    'request.resources.VCPU <= free.VCPU',
    '{"rule": {"op": "not", "of": {"op": "<", "fact": "age", "value": 3}}, "drop": 2}',
    '{"rule": {"op": "in", "fact": "zone", "value": ["a", "b"]}, "soft": 1.5}',
    'hard: (((enabled)))',
    'name contains "-" and cap.MEMORY_MB > -1e3',
)
SIGNS = '()[]{}"\'\\.,:;=<>!&|*-+_ \t\n\0é\U0001f600v0123456789andornotin'


def spoilt(rng: random.Random) -> str:
    """Return a rule after one to four accidents."""
    text = rng.choice(GOOD)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(6):
            case 0:
                text = text[:at] + rng.choice(SIGNS) + text[at:]
            case 1:
                text = text[:at] + text[at + rng.randint(1, 5) :]
            case 2:
                text = text[:at] + rng.choice(GOOD)[rng.randrange(20) :]
            case 3:
                text = ''.join(rng.choice(SIGNS) for _ in range(rng.randint(0, 60)))
            case 4:
                text = text[:at] + text[at : at + 3] * rng.randint(2, 400) + text[at:]
            case 5:
                text = rng.choice(('(', 'not ', '[', '{"op":', '"')) * rng.randint(1, 300) + text
    return text[:1024]  # what a message lets pass


def try_rules(seeds: range) -> tuple[int, int]:
    """Return how many were refused, and how many were checked."""
    table = a_site()
    alive = np.ones(len(table), bool)
    rule, weigher, place = RulesFilter(), RulesWeigher(), LocationFilter()
    refused = accepted = 0
    for seed in seeds:
        rng = random.Random(seed)
        text, where = spoilt(rng), rng.randrange(3)
        spec: RequestSpec = (
            asked(text).spec
            if where == 0
            else asked(flavor={'x': text}).spec
            if where == 1
            else asked(hints={'location': [text, an_id(1)]}).spec
        )
        try:
            rule.check_request(spec)
            place.check_request(spec)
        except exceptions.InvalidMessage as e:
            assert e.kwargs['field'].startswith('request.spec.')
            refused += 1
            continue
        rule.mask_among(table, spec, alive)
        weigher.raw(table, spec, np.arange(len(table)))
        place.mask(table, spec)
        for layer in rule._layers(table, spec):
            for hard_rule in layer.hard:
                assert sum(1 for _ in tree.walk(hard_rule.condition.tree)) <= tree.NODES_MAX
        accepted += 1
    return refused, accepted


@pytest.mark.parametrize('block', range(4))
def test_spoilt_rules_are_refused_or_asked(block):
    refused, accepted = try_rules(range(block * 5_000, (block + 1) * 5_000))
    assert refused > 1_000
    assert accepted > 100


@pytest.mark.slow
@pytest.mark.parametrize('block', range(10))
@pytest.mark.timeout(3600)
def test_a_million_spoilt_rules(block):
    refused, accepted = try_rules(range(block * 100_000, (block + 1) * 100_000))
    assert refused + accepted == 100_000
