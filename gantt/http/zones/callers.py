# SPDX-License-Identifier: Apache-2.0
"""Identification of the calling parent zone."""

import msgspec

from gantt.core.zones.messages import ParentRecord
from gantt.http.context import Caller, HandlerContext
from gantt.http.policy import Forbidden

#: Addresses from which a caller is trusted without a token.
LOOPBACK = ('127.0.0.1', '::1')
#: The rule of requests of parent zones.
ASK = 'gantt:zone:ask'


def parent_of(world: HandlerContext, caller: Caller) -> tuple[ParentRecord, Caller]:
    """Return the calling parent zone, and a caller of its project.

    A zone of the same owner is admitted to the objects of all projects, as operators are.

    :raises Forbidden: it is none that is registered here, or is on another machine without proof
    """
    directory = world.zones.directory
    directory.freshen()
    parent = directory.parent(caller.user) if caller.user else None
    pin = '' if parent is None else parent.certificate_sha256
    is_proven = bool(pin) and pin == caller.certificate
    if caller.remote and caller.remote not in LOOPBACK and not is_proven:
        raise Forbidden(
            rule=ASK,
            needs='a token, from another machine than this one ([api] auth_strategy = keystone), '
            'or the certificate that the zone is registered with',
            have='neither',
        )
    if parent is None or not parent.enabled:
        raise Forbidden(
            rule=ASK,
            needs='a zone above that is registered here and enabled',
            have=f'the user {caller.user or "without a name"}',
        )
    if pin and not is_proven:
        raise Forbidden(
            rule=ASK,
            needs=f'the certificate that {parent.name} is registered with',
            have=f'one with the SHA-256 {caller.certificate}' if caller.certificate else 'none',
        )
    return parent, msgspec.structs.replace(
        caller, project=parent.project_id, everywhere=parent.trusted, above=parent
    )
