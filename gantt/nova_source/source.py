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
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from gantt import exceptions
from gantt.client import NovaClient
from gantt.compute.agent.agent import Halted
from gantt.compute.agent.running_guests import GuestInventory
from gantt.compute.agent.session import Session
from gantt.compute.farm.host_agent import HostAgent
from gantt.compute.farm.host_agent import HostAgentSettings as MemberSettings
from gantt.compute.farm.runner import Runner
from gantt.compute.ports import HostReadings, SchedulerPort
from gantt.compute.sources.report_source import Count
from gantt.core.messages import base
from gantt.core.messages.report import HostReport, Registered, RegisterHost
from gantt.core.nova.events import GuestLocation, NovaAggregate
from gantt.core.nova.source import (
    GUESTS_MOST,
    AggregateUpdate,
    GroupUpdate,
    GuestList,
    GuestLocations,
    ListMoves,
    PendingMove,
)
from gantt.nova_source import facts, groups
from gantt.nova_source.cells import Cells
from gantt.nova_source.facts import HostPicture, HostPictures
from gantt.nova_source.reading import Picture, Reader


# -- The scheduler's port for reports, as a source uses it for foreign hosts.
class LeftAlone(Halted):
    """An error of a host we may not report for; it is idle until its next turn is hurried."""


class Port:
    """A scheduler's port that records refusals.

    :ivar left_out: resource classes that the scheduler does not know
    :ivar refused: hosts that it does not let us report for
    """

    def __init__(self, port: SchedulerPort) -> None:
        self.left_out: frozenset[str] = frozenset()
        self.refused: set[str] = set()
        self._port = port
        self.confirm = port.confirm
        self.refuse = port.refuse
        self.release = port.release

    def register(self, message: RegisterHost) -> Registered:
        """Register a host.

        :raises LeftAlone: another agent reports for it
        """
        try:
            registered = self._port.register(message)
        except exceptions.Refused as e:
            self.refused.add(message.name)
            LOG.error(
                'Host is skipped because its registration is refused; it is tried again from time '
                'to time: host=%s error=%s',
                message.name,
                e,
            )
            raise LeftAlone(str(e)) from None
        self.refused.discard(message.name)
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
            if name in self.left_out or not name:
                raise
            self.left_out |= {name}
            LOG.warning(
                'Resource class is unknown to the scheduler and is omitted; create it with PUT '
                '/v1/resource-classes: class=%s',
                name,
            )
            raise exceptions.Unavailable(f'again without {name}') from None


LOG = logging.getLogger(__name__)

#: Interval of a member's own reports, which is never: it reports when a pass is over.
BY_ITSELF_SECONDS = 10 * 365 * 86_400.0
#: Approximate bytes of one message to a scheduler.
BYTES_MOST = 256 << 10
#: Guests that are requested from Nova one by one in a pass.
REQUESTED_MOST = 100
#: Age beyond which an open move is ignored.
LONGEST_SECONDS = 31_536_000.0
#: Lines in the log for hosts without reports.
SHOWN = 5

T = TypeVar('T')


