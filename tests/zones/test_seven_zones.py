# SPDX-License-Identifier: Apache-2.0
"""Seven zones on three levels, a process and a database each, against one zone with all hosts.

``GANTT_ZONE_REQUESTS=300`` has it place so many; without it some that show the same.
"""

import os
import random

import msgspec
import pytest

from gantt.core.messages.request import GroupRef, Policy
from gantt.core.records.decision import Outcome
from tests.builders import uuid_of
from tests.world import a_request
from tests.zones.zone_process import ZoneProcess

pytestmark = [pytest.mark.postgresql, pytest.mark.mysql]

REQUESTS = int(os.environ.get('GANTT_ZONE_REQUESTS', '20'))
#: Child -> zone above it; two of them have hosts and zones below.
ABOVE = {'a': 'top', 'b': 'top', 'a1': 'a', 'a2': 'a', 'b1': 'b', 'b2': 'b'}
#: Which zone has which database, where there is one of the kind.
KINDS = {'a': 'postgresql', 'b1': 'mysql'}
#: Any subset works; what holds of the place that is found, see ``holds``.
STRATEGIES = {
    ('RandomOrder',): 'a place',
    ('TopN', 'Threshold'): 'the level',
    ('WeightedRandom', 'GoodEnough'): 'good enough',
    ('LikelyFirst',): 'a place',
}
GOOD = 0.85


@pytest.fixture
def tree(store_url):
    """Zone by name, with ``flat``, which has all hosts."""
    processes: dict[str, ZoneProcess] = {}
    try:
        for name in ('top', *ABOVE, 'flat'):
            processes[name] = ZoneProcess(name, store_url(KINDS.get(name, 'sqlite')))
        for upper in ('a', 'b', 'top'):
            processes[upper].above(
                *(processes[lower] for lower, above in ABOVE.items() if above == upper)
            )
        yield processes
    finally:
        for process in processes.values():
            process.stop()


def wanted(dice):
    needs = {'vcpu': dice.choice([1, 2, 3, 6, 11, 20]), 'ram': dice.choice([512, 4096, 20_000])}
    if dice.random() < 0.2:
        needs['required_traits'] = [f'CUSTOM_{dice.choice("XYZ")}']
    if dice.random() < 0.1:
        group = GroupRef(uuid=uuid_of(f'group {dice.random()}'), policy=Policy.ANTI_AFFINITY)
        return a_request(2, group=group, **needs)
    return a_request(**needs)


def host_of(tree, chosen):
    """The host of a selection, unsealed zone by zone."""
    name, sealed_host = chosen.child, chosen.sealed_host
    if not name:
        return chosen.host
    while True:
        unsealed = tree[name].unsealed(sealed_host)
        if not unsealed['child']:
            return unsealed['host']
        name, sealed_host = unsealed['child'], unsealed['sealed_host']


def holds(rule, score, scores):
    best = max(scores, key=lambda other: (-other.level, other.tier, other.score))
    if rule == 'the level':
        return score.level == best.level
    if rule == 'good enough':
        return score.score >= GOOD * max(other.score for other in scores) - 1e-9
    return True


def test_seven_zones_place_as_one_would(tree):
    dice = random.Random(17)
    names = [name for name in tree if name != 'flat']
    hosts = {}
    for n in range(21):
        where, vcpu = names[n % 7], dice.choice([4, 8, 12, 24, 48])
        traits = [f'CUSTOM_{suffix}' for suffix in 'XY' if dice.random() < 0.4]
        hosts[f'machine{n:02d}x'] = where
        for zone in (where, 'flat'):
            tree[zone]('host', f'machine{n:02d}x', vcpu, traits=traits)
    refused = 0
    for number in range(REQUESTS):
        request = wanted(dice)
        outcome, scores = tree['flat']('scores', request)
        if number % 10 == 0 and len(request.consumers) == 1:
            check_strategies(tree, request, outcome, scores)
        if len(request.consumers) > 1:
            # Offers may be for some of the members.
            dry = msgspec.structs.replace(request, dry_run=True)
            outcome = tree['flat']('select', dry).outcome.value
        ours = tree['top']('select', request)
        refused += ours.outcome is Outcome.NO_VALID_HOST
        assert ours.outcome.value == outcome, ours.reason
        if len(request.consumers) > 1:
            # Members apart may be in one zone that has room for all, where the flat one prefers
            # others: it is filled alike.
            places = [host_of(tree, selections[0]) for selections in ours.selections]
            many = len(request.consumers) if ours.outcome is Outcome.PLACED else 0
            assert len(set(places)) == len(places) == many
            for host, consumer in zip(places, request.consumers, strict=False):
                fill(tree, a_request(consumers=[consumer]), request.on_hosts([host]).spec)
            continue
        if ours.outcome is Outcome.PLACED:
            host = host_of(tree, ours.selections[0][0])
            best = max(scores.values(), key=lambda score: (-score.level, score.tier, score.score))
            assert scores[host].order == pytest.approx(best.order)
            fill(tree, request, request.on_hosts([host]).spec)
    assert refused, 'the test is to fill all zones'
    assert [tree[name]('audit') for name in tree] == [0] * len(tree)
    check_nobody_is_named(tree, hosts)


def fill(tree, request, spec):
    """The flat zone has the same claim, on the same host."""
    same = msgspec.structs.replace(request, spec=spec)
    assert tree['flat']('select', same).outcome is Outcome.PLACED


def check_strategies(tree, request, outcome, scores):
    """Whatever the strategies, they refuse what brute force refuses, and their guarantee holds."""
    dry = msgspec.structs.replace(request, dry_run=True)
    for strategies, rule in STRATEGIES.items():
        for name in ('top', 'a', 'b'):
            tree[name]('use', strategies, {'top_n_zones': 1, 'good_enough_share': GOOD})
        answer = tree['top']('select', dry)
        assert answer.outcome.value == outcome, (strategies, answer.reason)
        if answer.outcome is Outcome.PLACED and answer.selections[0][0].host:
            assert holds(rule, scores[answer.selections[0][0].host], scores.values()), strategies
    for name in ('top', 'a', 'b'):
        tree[name]('use', (), {})


def check_nobody_is_named(tree, hosts):
    """No database has a host of another zone, or a zone two levels away, in any column."""
    for name in (*ABOVE, 'top'):
        everything = tree[name]('everything')
        near = {name, ABOVE.get(name), *(child for child, above in ABOVE.items() if above == name)}
        foreign = [host for host, where in hosts.items() if where != name]
        for far in set(tree) - near - {'flat'}:
            foreign += [tree[far].uuid, tree[far].url]
        for text in foreign:
            assert text not in everything, (name, text)
