# SPDX-License-Identifier: Apache-2.0
"""One scheduler: its threads wired together, and the methods that RPC and HTTP call.

No logic here.  RPC, the in-process demo and the tests all use this class.
"""

import contextlib
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

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
from gantt.core.nova.events import NovaCast
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Answer, Outcome
from gantt.core.records.members import plain
from gantt.core.resources.host import HostRow
from gantt.core.zones import not_queried
from gantt.scheduler.claims import ClaimUpdates
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.groups.group_members import GroupMembers
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.host_signatures import HostSignatures
from gantt.scheduler.housekeeping import Housekeeping
from gantt.scheduler.nova.events import NovaEvents
from gantt.scheduler.nova.moves import NovaMoves, Then
from gantt.scheduler.nova.source import NovaSource
from gantt.scheduler.ports import (
    ClaimOutcome,
    Clock,
    Inbox,
    Recorder,
    Replies,
    ReportOutcome,
    Stores,
)
from gantt.scheduler.quotas import QuotaChecks
from gantt.scheduler.register_hosts import Registrations
from gantt.scheduler.request import answers
from gantt.scheduler.request.loop import Placing
from gantt.scheduler.request.queue import AtOnce, refusal
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.table_log import TableLog
from gantt.scheduler.update_resource_stats import Intake
from gantt.scheduler.waiter import Waiter
from gantt.scheduler.zones.context import ZoneContext
from gantt.scheduler.zones.follow import ZoneFollower
from gantt.scheduler.zones.place_over_zones import PlaceOverZones
from gantt.scheduler.zones.release_outbox import ReleaseOutbox
from gantt.scheduler.zones.share_claimer import among

#: Seconds that a part with nothing left to do needs to end.
MOMENT_SECONDS = 0.5


