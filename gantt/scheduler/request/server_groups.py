# SPDX-License-Identifier: Apache-2.0
"""Requests for members of server groups: the rule of a group, in planning and in commits.

The rule comes from the request or from the store, and is compared by the commit.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

from gantt import exceptions
from gantt.core.claims.commit import CommitResult, CommitStatus, GroupPrecondition
from gantt.core.messages.request import GroupRef, SelectDestinations
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Decision
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.core.table.host_table import HostTable
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports.hosts import Groups
from gantt.scheduler.ports.stores import Stores
from gantt.scheduler.request.planner import GroupCommitParts, NarrowedRequest, Plan, Planner
from gantt.scheduler.request.queue import PendingRequest
from gantt.scheduler.settings import SchedulerSettings


class RuledRequest:
    """A request under the rule of its group, see ``request.planner.NarrowedRequest``."""

    def __init__(self, request: SelectDestinations, extra: GroupCommitParts) -> None:
        self.request = request
        self.extra = extra

    def left_out(self, table: HostTable) -> contextlib.AbstractContextManager[None]:
        """Leave out nothing: all members count."""
        return contextlib.nullcontext()

    def decided(self, decision: Decision) -> Decision:
        """Return the decision as it is."""
        return decision

    def commit_extra(self, plan: Plan) -> None:
        """Add nothing: the commit only creates claims."""


class ServerGroups:
    """The hook of requests that name a group, see ``request.planner.PlanningHook``."""

    def __init__(self, stores: Stores, cache: HostCache, settings: SchedulerSettings) -> None:
        self._groups = stores.groups
        self._feed = stores.feed
        self._cache = cache

    # -- before a request is planned -----------------------------------------------------
    def may_be_counted(self, request: SelectDestinations) -> bool:
        return False

    def has_paid(self, plan: Plan) -> bool:
        return False

    def offer(
        self, planner: Planner, call: PendingRequest, pipeline: Pipeline, without: Sequence[str]
    ) -> Any:
        """Read the rule of a group that neither the request nor this scheduler has.

        :raises NotFound: there is no such group
        """
        group = call.request.spec.group
        assert group is not None, 'it is of a group'
        if not (group.is_ruled or group.uuid in self._cache.rules):
            self._read_rule(group.uuid)
        return None

    def narrow(
        self, table: HostTable, request: SelectDestinations, offered: Any
    ) -> NarrowedRequest:
        """Return the request under the rule of its group."""
        request = self._with_rule(request)
        extra = GroupCommitParts(
            group=self._precondition(request), others=self._preconditions_of_others(request)
        )
        return RuledRequest(request, extra)

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
        rule = rule_of(self._groups, request, group, self._cache.rules.get(group.uuid))
        return group_rule.request_with_rule(request, rule)

    def _precondition(self, request: SelectDestinations) -> GroupPrecondition | None:
        """Return what the commit compares of the group that a request is planned with."""
        group = request.spec.group
        rule = None if group is None else group_rule.requested_rule(group)
        if group is None or rule is None:
            return None
        stored = self._cache.rules.get(group.uuid)
        replaces = stored is not None and not group_rule.rules_equal(rule, stored)
        return GroupPrecondition(
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

    def _preconditions_of_others(
        self, request: SelectDestinations
    ) -> tuple[GroupPrecondition, ...]:
        """Return what the commit compares of other groups that hard policies refer to.

        A group not known here has no members that could conflict.
        """
        group = request.spec.group
        if group is None or group.policies is None:
            return ()
        ruled_groups = [(uuid, self._cache.rules.get(uuid)) for uuid in group.policies.other_groups]
        return tuple(
            GroupPrecondition(
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
        pass

    def committed(self, plans: Sequence[Plan], result: CommitResult) -> set[int]:
        return set()

    def applied(self, plans: Sequence[Plan], result: CommitResult) -> None:
        """Take over the groups of a batch, and read those back whose precondition failed."""
        changed: set[str] = set()
        for plan, outcome in zip(plans, result.outcomes, strict=True):
            group = plan.extra.group
            if group is None:
                continue
            if outcome.outcome is CommitStatus.GROUP_CHANGED:
                changed.update(precondition.uuid for precondition in (group, *plan.extra.others))
            elif group.makes and outcome.outcome in (CommitStatus.PLACED, CommitStatus.PARTIAL):
                rule = GroupRule(group.policy, group.max_per_host, policies=group.policies)
                self._cache.set_rules([group.uuid], {group.uuid: rule})
        if not result.freed:
            # Only the feed reports which claims ended; until then the next commit has to fail.
            self._cache.set_groups(
                {
                    uuid: generation
                    for uuid, generation in result.groups.items()
                    if uuid not in changed
                }
            )
        if changed:
            self._reread(changed)

    def _reread(self, changed: set[str]) -> None:
        placed = self._cache.working.placed
        old_hosts = {provider_id for uuid in changed for provider_id in placed.in_group(uuid)}
        known_versions = self._cache.versions
        try:
            rules, hosts = self._feed.read_groups(changed, old_hosts)
        except exceptions.Unavailable:
            return
        if self._cache.is_behind(hosts, known_versions):
            return  # the table would not accept these hosts: the next commit has to fail
        self._cache.offer(hosts)
        self._cache.fold()
        self._cache.set_rules(changed, rules)
        self._cache.set_groups(
            {uuid: rules[uuid].generation if uuid in rules else 0 for uuid in changed}
        )


def rule_of(
    groups: Groups,
    request: SelectDestinations,
    group: GroupRef,
    stored: GroupRule | None,
) -> GroupRule:
    """Return the rule that holds for a request of a group.

    A parent zone may have created its group anew: without members here its rule holds.

    :param stored: stored rule, as it is known here; None: not known
    :raises NotFound: neither the request nor the store has a rule
    :raises Refused: the request names another one than is stored
    """
    try:
        return group_rule.rule_in_force(group, stored)
    except exceptions.Refused:
        named_rule = group_rule.requested_rule(group)
        if named_rule is None or not _may_have(groups, request, group.uuid, named_rule):
            raise
        return named_rule


def _may_have(
    groups: Groups,
    request: SelectDestinations,
    uuid: str,
    rule: GroupRule,
) -> bool:
    """Return whether a group has a rule by now, or may get it."""
    group = groups.load_group(uuid)
    if group is None or group_rule.rules_equal(rule, group.rule):
        return True
    is_of_parent = request.parent is not None
    return is_of_parent and groups.is_idle_group(uuid, request.spec.project_id)
