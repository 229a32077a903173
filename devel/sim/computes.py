# SPDX-License-Identifier: Apache-2.0
"""A host: the production agent over a machine that remembers every start.

The machine and the journal's file outlive the agent's process; what the agent
had in memory does not.  A process may die before or after every step that it
writes to its journal, and in the middle of starting a guest.
"""

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from msgspec import UNSET, UnsetType

from devel.sim import plan
from devel.sim.loop import Loop, Process, ProcessClock, SimSignal
from devel.sim.network import Network
from gantt.compute.agent import running_guests
from gantt.compute.agent.agent import Agent, AgentSettings, Halted
from gantt.compute.agent.host_agent import HostAgent, HostAgentSettings
from gantt.compute.agent.journal import Journal, JournalEntry, Stamp
from gantt.compute.agent.runner import PeriodicTasks, Runner
from gantt.compute.agent.running_guests import GuestInventory
from gantt.compute.agent.session import Fenced, Session
from gantt.compute.ports import GuestError, HostReadings, RunningGuest
from gantt.core.messages.build import Build, Delete
from gantt.core.messages.report import (
    ClaimUpdate,
    HostReport,
    Registered,
    RegisterHost,
    ReportedMetric,
)
from gantt.core.messages.resource_classes import Inventory

VCPUS, RAM, DISK = 8, 16_384, 100


class SimPort:
    """The scheduler as a host reaches it."""

    def __init__(self, network: Network, name: str) -> None:
        self._network = network
        self._name = name

    def register(self, message: RegisterHost) -> Registered:
        return cast(Registered, self._call('register_host', message))

    def report(self, report: HostReport) -> str | None:
        if report.full:
            return cast(str | None, self._call('report', report))
        self._network.cast(self._name, 'report', report)
        return None

    def confirm(self, update: ClaimUpdate) -> dict[str, str]:
        return self._send('confirm', update)

    def refuse(self, update: ClaimUpdate) -> dict[str, str]:
        return self._send('refuse', update)

    def release(self, update: ClaimUpdate) -> dict[str, str]:
        return self._send('release', update)

    def _send(self, verb: str, update: ClaimUpdate) -> dict[str, str]:
        return {result.claim_id: result.outcome for result in self._call(verb, update)}

    def _call(self, method: str, message: object) -> Any:
        return self._network.call(self._name, method, message, plan.CALL_SECONDS)


