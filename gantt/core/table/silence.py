# SPDX-License-Identifier: Apache-2.0
"""Hosts that fell silent together: more likely their reports were lost than all have failed.

One host that is silent is down, and is left out.  If most hosts stop reporting at about the
same time, the path of their reports has failed (the broker, the database, a report source, a
network), and the state of the hosts is not known.
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
    """Return the window of the last reports of hosts that fell silent together; None: no such.

    :param reported_at: time of the last report of each host, 0 if there was none
    :param counts: hosts that count: those that are enabled
    :param now: by the same clock
    :param down_seconds: silence after which a host counts as down
    """
    size = min(len(reported_at), len(counts))  # a table may grow between the two
    reported_at, counts = reported_at[:size], counts[:size]
    last_reports = reported_at[counts & (reported_at > 0)]
    window = WINDOW * down_seconds
    # Overdue ones: of an outage the first ones are down while the last ones are not yet.
    times = np.sort(last_reports[last_reports < now - window])
    if len(times) < HOSTS_MIN or times[0] >= now - down_seconds:
        return None
    ends = np.searchsorted(times, times + window, side='right')
    sizes = ends - np.arange(len(times))
    first = int(np.argmax(sizes))
    size, since = int(sizes[first]), float(times[first])
    if size < HOSTS_MIN or size <= SHARE * int(np.count_nonzero(last_reports >= since)):
        return None
    return since, float(times[first + size - 1])


class Silence:
    """State of hosts that fell silent together, of one process.

    :ivar window: window of their last reports, see :func:`fell_together`; None: no outage
    """

    def __init__(self) -> None:
        self.window: Window | None = None
        self._until = 0.0  # time until which the window stays, by the clock of ``look``

    def look(
        self, reported_at: FloatArray, counts: BoolArray, now: float, down_seconds: float
    ) -> Window | None:
        """Update the state with the current reports, and return the window.

        Once the majority reports again, the rest has ``down_seconds`` to report again; a host
        that does not is down like any other.
        """
        window = fell_together(reported_at, counts, now, down_seconds)
        if window is not None:
            previous = self.window
            if previous is not None and window[0] <= previous[1] and previous[0] <= window[1]:
                window = min(window[0], previous[0]), max(window[1], previous[1])
            self.window, self._until = window, now + down_seconds
        elif now >= self._until:
            self.window = None
        return self.window
