# SPDX-License-Identifier: Apache-2.0
"""Capacity and resource classes."""

from collections.abc import Iterable

from oslo_policy import policy

from gantt.policies import base

RULES = [
    base.rule(
        'gantt:capacity:show',
        base.any_of(base.SYSTEM_READER, base.ADMIN),
        'Count how many more of a shape fit, and where.',
        ('POST', '/v1/capacity'),
    ),
    base.rule(
        'gantt:resource_classes:list',
        base.any_of(base.READER, base.ADMIN, base.SERVICE),
        'List the resource classes that can be asked for.',
        ('GET', '/v1/resource-classes'),
        ('GET', '/v1/resource-classes/{name}'),
    ),
    base.rule(
        'gantt:resource_classes:set',
        base.ADMIN,
        'Declare a custom resource class.',
        ('PUT', '/v1/resource-classes/{name}'),
    ),
]


def list_rules() -> Iterable[policy.RuleDefault]:
    """The rules of this module."""
    return RULES
