# SPDX-License-Identifier: Apache-2.0
"""One run: the zones of a seed, their trouble, the healing, and the verdict."""

import contextlib
import random
from collections.abc import Iterator

import msgspec

from devel.memory_store.stores import MemoryStores, memory_stores
from devel.sim import judge, plan
from devel.sim.computes import Host
from devel.sim.conductors import Conductors
from devel.sim.database import MakeStores, SimDatabase, SimMemoryDatabase
from devel.sim.groups.side import GroupSide
from devel.sim.loop import Loop, TaskThreadPool
from devel.sim.plan import PlannedZone, SimFault, SimPlan
from devel.sim.schedulers import SchedulerProcess
from devel.sim.sites import ZoneSite
from devel.sim.trees.files import DatabaseFile, DatabaseFiles
from devel.sim.trees.links import line_of
from devel.sim.trees.side import TreeSide
from devel.sim.verdict import SimVerdict, TracebackCollector, digest_of, seeded_randomness
from gantt.core.messages.build import Build, Delete
from gantt.scheduler.ports.process import Clock

#: Callers whose stories have not ended by then wait for ever.
CALLERS_SECONDS_MAX = 240.0
#: A clock may be wrong by so much, and jump by as much.
SKEW_SECONDS_MAX = 12 * 3600.0


def unbroken(clock: Clock) -> MemoryStores:
    """Return the stores that are used where none is broken on purpose."""
    return memory_stores(clock, report_seconds=plan.REPORT_SECONDS)


class SimulationRuns:
    """Runs one after another, which use the same threads and files until it is closed.

    :param make_stores: others, to see that a broken rule is found
    """

    def __init__(self, make_stores: MakeStores | None = None) -> None:
        self._make_stores = make_stores or unbroken
        self._stacks = TaskThreadPool()
        self._files: DatabaseFiles | None = None

    def close(self) -> None:
        """Delete its files."""
        if self._files is not None:
            self._files.close()

    def run(self, seed: int, *, trees: bool = False, trace: bool = False) -> SimVerdict:
        """Run one seed, from its beginning to the verdict.

        :param trees: a tree of zones instead of one zone
        :param trace: whether the verdict has the trace itself
        """
        planned = plan.random_tree_plan(seed) if trees else plan.random_plan(seed)
        with self._database_files(planned) as files, seeded_randomness(seed) as complaints:
            world = Simulation(planned, self._make_stores, files, self._stacks)
            return world.verdict(complaints, trace)

    @contextlib.contextmanager
    def _database_files(self, planned: SimPlan) -> Iterator[list[DatabaseFile]]:
        """Lend a file to each zone of a tree."""
        if not planned.is_tree:
            yield []
            return
        self._files = self._files or DatabaseFiles()
        files = [self._files.take() for _ in planned.zones]
        try:
            yield files
        finally:
            for file in files:
                self._files.release(file)


