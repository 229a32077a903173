# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage audit-trail``, and the entries of what operators do by ``gantt-manage``."""

import contextlib
import datetime
import getpass
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

from gantt import exceptions
from gantt.cmd import console, wiring
from gantt.core.records import audit_trail

#: Commands that change something.
_ON_TRAIL: set[Callable[[Any], int]] = set()

#: Entries that are shown at most.
SHOWN_MAX = 100_000


def show(conf: Any) -> int:
    """List the changes by HTTP and gantt-manage on this machine and their authors, newest last."""
    if not conf.audit_trail.file:
        raise exceptions.Misconfigured(
            option='[audit_trail] file',
            problem='is not set: entries are in the log only, under the name gantt.audit_trail',
            fix='Set it to a file that gantt-api and operators may write',
        )
    entries = wiring.trail_file(conf).newest(conf.command.limit)
    console.show(conf, entries, map(_sentence, entries))
    return 0


def _sentence(entry: audit_trail.AuditEntry) -> str:
    initiator = entry.initiator
    name = initiator.user_name or initiator.user_id or 'somebody'
    project = f' of project {initiator.project_id}' if initiator.project_id else ''
    ended = entry.outcome + (f' ({entry.reason})' if entry.reason else '')
    detail = f': {entry.message}' if entry.message else ''
    return f'{entry.time} {name}{project} {entry.action} {entry.target} {ended}{detail}'


@contextlib.contextmanager
def recorded(conf: Any, run: Callable[[Any], int], argv: list[str]) -> Iterator[list[int]]:
    """Keep an entry of a command that changes something; into the list goes its exit code."""
    code: list[int] = []
    reason = 'gantt.bug'
    try:
        yield code
        reason = 'exit code 1'
    except exceptions.GanttError as e:
        reason = e.code
        raise
    finally:
        if is_on_trail(run) and not _only_shows(conf.command):
            is_fine = code == [0]
            _keep(conf, argv, '' if is_fine else reason)


def _only_shows(command: Any) -> bool:
    return getattr(command, 'dry_run', False) or not getattr(command, 'apply', True)


def on_trail(run: Callable[[Any], int]) -> Callable[[Any], int]:
    """Mark a command that changes something."""
    _ON_TRAIL.add(run)
    return run


def is_on_trail(run: Callable[[Any], int]) -> bool:
    """Return whether a command is marked."""
    return run in _ON_TRAIL


def _keep(conf: Any, argv: list[str], reason: str) -> None:
    try:
        account = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as containers have it
        account = str(os.getuid())
    entry = audit_trail.AuditEntry(
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec='milliseconds'),
        action=' '.join(filter(None, ['gantt-manage', conf.command.name, _verb(conf)])),
        target=' '.join(argv)[:1000],
        outcome=audit_trail.FAILURE if reason else audit_trail.SUCCESS,
        reason=reason,
        initiator=audit_trail.Initiator(
            # SUDO_USER is the account from before sudo.
            user_id=os.environ.get('SUDO_USER') or account,
            user_name=account,
            address=socket.gethostname(),
        ),
    )
    # Where the log is the terminal it would stand among what the command prints.
    wiring.trail_file(conf).write(entry, to_log=bool(conf.log_file or conf.log_dir))


def _verb(conf: Any) -> str:
    return getattr(conf.command, 'action', None) or ''
