# SPDX-License-Identifier: Apache-2.0
"""Flow 3: requests that may go to a child zone, or that have to meet those that do.

Each is carried out by a thread, in bounded number; beyond it the answer is "busy".  Its life is
that of any other (``scheduler.request``), one attempt of it is in ``zone_planner``.

A request that stays on hosts of this zone has its row opened first as well, where there are child
zones: its consumers may be there, or on their way.
"""

import logging
from collections.abc import Sequence
from typing import Any

from gantt import exceptions
from gantt.core.claims.child_claim import HOLDING_STATES
from gantt.core.claims.claim import State
from gantt.core.messages.request import (
    ExtendClaims,
    Lifecycle,
    Purpose,
    RequestKind,
    SelectDestinations,
)
from gantt.core.records.decision import ZoneStep
from gantt.scheduler.ports.process import Recorder, Replies
from gantt.scheduler.quotas import QuotaChecks
from gantt.scheduler.request.answers import EarlierAnswers, StoredAnswers
from gantt.scheduler.request.queue import Admission, RequestQueue, first_attempt
from gantt.scheduler.request.serial import SerialLoop
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from gantt.zones.model import not_queried
from gantt.zones.model.messages import ZoneRecord
from gantt.zones.ports import ZoneStores
from gantt.zones.service.context import ZoneContext
from gantt.zones.service.follow import ZoneFollower
from gantt.zones.service.offers.queries import zone_failure
from gantt.zones.service.release_outbox import ReleaseOutbox
from gantt.zones.service.request_lock import PendingZoneRequest
from gantt.zones.service.share_claimer import RESOLVE_SECONDS, ShareClaimer
from gantt.zones.service.threads import ZoneThreads
from gantt.zones.service.zone_affinity import may_have_affinity
from gantt.zones.service.zone_planner import ZonePlanner

LOG = logging.getLogger(__name__)
#: Maximum number of requests that are carried out at once, and that wait for a thread.
THREADS_MAX, WAITING_MAX = 32, 256
#: Seconds that the follower needs to end.
FOLLOWER_STOP_SECONDS = 0.5


class RequestThreads:
    """Requests carried out by threads, one by each.  Any thread.

    :param threads: carry them out
    """

    def __init__(self, loop: SerialLoop[PendingZoneRequest], threads: ZoneThreads) -> None:
        self._loop = loop
        self._threads = threads

    def enter(self, call: PendingZoneRequest, handle: Any, replies: Replies) -> None:
        """Carry out a request, or join a copy of it; the answer comes through ``replies``."""
        for refused in self._loop.queue.enter(call, handle, replies):
            refused.replies.send_soon([(refused.handle, refused.answer)])
        # One for each request, at least: of a refused one it finds another to carry out, or none.
        self._threads.begin(self._carry_out_next)

    def stop(self, seconds: float) -> bool:
        """Accept no more requests and finish those inside; return whether that was in time."""
        done = self._loop.stop(seconds)
        self._threads.close()
        return done

    def _carry_out_next(self) -> None:
        try:
            self._loop.step()
        except Exception:  # the pool would swallow it
            LOG.exception('Step of a request over zones failed unexpectedly')


