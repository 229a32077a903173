# SPDX-License-Identifier: Apache-2.0
"""Planning of requests for hosts: their placement, with the claims, the answer and the record.

The result of a pass is a ``Plan``.  Its picks stay on the working table until ``undo`` or
``apply_commit``; its draft is the input of the commit.  A dry run is planned by the same
planner, pipeline and tie-break seed, so that it gets what a real request would get on the same
table.

**Contention.**  Schedulers that see the same hosts agree on the best one.  Each knows its own picks
at once, those of the others when it reads the feed, so until then all of them fill
the same few hosts in the same order, and a late one loses where there is little room.
A scheduler that has lost races picks at random among more of the best, for all requests;
one that places without losing, or waits, returns to the best one.

Schedulers exchange no messages: lost races alone widen the choice.  In
balance a scheduler loses a race as often as it places the members that compensate
:data:`SPREAD_GROWTH`, one in 2000, for any number of schedulers; unless the bound is met.

Hosts whose rows another scheduler keeps locked are left out of the next plans, so that
requests with an alternative use it; one without waits within its budget, and is answered
"busy" after that, not that there is no room.
"""

import contextlib
import functools
import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from gantt import exceptions
from gantt.core.claims import inheritance
from gantt.core.claims.claim import Claim, guest_of, is_rival, longest_lease_of
from gantt.core.claims.commit import (
    ClaimColumns,
    ClaimDraft,
    CommitResult,
    CommitStatus,
    DecisionRecord,
    GroupPrecondition,
    RefusalKind,
    RequestDraft,
    RequestOutcome,
)
from gantt.core.claims.quota import Excess
from gantt.core.claims.request_state import seed_of_try
from gantt.core.claims.reservations import ReplacedReservation, TakenReservation
from gantt.core.messages import base
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import Lifecycle, RequestKind, SelectDestinations
from gantt.core.pause import AskPause, Pause
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.place import LastRequest, place
from gantt.core.records import decision_codec
from gantt.core.records.decision import (
    Answer,
    Decision,
    FilterCount,
    Outcome,
    Selection,
    unknown_request_reason,
)
from gantt.core.records.members import (
    AnswerReference,
    MemberColumns,
    answer_of,
    pack,
    selections_of,
)
from gantt.core.table.host_table import HostTable
from gantt.scheduler import table_log
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports.process import Clock, Recorder
from gantt.scheduler.ports.requests import Claims
from gantt.scheduler.ports.stores import Stores
from gantt.scheduler.request.queue import PendingRequest
from gantt.scheduler.settings import SchedulerSettings

LOG = logging.getLogger(__name__)
#: A request that lost races picks among 2, 4, 8 ... times as many as others do, at most.
RETRY_SPREAD_MAX = 16

#: Refusals that show that facts known here of a host or a pool have changed.
FACTS_CHANGED_REFUSALS = (RefusalKind.UNITS, RefusalKind.DETACHED)
#: Seconds to wait for a request begun by another worker, counted from its last pass:
#: passes of a live worker follow each other at once.
OTHER_WORKER_WAIT_SECONDS = 10.0
#: The claims of a plan without any.
NO_CLAIMS = ClaimColumns()
#: The most hosts that are picked among.
SPREAD_MAX = 256
#: Factor of the number after a batch that lost a race.
SPREAD_GROWTH = 4
#: Members placed, or seconds, that halve the number; each has its part.
SPREAD_HALF_LIFE_MEMBERS, SPREAD_HALF_LIFE_SECONDS = 1000, 60.0
#: Number above which the feed is read more often, and how many times as often.
HASTE_SPREAD_MIN, FEED_READ_FACTOR = 16, 4
#: Seconds that a host is left out after a commit met its locked row; then it is tried again.
AVOID_LOCKED_HOST_SECONDS = 1.0
#: Seconds that a dry run may take a thread, for any budget of the request.
DRY_RUN_SECONDS_MAX = 10.0


class ClaimedMember(NamedTuple):
    """Selections of a member that is claimed, and the rules given up for it.

    :ivar selections: the chosen host, then its alternates
    :ivar level: highest of the soft rules that gave way
    :ivar given_up: the soft rules that gave way
    """

    selections: list[Selection]
    level: int
    given_up: list[str]


