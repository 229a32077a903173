# SPDX-License-Identifier: Apache-2.0
"""``gantt aggregate``: list, set, remove."""

import argparse
from typing import Any

from gantt.cli import base, parsing, text
from gantt.cli.text import TextColumn


def _metadata_text(row: dict[str, Any]) -> str:
    rest = {key: value for key, value in row['metadata'].items() if key != 'availability_zone'}
    return ', '.join(f'{key}={value}' for key, value in sorted(rest.items())) or '-'


class AggregateList(base.Lister):
    """List the aggregates."""

    path = '/v1/aggregates'
    list_key = 'aggregates'
    empty_message = 'there is no aggregate'
    columns = (
        TextColumn('AGGREGATE', text.value_of_key('name'), min_width=16),
        TextColumn('UUID', lambda r: text.short_id(r['uuid'])),
        TextColumn('ZONE', lambda r: r['metadata'].get('availability_zone', '-'), min_width=8),
        TextColumn('HOSTS', lambda r: str(len(r['hosts'])), align_right=True),
        TextColumn('METADATA', _metadata_text, min_width=16),
    )


class AggregateSet(base.Write):
    """Create an aggregate or change it."""

    arguments = (
        base.arg('aggregate', help='its name'),
        base.arg(
            '--property',
            action='append',
            type=parsing.pair,
            default=[],
            metavar='KEY=VALUE',
            help='metadata; KEY= takes the key away (may be repeated)',
        ),
        base.arg('--zone', help='the availability zone of its hosts'),
        base.arg(
            '--host',
            action='append',
            metavar='HOST',
            help='its hosts, replacing those it has (may be repeated); none given: unchanged',
        ),
        base.arg('--no-hosts', action='store_true', help='take every host out'),
    )

    path = '/v1/aggregates/{aggregate}'

    def body(self, args: argparse.Namespace) -> Any:
        metadata = dict(args.property)
        if args.zone is not None:
            metadata['availability_zone'] = args.zone
        hosts = [] if args.no_hosts else args.host
        return {'metadata': metadata, 'hosts': hosts}


class AggregateRemove(base.Write):
    """Remove an aggregate; its hosts stay."""

    arguments = (base.arg('aggregate', help='its name or uuid'),)

    method = 'DELETE'
    path = '/v1/aggregates/{aggregate}'
