# SPDX-License-Identifier: Apache-2.0
"""The default policy of zones: those around this one, and requests of parent zones."""

from gantt.policies import ADMIN, ANY_READERS, OPERATORS, OPERATORS_AND_SERVICES, rule

RULES = [
    rule(
        'gantt:zones:list',
        OPERATORS,
        'List and show child and parent zones, and whether they answer.',
        'GET /v1/zones',
        'GET /v1/zones/{name}',
        'GET /v1/zone-tree',
    ),
    rule(
        'gantt:zones:set',
        ADMIN,
        'Register a child zone, or change its settings.',
        'PUT /v1/zones/{name}',
    ),
    rule(
        'gantt:zones:remove',
        ADMIN,
        'Remove a child zone.',
        'DELETE /v1/zones/{name}',
    ),
    rule(
        'gantt:parents:list',
        OPERATORS,
        'List the parent zones that may query this zone.',
        'GET /v1/parents',
    ),
    rule(
        'gantt:parents:set',
        ADMIN,
        'Register a parent zone that may query this zone, or change its limits.',
        'PUT /v1/parents/{name}',
    ),
    rule(
        'gantt:parents:remove',
        ADMIN,
        'Remove a parent zone.',
        'DELETE /v1/parents/{name}',
    ),
    rule(
        'gantt:sealed_hosts:unseal',
        OPERATORS_AND_SERVICES,
        'Decrypt a sealed host of this zone: for conductors of this zone.',
        'POST /v1/sealed-hosts',
    ),
    rule(
        'gantt:zone:query',
        ANY_READERS,
        'Query this zone as a parent zone. The caller has to be registered as one as well: see '
        'gantt:parents:set.',
        'GET /zone/v1',
        'GET /zone/v1/summary',
        'GET /zone/v1/changes',
        'POST /zone/v1/evaluations',
        'POST /zone/v1/capacity',
        'PUT /zone/v1/allocations/{key}',
        'PUT /zone/v1/allocations/{key}/lease',
        'GET /zone/v1/explanations/{key}',
        'GET /zone/v1/allocations/{key}',
        'DELETE /zone/v1/allocations/{key}',
        'DELETE /zone/v1/allocations/{key}/claims/{claim_id}',
    ),
    rule(
        'gantt:zone:compare',
        ANY_READERS,
        'Compare, as a parent zone in its audit, the hosts known here and in child zones, as '
        'salted digests. A caller can test a guessed host name against them; "!" keeps them here.',
        'POST /zone/v1/host-digests',
    ),
]
