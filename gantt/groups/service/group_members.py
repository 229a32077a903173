# SPDX-License-Identifier: Apache-2.0
"""Requests for members of planned groups: creates that take over reservations of the plan.

Where a member is placed elsewhere instead, its reservation ends.
"""

import contextlib
from collections.abc import Sequence

import msgspec

from gantt import exceptions
from gantt.core.claims.commit import (
    ClaimColumns,
    CommitResult,
    CommitStatus,
    RequestOutcome,
)
from gantt.core.claims.request_state import seed_of_try
from gantt.core.messages.keys import nova_hints
from gantt.core.messages.request import GroupRef, SelectDestinations
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Decision, OfferedReservations
from gantt.core.table.host_table import HostTable
from gantt.groups.model import take_reservations
from gantt.groups.model.group_limits import GroupLimits
from gantt.groups.service.group_reservations import GroupReservations
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports.stores import Stores
from gantt.scheduler.request.planner import (
    NO_COMMIT_PARTS,
    GroupCommitParts,
    NarrowedRequest,
    Plan,
    Planner,
)
from gantt.scheduler.request.queue import PendingRequest
from gantt.scheduler.request.server_groups import RuledRequest, ServerGroups
from gantt.scheduler.settings import SchedulerSettings


class GroupMembers(ServerGroups):
    """The hook of requests that name a group, of which some are planned."""

    def __init__(self, stores: Stores, cache: HostCache, settings: SchedulerSettings) -> None:
        super().__init__(stores, cache, settings)
        self._reservations = GroupReservations(
            stores.plans, cache.clock, lambda: settings.stale_after_seconds
        )

    # -- before a request is planned -----------------------------------------------------
    def may_be_counted(self, request: SelectDestinations) -> bool:
        return self._reservations.may_have_reservation(request, self._cache.rules)

    def has_paid(self, plan: Plan) -> bool:
        # Reservations of a plan without a project become the project's, and count from then on.
        project, taken = plan.request.spec.project_id, plan.extra.taken
        return bool(taken) and self._reservations.is_owned_by(taken, project)

    def offer(
        self, planner: Planner, call: PendingRequest, pipeline: Pipeline, without: Sequence[str]
    ) -> Plan | OfferedReservations | None:
        """Return the plan of a create that takes over reservations, or is refused for them.

        :return: else the reservations that it replaces, where it is placed anew, or a note on the
            plan, which it does without
        """
        request, group = call.request, call.request.spec.group
        assert group is not None, 'it is of a group'
        unknown = None
        if request.spec.plan is None or not request.spec.is_group_of_plan:
            super().offer(planner, call, pipeline, without)
        if request.spec.plan is not None:
            unknown = self._offer_without_plan(request, request.spec.plan)
        if unknown is not None:
            return (
                self._with_reservations(planner, call, pipeline, unknown)
                if unknown.decides
                else unknown
            )
        if not self.may_be_counted(request):
            return None
        planned, limits = self._in_plan(request)
        seen = self._reservations.offered_reservations(
            self._cache.working,
            planned,
            self._cache.rules.get(request.spec.plan or group.uuid),
            limits=limits,
            count=len(call.attempt.todo),
            without=without,
            spread=planner.spread_of(call),
            seed=seed_of_try(request.request_id, call.attempt.tries),
        )
        if seen is None or not seen.decides:
            return seen
        return self._with_reservations(planner, call, pipeline, seen)

    def _offer_without_plan(
        self, request: SelectDestinations, plan: str
    ) -> OfferedReservations | None:
        """Return the offer where the plan that a hint names is not for a request; None: it is.

        :raises NotFound: its group is gone
        """
        rules, group = self._cache.rules, request.spec.group
        offered = self._reservations.offer_without_plan(self._cache.working, request, rules)
        if offered is not None:
            return offered
        if plan not in rules:
            self._read_rule(plan)
        if group is None or group.uuid == plan:
            return None
        ruled = self._with_rule(request).spec.group
        if ruled is None or ruled.policies is None:
            return None
        return self._reservations.offer_in_two_groups(request, group.uuid)

    def _with_reservations(
        self, planner: Planner, call: PendingRequest, pipeline: Pipeline, seen: OfferedReservations
    ) -> Plan:
        """Return the plan by which a call takes over what it was offered, or is refused."""
        request, attempt = call.request, call.attempt
        todo = list(attempt.todo)
        decision = take_reservations.decide_create(
            self._cache.working,
            request,
            seen,
            decision_id=planner.decision_id(request, attempt.tries),
            members=todo,
            attempt=attempt.number,
            worker=planner.worker,
            config_digest=pipeline.digest,
            seed=seed_of_try(request.request_id, attempt.tries),
            spread=planner.spread_of(call),
        )
        decision = planner.completed(call, decision, attempt.tries)
        taken = (
            self._reservations.taken_reservations(request, seen, todo) if decision.is_placed else ()
        )
        extra = GroupCommitParts(taken=taken) if taken else NO_COMMIT_PARTS
        plan = Plan(call, request, decision, todo, planner.lease_of(request), extra)
        if not plan.claims_nothing:
            self._reservations.assume_taken(taken)
        return plan

    def narrow(
        self, table: HostTable, request: SelectDestinations, offered: OfferedReservations | None
    ) -> NarrowedRequest:
        """Return the request under the rule of its group, by the name of its member."""
        if offered is not None and offered.note:
            spec = request.spec.without_plan()
            request = msgspec.structs.replace(request, spec=spec)
            if spec.group is None:
                return _NotedRequest(request, NO_COMMIT_PARTS, offered)
            narrowed = super().narrow(table, request, None)
            return _NotedRequest(narrowed.request, narrowed.extra, offered)
        request, limits = self._in_plan(request)
        named = self._reservations.with_member_name(table, request)
        if limits is not None:
            named = self._limited(named, limits)
        narrowed = super().narrow(table, named, offered)
        note = '' if limits is None else limits.note
        if offered is not None:
            offered = msgspec.structs.replace(offered, note=note)
            return _ReplacingRequest(narrowed, offered, self._reservations)
        if not note:
            return narrowed
        offered = OfferedReservations(group=named.spec.plan or '', revision=0, note=note)
        return _NotedRequest(narrowed.request, narrowed.extra, offered)

    def _in_plan(
        self, request: SelectDestinations
    ) -> tuple[SelectDestinations, GroupLimits | None]:
        """Return a request as one of the group of its plan, and limits by the group that it names.

        :return: None: it names no other group
        """
        spec, plan, table = request.spec, request.spec.plan, self._cache.working
        if plan is None or spec.group is None or spec.group.uuid == plan:
            return request, None
        group = self._with_rule(request).spec.group
        assert group is not None, 'it names one'
        others = set(group.members).difference(request.consumers)
        just_taken = self._reservations.hosts_just_taken(table, plan, others)
        consumer = request.consumers[0] if len(request.consumers) == 1 else ''
        limits = GroupLimits(table, group, consumer, just_taken)
        planned_group = GroupRef(uuid=plan, member=spec.group.member)
        # The claims are of the group of the plan; what the other one asks for is in the limits.
        hints = {k: v for k, v in spec.hints.items() if k != nova_hints.GROUP_HINT}
        spec = msgspec.structs.replace(spec, group=planned_group, hints=hints)
        return msgspec.structs.replace(request, spec=spec), limits

    @staticmethod
    def _limited(request: SelectDestinations, limits: GroupLimits) -> SelectDestinations:
        """Return a request for the hosts that a group beside its plan leaves to it.

        :raises Refused: it has several consumers, which are not placed under two rules together
        """
        if len(request.consumers) > 1 and limits.group.is_hard:
            raise exceptions.Refused(
                f'request.consumers: expected one outside of places of the plan {request.spec.plan}'
                f', as the policy of server group {limits.group.uuid} holds beside it; '
                f'got {len(request.consumers)}',
                field='request.consumers',
            )
        return msgspec.structs.replace(request, spec=limits.limited(request.spec))

    # -- after it was planned --------------------------------------------------------------
    def undone(self, plan: Plan) -> None:
        self._reservations.forget_taken((*plan.extra.taken, *plan.extra.replaced))

    def committed(self, plans: Sequence[Plan], result: CommitResult) -> set[int]:
        """Note the outcomes of reservations; return hosts whose changes only the feed has."""
        changed: set[int] = set()
        for plan, outcome in zip(plans, result.outcomes, strict=True):
            if plan.extra.replaced:
                self._reservations.invalidate(plan.extra.replaced)
            if plan.extra.taken:
                # Only the feed brings the table the new consumer of an existing claim.
                changed |= plan.providers_to_lock()
                self._record_outcome(plan, outcome)
        return changed

    def _record_outcome(self, plan: Plan, outcome: RequestOutcome) -> None:
        """Record the outcome of reservations that a plan was to take over."""
        taken = plan.extra.taken
        if outcome.outcome is CommitStatus.PLACED:
            self._reservations.note_committed(plan.request.request_id, outcome.attempt, taken)
        else:
            self._reservations.invalidate(taken)


