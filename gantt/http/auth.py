# SPDX-License-Identifier: Apache-2.0
"""Authentication of callers: one strategy for each method.

``noauth`` trusts every caller, as an operator's loopback interface or a protecting proxy allows;
the names in ``X-User-Id`` and ``X-Project-Id`` are not verified, and for the record only.
``keystone`` needs a token and has the identity service check it.
"""

import hashlib
import ssl
from collections.abc import Callable
from typing import Any

import falcon
import msgspec

from gantt import exceptions
from gantt.http.caller import Caller

_IDENTITY_TEXT_MAX = 255


def noauth(req: falcon.Request) -> Caller:
    """Return a caller that may do everything."""
    user = (req.get_header('X-User-Id') or '')[:_IDENTITY_TEXT_MAX]
    return Caller(
        user=user,
        user_name=user,
        project=(req.get_header('X-Project-Id') or '')[:_IDENTITY_TEXT_MAX] or None,
        roles=('admin',),
        remote=req.remote_addr or 'unknown',
    )


def with_certificate(caller: Caller, req: falcon.Request) -> Caller:
    """Return the caller with its certificate, where this server has the TLS connection.

    No header is trusted for it.  gunicorn passes the socket on; other servers end TLS before it
    comes here.
    """
    connection = req.env.get('gunicorn.socket')
    if not isinstance(connection, ssl.SSLSocket):
        return caller
    peer_certificate = connection.getpeercert(True)
    digest = hashlib.sha256(peer_certificate).hexdigest() if peer_certificate else ''
    return msgspec.structs.replace(caller, certificate=digest)


def _keystone(conf: Any) -> 'Strategy':
    from gantt.http.keystone import Keystone  # brings libraries that noauth does without

    return Keystone(conf)


Strategy = Callable[[falcon.Request], Caller]

#: Name -> factory of the strategy, from the configuration.
STRATEGY_BY_NAME: dict[str, Callable[[Any], Strategy]] = {
    'keystone': _keystone,
    'noauth': lambda conf: noauth,
}


def strategy(name: str, conf: Any) -> Strategy:
    """Return the strategy of that name.

    :param conf: a parsed configuration, for the options that the strategy needs
    :raises Misconfigured: names the option and the choices
    """
    factory = STRATEGY_BY_NAME.get(name)
    if factory is None:
        raise exceptions.Misconfigured(
            option='[api] auth_strategy',
            problem=f'{name!r} is not known',
            fix=f'Choose one of: {", ".join(sorted(STRATEGY_BY_NAME))}',
        )
    return factory(conf)
