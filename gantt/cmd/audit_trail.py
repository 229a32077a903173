# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage audit-trail``, and the entries of what operators do by ``gantt-manage``."""

import contextlib
import datetime
import getpass
import os
import socket
from collections.abc import Iterator
from typing import Any

from gantt import exceptions
from gantt.cmd import console, wiring
from gantt.core.records import audit_trail

#: Entries that are shown at most.
SHOWN_ENTRIES_MAX = 100_000


def show(conf: Any) -> int:
    """List the changes by HTTP and gantt-manage on this machine and their authors, newest last."""
    if not conf.audit_trail.file:
        raise exceptions.Misconfigured(
            option='[audit_trail] file',
            problem='is not set: entries are in the log only, under the name gantt.audit_trail',
            fix='Set it to a file that gantt-api and operators may write',
        )
    entries = wiring.audit_trail_file(conf).newest(conf.command.limit)
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
def recording(conf: Any, argv: list[str]) -> Iterator[list[int]]:
    """Write an audit entry of a command that changes data; yield a list to put its exit code in."""
    code: list[int] = []
    reason = 'gantt.bug'
    try:
        yield code
        reason = 'exit code 1'
    except exceptions.GanttError as e:
        reason = e.code
        raise
    finally:
        if conf.command.writes and not _only_shows(conf.command):
            is_fine = code == [0]
            _write_entry(conf, argv, '' if is_fine else reason)


def _only_shows(command: Any) -> bool:
    return getattr(command, 'dry_run', False) or not getattr(command, 'apply', True)


def _write_entry(conf: Any, argv: list[str], reason: str) -> None:
    try:
        account = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as containers have it
        account = str(os.getuid())
    action = getattr(conf.command, 'action', None)
    entry = audit_trail.AuditEntry(
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec='milliseconds'),
        action=' '.join(filter(None, ['gantt-manage', conf.command.name, action])),
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
    wiring.audit_trail_file(conf).write(entry, to_log=bool(conf.log_file or conf.log_dir))