class GroupCommitParts(NamedTuple):
    """Part of a plan that its group adds.

    :ivar group: rule and generation of the group, which the commit compares
    :ivar others: those of other groups that its policies refer to
    :ivar taken: reservations that members take over, instead of new claims
    :ivar replaced: reservations that end with the commit of the members' claims
    """

    group: GroupPrecondition | None = None
    others: tuple[GroupPrecondition, ...] = ()
    taken: tuple[TakenReservation, ...] = ()
    replaced: tuple[ReplacedReservation, ...] = ()


NO_COMMIT_PARTS = GroupCommitParts()


class Plan:
    """A plan: the placement of all members of a call, or of some.

    :ivar request: the call's request, its group's rule filled in
    :ivar members: the members that it places, in order
    :ivar drafts: their claims, in the same order
    :ivar extra: part of the plan that its group adds; ``NO_COMMIT_PARTS``: none
    :ivar zones_not_queried: child zones that may have room, and are not queried for such a request
    :ivar claims_nothing: a dry run, or a rebuild on the host where the consumer is
    :ivar final_answer: the whole answer, valid where the draft completes the request
    """

    __slots__ = (
        'zones_not_queried',
        'call',
        'claims_nothing',
        'completes',
        'decision',
        'drafts',
        'extra',
        'final_answer',
        'is_placed',
        'lease',
        'members',
        'request',
        'whole',
    )

    def __init__(
        self,
        call: PendingRequest,
        request: SelectDestinations,
        decision: Decision,
        members: list[int],
        lease: float,
        extra: GroupCommitParts = NO_COMMIT_PARTS,
    ) -> None:
        self.call = call
        self.request = request
        self.decision = decision
        self.members = members
        self.extra = extra
        self.lease = lease
        self.is_placed = decision.outcome is Outcome.PLACED
        self.claims_nothing = call.claims_nothing
        self.zones_not_queried: list[str] = []
        self.whole = extra is not NO_COMMIT_PARTS and len(members) > 1
        self.completes = len(members) == len(call.attempt.todo)
        self.drafts = NO_CLAIMS
        self.final_answer = Answer(
            request_id=request.request_id, decision_id=decision.id, outcome=decision.outcome
        )

    def record(self) -> DecisionRecord:
        """Return the decision as it is stored."""
        decision = self.decision
        ids = decision.provider_ids
        return DecisionRecord(
            id=decision.id,
            request_id=decision.request_id,
            outcome=decision.outcome.value,
            project_id=self.request.spec.project_id,
            reason=decision.reason,
            worker=decision.worker,
            table_seq=decision.table_seq,
            packed=decision_codec.pack(decision, self.request),
            host_set=_digest_of(ids),
            provider_ids=ids,
            origin=self.request.origin,
            kind=self.request.spec.kind.value,
            consumers=self.request.consumers,
        )

    @property
    def removing_filters(self) -> list[FilterCount]:
        """Filters that removed hosts for the member that has no host."""
        return [
            rule for member in self.decision.members[-1:] for rule in member.filters if rule.removed
        ]

    @property
    def age_seconds(self) -> float:
        """Age of the table that the decision rests on, as answers show it."""
        return round(self.decision.age_seconds, 3)

    def answer(self) -> Answer:
        """Return the whole answer: members of earlier plans and of this one."""
        answer = answer_of(
            self.decision,
            self.lease,
            claims=not self.claims_nothing,
            dry_run=self.request.dry_run,
        )
        if self.zones_not_queried:
            answer = msgspec.structs.replace(answer, zones_not_queried=self.zones_not_queried)
        if answer.outcome is not Outcome.PLACED and self.request.spec.kind is not RequestKind.HOST:
            answer = msgspec.structs.replace(answer, kind=self.request.spec.kind.value)
        earlier = self.call.attempt.done
        if not earlier:
            return answer
        done = {**earlier, **self._claimed_members()}
        return msgspec.structs.replace(
            answer,
            selections=[done[member].selections for member in sorted(done)],
            level=max((done_member.level for done_member in done.values()), default=0),
            given_up=list(
                dict.fromkeys(
                    rule for done_member in done.values() for rule in done_member.given_up
                )
            ),
        )

    @property
    def evaluation_count(self) -> int:
        """Number of its members for which all hosts were evaluated."""
        return len(self.columns.evaluations) - self.columns.goes_on

    @property
    def columns(self) -> MemberColumns:
        members = self.decision.members
        assert isinstance(members, MemberColumns), 'it was just decided'
        return members

    def _claimed_members(self) -> dict[int, ClaimedMember]:
        """Return the answer data of the members of this plan."""
        members = self.columns
        evaluations = {
            member: evaluation
            for evaluation in members.evaluations
            for member in evaluation.members
        }
        selections = selections_of(members, self.lease, claims=not self.claims_nothing)
        return {
            member: ClaimedMember(
                member_selections, evaluations[member].level, evaluations[member].given_up
            )
            for member, member_selections in zip(sorted(evaluations), selections, strict=True)
        }

    def draft(self, owner: str, now: float, *, may_refer: bool) -> RequestDraft:
        """Return the input of the commit.

        :param now: monotonic time, for the rest of the budget
        :param may_refer: its answer may be stored as a reference to its decision
        """
        request, attempt = self.request, self.call.attempt
        group, others, taken, replaced = self.extra
        may_refer = may_refer and not taken
        if self.completes:
            # Built from all members, those of earlier passes too: not once for each pass.
            self.final_answer = self.answer()
        return RequestDraft(
            id=request.request_id,
            fingerprint=self.call.fingerprint,
            owner=owner,
            attempt=attempt.number,
            continues=attempt.continues,
            takes_over=attempt.takes_over,
            whole=self.whole,
            completes=self.completes,
            budget_seconds=max(1.0, min(self.call.deadline - now, OTHER_WORKER_WAIT_SECONDS)),
            lease_seconds=self.lease,
            project_id=request.spec.project_id,
            only_project=request.only_project,
            claims=self.drafts,
            group=group,
            groups=others,
            taken_reservations=taken,
            replaced_reservations=replaced,
            answer=self._stored_answer(may_refer) if self.completes else b'',
            decision=self.record(),
        )

    def _stored_answer(self, may_refer: bool) -> bytes:
        """Return the answer for a repeat; by reference where its decision has all members."""
        if may_refer and not self.call.attempt.done:
            return pack(AnswerReference(self.decision.id, self.lease))
        return pack(self.final_answer)

    def providers(self, accepted: Sequence[int] | None = None) -> set[int]:
        """Return the providers that its claims touch, or that its ``accepted`` claims touch."""
        return self.drafts.provider_ids(accepted)

    def providers_to_lock(self) -> set[int]:
        """Return the providers whose rows its commit locks."""
        return self.providers().union(*(place.provider_ids for place in self.extra.taken))

    def lost_though_room(self, outcome: RequestOutcome) -> int:
        """Return how many members lost a race for a host although others had room.

        Members of a changed group do not count: that race is for the group.
        """
        if outcome.outcome not in (CommitStatus.PARTIAL, CommitStatus.DROPPED):
            return 0
        accepted, spread = set(outcome.accepted), self.decision.spread
        survivors = [
            evaluation.survivors
            for evaluation in self.columns.evaluations
            for _ in evaluation.members
        ]
        return sum(
            i not in accepted and hosts_left > spread for i, hosts_left in enumerate(survivors)
        )

    def outcome(self, outcome: RequestOutcome) -> tuple[dict[int, ClaimedMember], list[str]]:
        """Return claims of a commit that did not complete the request, as ``Attempt.done``.

        :returns: these, and the hosts of the members that lost a race
        """
        accepted = {self.members[i] for i in outcome.accepted}
        done = self._claimed_members() if accepted else {}
        claimed = {member: done[member] for member in accepted}
        return claimed, [
            member.host.host for member in self.columns.placed() if member.member not in accepted
        ]


