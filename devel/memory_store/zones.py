# SPDX-License-Identifier: Apache-2.0
"""Zones in memory: there are none, as they speak to each other by what is in a database."""

from gantt.core.messages.request import GroupRef
from gantt.core.zones.messages import ZoneRecord


class MemoryZones:
    """Identity of this zone, and the zones around it: ``ports.ZoneRegistry`` in memory."""

    def child_zones(self) -> list[ZoneRecord]:
        return []


class MemoryZoneRequests:
    """Requests that may go to child zones: ``ports.ZoneRequests`` in memory."""

    def is_idle_group(self, uuid: str, project: str | None) -> bool:
        return False  # no zone is above

    def note_rule_above(self, group: GroupRef, project: str | None, declared: int | None) -> None:
        return  # nor does one say something
