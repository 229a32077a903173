# SPDX-License-Identifier: Apache-2.0
"""Passes of the source: read everything, send it, settle open moves.

    read → aggregates and server groups → each host: guests, then its report → open moves

A pass that cannot read everything sends nothing: hosts without reports are "down" to the
filters when their last report is old enough.
"""

import dataclasses
import json
import logging
import random
import time
from collections.abc import Container, Iterator, Mapping
from typing import TypeVar

import msgspec

from gantt import exceptions
from gantt.compute.agent.agent import Halted
from gantt.compute.agent.host_agent import HostAgent
from gantt.compute.agent.host_agent import HostAgentSettings as MemberSettings
from gantt.compute.agent.runner import Runner
from gantt.compute.agent.running_guests import GuestInventory
from gantt.compute.agent.session import Session
from gantt.compute.ports import CountCallback, HostReadings, SchedulerPort
from gantt.core.messages import base
from gantt.core.messages.report import HostReport, Registered, RegisterHost
from gantt.core.messages.request import Policy
from gantt.nova.client import NovaClient
from gantt.nova.model.events import GuestLocation, NovaAggregate
from gantt.nova.model.source import (
    GUESTS_MOST,
    AggregateUpdate,
    GroupUpdate,
    GuestList,
    GuestLocations,
    ListPendingMigrations,
    ServerGroup,
)
from gantt.nova.source import facts
from gantt.nova.source.cells import Cells
from gantt.nova.source.facts import HostSnapshot, HostSnapshots
from gantt.nova.source.nova_api_types import ApiServerGroup as Group
from gantt.nova.source.reading import NovaReader, NovaSnapshot

_POLICIES = frozenset(policy.value for policy in Policy)


def aggregates(
    snapshot: NovaSnapshot, before: Mapping[str, NovaAggregate]
) -> tuple[dict[str, NovaAggregate], dict[str, str]]:
    """Return all aggregates by uuid, and the reason for each that stays unchanged.

    :param before: aggregates as they were sent last, by uuid
    """
    valid, problems = {}, dict(snapshot.aggregate_problems)
    for aggregate in snapshot.aggregates:
        uuid = aggregate.uuid.lower()
        update = NovaAggregate(
            uuid=uuid,
            name=aggregate.name,
            metadata=dict(aggregate.metadata or {}),
            hosts=sorted(set(aggregate.hosts or ())),
        )
        problem = _update_problem(update)
        if problem:
            problems[uuid] = problem
        else:
            valid[uuid] = update
    unchanged = {
        uuid: aggregate
        for uuid, aggregate in before.items()
        if uuid in problems or ('' in problems and uuid not in valid)
    }
    return unchanged | valid, problems


def groups(
    snapshot: NovaSnapshot, reported: Container[str]
) -> tuple[list[ServerGroup], dict[str, str]]:
    """Return the groups that are not known yet, and the reason for each that is skipped."""
    valid, problems = [], dict(snapshot.group_problems)
    for group in snapshot.groups:
        uuid = group.id.lower()
        if uuid in reported or group.policy not in _POLICIES:
            continue
        server_group = ServerGroup(
            uuid=uuid,
            name=group.name or '',
            policy=Policy(group.policy),
            max_per_host=_max_per_host(group),
            project_id=group.project_id,
        )
        problem = _update_problem(server_group)
        if problem:
            problems[uuid] = problem
        else:
            valid.append(server_group)
    return valid, problems


def _update_problem(update: msgspec.Struct) -> str:
    """Return why a scheduler would refuse a message with this update; '' where it would not."""
    try:
        base.decode(base.to_builtins(update), type(update), inside='it')
    except exceptions.InvalidMessage as e:
        return str(e)
    return ''


def _max_per_host(group: Group) -> int:
    limit = (group.rules or {}).get('max_server_per_host', 1)
    return int(limit) if str(limit).isdigit() and int(limit) > 0 else 1


# -- The scheduler's port for reports, as a source uses it for foreign hosts.
class HostLeftAlone(Halted):
    """An error of a host we may not report for; it is idle until its next turn is hurried."""


