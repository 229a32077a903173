# SPDX-License-Identifier: Apache-2.0
"""The HTTP interface on one screen: its routes, its middleware, its factory."""

from collections.abc import Callable
from typing import Any

import falcon
import msgspec

from gantt import exceptions
from gantt.http import auth, errors, gates, middleware, openapi, origin, policy, trail
from gantt.http.context import (
    Caller,
    Checks,
    HandlerContext,
    MetricsSource,
    NoPlans,
    PlansClient,
    RequestsClient,
)
from gantt.http.dispatch import HandlerVersions, Observer, Raw, Resource, Route, check
from gantt.http.handlers import (
    aggregates,
    capacity,
    claims,
    dashboard,
    decisions,
    declared_metrics,
    group_plans,
    groups,
    hosts,
    overview,
    quotas,
    requests,
    root,
    zone_audit,
    zone_records,
    zone_tree,
    zones,
)
from gantt.http.log_context import LogContext
from gantt.http.settings import HttpSettings
from gantt.insights.read_model import Insights
from gantt.scheduler.ports import Stores
from gantt.scheduler.zones.conditions import summed_up
from gantt.scheduler.zones.context import NoCalls, ZoneContext


def openapi_document(world: HandlerContext, caller: Caller) -> dict[str, Any]:
    """Show this interface as an OpenAPI 3.1 document."""
    body = msgspec.json.encode(openapi.document(ROUTES, at=caller.base))
    return Raw(body, falcon.MEDIA_JSON)  # type: ignore[return-value]


def _route(what: str, handler: Callable[..., Any], rule: str, **more: Any) -> Route:
    """Return a route.

    :param rule: of ``gantt.policies``, without the ``gantt:`` that all begin with
    """
    method, path = what.split()
    return Route(method, path, handler, f'gantt:{rule}', **more)


