# SPDX-License-Identifier: Apache-2.0
"""Doors, rules and files of the processes."""

import os
import stat
from collections.abc import Iterator
from typing import Any

from gantt import plugin_loader
from gantt.cmd.doctor.finding import Finding, error, exposed, note, warning
from gantt.conf import clear_text, listeners, unknown
from gantt.conf.clear_text import is_here
from gantt.conf.filters import chosen
from gantt.conf.listeners import PROGRAMS

#: Filters without which nearly every answer is wrong, and what happens then.
_NEEDED = {
    'ComputeFilter': 'hosts that are disabled, silent or over-full are chosen',
    'ResourcesFilter': 'hosts without room are chosen, and every claim on them is refused: '
    'requests end as conflicts',
}
_RAM_DISKS = ('/tmp/', '/run/', '/var/run/', '/dev/shm/')  # nosec B108 # looked for, not written to


def doors(conf: Any) -> Iterator[Finding]:
    """Addresses and ports."""
    api = conf.api
    if api.auth_strategy == 'noauth' and not is_here(api.host):
        yield warning(
            '[api] host',
            api.host,
            'auth_strategy is noauth: whoever reaches this address may place, release and remove',
            'Listen on 127.0.0.1 behind a proxy that knows its callers, or on a management network',
        )
    if api.behind_proxy and not is_here(api.host):
        yield warning(
            '[api] behind_proxy',
            True,
            f'{api.host} can be reached past the proxy: the headers that are believed then are '
            'whatever a caller writes',
            'Listen on 127.0.0.1, or let a firewall admit the proxy alone',
        )
    if api.table_age_seconds >= api.table_age_unhealthy_seconds:
        yield error(
            '[api] table_age_unhealthy_seconds',
            api.table_age_unhealthy_seconds,
            f'the table may be table_age_seconds old, {api.table_age_seconds:g}, before it is '
            'read again: a sound process says that it is not well',
            'Set it to 60',
        )
    yield from clashes(conf)
    yield from exposed(clear_text.of_api(conf))
    if any(listeners.metrics(conf, g).first for g in PROGRAMS):
        yield from exposed(clear_text.of_metrics(conf))
    port, workers = conf.metrics_port, conf.scheduler.workers
    if not port:
        yield note(
            '[DEFAULT] metrics_port',
            0,
            'gantt-scheduler shows neither metrics nor health: nobody hears that it cannot place',
            'Set it to 9790',
        )
    elif port + workers - 1 > 65_535:
        yield error(
            '[DEFAULT] metrics_port',
            port,
            f'{workers} workers need the ports up to {port + workers - 1}',
            'Set it to 9790',
        )


def clashes(conf: Any) -> Iterator[Finding]:
    """Ports that two programs of this configuration would listen on."""
    for one, other, port in listeners.clashes(conf):
        option, first = one.option, one.first
        yield error(
            option,
            first,
            f'{one.program} would listen on port {port}, and so would {other.program} '
            f'({other.option} = {other.first}): the one of them that starts later ends',
            f'Set it to {first + 1000}, or leave it out where {one.program} does not run',
        )


def rules(conf: Any) -> Iterator[Finding]:
    """Filters and weighers."""
    filters = conf.filters
    enabled = chosen(conf)[plugin_loader.FILTERS]
    for name in plugin_loader.DEFAULT_FILTERS:
        if name in enabled:
            continue
        told = _NEEDED.get(name)
        yield (error if told else warning)(
            '[filters] enabled_filters',
            ', '.join(enabled),
            f'{name} is missing: {told or "what requests ask of it is not looked at"}',
            f'Add {name}',
        )
    if filters.skip_failing_plugins:
        yield warning(
            '[filters] skip_failing_plugins',
            True,
            'a filter that fails removes nobody: hosts are chosen that its rule forbids',
            'Remove it once the plugin is mended',
        )


def compute(conf: Any) -> Iterator[Finding]:
    """The agent of a host."""
    c = conf.compute
    if c.guest_start_command and not c.guest_stop_command:
        yield error(
            '[compute] guest_stop_command',
            '(none)',
            'this host starts guests and cannot stop them: every delete fails',
            'Name the command that stops a guest',
        )
    if c.guest_start_command and not c.guest_list_command:
        yield warning(
            '[compute] guest_list_command',
            '(none)',
            'the journal is believed: a guest that crashed, or was started by hand, is not seen, '
            'and its room is told wrongly',
            'Name the command that lists what runs',
        )
    for option, path in (('[compute] journal', c.journal), ('[DEFAULT] state_path', _slash(conf))):
        if path.startswith(_RAM_DISKS):
            yield warning(
                option,
                path.rstrip('/'),
                'it may be empty after a restart of the machine: an agent forgets what it was '
                'told to build, and SQLite its database',
                'Choose a directory on a disk, such as /var/lib/gantt',
            )


def _slash(conf: Any) -> str:
    return conf.state_path.rstrip('/') + '/'


def files(conf: Any) -> Iterator[Finding]:
    """Who may read the passwords."""
    for path in [*conf.config_file, *getattr(conf, 'config_dir', [])]:
        try:
            mode = os.stat(path).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
            yield warning(
                path,
                oct(stat.S_IMODE(mode)),
                'every user of this machine may read the passwords of the broker and of the '
                'database' + (', and change them' if mode & stat.S_IWOTH else ''),
                f'chown root:gantt {path}; chmod 0640 {path}',
            )


def unread(conf: Any) -> Iterator[Finding]:
    """Options that nobody reads."""
    for one in unknown.unread(conf):
        yield error(one.option, one.value, one.why, 'Correct the name, or remove it')
