# SPDX-License-Identifier: Apache-2.0
"""``gantt-shadow``: decide alongside nova-scheduler, claim nothing, compare.

It listens on a queue of its own, requests dry runs of gantt-scheduler, and keeps the
comparisons: ``gantt-manage shadow report`` shows them.  SIGTERM ends it with 0.
"""

import logging
import sys
from typing import Any

from gantt import client, stores
from gantt.cmd import wiring
from gantt.cmd.process_signals import ProcessSignals
from gantt.conf.pipeline import pipeline_from_conf
from gantt.core.messages.prepared import prepare_types
from gantt.groups.insights import HOOKS
from gantt.insights.read_model import Insights
from gantt.insights.shadow import ShadowComparison, ShadowSettings
from gantt.nova.wire.tap import CONNECT_SECONDS, BroadcastTap, TapSettings
from gantt.rpc.amqp import transport
from gantt.scheduler.clock import SystemClock
from gantt.telemetry.listener import listen
from gantt.telemetry.metrics import MetricRegistry
from gantt.version import version_string

LOG = logging.getLogger('gantt.cmd.shadow')


def main(argv: list[str] | None = None) -> int:
    """Run until stopped; return the exit code."""
    return wiring.run(sys.argv[1:] if argv is None else argv, 'gantt-shadow', _serve)


def _serve(conf: Any) -> int:
    signals = ProcessSignals().handle_signals()
    metrics = MetricRegistry()
    # Before any call is received: a process that cannot listen ends.
    listener = listen(metrics, conf, 'shadow')
    pipeline = pipeline_from_conf(conf)
    connected = wiring.wait_for_database(conf, lambda: stores.connect(conf), signals.is_stopping)
    insights = Insights(connected, pipeline, HOOKS, wiring.settings(conf, pipeline))
    wiring.wait_for_database(conf, insights.refresh, signals.is_stopping)
    own_transport, nova = client.get_transport(conf), transport.nova_transport(conf)
    transport.service_defaults(conf)
    shadow = ShadowComparison(
        connected.shadows,
        client.SchedulerClient(own_transport).select_destinations,
        insights.explain,
        insights.scores,
        metrics.count,
        SystemClock(),
        settings_of(conf),
    )
    terms = TapSettings(
        budget_ms=int(conf.shadow.budget_seconds * 1000),
        max_attempts=conf.rpc.nova_max_attempts,
        payload_bytes_max=conf.rpc.payload_bytes_max,
    )
    prepare_types()
    tap = BroadcastTap(
        nova, conf.rpc.nova_exchange, conf.rpc.nova_topic, shadow.receive, metrics.count, terms
    )
    for carrier, option in ((own_transport, 'transport_url'), (nova, '[rpc] nova_transport_url')):
        seconds = conf.rpc.start_wait_seconds
        if not transport.wait_for_broker(carrier, seconds, option, signals.is_stopping):
            return 0
    shadow.start()
    tap.start()
    if not tap.wait(CONNECT_SECONDS):
        LOG.warning(
            'Messages of Nova cannot be received yet; the connection is retried: broker=%s',
            nova.address,
        )
    LOG.info('gantt-shadow is ready: version=%s broker=%s', version_string(), nova.address)
    for _ in signals.requests_until_stop():
        LOG.info('Requests wait for their comparison: count=%d', shadow.pending)
    done = tap.stop(conf.rpc.drain_seconds) & shadow.stop(conf.rpc.drain_seconds)
    for carrier in (own_transport, nova):
        carrier.cleanup()
    if listener is not None:
        listener.stop()
    return 0 if done else 1


def settings_of(conf: Any) -> ShadowSettings:
    """Return the options of [shadow]."""
    options = conf.shadow
    return ShadowSettings(
        outcome_seconds=options.outcome_seconds,
        pending_max=options.pending_max,
        comparisons_most=options.comparisons_max,
        threads=options.threads,
    )


if __name__ == '__main__':
    sys.exit(main())
