# SPDX-License-Identifier: Apache-2.0
"""Zones in memory: there are none, as they speak to each other by what is in a database."""

from gantt.core.messages.request import GroupRef


class MemoryChildClaims:
    """Claims in child zones: ``ports.ChildClaims`` in memory."""

    def child_zone_names(self, *, enabled: bool = False) -> dict[str, str]:
        return {}


class MemoryZoneRequests:
    """Requests that may go to child zones: ``ports.ZoneRequests`` in memory."""

    def note_parent_rule(self, group: GroupRef, project: str | None, declared: int | None) -> None:
        return  # nor does one say something