@functools.lru_cache(maxsize=8)
def _digest_of(ids: bytes) -> str:
    """Return the digest of a list of hosts, the same object until a host comes or goes."""
    return hashlib.blake2b(ids, digest_size=16).hexdigest()


class NarrowedRequest(Protocol):
    """A request as a hook has it planned.

    :ivar request: the request that hosts are evaluated for
    """

    request: SelectDestinations
    extra: GroupCommitParts

    def left_out(self, table: HostTable) -> contextlib.AbstractContextManager[None]:
        """Leave out of the table, in a block, what does not count for its members."""

    def decided(self, decision: Decision) -> Decision:
        """Return a decision with what the hook adds to it."""

    def commit_extra(self, plan: Plan) -> None:
        """Add to a plan that is placed what its commit does beside creating claims."""


class PlanningHook(Protocol):
    """A part of a capability, which the planner calls for requests that concern it alone.

    Requests for members of groups have one; all others pass by it.
    """

    def may_be_counted(self, request: SelectDestinations) -> bool:
        """Return whether a request may use reservations that quotas have counted already."""

    def has_paid(self, plan: Plan) -> bool:
        """Return whether a plan uses only reservations that count for its project already."""

    def offer(
        self, planner: 'Planner', call: PendingRequest, pipeline: Pipeline, without: Sequence[str]
    ) -> Any:
        """Return a whole plan, for which no host is evaluated, or input of ``narrow``.

        :param without: names of hosts to avoid, if there are others
        :raises NotFound: the request names a group without a rule, and none is known
        """

    def narrow(
        self, table: HostTable, request: SelectDestinations, offered: Any
    ) -> NarrowedRequest:
        """Return a request as it is planned.

        :raises Refused: it names another rule than its group has
        """

    def undone(self, plan: Plan) -> None:
        """Note that a plan with commit parts of its group is not on the table any more."""

    def committed(self, plans: Sequence[Plan], result: CommitResult) -> set[int]:
        """Take note of the outcome of a batch; return providers whose changes only the feed has."""

    def applied(self, plans: Sequence[Plan], result: CommitResult) -> None:
        """Take over what a batch has changed beside hosts, which the table has by now."""


