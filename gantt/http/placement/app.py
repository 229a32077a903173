# SPDX-License-Identifier: Apache-2.0
"""Placement's interface on one screen: its routes, its middleware, its factory."""

from typing import Any

import falcon

from gantt.http import auth, middleware, origin, trail
from gantt.http.caller import Caller
from gantt.http.context import MetricsSource
from gantt.http.log_context import LogContext
from gantt.http.placement.call import Handler
from gantt.http.placement.dispatch import (
    PlacementDispatch,
    PlacementRoute,
    RouteTable,
    VersionHeaders,
)
from gantt.http.placement.errors import PlacementError, PlacementErrors
from gantt.http.placement.handlers import (
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
from gantt.http.placement.handlers.candidates import CandidatesHandler
from gantt.http.placement.handlers.dry_run import DryRunHandler
from gantt.http.policy import PolicyEnforcer
from gantt.http.settings import HttpSettings
from gantt.insights.candidates import Candidates
from gantt.scheduler.ports import PlacementStores, Stores


def _get(path: str, handler: Handler, rule: str, **more: Any) -> PlacementRoute:
    """Return a GET route that answers JSON, unless ``more`` overrides it."""
    return _route('GET', path, handler, rule, **{'writes': True, **more})


def _route(method: str, path: str, handler: Handler, rule: str, **more: Any) -> PlacementRoute:
    """Return a route.

    :param rule: without the prefix ``placement:``
    """
    rule = rule and f'placement:{rule}'
    return PlacementRoute(method=method, path=path, handler=handler, rule=rule, **more)


_TEXT_MAX = 255
_CLASS = '/resource_classes/{name}'
_PROVIDER = '/resource_providers/{uuid}'
_INVENTORIES = f'{_PROVIDER}/inventories'
_INVENTORY = f'{_INVENTORIES}/{{resource_class}}'
_OF = 'resource_providers'
_CONSUMER = '/allocations/{consumer_uuid}'

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
    _get(_CLASS, resource_classes.show_class, 'resource_classes:show', since=2),
    _route(
        'PUT',
        _CLASS,
        resource_classes.rename_class,
        'resource_classes:update',
        since=2,
        until=6,
        reads=True,
    ),
    _route('PUT', _CLASS, resource_classes.ensure_class, 'resource_classes:update', since=7),
    _route('DELETE', _CLASS, resource_classes.delete_class, 'resource_classes:delete', since=2),
    _get('/traits', traits.list_traits, 'traits:list', since=6),
    _get('/traits/{name}', traits.show_trait, 'traits:show', since=6, writes=False),
    _route('PUT', '/traits/{name}', traits.ensure_trait, 'traits:update', since=6),
    _route('DELETE', '/traits/{name}', traits.delete_trait, 'traits:delete', since=6),
    _get('/resource_providers', resource_providers.list_providers, f'{_OF}:list'),
    _route(
        'POST',
        '/resource_providers',
        resource_providers.create_provider,
        f'{_OF}:create',
        reads=True,
    ),
    _get(_PROVIDER, resource_providers.show_provider, f'{_OF}:show'),
    _route('PUT', _PROVIDER, resource_providers.update_provider, f'{_OF}:update', reads=True),
    _route('DELETE', _PROVIDER, resource_providers.delete_provider, f'{_OF}:delete'),
    _get(_INVENTORIES, inventories.list_inventories, f'{_OF}:inventories:list'),
    _route(
        'POST',
        _INVENTORIES,
        inventories.create_inventory,
        f'{_OF}:inventories:create',
        reads=True,
    ),
    _route(
        'PUT',
        _INVENTORIES,
        inventories.set_inventories,
        f'{_OF}:inventories:update',
        reads=True,
    ),
    _route(
        'DELETE',
        _INVENTORIES,
        inventories.delete_inventories,
        f'{_OF}:inventories:delete',
        since=5,
        missing=405,
    ),
    _get(_INVENTORY, inventories.show_inventory, f'{_OF}:inventories:show'),
    _route(
        'PUT',
        _INVENTORY,
        inventories.update_inventory,
        f'{_OF}:inventories:update',
        reads=True,
    ),
    _route('DELETE', _INVENTORY, inventories.delete_inventory, f'{_OF}:inventories:delete'),
    _get(f'{_PROVIDER}/usages', inventories.show_provider_usages, f'{_OF}:usages'),
    _get(f'{_PROVIDER}/aggregates', aggregates.list_aggregates, f'{_OF}:aggregates:list', since=1),
    _route(
        'PUT',
        f'{_PROVIDER}/aggregates',
        aggregates.set_aggregates,
        f'{_OF}:aggregates:update',
        since=1,
        reads=True,
    ),
    _get(f'{_PROVIDER}/traits', traits.list_provider_traits, f'{_OF}:traits:list', since=6),
    _route(
        'PUT',
        f'{_PROVIDER}/traits',
        traits.set_provider_traits,
        f'{_OF}:traits:update',
        since=6,
        reads=True,
    ),
    _route(
        'DELETE',
        f'{_PROVIDER}/traits',
        traits.delete_provider_traits,
        f'{_OF}:traits:delete',
        since=6,
    ),
    _get(_CONSUMER, allocations.show_allocations, 'allocations:list'),
    _route('PUT', _CONSUMER, allocations.set_allocations, 'allocations:update', reads=True),
    _route('DELETE', _CONSUMER, allocations.delete_allocations, 'allocations:delete'),
    _route(
        'POST',
        '/allocations',
        allocations.change_allocations,
        'allocations:manage',
        since=13,
        reads=True,
    ),
    _get(
        f'{_PROVIDER}/allocations',
        allocations.show_provider_allocations,
        f'{_OF}:allocations:list',
    ),
    _get('/usages', usages.show_usages, '', since=9),
    _route('POST', '/reshaper', reshaper.reshape, 'reshaper:reshape', since=30, reads=True),
)


