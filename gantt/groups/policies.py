# SPDX-License-Identifier: Apache-2.0
"""The default policy of plans of groups: places that a project holds for members to come."""

from gantt.policies import MEMBERS, READERS, TRUSTED, rule

RULES = [
    rule(
        'gantt:group_plans:create',
        MEMBERS,
        'Plan a group with dry_run. To hold a place for each member asks for '
        'gantt:requests:create:claim as well, since held places are claims. What members ask for '
        'is checked as that of a request: see '
        'gantt:requests:create:rules and gantt:requests:create:trusted, which names of hosts, '
        'pools and domains in policies need as well.',
        'POST /v1/group-plans',
    ),
    rule(
        'gantt:group_plans:long',
        TRUSTED,
        'Hold places for longer than [claims] plan_lease_seconds, up to plan_lease_seconds_max. '
        'Checked in addition to the rule of the operation.',
        'POST /v1/group-plans',
        'PUT /v1/group-plans/{uuid}',
        'PUT /v1/group-plans/{uuid}/lease',
    ),
    rule(
        'gantt:group_plans:list',
        READERS,
        'List the plans of groups of the project, or of all.',
        'GET /v1/group-plans',
    ),
    rule(
        'gantt:group_plans:show',
        READERS,
        'Show the plan of a group, and what has become of its members.',
        'GET /v1/group-plans/{uuid}',
    ),
    rule(
        'gantt:group_plans:change',
        MEMBERS,
        'Grow, shrink, change or heal a planned group. It needs the right to claim as well, and '
        'its description is checked as that of gantt:group_plans:create.',
        'PUT /v1/group-plans/{uuid}',
        'POST /v1/group-plans/{uuid}/scale',
    ),
    rule(
        'gantt:group_plans:extend',
        MEMBERS,
        'Hold the places of a plan longer, which needs the right to claim as well.',
        'PUT /v1/group-plans/{uuid}/lease',
    ),
    rule(
        'gantt:group_plans:release',
        MEMBERS,
        'Release the places of a plan that no create has taken.',
        'DELETE /v1/group-plans/{uuid}',
    ),
]
