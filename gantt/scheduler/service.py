# SPDX-License-Identifier: Apache-2.0
"""One scheduler: its threads wired together, and the methods that RPC and HTTP call.

No logic here.  RPC, the in-process demo and the tests all use this class.
"""

import contextlib
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import msgspec

from gantt import exceptions
from gantt.core.messages import request as requests
from gantt.core.messages.report import ClaimUpdate, HostReport, Registered, RegisterHost
from gantt.core.messages.request import (
    CancelClaims,
    ConfirmRequest,
    ExtendClaims,
    GetRequest,
    ReleaseRequest,
    SelectDestinations,
)
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Answer, Outcome, ZoneStep
from gantt.core.records.members import encodable_answer
from gantt.core.resources.host import HostRow
from gantt.scheduler.claims import ClaimUpdates
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.host_signatures import HostSignatures
from gantt.scheduler.housekeeping import Housekeeping
from gantt.scheduler.ports.hosts import ReportOutcome
from gantt.scheduler.ports.process import Clock, Inbox, Recorder, Replies
from gantt.scheduler.ports.requests import ClaimOutcome
from gantt.scheduler.ports.stores import Stores
from gantt.scheduler.quotas import QuotaChecks
from gantt.scheduler.register_hosts import RegistrationQueue
from gantt.scheduler.request import answers
from gantt.scheduler.request.loop import SchedulingThread
from gantt.scheduler.request.planner import MakePlanningHook
from gantt.scheduler.request.queue import ImmediateAnswer, refusal
from gantt.scheduler.request.server_groups import ServerGroups
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.table_log import TableLog
from gantt.scheduler.update_resource_stats import ReportQueue
from gantt.scheduler.work_queue import WaitingReplies

#: Seconds that a part with nothing left to do needs to end.
GRACE_SECONDS = 0.5


class RequestRoute(Protocol):
    """A way of requests that lies before the scheduling thread, or beside it.

    A capability registers it, see ``Scheduler.route_over``.  Any thread may call it.
    """

    def start(self) -> None:
        """Start its threads, once those of the scheduler run."""

    def reconfigure(self) -> None:
        """Take over settings that have changed."""

    def stop(self, seconds: float) -> bool:
        """Accept no more requests and finish those inside; return whether that was in time."""

    def takes(self, request: SelectDestinations) -> bool:
        """Return whether a request goes this way, whatever becomes of it."""

    def stays(self, request: SelectDestinations) -> bool:
        """Return whether a request for the own hosts goes this way before it is placed."""

    def submit(
        self, request: SelectDestinations, handle: Any, replies: Replies, spent_ms: float
    ) -> None:
        """Carry out a request that it takes; the answer comes through ``replies``."""

    def submit_here(
        self,
        request: SelectDestinations,
        handle: Any,
        replies: Replies,
        spent_ms: float,
        fingerprint: str,
        zones: Sequence[ZoneStep],
    ) -> None:
        """Carry out a request that stays; the answer comes through ``replies``.

        :param fingerprint: of the request as received; '': it is unchanged
        :param zones: steps by which it reached the own hosts
        """

    def note_end(self, request_id: str) -> None:
        """Note that a request is about to be cancelled."""

    def cancel(self, request_id: str) -> None:
        """Give back what a cancelled request has claimed there."""

    def extend(self, message: ExtendClaims) -> bool:
        """Extend the leases that a request has there; return whether there are any.

        :raises GanttError: they could not be extended
        """


class Stoppable(Protocol):
    """Threads that finish what they have."""

    def stop(self, seconds: float) -> bool:
        """Accept no more work and finish what is queued; return whether that was in time."""


class SchedulerPart(Stoppable, Protocol):
    """Threads that a capability has beside those of the scheduler, see ``Scheduler.add``."""

    def start(self) -> None:
        """Start the threads, once those of the scheduler run."""

    def failing(self) -> Sequence[str]:
        """Return the names of its work queues that fail."""


