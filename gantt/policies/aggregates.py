# SPDX-License-Identifier: Apache-2.0
"""Aggregates: their metadata holds operators' rules."""

from collections.abc import Iterable

from oslo_policy import policy

from gantt.policies import base

OPERATORS = base.any_of(base.SYSTEM_READER, base.ADMIN)

RULES = [
    base.rule(
        'gantt:aggregates:list', OPERATORS, 'List the aggregates.', ('GET', '/v1/aggregates')
    ),
    base.rule(
        'gantt:aggregates:show', OPERATORS, 'Show an aggregate.', ('GET', '/v1/aggregates/{name}')
    ),
    base.rule(
        'gantt:aggregates:set',
        base.ADMIN,
        'Create an aggregate, or change its hosts and metadata.',
        ('PUT', '/v1/aggregates/{name}'),
    ),
    base.rule(
        'gantt:aggregates:remove',
        base.ADMIN,
        'Remove an aggregate.',
        ('DELETE', '/v1/aggregates/{name}'),
    ),
]


def list_rules() -> Iterable[policy.RuleDefault]:
    """The rules of this module."""
    return RULES
