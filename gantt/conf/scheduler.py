# SPDX-License-Identifier: Apache-2.0
"""[scheduler]: the queue, the batches and the host table."""

from oslo_config import cfg, types

GROUP = cfg.OptGroup('scheduler', title='Queue, batches and the host table')

OPTS = [
    cfg.IntOpt(
        'workers',
        default=1,
        min=1,
        max=64,
        help='Scheduler processes of this gantt-scheduler, all active over the same hosts. '
        'With more than one a supervisor starts again those that die; one alone is '
        'left to the supervisor of the system. More of them bring availability and '
        'the use of more cores, and conflicts where hosts are nearly full.',
    ),
    cfg.IntOpt(
        'queue_limit',
        mutable=True,
        default=2000,
        min=1,
        max=1_000_000,
        help='Requests that may wait to be placed. One more is answered "busy" at once, '
        'with a hint when to retry. Lower it where callers give up sooner than '
        'the queue drains.',
    ),
    cfg.IntOpt(
        'retry_after_ms',
        mutable=True,
        default=500,
        min=1,
        max=600_000,
        help='Milliseconds that a "busy" answer asks its caller to wait.',
    ),
    cfg.Opt(
        'project_weights',
        type=types.Dict(types.Float(min=0.01, max=100.0)),
        mutable=True,
        default={},
        sample_default='4f0c...:2,9b1d...:0.5',
        help='Weights of projects by their ids, 0.01 to 100; 1 for every other project, and '
        'for all requests of no project together. While more waits than can be placed, '
        'members are placed in proportion to them, whatever came first. Where '
        'queue_limit is met, the project with the most inside relative to its weight '
        'is answered "busy", and none that has less than its share. A request counts for '
        'the project that it places for, whoever asks.',
    ),
    cfg.IntOpt(
        'claims_per_commit',
        mutable=True,
        default=150,
        min=1,
        max=1000,
        help='Claims in one transaction, about. Larger batches make the statements '
        'slower than they save; a request that must be whole goes alone whatever '
        'its size.',
    ),
    cfg.FloatOpt(
        'batch_wait_ms',
        mutable=True,
        default=2.0,
        min=0.0,
        max=100.0,
        help='Milliseconds to wait for company before a batch is planned, only when '
        'the last batch had more than one request. A lone caller never waits.',
    ),
    cfg.IntOpt(
        'attempts_per_request',
        mutable=True,
        default=20,
        min=1,
        max=1000,
        help='How often a request is planned again after it lost a race, within its '
        'budget, before it is answered with a conflict.',
    ),
    cfg.FloatOpt(
        'feed_seconds',
        mutable=True,
        default=0.25,
        min=0.01,
        max=60.0,
        help='Seconds between two reads of the change feed. Staleness costs conflicts, '
        'never correctness.',
    ),
    cfg.FloatOpt(
        'reload_seconds',
        mutable=True,
        default=300.0,
        min=1.0,
        max=86_400.0,
        help='Seconds between two full comparisons of the host table with the database.',
    ),
    cfg.IntOpt(
        'report_seconds',
        mutable=True,
        default=60,
        min=1,
        max=3600,
        help='Seconds between two reports that hosts are asked for when they register.',
    ),
    cfg.FloatOpt(
        'unknown_after_seconds',
        mutable=True,
        default=120.0,
        min=1.0,
        max=86_400.0,
        help='Age of the host table, in seconds, from which "no host fits" is answered '
        'as "not known". Twice report_seconds is a good value.',
    ),
    cfg.IntOpt(
        'report_queue_limit',
        default=20_000,
        min=1,
        max=10_000_000,
        help='Reports that may wait to be folded in. A report beyond it is dropped; the '
        'next one makes up for it.',
    ),
    cfg.IntOpt(
        'reports_per_commit',
        mutable=True,
        default=64,
        min=1,
        max=1000,
        help='Reports folded in one transaction, at most.',
    ),
    cfg.FloatOpt(
        'report_wait_ms',
        mutable=True,
        default=200.0,
        min=0.0,
        max=1000.0,
        help='Milliseconds to gather reports before they are folded. A report whose '
        'sender waits for an answer is not kept waiting.',
    ),
    cfg.BoolOpt(
        'refuse_undeclared_metrics',
        mutable=True,
        default=False,
        help='Refuse a report with a metric that nobody has declared, or with a value '
        'out of its declared bounds. Otherwise such a value is kept, and one out of '
        'bounds has no say.',
    ),
]
