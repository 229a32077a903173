# SPDX-License-Identifier: Apache-2.0
"""Clients with which other programs reach Gantt over the message broker.

    from gantt import client

    transport = client.get_transport(cfg.CONF)
    scheduler = client.SchedulerClient(transport)
    answer = scheduler.select_destinations(spec=RequestSpec(resources={'VCPU': 1}), consumers=[...])

Meant to live in another program's process: no database, no threads of its own, no
choice of a concurrency backend.  Errors are those of ``gantt.exceptions``.
"""

from gantt.client.hosts import ClaimOutcome, ClaimsClient, ComputeClient, ReportOutcome, StatsClient
from gantt.client.scheduler import SchedulerClient
from gantt.rpc.amqp.transport import own_transport as get_transport

__all__ = [
    'ClaimOutcome',
    'ClaimsClient',
    'ComputeClient',
    'ReportOutcome',
    'SchedulerClient',
    'StatsClient',
    'get_transport',
]
