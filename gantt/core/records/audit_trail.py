# SPDX-License-Identifier: Apache-2.0
"""The audit trail: manual changes with initiator, target, project and outcome.

Placements are not in it, since their decisions record them; nor are reports of hosts.
"""

import msgspec

#: Outcomes, in the terms of CADF, which OpenStack's audit uses.
SUCCESS, FAILURE = 'success', 'failure'


class Initiator(msgspec.Struct, frozen=True, kw_only=True):
    """Initiator of an operation, as far as known.

    :ivar user_id: of the token; of a command the name of the account that ran it
    :ivar service_roles: of the service that forwarded the request, if any
    :ivar address: its source address; of a command the name of the machine
    """

    user_id: str
    user_name: str = ''
    project_id: str | None = None
    domain_id: str | None = None
    is_system: bool = False
    roles: tuple[str, ...] = ()
    service_roles: tuple[str, ...] = ()
    address: str = ''


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the audit trail.

    :ivar time: UTC, in ISO 8601
    :ivar action: the rule of the operation (``gantt:hosts:disable``), or the command
    :ivar target: the requested path, or the arguments of the command
    :ivar outcome: ``success`` or ``failure``
    :ivar reason: code of the error of a failure
    :ivar message: the message returned to the caller
    :ivar request_id: as in the log and in ``X-OpenStack-Request-ID``
    """

    time: str
    action: str
    target: str
    outcome: str
    initiator: Initiator
    reason: str = ''
    message: str = ''
    request_id: str = ''


def entry_line(entry: AuditEntry) -> str:
    """Return the entry as one line of JSON, printable ASCII only, safe for terminals."""
    text = msgspec.json.encode(entry).decode()
    if text.isascii() and text.isprintable():
        return text
    return ''.join(c if ' ' <= c <= '~' else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    units = char.encode('utf-16-be', 'surrogatepass')
    return ''.join(f'\\u{units[i]:02x}{units[i + 1]:02x}' for i in range(0, len(units), 2))


def decode_line(text: str) -> AuditEntry | None:
    """Return the entry of a line; None if it is not one, such as a truncated line."""
    try:
        return msgspec.json.decode(text, type=AuditEntry)
    except msgspec.DecodeError:
        return None
