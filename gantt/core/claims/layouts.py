# SPDX-License-Identifier: Apache-2.0
"""What the word of a host does to the layouts of the claims on it: pure folds."""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET

from gantt.core.claims.claim import Claim, State
from gantt.core.messages.layout import unsettled
from gantt.core.messages.report import HostReport
from gantt.core.resources.host import HostRow
from gantt.core.topology.room import room_of


def settled(claims: list[Claim], contained: Iterable[Claim], report: HostReport) -> list[Claim]:
    """The claims that change, with those whose layouts the host's own figures contain now.

    Of a reporter that cannot tell our guests apart, what it says of its cells and
    devices counts: it may have pinned them otherwise than they were laid out.

    :param claims: those that change, whatever of this
    """
    if report.used is UNSET or (report.numa is UNSET and report.devices is UNSET):
        return claims
    changed = {claim.id: claim for claim in claims}
    for claim in contained:
        now = changed.get(claim.id, claim)
        if now.is_live and now.layout is not None and unsettled(now.layout) is not None:
            changed[claim.id] = msgspec.structs.replace(now, layout={**now.layout, 'settled': True})
    return list(changed.values())


def meant(mine: Sequence[Claim]) -> list[str]:
    """Which claims of a consumer on a host are meant where only the consumer is named.

    :param mine: its live claims there
    :returns: ids of those that are confirmed, else of the first reserved one
    """
    confirmed = [claim.id for claim in mine if claim.state is State.CONFIRMED]
    if confirmed or not mine:
        return confirmed
    return [min(mine, key=lambda claim: (claim.created_at, claim.id)).id]


def layout_again(row: HostRow, lost: Claim | None, others: Iterable[Claim]) -> dict | None:
    """The layout of a lost claim, where nobody else has any of it since."""
    layout = unsettled(lost.layout) if lost is not None and lost.provider_id == row.id else None
    if lost is None or layout is None:
        return None
    room = room_of(row.facts, [unsettled(claim.layout) for claim in others])
    return lost.layout if room.holds(layout) else None
