# SPDX-License-Identifier: Apache-2.0
"""Configuration of the planner of groups, besides that of schedulers."""

import msgspec


class PlannerSettings(msgspec.Struct, kw_only=True):
    """Bounds; seconds unless the name states another unit.

    :ivar queue_limit: groups that may wait; of one project as many as it leaves free
    :ivar plan_seconds: time in which a plan is improved where its request gives none
    :ivar attempts_per_group: maximum number of times that a group is planned
    """

    queue_limit: int = 50
    plan_seconds: float = 5.0
    plan_seconds_max: float = 30.0
    attempts_per_group: int = 8
    retry_after_ms: int = 1000

    def plan_seconds_of(self, plan_ms: int | None) -> float:
        """Return the seconds for which the plan of a request may be improved."""
        seconds = self.plan_seconds if plan_ms is None else plan_ms / 1000
        return min(seconds, self.plan_seconds_max)

    def follow(self, newer: 'PlannerSettings') -> list[str]:
        """Take over the options that may change while running; return the names of changed ones."""
        changed = [
            name
            for name in self.__struct_fields__
            if name != 'queue_limit' and getattr(newer, name) != getattr(self, name)
        ]
        for name in changed:
            setattr(self, name, getattr(newer, name))
        return changed
