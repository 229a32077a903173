# SPDX-License-Identifier: Apache-2.0
"""Groups in one run: its planners, their callers, what is watched, and trouble of their own."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

from devel.sim import plan, schedulers
from devel.sim.computes import Host
from devel.sim.conductors import Deliver
from devel.sim.database import SimMemoryDatabase
from devel.sim.groups import judge
from devel.sim.groups.callers import GroupCallers
from devel.sim.groups.descriptions import location_of
from devel.sim.groups.planners import PlannerProcess
from devel.sim.groups.watch import GroupWatch
from devel.sim.loop import Loop
from devel.sim.network import Network, SimServer
from devel.sim.plan import SimFault, SimPlan
from devel.sim.sites import pipeline
from gantt.groups.service.settings import PlannerSettings

MakeRng = Callable[[str], random.Random]


class GroupSide:
    """The groups of a run.

    :ivar callers: the callers that have groups planned
    """

    def __init__(
        self,
        planned: SimPlan,
        loop: Loop,
        database: SimMemoryDatabase,
        network: Network,
        rng: MakeRng,
        deliver: Deliver,
    ) -> None:
        self._plan, self._loop, self._database = planned, loop, database
        self._rng = rng
        self._starts = 0
        self._network = Network(loop, rng('network of planners'), self._servers)
        self._network.rates = planned.rates
        self._watch = GroupWatch(database)
        self.callers = GroupCallers(
            loop,
            network,
            self._network,
            rng('callers of groups'),
            deliver,
            database.confirmed,
            planned.has('lose_host'),
        )
        self.planners = [self._planner() for _ in range(planned.planners)]

    @property
    def planned(self) -> int:
        """Number of plans and changes of groups."""
        return len(self._watch.answers)

    def put_in_racks(self, hosts: Sequence[Host]) -> None:
        """Let hosts be in racks."""
        for number, host in enumerate(hosts):
            host.machine.location = location_of(number)

    def violations(self) -> list[str]:
        """Return a line for each promise that was not kept."""
        return judge.violations(self._database, self.planners, self.callers, self._watch)

    def heal(self) -> None:
        """End the trouble."""
        self._network.rates = plan.Rates()
        for number in range(len(self.planners)):
            self._again(number)

    def has_most(self, hosts: Sequence[Host]) -> Host:
        """Return the host of most members of groups: its loss leaves something to heal."""
        counts = Counter(
            claim.host for claim in self._database.live() if claim.member_name is not None
        )
        return max(hosts, key=lambda host: counts[host.name])

    # -- the trouble ---------------------------------------------------------------------
    def kill_planner(self, fault: SimFault) -> None:
        """Kill a planner now, or at its next write; another one is started after a while."""
        number = fault.whom % len(self.planners)
        process = self.planners[number]
        if fault.when == 'now':
            self._loop.write_trace(process.name, 'is killed')
            process.die()
        else:
            process.arm(fault.when)
        self._loop.at(fault.seconds, self._again, number)

    def skew_planner(self, fault: SimFault, seconds: float) -> None:
        """Set the clock of a planner wrong by so many seconds."""
        self.planners[fault.whom % len(self.planners)].skew = seconds

    def blind_planner(self, fault: SimFault) -> None:
        """Cut a planner off from all news."""
        name = self.planners[fault.whom % len(self.planners)].name
        self._loop.write_trace(name, f'sees no news for {fault.seconds} s')
        self._database.blind.add(name)
        self._loop.at(fault.seconds, self._database.blind.discard, name)

    # -- servers --------------------------------------------------------------------------
    def _servers(self) -> list[SimServer]:
        return [planner for planner in self.planners if planner.alive and planner.ready]

    def _planner(self) -> PlannerProcess:
        self._starts += 1
        settings = schedulers.settings(f'planner-{self._starts}')
        bounds = PlannerSettings(queue_limit=self._plan.queue_limit, plan_seconds=1.0)
        return PlannerProcess(
            self._loop,
            self._database,
            pipeline(),
            settings,
            bounds,
            self._rng(f'solver {self._starts}'),
        )

    def _again(self, number: int) -> None:
        """Start a planner where it is dead."""
        if not self.planners[number].alive:
            self.planners[number] = self._planner()
        self.planners[number].arm('')
