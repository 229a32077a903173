# SPDX-License-Identifier: Apache-2.0
"""``gantt zone tree``: this zone, those above and those directly below."""

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

from gantt.cli import base, text


class ZoneTreeShow(base.Base):
    """Show this zone, the zones above it, and how those directly below it are.

    A zone says nothing of the zones below it but how many hosts there are: ask there to see them.
    """

    may_watch = True

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch and print."""
        tree = self.endpoint.get('/v1/zone-tree')
        return self.show(parsed_args, tree, _lines(tree, self.width))


def _lines(found: dict[str, Any], width: int) -> list[str]:
    lines = [
        f'{parent["name"]} (above): {", ".join(_above(parent))}' for parent in found['parents']
    ]
    indent = '└─ ' if lines else ''
    name = found['site'] or 'this zone'
    hosts = text.count(found['hosts'], 'host')
    claims = text.count(found['claims'], 'live claim')
    lines.append(f'{indent}{name} ({found["uuid"]}): {hosts}, {found["hosts_up"]} up, {claims}')
    children = found['children']
    for number, child in enumerate(children, 1):
        is_last = number == len(children)
        first = ' ' * len(indent) + ('└─ ' if is_last else '├─ ')
        rest = ' ' * len(indent) + ('   ' if is_last else '│  ')
        words = f'{first}{child["name"]}: {", ".join(_below(child))}'
        lines += text.wrap(words, width, f'{rest}  ')
        if child['problem']:
            lines += text.wrap(f'{rest}  {child["problem"]}', width, f'{rest}  ')
    return lines


def _above(parent: dict[str, Any]) -> Iterator[str]:
    if not parent['enabled']:
        yield 'disabled'
    yield f'project {parent["project_id"]}'
    yield f'leases of {parent["lease_seconds_max"]} s at most'
    yield f'{text.count(parent["claims"], "live claim")} of it here'


def _below(child: dict[str, Any]) -> Iterable[str]:
    latency = child['milliseconds']
    state = child['state'].replace('_', ' ')
    yield f'{state} in {latency:g} ms' if latency is not None and state == 'responding' else state
    if child['hosts'] is not None:
        hosts = text.count(child['hosts'], 'host')
        yield f'{hosts}, {child["room"]} with room for a vCPU'
        if not child['complete']:
            yield 'not all below it have answered'
    if child['last_resort']:
        yield 'last resort'
    yield f'{text.count(child["claims"], "live claim")} of here'
