# SPDX-License-Identifier: Apache-2.0
"""What who plans groups was told by its configuration, beside what schedulers are."""

import msgspec


class PlannerSettings(msgspec.Struct, kw_only=True):
    """Bounds; seconds unless the name says otherwise.

    :ivar queue_limit: groups that may wait; of one project as many as it leaves free
    :ivar plan_seconds: that a plan is improved where its request does not say how long
    :ivar attempts_per_group: times that one is planned at most
    """

    queue_limit: int = 50
    plan_seconds: float = 5.0
    plan_seconds_max: float = 30.0
    attempts_per_group: int = 8
    retry_after_ms: int = 1000

    def plan_seconds_of(self, plan_ms: int | None) -> float:
        """For how long a plan may be improved, by what its request says."""
        wanted = self.plan_seconds if plan_ms is None else plan_ms / 1000
        return min(wanted, self.plan_seconds_max)

    def follow(self, newer: 'PlannerSettings') -> list[str]:
        """Take over what may change while running; the names of what did."""
        changed = [
            name
            for name in self.__struct_fields__
            if name != 'queue_limit' and getattr(newer, name) != getattr(self, name)
        ]
        for name in changed:
            setattr(self, name, getattr(newer, name))
        return changed
