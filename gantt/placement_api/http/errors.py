# SPDX-License-Identifier: Apache-2.0
"""Refusals in Placement's wording: JSON or a page, as the caller accepts.

``{"errors": [{status, title, detail, code, request_id}]}``; ``code`` since 1.23.
"""

import logging
from typing import Any

import falcon
import webob
import webob.exc

from gantt import exceptions
from gantt.http import errors
from gantt.http.context import MetricsSource

LOG = logging.getLogger(__name__)

#: Codes that clients read.
UNDEFINED_CODE = 'placement.undefined_code'
INVENTORY_IN_USE = 'placement.inventory.inuse'
CONCURRENT_UPDATE = 'placement.concurrent_update'
DUPLICATE_NAME = 'placement.duplicate_name'
PROVIDER_IN_USE = 'placement.resource_provider.inuse'
CANNOT_DELETE_PARENT = 'placement.resource_provider.cannot_delete_parent'
PROVIDER_NOT_FOUND = 'placement.resource_provider.not_found'
DUPLICATE_KEY = 'placement.query.duplicate_key'
BAD_VALUE = 'placement.query.bad_value'
MISSING_VALUE = 'placement.query.missing_value'

#: The version from which on errors have a code.
CODES_SINCE = 23


class PlacementError(Exception):
    """A refusal.

    :param status: status of HTTP
    :param detail: text for people; '': the meaning of the status
    :param code: code of Placement, one of those above
    :param headers: further headers of the answer
    """

    def __init__(
        self,
        status: int,
        detail: str = '',
        code: str = UNDEFINED_CODE,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code
        self.headers = headers or {}


#: Kind of a missing object -> Placement's sentence.
_NOT_FOUND_TEXTS = {
    'provider': 'No resource provider with uuid {} found',
    'resource class': 'No such resource class {}.',
    'trait': 'No such trait(s): {}.',
}


def refusal_of_error(error: exceptions.GanttError) -> PlacementError:
    """Return the refusal for an error that no handler has translated."""
    if isinstance(error, exceptions.NotFound) and error.kwargs.get('kind') in _NOT_FOUND_TEXTS:
        form = _NOT_FOUND_TEXTS[str(error.kwargs['kind'])]
        return PlacementError(404, form.format(error.kwargs['name']))
    if isinstance(error, exceptions.StaleGeneration):
        detail = f'resource provider generation conflict: {error.message}'
        return PlacementError(409, detail, CONCURRENT_UPDATE)
    headers = {}
    if error.http_status == 401:
        headers['WWW-Authenticate'] = f'Keystone uri="{error.kwargs.get("identity", "")}"'
    return PlacementError(error.http_status, error.message, headers=headers)


def no_provider(uuid: str) -> PlacementError:
    """Return the refusal for an unknown provider uuid."""
    return PlacementError(404, _NOT_FOUND_TEXTS['provider'].format(uuid))


def generation_changed() -> PlacementError:
    """Return the refusal for a stale generation in a change of traits or aggregates."""
    problem = (
        "Resource provider's generation already changed. Please update the generation and try "
        'again.'
    )
    return PlacementError(409, problem, CONCURRENT_UPDATE)


class PlacementErrors:
    """The falcon error handlers of this application."""

    def __init__(self, metrics: MetricsSource) -> None:
        self._metrics = metrics

    def install(self, app: falcon.App) -> None:
        """Install the handlers, the most general first: falcon uses the most specific one."""
        app.add_error_handler(Exception, self._handle_unexpected_error)
        app.add_error_handler(falcon.HTTPError, self._handle_falcon_error)
        app.add_error_handler(exceptions.GanttError, self._handle_gantt_error)
        app.add_error_handler(PlacementError, self._handle_placement_error)

    def _handle_placement_error(
        self, req: falcon.Request, resp: falcon.Response, error: Any, params: Any
    ) -> None:
        req.context.code = error.code
        req.context.message = error.detail
        respond_with(req, resp, error)

    def _handle_gantt_error(
        self, req: falcon.Request, resp: falcon.Response, error: Any, params: Any
    ) -> None:
        if error.http_status >= 500:
            LOG.warning(
                'Placement request failed: method=%s path=%s error=%s',
                req.method,
                errors.path_shown(req),
                error.message,
            )
        self._handle_placement_error(req, resp, refusal_of_error(error), params)
        req.context.code = error.code

    def _handle_falcon_error(
        self, req: falcon.Request, resp: falcon.Response, error: Any, params: Any
    ) -> None:
        detail = error.description or error.title or ''
        self._handle_placement_error(req, resp, PlacementError(error.status_code, detail), params)

    def _handle_unexpected_error(
        self, req: falcon.Request, resp: falcon.Response, error: Any, params: Any
    ) -> None:
        LOG.exception(
            'Placement request failed unexpectedly: method=%s path=%s',
            req.method,
            errors.path_shown(req),
            exc_info=error,
        )
        self._metrics.count('gantt_errors_total', component='http')
        problem = (
            'the service met an error that it did not expect; its log has it under this request id'
        )
        self._handle_placement_error(req, resp, PlacementError(500, problem), params)


def respond_with(req: falcon.Request, resp: falcon.Response, error: PlacementError) -> None:
    """Write the error to the response in the form that the caller accepts."""
    version: int | None = req.context.get('version')

    def in_json(body: str, status: str, title: str, environ: Any) -> dict[str, Any]:
        error_object: dict[str, Any] = {
            'status': error.status,
            'title': title,
            'detail': webob.exc.strip_tags(body),
        }
        if version is not None and version >= CODES_SINCE:
            error_object['code'] = error.code
        if request_id := errors.request_id_of(req.env):
            error_object['request_id'] = request_id
        if version is None and error.status == 406:
            error_object |= {'max_version': '1.39', 'min_version': '1.0'}
        return {'errors': [error_object]}

    exception_class = webob.exc.status_map.get(error.status) or webob.exc.HTTPBadRequest
    exception = exception_class(error.detail or None, json_formatter=in_json)
    environ = {'CONTENT_TYPE': 'None', **req.env}
    if environ.get('HTTP_ACCEPT', '') in ('', '*/*'):
        environ['HTTP_ACCEPT'] = falcon.MEDIA_JSON
    response = webob.Request(environ).get_response(exception)
    resp.status = error.status
    resp.content_type = response.headers['Content-Type']
    resp.data = response.body
    for name, value in error.headers.items():
        resp.set_header(name, value)
