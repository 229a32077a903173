# SPDX-License-Identifier: Apache-2.0
"""A zone across the deaths of its processes: its database, the lines to it, its hosts."""

import random
from collections.abc import Callable

from devel.sim import plan, schedulers
from devel.sim.computes import Host
from devel.sim.network import Network, SimServer
from devel.sim.trees.databases import ZoneDatabase
from devel.sim.trees.plan import PlannedZone
from devel.sim.trees.processes import SimZoneProcess, TreeSurroundings
from gantt.core.messages.build import Build, Delete
from gantt.core.zones.messages import ParentRecord, ZoneRecord

#: Less often than in a lone zone: each process polls.
FEED_SECONDS = 2.5


class ZoneSite:
    """See the module docstring.

    :ivar above: the zone directly above; None: it is the top
    :ivar below: the zones directly below
    :ivar processes: those that there are, the dead ones too; ``all_processes``: those of before too
    :ivar network: the lines to its processes
    """

    def __init__(
        self,
        planned: PlannedZone,
        around: TreeSurroundings,
        database: ZoneDatabase,
        dice: Callable[[str], random.Random],
        above: 'ZoneSite | None',
    ) -> None:
        self.name, self.planned, self.database = planned.name, planned, database
        self.above, self.below = above, list[ZoneSite]()
        self._around = around
        self.uuid = database.stores.zones.zone_identity().uuid
        self.network = Network(around.loop, dice(f'network {self.name}'), self._servers)
        if above is not None:
            above.below.append(self)
            self._register(above)
        self.hosts = [
            Host(
                around.loop,
                self.network,
                dice(f'host {self.name} {number}'),
                f'{self.name}-{number}',
                self._allowed,
                database.file.now,
            )
            for number in range(1, planned.hosts + 1)
        ]
        self.processes: list[SimZoneProcess] = []
        self.all_processes: list[SimZoneProcess] = []
        self._starts = 0

    def start(self) -> None:
        """Start all processes."""
        self.processes = [self._process() for _ in range(self.planned.processes)]

    def again(self, number: int) -> None:
        """Start a process where it is dead."""
        process = self.processes[number]
        if not process.alive:
            self.processes[number] = self._process()

    def host(self, name: str) -> Host | None:
        """Return one of its hosts."""
        return next((host for host in self.hosts if host.name == name), None)

    def deliver(self, name: str, message: Build | Delete) -> bool:
        """Hand a message to the agent of a host; whether it is there."""
        host = self.host(name)
        if host is None or not host.is_there:
            return False
        assert host.process is not None
        host.process.take(message)
        return True

    # -- inside ------------------------------------------------------------------------
    def _register(self, above: 'ZoneSite') -> None:
        url = f'sim://{self.name}'
        record = ZoneRecord(uuid=self.uuid, name=self.name, url=url, trusted=True)
        above.database.stores.zones.save_child_zone(record)
        self.database.stores.zones.save_parent_zone(
            ParentRecord(
                name=above.name,
                identity=above.uuid,
                project_id=f'of-{above.name}',
                enabled=True,
                lease_seconds_max=int(plan.LEASE_MOST),
                trusted=True,
            )
        )

    def _process(self) -> SimZoneProcess:
        self._starts += 1
        name = f'{self.name}/{self._starts}'
        settings = schedulers.settings(name, feed_seconds=FEED_SECONDS)
        process = SimZoneProcess(self._around, name, self.name, self.database, settings)
        self.all_processes.append(process)
        return process

    def _servers(self) -> list[SimServer]:
        return [process for process in self.processes if process.alive and process.ready]

    def _allowed(self, build: Build) -> str:
        """Check that a guest starts only after its claim was confirmed."""
        if self.database.restored:
            return ''
        rows = self.database.rows('SELECT state FROM claims WHERE id = ?', build.claim_id)
        state = rows[0][0] if rows else 'unknown'
        return '' if state == 'confirmed' else f'its claim is {state}'
