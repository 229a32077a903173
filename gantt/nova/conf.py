# SPDX-License-Identifier: Apache-2.0
"""[nova_source]: how Nova's and Placement's APIs are read to report on hosts that Nova runs."""

from oslo_config import cfg

from gantt.conf import FloatOpt, listeners

GROUP = cfg.OptGroup(
    'nova_source',
    title='The report source for hosts of Nova',
    help='Read by gantt-nova-source only. How the APIs are reached and with which credentials '
    'stands in [nova] and [placement].',
)

OPTS = [
    cfg.IntOpt(
        'interval_seconds',
        default=60,
        min=5,
        max=3600,
        help='Seconds from the beginning of one pass over the APIs to the next. Hosts '
        'report once in each pass: keep it below half of [filters] '
        'service_down_time.',
    ),
    cfg.StrOpt(
        'cells_file',
        default='',
        help='File with the output of: nova-manage cell_v2 list_hosts. It says which cell '
        'each host is in, and is read again when it changes: write another one and '
        'move it there, so that no half of it is read. A host that is not in it gets '
        'nothing new. Where there is one cell, set cell instead.',
    ),
    cfg.StrOpt(
        'cell',
        default='',
        help='Uuid of the cell where there is but one besides cell0. With neither this nor '
        'cells_file no request that names a cell finds a host: that is every resize '
        'and migration.',
    ),
    cfg.IntOpt(
        'page_size',
        default=1000,
        min=1,
        max=10_000,
        help='Entries that are asked for at once. Nova gives no more than [api] max_limit '
        'of its own configuration.',
    ),
    cfg.IntOpt(
        'threads',
        default=8,
        min=1,
        max=64,
        help='Requests to the APIs, and calls to the schedulers, that are under way at once.',
    ),
    FloatOpt(
        'request_seconds',
        default=30.0,
        min=1.0,
        max=600.0,
        help='Seconds that an API may take to answer, unless timeout of its group is '
        'set; a whole answer may take twice as long. Where the API is away or '
        'busy, a request is tried three times.',
    ),
    FloatOpt(
        'pass_seconds',
        default=600.0,
        min=10.0,
        max=86_400.0,
        help='Seconds that all requests of one pass may take. A pass that takes longer '
        'is given up and counts as failed.',
    ),
    FloatOpt(
        'call_seconds',
        default=20.0,
        min=0.5,
        max=120.0,
        help='Seconds that one call to a scheduler may take.',
    ),
    FloatOpt(
        'resolve_seconds',
        default=300.0,
        min=10.0,
        max=31_536_000.0,
        help='Seconds without an update of a move or of an unconfirmed build after which '
        "Nova's API is queried for the host and state of its guest. While Nova still "
        'migrates or builds the guest, nothing is changed.',
    ),
    cfg.StrOpt(
        'key_file',
        default='',
        help='File of the key that signs the registrations and reports of the hosts. It is '
        'made if missing, readable by this process alone. Empty: nothing is signed. '
        'Keep it on a disk that survives a restart.',
    ),
    listeners.metrics_port_opt('gantt-nova-source'),
]
