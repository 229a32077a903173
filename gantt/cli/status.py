# SPDX-License-Identifier: Apache-2.0
"""``gantt status``: the service at a glance."""

import argparse
from collections.abc import Callable
from typing import Any

from gantt.cli import base, text
from gantt.cli.endpoint import Failure
from gantt.cli.text import TextColumn

_WORDS = {'over_committed': 'over-committed'}


class Status(base.Base):
    """Show the service at a glance: hosts, usage, and what was refused lately."""

    may_watch = True

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch and print."""
        status = self.endpoint.get('/v1/status')
        problems = [
            {'name': f'host {name}', 'detail': why} for name, why in status['unreadable'].items()
        ]
        problems += self._problems()
        lines = _lines(status, self.width)
        if problems:
            lines += ['', 'Not well']
        for problem in problems:
            lines += text.wrap(f'  {problem["name"]}: {problem["detail"]}', self.width, ' ' * 4)
        return self.show(parsed_args, status | {'problems': problems}, lines)

    def _problems(self) -> list[dict[str, Any]]:
        """Return failed health checks and alarms of services."""
        return [
            *(
                {'name': check['name'], 'detail': check['detail']}
                for check in self._seen(self.endpoint.health)
                if not check['ok']
            ),
            *(
                {'name': service['name'], 'detail': service['alarm']}
                for service in self._seen(lambda: self.endpoint.get('/v1/services')['services'])
                if service['alarm']
            ),
        ]

    def _seen(self, fetch: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the fetched entries; none where the user may not read them."""
        try:
            return fetch()
        except Failure:
            return []


def _lines(status: dict[str, Any], width: int) -> list[str]:
    hosts = (
        ', '.join(
            f'{number} {_WORDS.get(name, name)}'
            for name, number in status['hosts'].items()
            if number
        )
        or 'none'
    )
    lines = [f'Site      {status["site"]}'] if status['site'] else []
    lines += [
        f'Hosts     {status["hosts_total"]}: {hosts}',
        f'Claims    {status["claims"]} live{_below(status)}',
        f'Table     {text.age(status["table_age_seconds"])} old',
        f'Version   {status["version"]}',
    ]
    lines += _configurations(status['configurations'], width)
    if status['usage']:
        up = text.count(status['hosts']['up'], 'host')
        lines += ['', f'Usage of {up} up', *text.table(_USAGE, status['usage'], width)]
    seconds = status['window_seconds']
    window = 'hour' if seconds == 3600 else text.age(seconds)
    outcomes = ', '.join(
        f'{number} {name.replace("_", " ")}' for name, number in status['outcomes'].items()
    )
    lines += ['', f'Not placed in the last {window}: {outcomes or "none"}']
    for refusal in status['refusals']:
        lines += _refusal(refusal, width)
    if status['refusals_truncated']:
        lines.append('  there were more; the counts are lower bounds')
    return lines


def _below(status: dict[str, Any]) -> str:
    count = status.get('child_claims')
    return f', {count} in zones below' if count else ''


def _configurations(found: list[dict[str, Any]], width: int) -> list[str]:
    """Return lines about differing configurations; none where all are the same."""
    if all(entry['is_here'] for entry in found):
        return []
    lines = ['', 'Processes run different filters, weighers or options of theirs']
    for entry in found:
        note = ', as this API does' if entry['is_here'] else ''
        last = text.age(entry['last_age_seconds'])
        lines += text.wrap(
            f'  {entry["digest"]}: decided with {last} ago by {", ".join(entry["workers"])}{note}',
            width,
            ' ' * 4,
        )
    if not any(entry['is_here'] for entry in found):
        lines.append('  this API explains, and decides dry runs, with others')
    lines += text.wrap(
        '  SIGHUP or start again the schedulers that are behind, and start gantt-api again; the '
        'log of a scheduler says what it refused',
        width,
        '  ',
    )
    return lines


def _refusal(refusal: dict[str, Any], width: int) -> list[str]:
    times = f'{refusal["count"]} × ' if refusal['count'] > 1 else ''
    head = f'  {times}{refusal["shape"]}'
    tail = f'last {text.age(refusal["last_age_seconds"])} ago: gantt explain ' + text.short_id(
        refusal['decision_id']
    )
    return [
        text.cut(head, width),
        *text.wrap(f'      {refusal["reason"]}', width, ' ' * 6),
        f'      {tail}',
    ]


def _used(row: dict[str, Any]) -> str:
    return text.percent(row['claimed'] + row['foreign'], row['cap'])


_USAGE = (
    TextColumn('CLASS', text.key('resource_class'), least=12),
    TextColumn('CAPACITY', lambda r: str(r['cap']), right=True),
    TextColumn('CLAIMED', lambda r: str(r['claimed']), right=True),
    TextColumn('FOREIGN', lambda r: str(r['foreign']), right=True),
    TextColumn('FREE', lambda r: str(r['free']), right=True),
    TextColumn('USED', _used, right=True),
    TextColumn('UNIT', text.key('unit')),
)
