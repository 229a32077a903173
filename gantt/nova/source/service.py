# SPDX-License-Identifier: Apache-2.0
"""Wiring of gantt-nova-source from its configuration."""

import logging
import pathlib
import threading
import time
from typing import Any

from gantt import client, exceptions
from gantt import conf as options
from gantt.client.signing import Signer
from gantt.compute.agent import key_file
from gantt.compute.agent.runner import Runner
from gantt.compute.over_rpc import RpcSchedulerPort
from gantt.compute.ports import CountCallback, ReportSource
from gantt.nova.client import NovaClient
from gantt.nova.source import api
from gantt.nova.source.cells import Cells
from gantt.nova.source.reading import NovaReader
from gantt.nova.source.source import Source
from gantt.rpc.amqp.transport import service_defaults, wait_for_broker

LOG = logging.getLogger(__name__)


class Service(ReportSource):
    """A thread that reads Nova again and again, and the hosts that report what it read.

    :param conf: the process's global configuration object, as oslo.messaging needs it
    :raises Misconfigured, InvalidMessage: an option or the file of cells is wrong
    :raises BrokerUnavailable: after [rpc] start_wait_seconds

    :ivar stopping: once it is set no request is sent any more
    """

    metrics_group = 'nova_source'

    @classmethod
    def register_opts(cls, conf: Any) -> None:
        """Register [nova_source], [nova] and [placement]."""
        options.register_opts(conf, ('nova_source',))

    @classmethod
    def from_conf(cls, conf: Any, count: CountCallback, gauge: CountCallback) -> 'Service':
        """Return the service; see the base class."""
        return cls(conf, count, gauge)

    def __init__(self, conf: Any, count: CountCallback, gauge: CountCallback) -> None:
        super().__init__()
        settings = conf.nova_source
        nova, placement = api.apis(conf, settings.request_seconds, self.stopping)
        cells = Cells(settings.cells_file, settings.cell)
        if not (settings.cells_file or settings.cell):
            LOG.warning(
                'Neither [nova_source] cells_file nor cell is set; no resize and no migration of '
                'Nova will find a host'
            )
        signer = _signer(settings.key_file)
        carrier = client.get_transport(conf)
        service_defaults(conf)
        self._carrier = carrier
        self._runner = Runner(settings.threads)
        self._interval = float(settings.interval_seconds)
        self.source = Source(
            NovaReader(
                nova, placement, settings.page_size, settings.threads, seconds=settings.pass_seconds
            ),
            cells,
            RpcSchedulerPort(carrier, settings.call_seconds, signer),
            NovaClient(carrier, timeout=settings.call_seconds, signer=signer),
            self._runner,
            settings.resolve_seconds,
            count,
            gauge,
            conf.rpc.payload_bytes_max,
        )
        self._thread = threading.Thread(target=self._run, name='passes', daemon=True)
        wait_for_broker(carrier, conf.rpc.start_wait_seconds)

    def start(self) -> None:
        """Read Nova once here, then repeatedly in a thread.

        :raises Misconfigured: the credentials or addresses do not work: better reported at once
        """
        self._runner.start()
        self._pass(first=True)
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Stop reading Nova; return whether work under way has ended in time."""
        self.stopping.set()
        end = time.monotonic() + seconds
        if self._thread.ident is not None:
            self._thread.join(seconds)
        done = self._runner.stop(max(0.1, end - time.monotonic()))
        self._carrier.cleanup()
        return done and not self._thread.is_alive()

    def status(self) -> dict[str, object]:
        """Return the state, for the log."""
        members = self.source.host_agents.values()
        return {
            'hosts': len(members),
            'registered': sum(member.session.is_registered for member in members),
            'failures': sum(member.failures for member in members),
        }

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        while not self.stopping.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._interval
            self._pass()

    def _pass(self, *, first: bool = False) -> None:
        try:
            self.source.step()
        except exceptions.Misconfigured as e:
            if first:
                raise
            LOG.error('Nova cannot be read because an option is wrong: error=%s', e)
        except exceptions.GanttError as e:
            LOG.warning('Nova cannot be read completely, and is read again later: error=%s', e)
        except Exception:
            LOG.exception('Reading of Nova failed unexpectedly, and is repeated later')


def _signer(path: str) -> Signer | None:
    """Return the key of all hosts that this process speaks for; None: nothing is signed.

    :raises Misconfigured: the file cannot be used
    """
    if not path:
        return None
    signer = key_file.load_or_create(pathlib.Path(path), '[nova_source] key_file')
    LOG.info('Reports of hosts are signed: key=%s', signer.fingerprint)
    return signer
