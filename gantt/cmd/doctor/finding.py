# SPDX-License-Identifier: Apache-2.0
"""Findings of the doctor, and the rows of its tables."""

import enum
import functools
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec


class Severity(enum.StrEnum):
    """Severity of a finding; the order is that of the output."""

    ERROR = 'error'  # it cannot work, or a promise can be broken
    WARNING = 'warning'  # it works until something goes wrong, or it costs much
    NOTE = 'note'  # it has no effect, or is worth knowing


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding on a setting.

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


class CheckRow(NamedTuple):
    """A row of a table of checks.

    :ivar option: as in a finding
    :ivar wrong: of the value and the facts: whether there is a finding
    :ivar why: and ``instead``, ``shown``: templates of the facts, and of the value as ``v``
    :ivar shown: in place of the value
    :ivar key: where the value is, if not under the option's own name
    """

    severity: Severity
    option: str
    wrong: Callable[..., Any]
    why: str
    instead: str
    shown: str = '{v}'
    key: str = ''


def findings(
    rows: Iterable[CheckRow], facts: SimpleNamespace, value_of: Callable[[str], Any]
) -> Iterator[Finding]:
    """Yield the findings of the rows of a table.

    :param value_of: by option or key; None where there is no such setting
    """
    for row in rows:
        value = value_of(row.key or row.option)
        if not row.wrong(value, facts):
            continue
        v = '(none)' if value in (None, '') else f'{value:g}' if isinstance(value, float) else value
        texts = (text.format(**vars(facts) | {'v': v}) for text in (row.option, *row[3:6]))
        option, why, instead, shown_value = texts
        yield found(row.severity, option, shown_value, why, instead)


def found(severity: Severity, option: str, value: object, why: str, instead: str) -> Finding:
    """Return a finding that no table has."""
    text = f'{value:g}' if isinstance(value, float) else str(value)
    return Finding(severity=severity, option=option, value=text, why=why, instead=instead)


error = functools.partial(CheckRow, Severity.ERROR)
warning = functools.partial(CheckRow, Severity.WARNING)
note = functools.partial(CheckRow, Severity.NOTE)
