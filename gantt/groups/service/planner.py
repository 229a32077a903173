# SPDX-License-Identifier: Apache-2.0
"""The planner of groups: a bounded queue, one thread, and operations on stored plans.

No placement logic here.  RPC, the all-in-one process and the tests call this class.
"""

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from gantt import exceptions
from gantt.core.claims.reservations import GroupPlanRecord
from gantt.core.messages.request import check_spec
from gantt.core.placement.pipeline import Pipeline
from gantt.groups.model.group_answer import GroupAnswer, GroupPlanView
from gantt.groups.model.model import GroupSolver
from gantt.groups.model.place_group import ExtendGroupPlan, ReleaseGroupPlan, ShowGroupPlan
from gantt.groups.service import shown_plans
from gantt.groups.service.place_group import PendingGroup, PlaceGroups
from gantt.groups.service.plan_drafts import Request
from gantt.groups.service.settings import PlannerSettings
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.host_cache import HostFollower
from gantt.scheduler.ports.process import Clock, Recorder
from gantt.scheduler.ports.stores import Stores
from gantt.scheduler.quotas import QuotaChecks
from gantt.scheduler.request.queue import RequestQueue
from gantt.scheduler.request.serial import SerialLoop
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.work_queue import WorkThread

#: Maximum age of the host table for plans that are shown, in seconds.
SHOWN_TABLE_AGE_SECONDS = 1.0
#: Maximum age of the host table while no group waits, in seconds.
IDLE_TABLE_AGE_SECONDS = 2.0


#: Seconds charged for a turn at least, and before its duration is known.
TURN_COST_SECONDS_MIN = 0.001


class GroupQueue(RequestQueue[PendingGroup]):
    """A bounded queue of groups that wait to be planned.

    Turns are charged by the seconds for which plans kept the planner, whatever their requested
    time.  A project may have as many groups waiting as it leaves free, the rule of ``http.gates``;
    groups of an unknown project are bounded with all others only.
    """

    turn_cost = TURN_COST_SECONDS_MIN

    def _is_full(self, call: PendingGroup) -> bool:
        room = self.limit - len(self._queue)
        return (
            self.closed
            or room <= 0
            or (bool(call.project) and self._queue.count_of(call.project) >= room)
        )

    def _make_room(self, call: PendingGroup) -> tuple[str, list[PendingGroup]]:
        reason = 'shutting down' if self.closed else f'{len(self._queue)} groups wait to be planned'
        return reason, []

    def note_turn_seconds(self, call: PendingGroup, seconds: float) -> None:
        with self._lock:
            self._queue.charge(call.project, seconds)


