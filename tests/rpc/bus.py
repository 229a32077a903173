# SPDX-License-Identifier: Apache-2.0
"""The RPC side of a process in a test, over any broker."""

import json
import threading
import uuid
from pathlib import Path
from typing import Any

import oslo_messaging as om
from oslo_config import cfg
from oslo_messaging import conffixture

from devel import captures
from gantt import client
from gantt import conf as options
from gantt.cmd.rpc_service import rpc_service
from gantt.nova.service.facade import NovaFacade
from gantt.rpc import wire
from gantt.rpc.amqp import transport
from gantt.scheduler.service import Scheduler
from gantt.telemetry.metrics import BY_NAME
from tests.rpc.facade import Facade

DATA = Path(__file__).parents[1] / 'data' / 'nova'


def a_conf(url: str = transport.IN_PROCESS_URL, **rpc: Any) -> cfg.ConfigOpts:
    """A configuration of its own, with every group that the library wants."""
    conf = cfg.ConfigOpts()
    conffixture.ConfFixture(conf)
    options.register_opts(conf, ('rpc',))
    conf.register_opt(cfg.StrOpt('host', default='scheduler-1'))
    conf([], project='gantt', default_config_files=[])
    conf.set_override('transport_url', url)
    for name, value in ({'nova_enabled': True, 'start_wait_seconds': 5} | rpc).items():
        conf.set_override(name, value, 'rpc')
    return conf


class Counts:
    """Counters as a recorder keeps them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.values: dict[tuple, float] = {}

    def __call__(self, name: str, value: float = 1, **labels: str) -> None:
        assert set(labels) == set(BY_NAME[name].labels)
        key = (name, *labels.values())
        with self._lock:
            self.values[key] = self.values.get(key, 0) + value


class Bus:
    """A broker URL, a facade served on it, and clients.

    :param notify: driver of notifications
    :param planner: who plans groups, served as well
    """

    def __init__(
        self,
        url: str = transport.IN_PROCESS_URL,
        facade: Any = None,
        notify: str = '',
        planner: Any = None,
        **rpc: Any,
    ) -> None:
        if url.startswith('kombu+memory'):
            # The in-process broker is one per process: start with an empty one.
            transport.Channel.queues.clear()
            transport.InProcessTransport.global_state.clear()
        self.url = url
        self.conf = a_conf(url, **rpc)
        if notify:
            self.conf.set_override('driver', [notify], 'oslo_messaging_notifications')
        self.counts = Counts()
        self.facade = facade if facade is not None else Facade()
        is_real = isinstance(self.facade, Scheduler)
        self.nova_facade = NovaFacade(self.facade.stores, self.facade) if is_real else self.facade
        if is_real:
            self.nova_facade.start()
        #: Why the process was to be replaced, each time.
        self.stuck: list[str] = []
        self.service = rpc_service(
            self.conf,
            self.facade,
            nova=self.nova_facade,
            planner=planner,
            server='scheduler-1',
            count=self.counts,
            on_stuck=self.stuck.append,
        )
        self.service.start()
        self.transports: list[Any] = []
        self._open = True

    def close(self) -> None:
        self.stop()
        for carrier in self.transports:
            carrier.cleanup()
        if isinstance(self.facade, Scheduler):
            self.nova_facade.stop(5.0)
        elif isinstance(self.facade, Facade):
            self.facade.stop()

    def stop(self, seconds: float = 5.0) -> bool:
        is_stopped = True
        if self._open:
            self._open = False
            is_stopped = self.service.stop(seconds)
        return is_stopped

    def carrier(self) -> Any:
        """A transport for clients; its own connections and reply queue."""
        self.transports.append(client.get_transport(a_conf(self.url)))
        return self.transports[-1]

    def scheduler(self, **options: Any) -> client.SchedulerClient:
        return client.SchedulerClient(self.carrier(), **options)

    def raw(self, topic: str, version: str | None = '1.0', exchange: str | None = None) -> Any:
        """A stock client of the library, for what our own would not send."""
        carrier = om.get_rpc_transport(
            a_conf(self.url), url=self.url, allowed_remote_exmods=['gantt.exceptions']
        )
        self.transports.append(carrier)
        return om.get_rpc_client(
            carrier,
            om.Target(
                exchange=exchange or wire.exchange_of_topic(topic), topic=topic, version=version
            ),
            timeout=10,
            retry=1,
        )

    def nova(self, version: str = '4.5') -> 'Conductor':
        return Conductor(self, version)


class Conductor:
    """Calls as an unmodified nova-conductor makes them, from a captured message."""

    def __init__(self, bus: Bus, version: str) -> None:
        # Nova rebuilds errors of its own only.
        carrier = om.get_rpc_transport(
            a_conf(bus.url), url=bus.url, allowed_remote_exmods=['nova.exception']
        )
        bus.transports.append(carrier)
        self._client = om.get_rpc_client(
            carrier, om.Target(exchange='nova', topic='scheduler', version=version), retry=1
        )

    def call(
        self,
        capture: str,
        count: int = 1,
        *,
        request_id: str | None = None,
        uuids: list[str] | None = None,
        monitor: int = 60,
        now: Any = None,
        **args: Any,
    ) -> Any:
        captured = load(f'select_destinations-{capture}')
        uuids = uuids or [str(uuid.uuid4()) for _ in range(count)]
        context, body = captured.fresh(uuids, request_id or f'req-{uuid.uuid4()}', now=now)
        return self._client.prepare(timeout=20, call_monitor_timeout=monitor).call(
            context, captured.method, **(body | args)
        )

    def cast(self, capture: str) -> None:
        captured = load(capture)
        self._client.prepare(fanout=True, version=captured.version).cast(
            captured.context, captured.method, **captured.args
        )


def load(name: str) -> captures.Capture:
    return captures.parse(stored(name))


def stored(name: str) -> dict[str, Any]:
    return json.loads((DATA / f'{name}.json').read_text())