class Scheduler:
    """The service, independent of how it is reached."""

    def __init__(
        self,
        stores: Stores,
        pipeline: Pipeline,
        recorder: Recorder,
        settings: SchedulerSettings | None = None,
        clock: Clock | None = None,
        on_answers: answers.OnAnswers | None = None,
    ) -> None:
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
        self.stored_answers = answers.StoredAnswers(
            stores.records, stores.requests, self.cache.host_row, self.cache.pool
        )
        self.quotas = QuotaChecks(
            stores.quotas,
            stores.claims,
            stores.groups,
            stores.plans,
            self.settings,
            self.clock,
            recorder.count,
        )
        self.placing = Placing(
            stores,
            self.cache,
            pipeline,
            recorder,
            self.settings,
            self.quotas,
            GroupMembers,
            on_answers,
        )
        self.intake = Intake(stores.reports, self.cache, recorder, self.clock, self.settings)
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
        self.registrations = Registrations(self.claims, recorder)
        self.nova = NovaEvents(stores.nova, self.cache, recorder, self.clock, self.settings)
        #: Places requests over the child zones; None: there are no calls to them.
        self.over_zones: PlaceOverZones | None = None
        self._zones: ZoneContext | None = None
        #: Follows the changes of claims below.
        self.follower: ZoneFollower | None = None
        self._work_queues = (
            self.registrations.work_queue,
            self.intake.work_queue,
            self.nova.work_queue,
        )
        self.nova_moves = NovaMoves(stores.requests, self.cache, self.nova)
        self.nova_source = NovaSource(
            stores.nova,
            stores.reports,
            stores.groups,
            self.cache,
            self.nova,
            recorder,
            self.settings,
            self.signatures.alarm,
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

    def speak_with(self, zones: ZoneContext) -> None:
        """Let requests go to the child zones; call before the start."""
        outbox = ReleaseOutbox(
            self.stores.zone_releases,
            self.stores.requests,
            self.stores.zone_claims,
            zones.calls,
            zones.directory.own_uuid,
            self.recorder,
        )
        self._zones = zones
        self.placing.know_zones(
            lambda request: not_queried.zones_not_queried(zones.directory.children(), request)
        )
        self.follower = ZoneFollower(
            self.stores.zone_claims,
            zones.calls,
            zones.directory,
            outbox,
            self.recorder,
            self.clock,
        )
        self.over_zones = PlaceOverZones(
            self.stores,
            zones,
            self.placing.admission,
            self.stored_answers,
            self.recorder,
            self.settings,
            self.follower,
            self.quotas,
        )

    # -- life ------------------------------------------------------------------
    def start(self) -> None:
        """Read the state and start the threads.

        :raises DatabaseUnavailable, DatabaseNotSynced: before anything runs
        """
        self.cache.fetch()
        self.placing.start()
        self.intake.work_queue.start()
        self.registrations.work_queue.start()
        self.nova.work_queue.start()
        self.nova_moves.start()
        self.housekeeping.start()
        if self._zones is not None and self.follower is not None:
            self._zones.directory.refresh()
            self.follower.start()

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
        if self.over_zones is not None:
            self.over_zones.reconfigure()
        self.placing.use(pipeline)
        return changed

    def stop(self, seconds: float = 30.0) -> bool:
        """Take nothing new and finish what is inside; return whether that was done in time.

        :param seconds: for all of it; a part that comes late still gets a moment
        """
        end = self.clock.monotonic() + seconds
        done = True
        if self.over_zones is not None and self.follower is not None:
            self.follower.stop(MOMENT_SECONDS)
            done &= self.over_zones.stop(seconds / 2)
            if self._zones is not None:
                self._zones.close()
        for part in (self.nova_moves, self.placing, *self._work_queues):
            done &= part.stop(max(MOMENT_SECONDS, end - self.clock.monotonic()))
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
        :param stays: it is for hosts of this zone alone, as its caller knows of no other
        :raises InvalidMessage, UnknownResourceClass: where types do not show it
        """
        over_zones = self.over_zones
        goes_down = over_zones is not None and not stays and over_zones.takes(request)
        fingerprint, zones = '', []
        if request.places and not goes_down:
            fingerprint = request.fingerprint
            zones = [
                msgspec.structs.replace(step, taken=0 if step.zone else len(request.consumers))
                for step in request.places[0].steps
            ]
            request = among(request, [name for place in request.places for name in place.hosts])
        declared = self.cache.declared_classes(request.spec.classes)
        # A class unknown here may be known in a child zone.
        requested_classes = frozenset(request.spec.classes) if goes_down else frozenset()
        requests.check(request, declared | requested_classes)
        too_often = self._too_often(request)
        if too_often is None and goes_down:
            assert over_zones is not None, 'it takes the request'
            over_zones.submit(request.traced(), handle, replies, spent_ms)
            return
        if too_often is None and over_zones is not None and over_zones.stays(request):
            over_zones.submit_here(request, handle, replies, spent_ms, fingerprint, zones)
            return
        admission = self.placing.admission
        refused = (
            admission.submit(request, handle, replies, spent_ms, fingerprint, zones)
            if too_often is None
            else [AtOnce(replies, handle, too_often)]
        )
        for carrier, waiting_handle, answer in refused:
            self.recorder.count('gantt_requests_rejected_total', outcome=answer.outcome.value)
            carrier.send_soon([(waiting_handle, answer)])

    def read_from(self, inbox: Inbox) -> None:
        """Let the placing thread read an inbox, also while the database works."""
        admission = self.placing.admission
        old_inbox, admission.inbox = admission.inbox, inbox
        self.stores.requests.do_meanwhile(inbox)
        old_inbox.wake()

    def _too_often(self, request: SelectDestinations) -> Answer | None:
        """Return the refusal of a request where its project exceeds its rate, else None."""
        if request.repeat:
            return None  # it was counted when it was new
        is_own = request.only_project is not None
        excess = self.quotas.take(request.spec.project_id, is_own, self.quotas.known())
        if excess is None:
            return None
        return refusal(request, Outcome.REFUSED, excess.line, excess=excess)

    def select(self, request: SelectDestinations) -> Answer:
        """Submit and wait, for callers in this process."""
        waiter = Waiter()
        self.submit(request, None, waiter)
        return plain(waiter.wait(request, request.budget_ms / 1000 + 5))

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
        if self.over_zones is not None:
            # Noted first: a process that ends in between leaves no claim in child zones by mistake.
            self.over_zones.note_end(message.request_id)
        done = self.claims.cancel(message)
        if self.over_zones is not None:
            self.over_zones.cancel(message.request_id)
        return done

    def extend(self, message: ExtendClaims) -> dict[str, object]:
        """Lengthen the leases of a request, here and in child zones.

        :raises NotFound: nothing of it is reserved
        :raises Unavailable: a child zone has not answered; some leases may be longer
        """
        if self.over_zones is not None and self.over_zones.extend(message):
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
            self.intake.submit(report)
            return None
        try:
            return self.report_outcome(report, self.report_soon(report).result(wait_seconds))
        except TimeoutError:
            raise exceptions.Busy(reason='the report is queued', retry_after_ms=1000) from None

    def report_soon(self, report: HostReport) -> 'Future[ReportOutcome]':
        """Queue a report for a caller that awaits its outcome; see ``report_outcome`` for errors.

        :raises InvalidMessage, UnknownResourceClass, Busy:
        """
        future = self.intake.submit(report, notify=True)
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
                f'that was heard ({outcome.current_sequence}); the host must register again',
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

    def nova_event(self, cast: NovaCast) -> None:
        """Queue a broadcast of an unmodified Nova; never blocks.

        :raises Busy: the queue is full; the broadcast is lost
        """
        self.nova.submit(cast)

    def submit_move(self, request: SelectDestinations, source: str | None, then: Then) -> None:
        """Settle the last move of a guest on ``source``, then submit its next.

        :param source: None: it is on no host
        :param then: submits the request; called by another thread, soon
        """
        self.nova_moves.begin(request, source, then)

    def host_row(self, provider_id: int) -> HostRow | None:
        """Return the row of a host, None where it is not known (any more)."""
        return self.cache.host_row(provider_id)

    def database_now(self) -> float:
        """Return the database's clock, which all schedulers share."""
        return self.cache.database_now

    def give_back(self, reason: str) -> int:
        """Turn away waiting requests not begun, for another scheduler; return their number."""
        return self.placing.give_back(reason)

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
            'reports_waiting': self.intake.work_queue.depth,
            'loaded': self.cache.is_loaded,
            'failing': [
                work_queue.name for work_queue in self._work_queues if work_queue.is_failing
            ],
        }
