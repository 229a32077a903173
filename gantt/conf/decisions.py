# SPDX-License-Identifier: Apache-2.0
"""[decisions]: how many decisions are stored, and for how long."""

from oslo_config import cfg

from gantt.conf import FloatOpt, mutable

GROUP = cfg.OptGroup('decisions', title='How decisions are stored')

OPTS = [
    mutable.IntOpt(
        'count_max',
        default=100_000,
        min=0,
        max=100_000_000,
        help='Most decisions that are stored for explain and replay; the oldest of the project '
        'that has the most go first, those of no project being of one. '
        'Those of the last hour and ten minutes stay whatever their number, as answers '
        'that are asked for again refer to them; size_mb_max bounds them too. '
        'About 1 kB each, and a byte for every ten hosts or so.',
    ),
    mutable.IntOpt(
        'size_mb_max',
        default=1024,
        min=1,
        max=1_000_000,
        help='MiB that the stored decisions take at most, with the requests they are about; '
        'the oldest of the project that has the most of them go first, at the purge '
        'after the bound was met.',
    ),
    cfg.IntOpt(
        'queue_limit',
        default=2000,
        min=1,
        max=1_000_000,
        help='Refusals and dry runs that may wait to be written; beyond it the oldest '
        'of the project that has the most are dropped and '
        'counted. Placements are written with their claims.',
    ),
    FloatOpt(
        'replay_seconds',
        default=1800.0,
        min=0.0,
        max=604_800.0,
        help='Seconds for which the changes of the host table are kept, so that a '
        'decision can be made again bit for bit. 10 000 hosts write about 10 kB '
        'a second, and some MB every five minutes. 0: decisions can be explained '
        'only.',
    ),
    mutable.FloatOpt(
        'purge_seconds',
        default=30.0,
        min=1.0,
        max=86_400.0,
        help='Seconds between two purges of decisions, ended claims and answered '
        'requests that are past their bound.',
    ),
]
