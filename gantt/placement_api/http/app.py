# SPDX-License-Identifier: Apache-2.0
"""Placement's interface on one screen: its routes, its middleware, its factory."""

from typing import Any

import falcon

from gantt.http import audit, auth, middleware, origin
from gantt.http.caller import Caller
from gantt.http.context import MetricsSource
from gantt.http.log_context import LogContext
from gantt.http.policy import PolicyEnforcer
from gantt.http.settings import HttpSettings
from gantt.insights.candidates import ProviderTableReader
from gantt.placement_api.http.call import Handler
from gantt.placement_api.http.dispatch import (
    PlacementDispatch,
    PlacementRoute,
    RouteTable,
    VersionHeaders,
)
from gantt.placement_api.http.errors import PlacementError, PlacementErrors
from gantt.placement_api.http.handlers import (
    aggregates,
    allocations,
    inventories,
    reshaper,
    resource_classes,
    resource_providers,
    root,
    traits,
    usages,
)
from gantt.placement_api.http.handlers.candidates import CandidatesHandler
from gantt.placement_api.http.handlers.dry_run import DryRunHandler
from gantt.placement_api.ports import ApiStores, PlacementStores


def _get(path: str, handler: Handler, rule: str, **more: Any) -> PlacementRoute:
    """Return a GET route that answers JSON, unless ``more`` overrides it."""
    return _route('GET', path, handler, rule, **{'writes': True, **more})


def _route(method: str, path: str, handler: Handler, rule: str, **more: Any) -> PlacementRoute:
    """Return a route.

    :param rule: name of a policy rule, without the prefix ``placement:``
    """
    rule = rule and f'placement:{rule}'
    return PlacementRoute(method=method, path=path, handler=handler, rule=rule, **more)


_TOKEN_TEXT_MAX = 255
_CLASS_PATH = '/resource_classes/{name}'
_PROVIDER_PATH = '/resource_providers/{uuid}'
_INVENTORIES_PATH = f'{_PROVIDER_PATH}/inventories'
_INVENTORY_PATH = f'{_INVENTORIES_PATH}/{{resource_class}}'
_PROVIDERS_POLICY = 'resource_providers'
_CONSUMER_PATH = '/allocations/{consumer_uuid}'

ROUTES = (
    _get('/', root.show_versions, '', writes=False),
    _get('/resource_classes', resource_classes.list_classes, 'resource_classes:list', since=2),
    _route(
        'POST',
        '/resource_classes',
        resource_classes.create_class,
        'resource_classes:create',
        since=2,
        reads=True,
    ),
    _get(_CLASS_PATH, resource_classes.show_class, 'resource_classes:show', since=2),
    _route(
        'PUT',
        _CLASS_PATH,
        resource_classes.rename_class,
        'resource_classes:update',
        since=2,
        until=6,
        reads=True,
    ),
    _route('PUT', _CLASS_PATH, resource_classes.ensure_class, 'resource_classes:update', since=7),
    _route(
        'DELETE', _CLASS_PATH, resource_classes.delete_class, 'resource_classes:delete', since=2
    ),
    _get('/traits', traits.list_traits, 'traits:list', since=6),
    _get('/traits/{name}', traits.show_trait, 'traits:show', since=6, writes=False),
    _route('PUT', '/traits/{name}', traits.ensure_trait, 'traits:update', since=6),
    _route('DELETE', '/traits/{name}', traits.delete_trait, 'traits:delete', since=6),
    _get('/resource_providers', resource_providers.list_providers, f'{_PROVIDERS_POLICY}:list'),
    _route(
        'POST',
        '/resource_providers',
        resource_providers.create_provider,
        f'{_PROVIDERS_POLICY}:create',
        reads=True,
    ),
    _get(_PROVIDER_PATH, resource_providers.show_provider, f'{_PROVIDERS_POLICY}:show'),
    _route(
        'PUT',
        _PROVIDER_PATH,
        resource_providers.update_provider,
        f'{_PROVIDERS_POLICY}:update',
        reads=True,
    ),
    _route(
        'DELETE', _PROVIDER_PATH, resource_providers.delete_provider, f'{_PROVIDERS_POLICY}:delete'
    ),
    _get(_INVENTORIES_PATH, inventories.list_inventories, f'{_PROVIDERS_POLICY}:inventories:list'),
    _route(
        'POST',
        _INVENTORIES_PATH,
        inventories.create_inventory,
        f'{_PROVIDERS_POLICY}:inventories:create',
        reads=True,
    ),
    _route(
        'PUT',
        _INVENTORIES_PATH,
        inventories.set_inventories,
        f'{_PROVIDERS_POLICY}:inventories:update',
        reads=True,
    ),
    _route(
        'DELETE',
        _INVENTORIES_PATH,
        inventories.delete_inventories,
        f'{_PROVIDERS_POLICY}:inventories:delete',
        since=5,
        missing=405,
    ),
    _get(_INVENTORY_PATH, inventories.show_inventory, f'{_PROVIDERS_POLICY}:inventories:show'),
    _route(
        'PUT',
        _INVENTORY_PATH,
        inventories.update_inventory,
        f'{_PROVIDERS_POLICY}:inventories:update',
        reads=True,
    ),
    _route(
        'DELETE',
        _INVENTORY_PATH,
        inventories.delete_inventory,
        f'{_PROVIDERS_POLICY}:inventories:delete',
    ),
    _get(
        f'{_PROVIDER_PATH}/usages', inventories.show_provider_usages, f'{_PROVIDERS_POLICY}:usages'
    ),
    _get(
        f'{_PROVIDER_PATH}/aggregates',
        aggregates.list_aggregates,
        f'{_PROVIDERS_POLICY}:aggregates:list',
        since=1,
    ),
    _route(
        'PUT',
        f'{_PROVIDER_PATH}/aggregates',
        aggregates.set_aggregates,
        f'{_PROVIDERS_POLICY}:aggregates:update',
        since=1,
        reads=True,
    ),
    _get(
        f'{_PROVIDER_PATH}/traits',
        traits.list_provider_traits,
        f'{_PROVIDERS_POLICY}:traits:list',
        since=6,
    ),
    _route(
        'PUT',
        f'{_PROVIDER_PATH}/traits',
        traits.set_provider_traits,
        f'{_PROVIDERS_POLICY}:traits:update',
        since=6,
        reads=True,
    ),
    _route(
        'DELETE',
        f'{_PROVIDER_PATH}/traits',
        traits.delete_provider_traits,
        f'{_PROVIDERS_POLICY}:traits:delete',
        since=6,
    ),
    _get(_CONSUMER_PATH, allocations.show_allocations, 'allocations:list'),
    _route('PUT', _CONSUMER_PATH, allocations.set_allocations, 'allocations:update', reads=True),
    _route('DELETE', _CONSUMER_PATH, allocations.delete_allocations, 'allocations:delete'),
    _route(
        'POST',
        '/allocations',
        allocations.change_allocations,
        'allocations:manage',
        since=13,
        reads=True,
    ),
    _get(
        f'{_PROVIDER_PATH}/allocations',
        allocations.show_provider_allocations,
        f'{_PROVIDERS_POLICY}:allocations:list',
    ),
    _get('/usages', usages.show_usages, '', since=9),
    _route('POST', '/reshaper', reshaper.reshape, 'reshaper:reshape', since=30, reads=True),
)


