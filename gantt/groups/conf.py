# SPDX-License-Identifier: Apache-2.0
"""[planner]: groups that are placed as a whole."""

from oslo_config import cfg

from gantt.conf import mutable
from gantt.conf.listeners import metrics_port_opt

GROUP = cfg.OptGroup('planner', title='Plans of groups')

OPTS = [
    metrics_port_opt('gantt-planner'),
    cfg.IntOpt(
        'queue_limit',
        default=50,
        min=1,
        max=10_000,
        help='Groups that may wait to be planned, one after the other; projects take turns, by '
        '[scheduler] project_weights, and each may have as many here as it leaves free. One more '
        'is answered "busy" at once, with a hint when to retry.',
    ),
    mutable.FloatOpt(
        'plan_seconds',
        default=5.0,
        min=0.01,
        max=120.0,
        help='Seconds that a plan is improved for where its request does not say how long. The '
        'first plan, that of placing the members one after the other, may take longer; one '
        'that is known to be the best is answered at once.',
    ),
    mutable.FloatOpt(
        'plan_seconds_max',
        default=30.0,
        min=0.01,
        max=120.0,
        help='Seconds that a plan is improved for at most, whatever its request says: so long '
        'those wait that come after it. A group whose first plan takes twice as long, or longer '
        'than the budget of its request, is not placed. A dry run that asks what policies cost '
        'takes as long again.',
    ),
    mutable.IntOpt(
        'attempts_per_group',
        default=8,
        min=1,
        max=100,
        help='Times that a group is planned at most. Each one after the first plans anew those '
        'members alone whose hosts others were faster on.',
    ),
    cfg.BoolOpt(
        'solver',
        default=True,
        help='Whether OR-tools, where it is installed (gantt[solver]), proves plans and improves '
        'them. Without it groups are placed by search, and their answers say that nothing is '
        'proven.',
    ),
    cfg.IntOpt(
        'solver_memory_mb',
        default=2048,
        min=256,
        max=1 << 20,
        help='Memory that the process of the solver may have, in MiB. One that needs more ends, '
        'the plan goes on without it, and its answer says so.',
    ),
    cfg.IntOpt(
        'memory_mb',
        default=8192,
        min=512,
        max=1 << 20,
        help='Memory that gantt-planner may have, in MiB, without that of the solver. A group that '
        'needs more is refused.',
    ),
    cfg.IntOpt(
        'nice',
        default=10,
        min=0,
        max=19,
        help='By how much gantt-planner and the solver give way to other processes. As a service '
        'they give way to other services as well, where the kernel shares out processors by '
        'session.',
    ),
]
