# SPDX-License-Identifier: Apache-2.0
"""Decisions: told whole to operators, in general words to the project that asked."""

from collections.abc import Iterable

from oslo_policy import policy

from gantt.policies import base

READERS = base.any_of(base.PROJECT_READER, base.SYSTEM_READER, base.ADMIN, base.SERVICE)
OPERATORS = base.any_of(base.SYSTEM_READER, base.ADMIN)

RULES = [
    base.rule(
        'gantt:decisions:list',
        READERS,
        'List the decisions of the project, or of all.',
        ('GET', '/v1/decisions'),
    ),
    base.rule(
        'gantt:decisions:show',
        READERS,
        'Show a decision, and in general words what was in the way.',
        ('GET', '/v1/decisions/{decision_id}'),
    ),
    base.rule(
        'gantt:decisions:explain',
        base.any_of(base.SYSTEM_READER, base.ADMIN, base.SERVICE),
        'Read decisions and refusals whole: hosts, numbers, filters and scores. '
        'Asked beside the rule of the operation.',
        ('GET', '/v1/decisions'),
        ('GET', '/v1/decisions/{decision_id}'),
        ('POST', '/v1/requests'),
    ),
    base.rule(
        'gantt:decisions:replay',
        OPERATORS,
        'Make a decision again on the table that it saw. Nothing is written.',
        ('POST', '/v1/decisions/{decision_id}/replay'),
    ),
    base.rule(
        'gantt:what_if:show',
        OPERATORS,
        'Place a request on hosts as they are and as they might be. Nothing is written.',
        ('POST', '/v1/what-if'),
    ),
]


def list_rules() -> Iterable[policy.RuleDefault]:
    """The rules of this module."""
    return RULES