def _further_routes(candidates: Candidates, dry_runs: DryRunHandler) -> tuple[PlacementRoute, ...]:
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
    stores: Stores,
    metrics: MetricsSource,
    settings: HttpSettings,
    policy: PolicyEnforcer,
    strategy: auth.Strategy = auth.noauth,
    keep: trail.Keep = lambda entry: None,
    candidates: Candidates | None = None,
) -> middleware.Wsgi:
    """Return the WSGI application, its root at the mount point.

    :param strategy: identifies the caller; ``auth.noauth``: the one that the token names
    :param keep: takes each entry of the audit trail
    :param candidates: all providers, as the process follows them; None: of its own
    """
    is_open = strategy is auth.noauth
    layers: list[Any] = [
        LogContext(),
        trail.Trail(keep),
        VersionHeaders(),
        origin.Origins(settings, is_open),
    ]
    app = falcon.App(middleware=layers)
    # An answer without a body has no type.
    app.resp_options.default_media_type = None  # type: ignore[assignment]
    PlacementErrors(metrics).install(app)
    dry_runs = DryRunHandler(RouteTable(ROUTES), stores.dry_runs, policy)
    dispatch = PlacementDispatch(
        (*ROUTES, *_further_routes(candidates or Candidates(stores.candidates), dry_runs)),
        PlacementStores(
            providers=stores.providers,
            vocabulary=stores.vocabulary,
            allocations=stores.allocations,
        ),
        policy,
        _of_token if is_open else strategy,
    )
    app.add_sink(dispatch, prefix='/')
    return middleware.placement_stack(app, settings)


def _of_token(req: falcon.Request) -> Caller:
    """Return the caller that a token of Placement's ``noauth2`` names, without proof.

    ``X-Auth-Token: admin``, ``user`` or ``user:project``; ``X-Roles`` names roles, and
    ``OpenStack-System-Scope: all`` the whole system.

    :raises PlacementError: there is no token
    """
    token = (req.get_header('X-Auth-Token') or '')[: 2 * _TEXT_MAX]
    if not token:
        raise PlacementError(401)
    user, _, project = token.partition(':')
    project = req.get_header('X-Project-Id') or project
    roles = req.get_header('X-Roles')
    system = req.get_header('OpenStack-System-Scope')
    if roles is None:
        roles = 'admin' if user == 'admin' else ''
    return Caller(
        user=user[:_TEXT_MAX],
        user_name=user[:_TEXT_MAX],
        project=None if system else (project or user)[:_TEXT_MAX],
        system=system == 'all',
        roles=tuple(role.strip() for role in roles.split(',') if role.strip()),
    )
