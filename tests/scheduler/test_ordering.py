# SPDX-License-Identifier: Apache-2.0
"""Filters run in the order of what they cost and remove; nothing else changes."""

import time

import numpy as np
import pytest

from devel.doubles import ManualClock
from gantt import plugin_loader
from gantt.core.filters.base import Filter, PerHostFilter
from gantt.core.placement.pipeline import Pipeline
from gantt.core.plugin import Option
from gantt.scheduler.request.ordering import (
    DECISIONS_PER_MEASUREMENT,
    FIRST_MEASUREMENTS,
    FilterOrdering,
)
from tests.core.builders import a_host, a_request, a_table, decide, hosts_of
from tests.world import World
from tests.world import a_request as asked


class Paced(Filter):
    """Takes its time on a clock of the test, and removes hosts by their row."""

    columns = ('ids',)
    options = (Option('milliseconds', int, 1, 'cost'), Option('keeps', int, 1, 'one of so many'))
    clock: ManualClock

    def mask(self, hosts, spec):
        self.clock.advance(self.milliseconds / 1000)
        return hosts.ids % self.keeps == 0


class Cheap(Paced):
    pass


class Dear(Paced):
    pass


class Idle(Paced):
    pass


class Walking(PerHostFilter):
    clock: ManualClock

    def host_passes(self, host, spec):
        self.clock.advance(0.001)
        return True


def paced(clock):
    rules = [
        Walking(),
        Idle({'milliseconds': 5}),
        Dear({'milliseconds': 50, 'keeps': 2}),
        Cheap({'keeps': 3}),
        *plugin_loader.load(['ResourcesFilter']),
    ]
    for rule in rules:
        rule.clock = clock
    return Pipeline(rules, [])


@pytest.fixture
def table():
    return a_table(*(a_host(n) for n in range(1, 41)))


def follow(ordering, table, pipeline, decisions):
    for number in range(1, decisions + 1):
        if not number % DECISIONS_PER_MEASUREMENT:
            pipeline = ordering.follow(table, a_request(number=number), pipeline)
    return pipeline


def test_what_removes_most_for_its_cost_goes_first_and_who_walks_last(table):
    clock = ManualClock()
    usual = paced(clock)
    # Only what takes time on this clock can be told apart.
    usual.filters[-1].mask = lambda hosts, spec: clock.advance(0.002)
    ordering = FilterOrdering(clock)
    assert (
        follow(ordering, table, usual, DECISIONS_PER_MEASUREMENT * FIRST_MEASUREMENTS - 1) is usual
    )
    ordered = follow(ordering, table, usual, DECISIONS_PER_MEASUREMENT)
    names = [rule.name for rule in ordered.filters]
    assert names == ['Cheap', 'Dear', 'Idle', 'ResourcesFilter', 'Walking']
    # Looked at again after twice as many.
    assert (
        follow(ordering, table, usual, DECISIONS_PER_MEASUREMENT * FIRST_MEASUREMENTS - 1) is usual
    )


def test_what_is_configured_anew_is_ordered_by_what_is_known(table):
    clock = ManualClock()
    ordering, usual = FilterOrdering(clock), paced(clock)
    usual.filters[-1].mask = lambda hosts, spec: clock.advance(0.002)
    follow(ordering, table, usual, DECISIONS_PER_MEASUREMENT * FIRST_MEASUREMENTS)
    fewer = Pipeline([rule for rule in usual.filters if rule.name != 'Idle'], [])
    names = [rule.name for rule in ordering.begin(fewer).filters]
    assert names == ['Cheap', 'Dear', 'ResourcesFilter', 'Walking']
    more = Pipeline([*usual.filters, *plugin_loader.load(['TraitsFilter'])], [])
    assert ordering.begin(more) is more


def test_the_order_changes_the_counts_and_nothing_else(table):
    clock = ManualClock()
    usual = paced(clock)
    names = ['Cheap', 'Dear', 'Idle', 'ResourcesFilter', 'Walking']
    ordered = usual.in_order(names)
    assert ordered.digest == usual.digest
    usual_decision, ordered_decision = (
        decide(table, a_request(dry_run=True), p) for p in (usual, ordered)
    )
    assert hosts_of(usual_decision) == hosts_of(ordered_decision)
    assert usual_decision.members[0].survivors == ordered_decision.members[0].survivors
    assert [count.name for count in ordered_decision.members[0].filters] == names
    assert [count.name for count in usual_decision.members[0].filters] != names
    for decision in (usual_decision, ordered_decision):
        (member,) = decision.members
        assert sum(c.removed for c in member.filters) + member.survivors == len(table)
        verdicts = np.frombuffer(member.verdicts, np.uint8)
        for k, count in enumerate(member.filters):
            assert np.count_nonzero(verdicts == k) == count.removed


def test_under_a_clock_that_stands_still_the_order_stays(table):
    usual = plugin_loader.load_pipeline()
    assert (
        follow(
            FilterOrdering(ManualClock()),
            table,
            usual,
            DECISIONS_PER_MEASUREMENT * FIRST_MEASUREMENTS * 4,
        )
        is usual
    )


def test_real_filters_are_ordered_by_a_real_clock(table):
    class Real:
        monotonic = staticmethod(time.perf_counter)

    usual = plugin_loader.load_pipeline()
    ordered = follow(
        FilterOrdering(Real()), table, usual, DECISIONS_PER_MEASUREMENT * FIRST_MEASUREMENTS
    )
    assert sorted(f.name for f in ordered.filters) == sorted(f.name for f in usual.filters)
    firsts = [f.name for f, volatile in zip(ordered.filters, ordered.is_volatile, strict=True)]
    assert ordered.is_volatile == sorted(ordered.is_volatile) or ordered.relaxable
    assert len(set(firsts)) == len(firsts)


def test_a_scheduler_places_alike_whatever_the_order():
    answers = []
    for order_by_cost in (True, False):
        world = World(hosts=4, order_by_cost=order_by_cost)
        replies = [world.select(asked(vcpu=1)) for _ in range(5)]
        answers.append([[s[0].host for s in answer.selections] for answer in replies])
    assert answers[0] == answers[1]
