# SPDX-License-Identifier: Apache-2.0
"""``gantt select``: place consumers, claimed; or with --dry-run only show the places."""

import argparse
import uuid
from collections import Counter
from typing import Any

from gantt.cli import base, spec, text
from gantt.cli.endpoint import Exit, Failure, InDoubt
from gantt.cli.text import TextColumn


class Select(base.Base):
    """Place consumers and claim their places.

    Exit codes: 0 placed, 2 no valid host, 3 gave up after conflicts.
    """

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the spec, and the options of the request."""
        spec.arguments(parser)
        parser.add_argument(
            '--count',
            type=base.whole_number(1, 1000),
            default=None,
            help='how many consumers (default: 1)',
        )
        parser.add_argument(
            '--consumer', action='append', metavar='UUID', help='their uuids (default: new ones)'
        )
        parser.add_argument(
            '--request-id',
            metavar='UUID',
            help='repeat a request under its id: it has the effect of one',
        )
        parser.add_argument(
            '--alternates',
            type=base.whole_number(0, 20),
            help='further hosts to name for each (default: 2)',
        )
        parser.add_argument(
            '--budget',
            type=base.whole_number(1, 600),
            metavar='SECONDS',
            help='give up after so long (default: 30)',
        )
        parser.add_argument(
            '--lease',
            type=base.whole_number(5, 86_400),
            metavar='SECONDS',
            help='keep the unconfirmed claims so long',
        )
        parser.add_argument('--dry-run', action='store_true', help='claim nothing, only say where')

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """POST the request and print the places."""
        body = _body(parsed_args)
        if not body.get('dry_run'):
            request_id = body['request_id']
            self.made = [f'it may have been placed; see: gantt request show {request_id}']
        try:
            placement = self.endpoint.post('/v1/requests', body, timeout=_budget(body) + 15)
        except InDoubt as e:
            e.notes.extend(self.made)
            raise
        lines = _lines(placement, self.width, parsed_args.dry_run, body['spec'])
        return self.show(parsed_args, placement, lines)


def _budget(body: dict[str, Any]) -> float:
    """Return the seconds of the budget; an invalid one is left for the server to refuse."""
    budget_ms = body.get('budget_ms')
    return budget_ms / 1000 if isinstance(budget_ms, int) and 0 < budget_ms <= 600_000 else 30.0


def _body(args: argparse.Namespace) -> dict[str, Any]:
    body = spec.body(args)
    body['request_id'] = args.request_id or body.get('request_id') or str(uuid.uuid4())
    if args.consumer and args.count not in (None, len(args.consumer)):
        raise Failure(
            f'--count {args.count} and {len(args.consumer)} × --consumer: give one of the two',
            Exit.USAGE,
        )
    if args.consumer:
        body['consumers'] = args.consumer
    elif args.count is not None or 'consumers' not in body:
        body['consumers'] = [str(uuid.uuid4()) for _ in range(args.count or 1)]
    for name, value in (
        ('alternates', args.alternates),
        ('budget_ms', args.budget and args.budget * 1000),
        ('lease_seconds', args.lease),
        ('dry_run', args.dry_run or None),
    ):
        if value is not None:
            body[name] = value
    return body


def _lines(
    placement: dict[str, Any], width: int, dry_run: bool, wanted: dict[str, Any]
) -> list[str]:
    answer = placement['answer']
    rows = [
        {'chosen': places[0], 'others': places[1:]} for places in answer['selections'] if places
    ]
    verb, kind = 'would place' if dry_run else 'placed', wanted.get('kind') or 'host'
    lines = [f'{verb} {len(rows)} {_places(rows, kind)}', '']
    columns = [
        column._replace(title=kind.upper()) if column is _HOST else column
        for column in (_DRY if dry_run else _COLUMNS)
    ]
    lines.extend(
        text.table((*columns, *((_GIVEN,) if wanted.get('max_resources') else ())), rows, width)
    )
    lines.extend(f'given up: {rule}' for rule in answer.get('given_up', ()))
    lines.append('')
    if dry_run:
        lines.append('dry run: nothing is claimed')
    else:
        lines.append(f'request {answer["request_id"]}')
        lines.append(f'why: gantt explain {answer["decision_id"]}')
    return lines


def _places(rows: list[dict[str, Any]], kind: str) -> str:
    """Return the number of local hosts, and the child zones, whose hosts are not known here."""
    zones = sorted({row['chosen']['child'] for row in rows if row['chosen'].get('child')})
    hosts = {row['chosen']['host'] for row in rows if not row['chosen'].get('child')}
    parts = [f'on {text.count(len(hosts), kind)}'] if hosts or not zones else []
    return ' and '.join([*parts, *(f'in zone {name}' for name in zones)])


def _where(chosen: dict[str, Any]) -> str:
    """Return the host of a place, or its child zone, where only that knows the host."""
    return f'in zone {chosen["child"]}' if chosen.get('child') else str(chosen['host'])


def _alternates(others: list[dict[str, Any]]) -> str:
    """Return the hosts of alternates, and their number in each child zone."""
    hosts = [_where(alternate) for alternate in others if not alternate.get('child')]
    below = Counter(_where(alternate) for alternate in others if alternate.get('child'))
    return ', '.join([*hosts, *(f'{count} {where}' for where, count in below.items())]) or '-'


_HOST = TextColumn('HOST', lambda r: _where(r['chosen']), least=16)
_COLUMNS = (
    TextColumn('CLAIM', lambda r: text.short_id(r['chosen']['claim_id'])),
    TextColumn('CONSUMER', lambda r: text.short_id(r['chosen']['consumer'])),
    _HOST,
    TextColumn('ZONE', lambda r: r['chosen']['zone'] or '-', least=6),
    TextColumn(
        'LEASE',
        lambda r: text.age(r['chosen']['lease_seconds']) if r['chosen']['lease_seconds'] else '-',
        right=True,
    ),
    TextColumn('ALTERNATES', lambda r: _alternates(r['others']), least=12),
)
_GIVEN = TextColumn('GIVEN', lambda r: text.needs(r['chosen']['resources']), least=14)
_DRY = tuple(column for column in _COLUMNS if column.title not in ('CLAIM', 'LEASE'))
