# SPDX-License-Identifier: Apache-2.0
"""One run of a tree: the zones of a seed, their trouble, the healing, and the verdict."""

import random

from devel.sim.loop import Loop, Stacks
from devel.sim.network import Network
from devel.sim.plan import CONVERGENCE_SECONDS, DEAF_SECONDS, TROUBLE_SECONDS, Blow, Rates
from devel.sim.trees import judge
from devel.sim.trees.callers import TreeCallers
from devel.sim.trees.databases import ZoneDatabase
from devel.sim.trees.files import DatabaseFile, DatabaseFiles
from devel.sim.trees.links import line_of
from devel.sim.trees.plan import PlannedZone, TreeFaultPlan, deal
from devel.sim.trees.processes import SimZoneProcess, TreeSurroundings
from devel.sim.trees.sites import ZoneSite
from devel.sim.trees.watch import TreeWatch
from devel.sim.verdict import Complaints, SimVerdict, digest_of, repeatable
from devel.sim.world import CONDUCTORS_MOST, SKEW_MOST
from gantt import plugin_loader

#: After all is healed, or the last caller has ended: zones have heard by then what they were to.
QUIET_SECONDS = 20.0
#: Statements of a call, about: a process dies before one of so many.
STATEMENTS_MOST = 25


class TreeRuns:
    """Runs one after another, which use the same threads and files until it is closed."""

    def __init__(self, stacks: Stacks | None = None) -> None:
        self._stacks, self._files = stacks or Stacks(), DatabaseFiles()

    def close(self) -> None:
        """Delete its files."""
        self._files.close()

    def run(self, seed: int, *, trace: bool = False) -> SimVerdict:
        """Run one seed, from its beginning to the verdict.

        :param trace: whether the verdict has the trace itself
        """
        return self.run_plan(deal(seed), trace=trace)

    def run_plan(self, planned: TreeFaultPlan, *, trace: bool = False) -> SimVerdict:
        """Run a plan, whichever it is."""
        files = [self._files.take() for _ in planned.zones]
        try:
            with repeatable(planned.seed) as complaints:
                return TreeWorld(planned, files, self._stacks).verdict(complaints, trace)
        finally:
            for file in files:
                self._files.give_back(file)


