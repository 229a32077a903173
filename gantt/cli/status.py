# SPDX-License-Identifier: Apache-2.0
"""``gantt status``, ``gantt site`` and ``gantt service list``: the service at a glance."""

import argparse
import collections
from collections.abc import Callable, Iterator
from typing import Any

from gantt.cli import base, text
from gantt.cli.endpoint import Failure
from gantt.cli.text import TextColumn
from gantt.version import version_string

_CONDITION_TEXTS = {'over_committed': 'over-committed'}


class Status(base.Base):
    """Show the service at a glance: hosts, usage, and what was refused lately."""

    may_watch = True

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch and print."""
        status = self.endpoint.get('/v1/status')
        problems = [
            {'name': f'host {name}', 'detail': why} for name, why in status['unreadable'].items()
        ]
        services = self._fetch_if_allowed(lambda: self.endpoint.get('/v1/services')['services'])
        problems += self._problems(services)
        memory = [
            {'name': service['name'], 'kind': service['kind'], **service['memory']}
            for service in services
            if service.get('memory') and not service['is_silent']
        ]
        lines = _status_lines(status, self.width)
        if memory:
            lines += ['', 'Memory', *text.table(_MEMORY_COLUMNS, memory, self.width)]
        if problems:
            lines += ['', 'Not well']
        for problem in problems:
            lines += text.wrap(f'  {problem["name"]}: {problem["detail"]}', self.width, ' ' * 4)
        return self.show(parsed_args, status | {'problems': problems, 'memory': memory}, lines)

    def _problems(self, services: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return failed health checks and alarms of services."""
        return [
            *(
                {'name': check['name'], 'detail': check['detail']}
                for check in self._fetch_if_allowed(self.endpoint.health)
                if not check['ok']
            ),
            *(
                {'name': service['name'], 'detail': service['alarm']}
                for service in services
                if service['alarm']
            ),
        ]

    def _fetch_if_allowed(self, fetch: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the fetched entries; none where the user may not read them."""
        try:
            return fetch()
        except Failure:
            return []


def _status_lines(status: dict[str, Any], width: int) -> list[str]:
    hosts = (
        ', '.join(
            f'{number} {_CONDITION_TEXTS.get(name, name)}'
            for name, number in status['hosts'].items()
            if number
        )
        or 'none'
    )
    lines = [f'Site      {status["site"]}'] if status['site'] else []
    lines += [
        f'Hosts     {status["hosts_total"]}: {hosts}',
        f'Claims    {status["claims"]} live{_child_claims_text(status)}',
        f'Table     {text.age_text(status["table_age_seconds"])} old',
        f'Version   {status["version"]}',
    ]
    lines += _configurations(status['configurations'], width)
    if status['usage']:
        up = text.counted_noun(status['hosts']['up'], 'host')
        lines += ['', f'Usage of {up} up', *text.table(_USAGE_COLUMNS, status['usage'], width)]
    seconds = status['window_seconds']
    window = 'hour' if seconds == 3600 else text.age_text(seconds)
    outcomes = ', '.join(f'{number} {name}' for name, number in _outcomes(status) if number)
    lines += ['', f'Not placed in the last {window}: {outcomes or "none"}']
    for refusal in status['refusals']:
        lines += _refusal_line(refusal, width)
    if status['refusals_truncated']:
        lines.append('  there were more; the counts are lower bounds')
    return lines


def _outcomes(status: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield (outcome in words, number of requests), outcomes of requests for pools separately."""
    for name, number in status['outcomes'].items():
        pools = status['no_valid_pool'] if name == 'no_valid_host' else 0
        yield text.outcome_text(name, 'host'), number - pools
        yield text.outcome_text(name, 'pool'), pools


def _child_claims_text(status: dict[str, Any]) -> str:
    count = status.get('child_claims')
    return f', {count} in zones below' if count else ''


def _configurations(entries: list[dict[str, Any]], width: int) -> list[str]:
    """Return lines about differing configurations; none where all are the same."""
    if all(entry['is_here'] for entry in entries):
        return []
    lines = ['', 'Processes run different filters, weighers or options of theirs']
    for entry in entries:
        note = ', as this API does' if entry['is_here'] else ''
        last = text.age_text(entry['last_age_seconds'])
        lines += text.wrap(
            f'  {entry["digest"]}: decided with {last} ago by {", ".join(entry["workers"])}{note}',
            width,
            ' ' * 4,
        )
    if not any(entry['is_here'] for entry in entries):
        lines.append('  this API explains, and decides dry runs, with others')
    lines += text.wrap(
        '  SIGHUP or start again the schedulers that are behind, and start gantt-api again; the '
        'log of a scheduler says what it refused',
        width,
        '  ',
    )
    return lines


def _refusal_line(refusal: dict[str, Any], width: int) -> list[str]:
    times = f'{refusal["count"]} × ' if refusal['count'] > 1 else ''
    head = f'  {times}{refusal["shape"]}'
    tail = f'last {text.age_text(refusal["last_age_seconds"])} ago: gantt explain ' + text.short_id(
        refusal['decision_id']
    )
    return [
        text.cut_text(head, width),
        *text.wrap(f'      {refusal["reason"]}', width, ' ' * 6),
        f'      {tail}',
    ]


def _used_text(row: dict[str, Any]) -> str:
    return text.percent(row['claimed'] + row['foreign'], row['cap'])


_USAGE_COLUMNS = (
    TextColumn('CLASS', text.value_of_key('resource_class'), min_width=12),
    TextColumn('CAPACITY', lambda r: str(r['cap']), align_right=True),
    TextColumn('CLAIMED', lambda r: str(r['claimed']), align_right=True),
    TextColumn('FOREIGN', lambda r: str(r['foreign']), align_right=True),
    TextColumn('FREE', lambda r: str(r['free']), align_right=True),
    TextColumn('USED', _used_text, align_right=True),
    TextColumn('UNIT', text.value_of_key('unit')),
)


_MEMORY_COLUMNS = (
    TextColumn('KIND', text.value_of_key('kind')),
    TextColumn('NAME', text.value_of_key('name'), min_width=16),
    TextColumn('RESIDENT', lambda r: _bytes_text(r['resident_bytes']), align_right=True),
    TextColumn('HOSTS', lambda r: str(r['hosts']), align_right=True),
    TextColumn('PER HOST', lambda r: _bytes_text(r['bytes_per_host']), align_right=True),
    TextColumn('CLAIMS', lambda r: str(r['claims']), align_right=True),
    TextColumn('PER CLAIM', lambda r: _bytes_text(r['bytes_per_claim']), align_right=True),
)


def _bytes_text(size: int) -> str:
    """Return an amount of memory: ``322 B``, ``3.1 kB``, ``430 MB``; ``-`` of none."""
    if size < 1000:
        return f'{size} B' if size else '-'
    return f'{size / 1e3:.1f} kB' if size < 1e6 else f'{size / 1e6:.0f} MB'


def _age_text(name: str) -> Any:
    return lambda row: '-' if row[name] is None else text.age_text(row[name])


class ServiceList(base.Lister):
    """List the processes of the site: schedulers, APIs and sources, and whether they agree."""

    path = '/v1/services'
    list_key = 'services'
    empty_message = 'no process has noted itself'
    columns = (
        TextColumn('KIND', text.value_of_key('kind')),
        TextColumn('NAME', text.value_of_key('name'), min_width=16),
        TextColumn('STATE', lambda r: 'silent' if r['is_silent'] else 'up'),
        TextColumn('SEEN', _age_text('seen_seconds'), align_right=True, sort_key='seen_seconds'),
        TextColumn('UP', _age_text('up_seconds'), align_right=True, sort_key='up_seconds'),
        TextColumn('VERSION', text.value_of_key('version'), min_width=8),
        TextColumn(
            'CONFIG', lambda r: (r['configuration'][:8] or '-') + ('!' if r['differs'] else '')
        ),
        TextColumn(
            'READ', _age_text('configured_seconds'), align_right=True, sort_key='configured_seconds'
        ),
    )

    def fetch(
        self, args: argparse.Namespace, most: int
    ) -> tuple[list[dict[str, Any]], dict[str, Any], bool]:
        """Fetch all at once: they are few."""
        answer = self.endpoint.get(self.path)
        rows = answer[self.list_key]
        return rows[:most], answer, len(rows) > most

    def note(self, row: dict[str, Any]) -> str:
        """Return the alarm of a process, and the problem of its configuration."""
        refused = f'its configuration was not taken over: {row["problem"]}'
        return '; '.join(filter(None, [row['alarm'], refused if row['problem'] else '']))

    def footer(self, rows: list[dict[str, Any]], last: dict[str, Any], more: bool) -> str:
        """Return differences between the processes."""
        further = super().footer(rows, last, more)
        return '\n'.join(
            [*_difference_lines(last[self.list_key], self.width), *filter(None, [further])]
        )


def _difference_lines(rows: list[dict[str, Any]], width: int) -> list[str]:
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