class ImporterPort:
    """A scheduler's port that records refusals.

    :ivar unknown_classes: resource classes that the scheduler does not know
    :ivar refused_hosts: hosts that the scheduler does not let us report for
    """

    def __init__(self, port: SchedulerPort) -> None:
        self.unknown_classes: frozenset[str] = frozenset()
        self.refused_hosts: set[str] = set()
        self._port = port
        self.confirm = port.confirm
        self.refuse = port.refuse
        self.release = port.release

    def register(self, message: RegisterHost) -> Registered:
        """Register a host.

        :raises HostLeftAlone: another agent reports for it
        """
        try:
            registered = self._port.register(message)
        except exceptions.Refused as e:
            self.refused_hosts.add(message.name)
            LOG.error(
                'Host is skipped because its registration is refused; it is tried again from time '
                'to time: host=%s error=%s',
                message.name,
                e,
            )
            raise HostLeftAlone(str(e)) from None
        self.refused_hosts.discard(message.name)
        if message.uuid is not None and registered.uuid != message.uuid:
            LOG.warning(
                'Host cannot be found by the uuid of its node in Nova; if its old node is gone '
                'for good, delete the host and it registers again: host=%s uuid=%s node_uuid=%s',
                message.name,
                registered.uuid,
                message.uuid,
            )
        return registered

    def report(self, report: HostReport) -> str | None:
        """Send a report; after the refusal of a class, without that class."""
        try:
            return self._port.report(report)
        except exceptions.UnknownResourceClass as e:
            name = str(e.kwargs.get('name', ''))
            if name in self.unknown_classes or not name:
                raise
            self.unknown_classes |= {name}
            LOG.warning(
                'Resource class is unknown to the scheduler and is omitted; create it with PUT '
                '/v1/resource-classes: class=%s',
                name,
            )
            raise exceptions.Unavailable(
                f'the report is repeated without resource class {name}'
            ) from None


LOG = logging.getLogger(__name__)

#: Interval of a member's own reports, which is never: it reports when a pass is over.
OWN_REPORT_SECONDS = 10 * 365 * 86_400.0
#: Approximate bytes of one message to a scheduler.
MESSAGE_BYTES_MAX = 256 << 10
#: Guests that are requested from Nova one by one in a pass.
REQUESTED_GUESTS_MAX = 100
#: Age beyond which an open move is ignored.
OPEN_MOVE_SECONDS_MAX = 31_536_000.0
#: Lines in the log for hosts without reports.
LOG_LINES_MAX = 5

T = TypeVar('T')


