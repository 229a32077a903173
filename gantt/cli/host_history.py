# SPDX-License-Identifier: Apache-2.0
"""``gantt host history``: the stored events of a host."""

import argparse
from typing import Any

from gantt.cli import base, text
from gantt.cli.text import TextColumn


class HostHistory(base.Show):
    """Show what happened to a host lately: registrations, operators, facts, claims."""

    takes = (
        base.arg('host'),
        base.arg(
            '--limit',
            type=base.whole_number(1, 1000),
            default=50,
            help='print at most so many lines (default: 50, at most 1000)',
        ),
    )

    path = '/v1/hosts/{host}/history'

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        return {'limit': args.limit}

    def lines(self, found: dict[str, Any]) -> list[str]:
        entries = found['entries']
        lines = (
            text.table(_COLUMNS, entries, self.width) if entries else ['nothing is stored of it']
        )
        if found['truncated']:
            lines.append(f'there is more; see --limit ({len(entries)} shown)')
        return lines


_COLUMNS = (
    TextColumn('AGE', lambda r: text.age(r['age_seconds']), right=True),
    TextColumn('WHAT', text.key('kind')),
    TextColumn('BY', text.key('actor'), least=6),
    TextColumn('DETAIL', text.key('message'), least=20),
)
