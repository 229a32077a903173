# SPDX-License-Identifier: Apache-2.0
"""[api]: the HTTP interface."""

from oslo_config import cfg

from gantt.conf import FloatOpt
from gantt.core.candidates.find import QUERY_STEPS_MAX

GROUP = cfg.OptGroup('api', title='The HTTP interface')

OPTS = [
    cfg.HostAddressOpt(
        'host',
        default='127.0.0.1',
        help='Address that gantt-api listens on. With auth_strategy = noauth whoever reaches it '
        'may do everything: choose a loopback or management address. Not used under a WSGI '
        'server of your own.',
    ),
    cfg.PortOpt('port', default=8790, help='TCP port that gantt-api listens on.'),
    cfg.IntOpt(
        'threads',
        default=16,
        min=1,
        max=512,
        help='Requests that gantt-api handles at a time; further ones wait. A placement or a '
        'cancel holds its thread until the scheduler has answered: these have three quarters of '
        'the threads at most, plans of groups a quarter, those of one project as many of these '
        'as it leaves to others, and '
        'one more is refused with 503. Two more may be at dry runs and the like: from nine '
        'threads on some are always left for others. The threads are shared in the same '
        'way: further requests of a project wait. Those who name none, or whose token was not '
        'seen yet, are one project.',
    ),
    cfg.IntOpt(
        'connections_max',
        default=500,
        min=10,
        max=65_536,
        help='Connections that gantt-api keeps open at a time, those that are silent included; '
        'further ones wait until one is closed. Each takes a file descriptor, and one more while a '
        'body of more than 8 KiB waits for its thread. Projects take turns at the threads; '
        'connections belong to no project yet.',
    ),
    cfg.IntOpt(
        'idle_seconds',
        default=60,
        min=1,
        max=3600,
        help='Seconds without a byte from its client after which a connection is closed.',
    ),
    cfg.StrOpt(
        'auth_strategy',
        default='noauth',
        help='How callers are identified. keystone: by a token in X-Auth-Token, which is looked at '
        'as [keystone_authtoken] says; what the caller may do then is said by [oslo_policy]. '
        'noauth: not at all, everybody may do everything; the names in X-User-Id and '
        'X-Project-Id are noted as given.',
    ),
    cfg.IntOpt(
        'body_bytes_max',
        default=1 << 20,
        min=1024,
        max=1 << 20,
        help='Largest body of a request that is read, in bytes. A larger one is refused with 413. '
        'Most paths take 131072 bytes at most, whatever this says; those that list many hosts '
        '(aggregates, what-if, replay) take this much.',
    ),
    FloatOpt(
        'table_age_seconds',
        default=1.0,
        min=0.05,
        max=60.0,
        help='How old the host table may be that answers are made from, in seconds. The table '
        'is brought up to date when it is asked for and older than this.',
    ),
    FloatOpt(
        'table_age_unhealthy_seconds',
        default=60.0,
        min=1.0,
        max=86_400.0,
        help='Age of the host table, in seconds, from which the health check answers 503. '
        'It only grows so old while the database is away.',
    ),
    cfg.ListOpt(
        'cors_allowed_origins',
        default=[],
        help='Origins of web pages that may use the interface, e.g. https://ops.example.org. '
        'None: no CORS headers at all. "*", every page, is refused with auth_strategy = noauth.',
    ),
    cfg.ListOpt(
        'served_names',
        default=[],
        help='Host names by which gantt-api may be asked with auth_strategy = noauth, besides '
        'addresses, localhost, [api] host and the name of the machine. Another name is answered '
        '421: a web page could have led it here. Ignored where callers have tokens.',
    ),
    cfg.BoolOpt(
        'behind_proxy',
        default=False,
        help='Believe the Forwarded and X-Forwarded-* headers. Set it only where a proxy sets '
        'or removes them.',
    ),
    cfg.StrOpt(
        'disable_by_file',
        default='',
        help='While this file exists /healthcheck answers 503, so that a load balancer sends '
        'nothing new here. Empty: no such file.',
    ),
    cfg.BoolOpt(
        'placement_at_root',
        default=False,
        help="Serve Placement's interface at the root too, not only below /placement: for clients "
        'whose URL of Placement has no path. /v1, /metrics, /dashboard and /healthcheck stay; the '
        'document at / is then that of Placement.',
    ),
    cfg.IntOpt(
        'candidate_steps_max',
        default=QUERY_STEPS_MAX,
        min=1000,
        max=100_000_000,
        help='How many steps the search for one list of allocation candidates may take: each is a '
        'look at a provider, or a part of a candidate, and takes about a microsecond. Beyond, the '
        'query is answered 503, '
        'gantt.search_out_of_budget, never with a part of the list. Raise it where honest queries '
        'without limit meet it; gantt_candidate_searches_over_budget_total counts them.',
    ),
    cfg.StrOpt(
        'site_name',
        default='',
        max_length=64,
        help='What operators call this site, such as lab or paris-1. "gantt site" and '
        '"gantt status" show it, so that nobody takes one site for another. Everybody may read it. '
        'Empty: no name.',
    ),
    cfg.IntOpt(
        'drain_seconds',
        default=35,
        min=0,
        max=3600,
        help='How long gantt-api finishes what it has begun after SIGTERM, in seconds. New '
        'connections are refused meanwhile.',
    ),
]