def _stateful_routes(
    candidates: ProviderTableReader, dry_runs: DryRunHandler
) -> tuple[PlacementRoute, ...]:
    """Return the routes whose handlers keep state in the process."""
    return (
        _get(
            '/allocation_candidates',
            CandidatesHandler(candidates).list,
            'allocation_candidates:list',
            since=10,
        ),
        # Each request in it meets the rule of its own route.
        _route('POST', '/dry_run', dry_runs.run, '', reads=True, writes=True),
    )


def make_placement_app(
    stores: ApiStores,
    metrics: MetricsSource,
    settings: HttpSettings,
    policy: PolicyEnforcer,
    strategy: auth.Strategy = auth.noauth,
    store_entry: audit.StoreEntry = lambda entry: None,
    candidates: ProviderTableReader | None = None,
) -> middleware.Wsgi:
    """Return the WSGI application, its root at the mount point.

    :param strategy: identifies the caller; with ``auth.noauth`` the token names the caller
    :param store_entry: takes each entry of the audit trail
    :param candidates: cache of all providers that the process keeps; None: a cache of this
        application
    """
    is_open = strategy is auth.noauth
    layers: list[Any] = [
        LogContext(),
        audit.AuditMiddleware(store_entry),
        VersionHeaders(),
        origin.OriginCheck(settings, is_open),
    ]
    app = falcon.App(middleware=layers)
    # An answer without a body has no type.
    app.resp_options.default_media_type = None  # type: ignore[assignment]
    PlacementErrors(metrics).install(app)
    dry_runs = DryRunHandler(RouteTable(ROUTES), stores.dry_runs, policy)
    dispatch = PlacementDispatch(
        (
            *ROUTES,
            *_stateful_routes(candidates or ProviderTableReader(stores.candidates), dry_runs),
        ),
        PlacementStores(
            providers=stores.providers,
            vocabulary=stores.vocabulary,
            allocations=stores.allocations,
        ),
        policy,
        _caller_of_token if is_open else strategy,
    )
    app.add_sink(dispatch, prefix='/')
    return middleware.placement_stack(app, settings)


def _caller_of_token(req: falcon.Request) -> Caller:
    """Return the caller that a token of Placement's ``noauth2`` names, without proof.

    ``X-Auth-Token: admin``, ``user`` or ``user:project``; ``X-Roles`` names roles, and
    ``OpenStack-System-Scope: all`` the whole system.

    :raises PlacementError: there is no token
    """
    token = (req.get_header('X-Auth-Token') or '')[: 2 * _TOKEN_TEXT_MAX]
    if not token:
        raise PlacementError(401)
    user, _, project = token.partition(':')
    project = req.get_header('X-Project-Id') or project
    roles = req.get_header('X-Roles')
    system = req.get_header('OpenStack-System-Scope')
    if roles is None:
        roles = 'admin' if user == 'admin' else ''
    return Caller(
        user=user[:_TOKEN_TEXT_MAX],
        user_name=user[:_TOKEN_TEXT_MAX],
        project=None if system else (project or user)[:_TOKEN_TEXT_MAX],
        system=system == 'all',
        roles=tuple(role.strip() for role in roles.split(',') if role.strip()),
    )
