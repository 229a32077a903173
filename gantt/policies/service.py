# SPDX-License-Identifier: Apache-2.0
"""The service itself: what is served, how it is, the dashboard."""

from collections.abc import Iterable

from oslo_policy import policy

from gantt.policies import base

OPERATORS = base.any_of(base.SYSTEM_READER, base.ADMIN)

RULES = [
    base.rule(
        'gantt:root:show',
        base.EVERYBODY,
        'Show which versions are served, and the OpenAPI document.',
        ('GET', '/'),
        ('GET', '/v1'),
        ('GET', '/v1/openapi.json'),
    ),
    base.rule(
        'gantt:health:show',
        base.EVERYBODY,
        'Check the database, the broker and the age of the host table.',
        ('GET', '/v1/health'),
    ),
    base.rule(
        'gantt:health:details',
        OPERATORS,
        'Read what each check of health found: it names servers and what they said. Others read '
        'whether all is well. Asked beside gantt:health:show.',
        ('GET', '/v1/health'),
    ),
    base.rule(
        'gantt:dashboard:show',
        base.EVERYBODY,
        'Load the dashboard page. It has no data in it and asks for that by its own token.',
        ('GET', '/dashboard'),
        ('GET', '/dashboard/{file}'),
    ),
    base.rule(
        'gantt:metrics:show',
        OPERATORS,
        "Show the metrics of this process in Prometheus' text form. A collector without a token "
        'needs "@" here.',
        ('GET', '/metrics'),
    ),
    base.rule(
        'gantt:status:show',
        OPERATORS,
        'Show the service at a glance: hosts, usage, what was refused.',
        ('GET', '/v1/status'),
    ),
    base.rule(
        'gantt:services:list',
        OPERATORS,
        'List the processes of the site: schedulers, APIs and sources, with version and the digest '
        'of their configuration.',
        ('GET', '/v1/services'),
    ),
    base.rule(
        'gantt:activity:show',
        OPERATORS,
        'Show decisions over time, how long hosts took to confirm, and claims by state.',
        ('GET', '/v1/activity'),
    ),
    base.rule(
        'gantt:refused:show',
        OPERATORS,
        "Sum up which filters removed the hosts of everybody's refused requests.",
        ('GET', '/v1/refused'),
    ),
]


def list_rules() -> Iterable[policy.RuleDefault]:
    """The rules of this module."""
    return RULES
