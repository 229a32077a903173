# SPDX-License-Identifier: Apache-2.0
"""Farm of fake hosts in one process, each with the code of a real one.

Every host has its own session, journal, reporter and agent: the code of a real
host, over a fake machine.  Their names, resources, jitter and failures follow
from the seed.  All of them share one runner, and
one topic on which builds arrive.
"""

import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from gantt import exceptions
from gantt.compute.agent.agent import Agent, BuildOutcome, Halted
from gantt.compute.agent.journal import Journal
from gantt.compute.agent.session import Fenced
from gantt.compute.drivers.fake import FakeDriver
from gantt.compute.farm.faults import Fault, choose
from gantt.compute.farm.host_agent import HostAgent, HostAgentSettings, with_agent
from gantt.compute.farm.runner import PeriodicTasks, Runner
from gantt.compute.farm.shapes import DEFAULT, Shape, ShapePart, deal
from gantt.compute.ports import SchedulerPort
from gantt.core.messages import base
from gantt.core.messages.build import Build, Delete
from gantt.core.messages.report import RegisterHost

LOG = logging.getLogger(__name__)

#: Most names that the answer to an order lists.
NAMES_MAX = 1000
IDLE_SECONDS = 3600.0


class FarmPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a farm.

    :ivar spread_seconds: time over which first registrations are spread
    """

    count: int
    seed: int = 0
    prefix: str = 'fake'
    shapes: list[Shape] = msgspec.field(default_factory=lambda: list(DEFAULT))
    start_seconds: float = 0.0
    start_failures: float = 0.0
    spread_seconds: float = 0.0
    threads: int = 8


class FakeHost:
    """A host of a farm, across its deaths."""

    def __init__(self, plan: FarmPlan, number: int) -> None:
        width = max(5, len(str(plan.count)))
        self.name = f'{plan.prefix}-{number:0{width}d}'
        self.part: ShapePart = deal(plan.shapes, plan.seed, number)
        self.uuid = base.derived_id('fake host', plan.seed, self.name)
        self.driver = FakeDriver(
            self.name,
            self.part.shape,
            self.part.zone,
            self.part.rng,
            plan.start_seconds,
            plan.start_failures,
        )
        self.journal: Journal = Journal()
        self.member: HostAgent | None = None  # None: dead

    @property
    def zone(self) -> str | None:
        return self.part.zone

    @property
    def shape(self) -> str:
        """Name of its shape."""
        return self.part.shape.name

    def boot(self, port: SchedulerPort, settings: HostAgentSettings) -> HostAgent:
        """Start its agent, with its current journal and guests."""
        announcement = RegisterHost(
            name=self.name,
            node=self.name,
            uuid=self.uuid,
            boot_nonce='-',
            zone=self.zone,
        )
        self.member = with_agent(
            announcement, port, self.driver, self.journal, settings, self.part.rng
        )
        return self.member

    def die(self) -> HostAgent | None:
        """Stop its agent, also anything under way."""
        member, self.member = self.member, None
        if member is not None and member.agent is not None:
            member.agent.halt()
        return member


class Farm:
    """Hosts of a farm, their runner, and faults for them.

    :param port: the scheduler; one for all hosts
    :param events: timed faults, in order of time
    """

    def __init__(
        self,
        plan: FarmPlan,
        port: SchedulerPort,
        settings: HostAgentSettings | None = None,
        events: Sequence[Fault] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.hosts = {host.name: host for host in (FakeHost(plan, i) for i in range(plan.count))}
        self._port = port
        self._settings = settings or HostAgentSettings()
        self._runner = Runner(plan.threads, clock)
        self._clock = clock
        self._events = list(events)
        self._given = 0
        self._lock = threading.Lock()

    # -- life ------------------------------------------------------------------
    def start(self) -> None:
        """Start every host."""
        step = self.plan.spread_seconds / max(1, len(self.hosts))
        for number, host in enumerate(self.hosts.values()):
            self._boot(host, number * step)
        if self._events:
            self._runner.add(Script(self._events, self, self._clock))
        self._runner.start()

    def stop(self, seconds: float = 10.0) -> bool:
        """End; finish work under way; return whether it ended in time."""
        return self._runner.stop(seconds)

    def _boot(self, host: FakeHost, seconds: float = 0.0) -> None:
        self._runner.add(host.boot(self._port, self._settings), seconds)

    # -- builds and deletes -----------------------------------------------------
    def build(self, build: Build) -> BuildOutcome:
        """Build a guest on one of the hosts; as ``Agent.build``.

        :raises InvalidMessage: no host of this farm
        :raises Halted: the host is dead and answers nothing
        """
        return self._agent(build.host).build(build)

    def delete(self, delete: Delete) -> BuildOutcome:
        """Delete a guest on one of the hosts; as ``Agent.delete`` and ``build``."""
        return self._agent(delete.host).delete(delete)

    def is_ready(self, host: str) -> bool:
        """Return whether it is one of the hosts, lives, and has registered."""
        fake_host = self.hosts.get(host)
        member = None if fake_host is None else fake_host.member
        return member is not None and member.session.is_registered

    def _agent(self, name: str) -> Agent:
        host = self.hosts.get(name)
        if host is None:
            raise exceptions.invalid('host', f'expected a host of this farm; got {name!r}')
        member = host.member
        if member is None or member.agent is None:
            raise Halted
        return member.agent

    # -- faults ------------------------------------------------
    def command(self, order: Fault) -> dict[str, object]:
        """Carry out an order; return the hosts, and the state of the farm afterwards."""
        with self._lock:
            self._given += 1
            rng = random.Random(f'{self.plan.seed}:order:{self._given}')
            chosen = [] if order.do == 'status' else choose(order.hosts, self._able(order), rng)
            for host in chosen:
                self._do(order, host)
        if chosen:
            LOG.info('Fault is injected: fault=%s hosts=%d', order.do, len(chosen))
        return {
            'do': order.do,
            'count': len(chosen),
            'hosts': [host.name for host in chosen[:NAMES_MAX]],
            'status': self.status(),
        }

    def _able(self, order: Fault) -> list[FakeHost]:
        """Return the hosts an order can apply to: only the dead revive, only the living die."""
        if order.do in ('disagree', 'agree'):
            return list(self.hosts.values())
        dead = order.do == 'revive'
        return [host for host in self.hosts.values() if (host.member is None) is dead]

    def _do(self, order: Fault, host: FakeHost) -> None:
        if order.do in ('disagree', 'agree'):
            host.driver.disagrees = order.do == 'disagree'
            return
        member = host.die()
        if member is not None:
            self._runner.remove(member)
        if order.do == 'die':
            return
        if order.guests == 'gone':
            host.driver.lose_guests()
        if order.do == 'lose_disk':
            host.journal = Journal()
        self._boot(host)

    def status(self) -> dict[str, object]:
        """Return counts, and the seconds by which the last turn came late."""
        members = [host.member for host in self.hosts.values() if host.member is not None]
        return {
            'hosts': len(self.hosts),
            'alive': len(members),
            'registered': sum(member.session.is_registered for member in members),
            'fenced': sum(member.session.is_fenced for member in members),
            'reporting': sum(member.reports > 0 for member in members),
            'reports': sum(member.reports for member in members),
            'failures': sum(member.failures for member in members),
            'guests': sum(len(host.driver.guests() or ()) for host in self.hosts.values()),
            'started': sum(host.driver.started for host in self.hosts.values()),
            'disagreements': sum(member.agent.disagreements for member in members if member.agent),
            'late_seconds': round(self._runner.lateness, 3),
        }


class Script(PeriodicTasks):
    """Timed faults, as a task with due times."""

    def __init__(self, events: list[Fault], farm: Farm, clock: Callable[[], float]) -> None:
        self.name = 'events'
        self._events = events
        self._farm = farm
        self._clock = clock
        self._start: float | None = None

    def turn(self) -> float:
        """Carry out the faults that are due; return the seconds until the next one."""
        now = self._clock()
        if self._start is None:
            self._start = now
        while self._events and self._events[0].at <= now - self._start:
            self._farm.command(self._events.pop(0))
        return self._events[0].at - (now - self._start) if self._events else IDLE_SECONDS


# -- Claims on the hosts of a farm are built there, without a conductor.
#: Between two readings of the claims, and after one that failed.
LOOK_SECONDS, RETRY_SECONDS = 1.0, 5.0


class Claimed(PeriodicTasks):
    """A task that reads the reserved claims periodically, and has each built once.

    :param reserved: returns the claims that are reserved now, each as its build; raises
        ``Unavailable`` where they cannot be read
    """

    name = '(what is claimed)'

    def __init__(self, farm: Farm, reserved: Callable[[], Iterable[Build]]) -> None:
        self.started = 0
        self._farm = farm
        self._reserved = reserved
        self._begun: set[str] = set()
        self._is_away = False

    def turn(self) -> float:
        """Read the claims once; return the seconds until the next time."""
        try:
            builds = {build.claim_id: build for build in self._reserved()}
        except exceptions.Unavailable as e:
            # Logged once for each outage.
            LOG.log(
                logging.DEBUG if self._is_away else logging.WARNING,
                'Reserved claims cannot be read; they are read again later: error=%s',
                e,
            )
            self._is_away = True
            return RETRY_SECONDS
        self._is_away = False
        self._begun &= builds.keys()
        for claim_id, build in builds.items():
            if claim_id not in self._begun and self._farm.is_ready(build.host):
                self._begun.add(claim_id)
                self.aside(functools.partial(self._build, build))
        return LOOK_SECONDS

    def _build(self, build: Build) -> None:
        try:
            outcome = self._farm.build(build)
        except (Halted, Fenced, exceptions.InvalidMessage) as e:
            LOG.info('Claim is not built: claim=%s host=%s error=%s', build.claim_id, build.host, e)
            return
        self.started += outcome.outcome == 'running'
        LOG.info(
            'Build ended: guest=%s host=%s outcome=%s reason=%s',
            outcome.consumer,
            build.host,
            outcome.outcome,
            outcome.reason or '-',
        )
