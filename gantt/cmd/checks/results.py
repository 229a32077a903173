# SPDX-License-Identifier: Apache-2.0
"""Results of checks: findings, or what is well; and tables whose rows say when there is one."""

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

    :ivar option: ``[group] name``, or the server's own name for it; empty: ``why`` has all
    :ivar value: value of the option, without secrets
    :ivar why: what is wrong with the value, and what follows from it
    :ivar instead: value to set in its place
    """

    severity: Severity
    option: str
    value: str
    why: str
    instead: str

    def __str__(self) -> str:
        return f'{self.option}: {self.why}. {self.instead}' if self.option else self.why


#: Hosts and options that a sentence names; the rest is counted.
NAMES_SHOWN_MAX = 10
#: Value of a server that did not answer.
NOT_CHECKED_TEXT = 'not looked into'
#: A finding; or, where there is none, what is well.
Result = Finding | str


def finding(
    severity: Severity, option: str = '', value: object = '', why: str = '', instead: str = ''
) -> Finding:
    """Return a finding; one with only ``why`` is on no option."""
    text = f'{value:g}' if isinstance(value, float) else str(value)
    return Finding(severity=severity, option=option, value=text, why=why, instead=instead)


error = functools.partial(finding, Severity.ERROR)
warning = functools.partial(finding, Severity.WARNING)
note = functools.partial(finding, Severity.NOTE)


def unreachable(what: str, problem: object, correct: str) -> Finding:
    """Return the finding of a server that does not answer, or, with ``correct``, refuses us."""
    why = f'it {"runs and refuses us" if correct else "does not answer"}: {problem}'
    if correct:
        return error(what, NOT_CHECKED_TEXT, why, f'Correct {correct}')
    return note(what, NOT_CHECKED_TEXT, why, 'Run this again where it does')


def first_of(texts: list[str]) -> str:
    """Return a text of the first texts, and the number of the others."""
    more = f' and {len(texts) - NAMES_SHOWN_MAX} more' if len(texts) > NAMES_SHOWN_MAX else ''
    return '; '.join(texts[:NAMES_SHOWN_MAX]) + more


class CheckRow(NamedTuple):
    """A row of a table of findings on options.

    :ivar option: name of the option, as in a finding
    :ivar wrong: function of value and facts: whether there is a finding
    :ivar why: and ``instead``, ``shown``: templates of the facts, and of the value as ``v``
    :ivar shown: text to show in place of the value
    :ivar key: name under which the value is found, if not the option's
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
        yield finding(row.severity, option, shown_value, why, instead)


def findings_on_options(
    rows: Iterable[CheckRow], conf: Any, facts: SimpleNamespace
) -> Iterator[Finding]:
    """Yield the findings of rows whose values are options."""

    def value_of(option: str) -> Any:
        group, _, name = option.removeprefix('[').partition('] ')
        return (conf if group == 'DEFAULT' else conf[group])[name]

    return findings(rows, facts, value_of)


error_if = functools.partial(CheckRow, Severity.ERROR)
warning_if = functools.partial(CheckRow, Severity.WARNING)
note_if = functools.partial(CheckRow, Severity.NOTE)