class FutureReplies:
    """Replies to callers of this process, whose handles are futures."""

    def send(self, answers: Sequence[tuple[Any, GroupAnswer | exceptions.GanttError]]) -> None:
        for future, answer in answers:
            if isinstance(answer, exceptions.GanttError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    send_soon = send


class GroupPlanner:
    """The planner of groups: requests wait in its queue, and its thread plans them.

    :param pipeline: filters and weighers; ``use`` replaces them
    :param solver: proves plans; None: plans are not proven
    """

    def __init__(
        self,
        stores: Stores,
        pipeline: Pipeline,
        recorder: Recorder,
        settings: SchedulerSettings | None = None,
        bounds: PlannerSettings | None = None,
        clock: Clock | None = None,
        solver: GroupSolver | None = None,
    ) -> None:
        self.settings = settings or SchedulerSettings(worker='gantt-planner')
        self.bounds = bounds or PlannerSettings()
        self.clock: Clock = clock or SystemClock()
        self.recorder = recorder
        self._plans = stores.plans
        #: A host table of its own: no scheduler's is read or waited for.
        self.cache = HostFollower(
            stores.feed,
            stores.vocabulary,
            self.clock,
            self.settings.reload_seconds,
            default_zone=self.settings.default_zone,
            count=recorder.count,
        )
        self.quotas = QuotaChecks(
            stores.quotas,
            stores.claims,
            stores.groups,
            self.settings,
            self.clock,
            recorder.count,
        )
        self._pipeline = pipeline
        #: Waiting groups; requests that are being planned are joined as well.
        self.queue = GroupQueue(
            self.bounds.queue_limit,
            self.bounds.retry_after_ms,
            self.clock,
            self.settings.project_weights,
        )
        groups = PlaceGroups(
            stores,
            self.cache,
            lambda: self._pipeline,
            recorder,
            self.settings,
            self.bounds,
            self.quotas,
            solver,
        )
        self._loop = SerialLoop[PendingGroup](
            self.queue, groups, stores.requests, recorder, self.clock, self.settings.worker
        )
        self.thread = WorkThread('groups', self.step, recorder, lambda: self.queue.depth)
        self._replies = FutureReplies()

    @property
    def pipeline(self) -> Pipeline:
        """The filters and weighers in force."""
        return self._pipeline

    # -- lifecycle ---------------------------------------------------------------------
    def start(self) -> None:
        """Read the hosts and start the thread.

        :raises DatabaseUnavailable, DatabaseNotSynced: before anything runs
        """
        self.cache.fetch()
        self.thread.start()

    def stop(self, seconds: float = 30.0) -> bool:
        """Accept no more groups and plan the waiting ones; return whether it was in time."""
        self.queue.closed = True
        self.thread.ending.set()  # before it wakes: it would wait again
        self.queue.wake()
        return self.thread.stop(seconds)

    def reconfigure(
        self, settings: SchedulerSettings, bounds: PlannerSettings, pipeline: Pipeline
    ) -> list[str]:
        """Use other settings, filters and weighers from the next group on.

        :returns: names of the settings that changed
        """
        self._pipeline = pipeline
        self.queue.retry_after_ms = bounds.retry_after_ms
        return [*self.settings.follow(settings), *self.bounds.follow(bounds)]

    # -- groups to be planned -----------------------------------------------------------
    def submit(self, request: Request) -> 'Future[GroupAnswer]':
        """Queue a request for a group; a repeat of a queued request joins it.

        :raises Busy: too many wait
        :raises RequestIdReused: another request of this id is queued
        :raises InvalidMessage, UnknownResourceClass: rules beyond the types are not met
        """
        self._check_members(request)
        future: Future[GroupAnswer] = Future()
        # No caller is to cancel what others may wait for as well.
        future.set_running_or_notify_cancel()
        call = PendingGroup(request, self.clock.monotonic() + request.budget_ms / 1000)
        for refused in self.queue.enter(call, future, self._replies):
            if isinstance(refused.answer, exceptions.Busy):
                self.recorder.count('gantt_requests_rejected_total', outcome='busy')
            raise refused.answer
        return future

    def place(self, request: Request) -> GroupAnswer:
        """Submit and wait, for callers in this process.

        :raises GanttError: see ``PlaceGroups.place``
        """
        future = self.submit(request)
        try:
            return future.result(request.budget_ms / 1000)
        except TimeoutError:
            raise exceptions.Busy(
                reason='the group is being planned', retry_after_ms=self.bounds.retry_after_ms
            ) from None

    def _check_members(self, request: Request) -> None:
        """Check members against the rules of requests of their own, each by its path.

        :raises InvalidMessage, UnknownResourceClass: rules beyond the types are not met
        """
        specs = request.group.specs_by_path
        named = {name for _, spec in specs for name in spec.classes}
        declared = self.cache.declared_classes(sorted(named))
        for path, spec in specs:
            check_spec(spec, declared, f'request.group.{path}')

    def step(self, seconds: float = 0.0) -> int:
        """Plan the next group, for which it waits some seconds; return the number of groups."""
        self.queue.use_weights(self.settings.project_weights)
        count = self._loop.step(seconds)
        if not count:
            self._refresh_table()
        return count

    def _refresh_table(self) -> None:
        """Refresh the table while no group waits, so that the next group waits less."""
        with (
            contextlib.suppress(exceptions.DatabaseUnavailable),
            self.cache.borrowed(IDLE_TABLE_AGE_SECONDS),
        ):
            pass

    # -- stored plans --------------------------------------------------------------------------
    def show(self, message: ShowGroupPlan) -> GroupPlanView:
        """Return a plan with its members as they are now.

        :raises NotFound: the group has no plan, or is another project's
        """
        record = self._plan_record(message.group, message.only_project)
        table = self.cache.table(SHOWN_TABLE_AGE_SECONDS)
        self._pipeline.set_site_names(table)
        return shown_plans.view_of(
            self._plans, record, table, self.settings.stale_after_seconds, check=message.check
        )

    def extend(self, message: ExtendGroupPlan) -> dict[str, object]:
        """Extend the leases of a plan's reservations.

        :raises NotFound: see ``show``
        :raises Refused: no reservation has a lease any more
        """
        record = self._plan_record(message.group, message.only_project)
        lease_max = self.settings.plan_lease_seconds_max  # after a place was made
        spare = shown_plans.ids_of_spare_reservations(
            self._plans,
            record,
            self.cache.table(SHOWN_TABLE_AGE_SECONDS),
            self.settings.stale_after_seconds,
        )
        result = self._plans.extend_plan(message.group, message.seconds, lease_max, spare)
        claims = [outcome.claim_id for outcome in result.outcomes if outcome.outcome == 'ok']
        if not claims:
            raise exceptions.Refused(
                f'group {message.group}: its plan has no reservation without a create, so that no '
                'lease can be extended; change or heal it to replace expired reservations',
                group=message.group,
            )
        record = self._plan_record(message.group, message.only_project)
        seconds = round(max(0.0, record.lease_until - record.updated_at), 3)
        return {'group': message.group, 'claims': claims, 'lease_seconds': seconds}

    def release(self, message: ReleaseGroupPlan) -> dict[str, object]:
        """Release the reservations of a plan.

        :raises NotFound: see ``show``
        :raises Refused: its plan is of another request than the given one
        """
        self._plan_record(message.group, message.only_project)
        result = self._plans.release_plan(message.group, message.reason, (), message.planned_by)
        self.cache.reload_soon()
        claims = [outcome.claim_id for outcome in result.outcomes]
        return {'group': message.group, 'claims': claims}

    def _plan_record(self, group: str, only_project: str | None) -> GroupPlanRecord:
        record = self._plans.load_group_plan(group)
        if record is None or only_project not in (None, record.project_id):
            raise exceptions.NotFound(kind='plan of group', name=group)
        return record

    # -- health -------------------------------------------------------------------------------
    def health(self) -> dict[str, Any]:
        """Queue depth and ages, for health checks and metrics."""
        return {
            'hosts': len(self.cache.working),
            'table_age_seconds': round(self.cache.age_seconds, 3),
            'groups_waiting': self.queue.waiting,
            'loaded': self.cache.is_loaded,
            'failing': [self.thread.name] if self.thread.is_failing else [],
        }
