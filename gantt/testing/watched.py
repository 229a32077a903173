# SPDX-License-Identifier: Apache-2.0
"""A host table and a spec that note what is read of them."""

from typing import Any

from gantt.core.messages.request import RequestSpec
from gantt.core.table.caches import ArrayCache, MaskCache
from gantt.core.table.columns import COLUMNS, OBJECTS
from gantt.core.table.host_state import HostState
from gantt.core.table.host_table import HostTable

#: Methods and helpers of a table -> the columns that their answers follow from.
READS: dict[str, tuple[str, ...]] = {
    'free_of': ('free',),
    'cap_of': ('cap',),
    'served': ('free',),
    'pool_for': ('free',),
    'pools': ('free',),
    'row_of': ('names',),
    'rows_of_host': ('names',),
    'services': ('names',),
    'service_name': ('names',),
    'rows_of_services': ('names',),
    'rows_beside': ('names',),
    'rows_of_names': ('names',),
    'rows_of_nodes': ('nodes',),
    'rows_of_consumer': ('placed',),
    'aggregate_bits': ('aggregates',),
    'aggregates_of': ('aggregates',),
    'known_aggregates': ('aggregates',),
    'aggregate_codes': ('aggregates',),
    'trait_codes': ('traits',),
    'zones': ('zone',),
    'zone_name': ('zone',),
    'default_zone': ('zone',),
    'location_parts': ('location',),
    'cells': ('cell',),
    'cell_name': ('cell',),
    'locations': ('location',),
    'now': ('now',),
}
_COLUMNS = {**{name: (name,) for name in (*COLUMNS, *OBJECTS)}, **READS}


class WatchedTable:
    """Passes everything on, and notes the columns that are read.

    :ivar read: columns read so far; ``now`` for the clock, ``*`` where a host's whole
        row or state was handed out, whose facts are not followed
    """

    def __init__(self, table: HostTable) -> None:
        self._table = table
        self.read: set[str] = set()
        # Nothing is kept from before: what it was made from would not be read.
        self.mask_cache, self.array_cache = MaskCache(), ArrayCache(table.versions)

    def __len__(self) -> int:
        return len(self._table)

    def __getattr__(self, name: str) -> Any:
        self.read.update(_COLUMNS.get(name, ()))
        if name in ('hosts', 'host_state', 'changes'):
            self.read.add('*')
        return getattr(self._table, name)

    def host_state(self, row: int | str) -> HostState:
        """A view of the real table: what is read of it is not followed."""
        self.read.add('*')
        return self._table.host_state(row)


class WatchedHints(dict[str, list[str]]):
    """Notes which hints are looked for."""

    def __init__(self, hints: dict[str, list[str]]) -> None:
        super().__init__(hints)
        self.columns_read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dict."""
        self.columns_read.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> list[str]:
        self.columns_read.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.columns_read.add(str(name))
        return super().__contains__(name)


class WatchedSpec:
    """Passes everything on, and notes the fields that are read, and the hints."""

    def __init__(self, spec: RequestSpec) -> None:
        self._spec = spec
        self.read: set[str] = set()
        self.hints_requested = WatchedHints(spec.hints)

    def __getattr__(self, name: str) -> Any:
        if name == 'hints':
            self.read.add(name)
            return self.hints_requested
        if name in RequestSpec.__struct_fields__:
            self.read.add(name)
        return getattr(self._spec, name)
