# SPDX-License-Identifier: Apache-2.0
"""``gantt quota`` and ``gantt usage``: limits of projects, and what their live claims take."""

import argparse
from typing import Any

from gantt.cli import base, text
from gantt.cli.endpoint import Exit, Failure
from gantt.cli.text import TextColumn

#: The name for all projects without limits of their own.
DEFAULT_PROJECT = 'default'
UNLIMITED = -1
_LIMIT_MAX = 10**15

_LIMIT_COLUMNS = (
    TextColumn('LIMIT', text.value_of_key('name'), min_width=16),
    TextColumn('MOST', lambda r: _limit_text(r['limit']), align_right=True),
    TextColumn('USED', lambda r: '-' if r['used'] is None else str(r['used']), align_right=True),
    TextColumn('FROM', text.value_of_key('source')),
)


def _limit_text(limit: int) -> str:
    return 'unlimited' if limit == UNLIMITED else str(limit)


def _parse_limit(value: str) -> tuple[str, int]:
    """Parse an argument ``NAME=NUMBER`` or ``NAME=unlimited``."""
    name, equals, number = value.partition('=')
    limit = UNLIMITED if number in ('unlimited', '-1') else None
    if limit is None and number.isdecimal() and len(number) < 20:
        limit = int(number)
    if not (equals and name) or limit is None or limit > _LIMIT_MAX:
        raise argparse.ArgumentTypeError(
            f'expected NAME=NUMBER with a whole number up to {_LIMIT_MAX}, or NAME=unlimited, '
            f'such as live_claims=50 or class:VCPU=200; got {value!r}'
        )
    return name, limit


class QuotaList(base.Lister):
    """List the limits that are set; "default" are those of all other projects."""

    path = '/v1/quotas'
    list_key = 'quotas'
    empty_message = 'no limit is set; the options of [quotas] hold, see "gantt quota show default"'
    columns = (
        TextColumn('PROJECT', text.value_of_key('project_id'), min_width=16),
        TextColumn(
            'LIMITS',
            lambda r: ', '.join(f'{k}={_limit_text(v)}' for k, v in sorted(r['limits'].items())),
            min_width=20,
        ),
    )


class QuotaShow(base.Show):
    """Show the limits of a project in force, where each is from, and what is used."""

    arguments = (
        base.arg('project', nargs='?', help='its id, or "default" (default: the own project)'),
    )

    path = '/v1/quotas/{project}'

    def route(self, args: argparse.Namespace) -> str:
        return '/v1/limits' if args.project is None else super().route(args)

    def lines(self, answer: dict[str, Any]) -> list[str]:
        table = text.table(_LIMIT_COLUMNS, answer['limits'], self.width)
        return [f'project {answer["project_id"]}', '', *table]


class QuotaSet(base.Write):
    """Set limits of a project; those that are not named stay as they are."""

    arguments = (
        base.arg('project', help='its id, or "default": all without limits of their own'),
        base.arg(
            'limits',
            nargs='+',
            type=_parse_limit,
            metavar='NAME=NUMBER',
            help='claims_in_flight, live_claims, server_groups, requests_per_minute, or class: and '
            'a resource class; a number, or unlimited',
        ),
    )

    path = '/v1/quotas/{project}'

    def body(self, args: argparse.Namespace) -> Any:
        return {'limits': dict(args.limits)}


class QuotaUnset(base.Write):
    """Take limits of a project away; the defaults hold again."""

    arguments = (
        base.arg('project', help='its id, or "default"'),
        base.arg('names', nargs='*', metavar='NAME', help='which limits'),
        base.arg('--all', action='store_true', help='all limits of the project'),
    )

    path = '/v1/quotas/{project}'

    def change(self, args: argparse.Namespace) -> dict[str, Any]:
        """Send PUT with nulls, or DELETE."""
        if bool(args.names) == args.all:
            raise Failure('expected the names of limits, or --all', Exit.USAGE)
        self.method = 'DELETE' if args.all else 'PUT'
        return super().change(args)

    def body(self, args: argparse.Namespace) -> Any:
        return None if args.all else {'limits': dict.fromkeys(args.names)}


def _other_amounts_text(row: dict[str, Any]) -> str:
    rest = {name: amount for name, amount in row['amounts'].items() if name not in _SHOWN_CLASSES}
    return ', '.join(f'{amount} {name}' for name, amount in sorted(rest.items())) or '-'


def _amount_text(name: str) -> Any:
    def show(row: dict[str, Any]) -> str:
        amount = row['amounts'].get(name, 0)
        return str(amount) if name == 'VCPU' else text.amount(name, amount)

    return show


_SHOWN_CLASSES = ('VCPU', 'MEMORY_MB', 'DISK_GB')
COLUMNS = (
    TextColumn('PROJECT', lambda r: r['project_id'] or '(none)', min_width=12),
    TextColumn('GUESTS', lambda r: str(r['consumers']), align_right=True),
    TextColumn('CLAIMS', lambda r: str(r['claims']), align_right=True),
    TextColumn('IN FLIGHT', lambda r: str(r['claims_in_flight']), align_right=True),
    *(
        TextColumn(text.SHORT_CLASS_NAMES.get(name, name), _amount_text(name), align_right=True)
        for name in _SHOWN_CLASSES
    ),
    TextColumn('OTHERS', _other_amounts_text, min_width=8),
)


class UsageList(base.Lister):
    """List what the live claims of each project take; a member sees its own project."""

    path = '/v1/usages'
    list_key = 'usages'
    empty_message = 'there is no live claim'
    columns = COLUMNS


class UsageShow(base.Show):
    """Show what the live claims of one project take."""

    arguments = (base.arg('project', help='its id'),)

    path = '/v1/usages/{project}'

    def lines(self, answer: dict[str, Any]) -> list[str]:
        return [
            f'project {answer["project_id"]}: '
            f'{text.counted_noun(answer["consumers"], "guest")} with '
            f'{text.counted_noun(answer["claims"], "live claim")}, '
            f'{answer["claims_in_flight"]} of them not confirmed yet',
            *(
                f'  {name:<20} {text.amount(name, amount)}'
                for name, amount in sorted(answer['amounts'].items())
            ),
        ]
