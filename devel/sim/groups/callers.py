# SPDX-License-Identifier: Apache-2.0
"""Callers that have groups planned and create their members: in any order, with repeats.

Each story is one group.  Another task tends its plan meanwhile: extends, shows, changes, heals or
releases it, or cancels the request that planned it.
"""

import random
from collections.abc import Container
from typing import Any

import msgspec

from devel.sim import plan
from devel.sim.conductors import BUDGETS_MS, TRIES, Conductors, Deliver
from devel.sim.groups import descriptions
from devel.sim.loop import Loop
from devel.sim.network import Network
from gantt import exceptions
from gantt.core.messages.request import GroupRef, SelectDestinations
from gantt.core.records.decision import Selection
from gantt.groups.model.group_answer import GroupAnswer
from gantt.groups.model.group_description import GroupDescription
from gantt.groups.model.group_plan import PlannedMember
from gantt.groups.model.place_group import (
    ChangeGroup,
    ExtendGroupPlan,
    PlaceGroup,
    ReleaseGroupPlan,
    ShowGroupPlan,
)

PLAN_BUDGETS_MS = (2_000, 6_000, 6_000, 12_000)
LEASES = (None, 5, 10, 20, 40)
#: They do not decide a group, planned or not: repeat the call.
_PASSING = (exceptions.Unavailable, exceptions.Conflict)
_replace = msgspec.structs.replace

PlanRequest = PlaceGroup | ChangeGroup


