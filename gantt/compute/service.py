# SPDX-License-Identifier: Apache-2.0
"""Wiring of gantt-compute: the agent of a machine, a farm, a file of hosts, or facts only."""

import abc
import logging
import pathlib
import random
import signal
from collections.abc import Callable, Iterable
from typing import Any

from gantt import client, exceptions
from gantt.client.signing import Signer
from gantt.compute import farm, shapes
from gantt.compute.agent import key_file
from gantt.compute.agent.agent import AgentSettings
from gantt.compute.agent.host_agent import HostAgent, HostAgentSettings, with_agent
from gantt.compute.agent.journal import SqliteJournal
from gantt.compute.agent.runner import Runner
from gantt.compute.drivers.this_machine import StartLocks, ThisMachine
from gantt.compute.facts_only import FactsReader, FactsReporter
from gantt.compute.farm import Farm, FarmPlan, ReservedClaimsTask
from gantt.compute.listen import BuildListener, interface_of
from gantt.compute.over_rpc import RpcSchedulerPort
from gantt.compute.ports import SchedulerPort
from gantt.compute.report_only import ReportOnly
from gantt.core.messages.build import Build
from gantt.core.messages.report import RegisterHost
from gantt.rpc.amqp.transport import wait_for_broker

LOG = logging.getLogger(__name__)

#: Signal number -> its handler, whose result is logged.
Signals = dict[int, Callable[[], object]]
#: Returns the claims that are reserved now, each as its build; see ``ReservedClaimsTask``.
Reserved = Callable[[], Iterable[Build]]


class ComputeService(abc.ABC):
    """Service of one of the four kinds that gantt-compute can be."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start the service; called once the broker answers."""

    @abc.abstractmethod
    def stop(self, seconds: float) -> bool:
        """Refuse new builds, finish those under way; return whether they ended in time."""

    @abc.abstractmethod
    def status(self) -> dict[str, object]:
        """Return the state, for the log."""

    def signals(self) -> Signals:
        """Return the handlers of signals, apart from those that end it."""
        return {signal.SIGHUP: self.status}


class HostService(ComputeService):
    """Service with the agent of this machine.

    :raises Misconfigured: an option or the journal cannot be used
    """

    def __init__(self, conf: Any, carrier: Any, port: SchedulerPort) -> None:
        c = conf.compute
        self.name: str = conf.name or c.name or conf.host
        path = journal_path(conf)
        self._journal = SqliteJournal(path)
        driver = ThisMachine(c, self.name, StartLocks(path.with_suffix('.starts')))
        announcement = RegisterHost(
            name=self.name,
            node=c.node or self.name,
            uuid=c.uuid or None,
            boot_nonce='-',
            cell=c.cell or None,
            zone=c.zone or None,
        )
        self.host_agent: HostAgent = with_agent(
            announcement,
            port,
            driver,
            self._journal,
            _settings(c),
            random.Random(),
        )
        self._runner = Runner(threads=2)
        agent = self.host_agent.agent
        assert agent is not None
        self._listener = BuildListener(
            carrier, self.name, interface_of(agent), threads=c.threads, queue=c.queue_limit
        )

    def start(self) -> None:
        self._listener.start()
        self._runner.add(self.host_agent)
        self._runner.start()
        LOG.info('Host receives builds: host=%s topic=%s', self.name, self._listener.topic)

    def stop(self, seconds: float) -> bool:
        done = self._listener.stop(seconds)
        done &= self._runner.stop(seconds)
        if done:
            self._journal.close()
        return done

    def status(self) -> dict[str, object]:
        return self.host_agent.status()


class FarmService(ComputeService):
    """Service with a farm of fake hosts, and one topic for all of them.

    :param name: name of the topic
    :param reserved: function that returns the reserved claims, which the farm builds without a
        message
    """

    def __init__(
        self,
        conf: Any,
        carrier: Any,
        port: SchedulerPort,
        name: str,
        reserved: Reserved | None = None,
    ) -> None:
        c = conf.compute
        plan = FarmPlan(
            count=conf.fake,
            seed=conf.seed,
            prefix=c.farm_prefix,
            shapes=shapes.load_shapes(conf.shapes) if conf.shapes else list(shapes.DEFAULT_SHAPES),
            start_seconds=c.farm_start_seconds,
            start_failures=c.farm_start_failures,
            threads=c.farm_threads,
        )
        events = farm.load_events(conf.events) if conf.events else []
        self.farm = Farm(plan, port, _settings(c, logging.DEBUG), events)
        interface = interface_of(self.farm, self.farm.command, logging.DEBUG)
        self._listener = BuildListener(
            carrier,
            name,
            interface,
            list(self.farm.hosts),
            threads=c.farm_threads,
            queue=c.queue_limit,
        )
        self._builders: Runner | None = None
        if reserved is not None:
            # Threads of its own: a guest that takes long to start holds no report up.
            self._builders = Runner(c.farm_threads)
            self._builders.add(ReservedClaimsTask(self.farm, reserved))

    def start(self) -> None:
        self._listener.start()
        self.farm.start()
        if self._builders is not None:
            self._builders.start()
        LOG.info(
            'Farm of hosts receives builds: hosts=%d topic=%s',
            len(self.farm.hosts),
            self._listener.topic,
        )

    def stop(self, seconds: float) -> bool:
        done = self._listener.stop(seconds)
        if self._builders is not None:
            done &= self._builders.stop(seconds)
        return self.farm.stop(seconds) and done

    def status(self) -> dict[str, object]:
        return self.farm.status()

    def signals(self) -> Signals:
        die_order = farm.Fault(do='die', hosts=farm.HostSelector(fraction=0.1))
        return {
            signal.SIGHUP: self.status,
            signal.SIGUSR1: lambda: self.farm.command(die_order),
            signal.SIGUSR2: lambda: self.farm.command(farm.Fault(do='revive')),
        }