#: Factory of the hook of requests for members of groups, over a table.
MakePlanningHook = Callable[[Stores, HostCache, SchedulerSettings], PlanningHook]


class Planner:
    """A planner over the working table, which also undoes picks that are not committed.

    :ivar worker: name of the scheduler in its decisions
    """

    def __init__(
        self,
        stores: Stores,
        cache: HostCache,
        settings: SchedulerSettings,
        make_hook: MakePlanningHook,
    ) -> None:
        self._claims = stores.claims
        self._may_refer = stores.requests.may_refer
        self._cache = cache
        self._settings = settings
        self.worker = cache.log.worker if cache.log else settings.worker
        # Decisions so far: their ids are derived from it and the worker.
        self._serial = 0
        # doc/source/decisions/0015-adaptive-host-subset-after-lost-races.rst
        self.contention = Contention(cache.clock)
        self._last_request = LastRequest()
        self._group_hook = make_hook(stores, cache, settings)
        self._distrusted: set[tuple[str, str]] = set()  # pipelines, and plugins already logged
        #: Returns names of child zones that a request is not sent to, though they may have room.
        self.zones_not_queried: Callable[[SelectDestinations], list[str]] = lambda request: []

    def plan(
        self,
        call: PendingRequest,
        pipeline: Pipeline,
        pause: AskPause | None = None,
        without: Sequence[str] = (),
    ) -> Plan:
        """Place (some of) the members of ``call`` that are not claimed yet.

        The picks stay on the working table; a decision that is not placed
        leaves none.

        :param pause: see :func:`gantt.core.placement.place.place`
        :param without: names of hosts to leave out, beside those the request rules out
        :raises NotFound, Refused: see ``PlanningHook``
        """
        table = self._cache.working
        request = call.request
        narrowed: NarrowedRequest | None = None
        if request.spec.group is not None:
            offered = self._group_hook.offer(self, call, pipeline, without)
            if isinstance(offered, Plan):
                return offered
            narrowed = self._group_hook.narrow(table, request, offered)
            request = narrowed.request
        request = _with_ignored_hosts(request, without)
        attempt = call.attempt
        many = len(attempt.todo) if call.is_whole else self._settings.claims_per_commit
        position, tries = self._cache.position, attempt.tries
        with contextlib.nullcontext() if narrowed is None else narrowed.left_out(table):
            decision = place(
                table,
                request,
                pipeline,
                seed=seed_of_try(request.request_id, tries),
                decision_id=self.decision_id(request, tries),
                members=attempt.todo[:many],
                attempt=attempt.number,
                worker=self.worker,
                spread=self.spread_of(call),
                pause=pause,
                seen=self._last_request,
                held=held_pool_amounts(self._claims, table, request),
            )
        decision = self.completed(call, decision, tries, position)
        if decision.outcome is Outcome.NO_VALID_HOST and request.spec.kind is RequestKind.HOST:
            decision = self._room_or_unknown(table, decision)
        zones_not_queried: list[str] = []
        if decision.outcome is Outcome.NO_VALID_HOST:
            zones_not_queried = self.zones_not_queried(request)
            if zones_not_queried:
                reason = unknown_request_reason(decision.reason, zones_not_queried)
                decision = msgspec.structs.replace(decision, outcome=Outcome.UNKNOWN, reason=reason)
        extra = NO_COMMIT_PARTS
        if narrowed is not None:
            decision, extra = narrowed.decided(decision), narrowed.extra
        members = list(attempt.todo[: decision.planned])
        plan = Plan(call, request, decision, members, self.lease_of(request), extra)
        plan.zones_not_queried = zones_not_queried
        if plan.is_placed and not plan.claims_nothing:
            plan.drafts = claims_of(table, request, attempt.number, decision)
            if narrowed is not None:
                narrowed.commit_extra(plan)
            self._cache.record_event(plan.drafts)
        return plan

    def completed(
        self, call: PendingRequest, decision: Decision, tries: int, position: int | None = None
    ) -> Decision:
        """Return a decision with what the progress of a request adds to it.

        :param tries: number of this try of the request
        :param position: position of the table that the decision rests on; None: the present one
        """
        attempt = call.attempt
        return msgspec.structs.replace(
            decision,
            table_seq=self._cache.position if position is None else position,
            attempts=tries,
            conflicts=list(attempt.conflicts),
            age_seconds=max(decision.age_seconds, self._cache.age_seconds),
            project_id=call.request.spec.project_id,
            zones=list(call.zones),
        )

    def may_be_counted(self, call: PendingRequest) -> bool:
        """Return whether a call of a group may use reservations that quotas count already."""
        return self._group_hook.may_be_counted(call.request)

    def has_paid(self, plan: Plan) -> bool:
        """Return whether a plan uses only reservations that its project has already."""
        return plan.extra is not NO_COMMIT_PARTS and self._group_hook.has_paid(plan)

    def refused(self, call: PendingRequest, pipeline: Pipeline, excess: Excess) -> DecisionRecord:
        """Return the decision about a call that a quota ends: no host was evaluated."""
        request = call.request
        decision = Decision(
            id=self.decision_id(request, call.attempt.tries),
            request_id=request.request_id,
            outcome=Outcome.REFUSED,
            hosts=0,
            members=[],
            table_seq=self._cache.position,
            age_seconds=self._cache.age_seconds,
            config_digest=pipeline.digest,
            attempts=call.attempt.tries,
            reason=excess.line,
            cause=excess.cause,
            worker=self.worker,
            created_at=self._cache.working.now,
            project_id=request.spec.project_id,
            attempt=call.attempt.number,
        )
        return Plan(call, request, decision, [], 0.0).record()

    def decision_id(self, request: SelectDestinations, tries: int) -> str:
        """Return the id of the next decision."""
        self._serial += 1
        return derived_id('decision', request.request_id, self.worker, self._serial, tries)

    def drafts(self, plans: Iterable[Plan], owner: str, now: float) -> list[RequestDraft]:
        """Return the input of a commit, see ``Plan.draft``."""
        may_refer = self._may_refer
        return [plan.draft(owner, now, may_refer=may_refer) for plan in plans]

    # -- the table -----------------------------------------------------------
    def undo(self, plan: Plan, keep: Collection[int] = ()) -> None:
        """Remove the plan's picks from the table, those at ``keep`` excepted."""
        if plan.extra is not NO_COMMIT_PARTS:
            self._group_hook.undone(plan)
        if len(keep) < len(plan.drafts.ids):
            self._cache.apply_and_record(table_log.picks_removed(plan.drafts, keep))

    def apply_commit(self, plans: list[Plan], result: CommitResult) -> None:
        """Bring the table in line with a commit: nothing else writes what a commit has changed.

        Afterwards the table shows, of all that these plans had laid over it, what was committed
        and nothing else; it never shows more room, or an older group, than it may rely on:

        - picks that were not accepted are removed before any host is settled;
        - a host that these claims are on, and none has left, is settled as written here; of
          any other host that was read back only the usage is taken over, the feed has the rest;
        - the generation of a group comes to the table only with all hosts that its members are
          on, and were on as far as is known here; else its next commit fails and reads it.
        """
        self._last_request.forget()
        written, claims = set[int](), set[str]()
        changed = {*result.freed, *result.handed}
        is_of_groups = any(plan.extra is not NO_COMMIT_PARTS for plan in plans)
        for plan, outcome in zip(plans, result.outcomes, strict=True):
            self.undo(plan, outcome.accepted)
            written |= plan.providers(outcome.accepted)
            claims.update(map(plan.drafts.ids.__getitem__, outcome.accepted))
        if is_of_groups:
            changed |= self._group_hook.committed(plans, result)
        self._cache.commit_applied(
            result.hosts, written - changed, claims, result.stepped, result.pools
        )
        if is_of_groups:
            self._group_hook.applied(plans, result)
        # A commit reads back a host's usage, not the holders of its cores, nor its units,
        # nor which pools serve it.
        if any(outcome.refused in FACTS_CHANGED_REFUSALS for outcome in result.outcomes) or any(
            plan.drafts.kinds[kind].claim.layout is not None and i not in outcome.accepted
            for plan, outcome in zip(plans, result.outcomes, strict=True)
            if outcome.outcome in (CommitStatus.DROPPED, CommitStatus.PARTIAL)
            for i, kind in enumerate(plan.drafts.kind)
        ):
            # It was planned beside claims, or on facts, that differ from those known here.
            with contextlib.suppress(exceptions.Unavailable):
                self._cache.fetch_news()

    def note_races(self, plans: list[Plan], result: CommitResult) -> bool:
        """Pick among more hosts in the next batch where this one lost races, else among fewer.

        :returns: whether the number changes
        """
        return self.contention.note(
            placed=sum(len(outcome.accepted) for outcome in result.outcomes),
            lost=sum(
                plan.lost_though_room(commit_outcome)
                for plan, commit_outcome in zip(plans, result.outcomes, strict=True)
            ),
        )

    def count_planned(self, plans: list[Plan], pipeline: Pipeline, recorder: Recorder) -> None:
        """Count the two ways of planning and the search for layouts; log wrong plugins."""
        evaluated = sum(plan.evaluation_count for plan in plans)
        members = sum(len(plan.members) for plan in plans)
        recorder.count('gantt_members_planned_total', evaluated, method='evaluated')
        recorder.count('gantt_members_planned_total', members - evaluated, method='identical')
        while pipeline.layout_hosts:
            result, hosts = pipeline.layout_hosts.popitem()
            recorder.count('gantt_layout_hosts_total', hosts, result=result)
        for name in pipeline.distrusted:
            if (pipeline.digest, name) in self._distrusted:
                continue
            recorder.count('gantt_wrong_declarations_total', plugin=name)
            LOG.error(
                'Columns, fields or steps that a plugin declares are wrong, and it is evaluated '
                'whole for each member from now on; see its conformance test, '
                'gantt.testing.conformance: plugin=%s',
                name,
            )
            self._distrusted.add((pipeline.digest, name))

    # -- parts ---------------------------------------------------------------
    def spread_of(self, call: PendingRequest) -> int:
        """Return the number of best hosts to pick among, by lost races of all and of this call."""
        own_spread = min(2 ** len(call.attempt.conflicts), RETRY_SPREAD_MAX)
        return min(own_spread * self.contention.spread, SPREAD_MAX)

    def lease_of(self, request: SelectDestinations) -> float:
        """Return the seconds of a lease; bounded for every lifecycle."""
        settings = self._settings
        is_plan = request.lifecycle is Lifecycle.PLAN
        default_lease = settings.plan_lease_seconds if is_plan else settings.lease_seconds
        longest_lease = longest_lease_of(
            request.lifecycle, settings.lease_seconds_max, settings.plan_lease_seconds_max
        )
        return min(float(request.lease_seconds or default_lease), longest_lease)

    def _room_or_unknown(self, table: HostTable, decision: Decision) -> Decision:
        """Distinguish "no room" from "unknown": they are different answers."""
        problem = ''
        age = self._cache.age_seconds
        if age > self._settings.unknown_after_seconds:
            problem = f'the table is {age:.0f} s old and the database does not answer'
        elif len(table) and table.count_stale(self._settings.stale_after_seconds) == len(table):
            problem = (
                f'none of {len(table)} hosts has reported within '
                f'{self._settings.stale_after_seconds:.0f} s'
            )
        elif decision.silent:
            problem = self._silence_reason(table, decision.silent)
        if not problem:
            return decision
        return msgspec.structs.replace(decision, outcome=Outcome.UNKNOWN, reason=problem)

    def _silence_reason(self, table: HostTable, names: Sequence[str]) -> str:
        """Return why it is not known whether there is room; '' where it is.

        :param names: hosts that fit except for their silence
        """
        down = self._settings.stale_after_seconds
        window = self._cache.update_silence(down)
        if window is None:
            return ''
        rows = [row for row in map(table.row_of, names) if row is not None]
        fits = [row for row in rows if window[0] <= table.reported_at[row] <= window[1]]
        if not fits:
            return ''
        return (
            f'{len(fits)} hosts that would fit, such as {table.names[fits[0]]}, fell silent '
            f'together with most others, {table.now - window[1]:.0f} s ago: their reports may '
            'not reach us'
        )


