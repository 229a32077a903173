# SPDX-License-Identifier: Apache-2.0
"""Rules cost the scheduling thread little, however many a request has."""

import pytest

from gantt import exceptions
from gantt.core.records.decision import Outcome
from gantt.core.rules import layers
from tests.core.rules.worlds import a_pipeline, a_site, asked, decide

TITLE = 'all rules of a user, and of a flavor, have a bound on their tests together'


def rules(count, tests):
    """Rules of so many tests each, none like another."""
    return [
        ' or '.join(f'free.VCPU >= {1000 * rule + test}' for test in range(tests))
        for rule in range(count)
    ]


@pytest.mark.finding('M11', TITLE)
def test_rules_of_a_user_are_bounded_together():
    table, most = a_site(), layers.RULE_TESTS_MAX
    with pytest.raises(exceptions.InvalidRule, match=f'at most {most} tests.*got') as refused:
        decide(table, asked(*rules(16, 32)), a_pipeline())
    assert refused.value.kwargs['field'] == 'request.spec.hints.rules'
    with pytest.raises(exceptions.InvalidRule, match=f'at most {most} tests'):
        decide(table, asked(*(['drop 1: enabled'] * 31), *rules(1, most - 30)), a_pipeline())


@pytest.mark.finding('M11', TITLE)
def test_rules_of_a_flavor_are_bounded_together():
    table = a_site()
    many = {f'x{number}': rule for number, rule in enumerate(rules(32, 32))}
    with pytest.raises(
        exceptions.InvalidRule, match=f'at most {layers.RULE_TESTS_MAX} tests'
    ) as refused:
        decide(table, asked(flavor=many), a_pipeline())
    assert refused.value.kwargs['field'] == 'request.spec.flavor.extra_specs'


def test_as_many_tests_as_may_be_are_asked():
    few = asked(*['enabled'] * 32, flavor={f'x{n}': 'enabled' for n in range(32)})
    assert decide(a_site(), few, a_pipeline()).outcome is Outcome.PLACED
    condition = layers.user_rules(tuple(rules(1, 32)))[0].condition
    assert 32 <= condition.size <= 64
