# SPDX-License-Identifier: Apache-2.0
"""The form of every refusal: ``{"errors": [{code, title, detail, …}]}``.

``code`` is the stable code of ``gantt.exceptions``; ``details`` carries the values of the sentence,
so that programs need not parse it.
"""

import logging
import math
import re
from collections.abc import Sequence
from typing import Any

import falcon
import msgspec
import webob.exc
from oslo_middleware import request_id as request_id_middleware

from gantt import exceptions
from gantt.core.messages import base, quoting
from gantt.core.messages.near import did_you_mean, nearest_names
from gantt.http.context import MetricsSource

LOG = logging.getLogger(__name__)

_WORD_BOUNDARY = re.compile(r'(?<=[a-z])(?=[A-Z])')


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """One error of an answer.

    :ivar request_id: id of this HTTP request, as in ``x-openstack-request-id``
    """

    code: str
    title: str
    detail: str
    status: int
    request_id: str
    details: dict[str, Any] = {}


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is not a success."""

    errors: list[Error]


class Unauthorized(exceptions.Refused):
    """Error for a request without a valid token, where the rule needs to know the caller."""

    code = 'gantt.unauthorized'
    http_status = 401
    template = '{problem}; get one at {identity} and send it as X-Auth-Token'


class IdentityUnavailable(exceptions.Unavailable):
    """Error for a token that could not be validated now; it may be valid."""

    code = 'gantt.identity_unavailable'
    template = (
        'the identity service cannot be asked about the token just now; try again, '
        'and see the log of gantt-api for the reason'
    )


class UnsupportedMicroversion(exceptions.UnsupportedVersion):
    """A microversion of the HTTP interface that is not served here."""

    http_status = 406
    template = '{method}: version {version} is not supported, expected {expected}'


class MethodNotAllowed(exceptions.Refused):
    """Error for a method that the path does not have."""

    code = 'gantt.method_not_allowed'
    http_status = 405
    template = '{path} does not know {method}; expected one of {allowed}'


class UnsupportedMediaType(exceptions.Refused):
    """The body is not JSON."""

    code = 'gantt.unsupported_media_type'
    http_status = 415
    template = 'Content-Type {given!r} is not supported; expected application/json'


class LengthRequired(exceptions.Refused):
    """A body whose end the WSGI server cannot tell."""

    code = 'gantt.length_required'
    http_status = 411
    template = 'a body needs Content-Length here'


def title_of(error: exceptions.GanttError) -> str:
    """Return ``NoValidHost`` as ``No valid host``, or as ``No valid pool``."""
    words = _WORD_BOUNDARY.sub(' ', type(error).__name__.lstrip('_'))
    if isinstance(error, exceptions.NoValidHost):
        words = words.replace('Host', str(error.kwargs.get('kind', 'host')))
    return words[:1] + words[1:].lower()


def body_of(error: exceptions.GanttError, request_id: str) -> bytes:
    """Return the JSON body of ``error``."""
    return msgspec.json.encode(
        Errors(
            errors=[
                Error(
                    code=error.code,
                    title=title_of(error),
                    detail=error.message,
                    status=error.http_status,
                    request_id=request_id,
                    details=error.kwargs,
                )
            ]
        ),
        enc_hook=str,
    )


def request_id_of(environ: dict[str, Any]) -> str:
    """Return the id that the request id middleware gave to this HTTP request."""
    return environ.get(request_id_middleware.ENV_REQUEST_ID, '')


class ErrorHandlers:
    """Falcon's error handlers; the last resort is a counted, logged Bug.

    :param paths: paths of the interface, of which one is suggested for an unknown path
    """

    def __init__(self, metrics: MetricsSource, paths: Sequence[str] = ()) -> None:
        self._metrics = metrics
        self._paths = [path for path in paths if '{' not in path]

    def install(self, app: falcon.App) -> None:
        """Install the handlers, most general first: falcon prefers the most specific one."""
        app.add_error_handler(Exception, self._handle_unexpected_error)
        app.add_error_handler(falcon.HTTPError, self._handle_falcon_error)
        app.add_error_handler(webob.exc.HTTPRequestEntityTooLarge, self._handle_too_large)
        app.add_error_handler(exceptions.GanttError, self._handle_gantt_error)

    def _handle_gantt_error(
        self, req: falcon.Request, resp: falcon.Response, error: Any, params: Any
    ) -> None:
        if error.http_status < 500:
            where = f'{req.method} {req.uri_template}' if req.uri_template else 'unknown path'
            self._metrics.count('gantt_http_requests_refused_total', method=where, code=error.code)
        else:
            LOG.warning(
                'HTTP request failed: method=%s path=%s error=%s',
                req.method,
                path_shown(req),
                error.message,
            )
        req.context.code = error.code
        req.context.message = error.message[: base.TEXT_MAX]
        _respond_with(resp, error, request_id_of(req.env))

    def _handle_falcon_error(
        self, req: falcon.Request, resp: falcon.Response, error: Any, params: Any
    ) -> None:
        if isinstance(error, falcon.HTTPMethodNotAllowed):
            allowed = error.headers.get('Allow', '')  # type: ignore[union-attr]
            resp.set_header('Allow', allowed)
            ours: exceptions.GanttError = MethodNotAllowed(
                path=path_shown(req), method=req.method, allowed=allowed
            )
        elif isinstance(error, falcon.HTTPNotFound):
            ours = self._unknown_path_error(path_shown(req))
        else:
            ours = exceptions.invalid(
                'HTTP request', error.description or error.title or error.status
            )
        self._handle_gantt_error(req, resp, ours, params)

    def _unknown_path_error(self, path: str) -> exceptions.NotFound:
        """Return the error of an unknown path; most often the version is missing."""
        versioned = f'/v1{path}'
        similar = [versioned] if versioned in self._paths else nearest_names(path, self._paths)
        message = exceptions.NotFound(kind='path', name=path).message
        return exceptions.NotFound(f'{message}{did_you_mean(similar)}', kind='path', name=path)

    def _handle_too_large(
        self, req: falcon.Request, resp: falcon.Response, error: Any, params: Any
    ) -> None:
        self._handle_gantt_error(
            req, resp, exceptions.PayloadTooLarge('the body is above the size limit'), params
        )

    def _handle_unexpected_error(
        self, req: falcon.Request, resp: falcon.Response, error: Any, params: Any
    ) -> None:
        LOG.exception(
            'HTTP request failed unexpectedly: method=%s path=%s',
            req.method,
            path_shown(req),
            exc_info=error,
        )
        self._metrics.count('gantt_errors_total', component='http')
        bug = exceptions.Bug(
            'the service met an error that it did not expect; its log has it under this request id'
        )
        req.context.code = bug.code
        _respond_with(resp, bug, request_id_of(req.env))


def path_shown(req: falcon.Request) -> str:
    """Return the path, safe for a log line: it is not checked yet."""
    return quoting.plain_text(req.path, base.NAME_MAX)


def _respond_with(resp: falcon.Response, error: exceptions.GanttError, request_id: str) -> None:
    resp.status = error.http_status
    resp.content_type = falcon.MEDIA_JSON
    resp.data = body_of(error, request_id)
    if error.http_status == 401:
        resp.set_header('WWW-Authenticate', f'Keystone uri="{error.kwargs["identity"]}"')
    hint = error.kwargs.get('retry_after_ms')
    if isinstance(hint, (int, float)):
        resp.set_header('Retry-After', str(max(1, math.ceil(hint / 1000))))
