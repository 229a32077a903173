# SPDX-License-Identifier: Apache-2.0
"""The parts of the demonstration, wired as the entry points wire them.

Only three things differ from a real site: the database is a SQLite file, the
broker is in this process, and leases and report periods are short, so that
what takes minutes elsewhere can be watched.
"""

import pathlib
import random
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from gantt import client
from gantt.cmd import planning, policies, wiring
from gantt.cmd.http_app import make_app
from gantt.cmd.rpc_service import rpc_service
from gantt.compute.agent.host_agent import HostAgent, HostAgentSettings, with_agent
from gantt.compute.agent.journal import SqliteJournal
from gantt.compute.agent.runner import Runner
from gantt.compute.drivers.this_machine import StartLocks, ThisMachine
from gantt.compute.farm import FakeHost, Farm, FarmPlan
from gantt.compute.listen import BuildListener, interface_of
from gantt.compute.over_rpc import RpcSchedulerPort
from gantt.compute.shapes import Shape
from gantt.core.messages.report import RegisterHost
from gantt.db.engine import session
from gantt.db.schema import migration
from gantt.groups.client import PlannerClient
from gantt.groups.insights import HOOKS
from gantt.http.server import HttpServer
from gantt.http.settings import HttpSettings
from gantt.insights.read_model import Insights
from gantt.nova.service.facade import NovaFacade
from gantt.placement_api.http.app import make_placement_app
from gantt.placement_api.http.dispatch import mounted_app
from gantt.stores import connect
from gantt.telemetry.metrics import MetricRegistry

FARM_NAME = 'farm'
WAIT_SECONDS = 120.0
#: A conductor waits so long for a host that may be dead.
BUILD_SECONDS = 2.0
TOO_BUSY_PREFIX = 'the machine is too busy: '

CONFIG = """\
[DEFAULT]
transport_url = kombu+memory:///
state_path = {folder}
log_file = {folder}/demo.log
host = {host}

[database]
connection = sqlite:///{folder}/gantt.db

[scheduler]
report_seconds = 4
unknown_after_seconds = 30
feed_seconds = 0.2

[filters]
service_down_time = 10

[claims]
lease_seconds = 8
sweep_seconds = 1

[rpc]
nova_enabled = true
drain_seconds = 5

[compute]
guest_start_command = true
guest_stop_command = true
"""

#: Three kinds of machines in three zones.
SHAPES = [
    Shape(
        name='general',
        weight=6,
        vcpus=32,
        memory_mb=131_072,
        disk_gb=2000,
        zones=['nova', 'az-1', 'az-2'],
        traits=['HW_CPU_X86_AVX2'],
    ),
    Shape(
        name='large',
        weight=3,
        vcpus=96,
        memory_mb=524_288,
        disk_gb=4000,
        numa_cells=2,
        zones=['nova', 'az-1', 'az-2'],
        traits=['HW_CPU_X86_AVX2', 'HW_CPU_X86_AVX512F'],
    ),
    Shape(
        name='dense',
        weight=1,
        vcpus=64,
        memory_mb=1_048_576,
        disk_gb=1000,
        numa_cells=2,
        zones=['az-1'],
        traits=['HW_CPU_X86_AVX2', 'CUSTOM_SSD'],
    ),
]


