# SPDX-License-Identifier: Apache-2.0
"""Server groups: each belongs to a project; those of others are not there."""

from collections.abc import Iterable

from oslo_policy import policy

from gantt.policies import base

READERS = base.any_of(base.PROJECT_READER, base.SYSTEM_READER, base.ADMIN, base.SERVICE)
MEMBERS = base.any_of(base.PROJECT_MEMBER, base.ADMIN, base.SERVICE)

RULES = [
    base.rule(
        'gantt:server_groups:list',
        READERS,
        'List the server groups of the project, or of all.',
        ('GET', '/v1/server-groups'),
    ),
    base.rule(
        'gantt:server_groups:show',
        READERS,
        'Show a server group with its members.',
        ('GET', '/v1/server-groups/{uuid}'),
    ),
    base.rule(
        'gantt:server_groups:create',
        MEMBERS,
        'Create a server group.',
        ('POST', '/v1/server-groups'),
    ),
    base.rule(
        'gantt:server_groups:remove',
        MEMBERS,
        'Remove a server group without live members.',
        ('DELETE', '/v1/server-groups/{uuid}'),
    ),
]


def list_rules() -> Iterable[policy.RuleDefault]:
    """The rules of this module."""
    return RULES