class GroupCallers(Conductors):
    """All stories of groups of a run, in one process that never dies.

    :param planners: how planners are reached; schedulers are as by conductors
    :param loses_host: whether a host is lost for long: groups are healed then
    :param confirmed: ids of claims whose guests have been started: only those are moved
    :ivar planned: request id -> every answer of a planner to it
    :ivar shown: answers of planners to queries for plans
    """

    def __init__(
        self,
        loop: Loop,
        network: Network,
        planners: Network,
        rng: random.Random,
        deliver: Deliver,
        confirmed: Container[str],
        loses_host: bool,
    ) -> None:
        super().__init__(loop, network, rng, deliver)
        self.planned: dict[str, list[GroupAnswer]] = {}
        self._planners, self._confirmed = planners, confirmed
        self._loses_host = loses_host
        self._group_of: dict[str, str] = {}

    def begin(self, stories: int) -> None:
        """Let so many groups be planned, spread over the trouble or at a time."""
        latest = 8.0 if self._loses_host else plan.TROUBLE_SECONDS - 25
        moments = [self._rng.uniform(1.0, latest) for _ in range(stories)]
        if self._rng.random() < 0.3:
            moments = [moments[0] + self._rng.uniform(0, 0.1) for _ in moments]
        for moment in moments:
            self._spawn(self._of_group, moment)

    # -- the stories -------------------------------------------------------------------
    def _of_group(self, begin: float) -> None:
        rng = self._rng
        self._loop.sleep(begin)
        request = PlaceGroup(
            request_id=self._uuid(),
            group=descriptions.a_group(rng, self._uuid() if rng.random() < 0.5 else None),
            budget_ms=rng.choice(PLAN_BUDGETS_MS),
            plan_ms=rng.choice((None, 500, 3000)),
            lease_seconds=rng.choice(LEASES),
        )
        luck = rng.random()
        if luck < 0.2:  # somebody is impatient and asks twice at a time
            self._spawn(self._plan, request)
        elif luck < 0.4 and request.group.uuid is not None:  # or two plan one group
            self._spawn(self._plan, _replace(request, request_id=self._uuid()))
        elif luck < 0.45:
            self._plan(_replace(request, dry_run=True))
        answer = self._plan(request)
        if answer is None:
            if rng.random() < 0.3:  # nobody knows whether there is one
                self._call('release_group_plan', ReleaseGroupPlan(group=request.uuid))
            return
        group = _replace(request.group, uuid=answer.group)
        for _ in range(rng.choice((0, 1, 1, 2))):
            self._spawn(self._extend_or_release, request.request_id, group)
        if self._loses_host and rng.random() < 0.7:
            self._spawn(self._heal, group)
        self._create(group, answer, rng.choice((0.1, 3.0, 15.0)))

    def _create(self, group: GroupDescription, answer: GroupAnswer, within: float) -> None:
        """Create the members that were planned, in any order."""
        members = list(answer.plan.members) if answer.plan is not None else []
        self._rng.shuffle(members)
        for member in members:
            luck = self._rng.random()
            if luck < 0.1:
                continue  # nobody comes: its lease ends it
            self._spawn(self._member, group, member, self._rng.uniform(0, within))
            if luck < 0.2:  # two servers for one member
                self._spawn(self._member, group, member, self._rng.uniform(0, within))

    def _member(self, group: GroupDescription, planned: PlannedMember, begin: float) -> None:
        """Create a member; where no guest comes of it another create may come for the place."""
        rng = self._rng
        self._loop.sleep(begin)
        for _ in range(rng.choice((1, 2, 2, 3))):
            request = self._create_of(group, planned)
            if rng.random() < 0.15:
                self._spawn(self._send, request)
            placed = self._send(request)
            if placed is None and rng.random() < 0.3:
                placed = self._handle_refusal(request)
            if placed is not None:
                self._use_places(placed)
                if rng.random() < 0.7:
                    return
            self._loop.sleep(rng.uniform(0.1, 8.0))

    def _create_of(self, group: GroupDescription, planned: PlannedMember) -> SelectDestinations:
        rng = self._rng
        described = next(m for m in group.members if m.name == planned.member)
        luck = rng.random()
        member = planned.name if luck < 0.5 else planned.member if luck < 0.75 else None
        spec = _replace(described.spec, group=GroupRef(uuid=str(group.uuid), member=member))
        if rng.random() < 0.1:  # not as it was planned: refused, or placed anew
            spec = _replace(spec, resources=descriptions.resources(rng))
        request = SelectDestinations(
            request_id=self._uuid(),
            spec=spec,
            consumers=[self._uuid()],
            budget_ms=rng.choice(BUDGETS_MS),
            lease_seconds=rng.choice((None, 5, 20)),
        )
        self._group_of.update(dict.fromkeys(request.consumers, str(group.uuid)))
        return request

    def _move(self, source: Selection) -> None:
        if source.claim_id in self._confirmed:
            super()._move(source)

    def _group_of_guest(self, consumer: str) -> GroupRef | None:
        uuid = self._group_of.get(consumer)
        return None if uuid is None else GroupRef(uuid=uuid)

    # -- plans that there are ------------------------------------------------------------
    def _extend_or_release(self, request_id: str, group: GroupDescription) -> None:
        rng = self._rng
        uuid = str(group.uuid)
        for _ in range(rng.choice((1, 2, 3))):
            self._loop.sleep(rng.uniform(0.2, rng.choice((2.0, 20.0))))
            luck = rng.random()
            if luck < 0.3:
                seconds = rng.choice((5, 15, 30, 60))
                self._call('extend_group_plan', ExtendGroupPlan(group=uuid, seconds=seconds))
            elif luck < 0.4:
                self._call('show_group_plan', ShowGroupPlan(group=uuid, check=rng.random() < 0.5))
            elif luck < 0.6:
                group = self._change(descriptions.resized(rng, group))
            elif luck < 0.8:
                self._change(group, heal=True)
            elif luck < 0.9:
                self._call('release_group_plan', ReleaseGroupPlan(group=uuid, reason='not wanted'))
                if rng.random() < 0.5:  # and planned once more
                    self._plan_again(group)
                return
            else:
                self._cancel(request_id)

    def _heal(self, group: GroupDescription) -> None:
        """Heal a group when a host that was lost is known to be down."""
        at = self._rng.uniform(plan.HEAL_SECONDS, plan.TROUBLE_SECONDS)
        self._loop.sleep(max(0.0, at - self._loop.now))
        self._change(group, heal=True)

    def _change(self, group: GroupDescription, *, heal: bool = False) -> GroupDescription:
        """Have a group changed to its present description; new members are created."""
        rng = self._rng
        change = ChangeGroup(
            request_id=self._uuid(),
            group=group,
            heal=heal,
            budget_ms=rng.choice(PLAN_BUDGETS_MS),
            lease_seconds=rng.choice(LEASES),
            dry_run=rng.random() < 0.1,
        )
        answer = self._plan(change)
        if answer is not None and not change.dry_run:
            self._create(group, answer, 5.0)
        return group

    def _plan_again(self, group: GroupDescription) -> None:
        request = PlaceGroup(
            request_id=self._uuid(), group=group, budget_ms=self._rng.choice(PLAN_BUDGETS_MS)
        )
        answer = self._plan(request)
        if answer is not None:
            self._create(group, answer, 5.0)

    # -- messages ------------------------------------------------------------------------
    def _plan(self, request: PlanRequest) -> GroupAnswer | None:
        """Repeat until an answer ends it; return the answer where the group has its places."""
        method = 'place_group' if isinstance(request, PlaceGroup) else 'change_group'
        for _ in range(TRIES):
            answer = self._call(method, request, request.budget_ms / 1000 + 1.0)
            if isinstance(answer, GroupAnswer):
                if not request.dry_run:
                    self.planned.setdefault(request.request_id, []).append(answer)
                    if self._rng.random() < 0.3:  # a repeat must hear the same
                        self._spawn(self._once_more, method, request)
                return answer
            if not isinstance(answer, _PASSING):
                return None
            self._loop.sleep(self._rng.uniform(0.1, 1.0))
        return None

    def _once_more(self, method: str, request: PlanRequest) -> None:
        self._loop.sleep(self._rng.uniform(0, 5))
        answer = self._call(method, request, request.budget_ms / 1000 + 1.0)
        if isinstance(answer, GroupAnswer):
            self.planned[request.request_id].append(answer)

    def _call(self, method: str, message: Any, seconds: float = plan.CALL_SECONDS) -> object:
        """Return the answer of a planner, or its error."""
        subject = getattr(message, 'request_id', None) or message.group
        try:
            answer: object = self._planners.call('conductor', method, message, seconds)
        except exceptions.GanttError as e:
            self._loop.write_trace('conductor', f'{method} {subject[:8]}: {type(e).__name__}')
            return e
        self._loop.write_trace('conductor', f'{method} {subject[:8]}: done')
        return answer