class ReportOnlyService(ComputeService):
    """Service for hosts that a file lists and another program runs."""

    def __init__(self, conf: Any, port: SchedulerPort) -> None:
        self._runner = Runner(threads=conf.compute.threads)
        self._hosts = ReportOnly(conf.report_only, port, self._runner, _settings(conf.compute))

    def start(self) -> None:
        self._hosts.start()
        self._runner.start()
        LOG.info('Agent reports for the hosts of a file: hosts=%d', len(self._hosts.host_agents))

    def stop(self, seconds: float) -> bool:
        return self._runner.stop(seconds)

    def status(self) -> dict[str, object]:
        members = self._hosts.host_agents.values()
        return {
            'hosts': len(members),
            'registered': sum(m.session.is_registered for m in members),
            'reports': sum(m.reports for m in members),
            'failures': sum(m.failures for m in members),
        }


class FactsOnlyService(ComputeService):
    """Service that sends facts of this machine that Nova's APIs do not carry.

    :raises Misconfigured: an option names something that does not exist
    """

    def __init__(self, conf: Any, carrier: Any) -> None:
        c = conf.compute
        name = conf.name or c.name or conf.host
        machine = FactsReader(c, name, pathlib.Path(conf.state_path, 'compute', f'{name}.starts'))
        self.host_agent = FactsReporter(
            name,
            machine.read,
            client.StatsClient(carrier, timeout=c.call_seconds, signer=_signer(conf)),
            c.report_seconds,
            random.Random(),
        )
        self._runner = Runner(threads=1)

    def start(self) -> None:
        self._runner.add(self.host_agent)
        self._runner.start()
        LOG.info(
            'Agent reports facts that the APIs of Nova do not have: host=%s', self.host_agent.name
        )

    def stop(self, seconds: float) -> bool:
        return self._runner.stop(seconds)

    def status(self) -> dict[str, object]:
        return self.host_agent.status()


def from_conf(conf: Any, reserved: Reserved | None = None) -> ComputeService:
    """Return the service that the command line selects; waits for the broker.

    :param conf: the process's global configuration object, as oslo.messaging needs it
    :param reserved: returns the claims that a farm builds by itself with --build-claims
    :raises Misconfigured, InvalidMessage: an option or a file is wrong
    :raises BrokerUnavailable: after [rpc] start_wait_seconds
    """
    for is_wrong, option, problem, fix in (
        (
            conf.fake and conf.report_only,
            '--report-only',
            'a farm speaks for its own hosts only',
            'Start one process with --fake and another one with --report-only',
        ),
        (
            conf.facts_only and (conf.fake or conf.report_only),
            '--facts-only',
            'it is about this machine only',
            'Start one process with --facts-only and another one for the rest',
        ),
        (
            conf.build_claims and not conf.fake,
            '--build-claims',
            'it is about hosts that are played',
            'Add --fake N, or let a conductor send the builds',
        ),
    ):
        if is_wrong:
            raise exceptions.Misconfigured(option=option, problem=problem, fix=fix)
    carrier = client.get_transport(conf)
    port = RpcSchedulerPort(carrier, conf.compute.call_seconds, _signer(conf))
    if conf.fake:
        service: ComputeService = FarmService(conf, carrier, port, conf.name or 'farm', reserved)
    elif conf.report_only:
        service = ReportOnlyService(conf, port)
    elif conf.facts_only:
        service = FactsOnlyService(conf, carrier)
    else:
        service = HostService(conf, carrier, port)
    wait_for_broker(carrier, conf.rpc.start_wait_seconds)
    return service


def key_path(conf: Any) -> pathlib.Path:
    """Return the file of the key of this process."""
    if conf.compute.key_file:
        return pathlib.Path(conf.compute.key_file)
    return journal_path(conf).with_suffix('.key')


def journal_path(conf: Any) -> pathlib.Path:
    """Return the file of the journal of this machine."""
    name = conf.name or conf.compute.name or conf.host
    default = pathlib.Path(conf.state_path, 'compute', f'{name}.journal')
    return pathlib.Path(conf.compute.journal or default)


def _signer(conf: Any) -> Signer | None:
    """Return the signer of this process's messages; None: nothing is signed.

    The agent of a machine has a key of its own.  Processes that play hosts, or speak for others',
    have one only where it is configured: they may be started anywhere, and their hosts have no
    disk.  So has an agent on a host of nova-compute, which needs no state of its own.
    """
    is_own = not (conf.fake or conf.report_only or conf.facts_only)
    if not (conf.compute.sign_messages and (is_own or conf.compute.key_file)):
        return None
    # Unless it is configured, the key is stored next to the journal.
    option = '[compute] key_file' if conf.compute.key_file else '[compute] journal'
    signer = key_file.load_or_create(key_path(conf), option)
    LOG.info('Messages are signed: key=%s', signer.fingerprint)
    return signer


def _settings(c: Any, level: int = logging.INFO) -> HostAgentSettings:
    return HostAgentSettings(
        level=level,
        report_seconds=c.report_seconds,
        full_every=c.full_report_every,
        change_seconds=c.change_report_seconds,
        terms=AgentSettings(
            confirm_seconds=c.confirm_seconds,
            wait_for_other_seconds=c.guest_command_seconds,
            tombstone_seconds=float(c.tombstone_seconds),
            trusted_seconds=86_400.0 * c.trusted_after_days if c.check == 'until_trusted' else None,
        ),
    )
