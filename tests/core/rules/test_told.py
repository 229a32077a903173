# SPDX-License-Identifier: Apache-2.0
"""Rules that callers see: their own in full, an operator's by where it is stored."""

import pytest

from gantt.core.records.decision import plain_text


@pytest.mark.parametrize(
    ('shown', 'words'),
    [
        ('name == "a" (user)', 'name == "a" (user)'),
        (
            'drop 1: name == "secret" (configuration, rule 2)',
            "the operator's rule 2 of the configuration",
        ),
        ('name == "secret" (flavor rule:gold)', "the operator's rule gold of the flavor"),
        ('name == "secret" (aggregate secret, rule:x)', "the operator's rule x of an aggregate"),
        (
            'name == "secret" (aggregate a (secret), rule:b, rule:x)',
            "the operator's rule x of an aggregate",
        ),
        (
            'name == "(aggregate x, rule:secret)" (configuration, rule 1)',
            "the operator's rule 1 of the configuration",
        ),
        ('name == "secret" (flavor rule:a (secret))', "an operator's rule"),
        ('name == "secret"', "an operator's rule"),
        ('', "an operator's rule"),
    ],
    ids=range(9),
)
def test_an_operators_rule_is_told_by_its_place(shown, words):
    assert plain_text(shown) == words
    assert plain_text(plain_text(shown)) == words
