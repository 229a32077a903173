# SPDX-License-Identifier: Apache-2.0
"""HostState: a typed, read-only view of one host.

Per-host plug-ins, the API and the command line read it; the arrays are hidden behind it.
A view reads its table: on a working table it is valid until the next change, on a
snapshot for ever.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from gantt import exceptions
from gantt.core.claims.claim import Claim, claim_id
from gantt.core.messages import base, image_properties
from gantt.core.messages.base import topic_of
from gantt.core.messages.report import DevicePool, Hypervisor, NumaCell, ReportedMetric
from gantt.core.messages.request import Purpose, SelectDestinations, name_of
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import Aggregate, HostKind, HostRow
from gantt.core.table.columns import ByClass, Codes, IntArray
from gantt.core.table.placed_index import PlacedIndex
from gantt.core.table.pools import SharedPools
from gantt.core.topology import fit

#: Provider id -> class -> amount.
Allocations = dict[int, dict[str, int]]


class HostTableView(Protocol):
    """The attributes of the table that a view reads."""

    hosts: list[HostRow]
    classes: Codes
    placed: PlacedIndex
    used: ByClass[np.int64]
    free: ByClass[np.int64]
    io_ops: IntArray
    now: float

    @property
    def known_aggregates(self) -> Mapping[str, Aggregate]: ...

    def codes_at(self, row: int) -> list[int]: ...

    @property
    def pools(self) -> SharedPools: ...

    def pool_for(self, row: int, name: str, amount: int) -> int | None: ...

    def aggregates_of(self, row: HostRow) -> list[str]: ...

    def zone_name(self, row: int) -> str: ...

    def providers_of(self, row: int, amounts: Mapping[str, int]) -> dict[int, dict[str, int]]: ...


class HostState:
    """A read-only view of one row of a host table."""

    __slots__ = ('_row', '_table', 'row')

    def __init__(self, table: HostTableView, row: int) -> None:
        self._table = table
        self.row = row
        self._row: HostRow = table.hosts[row]

    def __repr__(self) -> str:
        return f'<HostState {self.name} row {self.row} version {self.version}>'

    # -- identity ------------------------------------------------------------
    @property
    def provider_id(self) -> int:
        return self._row.id

    @property
    def uuid(self) -> str:
        return self._row.uuid

    @property
    def name(self) -> str:
        """Name of the host: the name of its service, or of one of several nodes."""
        return self._row.name

    @property
    def service(self) -> str:
        """Name of the service host, which may run other hosts as well."""
        return self._row.facts.hypervisor.service or self._row.name

    @property
    def node(self) -> str:
        """Hypervisor host name."""
        return self._row.node or self._row.name

    @property
    def kind(self) -> HostKind:
        return self._row.kind

    @property
    def cell(self) -> str | None:
        return self._row.cell

    @property
    def zone(self) -> str:
        """Availability zone: of an aggregate, else reported, else the default."""
        return self._table.zone_name(self.row)

    @property
    def location(self) -> str:
        """Path ``site.room.rack.host``, any depth, '' where unknown."""
        return self._row.facts.location

    @property
    def build_topic(self) -> str:
        return topic_of(self._row.name)

    @property
    def reporter(self) -> str:
        return self._row.reporter

    # -- resources -----------------------------------------------------------
    @property
    def inventories(self) -> Mapping[str, Inventory]:
        return self._row.facts.inventories

    @property
    def used(self) -> dict[str, int]:
        """Usage by claims and by picks not committed yet, by class."""
        table, inventories, amounts = self._table, self.inventories, {}
        codes = {*table.codes_at(self.row), *map(table.classes.get, inventories)}
        for code in sorted(code for code in codes if code is not None):
            name, amount = table.classes.names[code], table.used.item(code, self.row)
            if amount or name in inventories:
                amounts[name] = amount
        return amounts

    @property
    def foreign(self) -> Mapping[str, int]:
        """Usage outside of any claim, by class."""
        return self._row.foreign

    def free(self, resource_class: str) -> int:
        """Return capacity less all usage; negative if over-committed."""
        code = self._table.classes.get(resource_class)
        return 0 if code is None else int(self._table.free.item(code, self.row))

    def fit(self, demand: Mapping[str, int]) -> fit.Fit:
        """Return whether ``demand`` fits the host now, and the obstacles.

        Classes that a pool provides for the host are not requested of the host itself.
        """
        table, row = self._table, self.row
        if table.pools.have_any(demand):
            demand = {n: a for n, a in demand.items() if table.pool_for(row, n, a) is None}
        return fit.fit(demand, self.inventories, self.used, self.foreign, self.numa, self.devices)

    @property
    def numa(self) -> list[NumaCell]:
        return self._row.facts.numa

    @property
    def devices(self) -> list[DevicePool]:
        return self._row.facts.devices

    # -- capabilities and membership -----------------------------------------
    @property
    def traits(self) -> frozenset[str]:
        return frozenset(self._row.facts.traits)

    @property
    def aggregates(self) -> list[Aggregate]:
        """Aggregates with their metadata, oldest first."""
        aggregates_by_uuid = self._table.known_aggregates
        uuids = self._table.aggregates_of(self._row)
        return [aggregates_by_uuid[uuid] for uuid in uuids if uuid in aggregates_by_uuid]

    def metadata(self, key: str) -> set[str]:
        """Return the values of one key over all aggregates of the host."""
        return {a.metadata[key] for a in self.aggregates if key in a.metadata}

    @property
    def hypervisor(self) -> Hypervisor:
        return self._row.facts.hypervisor

    @property
    def metrics(self) -> Mapping[str, ReportedMetric]:
        return self._row.facts.metrics

    # -- service -------------------------------------------------------------
    @property
    def is_enabled(self) -> bool:
        """True where neither the operator nor the service itself has disabled the host."""
        return self._row.disabled is None and self._row.service_disabled is None

    @property
    def disabled_reason(self) -> str | None:
        return self._row.disabled if self._row.disabled is not None else self._row.service_disabled

    @property
    def over_committed(self) -> bool:
        return self._row.over_committed

    @property
    def reported_at(self) -> float | None:
        """Time of the last report, in seconds of the database's clock; None: never."""
        return self._row.reported_at or None

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the last report; None: it never reported."""
        if not self._row.reported_at:
            return None
        return max(0.0, self._table.now - self._row.reported_at)

    def is_up(self, limit: float) -> bool:
        """Return whether the host reported within ``limit`` seconds."""
        age = self.age_seconds
        return age is not None and age <= limit

    @property
    def generation(self) -> int:
        return self._row.generation

    @property
    def version(self) -> int:
        return self._row.version

    @property
    def epoch(self) -> int:
        return self._row.epoch

    # -- consumers -----------------------------------------------------------
    @property
    def consumers(self) -> list[str]:
        """Consumers with a live claim here, each once."""
        placed = self._table.placed.on_provider(self.provider_id).values()
        return list(dict.fromkeys(p.consumer for p in placed))

    @property
    def instances(self) -> int:
        """Number of live claims on the host."""
        return len(self._table.placed.on_provider(self.provider_id))

    @property
    def flavors(self) -> list[str | None]:
        """Names of the flavors of live claims here, one for each; None: not known."""
        return [p.flavor for p in self._table.placed.on_provider(self.provider_id).values()]

    @property
    def io_ops(self) -> int:
        """Number of guests being built, moved or copied on the host, as far as is known."""
        return int(self._table.io_ops[self.row])

    def instances_of(self, group: str) -> list[str]:
        """Return the consumers of a server group that are on the host."""
        placed = self._table.placed.on_provider(self.provider_id).values()
        return list(dict.fromkeys(p.consumer for p in placed if p.group == group))

    # -- claims ---------------------------------------------------------------
    def instance_claim(
        self,
        request: SelectDestinations,
        member: int,
        attempt: int = 1,
        allocations: Allocations | None = None,
    ) -> Claim:
        """Return the claim of a new consumer on this host, to be committed.

        :param allocations: provider id -> class -> amount; None: as it would be picked now
        :raises InvalidMessage: the request is a move, or claims nothing
        """
        purpose = request.spec.purpose
        if purpose.is_move or purpose is Purpose.REBUILD:
            raise exceptions.InvalidMessage(
                field='request.spec.purpose',
                problem=f'expected create or unshelve for a new claim, got {purpose}',
            )
        return self._claim(request, member, attempt, request.spec.move_id, allocations)

    def resize_claim(
        self,
        request: SelectDestinations,
        member: int,
        attempt: int = 1,
        allocations: Allocations | None = None,
    ) -> Claim:
        """Return the destination's claim of a move; the source's claim is kept until the move ends.

        The two are tied by ``move_id``, derived from the request if it names none.

        :param allocations: as of :meth:`instance_claim`
        :raises InvalidMessage: the request is not a move
        """
        if not request.spec.purpose.is_move:
            raise exceptions.InvalidMessage(
                field='request.spec.purpose',
                problem=f'expected a resize, migration or evacuation, got {request.spec.purpose}',
            )
        move_id = request.spec.move_id or base.derived_id('move', request.request_id, member)
        return self._claim(request, member, attempt, move_id, allocations)

    def claim(
        self,
        request: SelectDestinations,
        member: int,
        attempt: int = 1,
        allocations: Allocations | None = None,
    ) -> Claim:
        """Return ``resize_claim`` for a move, else ``instance_claim``."""
        create_claim = self.resize_claim if request.spec.purpose.is_move else self.instance_claim
        return create_claim(request, member, attempt, allocations)

    def _claim(
        self,
        request: SelectDestinations,
        member: int,
        attempt: int,
        move_id: str | None,
        allocations: Allocations | None,
    ) -> Claim:
        spec = request.spec
        if allocations is None:
            allocations = self._table.providers_of(self.row, spec.resources)
        return Claim(
            id=claim_id(request.request_id, attempt, member),
            request_id=request.request_id,
            attempt=attempt,
            member=member,
            consumer=request.consumers[member],
            provider_id=self.provider_id,
            host=self.name,
            lifecycle=request.claim_lifecycle,
            purpose=spec.purpose,
            allocations=allocations,
            group=spec.group.uuid if spec.group else None,
            member_name=spec.group.member if spec.group else None,
            move_id=move_id,
            image=image_properties.text_of(spec.image) if spec.image.properties else None,
            flavor=name_of(spec.flavor) if spec.flavor.name else None,
            project_id=spec.project_id,
            user_id=spec.user_id,
            consumer_type=spec.consumer_type,
            parent_key=request.parent,
        )
