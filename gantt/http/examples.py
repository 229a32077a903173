# SPDX-License-Identifier: Apache-2.0
"""Examples of the OpenAPI document: they can be sent unchanged to a site with these hosts."""

from typing import Any

HOST = 'cmp-1'
REQUEST = 'c0b7a9f1-5c1f-4c64-9d2a-6d3f0d4c1a01'
CONSUMER = '6f1d2a52-0b7e-4f0e-8a55-0d8f6a3e9b02'
PLAN = 'c0b7a9f1-5c1f-4c64-9d2a-6d3f0d4c1a05'
CHANGE = 'c0b7a9f1-5c1f-4c64-9d2a-6d3f0d4c1a06'
GROUP = '1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4b03'

_SPEC: dict[str, Any] = {'resources': {'VCPU': 2, 'MEMORY_MB': 4096, 'DISK_GB': 20}}
_PLACEMENT = {'request_id': REQUEST, 'consumers': [CONSUMER], 'spec': _SPEC}

_GROUP: dict[str, Any] = {
    'uuid': GROUP,
    'policies': ['anti-affinity', {'policy': 'spread', 'level': 'zone', 'min_domains': 1}],
    'members': [
        {'name': 'web', 'count': 2, 'spec': _SPEC},
        {'name': 'db', 'spec': {'resources': {'VCPU': 4, 'MEMORY_MB': 8192}}},
    ],
}

#: operationId -> body.
BODIES: dict[str, Any] = {
    'disable_host': {'reason': 'broken fan', 'by': 'ops'},
    'set_aggregate': {'hosts': [HOST], 'metadata': {'ssd': 'true'}},
    'create_group': {'uuid': GROUP, 'policy': 'anti-affinity', 'name': 'web'},
    'create_request': _PLACEMENT,
    'create_group_plan': {'request_id': PLAN, 'group': _GROUP, 'plan_ms': 200},
    'change_group_plan': {'request_id': CHANGE, 'group': _GROUP, 'heal': True, 'plan_ms': 200},
    'extend_group_plan': {'seconds': 7200},
    'extend_lease': {'seconds': 300},
    'confirm_request': {'consumers': []},
    'release_request': {'consumers': [], 'reason': 'the volume is deleted'},
    'replay_decision': {'host_subset_size': 1},
    'what_if': {'request': {**_PLACEMENT, 'request_id': 'c0b7a9f1-5c1f-4c64-9d2a-6d3f0d4c1a04'}},
    'capacity': {'spec': _SPEC},
    'set_quota': {'limits': {'live_claims': 50, 'class:VCPU': 200, 'server_groups': None}},
    'set_zone': {'url': 'http://127.0.0.1:1', 'last_resort': True},
    'set_parent': {'identity': 'f3a1c5', 'project_id': '5f2d1c7a9b3e4c60a1d2e3f405162738'},
    'redeem_place': {'place': 'g1.AAAA'},
    'evaluate_zone': {'request': _PLACEMENT, 'want': 5},
    'count_capacity_of_zone': {'request': _PLACEMENT},
    'extend_zone_lease': {'seconds': 300},
    'show_host_digests': {'salt': '0f' * 32},
    'allocate_in_zone': {
        'request': _PLACEMENT,
        'evaluated': REQUEST,
        'tokens': ['g1.AAAA'],
        'order': 1_767_225_600_000_000,
    },
    'set_metric': {'unit': 'W', 'lower': 0, 'upper': 2000, 'description': 'power drawn'},
}
#: Name of a parameter -> a value, where one suits all operations.
PARAMETERS: dict[str, Any] = {
    'request_id': REQUEST,
    'decision_id': REQUEST,
    'claim_id': '0d5a3c1e-7f6b-5a4d-8e9c-2b1a0f9e8d05',
    'uuid': GROUP,
    'project_id': '5f2d1c7a9b3e4c60a1d2e3f405162738',
    'consumer': CONSUMER,
    'host': HOST,
    'file': 'dashboard.js',
    'limit': 100,
    'reason': 'no longer wanted',
    'resource_class': 'VCPU',
    'window': 3600,
    'sort': 'name',
    'shapes': 'VCPU:2,MEMORY_MB:4096',
    'wait': 0,
    'kind': 'claimed',
    'dry_run': False,
    'key': REQUEST,
    'since': 0,
    'behind': REQUEST,
    'check': False,
}
#: Values of ``{name}`` by the beginning of the path.
NAMES = {
    '/v1/hosts': HOST,
    '/v1/aggregates': 'rack-1',
    '/v1/resource-classes': 'CUSTOM_LICENSE',
    '/v1/declared-metrics': 'power',
    '/v1/zones': 'hall-2',
    '/v1/parents': 'region',
}
ERROR: dict[str, Any] = {
    'errors': [
        {
            'code': 'gantt.not_found',
            'title': 'Not found',
            'detail': "host 'cmp-7' is not known here; did you mean cmp-1?",
            'status': 404,
            'request_id': 'req-5e4b1a3f-0f0e-4a52-8f0b-8a6d1c2b3e06',
            'details': {'kind': 'host', 'name': 'cmp-7', 'near': ['cmp-1']},
        }
    ]
}


def parameter(path: str, name: str) -> Any:
    """Return a value of a parameter of an operation, None where none fits."""
    if name == 'name':
        values = [value for prefix, value in NAMES.items() if path.startswith(f'{prefix}/')]
        return values[0] if values else None
    return PARAMETERS.get(name)