def _with_ignored_hosts(request: SelectDestinations, hosts: Sequence[str]) -> SelectDestinations:
    """Return the request as if it ruled out these hosts as well, for a replay."""
    if not hosts:
        return request
    ignored = list(dict.fromkeys((*request.spec.ignore_hosts, *hosts)))
    spec = msgspec.structs.replace(request.spec, ignore_hosts=ignored)
    return msgspec.structs.replace(request, spec=spec)


def may_be_outdated(error: exceptions.Refused) -> bool:
    """Return whether a request was refused for its group's rule, which may have changed."""
    return type(error) is exceptions.Refused


def held_pool_amounts(
    stored_claims: Claims, table: HostTable, request: SelectDestinations
) -> dict[str, dict[int, dict[str, int]]]:
    """Return pool amounts of moving consumers: consumer -> provider id -> class -> amount.

    Read only where a pool has what they request; they do not need it once more.

    :raises DatabaseUnavailable:
    """
    purpose = request.spec.purpose
    if not (purpose.is_move and table.pools.have_any(request.spec.resources)):
        return {}
    claims: dict[str, list[Claim]] = {}
    for claim in stored_claims.live_claims_of(request.consumers):
        if not is_rival(claim, purpose):  # it gives way
            claims.setdefault(guest_of(claim), []).append(claim)
    return {
        consumer: amounts
        for consumer, consumer_claims in claims.items()
        if (amounts := inheritance.held_outside_host(consumer_claims))
    }


