# SPDX-License-Identifier: Apache-2.0
"""The audit trail: who changed what by hand, for which project, and how it ended.

A placement is not in it, since its decision says all that; nor is what hosts report.
"""

import msgspec

#: Outcomes, in the words of CADF, which OpenStack's audit speaks.
SUCCESS, FAILURE = 'success', 'failure'


class Initiator(msgspec.Struct, frozen=True, kw_only=True):
    """Who asked, as far as that is known.

    :ivar user_id: of the token; of a command the name of the account that ran it
    :ivar service_roles: of the service that passed the request on, where one did
    :ivar address: where it came from: of a command the name of the machine
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
    """One line of the trail.

    :ivar time: UTC, as ISO 8601 has it
    :ivar action: the rule of the operation (``gantt:hosts:disable``), or the command
    :ivar target: the path that was asked for, or what the command was given
    :ivar outcome: ``success`` or ``failure``
    :ivar reason: code of the error of a failure
    :ivar what: the sentence that the caller was answered
    :ivar request_id: as in the log and in ``X-OpenStack-Request-ID``
    """

    time: str
    action: str
    target: str
    outcome: str
    initiator: Initiator
    reason: str = ''
    what: str = ''
    request_id: str = ''


def line(entry: AuditEntry) -> str:
    """The entry as one line of JSON, ASCII only: nothing in it that a terminal obeys."""
    text = msgspec.json.encode(entry).decode()
    if text.isascii() and text.isprintable():
        return text
    return ''.join(c if ' ' <= c <= '~' else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    units = char.encode('utf-16-be', 'surrogatepass')
    return ''.join(f'\\u{units[i]:02x}{units[i + 1]:02x}' for i in range(0, len(units), 2))


def decoded(text: str) -> AuditEntry | None:
    """The entry of a line; None where it is none, such as one that broke off."""
    try:
        return msgspec.json.decode(text, type=AuditEntry)
    except msgspec.DecodeError:
        return None
