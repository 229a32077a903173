# SPDX-License-Identifier: Apache-2.0
"""Which zone above asks."""

import msgspec

from gantt.core.zones.messages import ParentRecord
from gantt.http.context import Caller, HandlerContext
from gantt.http.policy import Forbidden

#: Addresses from which somebody is believed without a token.
LOOPBACK = ('127.0.0.1', '::1')
#: The rule of what zones above ask.
ASK = 'gantt:zone:ask'


def parent_of(world: HandlerContext, caller: Caller) -> tuple[ParentRecord, Caller]:
    """The zone above that asks, and that as a caller of its project.

    One of the same owner is let at the things of all projects, as operators are.

    :raises Forbidden: it is none that is registered here, or says so from another machine
    """
    directory = world.zones.directory
    directory.freshen()
    found = directory.parent(caller.user) if caller.user else None
    pin = '' if found is None else found.certificate_sha256
    is_proven = bool(pin) and pin == caller.certificate
    if caller.remote and caller.remote not in LOOPBACK and not is_proven:
        raise Forbidden(
            rule=ASK,
            needs='a token, from another machine than this one ([api] auth_strategy = keystone), '
            'or the certificate that the zone is registered with',
            have='neither',
        )
    if found is None or not found.enabled:
        raise Forbidden(
            rule=ASK,
            needs='a zone above that is registered here and enabled',
            have=f'the user {caller.user or "without a name"}',
        )
    if pin and not is_proven:
        raise Forbidden(
            rule=ASK,
            needs=f'the certificate that {found.name} is registered with',
            have=f'one with the SHA-256 {caller.certificate}' if caller.certificate else 'none',
        )
    return found, msgspec.structs.replace(
        caller, project=found.project_id, everywhere=found.trusted, above=found
    )
