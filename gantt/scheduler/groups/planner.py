# SPDX-License-Identifier: Apache-2.0
"""The planner of groups: a bounded queue, one thread, and operations on stored plans.

No placement logic here.  RPC, the all-in-one process and the tests call this class.
"""

import collections
import contextlib
import dataclasses
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from gantt import exceptions
from gantt.core.claims.places import GroupPlanRecord
from gantt.core.fair_queue import FairQueue
from gantt.core.groups.group_answer import GroupAnswer
from gantt.core.groups.model import GroupSolver
from gantt.core.groups.plan_view import GroupPlanView
from gantt.core.messages.place_group import (
    ExtendGroupPlan,
    PlaceGroup,
    ReleaseGroupPlan,
    ShowGroupPlan,
)
from gantt.core.messages.request import check_spec
from gantt.core.placement.pipeline import Pipeline
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.groups import shown_plans
from gantt.scheduler.groups.place_group import PlaceGroups
from gantt.scheduler.groups.plan_drafts import Request
from gantt.scheduler.groups.settings import PlannerSettings
from gantt.scheduler.host_follower import HostFollower
from gantt.scheduler.ports import Clock, Recorder, Store
from gantt.scheduler.quotas import QuotaChecks
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.work_queue import WorkQueue

LOG = logging.getLogger(__name__)
#: Maximum age of the host table for plans that are shown, in seconds.
SHOWN_AGE_SECONDS = 1.0
#: Maximum age of the host table while no group waits, in seconds.
IDLE_AGE_SECONDS = 2.0


@dataclasses.dataclass(eq=False)
class _Waiting:
    """A group that waits, or is planned now.

    :ivar ends: monotonic deadline, after which its answer is of no use
    """

    request: Request
    ends: float
    future: 'Future[GroupAnswer]'


