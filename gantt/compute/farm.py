# SPDX-License-Identifier: Apache-2.0
"""Farm of fake hosts in one process, each with the code of a real one.

Every host has its own session, journal, reporter and agent: the code of a real
host, over a fake machine.  Their names, resources, jitter and failures follow
from the seed.  All of them share one runner, and
one topic on which builds arrive.

Faults are injected into hosts now, or at a time:

    events:
      - {at: 30, do: die, hosts: {fraction: 0.1}}
      - {at: 60, do: revive, guests: gone}
      - {at: 90, do: disagree, hosts: {names: [fake-00007]}}

disagree, agree
    Refuse every build although its claim is valid; behave again.
die, revive
    Neither report nor answer; come back with a new epoch.
restart
    Both at once: work under way is cut off in the middle.
lose_disk
    Restart without the journal.
status
    Change nothing.

``guests: gone`` with revive, restart or lose_disk means that nothing runs any
more, as after a loss of power; ``alive``, that only the agent was away.
"""

import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from gantt import exceptions
from gantt.compute.agent.agent import Agent, BuildOutcome, Halted
from gantt.compute.agent.host_agent import HostAgent, HostAgentSettings, with_agent
from gantt.compute.agent.journal import Journal
from gantt.compute.agent.runner import PeriodicTasks, Runner
from gantt.compute.agent.session import Fenced
from gantt.compute.ports import GuestError, HostReadings, RunningGuest, SchedulerPort
from gantt.compute.shapes import DEFAULT_SHAPES, Shape, ShapePart, assign_shape, load_yaml
from gantt.core.messages import base
from gantt.core.messages.base import Message, Name
from gantt.core.messages.build import Build, Delete
from gantt.core.messages.report import RegisterHost, ReportedMetric

LOG = logging.getLogger(__name__)

#: Most names that the answer to an order lists.
NAMES_MAX = 1000
IDLE_SECONDS = 3600.0


EVENTS_MAX = 100_000


class HostSelector(Message, frozen=True, kw_only=True):
    """Choice of hosts: those that meet all conditions, ``count`` or ``fraction`` of them drawn."""

    names: Annotated[list[Name], msgspec.Meta(max_length=100_000)] | None = None
    zone: Name | None = None
    shape: Name | None = None
    count: Annotated[int, msgspec.Meta(ge=0)] | None = None
    fraction: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class Fault(Message, frozen=True, kw_only=True):
    """A fault, and the hosts that it happens to.

    :ivar at: seconds after the start of the farm; only in a file of events
    """

    do: Literal['disagree', 'agree', 'die', 'revive', 'restart', 'lose_disk', 'status']
    hosts: HostSelector = HostSelector()
    guests: Literal['alive', 'gone'] = 'alive'
    at: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0


def choose(selector: HostSelector, hosts: Iterable[Any], rng: random.Random) -> list[Any]:
    """Return the hosts that a selector selects, in their order; the draw follows from ``rng``.

    :param hosts: objects with ``name``, ``zone`` and ``shape``
    """
    names = None if selector.names is None else set(selector.names)
    matching = [
        host
        for host in hosts
        if (names is None or host.name in names)
        and selector.zone in (None, host.zone)
        and selector.shape in (None, host.shape)
    ]
    count = len(matching) if selector.count is None else selector.count
    if selector.fraction is not None:
        count = min(count, round(len(matching) * selector.fraction))
    if count >= len(matching):
        return matching
    chosen = sorted(rng.sample(range(len(matching)), count))
    return [matching[index] for index in chosen]


def load_events(path: str) -> list[Fault]:
    """Read a file of events; return them in order of time.

    :raises Misconfigured: the file cannot be read
    :raises InvalidMessage: names file, event and field
    """
    content = load_yaml(path, '--events')
    events = content.get('events') if isinstance(content, dict) else None
    if not isinstance(events, list) or len(events) > EVENTS_MAX or set(content) != {'events'}:
        raise exceptions.invalid(
            path, f'expected one key, events, with a list of at most {EVENTS_MAX}'
        )
    faults_listed = [
        base.decode(event, Fault, inside=f'{path}: events[{index}]')
        for index, event in enumerate(events)
    ]
    return sorted(faults_listed, key=lambda order: order.at)


class FarmPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a farm.

    :ivar spread_seconds: time over which first registrations are spread
    """

    count: int
    seed: int = 0
    prefix: str = 'fake'
    shapes: list[Shape] = msgspec.field(default_factory=lambda: list(DEFAULT_SHAPES))
    start_seconds: float = 0.0
    start_failures: float = 0.0
    spread_seconds: float = 0.0
    threads: int = 8


class FakeHost:
    """A fake host of a farm; it outlives its agents, which faults stop and start."""

    def __init__(self, plan: FarmPlan, number: int) -> None:
        width = max(5, len(str(plan.count)))
        self.name = f'{plan.prefix}-{number:0{width}d}'
        self.part: ShapePart = assign_shape(plan.shapes, plan.seed, number)
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
        self.host_agent: HostAgent | None = None  # None: dead

    @property
    def zone(self) -> str | None:
        return self.part.zone

    @property
    def shape(self) -> str:
        """Name of the host's shape."""
        return self.part.shape.name

    def boot(self, port: SchedulerPort, settings: HostAgentSettings) -> HostAgent:
        """Start the agent of the host, with its journal and guests as they are."""
        announcement = RegisterHost(
            name=self.name,
            node=self.name,
            uuid=self.uuid,
            boot_nonce='-',
            zone=self.zone,
        )
        self.host_agent = with_agent(
            announcement, port, self.driver, self.journal, settings, self.part.rng
        )
        return self.host_agent

    def die(self) -> HostAgent | None:
        """Stop the agent of the host, with all that is under way."""
        host_agent, self.host_agent = self.host_agent, None
        if host_agent is not None and host_agent.agent is not None:
            host_agent.agent.halt()
        return host_agent


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
        self._order_count = 0
        self._lock = threading.Lock()

    # -- life ------------------------------------------------------------------
    def start(self) -> None:
        """Start every host."""
        step = self.plan.spread_seconds / max(1, len(self.hosts))
        for number, host in enumerate(self.hosts.values()):
            self._boot(host, number * step)
        if self._events:
            self._runner.add(FaultScript(self._events, self, self._clock))
        self._runner.start()

    def stop(self, seconds: float = 10.0) -> bool:
        """Stop every host; finish work under way; return whether it ended in time."""
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
        """Return whether ``host`` is a host of this farm that is alive and has registered."""
        fake_host = self.hosts.get(host)
        host_agent = None if fake_host is None else fake_host.host_agent
        return host_agent is not None and host_agent.session.is_registered

    def _agent(self, name: str) -> Agent:
        host = self.hosts.get(name)
        if host is None:
            raise exceptions.invalid('host', f'expected a host of this farm; got {name!r}')
        host_agent = host.host_agent
        if host_agent is None or host_agent.agent is None:
            raise Halted
        return host_agent.agent

    # -- faults ------------------------------------------------
    def command(self, order: Fault) -> dict[str, object]:
        """Inject a fault; return the names of its hosts, and the state of the farm afterwards."""
        with self._lock:
            self._order_count += 1
            rng = random.Random(f'{self.plan.seed}:order:{self._order_count}')
            chosen = (
                [] if order.do == 'status' else choose(order.hosts, self._able_hosts(order), rng)
            )
            for host in chosen:
                self._apply_fault(order, host)
        if chosen:
            LOG.info('Fault is injected: fault=%s hosts=%d', order.do, len(chosen))
        return {
            'do': order.do,
            'count': len(chosen),
            'hosts': [host.name for host in chosen[:NAMES_MAX]],
            'status': self.status(),
        }

    def _able_hosts(self, order: Fault) -> list[FakeHost]:
        """Return the hosts a fault can apply to: only the dead revive, only the living die."""
        if order.do in ('disagree', 'agree'):
            return list(self.hosts.values())
        dead = order.do == 'revive'
        return [host for host in self.hosts.values() if (host.host_agent is None) is dead]

    def _apply_fault(self, order: Fault, host: FakeHost) -> None:
        if order.do in ('disagree', 'agree'):
            host.driver.disagrees = order.do == 'disagree'
            return
        host_agent = host.die()
        if host_agent is not None:
            self._runner.remove(host_agent)
        if order.do == 'die':
            return
        if order.guests == 'gone':
            host.driver.lose_guests()
        if order.do == 'lose_disk':
            host.journal = Journal()
        self._boot(host)

    def status(self) -> dict[str, object]:
        """Return counts of the farm's hosts, and the seconds by which the last turn came late."""
        host_agents = [
            host.host_agent for host in self.hosts.values() if host.host_agent is not None
        ]
        return {
            'hosts': len(self.hosts),
            'alive': len(host_agents),
            'registered': sum(host_agent.session.is_registered for host_agent in host_agents),
            'fenced': sum(host_agent.session.is_fenced for host_agent in host_agents),
            'reporting': sum(host_agent.reports > 0 for host_agent in host_agents),
            'reports': sum(host_agent.reports for host_agent in host_agents),
            'failures': sum(host_agent.failures for host_agent in host_agents),
            'guests': sum(len(host.driver.guests() or ()) for host in self.hosts.values()),
            'started': sum(host.driver.started for host in self.hosts.values()),
            'disagreements': sum(
                host_agent.agent.disagreements for host_agent in host_agents if host_agent.agent
            ),
            'late_seconds': round(self._runner.lateness, 3),
        }