ROUTES = (
    _route('GET /', root.discover, 'root:show', status=300),
    _route('GET /v1', root.discover_v1, 'root:show'),
    _route('GET /v1/openapi.json', openapi_document, 'root:show'),
    _route('GET /v1/health', root.health, 'health:show', details=root.DETAILS),
    _route('GET /metrics', root.metrics, 'metrics:show'),
    _route('GET /dashboard', dashboard.show_dashboard, 'dashboard:show'),
    _route('GET /dashboard/{file}', dashboard.show_dashboard_file, 'dashboard:show'),
    _route('GET /v1/status', root.status, 'status:show'),
    _route('GET /v1/services', overview.list_services, 'services:list'),
    _route('GET /v1/events', overview.list_events, 'events:list'),
    _route('GET /v1/host-map', overview.show_host_map, 'hosts:list'),
    _route('GET /v1/activity', overview.show_activity, 'activity:show'),
    _route('GET /v1/refused', overview.show_refused, 'refused:show'),
    _route('GET /v1/hosts', hosts.list_hosts, 'hosts:list'),
    _route('GET /v1/hosts/{name}', hosts.show_host, 'hosts:show'),
    _route('DELETE /v1/hosts/{name}', hosts.remove_host, 'hosts:remove'),
    _route('PUT /v1/hosts/{name}/disable', hosts.disable_host, 'hosts:disable'),
    _route('GET /v1/hosts/{name}/drain', hosts.show_drain, 'hosts:show'),
    _route('GET /v1/hosts/{name}/history', hosts.show_history, 'hosts:show'),
    _route('PUT /v1/hosts/{name}/enable', hosts.enable_host, 'hosts:enable'),
    _route('GET /v1/aggregates', aggregates.list_aggregates, 'aggregates:list'),
    _route('GET /v1/aggregates/{name}', aggregates.show_aggregate, 'aggregates:show'),
    _route('PUT /v1/aggregates/{name}', aggregates.set_aggregate, 'aggregates:set', bytes_max=None),
    _route('DELETE /v1/aggregates/{name}', aggregates.remove_aggregate, 'aggregates:remove'),
    _route('GET /v1/server-groups', groups.list_groups, 'server_groups:list'),
    _route('POST /v1/server-groups', groups.create_group, 'server_groups:create'),
    _route('GET /v1/server-groups/{uuid}', groups.show_group, 'server_groups:show'),
    _route('DELETE /v1/server-groups/{uuid}', groups.remove_group, 'server_groups:remove'),
    _route(
        'POST /v1/group-plans',
        group_plans.create_group_plan,
        'group_plans:create',
        rated=True,
        bytes_max=None,
    ),
    _route('GET /v1/group-plans', group_plans.list_group_plans, 'group_plans:list'),
    _route('GET /v1/group-plans/{uuid}', group_plans.show_group_plan, 'group_plans:show'),
    _route(
        'PUT /v1/group-plans/{uuid}',
        group_plans.change_group_plan,
        'group_plans:change',
        bytes_max=None,
    ),
    _route(
        'PUT /v1/group-plans/{uuid}/lease',
        group_plans.extend_group_plan,
        'group_plans:extend',
    ),
    _route(
        'DELETE /v1/group-plans/{uuid}',
        group_plans.release_group_plan,
        'group_plans:release',
    ),
    _route(
        'POST /v1/requests', requests.create_request, 'requests:create', rated=True, on_trail=False
    ),
    _route('GET /v1/requests', requests.list_requests, 'requests:list'),
    _route('PUT /v1/requests/{request_id}/lease', requests.extend_lease, 'requests:extend'),
    _route(
        'PUT /v1/requests/{request_id}/confirmation',
        requests.confirm_request,
        'requests:confirm',
    ),
    _route(
        'POST /v1/requests/{request_id}/release',
        requests.release_request,
        'requests:release',
    ),
    _route('GET /v1/requests/{request_id}', requests.show_request, 'requests:show'),
    _route('DELETE /v1/requests/{request_id}', requests.cancel_request, 'requests:cancel'),
    _route('GET /v1/decisions', decisions.list_decisions, 'decisions:list'),
    _route('GET /v1/decisions/{decision_id}', decisions.show_decision, 'decisions:show'),
    _route(
        'POST /v1/decisions/{decision_id}/replay',
        decisions.replay_decision,
        'decisions:replay',
        bytes_max=None,
        on_trail=False,
    ),
    _route('POST /v1/what-if', capacity.what_if, 'what_if:show', bytes_max=None, on_trail=False),
    _route('GET /v1/claims', claims.list_claims, 'claims:list'),
    _route('GET /v1/claims/{claim_id}', claims.show_claim, 'claims:show'),
    _route('DELETE /v1/claims/{claim_id}', claims.release_claim, 'claims:release'),
    _route('GET /v1/usages', quotas.list_usages, 'usages:list'),
    _route('GET /v1/usages/{project_id}', quotas.show_usage, 'usages:show'),
    _route('POST /v1/capacity', capacity.capacity, 'capacity:show', on_trail=False),
    _route('GET /v1/roll-up', capacity.show_roll_up, 'capacity:show'),
    _route('GET /v1/resource-classes', capacity.list_classes, 'resource_classes:list'),
    _route('PUT /v1/resource-classes/{name}', capacity.set_class, 'resource_classes:set'),
    _route('GET /v1/resource-classes/{name}', capacity.show_class, 'resource_classes:list'),
    _route('GET /v1/declared-metrics', declared_metrics.list_metrics, 'declared_metrics:list'),
    _route('PUT /v1/declared-metrics/{name}', declared_metrics.set_metric, 'declared_metrics:set'),
    _route(
        'GET /v1/declared-metrics/{name}',
        declared_metrics.show_metric,
        'declared_metrics:list',
    ),
    _route(
        'DELETE /v1/declared-metrics/{name}',
        declared_metrics.remove_metric,
        'declared_metrics:remove',
    ),
    _route('GET /v1/quotas', quotas.list_quotas, 'quotas:list'),
    _route('GET /v1/quotas/{project_id}', quotas.show_quota, 'quotas:show'),
    _route('PUT /v1/quotas/{project_id}', quotas.set_quota, 'quotas:set'),
    _route('DELETE /v1/quotas/{project_id}', quotas.unset_quota, 'quotas:unset'),
    _route('GET /v1/limits', quotas.show_limits, 'quotas:show'),
    _route('GET /v1/zones', zone_records.list_zones, 'zones:list'),
    _route('GET /v1/zones/{name}', zone_records.show_zone, 'zones:list'),
    _route('PUT /v1/zones/{name}', zone_records.set_zone, 'zones:set'),
    _route('DELETE /v1/zones/{name}', zone_records.remove_zone, 'zones:remove'),
    _route('GET /v1/zone-tree', zone_tree.show_zone_tree, 'zones:list'),
    _route('GET /v1/parents', zone_records.list_parents, 'parents:list'),
    _route('PUT /v1/parents/{name}', zone_records.set_parent, 'parents:set'),
    _route('DELETE /v1/parents/{name}', zone_records.remove_parent, 'parents:remove'),
    _route('POST /v1/places', zones.redeem_place, 'places:redeem', on_trail=False),
    _route('GET /zone/v1', zones.discover_zone, 'zone:ask'),
    _route('GET /zone/v1/summary', zones.summarize_zone, 'zone:ask', is_conditional=True),
    _route(
        'GET /zone/v1/changes',
        zones.show_zone_changes,
        'zone:ask',
        is_conditional=True,
    ),
    _route(
        'POST /zone/v1/host-digests',
        zone_audit.show_host_digests,
        'zone:compare',
        on_trail=False,
    ),
    _route('POST /zone/v1/evaluations', zones.evaluate_zone, 'zone:ask', on_trail=False),
    _route(
        'PUT /zone/v1/allocations/{key}',
        zones.allocate_in_zone,
        'zone:ask',
        bytes_max=None,
        on_trail=False,
    ),
    _route(
        'POST /zone/v1/capacity',
        zones.count_capacity_of_zone,
        'zone:ask',
        on_trail=False,
    ),
    _route('GET /zone/v1/allocations/{key}', zones.show_zone_allocation, 'zone:ask'),
    _route(
        'PUT /zone/v1/allocations/{key}/lease',
        zones.extend_zone_lease,
        'zone:ask',
        on_trail=False,
    ),
    _route('GET /zone/v1/explanations/{key}', zones.explain_zone_allocation, 'zone:ask'),
    _route('DELETE /zone/v1/allocations/{key}', zones.release_zone_allocation, 'zone:ask'),
    _route(
        'DELETE /zone/v1/allocations/{key}/claims/{claim_id}',
        zones.end_claim_of_zone,
        'zone:ask',
    ),
)


