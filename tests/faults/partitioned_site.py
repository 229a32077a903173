# SPDX-License-Identifier: Apache-2.0
"""Compute agents as they are, over a broker that can be cut off, and what they do wrong.

The scheduler is a process; the agents are a farm in this process, so that a test
sees every start of a guest at the moment at which it happens.
"""

import collections
import random
import threading
import time

from gantt import client
from gantt.client.hosts import topic_of
from gantt.compute.agent.host_agent import HostAgentSettings
from gantt.compute.farm import Farm, FarmPlan
from gantt.compute.listen import BuildListener, interface_of
from gantt.compute.over_rpc import RpcSchedulerPort
from gantt.compute.shapes import Shape
from gantt.core.claims.claim import State
from gantt.core.messages.build import Build, Delete
from gantt.core.messages.resource_classes import Inventory
from tests.nemesis import load
from tests.nemesis.site import Site
from tests.rpc.bus import a_conf

#: Places on each host of a farm.
SLOTS = 5
#: What the places on the hosts of a farm are called.
CLASSES = {
    'island': 'VGPU',
    'silent': 'PGPU',
    'refused': 'FPGA',
    'twin': 'SRIOV_NET_VF',
    'past': 'NUMA_SOCKET',
    'beside': 'PCPU',
}


class Watched:
    """The scheduler as agents reach it, and every word that they said.

    :ivar said: (word, host, what became of it), in order
    """

    def __init__(self, port: RpcSchedulerPort) -> None:
        self._port = port
        self.said: list[tuple[str, str, str]] = []
        for word in ('register', 'report', 'confirm', 'refuse', 'release'):
            setattr(self, word, self._watched(word))

    def _watched(self, word):
        def say(message):
            try:
                answer = getattr(self._port, word)(message)
            except Exception as e:
                self.said.append((word, message.name, type(e).__name__))
                raise
            outcome = ' '.join(sorted(set(answer.values()))) if isinstance(answer, dict) else answer
            self.said.append((word, message.name, str(outcome)))
            return answer

        return say


class SmallFarm:
    """One farm: hosts, their port, the topic on which builds arrive.

    :param machines: another hamlet, on whose machines these agents run as well
    """

    def __init__(
        self, broker: str, name: str, count: int, wrong, machines: 'SmallFarm | None' = None
    ) -> None:
        self.name, self.topic = name, topic_of(name)
        self._carrier = client.get_transport(a_conf(broker))
        self.port = Watched(RpcSchedulerPort(self._carrier, 10.0))
        shape = Shape(inventories={slots_of(name): Inventory(total=SLOTS)}, vcpus=1)
        self.farm = Farm(
            FarmPlan(count=count, prefix=name, shapes=[shape], threads=4),
            self.port,
            HostAgentSettings(change_seconds=0.1),
        )
        for host in self.farm.hosts.values():
            if machines is not None:
                host.driver = machines.farm.hosts[host.name].driver
            else:
                wrong.watch(host)
        hosts = list(self.farm.hosts)
        self._listener = BuildListener(
            self._carrier, name, interface_of(self.farm), hosts, threads=4
        )

    def start(self) -> None:
        self._listener.start()
        self.farm.start()

    def guests(self) -> dict[str, set[str]]:
        """Consumers that run, by host.  (A claim that is adopted has another id.)"""
        hosts = self.farm.hosts.items()
        return {n: {g.consumer for g in h.driver.guests()} for n, h in hosts}

    def report_all(self) -> None:
        """Let every host say everything at once."""
        for host in self.farm.hosts.values():
            host.host_agent.changed(True)

    def close(self) -> None:
        self.farm.stop(10)
        self._listener.stop(10)
        self._carrier.cleanup()


class Wrong:
    """Starts that must not have been; one claim of a store starts once, when it is confirmed.

    :ivar lines: what was wrong
    """

    def __init__(self, store) -> None:
        self._store = store
        self.starts: collections.Counter[str] = collections.Counter()
        self.lines: list[str] = []
        self._lock = threading.Lock()

    def watch(self, host) -> None:
        start = host.driver.start

        def watched(build):
            claim = self._store.claims.load_claim(build.claim_id)
            with self._lock:
                self.starts[build.claim_id] += 1
                if claim is None or claim.state is not State.CONFIRMED:
                    state = claim.state if claim else 'unknown'
                    self.lines.append(f'{host.name} started {build.claim_id}, which is {state}')
                if self.starts[build.claim_id] > 1:
                    self.lines.append(f'{host.name} started {build.claim_id} again')
            start(build)

        host.driver.start = watched


def slots_of(name: str) -> str:
    """The class that only the hosts of a farm have."""
    return CLASSES[name]


class PartitionedSite:
    """A site with a scheduler, farms, and a conductor who asks and builds."""

    def __init__(self, site: Site, broker: str) -> None:
        self.site, self.store, self.broker = site, site.store, broker
        self.callers = load.Conductors(broker, attempt_seconds=5)
        self.compute = client.ComputeClient(self.callers.carrier)
        self.wrong = Wrong(site.store)
        self._rng = random.Random(11)

    def a_request(self, name: str, **how):
        how.setdefault('lease', 10)
        return load.a_request(self._rng, resources={slots_of(name): 1}, budget_ms=20_000, **how)

    def ask(self, name: str, count: int, **how) -> list[load.CallRecord]:
        """Ask for places on the hosts of a farm."""
        return self.callers.ask_all([self.a_request(name, **how) for _ in range(count)], 4)

    def builds(self, records: list[load.CallRecord], lease: float = 10.0) -> list[Build]:
        """What a conductor sends for what it was told."""
        chosen = [s[0] for call in records if call.answer for s in call.answer.selections]
        return [
            Build(
                claim_id=s.claim_id,
                consumer=s.consumer,
                host=s.host,
                resources=s.resources,
                lease_seconds=lease,
            )
            for s in chosen
        ]

    def send(self, small_farm: SmallFarm, builds: list[Build]) -> None:
        for build in builds:
            self.compute.build(small_farm.topic, build)

    def delete(self, small_farm: SmallFarm, builds: list[Build]) -> None:
        for build in builds:
            delete = Delete(consumer=build.consumer, host=build.host, claim_id=build.claim_id)
            self.compute.delete(small_farm.topic, delete)

    def live(self, small_farm: SmallFarm) -> dict[str, set[str]]:
        """Consumers with a live claim in the database, by host of a farm."""
        by_host = {name: set() for name in small_farm.farm.hosts}
        for claims in load.live_claims(self.store).values():
            for claim in claims:
                if claim.host in by_host:
                    by_host[claim.host].add(claim.consumer)
        return by_host

    def agree(self, small_farm: SmallFarm) -> bool:
        """Whether the database has just what runs."""
        return self.live(small_farm) == small_farm.guests()

    def rows(self, small_farm: SmallFarm) -> dict:
        rows = [change.row for change in self.store.feed.load_everything().hosts]
        return {row.name: row for row in rows if row and row.name in small_farm.farm.hosts}

    def close(self) -> None:
        self.callers.close()


def seconds_until(asked, event: str, seconds: float = 60.0) -> float:
    """How long it took until ``asked`` was true.

    :raises AssertionError: it never was
    """
    began = time.monotonic()
    while not asked():
        assert time.monotonic() - began < seconds, f'not within {seconds:.0f} s: {event}'
        time.sleep(0.05)
    return time.monotonic() - began
