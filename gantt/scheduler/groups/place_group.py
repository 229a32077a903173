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
from gantt.core.claims.claim import guest_of, longest
from gantt.core.claims.commit import CommitStatus, RequestDraft, RequestOutcome
from gantt.core.claims.request_state import Attempt, RequestEvent, conflict_line, seed_of
from gantt.core.claims.reservations import (
    GroupPlanRecord,
    ReleasedReservation,
    placeholder_consumer,
)
from gantt.core.group_policies.elsewhere import unkept
from gantt.core.group_policies.violated import StandingViolation, violated
from gantt.core.groups import group_answer
from gantt.core.groups.again import remaining
from gantt.core.groups.group_answer import GroupAnswer
from gantt.core.groups.group_plan import GroupPlan, PlannedMember, WithoutPolicy
from gantt.core.groups.group_table import Over
from gantt.core.groups.model import GroupSolver
from gantt.core.groups.plan_group import plan_group
from gantt.core.groups.plan_view import is_host_up
from gantt.core.messages.group_description import GroupDescription
from gantt.core.messages.place_group import ChangeGroup, PlaceGroup, check_owners
from gantt.core.messages.request import Lifecycle
from gantt.core.pause import Interrupted
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Outcome, not_known_here
from gantt.core.resources.host import Group
from gantt.core.table.host_table import HostTable
from gantt.core.zones.not_queried import enabled
from gantt.scheduler.groups import plan_drafts, remaining_members
from gantt.scheduler.groups.plan_drafts import PlanOwner, Request
from gantt.scheduler.groups.remaining_members import MemberSplit
from gantt.scheduler.groups.settings import PlannerSettings
from gantt.scheduler.groups.what_if import without_each
from gantt.scheduler.host_follower import HostFollower
from gantt.scheduler.ports import Recorder, StoredRequest, Stores
from gantt.scheduler.quotas import QuotaChecks
from gantt.scheduler.request.answers import EarlierAnswers
from gantt.scheduler.request.life import Happened
from gantt.scheduler.request.queue import QueuedRequest
from gantt.scheduler.settings import SchedulerSettings

LOG = logging.getLogger(__name__)

#: Seconds that the row of a request is open at most: one commit creates and completes it.
OPEN_SECONDS = 10.0
#: Interval between two tries for what others keep locked, or have open, in seconds.
LOOK_SECONDS = 0.2
#: Share of a request's remaining time that its commits and its answer need, and its maximum in
#: seconds.
SPARE_SHARE, SPARE_MOST = 0.2, 2.0
#: Maximum number of members without a place that an error names.
NAMED_MAX = 20


#: Errors by which nothing is placed; ``Unavailable`` leaves that open.
NotPlaced = exceptions.Refused | exceptions.Conflict


