# SPDX-License-Identifier: Apache-2.0
"""Placement of a group as a whole.

    read the claims of the group → plan on the table as it is now →
    one request with a claim for each member → commit → answer

After a conflict nothing is claimed.  Members whose hosts were taken by others are planned again,
the others keep their planned hosts, and the whole is committed once more, a bounded number of
times.  The answer is stored with the request, as for any other: a repeat gets it.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims.claim import guest_of, longest
from gantt.core.claims.commit import CommitStatus, RequestDraft, RequestOutcome
from gantt.core.claims.places import GroupPlanRecord, PlaceEnded, place_consumer
from gantt.core.claims.request_state import seed_of
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
from gantt.core.records.decision import not_known_here
from gantt.core.resources.host import Group
from gantt.core.table.host_table import HostTable
from gantt.core.zones.not_queried import enabled
from gantt.scheduler.groups import plan_drafts, standing_places
from gantt.scheduler.groups.plan_drafts import PlanOwner, Request
from gantt.scheduler.groups.settings import PlannerSettings
from gantt.scheduler.groups.standing_places import Staying
from gantt.scheduler.groups.what_if import without_each
from gantt.scheduler.host_follower import HostFollower
from gantt.scheduler.ports import Clock, Recorder, Store, StoredRequest
from gantt.scheduler.quotas import QuotaChecks
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
    staying: Staying
    plan: GroupPlan | None
    generation: int
    age_seconds: float
    violated: list[StandingViolation]
    below: tuple[str, ...] = ()

    @property
    def planned(self) -> list[PlannedMember]:
        """The members that get a place."""
        return [] if self.plan is None else self.plan.members


class PlaceGroups:
    """A placer of groups, one after the other: called by one thread.

    :param pipeline: the filters and weighers in force
    :param solver: proves plans; None: plans are not proven
    """

    def __init__(
        self,
        store: Store,
        cache: HostFollower,
        pipeline: Callable[[], Pipeline],
        recorder: Recorder,
        clock: Clock,
        settings: SchedulerSettings,
        bounds: PlannerSettings,
        quotas: QuotaChecks,
        solver: GroupSolver | None = None,
    ) -> None:
        self._store, self._cache, self._pipeline = store, cache, pipeline
        self._recorder, self._clock = recorder, clock
        self._settings, self._bounds, self._quotas = settings, bounds, quotas
        self._solver = solver
        self._earlier = EarlierAnswers(store, recorder, lambda: bounds.retry_after_ms)

    def place(self, request: Request, end: float) -> GroupAnswer:
        """Place a group, or change one.

        :param end: monotonic deadline, after which the answer is of no use
        :raises GanttError: nothing of it is claimed, or, of ``Unavailable``, that is not known:
            a repeat resolves it
        """
        stored = None if request.dry_run else self._earlier.known(request)
        if stored is not None:
            return stored
        conflicts: list[str] = []
        try:
            return self._placed(request, end, conflicts)
        except Interrupted:
            raise self._not_planned(request, conflicts) from None

    def _placed(self, request: Request, end: float, conflicts: list[str]) -> GroupAnswer:
        number, takes_over = 1, None
        planning: Made | None = None
        for attempt in range(1, self._bounds.attempts_per_group + 1):
            if self._clock.monotonic() >= end:
                raise self._out_of_time(request, conflicts)
            target = self._target(request)
            planning = self._made(request, target, end, attempt, planning)
            self._check_complete(request, target, planning, attempt)
            answer = self._answer(request, target, planning, number, attempt, conflicts)
            if request.dry_run:
                costs = self._what_if(request, target, planning, end)
                return msgspec.structs.replace(answer, what_if=costs)
            draft = self._draft(request, target, planning, answer, number, takes_over)
            outcome = self._committed(draft)
            match outcome.outcome:
                case CommitStatus.PLACED:
                    self._cache.reload_soon()
                    self._recorder.count('gantt_claims_made_total', len(planning.planned))
                    return answer
                case CommitStatus.OVERDUE:
                    takes_over, number = outcome.attempt, outcome.attempt + 1
                case CommitStatus.DROPPED | CommitStatus.GROUP_CHANGED:
                    self._recorder.count('gantt_group_conflicts_total')
                    conflicts.append(_line(outcome))
                case CommitStatus.LOCKED:
                    self._recorder.count('gantt_locked_total')
                    conflicts.append(_line(outcome))
                    self._clock.sleep(LOOK_SECONDS)
                case _:
                    return self._ended(request, outcome)
        raise exceptions.Conflict(
            f'group {target.uuid}: gave up after {len(conflicts)} attempts; the last: '
            f'{conflicts[-1] if conflicts else "none"}',
            request_id=request.request_id,
            attempts=len(conflicts),
        )

    # -- stored answers ------------------------------------------------------------------
    def refused(self, request: Request, error: NotPlaced) -> GroupAnswer:
        """Return the answer where ``place`` has raised so; see ``EarlierAnswers.refused``."""
        if request.dry_run:
            raise error
        return self._earlier.refused(request, error)

    def _ended(self, request: Request, outcome: RequestOutcome) -> GroupAnswer:
        """Answer an outcome of a commit that is no placement and no conflict."""
        match outcome.outcome:
            case CommitStatus.REPEAT:
                return self._earlier.repeated(request, outcome.answer)
            case CommitStatus.REUSED:
                raise exceptions.RequestIdReused(request_id=request.request_id)
            case CommitStatus.CANCELLED:
                return self._earlier.cancelled(request)
            case CommitStatus.BARRED:
                raise exceptions.refused(
                    outcome.reason, outcome.places, request_id=request.request_id
                )
        raise self._earlier.busy()

    def _target(self, request: Request) -> Target:
        """Return the group as it is stored, if the request may have it.

        :raises NotFound, Refused, StaleGeneration: it may not
        :raises PlanUnreadable: the stored plan
        """
        uuid, description = request.uuid, request.group
        if description.uuid is None:
            description = msgspec.structs.replace(description, uuid=uuid)
        record = self._store.load_group_plan(uuid)
        group = self._store.load_group(uuid)
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
            group = self._store.load_group(uuid)
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
        stays = standing_places.staying(
            self._store.load_places([target.uuid])[target.uuid],
            target.before,
            description,
            lambda provider_id: is_host_up(table, provider_id, self._settings.stale_after_seconds),
            heal=change is not None and change.heal,
            replace=() if change is None else change.replace,
            given_up=() if target.record is None else group_answer.given_up(target.record.plan),
        )
        ended = [*stays.ends, *stays.moves, *stays.lost]
        remaining_table = standing_places.without(table, ended) if ended else table
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
        zones = self._store.zones_of_groups([target.uuid, *target.groups])
        if not zones:
            return ()
        policies = target.description.full_policies
        lines = unkept(policies, target.uuid in zones, zones.keys() - {target.uuid})
        if lines:
            places = set[str]().union(*zones.values())
            names = [zone.name for zone in self._store.child_zones() if zone.uuid in places]
            raise exceptions.refused(
                f'group {target.uuid}: hard policies cannot be kept on hosts of this zone, as '
                f'members are in zones below: {"; ".join(lines)}; make these policies soft, or '
                'place the members by requests that may go to zones below',
                [f'zone {name}' for name in names],
                group=target.uuid,
            )
        return tuple(sorted(zones.get(target.uuid, ())))

    def _check_quota(self, request: Request, target: Target, stays: Staying) -> None:
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
        stays: Staying,
        table: HostTable,
        end: float,
        attempt: int,
        before: Made | None,
    ) -> GroupPlan:
        pipeline, description = self._pipeline(), target.description
        members = {**standing_places.consumers_on(table, description), **stays.consumers}
        placed, full_table = stays.placed, table
        keeps: list[PlannedMember] = []
        if before is not None and before.planned:
            remainder = remaining(
                table,
                description,
                pipeline,
                before.planned,
                lambda name: place_consumer(target.uuid, name),
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
                place_consumer(target.uuid, staying_member.name): staying_member.member
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
        self._recorder.observe('gantt_group_plan_seconds', self._clock.monotonic() - began)
        self._recorder.count('gantt_group_plans_total', status=plan.status, by=plan.by)
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
            members={**standing_places.consumers_on(made.table, group), **staying.consumers},
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
        zones = enabled(self._store.child_zones())
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
        number: int,
        attempt: int,
        conflicts: list[str],
    ) -> GroupAnswer:
        plan, ask_zones = made.plan, list[str]()
        if plan is not None and plan.missing:
            ask_zones = enabled(self._store.child_zones())
        if plan is not None and not request.dry_run:
            planned = plan_drafts.numbered(target.uuid, request.request_id, number, plan.members)
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
            attempts=attempt,
            conflicts=list(conflicts),
            age_seconds=made.age_seconds,
            ask_zones=ask_zones,
        )

    def _draft(
        self,
        request: Request,
        target: Target,
        made: Made,
        answer: GroupAnswer,
        number: int,
        takes_over: int | None,
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
            attempt=number,
            takes_over=takes_over,
            whole=True,
            budget_seconds=OPEN_SECONDS,
            lease_seconds=answer.lease_seconds,
            project_id=target.owner.project_id,
            only_project=request.only_project,
            claims=plan_drafts.claims_of(
                made.table, request, target.uuid, target.owner, number, planned
            ),
            group=plan_drafts.swap(target.uuid, target.description, made.generation),
            groups=plan_drafts.swaps_of_others(target.description, target.groups),
            answer=packed,
            plan=record,
            below=made.below,
            ends_places=tuple(
                PlaceEnded(claim_id=place.id, provider_ids=tuple(place.allocations))
                for place in ends
            ),
            lost_claims=tuple(claim.id for claim in made.staying.lost),
        )

    def _committed(self, draft: RequestDraft) -> RequestOutcome:
        """Return the outcome of a commit of one request.

        :raises Unavailable: it is not known
        """
        began = self._clock.monotonic()
        (outcome,) = self._store.commit([draft]).outcomes
        self._recorder.observe('gantt_commit_seconds', self._clock.monotonic() - began)
        return outcome

    def _lease(self, request: Request) -> float:
        settings = self._settings
        lease_max = longest(
            Lifecycle.PLAN, settings.lease_seconds_max, settings.plan_lease_seconds_max
        )
        return min(float(request.lease_seconds or settings.plan_lease_seconds), lease_max)

    def _not_planned(self, request: Request, conflicts: list[str]) -> exceptions.GanttError:
        """Return the error of a group that could not be planned in its time."""
        if conflicts:
            return self._out_of_time(request, conflicts)
        return exceptions.Expired(
            f'group {request.uuid} takes longer to be planned than its budget of '
            f'{request.budget_ms} ms, or twice [planner] plan_seconds_max = '
            f'{self._bounds.plan_seconds_max:g}: whether it can be placed is not known; ask for '
            'fewer members or groups of resources at once, or for more that are alike',
            budget_ms=request.budget_ms,
        )

    def _out_of_time(self, request: Request, conflicts: list[str]) -> exceptions.GanttError:
        if conflicts:
            return exceptions.Conflict(
                f'the budget was spent after {len(conflicts)} attempts; the last: {conflicts[-1]}',
                request_id=request.request_id,
                attempts=len(conflicts),
            )
        return exceptions.Expired(budget_ms=request.budget_ms)


def _given_up(request: Request, target: Target, stays: Staying) -> set[str]:
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


def _line(outcome: RequestOutcome) -> str:
    return f'{outcome.outcome.value}: {outcome.reason}' if outcome.reason else outcome.outcome.value


class EarlierAnswers:
    """Stored answers of groups by the rows of their requests, and refusals that are final.

    A caller that gets no answer sends its request again, and another process may take the copy
    while the first one still works on it.  A group that is refused must not have a plan: before a
    repeat is refused, the refusal is stored as the request's row.  Either that finds the row of the
    first copy, whose answer is the caller's as well, or the commit of the first copy finds the
    refusal.
    """

    def __init__(self, store: Store, recorder: Recorder, retry_after_ms: Callable[[], int]) -> None:
        self._store, self._recorder, self._retry_after_ms = store, recorder, retry_after_ms

    def known(self, request: Request) -> GroupAnswer | None:
        """Return the stored answer to a repeat; None: it was not answered yet.

        :raises RequestIdReused, RequestCancelled: see there
        :raises Refused, Conflict: as it was answered, as a repeat
        """
        stored = self._store.load_request(request.request_id)
        return None if stored is None or stored.state == 'open' else self._of(request, stored)

    def refused(self, request: Request, error: NotPlaced) -> GroupAnswer:
        """Return the stored answer to the first copy of a request that is to be refused.

        :raises Refused, Conflict: ``error``, or that of before; of a repeat no copy is placed then
        :raises Busy: the first copy is being placed
        """
        if request.repeat:
            packed = group_answer.pack_refusal(error)
            stored = self._store.bar_request(request.request_id, request.fingerprint, packed)
        else:
            stored = self._store.load_request(request.request_id)
        if stored is None:
            raise error
        if stored.state == 'open':
            raise self.busy()
        return self._of(request, stored)

    def cancelled(self, request: Request) -> GroupAnswer:
        """Answer a request that a commit has found not to be placed any more.

        :raises RequestCancelled: it was cancelled
        :raises Refused, Conflict: as another copy was answered
        """
        answer = self.known(request)
        if answer is None:
            raise exceptions.RequestCancelled(request_id=request.request_id)
        return answer

    def busy(self) -> exceptions.Busy:
        """Return the error where another process works on the request."""
        return exceptions.Busy(
            reason='another process is at this request', retry_after_ms=self._retry_after_ms()
        )

    def _of(self, request: Request, stored: StoredRequest) -> GroupAnswer:
        if stored.state == 'cancelled':
            refusal = group_answer.unpack_refusal(stored.answer) if not stored.attempt else None
            if refusal is None:
                raise exceptions.RequestCancelled(request_id=request.request_id)
            if stored.fingerprint != request.fingerprint:
                raise exceptions.RequestIdReused(request_id=request.request_id)
            raise refusal
        if stored.fingerprint != request.fingerprint:
            raise exceptions.RequestIdReused(request_id=request.request_id)
        return self.repeated(request, stored.answer)

    def repeated(self, request: Request, stored: bytes) -> GroupAnswer:
        """Return a stored answer again.  :raises RequestIdReused: it is not of a group"""
        self._recorder.count('gantt_repeats_total')
        answer = group_answer.unpack(stored)
        if answer is None:
            raise exceptions.RequestIdReused(request_id=request.request_id)
        return answer
