# SPDX-License-Identifier: Apache-2.0
"""Requests: places asked for by a project, or for one by another service."""

from collections.abc import Iterable

from oslo_policy import policy

from gantt.policies import base

CREATE = ('POST', '/v1/requests')

READERS = base.any_of(base.PROJECT_READER, base.SYSTEM_READER, base.ADMIN, base.SERVICE)
MEMBERS = base.any_of(base.PROJECT_MEMBER, base.ADMIN, base.SERVICE)
MANAGERS = base.any_of(base.PROJECT_MANAGER, base.ADMIN, base.SERVICE)
TRUSTED = base.any_of(base.ADMIN, base.SERVICE)

RULES = [
    base.rule(
        'gantt:requests:create',
        MEMBERS,
        'Ask for places: with dry_run, where there would be some. Who meets it without a project '
        'asks for any project and its consumers, others for their own.',
        CREATE,
    ),
    base.rule(
        'gantt:requests:create:claim',
        TRUSTED,
        'Claim the places: without dry_run. Who builds guests claims for them; a member who may '
        'do so takes room as far as the quota of its project in Gantt lets it, whatever Nova '
        'counts. Asked beside gantt:requests:create.',
        CREATE,
    ),
    base.rule(
        'gantt:requests:create:migrate',
        MANAGERS,
        'Ask for the destination of a migration (purpose migrate or live_migrate). '
        'Asked beside gantt:requests:create.',
        CREATE,
    ),
    base.rule(
        'gantt:requests:create:rules',
        TRUSTED,
        'Choose among hosts by what they are: with traits, aggregates, ignore_hosts, devices, '
        'networks, extra specs of the flavor, properties of the image, and hints other than '
        'same_host, different_host and group. Who may do so finds out by trying which hosts '
        'there are and what they have, one question at a time. Asked beside '
        'gantt:requests:create.',
        CREATE,
    ),
    base.rule(
        'gantt:requests:create:trusted',
        TRUSTED,
        'Say what only operators and other services may: a host or node by name (force_hosts, '
        'force_nodes, destination), what is believed of a server group (group.members, '
        'group.hosts), a move_id, an evacuation, a lifecycle other than host. '
        'Asked beside gantt:requests:create.',
        CREATE,
    ),
    base.rule(
        'gantt:requests:show',
        READERS,
        'Show a request with its claims and the answer that was given.',
        ('GET', '/v1/requests/{request_id}'),
    ),
    base.rule(
        'gantt:requests:hosts',
        base.any_of(base.SYSTEM_READER, base.ADMIN, base.SERVICE),
        'Read in answers and claims on which hosts they are. Others read the ids of the claims.',
        CREATE,
        ('GET', '/v1/requests/{request_id}'),
        ('DELETE', '/v1/requests/{request_id}'),
        ('PUT', '/v1/requests/{request_id}/lease'),
        ('GET', '/v1/claims'),
        ('GET', '/v1/claims/{claim_id}'),
    ),
    base.rule(
        'gantt:requests:list',
        READERS,
        'List the requests with claims of the project, or all.',
        ('GET', '/v1/requests'),
    ),
    base.rule(
        'gantt:requests:extend',
        MEMBERS,
        'Lengthen the leases of the reserved claims of a request, as far as the schedulers let.',
        ('PUT', '/v1/requests/{request_id}/lease'),
    ),
    base.rule(
        'gantt:requests:cancel',
        MEMBERS,
        'Take a request back: its reserved claims are released.',
        ('DELETE', '/v1/requests/{request_id}'),
    ),
]


def list_rules() -> Iterable[policy.RuleDefault]:
    """The rules of this module."""
    return RULES
