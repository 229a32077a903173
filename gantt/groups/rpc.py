# SPDX-License-Identifier: Apache-2.0
"""Topic ``gantt-planner``: groups that are placed as a whole."""

from collections.abc import Callable
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.groups.model.place_group import (
    ChangeGroup,
    ExtendGroupPlan,
    PlaceGroup,
    ReleaseGroupPlan,
    ShowGroupPlan,
)
from gantt.rpc import wire
from gantt.rpc.call import RpcCall
from gantt.rpc.server import Interface, Method, Pending

#: Milliseconds that a busy planner has its caller wait.
RETRY_AFTER_MS = 1000


class PlannerMethods:
    """Methods of the topic ``gantt-planner``.

    :param planner: the facade, ``gantt.groups.service.planner.GroupPlanner``
    """

    def __init__(self, planner: Any) -> None:
        self._planner = planner
        self.interface = Interface(
            {
                # A description of 1,000 members, no two of them alike, is as large as may be.
                'place_group': Method(
                    self.submit, parameters={'request': PlaceGroup}, bytes_max=None
                ),
                'change_group': Method(
                    self.submit, parameters={'request': ChangeGroup}, bytes_max=None
                ),
                'show_group_plan': Method(
                    self._reply_at_once(planner.show), parameters={'request': ShowGroupPlan}
                ),
                'extend_group_plan': Method(
                    self._reply_at_once(planner.extend), parameters={'request': ExtendGroupPlan}
                ),
                'release_group_plan': Method(
                    self._reply_at_once(planner.release), parameters={'request': ReleaseGroupPlan}
                ),
            }
        )

    def submit(self, call: RpcCall) -> object:
        """Queue a group; the caller is answered when it is planned, or has to call again."""
        request: PlaceGroup | ChangeGroup = wire.argument(call)
        budget = request.budget_ms / 1000 - call.age_ms / 1000
        if call.monitor_seconds is not None:
            budget = min(budget, 0.75 * call.monitor_seconds - call.age_ms / 1000)
        budget = max(budget, 0.001)
        request = msgspec.structs.replace(request, budget_ms=max(1, int(budget * 1000)))
        return Pending(
            future=self._planner.submit(request),
            convert=base.to_builtins,
            seconds=budget,
            overdue=exceptions.Busy(
                reason='the group is being planned', retry_after_ms=RETRY_AFTER_MS
            ),
        )

    @staticmethod
    def _reply_at_once(run: Callable[[Any], Any]) -> Callable[[RpcCall], Any]:
        def answered(call: RpcCall) -> Any:
            return base.to_builtins(run(wire.argument(call)))

        return answered
