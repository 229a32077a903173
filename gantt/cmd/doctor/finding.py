# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of one setting, and what it looks at."""

import enum
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from gantt.conf.clear_text import Exposure


class Severity(enum.StrEnum):
    """How bad a setting is; the order is that of the output."""

    ERROR = 'error'  # it cannot work, or a promise can be broken
    WARNING = 'warning'  # it works until something goes wrong, or it costs much
    NOTE = 'note'  # it has no effect, or is worth knowing


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One setting.

    :ivar option: ``[group] name``, or the server's own name for it
    :ivar value: as it is, without secrets
    :ivar why: what it does
    :ivar instead: what to set
    """

    severity: Severity
    option: str
    value: str
    why: str
    instead: str


def error(option: str, value: object, why: str, instead: str) -> Finding:
    return _found(Severity.ERROR, option, value, why, instead)


def warning(option: str, value: object, why: str, instead: str) -> Finding:
    return _found(Severity.WARNING, option, value, why, instead)


def note(option: str, value: object, why: str, instead: str) -> Finding:
    return _found(Severity.NOTE, option, value, why, instead)


def exposed(found: Exposure | None) -> Iterator[Finding]:
    """What crosses a network in clear."""
    if found is not None:
        yield error(*found)


def _found(severity: Severity, option: str, value: object, why: str, instead: str) -> Finding:
    shown = f'{value:g}' if isinstance(value, float) else str(value)
    return Finding(severity=severity, option=option, value=shown, why=why, instead=instead)


class Broker(NamedTuple):
    """A broker that the configuration names.

    :ivar option: that names it
    :ivar transport: made from it; not connected
    :ivar url: as the library read it
    :ivar rabbit: options of [oslo_messaging_rabbit] in force, those of the URL included
    """

    option: str
    transport: Any
    url: Any
    rabbit: Any