class Target(NamedTuple):
    """The group of a request, as it is stored.

    :ivar record: its plan; None: it has none
    :ivar before: its description in that plan
    :ivar groups: other groups that its policies are about, as they are now
    :ivar owner: project and user of its places
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


class Made(NamedTuple):
    """Result of planning in one attempt.

    :ivar table: that it was planned on
    :ivar plan: of the members to be placed; None: there were none
    :ivar below: child zones where members of the group live
    """

    table: HostTable
    staying: MemberSplit
    plan: GroupPlan | None
    generation: int
    age_seconds: float
    violated: list[StandingViolation]
    below: tuple[str, ...] = ()

    @property
    def planned(self) -> list[PlannedMember]:
        """The members that get a place."""
        return [] if self.plan is None else self.plan.members


class PendingGroup(QueuedRequest[Request]):
    """State of one request for a group.

    :ivar planning: of the last attempt: members keep their hosts where possible
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
        self.waiters = []
        self.attempt = Attempt(number=1, todo=(0,))
        self.repeats = request.repeat
        self.planning: Made | None = None
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
    """A placer of groups, one after the other: called by one thread.

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
        self._zones = stores.zones
        self._cache = cache
        self._pipeline = pipeline
        self._recorder = recorder
        self._clock = cache.clock
        self._settings = settings
        self._bounds = bounds
        self._quotas = quotas
        self._solver = solver
        self._earlier = EarlierAnswers[PendingGroup](stores.requests, GroupCodec(), recorder)

    # -- as SerialPlanner ----------------------------------------------------------------
    def attempt(self, call: PendingGroup) -> Happened:
        """Place a group, or change one, in one attempt.

        :raises GanttError: nothing of it is claimed, or, of ``Unavailable``, that is not known:
            a repeat resolves it
        """
        if call.began is None:
            call.began = self._clock.monotonic()
            answer = None if call.request.dry_run else self._earlier.of(call)
            if answer is not None and not isinstance(answer, StoredRequest):
                return Happened(RequestEvent.REPEAT, answer)
        try:
            return self._placed(call)
        except Interrupted:
            raise self._not_planned(call) from None

    def spent(self, call: PendingGroup, is_late: bool) -> Happened | None:
        conflicts = call.attempt.conflicts
        if len(conflicts) >= self._bounds.attempts_per_group:
            reason = f'group {call.request.uuid}: gave up after {len(conflicts)} attempts'
            return self._refused(call, RequestEvent.OUT_OF_TRIES, self._conflict(call, reason))
        if is_late:
            return self._refused(call, RequestEvent.OUT_OF_TIME, self._out_of_time(call))
        return None

    def failed(self, call: PendingGroup, error: exceptions.GanttError | MemoryError) -> Happened:
        request = call.request
        if isinstance(error, MemoryError):
            error = exceptions.Refused(
                f'group {request.uuid} needs more memory to be planned than there is; plan '
                'it in parts, or with fewer kinds of members',
                group=request.uuid,
            )
            return Happened(RequestEvent.FAILED, error)
        if isinstance(error, exceptions.InvalidMessage):
            field = str(error.kwargs['field'])
            if field.startswith('group.'):
                error = type(error)(None, **{**error.kwargs, 'field': f'request.{field}'})
        return self._refused(call, RequestEvent.REFUSED, error)

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
            'by=%s',
            answer.group,
            request.request_id,
            'dry_run' if answer.dry_run else answer.revision,
            now - (now if call.began is None else call.began),
            0 if plan is None else len(plan.members),
            '-' if plan is None else plan.status,
            '-' if plan is None else plan.by,
        )

    def _refused(
        self, call: PendingGroup, event: RequestEvent, error: exceptions.GanttError
    ) -> Happened:
        """Return what an error makes of a request: the answer of another copy goes before it."""
        if isinstance(error, NotPlaced):
            answer = self._earlier.refused(call, error)
            if isinstance(answer, StoredRequest):
                return Happened(RequestEvent.BUSY, self._busy(call))
            if answer is not None:
                return Happened(RequestEvent.REPEAT, answer)
        return Happened(event, error)

    def _busy(self, call: PendingGroup) -> exceptions.GanttError:
        reason = 'another process is at this request'
        return call.refusal(Outcome.BUSY, reason, self._bounds.retry_after_ms)

    def _placed(self, call: PendingGroup) -> Happened:
        request, end, tries = call.request, call.deadline, call.attempt.tries
        target = self._target(request)
        planning = call.planning = self._made(request, target, end, tries, call.planning)
        self._check_complete(request, target, planning, tries)
        answer = self._answer(request, target, planning, call.attempt)
        if request.dry_run:
            costs = self._what_if(request, target, planning, end)
            return Happened(RequestEvent.DECIDED, msgspec.structs.replace(answer, what_if=costs))
        outcome = self._committed(self._draft(request, target, planning, answer, call.attempt))
        event = RequestEvent(outcome.outcome.value)
        conflict = conflict_line(outcome.outcome.value, (), outcome.reason)
        match outcome.outcome:
            case CommitStatus.PLACED:
                self._cache.reload_soon()
                self._recorder.count('gantt_claims_created_total', len(planning.planned))
                return Happened(event, answer)
            case CommitStatus.OVERDUE:
                return Happened(event, number=outcome.attempt)
            case CommitStatus.DROPPED | CommitStatus.GROUP_CHANGED:
                self._recorder.count('gantt_group_conflicts_total')
                return Happened(event, conflict=conflict)
            case CommitStatus.LOCKED:
                # A try like any other: other groups wait for this thread meanwhile.
                self._recorder.count('gantt_lock_conflicts_total')
                self._clock.sleep(LOOK_SECONDS)
                return Happened(RequestEvent.DROPPED, conflict=conflict)
            case CommitStatus.OPEN | CommitStatus.LOST | CommitStatus.PARTIAL:
                return Happened(RequestEvent.BUSY, self._busy(call))
        return Happened(event, self._earlier.resolved(call, outcome))

    def _target(self, request: Request) -> Target:
        """Return the group as it is stored, if the request may have it.

        :raises NotFound, Refused, StaleGeneration: it may not
        :raises PlanUnreadable: the stored plan
        """
        uuid, description = request.uuid, request.group
        if description.uuid is None:
            description = msgspec.structs.replace(description, uuid=uuid)
        record = self._plans.load_group_plan(uuid)
        group = self._groups.load_group(uuid)
        for stored in (record, group):
            if stored is not None and not _may_have(request, stored.project_id):
                raise exceptions.NotFound(kind='server group', name=uuid)
        if isinstance(request, PlaceGroup) and record is not None:
            raise exceptions.Refused(
                f'request.group.uuid: group {uuid} has a plan already, of request '
                f'{record.request_id}; change that, or release it first',
                field='request.group.uuid',
                group=uuid,
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
        others = self._other_groups(request, uuid)
        owner = _owner(request, record, group)
        return Target(uuid, description, record, before, others, owner, group is None)

    def _other_groups(self, request: Request, own: str) -> dict[str, Group]:
        groups = {}
        for uuid, field in plan_drafts.other_groups(request.group).items():
            if uuid == own:
                raise exceptions.invalid(field, 'expected another group than this one')
            group = self._groups.load_group(uuid)
            if group is None or not _may_have(request, group.project_id):
                raise plan_drafts.unknown_group(field, uuid)
            groups[uuid] = group
        return groups

    # -- planning --------------------------------------------------------------------------
    def _made(
        self, request: Request, target: Target, end: float, attempt: int, before: Made | None
    ) -> Made:
        """Plan on the table as it is now.

        :param before: planning of the attempt before: its members keep their hosts where possible
        """
        description = target.description
        table = self._cache.table(0.0)
        self._pipeline().name_parts(table)
        change = request if isinstance(request, ChangeGroup) else None
        stays = remaining_members.staying(
            self._plans.load_reservations([target.uuid])[target.uuid],
            target.before,
            description,
            lambda provider_id: is_host_up(table, provider_id, self._settings.stale_after_seconds),
            heal=change is not None and change.heal,
            replace=() if change is None else change.replace,
            given_up=() if target.record is None else group_answer.given_up(target.record.plan),
        )
        ended = [*stays.ends, *stays.moves, *stays.lost]
        remaining_table = remaining_members.without(table, ended) if ended else table
        plan = None
        below = self._below(target)
        if stays.wanted(description):
            self._check_quota(request, target, stays)
            plan = self._plan(request, target, stays, remaining_table, end, attempt, before)
        return Made(
            table=remaining_table,
            staying=stays,
            plan=plan,
            generation=table.group_generation(target.uuid),
            age_seconds=round(self._cache.age_seconds, 3),
            violated=violated(remaining_table, description, stays.members),
            below=below,
        )

    def _below(self, target: Target) -> tuple[str, ...]:
        """Return the child zones where members of the group live.

        :raises Refused: a hard policy cannot be kept here beside them
        """
        zones = self._plans.zones_of_groups([target.uuid, *target.groups])
        if not zones:
            return ()
        policies = target.description.full_policies
        lines = unkept(policies, target.uuid in zones, zones.keys() - {target.uuid})
        if lines:
            places = set[str]().union(*zones.values())
            names = [zone.name for zone in self._zones.child_zones() if zone.uuid in places]
            raise exceptions.refused(
                f'group {target.uuid}: hard policies cannot be kept on hosts of this zone, as '
                f'members are in zones below: {"; ".join(lines)}; make these policies soft, or '
                'place the members by requests that may go to zones below',
                [f'zone {name}' for name in names],
                group=target.uuid,
            )
        return tuple(sorted(zones.get(target.uuid, ())))

    def _check_quota(self, request: Request, target: Target, stays: MemberSplit) -> None:
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

    def _plan(
        self,
        request: Request,
        target: Target,
        stays: MemberSplit,
        table: HostTable,
        end: float,
        attempt: int,
        before: Made | None,
    ) -> GroupPlan:
        pipeline, description = self._pipeline(), target.description
        members = {**remaining_members.consumers_on(table, description), **stays.consumers}
        placed, full_table = stays.placed, table
        keeps: list[PlannedMember] = []
        if before is not None and before.planned:
            remainder = remaining(
                table,
                description,
                pipeline,
                before.planned,
                lambda name: placeholder_consumer(target.uuid, name),
                members=members,
                placed=placed,
                over=self._over(end),
            )
            keeps, table = remainder.planned, remainder.table
            # Members that had a place still have one; else more are to be planned than before.
            is_same = not remainder.lost and before.staying.placed.keys() <= placed.keys()
            if before.plan is not None and (is_same or len(keeps) == stays.wanted(description)):
                return msgspec.structs.replace(before.plan, members=keeps)
            members |= {
                placeholder_consumer(target.uuid, staying_member.name): staying_member.member
                for staying_member in keeps
            }
            placed |= {staying_member.name: staying_member.member for staying_member in keeps}
        plan = self._planned(request, description, table, end, attempt, members, placed)
        if keeps and (plan.missing or not plan.members) and before is not None:
            # The members that stay are in the way: all members are planned anew.
            return self._plan(request, target, stays, full_table, end, attempt, None)
        return group_answer.with_others(plan, keeps)

    def _planned(
        self,
        request: Request,
        description: GroupDescription,
        table: HostTable,
        end: float,
        attempt: int,
        members: dict[str, str],
        placed: dict[str, str],
    ) -> GroupPlan:
        seconds = self._seconds(request, end)
        began = self._clock.monotonic()
        plan = plan_group(
            table,
            description,
            self._pipeline(),
            clock=self._clock.monotonic,
            seconds=seconds,
            seed=seed_of(request.request_id, attempt),
            solver=self._solver,
            members=members,
            placed=placed,
            over=self._over(end),
        )
        self._recorder.observe('gantt_group_plan_duration_seconds', self._clock.monotonic() - began)
        self._recorder.count('gantt_group_plans_total', status=plan.status, method=plan.by)
        return plan

    def _over(self, end: float) -> Over:
        """Return a check whether a plan begun now has had twice the time it may be improved for."""
        until = min(end, self._clock.monotonic() + 2 * self._bounds.plan_seconds_max)
        return lambda: self._clock.monotonic() >= until

    def _seconds(self, request: Request, end: float) -> float:
        """Return the seconds that a plan may be improved for, from now on."""
        seconds = end - self._clock.monotonic()
        seconds -= min(SPARE_SHARE * seconds, SPARE_MOST)
        return max(0.01, min(self._bounds.plan_seconds_of(request.plan_ms), seconds))

    def _what_if(
        self, request: Request, target: Target, made: Made, end: float
    ) -> list[WithoutPolicy] | None:
        """Return the cost of policies, computed in as much time in all as the plan may have.

        None where it is not requested.
        """
        if not request.what_if:
            return None
        if made.plan is None:
            return []
        staying, group = made.staying, target.description
        return without_each(
            made.table,
            group,
            made.plan,
            self._pipeline(),
            clock=self._clock.monotonic,
            seconds=self._seconds(request, end),
            seed=seed_of(request.request_id, 1),
            solver=self._solver,
            members={**remaining_members.consumers_on(made.table, group), **staying.consumers},
            placed=staying.placed,
            over=self._over(end),
        )

    def _check_complete(self, request: Request, target: Target, made: Made, attempt: int) -> None:
        """Check that all members that have to be placed have a place.

        :raises NoValidHost, NotKnownHere: some have none
        """
        plan = made.plan
        if request.dry_run or plan is None or not plan.missing:
            return
        age = self._cache.age_seconds
        if age > self._settings.unknown_after_seconds:
            raise exceptions.HostsUnknown(
                problem=f'the table is {age:.0f} s old and the database does not answer'
            )
        error = not_placed(target.uuid, plan, attempt)
        zones = enabled(self._zones.child_zones())
        if zones:
            reason = not_known_here(str(error.kwargs.pop('reason')), zones)
            raise exceptions.NotKnownHere(None, reason=reason, zones=zones, **error.kwargs)
        raise error

    # -- commits -------------------------------------------------------------------------------
    def _answer(
        self,
        request: Request,
        target: Target,
        made: Made,
        attempt: Attempt,
    ) -> GroupAnswer:
        plan, zones_not_queried = made.plan, list[str]()
        if plan is not None and plan.missing:
            zones_not_queried = enabled(self._zones.child_zones())
        if plan is not None and not request.dry_run:
            planned = plan_drafts.numbered(
                target.uuid, request.request_id, attempt.number, plan.members
            )
            plan = msgspec.structs.replace(plan, members=planned)
        names = {member.name for member in made.planned}
        revision = target.revision
        if request.dry_run:
            revision = 0 if target.record is None else target.record.revision
        return GroupAnswer(
            request_id=request.request_id,
            group=target.uuid,
            revision=revision,
            plan=plan,
            lease_seconds=self._lease(request),
            dry_run=request.dry_run,
            stayed=[member.name for member in made.staying.members],
            released=[place.member_name or '' for place in made.staying.ended(names)],
            violated=made.violated,
            attempts=attempt.tries,
            conflicts=list(attempt.conflicts),
            age_seconds=made.age_seconds,
            zones_not_queried=zones_not_queried,
        )

    def _draft(
        self,
        request: Request,
        target: Target,
        made: Made,
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
            plan=group_answer.pack(answer, _given_up(request, target, made.staying)),
            revision=target.revision,
        )
        ends = made.staying.ended({member.name for member in planned})
        return RequestDraft(
            id=request.request_id,
            fingerprint=request.fingerprint,
            owner=self._settings.worker,
            attempt=attempt.number,
            takes_over=attempt.takes_over,
            whole=True,
            budget_seconds=OPEN_SECONDS,
            lease_seconds=answer.lease_seconds,
            project_id=target.owner.project_id,
            only_project=request.only_project,
            claims=plan_drafts.claims_of(
                made.table, request, target.uuid, target.owner, attempt.number, planned
            ),
            group=plan_drafts.swap(target.uuid, target.description, made.generation),
            groups=plan_drafts.swaps_of_others(target.description, target.groups),
            answer=packed,
            plan=record,
            below=made.below,
            released_reservations=tuple(
                ReleasedReservation(claim_id=place.id, provider_ids=tuple(place.allocations))
                for place in ends
            ),
            lost_claims=tuple(claim.id for claim in made.staying.lost),
        )

    def _committed(self, draft: RequestDraft) -> RequestOutcome:
        """Return the outcome of a commit of one request.

        :raises Unavailable: it is not known
        """
        began = self._clock.monotonic()
        (outcome,) = self._requests.commit([draft]).outcomes
        self._recorder.observe('gantt_commit_duration_seconds', self._clock.monotonic() - began)
        return outcome

    def _lease(self, request: Request) -> float:
        settings = self._settings
        lease_max = longest(
            Lifecycle.PLAN, settings.lease_seconds_max, settings.plan_lease_seconds_max
        )
        return min(float(request.lease_seconds or settings.plan_lease_seconds), lease_max)

    def _not_planned(self, call: PendingGroup) -> exceptions.GanttError:
        """Return the error of a group that could not be planned in its time."""
        request = call.request
        if call.attempt.conflicts:
            return self._out_of_time(call)
        return exceptions.Expired(
            f'group {request.uuid} takes longer to be planned than its budget of '
            f'{request.budget_ms} ms, or twice [planner] plan_seconds_max = '
            f'{self._bounds.plan_seconds_max:g}: whether it can be placed is not known; ask for '
            'fewer members or groups of resources at once, or for more that are alike',
            budget_ms=request.budget_ms,
        )

    def _out_of_time(self, call: PendingGroup) -> exceptions.GanttError:
        if not call.attempt.conflicts:
            return exceptions.Expired(budget_ms=call.request.budget_ms)
        return self._conflict(
            call, f'the budget was spent after {len(call.attempt.conflicts)} attempts'
        )

    @staticmethod
    def _conflict(call: PendingGroup, reason: str) -> exceptions.Conflict:
        conflicts = call.attempt.conflicts
        return exceptions.Conflict(
            f'{reason}; the last: {conflicts[-1]}',
            request_id=call.request.request_id,
            attempts=len(conflicts),
        )


def _given_up(request: Request, target: Target, stays: MemberSplit) -> set[str]:
    """Return the guests replaced by name, now or before, and the ids of their claims."""
    before = () if target.record is None else group_answer.given_up(target.record.plan)
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
        missing=plan.missing[:NAMED_MAX],
        missing_count=len(plan.missing),
        conflict=None if plan.conflict is None else msgspec.to_builtins(plan.conflict),
        relaxations=msgspec.to_builtins(plan.relaxations),
        sequential_missing=plan.sequential.missing,
        proofs=plan.proofs,
        attempts=attempts,
    )


def _owner(request: Request, record: GroupPlanRecord | None, group: Group | None) -> PlanOwner:
    """Return the owner of the places: for an existing server group its project.

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


def _may_have(request: Request, project_id: str | None) -> bool:
    return request.only_project is None or request.only_project == project_id
