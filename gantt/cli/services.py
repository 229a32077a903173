# SPDX-License-Identifier: Apache-2.0
"""``gantt site`` and ``gantt service list``: the site, and its processes."""

import argparse
import collections
from typing import Any

from gantt.cli import base, text
from gantt.cli.endpoint import Failure
from gantt.cli.text import TextColumn
from gantt.version import version_string


def _age(name: str) -> Any:
    return lambda row: '-' if row[name] is None else text.age(row[name])


class ServiceList(base.Lister):
    """List the processes of the site: schedulers, APIs and sources, and whether they agree."""

    path = '/v1/services'
    member = 'services'
    nothing = 'no process has noted itself'
    columns = (
        TextColumn('KIND', text.key('kind')),
        TextColumn('NAME', text.key('name'), least=16),
        TextColumn('STATE', lambda r: 'silent' if r['is_silent'] else 'up'),
        TextColumn('SEEN', _age('seen_seconds'), right=True, by='seen_seconds'),
        TextColumn('UP', _age('up_seconds'), right=True, by='up_seconds'),
        TextColumn('VERSION', text.key('version'), least=8),
        TextColumn(
            'CONFIG', lambda r: (r['configuration'][:8] or '-') + ('!' if r['differs'] else '')
        ),
        TextColumn('READ', _age('configured_seconds'), right=True, by='configured_seconds'),
    )

    def fetch(
        self, args: argparse.Namespace, most: int
    ) -> tuple[list[dict[str, Any]], dict[str, Any], bool]:
        """Fetch all at once: they are few."""
        answer = self.endpoint.get(self.path)
        rows = answer[self.member]
        return rows[:most], answer, len(rows) > most

    def note(self, row: dict[str, Any]) -> str:
        """Return the alarm of a process, and the problem of its configuration."""
        refused = f'its configuration was not taken over: {row["problem"]}'
        return '; '.join(filter(None, [row['alarm'], refused if row['problem'] else '']))

    def footer(self, rows: list[dict[str, Any]], last: dict[str, Any], more: bool) -> str:
        """Return differences between the processes."""
        further = super().footer(rows, last, more)
        return '\n'.join([*_summary(last[self.member], self.width), *filter(None, [further])])


def _summary(rows: list[dict[str, Any]], width: int) -> list[str]:
    """Return lines about differing configurations and versions; none where all agree."""
    alive = [row for row in rows if not row['is_silent']]
    lines: list[str] = []
    for key, what, remedy in (
        (
            'configuration',
            'configurations',
            'the one that differs is marked with "!"; SIGHUP '
            'the schedulers or start them again, start gantt-api again',
        ),
        ('version', 'versions', 'finish the upgrade'),
    ):
        counts = collections.Counter(row[key] for row in alive if row[key])
        if len(counts) > 1:
            each = ', '.join(f'{value[:16]} ({count})' for value, count in counts.most_common(5))
            lines += text.wrap(f'{len(counts)} {what} run: {each}: {remedy}', width)
    return lines


class Site(base.Base):
    """Show which site is asked: its name and address, and the versions on both sides."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch and print."""
        endpoint = self.endpoint
        served = endpoint.get('/v1')
        try:
            version = endpoint.get('/v1/status')['version']
        except Failure:
            version = ''  # the user may not read it
        facts = {
            'site': served.get('site', ''),
            'url': endpoint.url,
            'version': version,
            'interface': f'{served["min_version"]} to {served["version"]}',
            'client': version_string(),
        }
        lines = [
            f'Site       {facts["site"] or "has no name: [api] site_name"}',
            f'URL        {facts["url"]}',
            f'Version    {facts["version"] or "is for operators"}',
            f'Interface  {facts["interface"]}',
            f'Client     {facts["client"]}',
        ]
        return self.show(parsed_args, facts, lines)
