# SPDX-License-Identifier: Apache-2.0
"""Hosts that fell silent together: more likely nobody heard them than that all of them failed.

One host that is silent is down, and is left out.  Where most hosts stop reporting at about the
same time it was their way to us that failed (the broker, the database, a report source, a
network), and what they have is not known.
"""

import numpy as np

from gantt.core.table.columns import BoolArray, FloatArray

#: More than this share of the hosts that reported until then ...
SHARE = 0.5
#: ... and at least so many, whose last reports lie within this share of the time after which a
#: host counts as down: within one period of reports, and half of one more.
HOSTS_MIN, WINDOW = 2, 0.5

Window = tuple[float, float]


def fell_together(
    reported_at: FloatArray, counts: BoolArray, now: float, down_seconds: float
) -> Window | None:
    """When the last reports came of hosts that fell silent together; None: there are no such.

    :param reported_at: of each host the time of its last report, 0 where there was none
    :param counts: hosts that count: those that are enabled
    :param now: by the same clock
    :param down_seconds: silence after which a host counts as down
    """
    size = min(len(reported_at), len(counts))  # a table may grow between the two
    reported_at, counts = reported_at[:size], counts[:size]
    known = reported_at[counts & (reported_at > 0)]
    window = WINDOW * down_seconds
    # Overdue ones: of an outage the first ones are down while the last ones are not yet.
    times = np.sort(known[known < now - window])
    if len(times) < HOSTS_MIN or times[0] >= now - down_seconds:
        return None
    ends = np.searchsorted(times, times + window, side='right')
    sizes = ends - np.arange(len(times))
    first = int(np.argmax(sizes))
    size, since = int(sizes[first]), float(times[first])
    if size < HOSTS_MIN or size <= SHARE * int(np.count_nonzero(known >= since)):
        return None
    return since, float(times[first + size - 1])


class Silence:
    """What one process knows of hosts that fell silent together.

    :ivar window: when their last reports came, see :func:`fell_together`; None: all is well
    """

    def __init__(self) -> None:
        self.window: Window | None = None
        self._until = 0.0

    def look(
        self, reported_at: FloatArray, counts: BoolArray, now: float, down_seconds: float
    ) -> Window | None:
        """Take in how hosts report now; the window.

        Once fewer than most are silent, the rest has ``down_seconds`` to report again; whoever
        does not is down like any other host.
        """
        found = fell_together(reported_at, counts, now, down_seconds)
        if found is not None:
            before = self.window
            if before is not None and found[0] <= before[1] and before[0] <= found[1]:
                found = min(found[0], before[0]), max(found[1], before[1])
            self.window, self._until = found, now + down_seconds
        elif now >= self._until:
            self.window = None
        return self.window
