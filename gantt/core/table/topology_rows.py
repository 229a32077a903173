# SPDX-License-Identifier: Apache-2.0
"""The inside of hosts in the table: rooms by row, made when asked for, and their columns."""

from gantt.core.messages.layout import Layout
from gantt.core.resources.host import HostFacts, HostRow, Placed
from gantt.core.table import topology_columns
from gantt.core.table.columns import Columns
from gantt.core.table.placed_index import PlacedIndex
from gantt.core.topology.room import Room, room_of


class InsideRows(Columns):
    """Invariant: columns and room of a row say what its facts and the layouts there leave.

    :ivar kinds: codes of kinds of devices and sizes of pages
    """

    hosts: list[HostRow]
    placed: PlacedIndex

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.kinds = topology_columns.Kinds()
        self._rooms: dict[int, Room] = {}
        self._laid: set[int] = set()  # providers with layouts

    def room(self, row: int) -> Room:
        """What is left inside of a host: to be read, not to be changed."""
        host = self.hosts[row]
        room = self._rooms.get(host.id)
        if room is None:
            layouts: list[Layout | None] = []
            if host.id in self._laid:
                layouts = [placed.layout for placed in self.placed.on(host.id).values()]
            room = self._rooms[host.id] = room_of(host.facts, layouts)
        return room

    def _write_room(self, i: int) -> None:
        """Both anew: facts or layouts are others now."""
        self._rooms.pop(self.hosts[i].id, None)
        topology_columns.write(self, self.kinds, i, self.room(i))

    def _facts_changed(self, i: int, old: HostFacts, new: HostFacts) -> None:
        """``hosts[i]`` has new facts: whatever of them is about its inside."""
        if old is not new and (old.numa, old.devices) != (new.numa, new.devices):
            self._write_room(i)
        elif new.numa and old.inventories != new.inventories:
            self._write_room(i)  # for the ratios

    def _layouts_changed(self, i: int) -> None:
        """Others are placed on ``hosts[i]``."""
        provider_id = self.hosts[i].id
        here = self.placed.on(provider_id)
        layouts = any(placed.layout is not None for placed in here.values())
        if not layouts and provider_id not in self._laid:
            return
        (self._laid.add if layouts else self._laid.discard)(provider_id)
        self._write_room(i)

    def _lay(self, i: int, placed: Placed, is_new: bool) -> None:
        """A pick with a layout was put on ``hosts[i]``."""
        if placed.layout is None:
            return
        room = self._rooms.get(placed.provider_id)
        self._laid.add(placed.provider_id)
        if room is None or not is_new:
            self._write_room(i)
            return
        room.take(placed.layout)
        topology_columns.write(self, self.kinds, i, room)

    def _forget_room(self, provider_id: int) -> None:
        """The host is gone."""
        self._rooms.pop(provider_id, None)
        self._laid.discard(provider_id)

    def _copy_inside(self, other: 'InsideRows') -> None:
        """Let ``other``, whose columns are copied, have an inside of its own."""
        other.kinds = self.kinds.copy()
        other._rooms = {}
        other._laid = set(self._laid)