class Stage:
    """Everything that runs during the demonstration."""

    def __init__(self, folder: pathlib.Path, hosts: int, seed: int, host: str) -> None:
        self.folder = folder
        self.host = host
        config = folder / 'gantt.conf'
        config.write_text(CONFIG.format(folder=folder, host=host))
        self.conf: Any = wiring.parse(['--config-file', str(config)], 'devel.demo')
        engine = session.engine_from_conf(self.conf)
        migration.sync(engine)
        engine.dispose()
        self.metrics = MetricRegistry()
        self.stores = connect(self.conf)
        self.scheduler = wiring.scheduler(self.conf, self.stores, self.metrics)
        nova = NovaFacade(self.stores, self.scheduler)
        self.scheduler.add(nova)
        self.groups = planning.Planning(self.conf, self.stores, self.metrics)
        self.rpc = rpc_service(
            self.conf,
            self.scheduler,
            nova=nova,
            planner=self.groups.planner,
            server='demo',
            count=self.metrics.count,
        )
        self.transport = client.get_transport(self.conf)
        self.conductor = client.SchedulerClient(self.transport)
        self.planner = PlannerClient(self.transport)
        self.builder = client.ComputeClient(self.transport, timeout=BUILD_SECONDS)
        self._port = RpcSchedulerPort(self.transport)
        self.farm = Farm(FarmPlan(count=hosts, seed=seed, shapes=SHAPES), self._port)
        self._farms = [self.farm]
        self._listeners = [self._listener(FARM_NAME, self.farm)]
        self.machine = self._this_machine()
        self._runner = Runner(2)
        self._server: HttpServer | None = None

    def _listener(self, topic: str, farm: Farm) -> BuildListener:
        interface = interface_of(farm, farm.command)
        return BuildListener(self.transport, topic, interface, list(farm.hosts), threads=8)

    def _this_machine(self) -> HostAgent:
        locks = StartLocks(self.folder / 'starting')
        driver = ThisMachine(self.conf.compute, self.host, locks)
        announcement = RegisterHost(name=self.host, boot_nonce=str(uuid.uuid4()))
        journal = SqliteJournal(self.folder / 'this-machine.journal')
        return with_agent(
            announcement,
            self._port,
            driver,
            journal,
            HostAgentSettings(),
            random.Random(self.host),
        )

    def open(self) -> None:
        """Start the service, then the hosts."""
        self.scheduler.start()
        self.groups.start()
        self.rpc.start()
        self._listeners[0].start()
        self.farm.start()
        assert self.machine.agent is not None
        machine = BuildListener(self.transport, self.host, interface_of(self.machine.agent))
        self._listeners.append(machine)
        machine.start()
        self._runner.add(self.machine)
        self._runner.start()

    def add_hosts(self, topic: str, plan: FarmPlan) -> Farm:
        """Add more fake hosts, from now on."""
        farm = Farm(plan, self._port)
        listener = self._listener(topic, farm)
        self._farms.append(farm)
        self._listeners.append(listener)
        listener.start()
        farm.start()
        return farm

    def fake_hosts(self) -> Iterator[FakeHost]:
        """Yield the hosts of all farms."""
        for farm in self._farms:
            yield from farm.hosts.values()

    def reporting_host_count(self) -> int:
        """Return how many hosts the scheduler knows that have reported."""
        table = self.scheduler.cache.working
        return len(table) - table.count_stale(1e6)

    def serve(self, port: int) -> str:
        """Serve the HTTP interface; returns its URL."""
        insights = Insights(
            self.stores, self.scheduler.placing.pipeline, HOOKS, self.scheduler.settings
        )
        app = make_app(
            insights,
            self.stores,
            self.conductor,
            self.metrics,
            HttpSettings(),
            {},
            plans=self.planner,
        )
        placement = make_placement_app(
            self.stores,
            self.metrics,
            HttpSettings(),
            policies.defaults(),
            candidates=insights.candidates,
        )
        self._server = HttpServer(mounted_app(app, placement, at_root=False), '127.0.0.1', port, 4)
        self._server.start()
        return f'http://127.0.0.1:{self._server.port}'

    def close(self) -> None:
        """Stop everything, hosts first."""
        if self._server is not None:
            self._server.stop(2.0)
        for farm in self._farms:
            farm.stop()
        self._runner.stop()
        for listener in self._listeners:
            listener.stop(2.0)
        self.rpc.stop()
        self.groups.stop()
        self.scheduler.stop(5.0)


def wait_until(condition: Any, seconds: float = WAIT_SECONDS, step: float = 0.1) -> bool:
    """Wait until ``what()`` is true; return whether it became so in time."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > end:
            return False
        pause.wait(step)
    return True
