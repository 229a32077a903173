# SPDX-License-Identifier: Apache-2.0
"""Normalization, in its one place."""

import numpy as np
import pytest

from gantt import exceptions
from gantt.core.placement.pipeline import Pipeline
from gantt.core.plugin import Option
from gantt.core.weighers.base import Weigher
from tests.core.builders import a_host, a_request, a_table, decide


class Given(Weigher):
    """Raw values by row."""

    values: list[float] = []
    multiplier_option = 'factor'
    options = (Option('factor', float, 1.0, 'multiplier'),)

    def raw(self, hosts, spec, rows):
        return np.array(self.values)[rows]


class FromZero(Given):
    minval = 0.0


class Between(Given):
    minval, maxval = 0.0, 10.0


def normalized(kind, values, factor=1.0):
    """Return the normalized weight of each host, by row."""
    kind.values = values
    table = a_table(*(a_host(n + 1) for n in range(len(values))))
    decision = decide(table, a_request(alternates=10), Pipeline([], [kind({'factor': factor})]))
    scores = {s.host: s for s in decision.members[0].scores}
    return [scores[f'cmp-{n + 1}'].weighted[0] for n in range(len(values))]


@pytest.mark.parametrize(
    ('kind', 'values', 'expected'),
    [
        (Given, [1, 2, 3], [0, 0.5, 1]),
        (Given, [5, 5], [0, 0]),
        (Given, [-4, 0], [0, 1]),
        (FromZero, [1, 2, 4], [0.25, 0.5, 1]),
        (FromZero, [5, 5], [1, 1]),
        (FromZero, [0, 0], [0, 0]),
        (FromZero, [-3, 2], [0, 1]),
        (FromZero, [-3, -2], [0, 0]),
        (Between, [5, 20, -1], [0.5, 1, 0]),
        (Between, [5], [0.5]),
    ],
)
def test_scale(kind, values, expected):
    assert normalized(kind, values) == expected


def test_the_multiplier_scales_and_may_turn_the_sign():
    assert normalized(Given, [1, 2, 3], -2.0) == [0, -1, -2]


class ByHost(Given):
    """Multipliers may differ by host."""

    def multipliers(self, hosts, rows):
        return np.array([1.0, 3.0])[rows]


def test_multipliers_may_be_one_per_host():
    assert normalized(ByHost, [10, 5]) == [1, 0]
    assert normalized(ByHost, [5, 10]) == [0, 3]
    decision = decide(a_table(a_host(1), a_host(2)), a_request(), Pipeline([], [ByHost()]))
    assert decision.members[0].scores[0].total == 3


def test_a_multiplier_that_is_no_number_is_refused():
    with pytest.raises(exceptions.PluginError, match='factor'):
        Pipeline([], [Given({'factor': float('nan')})])
