# SPDX-License-Identifier: Apache-2.0
"""A claim for a guest that runs on a host of Nova and that none is known for."""

from collections.abc import Iterable

from gantt.core.claims.claim import Claim, State
from gantt.core.messages import base
from gantt.core.messages.request import Flavor, Lifecycle, name_of
from gantt.core.nova.events import Guest
from gantt.core.resources.host import HostRow


def adopted(
    host: HostRow, consumer: str, known: Iterable[Claim], guest: Guest | None, now: float
) -> Claim:
    """A claim for a guest that none is known for here.

    It takes what is said of it, else what its newest claim anywhere takes.
    The id grows with the claims known here: the same again until one is written.
    """
    history = sorted(known, key=lambda claim: (claim.created_at, claim.id))
    last = history[-1] if history else None
    lives = sum(claim.adopted and claim.provider_id == host.id for claim in history)
    guest = guest or Guest(consumer=consumer)
    amounts = dict(guest.resources)
    if not amounts and last:
        amounts = dict(last.allocations.get(last.provider_id, {}))
    return Claim(
        id=base.derived_id('adopted', host.uuid, host.epoch, consumer, lives),
        request_id=None,
        consumer=consumer,
        provider_id=host.id,
        host=host.name,
        state=State.CONFIRMED,
        lifecycle=Lifecycle.HOST,
        allocations={host.id: amounts} if amounts else {},
        group=guest.group or (last.group if last else None),
        flavor=name_of(Flavor(name=guest.flavor or '')) or (last.flavor if last else None),
        project_id=guest.project_id or (last.project_id if last else None),
        user_id=guest.user_id or (last.user_id if last else None),
        adopted=True,
        absences=-1,
        reason='runs without a live claim',
        created_at=now,
        updated_at=now,
    )
