# SPDX-License-Identifier: Apache-2.0
"""Data that a report source has read from Nova's API: applied at once, its sender waits.

guests of a host, complete → claims confirmed, released, adopted as by a broadcast
aggregates, server groups → as in Nova
moves open for too long → the source queries Nova → locations of the guests
cells, devices, metrics, sent by an agent on the host itself → facts of the host
"""

import dataclasses
import logging

import msgspec

from gantt import exceptions
from gantt.core.claims import host_facts
from gantt.core.claims.host_facts import UpdateHostFacts, UpdateHostFactsResult
from gantt.core.resources.host import Group
from gantt.core.table import metrics
from gantt.nova.model.events import AggregateDeleted, AggregatesUpdated, GuestsListed, NovaCast
from gantt.nova.model.source import (
    AggregateUpdate,
    GroupUpdate,
    GuestList,
    GuestListResult,
    GuestLocations,
    ListPendingMigrations,
    PendingMigration,
    PendingMigrations,
)
from gantt.nova.ports import Nova
from gantt.nova.service.events import NovaEvents
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.host_signatures import ForgeryAlarm
from gantt.scheduler.ports.hosts import Groups, Reports
from gantt.scheduler.ports.process import Recorder
from gantt.scheduler.settings import SchedulerSettings

LOG = logging.getLogger(__name__)

#: Tolerance: the database's clock is known only by estimate.
CLOCK_TOLERANCE_SECONDS = 1.0


@dataclasses.dataclass(eq=False)
class NovaSource:
    """Methods of a report source, and of agents on its hosts.  All may wait for the database."""

    nova: Nova
    reports: Reports
    groups: Groups
    cache: HostCache
    events: NovaEvents
    recorder: Recorder
    settings: SchedulerSettings
    alarm: ForgeryAlarm

    def update_host_facts(self, update: UpdateHostFacts) -> UpdateHostFactsResult:
        """Take over facts that an agent on the host has read; later ones are kept.

        :raises InvalidMessage: names the field
        :raises NotFound: the host's reporter has not reported it yet
        :raises Refused: an agent of its own reports for the host
        :raises NotProven: the sender is not the host's known agent; an alarm was raised
        """
        host_facts.check(update)
        if self.settings.refuse_undeclared_metrics:
            metrics.check_report(update, self.cache.working.declared_metrics, 'update')
        try:
            result = self.reports.update_host_facts(update)
        except exceptions.NotProven as e:
            self.alarm.raise_('update_host_facts', e)
            raise
        self.cache.offer(result.hosts)
        self.recorder.count('gantt_nova_facts_total', outcome=result.outcome)
        if result.outcome == host_facts.UNKNOWN_HOST:
            raise exceptions.NotFound(kind='host', name=update.host)
        if result.outcome == host_facts.NOT_OURS:
            raise exceptions.Refused(
                f'no report source for Nova reports host {update.host!r}: its own agent does; '
                'expected a host of nova-compute',
                name=update.host,
            )
        return UpdateHostFactsResult(
            outcome=result.outcome,
            sequence=result.sequence,
            report_seconds=self.settings.report_seconds,
        )

    def sync_guests(self, listed: GuestList) -> GuestListResult:
        """Apply the list of all guests of a host; do nothing where the host is not registered."""
        event = GuestsListed(
            host=listed.host,
            consumers=list(dict.fromkeys(guest.consumer for guest in listed.guests)),
            described=listed.guests,
        )
        result = self.events.receive(
            NovaCast(
                requested_at=listed.requested_at,
                skew=self.settings.nova_clock_skew_seconds,
                database_time=listed.database_time,
                event=event,
            )
        )
        return GuestListResult(
            confirmed=len(result.confirmed),
            released=len(result.released),
            adopted=len(result.adopted),
        )

    def update_aggregates(self, update: AggregateUpdate) -> None:
        """Apply aggregates as Nova has them."""
        if update.aggregates:
            self.nova.apply_aggregates(
                NovaCast(event=AggregatesUpdated(aggregates=update.aggregates))
            )
        for aggregate in update.removed:
            self.nova.apply_aggregates(NovaCast(event=AggregateDeleted(aggregate=aggregate)))

    def update_server_groups(self, update: GroupUpdate) -> int:
        """Store server groups that are not known yet; return the number of those stored.

        A group that has another rule here keeps it, and that is logged.
        """
        stored = 0
        for group in update.groups:
            if self.groups.load_group(group.uuid) is not None:
                continue
            try:
                self.groups.save_group(Group(**msgspec.structs.asdict(group)))
                stored += 1
            except exceptions.Refused as e:
                LOG.warning('Server group of Nova is refused: group=%s error=%s', group.uuid, e)
        return stored

    def list_open_moves(self, query: ListPendingMigrations) -> PendingMigrations:
        """Return moves left open, and a cutoff: claims created after it are not among them."""
        cutoff = self.cache.database_now - CLOCK_TOLERANCE_SECONDS
        return PendingMigrations(
            moves=[
                PendingMigration(
                    consumer=move.target.consumer,
                    source=move.source.host,
                    target=move.target.host,
                    seconds=round(move.seconds, 3),
                )
                for move in self.nova.open_moves(query.seconds, query.limit, query.reserved)
            ],
            cutoff=cutoff,
        )

    def update_guest_locations(self, update: GuestLocations) -> None:
        """Settle guests whose location Nova knows, with no migration open."""
        for location in update.guests:
            self.events.resolve(location)