@dataclasses.dataclass(eq=False)
class Source:
    """A reader of Nova that sends its snapshots to the scheduler; one thread calls ``step``.

    :ivar port: the port for reports
    :ivar migration_grace: how long a move is open before it is requested from Nova
    :ivar count: adds to a counter; ``gauge`` sets a gauge
    :ivar list_bytes: the largest list of guests that a scheduler takes
    """

    reader: NovaReader
    cells: Cells
    port: dataclasses.InitVar[SchedulerPort]
    nova: NovaClient
    runner: Runner
    migration_grace: float
    count: CountCallback
    gauge: CountCallback
    list_bytes: int = 1 << 20

    def __post_init__(self, port: SchedulerPort) -> None:
        self._port = ImporterPort(port)
        self._sent_lists = SentGuestLists()
        self._snapshots = HostSnapshots()
        self._aggregates: dict[str, NovaAggregate] = {}
        self._groups: set[str] = set()
        self._aggregate_problems: dict[str, str] = {}
        self._group_problems: dict[str, str] = {}
        #: Host -> its agent, which reports.
        self.host_agents: dict[str, HostAgent] = {}
        self._moving: set[str] = set()
        self._nodes: dict[str, str] = {}
        self._fenced: set[str] = set()
        self._passes = 0

    def step(self) -> None:
        """Read Nova once, and send the result to the scheduler.

        :raises Misconfigured: credentials, addresses or the file of cells are wrong
        :raises GanttError: Nova could not be read completely, or a message was not accepted
        """
        start = time.monotonic()
        try:
            self._step()
        except Exception:
            self.count('gantt_nova_source_passes_total', outcome='failed')
            raise
        outcome = 'fenced' if self._fenced else 'done'
        self.count('gantt_nova_source_passes_total', outcome=outcome)
        self.gauge('gantt_nova_source_pass_duration_seconds', time.monotonic() - start)

    def _step(self) -> None:
        is_full = self._passes % FULL_SEND_PASSES == 0
        if is_full:
            # They may have been declared meanwhile.
            self._port.unknown_classes = frozenset()
        self._find_fenced(is_full)
        snapshot = self.reader.read(self._database_now())
        cells = self._cell_by_host(snapshot)
        if 2 * len(self._fenced) <= len(self.host_agents):
            # Else the other source that reports for the hosts sends these, too.
            self._send_groups(snapshot)
            self._send_aggregates(snapshot, whole=is_full)
        self._moving = {consumer for consumer, moves in snapshot.open_migrations.items() if moves}
        old_snapshots = self._snapshots
        snapshots = facts.host_snapshots(snapshot, cells, self._port.unknown_classes, self._nodes)
        self._snapshots = snapshots_fitting(snapshots, self.list_bytes)
        self._update_hosts(old_snapshots)
        self._passes += 1
        self._resolve_moves()

    def _database_now(self) -> float | None:
        """Return the time of the database's clock, to order changes during the reading.

        The clocks here and of the database may differ, so it comes from the schedulers.
        """
        try:
            return self.nova.list_open_moves(
                ListPendingMigrations(seconds=OPEN_MOVE_SECONDS_MAX, limit=1)
            ).cutoff
        except exceptions.GanttError as e:
            # Errors of reading are better reported before a scheduler is there.
            LOG.info('Clock of the database cannot be read: error=%s', e)
            return None

    def _find_fenced(self, again: bool) -> None:
        """Find hosts that another process has registered later than this one."""
        fenced_before = self._fenced
        self._fenced = {
            host for host, member in self.host_agents.items() if member.session.is_fenced
        }
        if self._fenced and (again or self._fenced != fenced_before):
            LOG.error(
                'Hosts are not reported, as another process registered them later; stop one of '
                'both sources, or restart this one to take the hosts over: hosts=%d total=%d '
                'first=%s',
                len(self._fenced),
                len(self.host_agents),
                min(self._fenced),
            )

    def _cell_by_host(self, snapshot: NovaSnapshot) -> dict[str, str] | None:
        if not self.cells.path:
            cell = self.cells.single_cell
            return dict.fromkeys(snapshot.services, cell) if cell else None
        try:
            return self.cells.read_file()
        except (exceptions.Misconfigured, exceptions.Refused) as e:
            LOG.error('File of cells is refused; the last one stays in force: error=%s', e)
            return self.cells.cell_by_host

    # -- hosts ---------------------------------------------------------------------
    def _update_hosts(self, before: HostSnapshots) -> None:
        update = self._snapshots
        _log_changes('Host is not reported: host=%s reason=%s', update.silent, before.silent)
        _log_changes(
            'Inventories of a host are left out: host=%s reason=%s',
            update.inventory_problems,
            before.inventory_problems,
        )
        for host in self.host_agents.keys() - update.hosts.keys():
            if host in update.silent and host in self._fenced:
                continue  # else it would be registered anew when it is listed again
            if host not in update.silent:
                LOG.warning(
                    'Nova no longer knows the host; it is not reported any more: host=%s', host
                )
            self._remove(host)
            self._sent_lists.forget(host)
        for host, host_snapshot in update.hosts.items():
            self._update_host(host, host_snapshot, before.hosts.get(host))
        known_hosts = update.hosts.keys() | update.silent.keys()
        self._nodes = {host: uuid for host, uuid in self._nodes.items() if host in known_hosts}
        self._nodes |= {
            host: host_snapshot.announcement.uuid or ''
            for host, host_snapshot in update.hosts.items()
        }
        refused_hosts = self._port.refused_hosts & update.hosts.keys()
        fenced = self._fenced & update.hosts.keys()
        for state, count in {
            'reported': len(update.hosts.keys() - refused_hosts - fenced),
            'incomplete': len(update.silent),
            'fenced': len(fenced),
            'refused': len(refused_hosts),
        }.items():
            self.gauge('gantt_nova_source_hosts', count, state=state)

    def _update_host(
        self, host: str, host_snapshot: HostSnapshot, was: HostSnapshot | None
    ) -> None:
        member = self.host_agents.get(host)
        if member is not None and member.session.is_fenced:
            return
        if (
            member is not None
            and was is not None
            and was.announcement != host_snapshot.announcement
        ):
            self._remove(host)
            member = None
        if member is None:
            self._add(host, host_snapshot)
        elif host not in self._port.refused_hosts or self._passes % FULL_SEND_PASSES == 0:
            member.run_within(0.0)

    def _remove(self, host: str) -> None:
        self.runner.remove(self.host_agents.pop(host))
        self._port.refused_hosts.discard(host)

    def _add(self, host: str, host_snapshot: HostSnapshot) -> None:
        member = HostAgent(
            Session(host_snapshot.announcement, self._port),
            self._port,
            lambda: self._send_guests_and_read_facts(host),
            MemberSettings(report_seconds=OWN_REPORT_SECONDS, level=logging.DEBUG),
            random.Random(host),
        )
        self.host_agents[host] = member
        self.runner.add(member)

    def _send_guests_and_read_facts(self, host: str) -> tuple[GuestInventory, HostReadings]:
        """Send the guests, then return the host's facts: no placement next to unknown guests.

        Its report has no guests: claims follow their lists.
        """
        host_snapshot = self._snapshots.hosts.get(host)
        if host_snapshot is None:
            raise exceptions.Unavailable(f'host {host} is not in the last snapshot of Nova')
        due = self._sent_lists.is_due(host, host_snapshot)
        if due:
            result = self.nova.sync_guests(guest_list_message(host, host_snapshot))
            for outcome in ('confirmed', 'released', 'adopted'):
                self.count(
                    'gantt_nova_source_claims_total', getattr(result, outcome), action=outcome
                )
        self._sent_lists.note_sent(host, host_snapshot, is_sent=due)
        unknown_classes = self._port.unknown_classes
        inventories = {
            name: inventory
            for name, inventory in host_snapshot.facts.inventories.items()
            if name not in unknown_classes
        }
        return GuestInventory(None, None), msgspec.structs.replace(
            host_snapshot.facts, inventories=inventories
        )

    # -- aggregates and groups ---------------------------------------------------------
    def _send_aggregates(self, snapshot: NovaSnapshot, *, whole: bool) -> None:
        sent = self._aggregates
        current, problems = aggregates(snapshot, sent)
        _log_changes('Aggregate %s stays as it is known: %s', problems, self._aggregate_problems)
        self._aggregate_problems = problems
        changed = [
            aggregate for uuid, aggregate in current.items() if whole or sent.get(uuid) != aggregate
        ]
        deleted = [aggregate for uuid, aggregate in sent.items() if uuid not in current]
        # First the deleted ones: a new one may have the name of one of them.
        for part in _message_parts(deleted):
            self.nova.update_aggregates(AggregateUpdate(removed=part))
        for part in _message_parts(changed):
            self.nova.update_aggregates(AggregateUpdate(aggregates=part))
        self._aggregates = current

    def _send_groups(self, snapshot: NovaSnapshot) -> None:
        new_groups, problems = groups(snapshot, self._groups)
        _log_changes('Server group %s is passed over: %s', problems, self._group_problems)
        self._group_problems = problems
        for part in _message_parts(new_groups):
            self.nova.update_server_groups(GroupUpdate(groups=part))
            self._groups |= {group.uuid for group in part}
        self._groups &= {group.id.lower() for group in snapshot.groups}

    # -- moves -------------------------------------------------------------------------
    def _resolve_moves(self) -> None:
        """Settle moves that have not ended: Nova has their hosts, and the outcome of builds."""
        query = self.nova.list_open_moves(
            ListPendingMigrations(seconds=self.migration_grace, reserved=True)
        )
        locations = []
        own_moves = [
            move
            for move in query.moves
            if move.consumer not in self._moving and not {move.source, move.target} & self._fenced
        ]
        for move in own_moves[:REQUESTED_GUESTS_MAX]:
            try:
                location = self.reader.find_guest(move.consumer)
            except exceptions.InvalidMessage as e:
                LOG.warning(
                    'Location of a guest cannot be read: guest=%s error=%s', move.consumer, e
                )
                continue
            if location is None:
                continue
            host, amounts = None, {}
            if location.server is not None:
                if move.source == move.target and location.server.is_being_placed:
                    continue
                host = self._snapshots.name_of(location.server)
                amounts = facts.amounts_of(location.server)
                if host in self._fenced or (host is None and location.server.host is not None):
                    continue  # on a host that is not known
            move_path = (
                move.target if move.source == move.target else f'{move.source},{move.target}'
            )
            LOG.info(
                'Guest has claims that are neither confirmed nor ended: guest=%s claimed_on=%s '
                'nova_host=%s',
                move.consumer,
                move_path,
                host or 'none',
            )
            locations.append(
                GuestLocation(
                    consumer=move.consumer, host=host, cutoff=query.cutoff, resources=amounts
                )
            )
        if locations:
            self.nova.update_guest_locations(GuestLocations(guests=locations))
            self.count('gantt_nova_source_guest_locations_total', len(locations))


