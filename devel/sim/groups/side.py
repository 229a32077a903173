# SPDX-License-Identifier: Apache-2.0
"""Groups in one run: its planners, their callers, what is watched, and trouble of their own."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

from devel.sim import plan, schedulers
from devel.sim.computes import Host
from devel.sim.conductors import Deliver
from devel.sim.database import SimDatabase
from devel.sim.groups import judge
from devel.sim.groups.callers import GroupCallers
from devel.sim.groups.descriptions import location_of
from devel.sim.groups.planners import PlannerProcess
from devel.sim.groups.watch import GroupWatch
from devel.sim.loop import Loop
from devel.sim.network import Network, SimServer
from devel.sim.plan import Blow, SimPlan
from gantt.core.placement.pipeline import Pipeline
from gantt.scheduler.groups.settings import PlannerSettings

MakeRng = Callable[[str], random.Random]


class GroupSide:
    """The groups of a run; see the module docstring.

    :ivar callers: the callers that have groups planned
    """

    def __init__(
        self,
        planned: SimPlan,
        loop: Loop,
        database: SimDatabase,
        network: Network,
        pipeline: Pipeline,
        rng: MakeRng,
        deliver: Deliver,
    ) -> None:
        self._plan, self._loop, self._database = planned, loop, database
        self._pipeline, self._rng = pipeline, rng
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
        self.callers.reuses = not planned.has('restore')
        self.planners = [self._planner() for _ in range(planned.planners)]

    @property
    def planned(self) -> int:
        """Number of plans and changes of groups."""
        return len(self._watch.answers)

    def put_in_racks(self, hosts: Sequence[Host]) -> None:
        """Let hosts be in racks."""
        for number, host in enumerate(hosts):
            host.machine.location = location_of(number)

    def begin(self) -> None:
        """Let the stories begin."""
        self.callers.begin(self._plan.groups)

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
    def kill_planner(self, blow: Blow) -> None:
        """Kill a planner now, or at its next write; another one is started after a while."""
        number = blow.whom % len(self.planners)
        process = self.planners[number]
        if blow.when == 'now':
            self._loop.say(process.name, 'is killed')
            process.die()
        else:
            process.arm(blow.when)
        self._loop.at(blow.seconds, self._again, number)

    def skew_planner(self, blow: Blow, seconds: float) -> None:
        """Set the clock of a planner wrong by so many seconds."""
        self.planners[blow.whom % len(self.planners)].skew = seconds

    def blind_planner(self, blow: Blow) -> None:
        """Cut a planner off from all news."""
        name = self.planners[blow.whom % len(self.planners)].name
        self._loop.say(name, f'sees no news for {blow.seconds} s')
        self._database.blind.add(name)
        self._loop.at(blow.seconds, self._database.blind.discard, name)

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
            self._pipeline,
            settings,
            bounds,
            self._rng(f'solver {self._starts}'),
        )

    def _again(self, number: int) -> None:
        """Start a planner where it is dead."""
        if not self.planners[number].alive:
            self.planners[number] = self._planner()
        self.planners[number].arm('')
