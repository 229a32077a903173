# SPDX-License-Identifier: Apache-2.0
"""The in-memory store: the history of hosts, see ``db.hosts.host_events``."""

from collections.abc import Collection

import msgspec

from gantt.core.claims import host_event
from gantt.core.claims.host_event import KEPT_EACH, KEPT_SECONDS, HostEvent
from gantt.core.resources.host import HostRow
from gantt.db.hosts.host_events import of_claim
from gantt.testing.store.declared import atomic
from gantt.testing.store.services import Services


class HostEvents(Services):
    """Lines by the name of the host, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[str, list[HostEvent]] = {}

    def _log(self, before: HostRow | None, after: HostRow, by: str = '') -> None:
        """Add what differs between two rows of a host."""
        first = before or HostRow(id=after.id, uuid=after.uuid, name=after.name)
        for one in host_event.changes(first, after, by):
            self._add_line(after.name, one)

    def _add_line(self, host: str, line: HostEvent) -> None:
        lines = self._lines.setdefault(host, [])
        lines.append(msgspec.structs.replace(line, at=self._now))
        del lines[:-KEPT_EACH]

    @atomic
    def host_history(self, name: str, limit: int) -> list[HostEvent]:
        """What happened to a host lately, newest first."""
        found = self._lines.get(name, [])[::-1]
        for claim in self._tables.claims.values():
            if claim.host == name:
                found += of_claim(
                    claim.id,
                    claim.consumer,
                    claim.state,
                    claim.reason,
                    claim.created_at,
                    claim.updated_at,
                )
        return sorted(found, key=lambda one: -one.at)[:limit]

    @atomic
    def recent_events(
        self, hosts: Collection[str], since: float, limit: int
    ) -> list[tuple[str, HostEvent]]:
        """What happened to these hosts, oldest first."""
        found = [
            (host, one)
            for host in hosts
            for one in self.host_history(host, len(self._tables.claims) * 2 + KEPT_EACH)
            if one.at >= since
        ]
        return sorted(found, key=lambda pair: pair[1].at)[-limit:]

    def _purge_lines(self) -> int:
        gone = 0
        for host, lines in list(self._lines.items()):
            kept = [one for one in lines if one.at >= self._now - KEPT_SECONDS]
            gone += len(lines) - len(kept)
            self._lines[host] = kept
            if not kept:
                del self._lines[host]
        return gone
