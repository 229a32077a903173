# SPDX-License-Identifier: Apache-2.0
"""The TCP ports of one configuration: each process that listens has an option of its own.

All processes of a machine may read one file.  Two that want one port would end, one of
them, again and again.
"""

import itertools
from typing import Any, NamedTuple

from oslo_config import cfg

#: Groups that have an option ``metrics_port``, and the program that listens there.
PROGRAMS = {
    'DEFAULT': 'gantt-scheduler',
    'planner': 'gantt-planner',
    'nova_source': 'gantt-nova-source',
    'report_source': 'gantt-report-source',
    'shadow': 'gantt-shadow',
}
_ANY_ADDRESSES = ('0.0.0.0', '::')  # nosec B104 # looked for, not bound to


class Ports(NamedTuple):
    """Ports that a program listens on.

    :ivar option: the option that sets the first port
    :ivar number: number of consecutive ports
    """

    option: str
    program: str
    host: str
    first: int
    number: int = 1


class PortClash(NamedTuple):
    """Two programs configured for one port; a program with several ports is ``first``."""

    one: Ports
    other: Ports
    port: int


def metrics_port_opt(program: str) -> cfg.PortOpt:
    """Return the option ``metrics_port`` of a program with one process on a machine."""
    return cfg.PortOpt(
        'metrics_port',
        default=0,
        help=f'TCP port that {program} shows /metrics on, for Prometheus, at [DEFAULT] '
        'metrics_host. 0: no listener. No other process of this machine may have it: not '
        'gantt-scheduler, whose workers take [DEFAULT] metrics_port and those that follow.',
    )


def metrics(conf: Any, group: str) -> Ports:
    """Return where a program shows metrics; ``first`` is 0 where it does not.

    :param group: group of the program's options, a key of :data:`PROGRAMS`
    """
    holder = conf if group == 'DEFAULT' else conf[group]
    workers = conf.scheduler.workers if group == 'DEFAULT' and 'scheduler' in conf else 1
    return Ports(
        f'[{group}] metrics_port',
        PROGRAMS[group],
        str(conf.metrics_host),
        holder.metrics_port,
        workers,
    )


def port_clashes(conf: Any) -> list[PortClash]:
    """Return the ports that two programs would listen on.

    :param conf: with all options of Gantt
    """
    listening = [metrics(conf, group) for group in PROGRAMS]
    listening.append(Ports('[api] port', 'gantt-api', str(conf.api.host), conf.api.port))
    listening = [ports for ports in listening if ports.first]
    return [
        PortClash(ports, further, max(ports.first, further.first))
        for ports, further in itertools.combinations(listening, 2)
        if ports.first < further.first + further.number
        and further.first < ports.first + ports.number
        if ports.host == further.host or {ports.host, further.host} & set(_ANY_ADDRESSES)
    ]