def _log_changes(line: str, now: Mapping[str, object], before: Mapping[str, object]) -> None:
    """Log a line for each host, or other object, whose text has changed."""
    changed = [(host, why) for host, why in now.items() if before.get(host) != why]
    for host, why in changed[:LOG_LINES_MAX]:
        LOG.warning(line, host, why)
    if len(changed) > LOG_LINES_MAX:
        LOG.warning(
            line,
            f'{changed[LOG_LINES_MAX][0]} and {len(changed) - LOG_LINES_MAX - 1} more',
            changed[LOG_LINES_MAX][1],
        )


def _message_parts(items: list[T]) -> Iterator[list[T]]:
    """Yield parts that each fit into one message."""
    part: list[T] = []
    message_size = 0
    for item in items:
        length = len(msgspec.json.encode(base.to_builtins(item)))
        if part and (message_size + length > MESSAGE_BYTES_MAX or len(part) >= base.LIST_MAX):
            yield part
            part, message_size = [], 0
        part.append(item)
        message_size += length
    if part:
        yield part


#: Passes in which a changed list of guests is sent: releases and confirmations take that many.
#: After that, lists and aggregates are sent again in one of so many passes.
SEND_REPEATS, FULL_SEND_PASSES = 3, 10
#: Upper bounds of the bytes of one guest in a message, and of a message without its guests.
GUEST_BYTES, MESSAGE_OVERHEAD_BYTES = 2048, 4096