class TreeWorld:
    """Everything of one run."""

    def __init__(self, planned: TreeFaultPlan, files: list[DatabaseFile], stacks: Stacks) -> None:
        self.plan = planned
        self.loop = Loop(stacks)
        self.watch = TreeWatch(self.loop)
        self._networks: dict[str, Network] = {}
        around = TreeSurroundings(
            self.loop,
            plugin_loader.load(planned.strategies, {}, plugin_loader.STRATEGIES),
            self._networks,
            self.watch,
        )
        self.sites: list[ZoneSite] = []
        for zone, file in zip(planned.zones, files, strict=True):
            self._plant(zone, file, around)
        self._hand = self._rng('hand')
        self.callers = [self._callers(self.sites[0], 'top')]
        if planned.direct:
            below = self._hand.choice([zone for zone in self.sites[1:] if zone.hosts])
            self.callers.append(self._callers(below, 'below'))

    def verdict(self, complaints: Complaints, with_trace: bool) -> SimVerdict:
        """Run it all; return the verdict."""
        try:
            self._play()
            lines = judge.violations(self.plan, self.watch, self.sites, self.callers)
        finally:
            self.loop.close()
            for site in self.sites:
                site.database.close()
        lines += [*complaints.lines, *(f'defect: {item}' for item in self.loop.defects)]
        under_way = sum(item.under_way for item in self.callers)
        if under_way:
            lines.append(f'wait: {under_way} callers never came to an end')
        trace = self.loop.trace
        return SimVerdict(
            seed=self.plan.seed,
            violations=lines,
            digest=digest_of([*trace, *lines]),
            events=len(trace),
            placed=sum(
                'placed' in {item.answer.outcome.value for item in answers}
                for callers in self.callers
                for answers in callers.answers_received.values()
            ),
            guests=sum(len(host.machine.running) for site in self.sites for host in site.hosts),
            trace=trace if with_trace else [],
        )

    # -- the course of a run --------------------------------------------------------
    def _play(self) -> None:
        loop = self.loop
        for number, site in enumerate(self.sites):
            site.start()
            for n, host in enumerate(site.hosts):
                loop.at(0.05 * number + 0.01 * n, host.boot)
        for callers in self.callers:
            callers.reuses = not self.plan.has('restore')
        for blow in self.plan.blows:
            loop.at(blow.at, getattr(self, f'_{blow.what}'), blow)
        for callers, stories in zip(
            self.callers, (self.plan.stories, self.plan.direct), strict=False
        ):
            callers.begin(stories)
        self.watch.look_for_left()
        loop.run(TROUBLE_SECONDS)
        self._heal()
        loop.run(loop.now + QUIET_SECONDS)
        while any(caller.under_way for caller in self.callers) and loop.now < CONDUCTORS_MOST:
            loop.run(loop.now + 1.0)
        loop.run(loop.now + QUIET_SECONDS)
        convergence = CONVERGENCE_SECONDS - QUIET_SECONDS
        if self.plan.has('restore'):
            convergence += DEAF_SECONDS
        loop.run(loop.now + convergence)

    def _heal(self) -> None:
        self.loop.say('hand', 'heals everything')
        for site in self.sites:
            site.network.rates = Rates()
            site.network.cut.clear()
            site.database.away_until = 0.0
            site.database.lost_answers = 0
            site.database.statements.clear()
            for number, process in enumerate(site.processes):
                process.frozen_until = min(process.frozen_until, self.loop.now)
                site.again(number)
                process.arm('')
            for host in site.hosts:
                host.machine.trouble = False
                if host.process is not None:
                    host.process.arm('')
                host.boot()

    # -- servers --------------------------------------------------------------------------
    def _rng(self, what: str) -> random.Random:
        return random.Random(f'{what} {self.plan.seed}')

    def _plant(self, one: PlannedZone, file: DatabaseFile, around: TreeSurroundings) -> None:
        above = next((site for site in self.sites if site.name == one.above), None)
        dice = self._rng(f'database {one.name}')
        database = ZoneDatabase(self.loop, dice, one.name, file, self.watch)
        self.watch.databases[one.name] = database
        site = ZoneSite(one, around, database, self._rng, above)
        site.network.rates = self.plan.rates
        self._networks[site.uuid] = site.network
        self.sites.append(site)
        self.watch.below[one.name] = []
        if one.above:
            self.watch.below[one.above].append(one.name)

    def _callers(self, root: ZoneSite, what: str) -> TreeCallers:
        return TreeCallers(self.loop, self._rng(f'callers {what}'), root, self.sites, self.watch)

    # -- the trouble ---------------------------------------------------------------------
    def _site(self, blow: Blow) -> ZoneSite:
        return self.sites[blow.whom % len(self.sites)]

    def _struck(self, blow: Blow) -> tuple[ZoneSite, int, SimZoneProcess]:
        site = self._site(blow)
        number = blow.whom // 7 % len(site.processes)
        return site, number, site.processes[number]

    def _kill_process(self, blow: Blow) -> None:
        site, number, process = self._struck(blow)
        if blow.when == 'now':
            self.loop.say(process.name, 'is killed')
            process.die()
        else:
            process.arm(blow.when)
        self.loop.at(blow.seconds, site.again, number)

    def _kill_in_statement(self, blow: Blow) -> None:
        site, number, process = self._struck(blow)
        site.database.statements[process.name] = self._hand.randrange(STATEMENTS_MOST)
        self.loop.at(blow.seconds, site.again, number)

    def _freeze_process(self, blow: Blow) -> None:
        _, _, process = self._struck(blow)
        self.loop.say(process.name, f'is frozen for {blow.seconds} s')
        process.frozen_until = self.loop.now + blow.seconds

    def _lost_answer(self, blow: Blow) -> None:
        self._site(blow).database.lost_answers += 1

    def _database_away(self, blow: Blow) -> None:
        site = self._site(blow)
        self.loop.say(site.name, f'has no database for {blow.seconds} s')
        site.database.away_until = self.loop.now + blow.seconds

    def _restore(self, blow: Blow) -> None:
        """Take a backup of a zone now and restore it later."""
        site = self._site(blow)
        self.loop.say(site.name, 'a backup is made')
        site.database.keep()
        self.loop.at(blow.seconds, self._put_back, site)

    def _put_back(self, site: ZoneSite) -> None:
        self.loop.say(site.name, 'is put back to the backup')
        site.database.restore()

    def _cut_link(self, blow: Blow) -> None:
        lower = [site for site in self.sites if site.above is not None]
        site = lower[blow.whom % len(lower)]
        assert site.above is not None
        line = line_of(site.above.name, site.name)
        self.loop.say(line, f'is cut for {blow.seconds} s')
        site.network.cut.add(line)
        self.loop.at(blow.seconds, site.network.cut.discard, line)

    def _kill_compute(self, blow: Blow) -> None:
        hosts = [host for site in self.sites for host in site.hosts]
        host = hosts[blow.whom % len(hosts)]
        if blow.when == 'now' or host.process is None:
            host.die()
        else:
            host.process.arm(blow.when)
        self.loop.at(blow.seconds, host.boot)

    def _skew_process(self, blow: Blow) -> None:
        self._struck(blow)[2].skew = self._hand.uniform(-SKEW_MOST, SKEW_MOST)
