# SPDX-License-Identifier: Apache-2.0
"""The middleware stack, outermost first.

    request id → proxy headers → CORS → fixed headers → size limit → /healthcheck or the application

oslo.middleware reads its options from a configuration object; ours is private
and filled from ``HttpSettings``, so that the global one is not changed.
"""

import os
import urllib.parse
import wsgiref.util
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

import stevedore
import webob
from oslo_config import cfg
from oslo_context.context import generate_request_id
from oslo_middleware import cors, healthcheck, http_proxy_to_wsgi, request_id, sizelimit
from oslo_middleware.healthcheck import pluginbase
from stevedore import extension

from gantt import exceptions, private_names
from gantt.http import errors, microversion
from gantt.http.context import HandlerContext
from gantt.http.handlers import root
from gantt.http.settings import HttpSettings

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

HEALTH_PATH = '/healthcheck'
#: Headers that a page of another origin may send beyond the basic ones, and that it may read.
CORS_ALLOWED_HEADERS = (
    'Content-Type',
    'If-None-Match',
    'X-Auth-Token',
    'X-OpenStack-Request-ID',
    microversion.HEADER,
)
CORS_EXPOSED_HEADERS = (
    'ETag',
    'Location',
    'Retry-After',
    'WWW-Authenticate',
    'X-OpenStack-Request-ID',
    microversion.HEADER,
)
#: Default headers of every answer: a browser guesses no type, and no cache keeps a copy.
FIXED_HEADERS = (('X-Content-Type-Options', 'nosniff'), ('Cache-Control', 'no-store'))


def stack(app: Wsgi, context: HandlerContext) -> Wsgi:
    """Return ``app`` wrapped in the whole stack."""
    conf = cfg.ConfigOpts()
    conf([], project='gantt', default_config_files=[], default_config_dirs=[])
    settings = context.settings
    wsgi: Wsgi = _mount(HEALTH_PATH, Healthcheck(context, conf), app)
    private_names.check('oslo.middleware')
    limiter = SizeLimit(wsgi, conf)
    conf.set_override('max_request_body_size', settings.body_bytes_max, 'oslo_middleware')
    return _with_common_layers(_with_fixed_headers(limiter), settings, conf)


def placement_stack(app: Wsgi, settings: HttpSettings) -> Wsgi:
    """Return ``app`` wrapped in the layers common to all interfaces: ids, proxy, CORS."""
    conf = cfg.ConfigOpts()
    conf([], project='gantt', default_config_files=[], default_config_dirs=[])
    return _with_common_layers(app, settings, conf)


def _with_common_layers(wsgi: Wsgi, settings: HttpSettings, conf: cfg.ConfigOpts) -> Wsgi:
    if settings.cors_allowed_origins:
        conf.register_opts(cors.OPTS, 'cors')
        conf.set_override('allowed_origin', list(settings.cors_allowed_origins), 'cors')
        conf.set_override('allow_credentials', False, 'cors')
        conf.set_override('expose_headers', list(CORS_EXPOSED_HEADERS), 'cors')
        conf.set_override('allow_headers', list(CORS_ALLOWED_HEADERS), 'cors')
        conf.set_override('allow_methods', ['GET', 'HEAD', 'PUT', 'POST', 'DELETE'], 'cors')
        wsgi = cors.CORS(wsgi, conf)
    if settings.behind_proxy:
        wsgi = http_proxy_to_wsgi.HTTPProxyToWSGI(wsgi, conf)
        conf.set_override('enable_proxy_headers_parsing', True, 'oslo_middleware')
    return _identified(wsgi)


def _identified(app: Wsgi) -> Wsgi:
    """Return ``app`` with a request id in its environment and in its answers.

    As by oslo.middleware, whose way of calling ``app`` by objects of webob costs each call more.
    Those make ``Location`` a whole URL, as Placement's clients know it; so does this.
    """

    def answered(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        own_id = environ[request_id.ENV_REQUEST_ID] = generate_request_id()

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            whole = [
                (name, urllib.parse.urljoin(wsgiref.util.request_uri(environ, False), value))
                if name.lower() == 'location'
                else (name, value)
                for name, value in headers
            ]
            whole.append((request_id.HTTP_RESP_HEADER_REQUEST_ID, own_id))
            return start_response(status, whole, exc_info)

        return app(environ, start)

    return answered


def _with_fixed_headers(app: Wsgi) -> Wsgi:
    """Return ``app`` with ``FIXED_HEADERS`` in its answers."""

    def answered(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            present = {name.lower() for name, _ in headers}
            more = [(name, value) for name, value in FIXED_HEADERS if name.lower() not in present]
            return start_response(status, [*headers, *more], exc_info)

        return app(environ, start)

    return answered


def _mount(path: str, inner: Wsgi, outer: Wsgi) -> Wsgi:
    """Return ``inner`` on its path only, everything else to ``outer``."""

    def mounted(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        here = environ.get('PATH_INFO', '').rstrip('/') == path
        return (inner if here else outer)(environ, start_response)

    return mounted


class SizeLimit(sizelimit.RequestBodySizeLimiter):
    """Limiter of oslo that refuses in the form of every other error."""

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        given = environ.get('CONTENT_LENGTH') or ''
        if given.isdecimal() and int(given) <= self._conf_get('max_request_body_size'):
            assert self.application is not None, 'it was given'
            return self.application(environ, start_response)
        response = webob.Request(environ).get_response(super().__call__)
        if response.status_int == 413 and response.content_type != 'application/json':
            size, limit = environ.get('CONTENT_LENGTH'), self._conf_get('max_request_body_size')
            refusal = exceptions.PayloadTooLarge(size=size, limit=limit)
            response = webob.Response(
                body=errors.body_of(refusal, errors.request_id_of(environ)),
                status=413,
                content_type='application/json',
            )
        return response(environ, start_response)


class CheckMiddleware(pluginbase.HealthcheckBaseExtension):
    """A check in the form of oslo's health check.

    :param problem: returns the present problem, '' where there is none.  Any caller may read it, so
        it is a
        single word
    """

    def __init__(self, problem: Callable[[], str], conf: cfg.ConfigOpts) -> None:
        super().__init__(conf, {})
        self._problem = problem

    def healthcheck(self, server_port: int) -> pluginbase.HealthcheckResult:
        """Return a healthy result where there is no problem."""
        problem = self._problem()
        return pluginbase.HealthcheckResult(available=not problem, reason=problem or 'OK')


class Healthcheck(healthcheck.Healthcheck):
    """Health check application of oslo with our checks.

    They need the process's own objects, so they are passed in instead of being found by name among
    the installed plugins.
    """

    def __init__(self, context: HandlerContext, conf: cfg.ConfigOpts) -> None:
        super().__init__(None, conf)
        file = context.settings.disable_by_file

        def state() -> str:
            return '' if root.run_checks(context).healthy else 'UNAVAILABLE'

        def disabled() -> str:
            return 'DISABLED BY FILE' if file and os.path.exists(file) else ''

        extensions: list[extension.Extension[pluginbase.HealthcheckBaseExtension]] = [
            extension.Extension(name, point, CheckMiddleware, CheckMiddleware(problem, conf))
            for name, problem in (('gantt', state), ('disable_by_file', disabled))
            for point in [metadata.EntryPoint(name, f'{__name__}:Check', self.NAMESPACE)]
        ]
        self._backends = stevedore.NamedExtensionManager.make_test_instance(extensions)
