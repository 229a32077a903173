# SPDX-License-Identifier: Apache-2.0
"""Parts of a simulated tree that belong to no zone: databases in files, callers, and checks."""

import random
from collections.abc import Callable, Sequence

from devel.sim.conductors import Conductors, Deliver
from devel.sim.loop import Loop
from devel.sim.plan import PlannedZone, SimPlan
from devel.sim.sites import ZoneSite
from devel.sim.trees import judge
from devel.sim.trees.callers import TreeCallers
from devel.sim.trees.databases import SqlDatabase
from devel.sim.trees.files import DatabaseFile
from devel.sim.trees.processes import TreeSurroundings
from devel.sim.trees.watch import TreeWatch
from gantt.zones.conf import load_strategies

#: Statements of a call, about: a process dies before one of so many.
STATEMENTS_MOST = 25


class TreeSide:
    """State that the zones of a tree share.

    :param files: for the databases of the zones
    """

    def __init__(self, planned: SimPlan, loop: Loop, files: Sequence[DatabaseFile]) -> None:
        self._plan, self._loop, self._files = planned, loop, iter(files)
        self._watch = TreeWatch(loop)
        self.around = TreeSurroundings(load_strategies(planned.strategies, {}), {}, self._watch)

    def database(self, zone: PlannedZone, rng: random.Random) -> SqlDatabase:
        """Return the database of a zone, whose writes are checked."""
        database = SqlDatabase(self._loop, rng, f'database {zone.name}', next(self._files))
        self._watch.add(zone.name, zone.above, database)
        return database

    def callers(
        self,
        sites: Sequence[ZoneSite],
        rng: Callable[[str], random.Random],
        hand: random.Random,
        deliver: Deliver,
    ) -> list[Conductors]:
        """Return the callers of the top, and of a zone below it where the plan has some."""
        roots = {'top': sites[0]}
        if self._plan.direct:
            roots['below'] = hand.choice([site for site in sites[1:] if site.hosts])
        return [
            TreeCallers(self._loop, rng(f'callers {what}'), root, self._watch, deliver)
            for what, root in roots.items()
        ]

    def begin(self) -> None:
        """Let the checks between zones begin."""
        self._watch.check_leaked_claims()

    def violations(self, sites: Sequence[ZoneSite]) -> list[str]:
        """Return a line for each promise that was not kept."""
        return judge.violations(self._watch, sites)

    def kill_in_statement(self, zone: str, process: str, rng: random.Random) -> None:
        """Let a process die before one of its next statements."""
        self._watch.databases[zone].statements[process] = rng.randrange(STATEMENTS_MOST)
