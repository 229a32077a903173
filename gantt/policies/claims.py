# SPDX-License-Identifier: Apache-2.0
"""Claims: resources promised on a host."""

from collections.abc import Iterable

from oslo_policy import policy

from gantt.policies import base

READERS = base.any_of(base.PROJECT_READER, base.SYSTEM_READER, base.ADMIN, base.SERVICE)

RULES = [
    base.rule(
        'gantt:claims:list',
        READERS,
        'List the claims of the project, or of all.',
        ('GET', '/v1/claims'),
    ),
    base.rule('gantt:claims:show', READERS, 'Show a claim.', ('GET', '/v1/claims/{claim_id}')),
    base.rule(
        'gantt:claims:release',
        base.ADMIN,
        'Force a live claim to end; a guest is not touched.',
        ('DELETE', '/v1/claims/{claim_id}'),
    ),
]


def list_rules() -> Iterable[policy.RuleDefault]:
    """The rules of this module."""
    return RULES
