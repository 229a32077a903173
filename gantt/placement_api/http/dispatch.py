# SPDX-License-Identifier: Apache-2.0
"""Dispatch of requests to the handlers of their routes.

Checks run in the order of Placement, because its clients see which refusal comes first: the
caller, the version, the path and the method, the version of the route, the body's type, the
accepted type, the policy rule, and then the checks of the handler.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import falcon
import msgspec
from webob.acceptparse import create_accept_header

from gantt.http.auth import Strategy
from gantt.http.caller import ANONYMOUS_CALLER, Caller
from gantt.http.log_context import identify
from gantt.http.middleware import Wsgi
from gantt.http.policy import PolicyEnforcer
from gantt.placement_api.http import versions
from gantt.placement_api.http.call import (
    CACHE_HEADERS_SINCE,
    Call,
    Handler,
    PlacementAnswer,
    http_date,
)
from gantt.placement_api.http.errors import PlacementError
from gantt.placement_api.ports import PlacementStores

JSON_TYPE = 'application/json'
#: Mount point beside our own interface, and our own paths where Placement is at the root.
MOUNT_PATH = '/placement'
OWN_PATHS = ('/v1', '/metrics', '/dashboard', '/healthcheck')


class PlacementRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the route table.

    :ivar path: URL path, with the names of its variable parts in braces
    :ivar rule: of ``gantt.policies``; empty: every caller may, or the handler checks
    :ivar since, until: versions that have it; there may be others for the same method and path
    :ivar missing: HTTP status in versions that do not have the route
    :ivar reads: whether the request has a body, which has to be JSON
    :ivar writes: whether the route answers JSON, which the caller has to accept
    """

    method: str
    path: str
    handler: Handler
    rule: str = ''
    since: int = versions.LOWEST
    until: int = versions.HIGHEST
    missing: int = 404
    reads: bool = False
    writes: bool = False


class RouteTable:
    """Routes by path."""

    def __init__(self, routes: Sequence[PlacementRoute]) -> None:
        self._by_path: dict[tuple[str, ...], dict[str, list[PlacementRoute]]] = {}
        for route in routes:
            parts = _path_parts(route.path)
            self._by_path.setdefault(parts, {}).setdefault(route.method, []).append(route)

    def find(self, method: str, path: str, version: int) -> tuple[PlacementRoute, dict[str, str]]:
        """Return the route, and the values of the parts of its path in braces.

        :raises PlacementError: there is none for the path, the method, or the version
        """
        parts = _path_parts(path)
        for route_parts, methods in self._by_path.items():
            values = _path_values(route_parts, parts)
            if values is None:
                continue
            if method not in methods:
                raise PlacementError(
                    405,
                    f'The method {method} is not allowed for this resource.',
                    headers={'Allow': ', '.join(methods)},
                )
            for route in methods[method]:
                if route.since <= version <= route.until:
                    return route, values
            raise PlacementError(methods[method][0].missing)
        raise PlacementError(404)


def _path_parts(path: str) -> tuple[str, ...]:
    return () if path in ('', '/') else tuple(path.split('/')[1:])


def _path_values(template: tuple[str, ...], parts: tuple[str, ...]) -> dict[str, str] | None:
    if len(template) != len(parts):
        return None
    values = {}
    for name, part in zip(template, parts, strict=True):
        if name.startswith('{') and part:
            values[name[1:-1]] = part
        elif name != part:
            return None
    return values


class PlacementDispatch:
    """A falcon sink for all paths.

    :param strategy: identifies the caller; the root document is public
    """

    def __init__(
        self,
        routes: Sequence[PlacementRoute],
        stores: PlacementStores,
        policy: PolicyEnforcer,
        strategy: Strategy,
    ) -> None:
        self._table = RouteTable(routes)
        self._stores = stores
        self._policy = policy
        self._strategy = strategy

    def __call__(self, req: falcon.Request, resp: falcon.Response, **_: Any) -> None:
        caller = ANONYMOUS_CALLER
        if _path_parts(req.path):
            caller = self._strategy(req)
            identify(req, caller)
        version = versions.parse(req.get_header(versions.HEADER) or '')
        req.context.version = version
        _check_length(req)
        handle_request(self._table, req, resp, version, caller, self._stores, self._policy)


