# SPDX-License-Identifier: Apache-2.0
"""A zone across the deaths of its processes: its database, the lines to it, its hosts."""

import functools
import random
from collections.abc import Callable

from devel.sim import plan, schedulers
from devel.sim.computes import Host
from devel.sim.database import SimDatabase
from devel.sim.loop import Loop
from devel.sim.network import Network, SimServer
from devel.sim.plan import PlannedZone, SimPlan
from devel.sim.schedulers import SchedulerProcess
from devel.sim.trees.processes import SimZoneProcess, TreeSurroundings
from gantt import plugin_loader
from gantt.core.messages.build import Build
from gantt.core.placement.pipeline import Pipeline
from gantt.zones.model.messages import ParentRecord, ZoneRecord

#: Less often in a tree than in a lone zone: each process polls.
TREE_FEED_SECONDS = 2.5


@functools.cache
def pipeline() -> Pipeline:
    """Return the filters and weighers of all processes."""
    return plugin_loader.load_pipeline()


class ZoneSite:
    """A zone: what there is of it, and who runs.

    :ivar above: the zone directly above; None: it is the top
    :ivar below: the child zones
    :ivar processes: those that there are, the dead ones too
    :ivar network: the lines to its processes
    :param rng: returns the chance of each part
    :param around: what the zones of a tree share; None: it is the only zone
    """

    def __init__(
        self,
        loop: Loop,
        planned: SimPlan,
        zone: PlannedZone,
        database: SimDatabase,
        rng: Callable[[str], random.Random],
        above: 'ZoneSite | None' = None,
        around: TreeSurroundings | None = None,
    ) -> None:
        self.name, self.database = zone.name, database
        self.above, self.below = above, list[ZoneSite]()
        self.uuid = ''
        self._loop, self._plan, self._rng, self._around = loop, planned, rng, around
        self.network = Network(loop, rng('network'), self._servers)
        self.network.rates = planned.rates
        if around is not None:
            self.uuid = database.stores.zones.zone_identity().uuid
            around.networks[self.uuid] = self.network
        if above is not None:
            above.below.append(self)
            self._register(above)
        self.hosts = [self.host(number) for number in range(zone.hosts)]
        self.processes: list[SchedulerProcess] = []
        self._starts = 0
        self._zone = zone

    def start(self) -> None:
        """Start all processes."""
        self.processes = [self._process() for _ in range(self._zone.processes)]

    def host(self, number: int, twin: str = '') -> Host:
        """Return a new machine under the name of a host."""
        return Host(
            self._loop,
            self.network,
            self._rng(f'host {number}{twin}'),
            f'{self.name or "cmp"}-{number + 1}',
            self._allowed,
            self.database.clock.wall,
        )

    def again(self, number: int) -> None:
        """Start a process where it is dead."""
        if not self.processes[number].alive:
            self.processes[number] = self._process()
        self.processes[number].arm('')

    def heal(self) -> None:
        """End the trouble of all but the hosts."""
        self.network.rates = plan.Rates()
        self.network.cut.clear()
        self.database.heal()
        for number, process in enumerate(self.processes):
            process.frozen_until = min(process.frozen_until, self._loop.now)
            self.again(number)

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
                lease_seconds_max=int(plan.LEASE_SECONDS_MAX),
                trusted=True,
            )
        )

    def _process(self) -> SchedulerProcess:
        self._starts += 1
        limits = self._plan.queue_limit, self._plan.report_limit
        if self._around is None:
            settings = schedulers.settings(f'sched-{self._starts}', *limits)
            return SchedulerProcess(self._loop, self.database, pipeline(), settings)
        name = f'{self.name}/{self._starts}'
        settings = schedulers.settings(name, *limits, feed_seconds=TREE_FEED_SECONDS)
        return SimZoneProcess(
            self._loop, self.database, pipeline(), settings, self.name, self._around
        )

    def _servers(self) -> list[SimServer]:
        return [process for process in self.processes if process.alive and process.ready]

    def _allowed(self, build: Build) -> str:
        """Check that a guest starts only after its claim was confirmed."""
        if build.claim_id not in self.database.confirmed:
            return 'its claim was never confirmed'
        if self._plan.has('twin') or self.database.restored:
            return ''  # another agent's report, or an older state, may have ended it since
        claim = self.database.stores.claims.load_claim(build.claim_id)
        state = claim.state.value if claim is not None else 'unknown'
        return '' if state == 'confirmed' else f'its claim is {state}'
