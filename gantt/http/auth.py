# SPDX-License-Identifier: Apache-2.0
"""Who is asking: one strategy per way of telling.

``noauth`` believes everybody, as an operator's loopback interface or a
protecting proxy allows; the names in ``X-User-Id`` and ``X-Project-Id`` are
taken as said, for the record only.
"""

from collections.abc import Callable

import falcon

from gantt import exceptions
from gantt.http.world import Caller

_TEXT_MAX = 255


def noauth(req: falcon.Request) -> Caller:
    """Everybody may do everything."""
    return Caller(
        user=(req.get_header('X-User-Id') or '')[:_TEXT_MAX],
        project=(req.get_header('X-Project-Id') or '')[:_TEXT_MAX] or None,
        roles=('admin',),
    )


Strategy = Callable[[falcon.Request], Caller]

STRATEGIES: dict[str, Strategy] = {'noauth': noauth}


def strategy(name: str) -> Strategy:
    """The strategy of that name.

    :raises Misconfigured: names the option and the choices
    """
    found = STRATEGIES.get(name)
    if found is None:
        raise exceptions.Misconfigured(
            option='[api] auth_strategy',
            problem=f'{name!r} is not known',
            fix=f'Choose one of: {", ".join(sorted(STRATEGIES))}',
        )
    return found
