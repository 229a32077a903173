# SPDX-License-Identifier: Apache-2.0
"""The middleware stack, outermost first.

    request id → proxy headers → CORS → fixed headers → size limit → /healthcheck or the application

oslo.middleware reads its options from a configuration object; ours is private
and filled from ``HttpSettings``, so that the global one is left alone.
"""

import os
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

import stevedore
import webob
from oslo_config import cfg
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
ALLOWED = (
    'Content-Type',
    'If-None-Match',
    'X-Auth-Token',
    'X-OpenStack-Request-ID',
    microversion.HEADER,
)
EXPOSED = (
    'ETag',
    'Location',
    'Retry-After',
    'WWW-Authenticate',
    'X-OpenStack-Request-ID',
    microversion.HEADER,
)
#: Default headers of every answer: a browser guesses no type, and no cache keeps a copy.
FIXED = (('X-Content-Type-Options', 'nosniff'), ('Cache-Control', 'no-store'))


def stack(app: Wsgi, world: HandlerContext) -> Wsgi:
    """Return ``app`` behind the whole stack."""
    conf = cfg.ConfigOpts()
    conf([], project='gantt', default_config_files=[], default_config_dirs=[])
    settings = world.settings
    wsgi: Wsgi = _mount(HEALTH_PATH, Healthcheck(world, conf), app)
    private_names.check('oslo.middleware')
    limiter = SizeLimit(wsgi, conf)
    conf.set_override('max_request_body_size', settings.body_bytes_max, 'oslo_middleware')
    return _outer(_with_headers(limiter), settings, conf)


def placement_stack(app: Wsgi, settings: HttpSettings) -> Wsgi:
    """Return ``app`` behind the layers common to all interfaces: ids, proxy, CORS."""
    conf = cfg.ConfigOpts()
    conf([], project='gantt', default_config_files=[], default_config_dirs=[])
    return _outer(app, settings, conf)


def _outer(wsgi: Wsgi, settings: HttpSettings, conf: cfg.ConfigOpts) -> Wsgi:
    if settings.cors_allowed_origins:
        conf.register_opts(cors.OPTS, 'cors')
        conf.set_override('allowed_origin', list(settings.cors_allowed_origins), 'cors')
        conf.set_override('allow_credentials', False, 'cors')
        conf.set_override('expose_headers', list(EXPOSED), 'cors')
        conf.set_override('allow_headers', list(ALLOWED), 'cors')
        conf.set_override('allow_methods', ['GET', 'HEAD', 'PUT', 'POST', 'DELETE'], 'cors')
        wsgi = cors.CORS(wsgi, conf)
    if settings.behind_proxy:
        wsgi = http_proxy_to_wsgi.HTTPProxyToWSGI(wsgi, conf)
        conf.set_override('enable_proxy_headers_parsing', True, 'oslo_middleware')
    return request_id.RequestId(wsgi, conf)


def _with_headers(app: Wsgi) -> Wsgi:
    """Return ``app`` with ``FIXED`` in its answers."""

    def answered(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            present = {name.lower() for name, _ in headers}
            more = [(name, value) for name, value in FIXED if name.lower() not in present]
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

    :param problem: the present problem, '' where there is none.  Any caller may read it, so it is a
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

    def __init__(self, world: HandlerContext, conf: cfg.ConfigOpts) -> None:
        super().__init__(None, conf)
        file = world.settings.disable_by_file

        def state() -> str:
            return '' if root.examine(world).healthy else 'UNAVAILABLE'

        def disabled() -> str:
            return 'DISABLED BY FILE' if file and os.path.exists(file) else ''

        extensions: list[extension.Extension[pluginbase.HealthcheckBaseExtension]] = [
            extension.Extension(name, point, CheckMiddleware, CheckMiddleware(problem, conf))
            for name, problem in (('gantt', state), ('disable_by_file', disabled))
            for point in [metadata.EntryPoint(name, f'{__name__}:Check', self.NAMESPACE)]
        ]
        self._backends = stevedore.NamedExtensionManager.make_test_instance(extensions)
