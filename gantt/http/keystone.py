# SPDX-License-Identifier: Apache-2.0
"""The strategy ``keystone``: keystonemiddleware's auth_token checks the token.

It is called only for its verdict, on a copy of the request: an open route needs no token and does
not wait for keystone, and every refusal has our own form.
"""

import importlib.util
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

import cachetools
import falcon
import webob
from keystoneauth1 import exceptions as keystone_exceptions
from keystonemiddleware import auth_token, opts
from keystonemiddleware.auth_token import ConfigurationError
from oslo_config import cfg
from oslo_context import context

from gantt import exceptions
from gantt.http.caller import Caller
from gantt.http.errors import IdentityUnavailable, Unauthorized

LOG = logging.getLogger(__name__)

GROUP = 'keystone_authtoken'
#: Our name in the catalog, to which access rules of application credentials refer.
SERVICE_TYPE = 'scheduler'

#: Options that the library leaves open, or with which a thread waits longer than a caller does.
DEFAULTS = {
    'service_type': SERVICE_TYPE,
    'http_connect_timeout': 10,
    'http_request_max_retries': 1,
    # Older releases accept the token of any user where a service's is expected.
    'service_token_roles_required': True,  # nosec B105 # no password
}

_CACHE_KEY = 'gantt.token_cache'
#: Maximum number of cached tokens, each with its catalog, some ten kilobytes.
_CACHED_TOKENS_MAX = 2_000
_CONFIRMED_STATUS = 'Confirmed'


class Keystone:
    """Authentication by the token in ``X-Auth-Token``."""

    def __init__(self, conf: Any) -> None:
        """Read the options.

        :param conf: a parsed configuration; [keystone_authtoken] is registered on it
        :raises Misconfigured: names the option that is missing or wrong
        """
        for group, options in opts.list_auth_token_opts():
            conf.register_opts(options, group=group)
        for name, value in DEFAULTS.items():
            conf.set_default(name, value, group=GROUP)
        options_in_force = conf[GROUP]
        if not (options_in_force.auth_type or options_in_force.auth_section):
            raise _misconfigured('auth_type', 'is not set', 'Set it, usually to password')
        if options_in_force.memcached_servers and importlib.util.find_spec('memcache') is None:
            fix = 'Install it, or leave the option out: then each process keeps tokens of its own'
            raise _misconfigured('memcached_servers', 'needs the library python-memcached', fix)
        cache_options = {} if options_in_force.memcached_servers else {'cache': _CACHE_KEY}
        try:
            self._tokens = auth_token.AuthProtocol(
                _answer_passed, {'oslo_config_config': conf, **cache_options}
            )
        except keystone_exceptions.NoMatchingPlugin as e:
            raise _misconfigured('auth_type', str(e), 'Choose one such as password') from None
        except keystone_exceptions.MissingRequiredOptions as e:
            names = ', '.join(option.dest for option in e.options)
            raise _misconfigured(names, 'is not set', 'Set it, as auth_type needs it') from None
        except (keystone_exceptions.ClientException, ConfigurationError, cfg.Error) as e:
            raise _misconfigured('auth_type', str(e), 'See the page about identity') from None
        self._cache = TokenCache(options_in_force.token_cache_time)
        url = conf[options_in_force.auth_section or GROUP].get('auth_url')
        if not url:
            raise _misconfigured('auth_url', 'is not set', 'Set it to the URL of keystone')
        self._identity = options_in_force.www_authenticate_uri or url

    def __call__(self, req: falcon.Request) -> Caller:
        """Return the caller.

        :raises Unauthorized: no token, or one that keystone does not know any more
        :raises IdentityUnavailable: keystone cannot be reached
        """
        if not req.get_header('X-Auth-Token'):
            raise Unauthorized(problem='a token is needed', identity=self._identity)
        environ = {**req.env, _CACHE_KEY: self._cache}
        try:
            verdict = webob.Request(environ).get_response(self._tokens)
        except (keystone_exceptions.ClientException, ConfigurationError) as e:
            LOG.error('Keystone cannot validate a token; the caller gets 503: error=%s', e)
            raise IdentityUnavailable() from e
        # With delay_auth_decision a bad token is passed on, and only marked as bad.
        is_bad = _INVALID_STATUS in (
            environ.get(_STATUS_HEADER),
            environ.get(_SERVICE_STATUS_HEADER),
        )
        if verdict.status_int == 401 or (is_bad and verdict.status_int == _PASSED_HTTP_STATUS):
            problem = 'the token is not valid, or not any more'
            raise Unauthorized(problem=problem, identity=self._identity)
        if (
            verdict.status_int != _PASSED_HTTP_STATUS
            or environ.get(_STATUS_HEADER) != _CONFIRMED_STATUS
        ):
            LOG.error(
                'Keystone cannot validate a token; the caller gets 503: status=%s', verdict.status
            )
            raise IdentityUnavailable()
        return _caller_from_headers(environ)


_PASSED_HTTP_STATUS = 204
_STATUS_HEADER = 'HTTP_X_IDENTITY_STATUS'
_SERVICE_STATUS_HEADER = 'HTTP_X_SERVICE_IDENTITY_STATUS'
_INVALID_STATUS = 'Invalid'


def _answer_passed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer 204, as the application that auth_token wraps: it has let the caller through."""
    start_response(f'{_PASSED_HTTP_STATUS} No Content', [])
    return []


def _caller_from_headers(environ: dict[str, Any]) -> Caller:
    """Return the caller from the headers that auth_token set, as oslo.context reads them."""
    request_context = context.RequestContext.from_environ(environ, overwrite=False)
    return Caller(
        user=request_context.user_id or '',
        user_name=request_context.user_name or request_context.user_id or '',
        project=request_context.project_id,
        domain=request_context.domain_id,
        system=request_context.system_scope == 'all',
        roles=tuple(request_context.roles),
        service_roles=tuple(request_context.service_roles),
    )


def _misconfigured(option: str, problem: str, fix: str) -> exceptions.Misconfigured:
    return exceptions.Misconfigured(option=f'[{GROUP}] {option}', problem=problem, fix=fix)


class TokenCache:
    """Cached answers of keystone about tokens, kept for a while; any thread may use it.

    auth_token finds it in the request.  The library's own cache in memory grows without a bound.
    """

    def __init__(self, seconds: float) -> None:
        """Create the cache.

        :param seconds: lifetime of entries, 0 or less: nothing is kept
        """
        self._tokens: Any = (
            cachetools.TTLCache(_CACHED_TOKENS_MAX, seconds) if seconds > 0 else None
        )
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """Return the cached answer."""
        with self._lock:
            return None if self._tokens is None else self._tokens.get(key)

    def set(self, key: str, value: bytes, time: int = 0) -> None:
        """Keep an answer, for the lifetime given at creation."""
        with self._lock:
            if self._tokens is not None:
                self._tokens[key] = value
