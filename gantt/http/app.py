# SPDX-License-Identifier: Apache-2.0
"""The HTTP interface on one screen: its routes, its middleware, its maker."""

from typing import Any

import falcon
import msgspec

from gantt import exceptions
from gantt.http import auth, errors, gates, middleware, openapi, origin, policy, trail
from gantt.http.dispatch import Observer, Raw, Resource, Route, Versions, check
from gantt.http.handlers import (
    aggregates,
    capacity,
    claims,
    dashboard,
    decisions,
    declared_metrics,
    events,
    groups,
    hosts,
    overview,
    quotas,
    requests,
    root,
    services,
    usages,
    what_if,
)
from gantt.http.settings import HttpSettings
from gantt.http.world import Caller, Checks, Metrics, RequestsClient, World
from gantt.insights.read_model import Insights
from gantt.scheduler.ports import Store


def openapi_document(world: World, caller: Caller) -> dict[str, Any]:
    """Show this interface as an OpenAPI 3.1 document."""
    body = msgspec.json.encode(openapi.document(ROUTES, at=caller.base))
    return Raw(body, falcon.MEDIA_JSON)  # type: ignore[return-value]


ROUTES = (
    Route('GET', '/', root.discover, 'gantt:root:show', 300),
    Route('GET', '/v1', root.discover_v1, 'gantt:root:show'),
    Route('GET', '/v1/openapi.json', openapi_document, 'gantt:root:show'),
    Route('GET', '/v1/health', root.health, 'gantt:health:show', details=root.DETAILS),
    Route('GET', '/metrics', root.metrics, 'gantt:metrics:show'),
    Route('GET', '/dashboard', dashboard.show_dashboard, 'gantt:dashboard:show'),
    Route('GET', '/dashboard/{file}', dashboard.show_dashboard_file, 'gantt:dashboard:show'),
    Route('GET', '/v1/status', root.status, 'gantt:status:show'),
    Route('GET', '/v1/services', services.list_services, 'gantt:services:list', minor=3),
    Route('GET', '/v1/events', events.list_events, 'gantt:events:list', minor=3),
    Route('GET', '/v1/host-map', overview.show_host_map, 'gantt:hosts:list', minor=1),
    Route('GET', '/v1/activity', overview.show_activity, 'gantt:activity:show', minor=1),
    Route('GET', '/v1/refused', overview.show_refused, 'gantt:refused:show', minor=1),
    Route('GET', '/v1/hosts', hosts.list_hosts, 'gantt:hosts:list'),
    Route('GET', '/v1/hosts/{name}', hosts.show_host, 'gantt:hosts:show'),
    Route('DELETE', '/v1/hosts/{name}', hosts.remove_host, 'gantt:hosts:remove'),
    Route('PUT', '/v1/hosts/{name}/disable', hosts.disable_host, 'gantt:hosts:disable'),
    Route('GET', '/v1/hosts/{name}/drain', hosts.show_drain, 'gantt:hosts:show', minor=3),
    Route('GET', '/v1/hosts/{name}/history', hosts.show_history, 'gantt:hosts:show', minor=3),
    Route('PUT', '/v1/hosts/{name}/enable', hosts.enable_host, 'gantt:hosts:enable'),
    Route('GET', '/v1/aggregates', aggregates.list_aggregates, 'gantt:aggregates:list'),
    Route('GET', '/v1/aggregates/{name}', aggregates.show_aggregate, 'gantt:aggregates:show'),
    Route(
        'PUT',
        '/v1/aggregates/{name}',
        aggregates.set_aggregate,
        'gantt:aggregates:set',
        bytes_max=None,
    ),
    Route(
        'DELETE', '/v1/aggregates/{name}', aggregates.remove_aggregate, 'gantt:aggregates:remove'
    ),
    Route('GET', '/v1/server-groups', groups.list_groups, 'gantt:server_groups:list'),
    Route('POST', '/v1/server-groups', groups.create_group, 'gantt:server_groups:create'),
    Route('GET', '/v1/server-groups/{uuid}', groups.show_group, 'gantt:server_groups:show'),
    Route('DELETE', '/v1/server-groups/{uuid}', groups.remove_group, 'gantt:server_groups:remove'),
    Route(
        'POST',
        '/v1/requests',
        requests.create_request,
        'gantt:requests:create',
        rated=True,
        on_trail=False,
    ),
    Route('GET', '/v1/requests', requests.list_requests, 'gantt:requests:list', minor=3),
    Route(
        'PUT',
        '/v1/requests/{request_id}/lease',
        requests.extend_lease,
        'gantt:requests:extend',
        minor=3,
    ),
    Route('GET', '/v1/requests/{request_id}', requests.show_request, 'gantt:requests:show'),
    Route('DELETE', '/v1/requests/{request_id}', requests.cancel_request, 'gantt:requests:cancel'),
    Route('GET', '/v1/decisions', decisions.list_decisions, 'gantt:decisions:list'),
    Route('GET', '/v1/decisions/{decision_id}', decisions.show_decision, 'gantt:decisions:show'),
    Route(
        'POST',
        '/v1/decisions/{decision_id}/replay',
        decisions.replay_decision,
        'gantt:decisions:replay',
        bytes_max=None,
        on_trail=False,
    ),
    Route(
        'POST', '/v1/what-if', what_if.what_if, 'gantt:what_if:show', bytes_max=None, on_trail=False
    ),
    Route('GET', '/v1/claims', claims.list_claims, 'gantt:claims:list'),
    Route('GET', '/v1/claims/{claim_id}', claims.show_claim, 'gantt:claims:show'),
    Route('DELETE', '/v1/claims/{claim_id}', claims.release_claim, 'gantt:claims:release'),
    Route('GET', '/v1/usages', usages.list_usages, 'gantt:usages:list', minor=3),
    Route('GET', '/v1/usages/{project_id}', usages.show_usage, 'gantt:usages:show', minor=3),
    Route('POST', '/v1/capacity', capacity.capacity, 'gantt:capacity:show', on_trail=False),
    Route('GET', '/v1/resource-classes', capacity.list_classes, 'gantt:resource_classes:list'),
    Route('PUT', '/v1/resource-classes/{name}', capacity.set_class, 'gantt:resource_classes:set'),
    Route(
        'GET',
        '/v1/resource-classes/{name}',
        capacity.show_class,
        'gantt:resource_classes:list',
        minor=3,
    ),
    Route(
        'GET', '/v1/declared-metrics', declared_metrics.list_metrics, 'gantt:declared_metrics:list'
    ),
    Route(
        'PUT',
        '/v1/declared-metrics/{name}',
        declared_metrics.set_metric,
        'gantt:declared_metrics:set',
    ),
    Route(
        'GET',
        '/v1/declared-metrics/{name}',
        declared_metrics.show_metric,
        'gantt:declared_metrics:list',
        minor=3,
    ),
    Route(
        'DELETE',
        '/v1/declared-metrics/{name}',
        declared_metrics.remove_metric,
        'gantt:declared_metrics:remove',
    ),
    Route('GET', '/v1/quotas', quotas.list_quotas, 'gantt:quotas:list', minor=3),
    Route('GET', '/v1/quotas/{project_id}', quotas.show_quota, 'gantt:quotas:show', minor=3),
    Route('PUT', '/v1/quotas/{project_id}', quotas.set_quota, 'gantt:quotas:set', minor=3),
    Route('DELETE', '/v1/quotas/{project_id}', quotas.unset_quota, 'gantt:quotas:unset', minor=3),
    Route('GET', '/v1/limits', quotas.show_limits, 'gantt:quotas:show', minor=3),
)