class _NotedRequest(RuledRequest):
    """A request whose plan is ignored, see ``NarrowedRequest``."""

    def __init__(
        self, request: SelectDestinations, extra: GroupCommitParts, offered: OfferedReservations
    ) -> None:
        super().__init__(request, extra)
        self._offered = offered

    def decided(self, decision: Decision) -> Decision:
        return take_reservations.with_new_reservations(decision, self._offered, self.request)


class _ReplacingRequest:
    """A request that is placed elsewhere than on its reservations, see ``NarrowedRequest``."""

    def __init__(
        self,
        narrowed: NarrowedRequest,
        offered: OfferedReservations,
        reservations: GroupReservations,
    ) -> None:
        self.request = narrowed.request
        self.extra = narrowed.extra
        self._offered = offered
        self._reservations = reservations

    def left_out(self, table: HostTable) -> contextlib.AbstractContextManager[None]:
        return take_reservations.without_replaced_claims(table, self._offered)

    def decided(self, decision: Decision) -> Decision:
        return take_reservations.with_new_reservations(decision, self._offered, self.request)

    def commit_extra(self, plan: Plan) -> None:
        """End the reservations that a plan replaces, each for the claim of one of its members."""
        replaced = self._reservations.replaced_reservations(self._offered)
        self._reservations.assume_taken(replaced)
        plan.extra = plan.extra._replace(replaced=replaced)
        named_claims = ClaimColumns()
        for draft, reservation in zip(plan.drafts, replaced, strict=True):
            claim = msgspec.structs.replace(draft.claim, member_name=reservation.member_name)
            named_claims.add(msgspec.structs.replace(draft, claim=claim))
        plan.drafts = named_claims
