# SPDX-License-Identifier: Apache-2.0
"""The index of hosts: rows by id, name, node and service."""

from collections.abc import Iterable

from gantt.core.resources.host import HostFacts, HostRow

#: Equal to no facts that can be reported, so that every column of a new host is written.
_BLANK_FACTS = HostFacts(location='\0')
#: Indices that a copy shares until one of the two changes.
_SHARED_INDICES = ('_by_name', '_by_lower', '_by_node', '_service_of', '_nodes_of')


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
        # By name, by name in lower case and by node -> provider ids: a row may move, an id not.
        self._by_name: dict[str, int] = {}
        self._by_lower: dict[str, tuple[int, ...]] = {}
        self._by_node: dict[str, tuple[int, ...]] = {}
        # Only of services that run several nodes, in both directions: mostly empty.
        self._service_of: dict[int, str] = {}
        self._nodes_of: dict[str, tuple[int, ...]] = {}
        # True where a copy has the same dictionaries: the first change copies them.
        self._is_shared = False

    def copy(self) -> 'HostIndex':
        other = HostIndex()
        for name in _SHARED_INDICES:
            setattr(other, name, getattr(self, name))
        other.hosts, other.by_id = list(self.hosts), dict(self.by_id)
        other.names, other.nodes = list(self.names), list(self.nodes)
        self._is_shared = other._is_shared = True
        return other

    # -- look-ups ------------------------------------------------------------

    def row_of(self, name: str) -> int | None:
        """Return the row of a service host, None if it is not known."""
        provider_id = self._by_name.get(name)
        return None if provider_id is None else self.by_id[provider_id]

    def known_row(self, provider_id: int) -> HostRow | None:
        """Return a host by id, also from other threads than the owner's; None: not known."""
        row = self.by_id.get(provider_id)
        # Its owner may move rows meanwhile.
        host = self.hosts[row] if row is not None and row < len(self.hosts) else None
        return host if host is not None and host.id == provider_id else None

    def rows_of_host(self, name: str) -> list[int]:
        """Return the rows of a service host name, which is case-sensitive.

        One row; of a service that runs several nodes the rows of all of them.
        """
        row = self.row_of(name)
        nodes = [self.by_id[p] for p in self._nodes_of.get(name, ())]
        return nodes if row is None else [row, *nodes]

    def separate_service(self, row: int) -> str:
        """Return the service host of a row if it has another name, else ''."""
        return self._service_of.get(self.hosts[row].id, '') if self._service_of else ''

    def service_name(self, row: int) -> str:
        """Return the service host of a row: its own name, except for one of several nodes."""
        return self.separate_service(row) or self.names[row]

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
        """Return the row and the other rows of its service."""
        service = self.separate_service(row)
        return self.rows_of_host(service) if service else [row]

    def rows_of_names(self, names: Iterable[str]) -> list[int]:
        """Return the rows of service host names, as :meth:`rows_of_host`, but case-insensitive."""
        index, by_id = self._by_lower, self.by_id
        return [by_id[p] for name in names for p in index.get(name.lower(), ())]

    def rows_of_nodes(self, nodes: Iterable[str]) -> list[int]:
        """Return the rows of hypervisor host names, which are case-sensitive."""
        index, by_id = self._by_node, self.by_id
        return [by_id[p] for node in nodes for p in index.get(node, ())]

    # -- writing ---------------------------------------------------------------

    def append(self, row: HostRow) -> None:
        """Append a row, without its names."""
        self.by_id[row.id] = len(self.hosts)
        self.names.append('')
        self.nodes.append('')
        self.hosts.append(HostRow(id=row.id, uuid='', name='', version=-1, facts=_BLANK_FACTS))

    def remove(self, i: int) -> None:
        """Remove a row, and move the last row into its place."""
        self._rename(i, '', '', '')
        del self.by_id[self.hosts[i].id]
        if i != len(self.hosts) - 1:
            self.by_id[self.hosts[-1].id] = i
        last = self.hosts.pop(), self.names.pop(), self.nodes.pop()
        if i < len(self.hosts):
            self.hosts[i], self.names[i], self.nodes[i] = last

    def rename(self, i: int, row: HostRow) -> bool:
        """Update the names of a row; return whether its service has changed."""
        node, service = row.node or row.name, service_of(row)
        moved = service != self._service_of.get(row.id, '')
        if moved or (self.names[i], self.nodes[i]) != (row.name, node):
            self._rename(i, row.name, node, service)
        return moved

    def _rename(self, i: int, name: str, node: str, service: str) -> None:
        """Replace the names of a row; ``service`` is '' if it equals the host's name."""
        self._unshare()
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
            remaining = tuple(p for p in index.pop(old, ()) if p != provider_id)
            if remaining:
                index[old] = remaining
            if new:
                index[new] = (*index.get(new, ()), provider_id)
        if name:
            self._by_name[name] = provider_id
        self.names[i], self.nodes[i] = name, node

    def _unshare(self) -> None:
        """Copy the indices before a change, if snapshots share them."""
        if self._is_shared:
            for name in _SHARED_INDICES:
                setattr(self, name, dict(getattr(self, name)))
            self._is_shared = False


def service_of(row: HostRow) -> str:
    """Return the service host of one of several nodes, '' if it has the host's name."""
    service = row.facts.hypervisor.service
    return '' if service == row.name else service
