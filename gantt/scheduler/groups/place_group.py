# SPDX-License-Identifier: Apache-2.0
"""The story of a group that is placed as a whole.

    read who stands → plan on the table as it is now → one request with a claim for each member →
    commit → answer

After a conflict nothing is claimed.  Those whose hosts others were faster on are planned again,
the others stay where they were planned, and the whole is committed once more, a bounded number of
times.  What was answered is stored with the request, as for any other: a repeat gets it.
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

#: How long the row of a request is open at most: it is made and completed by one commit.
OPEN_SECONDS = 10.0
#: Between two looks at what others keep locked, or have open.
LOOK_SECONDS = 0.2
#: Of the time of a request, what its commits and its answer need.
SPARE_SHARE, SPARE_MOST = 0.2, 2.0
#: Members without a place that an error names.
NAMED_MAX = 20


#: Errors which say that nothing is placed; ``Unavailable`` leaves that open.
NotPlaced = exceptions.Refused | exceptions.Conflict


class Target(NamedTuple):
    """The group that a request is about, as it is stored.

    :ivar record: its plan; None: it has none
    :ivar before: as it is described there
    :ivar groups: other groups that its policies are about, as they are now
    :ivar owner: whose places it has
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
        """Of the plan that is to be."""
        return 1 if self.record is None else self.record.revision + 1


class Made(NamedTuple):
    """What was planned in one try.

    :ivar table: that it was planned on
    :ivar plan: of those that were to be placed; None: nobody was
    :ivar below: zones below where members of the group live
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
    """Places groups, one after the other: called by one thread.

    :param pipeline: the filters and weighers in force
    :param solver: what proves plans; None: nothing does
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

        :param end: monotonic time until when the answer has a use
        :raises GanttError: nothing of it is claimed, or, of ``Unavailable``, that is not known:
            a repeat finds out
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
        made: Made | None = None
        for attempt in range(1, self._bounds.attempts_per_group + 1):
            if self._clock.monotonic() >= end:
                raise self._out_of_time(request, conflicts)
            target = self._target(request)
            made = self._made(request, target, end, attempt, made)
            self._check_complete(request, target, made, attempt)
            answer = self._answer(request, target, made, number, attempt, conflicts)
            if request.dry_run:
                found = self._what_if(request, target, made, end)
                return msgspec.structs.replace(answer, what_if=found)
            draft = self._draft(request, target, made, answer, number, takes_over)
            outcome = self._committed(draft)
            match outcome.outcome:
                case CommitStatus.PLACED:
                    self._cache.reload_soon()
                    self._recorder.count('gantt_claims_made_total', len(made.planned))
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

    # -- what is stored ------------------------------------------------------------------
    def refused(self, request: Request, error: NotPlaced) -> GroupAnswer:
        """What to answer where ``place`` has raised so; see ``EarlierAnswers.refused``."""
        if request.dry_run:
            raise error
        return self._earlier.refused(request, error)

    def _ended(self, request: Request, outcome: RequestOutcome) -> GroupAnswer:
        """What a commit says that is no placement and no conflict."""
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
        """The group as it is stored, if the request may have it.

        :raises NotFound, Refused, StaleGeneration: it may not
        :raises PlanUnreadable: that of before
        """
        uuid, description = request.uuid, request.group
        if description.uuid is None:
            description = msgspec.structs.replace(description, uuid=uuid)
        record = self._store.load_group_plan(uuid)
        group = self._store.load_group(uuid)
        for there in (record, group):
            if there is not None and not _may_have(request, there.project_id):
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
        found = {}
        for uuid, field in plan_drafts.other_groups(request.group).items():
            if uuid == own:
                raise exceptions.invalid(field, 'expected another group than this one')
            group = self._store.load_group(uuid)
            if group is None or not _may_have(request, group.project_id):
                raise plan_drafts.unknown_group(field, uuid)
            found[uuid] = group
        return found

    # -- planning --------------------------------------------------------------------------
    def _made(
        self, request: Request, target: Target, end: float, attempt: int, before: Made | None
    ) -> Made:
        """Plan on the table as it is now.

        :param before: what was planned in the try before: who can stay there does
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
        gone = [*stays.ends, *stays.moves, *stays.lost]
        seen = standing_places.without(table, gone) if gone else table
        plan = None
        below = self._below(target)
        if stays.wanted(description):
            self._check_quota(request, target, stays)
            plan = self._plan(request, target, stays, seen, end, attempt, before)
        return Made(
            table=seen,
            staying=stays,
            plan=plan,
            generation=table.group_generation(target.uuid),
            age_seconds=round(self._cache.age_seconds, 3),
            violated=violated(seen, description, stays.members),
            below=below,
        )

    def _below(self, target: Target) -> tuple[str, ...]:
        """The zones below where members of the group live.

        :raises Refused: a hard policy cannot be kept here beside them
        """
        zones = self._store.zones_of_groups([target.uuid, *target.groups])
        if not zones:
            return ()
        policies = target.description.full_policies
        lines = unkept(policies, target.uuid in zones, zones.keys() - {target.uuid})
        if lines:
            places = set[str]().union(*zones.values())
            names = [one.name for one in self._store.child_zones() if one.uuid in places]
            raise exceptions.refused(
                f'group {target.uuid}: hard policies cannot be kept on hosts of this zone, as '
                f'members are in zones below: {"; ".join(lines)}; make these policies soft, or '
                'place the members by requests that may go to zones below',
                [f'zone {name}' for name in names],
                group=target.uuid,
            )
        return tuple(sorted(zones.get(target.uuid, ())))

    def _check_quota(self, request: Request, target: Target, stays: Staying) -> None:
        """
        :raises QuotaExceeded: the project would have more than it may
        """
        is_own = request.only_project is not None
        if target.is_new:
            self._quotas.check_groups(target.owner.project_id, is_own)
        there = Counter(one.member for one in stays.members)
        self._quotas.check_plan(
            target.owner.project_id,
            is_own,
            [
                (one.spec.at_most, max(one.most - there[one.name], 0))
                for one in target.description.members
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
        placed, as_it_is = stays.placed, table
        keeps: list[PlannedMember] = []
        if before is not None and before.planned:
            found = remaining(
                table,
                description,
                pipeline,
                before.planned,
                lambda name: place_consumer(target.uuid, name),
                members=members,
                placed=placed,
                over=self._over(end),
            )
            keeps, table = found.planned, found.table
            # Who stood has a place still; else there are more to be planned than before.
            is_same = not found.lost and before.staying.placed.keys() <= placed.keys()
            if before.plan is not None and (is_same or len(keeps) == stays.wanted(description)):
                return msgspec.structs.replace(before.plan, members=keeps)
            members |= {place_consumer(target.uuid, one.name): one.member for one in keeps}
            placed |= {one.name: one.member for one in keeps}
        plan = self._planned(request, description, table, end, attempt, members, placed)
        if keeps and (plan.missing or not plan.members) and before is not None:
            # Those who stay are in the way: all of them are planned anew.
            return self._plan(request, target, stays, as_it_is, end, attempt, None)
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
        """Whether a plan that is begun now has had its time: what it may be improved for, twice."""
        until = min(end, self._clock.monotonic() + 2 * self._bounds.plan_seconds_max)
        return lambda: self._clock.monotonic() >= until

    def _seconds(self, request: Request, end: float) -> float:
        """That a plan may be improved for, from now on."""
        left = end - self._clock.monotonic()
        left -= min(SPARE_SHARE * left, SPARE_MOST)
        return max(0.01, min(self._bounds.plan_seconds_of(request.plan_ms), left))

    def _what_if(
        self, request: Request, target: Target, made: Made, end: float
    ) -> list[WithoutPolicy] | None:
        """What policies cost, in as much time in all as the plan may have; None: nobody asks."""
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
        """
        :raises NoValidHost, NotKnownHere: members that have to be placed have no place
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

    # -- what is committed ---------------------------------------------------------------------
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
        names = {one.name for one in made.planned}
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
            stayed=[one.name for one in made.staying.members],
            released=[one.member_name or '' for one in made.staying.ended(names)],
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
        ends = made.staying.ended({one.name for one in planned})
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
                PlaceEnded(claim_id=one.id, provider_ids=tuple(one.allocations)) for one in ends
            ),
            lost_claims=tuple(one.id for one in made.staying.lost),
        )

    def _committed(self, draft: RequestDraft) -> RequestOutcome:
        """The outcome of a commit of one request.

        :raises Unavailable: it is not known
        """
        began = self._clock.monotonic()
        (outcome,) = self._store.commit([draft]).outcomes
        self._recorder.observe('gantt_commit_seconds', self._clock.monotonic() - began)
        return outcome

    def _lease(self, request: Request) -> float:
        settings = self._settings
        most = longest(Lifecycle.PLAN, settings.lease_seconds_max, settings.plan_lease_seconds_max)
        return min(float(request.lease_seconds or settings.plan_lease_seconds), most)

    def _not_planned(self, request: Request, conflicts: list[str]) -> exceptions.GanttError:
        """The error of a group that could not be planned in its time."""
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
    """Guests that were replaced by name, now or before, and ids of their claims."""
    before = () if target.record is None else group_answer.given_up(target.record.plan)
    named = request.replace if isinstance(request, ChangeGroup) else ()
    now = [one for one in stays.lost if one.member_name in named]
    return {*before, *(one.id for one in now), *map(guest_of, now)}


