# SPDX-License-Identifier: Apache-2.0
"""The best scores that were seen lately, by size: what "good" means for a request.

Scores are on absolute scales, so that no one number is high for all of them: a zone whose weighers
have little to say of its hosts has 0.3 for the best of them.  What was seen is forgotten after some
time, as places fill: then all zones are queried once more.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from gantt.core.zones.summary import shape_of

#: For so long a score is remembered at least, and for twice as long at most, in seconds.
REMEMBERED_SECONDS = 150.0
#: Sizes that are remembered, those seen last.
SHAPES_MAX = 1024


class _Seen(NamedTuple):
    """Of one size: the best since ``begun``, and that of the time before; -1.0: none."""

    begun: float
    now: float
    before: float


class BestSeen:
    """What one process has seen.  Not for several threads at once."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def note(self, resources: Mapping[str, int], score: float, now: float) -> None:
        """A place with such a score was offered.

        :param score: from 0 to 1
        :param now: seconds of a clock that only goes on
        """
        shape = shape_of(resources)
        seen = _aged(self._seen.get(shape, _Seen(now, -1.0, -1.0)), now)
        self._seen[shape] = seen._replace(now=max(seen.now, score))
        self._seen.move_to_end(shape)
        if len(self._seen) > SHAPES_MAX:
            self._seen.popitem(last=False)

    def of(self, resources: Mapping[str, int], now: float) -> float | None:
        """The best score that was seen lately for a size; None: none was."""
        seen = self._seen.get(shape_of(resources))
        if seen is None:
            return None
        aged = _aged(seen, now)
        best = max(aged.now, aged.before)
        return best if best >= 0.0 else None


def _aged(seen: _Seen, now: float) -> _Seen:
    age = now - seen.begun
    if age < REMEMBERED_SECONDS:
        return seen
    return _Seen(now, -1.0, seen.now if age < 2 * REMEMBERED_SECONDS else -1.0)
