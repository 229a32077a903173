# SPDX-License-Identifier: Apache-2.0
"""``gantt quota``: list, show, set, unset."""

import argparse
from typing import Any

from gantt.cli import base, text
from gantt.cli.endpoint import Exit, Failure
from gantt.cli.text import TextColumn

#: The name for all projects without limits of their own.
DEFAULT = 'default'
UNLIMITED = -1
_MOST = 10**15

_COLUMNS = (
    TextColumn('LIMIT', text.key('name'), least=16),
    TextColumn('MOST', lambda r: _shown(r['limit']), right=True),
    TextColumn('USED', lambda r: '-' if r['used'] is None else str(r['used']), right=True),
    TextColumn('FROM', text.key('source')),
)


def _shown(limit: int) -> str:
    return 'unlimited' if limit == UNLIMITED else str(limit)


def _limit(value: str) -> tuple[str, int]:
    """Parse an argument ``NAME=NUMBER`` or ``NAME=unlimited``."""
    name, equals, number = value.partition('=')
    limit = UNLIMITED if number in ('unlimited', '-1') else None
    if limit is None and number.isdecimal() and len(number) < 20:
        limit = int(number)
    if not (equals and name) or limit is None or limit > _MOST:
        raise argparse.ArgumentTypeError(
            f'expected NAME=NUMBER with a whole number up to {_MOST}, or NAME=unlimited, such as '
            f'live_claims=50 or class:VCPU=200; got {value!r}'
        )
    return name, limit


class QuotaList(base.Lister):
    """List the limits that are set; "default" are those of all other projects."""

    path = '/v1/quotas'
    member = 'quotas'
    nothing = 'no limit is set; the options of [quotas] hold, see "gantt quota show default"'
    columns = (
        TextColumn('PROJECT', text.key('project_id'), least=16),
        TextColumn(
            'LIMITS',
            lambda r: ', '.join(f'{k}={_shown(v)}' for k, v in sorted(r['limits'].items())),
            least=20,
        ),
    )


class QuotaShow(base.Show):
    """Show the limits of a project in force, where each is from, and what is used."""

    takes = (
        base.arg('project', nargs='?', help='its id, or "default" (default: the own project)'),
    )

    path = '/v1/quotas/{project}'

    def route(self, args: argparse.Namespace) -> str:
        return '/v1/limits' if args.project is None else super().route(args)

    def lines(self, found: dict[str, Any]) -> list[str]:
        table = text.table(_COLUMNS, found['limits'], self.width)
        return [f'project {found["project_id"]}', '', *table]


class QuotaSet(base.Write):
    """Set limits of a project; those that are not named stay as they are."""

    takes = (
        base.arg('project', help='its id, or "default": all without limits of their own'),
        base.arg(
            'limits',
            nargs='+',
            type=_limit,
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

    takes = (
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
