# SPDX-License-Identifier: Apache-2.0
"""Defects that hostile readings found, one test each, and the table of them.

A test names what it is about: ``@pytest.mark.finding('D1', 'a stored group rule is compared')``.
``make test ARGS=tests/hostile`` prints the findings with their outcomes at the end.
"""

import collections
import re
from collections.abc import Iterable
from typing import Any

import pytest

#: Worst first: what a finding is when its tests ended in several ways.
OUTCOMES = ('error', 'failed', 'skipped', 'passed')


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hand each finding to the reports of its tests, also through the workers of xdist."""
    for item in items:
        for mark in item.iter_markers('finding'):
            number, title = mark.args
            item.user_properties.append(('finding', f'{number} {title}'))


def _order(number: str) -> tuple[str, int, str]:
    match = re.match(r'([A-Z]+)(\d+)(.*)$', number)
    return (match[1], int(match[2]), match[3]) if match else (number, 0, '')


def _findings(stats: dict[str, Iterable[Any]]) -> dict[str, tuple[str, int, str]]:
    """Number -> (outcome, number of tests, title)."""
    outcomes: dict[str, list[str]] = collections.defaultdict(list)
    titles: dict[str, str] = {}
    for outcome in OUTCOMES:
        for report in stats.get(outcome, ()):
            for name, value in getattr(report, 'user_properties', ()):
                if name == 'finding':
                    number, _, title = value.partition(' ')
                    outcomes[number].append(outcome)
                    titles.setdefault(number, title)
    return {n: (min(o, key=OUTCOMES.index), len(o), titles[n]) for n, o in outcomes.items()}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    findings = _findings(terminalreporter.stats)
    if not findings:
        return
    terminalreporter.section('findings')
    for number in sorted(findings, key=_order):
        outcome, tests, title = findings[number]
        terminalreporter.write_line(f'{number:6} {outcome:8} {tests:3}  {title}')
