# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage shadow report``: what shadow mode has found."""

import datetime
from typing import Any

from gantt.cmd import console
from gantt.cmd.arguments import whole
from gantt.core.records.shadow import AGREE, DIFFER, WORDS, Compared, ShadowVerdict
from gantt.db.stores import store

ROWS = 20
ROWS_MOST = 10_000
#: Characters of a consumer's id in a line.
_ID = 8


def report(conf: Any) -> int:
    """How often Nova's scheduler and this one agree, and where not, why."""
    connected = store.connect(conf)
    wanted = [ShadowVerdict(name) for name in conf.command.verdict or [one.value for one in DIFFER]]
    counts = connected.count_shadows()
    found = connected.shadows(wanted, conf.command.limit)
    body = {
        'counts': {one.value: counts.get(one, 0) for one in ShadowVerdict},
        'agreement': share(counts),
        'comparisons': found,
    }
    console.show(conf, body, [*_summary(counts), *_lines(found)])
    return 0


def share(counts: dict[ShadowVerdict, int]) -> float | None:
    """The share of equally good choices, among the requests that both sides ended."""
    agreed = sum(counts.get(one, 0) for one in AGREE)
    differed = sum(counts.get(one, 0) for one in DIFFER)
    return agreed / (agreed + differed) if agreed + differed else None


def _summary(counts: dict[ShadowVerdict, int]) -> list[str]:
    found = share(counts)
    total = sum(counts.values())
    same, ties = counts.get(ShadowVerdict.SAME, 0), counts.get(ShadowVerdict.TIE, 0)
    differ = sum(counts.get(one, 0) for one in DIFFER)
    lines = [
        f'{total} instances compared'
        + (
            ''
            if found is None
            else (
                f': {same} on the same host, {ties} on another that is as good, {differ} differ; '
                f'{found:.1%} agree'
            )
        )
    ]
    lines += [
        f'  {one.value:<12} {counts[one]:>7}  {WORDS[one]}'
        for one in ShadowVerdict
        if counts.get(one)
    ]
    return lines


def _lines(found: list[Compared]) -> list[str]:
    if not found:
        return []
    lines = ['', f'the newest {len(found)}; gantt explain REQUEST says more', '']
    for one in found:
        at = datetime.datetime.fromtimestamp(one.created_at, datetime.UTC)
        chosen = f'{one.ours or "no host"} here, {one.theirs or "no host"} by Nova'
        lines.append(
            f'{at:%Y-%m-%d %H:%M:%S}  {one.purpose} of {one.consumer[:_ID]}: {chosen}; '
            f'{WORDS[one.verdict]}'
        )
        if one.why:
            lines.append(f'    {one.why}')
        lines.append(f'    request {one.request_id}')
    return lines


def add_commands(add: Any, group: Any) -> None:
    """The commands, to ``gantt-manage``."""
    shadow = group('shadow', 'Shadow mode: what Nova chose, beside what is decided here.')
    shown = add(shadow, 'report', report, json_too=True)
    shown.add_argument(
        '--limit',
        type=whole(ROWS_MOST),
        default=ROWS,
        metavar='N',
        help=f'comparisons to show, at most ({ROWS})',
    )
    shown.add_argument(
        '--verdict',
        action='append',
        choices=[one.value for one in ShadowVerdict],
        help='only these; may be given several times (those where the two differ)',
    )
