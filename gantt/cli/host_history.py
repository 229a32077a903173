# SPDX-License-Identifier: Apache-2.0
"""``gantt host history``: what happened to a host."""

import argparse

from gantt.cli import base, text
from gantt.cli.text import Column


class HostHistory(base.Base):
    """Show what happened to a host lately: registrations, operators, facts, claims."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which host, how much."""
        parser.add_argument('host')
        parser.add_argument(
            '--limit',
            type=base.whole_number(1, 1000),
            default=50,
            help='print at most so many lines (default: 50, at most 1000)',
        )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch and print."""
        path = f'/v1/hosts/{base.path_part(parsed_args.host)}/history'
        found = self.endpoint.get(path, limit=parsed_args.limit)
        lines = ['nothing is kept of it']
        if found['entries']:
            lines = text.table(_COLUMNS, found['entries'], self.width)
        if found['truncated']:
            lines.append(f'there is more; see --limit ({len(found["entries"])} shown)')
        return self.show(parsed_args.form, found, lines)


_COLUMNS = (
    Column('AGE', lambda r: text.age(r['age_seconds']), right=True),
    Column('WHAT', text.key('kind')),
    Column('BY', text.key('by'), least=6),
    Column('DETAIL', text.key('what'), least=20),
)
