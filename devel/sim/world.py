# SPDX-License-Identifier: Apache-2.0
"""One run: the world of a seed, its trouble, the healing, and the verdict."""

import functools
import random

from devel.memory_store.stores import MemoryStores, memory_stores
from devel.sim import judge, plan, schedulers
from devel.sim.computes import Host
from devel.sim.conductors import Conductors
from devel.sim.database import MakeStores, SimDatabase
from devel.sim.groups.side import GroupSide
from devel.sim.loop import Loop, Stacks
from devel.sim.network import Network, SimServer
from devel.sim.plan import Blow, SimPlan
from devel.sim.schedulers import SchedulerProcess
from devel.sim.verdict import Complaints, SimVerdict, digest_of, repeatable
from gantt import plugin_loader
from gantt.core.messages.build import Build, Delete
from gantt.core.placement.pipeline import Pipeline
from gantt.scheduler.ports import Clock

#: Conductors whose stories have not ended by then wait for ever.
CONDUCTORS_MOST = 240.0
#: A clock may be wrong by so much, and jump by as much.
SKEW_MOST = 12 * 3600.0


@functools.cache
def _pipeline() -> Pipeline:
    return plugin_loader.load_pipeline()


def unbroken(clock: Clock) -> MemoryStores:
    """Return the stores that are used where none is broken on purpose."""
    return memory_stores(clock, report_seconds=plan.REPORT_SECONDS)


def run(
    seed: int,
    *,
    make_stores: MakeStores = unbroken,
    stacks: Stacks | None = None,
    trace: bool = False,
) -> SimVerdict:
    """Run one seed, from its beginning to the verdict.

    :param make_stores: others, to see that a broken rule is found
    :param trace: whether the verdict has the trace itself
    """
    with repeatable(seed) as complaints:
        return SimWorld(plan.deal(seed), make_stores, stacks or Stacks()).verdict(complaints, trace)


