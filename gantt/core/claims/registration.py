# SPDX-License-Identifier: Apache-2.0
"""What a registration, or another name, makes of a host: its epoch, and who reports for it.

Whoever registers says whose words count there from then on, those of an agent
on the host or those of Nova.  An agent that reports is not put aside by what
Nova says of a host: to be one of Nova's hosts, its agent has to be stopped.
"""

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.base import topic_of
from gantt.core.messages.report import DICTIONARY_NONCE, RegisterHost
from gantt.core.resources import host_keys
from gantt.core.resources.host import API, HostRow
from gantt.core.resources.host_keys import HostKey

#: So many periods of reports an agent may be silent before its host is free for Nova.
HELD_REPORTS = 4
#: How far an agent may move the epoch of its host on: epochs are numbers up to 2**53, and
#: one who lies must not be able to use them up.
AFTER_MOST = 1_000_000
_replace = msgspec.structs.replace


def register(
    row: HostRow | None,
    message: RegisterHost,
    *,
    provider_id: int,
    last_epoch: int = 0,
    now: float = 0.0,
    report_seconds: float = 60.0,
) -> HostRow:
    """The row after a registration; another nonce begins a new epoch.

    A new epoch begins at sequence 0 and needs a full report first.  What is
    known of the host and what is claimed there stays.  It is beyond the last one
    that the agent was given: in a database that was put back the next one may be
    one that it had, and of which messages are on their way.

    Of two agents the later one counts, and that is the one that comes later,
    unless both have the same journal: that one knows which of them began later.
    Who comes in the name of Nova does not come later than an agent that is alive.

    :param row: None where the host is not known
    :param provider_id: its id, where it is new
    :param last_epoch: the last that was handed out to this name, where it is new
    :param now: the database's clock
    :param report_seconds: how often hosts are told to report
    :raises StaleRegistration: a later one of the same journal was there before
    :raises HostHeld: it is said in the name of Nova, and an agent has reported lately
    :raises NotProven: it is not signed with the host's key
    """
    key = check_key(row, message, now)
    if row is not None and message.speaks_for == 'nova':
        _check_free(row, now, HELD_REPORTS * report_seconds)
    if row is None:
        uuid = message.uuid or base.derived_id('host', message.name, provider_id)
        row = HostRow(id=provider_id, uuid=uuid, name=message.name, epoch=last_epoch)
    is_repeat = row.boot_nonce == message.boot_nonce
    is_ours = message.journal is not None and message.journal == row.journal
    if is_ours and not is_repeat and message.journal_count < row.journal_count:
        raise exceptions.StaleRegistration(
            host=message.name, count=message.journal_count, current=row.journal_count
        )
    is_moved = message.uuid is not None and message.uuid != row.uuid
    speaks_for = message.speaks_for or ('host' if message.journal is not None else row.speaks_for)
    row = _replace(
        row,
        uuid=message.uuid or row.uuid,
        speaks_for=speaks_for,
        node=message.node or message.name,
        cell=message.cell,
        zone=row.zone if message.zone is None else message.zone,
        # Not what is said: whoever may register would choose where guests are built.
        build_topic=topic_of(message.name),
        version=row.version + 1,
        key=key,
    )
    if is_repeat:
        return _replace(row, generation=row.generation + int(is_moved))
    # A layout chosen on what the host said before it started anew is void.
    return _replace(
        row,
        boot_nonce=message.boot_nonce,
        journal=row.journal if message.journal is None else message.journal,
        journal_count=row.journal_count if message.journal is None else message.journal_count,
        epoch=max(row.epoch, min(message.after, row.epoch + AFTER_MOST)) + 1,
        sequence=0,
        full_sequence=0,
        generation=row.generation + 1,
    )


def check_key(row: HostRow | None, message: RegisterHost, now: float = 0.0) -> HostKey | None:
    """The key that the host has after a registration.

    :raises NotProven: it is not signed with the host's key
    """
    known_key, nonce = (None, None) if row is None else (row.key, row.boot_nonce)
    return host_keys.admitted(known_key, message, is_repeat=nonce == message.boot_nonce, now=now)


def is_elsewhere(row: HostRow | None, message: RegisterHost, now: float, held: float) -> bool:
    """Whether the host is registered from another journal while an agent of the last one reports.

    Two agents have one name, a disk was replaced within a few periods of reports, or somebody
    speaks who is not the host.
    """
    return (
        row is not None
        and None not in (row.journal, message.journal)
        and row.journal != message.journal
        and bool(row.reported_at)
        and now - row.reported_at < held
    )


def begins_lists_anew(before: HostRow, row: HostRow) -> bool:
    """Whether lists of Nova may count from here on: what earlier ones lacked is long ago."""
    changes = row.speaks_for != before.speaks_for and row.speaks_for != 'host'
    return changes and before.boot_nonce != ''  # one that is new has no claims


def renamed(row: HostRow, name: str, last_epoch: int) -> HostRow:
    """The row under another name; its id, uuid, facts and use stay.

    What followed from the old name follows from the new one.  The epoch is
    another one than anybody was ever told, so that whoever speaks next has to
    register first, by the new name.

    :param last_epoch: the last that was handed out to the new name before
    """
    return _replace(
        row,
        name=name,
        node=name if row.node == row.name else row.node,
        build_topic=topic_of(name),
        epoch=max(row.epoch, last_epoch) + 1,
        sequence=0,
        full_sequence=0,
        boot_nonce='',
        generation=row.generation + 1,
    )


def with_inventories_by(row: HostRow, by: str | None) -> HostRow:
    """The row where somebody else says what the host has from now on.

    What it has stays until that one says otherwise.  Where it is its reports, the next one that
    counts is a full one.

    :param by: ``API``, or None: its reports
    :raises InvalidMessage: neither of them
    """
    if by not in (None, API):
        raise exceptions.invalid('inventories_by', f'expected {API!r} or none, got {by!r}')
    if by == row.inventories_by:
        return row
    full_sequence = row.full_sequence if by == API else 0
    return _replace(row, inventories_by=by, full_sequence=full_sequence)


def _check_free(row: HostRow, now: float, held: float) -> None:
    is_agents = row.speaks_for != 'nova' and row.boot_nonce not in ('', DICTIONARY_NONCE)
    if is_agents and row.reported_at and now - row.reported_at < held:
        raise exceptions.HostHeld(
            host=row.name,
            epoch=row.epoch,
            seconds=max(0, round(now - row.reported_at)),
            held=round(held),
        )
