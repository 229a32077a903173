# SPDX-License-Identifier: Apache-2.0
"""A tree with hosts: unevenly loaded, and how that load changes.

All hosts are of one model.  What a zone has free is drawn around its own mean, and so is whether
it runs out of processors or of memory first, so that neither alone decides how many guests fit.
"""

import msgspec
import numpy as np

from devel.sim.zones.zone import SimZone, Surroundings
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostChange, HostFacts, HostRow, Placed
from gantt.core.table.host_table import HostTable

VCPUS, GIB = 64, 256
#: A trait that hosts of some zones have.
RARE_TRAIT, RARE_SHARE = 'CUSTOM_RARE', 0.05
#: Seconds of the database's clock: hosts have just reported, and no time passes for them.
NOW = 1_000_000.0
#: How unevenly hosts of a zone are loaded: the smaller the more.
LOAD_EVENNESS = 1.2
#: Of the mean free share: between zones of the middle, and between those below one; how far a
#: zone's own one moves in one step; the ends.
BETWEEN, WITHIN, STEP, LEAST_FREE, MOST_FREE = 0.06, 0.06, 0.02, 0.005, 0.6
#: Of the hosts of a zone, those whose guests are others after a step.
STEP_SHARE = 0.01


class SimSite:
    """A zone with hosts, and what its load is drawn from.

    :ivar free: mean share of processors that are free
    :ivar lean: how much more memory than processors is free
    """

    def __init__(self, zone: SimZone, free: float, lean: float, rng: np.random.Generator) -> None:
        self.zone, self.free, self.lean, self._rng = zone, free, lean, rng
        self._draw(range(len(zone.table)))

    def step(self) -> None:
        """Let time pass: claims get into the rows of hosts, some hosts get other guests."""
        self.free = float(np.clip(self.free + self._rng.normal(0, STEP), LEAST_FREE, MOST_FREE))
        zone, table = self.zone, self.zone.table
        for provider_id, claims in zone.laid.items():
            row = table.hosts[table.row_by_id[provider_id]]
            used = dict(row.used)
            for amounts in claims.values():
                for name, amount in amounts.items():
                    used[name] = used.get(name, 0) + amount
            placed = list(table.placed.on_provider(provider_id).values())
            self._write(row, used, placed)
        zone.laid.clear()
        many = self._rng.binomial(len(table), STEP_SHARE)
        self._draw(self._rng.choice(len(table), many, replace=False).tolist())

    def overcommitted(self) -> int:
        """Return hosts with less than nothing left of something."""
        table = self.zone.table
        codes = [table.class_code(name) for name in ('VCPU', 'MEMORY_MB')]
        free = np.stack([table.free_of(code) for code in codes if code is not None])
        return int(np.count_nonzero((free < 0).any(axis=0)))

    def _draw(self, rows: 'range | list[int]') -> None:
        """Draw other guests on these hosts."""
        many, rng = len(rows), self._rng
        vcpus = np.minimum(rng.gamma(LOAD_EVENNESS, self.free / LOAD_EVENNESS, many), 1.0)
        memory = np.clip(vcpus * self.lean * rng.uniform(0.6, 1.4, many), 0.0, 1.0)
        free = zip(
            (vcpus * VCPUS).astype(int).tolist(), (memory * GIB).astype(int).tolist(), strict=True
        )
        for row, (cpus, gib) in zip(rows, free, strict=True):
            used = {'VCPU': VCPUS - cpus, 'MEMORY_MB': (GIB - gib) * 1024}
            self._write(self.zone.table.hosts[row], used, [])

    def _write(self, row: HostRow, used: dict[str, int], placed: list[Placed]) -> None:
        new = msgspec.structs.replace(row, version=row.version + 1, used=used)
        self.zone.table.apply(HostChange(provider_id=row.id, row=new, placed=placed))


def idle(hosts: int, traits: tuple[str, ...] = ()) -> HostTable:
    """Return a table of so many hosts on which nothing runs."""
    inventories = {'VCPU': Inventory(total=VCPUS), 'MEMORY_MB': Inventory(total=GIB * 1024)}
    facts = HostFacts(inventories=inventories, traits=list(traits))
    changes = [
        HostChange(
            provider_id=n,
            row=HostRow(
                id=n, uuid=f'host-{n}', name=f'host-{n}', version=1, facts=facts, reported_at=NOW
            ),
        )
        for n in range(1, hosts + 1)
    ]
    return HostTable.build(changes, [], {}, now=NOW)


class Tree(msgspec.Struct, frozen=True):
    """A tree of three levels: a zone on top, its child zones, and their child zones with the hosts.

    :ivar zones: all of them, those with hosts last
    """

    top: SimZone
    middle: list[SimZone]
    sites: list[SimSite]

    @property
    def zones(self) -> list[SimZone]:
        return [self.top, *self.middle, *(site.zone for site in self.sites)]


def build_tree(
    around: Surroundings, middle: int, sites: int, hosts: int, load: float, seed: int
) -> Tree:
    """Return a tree.

    :param middle: child zones of the top
    :param sites: zones with hosts below each of these
    :param hosts: in each of them
    :param load: mean share of processors in use
    """
    rng = np.random.default_rng(seed)
    plain, rare = idle(hosts), idle(hosts, (RARE_TRAIT,))
    tree = Tree(SimZone('top', around), [], [])
    for i in range(middle):
        between = SimZone(f'm{i}', around)
        tree.top.put_above(between)
        tree.middle.append(between)
        mean = 1.0 - load + rng.normal(0, BETWEEN)
        for k in range(sites):
            table = (rare if rng.random() < RARE_SHARE else plain).copy()
            zone = SimZone(f'm{i}-{k}', around, table)
            between.put_above(zone)
            free = float(np.clip(mean + rng.normal(0, WITHIN), LEAST_FREE, MOST_FREE))
            tree.sites.append(SimSite(zone, free, float(rng.uniform(0.7, 1.4)), rng))
    return tree
