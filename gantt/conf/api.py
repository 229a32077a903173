# SPDX-License-Identifier: Apache-2.0
"""[api]: the HTTP interface."""

from typing import Any

from oslo_config import cfg

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
        'the threads at most, those of one caller half, and one more is refused with 503. Two '
        'more may be at dry runs and the like: from nine threads on some are always left for '
        'others.',
    ),
    cfg.StrOpt(
        'auth_strategy',
        default='noauth',
        help='How callers are told apart. keystone: by a token in X-Auth-Token, which is looked at '
        'as [keystone_authtoken] says; what the caller may do then is said by [oslo_policy]. '
        'noauth: not at all, everybody may do everything; the names in X-User-Id and '
        'X-Project-Id are noted as said.',
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
    cfg.FloatOpt(
        'table_age_seconds',
        default=1.0,
        min=0.05,
        max=60.0,
        help='How old the host table may be that answers are made from, in seconds. The table '
        'is brought up to date when it is asked for and older than this.',
    ),
    cfg.FloatOpt(
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
        'None: no CORS headers at all.',
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
    cfg.IntOpt(
        'drain_seconds',
        default=35,
        min=0,
        max=3600,
        help='How long gantt-api finishes what it has begun after SIGTERM, in seconds. New '
        'connections are refused meanwhile.',
    ),
]


def register_opts(conf: Any) -> None:
    """Register the options of [api]."""
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)


def list_opts() -> list[tuple[str | None, list[Any]]]:
    """For oslo.config's generator."""
    return [(GROUP.name, OPTS)]
