# SPDX-License-Identifier: Apache-2.0
"""The part of the store's port that is about what operators look at."""

from collections.abc import Collection

from gantt.core.claims.host_event import HostEvent
from gantt.core.claims.quota import ProjectUsage
from gantt.core.records.process import Service, ServiceNote
from gantt.db.claims import project_usage
from gantt.db.hosts import host_events
from gantt.db.records import services
from gantt.db.stores.store_part import StorePart


class OperatorStore(StorePart):
    """Processes, the history of hosts and the usage of projects."""

    def note_service(self, note: ServiceNote) -> None:
        """See the port."""
        self.database.write(lambda tx: services.note(tx, note))

    def forget_service(self, name: str) -> None:
        """See the port."""
        self.database.write(lambda tx: services.forget(tx, name))

    def services(self) -> list[Service]:
        """See the port."""
        return self.reads.read(services.load)

    def usages(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[ProjectUsage]:
        """See the port."""
        return self.reads.read(
            lambda tx: project_usage.page(tx, limit, marker, project), patient=True
        )

    def host_history(self, name: str, limit: int) -> list[HostEvent]:
        """See the port."""
        return self.reads.read(lambda tx: host_events.load(tx, name, limit))

    def recent_events(
        self, hosts: Collection[str], since: float, limit: int
    ) -> list[tuple[str, HostEvent]]:
        """See the port."""
        return self.reads.read(lambda tx: host_events.recent(tx, hosts, since, limit))
