# SPDX-License-Identifier: Apache-2.0
"""Registration and renaming of a host: its epoch, and its reporter.

A registration determines whose reports count there from then on, those of an agent
on the host or those of Nova.  An agent that reports is not replaced by a registration
of Nova: to become one of Nova's hosts, its agent has to be stopped.
"""

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.base import topic_of
from gantt.core.messages.report import DICTIONARY_NONCE, RegisterHost
from gantt.core.resources import host_keys
from gantt.core.resources.host import INVENTORIES_BY_API, HostRow
from gantt.core.resources.host_keys import HostKey

#: Periods of reports that an agent may be silent before its host is free for Nova.
HELD_REPORT_PERIODS = 4
#: Largest step of an epoch by an agent: epochs are numbers up to 2**53, and a
#: malicious one must not be able to use them up.
EPOCH_STEP_MAX = 1_000_000
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
    """Return the row after a registration; another nonce begins a new epoch.

    A new epoch begins at sequence 0 and needs a full report first.  The known facts
    of the host and the claims there stay.  It is beyond the last one
    that the agent was given: in a database that was put back the next one may be
    one that it had, and of which messages are on their way.

    Of two agents the later one counts, and that is the one that comes later,
    unless both have the same journal: that one determines which of them began later.
    A registration by Nova does not come later than an agent that is alive.

    :param row: None where the host is not known
    :param provider_id: its id, where it is new
    :param last_epoch: the last that was handed out to this name, where it is new
    :param now: the database's clock
    :param report_seconds: period of reports that hosts are given
    :raises StaleRegistration: a later one of the same journal was there before
    :raises HostHeld: it is on behalf of Nova, and an agent has reported lately
    :raises NotProven: it is not signed with the host's key
    """
    key = check_key(row, message, now)
    if row is not None and message.reporter == 'nova':
        _check_host_free(row, now, HELD_REPORT_PERIODS * report_seconds)
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
    reporter = message.reporter or ('host' if message.journal is not None else row.reporter)
    row = _replace(
        row,
        uuid=message.uuid or row.uuid,
        reporter=reporter,
        node=message.node or message.name,
        cell=message.cell,
        zone=row.zone if message.zone is None else message.zone,
        # Not from the message: a sender that may register would choose where guests are built.
        build_topic=topic_of(message.name),
        version=row.version + 1,
        key=key,
    )
    if is_repeat:
        return _replace(row, generation=row.generation + int(is_moved))
    # A layout chosen on reports from before the restart is void.
    return _replace(
        row,
        boot_nonce=message.boot_nonce,
        journal=row.journal if message.journal is None else message.journal,
        journal_count=row.journal_count if message.journal is None else message.journal_count,
        epoch=max(row.epoch, min(message.last_epoch, row.epoch + EPOCH_STEP_MAX)) + 1,
        sequence=0,
        full_sequence=0,
        generation=row.generation + 1,
    )


def check_key(row: HostRow | None, message: RegisterHost, now: float = 0.0) -> HostKey | None:
    """Return the key that the host has after a registration.

    :raises NotProven: it is not signed with the host's key
    """
    known_key, nonce = (None, None) if row is None else (row.key, row.boot_nonce)
    return host_keys.key_after_registration(
        known_key, message, is_repeat=nonce == message.boot_nonce, now=now
    )


def is_elsewhere(row: HostRow | None, message: RegisterHost, now: float, held: float) -> bool:
    """Return whether another journal registers the host while an agent of the last one reports.

    Two agents have one name, a disk was replaced within a few periods of reports, or the sender
    is not the host.
    """
    return (
        row is not None
        and None not in (row.journal, message.journal)
        and row.journal != message.journal
        and bool(row.reported_at)
        and now - row.reported_at < held
    )


def restarts_guest_lists(before: HostRow, row: HostRow) -> bool:
    """Return whether lists of Nova count from here on only: gaps of earlier ones are outdated."""
    changes = row.reporter != before.reporter and row.reporter != 'host'
    return changes and before.boot_nonce != ''  # one that is new has no claims


def renamed_host(row: HostRow, name: str, last_epoch: int) -> HostRow:
    """Return the row under another name; its id, uuid, facts and use stay.

    Values derived from the old name are derived from the new one.  The epoch is
    one that was never handed out, so that the next reporter has to
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
    """Return the row with another writer of the host's inventories from now on.

    The inventories stay until that one changes them.  Where it is its reports, the next one that
    counts is a full one.

    :param by: ``INVENTORIES_BY_API``, or None: its reports
    :raises InvalidMessage: neither of them
    """
    if by not in (None, INVENTORIES_BY_API):
        raise exceptions.invalid(
            'inventories_by', f'expected {INVENTORIES_BY_API!r} or none, got {by!r}'
        )
    if by == row.inventories_by:
        return row
    full_sequence = row.full_sequence if by == INVENTORIES_BY_API else 0
    return _replace(row, inventories_by=by, full_sequence=full_sequence)


def _check_host_free(row: HostRow, now: float, held: float) -> None:
    is_agents = row.reporter != 'nova' and row.boot_nonce not in ('', DICTIONARY_NONCE)
    if is_agents and row.reported_at and now - row.reported_at < held:
        raise exceptions.HostHeld(
            host=row.name,
            epoch=row.epoch,
            seconds=max(0, round(now - row.reported_at)),
            held=round(held),
        )