#: Whose names may have a slash in them, which comes as one, however it was written.
SLASHED = ('/v1/aggregates/{name}', '/v1/declared-metrics/{name}')


def make_app(
    insights: Insights,
    store: Store,
    requests_client: RequestsClient,
    metrics: Metrics,
    settings: HttpSettings | None = None,
    checks: Checks | None = None,
    strategy: auth.Strategy = auth.noauth,
    rules: policy.Policy | None = None,
    keep: trail.Keep = lambda entry: None,
) -> middleware.Wsgi:
    """The WSGI application.

    :param requests_client: asks the schedulers, over RPC or in-process
    :param checks: further health checks by name, e.g. ``{'broker': ask}``; each
        returns a line or raises GanttError
    :param strategy: tells who asks
    :param keep: takes each entry of the audit trail
    :raises Misconfigured: every origin may ask, and nobody is asked for a token
    :param rules: who may do what; None: as it stands in the code
    """
    settings = settings or HttpSettings()
    is_open = strategy is auth.noauth
    if is_open and '*' in settings.cors_allowed_origins:
        raise exceptions.Misconfigured(
            option='[api] cors_allowed_origins',
            problem='* lets every web page do everything in the name of whoever opens it, since '
            '[api] auth_strategy = noauth asks nobody for a token',
            fix='Name the origins, or use auth_strategy = keystone',
        )
    world = World(
        insights=insights,
        store=store,
        client=requests_client,
        metrics=metrics,
        settings=settings,
        checks={**_own_checks(insights, store, settings), **(checks or {})},
        policy=rules or policy.defaults(),
        gates=gates.gates(settings),
    )
    layers: list[Any] = [
        Observer(world),
        trail.Trail(keep),
        Versions(),
        origin.Origins(settings, is_open),
        dashboard.OneAddress(),
    ]
    app = falcon.App(middleware=layers)
    app.req_options.strip_url_path_trailing_slash = True
    errors.Handlers(metrics, [route.path for route in ROUTES]).install(app)
    by_path: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        check(route, world.policy)
        by_path.setdefault(route.path, {})[route.method] = route
    for path, routes in by_path.items():
        said = path.replace('{name}', '{name:path}') if path in SLASHED else path
        app.add_route(said, Resource(path, routes, world, strategy))
    return middleware.stack(app, world)


def _own_checks(insights: Insights, store: Store, settings: HttpSettings) -> Checks:
    def database() -> str:
        store.ping()
        return 'the database answers'

    def host_table() -> str:
        age = insights.freshen()
        if age > settings.table_age_unhealthy_seconds:
            raise exceptions.HostsUnknown(problem=f'the host table is {age:.0f} s old')
        return f'the host table is {age:.1f} s old'

    return {'database': database, 'host_table': host_table}