def claims_of(
    table: HostTable, request: SelectDestinations, attempt: int, decision: Decision
) -> ClaimColumns:
    """Return the claims that the hosts' ``instance_claim`` or ``resize_claim`` would make."""
    members, drafts = decision.members, ClaimColumns()
    if request.spec.kind is not RequestKind.HOST:
        table = table.of_kind(request.spec.kind)
    assert isinstance(members, MemberColumns), 'it was just decided'
    # Amounts of the last kind on its host (None: no more of it), and on other providers.
    like_host: dict[str, int] | None = None
    like_others: dict[int, dict[str, int]] = {}
    resources = request.spec.resources
    for member in members.placed():
        chosen = member.host
        # As it was picked: by now the table has the picks on it.
        host_amounts, other_amounts = resources, dict[int, dict[str, int]]()
        if member.allocations:
            other_amounts = member.amounts(resources)
            host_amounts = other_amounts.pop(chosen.provider_id)
        if (
            host_amounts == like_host
            and other_amounts == like_others
            and member.layout is None
            and member.claim_id
        ):
            # As the first one's, except for its consumer and host.
            drafts.add_like(
                member.claim_id, member.member, member.consumer, chosen.provider_id, chosen.host
            )
            continue
        host = table.host_state(member.row)
        amounts = {chosen.provider_id: host_amounts, **other_amounts}
        claim, generation = host.claim(request, member.member, attempt, amounts), None
        if held_amounts := decision.held.get(member.consumer):
            claim = inheritance.with_inherited(claim, held_amounts)
        like_host = (
            None if member.layout is not None or request.spec.purpose.is_move else host_amounts
        )
        like_others = other_amounts
        if member.layout is not None:
            claim = msgspec.structs.replace(claim, layout=member.layout)
            generation = host.generation
        shared: tuple[int, ...] = ()
        if other_amounts:
            pool_by_id, host_id = table.pools.by_id, claim.provider_id
            shared = tuple(
                pool_id
                for pool_id in claim.allocations
                if pool_id in pool_by_id and pool_by_id[pool_id].root != host_id
            )
        drafts.add(ClaimDraft(claim=claim, generation=generation, served_by=shared))
    return drafts


