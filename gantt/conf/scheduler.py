# SPDX-License-Identifier: Apache-2.0
"""[scheduler]: the queue, the batches and the host table."""

from oslo_config import cfg, types

from gantt.conf import Finite, mutable

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
    mutable.IntOpt(
        'queue_limit',
        default=2000,
        min=1,
        max=1_000_000,
        help='Requests that may wait to be placed. One more is answered "busy" at once, '
        'with a hint when to retry. Lower it where callers give up sooner than '
        'the queue drains.',
    ),
    mutable.IntOpt(
        'retry_after_ms',
        default=500,
        min=1,
        max=600_000,
        help='Milliseconds that a "busy" answer asks its caller to wait.',
    ),
    mutable.Opt(
        'project_weights',
        type=types.Dict(Finite(min=0.01, max=100.0)),
        default={},
        sample_default='4f0c...:2,9b1d...:0.5',
        help='Weights of projects by their ids, 0.01 to 100; 1 for every other project, and '
        'for all requests of no project together. While more waits than can be placed, '
        'members are placed in proportion to them, whatever came first. Where '
        'queue_limit is met, the project with the most inside relative to its weight '
        'is answered "busy", and none that has less than its share. A request counts for '
        'the project that it places for, whoever asks.',
    ),
    mutable.IntOpt(
        'claims_per_commit',
        default=150,
        min=1,
        max=1000,
        help='Claims in one transaction, about. Larger batches make the statements '
        'slower than they save; a request that must be whole goes alone whatever '
        'its size.',
    ),
    mutable.FloatOpt(
        'batch_wait_ms',
        default=2.0,
        min=0.0,
        max=100.0,
        help='Milliseconds to wait for company before a batch is planned, only when '
        'the last batch had more than one request. A lone caller never waits.',
    ),
    mutable.IntOpt(
        'attempts_per_request',
        default=20,
        min=1,
        max=1000,
        help='How often a request is planned again after it lost a race, within its '
        'budget, before it is answered with a conflict.',
    ),
    mutable.StrOpt(
        'log_answers',
        default='batch',
        choices=[
            (
                'batch',
                'a line for each answer that is no placement, ten of a batch at most, and one line '
                'that sums up the batch and names the requests of it; an answer that leaves alone '
                'has its own',
            ),
            ('each', 'a line for every answer'),
        ],
        help='Lines that the log has about answers, at INFO. The decision of every request is '
        'stored with either value.',
    ),
    mutable.FloatOpt(
        'feed_seconds',
        default=0.25,
        min=0.01,
        max=60.0,
        help='Seconds between two reads of the change feed. Staleness costs conflicts, '
        'never correctness.',
    ),
    mutable.FloatOpt(
        'reload_seconds',
        default=300.0,
        min=1.0,
        max=86_400.0,
        help='Seconds between two full comparisons of the host table with the database.',
    ),
    mutable.IntOpt(
        'report_seconds',
        default=60,
        min=1,
        max=3600,
        help='Seconds between two reports that hosts are asked for when they register.',
    ),
    mutable.FloatOpt(
        'unknown_after_seconds',
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
    mutable.IntOpt(
        'reports_per_commit',
        default=64,
        min=1,
        max=1000,
        help='Reports folded in one transaction, at most.',
    ),
    mutable.FloatOpt(
        'report_wait_ms',
        default=200.0,
        min=0.0,
        max=1000.0,
        help='Milliseconds to gather reports before they are folded. A report whose '
        'sender waits for an answer is not kept waiting.',
    ),
    mutable.BoolOpt(
        'refuse_undeclared_metrics',
        default=False,
        help='Refuse a report with a metric that nobody has declared, or with a value '
        'out of its declared bounds. Otherwise such a value is kept, and one out of '
        'bounds is ignored.',
    ),
]
