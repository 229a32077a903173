# SPDX-License-Identifier: Apache-2.0
"""A placement as one would write it down first: a loop over hosts, no arrays.

Slow and plain on purpose, and sharing nothing with the table, the filters and
the pipeline but the messages.  What it answers is what ``place()`` must answer.
"""

import dataclasses
import math

from gantt.core.messages.request import Policy, RequestSpec, SelectDestinations
from gantt.core.resources.host import Aggregate, HostRow, Placed

FILTERS = (
    'ForcedHostsFilter',
    'IgnoredHostsFilter',
    'RequestedDestinationFilter',
    'ComputeFilter',
    'AvailabilityZoneFilter',
    'AggregatesFilter',
    'TraitsFilter',
    'ResourcesFilter',
    'ServerGroupAntiAffinityFilter',
    'ServerGroupAffinityFilter',
    'SameHostFilter',
    'DifferentHostFilter',
)
#: They run for forced hosts as well.
ALWAYS = {
    'ForcedHostsFilter',
    'IgnoredHostsFilter',
    'ComputeFilter',
    'ResourcesFilter',
    'ServerGroupAntiAffinityFilter',
    'ServerGroupAffinityFilter',
    'RequestedDestinationFilter',
    'AvailabilityZoneFilter',
    'AggregatesFilter',
    'TraitsFilter',
}


@dataclasses.dataclass
class Host:
    """A host as it is now."""

    row: HostRow
    used: dict[str, int]
    placed: list[Placed]


@dataclasses.dataclass
class Member:
    """What became of one member."""

    host: str | None
    removed: dict[str, int]
    verdicts: list[str]  # name of the filter, '' for a survivor
    totals: dict[str, float]


