# SPDX-License-Identifier: Apache-2.0
"""Who is asking: one strategy per way of telling.

``noauth`` believes everybody, as an operator's loopback interface or a
protecting proxy allows; the names in ``X-User-Id`` and ``X-Project-Id`` are
taken as said, for the record only.  ``keystone`` wants a token and asks the
identity service about it.
"""

from collections.abc import Callable
from typing import Any

import falcon

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
