# SPDX-License-Identifier: Apache-2.0
"""The own hosts, read again and again while offers are asked for, so that nobody waits for it.

An offer is no promise: what is claimed is chosen anew, under locks.  So it may be made from what
was read a moment ago; but what was claimed by way of this process is read before its next offer.
"""

import logging
import threading

from gantt.scheduler.host_follower import HostFollower

LOG = logging.getLogger(__name__)
#: How old the table may be that an offer is made from, in seconds.
FRESH_SECONDS = 0.2
#: Between two readings; after so many seconds without a request nothing is read.
EACH_SECONDS, IDLE_SECONDS = 0.1, 2.0
#: After a claim the thread that answers goes first.
AFTER_SECONDS = 0.001


class FreshHosts:
    """Any thread.

    :param cache: a follower of the database
    """

    def __init__(self, cache: HostFollower) -> None:
        self._cache = cache
        self._requested_at = float('-inf')
        self._wake, self._lock = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def requested(self) -> None:
        """Offers are asked for: read what the next ones are made from."""
        before, self._requested_at = self._requested_at, self._cache.clock.monotonic()
        if self._requested_at - before < IDLE_SECONDS:
            return
        with self._lock:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name='own-hosts', daemon=True)
                self._thread.start()
        self._wake.set()

    def reload_soon(self) -> None:
        """Something was claimed: read it before the next offer."""
        self._cache.reload_soon()
        self._wake.set()

    def close(self) -> None:
        """Read no more: who asks for offers reads what is old."""
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
                LOG.exception('reading the own hosts has failed')
                self._cache.clock.sleep(EACH_SECONDS)
