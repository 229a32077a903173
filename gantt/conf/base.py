# SPDX-License-Identifier: Apache-2.0
"""[DEFAULT]: who this process is, where it keeps files, where it shows metrics."""

import socket
from typing import Any

from oslo_config import cfg

OPTS = [
    cfg.StrOpt(
        'state_path',
        default='/var/lib/gantt',
        help='Directory for files that must survive a restart, such as the SQLite database of a '
        'single-process service and the journals of compute agents. It is made at start where '
        'it is missing.',
    ),
    cfg.HostAddressOpt(
        'host',
        default=socket.gethostname(),
        sample_default='<host name of this machine>',
        help='Name of this machine in logs, in decisions and in the names of message queues. '
        'Change it only where two machines would have the same name.',
    ),
    cfg.StrOpt(
        'worker',
        default='',
        max_length=64,
        help='Name of this scheduler process: it owns the requests it is working on under this '
        'name, with a part of its own added at each start. Empty: the host name and the process '
        'id.',
    ),
    cfg.BoolOpt(
        'strict_transport',
        default=False,
        help='Do not start where something would cross a network in clear text, or be believed '
        'unseen: a broker on another machine without TLS and ssl_ca_file, a database on another '
        'machine whose certificate is not verified, [api] host or metrics_host other than a '
        'loopback address. False: each is a warning in the log, and an error of "gantt-manage '
        'config doctor". Set it in new installations.',
    ),
    cfg.HostAddressOpt(
        'metrics_host',
        default='127.0.0.1',
        help='Address that gantt-scheduler, gantt-nova-source, gantt-report-source and '
        'gantt-shadow show /metrics on. The listener has no access control: '
        'choose an address of the management network.',
    ),
    cfg.PortOpt(
        'metrics_port',
        default=0,
        help='TCP port that gantt-scheduler shows /metrics on, for Prometheus. 0: no listener. '
        'Each scheduler process of a machine needs its own port: the workers of one '
        'gantt-scheduler take this one and those that follow. Other programs have options of '
        'their own: metrics_port in [nova_source], [report_source] and [shadow].',
    ),
]


def register_opts(conf: Any) -> None:
    """Register the options of [DEFAULT]."""
    conf.register_opts(OPTS)


def list_opts() -> list[tuple[str | None, list[Any]]]:
    """Return the options for oslo.config's generator."""
    return [('DEFAULT', OPTS)]
