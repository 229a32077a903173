# SPDX-License-Identifier: Apache-2.0
"""Client for groups that are placed as a whole, over RPC."""

import itertools
from typing import Any

from gantt import exceptions
from gantt.client.calls import (
    TRIES_MAX,
    NoAnswer,
    NoConsumer,
    ServerCaller,
    TryTimeouts,
    retry_pauses,
    within_budget,
)
from gantt.core.messages import base
from gantt.groups.model.group_answer import GroupAnswer, GroupPlanView
from gantt.groups.model.place_group import (
    ChangeGroup,
    ExtendGroupPlan,
    PlaceGroup,
    ReleaseGroupPlan,
    ShowGroupPlan,
)
from gantt.rpc import wire
from gantt.rpc.amqp.transport import Transport

#: Errors after which the same request may be sent again: it has the effect of one.
_RETRIED_ERRORS = (
    exceptions.Busy,
    exceptions.BrokerUnavailable,
    exceptions.DatabaseUnavailable,
    NoAnswer,
)
#: Seconds that a first try waits beyond the time of the plan, which takes as long as it may: the
#: planner that has it is not to be called again.
_FIRST_SECONDS = 3.0
#: That time, where a request leaves it to the planner.
_PLAN_SECONDS = 5.0
#: Seconds for the queue of planners to come back, where no planner has answered this client yet.
#: It is gone after a restart of the broker, until a planner has connected again, which takes 3 s
#: at most.  A site without a planner looks the same; an answer to that is not to take the budget.
_QUEUE_SECONDS = 4.0


class PlannerClient:
    """Calls on topic ``gantt-planner``.

    :param transport: from ``gantt.client.get_transport``
    :param attempt_seconds: after so long without an answer, beyond the time that a plan is to take,
        the same request is sent again, the next time after half as long again and so on
    """

    def __init__(self, transport: Transport, *, attempt_seconds: float = _FIRST_SECONDS) -> None:
        self._caller = ServerCaller(transport, wire.PLANNER_TOPIC)
        self._attempt_seconds = attempt_seconds

    def place_group(self, request: PlaceGroup) -> GroupAnswer:
        """Plan a group and reserve resources for each member.

        :raises NoValidHost: not all required members can be placed; its details have the reasons
        :raises InvalidMessage, RequestIdReused, RequestCancelled, QuotaExceeded: see
            ``gantt.exceptions``
        :raises Conflict, Unavailable: the budget is spent, or too many groups wait
        """
        return self._place('place_group', request)

    def change_group(self, request: ChangeGroup) -> GroupAnswer:
        """Change a group to its new description; errors as of ``place_group``.

        :raises NotFound: the group has no plan
        """
        return self._place('change_group', request)

    def show_group_plan(
        self, group: str, *, check: bool = False, timeout: float = 10.0
    ) -> GroupPlanView:
        """Return the plan of a group with its members as they are now.

        :param check: check whether placed members meet its policies
        :raises NotFound: the group has no plan
        """
        message = ShowGroupPlan(group=group, check=check)
        body = self._call_with_retries('show_group_plan', message, timeout)
        return base.decode(body, GroupPlanView, inside='answer', newer_minor=True)

    def extend_group_plan(
        self,
        group: str,
        seconds: int,
        *,
        only_project: str | None = None,
        timeout: float = 10.0,
    ) -> dict[str, Any]:
        """Extend the claims that no create has used, to so long from now on.

        :returns: ``claims``, ids of those claims, and ``lease_seconds``, as long as may be
        :raises NotFound: the group has no plan
        """
        message = ExtendGroupPlan(group=group, seconds=seconds, only_project=only_project)
        return dict(self._call_with_retries('extend_group_plan', message, timeout))

    def release_group_plan(
        self,
        group: str,
        reason: str = '',
        *,
        only_project: str | None = None,
        planned_by: str | None = None,
        timeout: float = 10.0,
    ) -> dict[str, Any]:
        """Release the claims that no create has used.

        :param planned_by: request of the plan, as its view has it: then nothing ends a plan that is
            created later, not even a try of this call that was thought to be lost
        :returns: ``claims``, ids of the members' claims; none where an earlier try of this call,
            whose answer was lost, has released the plan
        :raises NotFound: the group has no plan
        :raises Refused: its plan is of another request than ``planned_by``
        """
        message = ReleaseGroupPlan(
            group=group, reason=reason, only_project=only_project, planned_by=planned_by
        )
        released = {'group': group, 'claims': []}
        return dict(self._call_with_retries('release_group_plan', message, timeout, released))

    def _call_with_retries(
        self, method: str, message: Any, timeout: float, gone: Any = None
    ) -> Any:
        """Call a method, and again while no answer comes; return the answer.

        :param gone: answer to return where a repeat finds no plan: an earlier try may have ended
            the plan
        """
        patience, tried = TryTimeouts(timeout), itertools.count(1)

        def once(left: float) -> Any:
            number = next(tried)
            try:
                return self._call_once(
                    method,
                    patience.next_timeout(left),
                    patience,
                    context_id=message.group,
                    request=base.to_builtins(message),
                )
            except exceptions.NotFound:
                if gone is None or number == 1:
                    raise
                return gone

        return retry_pauses(
            once,
            timeout,
            most=TRIES_MAX,
            transient=_RETRIED_ERRORS,
            what=f'{method} of {message.group}',
        )

    def _place(self, method: str, request: PlaceGroup | ChangeGroup) -> GroupAnswer:
        planning = _PLAN_SECONDS if request.plan_ms is None else request.plan_ms / 1000
        patience = TryTimeouts(request.budget_ms / 1000, self._attempt_seconds + planning)
        try:
            body = within_budget(method, request, patience, self._call_once, _RETRIED_ERRORS)
        except NoAnswer as e:
            raise NoAnswer(
                f'{e.message}; it may have been planned: repeat it under its id '
                f'{request.request_id} to find out'
            ) from None
        return base.decode(body, GroupAnswer, inside='answer', newer_minor=True)

    def _call_once(self, method: str, seconds: float, patience: TryTimeouts, **args: Any) -> Any:
        """Try a call once.

        :raises NoAnswer: also where no planner listens now: one that was killed, or whose broker
            was, is there again within the budget perhaps, and finds the call
        :raises Unavailable: nobody listens for so long that there may be no planner at all
        """
        try:
            return self._caller.call(method, seconds, patience=patience, **args)
        except NoConsumer:
            text = (
                f'{method}: no gantt-planner listens now; start one, see its page in the guide for '
                'operators, then repeat the call'
            )
            if self._caller.was_answered or patience.unheard_seconds < _QUEUE_SECONDS:
                raise NoAnswer(text) from None
            raise exceptions.Unavailable(text) from None
        except NoAnswer:
            if not self._caller.is_unheard():
                raise
            raise NoAnswer(
                f'{method}: no gantt-planner is running; start one, then repeat the call'
            ) from None