class SimWorld:
    """Everything of one run."""

    def __init__(self, planned: SimPlan, make_stores: MakeStores, stacks: Stacks) -> None:
        self.plan = planned
        self.loop = Loop(stacks)
        self.database = SimDatabase(self.loop, self._rng('database'), make_stores)
        self.network = Network(self.loop, self._rng('network'), self._servers)
        self.network.rates = planned.rates
        self.hosts = [self._host(i) for i in range(planned.hosts)]
        self.twin: Host | None = None
        self.conductors = Conductors(
            self.loop, self.network, self._rng('conductors'), self._deliver
        )
        self.conductors.reuses = not planned.has('restore')
        self.schedulers: list[SchedulerProcess] = []
        self._starts = 0
        self._hand = self._rng('hand')
        for _ in range(planned.schedulers):
            self.schedulers.append(self._scheduler())
        self.groups: GroupSide | None = None
        if planned.groups:
            self.groups = GroupSide(
                planned,
                self.loop,
                self.database,
                self.network,
                _pipeline(),
                self._rng,
                self._deliver,
            )
            self.groups.put_in_racks(self.hosts)

    def verdict(self, complaints: Complaints, with_trace: bool) -> SimVerdict:
        """Run it all; return the verdict."""
        try:
            self._play()
            lines = judge.violations(
                self.plan, self.database, self.schedulers, self.hosts, self.conductors
            )
            if self.groups is not None:
                lines += self.groups.violations()
        finally:
            self.loop.close()
        lines += [*complaints.lines, *(f'defect: {defect}' for defect in self.loop.defects)]
        if self._under_way:
            lines.append(f'wait: {self._under_way} conductors never came to an end')
        trace = self.loop.trace
        return SimVerdict(
            seed=self.plan.seed,
            violations=lines,
            digest=digest_of([*trace, *lines]),
            events=len(trace),
            placed=sum(
                'placed' in {h.answer.outcome.value for h in answers}
                for callers in self._callers
                for answers in callers.answers_received.values()
            ),
            guests=sum(len(host.machine.running) for host in self.hosts),
            planned=0 if self.groups is None else self.groups.planned,
            trace=trace if with_trace else [],
        )

    # -- the course of a run --------------------------------------------------------
    def _play(self) -> None:
        loop = self.loop
        for number, host in enumerate(self.hosts):
            loop.at(0.05 * number, host.boot)
        for blow in self.plan.blows:
            loop.at(blow.at, getattr(self, f'_{blow.what}'), blow)
        self.conductors.begin(self.plan.stories)
        if self.groups is not None:
            self.groups.begin()
        loop.run(plan.TROUBLE_SECONDS)
        self._heal()
        while self._under_way and loop.now < CONDUCTORS_MOST:
            loop.run(loop.now + 1.0)
        convergence = plan.CONVERGENCE_SECONDS
        if self.plan.has('restore'):
            convergence += plan.DEAF_SECONDS
        loop.run(loop.now + convergence)

    def _heal(self) -> None:
        self.loop.say('hand', 'heals everything')
        self.network.rates = plan.Rates()
        self.network.cut.clear()
        database = self.database
        database.away_until = 0.0
        database.lost_answers = 0
        database.blind.clear()
        if self.twin is not None:
            self.twin.lose_power()
        for number in range(len(self.schedulers)):
            self._again(number)
        if self.groups is not None:
            self.groups.heal()
        for host in self.hosts:
            host.machine.trouble = False
            host.is_lost = False
            if host.process is not None:
                host.process.arm('')
                if self._wants_a_restart(host):
                    host.die()
            host.boot()

    def _wants_a_restart(self, host: Host) -> bool:
        """Return whether the name of a host was taken: it is idle until an operator restarts it."""
        return self.twin is not None and self.twin.name == host.name

    # -- servers --------------------------------------------------------------------------
    @property
    def _callers(self) -> list[Conductors]:
        return [self.conductors, *([] if self.groups is None else [self.groups.callers])]

    @property
    def _under_way(self) -> int:
        return sum(caller.under_way for caller in self._callers)

    def _rng(self, what: str) -> random.Random:
        return random.Random(f'{what} {self.plan.seed}')

    def _scheduler(self) -> SchedulerProcess:
        self._starts += 1
        name = f'sched-{self._starts}'
        settings = schedulers.settings(name, self.plan.queue_limit, self.plan.report_limit)
        return SchedulerProcess(self.loop, name, self.database, _pipeline(), settings)

    def _again(self, number: int) -> None:
        """Start a scheduler where it is dead."""
        if not self.schedulers[number].alive:
            self.schedulers[number] = self._scheduler()
        self.schedulers[number].arm('')

    def _servers(self) -> list[SimServer]:
        return [s for s in self.schedulers if s.alive and s.ready]

    def _host(self, number: int, twin: str = '') -> Host:
        return Host(
            self.loop,
            self.network,
            self._rng(f'host {number}{twin}'),
            f'cmp-{number + 1}',
            self._allowed,
            self.database.stores.database.clock.wall,
        )

    def _allowed(self, build: Build) -> str:
        """Check that a guest starts only after its claim was confirmed."""
        if build.claim_id not in self.database.confirmed:
            return 'its claim was never confirmed'
        if any(self.plan.has(trouble) for trouble in ('twin', 'restore')):
            return ''  # another agent's report, or an older state, may have ended it since
        claim = self.database.stores.claims.load_claim(build.claim_id)
        state = claim.state.value if claim is not None else 'unknown'
        return '' if state == 'confirmed' else f'its claim is {state}'

    def _deliver(self, name: str, message: Build | Delete) -> bool:
        twins = [self.twin] if self.twin is not None else []
        receivers = [h for h in (*self.hosts, *twins) if h.name == name and h.is_there]
        if not receivers:
            return False
        process = self._hand.choice(receivers).process
        assert process is not None
        process.take(message)
        return True

    # -- the trouble ---------------------------------------------------------------------
    def _kill_scheduler(self, blow: Blow) -> None:
        number = blow.whom % len(self.schedulers)
        process = self.schedulers[number]
        if blow.when == 'now':
            self.loop.say(process.name, 'is killed')
            process.die()
        else:
            process.arm(blow.when)
        self.loop.at(blow.seconds, self._again, number)

    def _struck(self, blow: Blow) -> Host:
        return self.hosts[blow.whom % len(self.hosts)]

    def _kill_compute(self, blow: Blow) -> None:
        host = self._struck(blow)
        if blow.when == 'now' or host.process is None:
            host.die()
        else:
            host.process.arm(blow.when)
        self.loop.at(blow.seconds, host.boot)

    def _lose_journal(self, blow: Blow) -> None:
        self._struck(blow).lose_journal()
        self.loop.at(blow.seconds, self._struck(blow).boot)

    def _lose_power(self, blow: Blow) -> None:
        self._struck(blow).lose_power()
        self.loop.at(blow.seconds, self._struck(blow).boot)

    def _lost_answer(self, blow: Blow) -> None:
        self.database.lost_answers += 1

    def _database_away(self, blow: Blow) -> None:
        self.loop.say('database', f'is away for {blow.seconds} s')
        self.database.away_until = self.loop.now + blow.seconds

    def _blind_feed(self, blow: Blow) -> None:
        name = self.schedulers[blow.whom % len(self.schedulers)].name
        self.loop.say(name, f'sees no news for {blow.seconds} s')
        self.database.blind.add(name)
        self.loop.at(blow.seconds, self.database.blind.discard, name)

    def _cut_host(self, blow: Blow) -> None:
        name = self._struck(blow).name
        self.loop.say(name, f'is cut off for {2 * blow.seconds} s')
        self.network.cut.add(name)
        self.loop.at(2 * blow.seconds, self.network.cut.discard, name)

    def _skew(self, blow: Blow) -> None:
        skew = self._hand.uniform(-SKEW_MOST, SKEW_MOST)
        if blow.whom % 2:
            self.schedulers[blow.whom // 2 % len(self.schedulers)].skew = skew
            return
        host = self.hosts[blow.whom // 2 % len(self.hosts)]
        host.skew = skew
        if host.process is not None:
            host.process.skew = skew

    def _restore(self, blow: Blow) -> None:
        """Take a backup now and restore it later."""
        self.loop.say('database', 'a backup is made')
        self.database.keep()
        self.loop.at(blow.seconds, self._put_back)

    def _put_back(self) -> None:
        self.loop.say('database', 'is put back to the backup')
        self.database.restore()

    def _twin(self, blow: Blow) -> None:
        """Start another machine under the name of a host."""
        number = blow.whom % len(self.hosts)
        self.loop.say(self.hosts[number].name, 'has a twin')
        self.twin = self._host(number, ' twin')
        self.twin.machine.location = self.hosts[number].machine.location
        self.twin.boot()

    def _lose_host(self, blow: Blow) -> None:
        """Stop a host for long enough to be taken for down, with its guests or without them."""
        assert self.groups is not None
        host = self.groups.has_most(self.hosts)
        if blow.when == 'now':
            host.lose_power()
        else:
            host.die()
        self.loop.say(host.name, 'is lost')
        host.is_lost = True

    def _kill_planner(self, blow: Blow) -> None:
        assert self.groups is not None
        self.groups.kill_planner(blow)

    def _skew_planner(self, blow: Blow) -> None:
        assert self.groups is not None
        self.groups.skew_planner(blow, self._hand.uniform(-SKEW_MOST, SKEW_MOST))

    def _blind_planner(self, blow: Blow) -> None:
        assert self.groups is not None
        self.groups.blind_planner(blow)

    def _shrink(self, blow: Blow) -> None:
        machine = self._struck(blow).machine
        machine.vcpus = max(2, machine.vcpus // 2)
        self.loop.say(machine.name, f'has {machine.vcpus} VCPU now')
