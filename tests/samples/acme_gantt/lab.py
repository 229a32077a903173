# SPDX-License-Identifier: Apache-2.0
"""LabSource: the machines of a laboratory, as its own booking list has them."""

import functools
import json
import pathlib
import random

from oslo_config import cfg

from gantt.plugin_api.report_sources import (
    GuestInventory,
    HostAgent,
    HostAgentSettings,
    HostReadings,
    Inventory,
    Misconfigured,
    RegisterHost,
    ReportSource,
    RpcSchedulerPort,
    Runner,
    Session,
    get_transport,
    wait_for_broker,
)

OPTS = [
    cfg.StrOpt('bookings', help='File: {"machine": {"cpus": 8, "memory_mb": 16384, "taken": 0}}'),
    cfg.IntOpt('report_seconds', default=30, min=1, help='How often each machine reports.'),
]


class LabSource(ReportSource):
    """Every machine of the list is a host; what is booked there is not Gantt's to give."""

    @classmethod
    def register_opts(cls, conf):
        conf.register_opts(OPTS, 'lab')

    @classmethod
    def from_conf(cls, conf, count, gauge):
        return cls(conf)

    def __init__(self, conf):
        super().__init__()
        self._path = pathlib.Path(conf.lab.bookings or '')
        self._settings = HostAgentSettings(report_seconds=conf.lab.report_seconds)
        self._carrier = get_transport(conf)
        self._runner = Runner(threads=2)
        wait_for_broker(self._carrier, conf.rpc.start_wait_seconds)

    def start(self):
        port = RpcSchedulerPort(self._carrier)
        for name in self._read():
            session = Session(RegisterHost(name=name, boot_nonce='lab'), port)
            look = functools.partial(self._look, name)
            self._runner.add(HostAgent(session, port, look, self._settings, random.Random()))
        self._runner.start()

    def stop(self, seconds):
        done = self._runner.stop(seconds)
        self._carrier.cleanup()
        return done

    def _look(self, name):
        machine = self._read()[name]
        facts = HostReadings(
            inventories={
                'VCPU': Inventory(total=machine['cpus']),
                'MEMORY_MB': Inventory(total=machine['memory_mb']),
            },
            foreign={'VCPU': machine['taken']},
        )
        # No opinion on guests: nothing is confirmed and nothing freed by a report.
        return GuestInventory(None, None), facts

    def _read(self):
        try:
            return json.loads(self._path.read_text())
        except (OSError, ValueError) as e:
            raise Misconfigured(
                option='[lab] bookings', problem=str(e), fix='Name a JSON file'
            ) from None
