# SPDX-License-Identifier: Apache-2.0
"""Statistics of the recent past, as read from a store."""

import msgspec


class ClaimCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Claims by state, with every state; ``adopted`` counts live ones without a request."""

    states: dict[str, int]
    adopted: int


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of stored decisions over a recent period, in equal parts.

    :ivar now: the database's clock, the end of the last part
    :ivar since: earlier decisions are not known: they were not read, or are no longer stored
    :ivar outcomes: outcome -> number of decisions, by part
    :ivar waits: creation time of a claim, and the seconds until its host confirmed it; of
        claims that are still confirmed
    """

    now: float
    since: float
    outcomes: dict[str, list[int]]
    waits: list[tuple[float, float]]
