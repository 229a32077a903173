# SPDX-License-Identifier: Apache-2.0
"""Which host stands in which row, and how a row is found by id, name, node and service."""

from collections.abc import Iterable

from gantt.core.resources.host import HostFacts, HostRow

#: Equal to nothing that can come, so that every column of a new host is written.
_BLANK = HostFacts(location='\0')
#: Indices that a copy shares until one of the two changes.
_SHARED = ('_by_name', '_by_lower', '_by_node', '_service_of', '_nodes_of')


class HostIndex:
    """Rows and their names.

    :ivar hosts: the database's rows, by row
    :ivar names: service host names, by row
    :ivar nodes: hypervisor host names, by row
    :ivar by_id: provider id -> row
    """

    def __init__(self) -> None:
        self.hosts: list[HostRow] = []
        self.names: list[str] = []
        self.nodes: list[str] = []
        self.by_id: dict[int, int] = {}
        self._by_name: dict[str, int] = {}
        self._by_lower: dict[str, tuple[int, ...]] = {}
        self._by_node: dict[str, tuple[int, ...]] = {}
        # Of services that run several nodes alone, in both directions: mostly empty.
        self._service_of: dict[int, str] = {}
        self._nodes_of: dict[str, tuple[int, ...]] = {}
        self._is_shared = False

    def copy(self) -> 'HostIndex':
        other = HostIndex()
        for name in _SHARED:
            setattr(other, name, getattr(self, name))
        other.hosts, other.by_id = list(self.hosts), dict(self.by_id)
        other.names, other.nodes = list(self.names), list(self.nodes)
        self._is_shared = other._is_shared = True
        return other

    # -- looking things up ---------------------------------------------------

    def row_of(self, name: str) -> int | None:
        """The row of a service host, None where it is not known."""
        provider_id = self._by_name.get(name)
        return None if provider_id is None else self.by_id[provider_id]

    def known_row(self, provider_id: int) -> HostRow | None:
        """A row by its id, for threads beside the owner's; None: it is not known (any more)."""
        row = self.by_id.get(provider_id)
        # Its owner may move rows meanwhile.
        found = self.hosts[row] if row is not None and row < len(self.hosts) else None
        return found if found is not None and found.id == provider_id else None

    def rows_of_host(self, name: str) -> list[int]:
        """Rows that a service host name stands for, exactly as written.

        One row; of a service that runs several nodes the rows of all of them.
        """
        row = self.row_of(name)
        nodes = [self.by_id[p] for p in self._nodes_of.get(name, ())]
        return nodes if row is None else [row, *nodes]

    def service_apart(self, row: int) -> str:
        """The service host of a row where it has another name, else ''."""
        return self._service_of.get(self.hosts[row].id, '') if self._service_of else ''

    def service_name(self, row: int) -> str:
        """The service host of a row: its own name, but for one of several nodes."""
        return self.service_apart(row) or self.names[row]

    @property
    def services(self) -> list[str]:
        """The service hosts, by row; not to be written to."""
        if not self._service_of:
            return self.names
        return [self.service_name(row) for row in range(len(self.names))]

    @property
    def rows_of_services(self) -> list[list[int]]:
        """The rows of each service that runs several nodes, the service's own name included."""
        return [self.rows_of_host(name) for name in self._nodes_of] if self._nodes_of else []

    def rows_of_same_host(self, row: int) -> list[int]:
        """The row and the others of its service."""
        service = self.service_apart(row)
        return self.rows_of_host(service) if service else [row]

    def rows_of_names(self, names: Iterable[str]) -> list[int]:
        """As :meth:`rows_of_host`, upper and lower case being the same."""
        index, by_id = self._by_lower, self.by_id
        return [by_id[p] for name in names for p in index.get(name.lower(), ())]

    def rows_of_nodes(self, nodes: Iterable[str]) -> list[int]:
        """Rows of hypervisor host names, exactly as written."""
        index, by_id = self._by_node, self.by_id
        return [by_id[p] for node in nodes for p in index.get(node, ())]

    # -- writing ---------------------------------------------------------------

    def append(self, row: HostRow) -> None:
        """A row at the end, without its names."""
        self.by_id[row.id] = len(self.hosts)
        self.names.append('')
        self.nodes.append('')
        self.hosts.append(HostRow(id=row.id, uuid='', name='', version=-1, facts=_BLANK))

    def remove(self, i: int) -> None:
        """Let the last row take the place of this one."""
        self._rename(i, '', '', '')
        del self.by_id[self.hosts[i].id]
        if i != len(self.hosts) - 1:
            self.by_id[self.hosts[-1].id] = i
        last = self.hosts.pop(), self.names.pop(), self.nodes.pop()
        if i < len(self.hosts):
            self.hosts[i], self.names[i], self.nodes[i] = last

    def rename(self, i: int, row: HostRow) -> bool:
        """Follow the names of a row; whether its service is another."""
        node, service = row.node or row.name, service_of(row)
        moved = service != self._service_of.get(row.id, '')
        if moved or (self.names[i], self.nodes[i]) != (row.name, node):
            self._rename(i, row.name, node, service)
        return moved

    def _rename(self, i: int, name: str, node: str, service: str) -> None:
        """:param service: the service host where it is another name, else ''"""
        self._own()
        provider_id = self.hosts[i].id
        old_service = self._service_of.pop(provider_id, '')
        if service:
            self._service_of[provider_id] = service
        if self._by_name.get(self.names[i]) == provider_id:
            del self._by_name[self.names[i]]
        for index, old, new in (
            (self._by_lower, self.names[i].lower(), name.lower()),
            (self._by_lower, old_service.lower(), service.lower()),
            (self._by_node, self.nodes[i], node),
            (self._nodes_of, old_service, service),
        ):
            left = tuple(p for p in index.pop(old, ()) if p != provider_id)
            if left:
                index[old] = left
            if new:
                index[new] = (*index.get(new, ()), provider_id)
        if name:
            self._by_name[name] = provider_id
        self.names[i], self.nodes[i] = name, node

    def _own(self) -> None:
        """Own the indices before they change: snapshots share them."""
        if self._is_shared:
            for name in _SHARED:
                setattr(self, name, dict(getattr(self, name)))
            self._is_shared = False


def service_of(row: HostRow) -> str:
    """The service host of one of several nodes, '' where the host's name is its service's."""
    service = row.facts.hypervisor.service
    return '' if service == row.name else service