class PlaceOverZones:
    """Placement of requests over zones, by threads: a ``RequestRoute``.

    All methods may be called from any thread.

    :param zones: calls and state of the other zones in this process
    :param quotas: admit a request before anything is claimed for it
    :ivar follower: of the changes of claims in child zones
    """

    def __init__(
        self,
        stores: ZoneStores,
        zones: ZoneContext,
        admission: Admission,
        stored_answers: StoredAnswers,
        recorder: Recorder,
        settings: SchedulerSettings,
        follower: ZoneFollower,
        quotas: QuotaChecks,
    ) -> None:
        self.follower = follower
        self._zones = zones
        self._calls = zones.calls
        self._child_claims = stores.child_claims
        self._clock = zones.clock
        self._settings = settings
        self._children = zones.directory.children
        self._shares = ShareClaimer(stores.requests, stores.zone_claims, zones, follower, admission)
        earlier = EarlierAnswers[PendingZoneRequest](stores.requests, stored_answers, recorder)
        self._planner = ZonePlanner(
            stores, zones, self._shares, admission, earlier, recorder, settings, quotas
        )
        self._queues: list[RequestQueue[PendingZoneRequest]] = []

        def request_threads(threads: ZoneThreads, described: str) -> RequestThreads:
            queue = RequestQueue[PendingZoneRequest](
                THREADS_MAX + WAITING_MAX,
                settings.retry_after_ms,
                self._clock,
                settings.project_weights,
                described,
            )
            self._queues.append(queue)
            loop = SerialLoop[PendingZoneRequest](
                queue, self._planner, stores.requests, recorder, self._clock, settings.worker
            )
            return RequestThreads(loop, threads)

        self._request_threads = request_threads(
            zones.threads(THREADS_MAX, 'over-zones'), 'under way in other zones'
        )
        # Threads of their own: requests that stay do not wait for those that go to child zones.
        self._local_request_threads = request_threads(
            zones.threads(THREADS_MAX, 'over-zones-here'), 'under way here'
        )

    def takes(self, request: SelectDestinations) -> bool:
        """Return whether a request may go down; others go to the scheduling thread at once."""
        if request.places:
            return any(place.child is not None for place in request.places)
        return (
            request.hops > 0
            and request.spec.kind is RequestKind.HOST
            and request.lifecycle is Lifecycle.HOST
            # A guest in a disabled zone stays there, and may be rebuilt.
            and any(
                zone.enabled or request.spec.purpose is Purpose.REBUILD for zone in self._children()
            )
        )

    def stays(self, request: SelectDestinations) -> bool:
        """Return whether a request that does not go down needs its row opened here first.

        It does where requests for its consumers may go down, or where it may be bound to a child
        zone. Without child zones nothing is read for it.
        """
        claims = not request.dry_run and request.spec.purpose is not Purpose.REBUILD
        return (
            bool(self._children())
            and request.spec.kind is RequestKind.HOST
            and (claims or may_have_affinity(request))
        )

    def submit(
        self, request: SelectDestinations, handle: Any, replies: Replies, spent_ms: float = 0.0
    ) -> None:
        """Carry out a request that may go down; the answer comes through ``replies``."""
        self._request_threads.enter(
            self._pending(request, spent_ms, may_go_down=True), handle, replies
        )

    def submit_here(
        self,
        request: SelectDestinations,
        handle: Any,
        replies: Replies,
        spent_ms: float = 0.0,
        fingerprint: str = '',
        zones: Sequence[ZoneStep] = (),
    ) -> None:
        """Carry out a request that stays, see ``stays``; the answer comes through ``replies``.

        :param fingerprint: of the request as received; '': it is unchanged
        :param zones: steps by which it reached the own hosts
        """
        call = self._pending(request, spent_ms, may_go_down=False)
        call.fingerprint = fingerprint or call.fingerprint
        call.zones = zones
        self._local_request_threads.enter(call, handle, replies)

    def _pending(
        self, request: SelectDestinations, spent_ms: float, *, may_go_down: bool
    ) -> PendingZoneRequest:
        deadline = self._clock.monotonic() + (request.budget_ms - spent_ms) / 1000
        number = first_attempt(self._clock.wall())
        return PendingZoneRequest(request, deadline, number, may_go_down=may_go_down)

    def start(self) -> None:
        """Read the registered zones, and follow the claims in child zones."""
        self._zones.directory.refresh()
        self.follower.start()

    def reconfigure(self) -> None:
        """Take over options that have changed."""
        for queue in self._queues:
            queue.retry_after_ms = self._settings.retry_after_ms
            queue.use_weights(self._settings.project_weights)

    def stop(self, seconds: float) -> bool:
        """Accept no more requests and finish those in progress; return whether that was in time."""
        end = self._clock.monotonic() + seconds
        self.follower.stop(FOLLOWER_STOP_SECONDS)
        done = self._local_request_threads.stop(seconds)
        done = self._request_threads.stop(max(0.0, end - self._clock.monotonic())) and done
        self._planner.close()
        self._zones.close()
        return done

    def note_end(self, request_id: str) -> None:
        """Note the claims of a request in child zones, as it is about to be cancelled."""
        if self._children():
            claims = self._child_claims.find(request_id)
            self._shares.note_end(
                {(claim.child, claim.key) for claim in claims if claim.state in HOLDING_STATES}
            )

    def cancel(self, request_id: str) -> None:
        """Give back the claims of a cancelled request in child zones.

        Its consumers stay its own until the child zones have acknowledged it: until then a host
        there may start a guest.
        """
        if not self._children():
            return  # a zone is not removed while anything lives there
        claims = self._child_claims.find(request_id)
        self._shares.end(
            {(claim.child, claim.key) for claim in claims if claim.state in HOLDING_STATES}
        )

    def extend(self, message: ExtendClaims) -> bool:
        """Extend the leases a request has reserved below; return whether there are any.

        :raises GanttError: a zone has not extended them
        """
        if not self._children():
            return False
        claims = self._child_claims.find(message.request_id)
        keys = {(claim.child, claim.key) for claim in claims if claim.state == State.RESERVED.value}
        zones = {zone.uuid: zone for zone in self._children()}
        for child, key in sorted(keys):
            if child in zones:
                self._extend(zones[child], key, message.seconds)
        return bool(keys)

    def _extend(self, zone: ZoneRecord, key: str, lease_seconds: int) -> None:
        try:
            self._calls.extend(zone, key, lease_seconds, RESOLVE_SECONDS)
        except exceptions.GanttError as e:
            raise zone_failure(zone, 'a child zone has not extended its leases', e) from None


def place_over_zones(
    stores: ZoneStores, scheduler: Scheduler, zones: ZoneContext
) -> PlaceOverZones:
    """Let the requests of a scheduler go to the child zones; call before its start."""
    recorder, directory = scheduler.recorder, zones.directory
    outbox = ReleaseOutbox(stores, zones.calls, directory.own_uuid, recorder)
    follower = ZoneFollower(stores, zones.calls, directory, outbox, recorder, scheduler.clock)
    over_zones = PlaceOverZones(
        stores,
        zones,
        scheduler.placing.admission,
        scheduler.stored_answers,
        recorder,
        scheduler.settings,
        follower,
        scheduler.quotas,
    )
    scheduler.placing.set_zones_not_queried(
        lambda request: not_queried.zones_not_queried(directory.children(), request)
    )
    scheduler.route_over(over_zones)
    return over_zones
