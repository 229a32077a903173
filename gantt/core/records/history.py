# SPDX-License-Identifier: Apache-2.0
"""What a store says of the last while, as values."""

import msgspec


class ClaimCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Claims by state, every state named; ``adopted`` counts live ones that nobody asked for."""

    states: dict[str, int]
    adopted: int


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What kept decisions say of the last while, in equal parts of it.

    :ivar now: the database's clock: where the last part ends
    :ivar since: what was before is not known: it was not read, or is kept no longer
    :ivar outcomes: outcome -> decisions, by part
    :ivar waits: when a claim was made, and the seconds until its host confirmed it; of
        claims that are still confirmed
    """

    now: float
    since: float
    outcomes: dict[str, list[int]]
    waits: list[tuple[float, float]]