@dataclasses.dataclass(eq=False)
class Source:
    """A reader of Nova that sends what it read; ``step`` is called by one thread.

    :ivar port: the port for reports
    :ivar migration_grace: how long a move is open before it is requested from Nova
    :ivar count: adds to a counter; ``gauge`` sets one
    :ivar list_bytes: the largest list of guests that a scheduler takes
    """

    reader: Reader
    cells: Cells
    port: dataclasses.InitVar[SchedulerPort]
    nova: NovaClient
    runner: Runner
    migration_grace: float
    count: Count
    gauge: Count
    list_bytes: int = 1 << 20

    def __post_init__(self, port: SchedulerPort) -> None:
        self._port = Port(port)
        self._guests = Guests()
        self._pictures = HostPictures()
        self._aggregates: dict[str, NovaAggregate] = {}
        self._groups: set[str] = set()
        self._odd_aggregates: dict[str, str] = {}
        self._odd_groups: dict[str, str] = {}
        self._members: dict[str, HostAgent] = {}
        self._moving: set[str] = set()
        self._nodes: dict[str, str] = {}
        self._fenced: set[str] = set()
        self._passes = 0

    @property
    def members(self) -> dict[str, HostAgent]:
        """Host -> its agent, which reports."""
        return self._members

    def step(self) -> None:
        """Run one pass.

        :raises Misconfigured: credentials, addresses or the file of cells are wrong
        :raises GanttError: the pass is incomplete
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
        is_full = self._passes % NOW_AND_THEN == 0
        if is_full:
            # They may have been declared meanwhile.
            self._port.left_out = frozenset()
        self._look_at_fences(is_full)
        picture = self.reader.read(self._database_now())
        cells = self._look_at_cells(picture)
        if 2 * len(self._fenced) <= len(self._members):
            # Else the other source that reports for the hosts sends these, too.
            self._send_groups(picture)
            self._send_aggregates(picture, whole=is_full)
        self._moving = {consumer for consumer, moves in picture.open.items() if moves}
        old_pictures = self._pictures
        pictures = facts.host_pictures(picture, cells, self._port.left_out, self._nodes)
        self._pictures = fitting(pictures, self.list_bytes)
        self._bring_in(old_pictures)
        self._passes += 1
        self._resolve_moves()

    def _database_now(self) -> float | None:
        """Return the time of the database's clock, to order changes during the reading.

        The clocks here and of the database may differ, so it comes from the schedulers.
        """
        try:
            return self.nova.list_open_moves(ListMoves(seconds=LONGEST_SECONDS, limit=1)).cutoff
        except exceptions.GanttError as e:
            # Errors of reading are better reported before a scheduler is there.
            LOG.info('Clock of the database cannot be read: error=%s', e)
            return None

    def _look_at_fences(self, again: bool) -> None:
        """Find hosts that another process has registered later than this one."""
        fenced_before = self._fenced
        self._fenced = {host for host, member in self._members.items() if member.session.is_fenced}
        if self._fenced and (again or self._fenced != fenced_before):
            LOG.error(
                'Hosts are not reported, as another process registered them later; stop one of '
                'both sources, or restart this one to take the hosts over: hosts=%d total=%d '
                'first=%s',
                len(self._fenced),
                len(self._members),
                min(self._fenced),
            )

    def _look_at_cells(self, picture: Picture) -> dict[str, str] | None:
        if not self.cells.path:
            cell = self.cells.one
            return dict.fromkeys(picture.services, cell) if cell else None
        try:
            return self.cells.look()
        except (exceptions.Misconfigured, exceptions.Refused) as e:
            LOG.error('File of cells is refused; the last one stays in force: error=%s', e)
            return self.cells.known

    # -- hosts ---------------------------------------------------------------------
    def _bring_in(self, before: HostPictures) -> None:
        update = self._pictures
        _log_changes('Host is not reported: host=%s reason=%s', update.silent, before.silent)
        _log_changes(
            'Inventories of a host are left out: host=%s reason=%s', update.wrong, before.wrong
        )
        for host in self._members.keys() - update.hosts.keys():
            if host in update.silent and host in self._fenced:
                continue  # else it would be registered anew when it is listed again
            if host not in update.silent:
                LOG.warning(
                    'Nova no longer knows the host; it is not reported any more: host=%s', host
                )
            self._remove(host)
            self._guests.forget(host)
        for host, host_picture in update.hosts.items():
            self._bring(host, host_picture, before.hosts.get(host))
        known_hosts = update.hosts.keys() | update.silent.keys()
        self._nodes = {host: uuid for host, uuid in self._nodes.items() if host in known_hosts}
        self._nodes |= {
            host: host_picture.announcement.uuid or ''
            for host, host_picture in update.hosts.items()
        }
        refused = self._port.refused & update.hosts.keys()
        fenced = self._fenced & update.hosts.keys()
        for state, count in {
            'reported': len(update.hosts.keys() - refused - fenced),
            'incomplete': len(update.silent),
            'fenced': len(fenced),
            'refused': len(refused),
        }.items():
            self.gauge('gantt_nova_source_hosts', count, state=state)

    def _bring(self, host: str, host_picture: HostPicture, was: HostPicture | None) -> None:
        member = self._members.get(host)
        if member is not None and member.session.is_fenced:
            return
        if member is not None and was is not None and was.announcement != host_picture.announcement:
            self._remove(host)
            member = None
        if member is None:
            self._add(host, host_picture)
        elif host not in self._port.refused or self._passes % NOW_AND_THEN == 0:
            member.hurry(0.0)

    def _remove(self, host: str) -> None:
        self.runner.remove(self._members.pop(host))
        self._port.refused.discard(host)

    def _add(self, host: str, host_picture: HostPicture) -> None:
        member = HostAgent(
            Session(host_picture.announcement, self._port),
            self._port,
            lambda: self._look(host),
            MemberSettings(report_seconds=BY_ITSELF_SECONDS, level=logging.DEBUG),
            random.Random(host),
        )
        self._members[host] = member
        self.runner.add(member)

    def _look(self, host: str) -> tuple[GuestInventory, HostReadings]:
        """Send the guests, then return the host's facts: no placement beside unknown guests.

        Its report has no guests: claims follow their lists.
        """
        host_picture = self._pictures.hosts.get(host)
        if host_picture is None:
            raise exceptions.Unavailable(f'nothing is known of host {host} now')
        due = self._guests.is_due(host, host_picture)
        if due:
            result = self.nova.sync_guests(listed(host, host_picture))
            for outcome in ('confirmed', 'released', 'adopted'):
                self.count(
                    'gantt_nova_source_claims_total', getattr(result, outcome), action=outcome
                )
        self._guests.done(host, host_picture, pictures=due)
        unknown_classes = self._port.left_out
        inventories = {
            name: inventory
            for name, inventory in host_picture.facts.inventories.items()
            if name not in unknown_classes
        }
        return GuestInventory(None, None), msgspec.structs.replace(
            host_picture.facts, inventories=inventories
        )

    # -- aggregates and groups ---------------------------------------------------------
    def _send_aggregates(self, picture: Picture, *, whole: bool) -> None:
        sent = self._aggregates
        current, problems = groups.aggregates(picture, sent)
        _log_changes('Aggregate %s stays as it is known: %s', problems, self._odd_aggregates)
        self._odd_aggregates = problems
        changed = [
            aggregate for uuid, aggregate in current.items() if whole or sent.get(uuid) != aggregate
        ]
        deleted = [aggregate for uuid, aggregate in sent.items() if uuid not in current]
        # First the deleted ones: a new one may have the name of one of them.
        for part in _parts(deleted):
            self.nova.update_aggregates(AggregateUpdate(removed=part))
        for part in _parts(changed):
            self.nova.update_aggregates(AggregateUpdate(aggregates=part))
        self._aggregates = current

    def _send_groups(self, picture: Picture) -> None:
        new_groups, problems = groups.groups(picture, self._groups)
        _log_changes('Server group %s is passed over: %s', problems, self._odd_groups)
        self._odd_groups = problems
        for part in _parts(new_groups):
            self.nova.update_server_groups(GroupUpdate(groups=part))
            self._groups |= {group.uuid for group in part}
        self._groups &= {group.id.lower() for group in picture.groups}

    # -- moves -------------------------------------------------------------------------
    def _resolve_moves(self) -> None:
        """Settle moves that have not ended: Nova has their hosts, and the outcome of builds."""
        query = self.nova.list_open_moves(ListMoves(seconds=self.migration_grace, reserved=True))
        locations = []
        for move in [candidate for candidate in query.moves if self._is_ours(candidate)][
            :REQUESTED_MOST
        ]:
            try:
                location = self.reader.whereabouts(move.consumer)
            except exceptions.InvalidMessage as e:
                LOG.warning(
                    'Location of a guest cannot be read: guest=%s error=%s', move.consumer, e
                )
                continue
            if location is None:
                continue
            host, amounts = None, {}
            if location.server is not None:
                if move.source == move.target and location.server.is_coming:
                    continue
                host = self._pictures.name_of(location.server)
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

    def _is_ours(self, move: PendingMove) -> bool:
        return move.consumer not in self._moving and not {move.source, move.target} & self._fenced


def _log_changes(line: str, now: Mapping[str, object], before: Mapping[str, object]) -> None:
    """Log a line for each host, or other object, whose text has changed."""
    changed = [(host, why) for host, why in now.items() if before.get(host) != why]
    for host, why in changed[:SHOWN]:
        LOG.warning(line, host, why)
    if len(changed) > SHOWN:
        LOG.warning(
            line, f'{changed[SHOWN][0]} and {len(changed) - SHOWN - 1} more', changed[SHOWN][1]
        )


def _parts(items: list[T]) -> Iterator[list[T]]:
    """Yield parts that each fit into one message."""
    part: list[T] = []
    size = 0
    for item in items:
        length = len(msgspec.json.encode(base.to_builtins(item)))
        if part and (size + length > BYTES_MOST or len(part) >= base.LIST_MAX):
            yield part
            part, size = [], 0
        part.append(item)
        size += length
    if part:
        yield part


#: Passes in which a changed list of guests is sent: releases and confirmations take that many.
#: After that, lists and aggregates are sent again in one of so many passes.
REPEATS, NOW_AND_THEN = 3, 10
#: Upper bounds of the bytes of one guest in a message, and of a message beside its guests.
GUEST_BYTES, OTHER_BYTES = 2048, 4096

_replace = msgspec.structs.replace


class Guests:
    """State of sent lists of guests: a list is due for some passes after it changed."""

    def __init__(self) -> None:
        self._sent: dict[str, tuple[list[str], int]] = {}

    def is_due(self, host: str, picture: HostPicture) -> bool:
        """Return whether the list of a host is to be sent."""
        last_marks, times = self._sent.get(host, ([], 0))
        return last_marks != _marks(picture) or times < REPEATS or times % NOW_AND_THEN == 0

    def done(self, host: str, picture: HostPicture, *, pictures: bool) -> None:
        """Record a pass over the host."""
        last_marks, times = self._sent.get(host, ([], 0))
        marks = _marks(picture)
        self._sent[host] = (marks, times + 1 if last_marks == marks else int(pictures))

    def forget(self, host: str) -> None:
        self._sent.pop(host, None)


def _marks(picture: HostPicture) -> list[str]:
    """Return the part of a list that matters to claims."""
    return sorted(
        f'{guest.consumer} {sorted(guest.resources.items())} {guest.group}'
        for guest in picture.guests
    )


def listed(host: str, picture: HostPicture) -> GuestList:
    """Return the message of the guests of a host."""
    guests = picture.guests
    if picture.is_short:
        # Without fields for people, and fields that a scheduler does not read in a list.
        guests = [
            _replace(guest, node='', vm_state='', task_state='', user_id=None) for guest in guests
        ]
    return GuestList(
        host=host, requested_at=picture.requested_at, database_time=picture.begun, guests=guests
    )


def fitting(pictures: HostPictures, most: int) -> HostPictures:
    """Return the pictures whose lists of guests fit a message; a list is never sent in part.

    :param most: bytes that a scheduler takes
    """
    hosts, silent = dict(pictures.hosts), dict(pictures.silent)
    for host, picture in pictures.hosts.items():
        short = _replace(picture, is_short=True)
        if len(picture.guests) > GUESTS_MOST:
            problem = f'it has {len(picture.guests)} guests, and {GUESTS_MOST} can be told of'
        elif len(picture.guests) * GUEST_BYTES + OTHER_BYTES <= most or size(host, picture) <= most:
            continue
        elif size(host, short) <= most:
            hosts[host] = short
            continue
        else:
            problem = (
                f'the list of its {len(picture.guests)} guests has {size(host, short)} bytes, and '
                f'[rpc] payload_bytes_max is {most}: raise it on the schedulers and here'
            )
        silent[host] = problem
        del hosts[host]
    return _replace(pictures, hosts=hosts, silent=silent)


def size(host: str, picture: HostPicture) -> int:
    """Return the bytes of the message, which travels as text within text."""
    message_body = base.to_builtins(listed(host, picture))
    return len(json.dumps(json.dumps(message_body))) + OTHER_BYTES