# -- contention with other schedulers -------------------------------------------
class Contention:
    """Lost races of one scheduler; only the scheduling thread changes it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Spread, at least 1, as of the monotonic time ``_updated_at``: it halves each
        # SPREAD_HALF_LIFE_SECONDS.
        self._spread = 1.0
        self._updated_at = clock.monotonic()

    @property
    def spread(self) -> int:
        """Number of best hosts to pick among; 1: take the best one."""
        if self._spread == 1.0:
            return 1
        waited = self._clock.monotonic() - self._updated_at
        return max(1, round(self._spread * 0.5 ** (waited / SPREAD_HALF_LIFE_SECONDS)))

    @property
    def haste(self) -> int:
        """Factor by which to read the feed more often: a wide choice costs more than a read.

        Any thread may read it.
        """
        return FEED_READ_FACTOR if self.spread > HASTE_SPREAD_MIN else 1

    def note(self, placed: int, lost: int) -> bool:
        """Widen or narrow the choice after a batch; return whether the spread has changed.

        :param placed: members that got their host
        :param lost: members that lost a race although there were more hosts to pick
            from than were considered: a wider choice would have helped them
        """
        spread_before = self.spread
        if self._spread > 1.0:
            now = self._clock.monotonic()
            halved = (
                placed / SPREAD_HALF_LIFE_MEMBERS
                + (now - self._updated_at) / SPREAD_HALF_LIFE_SECONDS
            )
            self._spread = max(1.0, self._spread * 0.5**halved)
            self._updated_at = now
        if lost:
            if self._spread == 1.0:
                self._updated_at = self._clock.monotonic()
            self._spread = min(self._spread * SPREAD_GROWTH, float(SPREAD_MAX))
        return self.spread != spread_before


class LockedHosts:
    """Locked hosts that the commits of one scheduler met; only the scheduling thread changes it.

    :ivar found: provider -> its name, and until when its host is left out
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.found: dict[int, tuple[str, float]] = {}

    def note(self, locked: Mapping[int, str]) -> None:
        """Note providers that a commit found locked, with their names."""
        until = self._clock.monotonic() + AVOID_LOCKED_HOST_SECONDS
        self.found.update({provider_id: (name, until) for provider_id, name in locked.items()})

    def names(self) -> list[str]:
        """Return the names of the hosts to be left out now, in order."""
        if not self.found:
            return []
        now = self._clock.monotonic()
        self.found = {
            provider_id: entry for provider_id, entry in self.found.items() if entry[1] > now
        }
        return sorted(name for name, _ in self.found.values())

    def first_locked(self, providers: Collection[int]) -> str:
        """Return the name of one of the providers to be left out now; '': none is."""
        self.names()
        locked_names = [
            self.found[provider_id][0] for provider_id in providers if provider_id in self.found
        ]
        return min(locked_names, default='')


