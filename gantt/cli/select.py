# SPDX-License-Identifier: Apache-2.0
"""``gantt select`` and ``gantt request``: place consumers, and what became of a request."""

import argparse
import uuid
from collections import Counter
from typing import Any

from gantt.cli import base, choosing, parsing, spec, text
from gantt.cli.claims import columns_of
from gantt.cli.endpoint import Exit, Failure, OutcomeUnknown
from gantt.cli.text import TextColumn


class Select(base.Base):
    """Place consumers and claim their places.

    Exit codes: 0 placed, 2 no valid host or pool, 3 gave up after conflicts. json and yaml have
    the whole answer; the other forms, and -c, a row for each consumer.
    """

    formats = ('text', 'json', 'yaml', 'csv', 'value', 'shell', 'table')

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the spec, and the options of the request."""
        spec.add_arguments(parser)
        parser.add_argument(
            '--count',
            type=parsing.whole_number(1, 1000),
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
            type=parsing.whole_number(0, 20),
            help='further hosts to name for each (default: 2)',
        )
        parser.add_argument(
            '--budget',
            type=parsing.whole_number(1, 600),
            metavar='SECONDS',
            help='give up after so long (default: 30)',
        )
        parser.add_argument(
            '--lease',
            type=parsing.whole_number(5, 86_400),
            metavar='SECONDS',
            help='keep the unconfirmed claims so long',
        )
        parser.add_argument('--dry-run', action='store_true', help='claim nothing, only say where')

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """POST the request and print the places."""
        # Before anything is claimed, as a column may not be there.
        fields = choosing.columns_of(parsed_args.columns, _FACT_NAMES)
        body = _request_body(parsed_args)
        if not body.get('dry_run'):
            request_id = body['request_id']
            self.changes_made = [f'it may have been placed; see: gantt request show {request_id}']
        try:
            placement = self.endpoint.post('/v1/requests', body, timeout=_budget_seconds(body) + 15)
        except OutcomeUnknown as e:
            e.notes.extend(self.changes_made)
            raise
        if parsed_args.columns or parsed_args.form not in ('text', 'json', 'yaml'):
            return self.show_rows(parsed_args, _placement_facts(placement['answer']), fields)
        lines = _placement_lines(placement, self.width, parsed_args.dry_run, body['spec'])
        return self.show(parsed_args, placement, lines)


def _budget_seconds(body: dict[str, Any]) -> float:
    """Return the seconds of the budget; an invalid one is left for the server to refuse."""
    budget_ms = body.get('budget_ms')
    return budget_ms / 1000 if isinstance(budget_ms, int) and 0 < budget_ms <= 600_000 else 30.0


def _request_body(args: argparse.Namespace) -> dict[str, Any]:
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


#: Facts of a consumer's place for scripts: of the answer's chosen host, and of the answer.
_FACT_NAMES = (
    *('consumer', 'host', 'node', 'claim_id', 'zone', 'child', 'lease_seconds', 'resources'),
    *('allocations', 'uuid', 'cell', 'alternates', 'request_id', 'decision_id'),
)


def _placement_facts(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the facts of each consumer's place."""
    of_all = {name: answer[name] for name in ('request_id', 'decision_id')}
    return [
        {
            **places[0],
            'alternates': [_host_or_zone(alternate) for alternate in places[1:]],
            **of_all,
        }
        for places in answer['selections']
        if places
    ]


def _placement_lines(
    placement: dict[str, Any], width: int, dry_run: bool, spec: dict[str, Any]
) -> list[str]:
    answer = placement['answer']
    rows = [
        {'chosen': places[0], 'others': places[1:]} for places in answer['selections'] if places
    ]
    verb, kind = 'would place' if dry_run else 'placed', spec.get('kind') or 'host'
    lines = [f'{verb} {len(rows)} {_places_text(rows, kind)}', '']
    columns = [
        column._replace(title=kind.upper()) if column is _HOST_COLUMN else column
        for column in (_DRY_RUN_COLUMNS if dry_run else _COLUMNS)
    ]
    lines.extend(
        text.table(
            (*columns, *((_GIVEN_COLUMN,) if spec.get('max_resources') else ())), rows, width
        )
    )
    lines.extend(f'given up: {rule}' for rule in answer.get('given_up', ()))
    lines.append('')
    if dry_run:
        lines.append('dry run: nothing is claimed')
    else:
        lines.append(f'request {answer["request_id"]}')
        lines.append(f'why: gantt explain {answer["decision_id"]}')
    return lines


