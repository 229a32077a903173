# SPDX-License-Identifier: Apache-2.0
"""Views of hosts for operators: lists, details, all in a few numbers, obstacles of a drain.

Everything here reads one snapshot of the host table; only the claims of a single host are read from
the database.
"""

import collections
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.claims.claim import Claim, Lifecycle, State
from gantt.core.messages import resource_classes
from gantt.core.messages.base import topic_of
from gantt.core.messages.near import did_you_mean, nearest_names
from gantt.core.resources import host_keys
from gantt.core.resources.host import INVENTORIES_BY_API, HostRow, UnreadableFacts
from gantt.core.resources.host_keys import HostKey
from gantt.core.table.columns import IntArray
from gantt.core.table.host_table import HostTable
from gantt.insights.explain import wording
from gantt.insights.views import (
    ClaimView,
    ClassUsage,
    HostCondition,
    HostDetail,
    HostSummary,
    ObstacleKind,
    ObstacleView,
    ResourceUse,
    UseBelow,
    View,
    age_seconds,
    view_of,
)

#: Conditions by their code in ``HostMap.condition``.
CONDITIONS = (
    HostCondition.UP,
    HostCondition.STALE,
    HostCondition.NEW,
    HostCondition.DISABLED,
    HostCondition.OVER_COMMITTED,
)


#: Maximum number of hosts with unreadable records that a status names.
UNREADABLE_MAX = 10


class HostQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query of hosts, and their order.

    :ivar part: part of the host's name
    :ivar sort: name, zone, condition, claims, report_age or ``free:CLASS``; a
        ``-`` before it reverses the order
    :ivar marker: name of the last host of the page before
    """

    condition: HostCondition | None = None
    zone: str | None = None
    aggregate: str | None = None
    part: str | None = None
    sort: str = 'name'
    limit: int = 100
    marker: str | None = None


class HostPage(msgspec.Struct, frozen=True):
    """A page of hosts; ``total`` counts the pages before and after as well."""

    hosts: list[HostSummary]
    total: int
    table_age_seconds: float
    next_marker: str | None


class HostMap(View, frozen=True, kw_only=True):
    """All hosts, by name, and one resource class of them; the arrays go together.

    :ivar classes: resource classes that some host has
    :ivar conditions: meaning of the numbers of ``condition``; likewise ``zones`` of ``zone``
    :ivar free: cap less use; negative where over-committed
    :ivar cap: capacity that may be promised; 0: it has nothing of the class
    :ivar claims: live claims on it
    :ivar report_age_seconds: whole seconds; -1: it never reported
    """

    resource_class: str
    unit: str
    classes: list[str]
    table_age_seconds: float
    stale_after_seconds: float
    conditions: list[str]
    zones: list[str]
    hosts: list[str]
    condition: list[int]
    zone: list[int]
    free: list[int]
    cap: list[int]
    claims: list[int]
    report_age_seconds: list[int]


class HostReader:
    """Views of the hosts of one table.

    :param stale_after: seconds after which a host without a report is stale
    """

    def __init__(self, table: HostTable, stale_after: float) -> None:
        self.table = table
        self._stale_after = stale_after

    # -- one host ---------------------------------------------------------------
    def row(self, name: str) -> int:
        """Return the row of a host.

        :raises NotFound: naming hosts of a similar name
        """
        row = self.table.row_of(name)
        if row is not None:
            return row
        similar = nearest_names(name, self.table.names)
        raise exceptions.NotFound(
            f'host {name!r} was not found{did_you_mean(similar)}',
            kind='host',
            name=name,
            near=similar,
        )

    @functools.cached_property
    def codes(self) -> IntArray:
        """The condition of every row, by its place in ``CONDITIONS``."""
        table = self.table
        holds = {
            HostCondition.DISABLED: ~table.enabled,
            HostCondition.OVER_COMMITTED: table.over_committed,
            HostCondition.NEW: table.reported_at == 0,
            HostCondition.STALE: table.now - table.reported_at > self._stale_after,
        }
        codes = [CONDITIONS.index(condition) for condition in holds]
        return np.select(list(holds.values()), codes, CONDITIONS.index(HostCondition.UP))

    def condition(self, row: int) -> HostCondition:
        """Return the condition of a host."""
        return CONDITIONS[self.codes[row]]

    def summary(self, row: int) -> HostSummary:
        """Return the summary of a host, as in a list."""
        host = self.table.hosts[row]
        reason = host.disabled if host.disabled is not None else host.service_disabled
        names = wording.classes_in_order(host.facts.inventories)
        return HostSummary(
            name=host.name,
            node=host.node or host.name,
            uuid=host.uuid,
            condition=self.condition(row),
            reason=reason or '',
            disabled_by=(host.disabled_by or '') if host.disabled is not None else '',
            zone=self.table.zone_name(row) or None,
            aggregates=self._aggregate_names(host),
            report_age_seconds=self._report_age(host),
            free={name: self._free_amount(name, row) for name in names},
            cap={name: host.cap(name) for name in names},
            claims=int(self.table.instances[row]),
        )

    def detail(self, row: int, claims: Sequence[ClaimView], truncated: bool) -> HostDetail:
        """Return a host with all details.

        :param claims: its live claims
        :param truncated: it has more of them
        """
        host = self.table.hosts[row]
        facts = host.facts
        use = self._resource_uses(host, row, claims)
        return view_of(
            HostDetail,
            host,
            host=self.summary(row),
            kind=host.kind.value,
            location=facts.location,
            build_topic=topic_of(host.name),
            reporter=host.reporter,
            key=_parse_sort_key(host.key),
            inventories_by='reports' if host.reports_inventories else INVENTORIES_BY_API,
            traits=sorted(facts.traits),
            hypervisor_type=facts.hypervisor.type,
            hypervisor_version=facts.hypervisor.version,
            numa_cells=len(facts.numa),
            devices=sum(pool.count for pool in facts.devices),
            metrics={name: metric.value for name, metric in sorted(facts.metrics.items())},
            use=use,
            differences=list(self._differences(host, row, use, claims, truncated)),
            claims=list(claims),
            claims_truncated=truncated,
            below=self._uses_below(host),
        )

    def _uses_below(self, host: HostRow) -> list[UseBelow]:
        pools = self.table.pools
        uses = []
        for pool in (pools.by_id[provider] for provider in pools.nested.of_host(host.id)):
            for name, inventory in sorted(pool.inventories.items()):
                free = pools.free(pool.id, name)
                uses.append(
                    UseBelow(
                        provider=pool.name,
                        uuid=pool.uuid,
                        resource_class=name,
                        cap=inventory.cap,
                        used=inventory.cap - free,
                        free=free,
                    )
                )
        return sorted(uses, key=lambda use: (use.provider, use.resource_class))

    def _aggregate_names(self, host: HostRow) -> list[str]:
        aggregates = self.table.known_aggregates
        uuids = self.table.aggregates_of(host)
        return [aggregates[uuid].name if uuid in aggregates else uuid for uuid in uuids]

    def _report_age(self, host: HostRow) -> float | None:
        if not host.reported_at:
            return None
        return age_seconds(self.table.now, host.reported_at)

    def _free_amount(self, name: str, row: int) -> int:
        code = self.table.class_code(name)
        return 0 if code is None else int(self.table.free_of(code)[row])

    def _resource_uses(
        self, host: HostRow, row: int, claims: Iterable[ClaimView]
    ) -> list[ResourceUse]:
        claimed: collections.Counter[str] = collections.Counter()
        reserved: collections.Counter[str] = collections.Counter()
        for claim in claims:
            claimed.update(claim.host_resources)
            if claim.state == 'reserved':
                reserved.update(claim.host_resources)
        names = wording.classes_in_order({*host.facts.inventories, *host.used, *host.foreign})
        return [
            ResourceUse(
                resource_class=name,
                total=inventory.total if inventory else 0,
                reserved=inventory.reserved if inventory else 0,
                allocation_ratio=inventory.allocation_ratio if inventory else 1.0,
                cap=host.cap(name),
                claimed=claimed[name],
                reserved_claims=reserved[name],
                foreign=host.foreign.get(name, 0),
                reported=claimed[name] - reserved[name] + host.foreign.get(name, 0),
                believed=host.used.get(name, 0) + host.foreign.get(name, 0),
                free=self._free_amount(name, row),
            )
            for name in names
            for inventory in [host.facts.inventories.get(name)]
        ]

    def _differences(
        self,
        host: HostRow,
        row: int,
        use: Sequence[ResourceUse],
        claims: Sequence[ClaimView],
        truncated: bool,
    ) -> Iterable[str]:
        """Yield why believed, reported and claimed use differ, a sentence each."""
        waiting = [claim for claim in claims if claim.state == 'reserved']
        if waiting:
            amounts = {
                resource.resource_class: resource.reserved_claims
                for resource in use
                if resource.reserved_claims
            }
            first = min(claim.lease_seconds or 0.0 for claim in waiting)
            ends = (
                f'the first lease ends in {wording.age_text(first)}'
                if first > 0
                else 'a lease is over'
            )
            yield (
                f'claimed but not confirmed by the host yet: {wording.shape_text(amounts)} '
                f'in {wording.counted_noun(len(waiting), "claim")}; {ends}'
            )
        foreign = {
            resource.resource_class: resource.foreign for resource in use if resource.foreign
        }
        if foreign:
            yield f'runs outside any claim, as the host reports: {wording.shape_text(foreign)}'
        adopted = sum(claim.adopted for claim in claims)
        if adopted:
            yield (
                f'{wording.counted_noun(adopted, "claim")} adopted: the host was found running '
                'what nobody asked for here'
            )
        if not truncated:
            yield from _usage_drift(host, use)
        over = {resource.resource_class: -resource.free for resource in use if resource.free < 0}
        if over:
            yield (
                f'over-committed by {wording.shape_text(over)}: nothing new lands here, '
                'nothing is killed'
            )
        if self.condition(row) is HostCondition.STALE:
            age_text = wording.age_text(self._report_age(host))
            yield f'the last report is {age_text} old: what the host runs may have changed since'

    # -- many hosts -------------------------------------------------------------------
    def page(self, query: HostQuery, table_age: float) -> HostPage:
        """Return the hosts that match, in order.

        :raises InvalidMessage: an unknown sort key, or a marker that is no host
        :raises NotFound: the aggregate is not known
        """
        matching = {row for row in range(len(self.table)) if self._matches(row, query)}
        total = len(matching)
        marker = None if query.marker is None else self.table.row_of(query.marker)
        if marker is None and query.marker is not None:
            raise exceptions.invalid(
                'query.marker',
                f'expected a known host; got {query.marker!r}; begin without a marker',
            )
        # A host that matches no more since the last page still marks where that ended.
        order = sorted(matching | ({marker} if marker is not None else set()), key=self._sort_name)
        descending = query.sort.startswith('-')
        order.sort(key=self._sort_key(query.sort.removeprefix('-')), reverse=descending)
        start = 0 if marker is None else order.index(marker) + 1
        rows = order[start : start + query.limit]
        more = start + len(rows) < len(order)
        return HostPage(
            hosts=[self.summary(row) for row in rows],
            total=total,
            table_age_seconds=round(table_age, 3),
            next_marker=self.table.names[rows[-1]] if more and rows else None,
        )

    def _sort_name(self, row: int) -> str:
        return self.table.names[row]

    def _matches(self, row: int, query: HostQuery) -> bool:
        if query.part is not None and query.part.lower() not in self.table.names[row].lower():
            return False
        if query.zone is not None and self.table.zone_name(row) != query.zone:
            return False
        if query.aggregate is not None and not self._in_aggregate(row, query.aggregate):
            return False
        return query.condition is None or self.condition(row) is query.condition

    def _in_aggregate(self, row: int, aggregate: str) -> bool:
        host = self.table.hosts[row]
        return aggregate in self._aggregate_names(host) or aggregate in self.table.aggregates_of(
            host
        )

    def _sort_key(self, name: str) -> Callable[[int], Any]:
        hosts = self.table.hosts
        keys: dict[str, Callable[[int], Any]] = {
            'name': lambda row: self.table.names[row],
            'zone': lambda row: self.table.zone_name(row) or '',
            'condition': lambda row: self.condition(row).value,
            'claims': lambda row: int(self.table.instances[row]),
            'report_age': lambda row: -hosts[row].reported_at,
        }
        if name.startswith('free:'):
            code = self.table.class_code(name.removeprefix('free:'))
            if code is not None:
                free = self.table.free_of(code)
                return lambda row: int(free[row])
        elif name in keys:
            return keys[name]
        raise exceptions.invalid(
            'query.sort',
            f'expected one of {", ".join(keys)} or free:CLASS of a class that a host has, '
            f'with or without "-" before it; got {name!r}',
        )

    def map(self, resource_class: str, table_age: float) -> HostMap:
        """Return a few numbers of every host, an array for each, so that one answer has them all.

        :param table_age: seconds since the table was last current
        :raises InvalidMessage: not the name of a resource class
        """
        table = self.table
        if not resource_classes.is_class_name(resource_class):
            raise exceptions.invalid(
                'query.resource_class',
                f'expected a resource class, e.g. VCPU; got {resource_class!r}',
            )
        rows = np.array(sorted(range(len(table)), key=table.names.__getitem__), np.int64)
        ages = np.maximum(0, table.now - table.reported_at).astype(np.int64)
        ages[table.reported_at == 0] = -1
        free = cap = np.zeros(len(table), np.int64)
        code = table.class_code(resource_class)
        if code is not None:
            free, cap = table.free_of(code), table.cap_of(code)
        return HostMap(
            resource_class=resource_class,
            unit=resource_classes.CLASS_UNITS.get(resource_class, ''),
            classes=wording.classes_in_order(
                {
                    class_name
                    for class_code, class_name in enumerate(table.classes.names)
                    if (table.cap_of(class_code) > 0).any()
                }
            ),
            table_age_seconds=round(table_age, 3),
            stale_after_seconds=self._stale_after,
            conditions=[condition.value for condition in CONDITIONS],
            zones=[name or table.default_zone for name in table.zones.names],
            hosts=[table.names[row] for row in rows],
            condition=self.codes[rows].tolist(),
            zone=table.zone[rows].tolist(),
            free=free[rows].tolist(),
            cap=cap[rows].tolist(),
            claims=table.instances[rows].tolist(),
            report_age_seconds=ages[rows].tolist(),
        )

    @functools.cached_property
    def conditions(self) -> dict[str, int]:
        """Number of hosts in each condition, every condition named."""
        counts = np.bincount(self.codes, minlength=len(CONDITIONS)).tolist()
        return {condition.value: count for condition, count in zip(CONDITIONS, counts, strict=True)}

    @property
    def unreadable(self) -> dict[str, str]:
        """Host whose record cannot be read -> why; the first of them."""
        closed = (self.table.hosts[row] for row in np.flatnonzero(~self.table.enabled).tolist())
        problems = {
            host.name: host.service_disabled or ''
            for host in closed
            if isinstance(host.facts, UnreadableFacts)
        }
        return dict(sorted(problems.items())[:UNREADABLE_MAX])

    def usage(self) -> list[ClassUsage]:
        """Return sums by class over the hosts that may take claims and the pools serving them."""
        cap: collections.Counter[str] = collections.Counter()
        used: collections.Counter[str] = collections.Counter()
        foreign: collections.Counter[str] = collections.Counter()
        pools = self.table.pools
        up = np.flatnonzero(self.codes == CONDITIONS.index(HostCondition.UP)).tolist()
        hosts = [self.table.hosts[row] for row in up]
        beside = {pool for host in hosts for pool in pools.nested.of_host(host.id)}
        beside.update(pool for host in hosts for pool in pools.of_host(host.id))
        sources = [(host.facts.inventories, host.used, host.foreign) for host in hosts]
        for pool in map(pools.by_id.__getitem__, beside):
            sources.append((pool.inventories, pool.used, pool.foreign))
        for inventories, used_of, foreign_of in sources:
            for name, inventory in inventories.items():
                cap[name] += inventory.cap
            used.update(used_of)
            foreign.update(foreign_of)
        return [
            ClassUsage(
                resource_class=name,
                cap=cap[name],
                claimed=used[name],
                foreign=foreign[name],
                free=cap[name] - used[name] - foreign[name],
                unit=resource_classes.CLASS_UNITS.get(name, ''),
            )
            for name in wording.classes_in_order({*cap, *used, *foreign})
        ]


def _usage_drift(host: HostRow, use: Iterable[ResourceUse]) -> Iterable[str]:
    for usage in use:
        counted = host.used.get(usage.resource_class, 0)
        if counted != usage.claimed:
            yield (
                f'{usage.resource_class}: {counted} counted as claimed, but the live claims sum to '
                f'{usage.claimed}; if it stays so, run "gantt-manage audit"'
            )


def _parse_sort_key(key: HostKey | None) -> str | None:
    if key is None or not key.public:
        return None
    return host_keys.fingerprint(key.public) + (' (revoked)' if key.is_revoked else '')


def drain_obstacles(
    claims: Iterable[ClaimView], elsewhere_claims: Iterable[Claim]
) -> list[ObstacleView]:
    """Return an obstacle for each live claim on a host that is being emptied.

    Those that end by themselves come last.

    :param claims: the live claims of the host
    :param elsewhere_claims: live claims of the same consumers, on any host
    """
    places: dict[str, set[str]] = collections.defaultdict(set)
    for claim in elsewhere_claims:
        if claim.host or claim.child:  # on a pool it may lie beside its host
            places[claim.consumer].add(claim.host or 'a host of a zone below')
    views = [_obstacle_view(claim, places[claim.consumer] - {claim.host}) for claim in claims]
    order = list(ObstacleKind)
    return sorted(views, key=lambda obstacle: (order.index(obstacle.kind), obstacle.claim.id))


def _obstacle_view(view: ClaimView, others: set[str]) -> ObstacleView:
    if view.lifecycle == Lifecycle.API:
        kind, remedy = ObstacleKind.ALLOCATED, 'ends when whoever wrote it by the API deletes it'
    elif view.state == State.RESERVED:
        kind, remedy = ObstacleKind.IN_FLIGHT, _lease_text(view)
    elif others:
        there = ', '.join(sorted(others))
        kind, remedy = ObstacleKind.MOVING, f'also on {there}: ends when its move does'
    else:
        kind, remedy = ObstacleKind.RUNNING, 'runs here: move it away or delete it'
    return ObstacleView(kind=kind, claim=view, remedy=remedy)


def _lease_text(view: ClaimView) -> str:
    request = f'of request {view.request_id}, ' if view.request_id else ''
    seconds = max(0.0, view.lease_seconds or 0.0)
    return f'{request}not confirmed yet: it ends, or runs here, within {seconds:.0f} s'
