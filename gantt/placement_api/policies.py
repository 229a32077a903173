# SPDX-License-Identifier: Apache-2.0
"""The policy of Placement's interface: its own names and defaults.

A policy file that was written for Placement holds here too, as far as it names no rule that
ours are composed of in another way.
"""

from oslo_policy import policy

_DEPRECATED_SINCE = '4.0.0'
_DEPRECATED_REASON = 'Services have a role of their own; an administrator need not be one.'

BASE_RULES = [
    policy.RuleDefault(
        'admin_or_service_api',
        'role:admin or role:service',
        "Users of most of Placement's interface.",
        scope_types=['project'],
    ),
    policy.RuleDefault(
        'admin_or_project_reader_or_service_api',
        'role:admin or rule:project_reader_api or role:service',
        'Readers of what a project uses.',
        scope_types=['project'],
    ),
]

_DEFAULT_CHECK = 'rule:admin_or_service_api'


def _rule(
    name: str, description: str, *operations: str, check: str = _DEFAULT_CHECK, before: str = ''
) -> policy.DocumentedRuleDefault:
    """Return a rule of Placement's interface.

    :param before: the older check, which admits a caller as well where ``enforce_new_defaults`` is
        off
    """
    name = f'placement:{name}'
    deprecated = policy.DeprecatedRule(
        name=name,
        check_str=before,
        deprecated_reason=_DEPRECATED_REASON,
        deprecated_since=_DEPRECATED_SINCE,
    )
    return policy.DocumentedRuleDefault(
        name=name,
        check_str=check,
        description=description,
        operations=[
            {'method': operation.split()[0], 'path': f'/placement{operation.split()[1]}'}
            for operation in operations
        ],
        scope_types=['project'],
        deprecated_rule=deprecated if before else None,
    )


_PROVIDER = '/resource_providers/{uuid}'

RULES = [
    _rule('resource_providers:list', 'List resource providers.', 'GET /resource_providers'),
    _rule('resource_providers:create', 'Create a resource provider.', 'POST /resource_providers'),
    _rule('resource_providers:show', 'Show a resource provider.', f'GET {_PROVIDER}'),
    _rule('resource_providers:update', 'Rename or move a resource provider.', f'PUT {_PROVIDER}'),
    _rule('resource_providers:delete', 'Delete a resource provider.', f'DELETE {_PROVIDER}'),
    _rule('resource_classes:list', 'List resource classes.', 'GET /resource_classes'),
    _rule('resource_classes:create', 'Create a resource class.', 'POST /resource_classes'),
    _rule('resource_classes:show', 'Show a resource class.', 'GET /resource_classes/{name}'),
    _rule(
        'resource_classes:update',
        'Create or rename a resource class.',
        'PUT /resource_classes/{name}',
    ),
    _rule('resource_classes:delete', 'Delete a resource class.', 'DELETE /resource_classes/{name}'),
    _rule(
        'resource_providers:inventories:list',
        'List the inventories of a resource provider.',
        f'GET {_PROVIDER}/inventories',
    ),
    _rule(
        'resource_providers:inventories:create',
        'Add an inventory to a resource provider.',
        f'POST {_PROVIDER}/inventories',
    ),
    _rule(
        'resource_providers:inventories:show',
        'Show an inventory of a resource provider.',
        f'GET {_PROVIDER}/inventories/{{resource_class}}',
    ),
    _rule(
        'resource_providers:inventories:update',
        'Change the inventories of a resource provider.',
        f'PUT {_PROVIDER}/inventories',
        f'PUT {_PROVIDER}/inventories/{{resource_class}}',
    ),
    _rule(
        'resource_providers:inventories:delete',
        'Delete inventories of a resource provider.',
        f'DELETE {_PROVIDER}/inventories',
        f'DELETE {_PROVIDER}/inventories/{{resource_class}}',
    ),
    _rule(
        'resource_providers:aggregates:list',
        'List the aggregates of a resource provider.',
        f'GET {_PROVIDER}/aggregates',
    ),
    _rule(
        'resource_providers:aggregates:update',
        'Change the aggregates of a resource provider.',
        f'PUT {_PROVIDER}/aggregates',
    ),
    _rule(
        'resource_providers:usages',
        'Show what of a resource provider is used.',
        f'GET {_PROVIDER}/usages',
    ),
    _rule(
        'usages',
        'Show what a project uses.',
        'GET /usages',
        check='rule:admin_or_project_reader_or_service_api',
    ),
    _rule('traits:list', 'List traits.', 'GET /traits'),
    _rule('traits:show', 'Show a trait.', 'GET /traits/{name}'),
    _rule('traits:update', 'Create a trait.', 'PUT /traits/{name}'),
    _rule('traits:delete', 'Delete a trait.', 'DELETE /traits/{name}'),
    _rule(
        'resource_providers:traits:list',
        'List the traits of a resource provider.',
        f'GET {_PROVIDER}/traits',
    ),
    _rule(
        'resource_providers:traits:update',
        'Change the traits of a resource provider.',
        f'PUT {_PROVIDER}/traits',
    ),
    _rule(
        'resource_providers:traits:delete',
        'Take all traits of a resource provider away.',
        f'DELETE {_PROVIDER}/traits',
    ),
    _rule('allocations:manage', 'Change allocations of many consumers.', 'POST /allocations'),
    _rule(
        'allocations:list', 'List allocations of a consumer.', 'GET /allocations/{consumer_uuid}'
    ),
    _rule(
        'allocations:update',
        'Change allocations of a consumer.',
        'PUT /allocations/{consumer_uuid}',
    ),
    _rule(
        'allocations:delete',
        'Delete allocations of a consumer.',
        'DELETE /allocations/{consumer_uuid}',
    ),
    _rule(
        'resource_providers:allocations:list',
        'List allocations of a resource provider.',
        f'GET {_PROVIDER}/allocations',
    ),
    _rule(
        'allocation_candidates:list', 'List allocation candidates.', 'GET /allocation_candidates'
    ),
    _rule(
        'reshaper:reshape',
        'Change inventories and allocations at once.',
        'POST /reshaper',
        check='rule:service_api',
        before='role:admin',
    ),
]
