# SPDX-License-Identifier: Apache-2.0
"""A small world in which every clock but the database's is wrong, and steps.

Real schedulers over the real store in memory, real agents with real journals.
True time is that of the store; each scheduler and each agent sees its own, hours
away, and nothing but the length of a second is the same for all.
"""

import random

from devel.doubles import ManualClock
from gantt import exceptions
from gantt.compute.agent import running_guests
from gantt.compute.agent.agent import Agent, AgentSettings
from gantt.compute.agent.host_agent import HostAgent, HostAgentSettings
from gantt.compute.agent.journal import Journal
from gantt.compute.agent.session import Session
from gantt.core.claims.claim import Claim
from gantt.core.claims.commit import ClaimColumns, ClaimDraft, RequestDraft
from gantt.core.messages.build import Build, Delete
from gantt.core.messages.report import RegisterHost
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings as SchedulerSettings
from tests.compute.hosts_in_memory import Machine
from tests.world import World, a_request, new_uuid

HOUR = 3600.0
LEASE = 60.0


class Wrong:
    """A clock that runs with the true one and shows another time."""

    def __init__(self, true: ManualClock, rng: random.Random) -> None:
        self._true = true
        self._zero = rng.uniform(0, 1e6)  # when its machine was started
        self._rng = rng
        self.ahead = 0.0
        self.step()

    def step(self) -> None:
        """Somebody sets it."""
        self.ahead = self._rng.choice((-1000.0, -12.0, -1.0, 0.0, 1.0, 12.0, 1000.0)) * HOUR

    def monotonic(self) -> float:
        return self._true.monotonic() + self._zero

    def wall(self) -> float:
        return self._true.wall() + self.ahead

    def sleep(self, seconds: float) -> None:
        self._true.sleep(seconds)


class Timeouts:
    """What an agent waits on: true time passes, and the schedulers go on."""

    def __init__(self, world: 'SkewedWorld') -> None:
        self._world = world
        self._is_set = False

    def wait(self, seconds: float) -> bool:
        if self._is_set:
            return True
        self._world.turn(seconds)
        if self._world.rng.random() < 0.3:
            self._world.set_clocks()
        return self._is_set

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True


class Port:
    """The schedulers as an agent reaches them: any of them, and not each time."""

    def __init__(self, world: 'SkewedWorld') -> None:
        self._world = world
        self.cut = False

    def _any(self) -> Scheduler:
        if self.cut and self._world.rng.random() < 0.7:
            raise exceptions.Unavailable('the line is cut')
        return self._world.rng.choice(self._world.schedulers)

    def register(self, message):
        return self._any().register_host(message)

    def report(self, report):
        scheduler = self._any()
        future = scheduler.report_queue.submit(report, notify=report.full)
        scheduler.report_queue.step()
        if future is None:
            return None
        fate = future.result(0)
        if fate.outcome == 'gone':
            raise exceptions.StaleEpoch(
                host=fate.name, epoch=report.epoch, current=fate.current_epoch
            )
        if fate.outcome == 'unknown_host':
            raise exceptions.NotFound(kind='host', name=fate.name)
        return fate.outcome

    def confirm(self, words):
        return {f.claim_id: f.outcome for f in self._any().confirm(words)}

    def refuse(self, words):
        return {f.claim_id: f.outcome for f in self._any().refuse(words)}

    def release(self, words):
        return {f.claim_id: f.outcome for f in self._any().release(words)}


class House:
    """A host: its machine and journal stay, its agent and its clock come and go."""

    def __init__(self, world: 'SkewedWorld', name: str) -> None:
        self.world, self.name = world, name
        self.clock = Wrong(world.clock, world.rng)
        self.machine = Machine(lambda build: world.state(build.claim_id) == 'confirmed')
        self.journal = Journal(wall=self.clock.wall)
        self.boot()

    def boot(self) -> None:
        """A new agent process."""
        session = Session(RegisterHost(name=self.name, boot_nonce='-'), self.world.port)

        def look():
            seen = running_guests.take_inventory(self.machine, self.journal)
            return seen, self.machine.facts(seen.guests)

        self.member = HostAgent(session, self.world.port, look, HostAgentSettings(), self.world.rng)
        self.agent = self.member.agent = Agent(
            session,
            self.machine,
            self.journal,
            self.member.changed,
            AgentSettings(confirm_seconds=LEASE),
            self.clock.wall,
            self.clock.monotonic,
            lambda: Timeouts(self.world),
        )


