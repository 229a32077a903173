# SPDX-License-Identifier: Apache-2.0
"""``gantt capacity`` and ``gantt roll-up``: how many of a shape fit, and the cloud as one pool."""

import argparse
from typing import Any

from gantt.cli import base, spec, text
from gantt.cli.text import TextColumn


class Capacity(base.Base):
    """Count how many more of a shape fit now, where, and what runs out first."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the spec of the shape."""
        spec.add_arguments(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """POST the spec and print."""
        body = {'spec': spec.body(parsed_args)['spec']}
        answer = self.endpoint.post('/v1/capacity', body)
        kind = body['spec'].get('kind') or 'host'
        lines = _capacity_lines(answer, self.width, kind) + _child_zone_lines(
            answer.get('below') or [], self.width
        )
        return self.show(parsed_args, answer, lines)


def _capacity_lines(capacity: dict[str, Any], width: int, kind: str) -> list[str]:
    where = f'{capacity["eligible"]} of {text.counted_noun(capacity["hosts"], kind)}'
    many = str(capacity['count'] or 'no')
    if capacity['uncounted']:
        many = f'at most {many}'
    lines = text.wrap(f'{many} more of {capacity["shape"]} fit, on {where}', width)
    if not capacity['eligible']:
        lines += text.wrap(capacity['verdict'], width)
        for line in capacity['nearest']:
            lines += text.wrap(f'nearest: {line}', width)
        return lines
    for title, rooms in (
        ('by zone', capacity['by_zone']),
        ('by aggregate', capacity['by_aggregate']),
    ):
        if rooms:
            lines += ['', title, *_rooms_text(rooms)]
    lines += ['', f'by {kind}, most first', *_rooms_text(capacity['by_host'][:10])]
    if len(capacity['by_host']) > 10 or capacity['by_host_truncated']:
        lines.append(f'  and {capacity["eligible"] - 10} more')
    if capacity['runs_out']:
        by_count = sorted(capacity['runs_out'].items(), key=lambda item: (-item[1], item[0]))
        first_out = ', '.join(
            f'{name} on {text.counted_noun(amount, kind)}' for name, amount in by_count
        )
        lines += ['', *text.wrap(f'runs out first: {first_out}', width)]
    if capacity['uncounted']:
        hosts = text.counted_noun(capacity['uncounted'], 'host')
        estimate = (
            f'an estimate: on {hosts} amounts alone were counted, not cells, cores and devices'
        )
        lines += ['', *text.wrap(estimate, width)]
    return lines


def _child_zone_lines(rooms: list[dict[str, Any]], width: int) -> list[str]:
    """Return lines for the capacity of child zones."""
    if not rooms:
        return []
    counted = [room for room in rooms if room['count'] is not None]
    lines = ['', f'in zones below, {sum(room["count"] for room in counted)} more']
    lines += _rooms_text([{'name': room['zone'], 'count': room['count']} for room in counted] or [])
    for room in rooms:
        if room['count'] is None:
            lines += text.wrap(f'not known: zone {room["zone"]}: {room["problem"]}', width)
        elif not room['complete']:
            lines.append(f'zone {room["zone"]}: not all zones below it have answered')
    return lines


def _rooms_text(rooms: list[dict[str, Any]]) -> list[str]:
    size = min(48, max((len(room['name']) for room in rooms), default=0))
    return [f'  {text.cut_text(room["name"], size):<{size}}  {room["count"]}' for room in rooms]


COLUMNS = (
    TextColumn('CLASS', text.value_of_key('resource_class'), min_width=12),
    TextColumn('PROVIDERS', text.value_of_key('providers'), align_right=True),
    TextColumn('CAPACITY', text.value_of_key('capacity'), align_right=True),
    TextColumn('USED', text.value_of_key('used'), align_right=True),
    TextColumn('FREE', text.value_of_key('free'), align_right=True),
    TextColumn('LARGEST', text.value_of_key('largest'), align_right=True),
)


class RollUpShow(base.Base):
    """Show the cloud as one pool: sums of each class, the largest piece, what fits by shape."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
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
        return self.show(parsed_args, roll_up, _roll_up_lines(roll_up, self.width))


def _roll_up_lines(totals: dict[str, Any], width: int) -> list[str]:
    lines = [
        f'{text.counted_noun(totals["hosts"], "host")}, '
        f'{text.counted_noun(totals["providers"], "provider")} in '
        f'{text.counted_noun(totals["trees"], "tree")}',
        '',
        *text.table(COLUMNS, totals['classes'], width),
    ]
    if totals['classes_truncated']:
        lines.append('there are more classes')
    for shape in totals['shapes']:
        many = ('at most ' if shape['uncounted'] else '') + str(shape['count'] or 'no')
        where = f'on {shape["places"]} {shape["on"]}, at most {shape["most"]} on one'
        lines += [
            '',
            *text.wrap(
                f'{many} more of {text.short_needs_text(shape["resources"])} {where}', width
            ),
        ]
    return lines
