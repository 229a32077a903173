# SPDX-License-Identifier: Apache-2.0
"""The callers of the interfaces: rules that every other rule is composed of.

The roles and scopes are those that keystone bootstraps; a role implies the
ones before it: reader, member, manager, admin.  ``service`` is beside them.
"""

from oslo_policy import policy

EVERYBODY = '@'

ADMIN = 'rule:admin_api'
SERVICE = 'rule:service_api'
SYSTEM_READER = 'rule:system_reader_api'
READER = 'rule:reader_api'
PROJECT_READER = 'rule:project_reader_api'
PROJECT_MEMBER = 'rule:project_member_api'
PROJECT_MANAGER = 'rule:project_manager_api'

#: A token of a domain opens nothing: Gantt knows projects and the whole system.
SCOPES = ['system', 'project']

CALLERS = [
    policy.RuleDefault('admin_api', 'role:admin', 'Administrators, by whatever scope.'),
    policy.RuleDefault('service_api', 'role:service', 'Other services, such as a conductor.'),
    policy.RuleDefault(
        'system_reader_api',
        'role:reader and system_scope:all',
        'Who may look at everything and change nothing.',
    ),
    policy.RuleDefault('reader_api', 'role:reader', 'Readers, by whatever scope.'),
    policy.RuleDefault(
        'project_reader_api',
        'role:reader and project_id:%(project_id)s',
        'Who may look at what belongs to the project.',
    ),
    policy.RuleDefault(
        'project_member_api',
        'role:member and project_id:%(project_id)s',
        'Who may use what the project may.',
    ),
    policy.RuleDefault(
        'project_manager_api',
        'role:manager and project_id:%(project_id)s',
        'Who may move what belongs to the project.',
    ),
]


def any_of(*checks: str) -> str:
    """Return a rule that each of ``checks`` meets."""
    return ' or '.join(checks)


def rule(name: str, check: str, description: str, *operations: str) -> policy.DocumentedRuleDefault:
    """Return a rule of the HTTP interface.

    :param operations: method and path of each route that checks it
    """
    return policy.DocumentedRuleDefault(
        name=name,
        check_str=check,
        description=description,
        operations=[
            {'method': operation.split()[0], 'path': operation.split()[1]}
            for operation in operations
        ],
        scope_types=SCOPES,
    )
