# SPDX-License-Identifier: Apache-2.0
"""``gantt metric``: list, set, remove."""

import argparse
from typing import Any

from gantt.cli import base, parsing, text
from gantt.cli.text import TextColumn


def _number_text(key: str) -> Any:
    return lambda row: '-' if row[key] is None else f'{row[key]:g}'


def _hosts_text(row: dict[str, Any]) -> str:
    return f'{row["hosts"]} ({row["silent"]} silent)' if row['silent'] else str(row['hosts'])


class MetricList(base.Lister):
    """List the declared metrics, and those that hosts report."""

    path = '/v1/declared-metrics'
    list_key = 'metrics'
    empty_message = 'no metric is declared, and no host reports one'
    columns = (
        TextColumn('METRIC', text.value_of_key('name'), min_width=16),
        TextColumn('DECLARED', lambda r: 'yes' if r['declared'] else 'no'),
        TextColumn('UNIT', lambda r: r['unit'] or '-'),
        TextColumn('LOWER', _number_text('lower'), align_right=True),
        TextColumn('UPPER', _number_text('upper'), align_right=True),
        TextColumn('STALE AFTER', _number_text('stale_seconds'), align_right=True),
        TextColumn('HOSTS', _hosts_text, align_right=True),
    )


class MetricSet(base.Write):
    """Declare a metric, or change what is declared; what is left out is not declared."""

    arguments = (
        base.arg('metric', help='its name, as hosts report it'),
        base.arg('--unit', default='', help='what 1 means'),
        base.arg(
            '--lower',
            type=parsing.any_number,
            metavar='NUMBER',
            help='the least that a value can be',
        ),
        base.arg(
            '--upper',
            type=parsing.any_number,
            metavar='NUMBER',
            help='the most that a value can be',
        ),
        base.arg(
            '--stale-after',
            type=parsing.any_number,
            metavar='SECONDS',
            help='a value older than this has no say',
        ),
        base.arg('--description', default='', help='what it is, for people'),
    )

    path = '/v1/declared-metrics/{metric}'

    def body(self, args: argparse.Namespace) -> Any:
        return {
            'unit': args.unit,
            'lower': args.lower,
            'upper': args.upper,
            'stale_seconds': args.stale_after,
            'description': args.description,
        }


class MetricRemove(base.Write):
    """Take a declaration back; what hosts report under the name goes on to count."""

    arguments = (base.arg('metric', help='its name'),)

    method = 'DELETE'
    path = '/v1/declared-metrics/{metric}'