#: Paths whose names may have a slash in them, which arrives as one, however it was written.
SLASHED = ('/v1/aggregates/{name}', '/v1/declared-metrics/{name}')


def make_app(
    insights: Insights,
    stores: Stores,
    requests_client: RequestsClient,
    metrics: MetricsSource,
    settings: HttpSettings | None = None,
    checks: Checks | None = None,
    strategy: auth.Strategy = auth.noauth,
    rules: policy.PolicyEnforcer | None = None,
    keep: trail.Keep = lambda entry: None,
    *,
    zone_context: ZoneContext | None = None,
    plans: PlansClient | None = None,
) -> middleware.Wsgi:
    """Return the WSGI application.

    :param requests_client: calls the schedulers, over RPC or in-process
    :param checks: further health checks by name, e.g. ``{'broker': ask}``; each
        returns a line or raises GanttError
    :param strategy: identifies the caller
    :param keep: takes each entry of the audit trail
    :raises Misconfigured: every origin is allowed, and no token is needed
    :param rules: the policy; None: its defaults in the code
    :param zone_context: other zones, as far as this process calls any; None: no child zones
    :param plans: calls the planner of groups; None: there is none
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
    context = zone_context or without_zones(insights, stores, metrics)
    world = HandlerContext(
        insights=insights,
        stores=stores,
        client=requests_client,
        metrics=metrics,
        settings=settings,
        checks={
            **_own_checks(insights, stores, settings),
            **(checks or {}),
            'zones': lambda: zones_below(context),
        },
        policy=rules or policy.defaults(),
        gates=gates.gates(settings),
        zones=context,
        plans=plans or NoPlans(),
    )
    layers: list[Any] = [
        Observer(world),
        zones.ZoneName(world),
        LogContext(),
        trail.Trail(keep),
        HandlerVersions(),
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
        shown_path = path.replace('{name}', '{name:path}') if path in SLASHED else path
        app.add_route(shown_path, Resource(path, routes, world, strategy))
    return middleware.stack(app, world)


def without_zones(insights: Insights, stores: Stores, metrics: MetricsSource) -> ZoneContext:
    """Return what parent zones need, where this process calls no child zone."""
    return ZoneContext(
        stores,
        NoCalls(),
        insights.cache,
        lambda: insights.pipeline,
        insights.settings,
        metrics.count,
    )


def zones_below(context: ZoneContext) -> str:
    """Return the conditions of child zones some seconds ago, without waiting for another zone.

    :raises Unavailable: one of them has a problem
    """
    context.directory.freshen()
    children = context.directory.children()
    if not children:
        return 'there are no zones below'
    conditions = context.conditions.remembered()
    if conditions is None:
        return 'the zones below are being called'
    problem = summed_up(conditions)
    if problem:
        raise exceptions.Unavailable(problem)
    return f'{len(conditions)} zones below answer'


def _own_checks(insights: Insights, stores: Stores, settings: HttpSettings) -> Checks:
    def database() -> str:
        stores.database.ping()
        return 'the database answers'

    def host_table() -> str:
        age = insights.freshen()
        if age > settings.table_age_unhealthy_seconds:
            raise exceptions.HostsUnknown(problem=f'the host table is {age:.0f} s old')
        return f'the host table is {age:.1f} s old'

    return {'database': database, 'host_table': host_table}
