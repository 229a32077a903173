# SPDX-License-Identifier: Apache-2.0
"""The HTTP interface on one screen: its routes, its middleware, its factory."""

from collections.abc import Sequence
from typing import Any

import falcon
import msgspec

from gantt import exceptions
from gantt.http import audit, auth, errors, gates, middleware, openapi, origin, policy
from gantt.http.context import (
    Caller,
    Checks,
    HandlerContext,
    HttpExtension,
    LocalAnswers,
    MetricsSource,
    ReadOnlyAnswers,
    RequestsClient,
)
from gantt.http.dispatch import (
    MetricsMiddleware,
    MicroversionMiddleware,
    RawAnswer,
    Resource,
    check_route,
)
from gantt.http.handlers import (
    aggregates,
    capacity,
    claims,
    dashboard,
    decisions,
    declared_metrics,
    groups,
    hosts,
    quotas,
    requests,
    root,
)
from gantt.http.log_context import LogContext
from gantt.http.routes import Route, route
from gantt.http.settings import HttpSettings
from gantt.insights.read_model import Insights
from gantt.scheduler.ports.stores import Stores


def openapi_document(context: HandlerContext, caller: Caller) -> dict[str, Any]:
    """Show this interface as an OpenAPI 3.1 document."""
    body = msgspec.json.encode(
        openapi.document(context.routes, context.policy.defaults, at=caller.base)
    )
    return RawAnswer(body, falcon.MEDIA_JSON)  # type: ignore[return-value]


#: Lines of the base; capabilities add theirs.
ROUTES = (
    route('GET /', root.discover, 'root:show', status=300),
    route('GET /v1', root.discover_v1, 'root:show'),
    route('GET /v1/openapi.json', openapi_document, 'root:show'),
    route('GET /v1/health', root.health, 'health:show', details=root.DETAILS_POLICY),
    route('GET /metrics', root.metrics, 'metrics:show'),
    route('GET /dashboard', dashboard.show_dashboard, 'dashboard:show'),
    route('GET /dashboard/{file}', dashboard.show_dashboard_file, 'dashboard:show'),
    route('GET /v1/status', root.status, 'status:show'),
    route('GET /v1/services', root.list_services, 'services:list'),
    route('GET /v1/events', root.list_events, 'events:list'),
    route('GET /v1/host-map', root.show_host_map, 'hosts:list'),
    route('GET /v1/activity', root.show_activity, 'activity:show'),
    route('GET /v1/refused', root.show_refused, 'refused:show'),
    route('GET /v1/hosts', hosts.list_hosts, 'hosts:list'),
    route('GET /v1/hosts/{name}', hosts.show_host, 'hosts:show'),
    route('DELETE /v1/hosts/{name}', hosts.remove_host, 'hosts:remove'),
    route('PUT /v1/hosts/{name}/disable', hosts.disable_host, 'hosts:disable'),
    route('GET /v1/hosts/{name}/drain', hosts.show_drain, 'hosts:show'),
    route('GET /v1/hosts/{name}/history', hosts.show_history, 'hosts:show'),
    route('PUT /v1/hosts/{name}/enable', hosts.enable_host, 'hosts:enable'),
    route('GET /v1/aggregates', aggregates.list_aggregates, 'aggregates:list'),
    route('GET /v1/aggregates/{name}', aggregates.show_aggregate, 'aggregates:show'),
    route('PUT /v1/aggregates/{name}', aggregates.set_aggregate, 'aggregates:set', bytes_max=None),
    route('DELETE /v1/aggregates/{name}', aggregates.remove_aggregate, 'aggregates:remove'),
    route('GET /v1/server-groups', groups.list_groups, 'server_groups:list'),
    route('POST /v1/server-groups', groups.create_group, 'server_groups:create'),
    route('GET /v1/server-groups/{uuid}', groups.show_group, 'server_groups:show'),
    route('DELETE /v1/server-groups/{uuid}', groups.remove_group, 'server_groups:remove'),
    route(
        'POST /v1/requests',
        requests.create_request,
        'requests:create',
        rated=True,
        is_audited=False,
    ),
    route('GET /v1/requests', requests.list_requests, 'requests:list'),
    route('PUT /v1/requests/{request_id}/lease', requests.extend_lease, 'requests:extend'),
    route(
        'PUT /v1/requests/{request_id}/confirmation',
        requests.confirm_request,
        'requests:confirm',
    ),
    route(
        'POST /v1/requests/{request_id}/release',
        requests.release_request,
        'requests:release',
    ),
    route('GET /v1/requests/{request_id}', requests.show_request, 'requests:show'),
    route('DELETE /v1/requests/{request_id}', requests.cancel_request, 'requests:cancel'),
    route('GET /v1/decisions', decisions.list_decisions, 'decisions:list'),
    route('GET /v1/decisions/{decision_id}', decisions.show_decision, 'decisions:show'),
    route(
        'POST /v1/decisions/{decision_id}/replay',
        decisions.replay_decision,
        'decisions:replay',
        bytes_max=None,
        is_audited=False,
    ),
    route('POST /v1/what-if', capacity.what_if, 'what_if:show', bytes_max=None, is_audited=False),
    route('GET /v1/claims', claims.list_claims, 'claims:list'),
    route('GET /v1/claims/{claim_id}', claims.show_claim, 'claims:show'),
    route('DELETE /v1/claims/{claim_id}', claims.release_claim, 'claims:release'),
    route('GET /v1/usages', quotas.list_usages, 'usages:list'),
    route('GET /v1/usages/{project_id}', quotas.show_usage, 'usages:show'),
    route('POST /v1/capacity', capacity.capacity, 'capacity:show', is_audited=False),
    route('GET /v1/roll-up', capacity.show_roll_up, 'capacity:show'),
    route('GET /v1/resource-classes', capacity.list_classes, 'resource_classes:list'),
    route('PUT /v1/resource-classes/{name}', capacity.set_class, 'resource_classes:set'),
    route('GET /v1/resource-classes/{name}', capacity.show_class, 'resource_classes:list'),
    route('GET /v1/declared-metrics', declared_metrics.list_metrics, 'declared_metrics:list'),
    route('PUT /v1/declared-metrics/{name}', declared_metrics.set_metric, 'declared_metrics:set'),
    route(
        'GET /v1/declared-metrics/{name}',
        declared_metrics.show_metric,
        'declared_metrics:list',
    ),
    route(
        'DELETE /v1/declared-metrics/{name}',
        declared_metrics.remove_metric,
        'declared_metrics:remove',
    ),
    route('GET /v1/quotas', quotas.list_quotas, 'quotas:list'),
    route('GET /v1/quotas/{project_id}', quotas.show_quota, 'quotas:show'),
    route('PUT /v1/quotas/{project_id}', quotas.set_quota, 'quotas:set'),
    route('DELETE /v1/quotas/{project_id}', quotas.unset_quota, 'quotas:unset'),
    route('GET /v1/limits', quotas.show_limits, 'quotas:show'),
)