def handle_request(
    table: RouteTable,
    req: falcon.Request,
    resp: falcon.Response,
    version: int,
    caller: Caller,
    stores: PlacementStores,
    policy: PolicyEnforcer,
) -> None:
    """Have a request handled by its route.

    :raises PlacementError, GanttError: it is refused
    """
    route, path = table.find(req.method, req.path, version)
    if route.reads:
        _check_type(req)
    if route.writes:
        _check_accept(req)
    call = Call(req, version, path, caller, stores, policy)
    if route.rule:
        if route.method != 'GET':
            req.context.change = route.rule, caller
        call.check(route.rule)
    _respond(call, resp, route.handler(call))


def _respond(call: Call, resp: falcon.Response, answer: PlacementAnswer) -> None:
    resp.status = answer.status
    if answer.body is None:
        resp.content_type = None
    else:
        body = answer.body
        resp.data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        resp.content_type = JSON_TYPE
    if answer.location:
        resp.set_header('Location', call.url(answer.location))
    if answer.cached and call.since(CACHE_HEADERS_SINCE):
        modified = time.time() if answer.modified is None else answer.modified
        resp.set_header('Last-Modified', http_date(modified))
        resp.set_header('Cache-Control', 'no-cache')


def _check_length(req: falcon.Request) -> None:
    length = req.env.get('CONTENT_LENGTH') or ''
    try:
        has_body = bool(length) and int(length) > 0
    except ValueError:
        raise PlacementError(400, 'content-length header must be an integer') from None
    if has_body and not req.env.get('CONTENT_TYPE'):
        raise PlacementError(400, 'content-type header required when content-length > 0')


def _check_type(req: falcon.Request) -> None:
    media_type = (req.env.get('CONTENT_TYPE') or 'None').partition(';')[0].strip()
    if media_type != JSON_TYPE:
        raise PlacementError(415, f'The media type {media_type} is not supported, use {JSON_TYPE}')


def _check_accept(req: falcon.Request) -> None:
    accept = create_accept_header(req.get_header('Accept') or None)
    if accept and not accept.acceptable_offers([JSON_TYPE]):
        raise PlacementError(406, f'Only {JSON_TYPE} is provided')


class VersionHeaders:
    """A falcon middleware that puts the version into each answer."""

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, resource: object, succeeded: bool
    ) -> None:
        """Set the version headers, unless no version was determined."""
        version = req.context.get('version')
        if version is not None:
            resp.set_header(versions.HEADER, f'{versions.SERVICE} {versions.shown(version)}')
            resp.append_header('vary', versions.HEADER)


def mounted_app(own: Wsgi, placement: Wsgi, at_root: bool) -> Wsgi:
    """Return a WSGI application: ``placement`` at and below ``/placement``, ``own`` elsewhere.

    :param at_root: whether all paths that ``own`` does not have are Placement's as well
    """

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        path = environ.get('PATH_INFO', '')
        if _is_at(MOUNT_PATH, path):
            name = environ.get('SCRIPT_NAME', '')
            # In place: the caller is passed to the server in it, see ``fair_tasks``.
            environ |= {'SCRIPT_NAME': name + MOUNT_PATH, 'PATH_INFO': path[len(MOUNT_PATH) :]}
            return placement(environ, start_response)
        ours = not at_root or any(_is_at(prefix, path) for prefix in OWN_PATHS)
        return (own if ours else placement)(environ, start_response)

    return application


def _is_at(prefix: str, path: str) -> bool:
    return path == prefix or path.startswith(f'{prefix}/')