class Cloud:
    """Hosts in the order of the table."""

    def __init__(
        self, hosts: list[tuple[HostRow, list[Placed]]], aggregates: list[Aggregate], now: float
    ) -> None:
        self.hosts = [Host(row, dict(row.used), list(placed)) for row, placed in hosts]
        self.aggregates, self.now = aggregates, now
        #: Claims that members leave which move together.
        self.leaving: list[Placed] = []

    def place(self, request: SelectDestinations) -> tuple[list[Member], dict[str, list[str]]]:
        """Members until one fails, and alternates by cell; picks stay where all succeed."""
        older = self._older(request)
        if request.spec.purpose.is_move:
            self.leaving = [placed for _, placed in older]
            return self._place(request)
        self.leaving = []
        group = request.spec.group
        older = [(host, p) for host, p in older if group is not None and p.group == group.uuid]
        for host, placed in older:
            host.placed.remove(placed)
        try:
            return self._place(request)
        finally:
            for host, placed in older:
                host.placed.append(placed)

    def _older(self, request: SelectDestinations) -> list[tuple[Host, Placed]]:
        """What members of a group that are placed together have from before."""
        group, consumers = request.spec.group, request.consumers
        if group is None or not group.policy.is_hard or len(consumers) == 1:
            return []
        return [(host, p) for host in self.hosts for p in host.placed if p.consumer in consumers]

    def _place(self, request: SelectDestinations) -> tuple[list[Member], dict[str, list[str]]]:
        members: list[Member] = []
        picks: list[tuple[Host, Placed]] = []
        spec = request.spec
        for number, consumer in enumerate(request.consumers):
            member, best = self._member(spec, consumer, request.alternates)
            members.append(member)
            if best is None:
                for host, placed in picks:
                    host.placed.remove(placed)
                    for name, amount in spec.resources.items():
                        host.used[name] -= amount
                for earlier in members:
                    earlier.host = None
                return members, {}
            placed = Placed(
                f'pick {number}', consumer, best.row.id, spec.group.uuid if spec.group else None
            )
            best.placed.append(placed)
            for name, amount in spec.resources.items():
                best.used[name] = best.used.get(name, 0) + amount
            picks.append((best, placed))
        chosen = {host.row.name for host, _ in picks}
        cells = {host.row.name: host.row.cell for host in self.hosts}
        alternates = {}
        for name in chosen:
            same = [
                (-total, [h.row.name for h in self.hosts].index(other), other)
                for other, total in members[-1].totals.items()
                if other not in chosen and cells[other] == cells[name]
            ]
            alternates[name] = [other for _, _, other in sorted(same)][: request.alternates]
        return members, alternates

    def _member(
        self, spec: RequestSpec, consumer: str, alternates: int
    ) -> tuple[Member, Host | None]:
        removed = dict.fromkeys(FILTERS, 0)
        verdicts, alive = [], []
        for host in self.hosts:
            name = next((f for f in FILTERS if not self._passes(f, host, spec, consumer)), '')
            verdicts.append(name)
            if name:
                removed[name] += 1
            else:
                alive.append(host)
        totals = self._weigh(alive, spec)
        best = None
        for host in alive:
            if best is None or totals[host.row.name] > totals[best.row.name]:
                best = host
        return Member(best.row.name if best else None, removed, verdicts, totals), best

    def _passes(self, name: str, host: Host, spec: RequestSpec, consumer: str) -> bool:
        if (spec.force_hosts or spec.force_nodes) and name not in ALWAYS:
            return True
        return getattr(self, f'_{name}')(host, spec, consumer)

    def _ForcedHostsFilter(self, host, spec, consumer):
        by_name = host.row.name.lower() in [n.lower() for n in spec.force_hosts]
        by_node = (host.row.node or host.row.name) in spec.force_nodes
        return (by_name or not spec.force_hosts) and (by_node or not spec.force_nodes)

    def _IgnoredHostsFilter(self, host, spec, consumer):
        return host.row.name.lower() not in [n.lower() for n in spec.ignore_hosts]

    def _RequestedDestinationFilter(self, host, spec, consumer):
        destination = spec.destination
        if destination is None:
            return True
        if destination.host is not None and destination.host != host.row.name:
            return False
        if destination.node is not None and destination.node != (host.row.node or host.row.name):
            return False
        if destination.cell is not None and destination.cell != host.row.cell:
            return False
        return self._in_aggregates(host, destination.aggregates, destination.forbidden_aggregates)

    def _ComputeFilter(self, host, spec, consumer):
        row = host.row
        if row.disabled is not None or row.service_disabled is not None or row.over_committed:
            return False
        return bool(spec.force_hosts or spec.force_nodes) or self.now - row.reported_at <= 180

    def _mine(self, host):
        return [
            a for a in self.aggregates if host.row.name in a.hosts or a.uuid in host.row.aggregates
        ]

    def _told_zone(self, host):
        zones = [
            a.metadata['availability_zone']
            for a in self._mine(host)
            if 'availability_zone' in a.metadata
        ]
        return zones[0] if zones else host.row.zone

    def _zone(self, host):
        return self._told_zone(host) or 'nova'

    def _AvailabilityZoneFilter(self, host, spec, consumer):
        forced = spec.force_hosts or spec.force_nodes
        declared = {a.metadata.get('availability_zone') for a in self.aggregates}
        if forced and spec.availability_zone == 'nova' and 'nova' not in declared:
            return True  # the default zone, which no operator declared: no zone is asked for
        return spec.availability_zone is None or self._zone(host) == spec.availability_zone

    def _in_aggregates(self, host, member_of, forbidden):
        names = {a.name for a in self._mine(host)} | {a.uuid for a in self._mine(host)}
        return all(names & set(any_of) for any_of in member_of) and not names & set(forbidden)

    def _AggregatesFilter(self, host, spec, consumer):
        return self._in_aggregates(host, spec.member_of, spec.forbidden_aggregates)

    def _TraitsFilter(self, host, spec, consumer):
        has = set(host.row.facts.traits)
        return (
            has >= set(spec.required_traits)
            and not has & set(spec.forbidden_traits)
            and all(has & set(names) for names in spec.any_traits)
        )

    def _ResourcesFilter(self, host, spec, consumer):
        for name, amount in spec.resources.items():
            inventory = host.row.facts.inventories.get(name)
            if inventory is None:
                return False
            cap = math.floor((inventory.total - inventory.reserved) * inventory.allocation_ratio)
            use = host.used.get(name, 0) + host.row.foreign.get(name, 0)
            most = inventory.total if inventory.max_unit is None else inventory.max_unit
            if use + amount > cap or amount > most:
                return False
            if amount < inventory.min_unit or amount % inventory.step_size:
                return False
        return True

    def _members(self, host, spec, consumer):
        group = spec.group
        members = {p.consumer for p in host.placed if p.group == group.uuid}
        members |= {p.consumer for p in host.placed} & set(group.members)
        return members - {consumer}

    def _count(self, host, spec, consumer):
        """Members on the host; one that the caller names has one at least, if not the consumer."""
        named = host.row.name in spec.group.hosts
        own = consumer in {p.consumer for p in host.placed}
        return max(len(self._members(host, spec, consumer)), int(named and not own))

    def _staying(self, host, spec, consumer):
        """Members on the host that do not leave it together with this one."""
        stay = {p.consumer for p in host.placed if p not in self.leaving}
        return self._members(host, spec, consumer) & stay

    def _ServerGroupAntiAffinityFilter(self, host, spec, consumer):
        if spec.group is None or spec.group.policy is not Policy.ANTI_AFFINITY:
            return True
        return self._count(host, spec, consumer) < spec.group.max_per_host

    def _ServerGroupAffinityFilter(self, host, spec, consumer):
        if spec.group is None or spec.group.policy is not Policy.AFFINITY:
            return True
        names = {h.row.name for h in self.hosts if self._staying(h, spec, consumer)}
        named = set(spec.group.hosts)
        if self.leaving:  # who is there is known of the hosts that there are
            named -= {h.row.name for h in self.hosts}
        names |= named
        return not names or host.row.name in names

    def _SameHostFilter(self, host, spec, consumer):
        return not spec.same_host or bool({p.consumer for p in host.placed} & set(spec.same_host))

    def _DifferentHostFilter(self, host, spec, consumer):
        return not {p.consumer for p in host.placed} & set(spec.different_host)

    def _free(self, host, name):
        inventory = host.row.facts.inventories.get(name)
        return (
            (inventory.cap if inventory else 0)
            - host.used.get(name, 0)
            - host.row.foreign.get(name, 0)
        )

    def _weigh(self, alive: list[Host], spec: RequestSpec) -> dict[str, float]:
        totals = dict.fromkeys([h.row.name for h in alive], 0.0)
        if not alive:
            return totals
        for name in ('MEMORY_MB', 'VCPU', 'DISK_GB'):
            raw = {h.row.name: max(0.0, float(self._free(h, name))) for h in alive}
            high = max(raw.values())
            for host in raw if high > 0 else ():
                totals[host] += raw[host] / high
        # What was picked and is not committed is being built.
        picks = {h.row.name: sum(p.claim_id.startswith('pick') for p in h.placed) for h in alive}
        for host in picks if max(picks.values()) else ():
            totals[host] -= picks[host] / max(picks.values())
        for policy, sign in ((Policy.SOFT_AFFINITY, 1), (Policy.SOFT_ANTI_AFFINITY, -1)):
            if spec.group is None or spec.group.policy is not policy:
                continue
            counts = {h.row.name: float(sign * self._count(h, spec, '')) for h in alive}
            low, high = min(counts.values()), max(counts.values())
            for host in counts if high > low else ():
                totals[host] += (counts[host] - low) / (high - low)
        return totals
