# SPDX-License-Identifier: Apache-2.0
"""Hosts: looked at by operators, changed by administrators."""

from collections.abc import Iterable

from oslo_policy import policy

from gantt.policies import base

OPERATORS = base.any_of(base.SYSTEM_READER, base.ADMIN)

RULES = [
    base.rule(
        'gantt:hosts:list',
        OPERATORS,
        'List the hosts with their free room.',
        ('GET', '/v1/hosts'),
        ('GET', '/v1/host-map'),
    ),
    base.rule(
        'gantt:hosts:show',
        OPERATORS,
        'Show what is believed, reported and claimed of a host.',
        ('GET', '/v1/hosts/{name}'),
        ('GET', '/v1/hosts/{name}/drain'),
        ('GET', '/v1/hosts/{name}/history'),
    ),
    base.rule(
        'gantt:events:list',
        OPERATORS,
        'Follow what happens to hosts and their claims.',
        ('GET', '/v1/events'),
    ),
    base.rule(
        'gantt:hosts:disable',
        base.ADMIN,
        'Let nothing new land on a host.',
        ('PUT', '/v1/hosts/{name}/disable'),
    ),
    base.rule(
        'gantt:hosts:enable',
        base.ADMIN,
        'Let new claims land on a host again.',
        ('PUT', '/v1/hosts/{name}/enable'),
    ),
    base.rule(
        'gantt:hosts:remove',
        base.ADMIN,
        'Forget a host without live claims.',
        ('DELETE', '/v1/hosts/{name}'),
    ),
]


def list_rules() -> Iterable[policy.RuleDefault]:
    """The rules of this module."""
    return RULES
