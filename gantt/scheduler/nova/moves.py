# SPDX-License-Identifier: Apache-2.0
"""Requests of Nova for a guest on a host: its location settles the guest's last move.

Where a guest's last move ended a moment ago the claim that it runs under may
not be confirmed yet, as no list of its host has come; to the commit it appears
as an abandoned destination, and would give way.  Nova begins a move
only when none is open, so the request for the next one knows better.  Likewise a
guest that comes out of a shelf is on no host, even if a claim remains.
"""

import logging
import queue
import threading
from collections.abc import Callable

from gantt import exceptions
from gantt.core.messages.request import SelectDestinations
from gantt.core.nova.events import GuestLocation
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.nova.events import NovaEvents
from gantt.scheduler.ports import Requests

LOG = logging.getLogger(__name__)

QUEUE_LIMIT = 1000
#: Tolerance: the database's clock is known only by estimate.
CLOCK_SECONDS = 1.0

Then = Callable[[], None]
Item = tuple[SelectDestinations, str | None, Then]


class NovaMoves:
    """The thread that settles moves, and its queue."""

    def __init__(self, requests: Requests, cache: HostCache, events: NovaEvents) -> None:
        self._requests = requests
        self._cache = cache
        self._events = events
        self._queue: queue.Queue[Item | None] = queue.Queue(QUEUE_LIMIT)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name='nova moves', daemon=True)
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Pass on what is queued, then stop; return whether that was done in time."""
        if self._thread is None:
            return True
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            return False
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def begin(self, request: SelectDestinations, source: str | None, then: Then) -> None:
        """Settle the guests of a request at their host, then continue with it.

        :param source: None: they are on no host
        """
        try:
            self._queue.put_nowait((request, source, then))
        except queue.Full:
            then()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            request, source, then = item
            try:
                self.resolve(request, source)
            except exceptions.Unavailable as e:
                LOG.debug('Guest was not resolved before its next move: error=%s', e)
            except Exception:
                LOG.exception('Guest was not resolved before its next move')
            then()

    def resolve(self, request: SelectDestinations, source: str | None) -> None:
        """Settle guests on ``source``, or on no host; a repeated request changes nothing."""
        cutoff = self._cache.database_now - CLOCK_SECONDS
        if self._requests.load_request(request.request_id) is not None:
            return
        for consumer in request.consumers:
            self._events.resolve(GuestLocation(consumer=consumer, host=source, cutoff=cutoff))
