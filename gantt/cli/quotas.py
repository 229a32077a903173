# SPDX-License-Identifier: Apache-2.0
"""``gantt quota``: list, show, set, unset."""

import argparse
from typing import Any

from gantt.cli import base, text
from gantt.cli.endpoint import Exit, Failure
from gantt.cli.text import Column

#: The project that stands for all without limits of their own.
DEFAULT = 'default'
UNLIMITED = -1
_MOST = 10**15

_COLUMNS = (
    Column('LIMIT', text.key('name'), least=16),
    Column('MOST', lambda r: _shown(r['limit']), right=True),
    Column('USED', lambda r: '-' if r['used'] is None else str(r['used']), right=True),
    Column('FROM', text.key('source')),
)


def _shown(limit: int) -> str:
    return 'unlimited' if limit == UNLIMITED else str(limit)


def _limit(value: str) -> tuple[str, int]:
    """An argument type: ``NAME=NUMBER``, or ``NAME=unlimited``."""
    name, equals, number = value.partition('=')
    found = UNLIMITED if number in ('unlimited', '-1') else None
    if found is None and number.isdecimal() and len(number) < 20:
        found = int(number)
    if not (equals and name) or found is None or found > _MOST:
        raise argparse.ArgumentTypeError(
            f'expected NAME=NUMBER with a whole number up to {_MOST}, or NAME=unlimited, such as '
            f'live_claims=50 or class:VCPU=200; got {value!r}'
        )
    return name, found


class QuotaList(base.Lister):
    """List the limits that are set; "default" are those of all other projects."""

    path = '/v1/quotas'
    member = 'quotas'
    nothing = 'no limit is set; the options of [quotas] hold, see "gantt quota show default"'
    columns = (
        Column('PROJECT', text.key('project_id'), least=16),
        Column(
            'LIMITS',
            lambda r: ', '.join(f'{k}={_shown(v)}' for k, v in sorted(r['limits'].items())),
            least=20,
        ),
    )


class QuotaShow(base.Base):
    """Show the limits of a project in force, where each is from, and what is used."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Whose."""
        parser = super().get_parser(prog_name)
        parser.add_argument(
            'project', nargs='?', help='its id, or "default" (default: the own project)'
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """GET and print."""
        project = parsed_args.project
        path = '/v1/limits' if project is None else f'/v1/quotas/{base.path_part(project)}'
        found = self.endpoint.get(path)
        table = text.table(_COLUMNS, found['limits'], self.width)
        return self.show(parsed_args.form, found, [f'project {found["project_id"]}', '', *table])


class QuotaSet(base.Write):
    """Set limits of a project; those that are not named stay as they are."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Whose, and how much."""
        parser.add_argument('project', help='its id, or "default": all without limits of their own')
        parser.add_argument(
            'limits',
            nargs='+',
            type=_limit,
            metavar='NAME=NUMBER',
            help='claims_in_flight, live_claims, server_groups, requests_per_minute, or class: and '
            'a resource class; a number, or unlimited',
        )

    def change(self, args: argparse.Namespace) -> dict[str, Any]:
        """PUT them."""
        path = f'/v1/quotas/{base.path_part(args.project)}'
        return self.endpoint.put(path, {'limits': dict(args.limits)}, dry_run=args.dry_run)


class QuotaUnset(base.Write):
    """Take limits of a project away; the defaults hold again."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Whose, and which."""
        parser.add_argument('project', help='its id, or "default"')
        parser.add_argument('names', nargs='*', metavar='NAME', help='which limits')
        parser.add_argument('--all', action='store_true', help='all limits of the project')

    def change(self, args: argparse.Namespace) -> dict[str, Any]:
        """PUT nulls, or DELETE."""
        if bool(args.names) == args.all:
            raise Failure('expected the names of limits, or --all', Exit.USAGE)
        path = f'/v1/quotas/{base.path_part(args.project)}'
        if args.all:
            return self.endpoint.delete(path, dry_run=args.dry_run)
        body = {'limits': dict.fromkeys(args.names)}
        return self.endpoint.put(path, body, dry_run=args.dry_run)