_replace = msgspec.structs.replace


class SentGuestLists:
    """Record of sent lists of guests; after a change a list is sent several times in a row."""

    def __init__(self) -> None:
        self._sent_facts: dict[str, tuple[list[str], int]] = {}

    def is_due(self, host: str, snapshot: HostSnapshot) -> bool:
        """Return whether the list of a host is to be sent."""
        last_facts, times = self._sent_facts.get(host, ([], 0))
        return (
            last_facts != _claim_facts(snapshot)
            or times < SEND_REPEATS
            or times % FULL_SEND_PASSES == 0
        )

    def note_sent(self, host: str, snapshot: HostSnapshot, *, is_sent: bool) -> None:
        """Record whether the host's list was sent in this reading of Nova."""
        last_facts, times = self._sent_facts.get(host, ([], 0))
        claim_facts = _claim_facts(snapshot)
        self._sent_facts[host] = (
            claim_facts,
            times + 1 if last_facts == claim_facts else int(is_sent),
        )

    def forget(self, host: str) -> None:
        self._sent_facts.pop(host, None)


def _claim_facts(snapshot: HostSnapshot) -> list[str]:
    """Return texts of the facts of a guest list that matter to claims, to compare."""
    return sorted(
        f'{guest.consumer} {sorted(guest.resources.items())} {guest.group}'
        for guest in snapshot.guests
    )


def guest_list_message(host: str, snapshot: HostSnapshot) -> GuestList:
    """Return the message that lists the guests of a host."""
    guests = snapshot.guests
    if snapshot.omits_details:
        # Without fields for people, and fields that a scheduler does not read in a list.
        guests = [
            _replace(guest, node='', vm_state='', task_state='', user_id=None) for guest in guests
        ]
    return GuestList(
        host=host,
        requested_at=snapshot.requested_at,
        database_time=snapshot.database_time,
        guests=guests,
    )


def snapshots_fitting(snapshots: HostSnapshots, most: int) -> HostSnapshots:
    """Return the snapshots whose lists of guests fit a message; a list is never sent in part.

    :param most: bytes that a scheduler takes
    """
    hosts, silent = dict(snapshots.hosts), dict(snapshots.silent)
    for host, snapshot in snapshots.hosts.items():
        short = _replace(snapshot, omits_details=True)
        if len(snapshot.guests) > GUESTS_MOST:
            problem = f'it has {len(snapshot.guests)} guests; expected {GUESTS_MOST} at most'
        elif (
            len(snapshot.guests) * GUEST_BYTES + MESSAGE_OVERHEAD_BYTES <= most
            or message_size(host, snapshot) <= most
        ):
            continue
        elif message_size(host, short) <= most:
            hosts[host] = short
            continue
        else:
            problem = (
                f'the list of its {len(snapshot.guests)} guests has '
                f'{message_size(host, short)} bytes, and '
                f'[rpc] payload_bytes_max is {most}: raise it on the schedulers and here'
            )
        silent[host] = problem
        del hosts[host]
    return _replace(snapshots, hosts=hosts, silent=silent)


def message_size(host: str, snapshot: HostSnapshot) -> int:
    """Return the size in bytes of the message of a host's guests, which is text within text."""
    message_body = base.to_builtins(guest_list_message(host, snapshot))
    return len(json.dumps(json.dumps(message_body))) + MESSAGE_OVERHEAD_BYTES
