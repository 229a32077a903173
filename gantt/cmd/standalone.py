# SPDX-License-Identifier: Apache-2.0
"""``gantt-standalone``: scheduler, planner and HTTP interface in one process without a broker.

For a zone without hosts of its own, and for a small site.  Without ``transport_url`` messages
stay in the process: it is reached only over HTTP.  With one it listens on that broker as any
gantt-scheduler does, for hosts and conductors.  ``--fake`` plays hosts in the process and builds
what is claimed on them.

Signals are those of gantt-scheduler.
"""

import functools
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gantt import client, exceptions
from gantt.cmd import api, checks, scheduler, wiring
from gantt.cmd.process_signals import ProcessSignals
from gantt.compute.over_rpc import RpcSchedulerPort
from gantt.compute.service import FarmService
from gantt.conf import compute
from gantt.core.messages.build import Build
from gantt.core.messages.request import Lifecycle, Purpose
from gantt.insights import views
from gantt.rpc.amqp import transport
from gantt.scheduler.ports.requests import Claims
from gantt.scheduler.service import Scheduler
from gantt.stores import AllStores
from gantt.telemetry import guru
from gantt.telemetry.metrics import MetricRegistry

LOG = logging.getLogger('gantt.cmd.standalone')

#: Bounds of one query for claims: claims at most, and those that are read at once.
CLAIMS_MAX, PAGE = 10_000, 1000


def main(argv: list[str] | None = None) -> int:
    """Run until stopped; return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return wiring.run(arguments, 'gantt-standalone', _serve, compute.FARM_OPTS)


def _serve(conf: Any) -> int:
    if conf.scheduler.workers != 1:
        raise exceptions.Misconfigured(
            option='[scheduler] workers',
            problem=f'{conf.scheduler.workers}: gantt-standalone is one process',
            fix='Set 1, or run gantt-scheduler and gantt-api with a broker',
        )
    transport.stay_in_process(conf)
    checks.at_start(conf)
    guru.listen(conf, 'gantt-standalone')
    sys.setswitchinterval(api.THREAD_SWITCH_SECONDS)
    signals = ProcessSignals().handle_signals()
    return scheduler.work(conf, signals, companions=_companions(conf), plans=True)


def _companions(conf: Any) -> scheduler.Companions:
    def make(
        stores: AllStores, placing: Scheduler, metrics: MetricRegistry
    ) -> Sequence[scheduler.Companion]:
        carrier = client.get_transport(conf)
        if carrier.is_in_process:
            LOG.info('The broker is in this process; hosts and conductors outside cannot reach it')
        played = [FakeHosts(conf, carrier, stores, placing)] if conf.fake else []
        return [api.HttpInterface(conf, stores, metrics), *played]

    return make


class FakeHosts:
    """Fake hosts in the process of their scheduler; no conductor has to send their builds.

    :raises InvalidMessage: the file of shapes or of events is wrong
    """

    def __init__(self, conf: Any, carrier: Any, stores: AllStores, placing: Scheduler) -> None:
        self._seconds = conf.rpc.drain_seconds
        reserved = functools.partial(reserved_claims, stores.claims, placing)
        port = RpcSchedulerPort(carrier, conf.compute.call_seconds)
        self._farm = FarmService(conf, carrier, port, 'farm', reserved)

    def start(self) -> None:
        """Let the hosts come to life."""
        self._farm.start()

    def stop(self) -> bool:
        """Finish what was begun; return whether that was in time."""
        return self._farm.stop(self._seconds)


def reserved_claims(claims: Claims, placing: Scheduler) -> Iterator[Build]:
    """Yield builds for unconfirmed claims of new guests, as a conductor would request them.

    :raises Unavailable: the database does not answer
    """
    marker = None
    for _ in range(CLAIMS_MAX // PAGE):
        page = claims.list_claims(state='reserved', limit=PAGE, marker=marker)
        for claim in page:
            is_of_host = claim.lifecycle is Lifecycle.HOST or claim.is_taken
            if is_of_host and claim.purpose is Purpose.CREATE:
                view = views.claim_view(claim, placing.database_now())
                yield Build(
                    claim_id=claim.id,
                    consumer=claim.consumer,
                    host=claim.host,
                    resources=view.host_resources,
                    lease_seconds=max(0.0, view.lease_seconds or 0.0),
                    request_id=claim.request_id,
                    group=claim.group,
                )
        if len(page) < PAGE:
            return
        marker = page[-1].id


if __name__ == '__main__':
    sys.exit(main())
