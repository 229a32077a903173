# SPDX-License-Identifier: Apache-2.0
"""Requests for members of groups: what their groups add to planning, and to commits.

The rule of a group comes from the request or from the store, and is compared by the commit.  A
create in a planned group takes over a reservation of the plan; where it is placed elsewhere
instead, the reservation ends.
"""

import contextlib
from collections.abc import Sequence

import msgspec

from gantt import exceptions
from gantt.core.claims.commit import (
    ClaimColumns,
    CommitResult,
    CommitStatus,
    GroupSwap,
    RequestOutcome,
)
from gantt.core.claims.request_state import seed_of
from gantt.core.groups import take_reservations
from gantt.core.messages.request import SelectDestinations
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Decision
from gantt.core.records.offered_reservations import OfferedReservations
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.core.table.host_table import HostTable
from gantt.scheduler.groups.group_reservations import GroupReservations
from gantt.scheduler.groups.group_rules import rule_of
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports import Stores
from gantt.scheduler.request.planner import NO_EXTRA, Extra, Narrowed, Plan, Planner
from gantt.scheduler.request.queue import PendingRequest
from gantt.scheduler.settings import SchedulerSettings


class GroupMembers:
    """The hook of requests that name a group, see ``request.planner.PlanningHook``."""

    def __init__(self, stores: Stores, cache: HostCache, settings: SchedulerSettings) -> None:
        self._groups = stores.groups
        self._zone_requests = stores.zone_requests
        self._feed = stores.feed
        self._cache = cache
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

        :return: else the reservations that it replaces, where it is placed anew
        """
        request, group = call.request, call.request.spec.group
        assert group is not None, 'it is of a group'
        if not (group.is_ruled or group.uuid in self._cache.rules):
            self._read_rule(group.uuid)
        if not self.may_be_counted(request):
            return None
        seen = self._reservations.offered(
            self._cache.working,
            request,
            self._cache.rules.get(group.uuid),
            count=len(call.attempt.todo),
            without=without,
            spread=planner.spread_of(call),
            seed=seed_of(request.request_id, call.attempt.tries),
        )
        if seen is None or seen.replaces:
            return seen
        return self._with_reservations(planner, call, pipeline, seen)

    def _with_reservations(
        self, planner: Planner, call: PendingRequest, pipeline: Pipeline, seen: OfferedReservations
    ) -> Plan:
        """Return the plan by which a call takes over what it was offered, or is refused."""
        request, attempt = call.request, call.attempt
        todo = list(attempt.todo)
        decision = take_reservations.decide(
            self._cache.working,
            request,
            seen,
            decision_id=planner.decision_id(call),
            members=todo,
            attempt=attempt.number,
            worker=planner.worker,
            config_digest=pipeline.digest,
            seed=seed_of(request.request_id, attempt.tries),
            spread=planner.spread_of(call),
        )
        decision = planner.completed(call, decision)
        taken = self._reservations.taken(request, seen, todo) if decision.is_placed else ()
        extra = Extra(taken=taken) if taken else NO_EXTRA
        plan = Plan(call, request, decision, todo, planner.lease_of(request), extra)
        if not plan.claims_nothing:
            self._reservations.assume(taken)
        return plan

    def narrow(
        self, table: HostTable, request: SelectDestinations, offered: OfferedReservations | None
    ) -> 'Narrowed':
        """Return the request under the rule of its group."""
        request = self._with_rule(self._reservations.with_member_name(table, request))
        extra = Extra(group=self._swap(request), others=self._swaps_of_others(request))
        return _Narrowed(request, extra, offered, self._reservations)

    # -- its rule ------------------------------------------------------------------------
    def _read_rule(self, uuid: str) -> GroupRule:
        """Return the rule of a group that neither the request nor this scheduler has.

        :raises NotFound: there is no such group
        """
        group = self._groups.load_group(uuid)
        if group is None:
            raise group_rule.unknown_group(uuid)
        self._cache.set_rules([uuid], {uuid: group.rule})
        return group.rule

    def _with_rule(self, request: SelectDestinations) -> SelectDestinations:
        group = request.spec.group
        assert group is not None, 'it is of a group'
        rule = rule_of(
            self._groups, self._zone_requests, request, group, self._cache.rules.get(group.uuid)
        )
        return group_rule.with_rule(request, rule)

    def _swap(self, request: SelectDestinations) -> GroupSwap | None:
        """Return what the commit compares of the group that a request is planned with."""
        group = request.spec.group
        rule = None if group is None else group_rule.named(group)
        if group is None or rule is None:
            return None
        stored = self._cache.rules.get(group.uuid)
        replaces = stored is not None and not group_rule.agree(rule, stored)
        return GroupSwap(
            uuid=group.uuid,
            generation=self._generation(group.uuid) if group.is_hard or replaces else None,
            policy=rule.policy,
            max_per_host=rule.max_per_host,
            makes=stored is None,
            policies=rule.policies,
            replaces=replaces,
        )

    def _generation(self, group: str) -> int:
        return self._cache.working.group_generation(group)

    def _swaps_of_others(self, request: SelectDestinations) -> tuple[GroupSwap, ...]:
        """Return what the commit compares of other groups that hard policies refer to.

        A group not known here has no members that could conflict.
        """
        group = request.spec.group
        if group is None or group.policies is None:
            return ()
        ruled_groups = [(uuid, self._cache.rules.get(uuid)) for uuid in group.policies.other_groups]
        return tuple(
            GroupSwap(
                uuid=uuid,
                generation=self._generation(uuid),
                policy=rule.policy,
                max_per_host=rule.max_per_host,
                makes=False,
                policies=rule.policies,
            )
            for uuid, rule in ruled_groups
            if rule is not None and uuid != group.uuid
        )

    # -- after it was planned --------------------------------------------------------------
    def undone(self, plan: Plan) -> None:
        self._reservations.forget((*plan.extra.taken, *plan.extra.replaced))

    def committed(self, plans: Sequence[Plan], result: CommitResult) -> set[int]:
        """Note the outcomes of reservations; return hosts whose changes only the feed has."""
        changed: set[int] = set()
        for plan, outcome in zip(plans, result.outcomes, strict=True):
            if plan.extra.replaced:
                self._reservations.invalidate(plan.extra.replaced)
            if plan.extra.taken:
                # Only the feed brings the table the new consumer of an existing claim.
                changed |= plan.needed()
                self._note_taken(plan, outcome)
        return changed

    def _note_taken(self, plan: Plan, outcome: RequestOutcome) -> None:
        """Note the outcome of reservations that a plan was to take over."""
        taken = plan.extra.taken
        if outcome.outcome is CommitStatus.PLACED:
            self._reservations.committed(plan.request.request_id, outcome.attempt, taken)
        else:
            self._reservations.invalidate(taken)

    def applied(self, plans: Sequence[Plan], result: CommitResult) -> None:
        """Take over the groups of a batch, and read those back whose swap failed."""
        changed: set[str] = set()
        for plan, outcome in zip(plans, result.outcomes, strict=True):
            group = plan.extra.group
            if group is None:
                continue
            if outcome.outcome is CommitStatus.GROUP_CHANGED:
                changed.update(swap.uuid for swap in (group, *plan.extra.others))
            elif group.makes and outcome.outcome in (CommitStatus.PLACED, CommitStatus.PARTIAL):
                rule = GroupRule(group.policy, group.max_per_host, policies=group.policies)
                self._cache.set_rules([group.uuid], {group.uuid: rule})
        if not result.freed:
            # Only the feed reports which claims ended; until then the next swap has to fail.
            self._cache.set_groups(
                {
                    uuid: generation
                    for uuid, generation in result.groups.items()
                    if uuid not in changed
                }
            )
        if changed:
            self._read_back(changed)

    def _read_back(self, changed: set[str]) -> None:
        placed = self._cache.working.placed
        old_hosts = {provider_id for uuid in changed for provider_id in placed.in_group(uuid)}
        known_versions = self._cache.versions
        try:
            rules, hosts = self._feed.read_groups(changed, old_hosts)
        except exceptions.Unavailable:
            return
        if self._cache.is_behind(hosts, known_versions):
            return  # the table would not accept these hosts: the next swap has to fail
        self._cache.offer(hosts)
        self._cache.fold()
        self._cache.set_rules(changed, rules)
        self._cache.set_groups(
            {uuid: rules[uuid].generation if uuid in rules else 0 for uuid in changed}
        )


class _Narrowed:
    """A request of a group as it is planned, see ``request.planner.Narrowed``."""

    def __init__(
        self,
        request: SelectDestinations,
        extra: Extra,
        offered: OfferedReservations | None,
        reservations: GroupReservations,
    ) -> None:
        self.request = request
        self.extra = extra
        self._offered = offered
        self._reservations = reservations

    def left_out(self, table: HostTable) -> contextlib.AbstractContextManager[None]:
        return take_reservations.left_out(table, self._offered)

    def decided(self, decision: Decision) -> Decision:
        if self._offered is None:
            return decision
        return take_reservations.planned_anew(decision, self._offered, self.request)

    def commit_extra(self, plan: Plan) -> None:
        """End the reservations that a plan replaces, each for the claim of one of its members."""
        if self._offered is None:
            return
        replaced = self._reservations.replaced(self._offered)
        self._reservations.assume(replaced)
        plan.extra = plan.extra._replace(replaced=replaced)
        named_claims = ClaimColumns()
        for draft, reservation in zip(plan.drafts, replaced, strict=True):
            claim = msgspec.structs.replace(draft.claim, member_name=reservation.member_name)
            named_claims.add(msgspec.structs.replace(draft, claim=claim))
        plan.drafts = named_claims
