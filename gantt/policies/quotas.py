# SPDX-License-Identifier: Apache-2.0
"""Quotas: how much each project may have, and what it has."""

from collections.abc import Iterable

from oslo_policy import policy

from gantt.policies import base

READERS = base.any_of(base.PROJECT_READER, base.SYSTEM_READER, base.ADMIN, base.SERVICE)

RULES = [
    base.rule(
        'gantt:quotas:list',
        base.any_of(base.SYSTEM_READER, base.ADMIN),
        'List the limits that are set, of all projects.',
        ('GET', '/v1/quotas'),
    ),
    base.rule(
        'gantt:quotas:show',
        READERS,
        'Show the limits of a project, where each is from, and what is used.',
        ('GET', '/v1/quotas/{project_id}'),
        ('GET', '/v1/limits'),
    ),
    base.rule(
        'gantt:quotas:set',
        base.ADMIN,
        'Set limits of a project, or those of every project that has none of its own.',
        ('PUT', '/v1/quotas/{project_id}'),
    ),
    base.rule(
        'gantt:quotas:unset',
        base.ADMIN,
        'Take all limits of a project away: the defaults hold again.',
        ('DELETE', '/v1/quotas/{project_id}'),
    ),
]


def list_rules() -> Iterable[policy.RuleDefault]:
    """The rules of this module."""
    return RULES
