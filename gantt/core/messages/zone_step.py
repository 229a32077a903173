# SPDX-License-Identifier: Apache-2.0
"""Step of a request over zones in one of them, for its decision and its offers."""

from typing import Annotated

import msgspec

from gantt.core.messages.base import Text

#: Most filters of one zone.
NAMES_MAX = 256


class ZoneStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Step of a request over zones in one of them.

    :ivar zone: name of a zone directly below; '': this one
    :ivar round: in which it was queried, from 1; 0: it was not
    :ivar after: seconds from the start until it was queried; ``seconds``: that it took to answer
    :ivar outcome: of its evaluation; '': it was not queried, or has not answered
    :ivar offers: places that it offered, the best of them on ``level`` with ``score``
    :ivar hosts: that it looked at: ``survivors`` and those of ``removed``, by filter, add up
    :ivar below: how many zones below it were queried, have answered, have not, were left out
    :ivar by: the strategy that left it out; ``reason``: why, or why it has not answered
    :ivar taken: members that have their place there
    """

    zone: Text
    round: int = 0
    after: float = 0.0
    seconds: float = 0.0
    outcome: Text = ''
    offers: int = 0
    level: int = 0
    score: float = 0.0
    hosts: int = 0
    survivors: int = 0
    removed: Annotated[dict[Text, int], msgspec.Meta(max_length=NAMES_MAX)] = {}
    below: Annotated[list[int], msgspec.Meta(max_length=4)] = []
    by: Text = ''
    reason: Text = ''
    taken: int = 0