class Simulation:
    """Everything of one run.

    :param files: of a tree, one for each zone
    """

    def __init__(
        self,
        planned: SimPlan,
        make_stores: MakeStores,
        files: list[DatabaseFile],
        stacks: TaskThreadPool,
    ) -> None:
        self.plan = planned
        self.loop = Loop(stacks)
        self._hand = self._rng('hand')
        self._make_stores = make_stores
        self.twin: Host | None = None
        self.tree = TreeSide(planned, self.loop, files) if planned.is_tree else None
        self.sites: list[ZoneSite] = []
        for zone in planned.zones:
            self.sites.append(self._site(zone))
        for site in self.sites:
            site.start()
        top = self.sites[0]
        self.callers: list[Conductors]
        if self.tree is None:
            rng = self._rng('conductors')
            self.callers = [Conductors(self.loop, top.network, rng, self._deliver)]
        else:
            self.callers = self.tree.callers(self.sites, self._rng, self._hand, self._deliver)
        self.groups: GroupSide | None = None
        if planned.groups:
            assert isinstance(top.database, SimMemoryDatabase)
            self.groups = GroupSide(
                planned, self.loop, top.database, top.network, self._rng, self._deliver
            )
            self.groups.put_in_racks(top.hosts)
            self.callers.append(self.groups.callers)
        for callers in self.callers:
            callers.reuses = not planned.has('restore')

    def verdict(self, complaints: TracebackCollector, with_trace: bool) -> SimVerdict:
        """Run it all; return the verdict."""
        try:
            self._play()
            lines = judge.violations(self.plan, self.sites, self.callers)
            if self.groups is not None:
                lines += self.groups.violations()
            if self.tree is not None:
                lines += self.tree.violations(self.sites)
        finally:
            self.loop.close()
            for site in self.sites:
                site.database.close()
        lines += [*complaints.lines, *(f'defect: {defect}' for defect in self.loop.defects)]
        if self._under_way:
            lines.append(f'wait: {self._under_way} callers never came to an end')
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
            guests=sum(len(host.machine.running) for host in self._hosts),
            planned=0 if self.groups is None else self.groups.planned,
            trace=trace if with_trace else [],
        )

    # -- the course of a run --------------------------------------------------------
    def _play(self) -> None:
        loop = self.loop
        for number, host in enumerate(self._hosts):
            loop.at(0.05 * number, host.boot)
        for fault in self.plan.faults:
            loop.at(fault.at, getattr(self, f'_{fault.what}'), fault)
        stories = (self.plan.stories, self.plan.groups or self.plan.direct)
        for callers, count in zip(self.callers, stories, strict=False):
            callers.begin(count)
        if self.tree is not None:
            self.tree.begin()
        loop.run(plan.TROUBLE_SECONDS)
        self._heal()
        while self._under_way and loop.now < CALLERS_SECONDS_MAX:
            loop.run(loop.now + 1.0)
        convergence = plan.CONVERGENCE_SECONDS
        if self.plan.has('restore'):
            convergence += plan.HOST_LOSS_SECONDS
        loop.run(loop.now + convergence)

    def _heal(self) -> None:
        self.loop.write_trace('hand', 'heals everything')
        if self.twin is not None:
            self.twin.lose_power()
        for site in self.sites:
            site.heal()
        if self.groups is not None:
            self.groups.heal()
        for host in self._hosts:
            host.machine.trouble = False
            host.is_lost = False
            if host.process is not None:
                host.process.arm('')
                if self._needs_restart(host):
                    host.die()
            host.boot()

    def _needs_restart(self, host: Host) -> bool:
        """Return whether the name of a host was taken: it is idle until an operator restarts it."""
        return self.twin is not None and self.twin.name == host.name

    # -- its parts ------------------------------------------------------------------------
    @property
    def _hosts(self) -> list[Host]:
        return [host for site in self.sites for host in site.hosts]

    @property
    def _under_way(self) -> int:
        return sum(callers.under_way for callers in self.callers)

    def _rng(self, what: str) -> random.Random:
        return random.Random(f'{what} {self.plan.seed}')

    def _site(self, zone: PlannedZone) -> ZoneSite:
        def rng(what: str) -> random.Random:
            return self._rng(f'{what} {zone.name}'.rstrip())

        database: SimDatabase
        if self.tree is None:
            database = SimMemoryDatabase(self.loop, rng('database'), 'database', self._make_stores)
            return ZoneSite(self.loop, self.plan, zone, database, rng)
        database = self.tree.database(zone, rng('database'))
        above = next((site for site in self.sites if site.name == zone.above), None)
        return ZoneSite(self.loop, self.plan, zone, database, rng, above, self.tree.around)

    def _deliver(self, name: str, message: Build | Delete) -> bool:
        twins = [self.twin] if self.twin is not None else []
        receivers = [h for h in (*self._hosts, *twins) if h.name == name and h.is_there]
        if not receivers:
            return False
        process = self._hand.choice(receivers).process
        assert process is not None
        process.take(message)
        return True

    # -- the trouble ---------------------------------------------------------------------
    def _zone(self, fault: SimFault) -> ZoneSite:
        return self.sites[fault.whom % len(self.sites)]

    def _process(self, fault: SimFault) -> tuple[ZoneSite, int, SchedulerProcess]:
        site = self._zone(fault)
        number = fault.whom // len(self.sites) % len(site.processes)
        return site, number, site.processes[number]

    def _host(self, fault: SimFault) -> Host:
        return self._hosts[fault.whom % len(self._hosts)]

    def _kill_process(self, fault: SimFault) -> None:
        site, number, process = self._process(fault)
        if fault.when == 'now':
            self.loop.write_trace(process.name, 'is killed')
            process.die()
        else:
            process.arm(fault.when)
        self.loop.at(fault.seconds, site.again, number)

    def _kill_in_statement(self, fault: SimFault) -> None:
        assert self.tree is not None
        site, number, process = self._process(fault)
        self.tree.kill_in_statement(site.name, process.name, self._hand)
        self.loop.at(fault.seconds, site.again, number)

    def _freeze_process(self, fault: SimFault) -> None:
        _, _, process = self._process(fault)
        self.loop.write_trace(process.name, f'is frozen for {fault.seconds} s')
        process.frozen_until = self.loop.now + fault.seconds

    def _kill_compute(self, fault: SimFault) -> None:
        host = self._host(fault)
        if fault.when == 'now' or host.process is None:
            host.die()
        else:
            host.process.arm(fault.when)
        self.loop.at(fault.seconds, host.boot)

    def _lose_journal(self, fault: SimFault) -> None:
        self._host(fault).lose_journal()
        self.loop.at(fault.seconds, self._host(fault).boot)

    def _lose_power(self, fault: SimFault) -> None:
        self._host(fault).lose_power()
        self.loop.at(fault.seconds, self._host(fault).boot)

    def _lost_answer(self, fault: SimFault) -> None:
        self._zone(fault).database.lost_answers += 1

    def _database_away(self, fault: SimFault) -> None:
        database = self._zone(fault).database
        self.loop.write_trace(database.name, f'is away for {fault.seconds} s')
        database.away_until = self.loop.now + fault.seconds

    def _blind_feed(self, fault: SimFault) -> None:
        site, _, process = self._process(fault)
        self.loop.write_trace(process.name, f'sees no news for {fault.seconds} s')
        site.database.blind.add(process.name)
        self.loop.at(fault.seconds, site.database.blind.discard, process.name)

    def _cut_host(self, fault: SimFault) -> None:
        self._cut(self.sites[0], self._host(fault).name, 2 * fault.seconds)

    def _cut_link(self, fault: SimFault) -> None:
        lower = [site for site in self.sites if site.above is not None]
        site = lower[fault.whom % len(lower)]
        assert site.above is not None
        self._cut(site, line_of(site.above.name, site.name), fault.seconds)

    def _cut(self, site: ZoneSite, line: str, seconds: float) -> None:
        self.loop.write_trace(line, f'is cut off for {seconds} s')
        site.network.cut.add(line)
        self.loop.at(seconds, site.network.cut.discard, line)

    def _skew(self, fault: SimFault) -> None:
        """Set the clock of a process or of a host wrong."""
        blow_of_half = msgspec.structs.replace(fault, whom=fault.whom // 2)
        if fault.whom % 2:
            self._skew_process(blow_of_half)
            return
        host, skew = self._host(blow_of_half), self._wrong_by()
        host.skew = skew
        if host.process is not None:
            host.process.skew = skew

    def _skew_process(self, fault: SimFault) -> None:
        self._process(fault)[2].skew = self._wrong_by()

    def _wrong_by(self) -> float:
        return self._hand.uniform(-SKEW_SECONDS_MAX, SKEW_SECONDS_MAX)

    def _restore(self, fault: SimFault) -> None:
        """Take a backup now and restore it later."""
        database = self._zone(fault).database
        self.loop.write_trace(database.name, 'a backup is made')
        database.back_up()
        self.loop.at(fault.seconds, self._put_back, database)

    def _put_back(self, database: SimDatabase) -> None:
        self.loop.write_trace(database.name, 'is put back to the backup')
        database.restore()

    def _twin(self, fault: SimFault) -> None:
        """Start another machine under the name of a host."""
        site, host = self.sites[0], self._host(fault)
        self.loop.write_trace(host.name, 'has a twin')
        self.twin = site.host(site.hosts.index(host), ' twin')
        self.twin.machine.location = host.machine.location
        self.twin.boot()

    def _lose_host(self, fault: SimFault) -> None:
        """Stop a host for long enough to be taken for down, with its guests or without them."""
        assert self.groups is not None
        host = self.groups.has_most(self._hosts)
        if fault.when == 'now':
            host.lose_power()
        else:
            host.die()
        self.loop.write_trace(host.name, 'is lost')
        host.is_lost = True

    def _kill_planner(self, fault: SimFault) -> None:
        assert self.groups is not None
        self.groups.kill_planner(fault)

    def _skew_planner(self, fault: SimFault) -> None:
        assert self.groups is not None
        self.groups.skew_planner(fault, self._wrong_by())

    def _blind_planner(self, fault: SimFault) -> None:
        assert self.groups is not None
        self.groups.blind_planner(fault)

    def _shrink(self, fault: SimFault) -> None:
        machine = self._host(fault).machine
        machine.vcpus = max(2, machine.vcpus // 2)
        self.loop.write_trace(machine.name, f'has {machine.vcpus} VCPU now')