def not_placed(group: str, plan: GroupPlan, attempts: int = 1) -> exceptions.NoValidHost:
    """The error of a group that cannot be placed whole, and what is known of why."""
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
    """Whose places are made: those of a server group that is there are its project's.

    Those of members are to be the same.

    :raises InvalidMessage: the group, or a member, is another's
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
    """Answers of groups by the rows of their requests, and refusals that are final.

    A caller that hears nothing sends its request again, and another process may take the copy
    while the first one is still at it.  A group that is refused must not have a plan: before a
    repeat is refused, the refusal is stored as the request's row.  Either that finds the row of
    the first copy, whose answer is the caller's as well, or the commit of the first copy finds
    the refusal.
    """

    def __init__(self, store: Store, recorder: Recorder, retry_after_ms: Callable[[], int]) -> None:
        self._store, self._recorder, self._retry_after_ms = store, recorder, retry_after_ms

    def known(self, request: Request) -> GroupAnswer | None:
        """What a repeat is answered; None: it was not answered yet.

        :raises RequestIdReused, RequestCancelled: see there
        :raises Refused, Conflict: as it was answered, as a repeat
        """
        stored = self._store.load_request(request.request_id)
        return None if stored is None or stored.state == 'open' else self._of(request, stored)

    def refused(self, request: Request, error: NotPlaced) -> GroupAnswer:
        """What the first copy of a request was answered that is to be refused.

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
        """A commit has found that a request is not placed any more.

        :raises RequestCancelled: it was taken back
        :raises Refused, Conflict: as another copy was answered
        """
        found = self.known(request)
        if found is None:
            raise exceptions.RequestCancelled(request_id=request.request_id)
        return found

    def busy(self) -> exceptions.Busy:
        """Somebody else is at it."""
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
        """A stored answer once more.  :raises RequestIdReused: it is of no group"""
        self._recorder.count('gantt_repeats_total')
        found = group_answer.unpack(stored)
        if found is None:
            raise exceptions.RequestIdReused(request_id=request.request_id)
        return found
