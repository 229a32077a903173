# SPDX-License-Identifier: Apache-2.0
"""``gantt roll-up``: the cloud as one pool."""

import argparse
from typing import Any

from gantt.cli import base, text
from gantt.cli.text import TextColumn

COLUMNS = (
    TextColumn('CLASS', text.key('resource_class'), least=12),
    TextColumn('PROVIDERS', text.key('providers'), right=True),
    TextColumn('CAPACITY', text.key('capacity'), right=True),
    TextColumn('USED', text.key('used'), right=True),
    TextColumn('FREE', text.key('free'), right=True),
    TextColumn('LARGEST', text.key('largest'), right=True),
)


class RollUpShow(base.Base):
    """Show the cloud as one pool: sums of each class, the largest piece, what fits by shape."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the shapes."""
        parser.add_argument(
            '--shape',
            action='append',
            default=[],
            metavar='CLASS:AMOUNT,...',
            help='count how many more of it fit, such as VCPU:2,MEMORY_MB:4096; may be repeated',
        )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch and print."""
        query = {'shapes': ';'.join(parsed_args.shape)} if parsed_args.shape else {}
        roll_up = self.endpoint.get('/v1/roll-up', **query)
        return self.show(parsed_args, roll_up, _lines(roll_up, self.width))


def _lines(found: dict[str, Any], width: int) -> list[str]:
    lines = [
        f'{text.count(found["hosts"], "host")}, {text.count(found["providers"], "provider")} in '
        f'{text.count(found["trees"], "tree")}',
        '',
        *text.table(COLUMNS, found['classes'], width),
    ]
    if found['classes_truncated']:
        lines.append('there are more classes')
    for shape in found['shapes']:
        many = ('at most ' if shape['uncounted'] else '') + str(shape['count'] or 'no')
        where = f'on {shape["places"]} {shape["on"]}, at most {shape["most"]} on one'
        lines += ['', *text.wrap(f'{many} more of {text.needs(shape["resources"])} {where}', width)]
    return lines