class FaultScript(PeriodicTasks):
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
POLL_SECONDS, RETRY_SECONDS = 1.0, 5.0


class ReservedClaimsTask(PeriodicTasks):
    """A task that periodically reads the reserved claims, and builds each claim's guest once.

    :param reserved: returns the claims that are reserved now, each as its build; raises
        ``Unavailable`` where they cannot be read
    """

    name = '(what is claimed)'

    def __init__(self, farm: Farm, reserved: Callable[[], Iterable[Build]]) -> None:
        self.started = 0
        self._farm = farm
        self._reserved = reserved
        self._begun_claims: set[str] = set()
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
        self._begun_claims &= builds.keys()
        for claim_id, build in builds.items():
            if claim_id not in self._begun_claims and self._farm.is_ready(build.host):
                self._begun_claims.add(claim_id)
                self.run_in_background(functools.partial(self._build, build))
        return POLL_SECONDS

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


#: Reason that a disagreeing host gives.
DISAGREES_REASON = 'this fake host is set to refuse every build'


class FakeDriver:
    """Driver of a fake host: its machine and its guests, in memory.

    :param rng: source of its load and its failures
    :param start_seconds: seconds that a guest takes to start
    :param failures: share of the guests that do not start
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        zone: str | None,
        rng: random.Random,
        start_seconds: float = 0.0,
        failures: float = 0.0,
    ) -> None:
        self.disagrees = False
        self.started = 0
        self._facts = shape.facts(name, zone)
        self._rng = rng
        self._start_seconds = start_seconds
        self._failures = failures
        self._guests: dict[tuple[str, str | None], RunningGuest] = {}
        self._lock = threading.Lock()

    def facts(self, guests: Sequence[RunningGuest]) -> HostReadings:
        used = sum(
            guest.resources.get('VCPU', 0) + guest.resources.get('PCPU', 0) for guest in guests
        )
        inventory = self._facts.inventories.get('VCPU')
        load = used / max(1, inventory.cap if inventory else 1)
        measured = ReportedMetric(value=round(load * self._rng.uniform(0.6, 1.0), 3), source='fake')
        return msgspec.structs.replace(self._facts, metrics={'load': measured})

    def guests(self) -> list[RunningGuest] | None:
        with self._lock:
            return list(self._guests.values())

    def objection(self, build: Build) -> str:
        return DISAGREES_REASON if self.disagrees else ''

    def start(self, build: Build) -> None:
        # By claim, not by order of arrival: threads must not decide what fails.
        chance = random.Random(build.claim_id).random()
        if chance < self._failures:
            raise GuestError(
                consumer=build.consumer, problem='the farm is configured to let some starts fail'
            )
        if self._start_seconds:
            time.sleep(self._start_seconds)
        guest = RunningGuest.of(build)
        with self._lock:
            self._guests[build.consumer, build.claim_id] = guest
            self.started += 1

    def stop(self, guest: RunningGuest) -> None:
        with self._lock:
            self._guests.pop((guest.consumer, guest.claim_id), None)

    def await_start(self, claim_id: str, seconds: float) -> bool:
        return True

    def lose_guests(self) -> None:
        """Drop all guests, as after a loss of power."""
        with self._lock:
            self._guests.clear()

    def put(self, guests: Sequence[RunningGuest]) -> None:
        """Add running guests that this process has not built."""
        with self._lock:
            self._guests.update({(guest.consumer, guest.claim_id): guest for guest in guests})
