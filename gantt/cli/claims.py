# SPDX-License-Identifier: Apache-2.0
"""``gantt claim``: list, show, release."""

import argparse
from typing import Any

from gantt.cli import base, text
from gantt.cli.text import TextColumn
from gantt.core.claims.claim import LOST_STATE

STATES = ('reserved', 'confirmed', 'released', 'expired', 'refused', LOST_STATE)


def lease_text(row: dict[str, Any]) -> str:
    """Return the remaining lease of a reserved claim as text."""
    seconds_left = row['lease_seconds']
    if seconds_left is None:
        return '-'
    return text.age_text(seconds_left) if seconds_left > 0 else 'over'


def mark_text(row: dict[str, Any]) -> str:
    """Return ``*`` for an adopted claim, ``!`` for a claim that cannot be read, or both."""
    return '*' * row['adopted'] + '!' * bool(row.get('problem'))


def zone(row: dict[str, Any]) -> str:
    """Return the child zone of a claim; empty for a local one."""
    return f'zone {row["child"]}' if row.get('child') else ''


COLUMNS = (
    TextColumn('CLAIM', lambda r: text.short_id(r['id'])),
    TextColumn(
        'STATE',
        lambda r: r['state'] + mark_text(r),
    ),
    TextColumn('HOST', lambda r: r['host'] or zone(r), min_width=12),
    TextColumn('CONSUMER', lambda r: text.short_id(r['consumer'])),
    TextColumn(
        'AGE', lambda r: text.age_text(r['age_seconds']), align_right=True, sort_key='age_seconds'
    ),
    TextColumn('LEASE', lease_text, align_right=True, sort_key='lease_seconds'),
    TextColumn('RESOURCES', lambda r: text.short_needs_text(r['resources']), min_width=14),
)


def columns_of(rows: list[dict[str, Any]]) -> list[TextColumn]:
    """Return the columns of claims, with a title for what they are on that is true of all."""
    is_mixed = any(row['kind'] != 'host' for row in rows)
    return [
        column._replace(title='PROVIDER') if is_mixed and column.title == 'HOST' else column
        for column in COLUMNS
    ]


class ClaimList(base.Lister):
    """List the claims; * marks one that was adopted, ! one that cannot be read."""

    may_watch = True
    path = '/v1/claims'
    list_key = 'claims'
    empty_message = 'no claim matches'
    columns = COLUMNS

    def titles(self, rows: list[dict[str, Any]]) -> list[TextColumn]:
        return columns_of(rows)

    arguments = (
        base.arg('--state', choices=STATES),
        base.arg('--host'),
        base.arg('--consumer', metavar='UUID'),
        base.arg('--request', metavar='UUID'),
    )

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        """Return the filters."""
        return {
            'state': None if args.state == LOST_STATE else args.state,
            'lost': 'true' if args.state == LOST_STATE else None,
            'host': args.host,
            'consumer': args.consumer,
            'request_id': args.request,
        }


class ClaimShow(base.Show):
    """Show one claim."""

    arguments = (base.arg('claim', help='its id, or a unique prefix of it'),)

    path = '/v1/claims/{claim}'

    def lines(self, claim: dict[str, Any]) -> list[str]:
        adopted = ', adopted: without a request' if claim['adopted'] else ''
        request = f'{claim["request_id"]}, member {claim["member"]}, attempt {claim["attempt"]}'
        facts = {
            claim['kind']: claim['host'],
            'zone': claim.get('child'),
            'resources': text.shape_text(claim['resources']),
            'consumer': f'{claim["consumer"]} ({claim["consumer_type"]})',
            'request': request if claim['request_id'] else '',
            'made': f'{text.age_text(claim["age_seconds"])} ago ({claim["created_at"]})',
            'lease': f'{lease_text(claim)} left' if claim['lease_seconds'] is not None else '',
            'lifecycle': claim['lifecycle'],
            'purpose': claim['purpose'],
            'group': claim['group'],
            'member': claim.get('member_name'),
            'move': claim['move_id'],
            'project': claim['project_id'],
            'absences': str(claim['absences'] or ''),
            'reason': claim['reason'],
            'problem': claim.get('problem'),
        }
        lines = [f'claim {claim["id"]} is {claim["state"]}{adopted}']
        for name, value in facts.items():
            if value:
                lines.extend(text.wrap(f'  {name:<10} {value}', self.width, ' ' * 13))
        return lines


class ClaimRelease(base.Write):
    """Force a live claim to end; a guest that goes on running is adopted again."""

    arguments = (
        base.arg('claim', help='its id'),
        base.arg('--reason', required=True, help='why; it is kept with the claim'),
    )

    method = 'DELETE'
    path = '/v1/claims/{claim}'

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        return {'reason': args.reason}
