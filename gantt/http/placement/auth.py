# SPDX-License-Identifier: Apache-2.0
"""Authentication without proof: the tokens of Placement's ``noauth2``.

``X-Auth-Token: admin``, ``user`` or ``user:project``; ``X-Roles`` names roles, and
``OpenStack-System-Scope: all`` the whole system.  With keystone, tokens are validated as for
the rest of the interface.
"""

import falcon

from gantt.http.caller import Caller
from gantt.http.placement.errors import PlacementError

_TEXT_MAX = 255


def noauth(req: falcon.Request) -> Caller:
    """Return the caller that the token names.

    :raises PlacementError: there is no token
    """
    token = (req.get_header('X-Auth-Token') or '')[: 2 * _TEXT_MAX]
    if not token:
        raise PlacementError(401)
    user, _, project = token.partition(':')
    project = req.get_header('X-Project-Id') or project
    roles = req.get_header('X-Roles')
    system = req.get_header('OpenStack-System-Scope')
    if roles is None:
        roles = 'admin' if user == 'admin' else ''
    return Caller(
        user=user[:_TEXT_MAX],
        user_name=user[:_TEXT_MAX],
        project=None if system else (project or user)[:_TEXT_MAX],
        system=system == 'all',
        roles=tuple(role.strip() for role in roles.split(',') if role.strip()),
    )