# -- dry runs -------------------------------------------------------------------
def plan_dry_run(
    stores: Stores,
    table: HostTable,
    request: SelectDestinations,
    cache: HostCache,
    pipeline: Pipeline,
    settings: SchedulerSettings,
    make_hook: MakePlanningHook,
    zones_not_queried: Callable[[SelectDestinations], list[str]] | None = None,
) -> Plan:
    """Plan a dry run on a copy of ``table``.

    :param cache: of ``table``: its age, and the rules of groups
    :param zones_not_queried: returns names of child zones that may still have room
    :raises Expired: its budget, or the bound of a dry run, ended before
    :raises Refused: see ``Planner.plan``
    """
    dry_planner = dry_run_planner(stores, _DryRunCache(cache, table.copy()), settings, make_hook)
    if zones_not_queried is not None:
        dry_planner.zones_not_queried = zones_not_queried
    return plan_on_table(dry_planner, request, pipeline, cache.clock)


def dry_run_planner(
    stores: Stores, cache: HostCache, settings: SchedulerSettings, make_hook: MakePlanningHook
) -> Planner:
    """Return a planner of all members of a dry run at once, on the table of ``cache``."""
    at_once = msgspec.structs.replace(settings, claims_per_commit=base.LIST_MAX)
    return Planner(stores, cache, at_once, make_hook)


def plan_on_table(
    planner: Planner, request: SelectDestinations, pipeline: Pipeline, clock: Clock
) -> Plan:
    """Plan a dry run on the table of ``planner``, which is unchanged afterwards.

    :raises Expired: its budget, or the bound of a dry run, ended before
    :raises Refused: see ``Planner.plan``
    """
    call = PendingRequest(request, float('inf'))
    end = clock.monotonic() + min(DRY_RUN_SECONDS_MAX, request.budget_ms / 1000)

    def pause(_: bool) -> Pause:
        return Pause.OVER if clock.monotonic() >= end else Pause.GO_ON

    dry_plan = planner.plan(call, pipeline, pause)
    if dry_plan.decision.outcome is Outcome.EXPIRED:
        raise exceptions.Expired(dry_plan.decision.reason)
    return dry_plan


class _DryRunCache(HostCache):
    """Host cache of one dry run: with its own table, and the age of the cache it is made from."""

    def __init__(self, cache: HostCache, table: HostTable) -> None:
        super().__init__(cache.feed, cache.vocabulary, cache.clock, working=table)
        self.rules = dict(cache.rules)
        self._age = cache.age_seconds

    @property
    def age_seconds(self) -> float:
        return self._age
