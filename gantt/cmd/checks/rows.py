# SPDX-License-Identifier: Apache-2.0
"""Tables of findings: a row says when there is one, why it is one, and what to set instead."""

import functools
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from gantt.cmd.checks.results import Finding, Severity, finding


class CheckRow(NamedTuple):
    """A row of a table of findings on options.

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
        yield finding(row.severity, option, shown_value, why, instead)


def of_options(rows: Iterable[CheckRow], conf: Any, facts: SimpleNamespace) -> Iterator[Finding]:
    """Yield the findings of rows whose values are options."""

    def value_of(option: str) -> Any:
        group, _, name = option.removeprefix('[').partition('] ')
        return (conf if group == 'DEFAULT' else conf[group])[name]

    return findings(rows, facts, value_of)


error_if = functools.partial(CheckRow, Severity.ERROR)
warning_if = functools.partial(CheckRow, Severity.WARNING)
note_if = functools.partial(CheckRow, Severity.NOTE)
