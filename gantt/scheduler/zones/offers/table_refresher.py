# SPDX-License-Identifier: Apache-2.0
"""Refresher of the table of local hosts while offers are requested: no request waits for it.

An offer is no promise: a claim is chosen anew, under locks.  So it may be computed from a table
read a moment ago; but claims of this process are read before its next offer.
"""

import logging
import threading

from gantt.scheduler.host_follower import HostFollower

LOG = logging.getLogger(__name__)
#: Maximum age of the table that an offer is computed from, in seconds.
FRESH_SECONDS = 0.2
#: Seconds between two reads, and seconds without a request after which nothing is read.
EACH_SECONDS, IDLE_SECONDS = 0.1, 2.0
#: Seconds by which the thread that answers a claim goes first.
AFTER_SECONDS = 0.001


class TableRefresher:
    """Thread that keeps the table of local hosts fresh.  Any thread may call it.

    :param cache: a follower of the database
    """

    def __init__(self, cache: HostFollower) -> None:
        self._cache = cache
        self._requested_at = float('-inf')
        self._wake, self._lock = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def requested(self) -> None:
        """Note a request for offers: keep the table fresh for the next ones."""
        before, self._requested_at = self._requested_at, self._cache.clock.monotonic()
        if self._requested_at - before < IDLE_SECONDS:
            return
        with self._lock:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name='own-hosts', daemon=True)
                self._thread.start()
        self._wake.set()

    def reload_soon(self) -> None:
        """Read the table before the next offer, as something was claimed."""
        self._cache.reload_soon()
        self._wake.set()

    def close(self) -> None:
        """Read no more: further offers come from an old table."""
        with self._lock:
            self._is_closed = True
        self._wake.set()

    # -- the thread --------------------------------------------------------------------
    def _run(self) -> None:
        while not self._is_closed:
            is_idle = self._cache.clock.monotonic() - self._requested_at > IDLE_SECONDS
            if self._wake.wait(None if is_idle else EACH_SECONDS):
                self._wake.clear()
                self._cache.clock.sleep(AFTER_SECONDS)
            try:
                self._cache.refresh(EACH_SECONDS / 2)
            except Exception:  # the thread has to outlive any one reading
                LOG.exception('Local hosts cannot be read')
                self._cache.clock.sleep(EACH_SECONDS)
