# SPDX-License-Identifier: Apache-2.0
"""Hosts of Nova: [nova_source], [nova] and [placement], and the agents beside nova-compute."""

import urllib.parse
from collections.abc import Iterator
from typing import Any

import msgspec
import sqlalchemy as sa

from gantt import exceptions
from gantt.cmd import wiring
from gantt.cmd.doctor.finding import Finding, error, warning
from gantt.compute.drivers import pci
from gantt.conf import keystone as options
from gantt.conf.pipeline import pipeline_from_conf
from gantt.core.resources.host import Beside
from gantt.db.engine import session
from gantt.db.schema import models
from gantt.nova_source import keystone
from gantt.nova_source.cells import Cells

#: Names that a finding has at most.
SHOWN = 5


def period(conf: Any, down_seconds: float) -> Iterator[Finding]:
    """How often hosts of Nova report.

    :param down_seconds: [filters] service_down_time
    """
    seconds = conf.nova_source.interval_seconds
    if not _is_used(conf) or 2 * seconds <= down_seconds:
        return
    yield (error if seconds >= down_seconds else warning)(
        '[nova_source] interval_seconds',
        seconds,
        f'[filters] service_down_time is {down_seconds:g}: hosts of Nova report once in each pass, '
        + (
            'and count as down between two'
            if seconds >= down_seconds
            else 'and one pass that fails takes all of them out of service'
        ),
        f'Set it to {int(down_seconds // 3)} or less, or service_down_time to {3 * seconds}',
    )


def cells(conf: Any) -> Iterator[Finding]:
    """Which cell hosts are in."""
    own = conf.nova_source
    try:
        Cells(own.cells_file, own.cell)
    except exceptions.Misconfigured as e:
        option = str(e.kwargs['option'])
        value = own[option.removeprefix('[nova_source] ')]
        yield error(option, value, str(e.kwargs['problem']), str(e.kwargs['fix']))
    except exceptions.InvalidMessage as e:
        yield error(
            '[nova_source] cells_file',
            own.cells_file,
            e.message,
            'Make it with: nova-manage cell_v2 list_hosts > FILE',
        )


def apis(conf: Any) -> Iterator[Finding]:
    """Where keystone is, and as whom we come."""
    options.register_opts(conf)
    if not options.is_given(conf, 'nova'):
        return  # it does not start, and says why: it need not run here
    try:
        keystone.apis(conf, conf.nova_source.request_seconds)
    except exceptions.Misconfigured as e:
        value = conf.nova.auth_section or conf.nova.auth_type
        instead = f'Set {e.kwargs["fix"]}'
        yield error(str(e.kwargs['option']), value, str(e.kwargs['problem']), instead)
        return
    for section in dict.fromkeys(options.section(conf, group) for group in options.SERVICES):
        url = conf[section].auth_url if 'auth_url' in conf[section] else None
        if url is not None and not _is_http(url):
            yield error(
                f'[{section}] auth_url',
                url,
                'it is no address of keystone',
                'Expected e.g. https://keystone.example.org/v3',
            )


def devices(conf: Any) -> Iterator[Finding]:
    """Devices that an agent beside nova-compute is to tell of."""
    try:
        pci.parse(conf.compute.device_spec)
    except exceptions.Misconfigured as e:
        value = '; '.join(conf.compute.device_spec)
        yield error(str(e.kwargs['option']), value, str(e.kwargs['problem']), str(e.kwargs['fix']))


class _Facts(msgspec.Struct):
    beside: Beside | None = None


def agents(conf: Any, connection: sa.Connection) -> Iterator[Finding]:
    """Agents beside nova-compute that have fallen silent: what they told is believed for ever."""
    try:
        most = wiring.down_time(pipeline_from_conf(conf))
    except exceptions.PluginError:
        return  # said already
    facts, hosts = models.provider_facts, models.providers
    found = connection.execute(
        sa.select(hosts.c.name, facts.c.facts, session.Now().label('now'))
        .join(facts, facts.c.provider_id == hosts.c.id)
        .where(facts.c.speaks_for == 'nova')
        .order_by(hosts.c.name)
    )
    heard, silent = 0, []
    for row in found:
        beside = msgspec.json.decode(row.facts, type=_Facts).beside
        heard += beside is not None
        if beside is not None and row.now - beside.told_at > most:
            silent.append(row.name)
    if silent:
        shown = ', '.join(silent[:SHOWN]) + (', ...' if len(silent) > SHOWN else '')
        yield warning(
            'gantt-compute --facts-only',
            f'silent on {len(silent)} of {heard} hosts',
            f'for more than [filters] service_down_time, {most:g}, nothing was told of {shown}: '
            'their cells and devices are taken as they were then',
            'Start it there, or see in its log why it is not heard',
        )


def _is_used(conf: Any) -> bool:
    """Whether anything is said of it: most sites have no such process."""
    options.register_opts(conf)
    own = conf.nova_source
    return bool(own.cells_file or own.cell or options.is_given(conf, 'nova'))


def _is_http(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in ('http', 'https') and bool(parts.hostname)
    except ValueError:
        return False
