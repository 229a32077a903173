# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage config``: whether a service would start, and which settings are dangerous."""

import argparse
import textwrap
from collections.abc import Iterator
from typing import Any

from gantt import exceptions
from gantt.cmd import console
from gantt.cmd.checks import CheckResource, CheckStage
from gantt.cmd.checks.results import NOT_CHECKED_TEXT, Finding, Severity, error
from gantt.cmd.checks.table import of_stage

_WIDTH = 88


def add_commands(add: Any, group: Any) -> None:
    """Add the commands of ``gantt-manage config``."""
    configuration = group('config', 'The configuration.')
    add(configuration, 'check', check)
    add(configuration, 'doctor', doctor, json_too=True).add_argument(
        '--live',
        action=argparse.BooleanOptionalAction,
        default=None,
        help='ask the servers, too; one that does not answer is an error with --live, and a '
        'note without either',
    )


def check(conf: Any) -> int:
    """Read all options, look for misspelled ones, load the plugins, reach the servers."""
    failed = 0
    for site_check in of_stage(CheckStage.CONFIG):
        severity, text = site_check.verdict(conf)
        failed += severity is not None
        print(f'{site_check.name:<10} {"WRONG " if severity else "ok    "} {text}')
    return 1 if failed else 0


def doctor(conf: Any) -> int:
    """Explain settings that are dangerous or contradict each other; 1 where one is an error.

    The database server and the broker are queried too, unless --no-live is given.
    """
    findings = diagnose(conf, conf.command.live)
    counts = {kind.value: sum(f.severity is kind for f in findings) for kind in Severity}
    summary = ', '.join(f'{kind}s {count}' for kind, count in counts.items())
    lines = [line for finding in findings for line in _lines(finding)]
    console.show(conf, {'counts': counts, 'findings': findings}, [*lines, summary])
    return 1 if counts[Severity.ERROR] else 0


def diagnose(conf: Any, probe: bool | None = None) -> list[Finding]:
    """Return all findings, the worst first.

    :param probe: the servers; None: those that answer
    """
    order = list(Severity)
    findings = dict.fromkeys(_findings(conf, probe))
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _findings(conf: Any, probe: bool | None) -> Iterator[Finding]:
    for site_check in of_stage(CheckStage.DOCTOR):
        if probe is False and site_check.needs is not CheckResource.CONFIGURATION:
            continue
        try:
            for result in site_check.run(conf):
                if not isinstance(result, Finding):
                    continue
                if probe and result.severity is Severity.NOTE and result.value == NOT_CHECKED_TEXT:
                    result = error(result.option, NOT_CHECKED_TEXT, result.why, 'Start it')
                yield result
        except exceptions.Misconfigured as e:
            yield _of_error(conf, e)


def _of_error(conf: Any, raised: exceptions.Misconfigured) -> Finding:
    """Return the finding of an error that names an option itself, or a plugin."""
    option, fix = str(raised.kwargs.get('option') or '[filters]'), raised.kwargs.get('fix')
    if not isinstance(raised, exceptions.PluginError):
        return error(option, '(unusable)', str(raised.kwargs['problem']), str(fix))
    group, _, name = option.removeprefix('[').partition('] ')
    value = conf[group][name] if name and name in conf[group] else raised.kwargs['plugin']
    return error(option, value, raised.message, str(fix or 'Correct it'))


def _lines(finding: Finding) -> Iterator[str]:
    yield f'{finding.severity:<8} {finding.option} = {finding.value}'
    indent = ' ' * 9
    for text in (finding.why, finding.instead):
        sentence = f'{text.rstrip("?.!")}.'
        yield from textwrap.wrap(sentence, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    yield ''
