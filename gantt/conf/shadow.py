# SPDX-License-Identifier: Apache-2.0
"""[shadow]: deciding alongside nova-scheduler, to compare."""

from oslo_config import cfg

from gantt.conf import FloatOpt, listeners

GROUP = cfg.OptGroup(
    'shadow',
    title='Shadow mode',
    help='Read by gantt-shadow only. Where Nova is listened to stands in [rpc]: '
    'nova_transport_url, nova_exchange and nova_topic.',
)

OPTS = [
    FloatOpt(
        'outcome_seconds',
        default=300.0,
        min=10.0,
        max=86_400.0,
        help='Seconds to wait for the outcome of a request in Nova, which is the host that '
        'reports the instance. Set it longer than a build takes.',
    ),
    cfg.IntOpt(
        'pending_max',
        default=10_000,
        min=1,
        max=1_000_000,
        help='Requests that are remembered meanwhile. One more is not compared, and counted.',
    ),
    cfg.IntOpt(
        'comparisons_max',
        default=10_000,
        min=1,
        max=1_000_000,
        help='Most comparisons in the database, the newest.',
    ),
    cfg.IntOpt('threads', default=4, min=1, max=64, help='Dry runs that are asked for at once.'),
    FloatOpt(
        'budget_seconds', default=10.0, min=0.1, max=600.0, help='Seconds that a dry run may take.'
    ),
    listeners.metrics_port_opt('gantt-shadow'),
]
