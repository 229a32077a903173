# SPDX-License-Identifier: Apache-2.0
"""Metrics that hosts report, and what is declared of them."""

from collections.abc import Iterable

from oslo_policy import policy

from gantt.policies import base

RULES = [
    base.rule(
        'gantt:declared_metrics:list',
        base.any_of(base.SYSTEM_READER, base.ADMIN),
        'List the metrics that are declared or reported.',
        ('GET', '/v1/declared-metrics'),
        ('GET', '/v1/declared-metrics/{name}'),
    ),
    base.rule(
        'gantt:declared_metrics:set',
        base.ADMIN,
        'Declare a metric.',
        ('PUT', '/v1/declared-metrics/{name}'),
    ),
    base.rule(
        'gantt:declared_metrics:remove',
        base.ADMIN,
        'Take the declaration of a metric back.',
        ('DELETE', '/v1/declared-metrics/{name}'),
    ),
]


def list_rules() -> Iterable[policy.RuleDefault]:
    """The rules of this module."""
    return RULES
