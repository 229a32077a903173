# SPDX-License-Identifier: Apache-2.0
"""``gantt claim``: list, show, release."""

import argparse
from typing import Any

from gantt.cli import base, text
from gantt.cli.text import TextColumn
from gantt.core.zones.messages import LOST

STATES = ('reserved', 'confirmed', 'released', 'expired', 'refused', LOST)


def lease(row: dict[str, Any]) -> str:
    """Return the remaining lease of a reserved claim as text."""
    seconds_left = row['lease_seconds']
    if seconds_left is None:
        return '-'
    return text.age(seconds_left) if seconds_left > 0 else 'over'


def marks(row: dict[str, Any]) -> str:
    """Return marks for an adopted claim, and for one that cannot be read."""
    return '*' * row['adopted'] + '!' * bool(row.get('problem'))


def zone(row: dict[str, Any]) -> str:
    """Return the child zone of a claim; empty for a local one."""
    return f'zone {row["child"]}' if row.get('child') else ''


COLUMNS = (
    TextColumn('CLAIM', lambda r: text.short_id(r['id'])),
    TextColumn(
        'STATE',
        lambda r: r['state'] + marks(r),
    ),
    TextColumn('HOST', lambda r: r['host'] or zone(r), least=12),
    TextColumn('CONSUMER', lambda r: text.short_id(r['consumer'])),
    TextColumn('AGE', lambda r: text.age(r['age_seconds']), right=True, by='age_seconds'),
    TextColumn('LEASE', lease, right=True, by='lease_seconds'),
    TextColumn('RESOURCES', lambda r: text.needs(r['resources']), least=14),
)


class ClaimList(base.Lister):
    """List the claims; * marks one that was adopted, ! one that cannot be read."""

    may_watch = True
    path = '/v1/claims'
    member = 'claims'
    nothing = 'no claim matches'
    columns = COLUMNS

    takes = (
        base.arg('--state', choices=STATES),
        base.arg('--host'),
        base.arg('--consumer', metavar='UUID'),
        base.arg('--request', metavar='UUID'),
    )

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        """Return the filters."""
        return {
            'state': None if args.state == LOST else args.state,
            'lost': 'true' if args.state == LOST else None,
            'host': args.host,
            'consumer': args.consumer,
            'request_id': args.request,
        }


class ClaimShow(base.Show):
    """Show one claim."""

    takes = (base.arg('claim', help='its id, or a unique prefix of it'),)

    path = '/v1/claims/{claim}'

    def lines(self, claim: dict[str, Any]) -> list[str]:
        adopted = ', adopted: without a request' if claim['adopted'] else ''
        request = f'{claim["request_id"]}, member {claim["member"]}, attempt {claim["attempt"]}'
        facts = {
            'host': claim['host'],
            'zone': claim.get('child'),
            'resources': text.shape(claim['resources']),
            'consumer': f'{claim["consumer"]} ({claim["consumer_type"]})',
            'request': request if claim['request_id'] else '',
            'made': f'{text.age(claim["age_seconds"])} ago ({claim["created_at"]})',
            'lease': f'{lease(claim)} left' if claim['lease_seconds'] is not None else '',
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

    takes = (
        base.arg('claim', help='its id'),
        base.arg('--reason', required=True, help='why; it is kept with the claim'),
    )

    method = 'DELETE'
    path = '/v1/claims/{claim}'

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        return {'reason': args.reason}
