# SPDX-License-Identifier: Apache-2.0
"""Steps of a request over zones, for its decision and offers, and as child zones explain them."""

from typing import Annotated

import msgspec

from gantt.core.messages.base import Text

#: Most filters of one zone.
NAMES_MAX = 256
#: Most filters, and most shares, of an explanation.
EXPLAINED_MAX = 200
#: Bounds of a zone's response: one beyond them cannot be read.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Measure = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
OneLineText = Annotated[str, msgspec.Meta(max_length=255)]


class ZoneStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of a request over zones in one zone: its query, its offers, its members.

    :ivar zone: name of a child zone; '': this one
    :ivar round: round in which the zone was queried, from 1; 0: it was not
    :ivar queried_after: seconds from the start until it was queried; ``seconds``: until its answer
    :ivar outcome: outcome of its evaluation; '': it was not queried, or has not answered
    :ivar offers: places that it offered, the best of them on ``level`` with ``score``
    :ivar hosts: number of hosts evaluated: ``survivors`` and those of ``removed``, by filter, add
        up to it
    :ivar below: numbers of zones below it: queried, answered, silent, left out
    :ivar strategy: strategy that left it out; ``reason``: why, or why it has not answered
    :ivar taken: number of members that are placed there
    """

    zone: Text
    round: int = 0
    queried_after: float = 0.0
    seconds: float = 0.0
    outcome: Text = ''
    offers: int = 0
    level: int = 0
    score: float = 0.0
    hosts: int = 0
    survivors: int = 0
    removed: Annotated[dict[Text, int], msgspec.Meta(max_length=NAMES_MAX)] = {}
    below: Annotated[list[int], msgspec.Meta(max_length=4)] = []
    strategy: Text = ''
    reason: Text = ''
    taken: int = 0


class ExplainedShare(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a request in one zone of its search: the zone itself, or a zone below it.

    :ivar is_own: the zone's own hosts
    :ivar round: round in which it was queried, from 1; 0: it was not, or is the zone itself
    :ivar strategy: strategy that left it out, and why in ``reason``
    :ivar taken: number of members that are placed there
    """

    is_own: bool
    round: Count
    queried_after: Measure
    seconds: Measure
    outcome: OneLineText
    offers: Count
    level: Count
    score: Measure
    hosts: Count
    survivors: Count
    removed: Annotated[dict[OneLineText, Count], msgspec.Meta(max_length=EXPLAINED_MAX)]
    strategy: OneLineText
    reason: Text
    taken: Count
    below: 'ZoneExplanation | None' = None


class ZoneExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Explanation of an allocation in a zone, without names of its hosts or of zones below it.

    :ivar hosts: number of hosts evaluated; ``survivors`` and those of ``removed``, by filter, add
        up to it
    :ivar zones: where it was placed over zones, that zone itself first
    """

    key: OneLineText
    outcome: OneLineText
    level: Count
    attempts: Count
    hosts: Count
    survivors: Count
    removed: Annotated[dict[OneLineText, Count], msgspec.Meta(max_length=EXPLAINED_MAX)]
    zones: Annotated[list[ExplainedShare], msgspec.Meta(max_length=EXPLAINED_MAX)] = []