def _places_text(rows: list[dict[str, Any]], kind: str) -> str:
    """Return the number of local hosts, and the child zones, whose hosts are not known here."""
    zones = sorted({row['chosen']['child'] for row in rows if row['chosen'].get('child')})
    hosts = {row['chosen']['host'] for row in rows if not row['chosen'].get('child')}
    parts = [f'on {text.counted_noun(len(hosts), kind)}'] if hosts or not zones else []
    return ' and '.join([*parts, *(f'in zone {name}' for name in zones)])


def _host_or_zone(chosen: dict[str, Any]) -> str:
    """Return the host of a place, or its child zone, where only that knows the host."""
    return f'in zone {chosen["child"]}' if chosen.get('child') else str(chosen['host'])


def _alternates_text(others: list[dict[str, Any]]) -> str:
    """Return the hosts of alternates, and their number in each child zone."""
    hosts = [_host_or_zone(alternate) for alternate in others if not alternate.get('child')]
    below = Counter(_host_or_zone(alternate) for alternate in others if alternate.get('child'))
    return ', '.join([*hosts, *(f'{count} {where}' for where, count in below.items())]) or '-'


_HOST_COLUMN = TextColumn('HOST', lambda r: _host_or_zone(r['chosen']), min_width=16)
_COLUMNS = (
    TextColumn('CLAIM', lambda r: text.short_id(r['chosen']['claim_id'])),
    TextColumn('CONSUMER', lambda r: text.short_id(r['chosen']['consumer'])),
    _HOST_COLUMN,
    TextColumn('ZONE', lambda r: r['chosen']['zone'] or '-', min_width=6),
    TextColumn(
        'LEASE',
        lambda r: (
            text.age_text(r['chosen']['lease_seconds']) if r['chosen']['lease_seconds'] else '-'
        ),
        align_right=True,
    ),
    TextColumn('ALTERNATES', lambda r: _alternates_text(r['others']), min_width=12),
)
_GIVEN_COLUMN = TextColumn(
    'GIVEN', lambda r: text.short_needs_text(r['chosen']['resources']), min_width=14
)
_DRY_RUN_COLUMNS = tuple(column for column in _COLUMNS if column.title not in ('CLAIM', 'LEASE'))


class RequestShow(base.Show):
    """Show a request: its state and its claims."""

    arguments = (base.arg('request', help='its id, or a unique prefix of it'),)

    path = '/v1/requests/{request}'

    def lines(self, request: dict[str, Any]) -> list[str]:
        lines = [f'request {request["request_id"]} is {request["state"]}']
        if request['claims']:
            lines += ['', *text.table(columns_of(request['claims']), request['claims'], self.width)]
        else:
            lines.append('it has no claims')
        answer = request['answer']
        if answer and answer['decision_id']:
            lines += ['', f'why: gantt explain {answer["decision_id"]}']
        return lines


class _ConsumersWrite(base.Write):
    """A change to the claims of a request on pools."""

    arguments: tuple[Any, ...] = (
        base.arg('request', help='its id'),
        base.arg(
            '--consumer',
            action='append',
            default=[],
            metavar='UUID',
            help='whose claims are meant (default: all of the request)',
        ),
    )

    def body(self, args: argparse.Namespace) -> dict[str, Any]:
        return {'consumers': args.consumer}


class RequestConfirm(_ConsumersWrite):
    """Say that what a request has of pools is in use: it stays until it is released."""

    path = '/v1/requests/{request}/confirmation'


class RequestRelease(_ConsumersWrite):
    """Say that what a request has of pools is used no more: its claims end."""

    arguments = (*_ConsumersWrite.arguments, base.arg('--reason', default='', help='why'))
    method = 'POST'
    path = '/v1/requests/{request}/release'

    def body(self, args: argparse.Namespace) -> dict[str, Any]:
        return {**super().body(args), 'reason': args.reason}


class RequestCancel(base.Write):
    """Take a request back: its reserved claims are released, it stays cancelled."""

    arguments = (
        base.arg('request', help='its id'),
        base.arg('--reason', default='', help='why'),
    )

    method = 'DELETE'
    path = '/v1/requests/{request}'

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        return {'reason': args.reason or None}