class SkewedWorld(World):
    """Two schedulers and three hosts; what is done, and what must hold, is here.

    :ivar made: claim id -> true time at which it was there at the latest
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        super().__init__(lease_seconds=LEASE, sweep_seconds=5.0)
        pipeline = self.scheduler.placing.pipeline
        self.clocks = [Wrong(self.clock, self.rng) for _ in range(2)]
        self.schedulers = [
            Scheduler(
                self.store,
                pipeline,
                self.recorder,
                SchedulerSettings(worker=f'skewed-{n}', **self.settings),
                clock,
            )
            for n, clock in enumerate(self.clocks)
        ]
        for scheduler in self.schedulers:
            scheduler.cache.fetch()
        self.port = Port(self)
        self.houses = {name: House(self, name) for name in ('cmp-1', 'cmp-2', 'cmp-3')}
        self.builds: list[Build] = []
        self.seen: dict[str, str] = {}
        self.pass_time(1.0)

    def state(self, claim_id: str) -> str:
        claim = self.store.claims.load_claim(claim_id)
        return str(claim.state) if claim else 'unknown'

    # -- what happens ------------------------------------------------------------------
    def pass_time(self, seconds: float) -> None:
        """Everybody reports, then true time passes."""
        for house in self.houses.values():
            house.member.turn()
        self.turn(seconds)

    def place(self) -> None:
        """Somebody asks; what is chosen will be built, or not."""
        self._chosen(a_request(self.rng.choice((1, 1, 2)), vcpu=self.rng.choice((1, 2, 4))))

    def _chosen(self, request) -> None:
        answer = self.select(request, self.rng.choice(self.schedulers))
        for selection in [selections[0] for selections in answer.selections]:
            self.builds.append(selection.build())

    def build(self) -> None:
        """A build comes, perhaps late, perhaps again, perhaps over a bad line."""
        if self.builds:
            build = self.rng.choice(self.builds)
            self.port.cut = self.rng.random() < 0.3
            self.houses[build.host].agent.build(build)
            self.port.cut = False

    def delete(self) -> None:
        """A guest is to go."""
        if self.builds:
            build = self.rng.choice(self.builds)
            self.houses[build.host].agent.delete(
                Delete(consumer=build.consumer, host=build.host, claim_id=build.claim_id)
            )

    def step(self) -> None:
        """Clocks are set; hosts forget what they may."""
        self.set_clocks()
        for house in self.houses.values():
            house.agent.purge_journal()

    def set_clocks(self) -> None:
        """Some clocks show another time, of schedulers and of hosts."""
        for clock in (*self.clocks, *(house.clock for house in self.houses.values())):
            if self.rng.random() < 0.5:
                clock.step()

    def restart(self) -> None:
        """An agent is killed and started again."""
        house = self.rng.choice(list(self.houses.values()))
        house.boot()
        if self.rng.random() < 0.7:
            house.member.turn()

    def take_over(self) -> None:
        """A scheduler died in the middle of a request; its repeat comes to another one.

        Before the deadline by the database's clock the dead one is waited for;
        after it the rest of its claims is released as the new ones are made.
        """
        request = a_request(2, budget_ms=40_000)
        hosts = [c.row for c in self.store.feed.load_everything().hosts if c.row]
        row = self.rng.choice(hosts)
        claim = Claim(
            id=new_uuid(),
            request_id=request.request_id,
            consumer=request.consumers[0],
            provider_id=row.id,
            host=row.name,
            allocations={row.id: request.spec.resources},
        )
        draft = RequestDraft(
            id=request.request_id,
            fingerprint=request.fingerprint,
            owner='dead',
            completes=False,
            budget_seconds=20.0,
            lease_seconds=LEASE,
            claims=ClaimColumns.of([ClaimDraft(claim=claim)]),
        )
        (fate,) = self.store.requests.commit([draft]).outcomes
        handle = self.ask(request, self.rng.choice(self.schedulers))
        asked = self.clock.monotonic()
        for _ in range(40):
            if handle in self.replies.answers:
                break
            self.turn(1.0)
        answer = self.replies.answers[handle]
        if answer.selections:
            early = self.clock.monotonic() - asked < 19.0
            assert not (early and fate.accepted), 'taken over before its deadline'
            assert self.state(claim.id) in ('released', 'unknown')
            self.builds += [selections[0].build() for selections in answer.selections]

    # -- what must hold ------------------------------------------------------------------
    def check(self) -> None:
        """Nothing over capacity, twice, lost, early or without permission."""
        discrepancies = self.audit()
        assert not any(discrepancies.values()), discrepancies
        now = self.clock.wall()
        for claim in self.store.claims.list_claims(limit=1000):
            state = str(claim.state)
            if state == 'expired' and self.seen.get(claim.id) != 'expired':
                assert now >= claim.created_at + LEASE, f'{claim.id} expired early'
            self.seen[claim.id] = state
        for house in self.houses.values():
            assert house.machine.without_permission == []
            assert len(set(house.machine.starts)) == len(house.machine.starts), 'started twice'
            for claim_id in house.machine.running:
                assert self.state(claim_id) == 'confirmed', f'{claim_id} runs and is lost'

    def check_end(self) -> None:
        """After leases, sweeps and reports: a claim is confirmed where its guest runs, or over."""
        for _ in range(20):
            self.pass_time(10.0)
        self.check()
        running = {c for house in self.houses.values() for c in house.machine.running}
        live = {c.id: str(c.state) for c in self.store.claims.list_claims(limit=1000) if c.is_live}
        assert live == dict.fromkeys(running, 'confirmed')
        assert not any(c.adopted for c in self.store.claims.list_claims(limit=1000))
