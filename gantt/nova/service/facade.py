# SPDX-License-Identifier: Apache-2.0
"""Nova's side of a scheduler: what Nova's topic and the report sources of Nova call."""

from gantt.core.messages.request import SelectDestinations
from gantt.nova.model.events import NovaCast
from gantt.nova.ports import NovaStores
from gantt.nova.service.events import Continuation, MoveResolver, NovaEvents
from gantt.nova.service.source import NovaSource
from gantt.scheduler.service import Scheduler


class NovaFacade:
    """Nova's side of a scheduler: a ``SchedulerPart``.

    :ivar events: folds broadcasts
    :ivar source: methods of report sources
    """

    def __init__(self, stores: NovaStores, scheduler: Scheduler) -> None:
        self.submit = scheduler.submit
        self.has_classes = scheduler.has_classes
        self.host_row = scheduler.host_row
        self.signatures = scheduler.signatures
        self.events = NovaEvents(
            stores.nova,
            scheduler.cache,
            scheduler.recorder,
            scheduler.clock,
            scheduler.settings,
        )
        self._moves = MoveResolver(stores.requests, scheduler.cache, self.events)
        self.source = NovaSource(
            stores.nova,
            stores.reports,
            stores.groups,
            scheduler.cache,
            self.events,
            scheduler.recorder,
            scheduler.settings,
            scheduler.signatures.alarm,
        )

    def start(self) -> None:
        """Start the threads."""
        self.events.work_queue.start()
        self._moves.start()

    def stop(self, seconds: float) -> bool:
        """Accept nothing new and finish accepted work; return whether that was done in time."""
        is_passed_on = self._moves.stop(seconds / 2)
        return self.events.work_queue.stop(seconds / 2) and is_passed_on

    def failing(self) -> list[str]:
        """Return the names of work queues that fail."""
        work_queue = self.events.work_queue
        return [work_queue.name] if work_queue.is_failing else []

    def nova_event(self, cast: NovaCast) -> None:
        """Queue a broadcast of an unmodified Nova; never blocks.

        :raises Busy: the queue is full; the broadcast is lost
        """
        self.events.submit(cast)

    def submit_move(
        self, request: SelectDestinations, source: str | None, then: Continuation
    ) -> None:
        """Resolve the last move of a guest on ``source``, then submit its next one.

        :param source: None: the guest is on no host
        :param then: submits the request; called by another thread, soon
        """
        self._moves.begin(request, source, then)
