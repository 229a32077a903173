# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage shadow report``: what shadow mode has found."""

import datetime
from typing import Any

from gantt import stores
from gantt.cli import parsing
from gantt.cmd import console
from gantt.core.records.shadow import (
    AGREEING_VERDICTS,
    DIFFERING_VERDICTS,
    VERDICT_TEXTS,
    ComparedChoice,
    ShadowVerdict,
)

ROWS_DEFAULT = 20
ROWS_MAX = 10_000
#: Characters of a consumer's id in a line.
_ID_LENGTH = 8


def report(conf: Any) -> int:
    """Show how often Nova's scheduler and this one agree, and the reasons where they do not."""
    connected = stores.connect(conf)
    verdicts = [
        ShadowVerdict(name)
        for name in conf.command.verdict or [verdict.value for verdict in DIFFERING_VERDICTS]
    ]
    counts = connected.shadows.count_shadows()
    comparisons = connected.shadows.list_shadows(verdicts, conf.command.limit)
    body = {
        'counts': {verdict.value: counts.get(verdict, 0) for verdict in ShadowVerdict},
        'agreement': agreement_share(counts),
        'comparisons': comparisons,
    }
    console.show(conf, body, [*_summary_lines(counts), *_comparison_lines(comparisons)])
    return 0


def agreement_share(counts: dict[ShadowVerdict, int]) -> float | None:
    """Return the share of equally good choices, among the requests that both sides ended."""
    agreed = sum(counts.get(verdict, 0) for verdict in AGREEING_VERDICTS)
    differed = sum(counts.get(verdict, 0) for verdict in DIFFERING_VERDICTS)
    return agreed / (agreed + differed) if agreed + differed else None


def _summary_lines(counts: dict[ShadowVerdict, int]) -> list[str]:
    agreed = agreement_share(counts)
    total = sum(counts.values())
    same, ties = counts.get(ShadowVerdict.SAME, 0), counts.get(ShadowVerdict.TIE, 0)
    differ = sum(counts.get(verdict, 0) for verdict in DIFFERING_VERDICTS)
    lines = [
        f'{total} instances compared'
        + (
            ''
            if agreed is None
            else (
                f': {same} on the same host, {ties} on another that is as good, {differ} differ; '
                f'{agreed:.1%} agree'
            )
        )
    ]
    lines += [
        f'  {verdict.value:<12} {counts[verdict]:>7}  {VERDICT_TEXTS[verdict]}'
        for verdict in ShadowVerdict
        if counts.get(verdict)
    ]
    return lines


def _comparison_lines(comparisons: list[ComparedChoice]) -> list[str]:
    if not comparisons:
        return []
    lines = ['', f'the newest {len(comparisons)}; gantt explain REQUEST says more', '']
    for item in comparisons:
        at = datetime.datetime.fromtimestamp(item.created_at, datetime.UTC)
        chosen = f'{item.gantt_host or "no host"} here, {item.nova_host or "no host"} by Nova'
        lines.append(
            f'{at:%Y-%m-%d %H:%M:%S}  {item.purpose} of {item.consumer[:_ID_LENGTH]}: {chosen}; '
            f'{VERDICT_TEXTS[item.verdict]}'
        )
        if item.reason:
            lines.append(f'    {item.reason}')
        lines.append(f'    request {item.request_id}')
    return lines


def add_commands(add: Any, group: Any) -> None:
    """Add the commands of ``gantt-manage shadow``."""
    shadow = group('shadow', 'Shadow mode: what Nova chose, beside what is decided here.')
    report_parser = add(shadow, 'report', report, json_too=True)
    report_parser.add_argument(
        '--limit',
        type=parsing.whole_number(1, ROWS_MAX),
        default=ROWS_DEFAULT,
        metavar='N',
        help=f'comparisons to show, at most ({ROWS_DEFAULT})',
    )
    report_parser.add_argument(
        '--verdict',
        action='append',
        choices=[verdict.value for verdict in ShadowVerdict],
        help='only these; may be given several times (those where the two differ)',
    )
