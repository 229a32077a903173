# SPDX-License-Identifier: Apache-2.0
"""The default policy of the base: the rules in force where no policy file has others.

Capabilities have rules of their own; ``gantt.cmd.policies`` has all of them.

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
        'Readers of everything, who change nothing.',
    ),
    policy.RuleDefault('reader_api', 'role:reader', 'Readers, by whatever scope.'),
    policy.RuleDefault(
        'project_reader_api',
        'role:reader and project_id:%(project_id)s',
        'Readers of the project.',
    ),
    policy.RuleDefault(
        'project_member_api',
        'role:member and project_id:%(project_id)s',
        'Members of the project.',
    ),
    policy.RuleDefault(
        'project_manager_api',
        'role:manager and project_id:%(project_id)s',
        'Managers of the project.',
    ),
]


def any_of(*checks: str) -> str:
    """Return the check that passes where any of ``checks`` passes."""
    return ' or '.join(checks)


TRUSTED = any_of(ADMIN, SERVICE)
OPERATORS = any_of(SYSTEM_READER, ADMIN)
OPERATORS_AND_SERVICES = any_of(SYSTEM_READER, ADMIN, SERVICE)
READERS = any_of(PROJECT_READER, SYSTEM_READER, ADMIN, SERVICE)
MEMBERS = any_of(PROJECT_MEMBER, ADMIN, SERVICE)
MANAGERS = any_of(PROJECT_MANAGER, ADMIN, SERVICE)
ANY_READERS = any_of(READER, ADMIN, SERVICE)


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


RULES = [
    # The service itself: what is served, how it is, the dashboard.
    rule(
        'gantt:root:show',
        EVERYBODY,
        'Show which versions are served, and the OpenAPI document.',
        'GET /',
        'GET /v1',
        'GET /v1/openapi.json',
    ),
    rule(
        'gantt:health:show',
        EVERYBODY,
        'Check the database, the broker and the age of the host table.',
        'GET /v1/health',
    ),
    rule(
        'gantt:health:details',
        OPERATORS,
        'Read the results of the health checks, which name servers and quote their errors. Others '
        'read whether all is well. Checked in addition to gantt:health:show.',
        'GET /v1/health',
    ),
    rule(
        'gantt:dashboard:show',
        EVERYBODY,
        'Load the dashboard page. It has no data in it and asks for that by its own token.',
        'GET /dashboard',
        'GET /dashboard/{file}',
    ),
    rule(
        'gantt:metrics:show',
        OPERATORS,
        "Show the metrics of this process in Prometheus' text form. A collector without a token "
        'needs "@" here.',
        'GET /metrics',
    ),
    rule(
        'gantt:status:show',
        OPERATORS,
        'Show the service at a glance: hosts, usage, what was refused.',
        'GET /v1/status',
    ),
    rule(
        'gantt:services:list',
        OPERATORS,
        'List the processes of the site: schedulers, APIs and sources, with version and the '
        'digest of their configuration.',
        'GET /v1/services',
    ),
    rule(
        'gantt:activity:show',
        OPERATORS,
        'Show decisions over time, how long hosts took to confirm, and claims by state.',
        'GET /v1/activity',
    ),
    rule(
        'gantt:refused:show',
        OPERATORS,
        "Sum up which filters removed the hosts of everybody's refused requests.",
        'GET /v1/refused',
    ),
    # Hosts: read by operators, changed by administrators.
    rule(
        'gantt:hosts:list',
        OPERATORS,
        'List the hosts with their free room.',
        'GET /v1/hosts',
        'GET /v1/host-map',
    ),
    rule(
        'gantt:hosts:show',
        OPERATORS,
        'Show what is believed, reported and claimed of a host.',
        'GET /v1/hosts/{name}',
        'GET /v1/hosts/{name}/drain',
        'GET /v1/hosts/{name}/history',
    ),
    rule(
        'gantt:events:list',
        OPERATORS,
        'Follow what happens to hosts and their claims.',
        'GET /v1/events',
    ),
    rule(
        'gantt:hosts:disable',
        ADMIN,
        'Let nothing new land on a host.',
        'PUT /v1/hosts/{name}/disable',
    ),
    rule(
        'gantt:hosts:enable',
        ADMIN,
        'Let new claims land on a host again.',
        'PUT /v1/hosts/{name}/enable',
    ),
    rule(
        'gantt:hosts:remove', ADMIN, 'Forget a host without live claims.', 'DELETE /v1/hosts/{name}'
    ),
    # Aggregates: their metadata holds operators' rules.
    rule('gantt:aggregates:list', OPERATORS, 'List the aggregates.', 'GET /v1/aggregates'),
    rule('gantt:aggregates:show', OPERATORS, 'Show an aggregate.', 'GET /v1/aggregates/{name}'),
    rule(
        'gantt:aggregates:set',
        ADMIN,
        'Create an aggregate, or change its hosts and metadata.',
        'PUT /v1/aggregates/{name}',
    ),
    rule('gantt:aggregates:remove', ADMIN, 'Remove an aggregate.', 'DELETE /v1/aggregates/{name}'),
    # Server groups: each belongs to a project; those of others are not there.
    rule(
        'gantt:server_groups:list',
        READERS,
        'List the server groups of the project, or of all.',
        'GET /v1/server-groups',
    ),
    rule(
        'gantt:server_groups:show',
        READERS,
        'Show a server group with its members.',
        'GET /v1/server-groups/{uuid}',
    ),
    rule('gantt:server_groups:create', MEMBERS, 'Create a server group.', 'POST /v1/server-groups'),
    rule(
        'gantt:server_groups:remove',
        MEMBERS,
        'Remove a server group without live members.',
        'DELETE /v1/server-groups/{uuid}',
    ),
    # Requests: places requested by a project, or for one by another service.
    rule(
        'gantt:requests:create',
        MEMBERS,
        'Request places; with dry_run, without claims. A caller that passes without a project '
        'requests for any project and its consumers, others for their own.',
        'POST /v1/requests',
    ),
    rule(
        'gantt:requests:create:claim',
        TRUSTED,
        'Claim the places: without dry_run. It is for the services that build guests; a member '
        'with this right takes room up to the quota of its project in Gantt, whatever Nova counts. '
        'Checked in addition to gantt:requests:create.',
        'POST /v1/requests',
    ),
    rule(
        'gantt:requests:create:migrate',
        MANAGERS,
        'Request the destination of a migration (purpose migrate or live_migrate). Checked in '
        'addition to gantt:requests:create.',
        'POST /v1/requests',
    ),
    rule(
        'gantt:requests:create:rules',
        TRUSTED,
        'Choose among hosts by what they are: with traits, aggregates, ignore_hosts, devices, '
        'networks, extra specs of the flavor, properties of the image, and hints other than '
        'same_host, different_host and group. A caller with this right can find out by trial '
        'which hosts there are and what they have. Checked in addition to gantt:requests:create.',
        'POST /v1/requests',
        'POST /v1/group-plans',
        'PUT /v1/group-plans/{uuid}',
    ),
    rule(
        'gantt:requests:create:trusted',
        TRUSTED,
        'Set fields for operators and other services only: a host or node by name (force_hosts, '
        'force_nodes, destination), the members and hosts of a server group (group.members, '
        'group.hosts), a move_id, an evacuation, a lifecycle other than host. Checked in addition '
        'to gantt:requests:create.',
        'POST /v1/requests',
        'POST /v1/group-plans',
        'PUT /v1/group-plans/{uuid}',
    ),
    rule(
        'gantt:requests:show',
        READERS,
        'Show a request with its claims and the answer that was given.',
        'GET /v1/requests/{request_id}',
    ),
    rule(
        'gantt:requests:hosts',
        OPERATORS_AND_SERVICES,
        'Read in answers and claims on which hosts they are. Others read the ids of the claims.',
        'POST /v1/requests',
        'GET /v1/requests/{request_id}',
        'DELETE /v1/requests/{request_id}',
        'PUT /v1/requests/{request_id}/lease',
        'PUT /v1/requests/{request_id}/confirmation',
        'POST /v1/requests/{request_id}/release',
        'GET /v1/claims',
        'GET /v1/claims/{claim_id}',
        'POST /v1/group-plans',
        'GET /v1/group-plans/{uuid}',
        'PUT /v1/group-plans/{uuid}',
    ),
    rule(
        'gantt:requests:list',
        READERS,
        'List the requests with claims of the project, or all.',
        'GET /v1/requests',
    ),
    rule(
        'gantt:requests:extend',
        MEMBERS,
        'Lengthen the leases of the reserved claims of a request, as far as the schedulers let.',
        'PUT /v1/requests/{request_id}/lease',
    ),
    rule(
        'gantt:requests:confirm',
        MEMBERS,
        'Confirm what a request has of pools: its claims last until they are released.',
        'PUT /v1/requests/{request_id}/confirmation',
    ),
    rule(
        'gantt:requests:release',
        MEMBERS,
        'Release what a request has of pools: its claims end.',
        'POST /v1/requests/{request_id}/release',
    ),
    rule(
        'gantt:requests:cancel',
        MEMBERS,
        'Take a request back: its reserved claims are released.',
        'DELETE /v1/requests/{request_id}',
    ),
    # Decisions: shown whole to operators, in general terms to the project of the request.
    rule(
        'gantt:decisions:list',
        READERS,
        'List the decisions of the project, or of all.',
        'GET /v1/decisions',
    ),
    rule(
        'gantt:decisions:show',
        READERS,
        'Show a decision, and in general words what was in the way.',
        'GET /v1/decisions/{decision_id}',
    ),
    rule(
        'gantt:decisions:explain',
        OPERATORS_AND_SERVICES,
        'Read decisions and refusals whole: hosts, numbers, filters and scores. Checked in '
        'addition to the rule of the operation.',
        'GET /v1/decisions',
        'GET /v1/decisions/{decision_id}',
        'POST /v1/requests',
    ),
    rule(
        'gantt:decisions:replay',
        OPERATORS,
        'Make a decision again on the table that it saw. Nothing is written.',
        'POST /v1/decisions/{decision_id}/replay',
    ),
    rule(
        'gantt:what_if:show',
        OPERATORS,
        'Place a request on hosts as they are and as they might be. Nothing is written.',
        'POST /v1/what-if',
    ),
    # Claims: resources promised on a host.
    rule(
        'gantt:claims:list', READERS, 'List the claims of the project, or of all.', 'GET /v1/claims'
    ),
    rule('gantt:claims:show', READERS, 'Show a claim.', 'GET /v1/claims/{claim_id}'),
    rule(
        'gantt:claims:release',
        ADMIN,
        'Force a live claim to end; a guest is not touched.',
        'DELETE /v1/claims/{claim_id}',
    ),
    # Usage by project: shown to operators for all, to a project for its own.
    rule(
        'gantt:usages:list',
        READERS,
        'List what the live claims of the project, or of all projects, take.',
        'GET /v1/usages',
    ),
    rule(
        'gantt:usages:show',
        READERS,
        'Show what the live claims of a project take.',
        'GET /v1/usages/{project_id}',
    ),
    # Capacity and resource classes.
    rule(
        'gantt:capacity:show',
        OPERATORS,
        'Count how many more of a shape fit, and where; see the cloud as one pool.',
        'POST /v1/capacity',
        'GET /v1/roll-up',
    ),
    rule(
        'gantt:resource_classes:list',
        ANY_READERS,
        'List the resource classes that can be asked for.',
        'GET /v1/resource-classes',
        'GET /v1/resource-classes/{name}',
    ),
    rule(
        'gantt:resource_classes:set',
        ADMIN,
        'Declare a custom resource class.',
        'PUT /v1/resource-classes/{name}',
    ),
    # Metrics that hosts report, and what is declared of them.
    rule(
        'gantt:declared_metrics:list',
        OPERATORS,
        'List the metrics that are declared or reported.',
        'GET /v1/declared-metrics',
        'GET /v1/declared-metrics/{name}',
    ),
    rule(
        'gantt:declared_metrics:set', ADMIN, 'Declare a metric.', 'PUT /v1/declared-metrics/{name}'
    ),
    rule(
        'gantt:declared_metrics:remove',
        ADMIN,
        'Take the declaration of a metric back.',
        'DELETE /v1/declared-metrics/{name}',
    ),
    # Quotas: how much each project may have, and what it has.
    rule(
        'gantt:quotas:list',
        OPERATORS,
        'List the limits that are set, of all projects.',
        'GET /v1/quotas',
    ),
    rule(
        'gantt:quotas:show',
        READERS,
        'Show the limits of a project, where each is from, and what is used.',
        'GET /v1/quotas/{project_id}',
        'GET /v1/limits',
    ),
    rule(
        'gantt:quotas:set',
        ADMIN,
        'Set limits of a project, or those of every project that has none of its own.',
        'PUT /v1/quotas/{project_id}',
    ),
    rule(
        'gantt:quotas:unset',
        ADMIN,
        'Take all limits of a project away: the defaults hold again.',
        'DELETE /v1/quotas/{project_id}',
    ),
]