class Scheduler:
    """The service, independent of how it is reached."""

    def __init__(
        self,
        stores: Stores,
        pipeline: Pipeline,
        recorder: Recorder,
        settings: SchedulerSettings | None = None,
        clock: Clock | None = None,
        on_answers: answers.AnswersCallback | None = None,
        make_hook: MakePlanningHook = ServerGroups,
    ) -> None:
        """Wire the threads; none is started.

        :param make_hook: returns the hook of requests for members of groups
        """
        self.settings = settings or SchedulerSettings()
        self.clock: Clock = clock or SystemClock()
        self.stores = stores
        self.recorder = recorder
        log = None
        if self.settings.replay_seconds:
            log = TableLog(self.settings.worker, self.settings.checkpoint_seconds)
        self.cache = HostCache(
            stores.feed,
            stores.vocabulary,
            self.clock,
            self.settings.reload_seconds,
            log,
            self.settings.default_zone,
            recorder.count,
        )
        #: Caches of hosts in this process, those of its parts included.
        self.caches = [self.cache]
        self.stored_answers = answers.StoredAnswers(
            stores.records, stores.requests, self.cache.host_row, self.cache.pool
        )
        self.quotas = QuotaChecks(
            stores.quotas,
            stores.claims,
            stores.groups,
            self.settings,
            self.clock,
            recorder.count,
        )
        self.placing = SchedulingThread(
            stores,
            self.cache,
            pipeline,
            recorder,
            self.settings,
            self.quotas,
            make_hook,
            on_answers,
        )
        self.report_queue = ReportQueue(
            stores.reports, self.cache, recorder, self.clock, self.settings
        )
        self.signatures = HostSignatures(
            lambda name: self.cache.keys.get(name),
            stores.hosts.load_host_key,
            lambda: self.settings.signatures,
            recorder.count,
            self.clock.monotonic,
        )
        self.claims = ClaimUpdates(
            stores.claims,
            stores.requests,
            stores.reports,
            self.cache,
            recorder,
            self.settings,
            self.signatures.alarm,
        )
        self.registrations = RegistrationQueue(self.claims, recorder)
        #: Another way of some requests; None: all are placed by the scheduling thread.
        self._route: RequestRoute | None = None
        self._parts: list[SchedulerPart] = []
        self._work_queues = (
            self.registrations.work_queue,
            self.report_queue.work_queue,
        )
        self.housekeeping = Housekeeping(
            stores,
            self.cache,
            self.claims,
            recorder,
            self.settings,
            self.placing.contention,
            self.quotas,
        )

    def add(self, part: SchedulerPart) -> None:
        """Let a part start and stop with the scheduler; call before the start."""
        self._parts.append(part)

    def route_over(self, route: RequestRoute) -> None:
        """Let some requests go another way; call before the start."""
        self._route = route

    # -- life ------------------------------------------------------------------
    def start(self) -> None:
        """Read the state and start the threads.

        :raises DatabaseUnavailable, DatabaseNotSynced: before anything runs
        """
        self.cache.fetch()
        self.placing.start()
        self.report_queue.work_queue.start()
        self.registrations.work_queue.start()
        for part in self._parts:
            part.start()
        self.housekeeping.start()
        if self._route is not None:
            self._route.start()

    def reconfigure(self, settings: SchedulerSettings, pipeline: Pipeline) -> list[str]:
        """Continue with other settings, filters and weighers from the next batch on.

        :returns: names of the settings that changed
        """
        changed = self.settings.follow(settings)
        admission = self.placing.admission
        admission.limit = self.settings.queue_limit
        admission.retry_after_ms = self.settings.retry_after_ms
        admission.use_weights(self.settings.project_weights)
        self.cache.reload_seconds = self.settings.reload_seconds
        if self._route is not None:
            self._route.reconfigure()
        self.placing.use_pipeline(pipeline)
        return changed

    def stop(self, seconds: float = 30.0) -> bool:
        """Accept no more requests and finish those inside; return whether that was in time.

        :param seconds: for all of it; a part that comes late still gets a moment
        """
        end = self.clock.monotonic() + seconds
        done = True
        if self._route is not None:
            done &= self._route.stop(seconds / 2)
        threads: list[Stoppable] = [*self._parts, self.placing, *self._work_queues]
        for part in threads:
            done &= part.stop(max(GRACE_SECONDS, end - self.clock.monotonic()))
        self.placing.admission.inbox.close()
        self.housekeeping.stop(5.0)
        return done

    # -- flow 1 ----------------------------------------------------------------
    def submit(
        self,
        request: SelectDestinations,
        handle: Any,
        replies: Replies,
        spent_ms: float = 0.0,
        *,
        stays: bool = False,
    ) -> None:
        """Queue a request; the answer comes through ``replies``.

        Blocks only to read the database, for a class that ``has_classes`` does not know.

        :param spent_ms: part of the budget that was spent before it got here
        :param stays: no route takes it: its caller knows of no other hosts than those of this zone
        :raises InvalidMessage, UnknownResourceClass: where types do not show it
        """
        route = self._route
        is_taken = route is not None and not stays and route.takes(request)
        fingerprint, zones = '', list[ZoneStep]()
        if request.places and not is_taken:
            fingerprint = request.fingerprint
            zones = [
                msgspec.structs.replace(step, taken=0 if step.zone else len(request.consumers))
                for step in request.places[0].steps
            ]
            request = request.on_hosts([name for place in request.places for name in place.hosts])
        declared = self.cache.declared_classes(request.spec.classes)
        # A class unknown here may be known where the request goes.
        requested_classes = frozenset(request.spec.classes) if is_taken else frozenset()
        requests.check(request, declared | requested_classes)
        too_often = self._rate_refusal(request)
        if too_often is None and route is not None:
            if is_taken:
                route.submit(request.traced(), handle, replies, spent_ms)
                return
            if route.stays(request):
                route.submit_here(request, handle, replies, spent_ms, fingerprint, zones)
                return
        admission = self.placing.admission
        refused = (
            admission.submit(request, handle, replies, spent_ms, fingerprint, zones)
            if too_often is None
            else [ImmediateAnswer(replies, handle, too_often)]
        )
        for carrier, waiting_handle, answer in refused:
            self.recorder.count('gantt_requests_rejected_total', outcome=answer.outcome.value)
            carrier.send_soon([(waiting_handle, answer)])

    def read_from(self, inbox: Inbox) -> None:
        """Let the scheduling thread read an inbox, also while the database works."""
        admission = self.placing.admission
        old_inbox, admission.inbox = admission.inbox, inbox
        self.stores.requests.do_meanwhile(inbox)
        old_inbox.wake()

    def _rate_refusal(self, request: SelectDestinations) -> Answer | None:
        """Return the refusal of a request of a project that exceeds its rate, else None."""
        if request.repeat:
            return None  # it was counted when it was new
        is_own = request.only_project is not None
        excess = self.quotas.count_request(
            request.spec.project_id, is_own, self.quotas.last_limits()
        )
        if excess is None:
            return None
        return refusal(request, Outcome.REFUSED, excess.line, excess=excess)

    def select(self, request: SelectDestinations) -> Answer:
        """Submit and wait, for callers in this process."""
        waiter = WaitingReplies()
        self.submit(request, None, waiter)
        return encodable_answer(waiter.wait(request, request.budget_ms / 1000 + 5))

    def get_request(self, message: GetRequest) -> Answer:
        """Return the stored answer of an earlier request.

        :raises NotFound: it was never placed, or is no longer kept
        """
        stored = self.stores.requests.load_request(message.request_id)
        if stored is None:
            raise exceptions.NotFound(kind='request', name=message.request_id)
        if stored.state == 'cancelled' and (stored.attempt or not stored.answer):
            raise exceptions.RequestCancelled(request_id=message.request_id)
        if stored.state == 'open' or not stored.answer:
            raise exceptions.Busy(reason='the request is being placed', retry_after_ms=200)
        return self.stored_answers.read(message.request_id, stored.answer)

    def cancel(self, message: CancelClaims) -> dict[str, object]:
        """Cancel a request."""
        if self._route is not None:
            # Noted first: a process that ends in between leaves no claim behind by mistake.
            self._route.note_end(message.request_id)
        done = self.claims.cancel(message)
        if self._route is not None:
            self._route.cancel(message.request_id)
        return done

    def extend(self, message: ExtendClaims) -> dict[str, object]:
        """Lengthen the leases of a request, here and where it was routed to.

        :raises NotFound: nothing of it is reserved
        :raises Unavailable: a child zone has not answered; some leases may be longer
        """
        if self._route is not None and self._route.extend(message):
            with contextlib.suppress(exceptions.NotFound):
                return self.claims.extend(message)
            return {'request_id': message.request_id, 'claims': []}
        return self.claims.extend(message)

    def confirm_request(self, message: ConfirmRequest) -> dict[str, object]:
        """Confirm the claims of a request for pools."""
        return self.claims.confirm_request(message)

    def release_request(self, message: ReleaseRequest) -> dict[str, object]:
        """Release the claims of a request for pools."""
        return self.claims.release_request(message)

    # -- flow 2 and updates of claims ----------------------------------------------
    def report(self, report: HostReport, wait_seconds: float | None = None) -> ReportOutcome | None:
        """Queue a report; with ``wait_seconds``, wait for its outcome.

        :raises InvalidMessage, UnknownResourceClass, Busy:
        :raises StaleEpoch, NotFound: when waiting, for a host that must register first
        """
        if wait_seconds is None:
            self.report_queue.submit(report)
            return None
        try:
            return self.report_outcome(report, self.report_soon(report).result(wait_seconds))
        except TimeoutError:
            raise exceptions.Busy(reason='the report is queued', retry_after_ms=1000) from None

    def report_soon(self, report: HostReport) -> 'Future[ReportOutcome]':
        """Queue a report for a caller that awaits its outcome; see ``report_outcome`` for errors.

        :raises InvalidMessage, UnknownResourceClass, Busy:
        """
        future = self.report_queue.submit(report, notify=True)
        assert future is not None
        return future

    @staticmethod
    def report_outcome(report: HostReport, outcome: ReportOutcome) -> ReportOutcome:
        """Return the outcome of a report, or raise its error.

        :raises StaleEpoch, NotFound: the host must register first
        """
        if outcome.outcome == 'gone':
            raise exceptions.StaleEpoch(
                host=outcome.name, epoch=report.epoch, current=outcome.current_epoch
            )
        if outcome.outcome == 'ahead':
            raise exceptions.StaleEpoch(
                f'host {outcome.name!r}: sequence {report.sequence} is too far beyond the last one '
                f'received ({outcome.current_sequence}); the host must register again',
                host=outcome.name,
                epoch=report.epoch,
                current=outcome.current_epoch,
            )
        if outcome.outcome == 'unknown_host':
            raise exceptions.NotFound(kind='host', name=outcome.name)
        return outcome

    def register_host(self, message: RegisterHost) -> Registered:
        return self.claims.register_host(message)

    def register_soon(self, message: RegisterHost) -> 'Future[Registered]':
        """Register a host, in a future: together with others that come at that time.

        :raises Busy: too many wait
        """
        return self.registrations.submit(message)

    def confirm(self, update: ClaimUpdate) -> list[ClaimOutcome]:
        return self.claims.confirm(update)

    def refuse(self, update: ClaimUpdate) -> list[ClaimOutcome]:
        return self.claims.refuse(update)

    def release(self, update: ClaimUpdate) -> list[ClaimOutcome]:
        return self.claims.release(update)

    def host_row(self, provider_id: int) -> HostRow | None:
        """Return the row of a host, None where it is not known (any more)."""
        return self.cache.host_row(provider_id)

    def database_now(self) -> float:
        """Return the database's clock, which all schedulers share."""
        return self.cache.database_now

    def refuse_unstarted(self, reason: str) -> int:
        """Turn away waiting requests not begun, for another scheduler; return their number."""
        return self.placing.refuse_unstarted(reason)

    # -- about itself ------------------------------------------------------------
    def has_classes(self, names: Iterable[str]) -> bool:
        """Return whether all resource classes are known here: their check reads nothing."""
        return self.cache.has_classes(names)

    def silent_for(self) -> float:
        """Return the seconds of the longest wait for the database now under way."""
        return self.stores.database.silent_for()

    def ping(self) -> None:
        """Send the database a query.  :raises DatabaseUnavailable: it does not answer"""
        self.stores.database.ping()

    def declared_classes(self) -> frozenset[str]:
        """Return the custom resource classes known now."""
        return self.cache.classes

    def health(self) -> dict[str, object]:
        """Return queue depths and ages, for health checks and metrics."""
        return {
            'hosts': len(self.cache.working),
            'table_age_seconds': round(self.cache.age_seconds, 3),
            'database_silent_seconds': round(self.stores.database.silent_for(), 3),
            'requests_waiting': self.placing.admission.depth,
            'requests_overdue_seconds': round(self.placing.admission.overdue_seconds, 3),
            'registrations_waiting': self.registrations.work_queue.depth,
            'reports_waiting': self.report_queue.work_queue.depth,
            'loaded': self.cache.is_loaded,
            'failing': [
                *(work_queue.name for work_queue in self._work_queues if work_queue.is_failing),
                *(name for part in self._parts for name in part.failing()),
            ],
        }
