# SPDX-License-Identifier: Apache-2.0
"""Results of checks: findings, or what is well."""

import enum
import functools

import msgspec


class Severity(enum.StrEnum):
    """Severity of a finding; the order is that of the output."""

    ERROR = 'error'  # it cannot work, or a promise can be broken
    WARNING = 'warning'  # it works until something goes wrong, or it costs much
    NOTE = 'note'  # it has no effect, or is worth knowing


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding on a setting.

    :ivar option: ``[group] name``, or the server's own name for it; empty: ``why`` has all
    :ivar value: as it is, without secrets
    :ivar why: what it does
    :ivar instead: what to set
    """

    severity: Severity
    option: str
    value: str
    why: str
    instead: str

    def __str__(self) -> str:
        return f'{self.option}: {self.why}. {self.instead}' if self.option else self.why


#: Hosts and options that a sentence names; the rest is counted.
NAMED = 10
#: Value of a server that did not answer.
NOT_LOOKED_INTO = 'not looked into'
#: A finding; or, where there is none, what is well.
Result = Finding | str


def finding(
    severity: Severity, option: str = '', value: object = '', why: str = '', instead: str = ''
) -> Finding:
    """Return a finding; one with ``why`` alone is on no option."""
    text = f'{value:g}' if isinstance(value, float) else str(value)
    return Finding(severity=severity, option=option, value=text, why=why, instead=instead)


error = functools.partial(finding, Severity.ERROR)
warning = functools.partial(finding, Severity.WARNING)
note = functools.partial(finding, Severity.NOTE)


def unreachable(what: str, problem: object, correct: str) -> Finding:
    """Return the finding of a server that does not answer, or, with ``correct``, refuses us."""
    why = f'it {"runs and refuses us" if correct else "does not answer"}: {problem}'
    if correct:
        return error(what, NOT_LOOKED_INTO, why, f'Correct {correct}')
    return note(what, NOT_LOOKED_INTO, why, 'Run this again where it does')


def some(texts: list[str]) -> str:
    """Return the first of several texts in one, and how many more there are."""
    more = f' and {len(texts) - NAMED} more' if len(texts) > NAMED else ''
    return '; '.join(texts[:NAMED]) + more
