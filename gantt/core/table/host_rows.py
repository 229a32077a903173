# SPDX-License-Identifier: Apache-2.0
"""How the database's rows stand in the columns, and how a row is found.

The layer under :class:`~gantt.core.table.host_table.HostTable`: writes a host's row
into the arrays, keeps the indices by name, and knows where a class, trait,
zone or aggregate stands.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gantt.core.resources.host import Aggregate, HostFacts, HostRow
from gantt.core.table import hypervisors
from gantt.core.table.codes import Interned
from gantt.core.table.columns import ROWS_MIN, Codes, FloatArray, words_of
from gantt.core.table.mask_cache import KeptArrays, KeptMasks, Versions
from gantt.core.table.metrics import DeclaredMetric
from gantt.core.table.placed_index import PlacedIndex
from gantt.core.table.usage import UsageRows, counters_only

#: Metric columns at most; a metric beyond them stays visible per host only.
METRICS_MAX = 1024
#: Distinct sets of traits whose bits are remembered while encoding.
_TRAIT_SETS_MAX = 4096


class HostRows(UsageRows):
    """Rows, their names and their columns.

    :ivar names: service host names, by row
    :ivar hosts: the database's rows, by row
    :ivar now: seconds of the database's clock, set by the owner
    :ivar seq: counts folds and picks
    :ivar default_zone: the zone of a host that is in no other
    """

    def __init__(self, *, default_zone: str = 'nova', rows: int = ROWS_MIN) -> None:
        super().__init__(rows)
        self.now = 0.0
        self.seq = 0
        self.versions, self.kept_masks = Versions(), KeptMasks()
        self.kept = KeptArrays(self.versions)
        self.default_zone = default_zone
        self.names: list[str] = []
        self.nodes: list[str] = []
        self.hosts: list[HostRow] = []
        self.placed = PlacedIndex()
        self.zones = Codes([''])  # code 0: the default zone, whatever it is called
        self.cells = Codes([''])
        self.locations = Codes([''])
        self.trait_codes = Codes()
        self.platforms = Interned()
        self.aggregate_codes = Codes()
        self.known_aggregates: dict[str, Aggregate] = {}
        #: Metadata of aggregates: key -> uuid -> value.
        self.aggregate_metadata: dict[str, dict[str, str]] = {}
        #: Counts changes of who is in which aggregate, or stands in which row.
        self.membership_seq = 0
        #: Kept by :mod:`gantt.core.table.aggregate_overrides`.
        self.minima: dict[str, tuple[int, FloatArray | None]] = {}
        self.declared_metrics: dict[str, DeclaredMetric] = {}
        self._whole: list[int] = []
        self._by_id: dict[int, int] = {}
        self._by_name: dict[str, int] = {}
        self._by_lower: dict[str, tuple[int, ...]] = {}
        self._by_node: dict[str, tuple[int, ...]] = {}
        # Of services that run several nodes alone, in both directions: mostly empty.
        self._service_of: dict[int, str] = {}
        self._nodes_of: dict[str, tuple[int, ...]] = {}
        self._shared_names = False
        #: Picks of claims that are there without them: a repeat may pick its own place.
        self._there: set[tuple[int, str]] = set()
        self._groups: dict[str, int] = {}
        self._aggregates_of: dict[str, tuple[str, ...]] = {}
        self._trait_sets: dict[tuple[str, ...], tuple[list[str], dict[int, int]]] = {}
        self._packed_ids: bytes | None = None

    # -- looking things up ---------------------------------------------------

    def row_of(self, name: str) -> int | None:
        """The row of a service host, None where it is not known."""
        provider_id = self._by_name.get(name)
        return None if provider_id is None else self._by_id[provider_id]

    def rows_of_host(self, name: str) -> list[int]:
        """Rows that a service host name stands for, exactly as written.

        One row; of a service that runs several nodes the rows of all of them.
        """
        row = self.row_of(name)
        nodes = [self._by_id[p] for p in self._nodes_of.get(name, ())]
        return nodes if row is None else [row, *nodes]

    def service_name(self, row: int) -> str:
        """The service host of a row: its own name, but for one of several nodes."""
        return self._service_of.get(self.hosts[row].id) or self.names[row]

    @property
    def services(self) -> list[str]:
        """The service hosts, by row; not to be written to."""
        if not self._service_of:
            return self.names
        return [self.service_name(row) for row in range(self.count)]

    @property
    def rows_of_services(self) -> list[list[int]]:
        """The rows of each service that runs several nodes, the service's own name included."""
        return [self.rows_of_host(name) for name in self._nodes_of]

    def rows_beside(self, row: int) -> list[int]:
        """The row and the others of its service."""
        service = self._service_of.get(self.hosts[row].id) if self._service_of else None
        return [row] if service is None else self.rows_of_host(service)

    def row_of_id(self, provider_id: int) -> int | None:
        """The row of a root provider, None where it is not known."""
        return self._by_id.get(provider_id)

    @property
    def row_by_id(self) -> Mapping[int, int]:
        """Provider id -> row, of all rows."""
        return self._by_id

    def rows_of_names(self, names: Iterable[str]) -> list[int]:
        """As :meth:`rows_of_host`, upper and lower case being the same."""
        index, by_id = self._by_lower, self._by_id
        return [by_id[p] for name in names for p in index.get(name.lower(), ())]

    def rows_of_nodes(self, nodes: Iterable[str]) -> list[int]:
        """Rows of hypervisor host names, exactly as written."""
        index, by_id = self._by_node, self._by_id
        return [by_id[p] for node in nodes for p in index.get(node, ())]

    def rows_of_consumer(self, consumer: str) -> list[int]:
        """Rows where a consumer has a live claim, as :meth:`row_of` counts them."""
        rows = map(self._by_id.get, self.placed.where(consumer))
        return [row for row in rows if row is not None]

    def aggregate_bits(self, names: Iterable[str]) -> dict[int, int]:
        """Aggregates by uuid or name as word -> bits; the unknown ones have none."""
        wanted = set(names)
        codes = {self.aggregate_codes.get(name) for name in wanted}
        for uuid, aggregate in self.known_aggregates.items():
            if aggregate.name in wanted:
                codes.add(self.aggregate_codes.get(uuid))
        return words_of(code for code in codes if code is not None)

    def zone_name(self, row: int) -> str:
        """The availability zone of a row."""
        return self.zones.names[self.zone[row]] or self.default_zone

    def cell_name(self, row: int) -> str | None:
        """The cell of a row, None where it has none."""
        return self.cells.names[self.cell[row]] or None

    # -- writing ---------------------------------------------------------------

    def _append(self, row: HostRow) -> int:
        i = self.count
        self.reserve(i + 1)
        self._own_names()
        self.count = i + 1
        self.arrays['ids'][i] = row.id
        self._by_id[row.id] = i
        self.names.append('')
        self.nodes.append('')
        # Equal to nothing that can come, so that every column is written.
        self.hosts.append(HostRow(id=row.id, uuid='', name='', version=-1, facts=_BLANK))
        self._whole.append(-1)
        self._packed_ids = None
        return i

    def _remove(self, i: int) -> None:
        self._own_names()
        provider_id, last = self.hosts[i].id, self.count - 1
        self._rename(i, '', '', '')
        self.placed.replace(provider_id, {})
        self._pending.pop(provider_id, None)
        self._fresh.keep(provider_id, ())
        self._forget_room(provider_id)
        del self._by_id[provider_id]
        if i != last:
            self._by_id[self.hosts[last].id] = i
        self.move_row(last, i)
        for column in (self.names, self.nodes, self.hosts, self._whole):
            self._drop(column, i)
        self.count = last
        self.versions.rows += 1
        self._packed_ids = None
        self.facts_seq += 1
        self.membership_seq += 1

    @staticmethod
    def _drop(column: list[Any], i: int) -> None:
        column[i] = column[-1]
        column.pop()

    def _own_names(self) -> None:
        """Own the indices by name before they change: snapshots share them."""
        if not self._shared_names:
            return
        for name in (
            '_by_id',
            '_by_name',
            '_by_lower',
            '_by_node',
            '_service_of',
            '_nodes_of',
        ):
            setattr(self, name, dict(getattr(self, name)))
        self._shared_names = False

    def _rename(self, i: int, name: str, node: str, service: str) -> None:
        """:param service: the service host where it is another name, else ''"""
        self._own_names()
        provider_id = self.hosts[i].id
        old_service = self._service_of.pop(provider_id, '')
        if service:
            self._service_of[provider_id] = service
        if self._by_name.get(self.names[i]) == provider_id:
            del self._by_name[self.names[i]]
        for index, old in (
            (self._by_lower, self.names[i].lower()),
            (self._by_lower, old_service.lower()),
            (self._by_node, self.nodes[i]),
            (self._nodes_of, old_service),
        ):
            left = tuple(p for p in index.get(old, ()) if p != provider_id)
            if left:
                index[old] = left
            else:
                index.pop(old, None)
        for index, new in (
            (self._by_lower, name.lower()),
            (self._by_lower, service.lower()),
            (self._by_node, node),
            (self._nodes_of, service),
        ):
            if new:
                index[new] = (*index.get(new, ()), provider_id)
        if name:
            self._by_name[name] = provider_id
        self.names[i], self.nodes[i] = name, node

    def _write(self, i: int, row: HostRow) -> None:
        """Every column of a row; facts only where they differ from what is there."""
        old = self.hosts[i]
        if counters_only(old, row):
            self.hosts[i] = row
            self._follow_counters(i, old, row)
            return
        node = row.node or row.name
        service = service_beside(row)
        moved = service != self._service_of.get(row.id, '')
        if moved or (self.names[i], self.nodes[i]) != (row.name, node):
            self._rename(i, row.name, node, service)
        if old.facts is not row.facts and old.facts != row.facts:
            self._write_facts(i, row.facts)
            self.facts_seq += 1
        elif old.facts is not row.facts:
            row = msgspec.structs.replace(row, facts=old.facts)  # one copy is enough
        moved |= (old.name, old.cell, old.zone) != (row.name, row.cell, row.zone)
        if moved or old.aggregates != row.aggregates or old.version < 0:
            self._write_membership(i, row)
            self.facts_seq += 1
        self.hosts[i] = row
        self.versions.note(old, row)
        self._facts_changed(i, old.facts, row.facts)
        self.arrays['enabled'][i] = row.disabled is None and row.service_disabled is None
        self._write_counters(i, row)

    def _write_facts(self, i: int, facts: HostFacts) -> None:
        codes = [self.add_class(name) for name in facts.inventories]
        arrays = self.arrays
        arrays['cap'][:, i] = 0
        arrays['largest'][:, i] = 0
        arrays['min_unit'][:, i] = 1
        arrays['step'][:, i] = 1
        arrays['total'][:, i] = 0
        arrays['reserved'][:, i] = 0
        arrays['ratio'][:, i] = 1.0
        for code, inventory in zip(codes, facts.inventories.values(), strict=True):
            arrays['cap'][code, i] = inventory.cap
            arrays['largest'][code, i] = largest = inventory.largest
            arrays['min_unit'][code, i] = inventory.min_unit
            arrays['step'][code, i] = inventory.step_size
            arrays['total'][code, i] = inventory.total
            arrays['reserved'][code, i] = inventory.reserved
            arrays['ratio'][code, i] = inventory.allocation_ratio
            # Bounds only ever widen: a looser one costs a comparison, never an answer.
            self.largest_floor[code] = min(self.largest_floor[code], largest)
            self.min_ceiling[code] = max(self.min_ceiling[code], inventory.min_unit)
            self.has_step[code] = self.has_step[code] or inventory.step_size != 1
        self._write_traits(i, facts)
        arrays['location'][i] = self.locations.add(facts.location)
        arrays['hypervisor_version'][i] = facts.hypervisor.version
        hypervisors.write(self, self.platforms, i, self.hosts[i], facts)
        self.blank_metrics(i)
        for name, metric in facts.metrics.items():
            if name in self._metric_arrays or len(self._metric_arrays) < METRICS_MAX:
                self.write_metric(name, i, metric.value, metric.age_seconds)

    def _write_traits(self, i: int, facts: HostFacts) -> None:
        key = tuple(facts.traits)
        known = self._trait_sets.get(key)
        if known is None:
            if len(self._trait_sets) >= _TRAIT_SETS_MAX:
                self._trait_sets.clear()
            codes = [self.trait_codes.add(name) for name in key]
            shared = [self.trait_codes.names[code] for code in codes]
            known = self._trait_sets[key] = (shared, words_of(codes))
        # Hosts of one kind have equal lists of a hundred names: keep one of them.
        msgspec.structs.force_setattr(facts, 'traits', known[0])
        self.widen(('traits',), max(known[1], default=0) + 1)
        bits = self.arrays['traits']
        bits[:, i] = 0
        for word, value in known[1].items():
            bits[word, i] = value

    def aggregates_of(self, row: HostRow) -> list[str]:
        """Uuids of the aggregates that a host is in, in the order of their age."""
        known = self._aggregates_of.get(row.name, ())
        service = self._service_of.get(row.id) if self._service_of else None
        if service is not None:
            # Nova lists services, and an operator of ours may list a node.
            both = {*known, *self._aggregates_of.get(service, ())}
            known = tuple(uuid for uuid in self.known_aggregates if uuid in both)
        # Membership is told by the API (the list) and by the host's reporter (the
        # row); either is enough.
        fresh = [uuid for uuid in row.aggregates if uuid not in known]
        return [*known, *fresh]

    def _write_membership(self, i: int, row: HostRow) -> None:
        uuids = self.aggregates_of(row)
        words = words_of([self.aggregate_codes.add(uuid) for uuid in uuids])
        self.widen(('aggregates',), max(words, default=0) + 1)
        bits = self.arrays['aggregates']
        bits[:, i] = 0
        for word, value in words.items():
            bits[word, i] = value
        zone = row.zone or ''
        for uuid in uuids:
            aggregate = self.known_aggregates.get(uuid)
            if aggregate is not None and aggregate.metadata.get('availability_zone'):
                zone = aggregate.metadata['availability_zone']
                break
        self.membership_seq += 1
        self.arrays['zone'][i] = self.zones.add(zone)
        self.arrays['cell'][i] = self.cells.add(row.cell or '')

    def providers_of(self, row: int, amounts: Mapping[str, int]) -> dict[int, dict[str, int]]:
        """Provider id -> class -> amount: the host's own, and those of pools it shares."""
        own = int(self.ids[row])
        if not self.pooled:
            return {own: dict(amounts)}
        by_pool = {k: provider_id for (provider_id, _), k in self.pool_ids.items()}
        found: dict[int, dict[str, int]] = {}
        for name, amount in amounts.items():
            code = self.classes.get(name)
            k = int(self.pool[code, row]) if code is not None else -1
            found.setdefault(by_pool[k] if k >= 0 else own, {})[name] = amount
        return found


def service_beside(row: HostRow) -> str:
    """The service host of one of several nodes, '' where the host's name is its service's."""
    service = row.facts.hypervisor.service
    return '' if service == row.name else service


_BLANK = HostFacts(location='\0')