class GroupPlanner:
    """The planner, see the module docstring.

    :param pipeline: filters and weighers; ``use`` replaces them
    :param solver: proves plans; None: plans are not proven
    """

    def __init__(
        self,
        store: Store,
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
        self.store, self.recorder = store, recorder
        #: A host table of its own: no scheduler's is read or waited for.
        self.cache = HostFollower(
            store,
            self.clock,
            self.settings.reload_seconds,
            default_zone=self.settings.default_zone,
            count=recorder.count,
        )
        self.quotas = QuotaChecks(store, self.settings, self.clock, recorder.count)
        self._pipeline = pipeline
        self._story = PlaceGroups(
            store,
            self.cache,
            lambda: self._pipeline,
            recorder,
            self.clock,
            self.settings,
            self.bounds,
            self.quotas,
            solver,
        )
        self._waiting_groups = WaitingGroups[_Waiting](
            self.bounds.queue_limit,
            lambda waiting: _project_of(waiting.request),
            lambda: self.settings.project_weights,
        )
        self.work_queue: WorkQueue[_Waiting] = WorkQueue(
            'groups', self._work, self.bounds.queue_limit, recorder, self._waiting_groups
        )
        self._lock = threading.Lock()
        self._inside: dict[str, _Waiting] = {}

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
        self.work_queue.start()

    def stop(self, seconds: float = 30.0) -> bool:
        """Accept no more groups and plan those that wait; return whether that was in time."""
        return self.work_queue.stop(seconds)

    def reconfigure(
        self, settings: SchedulerSettings, bounds: PlannerSettings, pipeline: Pipeline
    ) -> list[str]:
        """Use other settings, filters and weighers from the next group on.

        :returns: names of the settings that changed
        """
        self._pipeline = pipeline
        return [*self.settings.follow(settings), *self.bounds.follow(bounds)]

    # -- groups to be planned -----------------------------------------------------------
    def submit(self, request: Request) -> 'Future[GroupAnswer]':
        """Queue a group; a repeat of one that is inside joins it.

        :raises Busy: too many wait
        :raises RequestIdReused: another one of this id is inside
        :raises InvalidMessage, UnknownResourceClass: rules beyond the types are not met
        """
        self._check(request)
        with self._lock:
            inside = self._inside.get(request.request_id)
            if inside is not None and not request.dry_run:
                if inside.request.fingerprint != request.fingerprint:
                    raise exceptions.RequestIdReused(request_id=request.request_id)
                inside.ends = max(inside.ends, self._end(request))
                if request.repeat:
                    inside.request = msgspec.structs.replace(inside.request, repeat=True)
                return inside.future
            waiting = _Waiting(request, self._end(request), Future())
            # One waiter is not to cancel what others may wait for as well.
            waiting.future.set_running_or_notify_cancel()
            if self.work_queue.ending.is_set() or not self.work_queue.put(waiting):
                self.recorder.count('gantt_turned_away_total', outcome='busy')
                raise exceptions.Busy(
                    reason=f'{self.work_queue.depth} groups wait to be planned',
                    retry_after_ms=self.bounds.retry_after_ms,
                )
            if not request.dry_run:
                self._inside[request.request_id] = waiting
        return waiting.future

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

    def _end(self, request: Request) -> float:
        return self.clock.monotonic() + request.budget_ms / 1000

    def _check(self, request: Request) -> None:
        """Check members against the rules of requests of their own, each by its path.

        :raises InvalidMessage, UnknownResourceClass: rules beyond the types are not met
        """
        specs = request.group.specs_by_path
        named = {name for _, spec in specs for name in spec.classes}
        declared = self.cache.declared_classes(sorted(named))
        for path, spec in specs:
            check_spec(spec, declared, f'request.group.{path}')

    def step(self, seconds: float = 0.0) -> int:
        """Plan the next group, waiting for it so long; return how many there were.  For tests."""
        return self._work(seconds)

    def _work(self, seconds: float) -> int:
        try:
            waiting = self.work_queue.next(seconds)
        except queue.Empty:
            self._follow()
            return 0
        began = self.clock.monotonic()
        try:
            self._finish(waiting)
        finally:
            self._waiting_groups.took(waiting, self.clock.monotonic() - began)
        return 1

    def _finish(self, waiting: _Waiting) -> None:
        """Plan a group and answer its waiters."""
        request, future = waiting.request, waiting.future
        try:
            answer = self._placed(waiting)
        except exceptions.GanttError as e:
            LOG.info('group %s of request %s: %s', request.uuid, request.request_id, e.message)
            self._leave(waiting)
            future.set_exception(e)
        except MemoryError:
            self._leave(waiting)
            future.set_exception(
                exceptions.Refused(
                    f'group {request.uuid} needs more memory to be planned than there is; plan '
                    'it in parts, or with fewer kinds of members',
                    group=request.uuid,
                )
            )
        except BaseException as e:
            self._leave(waiting)
            problem = f'internal: {type(e).__name__}: {e}'
            future.set_exception(exceptions.Unavailable(problem, request_id=request.request_id))
            raise
        else:
            self._leave(waiting)
            future.set_result(answer)

    def _follow(self) -> None:
        """Refresh the table while no group waits: the next one waits for little of it."""
        with (
            contextlib.suppress(exceptions.DatabaseUnavailable),
            self.cache.borrowed(IDLE_AGE_SECONDS),
        ):
            pass

    def _placed(self, waiting: _Waiting) -> GroupAnswer:
        request = waiting.request
        if self.clock.monotonic() >= waiting.ends:
            raise exceptions.Expired(budget_ms=request.budget_ms)
        began = self.clock.monotonic()
        try:
            answer = self._place(request, waiting.ends)
        except (exceptions.Refused, exceptions.Conflict) as e:
            self._leave(waiting)  # repeats have joined by now, or come later
            answer = self._story.refused(waiting.request, e)
        plan = answer.plan
        LOG.info(
            'group %s: %s of request %s in %.2f s, %s',
            answer.group,
            'planned' if answer.dry_run else f'revision {answer.revision}',
            request.request_id,
            self.clock.monotonic() - began,
            'nobody had to be placed'
            if plan is None
            else f'{len(plan.members)} members, {plan.status} by {plan.by}',
        )
        return answer

    def _place(self, request: Request, ends: float) -> GroupAnswer:
        try:
            return self._story.place(request, ends)
        except exceptions.InvalidMessage as e:
            field = str(e.kwargs['field'])
            if not field.startswith('group.'):
                raise
            raise type(e)(None, **{**e.kwargs, 'field': f'request.{field}'}) from None

    def _leave(self, waiting: _Waiting) -> None:
        with self._lock:
            if self._inside.get(waiting.request.request_id) is waiting:
                del self._inside[waiting.request.request_id]

    # -- stored plans --------------------------------------------------------------------------
    def show(self, message: ShowGroupPlan) -> GroupPlanView:
        """Return a plan with its members as they are now.

        :raises NotFound: the group has no plan, or is another project's
        """
        record = self._record(message.group, message.only_project)
        table = self.cache.table(SHOWN_AGE_SECONDS)
        self._pipeline.name_parts(table)
        return shown_plans.view_of(
            self.store, record, table, self.settings.stale_after_seconds, check=message.check
        )

    def extend(self, message: ExtendGroupPlan) -> dict[str, object]:
        """Extend the leases of the places of a plan.

        :raises NotFound: see ``show``
        :raises Refused: no place is held any more
        """
        record = self._record(message.group, message.only_project)
        lease_max = self.settings.plan_lease_seconds_max  # after a place was made
        spare = shown_plans.spare(
            self.store,
            record,
            self.cache.table(SHOWN_AGE_SECONDS),
            self.settings.stale_after_seconds,
        )
        result = self.store.extend_plan(message.group, message.seconds, lease_max, spare)
        claims = [outcome.claim_id for outcome in result.outcomes if outcome.outcome == 'ok']
        if not claims:
            raise exceptions.Refused(
                f'group {message.group}: no place of its plan waits for a create, so that there '
                'is nothing to hold; have it changed or healed for those that have expired',
                group=message.group,
            )
        record = self._record(message.group, message.only_project)
        seconds = round(max(0.0, record.lease_until - record.updated_at), 3)
        return {'group': message.group, 'claims': claims, 'lease_seconds': seconds}

    def release(self, message: ReleaseGroupPlan) -> dict[str, object]:
        """Give the places of a plan back.

        :raises NotFound: see ``show``
        :raises Refused: its plan is of another request than the given one
        """
        self._record(message.group, message.only_project)
        result = self.store.release_plan(message.group, message.reason, (), message.planned_by)
        self.cache.reload_soon()
        claims = [outcome.claim_id for outcome in result.outcomes]
        return {'group': message.group, 'claims': claims}

    def _record(self, group: str, only_project: str | None) -> GroupPlanRecord:
        record = self.store.load_group_plan(group)
        if record is None or only_project not in (None, record.project_id):
            raise exceptions.NotFound(kind='plan of group', name=group)
        return record

    # -- health -------------------------------------------------------------------------------
    def health(self) -> dict[str, Any]:
        """Queue depth and ages, for health checks and metrics."""
        return {
            'hosts': len(self.cache.working),
            'table_age_seconds': round(self.cache.age_seconds, 3),
            'groups_waiting': self.work_queue.depth,
            'loaded': self.cache.is_loaded,
            'failing': [self.work_queue.name] if self.work_queue.is_failing else [],
        }


def _project_of(request: Request) -> str:
    """Return the project that a group counts for, as far as its request names it."""
    own = request.project_id if isinstance(request, PlaceGroup) else None
    return own or request.only_project or ''


Item = TypeVar('Item')
#: Seconds charged for a turn at least, and before its duration is known.
LEAST_SECONDS = 0.001


class WaitingGroups(queue.Queue[Item]):
    """A bounded queue of groups that wait to be planned, in which projects take turns.

    Turns are those of ``core.fair_queue``, by the weights of projects and by the seconds for which
    plans kept the planner, whatever their requested time.  A project may have as many groups
    waiting as it leaves free, the rule of ``http.gates``; groups of an unknown project are bounded
    with all others only.

    :param limit: maximum number of waiting groups
    :param project_of: project of an item; '': unknown
    :param weights: of projects as they are now; 1 where one has none
    """

    def __init__(
        self,
        limit: int,
        project_of: Callable[[Item], str],
        weights: Callable[[], Mapping[str, float]],
    ) -> None:
        self._project_of, self._weights = project_of, weights
        self._waiting: FairQueue[Item] = FairQueue()
        self._own: collections.Counter[str] = collections.Counter()
        super().__init__(limit)

    # -- of queue.Queue, which calls these under its lock ----------------------------------
    def _init(self, maxsize: int) -> None:
        pass

    def _qsize(self) -> int:
        return len(self._waiting)

    def _put(self, item: Item) -> None:
        """Queue an item.  :raises queue.Full: its project has as many here as it leaves free"""
        project = self._project_of(item)
        if project and self._own[project] >= self.maxsize - self._qsize():
            raise queue.Full
        self._own[project] += 1
        self._waiting.put(project, item)

    def _get(self) -> Item:
        self._waiting.weights = self._weights()
        item = self._waiting.first()
        self._waiting.pop(LEAST_SECONDS)
        project = self._project_of(item)
        self._own[project] -= 1
        if not self._own[project]:
            del self._own[project]
        return item

    def took(self, item: Item, seconds: float) -> None:
        """Charge the finished turn of an item with its duration."""
        with self.mutex:
            self._waiting.weights = self._weights()
            self._waiting.charge(self._project_of(item), seconds)
