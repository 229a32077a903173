# SPDX-License-Identifier: Apache-2.0
"""The history of a host, as it is shown."""

from collections.abc import Sequence

from gantt.core.claims.host_event import HostEvent
from gantt.insights.views import HistoryEntry, HostHistory, when


def shown(host: str, found: Sequence[HostEvent], limit: int, now: float) -> HostHistory:
    """Lines newest first.

    :param found: one more than ``limit`` where there are more
    """
    return HostHistory(
        host=host,
        entries=[
            HistoryEntry(
                kind=one.kind,
                what=one.what,
                by=one.by,
                claim_id=one.claim_id,
                at=when(one.at),
                age_seconds=round(max(0.0, now - one.at), 3),
            )
            for one in found[:limit]
        ],
        truncated=len(found) > limit,
    )