#: Paths whose names may have a slash in them, which arrives as one, however it was written.
PATHS_WITH_SLASHED_NAMES = ('/v1/aggregates/{name}', '/v1/declared-metrics/{name}')


def make_app(
    insights: Insights,
    stores: Stores,
    requests_client: RequestsClient,
    metrics: MetricsSource,
    rules: policy.PolicyEnforcer,
    settings: HttpSettings | None = None,
    checks: Checks | None = None,
    strategy: auth.Strategy = auth.noauth,
    store_entry: audit.StoreEntry = lambda entry: None,
    *,
    answers: ReadOnlyAnswers | None = None,
    extensions: Sequence[HttpExtension] = (),
) -> middleware.Wsgi:
    """Return the WSGI application.

    :param requests_client: calls the schedulers, over RPC or in-process
    :param rules: the policy
    :param checks: further health checks by name, e.g. ``{'broker': ask}``; each
        returns a line or raises GanttError
    :param strategy: identifies the caller
    :param store_entry: stores each entry of the audit trail
    :raises Misconfigured: every origin is allowed, and no token is needed
    :param answers: answers to dry runs and queries; None: only from the hosts of this service
    :param extensions: routes, checks and middleware that capabilities add
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
    routes = (*ROUTES, *(route for extension in extensions for route in extension.routes))
    all_checks = {**_health_checks(insights, stores, settings), **(checks or {})}
    for extension in extensions:
        all_checks.update(extension.checks)
    context = HandlerContext(
        insights=insights,
        stores=stores,
        client=requests_client,
        metrics=metrics,
        settings=settings,
        checks=all_checks,
        policy=rules,
        gates=gates.quota_gates(settings),
        answers=answers or LocalAnswers(insights),
        routes=routes,
    )
    layers: list[Any] = [
        MetricsMiddleware(context),
        *(layer for extension in extensions for layer in extension.middleware),
        LogContext(),
        audit.AuditMiddleware(store_entry),
        MicroversionMiddleware(),
        origin.OriginCheck(settings, is_open),
        dashboard.DashboardRedirect(),
    ]
    app = falcon.App(middleware=layers)
    app.req_options.strip_url_path_trailing_slash = True
    errors.ErrorHandlers(metrics, [route.path for route in routes]).install(app)
    _add_routes(app, ROUTES, context, strategy)
    for extension in extensions:
        _add_routes(app, extension.routes, extension.context(context), strategy)
    return middleware.stack(app, context)


def _add_routes(
    app: falcon.App, routes: Sequence[Route], context: HandlerContext, strategy: auth.Strategy
) -> None:
    """Serve routes by handlers that get ``context``."""
    by_path: dict[str, dict[str, Route]] = {}
    for line in routes:
        check_route(line, context.policy)
        by_path.setdefault(line.path, {})[line.method] = line
    for path, methods in by_path.items():
        shown_path = (
            path.replace('{name}', '{name:path}') if path in PATHS_WITH_SLASHED_NAMES else path
        )
        app.add_route(shown_path, Resource(path, methods, context, strategy))


def _health_checks(insights: Insights, stores: Stores, settings: HttpSettings) -> Checks:
    def database() -> str:
        stores.database.ping()
        return 'the database answers'

    def host_table() -> str:
        age = insights.refresh()
        if age > settings.table_age_unhealthy_seconds:
            raise exceptions.HostsUnknown(problem=f'the host table is {age:.0f} s old')
        return f'the host table is {age:.1f} s old'

    return {'database': database, 'host_table': host_table}
