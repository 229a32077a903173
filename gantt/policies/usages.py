# SPDX-License-Identifier: Apache-2.0
"""Usage by project: told to operators of all, to a project of its own."""

from collections.abc import Iterable

from oslo_policy import policy

from gantt.policies import base

READERS = base.any_of(base.PROJECT_READER, base.SYSTEM_READER, base.ADMIN, base.SERVICE)

RULES = [
    base.rule(
        'gantt:usages:list',
        READERS,
        'List what the live claims of the project, or of all projects, take.',
        ('GET', '/v1/usages'),
    ),
    base.rule(
        'gantt:usages:show',
        READERS,
        'Show what the live claims of a project take.',
        ('GET', '/v1/usages/{project_id}'),
    ),
]


def list_rules() -> Iterable[policy.RuleDefault]:
    """The rules of this module."""
    return RULES
