# SPDX-License-Identifier: Apache-2.0
"""``gantt capacity``: the number of a shape that fit, where, and what runs out first."""

import argparse
from typing import Any

from gantt.cli import base, spec, text


class Capacity(base.Base):
    """Count how many more of a shape fit now, where, and what runs out first."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the spec of the shape."""
        spec.arguments(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """POST the spec and print."""
        body = {'spec': spec.body(parsed_args)['spec']}
        answer = self.endpoint.post('/v1/capacity', body)
        kind = body['spec'].get('kind') or 'host'
        lines = _lines(answer, self.width, kind) + _below(answer.get('below') or [], self.width)
        return self.show(parsed_args, answer, lines)


def _lines(found: dict[str, Any], width: int, kind: str) -> list[str]:
    where = f'{found["eligible"]} of {text.count(found["hosts"], kind)}'
    many = str(found['count'] or 'no')
    if found['uncounted']:
        many = f'at most {many}'
    lines = text.wrap(f'{many} more of {found["shape"]} fit, on {where}', width)
    if not found['eligible']:
        lines += text.wrap(found['verdict'], width)
        for line in found['nearest']:
            lines += text.wrap(f'nearest: {line}', width)
        return lines
    for title, rooms in (('by zone', found['by_zone']), ('by aggregate', found['by_aggregate'])):
        if rooms:
            lines += ['', title, *_rooms(rooms)]
    lines += ['', f'by {kind}, most first', *_rooms(found['by_host'][:10])]
    if len(found['by_host']) > 10 or found['by_host_truncated']:
        lines.append(f'  and {found["eligible"] - 10} more')
    if found['runs_out']:
        by_count = sorted(found['runs_out'].items(), key=lambda item: (-item[1], item[0]))
        first_out = ', '.join(f'{name} on {text.count(amount, kind)}' for name, amount in by_count)
        lines += ['', *text.wrap(f'runs out first: {first_out}', width)]
    if found['uncounted']:
        hosts = text.count(found['uncounted'], 'host')
        estimate = (
            f'an estimate: on {hosts} amounts alone were counted, not cells, cores and devices'
        )
        lines += ['', *text.wrap(estimate, width)]
    return lines


def _below(rooms: list[dict[str, Any]], width: int) -> list[str]:
    """Return lines for the capacity of child zones."""
    if not rooms:
        return []
    counted = [room for room in rooms if room['count'] is not None]
    lines = ['', f'in zones below, {sum(room["count"] for room in counted)} more']
    lines += _rooms([{'name': room['zone'], 'count': room['count']} for room in counted] or [])
    for room in rooms:
        if room['count'] is None:
            lines += text.wrap(f'not known: zone {room["zone"]}: {room["problem"]}', width)
        elif not room['complete']:
            lines.append(f'zone {room["zone"]}: not all zones below it have answered')
    return lines


def _rooms(rooms: list[dict[str, Any]]) -> list[str]:
    size = min(48, max((len(room['name']) for room in rooms), default=0))
    return [f'  {text.cut(room["name"], size):<{size}}  {room["count"]}' for room in rooms]
