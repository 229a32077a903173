# SPDX-License-Identifier: Apache-2.0
"""Weighing as one would write it down first: host by host, no arrays.

Shares nothing with the weighers but the options that it is given.
"""

import json
from collections.abc import Mapping
from typing import Any

from gantt.core.messages.request import Policy, RequestSpec
from gantt.core.resources.host import Aggregate, HostRow, Placed

Guests = Mapping[int, list[Placed]]


class Site:
    """Hosts with their placed guests, and the options of the weighers."""

    def __init__(
        self,
        hosts: list[HostRow],
        guests: Guests,
        aggregates: list[Aggregate],
        options: Mapping[str, Any],
        now: float,
    ) -> None:
        self.hosts, self.guests, self.aggregates = hosts, guests, aggregates
        self.options, self.now = options, now

    # -- raw values ----------------------------------------------------------------
    def raw(self, weigher: str, spec: RequestSpec) -> dict[str, float] | None:
        """Return raw weights by host; None: no preference."""
        ask = getattr(self, f'_{weigher}')
        weights = {host.name: ask(host, spec) for host in self.hosts}
        if all(value is None for value in weights.values()):
            return None
        return {name: 0.0 if value is None else float(value) for name, value in weights.items()}

    def _free(self, host: HostRow, name: str) -> float:
        inventory = host.facts.inventories.get(name)
        cap = inventory.cap if inventory else 0
        return cap - host.used.get(name, 0) - host.foreign.get(name, 0)

    def _RAMWeigher(self, host, spec):
        return max(0, self._free(host, 'MEMORY_MB'))

    def _CPUWeigher(self, host, spec):
        return max(0, self._free(host, 'VCPU'))

    def _DiskWeigher(self, host, spec):
        return max(0, self._free(host, 'DISK_GB'))

    def _class_ratios(self):
        """Return ratios of classes that a host has or uses, to the nearest 1/1024."""
        pairs = [e.split('=') for e in self.options['class_weight_setting'].split(',') if e]
        ratios = {name.strip(): round(float(ratio) * 1024) / 1024 for name, ratio in pairs}
        used_classes = {n for h in self.hosts for n in (*h.facts.inventories, *h.used, *h.foreign)}
        return {name: ratio for name, ratio in ratios.items() if name in used_classes}

    def _ResourceClassWeigher(self, host, spec):
        ratios = self._class_ratios()
        if not ratios:
            return None
        return sum(ratio * self._free(host, name) for name, ratio in ratios.items())

    def _ends_of_classes(self):
        low = high = 0.0
        for name, ratio in self._class_ratios().items():
            caps = [
                h.facts.inventories[name].cap for h in self.hosts if name in h.facts.inventories
            ]
            end = ratio * max(caps, default=0)
            low, high = low + min(end, 0), high + max(end, 0)
        return low, high

    def _IoOpsWeigher(self, host, spec):
        metric = host.facts.metrics.get('stats.io_workload')
        return metric.value if metric else 0

    def _NumInstancesWeigher(self, host, spec):
        return len(self.guests.get(host.id, []))

    def _HypervisorVersionWeigher(self, host, spec):
        return host.facts.hypervisor.version

    def _PCIWeigher(self, host, spec):
        if not any(h.facts.devices for h in self.hosts):
            return None
        return 100 - min(sum(pool.free for pool in host.facts.devices), 99)

    def _BuildFailureWeigher(self, host, spec):
        metric = host.facts.metrics.get('stats.failed_builds')
        return metric.value if metric else None

    def _CrossCellWeigher(self, host, spec):
        preferred = spec.destination.preferred_cell if spec.destination else None
        if preferred is None:
            return None
        return 1 if host.cell == preferred else -1

    def _members(self, host, spec, policy):
        if spec.group is None or spec.group.policy is not policy:
            return None
        here = self.guests.get(host.id, [])
        members = {p.consumer for p in here if p.group == spec.group.uuid}
        members |= {p.consumer for p in here} & set(spec.group.members)
        return max(len(members), int(host.name in spec.group.hosts))

    def _ServerGroupSoftAffinityWeigher(self, host, spec):
        return self._members(host, spec, Policy.SOFT_AFFINITY)

    def _ServerGroupSoftAntiAffinityWeigher(self, host, spec):
        members = self._members(host, spec, Policy.SOFT_ANTI_AFFINITY)
        return None if members is None else -members

    def _ImagePropertiesWeigher(self, host, spec):
        setting = self.options['image_props_weight_setting']
        pairs = [entry.split('=') for entry in setting.split(',') if entry]
        ratios = {name: float(ratio) for name, ratio in pairs}
        properties = spec.image.properties
        if not [name for name in properties if not ratios or ratios.get(name)]:
            return None
        total = 0.0
        for guest in self.guests.get(host.id, []):
            has = json.loads(guest.image) if guest.image else {}
            for name, value in properties.items():
                if has.get(name) == value:
                    total += ratios.get(name, 0.0) if ratios else 1.0
        return total

    # -- shares --------------------------------------------------------------------
    def shares(self, weigher: str, spec: RequestSpec, kind: str) -> dict[str, float]:
        """Return shares by host; of a weigher without a preference, 0."""
        raw = self.raw(weigher, spec)
        if raw is None:
            return dict.fromkeys([host.name for host in self.hosts], 0.0)
        return getattr(self, f'_by_{kind}')(weigher, raw)

    def _by_nova(self, weigher: str, raw: dict[str, float]) -> dict[str, float]:
        low, high = min(raw.values()), max(raw.values())
        if weigher in ('RAMWeigher', 'CPUWeigher', 'DiskWeigher', 'IoOpsWeigher'):
            low = 0.0
        if high <= low:
            return dict.fromkeys(raw, 0.0)
        return {name: (value - low) / (high - low) for name, value in raw.items()}

    def _by_rank(self, weigher: str, raw: dict[str, float]) -> dict[str, float]:
        levels = sorted(set(raw.values()))
        if len(levels) == 1:
            return dict.fromkeys(raw, 0.0)
        return {name: levels.index(value) / (len(levels) - 1) for name, value in raw.items()}

    CLASSES = {'RAMWeigher': 'MEMORY_MB', 'CPUWeigher': 'VCPU', 'DiskWeigher': 'DISK_GB'}

    def _of_capacity(self, weigher: str, raw: dict[str, float]) -> dict[str, float]:
        caps = {
            host.name: host.facts.inventories[self.CLASSES[weigher]].cap
            for host in self.hosts
            if self.CLASSES[weigher] in host.facts.inventories
        }
        return {name: raw[name] / caps[name] if caps.get(name) else 0.0 for name in raw}

    def _by_fraction(self, weigher: str, raw: dict[str, float]) -> dict[str, float]:
        if weigher in self.CLASSES:
            return self._of_capacity(weigher, raw)
        largest = max(abs(value) for value in raw.values())
        return {name: value / largest if largest else 0.0 for name, value in raw.items()}

    def _by_absolute(self, weigher: str, raw: dict[str, float]) -> dict[str, float]:
        if weigher in self.CLASSES:
            return self._of_capacity(weigher, raw)
        if weigher == 'ResourceClassWeigher':
            low, high = self._ends_of_classes()
            length = high - low
            return {
                name: min(max((value - low) / length, 0.0), 1.0) if length else 0.0
                for name, value in raw.items()
            }
        of = {
            'IoOpsWeigher': lambda v: v / (v + 8),
            'NumInstancesWeigher': lambda v: v / (v + 10),
            'HypervisorVersionWeigher': lambda v: v / (v + 1_000_000),
            'PCIWeigher': lambda v: (v - 1) / 99,
            'BuildFailureWeigher': lambda v: v / (v + 1),
            'ImagePropertiesWeigher': lambda v: v / (v + 1),
            'CrossCellWeigher': lambda v: (v + 1) / 2,
            'ServerGroupSoftAffinityWeigher': lambda v: v / (v + 1),
            'ServerGroupSoftAntiAffinityWeigher': lambda v: 1 / (1 - v),
        }[weigher]
        return {name: of(value) for name, value in raw.items()}

    # -- totals --------------------------------------------------------------------
    def multiplier(self, option: str, host: HostRow) -> float:
        """Return the least value of the host's aggregates, where all values are numbers."""
        texts = [
            a.metadata[option]
            for a in self.aggregates
            if host.name in a.hosts and option in a.metadata
        ]
        try:
            least = min(float(text) for text in texts)
        except ValueError:
            return self.options[option]
        return self.options[option] if any(abs(float(text)) > 1e12 for text in texts) else least

    def totals(self, spec: RequestSpec, kinds: Mapping[str, tuple[str, str]]) -> dict[str, float]:
        """Return sums by host over weighers: name -> (option of the multiplier, normalization)."""
        sums = dict.fromkeys([host.name for host in self.hosts], 0.0)
        for weigher, (option, kind) in kinds.items():
            sign = -1 if weigher == 'BuildFailureWeigher' else 1
            shares = self.shares(weigher, spec, kind)
            for host in self.hosts:
                sums[host.name] += shares[host.name] * sign * self.multiplier(option, host)
        return sums
