# SPDX-License-Identifier: Apache-2.0
"""Placement of a group as a whole.

    read the claims of the group → plan on the table as it is now →
    one request with a claim for each member → commit → answer

After a conflict nothing is claimed.  Members whose hosts were taken by others are planned again,
the others keep their planned hosts, and the whole is committed once more, a bounded number of
times.  The answer is stored with the request, as for any other: a repeat gets it.

The life of such a request, from its queue to its answer, is that of any other: here is one attempt
of it, as ``request.serial`` calls it.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import guest_of, longest_lease_of
from gantt.core.claims.commit import CommitStatus, RequestDraft, RequestOutcome
from gantt.core.claims.request_state import Attempt, RequestEvent, conflict_line, seed_of_try
from gantt.core.claims.reservations import (
    GroupPlanRecord,
    ReleasedReservation,
    placeholder_consumer,
)
from gantt.core.messages.request import Lifecycle
from gantt.core.pause import Interrupted
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Outcome, unknown_request_reason
from gantt.core.records.members import replaced_guests
from gantt.core.resources.host import Group
from gantt.core.table.host_table import HostTable
from gantt.groups.model import group_answer
from gantt.groups.model.group_answer import GroupAnswer, is_host_up
from gantt.groups.model.group_description import GroupDescription
from gantt.groups.model.group_plan import GroupPlan, PlannedMember, WithoutPolicy
from gantt.groups.model.group_table import IsOver
from gantt.groups.model.model import GroupSolver
from gantt.groups.model.place_group import ChangeGroup, PlaceGroup, check_owners
from gantt.groups.model.plan_group import plan_group, retry_planned_members
from gantt.groups.model.violations import PolicyViolation, find_violations, policies_at_risk
from gantt.groups.service import plan_drafts, remaining_members
from gantt.groups.service.plan_drafts import PlanOwner, Request
from gantt.groups.service.remaining_members import MemberSplit
from gantt.groups.service.settings import PlannerSettings
from gantt.groups.service.what_if import plans_without_each_policy
from gantt.scheduler.host_cache import HostFollower
from gantt.scheduler.ports.process import Recorder
from gantt.scheduler.ports.requests import StoredRequest
from gantt.scheduler.ports.stores import Stores
from gantt.scheduler.quotas import QuotaChecks
from gantt.scheduler.request.answers import EarlierAnswers
from gantt.scheduler.request.life import RequestTransition
from gantt.scheduler.request.queue import QueuedRequest
from gantt.scheduler.settings import SchedulerSettings

LOG = logging.getLogger(__name__)

#: Seconds that the row of a request is open at most: one commit creates and completes it.
REQUEST_OPEN_SECONDS = 10.0
#: Interval between two tries for what others keep locked, or have open, in seconds.
LOCK_RETRY_SECONDS = 0.2
#: Share of a request's remaining time that its commits and its answer need, and its maximum in
#: seconds.
SPARE_TIME_SHARE, SPARE_SECONDS_MAX = 0.2, 2.0
#: Maximum number of members without a place that an error names.
NAMED_MEMBERS_MAX = 20


#: Errors by which nothing is placed; ``Unavailable`` leaves that open.
NotPlaced = exceptions.Refused | exceptions.Conflict


class PlanTarget(NamedTuple):
    """The group of a request, as it is stored.

    :ivar record: stored plan of the group; None: it has no plan
    :ivar before: its description in that plan
    :ivar groups: other groups that its policies are about, as they are now
    :ivar owner: project and user of its reservations
    :ivar is_new: there is no such server group yet
    """

    uuid: str
    description: GroupDescription
    record: GroupPlanRecord | None
    before: GroupDescription | None
    groups: dict[str, Group]
    owner: PlanOwner
    is_new: bool

    @property
    def revision(self) -> int:
        """The revision of the plan to be stored."""
        return 1 if self.record is None else self.record.revision + 1


class PlanningResult(NamedTuple):
    """Result of planning in one attempt.

    :ivar table: host table that the group was planned on
    :ivar plan: plan of the members to be placed; None: there were none
    :ivar below: child zones where members of the group live
    """

    table: HostTable
    staying: MemberSplit
    plan: GroupPlan | None
    generation: int
    age_seconds: float
    violated: list[PolicyViolation]
    below: tuple[str, ...] = ()

    @property
    def planned(self) -> list[PlannedMember]:
        """The members that get a place."""
        return [] if self.plan is None else self.plan.members


class PendingGroup(QueuedRequest[Request]):
    """State of one request for a group.

    :ivar planning: result of the last attempt: members keep their hosts where possible
    :ivar began: monotonic time of the first attempt; None: there was none
    """

    __slots__ = ('began', 'planning')

    def __init__(self, request: Request, deadline: float) -> None:
        self.request = request
        self.deadline = deadline
        self.fingerprint = request.fingerprint
        self.bytes = 0
        own = request.project_id if isinstance(request, PlaceGroup) else None
        self.project = own or request.only_project or ''
        self.charged = 0
        self.claims_nothing = request.dry_run
        self.waiters = []
        self.attempt = Attempt(number=1, todo=(0,))
        self.repeats = request.repeat
        self.planning: PlanningResult | None = None
        self.began: float | None = None

    def refusal(
        self, outcome: Outcome, reason: str, retry_after_ms: int | None = None
    ) -> exceptions.GanttError:
        request_id = self.request.request_id
        match outcome:
            case Outcome.BUSY:
                return exceptions.Busy(reason=reason, retry_after_ms=retry_after_ms)
            case Outcome.REUSED:
                return exceptions.RequestIdReused(request_id=request_id)
            case Outcome.CANCELLED:
                return exceptions.RequestCancelled(request_id=request_id)
        return exceptions.Unavailable(reason, request_id=request_id)

    def failure(self, error: exceptions.GanttError) -> exceptions.GanttError:
        return error


class GroupCodec:
    """The stored form of answers about groups, and of the errors of those that are refused."""

    def pack(self, answer: NotPlaced) -> bytes:
        return group_answer.pack_refusal(answer)

    def read(self, request_id: str, stored: bytes) -> GroupAnswer | NotPlaced | None:
        return group_answer.unpack_refusal(stored) or group_answer.unpack(stored)


class PlaceGroups:
    """Placement of groups, one after the other; called by one thread.

    :param pipeline: the filters and weighers in force
    :param solver: proves plans; None: plans are not proven
    """

    def __init__(
        self,
        stores: Stores,
        cache: HostFollower,
        pipeline: Callable[[], Pipeline],
        recorder: Recorder,
        settings: SchedulerSettings,
        bounds: PlannerSettings,
        quotas: QuotaChecks,
        solver: GroupSolver | None = None,
    ) -> None:
        self._requests = stores.requests
        self._plans = stores.plans
        self._groups = stores.groups
        self._child_claims = stores.child_claims
        self._cache = cache
        self._pipeline = pipeline
        self._recorder = recorder
        self._clock = cache.clock
        self._settings = settings
        self._bounds = bounds
        self._quotas = quotas
        self._solver = solver
        self._earlier_answers = EarlierAnswers[PendingGroup](
            stores.requests, GroupCodec(), recorder
        )

    # -- as SerialPlanner ----------------------------------------------------------------
    def attempt(self, call: PendingGroup) -> RequestTransition:
        """Place a group, or change one, in one attempt.

        :raises GanttError: nothing of it is claimed, or, of ``Unavailable``, that is not known:
            a repeat resolves it
        """
        if call.began is None:
            call.began = self._clock.monotonic()
            answer = None if call.request.dry_run else self._earlier_answers.earlier_answer(call)
            if answer is not None and not isinstance(answer, StoredRequest):
                return RequestTransition(RequestEvent.REPEAT, answer)
        try:
            return self._place(call)
        except Interrupted:
            raise self._not_planned_error(call) from None

    def end_before_step(self, call: PendingGroup, is_late: bool) -> RequestTransition | None:
        conflicts = call.attempt.conflicts
        if len(conflicts) >= self._bounds.attempts_per_group:
            reason = f'group {call.request.uuid}: gave up after {len(conflicts)} attempts'
            return self._refusal_transition(
                call, RequestEvent.OUT_OF_TRIES, self._conflict_error(call, reason)
            )
        if is_late:
            return self._refusal_transition(
                call, RequestEvent.OUT_OF_TIME, self._out_of_time_error(call)
            )
        return None

    def failed(
        self, call: PendingGroup, error: exceptions.GanttError | MemoryError
    ) -> RequestTransition:
        request = call.request
        if isinstance(error, MemoryError):
            error = exceptions.Refused(
                f'group {request.uuid} needs more memory to be planned than there is; plan '
                'it in parts, or with fewer kinds of members',
                group=request.uuid,
            )
            return RequestTransition(RequestEvent.FAILED, error)
        if isinstance(error, exceptions.InvalidMessage):
            field = str(error.kwargs['field'])
            if field.startswith('group.'):
                error = type(error)(None, **{**error.kwargs, 'field': f'request.{field}'})
        return self._refusal_transition(call, RequestEvent.REFUSED, error)

    def answered(self, call: PendingGroup, answer: GroupAnswer | exceptions.GanttError) -> None:
        request = call.request
        if isinstance(answer, exceptions.GanttError):
            LOG.info(
                'Group was not planned: group=%s request=%s error=%s',
                request.uuid,
                request.request_id,
                answer.message,
            )
            return
        plan, now = answer.plan, self._clock.monotonic()
        LOG.info(
            'Group was planned: group=%s request=%s revision=%s seconds=%.2f members=%d status=%s '
            'method=%s',
            answer.group,
            request.request_id,
            'dry_run' if answer.dry_run else answer.revision,
            now - (now if call.began is None else call.began),
            0 if plan is None else len(plan.members),
            '-' if plan is None else plan.status,
            '-' if plan is None else plan.method,
        )

    def _refusal_transition(
        self, call: PendingGroup, event: RequestEvent, error: exceptions.GanttError
    ) -> RequestTransition:
        """Return the transition for an error; the answer to another copy comes first."""
        if isinstance(error, NotPlaced):
            answer = self._earlier_answers.answer_before_refusal(call, error)
            if isinstance(answer, StoredRequest):
                return RequestTransition(RequestEvent.BUSY, self._busy_error(call))
            if answer is not None:
                return RequestTransition(RequestEvent.REPEAT, answer)
        return RequestTransition(event, error)

    def _busy_error(self, call: PendingGroup) -> exceptions.GanttError:
        reason = 'another process is at this request'
        return call.refusal(Outcome.BUSY, reason, self._bounds.retry_after_ms)

    def _place(self, call: PendingGroup) -> RequestTransition:
        request, end, tries = call.request, call.deadline, call.attempt.tries
        target = self._stored_target(request)
        planning = call.planning = self._plan_on_table(request, target, end, tries, call.planning)
        self._check_complete(request, target, planning, tries)
        answer = self._answer(request, target, planning, call.attempt)
        if request.dry_run:
            costs = self._policy_costs(request, target, planning, end)
            return RequestTransition(
                RequestEvent.DECIDED, msgspec.structs.replace(answer, what_if=costs)
            )
        outcome = self._commit(self._request_draft(request, target, planning, answer, call.attempt))
        event = RequestEvent(outcome.outcome.value)
        conflict = conflict_line(outcome.outcome.value, (), outcome.reason)
        match outcome.outcome:
            case CommitStatus.PLACED:
                self._cache.reload_soon()
                self._recorder.count('gantt_claims_created_total', len(planning.planned))
                return RequestTransition(event, answer)
            case CommitStatus.OVERDUE:
                return RequestTransition(event, number=outcome.attempt)
            case CommitStatus.DROPPED | CommitStatus.GROUP_CHANGED:
                self._recorder.count('gantt_group_conflicts_total')
                return RequestTransition(event, conflict=conflict)
            case CommitStatus.LOCKED:
                # A try like any other: other groups wait for this thread meanwhile.
                self._recorder.count('gantt_lock_conflicts_total')
                self._clock.sleep(LOCK_RETRY_SECONDS)
                return RequestTransition(RequestEvent.DROPPED, conflict=conflict)
            case CommitStatus.OPEN | CommitStatus.LOST | CommitStatus.PARTIAL:
                return RequestTransition(RequestEvent.BUSY, self._busy_error(call))
        return RequestTransition(event, self._earlier_answers.ended_answer(call, outcome))

    def _stored_target(self, request: Request) -> PlanTarget:
        """Return the group as it is stored, if the request may have it.

        :raises NotFound, Refused, StaleGeneration: the request may not have the group
        :raises PlanUnreadable: the stored plan
        """
        uuid, description = request.uuid, request.group
        if description.uuid not in (None, uuid):
            raise exceptions.invalid(
                'request.group.uuid', f'expected none or {uuid}, by the project and the name'
            )
        description = msgspec.structs.replace(description, uuid=uuid)
        record = self._plans.load_group_plan(uuid)
        group = self._groups.load_group(uuid)
        for stored in (record, group):
            if stored is not None and not _may_access(request, stored.project_id):
                raise exceptions.NotFound(kind='server group', name=uuid)
        if isinstance(request, PlaceGroup) and record is not None:
            raise exceptions.Refused(
                f'request.group.uuid: group {description.name or uuid} has a plan already, of '
                f'request {record.request_id}; change that, or release it first',
                field='request.group.uuid',
                group=uuid,
                planned=True,
            )
        if isinstance(request, ChangeGroup):
            if record is None:
                raise exceptions.NotFound(kind='plan of group', name=uuid)
            if request.revision not in (None, record.revision):
                raise exceptions.Refused(
                    f'request.revision: expected {record.revision}, that of the plan now; got '
                    f'{request.revision}; show it again, and repeat the change where it is '
                    'still wanted',
                    field='request.revision',
                    revision=record.revision,
                )
        before = None
        if record is not None:
            before = group_answer.read_plan(record).description
            if before.name != description.name:
                raise exceptions.invalid(
                    'request.group.name',
                    f'expected {before.name or "none"}, as the group was planned',
                )
        others = self._other_groups(request, uuid)
        owner = _plan_owner(request, record, group)
        return PlanTarget(uuid, description, record, before, others, owner, group is None)

    def _other_groups(self, request: Request, own: str) -> dict[str, Group]:
        groups = {}
        for uuid, field in plan_drafts.other_groups(request.group).items():
            if uuid == own:
                raise exceptions.invalid(
                    field, 'expected a group other than the one that is planned'
                )
            group = self._groups.load_group(uuid)
            if group is None or not _may_access(request, group.project_id):
                raise plan_drafts.unknown_group(field, uuid)
            groups[uuid] = group
        return groups

    # -- planning --------------------------------------------------------------------------
    def _plan_on_table(
        self,
        request: Request,
        target: PlanTarget,
        end: float,
        attempt: int,
        before: PlanningResult | None,
    ) -> PlanningResult:
        """Plan on the table as it is now.

        :param before: planning of the attempt before: its members keep their hosts where possible
        """
        description = target.description
        table = self._cache.table(0.0)
        self._pipeline().set_site_names(table)
        change = request if isinstance(request, ChangeGroup) else None
        stays = remaining_members.split_members(
            self._plans.load_reservations([target.uuid])[target.uuid],
            target.before,
            description,
            table,
            lambda provider_id: is_host_up(table, provider_id, self._settings.stale_after_seconds),
            heal=change is not None and change.heal,
            replace=() if change is None else change.replace,
            replaced=() if target.record is None else replaced_guests(target.record.plan),
        )
        ended = [*stays.released, *stays.moves, *stays.lost]
        remaining_table = remaining_members.table_without(table, ended) if ended else table
        plan = None
        below = self._child_zones_of_members(target)
        if stays.unplaced_count(description):
            self._check_quota(request, target, stays)
            plan = self._plan_unplaced(
                request, target, stays, remaining_table, end, attempt, before
            )
        return PlanningResult(
            table=remaining_table,
            staying=stays,
            plan=plan,
            generation=table.group_generation(target.uuid),
            age_seconds=round(self._cache.age_seconds, 3),
            violated=find_violations(remaining_table, description, stays.members),
            below=below,
        )

    def _child_zones_of_members(self, target: PlanTarget) -> tuple[str, ...]:
        """Return the child zones where members of the group live.

        :raises Refused: a hard policy cannot be kept here beside them
        """
        zones = self._plans.zones_of_groups([target.uuid, *target.groups])
        if not zones:
            return ()
        policies = target.description.full_policies
        lines = policies_at_risk(policies, target.uuid in zones, zones.keys() - {target.uuid})
        if lines:
            places = set[str]().union(*zones.values())
            zone_names = self._child_claims.child_zone_names()
            names = [name for uuid, name in zone_names.items() if uuid in places]
            raise exceptions.refused(
                f'group {target.uuid}: hard policies cannot be kept on hosts of this zone, as '
                f'members are in child zones: {"; ".join(lines)}; make these policies soft, or '
                'place the members by requests that may go to child zones',
                [f'zone {name}' for name in names],
                group=target.uuid,
            )
        return tuple(sorted(zones.get(target.uuid, ())))

    def _check_quota(self, request: Request, target: PlanTarget, stays: MemberSplit) -> None:
        """Check the quotas of the project.

        :raises QuotaExceeded: the project would have more than it may
        """
        is_own = request.only_project is not None
        if target.is_new:
            self._quotas.check_groups(target.owner.project_id, is_own)
        there = Counter(member.member for member in stays.members)
        self._quotas.check_plan(
            target.owner.project_id,
            is_own,
            [
                (member.spec.at_most, max(member.most - there[member.name], 0))
                for member in target.description.members
            ],
            stays.moves,
        )

    def _plan_unplaced(
        self,
        request: Request,
        target: PlanTarget,
        stays: MemberSplit,
        table: HostTable,
        end: float,
        attempt: int,
        before: PlanningResult | None,
    ) -> GroupPlan:
        pipeline, description = self._pipeline(), target.description
        members = {**remaining_members.consumers_on(table, description), **stays.consumers}
        placed, full_table = stays.placed, table
        keeps: list[PlannedMember] = []
        if before is not None and before.planned:
            remainder = retry_planned_members(
                table,
                description,
                pipeline,
                before.planned,
                lambda name: placeholder_consumer(target.uuid, name),
                members=members,
                placed=placed,
                over=self._time_check(end),
            )
            keeps, table = remainder.planned, remainder.table
            # Members that had a place still have one; else more are to be planned than before.
            is_same = not remainder.lost and before.staying.placed.keys() <= placed.keys()
            if before.plan is not None and (
                is_same or len(keeps) == stays.unplaced_count(description)
            ):
                return msgspec.structs.replace(before.plan, members=keeps)
            members |= {
                placeholder_consumer(target.uuid, staying_member.name): staying_member.member
                for staying_member in keeps
            }
            placed |= {staying_member.name: staying_member.member for staying_member in keeps}
        plan = self._plan_members(request, description, table, end, attempt, members, placed)
        if keeps and (plan.missing or not plan.members) and before is not None:
            # The members that stay are in the way: all members are planned anew.
            return self._plan_unplaced(request, target, stays, full_table, end, attempt, None)
        return group_answer.with_other_members(plan, keeps)

    def _plan_members(
        self,
        request: Request,
        description: GroupDescription,
        table: HostTable,
        end: float,
        attempt: int,
        members: dict[str, str],
        placed: dict[str, str],
    ) -> GroupPlan:
        seconds = self._planning_seconds(request, end)
        began = self._clock.monotonic()
        plan = plan_group(
            table,
            description,
            self._pipeline(),
            clock=self._clock.monotonic,
            seconds=seconds,
            seed=seed_of_try(request.request_id, attempt),
            solver=self._solver,
            members=members,
            placed=placed,
            over=self._time_check(end),
        )
        self._recorder.observe('gantt_group_plan_duration_seconds', self._clock.monotonic() - began)
        self._recorder.count('gantt_group_plans_total', status=plan.status, method=plan.method)
        return plan

    def _time_check(self, end: float) -> IsOver:
        """Return a check whether a plan begun now has had twice the time it may be improved for."""
        until = min(end, self._clock.monotonic() + 2 * self._bounds.plan_seconds_max)
        return lambda: self._clock.monotonic() >= until

    def _planning_seconds(self, request: Request, end: float) -> float:
        """Return the seconds that a plan may be improved for, from now on."""
        seconds = end - self._clock.monotonic()
        seconds -= min(SPARE_TIME_SHARE * seconds, SPARE_SECONDS_MAX)
        return max(0.01, min(self._bounds.plan_seconds_of(request.plan_ms), seconds))

    def _policy_costs(
        self, request: Request, target: PlanTarget, planning: PlanningResult, end: float
    ) -> list[WithoutPolicy] | None:
        """Return the cost of policies, computed in as much time in all as the plan may have.

        None where it is not requested.
        """
        if not request.what_if:
            return None
        if planning.plan is None:
            return []
        staying, group = planning.staying, target.description
        return plans_without_each_policy(
            planning.table,
            group,
            planning.plan,
            self._pipeline(),
            clock=self._clock.monotonic,
            seconds=self._planning_seconds(request, end),
            seed=seed_of_try(request.request_id, 1),
            solver=self._solver,
            members={**remaining_members.consumers_on(planning.table, group), **staying.consumers},
            placed=staying.placed,
            over=self._time_check(end),
        )

    def _check_complete(
        self, request: Request, target: PlanTarget, planning: PlanningResult, attempt: int
    ) -> None:
        """Check that all members that have to be placed have a place.

        :raises NoValidHost, NotKnownHere: some have none
        """
        plan = planning.plan
        if request.dry_run or plan is None or not plan.missing:
            return
        age = self._cache.age_seconds
        if age > self._settings.unknown_after_seconds:
            raise exceptions.HostsUnknown(
                problem=f'the table is {age:.0f} s old and the database does not answer'
            )
        error = not_placed(target.uuid, plan, attempt)
        zones = self._zones_not_queried()
        if zones:
            reason = unknown_request_reason(str(error.kwargs.pop('reason')), zones)
            raise exceptions.NotKnownHere(None, reason=reason, zones=zones, **error.kwargs)
        raise error

    def _zones_not_queried(self) -> list[str]:
        """Return the names of the enabled child zones: none is queried for a planned group."""
        return list(self._child_claims.child_zone_names(enabled=True).values())

    # -- commits -------------------------------------------------------------------------------
    def _answer(
        self,
        request: Request,
        target: PlanTarget,
        planning: PlanningResult,
        attempt: Attempt,
    ) -> GroupAnswer:
        plan, zones_not_queried = planning.plan, list[str]()
        if plan is not None and plan.missing:
            zones_not_queried = self._zones_not_queried()
        if plan is not None and not request.dry_run:
            planned = plan_drafts.with_claim_ids(
                target.uuid, request.request_id, attempt.number, plan.members
            )
            plan = msgspec.structs.replace(plan, members=planned)
        names = {member.name for member in planning.planned}
        revision = target.revision
        if request.dry_run:
            revision = 0 if target.record is None else target.record.revision
        return GroupAnswer(
            request_id=request.request_id,
            group=target.uuid,
            revision=revision,
            plan=plan,
            lease_seconds=self._lease_seconds(request),
            dry_run=request.dry_run,
            stayed=[member.name for member in planning.staying.members],
            released=[
                place.member_name or '' for place in planning.staying.ended_reservations(names)
            ],
            violated=planning.violated,
            attempts=attempt.tries,
            conflicts=list(attempt.conflicts),
            age_seconds=planning.age_seconds,
            zones_not_queried=zones_not_queried,
        )

    def _request_draft(
        self,
        request: Request,
        target: PlanTarget,
        planning: PlanningResult,
        answer: GroupAnswer,
        attempt: Attempt,
    ) -> RequestDraft:
        planned = [] if answer.plan is None else answer.plan.members
        packed = group_answer.pack(answer)
        record = GroupPlanRecord(
            group_uuid=target.uuid,
            request_id=request.request_id,
            project_id=target.owner.project_id,
            user_id=target.owner.user_id,
            description=msgspec.json.encode(target.description),
            plan=group_answer.pack(answer, _replaced_guests(request, target, planning.staying)),
            revision=target.revision,
        )
        ends = planning.staying.ended_reservations({member.name for member in planned})
        return RequestDraft(
            id=request.request_id,
            fingerprint=request.fingerprint,
            owner=self._settings.worker,
            attempt=attempt.number,
            takes_over=attempt.takes_over,
            whole=True,
            budget_seconds=REQUEST_OPEN_SECONDS,
            lease_seconds=answer.lease_seconds,
            project_id=target.owner.project_id,
            only_project=request.only_project,
            claims=plan_drafts.claims_of(
                planning.table, request, target.uuid, target.owner, attempt.number, planned
            ),
            group=plan_drafts.precondition(target.uuid, target.description, planning.generation),
            groups=plan_drafts.preconditions_of_others(target.description, target.groups),
            answer=packed,
            plan=record,
            below=planning.below,
            released_reservations=tuple(
                ReleasedReservation(claim_id=place.id, provider_ids=tuple(place.allocations))
                for place in ends
            ),
            lost_claims=tuple(claim.id for claim in planning.staying.lost),
        )

    def _commit(self, draft: RequestDraft) -> RequestOutcome:
        """Return the outcome of a commit of one request.

        :raises Unavailable: it is not known
        """
        began = self._clock.monotonic()
        (outcome,) = self._requests.commit([draft]).outcomes
        self._recorder.observe('gantt_commit_duration_seconds', self._clock.monotonic() - began)
        return outcome

    def _lease_seconds(self, request: Request) -> float:
        settings = self._settings
        lease_max = longest_lease_of(
            Lifecycle.PLAN, settings.lease_seconds_max, settings.plan_lease_seconds_max
        )
        return min(float(request.lease_seconds or settings.plan_lease_seconds), lease_max)

    def _not_planned_error(self, call: PendingGroup) -> exceptions.GanttError:
        """Return the error of a group that could not be planned in its time."""
        request = call.request
        if call.attempt.conflicts:
            return self._out_of_time_error(call)
        return exceptions.Expired(
            f'group {request.uuid} takes longer to be planned than its budget of '
            f'{request.budget_ms} ms, or twice [planner] plan_seconds_max = '
            f'{self._bounds.plan_seconds_max:g}: whether it can be placed is not known; ask for '
            'fewer members or groups of resources at once, or for more that are alike',
            budget_ms=request.budget_ms,
        )

    def _out_of_time_error(self, call: PendingGroup) -> exceptions.GanttError:
        if not call.attempt.conflicts:
            return exceptions.Expired(budget_ms=call.request.budget_ms)
        return self._conflict_error(
            call, f'the budget was spent after {len(call.attempt.conflicts)} attempts'
        )

    @staticmethod
    def _conflict_error(call: PendingGroup, reason: str) -> exceptions.Conflict:
        conflicts = call.attempt.conflicts
        return exceptions.Conflict(
            f'{reason}; the last: {conflicts[-1]}',
            request_id=call.request.request_id,
            attempts=len(conflicts),
        )


def _replaced_guests(request: Request, target: PlanTarget, stays: MemberSplit) -> set[str]:
    """Return the guests replaced by name, now or before, and the ids of their claims."""
    before = () if target.record is None else replaced_guests(target.record.plan)
    named = request.replace if isinstance(request, ChangeGroup) else ()
    replaced = [claim for claim in stays.lost if claim.member_name in named]
    return {*before, *(claim.id for claim in replaced), *map(guest_of, replaced)}


def not_placed(group: str, plan: GroupPlan, attempts: int = 1) -> exceptions.NoValidHost:
    """Return the error of a group that cannot be placed whole, with the known reason."""
    count = len(plan.members) + len(plan.missing)
    if plan.conflict is not None:
        reason = plan.conflict.line
    elif plan.status == 'infeasible':
        reason = f'{len(plan.missing)} of {count} members have no place'
    else:
        reason = (
            f'{len(plan.missing)} of {count} members were not placed in time; whether they can '
            'be is not known'
        )
    return exceptions.NoValidHost(
        reason=reason,
        group=group,
        status=plan.status,
        missing=plan.missing[:NAMED_MEMBERS_MAX],
        missing_count=len(plan.missing),
        conflict=None if plan.conflict is None else msgspec.to_builtins(plan.conflict),
        relaxations=msgspec.to_builtins(plan.relaxations),
        sequential_missing=plan.sequential.missing,
        proofs=plan.proofs,
        attempts=attempts,
    )


def _plan_owner(request: Request, record: GroupPlanRecord | None, group: Group | None) -> PlanOwner:
    """Return the owner of the reservations: for an existing server group its project.

    That of members is to be the same.

    :raises InvalidMessage: the group, or a member, belongs to another project
    """
    if isinstance(request, PlaceGroup):
        owner = PlanOwner(request.project_id, request.user_id)
        of_group = None if group is None else group.project_id
        if of_group is None or of_group == owner.project_id:
            return owner
        if owner.project_id is not None:
            raise exceptions.invalid(
                'request.project_id',
                f'expected {of_group}, whose server group {request.uuid} is, or none; got '
                f'{owner.project_id}',
            )
        owner = owner._replace(project_id=of_group)
    else:
        assert record is not None, 'what is changed is there'
        owner = PlanOwner(record.project_id, record.user_id)
    problem = check_owners(request.group, owner.project_id, owner.user_id)
    if problem is not None:
        raise exceptions.invalid(f'request.{problem.field}', problem.problem)
    return owner


def _may_access(request: Request, project_id: str | None) -> bool:
    return request.only_project is None or request.only_project == project_id