class JournalFile(Journal):
    """A journal on a disk that survives its process.

    :ivar process: the writer now
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        super().__init__(wall)
        self.process: Process | None = None

    def count_registration(self) -> int:
        with self._written('counting a registration'):
            return super().count_registration()

    def note_epoch(self, epoch: int) -> None:
        with self._written(f'noting epoch {epoch}'):
            super().note_epoch(epoch)

    def add(self, entry: JournalEntry) -> bool:
        with self._written(f'noting {entry.claim_id[:8]} as {entry.state}'):
            return super().add(entry)

    def note_query(self, claim_id: str, requested: Stamp) -> bool:
        with self._written(f'noting the question about {claim_id[:8]}'):
            return super().note_query(claim_id, requested)

    def change_state(self, claim_id: str, *args: Any, **kwargs: Any) -> bool:
        with self._written(f'moving {claim_id[:8]}'):
            return super().change_state(claim_id, *args, **kwargs)

    @contextmanager
    def _written(self, what: str) -> Iterator[None]:
        assert self.process is not None
        self.process.step('before', what)
        yield
        self.process.step('after', what)


@dataclasses.dataclass(eq=False)
class SimMachine:
    """The guests of a host and what it has; the GuestDriver of whichever agent runs.

    :ivar allowed: '' where a claim allows a start, else why it does not
    :ivar vcpus: the world may take some away
    :ivar location: where it is, if that is known
    :ivar wrong: starts that must not have been
    """

    loop: Loop
    rng: random.Random
    name: str
    allowed: Callable[[Build], str]

    def __post_init__(self) -> None:
        self.running: dict[str, RunningGuest] = {}
        self.vcpus = VCPUS
        self.location: str | UnsetType = UNSET
        self.wrong: list[str] = []
        self.trouble = True

    def facts(self, guests: Sequence[RunningGuest]) -> HostReadings:
        return HostReadings(
            inventories={
                'VCPU': Inventory(total=self.vcpus),
                'MEMORY_MB': Inventory(total=RAM),
                'DISK_GB': Inventory(total=DISK),
            },
            metrics={'load': ReportedMetric(value=float(len(guests)))},
            location=self.location,
        )

    def guests(self) -> list[RunningGuest] | None:
        if self._is_unlucky(0.01):
            raise GuestError(consumer='-', problem='cannot be listed now')
        return list(self.running.values())

    def objection(self, build: Build) -> str:
        return 'the image is not to be had' if self._is_unlucky(0.03) else ''

    def start(self, build: Build) -> None:
        self.loop.sleep(self.rng.uniform(0.01, 3.0))
        if self._is_unlucky(0.03):
            raise GuestError(consumer=build.consumer, problem='does not start')
        problem = self.allowed(build)
        if build.claim_id in self.running:
            problem = 'it runs already'
        if problem:
            self.wrong.append(f'{self.name} started claim {build.claim_id}: {problem}')
        self.loop.write_trace(self.name, f'guest {build.claim_id[:8]} runs {problem}'.rstrip())
        self.running[build.claim_id] = RunningGuest(
            consumer=build.consumer, claim_id=build.claim_id, resources=build.resources
        )
        self.loop.sleep(self.rng.uniform(0.0, 0.1))

    def stop(self, guest: RunningGuest) -> None:
        self.loop.sleep(self.rng.uniform(0.01, 1.0))
        assert guest.claim_id is not None
        if self.running.pop(guest.claim_id, None) is not None:
            self.loop.write_trace(self.name, f'guest {guest.claim_id[:8]} is gone')
        self.loop.sleep(self.rng.uniform(0.0, 0.1))

    def await_start(self, claim_id: str, seconds: float) -> bool:
        return True

    def _is_unlucky(self, share: float) -> bool:
        return self.trouble and self.rng.random() < share


class MemberTurns:
    """A source of turns for one member; the part of ``Runner`` that a member sees."""

    def __init__(self, process: Process, member: HostAgent) -> None:
        self._process = process
        self._member = member
        self._due = 0.0
        self._early = SimSignal(process.loop)

    def run(self) -> None:
        """Take turn after turn, as a task."""
        loop = self._process.loop
        while True:
            self._due = loop.now + self._member.turn()
            while (seconds_left := self._due - loop.now) > 0:
                self._early.wait(seconds_left)
                self._early.clear()

    def run_within(self, member: PeriodicTasks, within: float) -> None:
        self._due = min(self._due, self._process.loop.now + within)
        self._early.set()

    def add(self, job: PeriodicTasks, seconds: float = 0.0) -> None:
        job.runner = cast(Runner, self)
        self._process.loop.spawn(self._process, 'aside', job.turn)

    def remove(self, job: PeriodicTasks) -> None:
        job.runner = None


class ComputeProcess(Process):
    """One start of the agent of a host."""

    def __init__(
        self,
        loop: Loop,
        network: Network,
        rng: random.Random,
        machine: SimMachine,
        file: JournalFile,
    ) -> None:
        super().__init__(loop, machine.name)
        file.process = self
        clock = ProcessClock(self)
        port = SimPort(network, self.name)
        session = Session(RegisterHost(name=self.name, boot_nonce='-'), port, file)

        def look() -> tuple[GuestInventory, HostReadings]:
            observed = running_guests.take_inventory(machine, file)
            return observed, machine.facts(observed.guests)

        terms = AgentSettings(confirm_seconds=plan.LEASE_SECONDS, wait_for_other_seconds=30.0)
        self.member = HostAgent(
            session, port, look, HostAgentSettings(change_seconds=0.5, terms=terms), rng
        )
        self.agent = Agent(
            session,
            machine,
            file,
            on_change=self.member.changed,
            terms=terms,
            wall=clock.wall,
            monotonic=clock.monotonic,
            event=lambda: cast(Any, SimSignal(loop)),
        )
        self.member.agent = self.agent
        self.machine = machine
        turner = MemberTurns(self, self.member)
        self.member.runner = cast(Runner, turner)
        loop.spawn(self, 'turns', turner.run)

    @property
    def is_fenced(self) -> bool:
        return self.member.session.is_fenced

    def take(self, message: Build | Delete) -> None:
        """Take a build or a delete."""
        kind = type(message).__name__.lower()
        self.loop.spawn(self, kind, self._handle, kind, message)

    def _handle(self, kind: str, message: Build | Delete) -> None:
        try:
            outcome = (
                self.agent.build(message)
                if isinstance(message, Build)
                else (self.agent.delete(message))
            )
        except (Halted, Fenced, GuestError) as e:
            self.loop.write_trace(self.name, f'{kind}: {type(e).__name__}')
        else:
            claim = (outcome.claim_id or '-')[:8]
            self.loop.write_trace(
                self.name, f'{kind} {claim}: {outcome.outcome} {outcome.reason}'.rstrip()
            )


class Host:
    """A host across the deaths of its agent.

    :ivar process: None while it is dead
    :ivar is_lost: it cannot be started again
    """

    def __init__(
        self,
        loop: Loop,
        network: Network,
        rng: random.Random,
        name: str,
        allowed: Callable[[Build], str],
        wall: Callable[[], float],
    ) -> None:
        self.name = name
        self.machine = SimMachine(loop, rng, name, allowed)
        self.process: ComputeProcess | None = None
        self.skew = 0.0
        self.is_lost = False
        self._loop, self._network, self._rng, self._wall = loop, network, rng, wall
        self._file = JournalFile(wall)

    @property
    def is_there(self) -> bool:
        return self.process is not None and self.process.alive

    def boot(self) -> None:
        """Start the agent where it is not running."""
        if self.is_there or self.is_lost:
            return
        self._loop.write_trace(self.name, 'starts')
        self.process = ComputeProcess(
            self._loop, self._network, self._rng, self.machine, self._file
        )
        self.process.skew = self.skew

    def die(self) -> None:
        """Kill the agent; guests run on."""
        if self.process is not None and self.process.alive:
            self._loop.write_trace(self.name, 'is killed')
            self.process.die()

    def lose_journal(self) -> None:
        """Kill the agent and lose its disk."""
        self.die()
        self._file = JournalFile(self._wall)

    def lose_power(self) -> None:
        """Kill the agent and all guests."""
        self.die()
        self.machine.running.clear()
