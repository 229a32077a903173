# SPDX-License-Identifier: Apache-2.0
"""Who is asking: one strategy per way of telling.

``noauth`` believes everybody, as an operator's loopback interface or a
protecting proxy allows; the names in ``X-User-Id`` and ``X-Project-Id`` are
taken as said, for the record only.  ``keystone`` wants a token and asks the
identity service about it.
"""

import hashlib
import ssl
from collections.abc import Callable
from typing import Any

import falcon
import msgspec

from gantt import exceptions
from gantt.http.caller import Caller

_TEXT_MAX = 255


def noauth(req: falcon.Request) -> Caller:
    """Everybody may do everything."""
    user = (req.get_header('X-User-Id') or '')[:_TEXT_MAX]
    return Caller(
        user=user,
        user_name=user,
        project=(req.get_header('X-Project-Id') or '')[:_TEXT_MAX] or None,
        roles=('admin',),
        remote=req.remote_addr or 'unknown',
    )


def with_certificate(caller: Caller, req: falcon.Request) -> Caller:
    """With what it has shown, where this server has made the connection: no header is believed.

    gunicorn hands the socket on; others end TLS before it comes here.
    """
    connection = req.env.get('gunicorn.socket')
    if not isinstance(connection, ssl.SSLSocket):
        return caller
    shown = connection.getpeercert(True)
    digest = hashlib.sha256(shown).hexdigest() if shown else ''
    return msgspec.structs.replace(caller, certificate=digest)


def _keystone(conf: Any) -> 'Strategy':
    from gantt.http.keystone import Keystone  # brings libraries that noauth does without

    return Keystone(conf)


Strategy = Callable[[falcon.Request], Caller]

#: Name -> maker of the strategy, from the configuration.
STRATEGIES: dict[str, Callable[[Any], Strategy]] = {
    'keystone': _keystone,
    'noauth': lambda conf: noauth,
}


def strategy(name: str, conf: Any) -> Strategy:
    """The strategy of that name.

    :param conf: a parsed configuration, for the options that the strategy needs
    :raises Misconfigured: names the option and the choices
    """
    found = STRATEGIES.get(name)
    if found is None:
        raise exceptions.Misconfigured(
            option='[api] auth_strategy',
            problem=f'{name!r} is not known',
            fix=f'Choose one of: {", ".join(sorted(STRATEGIES))}',
        )
    return found(conf)
